// A nightly job: each of several machines starts it, and one of them does the work.
//
//     npm install ./src/clients/node pg
//     PGHOST=... node src/clients/node/example/nightly_job.js
//
// The table and its guard are those of doc/tutorial/nightly-job.md.

const { Pool } = require('pg');
const dlock = require('dlock');

async function makeReport(pool) {
  const session = dlock.connect(pool);

  // 1. The first machine of a day wins it.  The day is that of UTC.
  if (await session.once('nightly-report', '1 d') === null) {
    console.error('another machine makes the report of this day');
    return 75;
  }

  // 2. Take the lock.  The last run may still hold it, so wait.  The session renews the lease.
  try {
    await session.lease('nightly-report', { ttl: '1 min', wait: '1 h' }, async (lease) => {
      const lines = [`made under token ${lease.token}`];

      // 3. In long work, look often whether the lease is still held.
      lease.check();

      // 4. Write in a transaction that presents the token.
      await lease.transaction(pool, async (client) => {
        for (const line of lines) await client.query('INSERT INTO report VALUES ($1)', [line]);
      });
    });
  } catch (error) {
    if (!(error instanceof dlock.LeaseRefused)) throw error;
    console.error(`${error.holder} still makes an earlier report`);
    return 75;
  }
  return 0;
}

async function main() {
  const pool = new Pool();

  try {
    process.exitCode = await makeReport(pool);
  } finally {
    await pool.end();
  }
}

main();
