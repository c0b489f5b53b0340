// SPDX-License-Identifier: MIT

/** Locks of the redis-lock server module, after the Web Locks API.
 *
 * ```ts
 * const locks = new Locks(new Redis());
 * await locks.request('order:42', async (hold) => { … });
 * ```
 *
 * @packageDocumentation
 */

export type { Client, IoredisLike, NodeRedisLike } from './adapters.js';
export {
  BusyError, CancelledError, DeadlockError, type Kind, LockError, LostError, MisuseError, TimedOutError, UnavailableError,
} from './errors.js';
export type { LockEvent } from './events.js';
export type { Hold } from './hold.js';
export { type LockInfo, Locks, type Snapshot } from './locks.js';
export type { Options, RequestOptions } from './options.js';
