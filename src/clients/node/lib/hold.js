'use strict';

// What is held for a time: a lease, or a task that was captured.  The session renews it.
//
// The deadline is counted from before a request was sent that the server has granted, so it
// is never later than that of the server.  The work is told to stop when the server says
// that the lease is lost, and at the latest "margin" before the deadline: the signal is aborted,
// onLost is called, and transactions of the lease lose their connections.

const { AsyncLocalStorage } = require('async_hooks');
const { LeaseLost, ServerUnreachable } = require('./errors');
const { cut, ignore, URGENT } = require('./lines');
const { now, nap } = require('./span');

// How often to renew, which is how a loss is learned of, and how long before its end a
// lease is given up that was not renewed; both a sixth of the ttl if that is less.
const RENEW_EVERY_MS = 2000;
const MARGIN_MS = 5000;

// How long to go on trying to give back what is held.
const GIVE_BACK_WITHIN_MS = 3000;

const RENEW = { key: 'renew', rank: URGENT, text: ({ schema }) => `SELECT ${schema}dlock_renew_each($1, $2)` };
const RELEASE = { key: 'release', rank: URGENT, text: ({ schema }) => `SELECT ${schema}dlock_release_each($1, $2)` };

const quote = (text) => `"${text.replace(/"/g, '""')}"`;
const literal = (text) => `E'${text.replace(/[\\']/g, '$&$&')}'`;

// Present the tokens in a transaction that somebody else has begun: on a client of the driver, or
// by a function that runs a statement.
async function present(tx, leases) {
  leases.forEach((lease) => lease.check());
  const pairs = leases.flatMap((lease) => lease._pairs.map(([name, token]) => literal(quote(`${name}=${token}`))));
  const text = `SELECT set_config('dlock.tokens', concat_ws(',', nullif(t, ''), (SELECT string_agg(p, ',')
    FROM unnest(ARRAY[${pairs}]) AS p WHERE position(p || ',' IN t || ',') = 0)), true)
    FROM (SELECT coalesce(current_setting('dlock.tokens', true), '')) AS old(t)`;
  await (typeof tx === 'function' ? tx(text) : tx.query(text));
}

// The task that runs.
const tasks = new AsyncLocalStorage();

const marginOf = (ttl) => Math.min(ttl / 6, MARGIN_MS);

class Hold {
  constructor(session, what, ttl, sent, { onLost, signal } = {}) {
    this._session = session;
    this._what = what;
    this._ttl = ttl;
    this._every = Math.min(ttl / 6, RENEW_EVERY_MS);
    this._margin = marginOf(ttl);
    this._onLost = onLost;
    this._outer = signal;
    this._controller = null;
    this._error = null; // why it is not held any more
    this._over = false; // the work has ended
    this._clients = null; // a set of those of transactions
    this._renewAt = sent + this._every;
    this._extend(sent);
    session._keep(this);
  }

  // A request that was sent then has been granted.
  _extend(sent) {
    this._deadline = Math.max(this._deadline || 0, sent + this._ttl);
    this._stopAt = this._deadline - this._margin;
    this._trouble = null;
  }

  // Aborted when the work is to end.
  get signal() {
    if (!this._controller) {
      this._controller = new AbortController();
      if (this._error) {
        this._controller.abort(this._error);
      } else if (this._outer) {
        const abort = this._abort = () => this._controller.abort(this._outer.reason);
        this._outer.addEventListener('abort', abort);
        if (this._outer.aborted) {
          abort();
        }
      }
    }
    return this._controller.signal;
  }

  // Is the work to end, or has it ended?
  get lost() {
    if (!this._error && !this._over && now() >= this._stopAt) {
      this._late();
    }
    return this._error !== null || this._over;
  }

  // How long it lasts, at least, if no renewal succeeds; the work ends earlier.
  get remaining() {
    return Math.max(this._deadline - now(), 0);
  }

  // Throw why the work is to end, if it is; and once it has ended.
  check() {
    if (this.lost) {
      throw this._error || new LeaseLost(`${this._what} is over, as the work has ended`);
    }
    if (this._outer) {
      this._outer.throwIfAborted();
    }
  }

  // Run work(client) in a transaction of the lease, on a client or on one of a pool.
  async transaction(where, work) {
    if (typeof where.totalCount !== 'number') {
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
    this._clients = this._clients || new Set();
    this._clients.add(client);
    client.on('error', ignore);
    try {
      await client.query('BEGIN');
      await this._first(client);
      const result = await work(client);
      await this._last(client);
      this.check();
      if ((await client.query('COMMIT')).command !== 'COMMIT') {
        throw Object.assign(new Error('a statement has failed, so the transaction was rolled back'), { code: '25P02' });
      }
      return result;
    } catch (error) {
      await client.query('ROLLBACK').catch(() => { client._dlockBroken = true; });
      throw error;
    } finally {
      this._clients.delete(client);
      if (!this._error) {
        client.removeListener('error', ignore);
      }
    }
  }

  async _last() {}

  // Renew it; called by the session.  Does not throw.
  async _renew() {
    this._renewAt = Infinity;
    try {
      const answers = await this._askRenewals();
      if (answers.some(({ value }) => value !== 't')) {
        this._stop(new LeaseLost(`${this._what} is lost`));
        return;
      }
      const sent = Math.min(...answers.map((answer) => answer.sent));
      this._extend(sent);
      this._renewAt = sent + this._every;
      this._session._trouble(null);
    } catch (error) {
      this._trouble = error;
      this._renewAt = now() + this._every / 4;
      this._session._trouble(error);
    }
    this._session._arm(this._renewAt);
  }

  _late() {
    const why = this._trouble ? this._trouble.message : 'this process did not get to run';
    this._stop(new ServerUnreachable(`${this._what} could not be renewed in time: ${why}`, { cause: this._trouble || undefined }));
  }

  // Stop the work, once.
  _stop(error) {
    if (this._error || this._over) {
      return;
    }
    this._error = error;
    this._session._forget(this);
    (this._clients || []).forEach(cut);
    tasks.run(this._task, () => { // and not in that of a timer
      if (this._controller) {
        this._controller.abort(error);
      }
      if (this._onLost) {
        queueMicrotask(() => this._onLost(this)); // it may throw
      }
    });
  }

  // No more work.
  _end() {
    this._over = true;
    this._session._forget(this);
    if (this._abort) {
      this._outer.removeEventListener('abort', this._abort);
    }
  }
}

class Lease extends Hold {
  // "pairs" are names and tokens.
  constructor(session, want, pairs, sent) {
    super(session, `the lease on "${want.label}"`, want.ttl, sent, want);
    this.name = want.label;
    this.owner = want.owner;
    [[, this.token]] = pairs;
    this._pairs = pairs;
    this._task = want.task;
    this._claims = want.claims;
    this._counts = want.counts; // it is released until it is not held
    this._claims.forEach((claim) => { claim.held += 1; });
    session._use(this._claims, 1);
    this._ending = null;
  }

  // By name.
  get tokens() {
    return new Map(this._pairs);
  }

  _askRenewals() {
    return Promise.all(this._pairs.map((pair) => this._session.lines.ask(RENEW, pair, now() + this._margin)));
  }

  present(tx) {
    return present(tx, [this]);
  }

  _first(client) {
    return this.present(client);
  }

  // 't', 'f', '' if an earlier request has released it or it was lost, or null if the server does not say.
  _giveBack(pair, i) {
    const until = now() + GIVE_BACK_WITHIN_MS;
    return this._session.lines.ask(RELEASE, pair, until).then(
      ({ value }) => (value === 't' && this._counts ? this._giveBackAgain(pair, i, until, { inDoubt: true }) : value),
      (error) => this._giveBackAgain(pair, i, until, error),
    );
  }

  // A request that was not answered may have released it; if the task has entered the lock twice,
  // another one would end the other lease.
  async _giveBackAgain(pair, i, until, { inDoubt = false }) {
    for (;;) {
      await nap(100);
      if (now() >= until || (inDoubt && this._claims[i].held > 0)) {
        return null;
      }
      try {
        const { value } = await this._session.lines.ask(RELEASE, pair, until);
        if (value !== 't' || !this._counts) {
          return inDoubt && value !== 't' ? '' : value;
        }
        inDoubt = true;
      } catch (error) {
        inDoubt = inDoubt || error.inDoubt;
      }
    }
  }

  _release(tooLate) {
    this._end();
    this._claims.forEach((claim) => { claim.held -= 1; });
    this._session._releasing.add(this);
    const [first, ...more] = this._pairs.map((pair, i) => this._giveBack(pair, i));
    return more.length > 0 ? Promise.all([first, ...more]).then((answers) => this._released(answers, tooLate))
      : first.then((answer) => this._released([answer], tooLate));
  }

  _released(answers, tooLate) {
    if (!tooLate && !this._error && (answers.includes('f') || (answers.some((answer) => !answer) && now() >= this._deadline))) {
      this._error = new LeaseLost(`${this._what} was lost before the work had ended`);
    }
    this._pairs.forEach(([name, token], i) => { // the task may have entered it once more than it has heard of
      const { key, wanted } = this._claims[i];
      if (wanted === 0 && this._session._doubts.has(key)) {
        this._session._decline(name, token);
      }
    });
    this._session._doubt(answers.includes(null) ? this._claims : [], this._deadline);
    this._session._releasing.delete(this);
    this._session._use(this._claims, -1);
    if (this._error) {
      throw this._error;
    }
  }

  // Release it.  Rejects if it was lost before.
  release() {
    const tooLate = this.lost && !this._over; // so that what is past its time counts as lost; whoever hears of that may call this
    this._ending = this._ending || this._release(tooLate);
    return this._ending;
  }

  // Run the work, and release.
  async _run(work) {
    let result;
    let failure = null;
    try {
      result = await tasks.run(this._task, work, this);
    } catch (error) {
      failure = { error };
    }
    try {
      await this.release();
    } catch (error) {
      if (failure && failure.error !== error && error.cause === undefined) {
        error.cause = failure.error;
      }
      throw error;
    }
    if (failure) {
      throw failure.error;
    }
    return result;
  }
}

if (Symbol.asyncDispose) {
  Lease.prototype[Symbol.asyncDispose] = function dispose() {
    return this.release();
  };
}

module.exports = { Hold, Lease, present, marginOf, tasks, RENEW, RELEASE };
