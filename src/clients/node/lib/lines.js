'use strict';

// Connections of a session, and what is asked over them.  What comes up while a statement
// is on its way waits for the next one, which then asks for all of its kind at once.
// Nothing waits for company: if a line is free, a request is sent at once; but what programs ask for in
// the turn of the event loop that brings an answer goes together at its end.
//
// A kind of request has
//   key      requests of equal keys can be asked in one statement; undefined: alone
//   rank     URGENT goes first, and never stands behind a grant: while the first line is
//            busy with one, the second one is there for it
//   text     (server) => the statement.  Its parameters are an array for each element of
//            a request's row, then "shared"
//   shared   parameters that such requests have in common
//   within   how long the statement may take, in milliseconds
// The answer to many is an array, in order, in the first column; a second one may have a note
// for each, as JSON.  An error of many is traced to those whose it is, by asking for halves:
// a statement that fails changes nothing.

const crypto = require('crypto');
const { ServerUnreachable, ServerUnsupported } = require('./errors');
const { now, timer } = require('./span');

const URGENT = 0;
const USUAL = 1;

// Most requests in a statement.
const BATCH = 1000;

// Most kinds of requests that are remembered.
const GROUPS = 100;

// How long a statement may take, its connection included, if its kind says nothing; an
// urgent one, and what that has at least, for it may have to connect; and how long an unused connection
// stays open.
const ANSWER_WITHIN_MS = 10000;
const URGENT_WITHIN_MS = 5000;
const LEAST_WITHIN_MS = 1000;
const IDLE_MS = 10000;

// Unless the pool has other settings.  A server whose machine is gone has to be noticed.
const DEFAULTS = { keepAlive: true, keepAliveInitialDelayMillis: 10000, fallback_application_name: 'dlock' };

// What is there, and where.
const LOOK = `SELECT format('%I.', n.nspname), string_agg(DISTINCT p.proname, ' '), e.extversion, pg_catalog.pg_backend_pid()
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  LEFT JOIN pg_catalog.pg_extension e ON e.extname = 'dlock' AND e.extnamespace = n.oid
  WHERE p.proname LIKE 'dlock\\_%' GROUP BY n.nspname, e.extversion
  ORDER BY e.extversion IS NULL, max(pg_catalog.pg_function_is_visible(p.oid)::int) DESC LIMIT 1`;
const NEEDED = ['dlock_acquire_each', 'dlock_renew_each', 'dlock_release_each', 'dlock_take'];

// The values as they come from the server.
const TEXT = { getTypeParser: () => (value) => value };

// Names of prepared statements: the same for the same text, whoever prepares it.
const nameOf = (text) => `dlock_${crypto.createHash('sha1').update(text).digest('hex').slice(0, 16)}`;

function ignore() {}

// What makes clients for the server of a pool, a client, or such settings.
function clientsOf(where) {
  let Client;
  let settings = typeof where === 'string' ? { connectionString: where } : where || {};
  if (settings.Client && settings.options) {
    ({ Client } = settings);
    settings = settings.options;
  } else if (settings.connectionParameters) {
    Client = settings.constructor;
    settings = settings.connectionParameters;
  } else {
    // That of the program, if this package is a link in its node_modules.
    ({ Client } = require(require.resolve('pg', { paths: [__dirname, process.cwd()] })));
  }
  // The password of a pool or a client is hidden from a copy.  Answers are read as texts, and their times limited here.
  return () => new Client({ ...DEFAULTS, ...settings, password: settings.password, binary: false, query_timeout: 0 });
}

// Take the connection away from whatever uses it; the server rolls back.
function cut(client) {
  const stream = client.connection && client.connection.stream;
  if (stream) {
    stream.destroy();
  } else {
    client.end().catch(ignore);
  }
}

// Is this an error that says nothing but that this server cannot be asked now?
function isOutage(error) {
  return !error.severity || /^(08|57P|25006|53300)/.test(error.code);
}

// Could this error be of one request among many?
function isOfOne(error) {
  return !isOutage(error) && !/^(42883|42501|3F000|57|0A|25)/.test(error.code);
}

// Has the extension been created anew, or somewhere else, or is there a pooler now?
function isStale(error, { prepares }) {
  return /^(42883|3F000|26000|42P05)$/.test(error.code) || (prepares && (error.code === 'XX000' || error.routine === 'RevalidateCachedQuery'));
}

// "server" has the schema of the functions, quoted, and whether statements can be prepared: if the
// process that answers is another one than this connection was told, there is a pooler between.
async function look(client) {
  const [row] = (await client.query({ text: LOOK, rowMode: 'array', types: TEXT })).rows;
  const names = row ? row[1].split(' ') : [];
  const missing = NEEDED.filter((name) => !names.includes(name));
  if (missing.length > 0) {
    throw new ServerUnsupported(`${row ? `dlock ${row[2] || ''} of the server is too old: ${missing[0]}() is missing`
      : 'the database has no dlock'}; a role with the right to do so has to run ${row ? 'ALTER EXTENSION dlock UPDATE'
      : 'CREATE EXTENSION dlock'} in database "${client.database}"`);
  }
  return { schema: row[0], prepares: Number(row[3]) === client.processID, statements: new Map() };
}

class Request {
  constructor() {
    this.kind = null;
    this.row = null;
    this.until = 0;
    this.resolve = null;
    this.reject = null;
    this.taken = false; // it has been sent
    this.gone = false; // it was withdrawn
    this.again = false; // it has been sent once more
  }
}

class Line {
  constructor(lines) {
    this.lines = lines;
    this.client = null;
    this.end = null; // of the statement that is on its way: (error, rows)
    this.rank = USUAL; // of what it asks
    this.until = Infinity; // when it is late, or the connection is not needed any more
    this.watchAt = Infinity; // when the timer for that is due
    this.watcher = null;
  }

  get busy() {
    return this.end !== null;
  }

  async connect() {
    const client = this.client = this.lines.make();
    client.on('error', () => {
      if (this.client === client) {
        this.client = null;
      }
    });
    await client.connect();
    if (this.client !== client) {
      throw new ServerUnreachable('the connection has come too late');
    }
    if (!this.lines.server || this.lines.stale) {
      this.lines.server = await look(client);
      this.lines.stale = false;
    }
  }

  // Ask, settle the requests, and then go on with "next".
  ask(batch, next) {
    const { kind } = batch[0];
    const many = kind.key !== undefined;
    let sent = 0;
    const end = this.end = (error, result) => {
      if (this.end !== end) {
        return; // it has come too late
      }
      if (error) {
        this.failed(batch, error, sent, next);
        return;
      }
      const { rows } = result;
      if (many) {
        const answers = rows[0][0].slice(1, -1).split(',');
        const notes = rows[0][1] ? JSON.parse(rows[0][1]) : [];
        batch.forEach((request, i) => request.resolve({ value: answers[i], note: notes[i], sent }));
      } else {
        batch[0].resolve({ rows, value: rows.length > 0 ? rows[0][0] : null, sent });
      }
      next();
    };
    const send = () => {
      if (this.end === end) {
        sent = now();
        const values = many ? batch[0].row.map((_, i) => batch.map(({ row }) => row[i])) : batch[0].row;
        const statement = this.lines.statementOf(kind, values.concat(kind.shared || []));
        new Promise((resolve) => { resolve(this.client.query(statement)); }).then((result) => end(null, result)).catch(end);
      }
    };
    this.watch(now() + this.lines.within(kind));
    if (this.client) {
      send();
    } else {
      this.connect().then(send).catch(end);
    }
  }

  failed(batch, error, sent, next) {
    // Nothing has been done, so it is asked for again, on a new connection that looks.
    if (sent && isStale(error, this.lines.server) && !batch[0].again) {
      batch.forEach((request) => { request.again = true; });
      this.lines.stale = true;
      this.drop();
      this.ask(batch, next);
      return;
    }
    if (sent && batch.length > 1 && isOfOne(error)) {
      const half = batch.length >> 1;
      this.ask(batch.slice(0, half), () => this.ask(batch.slice(half), next));
      return;
    }
    let why = error;
    if (isOutage(error) || !sent) {
      this.drop();
      if (!(error instanceof ServerUnreachable) && isOutage(error) && !(error instanceof ServerUnsupported)) {
        why = new ServerUnreachable(error.message || error.code, { cause: error });
      }
      // Nothing happens on a standby.
      why.inDoubt = sent > 0 && error.code !== '25006';
    }
    batch.forEach((request) => request.reject(why));
    next();
  }

  // One timer looks after the statement under way, and closes a connection that is not used.  It
  // is not set anew for each, but looks when it has come.
  watch(until) {
    this.until = until;
    if (until < this.watchAt) {
      clearTimeout(this.watcher);
      this.watchAt = until;
      this.watcher = timer(() => this.look(), until).unref();
    }
  }

  look() {
    this.watchAt = Infinity;
    if (now() < this.until) {
      this.watch(this.until);
    } else if (this.busy) {
      this.end(new ServerUnreachable('the server does not answer'));
    } else {
      this.close();
    }
  }

  // Those that have their answers may ask for more in this turn of the event loop.
  free(batch) {
    this.end = null;
    if (batch.length === 1 && this.lines.idle) {
      this.rest();
      return;
    }
    this.lines.settling += 1;
    setImmediate(() => {
      this.lines.settling -= 1;
      this.lines.pump();
      this.rest();
    });
  }

  // A connection that is not used keeps no process alive, and is closed in the end.
  rest() {
    if (!this.busy && this.lines.closed) {
      this.close();
    } else if (!this.busy) {
      this.watch(now() + IDLE_MS);
      this.ref('unref');
    }
  }

  // Whether a statement under way keeps the process from ending.
  ref(method = 'ref') {
    if (this.client && this.client[method]) {
      this.client[method]();
    }
  }

  take(batch) {
    if (batch) {
      this.rank = batch[0].kind.rank;
      this.ref();
      this.ask(batch, () => this.free(batch));
    }
  }

  drop() {
    if (this.client) {
      this.client.on('error', ignore);
      cut(this.client);
      this.client = null;
    }
  }

  async close() {
    const { client } = this;
    this.client = null;
    clearTimeout(this.watcher);
    this.watchAt = Infinity;
    if (client) {
      client.on('error', ignore);
      const late = timer(() => cut(client), now() + LEAST_WITHIN_MS).unref(); // the server may be silent
      await client.end().catch(ignore);
      clearTimeout(late);
    }
  }
}

class Lines {
  // "urgentWithin" says how long an urgent statement may take by now.
  constructor(where, { urgentWithin = () => URGENT_WITHIN_MS, only = false } = {}) {
    this.make = clientsOf(where);
    this.urgentWithin = urgentWithin;
    this.lines = only ? [new Line(this)] : [new Line(this), new Line(this)];
    this.queues = [[], []]; // of groups that have requests, by rank
    this.groups = new Map(); // { kind, requests }, by key
    this.server = null; // what look() has found
    this.stale = false;
    this.closed = false;
    this.settling = 0; // lines that have just been answered
    this.sweep = null; // timer
    this.sweepAt = Infinity;
  }

  get idle() {
    return this.queues.every((queue) => queue.length === 0) && this.lines.every((line) => !line.busy);
  }

  within(kind) {
    return kind.rank === URGENT ? Math.min(Math.max(this.urgentWithin(), LEAST_WITHIN_MS), URGENT_WITHIN_MS) : kind.within || ANSWER_WITHIN_MS;
  }

  statementOf(kind, values) {
    const { prepares, statements } = this.server;
    let statement = statements.get(kind.text);
    if (!statement) {
      const text = kind.text(this.server);
      statement = { name: prepares ? nameOf(text) : undefined, text, types: TEXT, rowMode: 'array' };
      statements.set(kind.text, statement);
    }
    return { ...statement, values };
  }

  // Promise { value, note, sent } of one among many, or { rows, value, sent }.  Until it is sent, it can be
  // withdrawn, and is rejected at "until".
  ask(kind, row, until = now() + ANSWER_WITHIN_MS, request = new Request()) {
    return new Promise((resolve, reject) => {
      request.kind = kind;
      request.row = row;
      request.until = until;
      request.resolve = resolve;
      request.reject = reject;
      const group = this.groupOf(kind);
      if (group.requests.push(request) === 1) {
        this.queues[kind.rank].push(group);
      }
      if (this.settling === 0) {
        this.pump();
      }
      if (until < this.sweepAt && !request.taken) {
        clearTimeout(this.sweep);
        this.sweepAt = until;
        this.sweep = timer(() => this.sweepQueues(), until).unref();
      }
    });
  }

  // Requests of one key.  Groups stay, but not for ever: keys are as many as sets of options.
  groupOf(kind) {
    let group = kind.key === undefined ? undefined : this.groups.get(kind.key);
    if (group === undefined) {
      group = { kind, requests: [] };
      if (kind.key !== undefined) {
        if (this.groups.size >= GROUPS) {
          this.groups.clear();
        }
        this.groups.set(kind.key, group);
      }
    }
    return group;
  }

  // Take it out, if it has not been sent.
  withdraw(request, why) {
    if (!request.taken) {
      request.gone = true;
      request.reject(why);
    }
  }

  // The next requests up to this rank, of one kind.
  next(rank) {
    for (let r = URGENT; r <= rank; r++) {
      const queue = this.queues[r];
      while (queue.length > 0) {
        const group = queue.shift();
        const live = group.requests.filter((request) => !request.gone);
        group.requests = live.splice(BATCH);
        if (group.requests.length > 0) {
          queue.push(group);
        }
        if (live.length > 0) {
          live.forEach((request) => { request.taken = true; });
          return live;
        }
      }
    }
    return null;
  }

  pump() {
    const [first, second] = this.lines;
    if (!first.busy) {
      first.take(this.next(USUAL));
    }
    if (second && !second.busy && first.busy && first.rank === USUAL) {
      second.take(this.next(URGENT));
    }
  }

  // Reject what has been queued for too long.
  sweepQueues() {
    const at = now();
    this.sweepAt = Infinity;
    for (const queue of this.queues) {
      for (const group of queue) {
        const late = group.requests.filter((request) => request.until <= at);
        late.forEach((request) => request.reject(new ServerUnreachable('the server did not get to answer in time')));
        group.requests = group.requests.filter((request) => !request.gone && request.until > at);
        group.requests.forEach((request) => { this.sweepAt = Math.min(this.sweepAt, request.until); });
      }
    }
    this.queues = this.queues.map((queue) => queue.filter(({ requests }) => requests.length > 0));
    this.sweep = this.sweepAt < Infinity ? timer(() => this.sweepQueues(), this.sweepAt).unref() : null;
  }

  ref(method) {
    this.lines.forEach((line) => line.ref(method));
  }

  // What is under way ends first.  What is asked for later gets a connection for itself.
  async close() {
    this.closed = true;
    this.ref('ref');
    await Promise.all(this.lines.map((line) => line.busy || line.close()));
  }
}

module.exports = { Lines, Request, URGENT, USUAL, cut, ignore };
