// SPDX-License-Identifier: MIT

import { randomUUID } from 'node:crypto';
import { channel } from 'node:diagnostics_channel';
import { hostname } from 'node:os';
import { adapt, type Client } from './adapters.js';
import { BusyError, CancelledError, LockError, LostError, MisuseError, TimedOutError, UnavailableError } from './errors.js';
import { bound, Hold, now, sleep, TRY_AGAIN } from './hold.js';
import { Bell, Session } from './session.js';

/** How a lock is to be held. Times are in milliseconds. */
export interface Options {
  /** After which the hold ends unless it is renewed; 30,000 if nothing is said. */
  lease?: number;
  /** Client and server renew the lease, and the hold ends at once with this process. On if no lease is given. */
  keep?: boolean;
  /** After which a kept hold is not renewed any more. */
  maxHold?: number;
  /** How long to wait: without limit if nothing is said; 0 is a try. */
  wait?: number;
  /** `shared` is a reader. */
  mode?: 'exclusive' | 'shared';
  /** One of so many permits. */
  limit?: number;
  /** The hold has a token that is greater than all before. */
  fence?: boolean;
  /** What `diagnostics_channel` calls the lock; its name if nothing is said. */
  label?: string;
  /** Ends the wait. */
  signal?: AbortSignal;
}

export interface RequestOptions extends Options {
  /** The callback gets null if somebody else has the lock. */
  ifAvailable?: boolean;
}

/** The options, with what they mean if nothing is said. @internal */
export interface How {
  lease: number;
  keep: boolean;
  maxHold: number | undefined;
  wait: number | undefined;
  shared: boolean;
  limit: number | undefined;
  fence: boolean;
  label: string;
  signal: AbortSignal | undefined;
}

/** What is published on the channel `redis-lock` of `diagnostics_channel`. */
export interface LockEvent {
  label: string;
  /** `waited` for it, or `held` it. */
  event: 'waited' | 'held';
  /** How that ended: `granted` or a kind of error; `released` or `lost`. */
  outcome: string;
  /** For how long, in milliseconds. */
  ms: number;
}

/** Who holds a lock, and who waits for it. */
export interface Snapshot {
  held: { name: string; mode: string; owner: string }[];
  pending: { name: string; mode: string; owner: string }[];
}

const CHANNEL = channel('redis-lock');

/** A message may be lost. Who waits asks again so often (in milliseconds), and keeps its place. */
const ASK_AGAIN = 3000;

/** All locks of this process on one server. `client` is one of ioredis or node-redis; locks have connections of their own, like it. */
export class Locks {
  readonly #session: Session;
  readonly #call: (words: readonly string[]) => Promise<unknown>;

  /** @param patience how long a call may go without an answer, in milliseconds */
  constructor(client: Client, { patience = 5000 }: { patience?: number } = {}) {
    const { open, call } = adapt(client);
    this.#call = call;
    this.#session = new Session(open, patience);
  }

  /** Waits for the lock, as long as `wait` says. Rejects with `TimedOutError`, or `BusyError` if it was not to wait. */
  async acquire(name: string, options: Options = {}): Promise<Hold> {
    const hold = await this.#acquire(name, howOf(name, options));
    if (hold !== null) return hold;
    throw new (options.wait === 0 ? BusyError : TimedOutError)(`${name}: somebody else has it`);
  }

  /** The hold, or null if somebody else has the lock. */
  async tryAcquire(name: string, options: Options = {}): Promise<Hold | null> {
    return this.#acquire(name, howOf(name, { ...options, wait: 0 }));
  }

  /** As `navigator.locks.request`: the callback has the lock until what it returns is settled. If it throws, that comes out. */
  async request<T>(name: string, callback: (hold: Hold) => T | Promise<T>): Promise<T>;
  async request<T>(
    name: string,
    options: RequestOptions & { ifAvailable: true },
    callback: (hold: Hold | null) => T | Promise<T>,
  ): Promise<T>;
  async request<T>(name: string, options: RequestOptions, callback: (hold: Hold) => T | Promise<T>): Promise<T>;
  async request<T>(
    name: string,
    options: RequestOptions | ((hold: Hold) => T | Promise<T>),
    body?: (hold: never) => T | Promise<T>,
  ): Promise<T> {
    const callback = (typeof options === 'function' ? options : body) as (hold: Hold | null) => T | Promise<T>;
    const how = typeof options === 'function' ? {} : options;
    const hold = how.ifAvailable === true ? await this.tryAcquire(name, how) : await this.acquire(name, how);
    if (hold === null) return callback(null);
    let result: T;
    try {
      result = await callback(hold);
    } catch (error) {
      // What the body throws says more.
      await hold.release().catch(() => undefined);
      throw error;
    }
    await hold.release();
    return result;
  }

  /** As in node-redlock: the routine has the lock, for `lease` milliseconds at a time, and is told by its signal if it loses it. */
  async using<T>(name: string, lease: number, routine: (signal: AbortSignal) => Promise<T>): Promise<T> {
    return this.request(name, { lease, keep: true }, (hold) => routine(hold.signal));
  }

  /** Takes over the hold of an owner, whose process may be another one, and sets its lease. Rejects with `LostError` if it has ended. */
  async attach(name: string, owner: string, options: Options = {}): Promise<Hold> {
    const how = howOf(name, options);
    const hold = new Hold(name, owner, how, this.#session);
    const sent = now();
    await hold.renew(how.lease);
    hold.begin(sent, sent, (outcome) => publish(how.label, 'held', outcome, sent));
    return hold;
  }

  /** A try for an owner that the caller names. False if somebody holds the lock, that owner or another. */
  async tryAs(name: string, owner: string, lease = 30_000): Promise<boolean> {
    const words = ['LOCK.ACQUIRE', name, owner, 'PX', String(Math.round(lease)), 'ONCE', 'ID', randomUUID()];
    return (await this.#again(words)) !== null;
  }

  /** Gives back what an owner holds. Rejects with `LostError` if that is nothing. */
  async releaseAs(name: string, owner: string): Promise<void> {
    await this.#again(['LOCK.RELEASE', name, owner, 'ID', randomUUID()]);
  }

  /** Sets the lease of what an owner holds, in milliseconds. Rejects with `LostError` if that is nothing. */
  async extendAs(name: string, owner: string, lease: number): Promise<void> {
    await this.#again(['LOCK.RENEW', name, owner, 'PX', String(Math.round(lease))]);
  }

  /** Takes the lock from whoever holds it. */
  async break(name: string): Promise<void> {
    await this.#again(['LOCK.BREAK', name]);
  }

  /** A call that counts once, sent again if its connection breaks. */
  async #again(words: readonly string[]): Promise<unknown> {
    const deadline = now() + this.#session.patience;
    for (;;) {
      try {
        return await this.#session.call(words);
      } catch (error) {
        if (!(error instanceof UnavailableError) || this.#session.closed || now() > deadline) throw error;
        await sleep(TRY_AGAIN);
      }
    }
  }

  /** Who holds the lock and who waits for it, now. */
  async query(name: string): Promise<Snapshot> {
    const [info, waiters] = await Promise.all([this.#ask('LOCK.INFO', name), this.#ask('LOCK.WAITERS', name)]);
    const who = (one: unknown): { name: string; mode: string; owner: string } => {
      const fields = pairs(one);
      return { name, mode: String(fields.get('mode')), owner: String(fields.get('owner')) };
    };
    const holders = info === null ? [] : pairs(info).get('holders');
    return { held: (holders as unknown[]).map(who), pending: ((waiters ?? []) as unknown[]).map(who) };
  }

  async #ask(...words: string[]): Promise<unknown> {
    return this.#call(words);
  }

  /** Ends all waits, and what is held with `keep`. */
  async close(): Promise<void> {
    await this.#session.close();
  }

  async #acquire(name: string, how: How): Promise<Hold | null> {
    const began = now();
    const deadline = how.wait === undefined ? Infinity : began + how.wait;
    for (;;) {
      const owner = `${hostname()}/${process.pid}/${randomUUID()}`;
      const request = randomUUID();
      try {
        const hold = await this.#attempt(name, how, owner, request, deadline);
        if (hold === null && how.wait !== 0) await this.#cancel(name, owner, request);
        publish(how.label, 'waited', hold !== null ? 'granted' : how.wait === 0 ? 'busy' : 'timed out', began);
        return hold;
      } catch (error) {
        // It was granted to a connection that broke, and ended with it.
        if (error instanceof LostError) continue;
        // Whatever has become of the call: nothing waits, and nothing is held.
        await this.#cancel(name, owner, request);
        publish(how.label, 'waited', error instanceof LockError ? error.kind : 'unavailable', began);
        throw error;
      }
    }
  }

  async #attempt(name: string, how: How, owner: string, request: string, deadline: number): Promise<Hold | null> {
    const session = this.#session;
    const waits = how.wait !== 0;
    const words = ['LOCK.ACQUIRE', name, owner, 'PX', String(Math.round(how.lease)), 'ONCE'];
    if (how.shared) words.push('SHARED');
    if (how.limit !== undefined) words.push('LIMIT', String(how.limit));
    if (how.fence) words.push('FENCE');
    words.push(...bound(how, 0));
    if (waits) words.push('NOTIFY', session.inbox);
    words.push('ID', request);
    const hold = new Hold(name, owner, how, session);
    const bell = new Bell();
    session.waits.set(request, bell);
    const abort = (): void => bell.ring();
    how.signal?.addEventListener('abort', abort);
    const aborted = aborts(how.signal);
    let broken = false;
    let giveUp = now() + session.patience;
    try {
      for (;;) {
        if (how.signal?.aborted === true) throw new CancelledError(`${name}: cancelled`, { cause: how.signal.reason });
        bell.clear();
        try {
          if (waits) await Promise.race([session.listen(), aborted.promise]);
          let sent = now();
          const reply = await Promise.race([session.call(words), aborted.promise]);
          if (reply !== null && reply !== 0) {
            hold.token = tokenOf(reply);
            const granted = sent;
            hold.wasGranted(granted);
            if (broken) {
              // The reply may be that of a call whose hold ended with its connection.
              sent = now();
              await hold.renew(how.lease);
            }
            hold.begin(granted, sent, (outcome) => publish(how.label, 'held', outcome, granted));
            return hold;
          }
          if (reply === null) return null;
          giveUp = now() + session.patience;
        } catch (error) {
          if (!(error instanceof UnavailableError)) throw error;
          // What the server said stands; a broken connection is made again.
          broken = true;
          const stands = /^(UNBLOCKED|ERR|QUARANTINE|NOREPLICAS|OOM|MISCONF) /.test(error.message);
          if (session.closed || stands || now() > Math.min(giveUp, deadline)) throw error;
          await sleep(TRY_AGAIN);
          continue;
        }
        const left = Math.min(ASK_AGAIN, deadline - now());
        if (left <= 0) return null;
        await bell.within(left);
        if (session.closed) throw new UnavailableError('closed');
      }
    } finally {
      session.waits.delete(request);
      how.signal?.removeEventListener('abort', abort);
      aborted.stop();
    }
  }

  async #cancel(name: string, owner: string, request: string): Promise<void> {
    for (let attempt = 0; attempt < 3 && !this.#session.closed; attempt++) {
      try {
        await this.#session.call(['LOCK.CANCEL', name, owner, 'ID', request]);
        return;
      } catch (error) {
        // The wait ends with its connection.
        if (!(error instanceof UnavailableError)) return;
        await sleep(TRY_AGAIN);
      }
    }
  }
}

/** A promise that is rejected when the signal is aborted. */
function aborts(signal: AbortSignal | undefined): { promise: Promise<never>; stop: () => void } {
  let stop = (): void => undefined;
  const promise = new Promise<never>((_, reject) => {
    const abort = (): void => reject(new CancelledError('cancelled', { cause: signal?.reason as unknown }));
    signal?.addEventListener('abort', abort);
    stop = () => signal?.removeEventListener('abort', abort);
  });
  promise.catch(() => undefined);
  return { promise, stop };
}

function howOf(name: string, options: Options): How {
  const { lease, keep, maxHold, wait, mode = 'exclusive', limit, fence = false, label = name, signal } = options;
  for (const [what, ms, least] of [['lease', lease, 1], ['maxHold', maxHold, 1], ['wait', wait, 0], ['limit', limit, 1]] as const) {
    if (ms !== undefined && !(Number.isFinite(ms) && ms >= least)) throw new MisuseError(`${what} must be ${least} or more, not ${ms}`);
  }
  if (mode !== 'exclusive' && mode !== 'shared') throw new MisuseError(`mode must be exclusive or shared, not ${String(mode)}`);
  const shared = mode === 'shared' || limit !== undefined;
  return { lease: lease ?? 30_000, keep: keep ?? lease === undefined, maxHold, wait, shared, limit, fence, label, signal };
}

function publish(label: string, event: LockEvent['event'], outcome: string, since: number): void {
  if (CHANNEL.hasSubscribers) CHANNEL.publish({ label, event, outcome, ms: now() - since } satisfies LockEvent);
}

/** A map in RESP2 or RESP3. */
function pairs(reply: unknown): Map<string, unknown> {
  if (reply instanceof Map) return new Map([...reply].map(([name, value]) => [String(name), value as unknown]));
  if (!Array.isArray(reply)) return new Map(Object.entries(reply as object));
  const flat = reply as unknown[];
  return new Map(flat.flatMap((name, at) => (at % 2 === 0 ? [[String(name), flat[at + 1]] as const] : [])));
}

function tokenOf(reply: unknown): number | undefined {
  if (typeof reply === 'number') return undefined;
  const token = pairs(reply).get('token');
  return token === undefined || token === null ? undefined : Number(token);
}
