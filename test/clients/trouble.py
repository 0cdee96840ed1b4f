# What the Python client does in troubles of its own process: trouble.py TOPIC

import asyncio
import os
import resource
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

import psycopg
import dlock
from psycopg.conninfo import conninfo_to_dict

# Instead of hanging.
signal.alarm(300)

HOUR = timedelta(hours=1)
other = psycopg.connect(autocommit=True)


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


def raises(kind, call, *args):
    try:
        call(*args)
    except kind as error:
        return error
    raise AssertionError(f'no {kind.__name__}')


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
    with dlock.lease('', 'job', ttl=ttl) as l:
        with NoDescriptors():
            # It is renewed every two seconds.
            low = ttl - timedelta(seconds=1)
            wait_until(lambda: l.remaining() < low)
            wait_until(lambda: l.remaining() > low)
        assert not l.lost

    # But there is no other.
    def work():
        with dlock.lease('', 'job', ttl=timedelta(seconds=3)) as l:
            with NoDescriptors() as none:
                sql("""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                       WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()""")

                def taken():
                    none.fill()
                    return sql("SELECT dlock_acquire('job', 'next', '1 h')") is not None
                wait_until(taken)
                assert l.lost
    raises(dlock.ServerUnreachable, work)
    sql("SELECT dlock_release('job', 'next')")


def keeper():
    """The thread that renews ends, for whatever reason."""
    threading.excepthook = lambda what: None

    def work():
        with dlock.lease('', 'job', ttl=HOUR) as l:
            def broken(until):
                raise MemoryError
            l._line.nap = broken
            l._line.wake()
            wait_until(lambda: l.lost)
            assert sql("SELECT dlock_acquire('job', 'next')") is None, 'released while the work went on'
    raises(dlock.ServerUnreachable, work)
    assert sql('SELECT count(*) FROM dlock_leases') == '0', 'not released'


def lock_delay():
    """A lock that is closed after a loss is not opened while the work goes on."""
    granted = []

    def work():
        with dlock.lease('', 'job', ttl=timedelta(seconds=4), lock_delay=timedelta(minutes=10)) as l:
            sql("SELECT dlock_force_release('job', 'test')")
            wait_until(lambda: not l.remaining())
            end = time.monotonic() + 3
            while time.monotonic() < end:
                granted.append(sql("SELECT dlock_acquire('job', 'next', reentry => 'return')"))
                time.sleep(0.1)
    raises(dlock.LeaseError, work)
    assert not any(granted), 'opened while the work went on'
    assert sql("SELECT dlock_acquire('job', 'next')") is not None, 'closed after the work has ended'
    sql("SELECT dlock_release('job', 'next')")


def twice():
    l = dlock.lease('', 'job', ttl=HOUR)
    with l:
        raises(RuntimeError, l.__enter__)
        assert not l.lost
    raises(RuntimeError, l.__enter__)


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
    # Before the lease is granted, and after it.
    for refused in '_run', '_watch':
        with NoThreads(refused):
            raises(RuntimeError, dlock.lease('', 'job', ttl=HOUR).__enter__)
        assert sql('SELECT count(*) FROM dlock_leases') == '0', 'not given back'

    # Ctrl-C while it is being started.
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        if thread._target.__name__ == '_run':
            raise KeyboardInterrupt
    l = dlock.lease('', 'job', ttl=HOUR)
    threading.Thread.start = interrupted
    raises(KeyboardInterrupt, l.__enter__)
    threading.Thread.start = start
    assert not l._keeper.is_alive()
    assert sql('SELECT count(*) FROM dlock_leases') == '0', 'not given back'

    # Statements under way are ended all the same.
    def lose():
        wait_until(lambda: sql("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'") == '1')
        sql("SELECT dlock_force_release('job', 'test')")

    def work():
        with psycopg.connect(autocommit=True) as conn, dlock.lease('', 'job', ttl=HOUR) as l:
            threading.Thread(target=lose).start()
            with NoThreads('send'), l.transaction(conn):
                conn.execute('SELECT pg_sleep(600)')

    async def work_async():
        async with await psycopg.AsyncConnection.connect(autocommit=True) as conn:
            async with dlock.lease('', 'job', ttl=HOUR) as l:
                threading.Thread(target=lose).start()
                with NoThreads('send'):
                    async with l.transaction(conn):
                        await conn.execute('SELECT pg_sleep(600)')

    async def quiet():
        async with dlock.lease('', 'job', ttl=HOUR):
            no.__enter__()

    raises(dlock.LeaseLost, work)
    sql("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'")
    raises(dlock.LeaseLost, asyncio.run, work_async())

    # The end of an async block needs none.
    no = NoThreads()
    asyncio.run(quiet())
    no.__exit__()


def transactions():
    sql('CREATE TABLE written (x int PRIMARY KEY); SELECT')

    def swallow(conn, l):
        with l.transaction(conn):
            conn.execute('INSERT INTO written VALUES (1)')
            raises(psycopg.Error, conn.execute, 'INSERT INTO written VALUES (1)')

    async def swallow_async(l):
        async with await psycopg.AsyncConnection.connect(autocommit=True) as conn, l.transaction(conn):
            await conn.execute('INSERT INTO written VALUES (1)')
            try:
                await conn.execute('INSERT INTO written VALUES (1)')
            except psycopg.Error:
                pass

    with dlock.lease('', 'job', ttl=HOUR) as l, psycopg.connect() as conn:
        raises(psycopg.errors.InFailedSqlTransaction, swallow, conn, l)
        raises(psycopg.errors.InFailedSqlTransaction, asyncio.run, swallow_async(l))
        assert sql('SELECT count(*) FROM written') == '0'

        # Its commit would come later, unchecked.
        conn.execute('SELECT')
        raises(psycopg.ProgrammingError, swallow, conn, l)
        conn.rollback()
        with l.transaction(conn):
            conn.execute('INSERT INTO written VALUES (1)')
        assert sql('SELECT count(*) FROM written') == '1'


def begun():
    """A transaction whose token cannot be presented, as the encoding lacks the name."""
    async def fail_async(l):
        async with await psycopg.AsyncConnection.connect(client_encoding='LATIN1') as conn:
            try:
                async with l.transaction(conn):
                    pass
            except UnicodeEncodeError:
                await conn.rollback()
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    with dlock.lease('', '\u20ac', ttl=HOUR) as l:
        with psycopg.connect(client_encoding='LATIN1') as conn:
            raises(UnicodeEncodeError, l.transaction(conn).__enter__)
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            conn.rollback()
        asyncio.run(fail_async(l))


def ended():
    """A lease that is not entered is not there, and what outlasts its block is not committed."""
    sql('CREATE TABLE outlasted (x int); SELECT')
    told = []
    lease = dlock.lease('', 'job', ttl=HOUR, on_lost=told.append)
    assert lease.lost
    with psycopg.connect(autocommit=True) as conn:
        raises(dlock.LeaseLost, lease.transaction(conn).__enter__)
        with lease as l:
            outlasting = l.transaction(conn)
            outlasting.__enter__()
            conn.execute('INSERT INTO outlasted VALUES (1)')
        raises(dlock.LeaseLost, outlasting.__exit__, None, None, None)
        assert sql('SELECT count(*) FROM outlasted') == '0'
        raises(dlock.LeaseLost, l.check)
        assert l.lost
        raises(dlock.LeaseLost, l.transaction(conn).__enter__)
    assert not told


def killed():
    """What the server says when it ends the connection is told."""
    sql("SELECT dlock_acquire('job', 'other', '1 h')")

    def kill():
        waiting = "FROM dlock_waiters WHERE name = 'job'"
        wait_until(lambda: sql(f'SELECT count(*) {waiting}') == '1')
        sql(f'SELECT pg_terminate_backend(pid) {waiting}')
    threading.Thread(target=kill, daemon=True).start()
    error = raises(dlock.ServerUnreachable, dlock.lease('', 'job', ttl=HOUR, wait=None).__enter__)
    assert 'due to administrator command' in str(error), error
    sql("SELECT dlock_release('job', 'other')")


def entry():
    """A lease that is lost while the loop is busy, before the block has begun."""
    async def enter(l):
        try:
            async with l:
                raise AssertionError('the block has begun')
        finally:
            task = asyncio.current_task()
            assert not hasattr(task, 'cancelling') or task.cancelling() == 0

    async def work():
        l = dlock.lease('', 'job', ttl=HOUR)
        task = asyncio.create_task(enter(l))
        while l._keeper is None:
            await asyncio.sleep(0)
        wait_until(lambda: l.token)
        sql("SELECT dlock_force_release('job', 'test')")
        wait_until(lambda: l.lost)
        with l._changed:
            pass        # by now the thread has told the loop
        await task

    raises(dlock.LeaseLost, asyncio.run, work())


def silence():
    """Giving up is heard also while the server does not answer."""
    with socket.create_server(('127.0.0.1', 0)) as silent:
        l = dlock.lease(f'host=127.0.0.1 port={silent.getsockname()[1]}', 'job', ttl=HOUR, wait=None)

        def interrupt():
            with silent.accept()[0]:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                ended.wait()
        ended = threading.Event()
        # What runs in the background may have it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt, daemon=True).start()
        raises(KeyboardInterrupt, l.__enter__)
        ended.set()
        assert isinstance(l._error, dlock.LeaseRefused), l._error


def keepalives():
    for given, idle in ('', '10'), ('keepalives_idle=7', '7'):
        with dlock.lease(given, 'job', ttl=HOUR) as l:
            used = conninfo_to_dict(l._line._conninfo.decode())
            assert used['keepalives_idle'] == idle and used['keepalives_count'] == '3', used


globals()[sys.argv[1]]()
