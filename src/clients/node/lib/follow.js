'use strict';

// Elections, and following who holds a lock.

const { ServerUnreachable } = require('./errors');
const { USUAL, ignore } = require('./lines');
const { now, span, timer, nap } = require('./span');

const RETRY_MS = 1000;

const WATCH = {
  key: 'watch',
  rank: USUAL,
  text: ({ schema }) => `SELECT array_agg(l.token ORDER BY i), json_agg(json_build_object('owner', l.owner, 'payload', l.payload) ORDER BY i)
    FROM unnest($1::text[]) WITH ORDINALITY AS e(n, i) LEFT JOIN LATERAL ${schema}dlock_watch(n, NULL, '0') AS l ON true`
};

// The holders of a lock: { token, owner, payload }, or null if there is none, at first and then
// whenever another one is seen, until the session is closed.  All that are watched are asked for at once.
async function* watch(session, name, { every = 500, signal } = {}) {
  const step = span(every, 'every', 1);
  let over = false;
  let wake = ignore;
  let seen;
  const stop = () => {
    over = true;
    wake();
  };
  const watching = { stop };
  session._closing.add(watching);
  if (signal) {
    over = signal.aborted;
    signal.addEventListener('abort', stop);
  }
  try {
    while (!over) {
      try {
        const { value, note } = await session.lines.ask(WATCH, [name]);
        if (value !== seen && !over) {
          seen = value;
          yield value === 'NULL' ? null : { token: Number(value), ...note };
        }
      } catch (error) {
        if (!(error instanceof ServerUnreachable)) {
          throw error;
        }
      }
      if (!over) {
        await new Promise((resolve) => {
          const next = timer(resolve, now() + step - now() % step);
          wake = () => {
            clearTimeout(next);
            resolve();
          };
        });
      }
    }
  } finally {
    session._closing.delete(watching);
    if (signal) {
      signal.removeEventListener('abort', stop);
    }
  }
}

// A candidate, until stop().
class Election {
  constructor(session, name, { gained, lost, ...options }) {
    this.lease = null; // of the term, if this is the leader
    this._session = session;
    this._stopper = new AbortController();
    this._done = session.task(() => this._campaign(name, { ...options, wait: Infinity, signal: this._stopper.signal }, gained, lost));
    session._closing.add(this);
  }

  get leads() {
    return this.lease !== null && !this.lease.lost;
  }

  async _campaign(name, options, gained, lost) {
    while (!options.signal.aborted) {
      try {
        const lease = this.lease = await this._session.acquire(name, options);
        const over = new Promise((resolve) => { lease.signal.addEventListener('abort', resolve, { once: true }); });
        if (gained && !lease.signal.aborted) {
          Promise.resolve(lease).then(gained);
        }
        await (lease.signal.aborted || over);
        this.lease = null;
        try {
          await (lost && lost(lease, lease._error));
        } finally {
          await lease.release().catch(() => {});
        }
      } catch (error) {
        if (error !== options.signal.reason) {
          this._session._tell(error);
          await (options.signal.aborted || nap(RETRY_MS));
        }
      }
    }
  }

  // Resign, once "lost" has done what it does.
  async stop() {
    this._stopper.abort();
    await this._done;
    this._session._closing.delete(this);
  }
}

module.exports = { watch, Election };
