"""What is held for a time: a lease, or a task that was captured.

The session renews it.  The deadline is counted from before a request was sent that the server has granted,
so it is never later than that of the server.  The work is told to stop when the server says that the hold
is lost, and at the latest "margin" before the deadline: lost turns true, transactions lose
their connections, an async block is cancelled, and on_lost is called.

The fields are changed under the lock of the hold, as what watches the deadlines does without the other one.
"""

import socket
import threading
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Dict, Iterator, List, Optional, Set

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from ._core import Promise, Work, core, is_current, run, run_to_end
from ._errors import LeaseError, LeaseLost, ServerUnreachable
from ._lines import URGENT, Answer, Kind
from ._values import literal, now

if TYPE_CHECKING:
    from ._session import Session, Want

# How often to renew, which is how a loss is learned of, and how long before its end a
# lease is given up that was not renewed; both a sixth of the ttl if that is less.
RENEW_EVERY = 2.0
MARGIN = 5.0

# How long to go on trying to give back what is held.
GIVE_BACK_WITHIN = 3.0


RENEW = Kind('SELECT {}dlock_renew_each($1, $2)', True, URGENT)
RELEASE = Kind('SELECT {}dlock_release_each($1, $2)', True, URGENT)


def presentation(*leases: 'Lease') -> str:
    """A statement without parameters that adds tokens to those that a transaction presents."""
    pairs = []
    for lease in leases:
        lease.check()
        for name, token in lease.tokens.items():
            quoted = name.replace('"', '""')
            pairs.append(literal(f'"{quoted}={token}"'))
    return f"""SELECT set_config('dlock.tokens', concat_ws(',', nullif(t, ''), (SELECT string_agg(p, ',')
        FROM unnest(ARRAY[{', '.join(pairs)}]) AS p WHERE position(p || ',' IN t || ',') = 0)), true)
        FROM (SELECT coalesce(current_setting('dlock.tokens', true), '')) AS old(t)"""


def present(tx: Any, *leases: 'Lease') -> Any:
    """Present the tokens in a transaction that somebody else has begun: on a connection, or by a function that runs a statement."""
    return (getattr(tx, 'exec_driver_sql', None) or getattr(tx, 'execute', None) or tx)(presentation(*leases))


def cut(conn: Any) -> None:
    """Take a connection away from what uses it; the server rolls back."""
    def send() -> None:
        try:
            cancel.cancel()
        except psycopg.Error:
            pass
    try:
        cancel = conn.pgconn.get_cancel()
        # Not a copy of the descriptor, as there may be none left.
        shared = socket.socket(fileno=conn.pgconn.socket)
        try:
            shared.shutdown(socket.SHUT_RDWR)
        finally:
            shared.detach()
        threading.Thread(target=send, daemon=True).start()
    except (OSError, RuntimeError, psycopg.Error):
        pass


def margin(ttl: float) -> float:
    return min(ttl / 6, MARGIN)


class Hold:
    token: int

    def __init__(self, session: 'Session', what: str, ttl: float, sent: float, on_lost: Optional[Callable[[Any], Any]] = None) -> None:
        self._session = session
        self._core = core()
        self._what = what
        self._ttl = ttl
        self._every = min(ttl / 6, RENEW_EVERY)
        self._margin = margin(ttl)
        self._on_lost = on_lost
        self._lock = threading.RLock()
        self._error: Optional[LeaseError] = None        # why it is not held any more
        self._over = False                              # the work has ended
        self._finished = False                          # by a transaction of the hold, so it is not lost from now on
        self._finishing: Set['Transaction'] = set()     # those that have finished it, or commit
        self._trouble: Optional[BaseException] = None   # of the last renewal
        self._connections: Set[Any] = set()             # of transactions
        self._interrupts: List[Callable[[], Any]] = []  # to be called when the work is to end
        self._renew_at = sent + self._every
        self._extend(sent)
        session._keep(self)

    def _extend(self, sent: float) -> None:
        """A request that was sent then has been granted."""
        self._deadline = sent + self._ttl
        self._stop_at = self._deadline - self._margin

    @property
    def lost(self) -> bool:
        """Is the work to end, or has it ended?"""
        if now() >= self._stop_at:
            self._stop()
        return self._error is not None or self._over or not is_current(self._core)

    def check(self) -> None:
        """Raise why the work is to end, if it is; and LeaseLost once it has ended."""
        if self.lost:
            raise self._error or LeaseLost(
                f'{self._what} is over, as the work has ended' if is_current(self._core) else f'{self._what} is that of the parent process')

    def remaining(self) -> timedelta:
        """How long it lasts, at least, if no renewal succeeds; the work ends earlier."""
        return timedelta(seconds=max(self._deadline - now(), 0.0))

    def transaction(self, conn: Any) -> 'Transaction':
        """A transaction on a connection, of either kind."""
        return Transaction(self, conn)

    def _first(self) -> List[str]:
        """What a transaction does first, in SQL."""
        return []

    def _last(self) -> List[str]:
        """What it does before its commit, which needs true answers."""
        return []

    def _finish(self) -> None:
        self._finished = True
        self._core.holds.discard(self)

    async def _ask_renewals(self) -> List[Answer]:
        raise NotImplementedError

    async def _renew(self) -> None:
        """Called by the session.  Does not raise."""
        renewed = 0.0
        try:
            if self._finishing:     # it would wait for the COMMIT, and find nothing then
                return
            answers = await self._ask_renewals()
            if any(answer.value != 't' for answer in answers):
                if not self._finishing:
                    self._stop(LeaseLost(f'{self._what} is lost'))
                return
            renewed = min(answer.sent for answer in answers)
            with self._lock:
                if not self.lost:
                    self._extend(renewed)
            self._trouble = None
        except Exception as error:
            self._trouble = error
        finally:        # whatever has interrupted it
            self._renew_at = renewed + self._every if renewed else now() + self._every / 4
            self._core.arm(self._renew_at, self._session)
        self._session._told(self._trouble)

    def _stop(self, error: Optional[LeaseError] = None) -> None:
        """Stop the work, once: for this reason, or if it is late."""
        if not is_current(self._core):
            return
        with self._lock:
            # A renewal may have been answered since somebody found it late.
            if self._error or self._over or self._finished or (error is None and now() < self._stop_at):
                return
            self._error = error or ServerUnreachable(f'{self._what} could not be renewed in time: '
                                                     f'{self._trouble or "this process did not get to run"}')
            for conn in self._connections:
                cut(conn)
            interrupts = self._interrupts
        self._core.holds.discard(self)
        for interrupt in interrupts:
            try:
                interrupt()
            except RuntimeError:
                pass    # its loop has been closed
        if self._on_lost:
            try:
                threading.Thread(target=self._on_lost, args=(self,), daemon=True).start()
            except RuntimeError:
                self._core.inbox.put(lambda: self._on_lost and self._on_lost(self))

    def _on_stop(self, interrupt: Callable[[], Any]) -> None:
        """Have this called when the work is to end, and at once if it is already."""
        with self._lock:
            self._interrupts.append(interrupt)
            late = self._error
        if late:
            interrupt()

    def _end(self) -> None:
        """No more work."""
        with self._lock:
            self._over = True
        self._core.holds.discard(self)
        self._session._forget(self)


class Lease(Hold):
    """A lease on a lock, or on several."""

    tokens: Dict[str, int]
    owner: str

    def __init__(self, session: 'Session', want: 'Want', tokens: Dict[str, int], sent: float) -> None:
        self.name = want.label
        self.owner = want.owner     # as dlock_leases shows it: client#task
        self.tokens = tokens        # by the names of locks
        self.token = next(iter(tokens.values()))
        self._task = want.task
        self._ending: 'Optional[Work[None]]' = None
        super().__init__(session, f'the lease on "{want.label}"', want.ttl, sent, want.on_lost)
        session._count(self, 1)

    def present(self, tx: Any) -> Any:
        """Present the tokens in a transaction that somebody else has begun."""
        return present(tx, self)

    def _first(self) -> List[str]:
        return [presentation(self)]

    async def _ask(self, kind: Kind, until: float) -> List[Answer]:
        return [await request for request in
                [self._session._lines.request(kind, (name, str(token)), until) for name, token in self.tokens.items()]]

    async def _ask_renewals(self) -> List[Answer]:
        return await self._ask(RENEW, now() + self._margin)

    async def _give_back(self) -> Optional[bool]:
        """Was it held to the end?  None if the server does not say.  A request that was not answered may
        have released it; if the task has entered the lock twice, another one would end the other lease."""
        until = now() + GIVE_BACK_WITHIN
        in_doubt = False
        while now() < until and not (in_doubt and any((name, self.owner) in self._session._held for name in self.tokens)):
            try:
                answers = await self._ask(RELEASE, until)
                held = all(answer.value == 't' for answer in answers)
                return None if in_doubt and not held else held
            except Exception as error:
                in_doubt = in_doubt or getattr(error, 'in_doubt', False)
                await self._core.sleep(0.1)
        return None

    async def _release(self) -> None:
        """Does not raise."""
        self._core.holds.discard(self)
        self._session._count(self, -1)
        held = await self._give_back()
        self._end()
        if held is None:
            self._session._doubt([(name, self.owner) for name in self.tokens], self._ttl)
        self._session._waits.again()
        if self._error is None and (held is False or (held is None and now() >= self._deadline)):
            self._error = LeaseLost(f'{self._what} was lost before the work had ended')

    def _released(self) -> Promise[None]:
        if not self._ending:
            with self._lock:
                if not self.lost:       # what is past its time counts as lost
                    self._over = True   # from now on nobody interrupts the work
            self._ending = Work(self._release())
        return self._ending

    async def _until_released(self) -> None:
        if not is_current(self._core):
            self.check()
        await self._released()

    def release(self) -> None:
        """Raises LeaseLost or ServerUnreachable if it was lost before."""
        run(self._until_released())
        if self._error:
            raise self._error

    async def arelease(self) -> None:
        await run_to_end(self._until_released())
        if self._error:
            raise self._error


class Transaction:
    """Of a connection of either kind, for "with" and "async with"."""

    def __init__(self, hold: Hold, conn: Any) -> None:
        self._hold = hold
        self._conn = conn

    @contextmanager
    def _joined(self) -> Iterator[None]:
        if self._conn.info.transaction_status not in (pq.TransactionStatus.IDLE, pq.TransactionStatus.UNKNOWN):
            # This would be a savepoint in it, and nobody would ask before its commit.
            raise psycopg.ProgrammingError('the connection is in a transaction already')
        self._hold.check()      # in a forked child, the lock may be held by nobody that is there
        with self._hold._lock:
            self._hold.check()
            self._hold._connections.add(self._conn)
        try:
            yield
            if self in self._hold._finishing:
                self._hold._finish()
        except BaseException:
            self._hold._finishing.discard(self)
            raise
        finally:
            with self._hold._lock:
                self._hold._connections.discard(self._conn)

    def _check(self, *answers: Any) -> None:
        """Raise what keeps it from being committed."""
        if not all(answer for answer, in answers):
            self._hold._finish()
            raise LeaseLost(f'an earlier transaction has finished {self._hold._what}')
        self._hold.check()
        if self._conn.info.transaction_status == pq.TransactionStatus.INERROR:
            raise psycopg.errors.InFailedSqlTransaction('a statement has failed, so the transaction is rolled back')

    def _last(self) -> List[str]:
        self._check()
        last = self._hold._last()
        if last:
            self._hold._finishing.add(self)
        return last

    @contextmanager
    def _sync(self) -> Iterator[Any]:
        with self._joined(), self._conn.transaction():
            for statement in self._hold._first():
                self._conn.execute(statement)
            yield self._conn
            self._check(*[self._conn.cursor(row_factory=tuple_row).execute(statement).fetchone() for statement in self._last()])

    @asynccontextmanager
    async def _async(self) -> AsyncIterator[Any]:
        with self._joined():
            async with self._conn.transaction():
                for statement in self._hold._first():
                    await self._conn.execute(statement)
                yield self._conn
                self._check(*[await (await self._conn.cursor(row_factory=tuple_row).execute(statement)).fetchone() for statement in self._last()])

    def __enter__(self) -> Any:
        self._within = self._sync()
        return self._within.__enter__()

    def __exit__(self, *what: Any) -> Optional[bool]:
        return self._within.__exit__(*what)

    async def __aenter__(self) -> Any:
        self._within_async = self._async()
        return await self._within_async.__aenter__()

    async def __aexit__(self, *what: Any) -> Optional[bool]:
        return await self._within_async.__aexit__(*what)
