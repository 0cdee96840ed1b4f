'use strict';

// Tasks of a queue, worked on so many at a time.

const { LeaseLost, ServerUnreachable } = require('./errors');
const { Hold } = require('./hold');
const { Lines, URGENT, USUAL, ignore } = require('./lines');
const { now, span, interval, timer, nap } = require('./span');

// How long a capture waits for tasks; so long, it holds a snapshot, and stop() waits for it.
const WAIT_MS = 1000;

// After errors.
const RETRY_MS = 500;
const LONGEST_RETRY_MS = 10000;

const CAPTURE = {
  rank: USUAL,
  text: ({ schema }) => `SELECT key, token, payload, priority, attempts, from_state
    FROM ${schema}dlock_task_capture($1, count => $2::integer, from_states => $3::text[], to_state => $4, owner => $5, ttl => $6::interval,
      on_timeout => $7, wait => $8::interval)`
};
const each = (key, call) => ({
  key,
  rank: URGENT,
  text: ({ schema }) => `SELECT array_agg(${schema}dlock_task_${call} ORDER BY i)
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) WITH ORDINALITY AS e(q, k, t, x, i)`
});
const RENEW = each('task_renew', 'renew(q, k, t)');
const FINISH = each('task_finish', 'finish(q, k, t, state => x)');
const FAIL = each('task_fail', 'fail(q, k, t, error => x)');
const RELEASE = each('task_release', 'release(q, k, t)');

class Task extends Hold {
  constructor(worker, [key, token, payload, priority, attempts, from], sent) {
    super(worker._session, `task "${key}" of queue "${worker.queue}"`, worker._ttl, sent, { signal: worker._stopper.signal });
    Object.assign(this, {
      queue: worker.queue, key, token: Number(token), payload: JSON.parse(payload), priority: Number(priority), attempts: Number(attempts),
      fromState: from, state: null, _finished: false, _finishing: new Set(), _server: worker._lines.server
    });
  }

  _ask(kind, extra) {
    return this._session.lines.ask(kind, [this.queue, this.key, this.token, extra], Math.max(this._deadline, now() + WAIT_MS));
  }

  _askRenewals() {
    return this._ask(RENEW, null).then((answer) => [answer]);
  }

  async _first() {}

  // What the transaction has written is committed with the task's end, or not at all.
  async _last(client) {
    this._finishing.add(client);
    const text = `SELECT 1 WHERE ${this._server.schema}dlock_task_finish($1, $2, $3, state => $4)`;
    if ((await client.query(text, [this.queue, this.key, this.token, this.state])).rowCount === 0) {
      this._finish();
      throw new LeaseLost(`an earlier transaction has finished ${this._what}`);
    }
  }

  async _transaction(client, work) {
    try {
      const result = await super._transaction(client, work);
      this._finish();
      return result;
    } finally {
      if (this._finishing.delete(client) && !this._finished) {
        this._session._arm(this._renewAt = now());
      }
    }
  }

  // It cannot be lost any more.
  _finish() {
    this._finished = true;
    this._session._forget(this);
  }

  // A renewal would wait for a transaction that finishes it and commits, and then find no task.
  async _renew() {
    this._renewAt = Infinity;
    if (this._finishing.size === 0) {
      await super._renew();
    }
  }

  _stop(error) {
    if (!this._finished && !(error instanceof LeaseLost && this._finishing.size > 0)) {
      super._stop(error);
    }
  }

  // Tell the server how it has ended; again, if that does not answer: that does no harm.
  async _settle(kind, extra) {
    for (;;) {
      try {
        return await this._ask(kind, extra);
      } catch (error) {
        if (!(error instanceof ServerUnreachable) || now() >= this._deadline) {
          throw error;
        }
        await nap(RETRY_MS);
      }
    }
  }

  async _run(handler) {
    let failure = null;
    try {
      await this._session.task(() => handler(this));
    } catch (error) {
      failure = error instanceof Error ? error : new Error(String(error));
    }
    if (!this.lost && !this._finished) {
      await (failure && this._outer.aborted ? this._settle(RELEASE, null)
        : failure ? this._settle(FAIL, failure.message) : this._settle(FINISH, this.state));
    }
    this._end();
  }
}

class Worker {
  constructor(session, queue, handler, { concurrency = 1, ttl = 60000, fromStates = null, toState = 'working', onTimeout = null } = {}) {
    if (typeof handler !== 'function' || !Number.isInteger(concurrency) || concurrency < 1 || concurrency > 1000) {
      throw new TypeError('handler must be a function, and concurrency a number from 1 to 1000');
    }
    this.queue = queue;
    this.running = new Set(); // promises of tasks
    this._session = session;
    this._ttl = span(ttl, 'ttl', 0.001);
    this._lines = new Lines(session.where, { only: true });
    this._stopper = new AbortController(); // of tasks that are to be given back
    this._stopping = false;
    this._freed = ignore; // called when a task has ended
    const wait = interval(Math.min(WAIT_MS, this._ttl / 6));
    const owner = `${session.client}#${queue}`.slice(0, 100);
    this._ask = (count) => this._lines.ask(CAPTURE, [queue, count, fromStates, toState, owner, interval(this._ttl), onTimeout, wait]);
    this._done = session.task(() => this._work(handler, concurrency));
    session._closing.add(this);
  }

  async _work(handler, concurrency) {
    for (let retry = RETRY_MS; !this._stopping;) {
      try {
        const { rows, sent } = await this._ask(concurrency - this.running.size);
        retry = RETRY_MS;
        rows.forEach((row) => this._start(new Task(this, row, sent), handler));
        if (this.running.size >= concurrency) {
          await new Promise((resolve) => { this._freed = resolve; });
        }
      } catch (error) {
        this._session._tell(error);
        await nap(retry);
        retry = Math.min(2 * retry, LONGEST_RETRY_MS);
      }
    }
  }

  _start(task, handler) {
    const run = (this._stopping || task.lost ? task._settle(RELEASE, null).then(() => task._end()) : task._run(handler)).catch((error) => {
      task._end();
      this._session._tell(error);
    }).then(() => this.running.delete(run) && this._freed());
    this.running.add(run);
  }

  // Capture no more, and wait for tasks under way; after "grace" abort their signals: those that
  // end with an error then are given back as if they had not been captured.
  async stop({ grace = Infinity } = {}) {
    const limit = grace === Infinity ? null : timer(() => this._stopper.abort(new LeaseLost('the worker stops')), now() + span(grace, 'grace'));
    this._stopping = true;
    await this._done;
    await Promise.all(this.running);
    clearTimeout(limit);
    await this._lines.close();
    this._session._closing.delete(this);
  }
}

module.exports = { Worker };
