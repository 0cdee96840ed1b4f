'use strict';
// A lease, a loss and a deadlock, with a session for the server of libpq's variables.

const assert = require('assert');
const { Pool } = require('pg');
const dlock = require('dlock');

(async () => {
  const pool = new Pool();
  const session = dlock.connect(pool);

  await session.lease('job', async (lease) => {
    await lease.transaction(pool, async (client) => {
      const { rows } = await client.query("SELECT owner FROM dlock_lease('job')");
      assert.deepStrictEqual(rows, [{ owner: lease.owner }]);
    });
    await assert.rejects(session.task(() => session.acquire('job')), (error) => error instanceof dlock.LeaseRefused);
  });

  await assert.rejects(session.lease('lost', async (lease) => {
    const told = new Promise((resolve) => { lease.signal.addEventListener('abort', resolve); });
    await pool.query("SELECT dlock_force_release('lost', 'test')");
    await told;
  }), (error) => error instanceof dlock.LeaseLost);

  let meet;
  let met = 0;
  const both = new Promise((resolve) => { meet = resolve; });
  const cross = ([first, second]) => session.task(() => session.lease(first, { wait: '1 min' }, async () => {
    if (++met === 2) {
      meet();
    }
    await both;
    return session.lease(second, { wait: '1 min' }, () => 'held').catch((error) => error.name);
  }));
  assert.deepStrictEqual((await Promise.all([['a', 'b'], ['b', 'a']].map(cross))).sort(), ['LeaseDeadlock', 'held']);

  await session.close();
  await pool.end();
})();
