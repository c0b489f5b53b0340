// SPDX-License-Identifier: MIT

/** The kind of an error of a lock. */
export type Kind = 'busy' | 'timed out' | 'cancelled' | 'lost' | 'deadlock' | 'misuse' | 'unavailable';

/** An error of this package. Its text includes the server's text, if the server sent one. */
export abstract class LockError extends Error {
  abstract readonly kind: Kind;
}

/** Another owner holds the lock, and the call does not wait. */
export class BusyError extends LockError {
  readonly kind = 'busy';
  override readonly name = 'BusyError';
}

/** The wait reached its limit without a grant. */
export class TimedOutError extends LockError {
  readonly kind = 'timed out';
  override readonly name = 'TimedOutError';
}

/** The caller aborted the acquire or closed its `Locks`. The `cause` is the reason of the signal. The name is `AbortError`. */
export class CancelledError extends LockError {
  readonly kind = 'cancelled';
  override readonly name = 'AbortError';
}

/** The hold ended before its release: another owner may have worked at the same time. */
export class LostError extends LockError {
  readonly kind = 'lost';
  override readonly name = 'LostError';
}

/** Waiting could never end. The text names the cycle. */
export class DeadlockError extends LockError {
  readonly kind = 'deadlock';
  override readonly name = 'DeadlockError';
}

/** The call is wrong: an option, a key of another type, a missing permission, a server without the module. */
export class MisuseError extends LockError {
  readonly kind = 'misuse';
  override readonly name = 'MisuseError';
}

/** No server answered in time, or the server grants nothing now. */
export class UnavailableError extends LockError {
  readonly kind = 'unavailable';
  override readonly name = 'UnavailableError';
}

/** The key holds other data, so it is no lock. @internal */
export class Overwritten extends MisuseError {}

/** A repeated call may succeed in a moment: no connection, a failover, a slow script. @internal */
export class Transient extends UnavailableError {}

/** The server may have executed the call. @internal */
export class NoReply extends Transient {}

/** The server does not know the session: it has ended. @internal */
export class NoSession extends Transient {}

/** A later call of the session came first. @internal */
export class Late extends Transient {}

/** Another node of the cluster serves the key. @internal */
export class Moved extends Transient {}

type Kinds = new (text: string, options?: ErrorOptions) => LockError;

const KINDS = new Map<string, Kinds>([
  ['NOTOWNER', LostError], ['DEADLOCK', DeadlockError], ['CANCELLED', CancelledError], ['WRONGTYPE', Overwritten],
  ['NOSESSION', NoSession], ['LATE', Late], ['MOVED', Moved],
]);
const MISUSE = 'ERR NOPERM NOAUTH WRONGPASS CROSSSLOT';
const TRANSIENT = 'READONLY LOADING NOREPLICAS MISCONF BUSY TRYAGAIN MASTERDOWN CLUSTERDOWN QUARANTINE UNBLOCKED ASK';
for (const code of MISUSE.split(' ')) KINDS.set(code, MisuseError);
for (const code of TRANSIENT.split(' ')) KINDS.set(code, Transient);

/** Classes of the client libraries for an error that the server sent. */
const REPLIES = new Set(['ReplyError', 'ErrorReply', 'SimpleError', 'BlobError']);

/** The error of a lock for an error of the client library. @internal */
export function errorOf(cause: unknown): LockError {
  if (cause instanceof LockError) return cause;
  const { message, code }: { message: string; code?: unknown } = cause instanceof Error ? cause : { message: String(cause) };
  if (!(cause instanceof Error && REPLIES.has(cause.constructor.name))) {
    return new NoReply(`no reply from the server: ${message === '' ? String(code) : message}`, { cause });
  }
  const isUnknown = cause.message.startsWith('ERR unknown command');
  const text = isUnknown ? 'the server has no LOCK commands; load the redis-lock module' : cause.message;
  return new (KINDS.get(cause.message.split(' ', 1)[0] ?? '') ?? UnavailableError)(text, { cause });
}
