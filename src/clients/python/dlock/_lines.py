"""Connections of a session, and what is asked over them; under the lock.

What comes up while a statement is on its way waits for the next one, which then asks for all of its kind
at once.  Nothing waits for company: if a line is free, a request is sent at once.  What has been sent is
"unread", until a thread of the program reads the answer, or the loop of the core.
"""

import asyncio
import copy
import json
import math
import re
import selectors
from contextvars import Context
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

import psycopg
from psycopg import errors, pq

from ._core import DOZE, Program, Promise, core
from ._errors import LeaseError, ServerUnreachable, ServerUnsupported
from ._values import array, now

Row = Sequence[Optional[str]]

# An urgent request never stands behind a grant: while the first line is busy with one, the
# second one is there for it.
URGENT, USUAL = 0, 1

# Most requests in a statement.
BATCH = 1000

# The use of a command for which it is prepared.
PREPARE_AT = 5

# How long a statement may take, its connection included, if its kind says nothing; an urgent one; one that
# connects, at least; and how long an unused connection stays open.
ANSWER_WITHIN = 10.0
CONNECT_WITHIN = 1.0
URGENT_WITHIN = 5.0
IDLE = 10.0

# How soon what a program's loop gathers is sent, if the loop is blocked.
GATHER = 0.05

# Errors that tell that the server has changed: the extension has been created anew, or a prepared
# statement is not what it was.  One may also miss its function with an internal error.
CHANGED = '42883', '26000', '42P05'
INTERNAL = 'XX000'

GOOD = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK

# What is there, and where; and the process that is asked.
LOOK = r"""SELECT pg_catalog.format('%I.', n.nspname), pg_catalog.string_agg(DISTINCT p.proname, ' '), e.extversion, pg_catalog.pg_backend_pid()
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
    prepares: bool      # is it asked without a pooler, so that a prepared statement is there the next time?


class Kind(NamedTuple):
    """A kind of request.  Equal ones can be asked in one statement if it is for many: its parameters are then
    an array for each element of a row, and "shared".  The answer to many is an array, in order, in the first
    column; a second one may have a note for each, as JSON.  An error of many is traced to those whose it
    is, by asking for halves: a statement that fails changes nothing."""

    text: str       # {} stands for the schema of dlock's functions
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


class Request(Promise[Answer]):
    __slots__ = ('kind', 'row', 'until', 'queued')

    def __init__(self, kind: Kind, row: Row, until: float) -> None:
        super().__init__()
        self.kind = kind
        self.row = row
        self.until = until
        self.queued = True

    def withdraw(self) -> None:
        """Take it out, if it has not been sent."""
        if self.queued:
            self.set(None, InterruptedError('given up'))


def is_outage(error: BaseException) -> bool:
    """Does it say nothing but that this server cannot be asked now?"""
    state = getattr(error, 'sqlstate', None)
    return not isinstance(error, LeaseError) and (state is None or state[:2] == '08' or state[:3] == '57P' or state in ('25006', '53300'))


def is_of_one(error: BaseException) -> bool:
    """Could it be of one request among many?"""
    state = getattr(error, 'sqlstate', None)
    return state is not None and state not in ('42501', *CHANGED) and state[:2] not in ('08', '57', '0A', '25')


class Line:
    """A connection, once it is needed.  It is busy while it has a batch: that connects, looks what the server has, prepares,
    asks, and is settled."""

    def __init__(self, lines: 'Lines') -> None:
        self.lines = lines
        self.core = core()
        self.conn: 'Optional[psycopg.AsyncConnection[Any]]' = None
        self.selector: selectors.BaseSelector   # for threads that read
        self.uses: Dict[bytes, int] = {}        # how often a command was sent
        self.names: Dict[bytes, bytes] = {}     # of prepared statements
        self.prepared = False                   # has it asked by one?
        self.batch: List[Request] = []
        self.halves: List[List[Request]] = []   # to be asked once more, or apart, as they have failed together
        self.rank = USUAL                       # of what it asks
        self.sent = 0.0                         # when, or 0 if it has not been
        self.limit = math.inf                   # when there has to be an answer; or when an unused connection is closed
        self.result: Any = None                 # the first error, or else the first one
        self.watched = False                    # by the loop of the core
        self.reader: Optional[Program] = None   # its loop has an eye on the selector, so it can be
        self.lent = False                       # told to read
        self.writing = False                    # not all has been sent

    def take(self, batch: List[Request]) -> None:
        if batch:
            self.batch = batch
            self.rank = batch[0].kind.rank
            self.sent, self.prepared = 0.0, False
            if self.conn and self.selector.select(0):
                self.hear()     # that it has ended
            self.limit = now() + max(self.lines.within(batch[0].kind), 0 if self.conn else CONNECT_WITHIN)
            self.core.arm(self.limit + DOZE, self)      # if this is interrupted now
            if self.conn:
                self.send()
            else:
                self.core.inbox.put(lambda: setattr(self, 'task', self.core.loop.create_task(self.connect(batch))))

    async def connect(self, batch: List[Request]) -> None:
        """In the loop of the core, without the lock."""
        error: Optional[Exception] = None
        try:
            conn = await asyncio.wait_for(psycopg.AsyncConnection.connect(self.lines.conninfo, autocommit=True), max(self.limit - now(), 0))
            selector = selectors.DefaultSelector()
            selector.register(conn.pgconn.socket, selectors.EVENT_READ)
        except asyncio.TimeoutError:
            error = ServerUnreachable('the server does not answer')
        except Exception as failure:
            error = next((kind(str(failure)) for pattern, kind in REFUSALS.items() if re.search(pattern, str(failure))), failure)
        with self.core:
            if self.batch is not batch:     # it was cut
                if not error:
                    selector.close()
                    conn.pgconn.finish()
            elif error:
                self.failed(error)
            else:
                self.conn, self.fd, self.selector = conn, conn.pgconn.socket, selector
                self.uses, self.names = {}, {}
                self.send()

    def send(self) -> None:
        """Ask, or what has to be asked before."""
        assert self.conn
        conn, server = self.conn.pgconn, self.lines.server
        kind = self.batch[0].kind
        self.looking, self.preparing = server is None, b''
        try:
            if server is None:
                conn.send_query_params(LOOK.encode(), [])
            else:
                command = kind.text.replace('{}', server.schema).encode()
                name = self.names.get(command)
                self.uses[command] = self.uses.get(command, 0) + 1
                self.sent = now()
                if server.prepares and self.uses[command] == PREPARE_AT:
                    self.preparing, self.names[command] = command, b'dlock%d' % list(self.uses).index(command)
                    conn.send_prepare(self.names[command], command)
                else:
                    params = [array([request.row[i] for request in self.batch]) for i in range(len(self.batch[0].row))] if kind.many else self.batch[0].row
                    values = [None if param is None else param.encode() for param in (*params, *kind.shared)]
                    if name:
                        self.prepared = True
                        conn.send_query_prepared(name, values)
                    else:
                        conn.send_query_params(command, values)
            self.writing = bool(conn.flush())
        except Exception as error:
            self.failed(error)
        else:
            self.core.unread.append(self)

    # ---- reading ----

    def wait(self) -> None:
        """Until there is something to read, without the lock."""
        try:
            self.selector.select(max(min(self.limit - now(), 0.01 if self.writing else DOZE), 0))
        except (OSError, ValueError):
            pass        # this thread has come so late that the core has hung up

    def lend(self, here: Program) -> bool:
        """Have a program's loop read, in its thread; unless it cannot.  If it does not come to that, the core does."""
        if self.writing:
            return False
        if self.reader is not here:
            if self.reader and not self.reader.loop.is_closed():
                return False
            selector = self.selector

            def heard() -> None:
                with self.core:
                    if self.reader is here and self.selector is selector:
                        if self.lent:
                            if not self.watched:
                                self.lines.gathers = here
                                try:
                                    self.arrived()
                                finally:
                                    here.loop.call_soon(self.lines.gathered, here)
                            self.lent = False
                            here.read()
                        else:       # somebody else reads now
                            self.reader = None
                            here.loop.remove_reader(fd)
            try:
                fd = selector.fileno()      # type: ignore[attr-defined]
                Context().run(here.loop.add_reader, fd, heard)      # not in that of the task that comes first
            except (AttributeError, NotImplementedError):
                return False
            self.reader = here
        self.lent = True
        self.core.arm(self.back_at(), self)
        return True

    def back_at(self) -> float:
        """When the core reads, if whoever is to do it has not: the loop is blocked, or an error has ended what read."""
        return min(self.sent + DOZE, self.limit) if self.lent else self.limit + DOZE

    def watch(self) -> None:
        """Have the loop of the core read."""
        if self.conn and self.batch and not self.watched:
            self.watched, self.lent = True, False
            self.core.loop.add_reader(self.fd, self.heard)
        self.core.arm(self.limit, self)
        if self.conn and self.writing:
            self.core.loop.add_writer(self.fd, self.heard)

    def unwatch(self) -> None:
        if self.watched:
            self.watched = False
            self.core.loop.remove_reader(self.fd)
            self.core.loop.remove_writer(self.fd)

    def heard(self) -> None:
        with self.core:
            if self.writing:
                self.core.loop.remove_writer(self.fd)
            self.arrived()
            if not self.batch:
                self.unwatch()

    def tick(self) -> float:
        if self.batch:
            if self.watched and now() >= self.limit:
                self.arrived()
            elif self.conn and not self.watched:
                if now() < self.back_at():
                    return self.back_at()
                self.core.unread.append(self)
            elif not self.conn and now() >= self.limit + DOZE:
                self.failed(ServerUnreachable('the server does not answer'))
            return max(self.limit, now() + DOZE)
        if self.conn and now() >= self.limit:
            self.hang_up()
        return self.limit if self.conn else math.inf

    def hear(self) -> None:
        assert self.conn
        try:
            self.conn.pgconn.consume_input()
        except psycopg.Error:
            self.hang_up()

    def arrived(self) -> None:
        """There may be something to read, perhaps the end; or it is too late."""
        while self in self.core.unread:
            self.core.unread.remove(self)
        if not self.batch or not self.conn:
            return self.hear() if self.conn else None
        conn = self.conn.pgconn
        try:
            if self.writing:
                self.writing = bool(conn.flush())
            conn.consume_input()
            while not conn.is_busy():
                result = conn.get_result()
                if result is None:
                    return self.answered()
                # After rows there may still be an error of the commit.
                if self.result is None or self.result.status in GOOD and result.status not in GOOD:
                    self.result = result
        except psycopg.OperationalError as error:
            # An error comes before the end of the connection; a value may not be the end.
            if self.result and self.result.status not in GOOD:
                return self.answered()
            return self.failed(error)
        if now() >= self.limit:
            self.failed(ServerUnreachable('the server does not answer'))
        else:
            self.core.unread.append(self)

    def answered(self) -> None:
        result, self.result = self.result, None
        if result is None:
            return self.failed(psycopg.OperationalError('the connection was lost'))
        if result.status not in GOOD:
            self.names.pop(self.preparing, None)
            return self.failed(errors.error_from_result(result))
        if self.preparing:
            return self.send()
        values = [[result.get_value(i, j) for j in range(result.nfields)] for i in range(result.ntuples)]
        rows: List[Row] = [[None if value is None else value.decode() for value in row] for row in values]
        if self.looking:
            try:
                self.lines.server = self.look(rows)
            except LeaseError as error:
                return self.failed(error)
            return self.send()
        batch = self.batch
        if batch[0].kind.many:
            notes = json.loads(rows[0][1] or 'null') if len(rows[0]) > 1 else None
            for i, value in enumerate((rows[0][0] or '{}')[1:-1].split(',')):
                row: Row = [None if value == 'NULL' else value, notes[i] if notes else None]
                batch[i].set(Answer([row], self.sent))
        else:
            batch[0].set(Answer(rows, self.sent))
        self.over()

    def look(self, rows: List[Row]) -> Server:
        schema, names, version, pid = rows[0] if rows else ('', '', None, None)
        assert self.conn
        found = (names or '').split()
        missing = ['dlock_' + name for name in NEEDED if 'dlock_' + name not in found]
        if missing:
            old = f'dlock {version or ""} of the server is too old: {missing[0]}() is missing'
            raise ServerUnsupported(f'{old if found else "the database has no dlock"}; a role with the right to do so has to run '
                                    f'{"ALTER EXTENSION dlock UPDATE" if found else "CREATE EXTENSION dlock"} in database "{self.conn.info.dbname}"')
        return Server(schema or '', pid == str(self.conn.info.backend_pid))

    def failed(self, error: Exception) -> None:
        self.result = None
        state = getattr(error, 'sqlstate', None)
        if state in CHANGED or (state == INTERNAL and self.prepared):
            self.hang_up()
            self.lines.server = None
            if self.prepared or state != '42883':       # nothing was done, and the next one is not prepared
                self.halves.append(self.batch)
                return self.over()
        if self.sent and len(self.batch) > 1 and is_of_one(error):
            middle = len(self.batch) // 2
            self.halves += [self.batch[middle:], self.batch[:middle]]
            return self.over()
        if is_outage(error) or isinstance(error, LeaseError) or not self.sent:
            self.hang_up()
            if is_outage(error):
                why = ServerUnreachable(str(error).strip())
                why.__cause__ = error
                # Nothing happens on a standby.
                why.in_doubt = self.sent > 0 and state != '25006'
                error = why
            elif isinstance(error, ServerUnreachable):
                error.in_doubt = self.sent > 0
        for request in self.batch:
            own = copy.copy(error)
            own.__cause__ = error.__cause__
            request.set(None, own)
        self.over()

    def over(self) -> None:
        """What it has asked is settled."""
        self.batch = []
        self.limit = now() + IDLE
        self.lines.pump()
        if not self.batch and self.lines.closed:
            self.hang_up()
        elif not self.batch and self.conn:
            self.core.arm(self.limit, self)

    def give_back(self) -> None:
        """Close the selector, which must not be in use."""
        selector, reader = self.selector, self.reader
        self.reader, self.lent = None, False

        def close() -> None:
            if reader and not reader.loop.is_closed():
                reader.loop.remove_reader(selector.fileno())        # type: ignore[attr-defined]
            selector.close()
        if not reader or not reader.put(close):
            close()

    def hang_up(self) -> None:
        """By whoever reads, if it is busy."""
        if self.conn:
            self.unwatch()
            self.give_back()
            self.conn.pgconn.finish()
            self.conn = None


class Lines:
    """urgent_within says how long an urgent statement may take by now.  Those of a session are shared by its requests, and
    whoever waits for one may read; those that wait for long, of which there is only one, are not."""

    def __init__(self, conninfo: str, only: bool = False) -> None:
        self.conninfo = conninfo
        self.urgent_within = math.inf
        self.shared = not only
        self.lines: List[Line] = []
        self.queues: Tuple[Dict[Hashable, List[Request]], Dict[Hashable, List[Request]]] = ({}, {})     # by rank
        self.server: Optional[Server] = None
        self.closed = False
        self.gathers: Optional[Program] = None      # the loop whose tasks have been answered, and are to ask again

    def within(self, kind: Kind) -> float:
        return min(self.urgent_within, URGENT_WITHIN) if kind.rank == URGENT else kind.within

    def request(self, kind: Kind, row: Row, until: float = math.inf) -> Request:
        """It fails at "until" if it has not been sent."""
        request = Request(kind, row, min(until, now() + ANSWER_WITHIN))
        self.queues[kind.rank].setdefault(kind if kind.many else request, []).append(request)
        gathers = self.gathers is not None and self.gathers is core().program
        if not gathers:
            self.pump()
        if request.queued:
            core().arm(min(request.until, now() + GATHER) if gathers else request.until, self)
        return request

    async def ask(self, kind: Kind, row: Row, until: float = math.inf) -> Answer:
        return await self.request(kind, row, until)

    def gathered(self, here: Program) -> None:
        """What this loop was told has come to all who waited, so what they ask for next goes together."""
        with core():
            if self.gathers is here:
                self.gathers = None
                self.pump()
                here.read()

    def tick(self) -> float:
        """Let what has been queued for too long fail, and send what has been gathered."""
        if self.gathers:
            self.gathers = None
            self.pump()
        for request in self.queued():
            if now() >= request.until:
                request.set(None, ServerUnreachable('the server did not get to answer in time'))
        return min([request.until for request in self.queued()], default=math.inf)

    def queued(self) -> List[Request]:
        return [request for queue in self.queues for requests in queue.values() for request in requests if not request.is_set]

    def next(self, rank: int) -> List[Request]:
        """The next requests up to this rank, of one kind."""
        for queue in self.queues[:rank + 1]:
            for key in list(queue):
                live = [request for request in queue.pop(key) if not request.is_set]
                if live[BATCH:]:
                    queue[key] = live[BATCH:]
                for request in live[:BATCH]:
                    request.queued = False
                if live:
                    return live[:BATCH]
        return []

    def pump(self) -> None:
        if not self.lines:
            self.lines = [Line(self), Line(self)] if self.shared else [Line(self)]
        for line in self.lines:
            if not line.batch and line.halves:
                line.take(line.halves.pop())
        first = self.lines[0]
        if not first.batch:
            first.take(self.next(USUAL))
        for second in self.lines[1:]:
            if not second.batch and first.batch and first.rank == USUAL:
                second.take(self.next(URGENT))

    def close(self) -> None:
        """What is under way ends first.  What is asked for later gets a connection for itself."""
        self.closed = True
        for line in self.lines:
            if not line.batch:
                line.hang_up()

    def cut(self) -> None:
        """What is under way fails."""
        self.closed = True
        def fail() -> None:
            for line in self.lines:
                if line.batch and (line.watched or not self.shared):     # of those, nobody else reads
                    line.failed(psycopg.OperationalError('the connection was closed'))
        core().inbox.put(fail)
