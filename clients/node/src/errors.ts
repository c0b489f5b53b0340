// SPDX-License-Identifier: MIT

/** What can go wrong with a lock. */
export type Kind = 'busy' | 'timed out' | 'cancelled' | 'lost' | 'deadlock' | 'misuse' | 'unavailable';

/** All errors of this package. The text is the server's where it said something. */
export abstract class LockError extends Error {
  abstract readonly kind: Kind;
}

/** Somebody else holds the lock, and the call was not to wait. */
export class BusyError extends LockError {
  readonly kind = 'busy';
  override readonly name = 'BusyError';
}

/** The lock was not granted in the time to wait. */
export class TimedOutError extends LockError {
  readonly kind = 'timed out';
  override readonly name = 'TimedOutError';
}

/** The caller gave up. The `cause` is the signal's reason; the name is `AbortError`, as for all that an AbortSignal ends. */
export class CancelledError extends LockError {
  readonly kind = 'cancelled';
  override readonly name = 'AbortError';
}

/** The hold ended before its holder gave it back: others may have worked at the same time. */
export class LostError extends LockError {
  readonly kind = 'lost';
  override readonly name = 'LostError';
}

/** Waiting could never end. The text has the cycle. */
export class DeadlockError extends LockError {
  readonly kind = 'deadlock';
  override readonly name = 'DeadlockError';
}

/** What the call says is wrong: an option out of range, a key of another type, no permission. */
export class MisuseError extends LockError {
  readonly kind = 'misuse';
  override readonly name = 'MisuseError';
}

/** No connection, or a server that grants nothing now. */
export class UnavailableError extends LockError {
  readonly kind = 'unavailable';
  override readonly name = 'UnavailableError';
}

/** It may be otherwise soon: the call may be sent again. @internal */
export class Passing extends UnavailableError {}

/** No reply came, or one of a server that serves nobody: the call may be sent again on the next connection. @internal */
export class Disconnected extends Passing {}

/** The server says itself that it serves nobody, or that another has the lock. @internal */
export class Elsewhere extends Disconnected {}

/** What the server says to one connection too many, which it closes. The next may be served. @internal */
export const FULL = 'max number of clients';

/** What the client libraries call an error that the server sent. */
const REPLIES = ['ReplyError', 'ErrorReply', 'SimpleError', 'BlobError'];

/** The error for what the server or the client library said. A guarded command may say anything: it speaks of itself, and not of
 *  the connection. @internal */
export function errorOf(cause: unknown, guarded = false): LockError {
  if (cause instanceof LockError) return cause;
  const text = cause instanceof Error ? cause.message || String((cause as NodeJS.ErrnoException).code) : String(cause);
  const isReply = cause instanceof Error && REPLIES.includes(cause.constructor.name);
  const Broken = isReply && guarded ? UnavailableError : Elsewhere;
  // What the server itself says begins with a word in capitals; what a library says of a connection does not.
  switch (/^[A-Z]{2,}(?= )/.exec(text)?.[0]) {
    case undefined:
      return isReply ? new UnavailableError(text, { cause }) : new Disconnected(`the connection is lost: ${text}`, { cause });
    case 'READONLY':
    case 'MASTERDOWN':
    case 'LOADING':
      return new Broken(text, { cause });
    case 'UNBLOCKED':
      // A call that comes late, on a connection that was given up, takes the place of that which was sent after it.
      if (text.includes('the same request was sent again')) return new Disconnected(text, { cause });
      // Another server has the lock now, in Redis' words and in the module's. Whom somebody unblocks is told otherwise.
      return new (/instance state changed|send the command/.test(text) ? Broken : UnavailableError)(text, { cause });
    case 'NOREPLICAS':
    case 'BUSY':
      // After a failover the new primary has none for some seconds; and a script may run for long.
      return new Passing(text, { cause });
    case 'NOTOWNER':
      return new LostError(text, { cause });
    case 'DEADLOCK':
      return new DeadlockError(text, { cause });
    case 'ERR':
    case 'WRONGTYPE':
    case 'NOPERM':
      if (text.includes(FULL)) return new Broken(text, { cause });
      return new (text.includes('too many') ? UnavailableError : MisuseError)(text, { cause });
    default:
      return new UnavailableError(text, { cause });
  }
}
