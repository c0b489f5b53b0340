// SPDX-License-Identifier: MIT

/** Shared by all locks of a client: a session for each node, the owners of scopes, and the acquire. */

import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { hostname } from 'node:os';
import { Acquire, type Owner } from './acquire.js';
import { type Client, type Nodes, nodesOf } from './clients.js';
import { now } from './clock.js';
import { CancelledError, DeadlockError, errorOf, LockError, MisuseError, TimedOutError, UnavailableError } from './errors.js';
import { REPLY_GRACE } from './io.js';
import { check, type Name, refuse, type Request } from './request.js';
import { type LockEvent, Session } from './session.js';

/** The session ends if its client is silent for `TTL`, or its connection is closed for `GRACE`. */
const TTL = 30_000;
const GRACE = 3000;
/** Limit for a try or a release, and for a wait without a limit while no server answers. */
const PATIENCE = 5000;

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
  /** Gets the duration and outcome of each wait and hold, and the begin and the end of jeopardy. May be asynchronous.
   *
   *  Errors become warnings. Locks may be used: the listener's own waits and holds are no events. */
  listener?: ((event: LockEvent) => unknown) | undefined;
}

/** Where code runs: in a scope form with a hold, or in a listener. */
interface Scope {
  readonly hold?: Acquire;
  readonly outer?: Scope | undefined;
  readonly isListener: boolean;
}

/** Ends of a wait that are final. After all others, the wait continues with a new number. */
const FINAL: Record<string, new (text: string) => LockError> = {
  deadlock: DeadlockError, noreplicas: UnavailableError, refused: MisuseError, closed: CancelledError,
};

/** @internal */
export class Core {
  readonly nodes: Nodes;
  readonly scopes = new AsyncLocalStorage<Scope | undefined>();
  readonly options;
  readonly #sessions = new Map<string, Session>();
  /** The begin of the names of owners. Unique even if sessions have the same name. */
  readonly #owners: string;
  #lastOwner = 0;
  #isClosed = false;

  constructor(client: Client, { name, ttl = TTL, grace = GRACE, patience = PATIENCE, listener, ...others }: LocksOptions) {
    refuse(others);
    for (const [option, time] of Object.entries({ ttl, patience })) check(option, time, 1);
    check('grace', grace, 0);
    if (grace > ttl) throw new MisuseError('grace must be at most ttl');
    this.nodes = nodesOf(client);
    const random = randomBytes(6).toString('hex');
    this.options = { name: name ?? `${hostname()}/${process.pid}/${random}`, ttl, grace, patience, listener };
    this.#owners = `${this.options.name}:${random}`;
  }

  /** Calls the listener soon, unless a listener caused the event. Otherwise it would call itself for ever. */
  notify(event: LockEvent, isSilent = false): void {
    const { listener } = this.options;
    if (listener === undefined || isSilent || this.#isListener) return;
    const warn = (error: unknown): void =>
      process.emitWarning(`the listener of locks failed: ${String(error)}`, { code: 'REDIS_LOCK_LISTENER' });
    void this.scopes.run({ isListener: true }, () => Promise.resolve(event).then(listener).catch(warn));
  }

  get #isListener(): boolean {
    return this.scopes.getStore()?.isListener === true;
  }

  /** The session on the node that serves the key. */
  #sessionOf(key: Name): Session {
    const node = this.nodes.find(key);
    let session = this.#sessions.get(node.name);
    if (this.#isClosed) throw new CancelledError('the locks are closed');
    if (session === undefined) this.#sessions.set(node.name, (session = new Session(this, node)));
    return session;
  }

  /** Leaves acquires to the sessions on the nodes that serve their slots now. If the cluster does not know yet, try again. */
  relocate(acquires: Acquire[]): void {
    if (acquires[0] === undefined || this.#isClosed) return;
    void this.nodes.refresh(acquires[0].request.key).catch(() => undefined);
    for (const acquire of acquires) {
      const { session, request: { key } } = acquire;
      // The present node may still have it, until another one is known.
      const next = this.nodes.find(key).name === '' ? session : this.#sessionOf(key);
      if (next !== session) next.adopt(acquire, 'moved');
    }
  }

  /** The node of the session may be gone. */
  leave(session: Session): void {
    for (const [name, each] of this.#sessions) if (each === session) this.#sessions.delete(name);
    void session.close();
  }

  /** The owner of an acquire. In nested scopes it is that of the outer ones, so that the server detects their deadlocks. */
  #owner(session: Session, request: Request): Owner {
    const { owner } = request.options;
    if (owner !== undefined) return { name: owner, live: 0 };
    let scope = this.scopes.getStore();
    const outer = scope?.hold?.owner;
    if (outer !== undefined && !session.isRetired(outer, request)) {
      let enclosing = 0;
      for (; scope !== undefined; scope = scope.outer) if (scope.hold?.owner === outer && scope.hold.is('held')) enclosing += 1;
      // Concurrent branches of a scope may wait for each other, so each has an owner of its own.
      if (enclosing === outer.live) return outer;
    }
    this.#lastOwner += 1;
    return { name: `${this.#owners}:${this.#lastOwner}`, live: 0 };
  }

  /** The hold, or null if the limit of the wait is over. */
  async acquire(request: Request, wait = request.options.wait, signal?: AbortSignal): Promise<Acquire | null> {
    if (wait !== undefined) check('wait', wait, 0);
    if (signal !== undefined && !(signal instanceof AbortSignal)) throw new MisuseError('signal must be an AbortSignal');
    this.#checkOpen();
    const began = now();
    const until = began + (wait ?? Infinity);
    const giveUp = wait === 0 ? began + this.options.patience : until + REPLY_GRACE;
    let outcome = 'unavailable';
    try {
      for (;;) {
        const session = this.#sessionOf(request.key);
        const left = wait === 0 ? 0 : Math.max(1, until - now());
        const asked = new Acquire(session, request, this.#owner(session, request), left, this.#isListener);
        await this.#ask(asked, giveUp, signal);
        const isGranted = asked.is('held');
        if (isGranted || asked.reason === 'timeout') {
          outcome = isGranted ? 'granted' : wait === 0 ? 'busy' : 'timed out';
          return isGranted ? asked : null;
        }
      }
    } catch (error) {
      if (error instanceof LockError) outcome = error.kind;
      if (error instanceof TimedOutError) return null;
      throw error;
    } finally {
      this.notify({ label: request.options.label, event: 'waited', outcome, ms: now() - began });
    }
  }

  /** Returns once the acquire is granted, or over. */
  async #ask(asked: Acquire, giveUp: number, signal?: AbortSignal): Promise<void> {
    const { session, request: { name } } = asked;
    try {
      await (signal === undefined ? session.ask(asked, giveUp) : untilAborted(signal, name, () => session.ask(asked, giveUp)));
    } catch (error) {
      session.end(asked, 'cancelled', true);
      throw error;
    }
    const Final = FINAL[asked.reason];
    if (Final !== undefined) throw new Final(`${name}: the wait ended (${asked.reason})`);
  }

  async attach(request: Request, ticket: string): Promise<Acquire> {
    const [owner = '', n = '', ...name] = ticket.split('|');
    if (!/^\d+$/.test(n)) throw new MisuseError('the ticket was not made by handOver()');
    this.#checkOpen();
    const source = ['FROM', name.join('|'), n];
    const taker = { name: Buffer.from(owner, 'hex'), live: 0 };
    const asked = new Acquire(this.#sessionOf(request.key), request, taker, Infinity, this.#isListener, source);
    await this.#ask(asked, asked.began + this.options.patience);
    if (!asked.is('held')) throw asked.lost();
    return asked;
  }

  #checkOpen(): void {
    if (this.#isClosed) throw new MisuseError('the locks are closed; make new ones');
  }

  /** Lets another process take the hold over. Until then, the server renews it while this session lives. */
  ticket(hold: Acquire): string {
    if (!hold.is('held') || hold.isLost) throw hold.lost();
    if (hold.request.several) throw new MisuseError('several locks cannot be handed over together');
    if (!hold.isKnown) throw new UnavailableError('no server has confirmed the hold yet; try again');
    [hold.state, hold.reason] = ['given', 'taken'];
    return `${Buffer.from(hold.owner.name as string).toString('hex')}|${hold.n}|${this.options.name}`;
  }

  async execute(key: Name, ...words: Name[]): Promise<unknown> {
    try {
      return await this.nodes.execute(key, words);
    } catch (error) {
      throw errorOf(error);
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([...this.#sessions.values()].map((session) => session.close()));
  }
}

/** The result of the work, unless the signal is aborted before. */
async function untilAborted(signal: AbortSignal, name: string, work: () => Promise<void>): Promise<void> {
  let onAbort = (): void => undefined;
  try {
    await new Promise<void>((resolve, reject) => {
      onAbort = () => reject(new CancelledError(`${name}: the acquire was aborted`, { cause: signal.reason }));
      if (signal.aborted) return onAbort();
      // Otherwise Node warns of many waits with one signal.
      setMaxListeners(0, signal);
      signal.addEventListener('abort', onAbort);
      work().then(resolve, reject);
    });
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}
