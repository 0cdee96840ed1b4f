'use strict';
// Leases a second that the tasks of one program take and release: the client of the benchmark's
// group "clients".
//
//   main.js version PEER             the version of its library
//   main.js rate PEER KEY=VALUE...   tasks=8 seconds=2 hot=0
//
// Each task takes the lease on a name of its own, or with hot=1 all on one name, for which they
// wait, and releases it at once, again and again.  Runs begin three seconds before they count, for code
// is compiled only after it has run for a while.  The connection is that of libpq's environment
// variables, and REDIS is the socket of a server.
// Peers:
//
//   session     the library of dlock
//   connection  dlock_acquire() and dlock_release_token(), with a connection for each task
//   redis       SET NX PX, and a script that deletes what is still its own; auto-pipelining
//   redlock     Redlock over one Redis, over a connection with auto-pipelining

const crypto = require('crypto');
const fs = require('fs');

const lead = 3000; // ms
const ttl = 60000;

const peers = {
  session() {
    const session = require('dlock').connect({});
    return { pair: (name, hot) => session.lease(name, hot ? { ttl, wait: Infinity } : { ttl }, () => {}), close: () => session.close() };
  },

  connection() {
    const { Client } = require('pg');
    const clients = new Map();
    return {
      async open(task) {
        const client = new Client();
        clients.set(task, client);
        await client.connect();
      },
      async pair(name, hot, task) {
        const client = clients.get(task);
        const acquire = { name: 'a', text: 'SELECT dlock_acquire($1, $2, $3::interval, $4::interval)', values: [name, `task ${task}`, '60 s', hot ? null : '0'] };
        const { rows: [{ dlock_acquire: token }] } = await client.query(acquire);
        await client.query({ name: 'r', text: 'SELECT dlock_release_token($1, $2)', values: [name, token] });
        if (token === null) {
          throw new Error(`${name} was refused`);
        }
      },
      close: () => Promise.all([...clients.values()].map((client) => client.end()))
    };
  },

  redis() {
    const Redis = require('ioredis');
    const redis = new Redis(process.env.REDIS, { enableAutoPipelining: true });
    redis.defineCommand('unlock', {
      numberOfKeys: 1,
      lua: 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end'
    });
    return {
      async pair(name) {
        const token = crypto.randomBytes(8).toString('hex');
        if (await redis.set(name, token, 'PX', ttl, 'NX') !== 'OK' || await redis.unlock(name, token) !== 1) {
          throw new Error(`${name} was refused`);
        }
      },
      close: () => redis.quit()
    };
  },

  redlock() {
    const Redis = require('ioredis');
    const { default: Redlock } = require('redlock'); // from version 5
    const redis = new Redis(process.env.REDIS, { enableAutoPipelining: true });
    const redlock = new Redlock([redis], { retryCount: -1, retryDelay: 5, retryJitter: 5 });
    redlock.on('error', () => {});
    return { pair: async (name) => (await redlock.acquire([name], ttl)).release(), close: () => redis.quit() };
  }
};

const library = { session: 'dlock', connection: 'pg', redis: 'ioredis', redlock: 'redlock' };

async function rate(name, { tasks = 8, seconds = 2, hot = 0 }) {
  const peer = peers[name]();
  const all = Array.from({ length: tasks }, (_, task) => task);
  if (peer.open) {
    await Promise.all(all.map((task) => peer.open(task)));
  }
  const from = performance.now() + lead;
  const until = from + seconds * 1000;
  const took = [];
  let cpu;
  setTimeout(() => { cpu = process.cpuUsage(); }, lead);
  await Promise.all(all.map(async (task) => {
    for (let begun = performance.now(); begun < until;) {
      await peer.pair(hot ? 'hot' : `own:${task}`, hot, task);
      const ended = performance.now();
      if (begun >= from && ended <= until) {
        took.push(ended - begun);
      }
      begun = ended;
    }
  }));
  const { user, system } = process.cpuUsage(cpu);
  await peer.close();
  took.sort((a, b) => a - b);
  console.log(`rate ${took.length / seconds}`);
  console.log(`p50_ms ${took[took.length >> 1]} p99_ms ${took[Math.floor(took.length * 0.99)]} cpu_us ${(user + system) / (took.length || 1)}`);
}

const [what, name, ...words] = process.argv.slice(2);
if (what === 'version') {
  require(library[name]);
  const file = module.paths.concat('/usr/share/nodejs').map((place) => `${place}/${library[name]}/package.json`).find(fs.existsSync);
  console.log(`${library[name]} ${JSON.parse(fs.readFileSync(file)).version}`);
} else {
  rate(name, Object.fromEntries(words.map((word) => word.split('=')).map(([key, value]) => [key, Number(value)]))).catch((error) => {
    console.error(error.message);
    process.exit(1);
  });
}
