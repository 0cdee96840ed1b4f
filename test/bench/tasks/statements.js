'use strict';
// Queues that are statements: dlock, a few functions, a table that is read with SKIP LOCKED, and none.

const fs = require('fs');
const { Pool } = require('pg');

const payload = JSON.stringify({ to: 'ann@example.com' });

// Prepared once in each connection.
async function makeRun(connections) {
  const pool = new Pool({ max: connections });
  const run = async (name, text, ...values) => (await pool.query({ name, text, values })).rows;
  return { pool, run };
}

// Keys that no other process or thread makes.
function makeKeys() {
  const prefix = `${process.hrtime.bigint()}-`;
  let count = 0;
  return () => prefix + count++;
}

const version = () => `pg ${require('pg/package.json').version}`;

// What the client and the server take for three statements that do nothing.
const none = {
  version,
  async open(connections) {
    const { pool, run } = await makeRun(connections);
    return {
      reset: async () => {},
      vacuum: async () => {},
      left: async () => 0,
      put: (n) => run('put', 'SELECT $1::int, $2::text', n, payload),
      capture: async (n) => (await run('capture', 'SELECT $1::int AS n', n)) && new Array(n).fill(0),
      finish: (tasks) => run('finish', 'SELECT $1::int', tasks.length),
      close: () => pool.end()
    };
  }
};

const table = {
  version,
  async open(connections, install) {
    const { pool, run } = await makeRun(connections);
    if (install) {
      await pool.query(`
        CREATE TABLE job (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            priority integer NOT NULL DEFAULT 0,
            state text NOT NULL DEFAULT 'ready',
            attempts integer NOT NULL DEFAULT 0,
            captured_at timestamptz,
            payload jsonb);
        CREATE INDEX ON job (priority, id) WHERE state = 'ready'`);
    }
    return {
      reset: () => pool.query('TRUNCATE job'),
      vacuum: () => pool.query('VACUUM ANALYZE job'),
      left: async () => Number((await run('left', 'SELECT count(*) FROM job'))[0].count),
      put: (n) => (n === 1
        ? run('put', 'INSERT INTO job (payload) VALUES ($1)', payload)
        : run('puts', 'INSERT INTO job (payload) SELECT $1 FROM generate_series(1, $2::int)', payload, n)),
      capture: (n) => run('capture', `
        UPDATE job SET state = 'working', attempts = attempts + 1, captured_at = clock_timestamp()
         WHERE id = ANY (ARRAY(SELECT id FROM job WHERE state = 'ready'
                                ORDER BY priority, id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED))
        RETURNING id, payload`, n),
      finish: (tasks) => (tasks.length === 1
        ? run('finish', 'DELETE FROM job WHERE id = $1', tasks[0].id)
        : run('finishes', 'DELETE FROM job WHERE id = ANY ($1::bigint[])', tasks.map((task) => task.id))),
      close: () => pool.end()
    };
  }
};

// Calls of functions with these names, for a queue.
function calls(pool, run, prefix) {
  const key = makeKeys();
  return {
    put: (n) => (n === 1
      ? run('put', `SELECT ${prefix}put('job', $1, $2)`, key(), payload)
      : run('puts', `SELECT count(${prefix}put('job', k, $2)) FROM unnest($1::text[]) k`,
        Array.from({ length: n }, key), payload)),
    capture: (n) => run('capture',
      `SELECT key AS id, token, payload FROM ${prefix}capture('job', $1, ttl => '10 min')`, n),
    finish: (tasks) => (tasks.length === 1
      ? run('finish', `SELECT ${prefix}finish('job', $1, $2)`, tasks[0].id, tasks[0].token)
      : run('finishes', `SELECT count(${prefix}finish('job', k, t)) FROM unnest($1::text[], $2::bigint[]) AS u (k, t)`,
        tasks.map((task) => task.id), tasks.map((task) => task.token))),
    close: () => pool.end()
  };
}

// What a program would write for itself: prototype.sql.
const prototype = {
  version,
  async open(connections, install) {
    const { pool, run } = await makeRun(connections);
    if (install) {
      await pool.query(fs.readFileSync(`${__dirname}/prototype.sql`, 'utf8'));
    }
    return {
      reset: () => pool.query('TRUNCATE prototype.task'),
      vacuum: () => pool.query('VACUUM ANALYZE prototype.task'),
      left: async () => Number((await run('left', 'SELECT count(*) FROM prototype.task WHERE finished_at IS NULL'))[0].count),
      ...calls(pool, run, 'prototype.')
    };
  }
};

const dlock = {
  version,
  async open(connections) {
    const { pool, run } = await makeRun(connections);
    return {
      async reset() {
        if ((await pool.query("SELECT FROM dlock_task_state WHERE queue = 'job'")).rowCount > 0) {
          await pool.query("SELECT dlock_queue_drop('job')");
        }
        await pool.query("SELECT dlock_queue_create('job')");
      },
      vacuum: () => pool.query('VACUUM ANALYZE _dlock.task'),
      left: async () => Number((await run('left',
        "SELECT sum(ready + delayed + captured + parked) AS count FROM dlock_task_state WHERE queue = 'job'"))[0].count ?? -1),
      ...calls(pool, run, 'dlock_task_')
    };
  }
};

module.exports = { none, table, prototype, dlock };
