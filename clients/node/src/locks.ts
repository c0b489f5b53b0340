// SPDX-License-Identifier: MIT

import type { Acquire } from './acquire.js';
import type { Client } from './clients.js';
import { Core, type LocksOptions } from './core.js';
import { BusyError, MisuseError, TimedOutError } from './errors.js';
import { check, type LockOptions, type Name, refuse, Request } from './request.js';
import type { Session } from './session.js';

/** Options of one acquire. */
export interface AcquireOptions {
  /** Limit of the wait in milliseconds, in place of that of the lock. */
  wait?: number | undefined;
  /** Ends the wait when it is aborted. */
  signal?: AbortSignal | undefined;
}

/** The state of a lock on the server. */
export interface LockInfo {
  mode: 'exclusive' | 'shared';
  ttl: number;
  token: number | null;
  waiters: number;
  holders: { owner: string; mode: 'exclusive' | 'shared'; holds: number; ttl: number; session: string | null }[];
}

const dropped = new FinalizationRegistry<Acquire>((acquire) => {
  if (!acquire.is('held') || acquire.session.closed) return;
  acquire.session.end(acquire, 'released', true);
  const text = `the hold of ${acquire.request.name} was never released; use \`await using\`, run() or request()`;
  process.emitWarning(text, { type: 'ResourceWarning', code: 'REDIS_LOCK_DROPPED' });
});

/** A lock that is held. A hold that is dropped without a release is released later, with a `ResourceWarning`. */
export class Hold {
  readonly #core: Core;
  readonly #acquire: Acquire;

  /** @internal */
  constructor(core: Core, acquire: Acquire) {
    this.#core = core;
    this.#acquire = acquire;
    dropped.register(this, acquire, acquire);
  }

  /** The key of the lock, or of the first of several locks. */
  get key(): Name {
    return this.#acquire.request.key;
  }

  /** The name of the holder on the server. */
  get owner(): Name {
    return this.#acquire.owner.name;
  }

  /** With `fence`, a number greater than those of all earlier grants, or a list of numbers for several locks. */
  get token(): number | number[] | undefined {
    return this.#acquire.token;
  }

  /** A signal that is aborted when the hold is lost. Its reason is a `LostError`. A release does not abort it. */
  get signal(): AbortSignal {
    return this.#acquire.signal;
  }

  /** Whether the hold ended before its release, so that another owner may have the lock. */
  get isLost(): boolean {
    return this.#acquire.isLost;
  }

  /** Milliseconds for which no other owner can have the lock, even if the network fails.
   *
   *  0 means that nothing is proven: the hold is in jeopardy, lost or released, or `grace` is 0. */
  get validFor(): number {
    return this.#session.validFor(this.#acquire);
  }

  /** Releases exactly this hold. May be called again.
   *
   *  Rejects with a `LostError` if the hold ended before, and with an `UnavailableError` if no server answered within the
   *  patience. Then the release continues in the background. */
  release(): Promise<void> {
    dropped.unregister(this.#acquire);
    return this.#session.release(this.#acquire);
  }

  /** Sets the lease, in milliseconds from now. Without an argument, repeats the lease of the lock or checks a renewed hold.
   *
   *  Rejects with a `LostError`, an `UnavailableError`, or a `MisuseError` if the server renews the hold and a lease is given. */
  async extend(lease?: number): Promise<void> {
    const own = this.#acquire.request.options.lease;
    if (lease !== undefined) check('lease', lease, 1);
    if (lease !== undefined && own === undefined) throw new MisuseError('the server renews this hold; use the option lease');
    await this.#session.renew(this.#acquire, lease ?? own);
  }

  /** Runs a Redis command in one step with the check of the holder. Rejects with a `LostError` if the lock is lost. */
  async guard(...command: [string, ...Name[]]): Promise<unknown> {
    if (this.isLost) throw this.#acquire.lost();
    if (this.#acquire.request.several) throw new MisuseError('a guarded command works with one lock');
    return this.#core.execute(this.key, 'LOCK.GUARD', this.key, 'OWNER', this.owner, ...command);
  }

  /** Returns a ticket, with which another process takes over this hold by `attach`.
   *
   *  Until then this process keeps the hold alive. `release` has no effect any longer. Throws a `LostError` if the hold ended. */
  handOver(): string {
    return this.#core.ticket(this.#acquire);
  }

  /** Releases the hold. A failure is a warning, because an error here would hide an error of the block. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch((error: unknown) => process.emitWarning(String(error), { code: 'REDIS_LOCK_RELEASE' }));
  }

  /** Releases the hold once the callback has ended. @internal */
  async during<T>(callback: (hold: Hold) => T | Promise<T>): Promise<T> {
    const { scopes } = this.#core;
    const scope = { hold: this.#acquire, outer: scopes.getStore(), isListener: this.#acquire.isSilent };
    let result: T;
    try {
      result = await scopes.run(scope, callback, this);
    } catch (error) {
      // The error of the callback says more.
      await this.release().catch(() => undefined);
      throw error;
    }
    await this.release();
    return result;
  }

  get #session(): Session {
    return this.#acquire.session;
  }
}

/** A lock, or several locks at once, with options. Concurrent tasks may share it. */
export class Lock {
  readonly #core: Core;
  readonly #request: Request;

  /** @internal */
  constructor(core: Core, request: Request) {
    this.#core = core;
    this.#request = request;
  }

  /** Waits for the lock.
   *
   *  Rejects with a `TimedOutError` (after a wait of 0 with a `BusyError`), `DeadlockError`, `CancelledError`, `MisuseError` or
   *  `UnavailableError`. An aborted acquire rejects at once, and is undone in the background. */
  async acquire({ wait = this.#request.options.wait, signal, ...others }: AcquireOptions = {}): Promise<Hold> {
    refuse(others);
    const acquire = await this.#core.acquire(this.#request, wait, signal);
    if (acquire !== null) return new Hold(this.#core, acquire);
    throw new (wait === 0 ? BusyError : TimedOutError)(`${this.#request.name}: another owner holds the lock`);
  }

  /** Returns a hold, or null if another owner holds the lock. Does not wait, unless a `wait` is given. */
  async tryAcquire({ wait = 0, signal, ...others }: AcquireOptions = {}): Promise<Hold | null> {
    refuse(others);
    const acquire = await this.#core.acquire(this.#request, wait, signal);
    return acquire && new Hold(this.#core, acquire);
  }

  /** Holds the lock while the callback runs. An error of the callback is passed on, otherwise a loss rejects with a `LostError`.
   *
   *  Acquires inside the callback have the same owner, so that the server detects deadlocks. */
  async run<T>(callback: (hold: Hold) => T | Promise<T>, options?: AcquireOptions): Promise<T> {
    if (typeof callback !== 'function') throw new MisuseError('run needs a callback');
    return (await this.acquire(options)).during(callback);
  }

  /** Runs the callback with a hold, or with null if another owner holds the lock. Waits only if a `wait` is given. */
  async tryRun<T>(callback: (hold: Hold | null) => T | Promise<T>, options?: AcquireOptions): Promise<T> {
    if (typeof callback !== 'function') throw new MisuseError('tryRun needs a callback');
    const hold = await this.tryAcquire(options);
    return hold === null ? callback(null) : hold.during(callback);
  }

  /** Takes over a hold that another process has handed over. Rejects with a `LostError` if it has ended. */
  async attach(ticket: string): Promise<Hold> {
    return new Hold(this.#core, await this.#core.attach(this.#request, ticket));
  }

  /** The holders, waiters and more, by `LOCK.INFO`. Null if the lock is free. */
  async query(): Promise<LockInfo | null> {
    const { key } = this.#request;
    const reply = await this.#core.execute(key, 'LOCK.INFO', key);
    if (reply === null) return null;
    const info = fieldsOf(reply);
    return { ...info, holders: (info['holders'] as unknown[]).map(fieldsOf) } as unknown as LockInfo;
  }

  /** Takes the lock from its holders, by `LOCK.BREAK`. Returns whether there was one. */
  async forceRelease(): Promise<boolean> {
    const { key } = this.#request;
    return Number(await this.#core.execute(key, 'LOCK.BREAK', key)) > 0;
  }
}

/** A map is a list in RESP2. */
export function fieldsOf(reply: unknown): Record<string, unknown> {
  if (reply instanceof Map) return Object.fromEntries(reply) as Record<string, unknown>;
  if (!Array.isArray(reply)) return (reply ?? {}) as Record<string, unknown>;
  const pairs = reply.flatMap((name, index) => (index % 2 === 0 ? [[String(name), reply[index + 1] as unknown]] : []));
  return Object.fromEntries(pairs) as Record<string, unknown>;
}

/** The locks of this process on the server, the Sentinel primary or the cluster of a client.
 *
 *  All waits and holds of the process share one session for each server. The client's library makes its connections. */
export class Locks {
  /** @internal */
  readonly core: Core;

  /** Throws a `MisuseError` if the client or an option is wrong. Connects at the first acquire. */
  constructor(client: Client, options: LocksOptions = {}) {
    this.core = new Core(client, options);
  }

  /** A lock with options. Several keys are granted together or not at all, without deadlocks in any order.
   *
   *  Throws a `MisuseError` if the options do not fit together. Acquires nothing yet. */
  lock(keys: Name | readonly Name[], options: LockOptions = {}): Lock {
    return new Lock(this.core, new Request(keys, options));
  }

  /** Ends all waits and renewed holds, the sessions and their connections. A hold with a lease remains until its lease ends. */
  async close(): Promise<void> {
    await this.core.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
