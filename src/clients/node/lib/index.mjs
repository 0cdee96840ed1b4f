import dlock from './index.js';

export const {
  connect, lease, Session, LeaseError, LeaseRefused, LeaseLost, LeaseDeadlock, TokenStale, TokenMissing, ServerUnreachable, ServerUnsupported,
  SessionClosed
} = dlock;
