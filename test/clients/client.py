# What test/lib/DLockClient.pm has the Python client do: client.py sync|async KEY=VALUE...

import asyncio
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import psycopg
import dlock

try:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool
except ImportError:
    ConnectionPool = AsyncConnectionPool = None

mode = sys.argv[1]
args = dict(word.split('=', 1) for word in sys.argv[2:])
ttl = int(args['ttl_ms'])
wait = None if args.get('wait_ms') == 'none' else timedelta(milliseconds=int(args.get('wait_ms', 0)))
options = {'ttl': timedelta(milliseconds=ttl), 'wait': wait, 'payload': json.loads(args.get('payload', 'null'))}
least = None        # of what was left of the lease when there was work
stalled = False     # the machine stood still for a while


def say(*words):
    # At once: on_lost is called in another thread.
    sys.stdout.write(' '.join(map(str, words)) + '\n')
    sys.stdout.flush()


def may_go():
    return os.path.exists(os.environ['DLOCK_TEST_GO'])


def work(lease, before):
    """A bit of work, recorded."""
    global least, stalled
    left = lease.remaining() / timedelta(milliseconds=1)
    least = left if least is None else min(least, left)
    now = time.monotonic()
    stalled = stalled or now - before > ttl / 12000
    return now


def granted(lease):
    left = lease.remaining()
    say('token', lease.token, 'until', time.time() + left.total_seconds())
    return time.monotonic()


def run_sync(where, connection):
    with dlock.lease(where, args['name'], on_lost=lambda l: say('on_lost'), **options) as l:
        before = granted(l)
        if args['do'] == 'hold':
            while not may_go() and not l.lost:
                before = work(l, before)
                time.sleep(0.01)
        if args['do'] == 'write':
            while not may_go():
                time.sleep(0.01)
            try:
                with connection() as conn, l.transaction(conn):
                    conn.execute(args['sql'])
                say('written')
            except psycopg.Error as error:
                say('error', error.sqlstate)


async def run_async(where, connection):
    async with dlock.lease(where, args['name'], on_lost=lambda l: say('on_lost'), **options) as l:
        before = granted(l)
        if args['do'] == 'hold':
            while not may_go():
                before = work(l, before)
                await asyncio.sleep(0.01)
        if args['do'] == 'write':
            while not may_go():
                await asyncio.sleep(0.01)
            try:
                async with connection() as conn, l.transaction(conn):
                    await conn.execute(args['sql'])
                say('written')
            except psycopg.Error as error:
                say('error', error.sqlstate)


async def main_async():
    async def act():
        if args['where'] == 'pool':
            async with AsyncConnectionPool('', min_size=1, max_size=1) as pool:
                await run_async(pool, pool.connection)
        elif args['where'] == 'connection':
            conn = await psycopg.AsyncConnection.connect(autocommit=True)

            class Same:
                async def __aenter__(self):
                    return conn

                async def __aexit__(self, *what):
                    pass
            await run_async(conn, Same)
        else:
            await run_async('', lambda: None)

    task = asyncio.create_task(act())
    if args['do'] == 'giveup':
        while not may_go() and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
    await task


def main_sync():
    if args['do'] == 'giveup':
        # As from the keyboard.
        def interrupt():
            while not may_go():
                time.sleep(0.01)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
    if args['where'] == 'pool':
        with ConnectionPool('', min_size=1, max_size=1) as pool:
            run_sync(pool, pool.connection)
    elif args['where'] == 'connection':
        conn = psycopg.connect(autocommit=True)

        class Same:
            def __enter__(self):
                return conn

            def __exit__(self, *what):
                pass
        run_sync(conn, Same)
    else:
        run_sync('', lambda: None)


try:
    if mode == 'async':
        asyncio.run(main_async())
    else:
        main_sync()
    say('done')
except (asyncio.CancelledError, KeyboardInterrupt):
    say('gave up')
except dlock.LeaseRefused:
    say('refused')
except dlock.LeaseLost as error:
    say('lost', 'left', least, 'stalled' if stalled else 'steady')
    print(error, file=sys.stderr)
except dlock.ServerUnreachable as error:
    say('unreachable', 'left', least, 'stalled' if stalled else 'steady')
    print(error, file=sys.stderr)
except psycopg.Error as error:
    say('error', error.sqlstate)
    print(error, file=sys.stderr)
