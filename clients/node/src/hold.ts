// SPDX-License-Identifier: MIT

import { randomUUID } from 'node:crypto';
import type { Wire } from './adapters.js';
import { LockError, LostError, MisuseError, Passing, UnavailableError } from './errors.js';
import { tell } from './events.js';
import { bound, check, type How, ms } from './options.js';
import { Bell, inTime, now, onAbort, type Session, sleep, SOON, TRY_AGAIN, type Words } from './session.js';

/** To give back what may be kept is tried for so long, in milliseconds, behind the back of who could not. @internal */
export const GIVE_BACK_FOR = 600_000;

/** A release, an extension and a hand-over keep the caller waiting for so many milliseconds at most. */
const AT_MOST = 30_000;

/** What is kept is renewed so often, in milliseconds: servers and networks end connections on which nothing is said. */
const HEARTBEAT = 10_000;

/** What a call got: when it was sent, when the last was that set the lease, the token, and the connection to which it is bound if
 *  it is kept, and no other call has bound it since. @internal */
export interface Grant {
  sent: number;
  renewed: number;
  token?: number | undefined;
  wire?: Wire | undefined;
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
  /** The end of the lease that each call sets, by the time at which it was sent: from the last that was confirmed on. The server
   *  has one of these. */
  #ends = new Map<number, number>();
  /** What is kept is bound to this, by the call that bound it last. */
  #link: Wire | undefined;
  #renewing: Promise<unknown> = Promise.resolve();
  #released = false;
  #handing = false;
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
    const isOver = this.signal.aborted || this.#released || this.#left || this.#releasing > 0;
    return isOver || (this.#how.keep && !this.#isBound) ? 0 : Math.max(0, this.#until - now());
  }

  /** Sets the lease anew, from now on, in milliseconds. Rejects with `LostError` if there is nothing to extend. */
  async extend(lease: number = this.#lease): Promise<void> {
    check('lease', lease);
    this.#stillHeld();
    if (this.#handing) throw new UnavailableError(`${this.name}: it is being handed over`);
    const time = Math.min(AT_MOST, this.#until - now());
    await this.#inTime(this.#renew(lease, (words) => this.#session.insist(words, time)));
    // The reply may be later than the loss by the own clock.
    this.signal.throwIfAborted();
    this.#lease = lease;
    this.#bell.ring();
  }

  /** Carries out a command of Redis if the lock is still held, in the same step. Rejects with `LostError` if it is not. */
  async guard(...command: (string | number)[]): Promise<unknown> {
    this.#stillHeld();
    const words = ['LOCK.GUARD', this.name, 'OWNER', this.owner, ...command.map(String)];
    try {
      return await this.#session.call(words);
    } catch (error) {
      // It may be what the command says of another lock. If it is the word of this one, the signal is there before the error.
      if (error instanceof LostError) await this.#ask();
      throw error;
    }
  }

  /** Gives the lock back. If that fails, it may be called again, and counts once. Rejects with `LostError` if it was lost. */
  async release(): Promise<void> {
    // What is lost is given back already, if it must be, and another hold may have the same owner by now.
    if (!this.#released && !(this.signal.aborted && (this.#how.owner !== undefined || this.#left))) {
      const release = this.#release();
      // That goes by its owner's name, and the next hold may have the same. And `close` waits for it.
      this.#session.giveBack(this.name, this.owner, release);
      await release;
    }
    if (!this.signal.aborted) return;
    await this.#session.givenBack(this.name, this.owner, SOON);
    throw this.signal.reason as LostError;
  }

  /** The hold is another process's from now on: nothing here renews it, tells of its loss or gives it back. Returns the owner, for
   *  `Locks.attach` there. What is kept is bound to this process until then, so this process should live so long. */
  async handOver(): Promise<string> {
    this.#stillHeld();
    // It may have ended with its connection.
    if (this.#how.keep && !this.#isBound) await this.extend();
    this.#handing = true;
    try {
      // A renewal that is on its way would bind it here again. No other is sent, and the own clock goes on.
      await this.#inTime(this.#renewing);
    } finally {
      this.#handing = false;
      this.#bell.ring();
    }
    this.#stillHeld();
    if (this.#releasing > 0) throw new LostError(`${this.name}: it is being given back`);
    this.#released = true;
    this.#end('released');
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

  /** A call for it is sent: so it may last that long, whatever becomes of the reply. @internal */
  asked(sent: number, lease = this.#lease): void {
    // Who waits asks again and again, for the same lease.
    if (this.#granted === 0) this.#ends.clear();
    this.#ends.set(sent, Math.min(sent + lease, this.#ends.get(sent) ?? Infinity));
  }

  /** Whether the server may know of it. @internal */
  get isAsked(): boolean {
    return this.#ends.size > 0;
  }

  /** It is ours. @internal */
  begin({ sent, renewed, token, wire }: Grant): void {
    this.#granted = sent;
    this.#confirmed(renewed);
    this.#token = token;
    this.#link ??= wire;
    this.#session.holds.set(this.#bell, this);
    // Its connection may have broken just now.
    if (!this.#isBound) this.#bell.ring();
    void this.#watch();
  }

  /** Whether the server knows of it; its lease is set anew. Returns when that was sent. Is tried again for so many milliseconds
   *  after it has failed. @internal */
  async confirm(ms: number): Promise<number> {
    return this.#renewal(this.#lease, (words) => this.#session.insist(words, ms, { sinceFailure: true }));
  }

  /** It lasts until then, whatever has become of the calls without a reply. */
  get #until(): number {
    return [...this.#ends.values()].reduce((one, other) => Math.min(one, other), Infinity);
  }

  /** When it ends at the server, at the latest. */
  get #mayLast(): number {
    return [...this.#ends.values()].reduce((one, other) => Math.max(one, other), 0);
  }

  /** Each of those that were sent since may have set another end. */
  #confirmed(sent: number): void {
    for (const at of this.#ends.keys()) if (at < sent) this.#ends.delete(at);
  }

  get #isBound(): boolean {
    return this.#link !== undefined && this.#link === this.#session.link;
  }

  /** Another hold may have its owner's name, later. */
  #stillHeld(): void {
    this.signal.throwIfAborted();
    if (this.#released || this.#left) throw new LostError(`${this.name}: it is not held any more`);
  }

  /** What it comes to, if that is before the lease is over, and before anybody has waited for too long. */
  async #inTime<T>(work: Promise<T>): Promise<T> {
    let forget: (() => void) | undefined;
    const lost = new Promise<never>((_, reject) => {
      forget = onAbort(this.signal, () => reject(this.signal.reason as LostError));
    });
    const late = new UnavailableError(`${this.name}: the server does not answer`);
    return inTime(Promise.race([work, lost]), AT_MOST, late).finally(forget);
  }

  /** Binds what is kept where it is not bound yet, and only there: what comes late, from a proxy maybe, must not bind it to a
   *  connection that is over. Returns when it was sent. */
  async #renewal(lease: number, call: (words: Words) => Promise<unknown>): Promise<number> {
    const sent: { at: number; wire?: Wire } = { at: 0 };
    await call((wire) => {
      this.#stillHeld();
      [sent.at, sent.wire] = [now(), wire];
      if (this.#granted > 0 && sent.at + lease < this.#until) {
        // The server may set it, and its reply be lost.
        this.#lease = Math.min(lease, this.#lease);
        this.#bell.ring();
      }
      this.asked(sent.at, lease);
      const age = this.#granted === 0 ? 0 : sent.at - this.#granted;
      return ['LOCK.RENEW', this.name, this.owner, 'PX', ms(lease), ...(wire === this.#link ? [] : bound(this.#how, age))];
    });
    this.#link = sent.wire;
    this.#confirmed(sent.at);
    return sent.at;
  }

  async #renew(lease: number, call: (words: Words) => Promise<unknown>): Promise<void> {
    const renewal = this.#orLose(() => this.#renewal(lease, call));
    this.#renewing = Promise.allSettled([this.#renewing, renewal]).then(() => undefined);
    await renewal;
  }

  /** Whether it is still held, which the signal tells. Sets no other end for what is not kept. */
  async #ask(): Promise<void> {
    const left = this.#until - now();
    // Another process may have it.
    if (left <= 0 || this.#released || this.#left || this.#handing) return;
    const lease = this.#keeps ? this.#lease : left;
    await this.#renew(lease, (words) => this.#session.call(words, left)).catch(() => undefined);
  }

  async #release(): Promise<void> {
    this.#releasing++;
    try {
      await this.#giveBack(this.signal.aborted ? 0 : Math.min(this.#lease, AT_MOST));
    } catch (error) {
      if (error instanceof LostError) this.#lose(error);
      // What is lost may be impossible to give back.
      else if (!this.signal.aborted || !(error instanceof UnavailableError)) {
        this.leave();
        throw error;
      }
    } finally {
      this.#releasing--;
    }
    this.#released = true;
    this.#end('released');
  }

  async #giveBack(time: number): Promise<void> {
    const words = ['LOCK.RELEASE', this.name, this.owner, ...(this.#how.shared ? ['SHARED'] : []), 'ID', this.#releaseId];
    await this.#session.insist(words, time, { through: UnavailableError });
    this.#released = true;
    this.#end('released');
  }

  /** It could not be given back: so that is tried behind the caller's back, who may not call `release` again. @internal */
  leave(): void {
    if (this.#left || this.#released) return;
    this.#left = true;
    this.#bell.ring();
    this.#session.giveBack(this.name, this.owner, this.#giveBackBehind());
  }

  async #giveBackBehind(): Promise<void> {
    const end = this.#how.keep ? now() + GIVE_BACK_FOR : this.#mayLast;
    for (let pause = TRY_AGAIN; ; pause = Math.min(2 * pause, SOON)) {
      try {
        return await this.#giveBack(0);
      } catch (error) {
        // Something else may be in the lock's place.
        if (error instanceof LostError || (error as Error).message.startsWith('WRONGTYPE')) return;
        if (this.#how.keep && error instanceof MisuseError && (await this.#runsOut())) return;
      }
      if (this.#session.closed || now() + pause > end) return;
      // What is kept ends with the process.
      await sleep(pause, !this.#how.keep);
    }
  }

  /** Who may not give it back may have it run out. Its bond cannot be undone; but with this limit the server renews no more. */
  async #runsOut(): Promise<boolean> {
    const words = ['LOCK.RENEW', this.name, this.owner, 'PX', ms(this.#lease), 'WATCHDOG', 'MAX', '1', 'EPHEMERAL'];
    return this.#session.call(words).then(
      () => true,
      (error: unknown) => error instanceof LostError,
    );
  }

  async #orLose<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      // It may have been given back just before.
      if (error instanceof LostError && this.#releasing === 0 && !this.#left) this.#lose(error);
      throw error;
    }
  }

  /** By the next hold of its owner. @internal */
  replaced(byShared: boolean): void {
    if (byShared && this.#how.shared) return;
    if (this.#releasing === 0 && !this.#left) this.#lose(new LostError(`${this.name}: its owner has the lock anew`));
  }

  #lose(why: LostError, byClock = false): void {
    if (this.signal.aborted || this.#released) return;
    // The server may renew it for as long as the connection is there, or have set a longer lease.
    if (byClock && (this.#how.keep || this.#mayLast > now())) this.leave();
    // Told before the listeners of the signal are: they may give it back at once.
    this.#end('lost');
    this.#lost.abort(why);
  }

  /** A hold ends once. */
  #end(outcome: 'released' | 'lost'): void {
    this.#bell.ring();
    if (this.#session.holds.delete(this.#bell)) tell(this.#how.label, 'held', outcome, this.#granted);
  }

  get #isKept(): boolean {
    return this.#how.keep && !this.#left && !this.#handing;
  }

  /** Whether it is renewed. */
  get #keeps(): boolean {
    return this.#isKept && now() - this.#granted < (this.#how.maxHold ?? Infinity);
  }

  /** Renews, if it is to be kept, and tells when the lock is lost: by the server, or by the own clock. */
  async #watch(): Promise<void> {
    const lost = (why: string): LostError => new LostError(`${this.name}: ${why}`);
    let again = TRY_AGAIN;
    for (;;) {
      const pause = Math.min(this.#lease / 3, HEARTBEAT);
      const left = this.#until - now();
      if (!this.#keeps && left <= 0) return this.#lose(lost('the lease is over'), true);
      await this.#bell.within(this.#keeps ? Math.min(pause, left) : left);
      this.#bell.clear();
      if (this.signal.aborted || this.#released) return;
      if (this.#session.closed) return this.#lose(lost('the session was closed'));
      // What is not renewed any more may have ended with its connection, too: that is asked, by a renewal for what is left.
      const isUnbound = this.#isKept && !this.#isBound && now() < this.#until;
      if (!this.#keeps && !isUnbound) continue;
      // A process that slept through its lease asks once: the server may have renewed, and then nobody else had the lock, as no
      // other ever has this owner's name.
      const slept = now() >= this.#until;
      const lease = this.#keeps ? this.#lease : this.#until - now();
      try {
        const patience = slept ? pause : this.#until - now();
        await this.#renew(lease, (words) => this.#session.call(words, patience));
        again = TRY_AGAIN;
      } catch (error) {
        if (!(error instanceof LockError)) throw error;
        if (now() >= this.#until) return this.#lose(lost('the lease is over, and the server does not answer'), true);
        if (!(error instanceof Passing)) continue;
        await sleep(Math.max(1, Math.min(again, pause, this.#until - now())));
        again = Math.min(2 * again, SOON / 5);
        this.#bell.ring();
      }
    }
  }
}
