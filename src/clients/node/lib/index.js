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

// That of several servers which has the locks of this name, by its CRC-32 as zlib has it.
function shardOf(name, shards) {
  let crc = -1;
  for (const byte of Buffer.from(name)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) {
      crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
    }
  }
  return shards[(~crc >>> 0) % shards.length];
}

// Run work(lease) under a lease, in the session of the pool, or of one of several.
function lease(where, name, options, work) {
  return connect(Array.isArray(where) ? shardOf(name, where) : where).lease(name, options, work);
}

module.exports = { connect, lease, shardOf, Session, ...errors };
