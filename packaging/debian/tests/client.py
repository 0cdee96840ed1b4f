"""A lease, a loss and a deadlock, with a session for the server of libpq's variables."""

import threading

import dlock
import psycopg

session = dlock.connect('')

with session.lease('job', ttl=60) as lease:
    with psycopg.connect('') as conn, lease.transaction(conn):
        assert conn.execute("SELECT owner FROM dlock_lease('job')").fetchone() == (lease.owner,)
    try:
        with session.task(), session.lease('job'):
            raise SystemExit('two hold it')
    except dlock.LeaseRefused:
        pass

told = threading.Event()
try:
    with session.lease('lost', ttl=60, on_lost=lambda lease: told.set()):
        with psycopg.connect('', autocommit=True) as conn:
            conn.execute("SELECT dlock_force_release('lost', 'test')")
        assert told.wait(60)
    raise SystemExit('a loss that is not told')
except dlock.LeaseLost:
    pass

both = threading.Barrier(2)
ends = []


def cross(first: str, second: str) -> None:
    with session.lease(first, wait=60):
        both.wait()
        try:
            with session.lease(second, wait=60):
                ends.append('held')
        except dlock.LeaseDeadlock:
            ends.append('deadlock')


threads = [threading.Thread(target=cross, args=names) for names in (('a', 'b'), ('b', 'a'))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(ends) == ['deadlock', 'held'], ends
session.close()
