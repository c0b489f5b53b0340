// SPDX-License-Identifier: MIT

/** Locks of the redis-lock server module.
 *
 * ```ts
 * const locks = new Locks(new Redis());
 * await locks.lock('order:42').run(async (hold) => { … });
 * ```
 *
 * @packageDocumentation
 */

export { LockManager, type LockManagerSnapshot, type LockRequestOptions, Redlock, RedlockLock } from './adapters.js';
export {
  BusyError, CancelledError, DeadlockError, type Kind, LockError, LostError, MisuseError, TimedOutError, UnavailableError,
} from './errors.js';
export type { Client } from './clients.js';
export type { LocksOptions } from './core.js';
export { type AcquireOptions, Hold, Lock, type LockInfo, Locks } from './locks.js';
export type { LockOptions, Name } from './request.js';
export type { LockEvent } from './session.js';
