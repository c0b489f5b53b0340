// SPDX-License-Identifier: MIT

import { randomUUID } from 'node:crypto';
import type { Wire } from './adapters.js';
import { Disconnected, LockError, LostError, UnavailableError } from './errors.js';
import { tell } from './events.js';
import { bound, check, type How, ms } from './options.js';
import { Bell, now, type Session, sleep, SOON, TRY_AGAIN } from './session.js';

/** To give back what is kept is tried for so long, in milliseconds, behind the back of who could not. */
const GIVE_BACK_FOR = 600_000;

/** What a call got: when it was sent, when the last was that set the lease, and the token. @internal */
export interface Grant {
  sent: number;
  renewed: number;
  token?: number | undefined;
}

/** A lock that is held. */
export class Hold {
  readonly #session: Session;
  #how: How;
  readonly #lost = new AbortController();
  readonly #bell = new Bell();
  readonly #releaseId = randomUUID();
  #lease: number;
  #granted = 0;
  #until = 0;
  #link: Wire | undefined;
  #renewing: Promise<unknown> = Promise.resolve();
  #released = false;
  /** To give it back has failed, and goes on. */
  #left = false;
  #releasing = 0;
  #token: number | undefined;

  /** @internal */
  constructor(
    session: Session,
    how: How,
    /** Of the lock. */
    readonly name: string,
    /** Who holds it, as the server knows it. */
    readonly owner: string,
  ) {
    this.#session = session;
    this.#how = how;
    this.#lease = how.lease;
  }

  /** Aborted, with a `LostError` as its reason, when the hold ended before it was given back. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** With `fence`, greater than that of every hold before. */
  get token(): number | undefined {
    return this.#token;
  }

  /** Milliseconds for which nobody else can have the lock, whatever the network does. What is kept ends with its connection: if
   *  that breaks, this is 0 until the server has said on the next that the lock is still held. */
  get validFor(): number {
    const isBound = !this.#how.keep || (this.#link !== undefined && this.#link === this.#session.link);
    const isOver = this.signal.aborted || this.#released || this.#left || this.#releasing > 0;
    return isOver || !isBound ? 0 : Math.max(0, this.#until - now());
  }

  /** Sets the lease anew, from now on, in milliseconds. Rejects with `LostError` if there is nothing to extend. */
  async extend(lease: number = this.#lease): Promise<void> {
    check('lease', lease);
    this.#stillHeld();
    await this.#renew(lease, (sent) => this.#session.insist(this.#renewal(lease), Math.max(0, this.#until - now()), { sent }));
    this.#lease = lease;
    this.#bell.ring();
  }

  /** Carries out a command of Redis if the lock is still held, in the same step. Rejects with `LostError` if it is not. */
  async guard(...command: (string | number)[]): Promise<unknown> {
    this.#stillHeld();
    const words = ['LOCK.GUARD', this.name, 'OWNER', this.owner, ...command.map(String)];
    return this.#orLose(() => this.#session.call(words));
  }

  /** Gives the lock back. If that fails, it may be called again, and counts once. Rejects with `LostError` if it was lost. */
  async release(): Promise<void> {
    // What is lost is given back already, if it must be, and another hold may have the same owner by now.
    if (!this.#released && !(this.signal.aborted && (this.#how.owner !== undefined || this.#left))) {
      this.#releasing++;
      try {
        await this.#giveBack(this.signal.aborted ? 0 : this.#lease);
      } catch (error) {
        if (error instanceof LostError) this.#lose(error);
        // What is lost may be impossible to give back.
        else if (!this.signal.aborted || !(error instanceof UnavailableError)) {
          this.#leave();
          throw error;
        }
      } finally {
        this.#releasing--;
      }
      this.#released = true;
      this.#end('released');
    }
    if (!this.signal.aborted) return;
    await this.#session.givenBack(this.name, this.owner, SOON);
    throw this.signal.reason as LostError;
  }

  /** The hold is another process's from now on: nothing here renews it, tells of its loss or gives it back. Returns the owner, for
   *  `Locks.attach` there. What is kept is bound to this process until then, so this process should live so long. */
  async handOver(): Promise<string> {
    this.#stillHeld();
    if (this.#releasing > 0) throw new LostError(`${this.name}: it is being given back`);
    this.#released = true;
    this.#end('released');
    // A renewal that is on its way would bind it here again.
    await this.#renewing.catch(() => undefined);
    return this.owner;
  }

  /** For `await using`: gives the lock back. A loss is told by the signal only, as the body's own error says more. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      if (!(error instanceof LostError)) throw error;
    }
  }

  /** It is ours. @internal */
  begin({ sent, renewed, token }: Grant): void {
    this.#granted = sent;
    this.#until = renewed + this.#lease;
    this.#token = token;
    this.#link = this.#session.link;
    this.#session.holds.add(this.#bell);
    void this.#watch();
  }

  /** Whether the server knows of it; its lease is set anew. @internal */
  async confirm(ms: number, sent?: () => void): Promise<void> {
    await this.#session.insist(this.#renewal(this.#lease, 0), ms, { sent });
  }

  /** Another hold may have its owner's name, later. */
  #stillHeld(): void {
    this.signal.throwIfAborted();
    if (this.#released || this.#left) throw new LostError(`${this.name}: it is not held any more`);
  }

  #renewal(lease: number, age = now() - this.#granted): string[] {
    return ['LOCK.RENEW', this.name, this.owner, 'PX', ms(lease), ...bound(this.#how, age)];
  }

  async #renew(lease: number, call: (sent: () => void) => Promise<unknown>): Promise<void> {
    let sent = now();
    await this.#orLose(() => call(() => (sent = now())));
    this.#until = sent + lease;
    this.#link = this.#session.link;
  }

  async #giveBack(time: number): Promise<void> {
    const words = ['LOCK.RELEASE', this.name, this.owner, ...(this.#how.shared ? ['SHARED'] : []), 'ID', this.#releaseId];
    await this.#session.insist(words, time, { through: UnavailableError });
    this.#released = true;
    this.#end('released');
  }

  /** It could not be given back: so that is tried behind the caller's back, who may not call `release` again. */
  #leave(): void {
    if (this.#left || this.#released) return;
    this.#left = true;
    this.#bell.ring();
    const { keep } = this.#how;
    const work = this.#giveBack(keep ? GIVE_BACK_FOR : Math.max(0, this.#until - now())).catch(async (error: unknown) => {
      if (!keep || error instanceof UnavailableError || error instanceof LostError) return;
      // Who may not give it back may have it run out. Its bond cannot be undone; but with this limit the server renews no more.
      this.#how = { ...this.#how, maxHold: 1 };
      await this.#session.insist(this.#renewal(this.#lease), this.#lease);
    });
    this.#session.giveBack(this.name, this.owner, work);
  }

  async #orLose<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      // It may have been given back just before.
      if (error instanceof LostError && this.#releasing === 0) this.#lose(error);
      throw error;
    }
  }

  #lose(why: LostError, isMaybeKept = false): void {
    if (this.signal.aborted || this.#released) return;
    // The server may renew it for as long as the connection is there.
    if (isMaybeKept) this.#leave();
    // Told before the listeners of the signal are: they may give it back at once.
    this.#end('lost');
    this.#lost.abort(why);
  }

  /** A hold ends once. */
  #end(outcome: 'released' | 'lost'): void {
    this.#bell.ring();
    if (this.#session.holds.delete(this.#bell)) tell(this.#how.label, 'held', outcome, this.#granted);
  }

  /** Renews, if it is to be kept, and tells when the lock is lost: by the server, or by the own clock. */
  async #watch(): Promise<void> {
    const keeps = (): boolean => this.#how.keep && !this.#left && now() - this.#granted < (this.#how.maxHold ?? Infinity);
    const lost = (why: string): LostError => new LostError(`${this.name}: ${why}`);
    for (;;) {
      const pause = this.#lease / 3;
      const left = this.#until - now();
      if (!keeps() && left <= 0) return this.#lose(lost('the lease is over'), this.#how.keep);
      await this.#bell.within(keeps() ? Math.min(pause, left) : left);
      this.#bell.clear();
      if (this.signal.aborted || this.#released) return;
      if (this.#session.closed) return this.#lose(lost('the session was closed'));
      if (!keeps()) continue;
      // A process that slept through its lease asks once: the server may have renewed, and then nobody else had the lock, as no
      // other ever has this owner's name.
      const slept = now() >= this.#until;
      const lease = this.#lease;
      try {
        const patience = slept ? pause : this.#until - now();
        this.#renewing = this.#renew(lease, () => this.#session.call(this.#renewal(lease), patience));
        await this.#renewing;
      } catch (error) {
        if (!(error instanceof LockError)) throw error;
        if (now() >= this.#until) return this.#lose(lost('the lease is over, and the server does not answer'), true);
        if (!(error instanceof Disconnected)) continue;
        await sleep(Math.min(TRY_AGAIN, pause));
        this.#bell.ring();
      }
    }
  }
}
