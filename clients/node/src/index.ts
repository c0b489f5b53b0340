// SPDX-License-Identifier: MIT

/** Locks of the redis-lock server module, after the Web Locks API.
 *
 * ```ts
 * const locks = new Locks(new Redis());
 * await locks.request('order:42', async (hold) => { … });
 * ```
 */

export type { Client, IoredisLike, NodeRedisLike } from './adapters.js';
export {
  BusyError, CancelledError, DeadlockError, type Kind, LockError, LostError, MisuseError, TimedOutError, UnavailableError,
} from './errors.js';
export { Hold } from './hold.js';
export { type LockEvent, Locks, type Options, type RequestOptions, type Snapshot } from './locks.js';
