"""Tasks of a queue, worked on so many at a time."""

import json
import logging
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Set

from ._core import Call, Caller, LoopClosed, Promise, Work, core, is_current, run, run_to_end, say, within
from ._errors import LeaseLost, ServerUnreachable
from ._follow import Loop
from ._hold import Hold
from ._lines import URGENT, Answer, Kind, Lines, Row
from ._values import Span, array, interval, literal, now, seconds, text

if TYPE_CHECKING:
    from ._session import Session

# How long a capture waits for tasks; so long, it holds a snapshot, and stop() waits for it.
WAIT = 1.0

# After errors.
RETRY = 0.5
LONGEST_RETRY = 10.0

CAPTURE = Kind("""SELECT key, token, payload, priority, attempts, from_state
    FROM {}dlock_task_capture($1, count => $2::integer, from_states => $3::text[], to_state => $4, owner => $5, ttl => $6::interval,
      on_timeout => $7, wait => $8::interval)""")


def each(call: str) -> Kind:
    return Kind(f"""SELECT array_agg({{}}dlock_task_{call} ORDER BY i)
        FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) WITH ORDINALITY AS e(q, k, t, x, i)""", True, URGENT)


RENEW = each('renew(q, k, t)')
FINISH = each('finish(q, k, t, state => x)')
FAIL = each('fail(q, k, t, error => x)')
RELEASE = each('release(q, k, t)')


class Task(Hold):
    """A task that was captured.  Its transactions finish it."""

    def __init__(self, worker: 'Worker', row: Row, sent: float) -> None:
        key, token, payload, priority, attempts, from_state = row
        self.queue = worker.queue
        self.key = key or ''
        self.token = int(token or 0)
        self.payload: Any = json.loads(payload or 'null')
        self.priority = int(priority or 0)
        self.attempts = int(attempts or 0)
        self.from_state = from_state or ''
        self.state: Optional[str] = None    # that it is to have when it is finished, if not that of the queue
        self._worker = worker
        super().__init__(worker._session, f'task "{self.key}" of queue "{self.queue}"', worker._ttl, sent)

    @property
    def lost(self) -> bool:
        """Is the work to end, or has it ended?"""
        return self._worker._grace_is_over or super().lost

    def check(self) -> None:
        if self._worker._grace_is_over and not self._error:
            raise LeaseLost('the worker stops')
        super().check()

    async def _ask(self, kind: Kind, extra: Optional[str] = None) -> Answer:
        row = self.queue, self.key, str(self.token), extra
        return await self._session._lines.ask(kind, row, max(self._deadline, now() + WAIT))

    async def _ask_renewals(self) -> List[Answer]:
        return [await self._ask(RENEW)]

    def _last(self) -> List[str]:
        # What it has written is committed with the task's end, or not at all.
        server = self._worker._lines.server
        state = 'NULL' if self.state is None else literal(self.state)
        return [f'SELECT {server.schema if server else ""}dlock_task_finish({literal(self.queue)}, {literal(self.key)}, {self.token}, state => {state})']

    async def _settle(self, kind: Kind, extra: Optional[str] = None) -> None:
        """Tell the server how it has ended; again, if that does not answer: that does no harm."""
        while True:
            try:
                await self._ask(kind, extra)
                return
            except ServerUnreachable:
                if now() >= self._deadline:
                    raise
            await self._core.sleep(RETRY)

    async def _run(self, handler: Callable[['Task'], Any]) -> None:
        failure: Optional[Exception] = None
        worker = self._worker
        call = worker._caller.call(self._session._new_task(), handler, self)
        try:
            worker._calls.add(call)
            self._on_stop(call.cancel)
            await call.ended()
        except Exception as error:
            failure = error
        finally:
            worker._calls.discard(call)
        if self._error is None and not self._finished:
            if isinstance(failure, LoopClosed) or failure and worker._grace_is_over:
                await self._settle(RELEASE)
            elif failure:
                await self._settle(FAIL, str(failure).replace('\0', '') or type(failure).__name__)
            else:
                await self._settle(FINISH, self.state)
        elif failure and self._finished:
            say(logging.WARNING, '%s had ended when its handler failed: %s', self._what, failure)


class Worker(Loop):
    _lines: Lines
    _grace_is_over: bool
    _ttl: float

    def __init__(self, session: 'Session', queue: str, handler: Callable[[Task], Any], concurrency: int, ttl: float,
                 from_states: Optional[List[str]], to_state: str, on_timeout: Optional[str]) -> None:
        if not isinstance(concurrency, int) or not 1 <= concurrency <= 1000:
            raise TypeError('concurrency must be a number from 1 to 1000')
        self.queue = queue
        self._session = session
        self._ttl = ttl
        self._caller = Caller(handler)
        self._lines = Lines(session._conninfo, only=True)
        self._running: Set[Task] = set()
        self._free: Promise[None] = Promise()       # one has ended since
        self._calls: Set[Call] = set()
        self._stopping = False
        self._grace_is_over = False                 # tasks are to be given back
        owner = f'{session.client}#{queue}'.encode()[:250].decode(errors='ignore')
        self._rest = (None if from_states is None else array([text(state, 'from_states') for state in from_states]), to_state, owner, interval(ttl), on_timeout, interval(min(WAIT, ttl / 6)))
        self._begin(self._work(handler, concurrency))

    async def _work(self, handler: Callable[[Task], Any], concurrency: int) -> None:
        retry = RETRY
        while not (self._stopping or self._session._closed or self._caller.closed):
            try:
                answer = await self._lines.ask(CAPTURE, (self.queue, str(concurrency - len(self._running)), *self._rest))
            except Exception as error:
                say(logging.WARNING, 'tasks of queue "%s" cannot be captured: %s', self.queue, error)
                await core().sleep(retry)
                retry = min(2 * retry, LONGEST_RETRY)
                continue
            retry = RETRY
            for row in answer.rows:
                task = Task(self, row, answer.sent)
                self._running.add(task)
                Work(self._start(task, handler))
            if len(self._running) >= concurrency:
                self._free = Promise()
                await self._free
        if not (self._stopping or self._session._closed):
            say(logging.ERROR, 'the worker of queue "%s" ends, as its event loop is closed', self.queue)
        while self._running:
            self._free = Promise()
            await self._free
        self._lines.close()

    async def _start(self, task: Task, handler: Callable[[Task], Any]) -> None:
        try:
            await (task._settle(RELEASE) if self._stopping or task.lost else task._run(handler))
        except Exception as error:
            say(logging.WARNING, 'the end of task "%s" of queue "%s" could not be told: %s', task.key, self.queue, error)
        finally:
            task._end()
            self._running.discard(task)
            self._free.set()

    async def _stop(self, grace: Optional[float] = None) -> None:
        self._stopping = True
        if grace is not None and is_current(self._done.core):
            await within(self._done, grace)
            self._grace_is_over = True
            for call in self._calls:
                call.cancel()
        await self._join()

    def stop(self, grace: Optional[Span] = None) -> None:
        """Capture no more, and wait for tasks under way.  After "grace" tell them to end, which those of coroutine
        functions are by a cancel: what ends with an error then is given back as if it had not been captured."""
        run(self._stop(None if grace is None else seconds(grace, 'grace')))

    async def astop(self, grace: Optional[Span] = None) -> None:
        await run_to_end(self._stop(None if grace is None else seconds(grace, 'grace')))
