# A program of test/lib/DLockScenario.pm in Python, session.py sync|async: reads commands, a line of
# JSON each, and prints what comes of them, "ID EVENT...".

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import json
import os
import re
import signal
import sys
import threading
import time
import traceback

import dlock
import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

mode = sys.argv[1]
live = {}               # leases and others, by id
stall = 0.0             # the longest time that this process did not run
UNITS = {'ms': 0.001, 's': 1, 'min': 60, 'h': 3600, 'd': 86400}
threading.stack_size(256 * 1024)


def say(*words):
    os.write(1, (' '.join(map(str, words)) + '\n').encode())


def beat():
    global stall
    before = time.monotonic()
    while True:
        time.sleep(0.02)
        stall, before = max(stall, time.monotonic() - before), time.monotonic()


def span(value):
    """Texts such as '3 s', and milliseconds."""
    if isinstance(value, str):
        number, unit = re.fullmatch(r'(\d+) (\w+)', value).groups()
        return int(number) * UNITS[unit]
    return value / 1000


def options_of(command):
    given = command.get('options', {})
    return {key: span(value) if key in ('ttl', 'wait') else value for key, value in given.items()}


def outcome(error):
    if isinstance(error, dlock.LeaseRefused):
        return 'refused ' + ('self' if error.holder and error.holder.startswith(session.client) else str(error.holder))
    for kind in 'LeaseDeadlock', 'TokenStale', 'TokenMissing', 'LeaseLost', 'ServerUnreachable', 'ServerUnsupported', 'SessionClosed':
        if isinstance(error, getattr(dlock, kind)):
            return kind
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return 'gave up'
    return f'error {getattr(error, "sqlstate", None) or error}'


def ended(id, error, value):
    if error:
        print(id, ''.join(traceback.format_exception(type(error), error, error.__traceback__)[-3:]), file=sys.stderr, flush=True)
    say(id, 'ended', outcome(error) if error else 'ok' if value is None else value)


def block_of(command, **more):
    options = {**options_of(command), **more}
    if 'names' in command:
        return session.lease_all(command['names'], **options)
    return session.lease_path(command['path'], **options) if 'path' in command else session.lease(command['name'], **options)


def name_of(command, i):
    """Of one lease among many."""
    name = command.get('name')
    return f'{name}:{i % command["names"]}' if 'names' in command else name or f'{command["id"]}:{i}'


def stopped(id, held):
    time.sleep(0.03)    # so that a stall that has just ended is known
    say(id, 'stopped', 'early' if held.remaining() else 'stalled' if stall > 0.3 else 'late')


def block(command):
    # Nothing runs in this process meanwhile.
    ctypes.PyDLL(None).usleep(command['ms'] * 1000)
    return str(live[command['lease']]['lease'].lost).lower()


def build(command):
    """In a transaction of SQLAlchemy's."""
    import sqlalchemy
    engine = sqlalchemy.create_engine('postgresql://')
    with engine.begin() as tx:
        session.present(tx, *[live[id]['lease'] for id in command['leases']])
        tx.execute(sqlalchemy.text(command['sql']))
    engine.dispose()
    return 'written'


def shard(command):
    """Which of so many servers has each of the locks."""
    return ', '.join(str(dlock.shard_of(name, range(command['count']))) for name in command['names'])


def servers(pool, command):
    """Two, of which one is down."""
    where = [pool, pool]
    where[command['down']] = 'host=/nonexistent'
    return where


ANY_MODE = {'block': block, 'build': build, 'shard': shard}


@contextlib.contextmanager
def handled(id, task, counts, running):
    """A task that a worker handles, alone among those of its key; counts says how many were handled at a time."""
    if task.key in running:
        say(id, 'twice at a time', task.key)
    running.add(task.key)
    counts.append(len(running))
    try:
        yield task.payload or {}
    finally:
        running.discard(task.key)


@contextlib.contextmanager
def writing(id):
    """A transaction of a task, whose loss is told."""
    try:
        yield
    except dlock.LeaseLost as error:
        say(id, 'not committed', outcome(error))
        raise


def fail_as_told(task):
    if (task.payload or {}).get('fail', 0) >= task.attempts:
        raise RuntimeError('as told')


class Sync:
    """Each command has a thread."""

    def __init__(self):
        self.pool = ConnectionPool('', min_size=0, max_size=20, open=False)

    def lease(self, command):
        """A lease, until it is told to end, or to fail; in the task of another one."""
        global stall
        id, told = command['id'], threading.Event()
        it = live.setdefault(id, {})

        def lost(lease):
            stopped(id, lease)
            told.set()
        with block_of(command, on_lost=lost) as lease:
            stall = 0.0
            it.update(lease=lease, end=lambda _: told.set(), context=contextvars.copy_context(),
                      fail=lambda _: (it.update(failed=True), told.set()))
            say(id, 'held', lease.token)
            told.wait()
            if it.get('failed'):
                raise RuntimeError('failed')

    def at_once(self, works):
        """Run them in threads of their own: what comes of each."""
        results = [None] * len(works)

        def run(i):
            try:
                results[i] = works[i]()
            except Exception as error:
                results[i] = error
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def good(self, results):
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def many(self, command):
        id, told = command['id'], threading.Event()

        def one(i):
            lease = session.lease(name_of(command, i), **options_of(command)).acquire()
            return lease if command.get('hold') else lease.release()
        leases = self.good(self.at_once([lambda i=i: one(i) for i in range(command['count'])]))
        if command.get('hold'):
            live[id] = {'end': lambda _: told.set()}
            say(id, 'held', len(leases))
            told.wait()
            self.good(self.at_once([lease.release for lease in leases]))

    def each(self, command, lease=None):
        def one(name):
            with (lease or session.lease)(name, **options_of(command)):
                return 'ok'
        results = self.at_once([lambda name=name: one(name) for name in command['names']])
        return ', '.join(result if isinstance(result, str) else outcome(result) for result in results)

    def shards(self, command):
        """The same, of two servers of which one is down."""
        return self.each(command, functools.partial(dlock.lease, servers(self.pool, command)))

    def load(self, command):
        numbers, next_number = threading.Lock(), iter(range(command['workflows']))

        def flow(i, depth):
            if depth < command['locks']:
                with session.lease(f'load:{depth}:{(i * 7 + depth) % command["names"]}', wait=120):
                    flow(i, depth + 1)
            else:
                with self.pool.connection() as conn:
                    conn.execute(command['query'])

        def work():
            done = 0
            while True:
                with numbers:
                    i = next(next_number, None)
                if i is None:
                    return done
                flow(i, 0)
                done += 1
        return sum(self.good(self.at_once([work] * command['concurrency'])))

    def once(self, command):
        return 'no' if session.once(command['name'], span(command['every'])) is None else 'won'

    def elect(self, command):
        id, told = command['id'], threading.Event()
        election = session.elect(command['name'], **options_of(command), gained=lambda lease: say(id, 'gained'),
                                 lost=lambda lease, error: say(id, 'resigned', outcome(error) if error else 'ok'))
        live[id] = {'end': lambda _: told.set()}
        told.wait()
        election.stop()

    def watch(self, command):
        watch = session.watch(command['name'], 0.05)
        live[command['id']] = {'end': lambda _: watch.close()}
        for holder in watch:
            say(command['id'], 'sees', holder.owner if holder else 'nobody')

    def worker(self, command):
        """A task fails if its payload says so, writes if its payload says what, or waits to be told."""
        id, told, running, counts = command['id'], threading.Event(), set(), []

        def handle(task):
            with handled(id, task, counts, running) as payload:
                if payload.get('wait'):
                    go = threading.Event()
                    live[id]['go'] = lambda _: go.set()
                    say(id, 'works', task.key, task.attempts)
                    while not go.wait(0.01):
                        if task.lost:
                            stopped(id, task)
                            task.check()
                while max(counts) < command.get('options', {}).get('concurrency', 1):
                    time.sleep(0.001)
                fail_as_told(task)
                for _ in range(('sql' in payload) + ('again' in payload)):
                    with writing(id), self.pool.connection() as conn, task.transaction(conn):
                        conn.execute(payload['sql'])
        worker = session.worker(command['queue'], handle, **options_of(command))
        live[id] = {'end': lambda order: (worker.stop(span(order['grace']) if 'grace' in order else None), told.set())}
        told.wait()
        return max(counts, default=0)

    def close(self, command):
        session.close()

    def write(self, command):
        """A transaction of the lease; with "also", it presents the tokens of another one, too."""
        with self.pool.connection() as conn, live[command['lease']]['lease'].transaction(conn):
            if 'also' in command:
                session.present(conn, live[command['also']]['lease'])
            conn.execute(command['sql'])
        return 'written'

    def run(self, command):
        try:
            do = ANY_MODE.get(command['do']) or getattr(self, command['do'])
            error, value = None, do(command)
        except BaseException as failure:
            error, value = failure, None
        ended(command['id'], error, value)

    def main(self):
        """Waits that may be given up are the main thread's, one at a time, as only that can be interrupted."""
        mains, free = [], threading.Semaphore(0)
        signal.signal(signal.SIGINT, signal.default_int_handler)     # may be ignored in the background
        self.pool.open()

        def read():
            for line in sys.stdin:
                command = json.loads(line)
                if not hasattr(self, command['do']) and command['do'] not in ANY_MODE:
                    if command['do'] == 'cancel':
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                    else:
                        threading.Thread(target=lambda order: live[order['id']][order['do']](order), args=(command,)).start()
                    continue
                context = live[command['in']]['context'].copy() if 'in' in command else contextvars.copy_context()
                if command['do'] == 'lease' and 'wait' in command.get('options', {}) and not mains:
                    mains.append((context, command))
                    free.release()
                else:
                    threading.Thread(target=context.run, args=(self.run, command), daemon=True).start()
            mains.append(None)
            free.release()
        threading.Thread(target=read, daemon=True).start()
        while True:
            free.acquire()
            if mains[0] is None:
                break
            context, command = mains[0]
            context.run(self.run, command)
            mains.pop(0)
            if mains:
                break
        session.close()
        self.pool.close()


class Async:
    """Each command is a task of asyncio's."""

    def __init__(self):
        self.pool = AsyncConnectionPool('', min_size=0, max_size=20, open=False)

    async def lease(self, command):
        global stall
        id, told = command['id'], asyncio.Event()
        it = live.setdefault(id, {})
        try:
            async with block_of(command) as lease:
                stall = 0.0
                it.update(lease=lease, end=lambda _: told.set(), context=contextvars.copy_context(),
                          fail=lambda _: (it.update(failed=True), told.set()))
                say(id, 'held', lease.token)
                try:
                    await told.wait()
                except asyncio.CancelledError:
                    stopped(id, lease)
                    raise
                if it.get('failed'):
                    raise RuntimeError('failed')
        except asyncio.CancelledError:
            ended(id, KeyboardInterrupt(), None)
            raise

    async def many(self, command):
        id, told = command['id'], asyncio.Event()

        async def one(i):
            lease = await session.lease(name_of(command, i), **options_of(command)).aacquire()
            return lease if command.get('hold') else await lease.arelease()
        leases = await asyncio.gather(*[one(i) for i in range(command['count'])])
        if command.get('hold'):
            live[id] = {'end': lambda _: told.set()}
            say(id, 'held', len(leases))
            await told.wait()
            await asyncio.gather(*[lease.arelease() for lease in leases])

    async def each(self, command, lease=None):
        async def one(name):
            try:
                async with (lease or session.lease)(name, **options_of(command)):
                    return 'ok'
            except Exception as error:
                return outcome(error)
        return ', '.join(await asyncio.gather(*[one(name) for name in command['names']]))

    async def shards(self, command):
        return await self.each(command, functools.partial(dlock.lease, servers(self.pool, command)))

    async def load(self, command):
        numbers = iter(range(command['workflows']))

        async def flow(i, depth):
            if depth < command['locks']:
                async with session.lease(f'load:{depth}:{(i * 7 + depth) % command["names"]}', wait=120):
                    await flow(i, depth + 1)
            else:
                async with self.pool.connection() as conn:
                    await conn.execute(command['query'])

        async def work():
            done = 0
            for i in numbers:
                await flow(i, 0)
                done += 1
            return done
        return sum(await asyncio.gather(*[work() for _ in range(command['concurrency'])]))

    async def once(self, command):
        return 'no' if await session.aonce(command['name'], span(command['every'])) is None else 'won'

    async def elect(self, command):
        id, told = command['id'], asyncio.Event()

        async def gained(lease):
            say(id, 'gained')

        async def lost(lease, error):
            say(id, 'resigned', outcome(error) if error else 'ok')
        election = session.elect(command['name'], **options_of(command), gained=gained, lost=lost)
        live[id] = {'end': lambda _: told.set()}
        await told.wait()
        await election.astop()

    async def watch(self, command):
        async def follow():
            async for holder in session.watch(command['name'], 0.05):
                say(command['id'], 'sees', holder.owner if holder else 'nobody')
        following = asyncio.ensure_future(follow())
        live[command['id']] = {'end': lambda _: following.cancel()}
        try:
            await following
        except asyncio.CancelledError:
            pass

    async def worker(self, command):
        id, told, running, counts = command['id'], asyncio.Event(), set(), []

        async def handle(task):
            with handled(id, task, counts, running) as payload:
                if payload.get('wait'):
                    go = asyncio.Event()
                    live[id]['go'] = lambda _: go.set()
                    say(id, 'works', task.key, task.attempts)
                    try:
                        await go.wait()
                    except asyncio.CancelledError:
                        stopped(id, task)
                        raise
                while max(counts) < command.get('options', {}).get('concurrency', 1):
                    await asyncio.sleep(0.001)
                fail_as_told(task)
                for _ in range(('sql' in payload) + ('again' in payload)):
                    with writing(id):
                        async with self.pool.connection() as conn, task.transaction(conn):
                            await conn.execute(payload['sql'])
        worker = session.worker(command['queue'], handle, **options_of(command))
        orders = []
        live[id] = {'end': lambda order: (orders.append(order), told.set())}
        await told.wait()
        await worker.astop(span(orders[0]['grace']) if 'grace' in orders[0] else None)
        return max(counts, default=0)

    async def close(self, command):
        await session.aclose()

    async def write(self, command):
        async with self.pool.connection() as conn, live[command['lease']]['lease'].transaction(conn):
            if 'also' in command:
                await session.present(conn, live[command['also']]['lease'])
            await conn.execute(command['sql'])
        return 'written'

    async def run(self, command):
        try:
            do = ANY_MODE.get(command['do'])
            error, value = None, do(command) if do else await getattr(self, command['do'])(command)
        except Exception as failure:
            error, value = failure, None
        ended(command['id'], error, value)

    async def main(self):
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        await self.pool.open()

        def order(command):
            if hasattr(self, command['do']) or command['do'] in ANY_MODE:
                context = live[command['in']]['context'] if 'in' in command else contextvars.copy_context()
                work = context.run(asyncio.ensure_future, self.run(command))
                live.setdefault(command['id'], {}).update(cancel=lambda _: loop.call_soon(work.cancel), work=work)     # not before it has begun
            else:
                live[command['id']][command['do']](command)

        def read():
            for line in sys.stdin:
                loop.call_soon_threadsafe(order, json.loads(line))
            loop.call_soon_threadsafe(over.set)
        threading.Thread(target=read, daemon=True).start()
        await over.wait()
        await session.aclose()
        await self.pool.close()


threading.Thread(target=beat, daemon=True).start()
driver = Async() if mode == 'async' else Sync()
session = dlock.connect(driver.pool)
say('session', 'is', session.client)
if mode == 'async':
    asyncio.run(driver.main())
else:
    driver.main()
