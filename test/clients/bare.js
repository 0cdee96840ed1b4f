'use strict';
// What the Node client does whatever the server says, with a driver that is not one.

const assert = require('assert');
const { withLease } = require('dlock');

const asked = [];
let renewing = null; // called when a renewal is asked for; returns its answer

class Client {
  constructor(settings) {
    this.settings = settings;
  }

  on() {}

  removeListener() {}

  async connect() {}

  async end() {}

  async query({ text }) {
    asked.push(text);
    const value = text.includes('dlock_acquire') ? '7' : text.includes('dlock_renew') ? await renewing() : 't';
    return { rows: [[value]] };
  }
}

const where = { Client, options: {} };

async function testSpans() {
  for (const ttlMs of [Infinity, NaN, -1, 0, '60000', undefined]) {
    await assert.rejects(withLease(where, 'job', { ttlMs }, () => {}), TypeError, `a ttl of ${ttlMs}`);
  }
  await assert.rejects(withLease(where, 'job', { ttlMs: 60000, lockDelayMs: Infinity }, () => {}), TypeError);
  assert.strictEqual(asked.length, 0);
}

// Work that ends while a renewal is under way is not waited for until the next one.
async function testEnd() {
  let lease;
  let slept = false;
  await withLease(where, 'job', { ttlMs: 600000 }, (granted) => new Promise((resolve) => {
    const nap = granted._nap;
    lease = granted;
    lease._nap = function (until) {
      slept = slept || this._finishing;
      return nap.call(this, until);
    };
    renewing = async () => {
      resolve();
      while (!lease._finishing) {
        await new Promise(setImmediate);
      }
      return 't';
    };
  }));
  assert.strictEqual(slept, false, 'it is released at once');
  assert.ok(asked[asked.length - 1].includes('dlock_release'));
}

// An onLost that throws does not keep the work from being told.
async function testLoss() {
  renewing = async () => 'f';
  let told = false;
  const work = (lease, signal) => new Promise((resolve) => {
    const limit = setTimeout(resolve, 30000);
    signal.addEventListener('abort', () => {
      told = true;
      clearTimeout(limit);
      resolve();
    });
  });
  const onLost = () => {
    throw new Error('thrown by onLost');
  };
  await assert.rejects(withLease(where, 'job', { ttlMs: 6000, onLost }, work), { name: 'LeaseLost' });
  assert.ok(told, 'the work is told');
}

// A server whose machine is gone is noticed in a wait without a limit.
async function testKeepAlives() {
  const hidden = Object.defineProperty({ host: 'a' }, 'password', { value: 'secret' });
  for (const [options, keepAlive] of [[hidden, true], [{ host: 'a', password: 'secret', keepAlive: false }, false]]) {
    await withLease({ Client, options }, 'job', { ttlMs: 60000 }, ({ _line: { client: { settings } } }) => {
      assert.deepStrictEqual(settings, { host: 'a', password: 'secret', keepAlive, keepAliveInitialDelayMillis: 10000 });
    });
  }
}

// The server rolls a transaction back in which a statement has failed, and COMMIT is no error.
async function testCommit() {
  let command = 'COMMIT';
  const client = { on() {}, removeListener() {}, query: async () => ({ command }) };
  await withLease(where, 'job', { ttlMs: 60000 }, async (lease) => {
    assert.strictEqual(await lease.transaction(client, () => 'done'), 'done');
    command = 'ROLLBACK';
    await assert.rejects(lease.transaction(client, () => 'done'), { code: '25P02' });
  });
}

// A transaction that the work has not waited for is not committed when the lease is over.
async function testForgotten() {
  const did = [];
  const client = { on() {}, removeListener() {}, query: async (text) => did.push(text) && { command: text } };
  const told = [];
  let lease;
  let forgotten;
  await withLease(where, 'job', { ttlMs: 60000, onLost: () => told.push('on_lost') }, (granted) => new Promise((resolve) => {
    lease = granted;
    forgotten = lease.transaction(client, () => new Promise((goOn) => {
      const giveBack = lease._giveBack;
      lease._giveBack = function (token) {
        goOn();
        return giveBack.call(this, token);
      };
      resolve();
    }));
    forgotten.catch(() => {});
  }));
  await assert.rejects(forgotten, { name: 'LeaseLost' });
  assert.strictEqual(did.pop(), 'ROLLBACK');
  assert.ok(!did.includes('COMMIT'));
  assert.ok(lease.lost);
  assert.throws(() => lease.check(), { name: 'LeaseLost' });
  await assert.rejects(lease.transaction(client, () => {}), { name: 'LeaseLost' });
  assert.deepStrictEqual(told, []);
}

testSpans().then(testEnd).then(testLoss).then(testKeepAlives).then(testCommit).then(testForgotten).catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exitCode = 1;
});
