'use strict';

const errors = require('./errors');
const { Session } = require('./session');

// One session for each pool, or whatever says where the server is.
const [byText, byPool] = [new Map(), new WeakMap()];

// The session of a pool; options count for the first call.
function connect(where, options) {
  const sessions = typeof where === 'string' ? byText : byPool;
  let session = sessions.get(where);
  if (!session || session._closed) {
    session = new Session(where, options);
    sessions.set(where, session);
  }
  return session;
}

// Run work(lease, signal) under a lease, in the session of the pool.
function lease(where, name, options, work) {
  return connect(where).lease(name, options, work);
}

module.exports = { connect, lease, Session, ...errors };
