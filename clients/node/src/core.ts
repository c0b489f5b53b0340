// SPDX-License-Identifier: MIT

/** Shared by all locks of a client: a session for each node, the owners of scopes, and the acquire. */

import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { hostname } from 'node:os';
import { Acquire, Owner } from './acquire.js';
import { type Client, type Node, type Nodes, nodesOf } from './clients.js';
import { now, sleep } from './clock.js';
import {
  CancelledError, DeadlockError, errorOf, LockError, MisuseError, Moved, TimedOutError, UnavailableError,
} from './errors.js';
import { CALL_TIMEOUT, Io } from './io.js';
import { check, type Name, type Request } from './request.js';
import { type LockEvent, RETRY_PAUSE, Session, type SessionOptions } from './session.js';

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
  /** Gets the duration and outcome of each wait and hold, and the begin and the end of jeopardy. Errors become warnings. */
  listener?: ((event: LockEvent) => void) | undefined;
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

/** @internal */
export class Core {
  readonly nodes: Nodes;
  readonly scopes = new AsyncLocalStorage<Scope>();
  closed = false;
  readonly #options: SessionOptions;
  readonly #sessions = new Map<string, Session>();
  /** The begin of the names of owners. Unique even if sessions have the same name. */
  readonly #owners: string;
  #lastOwner = 0;
  #isRelocating = false;

  constructor(client: Client, { name, ttl = TTL, grace = GRACE, patience = PATIENCE, listener }: LocksOptions) {
    for (const [option, time] of Object.entries({ ttl, patience })) check(option, time, 1);
    check('grace', grace, 0);
    if (grace > ttl) throw new MisuseError('grace must be at most ttl');
    const notify = listener && ((event: LockEvent): void => {
      queueMicrotask(() => {
        try {
          listener(event);
        } catch (error) {
          process.emitWarning(`the listener of locks failed: ${String(error)}`, { code: 'REDIS_LOCK_LISTENER' });
        }
      });
    });
    this.nodes = nodesOf(client);
    const random = randomBytes(6).toString('hex');
    this.#options = { name: name ?? `${hostname()}/${process.pid}/${random}`, ttl, grace, patience, notify };
    this.#owners = `${this.#options.name}:${random}`;
  }

  /** The node that serves the key. */
  async #find(key: Name): Promise<Node> {
    try {
      return await this.nodes.find(key);
    } catch (error) {
      throw errorOf(error);
    }
  }

  #sessionOn(node: Node): Session {
    if (this.closed) throw new MisuseError('the locks are closed; make new ones');
    let session = this.#sessions.get(node.name);
    if (session === undefined) {
      const relocate = this.nodes.only ? undefined : (acquires: Acquire[]) => this.#relocate(acquires);
      session = new Session(new Io(node), this.#options, relocate);
      this.#sessions.set(node.name, session);
    }
    return session;
  }

  /** Asks the cluster which node serves the slot of the key. */
  async #refresh(key: Name): Promise<void> {
    await Promise.race([this.nodes.refresh(key).catch(() => undefined), sleep(CALL_TIMEOUT)]);
  }

  /** Leaves acquires to the sessions on the nodes that serve their slots now: after a move, or the failover of a node. */
  async #relocate(acquires: Acquire[]): Promise<void> {
    if (this.#isRelocating || acquires[0] === undefined) return;
    this.#isRelocating = true;
    await this.#refresh(acquires[0].request.key);
    for (const acquire of acquires) {
      // If no node is found, the reader tries again.
      await this.#find(acquire.request.key).then((node) => this.#sessionOn(node).adopt(acquire)).catch(() => undefined);
    }
    this.#isRelocating = false;
  }

  /** The owner of an acquire. In nested scopes it is that of the outer ones, so that the server detects their deadlocks. */
  #owner({ options: { owner } }: Request): Owner {
    if (owner !== undefined) return new Owner(owner);
    let scope = this.scopes.getStore();
    const outer = scope?.hold.owner;
    if (outer?.retired === 0) {
      let enclosing = 0;
      for (; scope !== undefined; scope = scope.outer) if (scope.hold.owner === outer && !scope.hold.is('over')) enclosing += 1;
      // Concurrent branches of a scope may wait for each other, so each has an owner of its own.
      if (enclosing === outer.live) return outer;
    }
    this.#lastOwner += 1;
    return new Owner(`${this.#owners}:${this.#lastOwner}`);
  }

  /** The hold, or null if the limit of the wait is over. */
  async acquire(request: Request, wait = request.options.wait, signal?: AbortSignal): Promise<Acquire | null> {
    if (wait !== undefined) check('wait', wait, 0);
    if (signal !== undefined && !(signal instanceof AbortSignal)) throw new MisuseError('signal must be an AbortSignal');
    const began = now();
    const until = began + (wait ?? Infinity);
    let outcome = 'unavailable';
    try {
      for (;;) {
        const giveUp = wait !== undefined && wait > 0 ? until : now() + this.#options.patience;
        const left = (): number => (wait === 0 ? 0 : Math.max(1, until - now()));
        const make = (session: Session): Acquire => new Acquire(session, request, this.#owner(request), left());
        const asked = await this.#ask(request, giveUp, make, signal);
        const isGranted = asked.is('held');
        if (isGranted || asked.reason === 'timeout') {
          outcome = isGranted ? 'granted' : wait === 0 ? 'busy' : 'timed out';
          return isGranted ? asked : null;
        }
        const Final = FINAL[asked.reason];
        if (Final !== undefined) throw new Final(`${request.name}: the wait ended (${asked.reason})`);
      }
    } catch (error) {
      if (error instanceof LockError) outcome = error.kind;
      if (error instanceof TimedOutError) return null;
      throw error;
    } finally {
      this.#options.notify?.({ label: request.options.label, event: 'waited', outcome, ms: now() - began });
    }
  }

  /** An acquire that was granted, or is over. While another node of the cluster serves the key, a new one asks there. */
  async #ask(
    { key, name }: Request, giveUp: number, make: (session: Session) => Acquire, signal?: AbortSignal,
  ): Promise<Acquire> {
    for (;;) {
      const session = this.#sessionOn(this.nodes.only ?? await this.#find(key));
      const asked = make(session);
      try {
        await (signal === undefined ? session.ask(asked) : untilAborted(signal, name, () => session.ask(asked)));
        return asked;
      } catch (error) {
        await session.cancel(asked);
        if (!(error instanceof Moved) || now() >= giveUp) throw error;
      }
      await this.#refresh(key);
      await sleep(RETRY_PAUSE);
    }
  }

  async attach(request: Request, ticket: string): Promise<Acquire> {
    const [owner = '', n = '', ...name] = ticket.split('|');
    if (!/^\d+$/.test(n)) throw new MisuseError('the ticket was not made by handOver()');
    const source = ['FROM', name.join('|'), n];
    const asked = await this.#ask(request, now() + this.#options.patience, (session) =>
      new Acquire(session, request, new Owner(Buffer.from(owner, 'hex')), Infinity, source));
    if (!asked.is('held')) throw asked.lost();
    return asked;
  }

  /** Lets another process take the hold over. Until then, this process renews it, and does not release it. */
  ticket(hold: Acquire): string {
    if (!hold.is('held') || hold.isLost) throw hold.lost();
    if (hold.request.several) throw new MisuseError('several locks cannot be handed over together');
    if (!hold.isDeclared) throw new UnavailableError('no server has confirmed the hold yet; try again');
    hold.isHandedOver = true;
    hold.owner.retired += 1;
    return `${Buffer.from(hold.owner.name as string).toString('hex')}|${hold.number.n}|${this.#options.name}`;
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
