# Leases a second that the tasks of one program in Python take and release, as main.js has it for Node:
#
#   main.py version PEER             the versions of its library and of Python
#   main.py rate PEER KEY=VALUE...   tasks=8 seconds=2 hot=0
#
# PEER is threads_ or asyncio_, which is what a task is, and then session or connection.

import asyncio
import platform
import sys
import threading
import time

import psycopg

LEAD = 0.5
TTL = 60
ACQUIRE = 'SELECT dlock_acquire(%s, %s, %s::interval, %s::interval)'
RELEASE = 'SELECT dlock_release_token(%s, %s)'


def name_of(task):
    return 'hot' if hot else f'own:{task}'


def asked_of(task):
    return name_of(task), f'task {task}', '60 s', None if hot else '0'


def session_pairs(task):
    def pair():
        with session.lease(name_of(task), TTL, wait=None if hot else 0):
            pass
    return pair, lambda: None


def connection_pairs(task):
    conn = psycopg.connect('', autocommit=True)

    def pair():
        token, = conn.execute(ACQUIRE, asked_of(task), prepare=True).fetchone()
        assert conn.execute(RELEASE, (name_of(task), token), prepare=True).fetchone() == (True,)
    return pair, conn.close


async def session_pairs_async(task):
    async def pair():
        async with session.lease(name_of(task), TTL, wait=None if hot else 0):
            pass

    async def close():
        pass
    return pair, close


async def connection_pairs_async(task):
    conn = await psycopg.AsyncConnection.connect('', autocommit=True)

    async def pair():
        token, = await (await conn.execute(ACQUIRE, asked_of(task), prepare=True)).fetchone()
        assert await (await conn.execute(RELEASE, (name_of(task), token), prepare=True)).fetchone() == (True,)
    return pair, conn.close


class Count:
    """Of a task: all pairs, and those within the time that counts, which begins when all tasks are ready."""

    def __init__(self):
        self.all = self.done = 0

    def goes_on(self, begun, ended):
        self.all += 1
        self.done += start <= begun and ended <= start + seconds
        return ended < start + seconds


def begin(*_):
    global start, cpu
    start, cpu = time.monotonic() + LEAD, time.process_time()


def run_threads(pairs_of):
    ready = threading.Barrier(tasks, begin)
    counts, failures = [Count() for _ in range(tasks)], []

    def work(task):
        try:
            pair, close = pairs_of(task)
            ready.wait()
            ended = time.monotonic()
            while True:
                begun = ended
                pair()
                ended = time.monotonic()
                if not counts[task].goes_on(begun, ended):
                    break
            close()
        except BaseException as error:
            failures.append(error)
            ready.abort()
    threading.stack_size(256 * 1024)
    threads = [threading.Thread(target=work, args=(task,)) for task in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return counts


async def run_asyncio(pairs_of):
    counts = [Count() for _ in range(tasks)]
    all_pairs = await asyncio.gather(*[pairs_of(task) for task in range(tasks)])
    begin()

    async def work(count, pair, close):
        ended = time.monotonic()
        while True:
            begun = ended
            await pair()
            ended = time.monotonic()
            if not count.goes_on(begun, ended):
                break
        await close()
    await asyncio.gather(*[work(count, *both) for count, both in zip(counts, all_pairs)])
    return counts


what, peer, *words = sys.argv[1:]
settings = {'tasks': 8, 'seconds': 2, 'hot': 0, **{key: int(value) for key, value in (word.split('=') for word in words)}}
tasks, seconds, hot = settings['tasks'], settings['seconds'], settings['hot']
kind, source = peer.split('_')
if source == 'session':
    import dlock
    session = dlock.connect('')
if what == 'version':
    print(f'{"dlock " + dlock.__version__ if source == "session" else "psycopg " + psycopg.__version__} for Python {platform.python_version()}')
else:
    if kind == 'threads':
        counts = run_threads(session_pairs if source == 'session' else connection_pairs)
    else:
        counts = asyncio.run(run_asyncio(session_pairs_async if source == 'session' else connection_pairs_async))
    print(f'rate {sum(count.done for count in counts) / seconds}')
    print(f'cpu_us {(time.process_time() - cpu) * 1e6 / sum(count.all for count in counts)}')
