// SPDX-License-Identifier: MIT

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { adapt, type Client, type Wire } from './adapters.js';
import {
  BusyError, CancelledError, Disconnected, LockError, LostError, MisuseError, Passing, TimedOutError, UnavailableError,
} from './errors.js';
import { tell } from './events.js';
import { GIVE_BACK_FOR, type Grant, Hold } from './hold.js';
import { bound, type How, howOf, ms, type Options, type RequestOptions } from './options.js';
import { Bell, now, onAbort, Session, sleep, SOON, TRY_AGAIN } from './session.js';

/** Who holds locks, and who waits for them. */
export interface Snapshot {
  held: LockInfo[];
  /** First in line first. */
  pending: LockInfo[];
}

/** A hold or a wait, as the server knows it. */
export interface LockInfo {
  name: string;
  mode: 'exclusive' | 'shared';
  owner: string;
}

/** A message may be lost. Who waits asks again so often (in milliseconds), and keeps its place. The grace of a grant is not longer
 *  than the lease. */
const askAgain = (lease: number): number => Math.min(3000, Math.max(100, lease / 2));

const PROCESS = `${hostname()}/${process.pid}`;

/** All locks of this process on one server. They have two connections of their own, like that of `client`. */
export class Locks {
  readonly #session: Session;

  /** @param options `patience`: a call without an answer in so many milliseconds is sent again on a new connection. */
  constructor(client: Client, { patience = 5000 }: { patience?: number } = {}) {
    if (!(patience >= 1 && patience < 2 ** 31)) throw new MisuseError(`patience must be 1 or more, and is ${String(patience)}`);
    this.#session = new Session(adapt(client, patience), patience);
  }

  /** The lock, when it is granted. Rejects with `TimedOutError` when the time to wait is over; `BusyError` if there was none. */
  async acquire(name: string, options: Options = {}): Promise<Hold> {
    const hold = await this.#acquire(name, howOf(name, options));
    if (hold !== null) return hold;
    throw new (options.wait === 0 ? BusyError : TimedOutError)(`${name}: somebody else has it`);
  }

  /** The lock, or null if somebody else has it. */
  async tryAcquire(name: string, options: Options = {}): Promise<Hold | null> {
    return this.#acquire(name, howOf(name, { ...options, wait: 0 }));
  }

  /** As `navigator.locks.request`: the callback has the lock until what it returns is settled. What it throws comes out; else,
   *  if the lock was lost meanwhile, this rejects with `LostError`. */
  async request<T>(name: string, callback: (hold: Hold) => T | Promise<T>): Promise<T>;
  async request<T>(
    name: string,
    options: RequestOptions & { ifAvailable: true },
    callback: (hold: Hold | null) => T | Promise<T>,
  ): Promise<T>;
  async request<T>(name: string, options: RequestOptions, callback: (hold: Hold) => T | Promise<T>): Promise<T>;
  async request<T>(name: string, ...rest: unknown[]): Promise<T> {
    const callback = rest.pop() as (hold: Hold | null) => T | Promise<T>;
    if (typeof callback !== 'function') throw new MisuseError('request needs a callback');
    const { ifAvailable = false, ...options } = (rest[0] ?? {}) as RequestOptions;
    const hold = await (ifAvailable ? this.tryAcquire(name, options) : this.acquire(name, options));
    if (hold === null) return callback(null);
    let result: T;
    try {
      result = await callback(hold);
    } catch (error) {
      // It says more than what may go wrong now.
      await hold.release().catch(() => undefined);
      throw error;
    }
    await hold.release();
    return result;
  }

  /** As in node-redlock: the routine has the lock, for `lease` milliseconds at a time, and its signal tells it of a loss. */
  async using<T>(names: string | readonly string[], lease: number, routine: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const [name, ...others] = typeof names === 'string' ? [names] : names;
    if (name === undefined || others.length > 0) throw new MisuseError('using takes one name');
    return this.request(name, { lease, keep: true }, (hold) => routine(hold.signal));
  }

  /** Takes over the hold of an owner, of another process maybe, and sets its lease: see `Hold.handOver`. One that is kept must be
   *  kept here, too. Rejects with `LostError` if it has ended. */
  async attach(name: string, owner: string, options: Options = {}): Promise<Hold> {
    const how = howOf(name, { ...options, owner });
    const over = this.#givenBack(name, how, Infinity);
    await (how.signal === undefined ? over : unlessAborted(over, how.signal, name));
    if (!how.keep) {
      const info = fieldsOf(await this.#session.insist(['LOCK.INFO', name], this.#session.patience, { sinceFailure: true }));
      const holder = listOf(info['holders']).find((one) => one['owner'] === owner);
      // It would end with that connection, whatever its lease is.
      const isBound = Number(holder?.['watchdog']) === 1 || Number(holder?.['ephemeral']) === 1;
      if (isBound) throw new MisuseError(`${name}: the hold is bound to a connection: attach it as one that is kept`);
    }
    const hold = new Hold(this.#session, how, name, owner);
    const sent = await hold.confirm(this.#session.patience);
    hold.begin({ sent, renewed: sent });
    return hold;
  }

  /** Who holds the lock and who waits for it; without a name, of all locks, which needs permission for `LOCK.SCAN`. */
  async query(name?: string): Promise<Snapshot> {
    const names = name === undefined ? await this.#all() : [name];
    const snapshots = await Promise.all(names.map((one) => this.#query(one)));
    return { held: snapshots.flatMap(({ held }) => held), pending: snapshots.flatMap(({ pending }) => pending) };
  }

  /** Ends all waits and all that is held with `keep`, and both connections. */
  async close(): Promise<void> {
    await this.#session.close();
  }

  /** As `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #all(): Promise<string[]> {
    const names = new Set<string>();
    let cursor = '0';
    do {
      const [next, found] = (await this.#session.call(['LOCK.SCAN', cursor])) as [unknown, unknown[]];
      for (const one of found) names.add(String(fieldsOf(one)['key']));
      cursor = String(next);
    } while (cursor !== '0');
    return [...names];
  }

  async #query(name: string): Promise<Snapshot> {
    const [info, waiters] = await Promise.all([
      this.#session.call(['LOCK.INFO', name]),
      this.#session.call(['LOCK.WAITERS', name, 'COUNT', '1000000']),
    ]);
    const listed = (all: unknown): LockInfo[] => listOf(all).map(({ mode, owner }) => ({ name, mode, owner }) as LockInfo);
    return { held: listed(fieldsOf(info)['holders']), pending: listed(waiters) };
  }

  async #acquire(name: string, how: How): Promise<Hold | null> {
    const began = now();
    let outcome = 'unavailable';
    try {
      const granted = this.#untilGranted(name, how, began + (how.wait ?? Infinity));
      this.#session.attempts.add(granted);
      const hold = await granted.finally(() => this.#session.attempts.delete(granted));
      outcome = hold !== null ? 'granted' : how.wait === 0 ? 'busy' : 'timed out';
      return hold;
    } catch (error) {
      if (error instanceof LockError) outcome = error.kind;
      throw error;
    } finally {
      tell(how.label, 'waited', outcome, began);
    }
  }

  /** Waits until nothing of that owner is given back any more: whether there was something. */
  async #givenBack(name: string, { owner }: How, time: number): Promise<boolean> {
    const session = this.#session;
    if (owner === undefined || session.givingBack(name, owner).length === 0) return false;
    if (await session.givenBack(name, owner, Math.min(session.patience, Math.max(SOON, time)))) return true;
    throw new UnavailableError(`${name}: the last hold of this owner could not be given back yet`);
  }

  async #untilGranted(name: string, how: How, deadline: number): Promise<Hold | null> {
    for (;;) {
      const hold = new Hold(this.#session, how, name, how.owner ?? `${PROCESS}/${randomUUID()}`);
      const request = randomUUID();
      let grant: Grant | null;
      if (how.signal?.aborted === true) throw cancelled(name, how.signal);
      try {
        const attempt = this.#attempt(hold, how, request, deadline);
        grant = await (how.signal === undefined ? attempt : unlessAborted(attempt, how.signal, name));
      } catch (error) {
        // It was granted to a connection that broke, and ended with it.
        if (error instanceof LostError) continue;
        // Whatever has become of the call: nothing waits, and nothing is held. What was never sent is nothing.
        if (!hold.isAsked) throw error;
        const taken = this.#takeBack(hold, request, how.lease, error instanceof MisuseError);
        // Who could not be asked cannot be told either, so nobody waits for that.
        if (!(error instanceof Disconnected)) await taken;
        throw error;
      }
      if (grant !== null) {
        if (how.owner !== undefined) this.#session.granted(name, how.owner, how.shared);
        hold.begin(grant);
        if (!hold.signal.aborted) return hold;
        // Who slept through the whole lease begins nothing.
        await this.#takeBack(hold, request, how.lease);
        throw hold.signal.reason as LostError;
      }
      if (how.wait !== 0) await this.#takeBack(hold, request, how.lease);
      return null;
    }
  }

  /** Asks until the lock is granted. Whoever aborts it does not wait for its end: the server says that the wait was cancelled. */
  async #attempt(hold: Hold, how: How, request: string, deadline: number): Promise<Grant | null> {
    const session = this.#session;
    const waits = how.wait !== 0;
    const words = ['LOCK.ACQUIRE', hold.name, hold.owner, 'PX', ms(how.lease), 'ONCE', 'ID', request];
    if (how.shared) words.push('SHARED');
    if (how.limit !== undefined) words.push('LIMIT', String(how.limit));
    if (how.fence === true) words.push('FENCE');
    words.push(...bound(how));
    const own = waits && how.ownConnection === true;
    if (waits && !own) words.push('NOTIFY', session.inbox);
    const check = (): void => {
      if (session.ending) throw new UnavailableError('closed');
      if (how.signal?.aborted === true) throw cancelled(hold.name, how.signal);
    };
    const asked: { at: number; wire?: Wire | undefined } = { at: Infinity };
    const asks = (wire?: Wire): number => {
      // Nobody would take it back.
      check();
      const isBusy = how.owner !== undefined && session.givingBack(hold.name, how.owner).length > 0;
      if (isBusy) throw new Passing(`${hold.name}: the last hold of this owner is being given back`);
      [asked.at, asked.wire] = [now(), wire];
      hold.asked(asked.at);
      return asked.at;
    };
    let broken = false;
    let pause = TRY_AGAIN;
    /** When the first of the calls failed that went wrong since the last reply. */
    let failing: number | undefined;
    const bell = new Bell();
    session.waits.set(request, bell);
    try {
      for (;;) {
        check();
        bell.clear();
        asked.at = Infinity;
        try {
          // What is given back by that name may be what this was granted.
          if ((await this.#givenBack(hold.name, how, deadline - now())) && hold.isAsked) broken = true;
          if (own) return await this.#block(hold, how, words, deadline, broken, asks);
          // A wait without limit ends when there is no server.
          const patience = Math.max(SOON, deadline - now());
          if (waits) await session.listen(patience);
          check();
          const reply = await session.call((wire) => {
            asks(wire);
            return words;
          }, patience);
          check();
          if (reply !== null && reply !== 0) {
            const { at: sent, wire } = asked;
            // The reply may be that of a call whose hold ended with its connection.
            const mayHaveEnded = (await this.#givenBack(hold.name, how, deadline - now())) || broken;
            const renewed = mayHaveEnded ? await hold.confirm(0) : sent;
            check();
            return { sent, renewed, token: tokenOf(reply), wire };
          }
          if (reply === null) return null;
          failing = undefined;
          pause = TRY_AGAIN;
        } catch (error) {
          // It waited in a server that was there.
          if (own && now() - asked.at > Math.min(SOON, session.patience)) failing = undefined;
          failing ??= now();
          // A try is sent again once, and a wait without limit until there was no server for some time.
          const end = how.wait === undefined ? failing + session.patience : deadline;
          const isOver = waits ? now() > end : broken || now() + TRY_AGAIN > deadline + SOON;
          if (!(error instanceof Passing) || isOver) throw error;
          broken = true;
          // A timer may be early by a part of a millisecond.
          await sleep(waits ? Math.max(1, Math.min(pause, end - now())) : Math.max(TRY_AGAIN, session.pause) + 2);
          pause = Math.min(2 * pause, SOON / 5);
          continue;
        }
        const left = Math.min(askAgain(how.lease), deadline - now());
        if (left <= 0) return null;
        if (!(await bell.within(left))) void session.look();
      }
    } finally {
      session.waits.delete(request);
    }
  }

  /** Waits in the server. The grant is bound to the connection of that call, and then to the session's. */
  async #block(
    hold: Hold,
    how: How,
    words: readonly string[],
    deadline: number,
    broken: boolean,
    asks: () => number,
  ): Promise<Grant | null> {
    const session = this.#session;
    const left = (): number => deadline - now();
    const block = (): string => (how.wait === undefined ? '0' : ms(Math.min(1e12, Math.max(1, left()))));
    let [sent, isAgain] = [0, broken];
    const { reply, wire } = await session.block(() => [...words, 'BLOCK', block()], left, {
      signal: how.signal,
      sent: () => {
        isAgain ||= sent > 0;
        sent = asks();
      },
    });
    let renewed = sent;
    // Nobody knows how old the grant is, if the wait was long; nor, of a call that was sent again or that has an owner with a name,
    // whether the hold has ended.
    if (reply !== null && (isAgain || how.keep || how.owner !== undefined || now() - sent > how.lease / 20)) {
      try {
        await this.#givenBack(hold.name, how, left());
        renewed = await this.#confirm(hold, how, left);
      } catch (error) {
        wire.close();
        throw error;
      }
    }
    session.rest(wire);
    if (how.signal?.aborted === true) throw cancelled(hold.name, how.signal);
    return reply === null ? null : { sent: renewed, renewed, token: tokenOf(reply) };
  }

  /** While the server is there, and does not do it now, it is asked again: the end of the connection that it has granted this to would
   *  be that of the hold. */
  async #confirm(hold: Hold, how: How, left: () => number): Promise<number> {
    for (;;) {
      try {
        return await hold.confirm(0);
      } catch (error) {
        const goesOn = error instanceof Passing && !(error instanceof Disconnected);
        if (!goesOn || left() <= 0 || how.signal?.aborted === true) throw error;
        await sleep(TRY_AGAIN);
      }
    }
  }

  /** Whatever the acquire has got. Where the server cannot do it now, this goes on behind the caller's back. It does not keep the
   *  process alive for long, as the end of the process ends the wait, too. */
  async #takeBack(hold: Hold, request: string, lease: number, refused = false): Promise<void> {
    const session = this.#session;
    const words = ['LOCK.CANCEL', hold.name, hold.owner, 'ID', request];
    const first = session.call(words, SOON);
    const goOn = async (error: unknown): Promise<unknown> => {
      if (!(error instanceof UnavailableError)) throw error;
      const alive = error instanceof Disconnected ? session.patience : lease;
      return session.insist(words, GIVE_BACK_FOR, { through: UnavailableError, most: SOON, alive });
    };
    // Not permitted: a wait ends with its connection, but what was granted is to be given back, if the acquire was not refused
    // itself. That goes by the owner, so it must have nothing else.
    const last = (error: unknown): void => {
      if (!(error instanceof MisuseError) || refused || session.has(hold.name, hold.owner)) return;
      hold.asked(now());
      hold.leave();
    };
    session.giveBack(hold.name, hold.owner, first.catch(goOn).catch(last));
    await first.catch(() => undefined);
  }
}

function cancelled(name: string, { reason }: AbortSignal): CancelledError {
  return new CancelledError(`${name}: the wait was cancelled`, { cause: reason });
}

/** As the attempt, but at once when the signal is aborted. */
async function unlessAborted<T>(attempt: Promise<T>, signal: AbortSignal, name: string): Promise<T> {
  let forget: (() => void) | undefined;
  const aborted = new Promise<never>((_, reject) => {
    forget = onAbort(signal, () => reject(cancelled(name, signal)));
  });
  return Promise.race([attempt, aborted]).finally(forget);
}

/** A map comes as a list in RESP2, and nothing as null. */
function fieldsOf(reply: unknown): Record<string, unknown> {
  const list = (reply ?? []) as unknown[];
  return Object.fromEntries(list.flatMap((name, at) => (at % 2 === 0 ? [[String(name), list[at + 1]]] : [])));
}

function listOf(reply: unknown): Record<string, unknown>[] {
  return ((reply ?? []) as unknown[]).map(fieldsOf);
}

function tokenOf(reply: unknown): number | undefined {
  const token = typeof reply === 'number' ? undefined : fieldsOf(reply)['token'];
  return token === undefined || token === null ? undefined : Number(token);
}
