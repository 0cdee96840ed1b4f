'use strict';
// A program of test/lib/DLockScenario.pm in Node: reads commands, a line of JSON each, and prints
// what comes of them, "ID EVENT...".

const { AsyncResource } = require('async_hooks');
const fs = require('fs');
const readline = require('readline');
const { Pool } = require('pg');
const dlock = require('dlock');

const pool = new Pool({ max: 20 });
const live = new Map(); // leases and others, by id
let session;
let lastBeat = performance.now();
let stall = 0; // the longest time that this process did not run

const say = (id, ...words) => fs.writeSync(1, `${id} ${words.join(' ')}\n`);

function beat() {
  stall = Math.max(stall, performance.now() - lastBeat);
  lastBeat = performance.now();
}
setInterval(beat, 20).unref();
pool.on('error', () => {});

function outcome(error) {
  if (error instanceof dlock.LeaseRefused) {
    return `refused ${error.holder && error.holder.startsWith(session.client) ? 'self' : error.holder}`;
  }
  for (const kind of ['LeaseDeadlock', 'TokenStale', 'TokenMissing', 'LeaseLost', 'ServerUnreachable', 'ServerUnsupported', 'SessionClosed']) {
    if (error instanceof dlock[kind]) {
      return kind;
    }
  }
  return error.name === 'AbortError' ? 'gave up' : `error ${error.code || error.message}`;
}

// Say how it ends.
function watch(id, promise) {
  promise.then((value) => say(id, 'ended', value === undefined ? 'ok' : value), (error) => {
    process.stderr.write(`${id}: ${error.stack}\n`);
    say(id, 'ended', outcome(error));
  });
}

function acquire({ name, names, path, options }) {
  return names ? session.acquireAll(names, options) : path ? session.acquirePath(path, options) : session.acquire(name, options);
}

const commands = {
  // A lease, until it is told to end, or to fail; in the task of another one.
  async lease(command) {
    const giver = new AbortController();
    const { id, options } = command;
    const it = { cancel: () => giver.abort() };
    const work = (lease) => new Promise((resolve, reject) => {
      stall = 0;
      Object.assign(it, { lease, end: resolve, fail: () => reject(new Error('failed')), within: AsyncResource.bind((what) => what()) });
      say(id, 'held', lease.token);
      lease.signal.addEventListener('abort', () => {
        beat();
        say(id, 'stopped', lease.remaining > 0 ? 'early' : stall > 300 ? 'stalled' : 'late');
        resolve();
      });
    });
    live.set(id, it);
    command.options = { ...options, signal: giver.signal };
    const run = () => (command.name ? session.lease(command.name, command.options, work)
      : acquire(command).then((lease) => lease._run(work)));
    return (command.in ? live.get(command.in).within(run) : run()).then(() => undefined);
  },

  // So many leases at once: held together, or one after the other on one lock, or on some.
  async many({ id, count, name, names = count, options, hold }) {
    const leases = await Promise.all(Array.from({ length: count }, async (_, i) => {
      const lease = await session.acquire(name && names === count ? name : `${name || id}:${i % names}`, options);
      return hold ? lease : lease.release();
    }));
    if (hold) {
      say(id, 'held', leases.length);
      await new Promise((resolve) => live.set(id, { end: resolve }));
      await Promise.all(leases.map((lease) => lease.release()));
    }
  },

  // Each name as a lease of its own, at once: what comes of each.
  async each({ names, options }) {
    return (await Promise.all(names.map((name) => session.lease(name, options, () => 'ok').catch(outcome)))).join(', ');
  },

  // The same, of two servers of which one is down.
  async shards({ names, down }) {
    const pools = [pool, pool];
    pools[down] = 'host=/nonexistent';
    return (await Promise.all(names.map((name) => dlock.lease(pools, name, {}, () => 'ok').catch(outcome)))).join(', ');
  },

  // Which of so many servers has each of the locks.
  async shard({ names, count }) {
    return names.map((name) => dlock.shardOf(name, [...Array(count).keys()])).join(', ');
  },

  // Workflows, so many at a time, each with some leases, one within the other, and work in the pool.
  async load({ workflows, concurrency, locks, names, query }) {
    let next = 0;
    const flow = async (i, depth) => {
      if (depth < locks) {
        await session.lease(`load:${depth}:${(i * 7 + depth) % names}`, { wait: '2 min' }, () => flow(i, depth + 1));
      } else if (query) {
        await pool.query(query);
      }
    };
    await Promise.all(Array.from({ length: concurrency }, async () => {
      while (next < workflows) {
        await flow(next++, 0);
      }
    }));
    return next;
  },

  async once({ name, every }) {
    return (await session.once(name, every)) === null ? 'no' : 'won';
  },

  async elect({ id, name, options }) {
    const election = session.elect(name, { ...options,
      gained: () => say(id, 'gained'), lost: (_, error) => say(id, 'resigned', error === null ? 'ok' : outcome(error)) });
    await new Promise((resolve) => live.set(id, { end: resolve }));
    await election.stop();
  },

  async watch({ id, name }) {
    const stop = new AbortController();
    live.set(id, { end: () => stop.abort() });
    for await (const holder of session.watch(name, { every: 50, signal: stop.signal })) {
      say(id, 'sees', holder === null ? 'nobody' : holder.owner);
    }
  },

  // A task fails if its payload says so, writes if its payload says what, or waits to be told.
  async worker({ id, queue, options }) {
    const counts = new Map();
    const { concurrency = 1 } = options || {};
    let most = 0;
    let all; // the first tasks go on as soon as so many are there
    const many = new Promise((resolve) => { all = resolve; });
    const worker = session.worker(queue, async (task) => {
      const { fail, sql, wait, again } = task.payload || {};
      if (counts.has(task.key)) {
        say(id, 'twice at a time', task.key);
      }
      counts.set(task.key, true);
      most = Math.max(most, counts.size);
      if (most === concurrency) {
        all();
      }
      try {
        if (wait) {
          say(id, 'works', task.key, task.attempts);
          await new Promise((resolve) => {
            live.get(id).go = resolve;
            task.signal.addEventListener('abort', () => {
              say(id, 'stopped', task.remaining > 0 ? 'early' : 'late');
              resolve();
            });
          });
          task.check();
        }
        await many;
        if (fail && task.attempts <= fail) {
          throw new Error('as told');
        }
        for (const text of sql ? (again ? [sql, sql] : [sql]) : []) {
          await task.transaction(pool, (client) => client.query(text)).catch((error) => {
            say(id, 'not committed', outcome(error));
            throw error;
          });
        }
      } finally {
        counts.delete(task.key);
      }
    }, options);
    const grace = await new Promise((resolve) => live.set(id, { end: (command) => resolve(command.grace) }));
    await worker.stop(grace === undefined ? {} : { grace });
    return most;
  },

  // A transaction of the lease; with "also", it presents the tokens of another one, too.
  async write({ lease, sql, also }) {
    return live.get(lease).lease.transaction(pool, async (client) => {
      if (also) {
        await session.present(client, live.get(also).lease);
      }
      await client.query(sql);
      return 'written';
    });
  },

  // In a transaction of a query builder.
  async build({ leases, sql }) {
    const { Kysely, PostgresDialect, sql: part } = require('kysely');
    const db = new Kysely({ dialect: new PostgresDialect({ pool }) });
    return db.transaction().execute(async (tx) => {
      await session.present((text) => part.raw(text).execute(tx), ...leases.map((id) => live.get(id).lease));
      await part.raw(sql).execute(tx);
      return 'written';
    });
  },

  async block({ ms, lease }) {
    const until = performance.now() + ms;
    while (performance.now() < until);
    return live.get(lease).lease.lost;
  },

  async close() {
    await session.close();
  }
};

session = dlock.connect(pool, {
  onTrouble: (error) => say('session', 'trouble', error.constructor.name)
});
say('session', 'is', session.client);
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const command = JSON.parse(line);
  if (commands[command.do]) {
    watch(command.id, commands[command.do](command));
  } else {
    live.get(command.id)[command.do](command); // end, fail, cancel, go
  }
}).on('close', () => session.close().then(() => pool.end()));
