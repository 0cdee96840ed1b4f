"""Why there is no lease, or none any more."""

from typing import Optional

import psycopg


class LeaseError(Exception):
    """Why there is no lease, or none any more."""


class LeaseRefused(LeaseError):
    """Somebody else holds the lock: holder is an owner, or None if that has gone meanwhile."""

    def __init__(self, lock: str, holder: Optional[str] = None) -> None:
        super().__init__(lock, holder)
        self.lock = lock
        self.holder = holder

    def __str__(self) -> str:
        return f'lock "{self.lock}" is held' + (f' by "{self.holder}"' if self.holder else '')


# Psycopg raises those that have a code for errors of the server with that SQLSTATE.

class LeaseLost(LeaseError, psycopg.DatabaseError, code='LK002'):
    """The server says that the lease is not held any more, or has refused a write for that."""


class LeaseDeadlock(LeaseError, psycopg.errors.DeadlockDetected):
    """A wait would never have ended."""


class TokenStale(LeaseError, psycopg.DatabaseError, code='LK001'):
    """A write was refused, as a later holder has written."""


class TokenMissing(LeaseError, psycopg.DatabaseError, code='LK003'):
    """A write was refused, as its transaction presents no token."""


class ServerUnreachable(LeaseError):
    """The server could not be asked in time, or did not answer."""

    in_doubt = False        # may the request have been done?


class ServerUnsupported(LeaseError):
    """The database has no dlock, or one that is too old."""


class SessionClosed(LeaseError):
    """The session has been closed, perhaps while the lock was waited for."""

    def __init__(self, text: str = 'the session is closed') -> None:
        super().__init__(text)
