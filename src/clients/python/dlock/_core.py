"""Where the library works: two threads of this process, whatever the number of sessions and leases, and
those of the program.

Work is a coroutine that awaits promises.  Its steps are run by whichever thread keeps the promise, under one lock,
so it may be written as if it were in an event loop, and programs with and without asyncio share the code.
A program's thread takes the first step itself.  If that has sent a statement, it reads the answer, too, so a
lone request wakes no other thread; what comes up meanwhile is left to the first one of our threads.

That runs an event loop, for all that nobody else waits for: connections, timers, renewals, and lines that no thread reads.
So a program that blocks its own loop does not keep leases from being renewed.  The second thread only sees to it that work is
stopped before the deadline of its lease, whatever the first one hangs in.  It does without the lock.

In the main thread signal handlers may run at any point, and raise errors.  Blocking calls from there leave all to our
thread.  An event loop takes steps and reads there, too: an error that a step did not expect ends its work, and
is raised when the lock is let go; what one has left half read, our thread reads.

A forked child has neither.  It begins anew: with other threads, connections and
clients; what its parent holds is none of the child's.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Coroutine, Generator, Generic, List, Optional, Sequence, Set, TypeVar, Union, cast

from ._values import now

if TYPE_CHECKING:
    from ._lines import Line

T = TypeVar('T')

log = logging.getLogger('dlock')

# The task that runs: a number, or what the program calls it.
task_of: 'contextvars.ContextVar[Optional[str]]' = contextvars.ContextVar('dlock_task', default=None)

# How long the threads sleep at most, since their timers stand still while the machine is suspended.
DOZE = 1.0

lock = threading.RLock()

# What steps were interrupted by, to be raised by the thread that has the lock.
interrupts: List[BaseException] = []


def say(level: int, *what: Any, **more: Any) -> None:
    """Log it, in a thread of its own: a handler may take a lease, or hang."""
    if log.isEnabledFor(level):
        with contextlib.suppress(RuntimeError):     # there is none to be had
            threading.Thread(target=log.log, args=(level, *what), kwargs=more, name='dlock log', daemon=True).start()


class Promise(Generic[T]):
    """A value to come, or an error; under the lock."""

    __slots__ = ('is_set', 'error', '_value', '_calls')

    def __init__(self) -> None:
        self.is_set = False
        self.error: Optional[BaseException] = None
        self._value: Optional[T] = None
        self._calls: List[Callable[[], Any]] = []

    def set(self, value: Optional[T] = None, error: Optional[BaseException] = None) -> None:
        """The first one counts."""
        if not self.is_set:
            self.is_set, self._value, self.error = True, value, error
            calls, self._calls = self._calls, []
            for call in calls:
                call()

    def then(self, call: Callable[[], Any]) -> None:
        if self.is_set:
            call()
        else:
            self._calls.append(call)

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return cast(T, self._value)

    def __await__(self) -> 'Generator[Promise[Any], None, T]':
        if not self.is_set:
            yield self
        return self.result()


class Work(Promise[T]):
    """What a coroutine comes to.  The first step is taken at once."""

    __slots__ = ('_steps',)

    def __init__(self, steps: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._steps = steps
        self._step()

    def _step(self) -> None:
        try:
            promise = self._steps.send(None)
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:
            self._end(None, error)
        except BaseException as error:
            # It is meant for this thread, not for those who wait for this work.
            interrupts.append(error)
            self._end(None, InterruptedError(f'{type(error).__name__} was raised where this was worked on'))
        else:
            promise._calls.append(self._step)

    def _end(self, value: Optional[T] = None, error: Optional[BaseException] = None) -> None:
        self.set(value, error)


class Inbox:
    """Functions to be called in a loop, from other threads: one wake-up for all that come meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop, around: ContextManager[Any]) -> None:
        self.loop = loop
        self._around = around
        self._calls: 'deque[Callable[[], Any]]' = deque()
        self._woken = False

    def put(self, call: Callable[[], Any]) -> bool:
        """False if the loop is closed, so nobody waits."""
        self._calls.append(call)
        if not self._woken or self.loop.is_closed():
            try:
                self._woken = True
                self.loop.call_soon_threadsafe(self._work)
            except RuntimeError:
                return False
            except BaseException:       # a signal handler's, perhaps before that
                self._woken = False
                raise
        return True

    def _work(self) -> None:
        # First, so that what comes from now on is either seen, or wakes the loop again.
        self._woken = False
        with self._around:
            while self._calls:
                try:
                    self._calls.popleft()()
                except Exception as error:
                    say(logging.ERROR, 'this should not happen', exc_info=error)


class Core:
    """To be entered for whatever needs the lock: what has been sent meanwhile is read by somebody."""

    def __init__(self) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.inbox = Inbox(self.loop, self)
        self.unread: List['Line'] = []      # sent over, and read by nobody yet
        self.program: Optional['Program'] = None    # the loop that takes a first step
        self.holds: Set[Any] = set()        # what has a deadline
        self._ticking: Set[Any] = set()     # what has a tick(), which returns when to call it again
        self._alarm = float('inf')          # the next time
        self._timer: Optional[asyncio.TimerHandle] = None
        self._changed = threading.Condition()
        self._wakes_at = float('inf')
        for target in self._watch, self.loop.run_forever:
            thread = threading.Thread(target=target, name='dlock', daemon=True)
            thread.start()
        self._ident = thread.ident

    def is_here(self) -> bool:
        return threading.get_ident() == self._ident

    def __enter__(self) -> None:
        lock.acquire()

    def __exit__(self, *what: Any) -> None:
        try:
            if self.unread:
                if self.is_here():
                    while self.unread:
                        self.unread.pop().watch()
                else:
                    self.inbox.put(lambda: None)
        finally:
            interrupt = interrupts.pop() if interrupts else None
            interrupts.clear()
            lock.release()
        if interrupt and not self.is_here():
            raise interrupt

    # ---- timers ----

    def arm(self, at: float, what: Any) -> None:
        """Have what.tick() called then, or before."""
        self._ticking.add(what)
        if at < self._alarm:
            if not self.is_here():
                self.inbox.put(self._wind)      # may be interrupted
            self._alarm = at
            if self.is_here():
                self._wind()

    def _wind(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(max(min(self._alarm - now(), DOZE), 0), self._ring) if self._ticking else None

    def _ring(self) -> None:
        with self:
            if now() >= self._alarm:
                self._alarm = float('inf')
                for what in list(self._ticking):
                    try:
                        at = what.tick()
                    except Exception as error:
                        at = now() + DOZE
                        say(logging.ERROR, 'this should not happen', exc_info=error)
                    self._alarm = min(self._alarm, at)
                    if at == float('inf'):
                        self._ticking.discard(what)
            self._wind()

    def sleep(self, seconds: float) -> Promise[None]:
        promise: Promise[None] = Promise()

        def wake() -> None:
            with self:
                promise.set()
        self.inbox.put(lambda: self.loop.call_later(max(seconds, 0), wake))
        return promise

    # ---- deadlines ----

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
_local = threading.local()      # the event loop of this thread
_abandoned: List[Any] = []      # by a fork: not even to be collected, as that would touch what the parent uses
sessions: 'weakref.WeakSet[Any]' = weakref.WeakSet()


def core() -> Core:
    global _core
    if _core is None:
        with lock:
            _core = _core or Core()
    return _core


def is_current(it: Core) -> bool:
    """False in a forked child, for what its parent had."""
    return it is _core


def _forked() -> None:
    global _core
    _abandoned.append((_core, [vars(session).copy() for session in sessions]))
    _core = None
    for session in sessions:
        session._begin(True)
    lock.release()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=_forked)


async def ended(promises: 'Sequence[Promise[Any]]') -> None:
    """Wait for their ends, whatever these are."""
    for promise in promises:
        try:
            await promise
        except Exception:
            pass


async def within(promise: Promise[Any], seconds: float) -> bool:
    """Wait for its end, whatever that is, but not longer.  Has it ended?"""
    limit = core().sleep(seconds)
    promise.then(limit.set)
    await limit
    if not promise.is_set:
        promise._calls.remove(limit.set)
    return promise.is_set


# ---------------------------------------------------------------------------
# Programs
# ---------------------------------------------------------------------------

class Errand(Work[T]):
    """Work that a program waits for.  If it does so no longer, a result is undone, if there is one; and give_up() is to end the
    work soon.  Who waits can be told something else before, by set()."""

    __slots__ = ('core', '_undo', '_give_up')

    def __init__(self, steps: Coroutine[Any, Any, T], undo: Optional[Callable[[T], Any]] = None,
                 give_up: Optional[Callable[[], Any]] = None) -> None:
        Promise.__init__(self)
        try:
            self.core = core()
        except RuntimeError:
            steps.close()       # there are no threads to be had
            raise
        self._steps = steps
        self._undo = undo
        self._give_up = give_up

    def begin(self) -> None:
        self._step()

    def _end(self, value: Optional[T] = None, error: Optional[BaseException] = None) -> None:
        if not self.is_set:
            self.set(value, error)
        elif error is None and self._undo:
            self._undo(cast(T, value))

    def reads(self) -> 'Optional[Line]':
        """The line that the thread that waits is to read now, if there is one."""
        for line in reversed(self.core.unread):     # its own is the last one
            if line.lines.shared and not self.is_set:
                self.core.unread.remove(line)
                return line
        return None

    def abandon(self, line: 'Optional[Line]' = None) -> None:
        """Whoever has waited has gone, perhaps while reading a line."""
        def leave() -> None:
            if line:
                self.core.unread.append(line)
            self._leave()
        self.core.inbox.put(leave)

    def cancel(self) -> None:
        """The same of a task that goes on: it may ask for something else at once."""
        if not is_current(self.core) or lock._is_owned():       # type: ignore[attr-defined]
            return self.abandon()
        try:
            with self.core:
                self._leave()
        except BaseException:       # a signal handler's
            self.abandon()
            raise

    def _leave(self) -> None:
        """Once more does no harm."""
        self.set(None, InterruptedError())
        if self.error is None:
            if self._undo:
                self._undo(self.result())
        elif self._give_up:
            self._give_up()


def errand_of(what: 'Union[Errand[T], Coroutine[Any, Any, T]]') -> 'Errand[T]':
    return what if isinstance(what, Errand) else Errand(what)


def run(what: 'Union[Errand[T], Coroutine[Any, Any, T]]', begin: Callable[[T], T] = lambda result: result) -> T:
    """Do an errand, in a thread, and begin with the result, which is undone if that is interrupted."""
    # Whatever interrupts a step (a signal handler, __del__, a callback of weakref) would wait for itself.
    if lock._is_owned() or (_core and _core.is_here()):     # type: ignore[attr-defined]
        (what._steps if isinstance(what, Errand) else what).close()
        raise RuntimeError('a blocking call of dlock has interrupted the library in this thread, and would never end')
    errand = errand_of(what)
    waiting = threading.Lock()
    waiting.acquire()
    errand.then(waiting.release)
    line = None
    try:
        if threading.current_thread() is threading.main_thread():
            errand.core.inbox.put(errand.begin)
        else:
            with errand.core:
                errand.begin()
                line = errand.reads()
            while line:
                line.wait()
                with errand.core:
                    line.arrived()
                    line = errand.reads()
        waiting.acquire()
        return begin(errand.result())
    except BaseException:
        if line or not errand.error:
            errand.abandon(line)
        raise


class Program(Inbox):
    """The event loop of this thread, which is the program's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, contextlib.nullcontext())
        self.ident = threading.get_ident()
        self.waiting = 0        # how many errands are waited for in it

    def read(self) -> None:
        """Have it read what has been sent, while something waits in it; under the lock."""
        unread = core().unread
        if self.waiting and unread:
            unread[:] = [line for line in unread if not (line.lines.shared and line.lend(self))]


def program() -> Program:
    loop = asyncio.get_running_loop()
    here: Optional[Program] = getattr(_local, 'program', None)
    if not here or here.loop is not loop:
        here = _local.program = Program(loop)
    return here


class Waiter(asyncio.Future[None]):
    """A task's, for an errand: a cancel of the task is heard of at once."""

    errand: Errand[Any]

    def cancel(self, *args: Any, **options: Any) -> bool:
        cancelled = super().cancel(*args, **options)
        if cancelled:
            self.errand.cancel()
        return cancelled


def begun_here(errand: 'Errand[Any]', here: Program, future: 'asyncio.Future[None]', begins: bool = True) -> 'asyncio.Future[None]':
    """The future ends in the loop of this thread when the errand does."""
    loop = here.loop

    def end() -> None:
        # Others are told after this one, even if the loop has been closed.
        if not future.done() and not loop.is_closed():
            future.set_result(None)

    def told() -> None:
        here.waiting -= 1
        if threading.get_ident() == here.ident and not loop.is_closed():
            end()
        elif not here.put(end):
            errand.abandon()
    with errand.core:
        here.waiting += 1
        errand.then(told)
        if begins:
            errand.core.program = here
            try:
                errand.begin()
            finally:
                errand.core.program = None
        here.read()
    return future


async def run_async(what: 'Union[Errand[T], Coroutine[Any, Any, T]]') -> T:
    errand, here = errand_of(what), program()
    waiter = Waiter(loop=here.loop)
    waiter.errand = errand
    try:
        await begun_here(errand, here, waiter)
    except asyncio.CancelledError:      # perhaps after the end of the wait
        errand.cancel()
        raise
    except BaseException:       # or the end of what awaits it
        errand.abandon()
        raise
    return errand.result()


async def settle(steps: Coroutine[Any, Any, Any]) -> bool:
    """Do what must not be cancelled; was there a cancel meanwhile?"""
    cancelled, errand, here = False, Errand(steps), program()
    future = begun_here(errand, here, here.loop.create_future())
    while True:
        try:
            await future
            errand.result()
            return cancelled
        except asyncio.CancelledError:
            cancelled = True
            future = begun_here(errand, here, here.loop.create_future(), False)


async def run_to_end(steps: Coroutine[Any, Any, Any]) -> None:
    if await settle(steps):
        raise asyncio.CancelledError


class LoopClosed(RuntimeError):
    """The event loop of the program is closed, so no function of it can run."""


class Call:
    """A function of the program that is called from here."""

    def __init__(self, task: str, function: Callable[..., Any], args: Sequence[Any], loop: Optional[asyncio.AbstractEventLoop]) -> None:
        self._core = core()
        self._outcome: Promise[Any] = Promise()
        self._loop = loop if inspect.iscoroutinefunction(function) else None
        self._work: 'Optional[asyncio.Task[Any]]' = None

        def end(value: Any, error: Optional[BaseException] = None) -> None:
            if error and not isinstance(error, Exception):
                error = InterruptedError(repr(error))       # not to be raised in other threads
            self._core.inbox.put(lambda: self._outcome.set(value, error))

        def work() -> None:
            task_of.set(task)
            try:
                value = function(*args)
                if inspect.isawaitable(value):
                    getattr(value, 'close', lambda: None)()
                    raise TypeError('a function that returns a coroutine has to be a coroutine function itself')
                end(value)
            except BaseException as error:
                end(None, error)

        async def work_async() -> None:
            task_of.set(task)
            try:
                end(await function(*args))
            except BaseException as error:
                # A cancelled one has ended only now.
                end(None, InterruptedError('cancelled') if isinstance(error, asyncio.CancelledError) else error)
                if not isinstance(error, (Exception, asyncio.CancelledError)):
                    raise

        def start() -> None:
            self._work = asyncio.ensure_future(work_async())
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(start)
            else:
                threading.Thread(target=contextvars.copy_context().run, args=(work,), name='dlock work', daemon=True).start()
        except RuntimeError as error:
            end(None, LoopClosed() if self._loop else error)

    async def ended(self) -> Any:
        """What it returns.  If its loop is closed, that does not tell."""
        while self._loop and not await within(self._outcome, DOZE):
            if self._loop.is_closed():
                raise LoopClosed
        return await self._outcome

    def cancel(self) -> None:
        """Have it end soon; a thread has to look for itself."""
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(lambda: self._work and self._work.cancel())
        except RuntimeError:
            pass        # it is closed


class Caller:
    """Calls functions of the program: coroutine functions in the loop in which this was
    made, others in threads of their own; all in copies of the context in which it was made."""

    def __init__(self, *functions: Optional[Callable[..., Any]]) -> None:
        asynchronous = any(inspect.iscoroutinefunction(function) for function in functions)
        self._loop = asyncio.get_running_loop() if asynchronous else None
        self._context = contextvars.copy_context()

    @property
    def closed(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def call(self, task: str, function: Callable[..., Any], *args: Any) -> Call:
        return self._context.copy().run(Call, task, function, args, self._loop)
