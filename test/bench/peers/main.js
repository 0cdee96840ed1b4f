'use strict';
// dlock and other systems that one takes for locks, through their libraries for Node: the client
// of the benchmark's groups "peers" and "peer_handoff".
//
//   main.js version PEER                      the version of its library
//   main.js ports                             two free ports of 127.0.0.1
//   main.js check PEER ADDRESS                does it grant, refuse, and hand over, as it should?
//   main.js rate PEER ADDRESS KEY=VALUE...    clients=1 seconds=1 names=100000
//   main.js handoff PEER ADDRESS KEY=VALUE... seconds=1; a line "handoff MICROSECONDS" for each
//
// ADDRESS is a port of 127.0.0.1, or the path of a Unix socket; for Redlock five of these, with
// commas between.  For PostgreSQL it is that of libpq's environment variables.
//
// A peer is open(address, number) -> { acquire(name), release(name), held(), close }, on a connection
// of its own; acquire and release tell whether they did it, held how many locks there are.
// One that can wait has wait(name), which tells when it has the lock, and free(name).  One that
// is not done with each answer has settle().

const assert = require('assert');
const fs = require('fs');
const net = require('net');
const { setTimeout: sleep } = require('timers/promises');

const lead = 500; // ms
const ttl = 600; // s: no lease expires meanwhile
const libraries = {
  dlock: 'pg', table: 'pg', advisory: 'pg', redis: 'ioredis', redlock: 'redlock', etcd: 'etcd3', zookeeper: 'node-zookeeper-client'
};

async function postgres(number, { acquire, release, wait, held }) {
  const { Client } = require('pg');
  const client = new Client();
  await client.connect();
  // Without a column, rows tell.
  const run = async (text, values) => {
    const { rows, rowCount } = await client.query({ name: text.slice(0, 60), text, values, rowMode: 'array' });
    return rows.length > 0 ? rows[0][0] : rowCount > 0;
  };
  const about = (text) => (name) => run(text, text.includes('$2') ? [name, `${number}`] : [name]);
  return {
    acquire: async (name) => !!await about(acquire)(name),
    release: about(release),
    wait: wait && about(wait),
    free: about(release),
    held: async () => Number(await run(held)),
    close: () => client.end()
  };
}

const unlock = `if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
  if ARGV[2] then redis.call('rpush', KEYS[2], '') end
  return redis.call('del', KEYS[1])`;

function openRedis(path) {
  const Redis = require('ioredis');
  const redis = new Redis({ path, lazyConnect: true, retryStrategy: null });
  redis.defineCommand('unlock', { numberOfKeys: 2, lua: unlock });
  redis.on('error', () => {});
  return redis;
}

const peers = {
  dlock: (address, number) => postgres(number, {
    acquire: `SELECT dlock_acquire($1, $2, '${ttl} s')`,
    release: 'SELECT dlock_release($1, $2)',
    wait: `SELECT dlock_acquire($1, $2, '${ttl} s', wait => NULL)`,
    held: 'SELECT count(*) FROM dlock_leases'
  }),

  table: (address, number) => postgres(number, {
    acquire: `INSERT INTO lease_delete AS l (name, owner, token, expires_at)
      VALUES ($1, $2, nextval('lease_delete_token'), clock_timestamp() + interval '${ttl} s')
      ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at
      WHERE l.expires_at < clock_timestamp() RETURNING token`,
    release: 'DELETE FROM lease_delete WHERE name = $1 AND owner = $2',
    held: 'SELECT count(*) FROM lease_delete'
  }),

  advisory: (address, number) => postgres(number, {
    acquire: 'SELECT pg_try_advisory_lock($1::bigint)',
    release: 'SELECT pg_advisory_unlock($1::bigint)',
    wait: 'SELECT pg_advisory_lock($1::bigint) IS NOT NULL',
    held: "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
  }),

  // To wait: what releases adds an element to a list, for which the next one blocks.
  async redis(address, number) {
    const redis = openRedis(address);
    await redis.connect();
    const acquire = async (name) => await redis.set(name, number, 'EX', ttl, 'NX') === 'OK';
    return {
      acquire,
      release: async (name) => await redis.unlock(name, `${name}:free`, number) === 1,
      async wait(name) {
        while (!await acquire(name)) {
          await redis.blpop(`${name}:free`, 0);
        }
      },
      free: async (name) => assert(await redis.unlock(name, `${name}:free`, number, 'tell') === 1),
      held: async () => (await redis.keys('*')).filter((key) => !key.endsWith(':free')).length,
      close: () => redis.disconnect()
    };
  },

  async redlock(address) {
    const { default: Redlock, ExecutionError } = require('redlock');
    const servers = address.split(',').map(openRedis);
    await Promise.all(servers.map((redis) => redis.connect()));
    const redlock = new Redlock(servers, { retryCount: 0 });
    redlock.on('error', () => {});
    const locks = new Map();
    const doing = async (what) => {
      try {
        return await what() || true;
      } catch (error) {
        assert(error instanceof ExecutionError, error.message);
        return false;
      }
    };
    return {
      async acquire(name) {
        const lock = await doing(() => redlock.acquire([name], ttl * 1000));
        return lock && !!locks.set(name, lock);
      },
      release: (name) => locks.has(name) && doing(() => locks.get(name).release()),
      // A release is answered by the majority; the others are told, too.
      settle: () => Promise.all(servers.map((redis) => redis.ping())),
      held: async () => Math.max(...await Promise.all(servers.map((redis) => redis.dbsize()))),
      close: () => servers.forEach((redis) => redis.disconnect())
    };
  },

  // As its own client does, a connection has one lease.
  async etcd(address, number) {
    const { Etcd3 } = require('etcd3');
    const etcd = new Etcd3({ hosts: `127.0.0.1:${address}` });
    const lease = etcd.lease(ttl);
    const id = await lease.grant();
    const campaigns = new Map();
    const put = (name) => etcd.if(name, 'Version', '==', 0).then(etcd.put(name).value(number).lease(id));
    const del = (name) => etcd.if(name, 'Value', '==', `${number}`).then(etcd.delete().key(name));
    return {
      acquire: async (name) => (await put(name).commit()).succeeded,
      release: async (name) => (await del(name).commit()).succeeded,
      wait(name) {
        const campaign = etcd.election(name, ttl).campaign(`${number}`);
        campaigns.set(name, campaign);
        return campaign.wait();
      },
      free: (name) => campaigns.get(name).resign(),
      // A watch that begins in the past is looked at every 100 ms.
      asleep: 110,
      held: () => etcd.getAll().count(),
      close: () => lease.revoke().then(() => etcd.close())
    };
  },

  async zookeeper(address, number) {
    const { createClient, CreateMode, Exception } = require('node-zookeeper-client');
    const client = createClient(`127.0.0.1:${address}`, { retries: 0 });
    const call = (method, ...values) => new Promise((resolve, reject) => {
      client[method](...values, (error, value) => (error ? reject(error) : resolve(value)));
    });
    const unless = (code) => (error) => {
      assert(error.getCode && error.getCode() === Exception[code], error.message);
      return null;
    };
    const places = new Map();
    await new Promise((resolve) => {
      client.once('connected', resolve);
      client.connect();
    });
    return {
      acquire: async (name) => await call('create', `/${name}`, Buffer.from(`${number}`), CreateMode.EPHEMERAL).catch(unless('NODE_EXISTS')) !== null,
      release: async (name) => await call('remove', `/${name}`, -1).catch(unless('NO_NODE')) !== null,
      // The recipe: a node for each, and a look at the one before until that is gone.
      async wait(name) {
        await call('create', `/${name}`).catch(unless('NODE_EXISTS'));
        const mine = await call('create', `/${name}/n`, null, CreateMode.EPHEMERAL_SEQUENTIAL);
        places.set(name, mine);
        for (;;) {
          const all = (await call('getChildren', `/${name}`)).sort();
          const before = all[all.indexOf(mine.split('/').pop()) - 1];
          if (before === undefined) {
            return;
          }
          await new Promise((resolve, reject) => {
            client.exists(`/${name}/${before}`, resolve, (error, stat) => (error ? reject(error) : stat || resolve()));
          });
        }
      },
      free: (name) => call('remove', places.get(name), -1),
      held: async () => (await Promise.all((await call('getChildren', '/')).filter((name) => name !== 'zookeeper')
        .map(async (name) => (await call('exists', `/${name}`)).ephemeralOwner.some((byte) => byte)))).filter(Boolean).length,
      close: () => client.close()
    };
  }
};

// Whoever is refused tries another name.
async function rate(open, { clients, seconds, names }) {
  const all = await Promise.all(Array.from({ length: clients }, (_, number) => open(number)));
  const from = performance.now() + lead;
  const until = from + seconds * 1000;
  let pairs = 0;
  let refused = 0;
  await Promise.all(all.map(async (client) => {
    for (let now = 0; now < until;) {
      const name = `${1000000000000 + Math.floor(Math.random() * names)}`;
      const granted = await client.acquire(name);
      assert(!granted || await client.release(name), 'a lock was not held when it was released');
      now = performance.now();
      if (now >= from && now < until) {
        pairs += granted;
        refused += !granted;
      }
    }
  }));
  await Promise.all(all.map((client) => client.settle && client.settle()));
  const left = await all[0].held();
  await Promise.all(all.map((client) => client.close()));
  console.log(`rate ${(pairs / seconds).toFixed(1)}\npairs ${pairs}\nrefused ${refused}\nleft ${left}`);
  assert.strictEqual(left, 0, 'locks are left');
}

// Of two clients one holds the lock and the other one waits for it, asleep; then they change places.
async function handOver(holder, next, name) {
  const got = next.wait(name);
  await sleep((holder.asleep || 0) + 2 + 2 * Math.random());
  const sent = performance.now();
  const freed = holder.free(name);
  await got;
  const took = performance.now() - sent;
  await freed;
  return took;
}

async function handoff(open, { seconds }) {
  const both = await Promise.all([open(0), open(1)]);
  const name = `${2000000000000 + process.pid}`;
  await both[0].wait(name);
  const until = performance.now() + seconds * 1000;
  let i = 0;
  for (; performance.now() < until; i++) {
    const took = await handOver(both[i % 2], both[1 - i % 2], name);
    if (i >= 5) { // the first ones are slower
      console.log(`handoff ${Math.round(took * 1000)}`);
    }
  }
  await both[i % 2].free(name);
  await Promise.all(both.map((client) => client.close()));
}

async function check(open) {
  const [one, two] = await Promise.all([open(0), open(1)]);
  const name = `${2000000000000 + process.pid}`;
  assert(await one.acquire(name), 'a free lock is not granted');
  assert(!await two.acquire(name), 'a lock that is held is granted');
  await (two.settle && two.settle());
  assert.strictEqual(await one.held(), 1, 'locks that are held');
  assert(await one.release(name), 'a lock is not released');
  assert.strictEqual(await one.held(), 0, 'locks that are released');
  assert(await two.acquire(name) && await two.release(name), 'a lock is not granted again');
  if (one.wait) {
    await one.wait(name);
    await handOver(one, two, name);
    await handOver(two, one, name);
    await one.free(name);
  }
  await Promise.all([one.close(), two.close()]);
  console.log('ok');
}

async function ports() {
  const servers = await Promise.all([0, 1].map(() => new Promise((resolve) => {
    const server = net.createServer().listen(0, '127.0.0.1', () => resolve(server));
  })));
  console.log(servers.map((server) => server.address().port).join(' '));
  servers.forEach((server) => server.close());
}

const [what, peer, address, ...words] = process.argv.slice(2);
if (what === 'ports') {
  ports();
} else if (what === 'version') {
  const library = libraries[peer];
  require(library);
  const file = module.paths.concat('/usr/share/nodejs').map((place) => `${place}/${library}/package.json`).find(fs.existsSync);
  console.log(`${library} ${JSON.parse(fs.readFileSync(file)).version.replace(/^v/, '')}`);
} else {
  const options = { clients: 1, seconds: 1, names: 100000 };
  for (const [key, value] of words.map((word) => word.split('='))) {
    assert(key in options && Number(value) > 0, `unknown option "${key}"`);
    options[key] = Number(value);
  }
  ({ check, rate, handoff })[what]((number) => peers[peer](address, number), options).then(() => process.exit(0), (error) => {
    console.error(`error: ${error.message.split('\n')[0]}`);
    process.exit(1);
  });
}
