// SPDX-License-Identifier: MIT

/** A store for Verrou: `new Verrou({ stores: { redis: { driver: store(locks) } } })`. */

import { E_LOCK_NOT_OWNED } from '@verrou/core';
import type { LockStore, StoreFactory } from '@verrou/core/types';
import { LostError } from './errors.js';
import type { Hold } from './hold.js';
import type { Locks } from './locks.js';

/** Keeps Verrou's locks. Verrou asks again until it gets one. A lock without a time to live is kept by client and server as long as
 *  this process lives.
 *  @param prefix stands before the keys: Verrou's own store for Redis keeps something else under them */
export class RedisLockStore implements LockStore {
  readonly #kept = new Map<string, Hold>();

  constructor(
    private readonly locks: Locks,
    private readonly prefix = 'verrou:',
  ) {}

  async save(key: string, owner: string, ttl: number | null): Promise<boolean> {
    const name = this.prefix + key;
    if (!(await this.locks.tryAs(name, owner, ttl ?? undefined))) return false;
    if (ttl === null) this.#kept.set(`${key} ${owner}`, await this.locks.attach(name, owner));
    return true;
  }

  async delete(key: string, owner: string): Promise<void> {
    const kept = this.#kept.get(`${key} ${owner}`);
    this.#kept.delete(`${key} ${owner}`);
    await orNotOwned(kept !== undefined ? kept.release() : this.locks.releaseAs(this.prefix + key, owner));
  }

  async forceDelete(key: string): Promise<void> {
    await this.locks.break(this.prefix + key);
  }

  async exists(key: string): Promise<boolean> {
    return (await this.locks.query(this.prefix + key)).held.length > 0;
  }

  async extend(key: string, owner: string, duration: number): Promise<void> {
    await orNotOwned(this.locks.extendAs(this.prefix + key, owner, duration));
  }

  async disconnect(): Promise<void> {
    await this.locks.close();
  }
}

/** What Verrou takes as a driver. */
export function store(locks: Locks, prefix?: string): StoreFactory {
  return { driver: { factory: () => new RedisLockStore(locks, prefix) } };
}

async function orNotOwned(work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (error) {
    if (error instanceof LostError) throw new E_LOCK_NOT_OWNED();
    throw error;
  }
}
