// SPDX-License-Identifier: MIT

/** What can go wrong with a lock. The text is the server's where it said something. */
export type Kind = 'busy' | 'timed out' | 'cancelled' | 'lost' | 'deadlock' | 'misuse' | 'unavailable';

/** All errors of this package. */
export abstract class LockError extends Error {
  abstract readonly kind: Kind;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** Somebody else holds the lock, and the call was not to wait. */
export class BusyError extends LockError {
  readonly kind = 'busy';
}

/** The lock was not granted in the time to wait. */
export class TimedOutError extends LockError {
  readonly kind = 'timed out';
}

/** The caller gave up. `name` is `AbortError`, as for everything that an AbortSignal ends. */
export class CancelledError extends LockError {
  readonly kind = 'cancelled';

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'AbortError';
  }
}

/** The hold ended before its holder gave it back: others may have worked at the same time. */
export class LostError extends LockError {
  readonly kind = 'lost';
}

/** Waiting could never end. The text has the cycle. */
export class DeadlockError extends LockError {
  readonly kind = 'deadlock';
}

/** The call is wrong: an option out of range, a key of another type, no permission. */
export class MisuseError extends LockError {
  readonly kind = 'misuse';
}

/** No connection, or a server that grants nothing now. */
export class UnavailableError extends LockError {
  readonly kind = 'unavailable';
}

const UNAVAILABLE = new Set([
  'UNBLOCKED', 'READONLY', 'QUARANTINE', 'NOREPLICAS', 'OOM', 'MISCONF', 'LOADING', 'TRYAGAIN', 'MASTERDOWN', 'CLUSTERDOWN',
]);

/** The error for what the server said. */
export function errorOf(text: string, cause: unknown): LockError {
  const prefix = text.split(' ', 1)[0] ?? '';
  if (prefix === 'NOTOWNER') return new LostError(text, { cause });
  if (prefix === 'DEADLOCK') return new DeadlockError(text, { cause });
  if (UNAVAILABLE.has(prefix) || (prefix === 'ERR' && text.includes('too many'))) return new UnavailableError(text, { cause });
  return new MisuseError(text, { cause });
}
