"""Leases of dlock for Python, over psycopg 3.

    with dlock.lease(pool, 'nightly-report', ttl=timedelta(seconds=30)) as l:
        with pool.connection() as conn, l.transaction(conn):
            conn.execute('UPDATE report SET ...')

and the same with "async with".  The first argument says where the server is: a
pool, a connection, or a connection string.  The lease never borrows from it; it has
a connection of its own, so a pool of one is enough for the work.

A thread renews the lease every two seconds.  If the lease is lost, or could not be
renewed until five seconds before its end, the work is stopped: "lost" turns true,
on_lost is called, transactions of the lease lose their connections, and an async block
is cancelled.  (With a ttl below 30 seconds, a sixth of it instead of five seconds; below
12, also instead of two.)  Python has no safe way to interrupt a thread, so a loop should
look at "lost" or call check().  However the block ends, it then raises why.

Deadlines are counted from before a request is sent, on a clock that does not step and,
where the system has such a one, goes on while the machine is suspended.
"""

import asyncio
import json
import os
import selectors
import socket
import threading
import time
import uuid
from datetime import timedelta

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

__all__ = ['lease', 'Lease', 'LeaseError', 'LeaseRefused', 'LeaseLost', 'ServerUnreachable']


class LeaseError(Exception):
    """Why there is no lease, or none any more."""


class LeaseRefused(LeaseError):
    """Somebody else holds the lock."""


class LeaseLost(LeaseError):
    """The server says that the lease is not held any more."""


class ServerUnreachable(LeaseError):
    """The server could not be asked in time, or did not answer."""


class _GivenUp(Exception):
    """The caller does not wait any longer."""


# How often to renew, which is how a loss is learned of, and how long before its end a
# lease is given up that was not renewed; both a sixth of the ttl if that is less.
_RENEW_EVERY = 2.0
_MARGIN = 5.0

# How long a request, its connection included, may take; and what tidies up.
_ANSWER_WITHIN = 10.0
_UNDO_WITHIN = 3.0

_FOREVER = float('inf')

# One that needs no descriptor, as there may be none left.
_Selector = getattr(selectors, 'PollSelector', selectors.SelectSelector)

_ACQUIRE = b"""SELECT dlock_acquire(name => $1, owner => $2, ttl => $3::interval, wait => $4::interval,
 mode => $5, permits => $6::integer, reentry => 'return', lock_delay => $7::interval,
 min_hold => $8::interval, payload => $9::jsonb)"""
_RENEW = b'SELECT dlock_renew_token($1, $2)'
_RELEASE = b'SELECT dlock_release_token($1, $2)'

# By the owner, which no other lease has.
_CANCEL = b'SELECT count(pg_cancel_backend(pid)) FROM dlock_waiters WHERE owner = $1'
_RELEASE_OWNER = b'SELECT dlock_release($1, $2)'

# Errors of the server that say nothing about the lease: the connection, a shutdown, a standby.
_OUTAGES = ('08', '57P', '25006')

# Add a pair to the setting, for this transaction.
_PRESENT = """SELECT set_config('dlock.tokens', CASE WHEN position(%(pair)s::text || ',' IN t || ',') > 0 THEN t
 WHEN t = '' THEN %(pair)s::text ELSE t || ',' || %(pair)s::text END, true)
 FROM (SELECT coalesce(current_setting('dlock.tokens', true), '') AS t) AS now"""

# Of a connection, unless said otherwise.  A wait may take hours, so a server whose machine
# is gone has to be noticed.
_DEFAULTS = {'target_session_attrs': 'read-write', 'keepalives_idle': 10, 'keepalives_interval': 5,
             'keepalives_count': 3}

# Settings of a pool that are not libpq's.
_NOT_LIBPQ = {'autocommit', 'context', 'cursor_factory', 'prepare_threshold', 'row_factory'}

if hasattr(time, 'CLOCK_BOOTTIME'):
    def _now():
        return time.clock_gettime(time.CLOCK_BOOTTIME)
else:
    _now = time.monotonic


def _interval(span, name):
    if span is None:
        return None
    if not isinstance(span, timedelta):
        raise TypeError(f'{name} must be a timedelta')
    return b'%d microseconds' % (span // timedelta(microseconds=1))


def _text(value):
    if value is None:
        return None
    text = str(value)
    if '\0' in text:
        # libpq would cut it off there: "a\0b" would be the lock "a".
        raise ValueError('a text must not have zero bytes in it')
    return text.encode()


def _conninfo_of(where):
    """A connection string for the server of a pool, a connection or a string."""
    if isinstance(where, (psycopg.Connection, psycopg.AsyncConnection)):
        info = make_conninfo(where.info.dsn, password=where.info.password or None)
    elif isinstance(where, str):
        info = where
    else:
        options = {k: v for k, v in (where.kwargs or {}).items() if k not in _NOT_LIBPQ}
        info = make_conninfo(where.conninfo, **options)
    # Texts are sent as UTF-8, whatever the server or the environment takes for granted.
    return make_conninfo(**{**_DEFAULTS, **conninfo_to_dict(info), 'client_encoding': 'UTF8'}).encode()


class _Line:
    """A connection on which nothing is waited for longer than asked."""

    def __init__(self, conninfo):
        self._conninfo = conninfo
        self._conn = None
        self.sent = False           # may the last request have been done?
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)

    def wake(self):
        """Have a wait for events end, also one that is yet to begin; from any thread."""
        try:
            self._waker.send(b'.')
        except OSError:
            pass

    def nap(self, until):
        """Sleep until woken."""
        self._wait(None, 0, until, True)

    def _wait(self, fd, events, until, wakes):
        """Wait for the descriptor; false if the time is up or somebody has woken us."""
        with _Selector() as selector:
            if fd is not None:
                selector.register(fd, events)
            if wakes:
                selector.register(self._woken, selectors.EVENT_READ)
            while True:
                left = until - _now()
                if left <= 0:
                    return False
                # In pieces, since this clock stands still while the machine is suspended.
                ready = [key.fd for key, _ in selector.select(min(left, 1.0))]
                if self._woken.fileno() in ready:
                    self._woken.recv(64)
                    return False
                if ready:
                    return True

    def _await(self, events, until, wakes):
        """Wait for the connection."""
        if not self._wait(self._conn.socket, events, until, wakes):
            if _now() < until:
                raise _GivenUp
            raise ServerUnreachable('the server does not answer')

    def _connect(self, until, wakes):
        conn = self._conn = pq.PGconn.connect_start(self._conninfo)
        want = pq.PollingStatus.WRITING
        while conn.status != pq.ConnStatus.BAD and want != pq.PollingStatus.OK:
            writing = want == pq.PollingStatus.WRITING
            self._await(selectors.EVENT_WRITE if writing else selectors.EVENT_READ, until, wakes)
            want = conn.connect_poll()
            if want == pq.PollingStatus.FAILED:
                break
        if conn.status != pq.ConnStatus.OK:
            raise ServerUnreachable(pq.error_message(conn))

    def ask(self, until, sql, *params, wakes=False):
        """The first value of the answer.  Errors of the server are psycopg's."""
        self.sent = False
        try:
            if self._conn is None:
                self._connect(min(until, _now() + _ANSWER_WITHIN), wakes)
            self.sent = True
            self._conn.send_query_params(sql, params)
            result = self._answer(until, wakes)
        except _GivenUp:
            raise
        except Exception as error:
            # Of whatever kind: nobody knows how far the request has come.
            self.drop()
            raise ServerUnreachable(str(error)) from None
        return self._value(result)

    def _answer(self, until, wakes):
        conn = self._conn
        result = None
        while True:
            # Also for the end of the answer: it may be yet to come.
            while conn.is_busy():
                self._await(selectors.EVENT_READ, until, wakes)
                try:
                    conn.consume_input()
                except psycopg.OperationalError:
                    # An error comes before the end of the connection; a value may not be the end.
                    if result is None or result.status == pq.ExecStatus.TUPLES_OK:
                        raise
                    self.drop()
                    return result
            more = conn.get_result()
            if more is None:
                break
            result = result or more
        if result is None:
            raise ServerUnreachable('the connection was lost')
        return result

    def _value(self, result):
        if result.status == pq.ExecStatus.TUPLES_OK:
            return result.get_value(0, 0)
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b'').decode()
        message = pq.error_message(result)
        if state == '25006':
            self.sent = False       # a standby does nothing
        if not state or state.startswith(_OUTAGES):
            self.drop()
            raise ServerUnreachable(message)
        try:
            kind = psycopg.errors.lookup(state)
        except KeyError:
            kind = psycopg.DatabaseError
        raise kind(message)

    def give_up(self, until):
        """Cancel the request under way, and wait for its end."""
        try:
            _cancel(self._conn.get_cancel())
            self._answer(until, False)
        except Exception:
            self.drop()

    def drop(self):
        if self._conn is not None:
            self._conn.finish()
            self._conn = None

    def close(self):
        self.drop()
        self._waker.close()
        self._woken.close()


def _cancel(cancel):
    """Send it from another thread, since it may take a while; without a thread it is not sent."""
    def send():
        try:
            cancel.cancel()
        except psycopg.Error:
            pass
    try:
        threading.Thread(target=send, daemon=True).start()
    except RuntimeError:
        pass


def _cut(conn):
    """Take a connection away from the thread that uses it; the server rolls back."""
    try:
        cancel = conn.pgconn.get_cancel()
        # Not a copy of the descriptor, as there may be none left.
        shared = socket.socket(fileno=conn.pgconn.socket)
        try:
            shared.shutdown(socket.SHUT_RDWR)
        finally:
            shared.detach()
        _cancel(cancel)
    except (OSError, psycopg.Error):
        pass


class Lease:
    """A lease that is held.  token: its fencing token."""

    def __init__(self, where, name, ttl, wait, owner, on_lost, options):
        if not isinstance(ttl, timedelta) or ttl <= timedelta(0):
            raise TypeError('ttl must be a timedelta above zero')
        who = owner or f'{socket.gethostname()}/{os.getpid()}'
        spans = {key: _interval(options.pop(key), key) for key in ('lock_delay', 'min_hold')}
        payload = options.pop('payload')
        self.name = name
        self.token = None
        self.owner = who.encode()[:200].decode(errors='ignore') + f'/{uuid.uuid4().hex[:12]}'
        self._ttl = ttl.total_seconds()
        self._renew_every = min(self._ttl / 6, _RENEW_EVERY)
        self._margin = min(self._ttl / 6, _MARGIN)
        self._wait = _FOREVER if wait is None else wait.total_seconds()
        self._on_lost = on_lost
        self._params = (
            _text(name), _text(self.owner), _interval(ttl, 'ttl'), _interval(wait, 'wait'),
            _text(options['mode']), _text(options['permits']),
            spans['lock_delay'], spans['min_hold'],
            None if payload is None else json.dumps(payload).encode())
        self._line = _Line(_conninfo_of(where))
        self._changed = threading.Condition(threading.RLock())
        self._deadline = 0.0
        self._trouble = None
        self._error = None          # why there is no lease any more
        self._finishing = False
        self._connections = set()   # of transactions
        self._answered = threading.Event()
        self._tell_answered = None  # for an async block: called when the first answer is there,
        self._tell_ended = None     # when the keeper ends,
        self._interrupt = None      # and once to cancel it
        self._ended = None
        self._cancelled = False     # by us
        self._keeper = None

    # ---- what the work may ask ----

    @property
    def lost(self):
        """Is the work to end?  Without a lease there is none: true before the block and after it."""
        if self.token is not None and self._error is None and _now() >= self._stop_at():
            self._stop()
        return self.token is None or self._finishing or self._error is not None

    def check(self):
        """Raise what the block would raise, if the work is to end; and LeaseLost outside of the block."""
        if self.lost:
            raise self._error or LeaseLost(f'there is no lease on "{self.name}": its block was not entered, or was left')

    def remaining(self):
        """How long the lease lasts, at least, if no renewal succeeds; the work ends earlier."""
        return timedelta(seconds=max(self._deadline - _now(), 0.0))

    def transaction(self, conn):
        """A transaction on a connection, of either kind, that presents the token."""
        return _Transaction(self, conn)

    # ---- the block ----

    def __enter__(self):
        self._start()
        try:
            self._answered.wait()
            return self._entered()
        except BaseException:
            self._leave()
            raise

    def __exit__(self, kind, error, trace):
        self._leave()
        self._outcome(kind, error)

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        answered = loop.create_future()
        ended = loop.create_future()

        def settle(future):
            if not future.done():
                future.set_result(None)

        def interrupt():
            if not self._finishing:
                self._cancelled = True
                task.cancel()

        def soon(call, *args):
            return lambda: loop.call_soon_threadsafe(call, *args)

        self._start(soon(settle, answered), soon(settle, ended), soon(interrupt))
        self._ended = ended
        try:
            await answered
            return self._entered()
        except asyncio.CancelledError:
            self._finish()
            await self._joined()
            if not self._cancelled or self._cancelled_by_others(task):
                raise
            raise self._error from None

    async def __aexit__(self, kind, error, trace):
        self._finish()
        cancelled = await self._joined()
        if self._cancelled:
            if self._cancelled_by_others(asyncio.current_task()):
                return
        elif cancelled:
            raise asyncio.CancelledError
        self._outcome(kind, error)

    @staticmethod
    def _cancelled_by_others(task):
        """Take our cancel back; has somebody else cancelled the task, too?  That goes on."""
        return hasattr(task, 'uncancel') and task.uncancel() > 0

    async def _joined(self):
        """Wait for the thread; was there a cancel meanwhile?"""
        cancelled = False
        while not self._ended.done():
            try:
                await asyncio.shield(self._ended)
            except asyncio.CancelledError:
                cancelled = True
        return cancelled

    def _leave(self):
        self._finish()
        self._keeper.join()

    def _outcome(self, kind, error):
        if self._error is not None:
            hidden = error is self._error or kind is asyncio.CancelledError
            raise self._error from (None if hidden else error)

    # ---- the thread that keeps it ----

    def _start(self, tell_answered=None, tell_ended=None, interrupt=None):
        with self._changed:
            if self._keeper is not None:
                raise RuntimeError('a lease can be entered only once; call dlock.lease() for another')
            self._keeper = threading.Thread(target=self._run, name=f'dlock {self.name}', daemon=True)
        self._tell_answered = tell_answered
        self._tell_ended = tell_ended
        self._interrupt = interrupt
        try:
            self._keeper.start()
        except BaseException:
            # It may be running all the same, or about to.
            self._finish()
            if self._keeper.is_alive():
                self._keeper.join()
            raise

    def _entered(self):
        if self.token is None:
            self._keeper.join()
            raise self._error
        return self

    def _finish(self):
        """From now on nobody interrupts the work."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
            self._line.wake()

    def _run(self):
        watcher = threading.Thread(target=self._watch, daemon=True)
        try:
            token = self._acquire()
            try:
                watcher.start()
            except BaseException:
                self._give_back(token)
                raise
            self.token = int(token)
        except BaseException as error:
            self._error = error
        self._answered.set()
        if self._tell_answered:
            self._tell_answered()
        try:
            if self.token is not None:
                self._keep_and_release()
                watcher.join()
        finally:
            with self._changed:
                self._finishing = True
                self._changed.notify_all()
            self._line.close()
            if self._tell_ended:
                self._tell_ended()

    def _keep_and_release(self):
        try:
            self._keep()
        except BaseException as error:
            self._stop(ServerUnreachable(f'the lease on "{self.name}" is not renewed any more: {error!r}'))
            raise
        finally:
            self._release()

    def _acquire(self):
        sent = _now()
        line = self._line
        try:
            token = line.ask(sent + self._wait + _ANSWER_WITHIN, _ACQUIRE, *self._params, wakes=True)
        except _GivenUp:
            if line.sent:
                line.give_up(_now() + _UNDO_WITHIN)
                self._undo()
            raise LeaseRefused(f'given up waiting for lock "{self.name}"') from None
        except ServerUnreachable:
            if line.sent:
                self._undo()
            raise
        if token is None:
            raise LeaseRefused(f'lock "{self.name}" was not acquired')
        # A grant that was waited for may be old; a renewal tells when it was held.
        if _now() - sent > self._renew_every / 2:
            sent = _now()
            try:
                held = line.ask(sent + self._margin, _RENEW, self._params[0], token)
            except (psycopg.Error, ServerUnreachable):
                self._give_back(token)
                raise
            if held != b't':
                raise LeaseLost(f'the lease on "{self.name}" was lost at once')
        self._deadline = sent + self._ttl
        return token

    def _undo(self):
        """End a request for the lease whose answer is not known, and what it was granted."""
        until = _now() + _UNDO_WITHIN
        while _now() < until:
            try:
                if self._line.ask(until, _CANCEL, self._params[1]) == b'0':
                    self._line.ask(until, _RELEASE_OWNER, *self._params[:2])
                    return
            except (psycopg.Error, ServerUnreachable):
                pass
            time.sleep(0.1)

    def _stop_at(self):
        return self._deadline - self._margin

    def _late(self):
        why = self._trouble or 'this process did not get to run'
        return ServerUnreachable(f'the lease on "{self.name}" could not be renewed in time: {why}')

    def _keep(self):
        """Renew until the block is left, or there is nothing to be kept."""
        next_at = self._deadline - self._ttl + self._renew_every
        while not self._finishing and self._error is None:
            if _now() < next_at:
                self._line.nap(next_at)
                continue
            sent = _now()
            try:
                held = self._line.ask(sent + self._margin, _RENEW, self._params[0], _text(self.token))
            except Exception as error:
                self._trouble = str(error).strip()
                next_at = _now() + self._renew_every / 4
                continue
            if held != b't':
                self._stop(LeaseLost(f'the lease on "{self.name}" is lost'))
                return
            with self._changed:
                self._deadline = sent + self._ttl
                self._trouble = None
            next_at = sent + self._renew_every

    def _watch(self):
        """See to it that the work ends in time, whatever the thread that renews hangs in."""
        while True:
            with self._changed:
                if self._finishing or self._error is not None:
                    return
                left = self._stop_at() - _now()
                if left > 0:
                    self._changed.wait(min(left, 1.0))
                    continue
            self._stop()

    def _stop(self, error=None):
        """Stop the work, once: for this reason, or if it is late."""
        with self._changed:
            # A renewal may have been answered since somebody found it late.
            if self._error is not None or self._finishing or (error is None and _now() < self._stop_at()):
                return
            self._error = error or self._late()
            for conn in self._connections:
                _cut(conn)
            if self._interrupt:
                self._interrupt()
            self._changed.notify_all()
        if self._on_lost:
            self._on_lost(self)

    def _give_back(self, token):
        """Release it: b't' or b'f', or None if the server does not say.

        A request that was not answered may have released it.
        """
        until = _now() + _UNDO_WITHIN
        in_doubt = False
        while _now() < until:
            try:
                held = self._line.ask(until, _RELEASE, self._params[0], token)
                return None if in_doubt and held != b't' else held
            except ServerUnreachable:
                in_doubt = in_doubt or self._line.sent
            except psycopg.Error:
                pass                # which has released nothing
            time.sleep(0.1)
        return None

    def _release(self):
        # Not while the work goes on, though it was told to end: the release also opens a
        # lock that is closed after a loss.
        with self._changed:
            while not self._finishing:
                self._changed.wait()
        held = self._give_back(_text(self.token))
        if held is None and _now() < self._deadline:
            return                  # it ends by itself
        if held != b't' and self._error is None:
            self._error = LeaseLost(f'the lease on "{self.name}" was lost before the work had ended')


class _Transaction:
    def __init__(self, of, conn):
        self._lease = of
        self._conn = conn
        self._transaction = conn.transaction()
        quoted = of.name.replace('"', '""')
        self._pair = {'pair': f'"{quoted}"={of.token}'}

    def _join(self):
        if self._conn.info.transaction_status not in (pq.TransactionStatus.IDLE, pq.TransactionStatus.UNKNOWN):
            # This would be a savepoint in it, and nobody would ask before its commit.
            raise psycopg.ProgrammingError('the connection is in a transaction already')
        with self._lease._changed:
            self._lease._connections.add(self._conn)
        error = self._late(None)
        if error is not None:
            self._leave()
            raise error

    def _leave(self):
        with self._lease._changed:
            self._lease._connections.discard(self._conn)

    def _late(self, kind):
        """What keeps a transaction from being committed."""
        try:
            if kind is None:
                self._lease.check()
        except LeaseError as error:
            return error
        if kind is None and self._conn.info.transaction_status == pq.TransactionStatus.INERROR:
            return psycopg.errors.InFailedSqlTransaction('a statement has failed, so the transaction is rolled back')
        return None

    def __enter__(self):
        self._join()
        try:
            self._transaction.__enter__()
            try:
                self._conn.execute(_PRESENT, self._pair)
            except BaseException as error:
                self._transaction.__exit__(type(error), error, None)
                raise
        except BaseException:
            self._leave()
            raise
        return self._conn

    def __exit__(self, kind, error, trace):
        try:
            late = self._late(kind)
            if late is not None:
                self._transaction.__exit__(type(late), late, None)
                raise late
            return self._transaction.__exit__(kind, error, trace)
        finally:
            self._leave()

    async def __aenter__(self):
        self._join()
        try:
            await self._transaction.__aenter__()
            try:
                await self._conn.execute(_PRESENT, self._pair)
            except BaseException as error:
                await self._transaction.__aexit__(type(error), error, None)
                raise
        except BaseException:
            self._leave()
            raise
        return self._conn

    async def __aexit__(self, kind, error, trace):
        try:
            late = self._late(kind)
            if late is not None:
                await self._transaction.__aexit__(type(late), late, None)
                raise late
            return await self._transaction.__aexit__(kind, error, trace)
        finally:
            self._leave()


def lease(where, name, *, ttl, wait=timedelta(0), owner=None, mode='exclusive', permits=None,
          lock_delay=timedelta(0), min_hold=timedelta(0), payload=None, on_lost=None):
    """A lease on a lock, for "with" and "async with".

    where    a pool, a connection, or a connection string: the server
    ttl      how long the lease lasts without a renewal
    wait     how long to wait for the lock; None: without a limit
    owner    what to call the holder in dlock_leases; a random part is added
    payload  anything that json.dumps() takes
    on_lost  called with the lease, perhaps in another thread, when the work is to end

    mode, permits, lock_delay and min_hold are those of dlock_acquire().  Raises
    LeaseRefused, ServerUnreachable, or an error of psycopg's that the server has
    raised; at the end of the block LeaseLost or ServerUnreachable if the work had
    to be stopped.
    """
    options = {'mode': mode, 'permits': permits, 'lock_delay': lock_delay, 'min_hold': min_hold,
               'payload': payload}
    return Lease(where, name, ttl, wait, owner, on_lost, options)
