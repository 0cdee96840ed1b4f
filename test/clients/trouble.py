# What the library for Python does in troubles of its own process: trouble.py TOPIC

import asyncio
import contextvars
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

import dlock
import psycopg
from dlock import _hold, _lines, _session, _values, _waits
from dlock._core import Errand, Promise, Work, core, run, run_async, within
from dlock._lines import Kind, Lines

# Instead of hanging.
signal.alarm(300)

HOUR = timedelta(hours=1)
other = psycopg.connect(autocommit=True)
session = dlock.connect('')


def sql(query):
    """The first value of the answer, as text.  Unlike execute(), it takes no descriptor."""
    result = other.pgconn.exec_(query.encode())
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    value = result.get_value(0, 0)
    return None if value is None else value.decode()


def wait_until(condition):
    end = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < end, 'timed out'
        time.sleep(0.01)


def raises(kind, call, *args, **options):
    try:
        call(*args, **options)
    except kind as error:
        return error
    raise AssertionError(f'no {kind.__name__}')


def left():
    return sql('SELECT (SELECT count(*) FROM dlock_leases) + (SELECT count(*) FROM dlock_waiters)')


def nothing_left():
    assert left() == '0'


class NoDescriptors:
    """The process can open nothing."""

    def __enter__(self):
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(self.limits[0], 64), self.limits[1]))
        self.files = []
        self.fill()
        return self

    def fill(self):
        """Take what has been closed meanwhile, too."""
        try:
            while True:
                self.files.append(os.open('/dev/null', os.O_RDONLY))
        except OSError:
            pass

    def __exit__(self, *what):
        for file in self.files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


def descriptors():
    # A connection that is there can be used.
    ttl = timedelta(minutes=2)
    with session.lease('job', ttl) as lease:
        with NoDescriptors():
            # It is renewed every two seconds.
            low = ttl - timedelta(seconds=1)
            wait_until(lambda: lease.remaining() < low)
            wait_until(lambda: lease.remaining() > low)
        assert not lease.lost

    # But there is no other.
    def work():
        with session.lease('job', 3) as lease:
            with NoDescriptors() as none:
                sql("""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                       WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()""")

                def taken():
                    none.fill()
                    return sql("SELECT dlock_acquire('job', 'next', '1 h')") is not None
                wait_until(taken)
                assert lease.lost
    raises(dlock.ServerUnreachable, work)
    sql("SELECT dlock_release('job', 'next')")


def hanging():
    """The thread that renews hangs: the work is stopped in time all the same."""
    over, told, beats = threading.Event(), [], []

    def has_told():
        beats.append(time.monotonic())
        return told

    def work():
        with session.lease('job', 3, on_lost=lambda lease: told.append(lease.remaining())) as lease:
            core().loop.call_soon_threadsafe(over.wait)
            wait_until(has_told)
            assert lease.lost
            over.set()
    raises(dlock.ServerUnreachable, work)
    stalled = max(after - before for before, after in zip(beats, beats[1:])) > 0.3
    assert told[0] or stalled, told
    nothing_left()


def blocked():
    """A lease is renewed, again and again, while the program blocks its event loop."""
    async def work():
        async with session.lease('job', HOUR) as lease:
            for _ in range(2):
                before = lease.remaining()
                wait_until(lambda: lease.remaining() > before)
            lease.check()
    asyncio.run(work())
    nothing_left()


def lock_delay():
    """A lock that is closed after a loss is not opened while the work goes on."""
    granted = []

    def work():
        with session.lease('job', 4, lock_delay=600) as lease:
            sql("SELECT dlock_force_release('job', 'test')")
            wait_until(lambda: not lease.remaining())
            end = time.monotonic() + 3
            while time.monotonic() < end:
                granted.append(sql("SELECT dlock_acquire('job', 'next', reentry => 'return')"))
                time.sleep(0.1)
    raises(dlock.LeaseError, work)
    assert not any(granted), 'opened while the work went on'
    assert sql("SELECT dlock_acquire('job', 'next')") is not None, 'closed after the work has ended'
    sql("SELECT dlock_release('job', 'next')")


def twice():
    block = session.lease('job')
    with block as lease:
        raises(RuntimeError, block.__enter__)
        assert not lease.lost
    raises(RuntimeError, block.__enter__)


class NoThreads:
    """No thread can be started; or none for these functions."""

    def __init__(self, *only):
        self.only = only

    def __enter__(self):
        start = self.start = threading.Thread.start

        def refuse(thread):
            if not self.only or thread._target.__name__ in self.only:
                raise RuntimeError("can't start new thread")
            start(thread)
        threading.Thread.start = refuse

    def __exit__(self, *what):
        threading.Thread.start = self.start


def threads():
    with NoThreads():
        raises(RuntimeError, session.lease('job').__enter__)
    nothing_left()

    # Two threads, whatever the number of leases and waits.
    before = threading.active_count()

    async def many():
        sql("SELECT dlock_acquire('hot', 'other', '1 h')")
        leases = await asyncio.gather(*[session.lease(f'job {i}').aacquire() for i in range(300)])
        waits = [asyncio.ensure_future(session.lease('hot', wait=None).aacquire()) for _ in range(1000)]
        while sql('SELECT count(*) FROM dlock_waiters') != '1000':
            await asyncio.sleep(0.1)
        assert threading.active_count() <= before + 2, threading.enumerate()
        assert int(sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'")) <= 4
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await asyncio.gather(*[lease.arelease() for lease in leases])
        sql("SELECT dlock_release('hot', 'other')")
    asyncio.run(many())
    wait_until(lambda: left() == '0')

    # Statements under way are ended all the same.
    def lose():
        wait_until(lambda: sql("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'") == '1')
        sql("SELECT dlock_force_release('job', 'test')")

    def work():
        with psycopg.connect(autocommit=True) as conn, session.lease('job') as lease:
            threading.Thread(target=lose).start()
            with NoThreads('send'), lease.transaction(conn):
                conn.execute('SELECT pg_sleep(600)')
    raises(dlock.LeaseLost, work)
    sql("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'")


def transactions():
    sql('CREATE TABLE written (x int PRIMARY KEY); SELECT')

    def swallow(conn, lease):
        with lease.transaction(conn):
            conn.execute('INSERT INTO written VALUES (1)')
            raises(psycopg.Error, conn.execute, 'INSERT INTO written VALUES (1)')

    async def swallow_async(lease):
        async with await psycopg.AsyncConnection.connect(autocommit=True) as conn, lease.transaction(conn):
            await conn.execute('INSERT INTO written VALUES (1)')
            try:
                await conn.execute('INSERT INTO written VALUES (1)')
            except psycopg.Error:
                pass

    with session.lease('job', HOUR) as lease, psycopg.connect() as conn:
        raises(psycopg.errors.InFailedSqlTransaction, swallow, conn, lease)
        raises(psycopg.errors.InFailedSqlTransaction, asyncio.run, swallow_async(lease))
        assert sql('SELECT count(*) FROM written') == '0'

        # Its commit would come later, unchecked.
        conn.execute('SELECT')
        raises(psycopg.ProgrammingError, swallow, conn, lease)
        conn.rollback()
        with lease.transaction(conn):
            conn.execute('INSERT INTO written VALUES (1)')
        assert sql('SELECT count(*) FROM written') == '1'


def begun():
    """A transaction whose token cannot be presented, as the encoding lacks the name."""
    with session.lease('\u20ac', HOUR) as lease:
        with psycopg.connect(client_encoding='LATIN1') as conn:
            raises(UnicodeEncodeError, lease.transaction(conn).__enter__)
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def ended():
    """What outlasts its block is not committed."""
    sql('CREATE TABLE outlasted (x int); SELECT')
    told = []
    with psycopg.connect(autocommit=True) as conn:
        with session.lease('job', HOUR, on_lost=told.append) as lease:
            outlasting = lease.transaction(conn)
            outlasting.__enter__()
            conn.execute('INSERT INTO outlasted VALUES (1)')
        raises(dlock.LeaseLost, outlasting.__exit__, None, None, None)
        assert sql('SELECT count(*) FROM outlasted') == '0'
        raises(dlock.LeaseLost, lease.check)
        assert lease.lost
        raises(dlock.LeaseLost, lease.transaction(conn).__enter__)
    assert not told


def entry():
    """A lease that is lost while the loop is busy, before the block has begun."""
    async def enter():
        async with session.lease('job', HOUR):
            raise AssertionError('the block has begun')

    async def work():
        task = asyncio.ensure_future(enter())
        await asyncio.sleep(0)
        wait_until(lambda: sql('SELECT count(*) FROM dlock_leases') == '1')
        sql("SELECT dlock_force_release('job', 'test')")
        wait_until(lambda: any(hold._error for hold in session._holds))
        await task
    raises(dlock.LeaseLost, asyncio.run, work())

    # Our cancel, and somebody else's, that come when its work has ended: the other one goes on.
    async def both():
        block = session.lease('job', HOUR)
        async with block:
            for _ in range(2):
                asyncio.current_task().cancel()
            block._cancelled = True
    if hasattr(asyncio.Task, 'uncancel'):
        raises(asyncio.CancelledError, asyncio.run, both())


def silence():
    """Giving up is heard also while the server does not answer, and while nothing changes."""
    def interrupt_next():
        wait_until(lambda: watch._pause)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watch = session.watch('job', HOUR)
    assert next(watch) is None
    threading.Thread(target=interrupt_next).start()
    raises(KeyboardInterrupt, next, watch)
    wait_until(lambda: not session._looking)

    with socket.create_server(('127.0.0.1', 0)) as silent:
        block = dlock.lease(f'host=127.0.0.1 port={silent.getsockname()[1]}', 'job', wait=None)

        def interrupt():
            with silent.accept()[0]:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                ended.wait()
        ended = threading.Event()
        # What runs in the background may have it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt, daemon=True).start()
        raises(KeyboardInterrupt, block.__enter__)
        ended.set()


def cancels():
    """Whenever a request is given up, nothing is held afterwards."""
    async def work():
        for i in range(300):
            wait = asyncio.ensure_future(session.lease('job', wait=HOUR if i % 3 == 0 else 0).aacquire())
            for _ in range(i % 30):
                await asyncio.sleep(0.0001)
            wait.cancel()
            try:
                await (await wait).arelease()
            except (asyncio.CancelledError, dlock.LeaseRefused):
                pass
    asyncio.run(work())
    wait_until(lambda: left() == '0')
    session.close()
    raises(dlock.SessionClosed, session.lease('job').acquire)
    # One that was given up on its way may just be released; one that was left lasts a minute.
    with dlock.lease('', 'job', wait=20):
        pass


def alone():
    """A thread that is alone asks for itself: it wakes no other, and a pair is two statements, which get prepared."""
    _hold.RENEW_EVERY = 600.0
    calls = []

    def work():
        for _ in range(10):
            with session.lease('job'):
                pass
        before_each(core().inbox, 'put', lambda: calls.append('put'))
        for line in session._lines.lines:
            before_each(line, 'send', lambda: calls.append('send'))
        for _ in range(200):
            with session.lease('job'):
                pass
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert calls.count('send') == 400, calls.count('send')
    assert calls.count('put') < 100, calls.count('put')      # for a timer, of an answer that is late
    line = session._lines.lines[0]
    assert len(line.names) == 2, line.names

    # They have gone.
    run(session._lines.ask(Kind('DEALLOCATE ALL'), ()))
    with session.lease('job'):
        pass
    assert not line.names
    nothing_left()


def together():
    """Tasks of an event loop ask for themselves, too: what they were answered together, they go on from together."""
    sends, puts = [], []

    async def task(i):
        for _ in range(20):
            await (await session.lease(f'job {i}').aacquire()).arelease()

    async def tasks():
        await task(0)
        for line in session._lines.lines:
            before_each(line, 'send', lambda line=line: sends.append(line.batch[0].kind))
        before_each(core().inbox, 'put', lambda: puts.append(1))
        await asyncio.gather(*[task(i) for i in range(32)])
    _lines.DOZE = _lines.GATHER = _hold.RENEW_EVERY = 600.0     # the loop is given time for all that it is to read, and to send
    asyncio.run(tasks())
    assert len(puts) < 10, len(puts)    # now and then, for a timer
    # The first task asks alone, and the others together.
    assert len([kind for kind in sends if kind.many]) < 100, len(sends)
    nothing_left()


def taken_over():
    """A program's loop that is blocked or closed while it is to read an answer holds up nobody else."""
    def lease():
        with session.lease('of a thread'):
            got.set()

    async def block():
        wait = asyncio.ensure_future(session.lease('job').aacquire())
        await asyncio.sleep(0)
        thread.start()
        assert got.wait(60), 'held up'
        await (await wait).arelease()
    session.lease('job').acquire().release()
    got, thread = threading.Event(), threading.Thread(target=lease)
    asyncio.run(block())
    thread.join()

    restore = slow_acquire()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(session.lease('job').aacquire())
    loop.run_until_complete(asyncio.sleep(0))
    wait_until(lambda: sql("SELECT count(*) FROM dlock_leases") == '1')
    loop.close()
    sql("INSERT INTO go VALUES ('dlock_acquire_each'); SELECT")
    got, thread = threading.Event(), threading.Thread(target=lease)
    thread.start()
    thread.join(60)
    assert got.is_set()
    wait_until(lambda: left() == '0')
    del waiting
    restore()


def gathered():
    """What a task asks for is sent also if another one, which was answered together with it, blocks the loop."""
    async def use():
        await (await session.lease('job', HOUR).aacquire()).arelease()

    async def block():
        await session.lease('other', HOUR).aacquire()
        wait_until(lambda: sql("SELECT count(*) FROM dlock_leases WHERE name = 'job'") == '0')

    async def work():
        # The first one asks alone, and the others together.
        await asyncio.gather(session.lease('first', HOUR).aacquire(), use(), block())
    session.lease('job').acquire().release()
    _lines.DOZE = _hold.RENEW_EVERY = 600.0     # there is nothing else to do
    asyncio.run(work())
    session.close()
    nothing_left()


def before_each(what, name, before):
    """Has a method of an object do something before each call."""
    function = getattr(what, name)

    def call(*args, **options):
        before()
        return function(*args, **options)
    setattr(what, name, call)


def before_once(what, name, before):
    """Has it do that before its first call."""
    left_to_do = [before]
    before_each(what, name, lambda: left_to_do and left_to_do.pop()())


def interrupted():
    """A signal handler interrupts the library: what it has got is given back.  In an event loop, a blocking call is
    refused, and an error is raised there alone."""
    def interrupt():
        raise KeyboardInterrupt
    before_once(dlock, 'conninfo_of', lambda: dlock.lease('', 'job'))
    assert dlock.connect('') is session
    block, again, done = session.lease('job', HOUR), session.lease('job', HOUR, wait=60), threading.Event()
    before_once(block, '_begin', interrupt)
    raises(KeyboardInterrupt, block.__enter__)
    wait_until(lambda: left() == '0')
    before_once(Errand, 'result', interrupt)
    raises(KeyboardInterrupt, again.acquire)
    again.__enter__()
    before_once(core().inbox, 'put', interrupt)
    raises(KeyboardInterrupt, again.__exit__, None, None, None)
    wait_until(lambda: left() == '0')

    # A line that is interrupted before it connects fails in time.
    def connects(call):
        if 'Line.take' in call.__qualname__:
            core().inbox.put = put
            raise KeyboardInterrupt
        return put(call)
    lines, put = Lines(''), core().inbox.put
    core().inbox.put = connects
    with core():
        raises(KeyboardInterrupt, lines.request, Kind('SELECT 1', within=0.1), ())
        lines.request(Kind('SELECT 1'), ()).then(done.set)
    assert done.wait(60)
    done.clear()
    before_once(core().loop, 'call_soon_threadsafe', interrupt)
    raises(KeyboardInterrupt, core().inbox.put, print)
    core().inbox.put(done.set)
    assert done.wait(60)

    errors = []
    loop = asyncio.new_event_loop()

    def ask(signum, frame):
        errors.append(raises(RuntimeError, session.lease('other').acquire))

    async def both():
        return await asyncio.gather(*[session.lease(f'job {i}').aacquire() for i in range(2)])
    session.lease('job', HOUR).acquire().release()
    signal.signal(signal.SIGUSR1, ask)
    before_once(session._lines, 'request', lambda: signal.raise_signal(signal.SIGUSR1))
    for lease in loop.run_until_complete(both()):
        loop.run_until_complete(lease.arelease())
    assert 'blocking call' in str(errors[0]), errors

    # In a step; the loop is given time for all that it is to read.
    doze, _lines.DOZE = _lines.DOZE, 600.0
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    tasks = [loop.create_task(session.lease(f'job {i}').aacquire()) for i in range(3)]
    before_once(session, '_grant', lambda: signal.raise_signal(signal.SIGUSR1))
    raises(KeyboardInterrupt, loop.run_until_complete, asyncio.wait(tasks))
    outcomes = loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    assert sum(isinstance(outcome, (InterruptedError, KeyboardInterrupt)) for outcome in outcomes) == 1, outcomes
    for outcome in outcomes:
        if isinstance(outcome, dlock.Lease):
            loop.run_until_complete(outcome.arelease())
    wait_until(lambda: left() == '0')

    # While an answer is read, which is urgent: the library takes that line back.
    lease = loop.run_until_complete(session.lease('job', 18).aacquire())
    line = session._lines.lines[0]
    lend, lent = line.lend, []
    line.lend = lambda *what: lent.append((lend(*what), line.back_at(), line.limit)) or lent[0][0]
    before_once(line, 'arrived', lambda: signal.raise_signal(signal.SIGUSR1))
    task = loop.create_task(lease.arelease())
    raises(KeyboardInterrupt, loop.run_until_complete, task)
    assert lent[0][0] and lent[0][1] == lent[0][2], lent
    _lines.DOZE = doze
    loop.run_until_complete(asyncio.wait([task]))
    with session.lease('job'):
        pass
    nothing_left()
    loop.close()


def polls():
    """Requests without places ask again in intervals that grow."""
    asked, ask = [], session._lines.request
    sql("SELECT dlock_acquire('a', 'other', '1 h')")
    session._lines.request = lambda *what: asked.append(what) or ask(*what)
    raises(dlock.LeaseRefused, session.lease_all(['a', 'b'], wait=1.5).acquire)
    assert len(asked) < 20, len(asked)
    sql("SELECT dlock_release('a', 'other')")


def late():
    """A grant that is heard of too late is given back, and asked for again once."""
    grant, count = session._grant, []

    def too_late(times):
        count.clear()

        def late(want, tokens, sent):
            count.append(tokens)
            return grant(want, tokens, sent - 7200 if len(count) <= times else sent)
        session._grant = late
    for block in session.lease('job', HOUR), session.lease_all(['a', 'b'], HOUR):
        too_late(1)
        with block as lease:
            assert not lease.lost
            assert len(count) == 2 and count[0] != count[1], count
    too_late(9)
    assert 'too late' in str(raises(dlock.ServerUnreachable, session.lease('job', HOUR, wait=HOUR).acquire))
    assert len(count) == 2, count
    nothing_left()


def again():
    """A lock that is given up anew while another one was waited for."""
    async def steps():
        with session.task():
            want, first, second, third = [session.lease_all(names)._want() for names in (['a', 'b'], ['a'], ['b'], ['a'])]
        session._leave(first)
        session._leave(second)
        session._enter(want)
        work = Work(session._after_others(want))
        session._left(first)
        session._leave(third)
        session._left(second)
        assert not work.is_set
        session._left(third)
        assert work.is_set and session._others(want) == []
        session._left(want)
    run(steps())


def deferred():
    """An error of the commit comes after the rows."""
    sql("""CREATE TABLE once (x int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (1) RETURNING x""")
    raises(psycopg.errors.UniqueViolation, run, session._lines.ask(Kind('INSERT INTO once VALUES (1) RETURNING x'), ()))


def anew():
    """A prepared statement that misses its functions is asked again; so is one that fails within."""
    def use():
        for _ in range(10):
            session.lease('job').acquire().release()
        assert len(session._lines.lines[0].names) == 2

    def move(schema):
        sql(f'DROP EXTENSION dlock; CREATE SCHEMA IF NOT EXISTS moved; CREATE EXTENSION dlock SCHEMA {schema}; SELECT')
    for schema in 'moved', 'public':
        use()
        move(schema)
        session.lease('job').acquire().release()
    use()
    restore = slow_acquire('IF EXISTS (SELECT FROM pg_prepared_statements) THEN RAISE internal_error; END IF; ')
    session.lease('job').acquire().release()
    restore()


def cut():
    """A connection of its own that is still being made is cut at once."""
    with socket.create_server(('127.0.0.1', 0)) as silent:
        lines = Lines(f'host=127.0.0.1 port={silent.getsockname()[1]}', only=True)
        told = []

        def ask():
            told.append(raises(dlock.ServerUnreachable, run, lines.ask(Kind('SELECT 1'), ())))
        thread = threading.Thread(target=ask)
        thread.start()
        conn = silent.accept()[0]
        lines.cut()
        thread.join()
        assert 'closed' in str(told[0]), told
        conn.close()

        # However urgent it is, it has time to connect.
        lines = Lines(lines.conninfo, only=True)
        lines.urgent_within, begun = 0.01, time.monotonic()
        raises(dlock.ServerUnreachable, run, lines.ask(Kind('SELECT 1', rank=_lines.URGENT), ()))
        assert time.monotonic() - begun > 0.9


def unheard():
    """Who waits in a loop that is closed keeps nobody from being told."""
    async def begin():
        asyncio.ensure_future(run_async(steps()))
        await asyncio.sleep(0)
    heard, promise = [], Promise()

    async def steps():
        await promise
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *what: None)
    loop.run_until_complete(begin())
    loop.close()
    with core():
        promise.then(lambda: heard.append(1))
        promise.set()
    assert heard


def crowd():
    """Many threads that ask for the same locks: all are answered."""
    left_over = []

    def work(i):
        for j in range(50):
            lease = session.lease(f'job {(i + j) % 20}', wait=HOUR).acquire()
            lease.release()
        left_over.append(i)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert len(left_over) == 20
    nothing_left()


def stopped():
    """Places that may have run out, as this process was stopped, are asked for again."""
    restore = slow('dlock_take', ['client text', 'wait interval', 'keep interval'], 'TABLE (name text, owner text, token bigint)',
                   """IF EXISTS (SELECT FROM go) THEN RETURN QUERY SELECT * FROM hidden_dlock_take(client, wait, keep);
                      ELSE PERFORM hidden_dlock_take(client, '0', '0'); WAIT END IF;""")
    sql("SELECT dlock_acquire('job', 'other', '1 h')")
    thread = threading.Thread(target=lambda: session.lease('job', HOUR, wait=HOUR).acquire().release())
    thread.start()
    wait_until(lambda: sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%dlock_take(%' AND wait_event = 'PgSleep'") == '1')
    assert sql('SELECT count(*) FROM dlock_waiters') == '0'
    _waits.now = lambda: _values.now() + 60
    sql("INSERT INTO go VALUES ('dlock_take'); SELECT")
    wait_until(lambda: sql('SELECT count(*) FROM dlock_waiters') == '1')
    _waits.now = _values.now
    sql("SELECT dlock_release('job', 'other')")
    thread.join(180)
    assert not thread.is_alive()
    restore()
    nothing_left()


def crashed():
    """An error of the connection, by which a pooler tells that a server process has gone, is not of one request among many."""
    sql("""CREATE FUNCTION crash(x text[]) RETURNS text[] LANGUAGE plpgsql AS
           $$BEGIN IF cardinality(x) > 1 THEN RAISE protocol_violation; END IF; RETURN x; END$$; SELECT""")
    answers, kind = [], Kind('SELECT crash($1)', True)

    async def ask():
        for request in [session._lines.request(kind, (x,)) for x in '123']:
            try:
                answers.append((await request).value)
            except dlock.ServerUnreachable as error:
                answers.append(error.in_doubt)
    run(ask())
    assert answers == ['1', True, True], answers


def slow(function, args, returns, query):
    """Has it wait for its name in table "go", and returns what ends that; returns is of the answer, before or after that query."""
    types = ', '.join(arg.split()[1] for arg in args)
    sql('CREATE TABLE IF NOT EXISTS go (what text); DELETE FROM go; SELECT')
    wait = f"WHILE NOT EXISTS (SELECT FROM go WHERE what = '{function}') LOOP PERFORM pg_sleep(0.01); END LOOP;"
    sql(f"""ALTER FUNCTION {function}({types}) RENAME TO hidden_{function};
            CREATE FUNCTION {function}({', '.join(args)}) RETURNS {returns} LANGUAGE plpgsql AS
            $$BEGIN {query.replace('WAIT', wait)} END$$; SELECT""")
    return lambda: sql(f'DROP FUNCTION {function}({types}); ALTER FUNCTION hidden_{function}({types}) RENAME TO {function}; SELECT')


def slow_acquire(first=''):
    return slow('dlock_acquire_each', ['names text[]', 'owners text[]', 'ttl interval', 'mode text', 'permits integer', 'reentry text',
                                       'lock_delay interval', 'min_hold interval', 'keep interval'], 'bigint[]',
                first + f'names := hidden_dlock_acquire_each($1, $2, $3, $4, $5, $6, $7, $8, $9)::text[]; {"" if first else "WAIT "}RETURN names::bigint[];')


async def until(condition):
    while sql(condition) != 't':
        await asyncio.sleep(0.01)


def undone():
    """What a request may have been granted whose answer was lost is ended before the task's next one is sent."""
    _session.DOUBT_WITHIN = 600.0

    async def work():
        restore = slow_acquire()
        restores = [slow('dlock_lease', ['name text'], 'SETOF dlock_leases', 'WAIT RETURN QUERY SELECT * FROM hidden_dlock_lease($1);'),
                    slow('dlock_once', ['name text', 'every interval'], 'bigint', 'WAIT RETURN hidden_dlock_once($1, $2);')]
        with session.task():
            lost = asyncio.ensure_future(session.lease('job', HOUR).aacquire())
            await until('SELECT count(*) = 1 FROM dlock_leases')
            lost.cancel()
            once = asyncio.ensure_future(session.aonce('slot', HOUR))   # it keeps the other connection busy
            await asyncio.sleep(0)
            restore()
            sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%dlock_acquire_each%' AND pid <> pg_backend_pid()")
            await until("SELECT count(*) >= 2 FROM pg_stat_activity WHERE state = 'active' AND application_name = 'dlock'")
            next_one = asyncio.ensure_future(session.lease('job', HOUR).aacquire())
            await asyncio.sleep(0)
            sql("INSERT INTO go VALUES ('dlock_once'); SELECT")
            await asyncio.gather(once, return_exceptions=True)      # its time may be over
            with session.task():
                await (await session.lease('other').aacquire()).arelease()
            assert not next_one.done()
            sql("INSERT INTO go VALUES ('dlock_lease'); SELECT")
            await (await next_one).arelease()
        for restore in restores:
            restore()
        sql("SELECT dlock_force_release('once:slot', 'test') FROM generate_series(1, 2)")

        # So is what one of two requests of an owner may have been granted, by the next one that is alone.
        restore = slow_acquire()
        with session.task():
            both = [asyncio.ensure_future(session.lease('job', HOUR, reentry=reentry).aacquire()) for reentry in ('deny', 'count')]
            await until('SELECT count(*) = 1 FROM dlock_leases')
            restore()
            sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%dlock_acquire_each%' AND pid <> pg_backend_pid()")
            lost, counted = await asyncio.gather(*both, return_exceptions=True)
            assert isinstance(lost, dlock.LeaseRefused), lost
            await counted.arelease()
            await (await session.lease('job', HOUR).aacquire()).arelease()
        nothing_left()

        # One whose release was not heard of is in nobody's way, either.
        async def unheard():
            pass
        with session.task():
            lease = await session.lease('job', HOUR).aacquire()
            for one in await session.lease('job', HOUR, reentry='count').aacquire(), lease:
                one._give_back = unheard
                await one.arelease()
            again = await session.lease('job', HOUR).aacquire()
            assert sql(f"SELECT dlock_release_token('job', {lease.token})") == 'f', 'ends the next one if it comes late'
            await again.arelease()

        # If it cannot be released, the lock is refused, or waited for.
        with session.task():
            lease = await session.lease('job', HOUR).aacquire()
            lease._give_back = unheard
            await lease.arelease()
            restore = slow('dlock_release_each', ['names text[]', 'tokens bigint[]'], 'boolean[]', 'RAISE division_by_zero;')
            _session.DOUBT_WITHIN, undo, undoing = 0.3, session._undo, []

            async def undo_alone(keys):
                undoing.append(keys)
                assert len(undoing) == 1
                await undo(keys)
                undoing.clear()
            session._undo = undo_alone
            refused, = await asyncio.gather(session.lease('job', HOUR).aacquire(), return_exceptions=True)
            assert isinstance(refused, dlock.LeaseRefused) and refused.holder == lease.owner, refused
            waits = [asyncio.ensure_future(session.lease('job', HOUR, wait=HOUR, reentry='count').aacquire()) for _ in range(2)]
            await asyncio.sleep(1)
            restore()
            tokens = {(await wait).token for wait in waits}
            assert len(tokens) == 1 and lease.token not in tokens, (lease.token, tokens)
            assert sql("SELECT holds FROM dlock_leases WHERE name = 'job'") == '2'
            for wait in waits:
                await wait.result().arelease()
    asyncio.run(work())
    nothing_left()
    assert not session._unsure


def given_up():
    """What a task asks for waits until what it has given up there has ended: if that was granted all the same, until it is released."""
    async def given(wait, heard):
        restores = [slow_acquire(), slow('dlock_release_each', ['names text[]', 'tokens bigint[]'], 'boolean[]', 'WAIT RETURN hidden_dlock_release_each($1, $2);')]
        with session.task():
            first = asyncio.ensure_future(session.lease('job', HOUR, wait=wait).aacquire())

            async def next_one():
                first.cancel()
                return await session.lease('job', HOUR, wait=wait).aacquire()
            await until('SELECT count(*) = 1 FROM dlock_leases')
            if heard:       # by the library, and not yet by the task
                sql("INSERT INTO go VALUES ('dlock_acquire_each'); SELECT")
                while not session._holds:
                    await asyncio.sleep(0)
                first.cancel()
            over = threading.Event()
            core().loop.call_soon_threadsafe(over.wait)     # the library's thread does not get to it before
            second = asyncio.ensure_future(next_one())
            await asyncio.sleep(0)
            over.set()
            sql("INSERT INTO go VALUES ('dlock_acquire_each'); SELECT")
            await until("SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active' AND query ~ 'dlock_release' AND pid <> pg_backend_pid()")
        assert [want.asked for want in session._all_wants() if not want.end] == [None], 'the second one has asked'
        sql("INSERT INTO go VALUES ('dlock_release_each'); SELECT")
        await (await second).arelease()
        for restore in restores:
            restore()

    async def work():
        for wait in 0, HOUR:
            for heard in False, True:
                await given(wait, heard)
    _lines.DOZE = 600.0     # the loop is given time for all that it is to read
    asyncio.run(work())


def closing():
    """A close that is cancelled gives back all the same."""
    async def work():
        own = dlock.Session('')
        await asyncio.gather(*[own.lease(f'job {i}').aacquire() for i in range(100)])
        closed = asyncio.ensure_future(own.aclose())
        await asyncio.sleep(0)
        closed.cancel()
        try:
            await closed
        except asyncio.CancelledError:
            pass
        nothing_left()
    asyncio.run(work())

    # What begins meanwhile ends by itself.
    for begin in (lambda own: own.elect('lead')), (lambda own: own.worker('mail', print)):
        own = dlock.Session('')
        own._check = own.close      # after it
        begins = begin(own)
        joins = threading.Thread(target=begins.join, daemon=True)
        joins.start()
        joins.join(60)
        assert not joins.is_alive()


def destroyed():
    """What awaits a lease has gone, or its event loop has: nobody holds that."""
    def waiters(count):
        wait_until(lambda: sql('SELECT count(*) FROM dlock_waiters') == count)

    async def close():
        waiting = session.lease('job', wait=None).aacquire()
        waiting.send(None)
        waiters('1')
        waiting.close()
        waiters('0')
    sql("SELECT dlock_acquire('job', 'other', '1 h')")
    asyncio.run(close())

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(session.lease('job', wait=None).aacquire())
    loop.run_until_complete(asyncio.sleep(0))
    waiters('1')
    loop.close()
    sql("SELECT dlock_release('job', 'other')")
    wait_until(lambda: left() == '0')
    del waiting
    session.close()     # it may have lost its place, and have asked again
    nothing_left()


def loopless():
    """A worker whose event loop is closed gives back what it has captured, and ends."""
    sql("""SELECT dlock_queue_create('mail'); SELECT dlock_task_put('mail', 'k' || i) FROM generate_series(1, 2) AS i""")

    async def handle(task):
        raise AssertionError('nothing runs it')

    # What waits but for a time leaves nothing behind.
    promise = Promise()
    assert not run(within(promise, 0.001)) and not promise._calls

    async def start():
        return session.worker('mail', handle)
    loop = asyncio.new_event_loop()
    worker = loop.run_until_complete(start())
    wait_until(lambda: sql("SELECT count(*) FROM dlock_tasks WHERE state = 'working'") == '1')
    loop.close()
    worker.join()
    worker.stop(grace=0)
    assert sql("SELECT string_agg(state || attempts, ' ') FROM dlock_tasks") == 'ready0 ready0'
    assert not session._closing


def captured():
    """A task that was captured so long ago that its work could not begin is given back, and captured anew."""
    attempts, ask, times = [], Lines.ask, [7200.0, 0.0]

    async def late(lines, kind, *what):
        answer = await ask(lines, kind, *what)
        return answer._replace(sent=answer.sent - times.pop(0)) if answer.rows and 'capture' in kind.text else answer
    sql("SELECT dlock_queue_create('captured'), dlock_task_put('captured', 'a')")
    Lines.ask = late
    worker = session.worker('captured', lambda task: attempts.append(task.attempts), ttl=HOUR)
    wait_until(lambda: attempts and not times)
    worker.stop()
    Lines.ask = ask
    assert attempts == [1], attempts

    # In the context of the program.
    around, seen = contextvars.ContextVar('around', default=None), []

    async def see(task):
        seen.append(around.get())

    async def work():
        around.set('async')
        worker = session.worker('captured', see)
        around.set('other')
        await (await session.lease('job').aacquire()).arelease()    # it may take steps of the worker
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        await worker.astop()
    sql("SELECT dlock_task_put('captured', key) FROM unnest(ARRAY['x', 'y']) AS key")
    asyncio.run(work())
    around.set('sync')
    worker = session.worker('captured', lambda task: seen.append(around.get()))
    sql("SELECT dlock_task_put('captured', 'z')")
    wait_until(lambda: len(seen) == 3)
    worker.stop()
    assert seen == ['async', 'async', 'sync'], seen

    # It has failed if it was not worked on.
    async def handle(task):
        raise AssertionError('nothing runs it')
    sql("SELECT dlock_task_put('captured', 'b')")
    worker = session.worker('captured', lambda task: handle(task))
    wait_until(lambda: sql("SELECT error ~ 'coroutine function' FROM dlock_tasks WHERE queue = 'captured' AND key = 'b'") == 't')
    worker.stop()
    nothing_left()


def finished():
    """A task that a transaction of its own finishes is not lost by that, while that commits or later."""
    renewals, asked, seen, lines = [], [], [], []
    sql("""CREATE TABLE sent (x int); CREATE TABLE gate AS SELECT 1 AS closed;
           CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN WHILE EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NULL; END$$;
           CREATE CONSTRAINT TRIGGER late AFTER INSERT ON sent DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_gate();
           SELECT dlock_queue_create('finished'); SELECT dlock_task_put('finished', 'a')""")
    restore = slow('dlock_task_renew', ['queue text', 'key text', 'token bigint', 'ttl interval DEFAULT NULL'], 'boolean',
                   """RETURN EXISTS (SELECT FROM dlock_tasks AS t WHERE t.queue = $1 AND state = 'working')
                      AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active');""")

    def renewed(more):
        count = len(renewals)
        wait_until(lambda: len(renewals) > count + 2 or more())

    def handle(task):
        before_each(task, '_renew', lambda: renewals.append(task))
        before_each(task, '_ask_renewals', lambda: asked.append(bool(task._finishing)))
        with psycopg.connect() as conn, task.transaction(conn):
            conn.execute('INSERT INTO sent VALUES (1)')
        renewed(lambda: task.lost)
        seen.append(task.lost)
        task._extend(_values.now() - 7200)
        seen.append(task.lost)
        raise ValueError('in vain')
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger('dlock').addHandler(handler)
    _hold.RENEW_EVERY = 0.1
    worker = session.worker('finished', handle)
    wait_until(lambda: sql("SELECT count(*) FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active'") == '1')
    renewed(lambda: not worker._running)
    sql('DELETE FROM gate; SELECT')
    wait_until(lambda: not worker._running)
    assert seen == [False, False] and not any(asked), (seen, asked)
    wait_until(lambda: lines)
    worker.stop()
    assert 'in vain' in lines[0], lines
    assert sql("SELECT state || ' ' || (SELECT count(*) FROM sent) FROM dlock_tasks WHERE queue = 'finished'") == 'done 1'
    restore()


def deadlock():
    """Between two programs: one of them is told, within some seconds."""
    outcomes = []
    both = threading.Barrier(2)

    def program(first, second):
        own = dlock.Session('')
        try:
            with own.lease(first):
                both.wait()
                with own.lease(second, wait=HOUR):
                    outcomes.append('held')
        except dlock.LeaseDeadlock as error:
            assert isinstance(error, psycopg.errors.DeadlockDetected)
            outcomes.append('deadlock')
        own.close()
    programs = [threading.Thread(target=program, args=names) for names in (('a', 'b'), ('b', 'a'))]
    for one in programs:
        one.start()
    for one in programs:
        one.join()
    assert sorted(outcomes) == ['deadlock', 'held'], outcomes
    nothing_left()


def forked():
    """A child holds nothing, and takes nothing from its parent."""
    def child():
        for goes_on in election, worker:
            goes_on.stop(*[0] * (goes_on is worker))
            goes_on.join()
        assert not lost
        assert lease.lost
        assert 'parent' in str(raises(dlock.LeaseLost, lease.check))
        raises(dlock.LeaseLost, lease.release)
        raises(dlock.LeaseLost, lease.transaction(conn).__enter__)
        assert raises(dlock.LeaseRefused, session.lease('job').acquire).holder == lease.owner
        with session.lease('child') as own:
            assert own.owner.split('#')[0] != lease.owner.split('#')[0]
        assert named.client.startswith('named/')
        with named.lease('child'):
            pass

    named = dlock.Session('', client='named')
    assert named.client == 'named'
    sql("SELECT dlock_queue_create('forked')")
    worker = session.worker('forked', print)
    lost, gained = [], threading.Event()
    election = session.elect('lead', ttl=HOUR, gained=lambda lease: gained.set(), lost=lambda *what: lost.append(what))
    gained.wait()
    with session.lease('job', 30) as lease, psycopg.connect() as conn:
        held, over = threading.Event(), threading.Event()

        def hold():
            with lease._lock:
                held.set()
                over.wait()
        threading.Thread(target=hold).start()
        held.wait()
        pid = os.fork()
        if pid == 0:
            try:
                child()
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        over.set()
        assert os.waitpid(pid, 0)[1] == 0
        before = lease.remaining()
        wait_until(lambda: lease.remaining() > before)
        lease.check()
    assert election.leads and sql("SELECT count(*) FROM dlock_leases WHERE name = 'lead'") == '1'
    election.stop()
    worker.stop()
    nothing_left()


def told():
    """Renewals that fail are logged, once, long before the lease is lost; a handler that hangs holds nothing up."""
    lines, over = [], threading.Event()

    def emit(record):
        lines.append(record.getMessage())
        over.wait()
    handler = logging.Handler()
    handler.emit = emit
    logging.getLogger('dlock').addHandler(handler)
    sql("""CREATE FUNCTION answers() RETURNS boolean LANGUAGE sql AS 'SELECT 1 / 0 = 1';
           ALTER FUNCTION dlock_renew_each RENAME TO hidden;
           CREATE FUNCTION dlock_renew_each(text[], bigint[]) RETURNS boolean[] LANGUAGE sql AS 'SELECT ARRAY[answers()]'; SELECT""")
    with session.lease('job', 60) as lease:
        wait_until(lambda: lines)
        time.sleep(1)
        assert len(lines) == 1 and 'division by zero' in lines[0], lines
        sql('DROP FUNCTION dlock_renew_each(text[], bigint[]); ALTER FUNCTION hidden RENAME TO dlock_renew_each; SELECT')
        wait_until(lambda: not session._in_trouble)
        with session.lease('other'):
            lease.check()
        over.set()

        # A renewal that is interrupted is not the last one.
        def interrupt():
            interrupted.append(lease.remaining())
            raise KeyboardInterrupt
        interrupted = []
        before_once(lease, '_extend', interrupt)
        wait_until(lambda: interrupted)
        wait_until(lambda: lease.lost or lease.remaining() > interrupted[0])
        lease.check()


def misuse():
    for span in 0, -1, float('inf'), float('nan'), None, '60':
        raises(TypeError, session.lease, 'job', span)
    raises(TypeError, session.lease, 'job', wait='5 s')
    raises(TypeError, session.lease, 7)
    raises(TypeError, session.lease_all, 'job')
    raises(ValueError, session.lease, 'a\0b')
    raises(UnicodeEncodeError, session.lease, '\ud800')
    raises(ValueError, dlock.Session, '', client='a#b')
    raises(TypeError, dlock.connect, 7)
    for options in {'to_state': 1}, {'from_states': [1]}, {'on_timeout': 1}:
        raises(TypeError, session.worker, 'mail', print, **options)

    # What cannot be sent, and what fails in a timer, holds nothing else up.
    raises(dlock.LeaseError, run, session._lines.ask(Kind('SELECT $1'), [1]))
    before_once(session, 'tick', lambda: 1 / 0)
    with session.lease('job', 30) as lease:
        before = lease.remaining()
        wait_until(lambda: lease.lost or lease.remaining() > before)
        lease.check()
    for span in 60, 60.5, timedelta(minutes=1):
        with dlock.lease('', 'job', span):
            pass
    with session.task('mine'), session.lease('job') as lease:
        assert lease.owner == f'{session.client}#mine'

    # A task that the program names by a number is none that has been numbered.
    with session.lease('job') as lease:
        raises(dlock.LeaseRefused, session.lease('job', task=lease.owner.split('#')[1].strip('~'), reentry='count').acquire)

    # Errors of the driver are instances of the library's classes.
    with psycopg.connect(autocommit=True) as conn:
        with session.lease('job') as lease:
            error = raises(dlock.LeaseLost, conn.execute, f"SELECT dlock_fence('job', {lease.token - 1}, live => true)")
            assert error.sqlstate == 'LK002' and isinstance(error, psycopg.Error)
            conn.execute(f"SELECT dlock_fence('job', {lease.token})")
            raises(dlock.TokenStale, conn.execute, f"SELECT dlock_fence('job', {lease.token - 1})")


globals()[sys.argv[1]]()
