'use strict';
// What test/lib/DLockClient.pm has the Node client do: client.js KEY=VALUE...

const fs = require('fs');
const { Client, Pool } = require('pg');
const { withLease, LeaseRefused, LeaseLost, ServerUnreachable } = require('dlock');

const args = Object.fromEntries(process.argv.slice(2).map((word) => {
  const at = word.indexOf('=');
  return [word.slice(0, at), word.slice(at + 1)];
}));
const ttlMs = Number(args.ttl_ms);
let least = null; // of what was left of the lease when there was work
let stalled = false; // the machine stood still for a while

function say(...words) {
  fs.writeSync(1, `${words.join(' ')}\n`);
}

const mayGo = () => fs.existsSync(process.env.DLOCK_TEST_GO);
const nap = () => new Promise((resolve) => setTimeout(resolve, 10));

async function run(where) {
  const giver = new AbortController();
  if (args.do === 'giveup') {
    const timer = setInterval(() => {
      if (mayGo()) {
        clearInterval(timer);
        giver.abort();
      }
    }, 10);
  }
  const options = {
    ttlMs,
    waitMs: args.wait_ms === 'none' ? Infinity : Number(args.wait_ms || 0),
    payload: JSON.parse(args.payload || 'null'),
    onLost: () => say('on_lost'),
    signal: giver.signal
  };
  await withLease(where, args.name, options, async (lease, signal) => {
    let before = performance.now();
    say('token', lease.token, 'until', (Date.now() + lease.remainingMs) / 1000);
    while (args.do === 'hold' && !mayGo() && !signal.aborted) {
      const left = lease.remainingMs;
      least = least === null ? left : Math.min(least, left);
      stalled = stalled || performance.now() - before > ttlMs / 12;
      before = performance.now();
      await nap();
    }
    while (args.do === 'write' && !mayGo()) {
      await nap();
    }
    if (args.do === 'write') {
      try {
        await lease.transaction(where, (client) => client.query(args.sql));
        say('written');
      } catch (error) {
        say('error', error.code);
      }
    }
  });
}

async function main() {
  if (args.where === 'pool') {
    const pool = new Pool({ max: 1 });
    pool.on('error', () => {});
    try {
      await run(pool);
    } finally {
      await pool.end();
    }
  } else if (args.where === 'connection') {
    const client = new Client();
    await client.connect();
    try {
      await run(client);
    } finally {
      await client.end();
    }
  } else {
    await run({});
  }
}

main().then(() => say('done'), (error) => {
  const how = `left ${least} ${stalled ? 'stalled' : 'steady'}`;
  if (error instanceof LeaseRefused) {
    say('refused');
  } else if (error instanceof LeaseLost) {
    say('lost', how);
  } else if (error instanceof ServerUnreachable) {
    say('unreachable', how);
  } else if (error.name === 'AbortError') {
    say('gave up');
  } else {
    say('error', error.code);
  }
  process.stderr.write(`${error.stack}\n`);
});
