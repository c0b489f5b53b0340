// SPDX-License-Identifier: MIT

import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import {
  BusyError, CancelledError, DeadlockError, errorOf, type Kind, LockError, MisuseError, Moved, TimedOutError, UnavailableError,
} from './errors.js';
import { type Client, Io, type Node, type Nodes, nodesOf } from './io.js';
import { check, type LockOptions, type Name, Request } from './request.js';
import {
  Acquire, GRACE, type LockEvent, now, Owner, PATIENCE, RETRY_PAUSE, Session, type SessionOptions, sleep, TTL,
} from './session.js';

/** Options of `Locks`. Times are in milliseconds. */
export interface LocksOptions {
  /** The name of the session for operators: `<host>/<pid>/<random>` by default. */
  name?: string | undefined;
  /** The session ends if the process is silent for this time: 30,000 by default. */
  ttl?: number | undefined;
  /** The session ends if its connection stays closed for this time: 3000 by default. With 0, nothing is ever proven. */
  grace?: number | undefined;
  /** Limit for a try or a release, and for a wait without a limit while no server answers: 5000 by default. */
  patience?: number | undefined;
  /** Gets the duration and outcome of each wait and hold, and the begin and the end of jeopardy. Errors become warnings. */
  listener?: ((event: LockEvent) => void) | undefined;
}

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

/** A scope form in which code runs, and its hold. */
interface Scope {
  readonly hold: Acquire;
  readonly outer: Scope | undefined;
}

/** Ends of a wait that are final. After all others, the wait continues with a new number. */
const FINAL: Record<string, new (text: string) => LockError> = {
  deadlock: DeadlockError, noreplicas: UnavailableError, refused: MisuseError,
};

/** The sessions of a client, and the verbs of its locks. @internal */
export class Core {
  readonly nodes: Nodes;
  readonly scopes = new AsyncLocalStorage<Scope>();
  readonly #options: SessionOptions;
  readonly #sessions = new Map<string, Session>();
  #lastOwner = 0;
  closed = false;

  constructor(client: Client, { name, ttl = TTL, grace = GRACE, patience = PATIENCE, listener }: LocksOptions) {
    for (const [option, time] of Object.entries({ ttl, patience })) check(option, time, 1);
    check('grace', grace, 0);
    if (grace > ttl) throw new MisuseError('grace must be at most ttl');
    const notify = (event: LockEvent): void => {
      if (listener === undefined) return;
      queueMicrotask(() => {
        try {
          listener(event);
        } catch (error) {
          process.emitWarning(`the listener of locks failed: ${String(error)}`, { code: 'REDIS_LOCK_LISTENER' });
        }
      });
    };
    this.nodes = nodesOf(client);
    const random = randomBytes(4).toString('hex');
    this.#options = { name: name ?? `${hostname()}/${process.pid}/${random}`, ttl, grace, patience, notify };
  }

  /** The session on the node that serves the key. */
  #sessionOf(key: Name): Session | Promise<Session> {
    const { only } = this.nodes;
    if (only !== undefined) return this.#sessionAt(only);
    return this.nodes.find(key).then((node) => this.#sessionAt(node), (error: unknown) => Promise.reject(errorOf(error)));
  }

  #sessionAt(node: Node): Session {
    if (this.closed) throw new MisuseError('the locks are closed; make new ones');
    let session = this.#sessions.get(node.name);
    if (session === undefined) {
      session = new Session(new Io(node), this.#options, (...moved) => this.#relocate(...moved));
      this.#sessions.set(node.name, session);
    }
    return session;
  }

  /** Moves acquires to the sessions of the nodes that serve their slots now. While a slot moves key by key, its node is asked
   *  again for the patience, if the acquires have certainly left the old one. */
  async #relocate(from: Session, acquires: Acquire[], haveLeft: boolean): Promise<void> {
    if (this.nodes.only !== undefined) return;
    await Promise.all(acquires.filter(({ isMoving }) => !isMoving).map(async (acquire) => {
      acquire.isMoving = true;
      await this.#move(from, acquire, haveLeft ? now() + this.#options.patience : 0);
      acquire.isMoving = false;
    }));
  }

  async #move(from: Session, acquire: Acquire, giveUp: number): Promise<void> {
    const [key] = acquire.request.keys as [Name];
    while (from.has(acquire)) {
      const session = await this.nodes.refresh(key).then(() => this.#sessionOf(key)).catch(() => from);
      if (session !== from && acquire.state === 'asked') {
        return from.interrupt(acquire, new Moved(`${acquire.request.name}: another node serves the key`));
      }
      if (session !== from || (giveUp > 0 && now() >= giveUp)) return session.adopt(acquire);
      if (giveUp === 0) return;
      await sleep(RETRY_PAUSE);
    }
  }

  /** The owner of an acquire. In nested scopes it is that of the outer ones, so that the server detects their deadlocks. */
  #owner({ options: { owner } }: Request): Owner {
    if (owner !== undefined) return new Owner(owner);
    let scope = this.scopes.getStore();
    const outer = scope?.hold.owner;
    if (outer !== undefined && !outer.retired) {
      let enclosing = 0;
      for (; scope !== undefined; scope = scope.outer) if (outer.live.has(scope.hold)) enclosing += 1;
      // Concurrent branches of a scope may wait for each other, so each has an owner of its own.
      if (enclosing === outer.live.size) return outer;
    }
    this.#lastOwner += 1;
    return new Owner(`${this.#options.name}:${this.#lastOwner}`);
  }

  /** The hold, or null if the limit of the wait is over. */
  async acquire(request: Request, wait = request.options.wait, signal?: AbortSignal): Promise<Acquire | null> {
    if (wait !== undefined) check('wait', wait, 0);
    if (signal !== undefined && !(signal instanceof AbortSignal)) throw new MisuseError('signal must be an AbortSignal');
    const began = now();
    let outcome: string = 'unavailable' satisfies Kind;
    try {
      const hold = await this.#acquire(request, wait ?? Infinity, began, signal);
      outcome = hold !== null ? 'granted' : wait === 0 ? 'busy' : 'timed out';
      return hold;
    } catch (error) {
      if (error instanceof LockError) outcome = error.kind;
      throw error;
    } finally {
      this.#options.notify({ label: request.options.label, event: 'waited', outcome, ms: now() - began });
    }
  }

  async #acquire(request: Request, wait: number, began: number, signal?: AbortSignal): Promise<Acquire | null> {
    for (;;) {
      if (signal?.aborted === true) throw cancelled(request, signal);
      const asked = await this.#untilFound(request.keys[0] as Name, () => {
        const left = wait === 0 ? 0 : Math.max(1, began + wait - now());
        return this.#ask(new Acquire(request, this.#owner(request), wait === 0, left), signal);
      });
      if (asked.state === 'held') return this.#checked(asked);
      if (asked.reason === 'timeout') return null;
      const Final = FINAL[asked.reason];
      if (Final !== undefined) throw new Final(`${request.name}: the wait ended (${asked.reason})`);
    }
  }

  /** Repeats an attempt, each with a new number, while the cluster says that another node serves the key. */
  async #untilFound(key: Name, attempt: () => Promise<Acquire>): Promise<Acquire> {
    const giveUp = now() + this.#options.patience;
    for (;;) {
      try {
        return await attempt();
      } catch (error) {
        if (!(error instanceof Moved) || now() >= giveUp) throw error;
        await this.nodes.refresh(key);
        await sleep(RETRY_PAUSE);
      }
    }
  }

  async #ask(asked: Acquire, signal?: AbortSignal): Promise<Acquire> {
    const [key] = asked.request.keys as [Name];
    const found = this.#sessionOf(key);
    const session = found instanceof Session ? found : await found;
    const attempt = session.ask(asked);
    let forget: (() => void) | undefined;
    try {
      if (signal === undefined) await attempt;
      else await Promise.race([attempt, new Promise<never>((_, reject) => {
        forget = onAbort(signal, () => {
          const error = cancelled(asked.request, signal);
          session.interrupt(asked, error);
          reject(error);
        });
      })]);
      return asked;
    } catch (error) {
      attempt.catch(() => undefined);
      await session.cancel(asked);
      throw error;
    } finally {
      forget?.();
    }
  }

  async #checked(hold: Acquire): Promise<Acquire> {
    const { at, request: { name, options: { reentrant, lease } } } = hold;
    if (hold.holds > 1 && reentrant !== true) {
      await at?.session.release(hold);
      throw new DeadlockError(`${name}: this owner has the lock already; release it first, or use the option reentrant`);
    }
    // The grant waited for the reader, and its lease was running.
    if (lease !== undefined && hold.leaseEnds - now() < lease / 2) await at?.session.renew(hold, lease);
    return hold;
  }

  async attach(request: Request, ticket: string): Promise<Acquire> {
    const [owner = '', n = '', ...name] = ticket.split('|');
    if (!/^\d+$/.test(n)) throw new MisuseError('the ticket was not made by handOver()');
    const source = ['FROM', name.join('|'), n];
    const asked = await this.#untilFound(request.keys[0] as Name, () =>
      this.#ask(new Acquire(request, new Owner(Buffer.from(owner, 'hex')), false, Infinity, source)));
    if (asked.state !== 'held') throw asked.lost();
    return asked;
  }

  ticket(hold: Acquire): string {
    if (hold.state !== 'held' || hold.isLost || hold.at === undefined) throw hold.lost();
    if (hold.request.several) throw new MisuseError('several locks cannot be handed over together');
    hold.handedOver = hold.owner.retired = true;
    return `${Buffer.from(hold.owner.name as string).toString('hex')}|${hold.at.n}|${this.#options.name}`;
  }

  async execute(key: Name, ...words: Name[]): Promise<unknown> {
    try {
      return await this.nodes.execute(key, words);
    } catch (error) {
      throw errorOf(error);
    }
  }

  async close(): Promise<void> {
    this.closed = true;
    await Promise.all([...this.#sessions.values()].map((session) => session.close()));
  }
}

/** Age in milliseconds at which the garbage collector begins to report that a hold was dropped. */
const WATCH_AFTER = 100;

const dropped = new FinalizationRegistry<{ core: Core; acquire: Acquire }>(({ core, acquire }) => {
  if (acquire.state !== 'held' || acquire.handedOver || core.closed) return;
  acquire.at?.session.drop(acquire);
  const text = `the hold of ${acquire.request.name} was never released; use \`await using\`, run() or request()`;
  process.emitWarning(text, { type: 'ResourceWarning', code: 'REDIS_LOCK_DROPPED' });
});

/** New holds. Most are released soon, and their registration would cost more than their calls. */
const fresh = new Set<Hold>();
let sweep: NodeJS.Timeout | undefined;

function watch(hold: Hold): void {
  fresh.add(hold);
  sweep ??= setTimeout(() => {
    sweep = undefined;
    for (const each of fresh) each.watch();
    fresh.clear();
  }, WATCH_AFTER).unref();
}

/** The callbacks of each signal. They share one listener, as Node warns of many. */
const abortCallbacks = new WeakMap<AbortSignal, { callbacks: Set<() => void>; listener: () => void }>();

/** Calls back when the signal is aborted. Returns the function that stops that. */
function onAbort(signal: AbortSignal, callback: () => void): () => void {
  const all = new Set<() => void>();
  const entry = abortCallbacks.get(signal) ?? { callbacks: all, listener: () => all.forEach((each) => each()) };
  abortCallbacks.set(signal, entry);
  const { callbacks, listener } = entry;
  callbacks.add(callback);
  signal.addEventListener('abort', listener);
  return () => {
    callbacks.delete(callback);
    if (callbacks.size === 0) signal.removeEventListener('abort', listener);
  };
}

function cancelled({ name }: Request, { reason }: AbortSignal): CancelledError {
  return new CancelledError(`${name}: the acquire was aborted`, { cause: reason });
}

/** A lock that is held. A hold that is dropped without a release is released later, with a `ResourceWarning`. */
export class Hold {
  readonly #core: Core;
  readonly #acquire: Acquire;

  /** @internal */
  constructor(core: Core, acquire: Acquire) {
    this.#core = core;
    this.#acquire = acquire;
    watch(this);
  }

  /** @internal */
  watch(): void {
    dropped.register(this, { core: this.#core, acquire: this.#acquire }, this.#acquire);
  }

  /** The key of the lock, or of the first of several locks. */
  get key(): Name {
    return this.#acquire.request.keys[0] as Name;
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
  async release(): Promise<void> {
    if (!fresh.delete(this)) dropped.unregister(this.#acquire);
    await this.#session.release(this.#acquire);
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

  get #session(): Session {
    return (this.#acquire.at as NonNullable<Acquire['at']>).session;
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
   *  `UnavailableError`. An aborted acquire leaves neither a waiter nor a hold behind. */
  async acquire(options: AcquireOptions = {}): Promise<Hold> {
    return new Hold(this.#core, await this.#acquire(options));
  }

  /** Returns a hold, or null if another owner holds the lock. Does not wait, unless a `wait` is given. */
  async tryAcquire({ wait = 0, signal }: AcquireOptions = {}): Promise<Hold | null> {
    const acquire = await this.#core.acquire(this.#request, wait, signal);
    return acquire && new Hold(this.#core, acquire);
  }

  /** Holds the lock while the callback runs. An error of the callback is passed on, otherwise a loss rejects with a `LostError`.
   *
   *  Acquires inside the callback have the same owner, so that the server detects deadlocks. */
  async run<T>(callback: (hold: Hold) => T | Promise<T>, options: AcquireOptions = {}): Promise<T> {
    if (typeof callback !== 'function') throw new MisuseError('run needs a callback');
    const acquire = await this.#acquire(options);
    return this.#scope(acquire, callback);
  }

  /** Runs the callback with a hold, or with null if another owner holds the lock. Waits only if a `wait` is given. */
  async tryRun<T>(callback: (hold: Hold | null) => T | Promise<T>, { wait = 0, signal }: AcquireOptions = {}): Promise<T> {
    if (typeof callback !== 'function') throw new MisuseError('tryRun needs a callback');
    const acquire = await this.#core.acquire(this.#request, wait, signal);
    return acquire === null ? callback(null) : this.#scope(acquire, callback);
  }

  /** Takes over a hold that another process has handed over. Rejects with a `LostError` if it has ended. */
  async attach(ticket: string): Promise<Hold> {
    return new Hold(this.#core, await this.#core.attach(this.#request, ticket));
  }

  /** The holders, waiters and more, by `LOCK.INFO`. Null if the lock is free. */
  async query(): Promise<LockInfo | null> {
    const [key] = this.#request.keys as [Name];
    const reply = await this.#core.execute(key, 'LOCK.INFO', key);
    if (reply === null) return null;
    const info = fieldsOf(reply);
    return { ...info, holders: (info['holders'] as unknown[]).map(fieldsOf) } as unknown as LockInfo;
  }

  /** Takes the lock from its holders, by `LOCK.BREAK`. Returns whether there was one. */
  async forceRelease(): Promise<boolean> {
    const [key] = this.#request.keys as [Name];
    return Number(await this.#core.execute(key, 'LOCK.BREAK', key)) > 0;
  }

  async #acquire({ wait = this.#request.options.wait, signal }: AcquireOptions): Promise<Acquire> {
    const acquire = await this.#core.acquire(this.#request, wait, signal);
    if (acquire !== null) return acquire;
    throw new (wait === 0 ? BusyError : TimedOutError)(`${this.#request.name}: another owner holds the lock`);
  }

  async #scope<T>(acquire: Acquire, callback: (hold: Hold) => T | Promise<T>): Promise<T> {
    const { scopes } = this.#core;
    const hold = new Hold(this.#core, acquire);
    let result: T;
    try {
      result = await scopes.run({ hold: acquire, outer: scopes.getStore() }, callback, hold);
    } catch (error) {
      // The error of the callback says more.
      await hold.release().catch(() => undefined);
      throw error;
    }
    await hold.release();
    return result;
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
