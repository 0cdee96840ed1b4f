import dlock from './index.js';

export const {
  connect, lease, shardOf, Session, LeaseError, LeaseRefused, LeaseLost, LeaseDeadlock, TokenStale, TokenMissing, ServerUnreachable,
  ServerUnsupported, SessionClosed
} = dlock;
