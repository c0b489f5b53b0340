// SPDX-License-Identifier: MIT

import { randomUUID } from 'node:crypto';
import { LockError, LostError, UnavailableError } from './errors.js';
import type { How } from './locks.js';
import { Bell, type Session } from './session.js';

/** After a connection broke, in milliseconds. */
export const TRY_AGAIN = 50;

/** By a clock that nobody sets, in milliseconds. */
export const now = (): number => performance.now();

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** A lock that is held. */
export class Hold {
  /** The token of `fence: true`: it is greater than that of every grant before. */
  token: number | undefined;
  readonly #lost = new AbortController();
  readonly #bell = new Bell();
  readonly #releaseId = randomUUID();
  #granted = 0;
  #until = 0;
  #released = false;
  #done: ((outcome: string) => void) | undefined;

  /** @internal */
  constructor(
    readonly name: string,
    /** Who holds it, as the server knows it. */
    readonly owner: string,
    private readonly how: How,
    private readonly session: Session,
  ) {}

  /** Aborted, with a `LostError` as its reason, when the hold ended before it was given back. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Milliseconds for which nobody else can have the lock, whatever the network does. */
  get validFor(): number {
    return this.signal.aborted || this.#released ? 0 : Math.max(0, this.#until - now());
  }

  /** Sets the lease anew, in milliseconds. Rejects with `LostError` if there is nothing to extend. */
  async extend(lease: number = this.how.lease): Promise<void> {
    await this.renew(lease);
    this.#bell.ring();
  }

  /** Carries out a command of Redis if the lock is still held, in the same step; rejects with `LostError` if it is not. */
  async guard(...command: (string | number)[]): Promise<unknown> {
    try {
      return await this.session.call(['LOCK.GUARD', this.name, 'OWNER', this.owner, ...command.map(String)]);
    } catch (error) {
      if (error instanceof LostError) this.lose(error);
      throw error;
    }
  }

  /** Gives the lock back. If that fails, it may be called again, and counts once. Rejects with `LostError` if it was lost before. */
  async release(): Promise<void> {
    const words = ['LOCK.RELEASE', this.name, this.owner, ...(this.how.shared ? ['SHARED'] : []), 'ID', this.#releaseId];
    const deadline = now() + this.session.patience;
    while (!this.#released) {
      try {
        await this.session.call(words);
        this.#end('released');
      } catch (error) {
        if (error instanceof LostError) {
          this.lose(error);
          this.#end('lost');
          break;
        }
        if (!(error instanceof UnavailableError) || this.session.closed || now() > deadline) throw error;
        await sleep(TRY_AGAIN);
      }
    }
    if (this.signal.aborted) throw this.signal.reason as LostError;
  }

  /** For `await using`: gives the lock back. A loss was told by the signal. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      if (!(error instanceof LostError)) throw error;
    }
  }

  #end(outcome: string): void {
    this.#released = true;
    this.session.holds.delete(this.owner);
    this.#bell.ring();
    this.#done?.(outcome);
    this.#done = undefined;
  }

  /** @internal */
  lose(error: LostError): void {
    if (this.signal.aborted || this.#released) return;
    this.session.holds.delete(this.owner);
    this.#lost.abort(error);
    this.#bell.ring();
    this.#done?.('lost');
    this.#done = undefined;
  }

  /** @internal */
  async renew(lease: number, patience?: number): Promise<void> {
    const sent = now();
    const words = ['LOCK.RENEW', this.name, this.owner, 'PX', String(Math.round(lease)), ...bound(this.how, sent - this.#granted)];
    try {
      await this.session.call(words, patience);
    } catch (error) {
      if (error instanceof LostError) this.lose(error);
      throw error;
    }
    this.#until = sent + lease;
  }

  /** The lock was granted to a call that was sent then. @internal */
  begin(granted: number, sent: number, done: (outcome: string) => void): void {
    this.#granted = granted;
    this.#until = sent + this.how.lease;
    this.#done = done;
    this.session.holds.set(this.owner, this.#bell);
    void this.#watch();
  }

  /** @internal */
  wasGranted(sent: number): void {
    this.#granted = sent;
  }

  /** Renews, if it is to be kept, and tells when the lock is lost: by the server, or by the own clock. */
  async #watch(): Promise<void> {
    const pause = this.how.lease / 3;
    const lost = (why: string): void => this.lose(new LostError(`${this.name}: ${why}`));
    while (!this.signal.aborted && !this.#released) {
      const keeps = this.how.keep && (this.how.maxHold === undefined || now() - this.#granted < this.how.maxHold);
      const left = this.#until - now();
      if (!keeps && left <= 0) return lost('the lease is over');
      await this.#bell.within(keeps ? Math.min(pause, left) : left);
      this.#bell.clear();
      if (this.signal.aborted || this.#released) return;
      if (this.session.closed) return lost('the session was closed');
      if (!keeps) continue;
      // A process that slept through its lease asks once: the server may have renewed, and then nobody else had the lock, as no
      // other ever has this owner's name.
      const slept = now() >= this.#until;
      try {
        await this.renew(this.how.lease, slept ? pause : this.#until - now());
      } catch (error) {
        if (!(error instanceof LockError) || this.signal.aborted) return;
        if (now() >= this.#until) return lost('the server does not answer, and the lease is over');
        await sleep(Math.min(TRY_AGAIN, pause));
        this.#bell.ring();
      }
    }
  }
}

/** What binds a hold to its connection, which has been held for so long. @internal */
export function bound(how: How, age: number): string[] {
  if (!how.keep) return [];
  const max = how.maxHold === undefined ? [] : ['MAX', String(Math.max(1, Math.round(how.maxHold - age)))];
  return ['WATCHDOG', ...max, 'EPHEMERAL'];
}
