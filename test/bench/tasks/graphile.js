'use strict';
// graphile-worker: jobs are added as an application adds them, and got and completed by what
// its own workers call for that, without their loop; "loop" is with it, and with a local queue
// if there are several at a time.  Without named queues.

const { Pool } = require('pg');
const { makeWorkerUtils, run } = require('graphile-worker');
const { getUtilsAndReleasersFromOptions } = require('graphile-worker/dist/lib');
const { batchGetJobs } = require('graphile-worker/dist/sql/getJobs');
const { batchCompleteJobs } = require('graphile-worker/dist/sql/completeJobs');
const { Logger } = require('graphile-worker');

const identifier = 'job';
const payload = { to: 'ann@example.com' };
const tasks = { [identifier]: () => {} };
const worker = 'worker-of-the-benchmark';

const graphile = {
  version: () => `graphile-worker ${require('graphile-worker/package.json').version}`,
  async open(connections, install) {
    const pool = new Pool({ max: connections });
    ['error', 'connect'].forEach((event) => pool.on(event, () => {})); // or it complains
    const options = { pgPool: pool, logger: new Logger(() => () => {}) };
    if (install) {
      const utils = await makeWorkerUtils(options);
      await utils.migrate();
      await utils.release();
    }
    const [shared, release] = await getUtilsAndReleasersFromOptions(options);
    const { withPgClient, addJob, addJobs } = shared;
    return {
      reset: () => pool.query('TRUNCATE graphile_worker._private_jobs'),
      vacuum: () => pool.query('VACUUM ANALYZE graphile_worker._private_jobs'),
      left: async () => Number((await pool.query('SELECT count(*) FROM graphile_worker._private_jobs')).rows[0].count),
      put: (n) => (n === 1
        ? addJob(identifier, payload)
        : addJobs(Array.from({ length: n }, () => ({ identifier, payload })))),
      capture: (n) => batchGetJobs(shared, withPgClient, tasks, worker, null, n),
      finish: (jobs) => batchCompleteJobs(shared, withPgClient, worker, jobs),
      async close() {
        await release();
        await pool.end();
      }
    };
  }
};

const loop = {
  version: graphile.version,
  async open(connections, install) {
    const queue = await graphile.open(connections, install);
    return {
      ...queue,
      async loop(concurrency, n, done) {
        const pool = new Pool({ max: concurrency + 2 }); // one listens
        ['error', 'connect'].forEach((event) => pool.on(event, () => {}));
        const batch = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
        const runner = await run({
          pgPool: pool,
          logger: new Logger(() => () => {}),
          concurrency,
          noHandleSignals: true,
          taskList: { [identifier]: () => {} },
          preset: { worker: n > 1 ? batch : {} }
        });
        runner.events.on('job:complete', done);
        return async () => {
          await runner.stop();
          await pool.end();
        };
      }
    };
  }
};

module.exports = { graphile, loop };
