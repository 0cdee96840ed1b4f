"""Two threads of this process, whatever the number of sessions and leases.

The first runs an event loop, in which all is done that waits for a server: connections, requests,
renewals, elections.  Programs with and without asyncio hand over coroutines to it, so they share the
code, and a program that blocks its own loop does not keep leases from being renewed.  The second
one only sees to it that work is stopped before the deadline of its lease, whatever the
first one hangs in.

A forked child has neither.  It begins anew: with other threads, connections and
clients; what its parent holds is none of the child's.
"""

import asyncio
import contextvars
import inspect
import logging
import os
import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import Any, Callable, Coroutine, List, Optional, Sequence, Set, TypeVar

from ._values import now

T = TypeVar('T')

log = logging.getLogger('dlock')

# The task that runs: a number, or what the program calls it.
task_of: 'contextvars.ContextVar[Optional[str]]' = contextvars.ContextVar('dlock_task', default=None)

# How long the threads sleep at most, since their timers stand still while the machine is suspended.
DOZE = 1.0


class Inbox:
    """Functions to be called in a loop, from other threads: one wake-up for all that come meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: 'deque[Callable[[], Any]]' = deque()
        self._woken = False

    def put(self, call: Callable[[], Any]) -> bool:
        """False if the loop is closed, so nobody waits."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._work)
            except RuntimeError:
                return False
        return True

    def _work(self) -> None:
        # First, so that what comes from now on is either seen, or wakes the loop again.
        self._woken = False
        while self._calls:
            self.loop.call_soon(self._calls.popleft())


def is_open(outcome: 'Future[Any]') -> bool:
    """Does anybody still wait for it?  Then it has to be settled now."""
    return (outcome.cancelled() or not outcome.done()) and outcome.set_running_or_notify_cancel()


def fail(outcome: 'Future[Any]', error: BaseException) -> None:
    if is_open(outcome):
        outcome.set_exception(error)


class Core:
    def __init__(self) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.inbox = Inbox(self.loop)
        self.holds: Set[Any] = set()        # what has a deadline
        self._changed = threading.Condition()
        self._wakes_at = float('inf')
        for target in self._watch, self.loop.run_forever:
            threading.Thread(target=target, name='dlock', daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, T], undo: Optional[Callable[[T], Any]] = None,
               give_up: Optional[Callable[[], Any]] = None, early: 'Optional[Future[T]]' = None) -> 'Future[T]':
        """Run it in the loop.  A result that nobody waits for any more is undone.  Whoever cancels the future gives up, by default by
        a cancel of the work.  The future may be one that fails early, see fail()."""
        outcome: 'Future[T]' = early or Future()

        async def deliver() -> None:
            try:
                result = await work
            except asyncio.CancelledError:
                outcome.cancel()
            except BaseException as error:
                fail(outcome, error)
            else:
                if is_open(outcome):
                    outcome.set_result(result)
                elif undo:
                    undo(result)

        def start() -> None:
            task = self.loop.create_task(deliver())

            def done(_: Any) -> None:
                if outcome.cancelled():
                    self.inbox.put(give_up or task.cancel)
            outcome.add_done_callback(done)
        self.inbox.put(start)
        return outcome

    def keep(self, hold: Any) -> None:
        with self._changed:
            self.holds.add(hold)
            if hold._stop_at < self._wakes_at:
                self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                holds = list(self.holds)
                self._wakes_at = min([now() + DOZE] + [hold._stop_at for hold in holds]) if holds else float('inf')
                self._changed.wait(max(self._wakes_at - now(), 0) if holds else None)
                holds = list(self.holds)
            for hold in holds:
                if now() >= hold._stop_at:
                    hold._stop()


_core: Optional[Core] = None
_starting = threading.Lock()
_local = threading.local()        # the inbox of the loop of this thread
_abandoned: List[Any] = []      # by a fork: not even to be collected, as that would touch what the parent uses
sessions: 'weakref.WeakSet[Any]' = weakref.WeakSet()


def core() -> Core:
    global _core
    with _starting:
        if _core is None:
            _core = Core()
        return _core


def _forked() -> None:
    global _core, _starting
    _abandoned.append((_core, [vars(session).copy() for session in sessions]))
    _core, _starting = None, threading.Lock()
    for session in sessions:
        session._begin(True)


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_forked)


def _undone(outcome: 'Future[T]', undo: Optional[Callable[[T], Any]]) -> None:
    """Nobody waits for it any more."""
    if not outcome.cancel() and undo:
        outcome.add_done_callback(lambda _: undo and not outcome.cancelled() and not outcome.exception() and undo(outcome.result()))


def submit(work: Coroutine[Any, Any, T], undo: Optional[Callable[[T], Any]] = None, give_up: Optional[Callable[[], Any]] = None,
           early: 'Optional[Future[T]]' = None) -> 'Future[T]':
    try:
        return core().submit(work, undo, give_up, early)
    except RuntimeError:
        work.close()        # there are no threads to be had
        raise


def run(work: Coroutine[Any, Any, T], undo: Optional[Callable[[T], Any]] = None, give_up: Optional[Callable[[], Any]] = None,
        early: 'Optional[Future[T]]' = None) -> T:
    outcome = submit(work, undo, give_up, early)
    try:
        return outcome.result()
    except BaseException:
        _undone(outcome, undo)
        raise


def future_of(outcome: 'Future[T]', undo: Optional[Callable[[T], Any]] = None) -> 'asyncio.Future[T]':
    """To be awaited in the loop of the program; undone if that is closed."""
    loop = asyncio.get_running_loop()
    inbox: Optional[Inbox] = getattr(_local, 'inbox', None)
    if not inbox or inbox.loop is not loop:
        inbox = _local.inbox = Inbox(loop)
    future = loop.create_future()

    def settle() -> None:
        if not future.done():
            try:
                future.set_result(outcome.result())
            except BaseException as error:
                if isinstance(error, CancelledError):
                    future.cancel()
                else:
                    future.set_exception(error)
    put = inbox.put
    outcome.add_done_callback(lambda _: None if put(settle) else _undone(outcome, undo))
    return future


async def run_async(work: Coroutine[Any, Any, T], undo: Optional[Callable[[T], Any]] = None, give_up: Optional[Callable[[], Any]] = None,
                    early: 'Optional[Future[T]]' = None) -> T:
    outcome = submit(work, undo, give_up, early)
    try:
        return await future_of(outcome, undo)
    except BaseException:       # a cancel, or the end of what awaits it
        _undone(outcome, undo)
        raise


async def settled(outcome: 'Future[Any]') -> bool:
    """Wait for the end of what must not be cancelled; was there a cancel meanwhile?"""
    cancelled = False
    future = future_of(outcome)
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


class LoopClosed(RuntimeError):
    """The event loop of the program is closed, so no function of it can run."""


class Call:
    """A function of the program that the core has called."""

    def __init__(self, task: str, function: Callable[..., Any], args: Sequence[Any], loop: Optional[asyncio.AbstractEventLoop]) -> None:
        self.outcome: 'Future[Any]' = Future()
        self._loop = loop if inspect.iscoroutinefunction(function) else None
        self._work: 'Optional[asyncio.Task[Any]]' = None

        def work() -> None:
            task_of.set(task)
            try:
                self.outcome.set_result(function(*args))
            except BaseException as error:
                self.outcome.set_exception(error)

        async def work_async() -> None:
            task_of.set(task)
            try:
                self.outcome.set_result(await function(*args))
            except BaseException as error:
                # A cancelled one has ended only now.
                self.outcome.set_exception(InterruptedError('cancelled') if isinstance(error, asyncio.CancelledError) else error)

        def start() -> None:
            self._work = asyncio.ensure_future(work_async())
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(start)
            else:
                threading.Thread(target=work, name='dlock work', daemon=True).start()
        except RuntimeError as error:
            self.outcome.set_exception(LoopClosed() if self._loop else error)

    async def ended(self) -> Any:
        """What it returns.  If its loop is closed, that does not tell."""
        outcome = asyncio.wrap_future(self.outcome)
        while not outcome.done():
            if self._loop and self._loop.is_closed() and not self.outcome.done():
                raise LoopClosed
            await asyncio.wait([outcome], timeout=DOZE if self._loop else None)
        return outcome.result()

    def cancel(self) -> None:
        """Have it end soon; a thread has to look for itself."""
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(lambda: self._work and self._work.cancel())
        except RuntimeError:
            pass        # it is closed


class Caller:
    """Calls functions of the program from the core: coroutine functions in the loop in
    which this was made, others in threads of their own."""

    def __init__(self, *functions: Optional[Callable[..., Any]]) -> None:
        asynchronous = any(inspect.iscoroutinefunction(function) for function in functions)
        self._loop = asyncio.get_running_loop() if asynchronous else None

    @property
    def closed(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def call(self, task: str, function: Callable[..., Any], *args: Any) -> Call:
        return Call(task, function, args, self._loop)
