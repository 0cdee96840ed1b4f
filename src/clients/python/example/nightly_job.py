# A nightly job: each of several machines starts it, and one of them does the work.
#
#     pip install ./src/clients/python 'psycopg[binary,pool]'
#     PGHOST=... python3 src/clients/python/example/nightly_job.py
#
# The table and its guard are those of doc/tutorial/nightly-job.md.

import sys

import dlock
from psycopg_pool import ConnectionPool


def make_report() -> int:
    with ConnectionPool('') as pool:
        session = dlock.connect(pool)

        # 1. The first machine of a day wins it.  The day is that of UTC.
        if session.once('nightly-report', every=86400) is None:
            print('another machine makes the report of this day', file=sys.stderr)
            return 75

        # 2. Take the lock.  The last run may still hold it, so wait.  The session renews the lease.
        try:
            with session.lease('nightly-report', ttl=60, wait=3600) as lease:
                lines = [f'made under token {lease.token}']

                # 3. In long work, look often whether the lease is still held.
                lease.check()

                # 4. Write in a transaction that presents the token.
                with pool.connection() as conn, lease.transaction(conn):
                    conn.cursor().executemany('INSERT INTO report VALUES (%s)', [(line,) for line in lines])
        except dlock.LeaseRefused as refused:
            print(f'{refused.holder} still makes an earlier report', file=sys.stderr)
            return 75
    return 0


sys.exit(make_report())
