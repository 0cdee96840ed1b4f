"""Connections of a session, and what is asked over them.

What comes up while a statement is on its way waits for the next one, which then asks for all of its kind
at once.  Nothing waits for company: if a line is free, a request is sent at once.  All of this
happens in the loop of the core.
"""

import asyncio
import copy
import json
import math
import re
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

import psycopg
from psycopg import errors, pq

from ._errors import LeaseError, ServerUnreachable, ServerUnsupported
from ._values import array, now

Row = Sequence[Optional[str]]

# An urgent request never stands behind a grant: while the first line is busy with one, the
# second one is there for it.
URGENT, USUAL = 0, 1

# Most requests in a statement.
BATCH = 1000

# How long a statement may take, its connection included, if its kind says nothing; an
# urgent one; and how long an unused connection stays open.
ANSWER_WITHIN = 10.0
URGENT_WITHIN = 5.0
IDLE = 10.0

GOOD = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK

# What is there, and where.
LOOK = r"""SELECT pg_catalog.format('%I.', n.nspname), pg_catalog.string_agg(DISTINCT p.proname, ' '), e.extversion
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  LEFT JOIN pg_catalog.pg_extension e ON e.extname = 'dlock' AND e.extnamespace = n.oid
  WHERE p.proname LIKE 'dlock\_%' GROUP BY n.nspname, e.extversion
  ORDER BY e.extversion IS NULL, pg_catalog.max(pg_catalog.pg_function_is_visible(p.oid)::int) DESC LIMIT 1"""
NEEDED = 'acquire_each', 'renew_each', 'release_each', 'take'

# How libpq tells that the server has refused the connection, which has no SQLSTATE.
REFUSALS = {r'FATAL:  .*authentication failed': errors.InvalidPassword,
            r'FATAL:  (.*pg_hba.conf|role ".*" (does|is) not)': errors.InvalidAuthorizationSpecification,
            r'FATAL:  database ".*" does not exist': errors.InvalidCatalogName}


class Server(NamedTuple):
    schema: str         # of the functions, quoted, and with a dot


class Kind(NamedTuple):
    """A kind of request.  Equal ones can be asked in one statement if it is for many: its parameters are then
    an array for each element of a row, and "shared".  The answer to many is an array, in order, in the first
    column; a second one may have a note for each, as JSON.  An error of many is traced to those whose it
    is, by asking for halves: a statement that fails changes nothing."""

    text: Callable[[Server], str]
    many: bool = False
    rank: int = USUAL
    shared: Tuple[Optional[str], ...] = ()
    within: float = ANSWER_WITHIN


class Answer(NamedTuple):
    rows: List[Row]     # of one among many: its value, and its note
    sent: float         # when it was asked

    @property
    def value(self) -> Optional[str]:
        return self.rows[0][0]


class Request:
    def __init__(self, kind: Kind, row: Row) -> None:
        self.kind = kind
        self.row = row
        self.queued = True
        self.future: 'asyncio.Future[Answer]' = asyncio.get_running_loop().create_future()

    def withdraw(self) -> None:
        """Take it out, if it has not been sent."""
        if self.queued:
            self.future.cancel()

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def is_outage(error: BaseException) -> bool:
    """Does it say nothing but that this server cannot be asked now?"""
    state = getattr(error, 'sqlstate', None)
    return not isinstance(error, LeaseError) and (state is None or state[:2] == '08' or state[:3] == '57P' or state in ('25006', '53300'))


def is_of_one(error: BaseException) -> bool:
    """Could it be of one request among many?"""
    state = getattr(error, 'sqlstate', None)
    return state is not None and state not in ('42883', '42501') and state[:2] not in ('57', '0A', '25')


class Line:
    def __init__(self, lines: 'Lines') -> None:
        self.lines = lines
        self.conn: 'Optional[psycopg.AsyncConnection[Any]]' = None
        self.fd = -1
        self.busy = False
        self.rank = USUAL       # of what it asks
        self.sent = 0.0         # when the statement under way was
        self.waiter: 'Optional[asyncio.Future[None]]' = None
        self.idle: Optional[asyncio.TimerHandle] = None
        self.task: 'Optional[asyncio.Task[None]]' = None

    def take(self, batch: Optional[List[Request]]) -> None:
        if batch:
            self.busy = True
            self.rank = batch[0].kind.rank
            if self.idle:
                self.idle.cancel()
            self.task = asyncio.get_running_loop().create_task(self.serve(batch))

    async def serve(self, batch: List[Request]) -> None:
        await self.ask(batch)
        self.busy = False
        self.lines.pump()
        if not self.busy and self.lines.closed:
            self.drop()
        elif not self.busy and self.conn:
            self.idle = asyncio.get_running_loop().call_later(IDLE, self.drop)

    async def ask(self, batch: List[Request]) -> None:
        """Ask, and settle the requests."""
        kind = batch[0].kind
        self.sent = 0.0
        try:
            rows = await asyncio.wait_for(self.answer(kind, [request.row for request in batch]), self.lines.within(kind))
        except asyncio.TimeoutError:
            await self.failed(batch, ServerUnreachable('the server does not answer'))
        except Exception as error:
            await self.failed(batch, error)
        else:
            if kind.many:
                notes = json.loads(rows[0][1] or 'null') if len(rows[0]) > 1 else None
                for i, value in enumerate((rows[0][0] or '{}')[1:-1].split(',')):
                    row = [None if value == 'NULL' else value, notes[i] if notes else None]
                    if not batch[i].future.done():
                        batch[i].future.set_result(Answer([row], self.sent))
            elif not batch[0].future.done():
                batch[0].future.set_result(Answer(rows, self.sent))

    async def failed(self, batch: List[Request], error: Exception) -> None:
        if self.sent and len(batch) > 1 and is_of_one(error):
            await self.ask(batch[:len(batch) // 2])
            await self.ask(batch[len(batch) // 2:])
            return
        if is_outage(error) or isinstance(error, LeaseError) or not self.sent:
            self.drop()
            if is_outage(error):
                why = ServerUnreachable(str(error).strip())
                why.__cause__ = error
                # Nothing happens on a standby.
                why.in_doubt = self.sent > 0 and getattr(error, 'sqlstate', None) != '25006'
                error = why
            elif isinstance(error, ServerUnreachable):
                error.in_doubt = self.sent > 0
        elif getattr(error, 'sqlstate', None) == '42883':
            self.drop()         # perhaps the extension has been created anew
            self.lines.server = None
        for request in batch:
            own = copy.copy(error)
            own.__cause__ = error.__cause__
            request.fail(own)

    async def answer(self, kind: Kind, rows: List[Row]) -> List[Row]:
        conn = self.conn or await self.connect()
        assert self.lines.server
        params = [array(column) for column in zip(*rows)] if kind.many else rows[0]
        self.sent = now()
        return await self.exchange(conn, kind.text(self.lines.server), [*params, *kind.shared])

    async def connect(self) -> 'psycopg.AsyncConnection[Any]':
        try:
            conn = await psycopg.AsyncConnection.connect(self.lines.conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            for pattern, kind in REFUSALS.items():
                if re.search(pattern, str(error)):
                    raise kind(str(error)) from None
            raise
        self.conn, self.fd = conn, conn.pgconn.socket
        asyncio.get_running_loop().add_reader(self.fd, self.arrived, conn)
        if self.lines.server is None:
            self.lines.server = await self.look(conn)
        return conn

    async def look(self, conn: 'psycopg.AsyncConnection[Any]') -> Server:
        schema, names, version = (await self.exchange(conn, LOOK, []) or [('', '', None)])[0]
        found = (names or '').split()
        missing = ['dlock_' + name for name in NEEDED if 'dlock_' + name not in found]
        if missing:
            old = f'dlock {version or ""} of the server is too old: {missing[0]}() is missing'
            raise ServerUnsupported(f'{old if found else "the database has no dlock"}; a role with the right to do so has to run '
                                    f'{"ALTER EXTENSION dlock UPDATE" if found else "CREATE EXTENSION dlock"} in database "{conn.info.dbname}"')
        return Server(schema or '')

    def arrived(self, conn: 'psycopg.AsyncConnection[Any]') -> None:
        """There is something to read, perhaps the end."""
        broken = None
        try:
            conn.pgconn.consume_input()
        except psycopg.Error as error:
            broken = error
            asyncio.get_running_loop().remove_reader(self.fd)
        if self.waiter:
            self.wake(broken)
        elif broken:
            self.drop()

    def wake(self, error: Optional[Exception] = None) -> None:
        if self.waiter and not self.waiter.done():
            if error:
                self.waiter.set_exception(error)
            else:
                self.waiter.set_result(None)

    async def ready(self, writing: bool = False) -> None:
        loop = asyncio.get_running_loop()
        waiter = self.waiter = loop.create_future()
        if writing:
            loop.add_writer(self.fd, self.wake)
        try:
            await waiter
        finally:
            self.waiter = None
            if writing:
                loop.remove_writer(self.fd)

    async def exchange(self, conn: 'psycopg.AsyncConnection[Any]', command: str, params: Sequence[Optional[str]]) -> List[Row]:
        pgconn = conn.pgconn
        pgconn.send_query_params(command.encode(), [None if param is None else param.encode() for param in params])
        while pgconn.flush():
            await self.ready(True)
        result: Any = None
        try:
            while True:
                while pgconn.is_busy():
                    await self.ready()
                more = pgconn.get_result()
                if more is None:
                    break
                result = result or more
        except psycopg.OperationalError:
            # An error comes before the end of the connection; a value may not be the end.
            if result is None or result.status in GOOD:
                raise
        if result is None:
            raise psycopg.OperationalError('the connection was lost')
        if result.status not in GOOD:
            raise errors.error_from_result(result)
        values = [[result.get_value(i, j) for j in range(result.nfields)] for i in range(result.ntuples)]
        return [[None if value is None else value.decode() for value in row] for row in values]

    def drop(self) -> None:
        if self.conn:
            asyncio.get_running_loop().remove_reader(self.fd)
            self.conn.pgconn.finish()
            self.conn = None
            self.wake(psycopg.OperationalError('the connection was closed'))


class Lines:
    """urgent_within says how long an urgent statement may take by now."""

    def __init__(self, conninfo: str, urgent_within: Callable[[], float] = lambda: math.inf, only: bool = False) -> None:
        self.conninfo = conninfo
        self.urgent_within = urgent_within
        self.lines = [Line(self)] if only else [Line(self), Line(self)]
        self.queues: Tuple[Dict[Hashable, List[Request]], Dict[Hashable, List[Request]]] = ({}, {})     # by rank
        self.server: Optional[Server] = None
        self.closed = False

    def within(self, kind: Kind) -> float:
        return min(self.urgent_within(), URGENT_WITHIN) if kind.rank == URGENT else kind.within

    def request(self, kind: Kind, row: Row, until: float = math.inf) -> Request:
        """It fails at "until" if it has not been sent."""
        request = Request(kind, row)
        self.queues[kind.rank].setdefault(kind if kind.many else request, []).append(request)
        self.pump()
        if self.queues[0] or self.queues[1]:
            limit = asyncio.get_running_loop().call_later(
                min(until - now(), ANSWER_WITHIN), self.expire, request)
            request.future.add_done_callback(lambda _: limit.cancel())
        return request

    async def ask(self, kind: Kind, row: Row, until: float = math.inf) -> Answer:
        return await self.request(kind, row, until).future

    def expire(self, request: Request) -> None:
        """It has been queued for too long, if it is queued still."""
        if request.queued:
            request.fail(ServerUnreachable('the server did not get to answer in time'))

    def next(self, rank: int) -> Optional[List[Request]]:
        """The next requests up to this rank, of one kind."""
        for queue in self.queues[:rank + 1]:
            for key in list(queue):
                live = [request for request in queue.pop(key) if not request.future.done()]
                if live[BATCH:]:
                    queue[key] = live[BATCH:]
                for request in live[:BATCH]:
                    request.queued = False
                if live:
                    return live[:BATCH]
        return None

    def pump(self) -> None:
        first = self.lines[0]
        if not first.busy:
            first.take(self.next(USUAL))
        for second in self.lines[1:]:
            if not second.busy and first.busy and first.rank == USUAL:
                second.take(self.next(URGENT))

    def drop(self) -> None:
        for line in self.lines:
            line.drop()

    def close(self) -> None:
        """What is under way ends first.  What is asked for later gets a connection for itself."""
        self.closed = True
        for line in self.lines:
            if not line.busy:
                line.drop()
