"""Elections, and following who holds a lock."""

import logging
from typing import TYPE_CHECKING, Any, Callable, Coroutine, List, NamedTuple, Optional

from ._core import Caller, Errand, Promise, Work, core, is_current, run, run_async, run_to_end, say
from ._errors import LeaseError, ServerUnreachable
from ._hold import Lease
from ._lines import Kind
from ._values import now

if TYPE_CHECKING:
    from ._session import Session, Want

RETRY = 1.0

WATCH = Kind("""SELECT array_agg(l.token ORDER BY i), json_agg(json_build_object('owner', l.owner, 'payload', l.payload) ORDER BY i)
    FROM unnest($1::text[]) WITH ORDINALITY AS e(n, i) LEFT JOIN LATERAL {}dlock_watch(n, NULL, '0') AS l ON true""", True)


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
        self._closed = False
        self._pause: Optional[Promise[None]] = None

    async def _next(self) -> List[Optional[Holder]]:
        """The next holder, or nothing at the end."""
        session = self._session
        session._looking.add(self)
        while not (session._closed or self._closed):
            try:
                answer = await session._lines.ask(WATCH, (self._name,))
            except ServerUnreachable:
                pass
            else:
                if answer.value != self._seen:
                    self._seen = answer.value
                    note: Any = answer.rows[0][1]
                    return [Holder(int(answer.value), note['owner'], note['payload']) if answer.value else None]
            if not (session._closed or self._closed):
                self._pause = core().sleep(self._every - now() % self._every)
                await self._pause
        session._looking.discard(self)
        return []

    def _end(self) -> None:
        self._closed = True
        if self._pause:
            self._pause.set()

    def __iter__(self) -> 'Watch':
        return self

    def __next__(self) -> Optional[Holder]:
        seen = run(Errand(self._next(), None, self._end))
        if not seen:
            raise StopIteration
        return seen[0]

    def close(self) -> None:
        """End the iteration, from another thread."""
        core().inbox.put(self._end)

    def __aiter__(self) -> 'Watch':
        return self

    async def __anext__(self) -> Optional[Holder]:
        seen = await run_async(Errand(self._next(), None, self._end))
        if not seen:
            raise StopAsyncIteration
        return seen[0]


class Loop:
    """What goes on until stop(): an election, or a worker."""

    _done: Errand[None]
    _session: 'Session'

    def _begin(self, steps: Coroutine[Any, Any, None]) -> None:
        self._done = errand = Errand(steps)
        self._session._closing.add(self)
        errand.then(lambda: self._session._closing.discard(self))
        errand.core.inbox.put(errand.begin)

    async def _join(self) -> None:
        if is_current(self._done.core):     # in a forked child it is the parent's
            await self._done

    def join(self) -> None:
        """Wait until it has stopped."""
        run(self._join())

    async def ajoin(self) -> None:
        await run_to_end(self._join())


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
        self._begin(self._campaign())

    @property
    def leads(self) -> bool:
        lease = self.lease
        return lease is not None and not lease.lost

    async def _campaign(self) -> None:
        while not (self._stopping or self._session._closed):
            over: Promise[None] = Promise()
            want = self._want(self._task)
            self._ends = [over.set, lambda: self._session._give_up(want)]
            try:
                lease = await self._session._acquire(want)
            except Exception as error:
                if not (self._stopping or self._session._closed):
                    say(logging.WARNING, 'the election cannot go on: %s', error)
                    await core().sleep(RETRY)
                continue
            lease._on_stop(lambda: core().inbox.put(over.set))
            self.lease = lease
            gained = Work(self._call(None if over.is_set or lease.lost else self._gained, lease))
            await over
            self.lease = None
            await self._call(self._lost, lease, lease._error)
            await gained
            await lease._released()

    async def _call(self, function: Optional[Callable[..., Any]], *args: Any) -> None:
        try:
            if function:
                await self._caller.call(self._task, function, *args).ended()
        except Exception as error:
            say(logging.ERROR, 'a function of an election has failed', exc_info=error)

    async def _stop(self) -> None:
        self._stopping = True
        for end in self._ends if is_current(self._done.core) else ():
            end()
        await self._join()

    def stop(self) -> None:
        """Resign, once the functions have returned."""
        run(self._stop())

    async def astop(self) -> None:
        await run_to_end(self._stop())
