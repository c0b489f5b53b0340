// SPDX-License-Identifier: MIT

/** Locks in the shape of other APIs: Web Locks of the browser, and node-redlock. */

import { MisuseError } from './errors.js';
import { fieldsOf, type Hold, type LockInfo, type Locks } from './locks.js';
import type { LockOptions } from './request.js';

/** Options of `LockManager.request`: those of Web Locks, and those of a lock. Times are in milliseconds. */
export interface LockRequestOptions extends LockOptions {
  /** Does not wait: the callback gets null if another owner holds the lock. */
  ifAvailable?: boolean | undefined;
  /** Takes the lock from its holders, and waits. Earlier waiters are served first, unlike in a browser. */
  steal?: boolean | undefined;
  /** Ends the wait when it is aborted. */
  signal?: AbortSignal | undefined;
}

/** The holds and waits of one or all locks. */
export interface LockManagerSnapshot {
  held: { name: string; mode: 'exclusive' | 'shared'; clientId: string }[];
  /** In the order of the queue. */
  pending: { name: string; mode: 'exclusive' | 'shared'; clientId: string }[];
}

/** Locks in the shape of `navigator.locks`. The `clientId` is the owner. */
export class LockManager {
  readonly #locks: Locks;

  constructor(locks: Locks) {
    this.#locks = locks;
  }

  /** Holds the lock until the result of the callback is settled. Rejects with a `LostError` if the hold was lost meanwhile. */
  async request<T>(name: string, callback: (hold: Hold) => T | Promise<T>): Promise<T>;
  async request<T>(
    name: string,
    options: LockRequestOptions & { ifAvailable: true },
    callback: (hold: Hold | null) => T | Promise<T>,
  ): Promise<T>;
  async request<T>(name: string, options: LockRequestOptions, callback: (hold: Hold) => T | Promise<T>): Promise<T>;
  async request<T>(name: string, ...rest: unknown[]): Promise<T> {
    const callback = rest.pop() as (hold: Hold | null) => T | Promise<T>;
    const { ifAvailable = false, steal = false, signal, ...options } = (rest[0] ?? {}) as LockRequestOptions;
    if (steal && ifAvailable) throw new MisuseError('steal and ifAvailable exclude each other');
    const lock = this.#locks.lock(name, options);
    if (ifAvailable) return lock.tryRun(callback, { signal });
    if (steal) await lock.forceRelease();
    return lock.run(callback, { signal });
  }

  /** The holders and waiters of a lock; without a name, of all locks, which needs the permission for `LOCK.SCAN`. */
  async query(name?: string): Promise<LockManagerSnapshot> {
    const snapshots = await Promise.all((name === undefined ? await this.#names() : [name]).map((one) => this.#query(one)));
    return { held: snapshots.flatMap(({ held }) => held), pending: snapshots.flatMap(({ pending }) => pending) };
  }

  async #names(): Promise<string[]> {
    const names = new Set<string>();
    let cursor = '0';
    do {
      const [next, found] = (await this.#locks.core.execute('', 'LOCK.SCAN', cursor)) as [unknown, unknown[]];
      for (const one of found) names.add(String(fieldsOf(one)['key']));
      cursor = String(next);
    } while (cursor !== '0');
    return [...names];
  }

  async #query(name: string): Promise<LockManagerSnapshot> {
    const [info, waiters] = await Promise.all([
      this.#locks.lock(name).query(),
      this.#locks.core.execute(name, 'LOCK.WAITERS', name, 'COUNT', '1000000'),
    ]);
    type Member = LockInfo['holders'][number];
    const listed = (all: Member[]) => all.map(({ mode, owner }) => ({ name, mode, clientId: owner }));
    return { held: listed(info?.holders ?? []), pending: listed((waiters as unknown[]).map(fieldsOf) as unknown as Member[]) };
  }
}

/** A lock of `Redlock`. */
export class RedlockLock {
  constructor(readonly hold: Hold, readonly resources: string[], public expiration: number) {}

  async release(): Promise<void> {
    await this.hold.release();
  }

  /** Sets the lease, in milliseconds from now. Returns this lock. */
  async extend(duration: number): Promise<this> {
    await this.hold.extend(duration);
    this.expiration = Date.now() + duration;
    return this;
  }
}

/** Locks in the shape of node-redlock 5. They wait in the queue, for `wait` milliseconds at most: 2000 by default. */
export class Redlock {
  readonly #locks: Locks;
  readonly #wait: number;

  constructor(locks: Locks, { wait = 2000 }: { wait?: number } = {}) {
    this.#locks = locks;
    this.#wait = wait;
  }

  /** Acquires all the resources with a lease. */
  async acquire(resources: string[], duration: number): Promise<RedlockLock> {
    const hold = await this.#locks.lock(resources, { lease: duration, wait: this.#wait }).acquire();
    return new RedlockLock(hold, resources, Date.now() + duration);
  }

  /** Holds all the resources while the routine runs. The server renews the hold, so the duration is not used. */
  async using<T>(resources: string[], _duration: number, routine: (signal: AbortSignal) => Promise<T>): Promise<T> {
    return this.#locks.lock(resources, { wait: this.#wait }).run((hold) => routine(hold.signal));
  }

  async quit(): Promise<void> {
    await this.#locks.close();
  }
}
