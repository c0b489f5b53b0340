// SPDX-License-Identifier: MIT

/** Two connections that carry all waits and holds of a process: one for commands, one for messages. */

import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import type { Open, Wire } from './adapters.js';
import { Disconnected, Elsewhere, errorOf, FULL, LockError, Passing, UnavailableError } from './errors.js';

/** After a connection broke, in milliseconds. */
export const TRY_AGAIN = 50;

/** A call that has no time to wait has so many milliseconds for its reply. */
export const SOON = 1000;

/** So often, in milliseconds and at most, who waits in the server looks whether it is there: in patiences, too. With so many more
 *  for the answer, a server remembers a call for longer. */
const LOOK_AGAIN = { most: 8000, patiences: 1.6 };
const LOOKS_FOR = 5000;

/** What ends a call that waits in the server, and who hears that it is on its way. */
export interface Blocking {
  signal: AbortSignal | undefined;
  sent: () => void;
}

/** The words of a call, or what makes them just before they are sent, each time, for the connection that carries them. */
export type Words = readonly string[] | ((wire: Wire) => readonly string[]);

/** What a call goes on through that is sent again, how long it pauses at most, and for how long it keeps the process alive; and
 *  whether its time begins when it has failed for the first time. */
export interface Insisting {
  through?: typeof UnavailableError;
  most?: number;
  alive?: number;
  sinceFailure?: boolean;
}

/** By a clock that nobody sets, in milliseconds. */
export const now = (): number => performance.now();

/** @param alive whether the process lives so long */
export const sleep = (ms: number, alive = true): Promise<void> =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    if (!alive) timer.unref();
  });

/** Calls when the signal is aborted, until what is returned is called. */
export function onAbort(signal: AbortSignal, abort: () => void): () => void {
  // Many waits may share a signal, and that is no leak.
  setMaxListeners(0, signal);
  signal.addEventListener('abort', abort, { once: true });
  return () => signal.removeEventListener('abort', abort);
}

/** A connection says nothing of whether anybody is behind it who answers. A refusal is an answer, too. */
async function isThere(wire: Wire): Promise<void> {
  try {
    await wire.call(['PING']);
  } catch (cause) {
    if (errorOf(cause) instanceof Disconnected) throw cause;
  }
}

const SILENT = (): Disconnected => new Disconnected('the server does not answer');

/** What the work comes to in so many milliseconds; else it throws. @param alive whether the process lives so long */
export async function inTime<T>(work: Promise<T>, ms: number, late: Error, alive = true): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const over = new Promise<never>((_, reject) => {
    // What came while the process was busy is read first.
    timer = setTimeout(() => setImmediate(reject, late), Math.max(1, ms));
    if (!alive) timer.unref();
  });
  try {
    return await Promise.race([work, over]);
  } finally {
    clearTimeout(timer);
  }
}

/** Something that may be waited for, again and again. */
export class Bell {
  #rung = false;
  #wake: (() => void) | undefined;

  ring(): void {
    this.#rung = true;
    this.#wake?.();
  }

  clear(): void {
    this.#rung = false;
  }

  /** Until it rings, or for so many milliseconds: whether it has rung. One may wait at a time. */
  async within(ms: number): Promise<boolean> {
    if (this.#rung || ms <= 0) return this.#rung;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, Math.min(ms, 2 ** 31 - 1));
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = undefined;
    return this.#rung;
  }
}

export class Session {
  readonly inbox = `inbox-${randomUUID()}`;
  /** Who waits, by the id of its request: a message rings. */
  readonly waits = new Map<string, Bell>();
  /** What is held, and by whom. A connection that breaks rings, here and there. */
  readonly holds = new Map<Bell, { readonly name: string; readonly owner: string; replaced(byShared: boolean): void }>();
  /** What acquires, and is to end before the connections do. */
  readonly attempts = new Set<Promise<unknown>>();
  ending = false;
  closed = false;
  /** What is being given back, by name and owner. */
  readonly #giving = new Map<Promise<unknown>, string>();
  readonly #wires = new Map<'commands' | 'messages', Wire>();
  /** Each carries one call that waits in the server; or waits for the next such call itself. */
  readonly #own = new Set<Wire>();
  /** When each connection was made. */
  readonly #made = new WeakMap<Wire, number>();
  #idle: Wire | undefined;
  /** Why no connection is made until when, and how long that pause is. */
  #pause: { length: number; until: number; why: Elsewhere } | undefined;
  /** When the last message came, and whether somebody looks if one could come. */
  #heard = 0;
  #looking = false;

  /** @param patience how long a call may go without an answer, in milliseconds */
  constructor(
    readonly open: Open,
    readonly patience: number,
  ) {}

  /** What is kept is bound to this, the connection for commands, if there is one. */
  get link(): Wire | undefined {
    return this.#wires.get('commands');
  }

  /** For how many milliseconds no connection will be made. */
  get pause(): number {
    return Math.max(0, (this.#pause?.until ?? 0) - now());
  }

  /** Before a wait: a message that nobody hears is taken for a refusal. */
  async listen(patience: number): Promise<void> {
    await this.#answer(this.#wire('messages'), patience, async () => undefined);
  }

  /** Somebody asks again who was told nothing. The network may have dropped the connection for messages without a word. */
  async look(): Promise<void> {
    const wire = this.#wires.get('messages');
    if (wire === undefined || this.#looking) return;
    this.#looking = true;
    const asked = now();
    try {
      await inTime(wire.ready.then(() => isThere(wire)), this.patience, SILENT(), false);
    } catch {
      if (this.#heard < asked) wire.reset();
    } finally {
      this.#looking = false;
    }
  }

  /** The reply. `Disconnected` if there is none in `patience` milliseconds: the session's own is the most. */
  async call(words: Words, patience = this.patience): Promise<unknown> {
    const wire = this.#wire('commands');
    const isGuard = typeof words !== 'function' && words[0] === 'LOCK.GUARD';
    const send = (): Promise<unknown> => wire.call(typeof words === 'function' ? words(wire) : words);
    const reply = await this.#answer(wire, patience, send, isGuard);
    this.#pause = undefined;
    return reply;
  }

  /** A call that may be sent twice, and is, for so long, when its connection breaks or the server can do nothing now; through
   *  `UnavailableError` whatever it says. */
  async insist(words: Words, ms: number, how: Insisting = {}): Promise<unknown> {
    const { through = Passing, most = SOON / 5, alive = ms, sinceFailure = false } = how;
    let began = sinceFailure ? undefined : now();
    for (let pause = TRY_AGAIN; ; pause = Math.min(2 * pause, most)) {
      try {
        // Who has no time tries once, with all patience.
        return await this.call(words, began === undefined || ms === 0 ? undefined : Math.max(SOON, began + ms - now()));
      } catch (error) {
        began ??= now();
        if (!(error instanceof through) || this.closed || now() - began >= ms) throw error;
        await sleep(pause, now() - began < alive);
      }
    }
  }

  /** The reply to a call that waits in the server, in `ms()` milliseconds at most, and the connection that no other call had
   *  meanwhile. What is bound to that stays until it is closed, or `rest`s. It is given up when the signal is aborted. */
  async block(words: () => readonly string[], ms: () => number, { signal, sent }: Blocking): Promise<{ reply: unknown; wire: Wire }> {
    // First that on which it is looked whether anybody is there: an answer on a younger one would say nothing, and the wait would
    // lose its place.
    this.#wire('commands');
    let idle = this.#idle;
    this.#idle = undefined;
    if (idle !== undefined && this.#isOlder(idle)) {
      idle.close();
      idle = undefined;
    }
    let wire = idle ?? this.#openOwn();
    let next: Wire | undefined;
    let answer: Promise<unknown>;
    let isOver = false;
    const drop = (): void => {
      if (isOver) return;
      wire.reset();
      next?.reset();
    };
    // What the kernel sends again later would come behind the LOCK.CANCEL, which the server forgets after a time.
    const forget = signal && onAbort(signal, drop);
    const send = (on: Wire): void => {
      sent();
      [wire, answer] = [on, on.call(words())];
      // It may come while the old one is waited for.
      answer.catch(() => undefined);
    };
    const last = async (): Promise<unknown> => {
      const mine = answer;
      await Promise.allSettled([mine]);
      return mine === answer ? mine : last();
    };
    // The wait keeps its place if its connection ends after the same call has come on another, and the server tells the old one so.
    const move = async (): Promise<void> => {
      const old = wire;
      const on = (next = this.#openOwn());
      await inTime(on.ready.then(() => isThere(on)), this.patience, SILENT());
      if (isOver) return;
      send(on);
      setTimeout(() => old.reset(), TRY_AGAIN);
    };
    // TCP may take long to find that nobody is there. An answer on the other connection tells that somebody is, unless that was
    // made later: then it may lead to another server. If nothing tells, the wait moves. And a timer keeps the process alive.
    const look = async (): Promise<void> => {
      // While no connection may be made, nobody can be asked.
      if (this.pause > 0 || (next !== undefined && next !== wire)) return;
      // One that is too many is told so: somebody is there.
      const isAway = (error: unknown): boolean => error instanceof Disconnected && !error.message.includes(FULL);
      const isOther = (): boolean => this.#isOlder(wire);
      const moves = await this.call(['PING'], Math.min(this.patience, LOOKS_FOR)).then(isOther, isAway);
      if (!moves || isOver) return;
      await move().catch((error: unknown) => {
        // An owner of whom something is given back says nothing yet.
        if (error instanceof LockError && !(error instanceof Disconnected)) {
          next?.close();
          next = undefined;
        } else drop();
      });
    };
    let probe: NodeJS.Timeout | undefined;
    // What came while the process was busy is read first.
    const after = (time: number): NodeJS.Timeout => setTimeout(() => setImmediate(drop), time);
    let late = after(Math.min(this.patience, Math.max(SOON, ms())));
    try {
      await wire.ready;
      if (idle === undefined) await isThere(wire);
      clearTimeout(late);
      send(wire);
      probe = setInterval(() => void look(), Math.min(LOOK_AGAIN.most, LOOK_AGAIN.patiences * this.patience));
      if (Number.isFinite(ms())) late = after(Math.min(Math.max(0, ms()) + SOON, 2 ** 31 - 1));
      const reply = await last();
      this.#pause = undefined;
      return { reply, wire };
    } catch (cause) {
      const error = errorOf(cause);
      this.#restAfter(error);
      // Who was refused has nothing that is bound to it.
      if (error instanceof Disconnected) wire.close();
      else this.rest(wire);
      throw error;
    } finally {
      isOver = true;
      if (next !== wire) next?.close();
      forget?.();
      clearInterval(probe);
      clearTimeout(late);
    }
  }

  /** Nothing is bound to the connection of `block` any more: it may carry the next. */
  rest(wire: Wire): void {
    if (this.#idle === undefined && this.#own.has(wire)) this.#idle = wire;
    else wire.close();
  }

  #openOwn(): Wire {
    this.#mayOpen();
    const ended = (): void => {
      this.#own.delete(wire);
      if (this.#idle === wire) this.#idle = undefined;
    };
    const wire = this.open(ended);
    wire.ready.catch(ended);
    this.#own.add(wire);
    this.#made.set(wire, now());
    return wire;
  }

  /** Whether it is older than the connection for commands. */
  #isOlder(own: Wire): boolean {
    const link = this.link;
    return link !== undefined && (this.#made.get(own) ?? 0) < (this.#made.get(link) ?? 0);
  }

  /** Who asks at once where another server has the locks does so with a storm of connections. */
  #restAfter(error: unknown): void {
    // Many hear the same at the same time.
    if (!(error instanceof Elsewhere) || this.pause > 0) return;
    const length = Math.min(SOON, 2 * (this.#pause?.length ?? TRY_AGAIN / 2));
    this.#pause = { length, until: now() + length, why: error };
  }

  #mayOpen(): void {
    if (this.#pause !== undefined && this.pause > 0) throw new Disconnected(this.#pause.why.message, { cause: this.#pause.why });
  }

  /** Notes that what this owner has, or may get, is given back. */
  giveBack(name: string, owner: string, work: Promise<unknown>): void {
    const over = work.catch(() => undefined).finally(() => this.#giving.delete(over));
    this.#giving.set(over, JSON.stringify([name, owner]));
  }

  /** What of that owner is being given back: by its name, and so the next hold would be, too. */
  givingBack(name: string, owner: string): Promise<unknown>[] {
    const mine = JSON.stringify([name, owner]);
    return [...this.#giving].filter(([, whose]) => whose === mine).map(([over]) => over);
  }

  /** Whether that owner has the lock by a call of this session. */
  has(name: string, owner: string): boolean {
    return this.#of(name, owner).length > 0;
  }

  /** What this owner had has ended at the server, unless both are shared: it would not have been granted the lock. */
  granted(name: string, owner: string, shared: boolean): void {
    for (const hold of this.#of(name, owner)) hold.replaced(shared);
  }

  #of(name: string, owner: string): { replaced(byShared: boolean): void }[] {
    return [...this.holds.values()].filter((hold) => hold.name === name && hold.owner === owner);
  }

  /** Whether nothing of that owner is given back any more. Waits for that, so many milliseconds at most. */
  async givenBack(name: string, owner: string, ms: number): Promise<boolean> {
    const pending = this.givingBack(name, owner);
    if (pending.length === 0) return true;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<boolean>((resolve) => {
      timer = setTimeout(resolve, ms, false);
    });
    return Promise.race([Promise.all(pending).then(() => true), late]).finally(() => clearTimeout(timer));
  }

  /** Drops the connections: the server ends the holds that are bound to them. Before, what waits and what is being given back has a
   *  moment to tell the server. */
  async close(): Promise<void> {
    this.ending = true;
    for (const wire of this.#own) wire.reset();
    for (const bell of this.waits.values()) bell.ring();
    await inTime(this.#settled(), SOON, SILENT()).catch(() => undefined);
    this.closed = true;
    for (const wire of [...this.#wires.values(), ...this.#own]) wire.close();
    this.#ring();
  }

  async #settled(): Promise<void> {
    for (;;) {
      const pending = [...this.attempts, ...this.#giving.keys()];
      if (pending.length === 0 || this.closed) return;
      await Promise.allSettled(pending);
    }
  }

  #wire(which: 'commands' | 'messages'): Wire {
    if (this.closed) throw new UnavailableError('closed');
    const there = this.#wires.get(which);
    if (there !== undefined) return there;
    this.#mayOpen();
    const ended = (): void => {
      if (this.#wires.get(which) !== wire) return;
      this.#wires.delete(which);
      this.#ring();
    };
    // "granted <request> <key>" and "lost <request> <key>" both mean: ask again.
    const told = (text: string): void => {
      this.#heard = now();
      this.waits.get(text.split(' ', 2)[1] ?? '')?.ring();
    };
    const wire = this.open(ended, which === 'messages' ? { channel: `lock:inbox:${this.inbox}`, told } : undefined);
    wire.ready.catch(ended);
    this.#wires.set(which, wire);
    this.#made.set(wire, now());
    return wire;
  }

  async #answer<T>(wire: Wire, patience: number, work: () => Promise<T>, guarded = false): Promise<T> {
    const silent = SILENT();
    let isOver = false;
    const send = (): Promise<T> => {
      // Who has waited long enough for the connection says nothing on it.
      if (isOver) throw silent;
      return work();
    };
    const reply = wire.ready.then(send);
    try {
      return await inTime(reply, Math.min(patience, this.patience), silent);
    } catch (cause) {
      const error = errorOf(cause, guarded);
      this.#restAfter(error);
      if (error === silent) void this.#endOfPatience(wire, reply, this.patience - patience);
      // The next connection may lead to another server.
      else if (error instanceof Disconnected) this.#giveUp(wire);
      throw error;
    } finally {
      isOver = true;
    }
  }

  /** Who has less patience than the session says nothing about the server. But what was said is on its way until the connection
   *  is given up: so it is, whether anybody waits for that or not. */
  async #endOfPatience(wire: Wire, reply: Promise<unknown>, left: number): Promise<void> {
    const late = SILENT();
    const isOther = (error: unknown): boolean => error !== late;
    if (left > 0 && (await inTime(reply, left, late, false).then(() => true, isOther))) return;
    this.#giveUp(wire);
  }

  #giveUp(wire: Wire): void {
    // Another call may have given it up before, and then the other connection is a new one.
    const all = [...this.#wires.values()];
    for (const one of all.includes(wire) ? all : [wire]) one.reset();
  }

  #ring(): void {
    for (const bell of [...this.waits.values(), ...this.holds.keys()]) bell.ring();
  }
}
