'use strict';
// What the library for Node does whatever the server says, with a driver that is not one: each
// statement is answered when the test says so.

const assert = require('assert');
const { Session } = require('dlock');

const asked = []; // statements that are not answered
const turn = () => new Promise(setImmediate);
const failure = (code) => Object.assign(new Error(code), { severity: 'ERROR', code });
let clients = 0;
let last; // the settings of the last client
let current; // the test that runs
let told; // the process that connections are told, and the one that answers
let answers;

class Client {
  constructor(settings) {
    last = settings;
    this.test = current;
    this.database = 'db';
    this.processID = told;
    clients++;
  }

  on() {}

  removeListener() {}

  async connect() {}

  async end() {}

  query({ name, text, values }) {
    if (text.includes('pg_proc')) {
      const names = ['acquire_each', 'renew_each', 'release_each', 'take'];
      return Promise.resolve({ rows: [['', names.map((name) => `dlock_${name}`).join(' '), '1.0', answers]] });
    }
    if (text.includes('SELECT owner FROM dlock_lease(')) {
      return Promise.resolve({ rows: [['{}', null]] }); // the holder has gone
    }
    if (this.test !== current) {
      return Promise.resolve({ rows: [[`{${values[0].map(() => 't')}}`, null]] }); // a lease of an earlier test is renewed
    }
    const statement = { what: /dlock_([a-z_]+)/.exec(text)[1], name, values };
    return new Promise((resolve, reject) => {
      statement.answer = (...answers) => resolve({ rows: [[`{${answers}}`, null]] });
      statement.rows = (...rows) => resolve({ rows });
      statement.fail = (code) => reject(failure(code));
      asked.push(statement);
    });
  }
}

const where = { Client, options: {} };

// The time that the library sees passes while a test waits for a statement, and when it says so: so
// many milliseconds, in which the process does not get to run.  A stall of the machine is none of it.
const clock = performance.now.bind(performance);
let time = clock();
performance.now = () => time;
Date.now = () => time;

function advance(ms) {
  time += ms;
}

// The next statement, which has to be this one.
async function next(what, names) {
  for (let at = clock(), until = at + 60000, last; asked.length === 0;) {
    [last, at] = [at, clock()];
    assert.ok(at < until, 'nothing is asked for');
    advance(Math.min(at - last, 5));
    await turn();
  }
  const statement = asked.shift();
  assert.strictEqual(statement.what, what);
  assert.deepStrictEqual(statement.values[0], names);
  return statement;
}

async function none() {
  for (let i = 0; i < 10; i++) {
    await turn();
  }
  assert.deepStrictEqual(asked, []);
}

const tests = {
  async 'spans'() {
    const session = new Session(where);
    for (const ttl of [Infinity, NaN, -1, 0, '60000', '1 fortnight', null]) {
      await assert.rejects(session.lease('job', { ttl }, () => {}), TypeError, `a ttl of ${ttl}`);
    }
    await assert.rejects(session.acquire('job', { lockDelay: Infinity }), TypeError);
    await assert.rejects(session.acquire('job', { wait: '-1 s' }), TypeError);
    assert.throws(() => new Session(where, { client: 'a#b' }), TypeError);
    await assert.rejects(session.acquire('job', { payload: 1n, wait: '1 s' }), TypeError);
    await assert.rejects(session.acquireAll(), TypeError);
    assert.strictEqual(session._wants.size + session._claims.size + session.waits.places.size, 0);
    await none();
  },

  async 'several locks, and a text that is one'() {
    const session = new Session(where);
    for (const names of [['a', 'b'], 'job']) {
      const acquired = session.acquireAll(names);
      const [first, ...more] = [names].flat();
      (await next('acquire_all', [names].flat())).answer(7, 8);
      const released = (await acquired).release();
      (await next('release_each', [first])).answer('t');
      if (more.length > 0) {
        (await next('release_each', more)).answer('t');
      }
      await released;
    }
  },

  async 'a call alone goes at once, and what comes up meanwhile together in the next statement'() {
    const session = new Session(where);
    const leases = ['a', 'b', 'c'].map((name) => session.acquire(name));
    const other = session.acquire('d', { ttl: '2 min' });
    const first = await next('acquire_each', ['a']);
    await none();
    first.answer(1);
    (await next('acquire_each', ['b', 'c'])).answer(2, 3);
    (await next('acquire_each', ['d'])).answer(4);
    leases.push(other);
    assert.deepStrictEqual(await Promise.all(leases.map(async (lease) => (await lease).token)), [1, 2, 3, 4]);
    const released = Promise.all(leases.map(async (lease) => (await lease).release()));
    (await next('release_each', ['a'])).answer('t'); // on the first line, as it is free
    (await next('release_each', ['b', 'c', 'd'])).answer('t', 't', 't');
    await released;
  },

  async 'at most 1000 in a statement'() {
    const session = new Session(where);
    const names = Array.from({ length: 2500 }, (_, i) => `n${i}`);
    const all = Promise.allSettled(names.map((name) => session.acquire(name)));
    for (const [from, to] of [[0, 1], [1, 1001], [1001, 2001], [2001, 2500]]) {
      (await next('acquire_each', names.slice(from, to))).answer(...names.slice(from, to).map(() => 'NULL'));
    }
    assert.ok((await all).every(({ reason }) => reason.name === 'LeaseRefused'));
  },

  async 'what is queued for too long is told so, while time goes on'() {
    const session = new Session(where);
    const first = session.acquire('a');
    const asking = await next('acquire_each', ['a']);
    const { now } = performance;
    let at = now();
    performance.now = () => { at += 0.5; return at; };
    const kind = { key: 'late', rank: 1, text: () => '' };
    const results = await Promise.allSettled(Array.from({ length: 20 }, (_, i) => session.lines.ask(kind, ['x'], at + i)));
    performance.now = now;
    assert.ok(results.every(({ reason }) => reason.name === 'ServerUnreachable'));
    asking.answer(1);
    const released = (await first).release();
    (await next('release_each', ['a'])).answer('t');
    await released;
  },

  async 'a turn that comes while the last try is under way is taken'() {
    const session = new Session(where);
    const lease = session.acquire('x', { wait: 50 });
    (await next('acquire_each', ['x'])).answer('NULL');
    const taking = await next('take', session.client);
    const last = await next('acquire_each', ['x']);
    taking.rows(['x', last.values[1][0], 7]);
    await turn();
    last.answer('NULL');
    assert.strictEqual((await lease).token, 7);
    (await next('take', session.client)).rows();
    const released = (await lease).release();
    (await next('release_each', ['x'])).answer('t');
    await released;
  },

  async 'a slow grant holds up neither releases nor renewals'() {
    const session = new Session(where);
    const before = clients;
    const job = session.acquire('job', { ttl: 600 });
    (await next('acquire_each', ['job'])).answer(7);
    const lease = await job;
    assert.strictEqual(clients, before + 1);
    const slow = session.acquire('slow');
    const granting = await next('acquire_each', ['slow']);
    (await next('renew_each', ['job'])).answer('t');
    assert.strictEqual(clients, before + 2);
    const released = lease.release();
    (await next('release_each', ['job'])).answer('t');
    await released;
    granting.answer('NULL');
    await assert.rejects(slow, { name: 'LeaseRefused' });
  },

  async 'a renewal has as long as the margin, and a second at least'() {
    const session = new Session(where);
    for (const [ttl, within] of [[9600, 1600], [600, 1000]]) {
      const acquired = session.acquire('job', { ttl });
      (await next('acquire_each', ['job'])).answer(7);
      const lease = await acquired;
      const before = performance.now();
      advance(ttl / 6);
      session._tick();
      const renewal = await next('renew_each', ['job']);
      const { until } = session.lines.lines[0];
      assert.ok(until >= before + within && until <= performance.now() + within, `${until - performance.now()} left of ${within}`);
      renewal.answer('t');
      const released = lease.release();
      (await next('release_each', ['job'])).answer('t');
      await released;
    }
  },

  async 'an error is traced to the request whose it is'() {
    const session = new Session(where);
    const first = session.acquire('x');
    const others = Promise.allSettled(['a', 'b', '', 'c', 'd'].map((name) => session.acquire(name)));
    (await next('acquire_each', ['x'])).answer(1);
    await first;
    (await next('acquire_each', ['a', 'b', '', 'c', 'd'])).fail('22023');
    (await next('acquire_each', ['a', 'b'])).answer(2, 3);
    (await next('acquire_each', ['', 'c', 'd'])).fail('22023');
    (await next('acquire_each', [''])).fail('22023');
    (await next('acquire_each', ['c', 'd'])).answer(4, 5);
    const results = await others;
    assert.deepStrictEqual(results.map(({ value, reason }) => (value ? value.token : reason.code)), [2, 3, '22023', 4, 5]);
    // What is everybody's is told to everybody.
    const all = ['e', 'f'].map((name) => session.acquire(name).catch((error) => error.code));
    (await next('acquire_each', ['e', 'f'])).fail('42501'); // asked for in the turn of an answer
    assert.deepStrictEqual(await Promise.all(all), ['42501', '42501']);
  },

  // A pooler tells so that a server process has gone, whose statement may have succeeded.
  async 'an error of the connection is not of one among many'() {
    const session = new Session(where);
    const acquired = ['x', 'a', 'b'].map((name) => session.acquire(name));
    (await next('acquire_each', ['x'])).answer(1);
    (await next('acquire_each', ['a', 'b'])).fail('08P01');
    for (const [i, name] of ['a', 'b'].entries()) {
      const again = await next('acquire_each', [name]);
      assert.strictEqual(again.values[5], 'return');
      again.answer(2 + i);
    }
    const released = (await Promise.all(acquired)).map((lease) => lease.release());
    (await next('release_each', ['x'])).answer('t');
    (await next('release_each', ['a', 'b'])).fail('08P01');
    (await next('release_each', ['a'])).answer('f');
    (await next('release_each', ['b'])).answer('f');
    await Promise.all(released);
  },

  async 'what is cancelled is taken out, or released once it is granted'() {
    const session = new Session(where);
    const [one, two] = [new AbortController(), new AbortController()];
    const first = session.acquire('a', { signal: one.signal });
    const second = session.acquire('b', { signal: two.signal });
    [first, second].forEach((promise) => promise.catch(() => {}));
    const third = session.acquire('c');
    const statement = await next('acquire_each', ['a']);
    one.abort();
    two.abort();
    await assert.rejects(first, { name: 'AbortError' });
    await assert.rejects(second, { name: 'AbortError' });
    statement.answer(5);
    const released = await next('release_each', ['a']); // first
    assert.deepStrictEqual(released.values[1], [5]);
    released.answer('t');
    (await next('acquire_each', ['c'])).answer(6);
    await third;
    await none();
  },

  async 'an answer that is lost: what was granted is asked for, or ended if nobody wants it any more'() {
    const session = new Session(where);
    const giver = new AbortController();
    const lease = session.acquire('a', { signal: giver.signal });
    const reentry = async (code) => {
      const statement = await next('acquire_each', ['a']);
      statement.fail(code);
      return statement.values[5];
    };
    assert.strictEqual(await reentry('57P01'), 'deny');
    assert.strictEqual(await reentry('57P01'), 'return');
    const granting = await next('acquire_each', ['a']);
    assert.strictEqual(granting.values[5], 'return');
    giver.abort();
    await assert.rejects(lease, { name: 'AbortError' });
    granting.fail('57P01');
    (await next('lease', ['a'])).answer(7);
    (await next('release_each', ['a'])).answer('t');

    // Two requests of a task: what one was granted is not for the other.
    await turn();
    const both = session.task(() => [1, 2].map(() => session.acquire('a').catch((error) => error.code)));
    (await next('acquire_each', ['a'])).fail('57P01');
    assert.strictEqual(await reentry('57P01'), 'deny');
    assert.strictEqual(await reentry('XX000'), 'deny');
    await reentry('XX000'); // the other one has ended, perhaps before
    (await next('lease', ['a'])).answer('NULL');
    assert.deepStrictEqual(await Promise.all(both), ['XX000', 'XX000']);
  },

  async 'a turn that is told twice is not given back'() {
    const session = new Session(where);
    const lease = session.acquire('x', { wait: Infinity });
    (await next('acquire_each', ['x'])).answer('NULL');
    (await next('take', session.client)).fail('57P01');
    const again = await next('acquire_each', ['x']);
    assert.strictEqual(again.values[5], 'return');
    const taking = await next('take', session.client);
    again.answer(7);
    await lease;
    taking.rows(['x', again.values[1][0], 7]);
    await none();
    const released = (await lease).release();
    (await next('release_each', ['x'])).answer('t');
    await released;
  },

  async 'a turn that comes for a request after the last one had been given up'() {
    const session = new Session(where);
    const giver = new AbortController();
    const first = session.acquire('x', { wait: Infinity, signal: giver.signal });
    (await next('acquire_each', ['x'])).answer('NULL');
    const taking = await next('take', session.client);
    giver.abort();
    await assert.rejects(first, { name: 'AbortError' });
    (await next('acquire_each', ['x'])).answer('NULL');
    advance(1500);
    const second = session.acquire('y', { wait: Infinity });
    const placing = await next('acquire_each', ['y']);
    placing.answer('NULL');
    await turn();
    taking.rows(['y', placing.values[1][0], 7]);
    await next('take', session.client);
    (await next('renew_each', ['y'])).answer('t'); // when it came is not known
    assert.strictEqual((await second).token, 7);
  },

  async 'places that may have run out, as the process did not get to run, are asked for again'() {
    const session = new Session(where);
    const lease = session.acquire('x', { wait: Infinity });
    const placing = await next('acquire_each', ['x']);
    advance(9000);
    placing.answer('NULL');
    (await next('acquire_each', ['x'])).answer('NULL');
    const taking = await next('take', session.client);
    advance(14000);
    taking.rows();
    const suspended = await next('take', session.client);
    (await next('acquire_each', ['x'])).answer('NULL');
    const { now } = Date;
    Date.now = () => now() + 3600000;
    suspended.rows();
    const last = await next('take', session.client);
    Date.now = now;
    (await next('acquire_each', ['x'])).answer(7);
    assert.strictEqual((await lease).token, 7);
    last.rows();
    const released = (await lease).release();
    (await next('release_each', ['x'])).answer('t');
    await released;
  },

  async 'what ends the place of a task has its other requests ask for one'() {
    const session = new Session(where);
    const giver = new AbortController();
    const lease = session.acquire('x', { task: 't', wait: Infinity });
    (await next('acquire_each', ['x'])).answer('NULL');
    const taking = await next('take', session.client);
    for (const options of [{}, { wait: 10 }, { wait: Infinity, signal: giver.signal }]) {
      const other = session.acquire('x', { task: 't', ...options }).catch((error) => error.name);
      (await next('acquire_each', ['x'])).answer('NULL');
      await turn();
      advance(10); // timers may come early
      if (options.signal) {
        giver.abort();
      }
      if (options.wait) {
        const last = await next('acquire_each', ['x']);
        assert.strictEqual(last.values[8], '0');
        last.answer('NULL');
      }
      await other;
      const again = await next('acquire_each', ['x']);
      assert.strictEqual(again.values[8], '10000000 microseconds');
      again.answer('NULL');
    }
    taking.rows(['x', `${session.client}#t`, 7]);
    const more = await next('take', session.client);
    (await next('renew_each', ['x'])).answer('t'); // it might have been the turn of one that has ended
    assert.strictEqual((await lease).token, 7);
    more.rows();
    await none();
    const released = (await lease).release();
    (await next('release_each', ['x'])).answer('t');
    (await next('release_each', ['x'])).answer('f'); // a turn of the others might have been on its way
    await released;
  },

  async 'a session that is closed: waits end at once, what is granted late is released'() {
    const session = new Session(where);
    const lease = session.acquire('held');
    (await next('acquire_each', ['held'])).answer(1);
    await lease;
    const waits = [session.acquire('a', { wait: Infinity }), session.acquire('b'), session.acquireAll(['c', 'd'], { wait: Infinity })];
    waits.forEach((wait) => wait.catch(() => {}));
    const granting = await next('acquire_each', ['a']);
    const watch = session.watch('e', { every: '1 h' }).next();
    const closed = session.close();
    for (const wait of waits) {
      await assert.rejects(wait, { name: 'SessionClosed' });
    }
    granting.answer(2);
    (await next('release_each', ['a'])).answer('t');
    (await next('release_each', ['held'])).answer('t');
    (await next('watch', ['e'])).answer('NULL');
    assert.strictEqual((await watch).done, true);
    await closed;
    await none();
    await assert.rejects(session.acquire('f'), { name: 'SessionClosed' });
    await assert.rejects(session.once('f', '1 s'), { name: 'SessionClosed' });
    for (const call of ['elect', 'watch', 'worker']) {
      assert.throws(() => session[call]('f', () => {}), { name: 'SessionClosed' });
    }
  },

  // Node says nothing more than that if a host has several addresses.
  async 'why a server is unreachable'() {
    class Refused extends Client {
      async connect() {
        throw Object.assign(new AggregateError([]), { code: 'ECONNREFUSED' });
      }
    }
    await assert.rejects(new Session({ Client: Refused, options: {} }).acquire('job'), { name: 'ServerUnreachable', message: 'ECONNREFUSED' });
  },

  async 'a server that is silent does not hold up close()'() {
    class Silent extends Client {
      end() {
        return new Promise((resolve) => { this.connection = { stream: { destroy: resolve } }; });
      }
    }
    const session = new Session({ Client: Silent, options: {} });
    const acquired = session.acquire('job');
    (await next('acquire_each', ['job'])).answer(7);
    const released = (await acquired).release();
    (await next('release_each', ['job'])).answer('t');
    await released;
    await session.close();
  },

  // A line that does nothing does not keep the process from ending because another one does something.
  async 'what keeps the process from ending'() {
    const busy = new Set();
    class Referenced extends Client {
      constructor(settings) {
        super(settings);
        this.ref();
      }

      ref() {
        busy.add(this);
      }

      unref() {
        busy.delete(this);
      }
    }
    const session = new Session({ Client: Referenced, options: {} });
    const [first, second] = [session.acquire('a'), session.acquire('b')];
    (await next('acquire_each', ['a'])).answer(1);
    const granting = await next('acquire_each', ['b']);
    const released = (await first).release();
    (await next('release_each', ['a'])).answer('t'); // on the second line
    await released;
    granting.answer(2);
    const last = (await second).release();
    assert.strictEqual(busy.size, 1);
    (await next('release_each', ['b'])).answer('t');
    await last;
    await turn();
    assert.strictEqual(busy.size, 0);
  },

  async 'a lease that is lost, and an onLost that throws'() {
    const session = new Session(where);
    const thrown = new Promise((resolve) => { process.once('uncaughtException', resolve); });
    let told = false;
    const run = session.lease('job', { ttl: 600, onLost() { throw new Error('by onLost'); } }, (lease) => new Promise((resolve) => {
      lease.signal.addEventListener('abort', () => {
        told = true;
        resolve();
      });
    }));
    (await next('acquire_each', ['job'])).answer(7);
    (await next('renew_each', ['job'])).answer('f');
    (await next('release_each', ['job'])).answer('f');
    await assert.rejects(run, { name: 'LeaseLost' });
    assert.ok(told);
    assert.strictEqual((await thrown).message, 'by onLost');
  },

  async 'tasks are told apart, whatever a program calls its own'() {
    const session = new Session(where);
    const own = session.acquire('a');
    (await next('acquire_each', ['a'])).answer(1);
    const number = Number(/\d+$/.exec((await own).owner)[0]);
    const inner = session.lease('b', { task: number }, () => session.lease('c', { task: 0 }, () => session.lease('d', () => {})));
    const owners = [(await own).owner];
    for (const name of ['b', 'c', 'd']) {
      const statement = await next('acquire_each', [name]);
      owners.push(...statement.values[1]);
      statement.answer(2);
    }
    assert.ok(!owners[0].endsWith(`#${number}`));
    assert.deepStrictEqual(owners.slice(1), [number, 0, 0].map((task) => `${session.client}#${task}`));
    const released = inner.then(async () => (await own).release());
    for (const name of ['d', 'c', 'b', 'a']) {
      (await next('release_each', [name])).answer('t');
    }
    await released;
  },

  async 'what is told of a loss is told as the task of the lease'() {
    const session = new Session(where);
    const other = session.task(() => session.acquire('a'));
    (await next('acquire_each', ['a'])).answer(1);
    await other;
    const asks = [];
    const ask = (name) => asks.push(session.acquire(name).catch((error) => error.name));
    const acquired = session.task(() => session.acquire('b', { onLost: () => ask('c') }));
    (await next('acquire_each', ['b'])).answer(2);
    const lease = await acquired;
    lease.signal.addEventListener('abort', () => ask('d'));
    advance(2000);
    session.task(() => session._tick());
    (await next('renew_each', ['a'])).answer('t');
    (await next('renew_each', ['b'])).answer('f');
    for (const name of ['d', 'c']) {
      const statement = await next('acquire_each', [name]);
      assert.deepStrictEqual(statement.values[1], [lease.owner]);
      statement.answer('NULL');
    }
    assert.deepStrictEqual(await Promise.all(asks), ['LeaseRefused', 'LeaseRefused']);
    const lost = assert.rejects(lease.release(), { name: 'LeaseLost' });
    (await next('release_each', ['b'])).answer('f');
    await lost;
    const released = (await other).release();
    (await next('release_each', ['a'])).answer('t');
    await released;
  },

  async 'renewals that fail are told once'() {
    const told = [];
    const session = new Session(where, { onTrouble: (error) => told.push(error.message) });
    const lease = session.acquire('job', { ttl: 1200 });
    (await next('acquire_each', ['job'])).answer(7);
    await lease;
    (await next('renew_each', ['job'])).fail('XX000');
    (await next('renew_each', ['job'])).fail('XX000');
    (await next('renew_each', ['job'])).answer('t');
    (await lease).release();
    (await next('release_each', ['job'])).answer('t');
    assert.deepStrictEqual(told, ['renewals fail: XX000']);
  },

  // What they are told goes on: renewals, elections and workers.
  async 'an onTrouble that throws'() {
    const thrown = [];
    const listen = ({ message }) => thrown.push(message);
    process.on('uncaughtException', listen);
    process.on('unhandledRejection', listen);
    const session = new Session(where, { onTrouble() { throw new Error('by onTrouble'); } });
    const lease = session.acquire('job', { ttl: 1200 });
    (await next('acquire_each', ['job'])).answer(7);
    await lease;
    (await next('renew_each', ['job'])).fail('XX000');
    (await next('renew_each', ['job'])).answer('t');
    const released = (await lease).release();
    (await next('release_each', ['job'])).answer('t');
    await released;
    const worker = session.worker('queue', () => {});
    (await next('task_capture', 'queue')).fail('XX000');
    const capturing = await next('task_capture', 'queue');
    const stopped = worker.stop();
    capturing.rows();
    await stopped;
    process.removeListener('uncaughtException', listen);
    process.removeListener('unhandledRejection', listen);
    assert.deepStrictEqual(thrown, ['by onTrouble', 'by onTrouble']);
  },

  async 'a leader that fails as it resigns'() {
    const told = [];
    const session = new Session(where, { onTrouble: (error) => told.push(error.message) });
    const gained = new Promise((resolve) => {
      const election = session.elect('boss', { gained: () => resolve(election), lost() { throw new Error('by lost'); } });
    });
    (await next('acquire_each', ['boss'])).answer(7);
    const stopped = (await gained).stop();
    (await next('release_each', ['boss'])).answer('t');
    await stopped;
    assert.deepStrictEqual(told, ['by lost']);
  },

  async 'a task that is captured too late is given back'() {
    const session = new Session(where);
    const worker = session.worker('queue', () => assert.fail('it was begun'), { ttl: 3000 });
    const capturing = await next('task_capture', 'queue');
    advance(2500); // from then on it is too late
    capturing.rows(['late', '7', 'null', '0', '1', 'ready']);
    (await next('task_release', ['queue'])).answer('t');
    const again = await next('task_capture', 'queue');
    const stopped = worker.stop();
    again.rows();
    await stopped;
    assert.throws(() => session.worker('queue'), TypeError);
  },

  // Nothing is left at a task that goes on while others come and go.
  async 'a worker that is full waits for the next end'() {
    const session = new Session(where);
    const ends = new Map();
    const worker = session.worker('queue', ({ key }) => new Promise((resolve) => { ends.set(key, resolve); }), { concurrency: 2 });
    (await next('task_capture', 'queue')).rows(...['long', '0'].map((key) => [key, '7', 'null', '0', '1', 'ready']));
    await turn();
    let waits = 0;
    const [long] = worker.running;
    const then = long.then.bind(long);
    long.then = (...calls) => {
      waits++;
      return then(...calls);
    };
    for (let i = 1; i <= 3; i++) {
      ends.get(`${i - 1}`)();
      (await next('task_finish', ['queue'])).answer('t');
      (await next('task_capture', 'queue')).rows([`${i}`, '7', 'null', '0', '1', 'ready']);
      await turn();
    }
    assert.strictEqual(waits, 0);
    const stopped = worker.stop();
    ['long', '3'].forEach((key) => ends.get(key)());
    (await next('task_finish', ['queue'])).answer('t');
    (await next('task_finish', ['queue'])).answer('t');
    await stopped;
  },

  async 'a task that a transaction of its own finishes is not lost by that, nor renewed while that commits'() {
    const session = new Session(where);
    let task;
    let goOn;
    let commit;
    const gate = () => new Promise((resolve) => { goOn = resolve; });
    const client = {
      on() {},
      removeListener() {},
      query: (text) => (text === 'COMMIT' ? new Promise((resolve, reject) => { commit = { resolve, reject }; }) : Promise.resolve({ rowCount: 1 }))
    };
    const worker = session.worker('queue', async (it) => {
      task = it;
      await assert.rejects(task.transaction(client, gate), { code: '40001' });
      await gate();
      await task.transaction(client, () => {});
      await gate();
    });
    (await next('task_capture', 'queue')).rows(['k', '7', 'null', '0', '1', 'ready']);
    const renewal = await next('task_renew', ['queue']);
    goOn();
    await turn();
    renewal.answer('t');
    await turn();
    advance(20000);
    session._tick();
    await none();
    commit.reject(failure('40001'));
    await turn();
    const again = await next('task_renew', ['queue']);
    goOn();
    await turn();
    again.answer('f');
    await turn();
    assert.ok(!task.lost);
    commit.resolve({ command: 'COMMIT' });
    await turn();
    advance(7200000);
    assert.ok(!task.lost);
    assert.strictEqual(session._holds.size, 0);
    const stopped = worker.stop();
    goOn();
    await stopped;
  },

  async 'a long grace'() {
    const session = new Session(where);
    let task;
    let end;
    const worker = session.worker('queue', (it) => new Promise((resolve) => { [task, end] = [it, resolve]; }));
    (await next('task_capture', 'queue')).rows(['k', '7', 'null', '0', '1', 'ready']);
    await turn();
    await assert.rejects(worker.stop({ grace: 'long' }), TypeError);
    const stopped = worker.stop({ grace: '30 d' });
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.ok(!task.signal.aborted);
    end();
    (await next('task_finish', ['queue'])).answer('t');
    await stopped;
  },

  // The server rolls a transaction back in which a statement has failed, and COMMIT is no error.
  async 'a transaction that is not committed'() {
    const session = new Session(where);
    let command = 'COMMIT';
    const client = { on() {}, removeListener() {}, query: async () => ({ command }) };
    const acquired = session.acquire('job');
    (await next('acquire_each', ['job'])).answer(7);
    const lease = await acquired;
    assert.strictEqual(await lease.transaction(client, () => 'done'), 'done');
    command = 'ROLLBACK';
    await assert.rejects(lease.transaction(client, () => 'done'), { code: '25P02' });

    // Nor is one that the work has not waited for.
    let goOn;
    const did = [];
    client.query = async (text) => did.push(text) && { command: text };
    const forgotten = lease.transaction(client, () => new Promise((resolve) => { goOn = resolve; }));
    await turn();
    const released = lease.release();
    (await next('release_each', ['job'])).answer('t');
    await released;
    goOn();
    await assert.rejects(forgotten, { name: 'LeaseLost' });
    assert.strictEqual(did.pop(), 'ROLLBACK');
    assert.throws(() => lease.check(), { name: 'LeaseLost' });
  },

  async 'an undo ends by the token, and what its task asks for meanwhile waits'() {
    const session = new Session(where);
    const giver = new AbortController();
    const first = session.acquire('x', { task: 't', signal: giver.signal });
    const asking = await next('acquire_each', ['x']);
    giver.abort();
    await assert.rejects(first, { name: 'AbortError' });
    const second = session.acquire('x', { task: 't' });
    const third = session.acquire('x', { task: 't', signal: giver.signal }).catch((error) => error.name);
    assert.strictEqual(await third, 'AbortError');
    asking.fail('57P01');
    const found = await next('lease', ['x']);
    assert.deepStrictEqual(found.values[1], [`${session.client}#t`]);
    const other = session.acquire('x', { task: 'u' });
    found.answer(5);
    (await next('release_each', ['x'])).fail('57P01');
    const others = await next('acquire_each', ['x']);
    assert.deepStrictEqual(others.values[1], [`${session.client}#u`]);
    others.answer('NULL');
    await assert.rejects(other, { name: 'LeaseRefused' });
    (await next('lease', ['x'])).answer(5);
    const release = await next('release_each', ['x']);
    assert.deepStrictEqual(release.values[1], ['5']);
    await none();
    release.answer('t');
    (await next('acquire_each', ['x'])).answer(6);
    assert.strictEqual((await second).token, 6);
    const released = (await second).release();
    (await next('release_each', ['x'])).answer('t');
    await released;
  },

  async 'a release that is not heard of does not refuse the next request of the task'() {
    const session = new Session(where);
    const lease = session.acquire('x', { task: 't' });
    (await next('acquire_each', ['x'])).answer(5);
    const released = (await lease).release();
    const release = await next('release_each', ['x']);
    advance(3000); // it is tried no longer
    release.fail('57P01');
    await released;
    const again = session.acquire('x', { task: 't' });
    const asking = await next('acquire_each', ['x']);
    assert.strictEqual(asking.values[5], 'count'); // the release may come late
    asking.answer(5);
    const over = (await again).release();
    (await next('release_each', ['x'])).answer('t');
    (await next('release_each', ['x'])).answer('f'); // it has come by now, or never will
    await over;
    const last = session.acquire('x', { task: 't' });
    const deny = await next('acquire_each', ['x']);
    assert.strictEqual(deny.values[5], 'deny');
    deny.answer('NULL');
    await assert.rejects(last, { name: 'LeaseRefused' });
  },

  async 'a hold that may not have been released goes with the last lease of its task'() {
    const session = new Session(where);
    const outer = session.acquire('x', { task: 't' });
    (await next('acquire_each', ['x'])).answer(5);
    await outer;
    const inner = session.acquire('x', { task: 't', reentry: 'count' });
    (await next('acquire_each', ['x'])).answer(5);
    const left = (await inner).release();
    (await next('release_each', ['x'])).fail('57P01');
    await left;
    const more = session.acquire('x', { task: 't', reentry: 'count' });
    const entering = await next('acquire_each', ['x']);
    const released = (await outer).release();
    (await next('release_each', ['x'])).answer('t');
    await released;
    await none(); // it might end what is entered now
    entering.answer(5);
    const last = (await more).release();
    (await next('release_each', ['x'])).answer('t');
    const rest = await next('release_each', ['x']);
    assert.deepStrictEqual(rest.values[1], [5]);
    rest.answer('t');
    await last;
  },

  async 'what one of two requests was granted unheard is undone by the last one'() {
    const session = new Session(where);
    const giver = new AbortController();
    const first = session.acquire('x', { task: 't' }).catch((error) => error.name);
    const asking = await next('acquire_each', ['x']);
    const second = session.acquire('x', { task: 't', wait: Infinity, signal: giver.signal }).catch((error) => error.name);
    asking.fail('57P01');
    (await next('acquire_each', ['x'])).answer('NULL');
    const { values, answer } = await next('take', session.client).then(() => next('acquire_each', ['x']));
    assert.strictEqual(values[5], 'deny');
    answer('NULL');
    assert.strictEqual(await first, 'LeaseRefused');
    (await next('acquire_each', ['x'])).answer('NULL'); // for a place
    await turn();
    giver.abort();
    assert.strictEqual(await second, 'AbortError');
    (await next('acquire_each', ['x'])).answer('NULL');
    (await next('lease', ['x'])).answer(7);
    (await next('release_each', ['x'])).answer('t');
    (await next('lease', ['x'])).answer('NULL'); // it had been entered once
    await none();
    assert.strictEqual(session._doubts.size + session._claims.size, 0);
  },

  async 'a turn that is not heard of is undone by the last of the requests that are given up'() {
    const session = new Session(where);
    const giver = new AbortController();
    const waits = [1, 2].map(() => session.acquire('x', { task: 't', wait: Infinity, signal: giver.signal }).catch((error) => error.name));
    (await next('acquire_each', ['x'])).answer('NULL');
    await next('take', session.client);
    (await next('acquire_each', ['x'])).answer('NULL');
    await turn();
    giver.abort();
    assert.deepStrictEqual(await Promise.all(waits), ['AbortError', 'AbortError']);
    for (let i = 1; i <= 2; i++) {
      const last = await next('acquire_each', ['x']);
      assert.strictEqual(last.values[5], 'deny');
      last.answer('NULL');
    }
    (await next('lease', ['x'])).answer(7);
    const release = await next('release_each', ['x']);
    assert.deepStrictEqual(release.values[1], ['7']);
    release.answer('t');
    (await next('lease', ['x'])).answer('NULL');
    await none();
    assert.strictEqual(session._doubts.size + session._claims.size, 0);
  },

  async 'there is nothing to undo'() {
    const session = new Session(where);
    const giver = new AbortController();
    const first = session.acquire('x', { task: 't', signal: giver.signal });
    const asking = await next('acquire_each', ['x']);
    giver.abort();
    await assert.rejects(first);
    asking.fail('57P01');
    const found = await next('lease', ['x']);
    const second = session.acquire('x', { task: 't' });
    const closed = session.close();
    await assert.rejects(second, { name: 'SessionClosed' });
    found.answer('NULL');
    await closed;
    await none();
  },

  async 'after a place, a last try enters nothing twice'() {
    const session = new Session(where);
    const lease = session.acquire('x', { wait: 50, reentry: 'count' });
    const first = await next('acquire_each', ['x']);
    assert.strictEqual(first.values[5], 'count');
    first.answer('NULL');
    const taking = await next('take', session.client);
    const last = await next('acquire_each', ['x']);
    assert.strictEqual(last.values[5], 'return');
    last.answer(7);
    assert.strictEqual((await lease).token, 7);
    taking.rows(['x', last.values[1][0], 7]);
    await none();
    const released = (await lease).release();
    (await next('release_each', ['x'])).answer('t');
    await released;
  },

  async 'a lease that is released by who hears that it is lost'() {
    const session = new Session(where);
    const acquired = session.acquire('job', { ttl: 600 });
    (await next('acquire_each', ['job'])).answer(7);
    const lease = await acquired;
    let inner;
    lease.signal.addEventListener('abort', () => { inner = lease.release(); });
    advance(600);
    const outer = lease.release();
    assert.strictEqual(inner, outer);
    (await next('release_each', ['job'])).answer('f');
    await assert.rejects(outer, { name: 'ServerUnreachable' });
    await none();
  },

  async 'a grant that is heard of too late is given back, and asked for again'() {
    const session = new Session(where);
    const lease = session.acquire('job', { ttl: 3000 });
    const first = await next('acquire_each', ['job']);
    advance(2500); // from then on it is too late
    first.answer(7);
    const release = await next('release_each', ['job']);
    assert.deepStrictEqual(release.values[1], ['7']);
    release.answer('f');
    (await next('acquire_each', ['job'])).answer(8);
    assert.strictEqual((await lease).token, 8);
    const released = (await lease).release();
    (await next('release_each', ['job'])).answer('t');
    await released;
  },

  async 'so is a turn, and one that has been lost is asked for again'() {
    const session = new Session(where);
    const lease = session.acquire('job', { ttl: 3000, wait: Infinity });
    const placing = await next('acquire_each', ['job']);
    placing.answer('NULL');
    const turns = await next('take', session.client);
    advance(600);
    turns.rows(['job', placing.values[1][0], '7']);
    const more = await next('take', session.client);
    const late = await next('renew_each', ['job']);
    advance(2500);
    late.answer('t');
    const release = await next('release_each', ['job']);
    assert.deepStrictEqual(release.values[1], ['7']);
    release.answer('f');
    (await next('acquire_each', ['job'])).answer('NULL');
    advance(600);
    more.rows(['job', placing.values[1][0], '8']);
    await next('take', session.client);
    (await next('renew_each', ['job'])).answer('f');
    (await next('acquire_each', ['job'])).answer(9);
    assert.strictEqual((await lease).token, 9);
    const released = (await lease).release();
    (await next('release_each', ['job'])).answer('t');
    await released;
  },

  async 'work that goes on is told of close()'() {
    const session = new Session(where);
    const acquired = session.acquire('job');
    (await next('acquire_each', ['job'])).answer(7);
    const lease = await acquired;
    const { signal } = lease;
    const closed = session.close();
    (await next('release_each', ['job'])).answer('t');
    assert.ok(signal.aborted);
    assert.throws(() => lease.check(), { name: 'SessionClosed' });
    await closed;
    await assert.rejects(lease.release(), { name: 'SessionClosed' });
  },

  // Behind a pooler that does not know them, they are not.
  async 'statements are prepared if no other process answers than the connection was told'() {
    for (const [mine, theirs, prepared] of [[42, '42', true], [42, '43', false]]) {
      [told, answers] = [mine, theirs];
      const session = new Session(where);
      const first = session.acquire('x');
      const statement = await next('acquire_each', ['x']);
      assert.strictEqual(statement.name !== undefined, prepared);
      answers = '44';
      statement.fail('26000'); // there is one now
      const again = await next('acquire_each', ['x']);
      assert.strictEqual(again.name, undefined);
      again.fail('26000');
      await assert.rejects(first, { code: '26000' });
    }
    [told, answers] = [];
  },

  async 'settings of the connections'() {
    const defaults = { keepAlive: true, keepAliveInitialDelayMillis: 10000, fallback_application_name: 'dlock', binary: false, query_timeout: 0 };
    const hidden = Object.defineProperty({ host: 'a' }, 'password', { value: 'secret' });
    const given = { host: 'a', password: 'secret', keepAlive: false, binary: true, query_timeout: 3000 };
    for (const [options, expected] of [[hidden, {}], [given, { keepAlive: false }]]) {
      const lease = new Session({ Client, options }).acquire('job');
      (await next('acquire_each', ['job'])).answer(7);
      await lease;
      assert.deepStrictEqual(last, { ...defaults, host: 'a', password: 'secret', ...expected });
    }
  }
};

(async () => {
  for (const [name, test] of Object.entries(tests)) {
    current = test;
    const limit = setTimeout(() => {
      process.stderr.write(`${name}: it does not end\n`);
      process.exit(1);
    }, 60000);
    try {
      await test();
      clearTimeout(limit);
    } catch (error) {
      process.stderr.write(`${name}: ${error.stack}\n`);
      process.exit(1);
    }
  }
  process.exit();
})();
