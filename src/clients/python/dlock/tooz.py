"""A driver of tooz, the coordination library of OpenStack: dlock://user:password@host:port/database?timeout=30

Other options are settings of libpq, such as sslmode.  Locks, and the leadership of groups, are leases that the session of the process
renews; a membership is one that lasts for "timeout" seconds from the last heartbeat.  Groups, and the capabilities of members, which count
as long as their lease is held, stand in two tables, which are made in the schema that tables are created in, unless they are there.
"""

import contextlib
import hashlib
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

import psycopg
from psycopg.conninfo import make_conninfo
from tooz import ToozError, coordination, locking, utils

from . import Lease, LeaseError, LeaseRefused, ServerUnreachable, connect
from ._core import run
from ._lines import Kind, Row


def lock_name(kind: str, *ids: Any) -> str:
    binary: bytes = b'/'.join(utils.to_binary(id, 'utf-8').replace(b'%', b'%25').replace(b'/', b'%2f') for id in ids)
    name = binary.decode(errors='backslashreplace').replace('\0', '%00')
    return f'tooz:{kind}:' + (name if len(name.encode()) <= 200 else hashlib.sha256(binary).hexdigest())


def bytea(value: Any) -> str:
    return '\\x' + str(utils.to_binary(value, 'utf-8').hex())


@contextlib.contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except (LeaseError, psycopg.Error) as error:
        raise (coordination.ToozConnectionError if isinstance(error, ServerUnreachable) else ToozError)(str(error)) from error


def soon(work: Callable[..., Any]) -> Callable[..., Any]:
    """The driver's thread does that, after what it was asked for before."""
    def submit(driver: 'DlockDriver', *args: Any, **options: Any) -> Any:
        return coordination.CoordinatorResult(driver._executor.submit(work, driver, *args, **options), translated)
    return submit


class Lock(locking.Lock):       # type: ignore[misc]
    """Acquired shared several times, it is as many leases."""

    def __init__(self, driver: 'DlockDriver', name: bytes) -> None:
        super().__init__(name)
        self._driver = driver
        self._leases: List[Lease] = []

    def acquire(self, blocking: Any = True, shared: bool = False) -> bool:
        waits, timeout = utils.convert_blocking(blocking)
        if lease := self._driver._lease(lock_name('lock', self.name), wait=timeout if waits else 0, mode='shared' if shared else 'exclusive'):
            self._leases.append(lease)
        return lease is not None

    def release(self) -> bool:
        with contextlib.suppress(IndexError, LeaseError):
            self._leases.pop().release()
            return True
        return False

    def is_still_owner(self) -> bool:
        return any(not lease.lost for lease in self._leases)

    def break_(self) -> bool:
        return bool(self._driver._soon('SELECT {}dlock_force_release($1, $2)', lock_name('lock', self.name), 'broken in tooz').get() != [['0']])


class DlockDriver(coordination.CoordinationDriverCachedRunWatchers, coordination.CoordinationDriverWithExecutor):    # type: ignore[misc]
    CHARACTERISTICS = (coordination.Characteristics.DISTRIBUTED_ACROSS_THREADS, coordination.Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
                       coordination.Characteristics.DISTRIBUTED_ACROSS_HOSTS, coordination.Characteristics.LINEARIZABLE)

    def __init__(self, member_id: bytes, url: Any, options: Dict[str, Any]) -> None:
        super().__init__(member_id, url, options)
        self._timeout = float(self._options.get('timeout', 30))
        self._session = connect(make_conninfo(f'postgresql://{url.netloc}{url.path}', **{**self._options, 'timeout': None, 'executor': None}))
        self._owner = f'{self._session.client}#{self._session._new_task()}'     # of memberships
        self._leases: 'weakref.WeakSet[Lease]' = weakref.WeakSet()      # of locks and leaders
        self._leads: Dict[bytes, Lease] = {}

    def _ask(self, sql: str, *params: Optional[str]) -> List[Row]:
        """{} stands for the schema of dlock's functions."""
        return run(self._session._lines.ask(Kind(sql), params)).rows

    def _lease(self, name: str, **options: Any) -> Optional[Lease]:
        with translated(), contextlib.suppress(LeaseRefused):
            lease = self._session.lease(name, task=self._session._new_task(), **options).acquire()
            self._leases.add(lease)
            return lease
        return None

    def _start(self) -> None:
        with translated(), self._session.lease('tooz:tables', wait=60):
            if self._ask("SELECT to_regclass('dlock_tooz_members')") == [[None]]:
                self._ask('CREATE TABLE dlock_tooz_groups (id bytea PRIMARY KEY)')
                self._ask("""CREATE TABLE dlock_tooz_members (group_id bytea REFERENCES dlock_tooz_groups, member bytea, capabilities bytea,
                    lease text NOT NULL, token bigint NOT NULL, PRIMARY KEY (group_id, member))""")

    def _stop(self) -> None:
        for lease in list(self._leases):
            with contextlib.suppress(LeaseError):
                lease.release()

    def _group(self, group_id: bytes) -> Dict[bytes, Any]:
        """Its live members, with their capabilities."""
        rows = self._ask("""SELECT encode(member, 'hex'), encode(capabilities, 'hex') FROM dlock_tooz_groups LEFT JOIN dlock_tooz_members
            ON group_id = id AND {}dlock_check(lease, token) WHERE id = $1""", bytea(group_id))
        if not rows:
            raise coordination.GroupNotCreated(group_id)
        return {bytes.fromhex(member): utils.loads(bytes.fromhex(capabilities or '')) for member, capabilities in rows if member}

    def _member(self, group_id: bytes, member_id: bytes) -> Dict[str, Any]:
        try:
            return {'capabilities': self._group(group_id)[utils.to_binary(member_id, 'utf-8')]}
        except KeyError:
            raise coordination.MemberNotJoined(group_id, member_id) from None

    _soon = soon(_ask)
    get_groups = soon(lambda self: [bytes.fromhex(id) for id, in self._ask("SELECT encode(id, 'hex') FROM dlock_tooz_groups")])
    get_members = soon(lambda self, group_id: set(self._group(group_id)))
    get_member_info = soon(_member)
    get_member_capabilities = soon(lambda self, group_id, member_id: self._member(group_id, member_id)['capabilities'])
    get_leader = soon(lambda self, group_id: next((bytes.fromhex(member) for member, in self._ask(
        "SELECT trim('\"' FROM payload::text) FROM {}dlock_lease($1) WHERE state = 'held'", lock_name('leader', group_id))), None))

    @soon
    def create_group(self, group_id: bytes) -> None:
        if not self._ask('INSERT INTO dlock_tooz_groups VALUES ($1) ON CONFLICT DO NOTHING RETURNING true', bytea(group_id)):
            raise coordination.GroupAlreadyExist(group_id)

    @soon
    def delete_group(self, group_id: bytes) -> None:
        self._group(group_id)
        try:
            self._ask("""WITH dead AS (DELETE FROM dlock_tooz_members WHERE group_id = $1 AND NOT {}dlock_check(lease, token))
                DELETE FROM dlock_tooz_groups WHERE id = $1""", bytea(group_id))
        except psycopg.errors.ForeignKeyViolation:
            raise coordination.GroupNotEmpty(group_id) from None

    def _destroy_group(self, group_id: bytes) -> None:
        self._soon('DELETE FROM dlock_tooz_members WHERE group_id = $1 RETURNING {}dlock_release_token(lease, token)', bytea(group_id)).get()
        self.delete_group(group_id).get()

    @soon
    def join_group(self, group_id: bytes, capabilities: Any = b'') -> None:
        lease = lock_name('member', group_id, self._member_id)
        (token,), = self._ask('SELECT {}dlock_acquire($1, owner => $2, ttl => make_interval(secs => $3))', lease, self._owner, str(self._timeout))
        if token is None:
            raise coordination.MemberAlreadyExist(group_id, self._member_id)
        self._ask('DELETE FROM dlock_tooz_members WHERE group_id = $1 AND NOT {}dlock_check(lease, token)', bytea(group_id))
        try:
            self._ask('INSERT INTO dlock_tooz_members VALUES ($1, $2, $3, $4, $5)',
                      bytea(group_id), bytea(self._member_id), bytea(utils.dumps(capabilities)), lease, token)
        except psycopg.errors.ForeignKeyViolation:
            self._ask('SELECT {}dlock_release_token($1, $2)', lease, token)
            raise coordination.GroupNotCreated(group_id) from None
        self._joined_groups.add(group_id)

    @soon
    def leave_group(self, group_id: bytes) -> None:
        self._group(group_id)
        self._joined_groups.discard(group_id)
        if self._ask('DELETE FROM dlock_tooz_members WHERE group_id = $1 AND member = $2 RETURNING {}dlock_release_token(lease, token)',
                     bytea(group_id), bytea(self._member_id)) != [['t']]:
            raise coordination.MemberNotJoined(group_id, self._member_id)

    @soon
    def update_capabilities(self, group_id: bytes, capabilities: Any) -> None:
        if not self._ask("""UPDATE dlock_tooz_members SET capabilities = $3 WHERE group_id = $1 AND member = $2 AND {}dlock_check(lease, token)
                RETURNING true""", bytea(group_id), bytea(self._member_id), bytea(utils.dumps(capabilities))):
            raise coordination.MemberNotJoined(group_id, self._member_id)

    def heartbeat(self) -> float:
        self._soon('SELECT {}dlock_renew_all($1)', self._owner).get()
        return self._timeout / 3

    def run_watchers(self, timeout: Optional[float] = None) -> Any:
        self.run_elect_coordinator()
        return super().run_watchers(timeout=timeout)

    def run_elect_coordinator(self) -> None:
        for group_id, hooks in list(self._hooks_elected_leader.items()):
            if group_id not in self._leads or self._leads[group_id].lost:
                if lease := self._lease(lock_name('leader', group_id), payload=bytea(self._member_id)[2:]):
                    self._leads[group_id] = lease
                    hooks.run(coordination.LeaderElected(group_id, self._member_id))

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        with contextlib.suppress(KeyError, LeaseError):
            self._leads.pop(group_id).release()
            return True
        return False

    def get_lock(self, name: bytes) -> Lock:
        return Lock(self, name)
