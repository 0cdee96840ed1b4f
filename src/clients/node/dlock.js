'use strict';

// Leases of dlock for Node, over the driver "pg".
//
//     await withLease(pool, 'nightly-report', { ttlMs: 60000 }, async (lease, signal) => {
//       await lease.transaction(pool, (client) => client.query('UPDATE report SET ...'));
//     });
//
// The first argument says where the server is: a Pool, a Client, or what a Client is made
// of.  The lease never borrows from it; it has a connection of its own, so a pool of one
// is enough for the work.
//
// The lease is renewed every two seconds.  If it is lost, or could not be renewed until
// five seconds before its end, the work is told to stop: the signal is aborted, onLost is
// called, and transactions of the lease lose their connections.  (With a ttl below 30
// seconds, a sixth of it instead of five seconds; below 12, also instead of two.)  Work
// that keeps the event loop busy should look at lease.lost.
//
// Deadlines are counted from before a request is sent, on a clock that does not step.  It
// stands still while the machine is suspended; the token is for that.

const crypto = require('crypto');
const os = require('os');
const { performance } = require('perf_hooks');

// How often to renew, which is how a loss is learned of, and how long before its end a
// lease is given up that was not renewed; both a sixth of the ttl if that is less.
const RENEW_EVERY_MS = 2000;
const MARGIN_MS = 5000;

// How long a request, its connection included, may take; and what tidies up.
const ANSWER_WITHIN_MS = 10000;
const UNDO_WITHIN_MS = 3000;

// Of a connection, unless said otherwise.  A wait may take hours, so a server whose machine
// is gone has to be noticed.
const KEEPALIVES = { keepAlive: true, keepAliveInitialDelayMillis: 10000 };

// The longest time that a timer takes.
const LONGEST_NAP_MS = 2 ** 31 - 1;

const ACQUIRE = `SELECT dlock_acquire(name => $1, owner => $2, ttl => $3::interval, wait => $4::interval,
  mode => $5, permits => $6::integer, reentry => 'return', lock_delay => $7::interval,
  min_hold => $8::interval, payload => $9::jsonb)`;
const RENEW = 'SELECT dlock_renew_token($1, $2)';
const RELEASE = 'SELECT dlock_release_token($1, $2)';

// By the owner, which no other lease has.  A process id may be another's, if there is a pooler.
const CANCEL = 'SELECT count(pg_cancel_backend(pid)) FROM dlock_waiters WHERE owner = $1';
const RELEASE_OWNER = 'SELECT dlock_release($1, $2)';

// Add a pair to the setting, for this transaction.
const PRESENT = `SELECT set_config('dlock.tokens', CASE WHEN position($1::text || ',' IN t || ',') > 0 THEN t
  WHEN t = '' THEN $1::text ELSE t || ',' || $1::text END, true)
  FROM (SELECT coalesce(current_setting('dlock.tokens', true), '') AS t) AS now`;

// Why there is no lease, or none any more.
class LeaseError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

// Somebody else holds the lock.
class LeaseRefused extends LeaseError {}

// The server says that the lease is not held any more.
class LeaseLost extends LeaseError {}

// The server could not be asked in time, or did not answer.
class ServerUnreachable extends LeaseError {}

function now() {
  return performance.now();
}

function interval(spanMs, name, least) {
  if (typeof spanMs !== 'number' || !(spanMs >= least && spanMs < Infinity)) {
    throw new TypeError(`${name} must be a number of milliseconds`);
  }
  return `${Math.round(spanMs * 1000)} microseconds`;
}

// What makes clients for the server of a pool, a client, or such settings.
function clientsOf(where) {
  let Client;
  let settings = typeof where === 'string' ? { connectionString: where } : where || {};
  if (settings.Client && settings.options) {
    ({ Client } = settings);
    settings = settings.options;
  } else if (settings.connectionParameters) {
    Client = settings.constructor;
    settings = settings.connectionParameters;
  } else {
    ({ Client } = require('pg'));
  }
  // The password of a pool or a client is hidden from a copy.
  return () => new Client({ ...KEEPALIVES, ...settings, password: settings.password });
}

function isPool(where) {
  return typeof where.totalCount === 'number';
}

// Take the connection away from whatever uses it; the server rolls back.
function cut(client) {
  const stream = client.connection && client.connection.stream;
  if (stream) {
    stream.destroy();
  } else {
    client.end().catch(() => {});
  }
}

function ignore() {}

// Is this an error that says nothing about the lease?
function isOutage(error) {
  return !error.severity || /^(08|57P|25006)/.test(error.code);
}

// A connection on which nothing is waited for longer than asked.
class Line {
  constructor(where) {
    this.make = clientsOf(where);
    this.client = null;
    this.pending = null;
    this.sent = false; // may the last request have been done?
  }

  // The promise, or what "late" throws after that time, or the reason of the signal.
  static async limit(promise, until, signal, late) {
    let timer;
    let given;
    const limits = new Promise((resolve, reject) => {
      if (until < Infinity) {
        timer = setTimeout(() => reject(late()), Math.min(Math.max(until - now(), 0), LONGEST_NAP_MS));
      }
      if (signal) {
        given = () => reject(signal.reason);
        signal.addEventListener('abort', given);
        if (signal.aborted) {
          given();
        }
      }
    });
    promise.catch(ignore);
    try {
      return await Promise.race([promise, limits]);
    } finally {
      clearTimeout(timer);
      if (signal) {
        signal.removeEventListener('abort', given);
      }
    }
  }

  static late() {
    return new ServerUnreachable('the server does not answer');
  }

  async connect(until, signal) {
    const client = this.client = this.make();
    client.on('error', () => {
      if (this.client === client) {
        this.client = null;
      }
    });
    try {
      await Line.limit(client.connect(), until, signal, Line.late);
    } catch (error) {
      this.drop();
      throw error;
    }
  }

  // The first value of the answer, as text.
  async ask(until, text, values, signal) {
    this.sent = false;
    try {
      if (!this.client) {
        await this.connect(Math.min(until, now() + ANSWER_WITHIN_MS), signal);
      }
      const types = { getTypeParser: () => (value) => value };
      this.sent = true;
      this.pending = this.client.query({ text, values, types, rowMode: 'array' });
      const result = await Line.limit(this.pending, until, signal, Line.late);
      return result.rows[0][0];
    } catch (error) {
      if (error.code === '25006') {
        this.sent = false; // a standby does nothing
      }
      if (signal && signal.aborted) {
        throw error;
      }
      if (isOutage(error)) {
        this.drop();
        throw error instanceof LeaseError ? error : new ServerUnreachable(error.message, { cause: error });
      }
      throw error;
    }
  }

  drop() {
    if (this.client) {
      this.client.on('error', ignore);
      cut(this.client);
      this.client = null;
    }
  }

  close() {
    const client = this.client;
    this.client = null;
    if (client) {
      client.on('error', ignore);
      client.end().catch(ignore);
    }
  }
}

class Lease {
  constructor(where, name, options) {
    const { ttlMs, waitMs = 0, owner, mode = 'exclusive', permits = null, lockDelayMs = 0, minHoldMs = 0,
      payload = null, onLost, signal } = options;
    const who = owner || `${os.hostname()}/${process.pid}`;

    this.name = name;
    this.token = null; // a BigInt
    this.owner = `${who.slice(0, 50)}/${crypto.randomBytes(6).toString('hex')}`;
    this._params = [name, this.owner, interval(ttlMs, 'ttlMs', 0.001),
      waitMs === Infinity ? null : interval(waitMs, 'waitMs', 0), mode, permits,
      interval(lockDelayMs, 'lockDelayMs', 0), interval(minHoldMs, 'minHoldMs', 0),
      payload === null ? null : JSON.stringify(payload)];
    this._ttl = ttlMs;
    this._wait = waitMs;
    this._renewEvery = Math.min(ttlMs / 6, RENEW_EVERY_MS);
    this._margin = Math.min(ttlMs / 6, MARGIN_MS);
    this._onLost = onLost;
    this._outer = signal;
    this._controller = new AbortController();
    this._where = where;
    this._line = new Line(where);
    this._deadline = 0;
    this._trouble = null;
    this._error = null; // why there is no lease any more
    this._finishing = false;
    this._clients = new Set(); // of transactions
    this._wakeUp = ignore;
    this._timer = null;
  }

  // Aborted when the work is to end.
  get signal() {
    return this._controller.signal;
  }

  // Is the work to end, or has it ended?
  get lost() {
    if (!this._error && now() >= this._stopAt()) {
      this._stop(this._late());
    }
    return this._error !== null || this._finishing;
  }

  // How long the lease lasts, at least, if no renewal succeeds; the work ends earlier.
  get remainingMs() {
    return Math.max(this._deadline - now(), 0);
  }

  // Throw what withLease() would throw, if the work is to end; and once it has ended.
  check() {
    if (this.lost) {
      throw this._error ?? new LeaseLost(`the lease on "${this.name}" is over, as the work has ended`);
    }
    this.signal.throwIfAborted();
  }

  // Run work(client) in a transaction that presents the token, on a client or on one of
  // a pool.
  async transaction(where, work) {
    if (!isPool(where)) {
      return this._transaction(where, work);
    }
    const client = await where.connect();
    try {
      return await this._transaction(client, work);
    } finally {
      client.release(this._error !== null || client._dlockBroken === true);
    }
  }

  async _transaction(client, work) {
    this.check();
    this._clients.add(client);
    client.on('error', ignore);
    try {
      await client.query('BEGIN');
      const name = this.name.replace(/"/g, '""');
      await client.query(PRESENT, [`"${name}"=${this.token}`]);
      const result = await work(client);
      this.check();
      if ((await client.query('COMMIT')).command !== 'COMMIT') {
        throw Object.assign(new Error('a statement has failed, so the transaction was rolled back'), { code: '25P02' });
      }
      return result;
    } catch (error) {
      await client.query('ROLLBACK').catch(() => {
        client._dlockBroken = true;
      });
      throw error;
    } finally {
      this._clients.delete(client);
      if (!this._error) {
        client.removeListener('error', ignore);
      }
    }
  }

  async _acquire() {
    let sent = now();
    let token;
    try {
      token = await this._line.ask(sent + this._wait + ANSWER_WITHIN_MS, ACQUIRE, this._params, this._outer);
    } catch (error) {
      const givenUp = this._outer && this._outer.aborted;
      if (this._line.sent && (givenUp || error instanceof ServerUnreachable)) {
        if (givenUp) {
          await this._giveUp();
        }
        await this._undo();
      }
      throw error;
    }
    if (token === null) {
      throw new LeaseRefused(`lock "${this.name}" was not acquired`);
    }
    this.token = BigInt(token);
    // A grant that was waited for may be old; a renewal tells when it was held.
    if (now() - sent > this._renewEvery / 2) {
      sent = now();
      let held;
      try {
        held = await this._line.ask(sent + this._margin, RENEW, [this.name, token]);
      } catch (error) {
        await this._giveBack(token);
        throw error;
      }
      if (held !== 't') {
        throw new LeaseLost(`the lease on "${this.name}" was lost at once`);
      }
    }
    this._extend(sent);
  }

  // Cancel the request for the lease, and wait for its end.
  async _giveUp() {
    const until = now() + UNDO_WITHIN_MS;
    const canceller = new Line(this._where);
    let ended = false;
    const ending = this._line.pending.catch(ignore).then(() => {
      ended = true;
    });
    while (!ended && now() < until) {
      // It may not have begun to wait, and then a cancel is in vain.
      await canceller.ask(until, CANCEL, [this.owner]).catch(ignore);
      await Promise.race([ending, this._nap(now() + 100)]);
    }
    canceller.close();
    if (!ended) {
      this._line.drop();
    }
  }

  // End a request for the lease whose answer is not known, and what it was granted.
  async _undo() {
    const until = now() + UNDO_WITHIN_MS;
    while (now() < until) {
      try {
        if (await this._line.ask(until, CANCEL, [this.owner]) === '0') {
          await this._line.ask(until, RELEASE_OWNER, [this.name, this.owner]);
          return;
        }
      } catch (error) {
        // Once more.
      }
      await this._nap(now() + 100);
    }
  }

  _stopAt() {
    return this._deadline - this._margin;
  }

  _late() {
    const why = this._trouble || 'this process did not get to run';
    return new ServerUnreachable(`the lease on "${this.name}" could not be renewed in time: ${why}`);
  }

  // The request that was sent then has been answered: the lease is ours.
  _extend(sent) {
    this._deadline = sent + this._ttl;
    this._trouble = null;
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._stop(this._late()), Math.min(this._stopAt() - now(), LONGEST_NAP_MS));
  }

  _nap(until) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.max(until - now(), 0));
      this._wakeUp = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  // Renew until the work has ended, or there is nothing to be kept.
  async _keep() {
    let nextAt = this._deadline - this._ttl + this._renewEvery;
    const isOver = () => this._finishing || this._error;
    while (!isOver()) {
      await this._nap(nextAt);
      if (isOver()) {
        return;
      }
      const sent = now();
      try {
        const held = await this._line.ask(sent + this._margin, RENEW, [this.name, String(this.token)]);
        if (this._error) {
          return;
        }
        if (held !== 't') {
          this._stop(new LeaseLost(`the lease on "${this.name}" is lost`));
          return;
        }
        this._extend(sent);
        nextAt = sent + this._renewEvery;
      } catch (error) {
        this._trouble = error.message;
        nextAt = now() + this._renewEvery / 4;
      }
    }
  }

  // Stop the work, once.
  _stop(error) {
    if (this._error || this._finishing) {
      return;
    }
    this._error = error;
    clearTimeout(this._timer);
    this._wakeUp();
    this._clients.forEach(cut);
    // First of all the work: what is called may throw.
    this._controller.abort(error);
    if (this._onLost) {
      this._onLost(this);
    }
  }

  // Release it: 't' or 'f', or null if the server does not say.  A request that was not
  // answered may have released it.
  async _giveBack(token) {
    const until = now() + UNDO_WITHIN_MS;
    let inDoubt = false;
    do {
      try {
        const held = await this._line.ask(until, RELEASE, [this.name, String(token)]);
        return inDoubt && held !== 't' ? null : held;
      } catch (error) {
        inDoubt = inDoubt || (this._line.sent && error instanceof ServerUnreachable);
        await this._nap(now() + 100);
      }
    } while (now() < until);
    return null;
  }

  async _run(work) {
    const outer = () => this._controller.abort(this._outer.reason);
    const keeping = this._keep();
    let result;
    let failure = null;
    try {
      if (this._outer) {
        this._outer.addEventListener('abort', outer);
        if (this._outer.aborted) {
          outer();
        }
      }
      result = await work(this, this.signal);
    } catch (error) {
      failure = { error };
    }
    this._finishing = true;
    clearTimeout(this._timer);
    this._wakeUp();
    if (this._outer) {
      this._outer.removeEventListener('abort', outer);
    }
    await keeping;
    const held = await this._giveBack(this.token);
    if (!this._error && (held === 'f' || (held === null && now() >= this._deadline))) {
      this._error = new LeaseLost(`the lease on "${this.name}" was lost before the work had ended`);
    }
    if (this._error) {
      if (failure && failure.error !== this._error && this._error.cause === undefined) {
        this._error.cause = failure.error;
      }
      throw this._error;
    }
    if (failure) {
      throw failure.error;
    }
    return result;
  }
}

// Run work(lease, signal) under a lease, and release that when the work has ended.
// Options are described in dlock.d.ts.
async function withLease(where, name, options, work) {
  const lease = new Lease(where, name, options);
  try {
    await lease._acquire();
    return await lease._run(work);
  } finally {
    clearTimeout(lease._timer);
    lease._line.close();
  }
}

module.exports = { withLease, Lease, LeaseError, LeaseRefused, LeaseLost, ServerUnreachable };
