"""A program's session with a server: one client that owns leases, on connections of its own."""

import asyncio
import functools
import itertools
import json
import logging
import math
import os
import socket
import uuid
from contextlib import contextmanager
from typing import Any, Callable, Collection, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import psycopg

from ._core import Errand, Promise, Work, core, ended, run, run_async, run_to_end, say, sessions, settle, task_of, within
from ._errors import LeaseDeadlock, LeaseError, LeaseRefused, ServerUnreachable, SessionClosed
from ._follow import Election, Watch
from ._hold import RELEASE, RENEW, Hold, Lease, margin, present
from ._lines import URGENT, Kind, Lines, Request
from ._values import Span, array, conninfo_of, interval, now, seconds, text
from ._waits import KEEP, Waits
from ._worker import Worker

# How long a request whose answer is not known is sent again, or tried to be undone, after it was to
# end; and how soon one is sent again to a server that is away.
DOUBT_WITHIN = 3.0
RETRY = 0.2

# A name, and an owner.
Key = Tuple[str, str]


def alone(function: str, more: str = '') -> Kind:
    """A request that goes alone."""
    return Kind(f"""SELECT {{}}{function}($1, owner => $2, ttl => $3::interval, mode => $4, reentry => $5,
        lock_delay => $6::interval, min_hold => $7::interval, payload => $8::jsonb{more})""")


ALONE = alone('dlock_acquire', ', permits => $9::integer, keep => $10::interval')
PATH = alone('dlock_acquire_path')
ALL = alone('dlock_acquire_all')
HOLDER = Kind("""SELECT array_agg(i ORDER BY i), json_agg((SELECT owner FROM {}dlock_lease(n) LIMIT 1) ORDER BY i)
    FROM unnest($1::text[]) WITH ORDINALITY AS e(n, i)""", True)
ONCE = Kind('SELECT {}dlock_once($1, $2::interval)')

# What an owner has been granted.
FIND = Kind("""SELECT array_agg((SELECT l.token FROM {}dlock_lease(n) AS l WHERE l.owner = o AND l.state <> 'closed' LIMIT 1) ORDER BY i)
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS e(n, o, i)""", True, URGENT)


class Options(NamedTuple):
    """Of a lease, checked, and as the server takes them."""

    ttl: float
    wait: float
    mode: str
    permits: Optional[str]
    reentry: str
    lock_delay: str
    min_hold: str


# What programs ask for, again and again.
@functools.lru_cache()
def options_of(ttl: Span, wait: Optional[Span], mode: str, permits: Optional[int], reentry: str, lock_delay: Span, min_hold: Span) -> Options:
    return Options(
        seconds(ttl, 'ttl', 1e-6), math.inf if wait is None or wait == math.inf else seconds(wait, 'wait'), text(mode, 'mode'),
        None if permits is None else str(int(permits)), text(reentry, 'reentry'), interval(seconds(lock_delay, 'lock_delay')),
        interval(seconds(min_hold, 'min_hold')))


@functools.lru_cache()
def acquire_each(o: Options, keep: float, reentry: str) -> Kind:
    return Kind("""SELECT {}dlock_acquire_each(names => $1::text[], owners => $2::text[], ttl => $3::interval, mode => $4,
        permits => $5::integer, reentry => $6, lock_delay => $7::interval, min_hold => $8::interval, keep => $9::interval)""",
                True, shared=(interval(o.ttl), o.mode, o.permits, reentry, o.lock_delay, o.min_hold, interval(keep)))


class Want:
    """A request for a lease."""

    label: str
    owner: str
    task: str
    ttl: float
    until: float
    on_lost: Optional[Callable[[Lease], Any]]
    place: Key

    errand: 'Optional[Errand[Lease]]' = None    # of whoever waits
    end: Optional[Promise[None]] = None         # if it is given up, or being undone
    gone = False            # nobody waits for it any more
    got: Optional[Tuple[Optional[str], float]] = None   # a turn: its token, or None if there will never be one
    asked: Optional[Request] = None
    in_doubt = False        # it may have been granted what it has not heard of
    polls = False           # it has no place, and has waited before
    late = 0                # how often it has heard of a grant too late

    def __init__(self, session: 'Session', kind: str, names: List[str], task: Optional[str], options: Options, payload: Optional[str],
                 on_lost: Optional[Callable[[Lease], Any]]) -> None:
        self.kind = kind                # lock, all or path
        self.names = names
        self.label = ', '.join(names)
        self.task = task or task_of.get() or session._new_task()
        self.owner = owner = f'{session.client}#{self.task}'
        self.options = options
        self.payload = payload
        self.on_lost = on_lost
        self.ttl = options.ttl
        self.until = now() + options.wait
        self.patient = options.wait > 0
        self.keys = [(name, owner) for name in names]
        self.place = self.keys[0]
        self.go: Promise[None] = Promise()      # ends its wait

    def ask(self, lines: Lines, keep: float, reentry: str) -> Request:
        o = self.options
        if self.kind == 'lock' and self.payload is None:
            return lines.request(acquire_each(o, keep, reentry), self.place)
        row = [array(self.names) if self.kind == 'all' else self.names[0], self.owner, interval(o.ttl), o.mode, reentry, o.lock_delay, o.min_hold, self.payload]
        if self.kind == 'lock':
            return lines.request(ALONE, [*row, o.permits, interval(keep)])
        return lines.request(PATH if self.kind == 'path' else ALL, row)


class Block:
    """A request for a lease: held in a block of "with" or "async with", or acquired for the caller to release it."""

    def __init__(self, session: 'Session', *request: Any) -> None:
        self._session = session
        self._request = request
        self._entered = False
        self._cancelled = False     # by us
        self._left = False

    def _want(self) -> Want:
        return Want(self._session, *self._request)

    def _errand(self) -> Errand[Lease]:
        want = self._want()
        want.errand = Errand(self._session._acquire(want), lambda lease: self._session._discard(want, lease), lambda: self._session._give_up(want))
        return want.errand

    def acquire(self) -> Lease:
        """To be released by the caller."""
        return run(self._errand())

    async def aacquire(self) -> Lease:
        return await run_async(self._errand())

    def _enter(self) -> None:
        if self._entered:
            raise RuntimeError('a block can be entered only once; call lease() for another')
        self._entered = True

    def _begin(self, lease: Lease) -> Lease:
        self._lease = lease
        self._around = task_of.get()
        task_of.set(lease._task)
        return lease

    def _outcome(self, failure: Optional[BaseException]) -> None:
        error = self._lease._error
        if error:
            raise error from (None if failure is error or isinstance(failure, asyncio.CancelledError) else failure)

    def __enter__(self) -> Lease:
        self._enter()
        return run(self._errand(), self._begin)

    def __exit__(self, kind: Any, failure: Optional[BaseException], trace: Any) -> None:
        task_of.set(self._around)
        run(Errand(self._lease._until_released(), None, self._lease._released))
        self._outcome(failure)

    async def __aenter__(self) -> Lease:
        self._enter()
        lease = await self.aacquire()
        loop, work = asyncio.get_running_loop(), asyncio.current_task()

        def interrupt() -> None:
            if not self._left and work:
                self._cancelled = True
                work.cancel()
        with lease._lock:
            late = lease.lost
            if not late:
                lease._on_stop(lambda: loop.call_soon_threadsafe(interrupt))
        if late:
            await lease.arelease()
        return self._begin(lease)

    async def __aexit__(self, kind: Any, failure: Optional[BaseException], trace: Any) -> None:
        self._left = True
        task_of.set(self._around)
        cancelled = await settle(self._lease._until_released())
        work = asyncio.current_task()
        if self._cancelled:
            # Take our cancel back.  If somebody else has cancelled the task, too, that goes on.
            cancelled = bool(work and hasattr(work, 'uncancel') and work.uncancel() > 0)
        if cancelled:
            raise asyncio.CancelledError
        self._outcome(failure)


class Session:
    """where: a pool or a connection of psycopg, or a connection string.  Connections are the session's own."""

    def __init__(self, where: Any, *, client: Optional[str] = None) -> None:
        if client is not None and (not isinstance(client, str) or not client or '#' in text(client, 'client')):
            raise ValueError('client must be a text without #')
        self._conninfo = conninfo_of(where)
        self._named = client
        self._begin()
        sessions.add(self)

    def _begin(self, forked: bool = False) -> None:
        """At first, and again in a forked child, which has another client."""
        own = '/' + uuid.uuid4().hex[:12]
        self.client = f'{socket.gethostname()[:50]}/{os.getpid()}{own}' if self._named is None else self._named + own if forked else self._named
        self._lines = Lines(self._conninfo)
        self._waits = Waits(self)
        self._holds: Set[Hold] = set()              # to be renewed, or given back
        self._held: Dict[Key, int] = {}             # how many leases: by name and owner
        self._wants: Dict[Key, List[Want]] = {}     # requests, and what is undone of them
        self._unsure: Dict[Key, Promise[None]] = {}     # what owners may hold that nobody has heard of, until it ends
        self._looking: Set[Watch] = set()           # what looks for holders
        self._in_trouble = False                    # do renewals fail?
        self._tasks = itertools.count(1)
        self._closing: Set[Any] = set()             # what has to be stopped by close()
        self._closed = False

    # ---- what programs call ----

    def lease(self, name: str, ttl: Span = 60, *, wait: Optional[Span] = 0, mode: str = 'exclusive', permits: Optional[int] = None,
              reentry: str = 'deny', lock_delay: Span = 0, min_hold: Span = 0, payload: Any = None, task: Optional[str] = None,
              on_lost: Optional[Callable[[Lease], Any]] = None) -> Block:
        """A lease on a lock.

        ttl      how long the lease lasts without a renewal
        wait     how long to wait for the lock; None: without a limit
        permits  makes the lock a semaphore with so many holders
        reentry  'count': the task may enter its lock again
        payload  anything that json.dumps() takes, shown with the lease
        task     names the owner, client#task, instead of the task that runs
        on_lost  called with the lease, in another thread, when the work is to end

        Spans are seconds or timedeltas.  mode, lock_delay and min_hold are those of dlock_acquire().
        """
        return self._block('lock', [name], task, ttl, wait, mode, permits, reentry, lock_delay, min_hold, payload, on_lost)

    def lease_all(self, names: Sequence[str], ttl: Span = 60, *, wait: Optional[Span] = 0, mode: str = 'exclusive', reentry: str = 'deny',
                  lock_delay: Span = 0, min_hold: Span = 0, payload: Any = None, task: Optional[str] = None,
                  on_lost: Optional[Callable[[Lease], Any]] = None) -> Block:
        """A lease on all of the locks, or none."""
        if isinstance(names, str) or not names:
            raise TypeError('names must be a list of texts')
        return self._block('all', list(names), task, ttl, wait, mode, None, reentry, lock_delay, min_hold, payload, on_lost)

    def lease_path(self, path: str, ttl: Span = 60, *, wait: Optional[Span] = 0, mode: str = 'exclusive', reentry: str = 'deny',
                   lock_delay: Span = 0, min_hold: Span = 0, payload: Any = None, task: Optional[str] = None,
                   on_lost: Optional[Callable[[Lease], Any]] = None) -> Block:
        """A lease on a place in a hierarchy, such as 'a/b/c'."""
        return self._block('path', [path], task, ttl, wait, mode, None, reentry, lock_delay, min_hold, payload, on_lost)

    @contextmanager
    def task(self, name: Optional[str] = None) -> Iterator[str]:
        """A block that is a task of its own: an owner of leases that is not the one around it."""
        around, task = task_of.get(), name or self._new_task()
        task_of.set(task)
        try:
            yield task
        finally:
            task_of.set(around)

    def present(self, tx: Any, *leases: Lease) -> Any:
        """Present the tokens of leases in a transaction that somebody else has begun: tx has execute(), or is a function that
        runs a statement.  Returns what that returns, to be awaited if it is a coroutine."""
        return present(tx, *leases)

    def once(self, name: str, every: Span) -> Optional[int]:
        """The token, if this is the first call in this time slot; or None."""
        return run(self._once(name, every))

    async def aonce(self, name: str, every: Span) -> Optional[int]:
        return await run_async(self._once(name, every))

    def elect(self, name: str, *, gained: Optional[Callable[[Lease], Any]] = None,
              lost: Optional[Callable[[Lease, Optional[LeaseError]], Any]] = None, **options: Any) -> Election:
        """Campaign until stop(): gained(lease) is called with each term, lost(lease, error) at its end."""
        self._check()
        options['wait'] = None
        return Election(self, lambda task: self.lease(name, task=task, **options)._want(), gained, lost)

    def watch(self, name: str, every: Span = 0.5) -> Watch:
        """The holders of a lock, for "for" and "async for": at first, and then whenever another one is seen."""
        self._check()
        return Watch(self, text(name, 'name'), seconds(every, 'every', 0.001))

    def worker(self, queue: str, handler: Callable[..., Any], concurrency: int = 1, *, ttl: Span = 60, from_states: Optional[List[str]] = None,
               to_state: str = 'working', on_timeout: Optional[str] = None) -> Worker:
        """Work on tasks of a queue by handler(task), so many at a time, until stop()."""
        self._check()
        return Worker(self, text(queue, 'queue'), handler, concurrency, seconds(ttl, 'ttl', 1e-6), from_states, text(to_state, 'to_state'),
                      None if on_timeout is None else text(on_timeout, 'on_timeout'))

    def close(self) -> None:
        """End waits, give back all, and close the connections.  Elections and workers end first, so none of their functions may call this."""
        run(self._close())

    async def aclose(self) -> None:
        await run_to_end(self._close())

    # ---- requests ----

    def _new_task(self) -> str:
        return f'~{next(self._tasks)}'      # programs number tasks, too

    def _block(self, kind: str, names: List[str], task: Optional[str], ttl: Span, wait: Optional[Span], mode: str, permits: Optional[int],
               reentry: str, lock_delay: Span, min_hold: Span, payload: Any, on_lost: Optional[Callable[[Lease], Any]]) -> Block:
        options = options_of(ttl, wait, mode, permits, reentry, lock_delay, min_hold)
        return Block(self, kind, [text(name, 'name') for name in names], None if task is None else text(str(task), 'task'), options,
                     None if payload is None else json.dumps(payload), on_lost)

    def _give_up(self, want: Want) -> None:
        """Nobody waits for it any more.  What is granted all the same is released."""
        want.gone = True
        if want in self._wants.get(want.place, ()):
            self._leave(want)
        if want.asked and want.place not in self._waits.places:
            want.asked.withdraw()
        self._waits.end(want)

    def _check(self) -> None:
        if self._closed:
            raise SessionClosed

    async def _acquire(self, want: Want) -> Lease:
        self._check()
        self._enter(want)
        undo: Optional[Promise[Any]] = None     # ends what is in the way of the task's next request
        try:
            try:
                lease = await self._ask(want)
                if want.gone:
                    undo = lease._released()
                return lease
            except BaseException as error:
                expected = isinstance(error, Exception)
                if want.in_doubt or not expected:
                    self._doubt(want.keys, want.ttl)
                if want.asked and self._is_unsure(want):
                    self._leave(want)
                    undo = Work(self._undo(want.keys))
                    if expected:        # others are for this thread, so they are raised now
                        await undo
                raise
            finally:
                self._waits.forget(want)
                if want.got and want.got[0]:
                    declined = self._decline(want.names[0], want.got[0])
                    undo = undo or declined
        finally:
            if undo:
                undo.then(lambda: self._left(want))
            else:
                self._left(want)

    async def _ask(self, want: Want) -> Lease:
        """A request is in doubt if it may have been granted what it has not heard of: its answer was lost, or perhaps a
        turn was.  Then it asks for just that; and if it is given up, that is undone.  Both are left to its task's last
        request for the lock, as others might be meant."""
        limit = 0.0
        while True:
            if self._unsure or self._others(want):
                await self._after_others(want)
            in_doubt, unsure = want.in_doubt, self._is_unsure(want)
            never = want.got is not None and want.got[0] is None
            last = not want.patient or now() >= want.until or want.gone or never
            try:
                if want.gone and not want.asked:
                    raise LeaseRefused(want.label)
                if unsure and not last:
                    raise ServerUnreachable(f'an earlier lease on "{want.label}" could not be released')
                if want.got and want.got[0]:
                    token, sent = want.got[0], await self._confirm(want, *want.got)
                    want.got = None
                    if not sent:
                        continue
                    return await self._grant(want, [token], sent)
                if want.patient and want.options.reentry == 'deny' and any(key in self._held for key in want.keys):
                    raise LeaseDeadlock(f'the task would wait for its own lease on "{want.label}"')
                if not last:
                    want.go = Promise()     # it may be told to ask anew before it has an answer
                    if want.kind == 'lock':
                        self._waits.expect(want)
                # It may have been granted the lock since it asked before.
                returns = (in_doubt or want.asked is not None) and not unsure and self._is_alone(want)
                if want.in_doubt and not returns:
                    self._doubt(want.keys, want.ttl)
                want.in_doubt = False
                want.asked = want.ask(self._lines, 0 if last else KEEP, 'return' if returns else want.options.reentry)
                answer = await want.asked
                if answer.value is not None:
                    tokens = [answer.value] if want.kind == 'lock' else answer.value.strip('{}').split(',')
                    return await self._grant(want, tokens, answer.sent)
                if never:
                    raise LeaseDeadlock(f'the wait for "{want.label}" would never have ended')
                if not last:
                    await self._waits.turn(want, answer.sent)
                elif want.gone or not (want.got or want.in_doubt):      # a turn may have come just before
                    raise LeaseRefused(want.label, None if want.gone else await self._holder(want))
            except BaseException as error:
                raised, lost = want.in_doubt, getattr(error, 'in_doubt', False)
                want.in_doubt = raised or lost or (in_doubt and not isinstance(error, LeaseRefused))
                deadlock = isinstance(error, psycopg.errors.DeadlockDetected) and not isinstance(error, LeaseDeadlock)
                if deadlock and raised and not want.gone:
                    continue        # perhaps for a lease that it has not heard of
                if deadlock:
                    raise LeaseDeadlock(str(error)) from error
                if not isinstance(error, ServerUnreachable):
                    raise
                if lost and not limit:
                    limit = now() + DOUBT_WITHIN
                if want.gone or want.late > 1 or (last and now() >= limit):
                    raise
                await core().sleep(RETRY if last else min(RETRY, want.until - now()))

    async def _grant(self, want: Want, tokens: List[str], sent: float) -> Lease:
        """What the work could not begin with is given back; once, it is asked for again."""
        if now() < sent + want.ttl - margin(want.ttl):
            return Lease(self, want, dict(zip(want.names, map(int, tokens))), sent)
        want.late += 1
        want.in_doubt = True
        try:
            for request in [self._lines.request(RELEASE, pair) for pair in zip(want.names, tokens)]:
                await request
        except Exception:
            self._doubt(want.keys, want.ttl)
            raise
        late = ServerUnreachable(f'the grant of "{want.label}" was heard of too late')
        late.in_doubt = True
        raise late

    async def _holder(self, want: Want) -> Optional[str]:
        """Who holds it, or something above it; None if nobody does any more."""
        parts = want.names[0].split('/')
        names = ['/'.join(parts[:i + 1]) for i in range(len(parts))] if want.kind == 'path' else want.names
        try:
            answers = [await request for request in [self._lines.request(HOLDER, (name,)) for name in names]]
        except (LeaseError, psycopg.Error):
            return None
        return next((str(answer.rows[0][1]) for answer in answers if answer.rows[0][1]), None)

    async def _confirm(self, want: Want, token: Optional[str], sent: float) -> float:
        """A turn may have come some time after it was asked for: when was the lease held for sure?  0 if it is lost."""
        if now() - sent < min(want.ttl / 12, 1.0):
            return sent
        renewed = await self._lines.ask(RENEW, (want.names[0], token))
        return renewed.sent if renewed.value == 't' else 0.0

    async def _undo(self, keys: Collection[Key]) -> None:
        """End what owners may have been granted, however often.  No request of theirs is sent meanwhile, so what is found is
        not newer; and it is released by its token, which spares leases that are."""
        async def end() -> None:
            while now() < until:
                try:
                    found = [await request for request in [self._lines.request(FIND, key, until) for key in keys]]
                    held = [(key[0], answer.value) for key, answer in zip(keys, found) if answer.value]
                    if now() < until and not held:
                        self._sure(keys)
                        return
                    for request in [self._lines.request(RELEASE, pair) for pair in held if now() < until]:
                        await request
                except Exception:
                    await core().sleep(0.1)
        until = now() + DOUBT_WITHIN
        await within(Work(end()), DOUBT_WITHIN)

    def _doubt(self, keys: Collection[Key], ttl: float) -> None:
        over = core().sleep(ttl)
        self._unsure.update(dict.fromkeys(keys, over))
        over.then(lambda: self._sure([key for key in keys if self._unsure.get(key) is over]))

    def _sure(self, keys: Collection[Key]) -> None:
        for key in keys:
            self._unsure.pop(key, None)

    def _enter(self, want: Want) -> None:
        for key in want.keys:
            wants = self._wants.setdefault(key, [])
            if want not in wants:
                wants.append(want)

    def _others(self, want: Want) -> List[Want]:
        """What else its task asks for on these locks, or has given up there."""
        return [other for key in want.keys for other in self._wants.get(key, ()) if other is not want]

    def _all_wants(self) -> Set[Want]:
        return {want for wants in self._wants.values() for want in wants}

    def _leave(self, want: Want) -> None:
        """Nobody waits for it any more, or it is being undone: what it may have been granted is in the way of its task's next request."""
        want.end = want.end or Promise()
        self._enter(want)

    def _left(self, want: Want) -> None:
        """Others wait for that, or may have lost their place with it, as it was the same one: they ask anew."""
        for key in want.keys:
            self._wants[key] = [other for other in self._wants.get(key, ()) if other is not want]
            if not self._wants[key]:
                del self._wants[key]
        for other in self._others(want):
            self._waits.end(other)
        if want.end:
            want.end.set()

    async def _after_others(self, want: Want) -> None:
        """Wait for the ends of those that leave, and undo what earlier ones have left: it is not to be had by asking for
        it, as a release that was not heard of may come late.  Or until there is something else to do."""
        undone = False
        while not (want.gone or want.got):
            if any(other.end for other in self._others(want)):
                want.go = Promise()
                await want.go
            elif undone or not self._is_unsure(want):
                break
            else:
                undone, want.end = True, want.end or Promise()      # others wait meanwhile
                await self._undo(want.keys)
                if not want.gone:
                    want.end = None
                for other in self._others(want):
                    self._waits.end(other)

    def _is_unsure(self, want: Want) -> bool:
        """May its task hold what nobody has heard of, and is that left to this request?"""
        return not self._unsure.keys().isdisjoint(want.keys) and self._is_alone(want)

    def _is_alone(self, want: Want) -> bool:
        """Has its task no other lease or request on these locks, which might be meant instead?"""
        return self._held.keys().isdisjoint(want.keys) and not any(other.asked for other in self._others(want))

    def _decline(self, name: str, token: str) -> Optional[Request]:
        """Release a turn that was not taken, if the server is there."""
        if any(hold.token == int(token) for hold in self._holds):
            return None
        return self._lines.request(RELEASE, (name, token), now() + DOUBT_WITHIN)

    def _discard(self, want: Want, lease: Lease) -> None:
        """Nobody is there to have it."""
        self._leave(want)
        lease._released().then(lambda: self._left(want))

    async def _once(self, name: str, every: Span) -> Optional[int]:
        self._check()
        value = (await self._lines.ask(ONCE, (text(name, 'name'), interval(seconds(every, 'every', 1e-6))))).value
        return None if value is None else int(value)

    async def _close(self) -> None:
        self._closed = True
        ends: List[Promise[None]] = [Work(what._stop()) for what in list(self._closing)]    # they give up what they wait for by themselves
        places = list(self._waits.places)
        wants = self._all_wants()
        for want in wants:      # before the first one is given up, which may end others
            want.end = want.end or Promise()
            ends.append(want.end)
            if want.errand:
                want.errand.set(None, SessionClosed())
        for want in wants:
            self._give_up(want)
        for watch in list(self._looking):
            watch._end()
        await ended(ends)
        leases = [hold for hold in self._holds if isinstance(hold, Lease)]
        for lease in leases:
            lease._stop(SessionClosed())
        await ended([lease._released() for lease in leases])
        if self._waits.taker:
            self._waits.taker.cut()
        if places:
            await self._undo(places)    # a turn may have come that nobody has heard of
        self._lines.close()

    # ---- what is held ----

    def _count(self, lease: Lease, more: int) -> None:
        for name in lease.tokens:
            key = name, lease.owner
            self._held[key] = self._held.get(key, 0) + more
            if not self._held[key]:
                del self._held[key]

    def _keep(self, hold: Hold) -> None:
        self._holds.add(hold)
        self._lines.urgent_within = min(self._lines.urgent_within, hold._margin)
        core().keep(hold)
        core().arm(hold._renew_at, self)

    def _forget(self, hold: Hold) -> None:
        self._holds.discard(hold)

    def tick(self) -> float:
        """Renew what is due, or soon will be, and end waits."""
        at, holds = now(), [hold for hold in self._holds if not hold.lost]
        self._lines.urgent_within = min([hold._margin for hold in holds], default=math.inf)
        for hold in holds:
            if hold._renew_at <= at + hold._every / 2:
                hold._renew_at = math.inf
                Work(hold._renew())
        for want in [want for want in self._all_wants() if want.until <= at]:
            self._waits.end(want)
        return min([*[hold._renew_at for hold in holds], *[want.until for want in self._all_wants() if want.until > at]], default=math.inf)

    def _told(self, error: Optional[BaseException]) -> None:
        """Renewals fail, or go on."""
        if error and not self._in_trouble:
            say(logging.WARNING, 'renewals fail: %s', error)
        elif self._in_trouble and not error:
            say(logging.INFO, 'renewals go on')
        self._in_trouble = error is not None
