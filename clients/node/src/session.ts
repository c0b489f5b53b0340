// SPDX-License-Identifier: MIT

/** Two connections that carry all waits and holds of a process: one for commands, one for messages. */

import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import type { Open, Wire } from './adapters.js';
import { Disconnected, errorOf, FULL, UnavailableError } from './errors.js';

/** After a connection broke, in milliseconds. */
export const TRY_AGAIN = 50;

/** A call that has no time to wait has so many milliseconds for its reply. */
export const SOON = 1000;

/** So often, in milliseconds and at most, who waits in the server looks whether it is there: in patiences, too. With another
 *  patience after that, a server remembers a call for longer. */
const LOOK_AGAIN = { most: 8000, patiences: 1.6 };

/** What ends a call that waits in the server, and who hears that it is on its way. */
export interface Blocking {
  signal: AbortSignal | undefined;
  sent: () => void;
}

/** What a call goes on through that is sent again, and who hears each time. */
export interface Insisting {
  through?: typeof UnavailableError;
  sent?: (() => void) | undefined;
}

/** By a clock that nobody sets, in milliseconds. */
export const now = (): number => performance.now();

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

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

  /** Until it rings, or for so many milliseconds. One may wait at a time. */
  async within(ms: number): Promise<void> {
    if (this.#rung || ms <= 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, Math.min(ms, 2 ** 31 - 1));
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = undefined;
  }
}

export class Session {
  readonly inbox = `inbox-${randomUUID()}`;
  /** Who waits, by the id of its request: a message rings. */
  readonly waits = new Map<string, Bell>();
  /** What is held. A connection that breaks rings, here and there. */
  readonly holds = new Set<Bell>();
  closed = false;
  /** What is given back behind the caller's back, by name and owner. */
  readonly #giving = new Map<Promise<unknown>, string>();
  readonly #wires = new Map<'commands' | 'messages', Wire>();
  /** Each carries one call that waits in the server; or waits for the next such call itself. */
  readonly #own = new Set<Wire>();
  #idle: Wire | undefined;

  /** @param patience how long a call may go without an answer, in milliseconds */
  constructor(
    readonly open: Open,
    readonly patience: number,
  ) {}

  /** What is kept is bound to this, the connection for commands, if there is one. */
  get link(): Wire | undefined {
    return this.#wires.get('commands');
  }

  /** Before a wait: a message that nobody hears is taken for a refusal. */
  async listen(patience: number): Promise<void> {
    await this.#answer(this.#wire('messages'), patience, async () => undefined);
  }

  /** The reply. `Disconnected` if there is none in `patience` milliseconds: the session's own is the most. */
  async call(words: readonly string[], patience = this.patience): Promise<unknown> {
    const wire = this.#wire('commands');
    return this.#answer(wire, patience, () => wire.call(words), words[0] === 'LOCK.GUARD');
  }

  /** A call that may be sent twice, and is, for so long, when its connection breaks; through `UnavailableError` also when the
   *  server can do nothing now. */
  async insist(words: readonly string[], ms: number, { through = Disconnected, sent }: Insisting = {}): Promise<unknown> {
    const deadline = now() + ms;
    for (let pause = TRY_AGAIN; ; pause = Math.min(2 * pause, SOON / 5)) {
      sent?.();
      try {
        return await this.call(words);
      } catch (error) {
        if (!(error instanceof through) || this.closed || now() >= deadline) throw error;
        await sleep(pause);
      }
    }
  }

  /** The reply to a call that waits in the server, in `ms()` milliseconds at most, and the connection that no other call had
   *  meanwhile. What is bound to that stays until it is closed, or `rest`s. It is closed when the signal is aborted. */
  async block(words: () => readonly string[], ms: () => number, { signal, sent }: Blocking): Promise<{ reply: unknown; wire: Wire }> {
    if (this.closed) throw new UnavailableError('closed');
    const idle = this.#idle;
    this.#idle = undefined;
    const wire = idle ?? this.#openOwn();
    const close = (): void => wire.close();
    const forget = signal && onAbort(signal, close);
    // TCP may take long to find that nobody is there. Who does not answer on the other connection does not on this one. And a timer
    // keeps the process alive.
    let isOver = false;
    const giveUp = (error: unknown): void => {
      // One that is too many is told so: somebody is there.
      if (error instanceof Disconnected && !error.message.includes(FULL) && !isOver) close();
    };
    const look = (): unknown => this.call(['PING']).catch(giveUp);
    const probe = setInterval(look, Math.min(LOOK_AGAIN.most, LOOK_AGAIN.patiences * this.patience));
    // What came while the process was busy is read first.
    const after = (time: number): NodeJS.Timeout => setTimeout(() => setImmediate(() => isOver || close()), time);
    let late = after(Math.min(this.patience, Math.max(SOON, ms())));
    try {
      await wire.ready;
      if (idle === undefined) await isThere(wire);
      clearTimeout(late);
      sent();
      if (Number.isFinite(ms())) late = after(Math.min(Math.max(0, ms()) + SOON, 2 ** 31 - 1));
      return { reply: await wire.call(words()), wire };
    } catch (cause) {
      close();
      throw errorOf(cause);
    } finally {
      isOver = true;
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
    const ended = (): void => {
      this.#own.delete(wire);
      if (this.#idle === wire) this.#idle = undefined;
    };
    const wire = this.open(ended);
    wire.ready.catch(ended);
    this.#own.add(wire);
    return wire;
  }

  /** Notes that this hold is given back behind the caller's back. */
  giveBack(name: string, owner: string, work: Promise<unknown>): void {
    const over = work.catch(() => undefined).finally(() => this.#giving.delete(over));
    this.#giving.set(over, JSON.stringify([name, owner]));
  }

  /** Whether nothing of that owner is given back any more. Waits for that, so many milliseconds at most: a release goes by the
   *  owner's name, and would give back the next hold, too. */
  async givenBack(name: string, owner: string, ms: number): Promise<boolean> {
    const mine = JSON.stringify([name, owner]);
    const pending = [...this.#giving].filter(([, whose]) => whose === mine).map(([over]) => over);
    if (pending.length === 0) return true;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<boolean>((resolve) => {
      timer = setTimeout(resolve, ms, false);
    });
    return Promise.race([Promise.all(pending).then(() => true), late]).finally(() => clearTimeout(timer));
  }

  /** Drops the connections: the server ends the waits, and the holds that are bound to them. */
  close(): void {
    this.closed = true;
    for (const wire of [...this.#wires.values(), ...this.#own]) wire.close();
    this.#ring();
  }

  #wire(which: 'commands' | 'messages'): Wire {
    if (this.closed) throw new UnavailableError('closed');
    const there = this.#wires.get(which);
    if (there !== undefined) return there;
    const ended = (): void => {
      if (this.#wires.get(which) !== wire) return;
      this.#wires.delete(which);
      this.#ring();
    };
    // "granted <request> <key>" and "lost <request> <key>" both mean: ask again.
    const told = (text: string): void => this.waits.get(text.split(' ', 2)[1] ?? '')?.ring();
    const wire = this.open(ended, which === 'messages' ? { channel: `lock:inbox:${this.inbox}`, told } : undefined);
    wire.ready.catch(ended);
    this.#wires.set(which, wire);
    return wire;
  }

  async #answer<T>(wire: Wire, patience: number, work: () => Promise<T>, guarded = false): Promise<T> {
    const silent = new Disconnected('the server does not answer');
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      // What came while the process was busy is read first.
      timer = setTimeout(() => setImmediate(reject, silent), Math.max(1, Math.min(patience, this.patience)));
    });
    try {
      return await Promise.race([wire.ready.then(work), late]);
    } catch (cause) {
      const error = errorOf(cause, guarded);
      // The next connection may lead to another server. Who has less patience than the session says nothing about the server.
      if (error instanceof Disconnected && (error !== silent || patience >= this.patience)) this.#giveUp(wire);
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  #giveUp(wire: Wire): void {
    // Another call may have given it up before, and then the other connection is a new one.
    const all = [...this.#wires.values()];
    for (const one of all.includes(wire) ? all : [wire]) one.close();
  }

  #ring(): void {
    for (const bell of [...this.waits.values(), ...this.holds]) bell.ring();
  }
}
