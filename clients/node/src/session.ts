// SPDX-License-Identifier: MIT

/** Two connections that carry all waits and holds of a process: one for commands, one for messages. */

import { randomUUID } from 'node:crypto';
import type { Open, Wire } from './adapters.js';
import { errorOf, LockError, UnavailableError } from './errors.js';

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

/** Who wants to know that connections broke, or that messages came. */
export type Bells = Map<string, Bell>;

export class Session {
  readonly inbox = `inbox-${randomUUID()}`;
  /** By requests. */
  readonly waits: Bells = new Map();
  /** By owners. */
  readonly holds: Bells = new Map();
  closed = false;
  #commands: Promise<Wire> | undefined;
  #messages: Promise<Wire> | undefined;

  constructor(
    readonly open: Open,
    readonly patience: number,
  ) {}

  #ring(): void {
    for (const bells of [this.waits, this.holds]) for (const bell of bells.values()) bell.ring();
  }

  /** A connection; it forgets itself when it ends. */
  #connect(forget: (wire: Promise<Wire>) => void, channel?: string): Promise<Wire> {
    if (this.closed) throw new UnavailableError('closed');
    const ended = (): void => {
      forget(made);
      this.#ring();
    };
    // "granted <request> <key>" and "lost <request> <key>" both mean: ask again.
    const told = (text: string): void => this.waits.get(text.split(' ', 2)[1] ?? '')?.ring();
    const made: Promise<Wire> = this.#patient(this.open(ended, channel, told), this.patience).then(
      (wire) => {
        if (this.closed) wire.close();
        return wire;
      },
      (error: unknown) => {
        forget(made);
        throw error;
      },
    );
    return made;
  }

  /** What the library and the server say is one of our errors. */
  async #patient<T>(work: Promise<T>, ms: number): Promise<T> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new UnavailableError('the server does not answer')), Math.max(0, ms));
    });
    try {
      return await Promise.race([work, late]);
    } catch (cause) {
      if (cause instanceof LockError) throw cause;
      const text = cause instanceof Error ? cause.message : String(cause);
      // What the server says begins with a word in capitals; what a library says of a connection does not.
      if (/^[A-Z][A-Z0-9]+ /.test(text)) throw errorOf(text, cause);
      throw new UnavailableError(`the connection is lost: ${text}`, { cause });
    } finally {
      clearTimeout(timer);
      work.catch(() => undefined);
    }
  }

  /** Before a wait: a message that nobody hears is taken for a refusal. */
  async listen(): Promise<void> {
    this.#messages ??= this.#connect((wire) => {
      if (this.#messages === wire) this.#messages = undefined;
    }, `lock:inbox:${this.inbox}`);
    await this.#messages;
  }

  /** A call on the connection for commands. Without an answer in time, that connection is given up. */
  async call(words: readonly string[], patience = this.patience): Promise<unknown> {
    this.#commands ??= this.#connect((wire) => {
      if (this.#commands === wire) this.#commands = undefined;
    });
    const made = this.#commands;
    const wire = await made;
    try {
      return await this.#patient(wire.call(words), patience);
    } catch (error) {
      const text = (error as Error).message;
      // A connection on which nothing comes, or that leads to a server which was the primary.
      const isSilent = text === 'the server does not answer' && patience === this.patience;
      if (isSilent || text.startsWith('READONLY')) {
        if (this.#commands === made) this.#commands = undefined;
        wire.close();
        this.#messages?.then((messages) => messages.close()).catch(() => undefined);
      }
      throw error;
    }
  }

  /** Drops the connections: the server ends the waits, and the holds that are bound to them. */
  async close(): Promise<void> {
    this.closed = true;
    const wires = await Promise.allSettled([this.#commands, this.#messages]);
    for (const wire of wires) if (wire.status === 'fulfilled') wire.value?.close();
    this.#ring();
  }
}
