// SPDX-License-Identifier: MIT

/** A store of Verrou (`@verrou/core`) with locks of the redis-lock server module. */

import { E_LOCK_NOT_OWNED } from '@verrou/core';
import type { LockStore } from '@verrou/core/types';
import { DeadlockError, LostError } from './errors.js';
import type { Hold, Locks } from './locks.js';
import { ms } from './request.js';

/** A store for Verrou's `stores`. The `prefix` keeps its locks apart from the strings of Verrou's own Redis store. */
export function redisLockStore(locks: Locks, { prefix = 'redis-lock:' } = {}): { driver: { factory: () => LockStore } } {
  return { driver: { factory: () => new RedisLockStore(locks, prefix) } };
}

/** A lock without a time to live is renewed while its process lives. Owners of other processes are found by their names. */
export class RedisLockStore implements LockStore {
  readonly #locks: Locks;
  readonly #prefix: string;
  readonly #holds = new Map<string, Hold>();

  constructor(locks: Locks, prefix: string) {
    this.#locks = locks;
    this.#prefix = prefix;
  }

  async save(key: string, owner: string, ttl: number | null): Promise<boolean> {
    const hold = await this.#locks.lock(this.#prefix + key, { owner, lease: ttl ?? undefined }).tryAcquire().catch(busy);
    if (hold !== null) this.#holds.set(`${owner} ${key}`, hold);
    return hold !== null;
  }

  async delete(key: string, owner: string): Promise<void> {
    const hold = this.#holds.get(`${owner} ${key}`);
    this.#holds.delete(`${owner} ${key}`);
    await owned(hold?.release() ?? this.#execute(key, 'LOCK.RELEASE', owner));
  }

  async forceDelete(key: string): Promise<void> {
    await this.#locks.lock(this.#prefix + key).forceRelease();
  }

  async exists(key: string): Promise<boolean> {
    return (await this.#locks.lock(this.#prefix + key).query()) !== null;
  }

  async extend(key: string, owner: string, duration: number): Promise<void> {
    const hold = this.#holds.get(`${owner} ${key}`);
    await owned(hold?.extend(duration) ?? this.#execute(key, 'LOCK.RENEW', owner, 'PX', ms(duration)));
  }

  #execute(key: string, verb: string, ...words: string[]): Promise<unknown> {
    return this.#locks.core.execute(this.#prefix + key, verb, this.#prefix + key, ...words);
  }
}

/** An owner that has the lock already is no different from another one to Verrou. */
function busy(error: unknown): null {
  if (error instanceof DeadlockError) return null;
  throw error;
}

async function owned(work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (error) {
    if (error instanceof LostError) throw new E_LOCK_NOT_OWNED();
    throw error;
  }
}
