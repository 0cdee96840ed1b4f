"""Leases with fencing tokens from a PostgreSQL server with the extension dlock, over psycopg 3.

    with dlock.lease(pool, 'nightly-report', ttl=60) as lease:
        with pool.connection() as conn, lease.transaction(conn):
            conn.execute('UPDATE report SET ...')

and the same with "async with".  The first argument says where the server is: a pool, a connection, or a connection
string.  All leases of a process for a server share the connections of its session.
"""

from typing import Any, Callable, Dict, Optional

from ._core import lock
from ._errors import (LeaseDeadlock, LeaseError, LeaseLost, LeaseRefused, ServerUnreachable, ServerUnsupported, SessionClosed,
                      TokenMissing, TokenStale)
from ._follow import Election, Holder, Watch
from ._hold import Lease
from ._session import Block, Session
from ._values import Span, conninfo_of, shard_of
from ._worker import Task, Worker

__version__ = '1.0.0'
__all__ = ['Block', 'Election', 'Holder', 'Lease', 'LeaseDeadlock', 'LeaseError', 'LeaseLost', 'LeaseRefused', 'ServerUnreachable',
           'ServerUnsupported', 'Session', 'SessionClosed', 'Span', 'Task', 'TokenMissing', 'TokenStale', 'Watch', 'Worker', 'connect', 'lease',
           'shard_of']

_sessions: Dict[str, Session] = {}


def connect(where: Any, *, client: Optional[str] = None) -> Session:
    """The session of this process for a server; client counts for the first call."""
    with lock:
        conninfo = conninfo_of(where)
        session = _sessions.get(conninfo)
        if not session or session._closed:
            session = _sessions[conninfo] = Session(where, client=client)
        return session


def lease(where: Any, name: str, ttl: Span = 60, *, wait: Optional[Span] = 0, mode: str = 'exclusive', permits: Optional[int] = None,
          reentry: str = 'deny', lock_delay: Span = 0, min_hold: Span = 0, payload: Any = None, task: Optional[str] = None,
          on_lost: Optional[Callable[[Lease], Any]] = None) -> Block:
    """A lease on a lock, in the session of the pool, or of one in a list of several (shard_of); see Session.lease()."""
    session = connect(shard_of(name, where) if isinstance(where, (list, tuple)) else where)
    return session.lease(name, ttl, wait=wait, mode=mode, permits=permits, reentry=reentry, lock_delay=lock_delay, min_hold=min_hold,
                         payload=payload, task=task, on_lost=on_lost)
