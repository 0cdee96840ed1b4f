import { Client, ClientBase, ClientConfig, Pool } from 'pg';

/** Milliseconds, or a text such as '30 s', with the units ms, s, min, h, d. */
export type Span = number | string;

/** Says where the server is. Connections are the session's own. */
export type Where = Pool | Client | ClientConfig | string;

/** A client of the driver, or a function that runs a statement in the transaction. */
export type Transaction = { query(text: string): PromiseLike<unknown> } | ((text: string) => PromiseLike<unknown>);

export interface LeaseOptions {
  /** How long the lease lasts without a renewal; by default a minute. */
  ttl?: Span;
  /** How long to wait for the lock; Infinity: without a limit. By default not at all. */
  wait?: Span;
  /** The task that is the owner, instead of the one that runs. */
  task?: string | number;
  /** The mode of the lock, as of dlock_acquire(); by default exclusive. */
  mode?: 'exclusive' | 'shared' | 'NL' | 'CR' | 'CW' | 'PR' | 'PW' | 'EX';
  /** Makes the lock a semaphore of so many holders. */
  permits?: number | null;
  /** What happens if the task holds the lock already: 'count' is one more lease on it. By default 'deny'. */
  reentry?: 'deny' | 'count';
  /** How long the lock stays closed after the lease was lost. */
  lockDelay?: Span;
  /** A release takes effect no earlier than this after the grant. */
  minHold?: Span;
  /** Anything that JSON.stringify() takes. */
  payload?: unknown;
  /** Called when the work is to end. */
  onLost?: (lease: Lease) => void;
  /** Gives up waiting for the lock; later aborts the signal of the lease. */
  signal?: AbortSignal;
}

interface Hold {
  /** The fencing token, below 2^53. */
  readonly token: number;
  /** Aborted when the work is to end. */
  readonly signal: AbortSignal;
  /** Is the work to end, or has it ended? */
  readonly lost: boolean;
  /** How many milliseconds it lasts, at least, if no renewal succeeds; the work ends earlier. */
  readonly remaining: number;
  /** Throw why the work is to end, if it is; and LeaseLost once it has ended. */
  check(): void;
  /** Run the work in a transaction, on a client or on one of a pool. */
  transaction<C extends ClientBase, T>(client: C, work: (client: C) => Promise<T> | T): Promise<T>;
  transaction<T>(pool: Pool, work: (client: ClientBase) => Promise<T> | T): Promise<T>;
}

/** A lease on a lock, or on several. Its transactions present the tokens. */
export interface Lease extends Hold, AsyncDisposable {
  readonly name: string;
  /** As dlock_leases shows it: client#task. */
  readonly owner: string;
  /** Tokens by the names of locks. */
  readonly tokens: ReadonlyMap<string, number>;
  /** Present the tokens in a transaction that somebody else has begun. */
  present(tx: Transaction): Promise<void>;
  /** Rejects with LeaseLost or ServerUnreachable if the lease was lost before. */
  release(): Promise<void>;
}

/** A task of a queue. Its transactions finish it. */
export interface Task extends Hold {
  readonly queue: string;
  readonly key: string;
  readonly payload: any;
  readonly priority: number;
  readonly attempts: number;
  readonly fromState: string;
  /** The state it is to have when it is finished, if not that of the queue. */
  state: string | null;
}

export interface Election {
  readonly leads: boolean;
  readonly lease: Lease | null;
  stop(): Promise<void>;
}

export interface Worker {
  readonly queue: string;
  readonly running: ReadonlySet<unknown>;
  stop(options?: { grace?: Span }): Promise<void>;
}

export interface SessionOptions {
  /** The client of the owners client#task, different from that of each other session. */
  client?: string;
  /** Told what goes wrong in the background, such as renewals; by default a warning of the process. */
  onTrouble?: (error: Error) => void;
}

export class Session implements AsyncDisposable {
  constructor(where: Where, options?: SessionOptions);
  readonly client: string;
  lease<T>(name: string, work: (lease: Lease) => Promise<T> | T): Promise<T>;
  lease<T>(name: string, options: LeaseOptions, work: (lease: Lease) => Promise<T> | T): Promise<T>;
  acquire(name: string, options?: LeaseOptions): Promise<Lease>;
  acquireAll(names: Iterable<string>, options?: LeaseOptions): Promise<Lease>;
  acquirePath(path: string, options?: LeaseOptions): Promise<Lease>;
  acquirePermit(name: string, permits: number, options?: LeaseOptions): Promise<Lease>;
  task<T>(work: () => T): T;
  present(tx: Transaction, ...leases: Lease[]): Promise<void>;
  once(name: string, every: Span): Promise<number | null>;
  elect(name: string, options?: Omit<LeaseOptions, 'wait' | 'signal'> & {
    gained?: (lease: Lease) => void | Promise<void>;
    lost?: (lease: Lease, error: LeaseError | null) => void | Promise<void>;
  }): Election;
  watch(name: string, options?: { every?: Span; signal?: AbortSignal }):
    AsyncGenerator<{ token: number; owner: string; payload: any } | null, void, void>;
  worker(queue: string, handler: (task: Task) => Promise<unknown> | unknown, options?: {
    concurrency?: number; ttl?: Span; fromStates?: string[]; toState?: string; onTimeout?: string;
  }): Worker;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** The session of a pool; the same for each call. */
export function connect(where: Where, options?: SessionOptions): Session;

/** That of several servers which has the locks of this name, by CRC-32; name them in one order everywhere. */
export function shardOf<S>(name: string, shards: readonly S[]): S;

/** Run the work under a lease, and release that when the work has ended. Of several servers, on that of shardOf(). */
export function lease<T>(where: Where | readonly Where[], name: string, work: (lease: Lease) => Promise<T> | T): Promise<T>;
export function lease<T>(where: Where | readonly Where[], name: string, options: LeaseOptions, work: (lease: Lease) => Promise<T> | T): Promise<T>;

/** Why there is no lease, or none any more. */
export class LeaseError extends Error {}
/** Somebody else holds the lock. */
export class LeaseRefused extends LeaseError {
  readonly lock: string;
  /** The owner who holds it, if still known. */
  readonly holder: string | null;
}
/** The server says that the lease is not held any more, or has refused a write for that (LK002). */
export class LeaseLost extends LeaseError {}
/** A wait would never have ended (40P01). */
export class LeaseDeadlock extends LeaseError {}
/** A write was refused, as a later holder has written (LK001). */
export class TokenStale extends LeaseError {}
/** A write was refused, as its transaction presents no token (LK003). */
export class TokenMissing extends LeaseError {}
/** The server could not be asked in time, or did not answer. */
export class ServerUnreachable extends LeaseError {}
/** The database has no dlock, or one that is too old. */
export class ServerUnsupported extends LeaseError {}
/** The session has been closed, perhaps while the lock was waited for. */
export class SessionClosed extends LeaseError {}
