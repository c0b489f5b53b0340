// SPDX-License-Identifier: MIT

/** A client's presence on one server: its numbers, holds and waits, and the loop that reads events. Rules R1 to R23 are those of
 *  docs/sessions.md. Times are in milliseconds, by the monotonic clock. */

import { type Acquire, keepAlive } from './acquire.js';
import { now, Signal, sleep } from './clock.js';
import {
  CancelledError, DeadlockError, Late, LockError, LostError, Moved, NoSession, Overwritten, TimedOutError, Transient,
  UnavailableError,
} from './errors.js';
import { CALL_TIMEOUT, type Io } from './io.js';
import { ms, type Words } from './request.js';

/** Time that `LOCK.EVENTS` waits in the server, and at most a third of `GRACE`. */
const EVENTS_BLOCK = 1000;
/** Maximum number of events in a reply. A full reply confirms nothing (R2). */
const EVENTS_COUNT = 1000;
/** Extra time for the reply to a call that waits in the server. */
const REPLY_GRACE = 1000;
/** The first and the longest pause before a call is repeated. */
export const RETRY_PAUSE = 50;
const MAX_RETRY_PAUSE = 1000;
/** Limit for the last call of a session, `LOCK.SESSION CLOSE`. */
const CLOSE_TIMEOUT = 1000;
/** Ends of a hold that a release without a reply may have caused. */
const UNEXPLAINED = ['restarted', 'not held'];

/** The event that a listener gets. */
export interface LockEvent {
  /** The label of the lock, if it has one. */
  label: string | undefined;
  event: 'waited' | 'held' | 'jeopardy' | 'safe';
  /** `granted` or the kind of an error for a wait, `released` or `lost` for a hold; otherwise empty. */
  outcome: string;
  /** Duration of the wait or of the hold so far, in milliseconds. */
  ms: number;
}

/** @internal */
export interface SessionOptions {
  name: string;
  ttl: number;
  grace: number;
  patience: number;
  notify: ((event: LockEvent) => void) | undefined;
}

type Event = [seq: number, kind: string, n: number, ...fields: unknown[]];

/** The session on one server.
 *
 *  An acquire is in one of three places: `asked` until it is granted, `held`, and `undo` if it is over for its user, but the
 *  server has not confirmed that. Replies, events and the clock move it. @internal */
export class Session {
  id: string | undefined;
  closed = false;
  readonly asked = new Map<number, Acquire>();
  readonly held = new Map<number, Acquire>();
  readonly undo = new Map<number, Acquire>();
  /** Acquires of the previous session, or of another node, that the reader declares. */
  readonly undeclared = new Set<Acquire>();
  /** The session is open, its holds are declared (R3), and `LOCK.EVENTS` has confirmed them. */
  #isUp = false;
  readonly #up = new Signal();
  readonly #closing = new Signal();
  /** Granted by an event. The callers continue once the next `LOCK.EVENTS` is sent (R1). */
  #granted: Acquire[] = [];
  #error: LockError | undefined;
  #beat = 0;
  #seen = 0;
  #lastN = 0;
  #confirmed = -Infinity;
  #safeUntil = -Infinity;
  #inJeopardy = false;
  /** When the present failures began. */
  #failing = Infinity;
  #isUndoing = false;
  #reading: Promise<void> | undefined;

  constructor(
    readonly io: Io,
    readonly options: SessionOptions,
    /** Leaves acquires to the sessions of the nodes that serve their slots now. Undefined without a cluster. */
    readonly relocate: ((acquires: Acquire[]) => Promise<void>) | undefined,
  ) {}

  // Calls of the user.

  /** Waits for the grant or the end of the acquire. After an error the caller cancels it: the server may still grant it. */
  async ask(asked: Acquire): Promise<void> {
    const { request, isTry, source } = asked;
    const giveUp = isTry || source !== undefined ? asked.began + this.options.patience : asked.until + REPLY_GRACE;
    if (!this.#isUp) await this.#untilUp(asked, giveUp);
    if (!asked.is('asked')) return;
    this.#enrol(asked);
    this.asked.set(this.#lastN, asked);
    try {
      const [reply, firstSent] = await this.#call(asked, () => asked.acquireWords(), giveUp);
      // An event, or a new session, overrules the reply (R14).
      if (asked.is('asked') && reply === null) this.#end(asked, 'timeout');
      if (asked.is('asked') && reply !== 0) this.#grant(asked, firstSent, asked.inDoubt, reply);
    } catch (error) {
      // The server has answered the only attempt, so there is nothing to undo.
      if (asked.is('asked') && !asked.inDoubt) this.#end(asked, error instanceof LostError ? 'restarted' : 'cancelled');
      if (source !== undefined || !(error instanceof LostError)) throw error;
      this.#end(asked, 'restarted', request.several);
    }
    if (asked.is('asked') && asked.error === undefined) {
      await asked.changed.wait(giveUp);
      const Kind = this.#failing < Infinity ? UnavailableError : TimedOutError;
      if (asked.is('asked')) asked.error ??= new Kind(`${request.name}: the server has not answered in time`);
    }
    if (asked.error !== undefined) throw asked.error;
    if (asked.is('held')) await this.#checkGrant(asked);
  }

  async #checkGrant(hold: Acquire): Promise<void> {
    const { name, options: { reentrant, lease } } = hold.request;
    if (hold.holds > 1 && reentrant !== true) {
      throw new DeadlockError(`${name}: this owner has the lock already; release it first, or use the option reentrant`);
    }
    if (lease === undefined || hold.leaseEnds > now()) return;
    // The lease may be over, as the grant is old.
    hold.leaseEnds = Infinity;
    await this.renew(hold, lease).catch((error: unknown) => {
      if (!(error instanceof LostError)) throw error;
      if (hold.isTry) throw new UnavailableError(`${name}: the grant arrived after the end of its lease`);
    });
  }

  /** Ends an acquire in any state. The reader repeats the call until it is answered (R11). */
  async cancel(acquire: Acquire): Promise<void> {
    this.#end(acquire, 'cancelled', true);
    const { session, n } = acquire.number;
    if (session.#isUp && session.undo.get(n) === acquire) await session.#sendUndo([acquire]);
    keepAlive(acquire, false);
  }

  /** Leaves the release of a hold to the reader. */
  drop(hold: Acquire): void {
    this.#end(hold, 'released', true);
  }

  /** Releases exactly this hold. After a failure the reader undoes it. */
  async release(hold: Acquire): Promise<void> {
    const isFirst = !hold.isReleasing && !hold.isHandedOver;
    hold.isReleasing = true;
    // Expired by the local clock. A lease is never shortened, so the server may still have the hold.
    if (hold.is('held') && hold.isLost) this.#end(hold, 'expired', true);
    if (hold.is('held') && isFirst) {
      hold.inDoubt = false;
      try {
        await this.#call(hold, () => hold.releaseWords(), now() + this.options.patience);
        this.#end(hold, 'released');
      } catch (error) {
        const reason = endOf(error);
        this.#end(hold, reason ?? 'released', reason === undefined || hold.request.several);
        if (reason === undefined) throw error;
      }
    }
    if (hold.isLost) throw hold.lost();
  }

  /** Sets the lease, or checks a hold that the server renews. */
  async renew(hold: Acquire, lease: number | undefined): Promise<void> {
    if (!hold.is('held') || hold.isLost) throw hold.lost();
    try {
      const [, firstSent] = await this.#call(hold, () => hold.renewWords(lease), now() + this.options.patience);
      // Its owner may know already that the lease was over.
      if (hold.is('held') && hold.leaseEnds <= now()) this.#end(hold, 'expired', true);
      if (lease !== undefined && hold.is('held')) [hold.leaseEnds, hold.revocableSince] = [firstSent + lease, -Infinity];
      hold.onChange();
    } catch (error) {
      const reason = endOf(error);
      if (reason === undefined) throw error;
      this.#end(hold, reason, hold.request.several);
    }
    if (!hold.is('held')) throw hold.lost();
  }

  /** The reply to a call that may be sent again, as it has a number, and the time of the first attempt.
   *
   *  A lease counts from the first attempt, as that one may have succeeded. A reply counts only if its call carried the present
   *  number (R14). The reply is 0 if the acquire has changed its state meanwhile. */
  async #call(acquire: Acquire, words: () => Words, giveUp: number): Promise<[reply: unknown, firstSent: number]> {
    const { state } = acquire;
    let [failing, firstSent] = [Infinity, Infinity];
    while (acquire.is(state) && (acquire.error === undefined || state === 'held')) {
      const { session } = acquire.number;
      if (!session.#isUp) await session.#untilUp(acquire, giveUp);
      if (!acquire.is(state)) break;
      const { number } = acquire;
      const sent = now();
      try {
        // A release of a number that is not declared yet would be refused, and remembered (R23).
        if (state === 'held' && !acquire.isDeclared) throw new NoSession('no server has confirmed the hold yet; try again');
        firstSent = Math.min(firstSent, sent);
        const reply = await number.session.io.call(words(), Math.min(CALL_TIMEOUT, Math.max(REPLY_GRACE, giveUp - sent)));
        if (number === acquire.number) return [reply, firstSent];
      } catch (error) {
        if (error instanceof Transient) {
          acquire.inDoubt ||= !(error instanceof NoSession || error instanceof Moved);
          failing = Math.min(failing, sent);
          // ASK means that the slot is still moving.
          const hasMoved = state === 'asked' && error.message.startsWith('MOVED');
          if (hasMoved || now() >= (giveUp < Infinity ? giveUp : failing + this.options.patience)) throw error;
        } else if (number === acquire.number) {
          throw error;
        }
      }
      await sleep(RETRY_PAUSE);
    }
    return [0, firstSent];
  }

  async #untilUp(acquire: Acquire, giveUp: number): Promise<void> {
    this.#reading ??= this.#read();
    for (let hasWaited = false; !this.#isUp && !acquire.is('over'); hasWaited = true) {
      if (this.closed) throw new CancelledError('the locks are closed; make new ones');
      const error = acquire.error ?? this.#error;
      const isTransient = error === undefined || error instanceof Transient;
      // Another node of the cluster may have replaced this one.
      const isReplaceable = this.relocate !== undefined && this.#failing < Infinity && isTransient && acquire.is('asked');
      if (isReplaceable && (hasWaited || error)) throw new Moved(`${acquire.request.name}: the node of the key does not answer`);
      // A call with a limit waits for the server.
      const isPatient = giveUp < Infinity && !acquire.isTry && isTransient;
      if (error !== undefined && !isPatient) throw error;
      if (now() >= giveUp) throw new UnavailableError('no connection to the server; try again');
      await this.#up.wait(giveUp);
    }
  }

  /** Milliseconds for which no other owner can have the lock, even if the network fails. */
  validFor(hold: Acquire): number {
    if (!hold.is('held') || !hold.isDeclared) return 0;
    const isRevocable = hold.revocableSince > this.#lastConfirmed;
    const safeUntil = hold.request.options.lease === undefined || isRevocable ? this.#safeUntil : Infinity;
    return Math.max(0, Math.min(safeUntil, hold.leaseEnds) - now());
  }

  // Transitions.

  /** Gives the acquire the next number of this session. */
  #enrol(acquire: Acquire): void {
    this.#lastN += 1;
    acquire.number = { session: this, id: this.id ?? '', n: this.#lastN };
  }

  /** When the last `LOCK.EVENTS` that confirmed this session was sent. */
  get #lastConfirmed(): number {
    return this.#safeUntil - this.options.grace;
  }

  /** The lease began at `since` at the earliest. */
  #grant(asked: Acquire, since: number, isRevocable: boolean, reply: unknown, token?: unknown): void {
    const { n } = asked.number;
    const { several } = asked.request;
    let counts = several ? (reply as unknown[]) : [reply];
    if (typeof counts[0] !== 'number') {
      // Maps, as lists of names and values.
      const field = (name: string) => (map: unknown) => (map as unknown[])[(map as unknown[]).indexOf(name) + 1];
      const tokens = counts.map(field('token'));
      [token, counts] = [several ? tokens : tokens[0], counts.map(field('holds'))];
    }
    this.asked.delete(n);
    this.held.set(n, asked);
    [asked.state, asked.token, asked.granted] = ['held', token as Acquire['token'], now()];
    asked.holds = Math.max(...(counts as number[]));
    asked.leaseEnds = since + (asked.request.options.lease ?? Infinity);
    if (isRevocable) asked.revocableSince = asked.granted;
  }

  /** The acquire neither waits nor holds any longer. With `undo`, the server may not know that. */
  #end(acquire: Acquire, reason: string, undo = false): void {
    if (acquire.is('over')) return;
    const wasHeld = acquire.is('held') && reason !== 'cancelled' && !acquire.isHandedOver;
    const { session, id, n } = acquire.number;
    // If the hold had been lost before the release, an event would say so.
    const wasReleased = acquire.isReleasing && acquire.inDoubt && UNEXPLAINED.includes(reason);
    [acquire.state, acquire.reason] = ['over', wasReleased ? 'released' : reason];
    acquire.owner.live -= 1;
    for (const place of [session.asked, session.held]) if (place.get(n) === acquire) place.delete(n);
    if (undo && (n > 0 || session.undeclared.has(acquire))) {
      // A call of this owner may be late.
      acquire.owner.retired += 1;
      if (id === session.id) session.undo.set(n, acquire);
      else session.undeclared.add(acquire);
    }
    if (wasHeld) this.#notify(acquire, 'held', acquire.isLost ? 'lost' : 'released');
    if (reason !== 'cancelled') keepAlive(acquire, false);
    acquire.onChange();
  }

  #endRenewed(reason: string): void {
    for (const hold of [...this.held.values(), ...this.undeclared]) {
      if (hold.request.options.lease === undefined) this.#end(hold, reason, true);
    }
  }

  #notify({ request, granted }: Acquire, event: LockEvent['event'], outcome: string): void {
    this.options.notify?.({ label: request.options.label, event, outcome, ms: now() - granted });
  }

  #setJeopardy(value: boolean): void {
    if (value === this.#inJeopardy) return;
    this.#inJeopardy = value;
    for (const hold of this.held.values()) {
      if (hold.request.options.lease === undefined) this.#notify(hold, value ? 'jeopardy' : 'safe', '');
    }
  }

  // The reader.

  /** Heartbeat, events and losses: the only loop. */
  async #read(): Promise<void> {
    while (!this.closed) {
      try {
        await this.#turn();
        [this.#failing, this.#error] = [Infinity, undefined];
      } catch (error) {
        this.#failing = Math.min(this.#failing, now());
        this.#onFailure(error instanceof LockError ? error : new UnavailableError('the session failed', { cause: error }));
        await this.#pause();
      }
    }
  }

  #onFailure(error: LockError): void {
    if (error instanceof NoSession || error instanceof Late) {
      this.#forgetId();
      // The connection for calls may lead to a former primary.
      this.io.disconnect();
      // R16: another process uses the id.
      if (error instanceof Late) this.#endRenewed('late');
    } else {
      if (!(error instanceof Transient) || now() >= this.#failing + this.options.patience) this.#failWaits(error);
      // Another node of the cluster may have replaced this one.
      void this.relocate?.([...this.asked.values(), ...this.held.values(), ...this.undo.values(), ...this.undeclared]);
    }
    this.#wakeGranted();
    this.#up.notify();
    if (now() >= this.#safeUntil) this.#setJeopardy(true);
    if (now() >= this.#confirmed + this.options.ttl) this.#endRenewed('silent');
  }

  /** Doubles the pause with each failure. */
  async #pause(): Promise<void> {
    const pause = Math.min(MAX_RETRY_PAUSE, Math.max(RETRY_PAUSE, now() - this.#failing));
    if (!this.closed) await this.#closing.wait(now() + pause);
  }

  async #turn(): Promise<void> {
    if (this.id === undefined) await this.#open();
    try {
      if (this.undeclared.size > 0) await this.#declare();
    } catch (error) {
      // While the session is up, the heartbeat does not wait for a declaration.
      if (!this.#isUp || !(error instanceof Transient)) throw error;
    }
    if (this.undo.size > 0 && !this.#isUndoing) {
      this.#isUndoing = true;
      const undone = this.#sendUndo([...this.undo.values()]).finally(() => (this.#isUndoing = false));
      if (!this.#isUp) await undone;
    }
    await this.#poll();
    if (this.#isUp || this.closed) return;
    this.#isUp = true;
    this.#up.notify();
  }

  async #open(): Promise<void> {
    const { ttl, grace, name } = this.options;
    const times = ['TTL', ms(ttl), 'GRACE', String(Math.ceil(grace))];
    const words = ['LOCK.SESSION', 'OPEN', 'NEW', this.#nextBeat(), ...times, 'NAME', name];
    const [id] = (await this.io.read(words, REPLY_GRACE)) as [string];
    for (const asked of [...this.asked.values()]) this.#end(asked, 'restarted', true);
    for (const acquire of [...this.held.values(), ...this.undo.values()]) {
      // The lease of a handed-over hold runs out.
      if (acquire.isHandedOver) this.#end(acquire, 'taken');
      else this.undeclared.add(acquire);
    }
    this.held.clear();
    this.undo.clear();
    [this.id, this.#seen, this.#safeUntil] = [id, 0, -Infinity];
  }

  /** Declares holds, and what may have been granted, in this session (R3, R6, R13). */
  async #declare(): Promise<void> {
    // An acquire that is over may have no hold. It must not take that of another one of its owner.
    const acquires = [...this.undeclared].sort((one, other) => Number(one.is('over')) - Number(other.is('over')));
    for (const acquire of acquires) if (acquire.number.id !== this.id) this.#enrol(acquire);
    const replies = await this.io.batch(acquires.map((acquire) => acquire.declareWords()), REPLY_GRACE + acquires.length);
    const [moved, declared]: [Acquire[], [Acquire, unknown][]] = [[], []];
    acquires.forEach((acquire, index) => {
      const reply = replies[index];
      // Another session has adopted it meanwhile.
      if (!this.undeclared.has(acquire)) return;
      if (reply instanceof Transient && !(reply instanceof Late || reply instanceof Moved)) throw reply;
      if (reply instanceof Moved) moved.push(acquire);
      else declared.push([acquire, reply]);
    });
    const ours = new Map<string, number>();
    for (const [acquire, reply] of declared) {
      const counts = acquire.is('held') || !(reply instanceof LockError);
      if (counts) ours.set(holdOf(acquire), (ours.get(holdOf(acquire)) ?? 0) + 1);
    }
    for (const [acquire, reply] of declared) {
      this.undeclared.delete(acquire);
      const { n } = acquire.number;
      if (acquire.is('over')) {
        this.undo.set(n, acquire);
        continue;
      }
      this.held.set(n, acquire);
      const isRefused = reply instanceof LockError;
      // R3, R22: if the count is too low, a hold of this owner has ended, and nobody knows which.
      if (isRefused || Math.min(...[reply as number].flat()) < (ours.get(holdOf(acquire)) ?? 0)) {
        this.#end(acquire, 'restarted', !isRefused);
      }
    }
    // The nodes may not agree yet. Until then the next turn declares again, with a new number.
    for (const acquire of moved) this.#undeclare(acquire);
    if (moved.length > 0) void this.relocate?.(moved);
  }

  /** Leaves an acquire to the reader of this session, as this node now serves its slot. */
  adopt(acquire: Acquire): void {
    this.#reading ??= this.#read();
    const { session, n } = acquire.number;
    if (session === this) return;
    if (acquire.is('asked')) session.#end(acquire, 'moved', true);
    // It may have been settled meanwhile.
    if (!session.undeclared.delete(acquire) && acquire.is('over') && session.undo.get(n) !== acquire) return;
    // The hold is lost after `TTL` without a confirmation by any of its sessions.
    this.#confirmed = Math.max(this.#confirmed, session.#confirmed);
    this.#undeclare(acquire);
  }

  /** Leaves an acquire to the reader, as its place in the present session is void. */
  #undeclare(acquire: Acquire): void {
    const { session, n } = acquire.number;
    for (const place of [session.held, session.undo]) if (place.get(n) === acquire) place.delete(n);
    acquire.number = { session: this, id: '', n: 0 };
    this.undeclared.add(acquire);
  }

  #nextBeat(): string {
    // R16: never taken from a reply.
    this.#beat += 1;
    return String(this.#beat);
  }

  /** One `LOCK.EVENTS`: heartbeat, acknowledgement and events. */
  async #poll(): Promise<void> {
    const { grace, ttl } = this.options;
    let block = Math.floor(Math.min(EVENTS_BLOCK, (grace || ttl) / 3));
    // The first one confirms at once.
    if (this.#failing < Infinity || !this.#isUp) block = 0;
    else if (this.undeclared.size > 0) block = RETRY_PAUSE;
    // Numbers are asked in order.
    const [firstAsked = Infinity] = this.asked.keys();
    const declared = [...this.undeclared].filter(({ number }) => number.id === this.id).map(({ number }) => number.n);
    const done = Math.min(firstAsked, ...this.undo.keys(), ...declared, this.#lastN + 1);
    const sent = now();
    const numbers = [this.#seen, done, block, EVENTS_COUNT].map(String);
    const reply = this.io.read(['LOCK.EVENTS', this.id ?? '', this.#nextBeat(), ...numbers], block + REPLY_GRACE);
    if (this.#granted.length > 0) this.io.flush(() => this.#wakeGranted());
    const events = (await reply) as Event[];
    for (const event of events) this.#handle(event);
    if (events.length === EVENTS_COUNT) return;
    [this.#confirmed, this.#safeUntil] = [sent, sent + grace];
    this.#setJeopardy(false);
  }

  #handle([seq, kind, n, first, token]: Event): void {
    this.#seen = seq;
    const acquire = this.asked.get(n) ?? this.held.get(n);
    if (acquire === undefined) return;
    if (kind === 'granted' && acquire.is('asked')) {
      // The last confirming reply would have reported an earlier grant.
      this.#grant(acquire, Math.max(acquire.began, this.#lastConfirmed), true, first, token);
      this.#granted.push(acquire);
    } else if (kind === 'lost' && first === 'moved' && acquire.is('held') && !acquire.isHandedOver) {
      this.#undeclare(acquire);
    } else if (kind === 'lost') {
      // Perhaps only one of several locks was lost.
      this.#end(acquire, String(first), acquire.request.several);
    }
  }

  #wakeGranted(): void {
    for (const acquire of this.#granted.splice(0)) acquire.changed.notify();
  }

  /** Undoes on the server what is over here. */
  async #sendUndo(acquires: Acquire[]): Promise<void> {
    const numbers = acquires.map(({ number }) => number);
    const replies = await this.io.batch(acquires.map((acquire) => acquire.cancelWords()), REPLY_GRACE);
    acquires.forEach((acquire, index) => {
      const reply = replies[index];
      if (acquire.number !== numbers[index] || this.undo.get(acquire.number.n) !== acquire) return;
      if (reply instanceof Moved) {
        this.#undeclare(acquire);
      } else if (!(reply instanceof Transient)) {
        this.undo.delete(acquire.number.n);
        acquire.owner.retired -= 1;
      }
    });
  }

  /** The session is over on the server. */
  #forgetId(): void {
    [this.id, this.#isUp, this.#safeUntil] = [undefined, false, -Infinity];
  }

  /** Fails the waits without a limit. If the error is permanent, fails all waits. */
  #failWaits(error: LockError): void {
    this.#error = error;
    for (const asked of this.asked.values()) {
      if (asked.until !== Infinity && error instanceof Transient) continue;
      asked.error = error;
      asked.changed.notify();
    }
  }

  /** Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends. */
  async close(): Promise<void> {
    this.closed = true;
    const { id } = this;
    this.#forgetId();
    for (const asked of this.asked.values()) {
      asked.error = new CancelledError(`${asked.request.name}: the locks are closed`);
      asked.changed.notify();
    }
    for (const hold of [...this.held.values(), ...this.undeclared]) {
      if (hold.request.options.lease === undefined) this.#end(hold, hold.isReleasing ? 'released' : 'closed');
      keepAlive(hold, false);
    }
    this.#wakeGranted();
    this.#up.notify();
    this.#closing.notify();
    if (id !== undefined) await this.io.call(['LOCK.SESSION', 'CLOSE', id], CLOSE_TIMEOUT).catch(() => undefined);
    this.io.close();
    await this.#reading;
  }
}

/** Identifies the lock and the owner. */
function holdOf({ request, owner }: Acquire): string {
  return [...request.keys, owner.name].map((name) => Buffer.from(name as string).toString('hex')).join();
}

/** Why the hold has ended, if a release or a renewal failed because of that. */
function endOf(error: unknown): string | undefined {
  if (error instanceof Overwritten) return 'wrongtype';
  return error instanceof LostError ? 'not held' : undefined;
}
