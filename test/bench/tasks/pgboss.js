'use strict';
// pg-boss, by the calls that an application makes.  Its upkeep (expiry, archive, schedules)
// does not run.

const { Pool } = require('pg');
const PgBoss = require('pg-boss');

const name = 'job';
const data = { to: 'ann@example.com' };

const pgboss = {
  version: () => `pg-boss ${require('pg-boss/package.json').version}`,
  async open(connections, install) {
    const pool = new Pool({ max: connections });
    const db = { executeSql: (text, values) => pool.query(text, values) };
    const boss = new PgBoss({ db, migrate: Boolean(install), supervise: false, schedule: false });
    boss.on('error', (error) => {
      throw error;
    });
    await boss.start();
    if (install) {
      await boss.createQueue(name);
    }
    return {
      reset: () => pool.query(`DELETE FROM pgboss.job WHERE name = '${name}'`),
      vacuum: () => pool.query('VACUUM ANALYZE pgboss.job'),
      left: async () => Number((await pool.query(
        `SELECT count(*) FROM pgboss.job WHERE name = '${name}' AND state < 'completed'`)).rows[0].count),
      put: (n) => (n === 1 ? boss.send(name, data) : boss.insert(Array.from({ length: n }, () => ({ name, data })))),
      capture: async (n) => (await boss.fetch(name, { batchSize: n })).map((job) => ({ id: job.id, payload: job.data })),
      finish: (tasks) => boss.complete(name, tasks.map((task) => task.id)),
      async close() {
        await boss.stop({ graceful: false, wait: false });
        await pool.end();
      }
    };
  }
};

module.exports = { pgboss };
