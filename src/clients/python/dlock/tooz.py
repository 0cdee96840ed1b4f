"""A driver of tooz, the coordination library of OpenStack: dlock://user:password@host:port/database?timeout=30

Other options are settings of libpq, such as sslmode.  A lock, and the leadership of a group, are leases that the
session of the process renews.  A membership is a lease, too, but one that lasts for "timeout" seconds from the last
heartbeat.  What outlasts leases stands in two tables: which groups there are; and the capabilities of members, which count
as long as their lease is held.  They are made in the schema that tables are created in, unless they are there.
"""

import contextlib
import functools
import hashlib
import os
from concurrent.futures import Future
from typing import Any, Callable, Coroutine, Dict, Iterator, List, Optional, Set, Tuple

import psycopg
import tooz
from psycopg.conninfo import make_conninfo
from tooz import coordination, locking, utils

from . import Lease, LeaseError, LeaseRefused, ServerUnreachable, connect
from ._core import Errand, Promise
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
    except ServerUnreachable as error:
        raise coordination.ToozConnectionError(str(error)) from error
    except (LeaseError, psycopg.Error) as error:
        raise tooz.ToozError(str(error)) from error


def soon(work: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """What the driver is asked for is done one after the other."""
    @functools.wraps(work)
    def submit(self: 'DlockDriver', *args: Any, **options: Any) -> Any:
        future: 'Future[Any]' = Future()
        errand = Errand(self._in_order(work(self, *args, **options)))

        def told() -> None:
            try:
                future.set_result(errand.result())
            except Exception as error:
                future.set_exception(error)
        errand.then(told)
        errand.core.inbox.put(errand.begin)
        return coordination.CoordinatorResult(future, translated)
    return submit


class Lock(locking.Lock):       # type: ignore[misc]
    """Acquired shared several times, it is as many leases."""

    def __init__(self, driver: 'DlockDriver', name: bytes) -> None:
        super().__init__(name)
        self._driver = driver
        self._leases: List[Lease] = []

    def acquire(self, blocking: Any = True, shared: bool = False) -> bool:
        waits, timeout = utils.convert_blocking(blocking)
        lease = self._driver._lease(lock_name('lock', self.name), wait=timeout if waits else 0, mode='shared' if shared else 'exclusive')
        if lease:
            self._leases.append(lease)
            self._driver._locks.add(self)
        return lease is not None

    def release(self) -> bool:
        try:
            self._leases.pop().release()
        except (IndexError, LeaseError):
            return False
        return True

    def is_still_owner(self) -> bool:
        return any(not lease.lost for lease in self._leases)

    def break_(self) -> bool:
        rows: List[Row] = self._driver._soon('SELECT {}dlock_force_release($1, $2)', lock_name('lock', self.name), 'broken in tooz').get()
        return rows[0][0] != '0'


class DlockDriver(coordination.CoordinationDriverCachedRunWatchers):    # type: ignore[misc]
    CHARACTERISTICS = (coordination.Characteristics.DISTRIBUTED_ACROSS_THREADS, coordination.Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
                       coordination.Characteristics.DISTRIBUTED_ACROSS_HOSTS, coordination.Characteristics.LINEARIZABLE)

    def __init__(self, member_id: bytes, url: Any, options: Dict[str, Any]) -> None:
        super().__init__(member_id, url, options)
        settings = {'host': url.hostname, 'port': url.port, 'user': url.username, 'password': url.password, 'dbname': url.path.lstrip('/'),
                    **utils.collapse(options)}
        self._timeout = float(settings.pop('timeout', 30))
        self._session = connect(make_conninfo('', **{key: value for key, value in settings.items() if value}))
        self._memberships: Dict[bytes, Tuple[str, str]] = {}    # their leases and tokens
        self._leads: Dict[bytes, Lease] = {}
        self._locks: Set[Lock] = set()
        self._last: Tuple[int, Promise[None]] = (0, Promise())      # what was asked for before, in this process

    async def _in_order(self, work: Coroutine[Any, Any, Any]) -> Any:
        before, this = self._last, (os.getpid(), Promise[None]())
        self._last = this
        if before[0] == this[0]:
            await before[1]
        try:
            return await work
        finally:
            this[1].set()

    async def _ask(self, sql: str, *params: Optional[str]) -> List[Row]:
        """{} stands for the schema of dlock's functions."""
        return (await self._session._lines.ask(Kind(sql), params)).rows

    _soon = soon(_ask)

    def _lease(self, name: str, **options: Any) -> Optional[Lease]:
        with translated():
            try:
                return self._session.lease(name, task=self._session._new_task(), **options).acquire()
            except LeaseRefused:
                return None

    def _start(self) -> None:
        with translated(), self._session.lease('tooz:tables', wait=60):
            if self._soon("SELECT to_regclass('dlock_tooz_members')").get() == [[None]]:
                self._soon('CREATE TABLE dlock_tooz_groups (id bytea PRIMARY KEY)').get()
                self._soon("""CREATE TABLE dlock_tooz_members (group_id bytea REFERENCES dlock_tooz_groups, member bytea, capabilities bytea,
                    lease text NOT NULL, token bigint NOT NULL, PRIMARY KEY (group_id, member))""").get()

    def _stop(self) -> None:
        for lease in [*self._leads.values(), *(lease for lock in self._locks for lease in lock._leases)]:
            with contextlib.suppress(LeaseError):
                lease.release()
        self._leads.clear()

    async def _group(self, group_id: bytes) -> Dict[bytes, Any]:
        """Its live members, with their capabilities."""
        rows = await self._ask("""SELECT encode(member, 'hex'), encode(capabilities, 'hex') FROM dlock_tooz_groups LEFT JOIN dlock_tooz_members
            ON group_id = id AND {}dlock_check(lease, token) WHERE id = $1""", bytea(group_id))
        if not rows:
            raise coordination.GroupNotCreated(group_id)
        return {bytes.fromhex(member): utils.loads(bytes.fromhex(capabilities or '')) for member, capabilities in rows if member}

    @soon
    async def create_group(self, group_id: bytes) -> None:
        if not await self._ask('INSERT INTO dlock_tooz_groups VALUES ($1) ON CONFLICT DO NOTHING RETURNING true', bytea(group_id)):
            raise coordination.GroupAlreadyExist(group_id)

    @soon
    async def delete_group(self, group_id: bytes) -> None:
        await self._group(group_id)
        try:
            await self._ask("""WITH dead AS (DELETE FROM dlock_tooz_members WHERE group_id = $1 AND NOT {}dlock_check(lease, token))
                DELETE FROM dlock_tooz_groups WHERE id = $1""", bytea(group_id))
        except psycopg.errors.ForeignKeyViolation:
            raise coordination.GroupNotEmpty(group_id) from None

    def _destroy_group(self, group_id: bytes) -> None:
        self._soon('DELETE FROM dlock_tooz_members WHERE group_id = $1 RETURNING {}dlock_release_token(lease, token)', bytea(group_id)).get()
        self.delete_group(group_id).get()

    @soon
    async def get_groups(self) -> List[bytes]:
        return [bytes.fromhex(id or '') for id, in await self._ask("SELECT encode(id, 'hex') FROM dlock_tooz_groups")]

    @soon
    async def join_group(self, group_id: bytes, capabilities: Any = b'') -> None:
        await self._group(group_id)
        lease = lock_name('member', group_id, self._member_id)
        (token,), = await self._ask('SELECT {}dlock_acquire($1, owner => $2, ttl => make_interval(secs => $3))', lease,
                                    f'{self._session.client}#tooz', str(self._timeout))
        if token is None:
            raise coordination.MemberAlreadyExist(group_id, self._member_id)
        try:
            await self._ask("""WITH dead AS (DELETE FROM dlock_tooz_members WHERE group_id = $1 AND member <> $2 AND NOT {}dlock_check(lease, token))
                INSERT INTO dlock_tooz_members VALUES ($1, $2, $3, $4, $5) ON CONFLICT (group_id, member)
                DO UPDATE SET capabilities = excluded.capabilities, lease = excluded.lease, token = excluded.token""",
                            bytea(group_id), bytea(self._member_id), bytea(utils.dumps(capabilities)), lease, token)
        except psycopg.errors.ForeignKeyViolation:
            await self._ask('SELECT {}dlock_release_token($1, $2)', lease, token)
            raise coordination.GroupNotCreated(group_id) from None
        self._memberships[group_id] = lease, token
        self._joined_groups.add(group_id)

    @soon
    async def leave_group(self, group_id: bytes) -> None:
        await self._group(group_id)
        self._memberships.pop(group_id, None)
        self._joined_groups.discard(group_id)
        if await self._ask('DELETE FROM dlock_tooz_members WHERE group_id = $1 AND member = $2 RETURNING {}dlock_release_token(lease, token)',
                           bytea(group_id), bytea(self._member_id)) != [['t']]:
            raise coordination.MemberNotJoined(group_id, self._member_id)

    @soon
    async def get_members(self, group_id: bytes) -> Set[bytes]:
        return set(await self._group(group_id))

    async def _capabilities(self, group_id: bytes, member_id: bytes) -> Any:
        try:
            return (await self._group(group_id))[utils.to_binary(member_id, 'utf-8')]
        except KeyError:
            raise coordination.MemberNotJoined(group_id, member_id) from None

    @soon
    async def get_member_capabilities(self, group_id: bytes, member_id: bytes) -> Any:
        return await self._capabilities(group_id, member_id)

    @soon
    async def get_member_info(self, group_id: bytes, member_id: bytes) -> Dict[str, Any]:
        return {'capabilities': await self._capabilities(group_id, member_id)}

    @soon
    async def update_capabilities(self, group_id: bytes, capabilities: Any) -> None:
        if not await self._ask("""UPDATE dlock_tooz_members SET capabilities = $3 WHERE group_id = $1 AND member = $2 AND {}dlock_check(lease, token)
                RETURNING true""", bytea(group_id), bytea(self._member_id), bytea(utils.dumps(capabilities))):
            raise coordination.MemberNotJoined(group_id, self._member_id)

    def heartbeat(self) -> float:
        for renewal in [self._soon('SELECT {}dlock_renew_token($1, $2)', *membership) for membership in self._memberships.values()]:
            renewal.get()
        return self._timeout / 3

    def run_watchers(self, timeout: Optional[float] = None) -> Any:
        result = super().run_watchers(timeout=timeout)
        self.run_elect_coordinator()
        return result

    def run_elect_coordinator(self) -> None:
        for group_id, hooks in list(self._hooks_elected_leader.items()):
            if group_id not in self._leads or self._leads[group_id].lost:
                lease = self._lease(lock_name('leader', group_id), payload=bytea(self._member_id)[2:])
                if lease:
                    self._leads[group_id] = lease
                    hooks.run(coordination.LeaderElected(group_id, self._member_id))

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        try:
            self._leads.pop(group_id).release()
        except (KeyError, LeaseError):
            return False
        return True

    @soon
    async def get_leader(self, group_id: bytes) -> Optional[bytes]:
        rows = await self._ask("SELECT trim('\"' FROM payload::text) FROM {}dlock_lease($1) WHERE state = 'held'", lock_name('leader', group_id))
        return bytes.fromhex(rows[0][0] or '') if rows else None

    def get_lock(self, name: bytes) -> Lock:
        return Lock(self, name)
