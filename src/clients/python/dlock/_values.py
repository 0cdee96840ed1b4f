"""Clock, spans, and values for the server."""

import math
import re
import time
import zlib
from datetime import timedelta
from typing import Any, Dict, Optional, Sequence, TypeVar, Union

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

Span = Union[float, timedelta]
Shard = TypeVar('Shard')

# A clock that does not step and, where the system has such a one, goes on while the machine
# is suspended.
if hasattr(time, 'CLOCK_BOOTTIME'):
    def now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
else:
    now = time.monotonic

# Of a connection, unless said otherwise.  A server whose machine is gone has to be noticed.
DEFAULTS: Dict[str, Any] = {'target_session_attrs': 'read-write', 'keepalives_idle': 10, 'keepalives_interval': 5,
                            'keepalives_count': 3, 'fallback_application_name': 'dlock'}

# Settings of a pool that are not libpq's.
NOT_LIBPQ = {'autocommit', 'context', 'cursor_factory', 'prepare_threshold', 'row_factory'}


def shard_of(name: str, shards: Sequence[Shard]) -> Shard:
    """That of several servers which has the locks of this name, by CRC-32; name them in one order everywhere."""
    return shards[zlib.crc32(name.encode()) % len(shards)]


def conninfo_of(where: Any) -> str:
    """A connection string for the server of a pool, a connection or a string."""
    if isinstance(where, (psycopg.Connection, psycopg.AsyncConnection)):
        info = make_conninfo(where.info.dsn, password=where.info.password or None)
    elif isinstance(where, str):
        info = where
    elif hasattr(where, 'conninfo'):
        info = make_conninfo(where.conninfo, **{k: v for k, v in (where.kwargs or {}).items() if k not in NOT_LIBPQ})
    else:
        raise TypeError('a pool or a connection of psycopg, or a connection string is needed')
    # Texts are sent as UTF-8, whatever the server or the environment takes for granted.
    return make_conninfo('', **{**DEFAULTS, **conninfo_to_dict(info), 'client_encoding': 'UTF8'})


def seconds(span: Span, name: str, least: float = 0.0) -> float:
    value = span.total_seconds() if isinstance(span, timedelta) else span
    if not isinstance(value, (int, float)) or not least <= value < math.inf:
        raise TypeError(f'{name} must be a timedelta or a number of seconds')
    return float(value)


def interval(span: float) -> str:
    return f'{round(span * 1_000_000)} microseconds'


def text(value: str, name: str) -> str:
    """A text that can be sent: libpq would cut it off at a zero byte, so "a\\0b" would be the lock "a"."""
    if not isinstance(value, str):
        raise TypeError(f'{name} must be a text')
    if '\0' in value:
        raise ValueError(f'{name} must not have zero bytes in it')
    value.encode()
    return value


def array(values: Sequence[Optional[str]]) -> str:
    return '{' + ','.join('NULL' if v is None else '"' + v.replace('\\', '\\\\').replace('"', '\\"') + '"' for v in values) + '}'


def literal(value: str) -> str:
    """A literal without characters that drivers or query builders look for."""
    return "E'" + re.sub(r'[^\w\x80-\U0010ffff]', lambda match: f'\\x{ord(match[0]):02x}', value) + "'"
