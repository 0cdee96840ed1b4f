'use strict';

// Why there is no lease, or none any more.

// Is it an error of the server with this SQLSTATE, perhaps wrapped by a query builder?
function hasCode(error, code) {
  return error instanceof Error && (error.code === code || (error.cause instanceof Error && error.cause.code === code));
}

class LeaseError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

// The driver's own error of such an SQLSTATE is an instance, too.
function coded(code) {
  return class extends LeaseError {
    static [Symbol.hasInstance](error) {
      return Function.prototype[Symbol.hasInstance].call(this, error) || hasCode(error, code);
    }
  };
}

// Somebody else holds the lock: "holder" is an owner, or null if that has gone meanwhile.
class LeaseRefused extends LeaseError {
  constructor(name, holder, options) {
    super(`lock "${name}" is held${holder ? ` by "${holder}"` : ''}`, options);
    this.lock = name;
    this.holder = holder;
  }
}

// The server says that the lease is not held any more; or a write was refused for that.
class LeaseLost extends coded('LK002') {}

// A wait would never have ended.
class LeaseDeadlock extends coded('40P01') {}

// A write was refused, as a later holder has written.
class TokenStale extends coded('LK001') {}

// A write was refused, as its transaction presents no token.
class TokenMissing extends coded('LK003') {}

// The server could not be asked in time, or did not answer.
class ServerUnreachable extends LeaseError {}

// The database has no dlock, or one that is too old.
class ServerUnsupported extends LeaseError {}

// The session has been closed, perhaps while the lock was waited for.
class SessionClosed extends LeaseError {
  constructor() {
    super('the session is closed');
  }
}

module.exports = {
  LeaseError, LeaseRefused, LeaseLost, LeaseDeadlock, TokenStale, TokenMissing, ServerUnreachable, ServerUnsupported, SessionClosed
};
