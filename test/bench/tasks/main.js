'use strict';
// Tasks a second through a queue: the client of the benchmark's group "tasks".
//
//   main.js version PEER             the version of its library
//   main.js install PEER             what it needs in the database
//   main.js check PEER               a task goes through it once, and only once (not of "none")
//   main.js rate PEER KEY=VALUE...   clients=4 size=1 seconds=2 threads=1 waiting=1000
//
// A client puts so many tasks as "size" says, captures as many, and finishes what it has
// captured, by three calls, each its own transaction.  So many tasks as "waiting" says
// are in the queue before.  Runs begin half a second before they count.  The
// connection is that of libpq's environment variables.
//
// A peer is a module with open(connections) -> { install, reset, vacuum, left, put(n), capture(n),
// finish(tasks), close }, or with loop(concurrency, n, done) instead of
// capture and finish.  put, capture and finish are what is measured; left tells how
// many tasks are not finished.  All peers have a pool of connections that never has to wait, of the
// same driver.

const assert = require('assert');
const fs = require('fs');
const { Client } = require('pg');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

const lead = 500; // ms
const now = () => Number(process.hrtime.bigint()) / 1000; // µs

const load = (peer) => require({
  none: './statements', table: './statements', prototype: './statements', dlock: './statements', graphile: './graphile', loop: './graphile', pgboss: './pgboss'
}[peer])[peer];

async function runClient(queue, { size, seconds }, start, counts) {
  const from = start + lead * 1000;
  const until = from + seconds * 1e6;
  for (;;) {
    const times = [now()];
    if (times[0] >= until) {
      return;
    }
    await queue.put(size);
    times.push(now());
    const tasks = await queue.capture(size);
    times.push(now());
    if (tasks.length > 0) {
      await queue.finish(tasks);
    }
    times.push(now());
    counts.put += size;
    counts.finished += tasks.length;
    if (times[0] >= from && times[3] <= until) {
      counts.counted += tasks.length;
      counts.rounds++;
      ['put_us', 'capture_us', 'finish_us'].forEach((step, i) => {
        counts[step] += times[i + 1] - times[i];
      });
    }
  }
}

// As many tasks are put as the loop of a library finishes, up to 100 ahead.  It may finish more, of
// those that waited before: what counts is what was both put and finished.
async function runLoop(queue, clients, { size, seconds }, start, counts) {
  const from = start + lead * 1000;
  const until = from + seconds * 1e6;
  const wake = [];
  const counting = () => now() >= from && now() < until;
  let put = 0;
  let finished = 0;
  const end = await queue.loop(clients, size, () => {
    counts.finished++;
    finished += counting() ? 1 : 0;
    wake.splice(0).forEach((resolve) => resolve());
  });
  const tick = setInterval(() => wake.splice(0).forEach((resolve) => resolve()), 50);
  await Promise.all(Array.from({ length: clients }, async () => {
    while (now() < until) {
      if (counts.put - counts.finished < 100) {
        counts.put += size;
        await queue.put(size);
        put += counting() ? size : 0;
      } else {
        await new Promise((resolve) => wake.push(resolve));
      }
    }
  }));
  await end();
  clearInterval(tick);
  counts.counted = Math.min(put, finished);
}

// The processor time that the sessions of the database have taken, in µs.
async function serverTime() {
  const client = new Client();
  await client.connect();
  const { rows } = await client.query(`SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`);
  await client.end();
  let ticks = 0; // of a hundredth of a second
  for (const { pid } of rows) {
    const [user, system] = fs.readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/.*\) /, '').split(' ').slice(11, 13);
    ticks += Number(user) + Number(system);
  }
  return ticks * 10000;
}

// A part of the clients, in a thread.
async function runThread() {
  const { peer, clients, options } = workerData;
  const counts = { put: 0, finished: 0, counted: 0, rounds: 0, put_us: 0, capture_us: 0, finish_us: 0 };
  const queue = await load(peer).open(clients);
  parentPort.postMessage('ready');
  await new Promise((resolve) => parentPort.once('message', resolve));
  const start = now();
  if (queue.loop) {
    await runLoop(queue, clients, options, start, counts);
  } else {
    await Promise.all(Array.from({ length: clients }, () => runClient(queue, options, start, counts)));
  }
  parentPort.postMessage(counts);
  await new Promise((resolve) => parentPort.once('message', resolve));
  await queue.close();
}

async function rate(peer, options) {
  const queue = await load(peer).open(1);
  if (await queue.left() !== options.waiting) {
    await queue.reset();
    for (let filled = 0; filled < options.waiting; filled += 1000) {
      await queue.put(Math.min(1000, options.waiting - filled));
    }
  }
  await queue.vacuum(); // a plan for an empty table would not do for a full one
  const before = await queue.left();
  const threads = Math.min(options.threads, options.clients);
  const workers = Array.from({ length: threads }, (_, i) => new Worker(__filename, {
    workerData: { peer, options, clients: Math.floor((options.clients + i) / threads) }
  }));
  const answers = () => Promise.all(workers.map((worker) => new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
  })));
  await answers();
  const timeBefore = await serverTime();
  const ends = answers();
  workers.forEach((worker) => worker.postMessage('go'));
  const sum = {};
  for (const counts of await ends) {
    for (const [name, value] of Object.entries(counts)) {
      sum[name] = (sum[name] || 0) + value;
    }
  }
  const time = await serverTime() - timeBefore;
  workers.forEach((worker) => worker.postMessage('close'));
  const left = await queue.left();
  // What ends while a loop stops may stay there, locked.
  const lost = left - (peer === 'none' ? 0 : before + sum.put - sum.finished);
  assert(lost >= 0 && lost <= (queue.loop ? options.clients * options.size : 0), 'tasks that are left');
  await queue.close();
  console.log(`rate ${(sum.counted / options.seconds).toFixed(1)}`);
  for (const step of ['put_us', 'capture_us', 'finish_us']) {
    console.log(`${step} ${(sum[step] / Math.max(sum.rounds, 1)).toFixed(0)}`);
  }
  console.log(`server_us ${(time / Math.max(sum.finished, 1)).toFixed(0)}`); // for each task
  console.log(`left ${left}`);
}

// Each task is captured once, with what was put, and is gone when it is finished.
async function check(peer) {
  const queue = await load(peer).open(2);
  await queue.reset();
  await queue.put(1);
  await queue.put(20);
  assert.strictEqual(await queue.left(), 21);
  const [some, one] = await Promise.all([queue.capture(20), queue.capture(1)]);
  assert.strictEqual(some.length + one.length, 21);
  assert.strictEqual(new Set([...some, ...one].map((task) => task.id)).size, 21);
  assert.deepStrictEqual(one[0].payload, { to: 'ann@example.com' });
  assert.strictEqual((await queue.capture(1)).length, 0);
  await queue.finish(one);
  assert.strictEqual(await queue.left(), 20);
  await queue.finish(some);
  assert.strictEqual(await queue.left(), 0);
  assert.strictEqual((await queue.capture(1)).length, 0);
  await queue.close();
  console.log('ok');
}

async function main() {
  const [measurement, peer, ...words] = process.argv.slice(2);
  const options = { clients: 4, size: 1, seconds: 2, threads: 1, waiting: 1000 };
  for (const word of words) {
    const [name, value] = word.split('=');
    assert(name in options && Number.isInteger(Number(value)), `unknown option "${word}"`);
    options[name] = Number(value);
  }
  switch (measurement) {
    case 'version':
      console.log(load(peer).version());
      break;
    case 'install': {
      const queue = await load(peer).open(1, true);
      await queue.close();
      break;
    }
    case 'check':
      await check(peer);
      break;
    case 'rate':
      await rate(peer, options);
      break;
    default:
      throw new Error(`unknown measurement "${measurement}"`);
  }
}

(isMainThread ? main() : runThread()).catch((error) => {
  if (!isMainThread) {
    throw error;
  }
  console.error(`error: ${error.message.split('\n')[0]}`);
  process.exit(1);
});
