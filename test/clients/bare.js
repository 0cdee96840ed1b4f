'use strict';
// What the Node client does whatever the server says, with a driver that is not one.

const assert = require('assert');
const { withLease } = require('dlock');

const asked = [];
let renewing = null; // called when a renewal is asked for; returns its answer

class Client {
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

testSpans().then(testEnd).catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exitCode = 1;
});
