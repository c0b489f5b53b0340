// SPDX-License-Identifier: MIT

/** A store of Verrou (`@verrou/core`) whose locks are this server's. */

import { E_LOCK_NOT_OWNED } from '@verrou/core';
import type { LockStore } from '@verrou/core/types';
import { LostError } from './errors.js';
import type { Hold } from './hold.js';
import type { Locks } from './locks.js';
import type { Options } from './options.js';

/** For Verrou's `stores`. A `prefix` keeps its locks apart from the strings of Verrou's own Redis store. */
export function redisLockStore(locks: Locks, { prefix = 'redis-lock:' } = {}): { driver: { factory: () => LockStore } } {
  return { driver: { factory: () => new RedisLockStore(locks, prefix) } };
}

/** A lock without a time to live is kept for as long as its process lives. */
export class RedisLockStore implements LockStore {
  readonly #locks: Locks;
  readonly #prefix: string;
  readonly #holds = new Map<string, Hold>();

  constructor(locks: Locks, prefix: string) {
    this.#locks = locks;
    this.#prefix = prefix;
  }

  async save(key: string, owner: string, ttl: number | null): Promise<boolean> {
    const hold = await this.#locks.tryAcquire(this.#prefix + key, { owner, ...(ttl === null ? {} : { lease: ttl }) });
    if (hold !== null) this.#remember(key, hold);
    return hold !== null;
  }

  async delete(key: string, owner: string): Promise<void> {
    // It may be one that another process keeps.
    await owned(async () => (await this.#hold(key, owner, { keep: true })).release());
    this.#holds.delete(`${owner} ${key}`);
  }

  async forceDelete(key: string): Promise<void> {
    const { held } = await this.#locks.query(this.#prefix + key);
    for (const { owner } of held) {
      await this.delete(key, owner).catch((error: unknown) => {
        if (!(error instanceof E_LOCK_NOT_OWNED)) throw error;
      });
    }
  }

  async exists(key: string): Promise<boolean> {
    return (await this.#locks.query(this.#prefix + key)).held.length > 0;
  }

  async extend(key: string, owner: string, duration: number): Promise<void> {
    await owned(async () => (await this.#hold(key, owner, { lease: duration })).extend(duration));
  }

  /** That of an owner in another process becomes ours. */
  async #hold(key: string, owner: string, options: Options): Promise<Hold> {
    const ours = this.#holds.get(`${owner} ${key}`);
    if (ours !== undefined) return ours;
    const hold = await this.#locks.attach(this.#prefix + key, owner, options);
    this.#remember(key, hold);
    return hold;
  }

  #remember(key: string, hold: Hold): void {
    const id = `${hold.owner} ${key}`;
    this.#holds.set(id, hold);
    hold.signal.addEventListener('abort', () => this.#holds.get(id) === hold && this.#holds.delete(id));
  }
}

async function owned(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (error instanceof LostError) throw new E_LOCK_NOT_OWNED();
    throw error;
  }
}
