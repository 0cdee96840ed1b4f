"""Elections, and following who holds a lock."""

import asyncio
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

from ._core import Caller, core, log, run_async, settled
from ._errors import LeaseError, ServerUnreachable
from ._hold import Lease
from ._lines import Kind
from ._values import now

if TYPE_CHECKING:
    from ._session import Session, Want

RETRY = 1.0

WATCH = Kind(lambda server: f"""SELECT array_agg(l.token ORDER BY i), json_agg(json_build_object('owner', l.owner, 'payload', l.payload) ORDER BY i)
    FROM unnest($1::text[]) WITH ORDINALITY AS e(n, i) LEFT JOIN LATERAL {server.schema}dlock_watch(n, NULL, '0') AS l ON true""", True)


class Holder(NamedTuple):
    token: int
    owner: str
    payload: Any


class Watch:
    """All locks that are watched are asked for at the same moments, in one statement."""

    def __init__(self, session: 'Session', name: str, every: float) -> None:
        self._session = session
        self._name = name
        self._every = every
        self._seen: Optional[str] = ''
        self._pending: 'Optional[Future[Optional[Holder]]]' = None
        self._closed = False

    async def _next(self) -> Optional[Holder]:
        session, looking = self._session, asyncio.current_task()
        session._looking.add(looking)
        try:
            while not session._closed:
                try:
                    answer = await session._lines.ask(WATCH, (self._name,))
                except ServerUnreachable:
                    pass
                else:
                    if answer.value != self._seen:
                        self._seen = answer.value
                        note: Any = answer.rows[0][1]
                        return Holder(int(answer.value), note['owner'], note['payload']) if answer.value else None
                await asyncio.sleep(self._every - now() % self._every)
        except asyncio.CancelledError:
            if not session._closed:
                raise
        finally:
            session._looking.discard(looking)
        raise StopAsyncIteration

    def __iter__(self) -> 'Watch':
        return self

    def __next__(self) -> Optional[Holder]:
        if not self._closed:
            self._pending = core().submit(self._next())
            try:
                return self._pending.result()
            except (CancelledError, StopAsyncIteration):
                pass
        raise StopIteration

    def close(self) -> None:
        """End the iteration, from another thread."""
        self._closed = True
        if self._pending:
            self._pending.cancel()

    def __aiter__(self) -> 'Watch':
        return self

    async def __anext__(self) -> Optional[Holder]:
        return await run_async(self._next())


class Loop:
    """What goes on in the core until stop(): an election, or a worker."""

    _done: 'Future[None]'
    _session: 'Session'

    async def _stop(self) -> None:
        raise NotImplementedError

    def join(self) -> None:
        """Wait until it has stopped."""
        self._done.result()

    async def ajoin(self) -> None:
        if await settled(self._done):
            raise asyncio.CancelledError


class Election(Loop):
    """A candidate, until stop().  The functions may be coroutine functions."""

    def __init__(self, session: 'Session', want: 'Callable[[str], Want]', gained: Optional[Callable[[Lease], Any]],
                 lost: Optional[Callable[[Lease, Optional[LeaseError]], Any]]) -> None:
        self.lease: Optional[Lease] = None      # of the term, if this is the leader
        self._session = session
        self._want = want
        self._gained = gained
        self._lost = lost
        self._caller = Caller(gained, lost)
        self._stopping = False
        self._ends: List[Callable[[], Any]] = []    # end what is waited for
        self._task = session._new_task()
        want(self._task)                        # may raise
        session._closing.add(self)
        self._done = core().submit(self._campaign())

    @property
    def leads(self) -> bool:
        lease = self.lease
        return lease is not None and not lease.lost

    async def _campaign(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            over = asyncio.Event()
            want = self._want(self._task)
            self._ends = [over.set, lambda: self._session._give_up(want)]
            try:
                lease = await self._session._acquire(want)
            except (Exception, asyncio.CancelledError) as error:
                if not self._stopping:
                    log.warning('the election cannot go on: %s', error)
                    await asyncio.sleep(RETRY)
                continue
            lease._on_stop(lambda: loop.call_soon_threadsafe(over.set))
            self.lease = lease
            gained = asyncio.ensure_future(self._call(None if over.is_set() else self._gained, lease))
            await over.wait()
            self.lease = None
            await self._call(self._lost, lease, lease._error)
            await gained
            await asyncio.wrap_future(lease._released())

    async def _call(self, function: Optional[Callable[..., Any]], *args: Any) -> None:
        try:
            if function:
                await self._caller.call(self._task, function, *args).ended()
        except Exception:
            log.exception('a function of an election has failed')

    async def _stop(self) -> None:
        self._stopping = True
        for end in self._ends:
            end()
        await asyncio.wait([asyncio.wrap_future(self._done)])
        self._session._closing.discard(self)

    def stop(self) -> None:
        """Resign, once the functions have returned."""
        core().submit(self._stop()).result()

    async def astop(self) -> None:
        if await settled(core().submit(self._stop())):
            raise asyncio.CancelledError
