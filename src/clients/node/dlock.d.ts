// Types of dlock.js.

import { Client, ClientBase, ClientConfig, Pool } from 'pg';

export interface LeaseOptions {
  /** How long the lease lasts without a renewal. */
  ttlMs: number;
  /** How long to wait for the lock; Infinity: without a limit. By default not at all. */
  waitMs?: number;
  /** What to call the holder in dlock_leases; a random part is added. */
  owner?: string;
  /** The mode of the lock, as of dlock_acquire(); by default exclusive. */
  mode?: string;
  /** Makes the lock a semaphore of so many holders. */
  permits?: number | null;
  /** How long the lock stays closed after the lease was lost. */
  lockDelayMs?: number;
  /** A release takes effect no earlier than this after the grant. */
  minHoldMs?: number;
  /** Anything that JSON.stringify() takes. */
  payload?: unknown;
  /** Called when the work is to end. */
  onLost?: (lease: Lease) => void;
  /** Gives up waiting for the lock; later aborts the signal of the lease. */
  signal?: AbortSignal;
}

export interface Lease {
  readonly name: string;
  readonly owner: string;
  /** The fencing token. */
  readonly token: bigint;
  /** Is the work to end, or has it ended? */
  readonly lost: boolean;
  /** How long the lease lasts, at least, if no renewal succeeds; the work ends earlier. */
  readonly remainingMs: number;
  /** Aborted when the work is to end. */
  readonly signal: AbortSignal;
  /** Throw what withLease() would throw, if the work is to end; and LeaseLost once it has ended. */
  check(): void;
  /** Run the work in a transaction that presents the token, on a client or on one of a pool. */
  transaction<C extends ClientBase, T>(client: C, work: (client: C) => Promise<T> | T): Promise<T>;
  transaction<T>(pool: Pool, work: (client: ClientBase) => Promise<T> | T): Promise<T>;
}

/** Why there is no lease, or none any more. */
export class LeaseError extends Error {}
/** Somebody else holds the lock. */
export class LeaseRefused extends LeaseError {}
/** The server says that the lease is not held any more. */
export class LeaseLost extends LeaseError {}
/** The server could not be asked in time, or did not answer. */
export class ServerUnreachable extends LeaseError {}

/**
 * Run the work under a lease, and release that when the work has ended. Rejects with
 * LeaseRefused, ServerUnreachable, LeaseLost, the reason of options.signal, an error of
 * the server, or what the work throws.
 */
export function withLease<T>(
  where: Pool | Client | ClientConfig | string,
  name: string,
  options: LeaseOptions,
  work: (lease: Lease, signal: AbortSignal) => Promise<T> | T
): Promise<T>;
