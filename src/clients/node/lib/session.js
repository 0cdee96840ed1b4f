'use strict';

// A program's session with the server of a pool: one client that owns leases, on connections
// of its own, see lines.js.

const crypto = require('crypto');
const os = require('os');
const { Bag } = require('./bag');
const { LeaseRefused, LeaseDeadlock, LeaseError, ServerUnreachable, SessionClosed } = require('./errors');
const { watch, Election } = require('./follow');
const { Lease, present, marginOf, tasks, RENEW, RELEASE } = require('./hold');
const { Lines, Request, URGENT, USUAL, ignore } = require('./lines');
const { now, span, interval, timer, nap } = require('./span');
const { Waits } = require('./waits');
const { Worker } = require('./worker');

const DEFAULT_TTL_MS = 60000;

// How long a request whose answer is not known is sent again, or tried to be undone, after it was
// to end; and how soon one is sent again to a server that is away.
const DOUBT_WITHIN_MS = 3000;
const RETRY_MS = 200;

const ACQUIRE = ({ schema }) => `SELECT ${schema}dlock_acquire_each(names => $1::text[], owners => $2::text[], ttl => $3::interval,
  mode => $4, permits => $5::integer, reentry => $6, lock_delay => $7::interval, min_hold => $8::interval, keep => $9::interval)`;

// Those that go alone.
const alone = (name, more = '') => ({
  rank: USUAL,
  text: ({ schema }) => `SELECT ${schema}${name}($1, owner => $2, ttl => $3::interval, mode => $4, reentry => $5,
    lock_delay => $6::interval, min_hold => $7::interval, payload => $8::jsonb${more})`
});
const ALONE = alone('dlock_acquire', ', permits => $9::integer, keep => $10::interval');
const PATH = alone('dlock_acquire_path');
const ALL = alone('dlock_acquire_all');
const HOLDER = {
  key: 'holder',
  rank: USUAL,
  text: ({ schema }) => `SELECT array_agg(i ORDER BY i), json_agg((SELECT owner FROM ${schema}dlock_lease(n) LIMIT 1) ORDER BY i)
    FROM unnest($1::text[]) WITH ORDINALITY AS e(n, i)`
};
const ONCE = { rank: USUAL, text: ({ schema }) => `SELECT ${schema}dlock_once($1, $2::interval)` };

// The tokens of what owners may have been granted.
const FIND = {
  key: 'find',
  rank: URGENT,
  text: ({ schema }) => `SELECT array_agg((SELECT token FROM ${schema}dlock_lease(n) WHERE owner = o LIMIT 1) ORDER BY i)
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS e(n, o, i)`
};

// What comes and goes with each lease is of a class.  Node allocates what is written as a literal
// among what is old if much of it has survived once; and what is old and dead keeps alive all that it
// refers to, until a full collection of garbage.

// What a task has and wants on a lock: so many leases and requests, and a promise of the end of what it
// gave up.
class Claim {
  constructor(key) {
    this.key = key; // owner and name
    this.users = 0;
    this.held = 0;
    this.wanted = 0;
    this.dying = null;
  }
}

// A request for a lease.
class Want {
  constructor(kind, names, ttl, limit, reentry, onLost, signal) {
    this.kind = kind;
    this.names = names;
    this.label = names.length === 1 ? names[0] : names.join(', ');
    this.ttl = ttl;
    this.until = now() + limit;
    this.patient = limit > 0;
    this.reentry = reentry;
    this.onLost = onLost;
    this.signal = signal;
    this.task = null;
    this.owner = '';
    this.claims = null;
    this.place = null; // what it has a place as
    this.ask = null; // (keep, reentry) => promise
    this.request = null; // that was asked last
    this.resolve = null;
    this.reject = null;
    this.abort = null;
    this.end = null; // a promise
    this.gone = false; // given up
    this.done = false;
    this.placed = false;
    this.inDoubt = false;
    this.returns = false; // it has asked for what its task may hold
    this.counts = false; // a release that was not heard may come late, and end what is entered
    this.got = null; // a turn
    this.go = null; // what ends its wait
    this.delay = 0;
    this.timer = null;
    this._at = -1;
  }
}

// A name for a new task, which is none that programs count their own by.
let taskCount = 0;
const newTask = () => `~${++taskCount}`;

// What the answer to a request for a lease says.
const isGrant = ({ value }) => value !== null && value !== 'NULL';
const tokensOf = ({ value }) => (value[0] === '{' ? value.slice(1, -1).split(',') : [value]);

class Session {
  constructor(where, { client = `${os.hostname().slice(0, 50)}/${process.pid}/${crypto.randomBytes(6).toString('hex')}`,
    onTrouble = (error) => process.emitWarning(String(error.message || error), 'DlockWarning') } = {}) {
    if (typeof client !== 'string' || client === '' || client.includes('#')) {
      throw new TypeError('client must be a text without #');
    }
    this.client = client;
    this.where = where;
    this.waits = new Waits(this);
    this.lines = new Lines(where, { urgentWithin: () => this._margin });
    this._holds = new Bag(); // to be renewed
    this._releasing = new Bag(); // leases
    this._wants = new Bag(); // requests
    this._claims = new Map(); // by key
    this._doubts = new Map(); // until when a task may hold what it has not heard of, by key
    this._margin = Infinity; // the smallest one of them
    this._timer = null; // for the next renewal or deadline
    this._timerAt = Infinity;
    this._tell = (error) => queueMicrotask(() => onTrouble(error)); // what goes wrong in the background; it may throw
    this._inTrouble = false; // do renewals fail?
    this._closing = new Set(); // what has to be ended by close()
    this._closed = false;
  }

  // -------------------------------------------------------------- leases

  // Run work(lease) under a lease.
  lease(name, options, work) {
    const [set, what] = typeof options === 'function' ? [{}, options] : [options, work];
    return this.acquire(name, set).then((lease) => lease._run(what));
  }

  // A lease, to be released by the caller.
  acquire(name, options) {
    return this._acquire('lock', [name], options);
  }

  // All of the locks, or none.
  async acquireAll(names, options) {
    return this._acquire('all', typeof names === 'string' ? [names] : [...names], options);
  }

  // A place in a hierarchy, such as 'a/b/c'.
  acquirePath(path, options) {
    return this._acquire('path', [path], options);
  }

  // One of so many permits.
  acquirePermit(name, permits, options) {
    return this._acquire('lock', [name], { ...options, permits });
  }

  // Run the work as a task of its own: an owner of leases that is not the one around it.
  task(work) {
    return tasks.run(newTask(), work);
  }

  // Present the tokens of leases in a transaction that somebody else has begun.
  present(tx, ...leases) {
    return present(tx, leases);
  }

  // The token, if this is the first call in this time slot; or null.
  async once(name, every) {
    this._check();
    const { rows: [[token]] } = await this.lines.ask(ONCE, [name, interval(span(every, 'every', 0.001))]);
    return token === null ? null : Number(token);
  }

  // Campaign until stop(): gained(lease) is called with each term, lost(lease, error) at its end.
  elect(name, options = {}) {
    this._check();
    return new Election(this, name, options);
  }

  watch(name, options) {
    this._check();
    return watch(this, name, options);
  }

  // Work on tasks of a queue by handler(task), until stop().
  worker(queue, handler, options) {
    this._check();
    return new Worker(this, queue, handler, options);
  }

  // End waits, give back all, and close the connections.  Elections and workers come to their ends first.
  async close() {
    this._closed = true;
    const ends = [...this._closing].map((what) => what.stop());
    for (const want of this._wants) {
      this._giveUp(want, new SessionClosed());
      ends.push(want.end);
    }
    await Promise.all(ends);
    for (const hold of this._holds) {
      hold._stop(new SessionClosed());
      hold.release().catch(ignore);
    }
    await Promise.allSettled([...this._releasing].map((lease) => lease._ending));
    this.waits.close();
    await this.lines.close();
  }

  _check() {
    if (this._closed) {
      throw new SessionClosed();
    }
  }

  // What is wanted, and for whom.  Throws what the options are to blame for.
  _want(kind, names, { ttl = DEFAULT_TTL_MS, wait = 0, task, mode = 'exclusive', permits = null, reentry = 'deny',
    lockDelay = 0, minHold = 0, payload = null, onLost, signal } = {}) {
    const ttlMs = span(ttl, 'ttl', 0.001);
    const limit = wait === Infinity ? Infinity : span(wait, 'wait');
    const [length, delay, least] = [ttlMs, span(lockDelay, 'lockDelay'), span(minHold, 'minHold')].map(interval);
    const want = new Want(kind, names, ttlMs, limit, reentry, onLost, signal);
    want.task = task ?? tasks.getStore() ?? newTask();
    const owner = want.owner = `${this.client}#${want.task}`;
    if (kind === 'lock' && payload === null) {
      want.ask = (keep, again) => {
        const shared = [length, mode, permits, again, delay, least, keep];
        return this.lines.ask({ key: shared.join(), rank: USUAL, text: ACQUIRE, shared }, [names[0], owner], undefined, want.request = new Request());
      };
    } else {
      const request = { lock: ALONE, path: PATH, all: ALL }[kind];
      const json = payload === null ? null : JSON.stringify(payload);
      want.ask = (keep, again) => {
        const row = [kind === 'all' ? names : names[0], owner, length, mode, again, delay, least, json];
        return this.lines.ask(request, kind === 'lock' ? [...row, permits, keep] : row, undefined, want.request = new Request());
      };
    }
    return want;
  }

  // Whoever gives up is told at once; what is granted all the same is released.
  _acquire(kind, names, options) {
    return new Promise((resolve, reject) => {
      this._check();
      const want = this._want(kind, names, options);
      if (want.signal) {
        want.signal.throwIfAborted();
        want.abort = () => this._giveUp(want, want.signal.reason);
        want.signal.addEventListener('abort', want.abort);
      }
      want.resolve = resolve;
      want.reject = reject;
      want.claims = names.map((each) => this._claim(each, want.owner));
      want.place = kind === 'lock' ? want.claims[0].key : null;
      this._use(want.claims, 1);
      this._wants.add(want);
      want.end = this._obtain(want);
    });
  }

  // The place of a request that is given up is, too.
  _giveUp(want, why) {
    want.gone = true;
    this._holdUp(want, want.end);
    if (want.request && !want.placed) {
      this.lines.withdraw(want.request, why);
    }
    this.waits.end(want);
    want.reject(why);
  }

  // Until it has come to its end, and what it was granted has, too, what its task asks for on its locks
  // waits: it would be refused by a lease that is about to go.
  _holdUp(want, end) {
    want.claims.forEach((claim) => {
      const ends = claim.dying = Promise.all([claim.dying, end]);
      this._use([claim], 1);
      ends.then(() => {
        claim.dying = claim.dying === ends ? null : claim.dying;
        this._use([claim], -1);
      });
    });
    return end;
  }

  // Most requests are granted by the first answer; all others are pursued.  Does not throw.
  _obtain(want) {
    if (want.claims.some(({ key, dying, held }) => dying || (held > 0 && want.patient) || this._doubts.has(key))) {
      return this._pursue(want, null);
    }
    want.claims.forEach((claim) => { claim.wanted += 1; });
    const first = this._askOnce(want, false, !want.patient);
    return first.then((answer) => {
      const lease = want.gone ? null : this._granted(want, answer);
      if (lease === null) {
        return this._pursue(want, first);
      }
      this._done(want);
      this._over(want);
      want.resolve(lease);
      return undefined;
    }, () => this._pursue(want, first));
  }

  async _pursue(want, first) {
    if (first === null) {
      for (let claim; !want.gone && (claim = want.claims.find(({ dying }) => dying)) !== undefined;) {
        await claim.dying;
      }
      want.claims.forEach((claim) => { claim.wanted += 1; });
      this._inherit(want);
    }
    try {
      if (first === null && want.gone) {
        throw new SessionClosed(); // nobody hears of it
      }
      const lease = await this._ask(want, first);
      this._done(want);
      if (want.gone) {
        await lease.release();
      } else {
        want.resolve(lease);
      }
    } catch (error) {
      this._inherit(want);
      if (want.inDoubt && this._isAlone(want)) {
        await this._holdUp(want, this._undo(want));
      } else if (want.inDoubt) {
        this._doubt(want.claims, now() + want.ttl);
      }
      this._done(want);
      want.reject(error);
    }
    this._over(want);
  }

  // With it has gone the place that its task had on the lock: other requests of the task ask for one.
  _over(want) {
    this._wants.delete(want);
    (this.waits.places.get(want.place) || []).forEach((other) => this.waits.end(other));
  }

  _done(want) {
    if (!want.done) {
      want.done = true;
      want.claims.forEach((claim) => { claim.wanted -= 1; });
      this._use(want.claims, -1);
      this.waits.forget(want);
      if (want.signal) {
        want.signal.removeEventListener('abort', want.abort);
      }
    }
  }

  // A request is in doubt if it may have been granted what it has not heard of: its answer was lost,
  // or perhaps a turn was.  Then it asks for just that, as it does when it had a place; and if it is
  // given up, that is undone.  "first" is the promise of its first answer, if it has been sent.
  async _ask(want, first) {
    const { label } = want;
    for (let limit = 0, asked = first, placed = false; ; asked = null) {
      const { got, inDoubt } = asked ? {} : want;
      const never = got === 'never';
      const last = !want.patient || (!asked && (now() >= want.until || want.gone || never));
      try {
        if (!asked && !got && want.patient && want.reentry === 'deny' && want.claims.some(({ held }) => held > 0)) {
          throw new LeaseDeadlock(`the task would wait for its own lease on "${label}"`);
        }
        const answer = await (asked || (got && !never ? this._confirm(want, got) : this._askOnce(want, inDoubt, last)));
        if (isGrant(answer)) {
          const lease = this._granted(want, answer);
          if (lease !== null) {
            return lease;
          }
          const tokens = tokensOf(answer);
          await Promise.all(want.names.map((name, i) => this.lines.ask(RELEASE, [name, tokens[i]])));
          throw Object.assign(new ServerUnreachable('the answer came too late'), { inDoubt: true });
        }
        if (never) {
          throw new LeaseDeadlock(`the wait for "${label}" would never have ended`);
        }
        if (!last) {
          placed = want.placed;
          await this.waits.turn(want, answer.sent);
        } else if (want.gone || !(want.got || want.inDoubt)) { // a turn may have come just before
          throw new LeaseRefused(label, want.gone ? null : await this._holder(want));
        }
      } catch (error) {
        const raised = want.inDoubt; // meanwhile
        want.inDoubt = raised || error.inDoubt === true || ((inDoubt || placed) && !(error instanceof LeaseRefused && want.returns));
        if (error.code === '40P01' && raised && !want.gone) {
          continue; // perhaps for a lease that it has not heard of
        }
        if (!(error instanceof ServerUnreachable)) {
          throw error;
        }
        limit = limit || (error.inDoubt ? now() + DOUBT_WITHIN_MS : 0);
        if (want.gone || (last && now() >= limit)) {
          throw error;
        }
        await nap(last ? RETRY_MS : Math.min(RETRY_MS, Math.max(want.until - now(), 0)));
      }
    }
  }

  // The last time, it leaves no place.
  _askOnce(want, inDoubt, last) {
    want.returns = (inDoubt || want.placed) && this._isAlone(want);
    if (!last && want.place !== null) {
      this.waits.expect(want);
    }
    want.inDoubt = false;
    const again = want.counts ? 'count' : 'return';
    return want.ask(last ? '0' : Waits.KEEP, want.returns ? again : want.reentry);
  }

  // The lease, if it has been granted, and heard of in time.
  _granted(want, answer) {
    if (!isGrant(answer) || now() >= answer.sent + want.ttl - marginOf(want.ttl)) {
      return null;
    }
    const tokens = tokensOf(answer);
    return new Lease(this, want, want.names.map((name, i) => [name, Number(tokens[i])]), answer.sent);
  }

  // Who holds it, or something above it; null if nobody does any more.
  async _holder({ names, kind }) {
    const places = kind === 'path' ? names[0].split('/').map((_, i, parts) => parts.slice(0, i + 1).join('/')) : names;
    const holders = places.map((name) => this.lines.ask(HOLDER, [name]));
    return (await Promise.all(holders).catch(() => [])).map(({ note }) => note).find(Boolean) || null;
  }

  // A turn may have come some time after it was asked for: when was the lease held for sure?  If it is lost, it
  // is asked for again.
  async _confirm(want, { token, sent }) {
    const recent = now() - sent < Math.min(want.ttl / 12, 1000);
    const held = recent ? { value: 't', sent } : await this.lines.ask(RENEW, [want.names[0], token]);
    want.got = null;
    want.inDoubt = held.value !== 't';
    return { value: want.inDoubt ? null : token, sent: held.sent };
  }

  // End what a request in doubt may have been granted, by its token: if that is late, it ends nothing
  // newer.  Fulfilled with whether the server has.
  async _undo(want) {
    const until = now() + DOUBT_WITHIN_MS;
    while (now() < until) {
      try {
        const more = await Promise.all(want.names.map(async (name) => {
          const { value } = await this.lines.ask(FIND, [name, want.owner], until);
          return value !== 'NULL' && await this.lines.ask(RELEASE, [name, value], until) && want.counts;
        }));
        if (!more.includes(true)) {
          return true;
        }
      } catch {
        await nap(100);
      }
    }
    this._doubt(want.claims, now() + want.ttl);
    return false;
  }

  // What could not be undone or released, a later request of the task asks for, or undoes.
  _doubt(claims, until) {
    this._doubts.forEach((end, key) => end > now() || this._doubts.delete(key));
    claims.forEach(({ key }) => this._doubts.set(key, until));
  }

  _inherit(want) {
    for (const { key } of this._doubts.size > 0 && this._isAlone(want) ? want.claims : []) {
      want.counts = want.counts || this._doubts.get(key) > now();
      want.inDoubt = want.inDoubt || want.counts;
      this._doubts.delete(key);
    }
  }

  // Has its task no other lease or request on these locks, which might be meant instead?
  _isAlone({ claims }) {
    return claims.every(({ held, wanted }) => held === 0 && wanted === 1);
  }

  _claim(name, owner) {
    const key = `${owner}\0${name}`;
    let claim = this._claims.get(key);
    if (claim === undefined) {
      claim = new Claim(key);
      this._claims.set(key, claim);
    }
    return claim;
  }

  _use(claims, more) {
    for (const claim of claims) {
      claim.users += more;
      if (claim.users === 0) {
        this._claims.delete(claim.key);
      }
    }
  }

  // Release a turn that was not taken.
  _decline(name, token) {
    if (![...this._holds].some((hold) => hold.token === Number(token))) {
      this.lines.ask(RELEASE, [name, token]).catch(ignore);
    }
  }

  // -------------------------------------------------------------- what is held

  _keep(hold) {
    this._holds.add(hold);
    this._margin = Math.min(this._margin, hold._margin);
    this._arm(Math.min(hold._renewAt, hold._stopAt));
  }

  _forget(hold) {
    this._holds.delete(hold);
    if (this._holds.size === 0) {
      this._margin = Infinity;
      this._timer.unref();
    }
  }

  // The timer is not set anew for what it comes early enough for.
  _arm(at) {
    if (this._holds.size === 0) {
      return;
    }
    if (at < this._timerAt) {
      clearTimeout(this._timer);
      this._timerAt = at;
      this._timer = timer(() => this._tick(), at);
    } else {
      this._timer.ref();
    }
  }

  // Stop what is late, and renew what is due, or soon will be.
  _tick() {
    const at = now();
    let [next, margin] = [Infinity, Infinity];
    this._timerAt = Infinity;
    for (const hold of this._holds) {
      if (!hold.lost) {
        if (hold._renewAt <= at + hold._every / 2) {
          hold._renew();
        }
        margin = Math.min(margin, hold._margin);
        next = Math.min(next, hold._renewAt, hold._stopAt);
      }
    }
    this._margin = margin;
    this._arm(next);
  }

  // Renewals fail, or go on.
  _trouble(error) {
    if (error && !this._inTrouble) {
      this._tell(new LeaseError(`renewals fail: ${error.message}`, { cause: error }));
    }
    this._inTrouble = error !== null;
  }
}

if (Symbol.asyncDispose) {
  Session.prototype[Symbol.asyncDispose] = function dispose() {
    return this.close();
  };
}

module.exports = { Session };
