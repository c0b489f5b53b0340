// SPDX-License-Identifier: MIT

/** A client's presence on one server: its numbers, holds and waits, and the loop that reads events. Rules R1 to R23 are those of
 *  docs/sessions.md. Times are in milliseconds, by the monotonic clock.
 *
 *  Replies, events and the clock move an acquire from one table of its session to the next. A new session, another node and a
 *  moved slot all give it a new number, by `adopt`. The reader then tells the server. */

import { type Acquire, keepAlive, type Owner } from './acquire.js';
import { now, Signal } from './clock.js';
import type { Node } from './clients.js';
import type { Core } from './core.js';
import {
  CancelledError, DeadlockError, Late, LockError, LostError, Moved, NoReply, NoSession, Overwritten, TimedOutError, Transient,
  UnavailableError,
} from './errors.js';
import { CALL_TIMEOUT, Io, REPLY_GRACE } from './io.js';
import { ms, type Request } from './request.js';

/** Time that `LOCK.EVENTS` waits in the server, and at most a third of `GRACE`. */
const EVENTS_BLOCK = 1000;
/** Maximum number of events in a reply. A full reply confirms nothing (R2). */
const EVENTS_COUNT = 1000;
/** The first pause before a call is repeated, that of a reader without a reply, and the longest one. A reader's are random. */
const [RETRY_PAUSE, RECONNECT_PAUSE, MAX_RETRY_PAUSE] = [50, 500, 1000];
/** Limit for the last calls of a session. */
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

type Event = [seq: number, kind: string, n: number, ...fields: unknown[]];

/** The session on one server. @internal */
export class Session {
  /** Empty while the session is not open. */
  id = '';
  closed = false;
  /** The tables, by number. The last one has holds to declare, and acquires to undo. */
  readonly #asked = new Map<number, Acquire>();
  readonly #held = new Map<number, Acquire>();
  readonly #unsettled = new Map<number, Acquire>();
  readonly #io: Io;
  /** The session is open, its holds are declared (R3), and `LOCK.EVENTS` has confirmed them. */
  #isUp = false;
  /** The error of the reader, if it is permanent, or has lasted for the patience. */
  #error: LockError | undefined;
  /** When the present failures began. */
  #failing = Infinity;
  /** The limit of the last random pause, and that of the first one after failures of the same kind. */
  #pause = 0;
  #firstPause = 0;
  /** Granted by an event. The callers continue once the next `LOCK.EVENTS` is sent (R1). */
  #granted: Acquire[] = [];
  #beat = 0;
  #seen = 0;
  #lastN = 0;
  /** When the last confirming `LOCK.EVENTS` was sent, to this server or to an earlier one of its holds. */
  #confirmed = -Infinity;
  #safeUntil = -Infinity;
  #inJeopardy = false;
  readonly #closing = new Signal();
  #reading: Promise<void> | undefined;

  constructor(readonly core: Core, node: Node) {
    this.#io = new Io(node);
  }

  // Calls of the user.

  /** Waits for the grant or the end of the acquire. After an error the caller cancels it: the server may still grant it. */
  async ask(asked: Acquire, giveUp: number): Promise<void> {
    const { request, source } = asked;
    this.adopt(asked, '');
    try {
      const verb = source === undefined ? 'ACQUIRE' : 'RENEW';
      const [reply, firstSent] = await this.#call(asked, verb, giveUp, request.options.lease);
      // An event, or a new session, overrules the reply (R14).
      if (asked.is('asked') && reply === null) this.end(asked, 'timeout');
      if (asked.is('asked') && reply !== 0) this.#grant(asked, firstSent, asked.inDoubt, reply);
    } catch (error) {
      if (source !== undefined || !(error instanceof LostError)) throw error;
      this.end(asked, 'restarted', request.several);
    }
    if (asked.is('asked')) await this.#until(asked, giveUp, () => false);
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

  /** Releases exactly this hold. After a failure the reader undoes it. */
  async release(hold: Acquire): Promise<void> {
    // Expired by the local clock. A lease is never shortened, so the server may still have the hold.
    if (hold.is('held') && hold.isLost) this.end(hold, 'expired', true);
    if (hold.is('held') && !hold.isReleasing) {
      hold.isReleasing = true;
      try {
        await this.#call(hold, 'RELEASE', now() + this.core.options.patience);
        this.end(hold, 'released');
      } catch (error) {
        const reason = endOf(error);
        this.end(hold, reason ?? 'released', reason === undefined || hold.request.several);
        if (reason === undefined) throw error;
      }
    }
    if (hold.isLost) throw hold.lost();
  }

  /** Sets the lease, or checks a hold that the server renews. */
  async renew(hold: Acquire, lease: number | undefined): Promise<void> {
    if (!hold.is('held') || hold.isLost) throw hold.lost();
    try {
      const [, firstSent] = await this.#call(hold, 'RENEW', now() + this.core.options.patience, lease);
      // Its owner may know already that the lease was over.
      if (hold.is('held') && hold.leaseEnds <= now()) this.end(hold, 'expired', true);
      if (lease !== undefined && hold.is('held')) [hold.leaseEnds, hold.revocableSince] = [firstSent + lease, -Infinity];
      hold.onChange();
    } catch (error) {
      const reason = endOf(error);
      if (reason === undefined) throw error;
      // The reply to a release that is on its way says more.
      if (!hold.isReleasing) this.end(hold, reason, hold.request.several);
      throw hold.lost();
    }
    if (!hold.is('held')) throw hold.lost();
  }

  /** The reply to a call that may be sent again, as it has a number, and the time of the first attempt.
   *
   *  A lease counts from the first attempt, as that one may have succeeded. A reply counts only if its call carried the present
   *  number (R14). The reply is 0 if the acquire has changed its state meanwhile. */
  async #call(
    acquire: Acquire, verb: 'ACQUIRE' | 'RENEW' | 'RELEASE', giveUp: number, lease?: number,
  ): Promise<[reply: unknown, firstSent: number]> {
    const { state } = acquire;
    let [failing, firstSent] = [Infinity, Infinity];
    for (;;) {
      if (acquire.is(state) && !this.#serves(acquire)) await this.#until(acquire, giveUp, () => this.#serves(acquire));
      if (!acquire.is(state)) return [0, firstSent];
      const { session, n } = acquire;
      const sent = now();
      firstSent = Math.min(firstSent, sent);
      acquire.isKnown = true;
      try {
        const reply = await session.#io.call(acquire.words(verb, lease), Math.min(CALL_TIMEOUT, giveUp - sent));
        if (n === acquire.n && session === acquire.session) return [reply, firstSent];
      } catch (error) {
        const isPresent = n === acquire.n && session === acquire.session;
        if (error instanceof NoReply) acquire.inDoubt ||= state === 'asked' || verb === 'RELEASE';
        else if (isPresent && state === 'asked' && !acquire.inDoubt) acquire.isKnown = !acquire.is('asked');
        failing = Math.min(failing, sent);
        const isOver = now() >= (giveUp < Infinity ? giveUp : failing + this.core.options.patience);
        if (error instanceof Transient ? isOver : isPresent) throw error;
        if (error instanceof Moved) this.core.relocate([acquire]);
      }
      await acquire.changed.wait(now() + RETRY_PAUSE);
    }
  }

  /** Whether a call about this acquire can be sent. A release before the declaration would be refused, and remembered (R23). */
  #serves({ session, state, isKnown, owner, request }: Acquire): boolean {
    return session.#isUp && (state === 'asked' ? !session.isRetired(owner, request) : isKnown);
  }

  /** Waits until the acquire is ready, or has changed its state. */
  async #until(acquire: Acquire, giveUp: number, isReady: () => boolean): Promise<void> {
    const { state, request, isTry } = acquire;
    while (acquire.is(state) && !isReady()) {
      const { session } = acquire;
      const error = session.#error;
      if (session.closed) throw new CancelledError('the locks are closed; make new ones');
      // A call with a limit waits for the server.
      const isPatient = giveUp < Infinity && !(isTry && state === 'asked') && error instanceof Transient;
      if (error !== undefined && !isPatient) throw error;
      if (now() >= giveUp) {
        const Kind = state === 'asked' && session.#isUp && session.#failing === Infinity ? TimedOutError : UnavailableError;
        throw new Kind(`${request.name}: no answer of the server in time; try again`);
      }
      await acquire.changed.wait(giveUp);
    }
  }

  /** Milliseconds for which no other owner can have the lock, even if the network fails. */
  validFor(hold: Acquire): number {
    if (!hold.is('held') || !hold.isKnown) return 0;
    const isRevocable = hold.revocableSince > this.#safeUntil - this.core.options.grace;
    return Math.max(0, Math.min(hold.isRenewed || isRevocable ? this.#safeUntil : Infinity, hold.leaseEnds) - now());
  }

  /** Whether the owner is not used for these locks, as a call of it may be late. */
  isRetired({ name }: Owner, { keys }: Request): boolean {
    if (this.#unsettled.size === 0) return false;
    const isSame = (one: unknown, other: unknown) => Buffer.from(one as string).equals(Buffer.from(other as string));
    return [...this.#unsettled.values()].some(({ state, owner, request }) =>
      state === 'over' && isSame(owner.name, name) && request.keys.some((one) => keys.some((other) => isSame(one, other))));
  }

  // Transitions.

  get #all(): Acquire[] {
    return [this.#held, this.#unsettled, this.#asked].flatMap((place) => [...place.values()]);
  }

  #move(acquire: Acquire, place?: Map<number, Acquire>): void {
    acquire.place?.delete(acquire.n);
    place?.set(acquire.n, acquire);
    acquire.place = place;
  }

  /** Gives the acquire the next number of this session, which the server does not know yet. A wait that it knew asks again. */
  adopt(acquire: Acquire, reason: string): void {
    if (acquire.is('given') || (acquire.is('asked') && acquire.isKnown)) this.end(acquire, reason, true);
    if (acquire.is('over') && acquire.place === undefined) return;
    this.#move(acquire);
    // The hold is lost after `TTL` without a confirmation by any of its sessions.
    this.#confirmed = Math.max(this.#confirmed, acquire.session.#confirmed);
    this.#lastN += 1;
    [acquire.session, acquire.n, acquire.isKnown] = [this, this.#lastN, false];
    this.#move(acquire, acquire.is('asked') ? this.#asked : this.#unsettled);
    acquire.onChange();
    this.#reading ??= this.core.scopes.exit(() => this.#read());
  }

  /** The lease began at `since` at the earliest. */
  #grant(asked: Acquire, since: number, isRevocable: boolean, reply: unknown, token?: unknown): void {
    const { several } = asked.request;
    let counts = several ? (reply as unknown[]) : [reply];
    if (typeof counts[0] !== 'number') {
      // Maps, as lists of names and values.
      const field = (name: string) => (map: unknown) => (map as unknown[])[(map as unknown[]).indexOf(name) + 1];
      const tokens = counts.map(field('token'));
      [token, counts] = [several ? tokens : tokens[0], counts.map(field('holds'))];
    }
    this.#move(asked, asked.session.#held);
    [asked.state, asked.token, asked.granted, asked.inDoubt] = ['held', token as Acquire['token'], now(), false];
    asked.holds = Math.max(...(counts as number[]));
    asked.leaseEnds = since + (asked.request.options.lease ?? Infinity);
    if (isRevocable) asked.revocableSince = asked.granted;
  }

  /** The acquire neither waits nor holds any longer. With `undo`, the server may not know that. */
  end(acquire: Acquire, reason: string, undo = false): void {
    const { session, state, isKnown, isReleasing, inDoubt } = acquire;
    if (state === 'over') return;
    acquire.state = 'over';
    if (state !== 'given') {
      acquire.owner.live -= 1;
      // If the hold had been lost before the release, an event would say so.
      const wasReleased = isReleasing && (reason === 'closed' || (inDoubt && UNEXPLAINED.includes(reason)));
      acquire.reason = wasReleased ? 'released' : reason;
    }
    const mayRemain = undo && (state === 'held' || (state === 'asked' && isKnown));
    this.#move(acquire, mayRemain ? session.#unsettled : undefined);
    if (mayRemain && isKnown && session.#isUp) void session.#undo(acquire);
    else keepAlive(acquire, false);
    if (state === 'held' && reason !== 'cancelled') this.#notify(acquire, 'held', acquire.isLost ? 'lost' : 'released');
    acquire.onChange();
  }

  /** Undoes on the server what is over here. The reader repeats that until it is answered (R11). */
  async #undo(acquire: Acquire): Promise<void> {
    const { n } = acquire;
    const [reply] = await this.#io.batch([acquire.words('CANCEL')], REPLY_GRACE);
    if (n === acquire.n && acquire.session === this) this.#settle(acquire, reply);
    keepAlive(acquire, false);
  }

  #settle(acquire: Acquire, reply: unknown): void {
    if (!this.#isAnswer(reply) || acquire.place !== this.#unsettled || !acquire.isKnown) return;
    this.#move(acquire);
    // Others may wait until their name can be used again.
    if (acquire.request.options.owner === undefined) return;
    for (const asked of this.#asked.values()) if (!asked.isKnown) asked.changed.notify();
  }

  /** Whether a repetition would get the same reply. Without a cluster, no other node has the key. */
  #isAnswer(reply: unknown): boolean {
    return !(reply instanceof Transient) || reply instanceof Late || (reply instanceof Moved && !this.core.nodes.isCluster);
  }

  #endRenewed(reason: string): void {
    for (const hold of this.#all) if (hold.is('held') && hold.isRenewed) this.end(hold, reason, true);
  }

  #notify({ request, granted, isSilent }: Acquire, event: 'held' | 'jeopardy' | 'safe', outcome: string): void {
    this.core.notify({ label: request.options.label, event, outcome, ms: now() - granted }, isSilent);
  }

  #setJeopardy(value: boolean): void {
    if (value === this.#inJeopardy) return;
    this.#inJeopardy = value;
    for (const hold of this.#all) if (hold.is('held') && hold.isRenewed) this.#notify(hold, value ? 'jeopardy' : 'safe', '');
  }

  #wake(acquires: Acquire[]): void {
    for (const { changed } of acquires) changed.notify();
  }

  // The reader.

  /** Heartbeat, events and losses: the only loop. */
  async #read(): Promise<void> {
    while (!this.closed) {
      try {
        await this.#turn();
        [this.#failing, this.#firstPause, this.#error] = [Infinity, 0, undefined];
      } catch (error) {
        this.#fail(error instanceof LockError ? error : new UnavailableError('the session failed', { cause: error }));
        await this.#sleep(error instanceof NoReply);
      }
    }
  }

  #fail(error: LockError): void {
    this.#failing = Math.min(this.#failing, now());
    this.#wake(this.#granted.splice(0));
    if (error instanceof NoSession || error instanceof Late) {
      [this.id, this.#isUp, this.#safeUntil] = ['', false, -Infinity];
      // The server answers again.
      [this.#failing, this.#error] = [now(), undefined];
      // R16: another process uses the id.
      if (error instanceof Late) this.#endRenewed('late');
      for (const acquire of this.#all) if (acquire.isKnown) this.adopt(acquire, 'restarted');
      // The connection for calls may lead to a former primary.
      this.#io.disconnect();
    } else if (!(error instanceof Transient) || now() >= this.#failing + this.core.options.patience) {
      this.#error = error;
      this.#wake(this.#all);
    }
    if (now() >= this.#safeUntil) this.#setJeopardy(true);
    if (now() >= this.#confirmed + this.core.options.ttl) this.#endRenewed('silent');
    if (this.core.nodes.isCluster) {
      // Another node of the cluster may have replaced this one. It is not connected to for ever.
      this.core.relocate(this.#all);
      if (this.#all.length === 0) this.core.leave(this);
    }
  }

  async #sleep(isDisconnected: boolean): Promise<void> {
    // Other clients may have lost their connections at the same moment.
    const first = isDisconnected ? Math.max(RETRY_PAUSE, Math.min(RECONNECT_PAUSE, this.core.options.grace / 3)) : RETRY_PAUSE;
    this.#pause = first === this.#firstPause ? Math.min(2 * this.#pause, MAX_RETRY_PAUSE) : first;
    this.#firstPause = first;
    if (!this.closed) await this.#closing.wait(now() + Math.random() * this.#pause);
  }

  /** Declares, undoes and polls, in this order and in one round trip (R3, R6, R13). */
  async #turn(): Promise<void> {
    const { grace, ttl } = this.core.options;
    if (this.id === '') await this.#open();
    // An acquire that is over may have no hold. It must not take that of another one of its owner.
    const unsettled = [...this.#unsettled.values()].sort((one, other) => Number(one.is('over')) - Number(other.is('over')));
    const declared = unsettled.filter(({ isKnown }) => !isKnown);
    const undone = unsettled.filter((acquire) => acquire.is('over'));
    const leaseOf = (hold: Acquire) => (hold.leaseEnds < Infinity ? hold.leaseEnds - now() : hold.request.options.lease);
    const calls = [
      ...declared.map((acquire) => acquire.words('RENEW', leaseOf(acquire))), ...undone.map((acquire) => acquire.words('CANCEL')),
    ];
    let block = Math.floor(Math.min(EVENTS_BLOCK, (grace || ttl) / 3));
    // The first one confirms at once.
    if (this.#failing < Infinity || !this.#isUp) block = 0;
    else if (unsettled.length > 0) block = RETRY_PAUSE;
    // Numbers are asked in order.
    const [firstAsked = this.#lastN + 1] = this.#asked.keys();
    const done = Math.min(firstAsked, ...this.#unsettled.keys());
    this.#beat += 1;
    const numbers = [this.#beat, this.#seen, done, block, EVENTS_COUNT].map(String);
    const sent = now();
    const limit = block + REPLY_GRACE + calls.length;
    const replying = this.#io.batch([...calls, ['LOCK.EVENTS', this.id, ...numbers]], limit, 'reader');
    // Both libraries have written it then.
    if (this.#granted.length > 0) setImmediate(() => this.#wake(this.#granted.splice(0)));
    const replies = await replying;
    const events = replies.pop();
    const moved = this.#declare(declared, replies);
    undone.forEach((acquire, index) => {
      const reply = replies[declared.length + index];
      if (reply instanceof Moved) moved.add(acquire);
      this.#settle(acquire, reply);
    });
    if (events instanceof LockError) throw events;
    for (const event of events as Event[]) this.#handle(event, moved);
    if ((events as Event[]).length < EVENTS_COUNT) {
      [this.#confirmed, this.#safeUntil] = [sent, sent + grace];
      this.#setJeopardy(false);
    }
    if (!this.#isUp && !this.closed) {
      this.#isUp = true;
      this.#wake(this.#all);
    }
    if (moved.size > 0 && this.core.nodes.isCluster) this.core.relocate([...moved]);
  }

  async #open(): Promise<void> {
    const { ttl, grace, name } = this.core.options;
    // R16: the beat is never taken from a reply.
    this.#beat += 1;
    const times = ['TTL', ms(ttl), 'GRACE', String(Math.ceil(grace))];
    const words = ['LOCK.SESSION', 'OPEN', 'NEW', String(this.#beat), ...times, 'NAME', name];
    const [id] = (await this.#io.call(words, REPLY_GRACE, 'reader')) as [string];
    [this.id, this.#seen] = [id, 0];
  }

  /** Handles the replies to declarations of holds, and of what may have been granted. Returns what another node serves now. */
  #declare(declared: Acquire[], replies: unknown[]): Set<Acquire> {
    const answered = [...declared.entries()].filter(([index, { session, isKnown }]) =>
      session === this && !isKnown && this.#isAnswer(replies[index]));
    const ours = new Map<string, number>();
    for (const [index, acquire] of answered) {
      const counts = acquire.is('held') || !(replies[index] instanceof LockError);
      if (counts) ours.set(holdOf(acquire), (ours.get(holdOf(acquire)) ?? 0) + 1);
    }
    for (const [index, acquire] of answered) {
      const reply = replies[index];
      acquire.isKnown = true;
      if (!acquire.is('held')) continue;
      this.#move(acquire, this.#held);
      acquire.changed.notify();
      // R3, R22: if the count is too low, a hold of this owner has ended, and nobody knows which.
      if (reply instanceof LockError) this.end(acquire, 'restarted', acquire.request.several);
      else if (Math.min(...[reply as number].flat()) < (ours.get(holdOf(acquire)) ?? 0)) this.end(acquire, 'restarted', true);
    }
    return new Set(declared.filter((_, index) => replies[index] instanceof Moved));
  }

  #handle([seq, kind, n, first, token]: Event, moved: Set<Acquire>): void {
    this.#seen = seq;
    const acquire = this.#asked.get(n) ?? this.#held.get(n);
    if (acquire === undefined) return;
    if (kind === 'granted' && acquire.is('asked')) {
      // The last confirming reply would have reported an earlier grant.
      this.#grant(acquire, Math.max(acquire.began, this.#safeUntil - this.core.options.grace), true, first, token);
      this.#granted.push(acquire);
    } else if (kind === 'lost' && first === 'moved' && acquire.is('held') && this.core.nodes.isCluster) {
      this.adopt(acquire, 'moved');
      moved.add(acquire);
    } else if (kind === 'lost') {
      // Perhaps only one of several locks was lost.
      this.end(acquire, String(first), acquire.request.several);
    }
  }

  /** Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends. */
  async close(): Promise<void> {
    [this.closed, this.#isUp] = [true, false];
    for (const acquire of this.#all) {
      if (!acquire.is('held')) this.end(acquire, 'closed', true);
      else if (acquire.isRenewed) this.end(acquire, 'closed');
      keepAlive(acquire, false);
      acquire.changed.notify();
    }
    this.#closing.notify();
    const { id } = this;
    // The end of the session undoes the others.
    const undone = [...this.#unsettled.values()].filter((acquire) => acquire.is('over') && !acquire.isRenewed && acquire.isKnown);
    const calls = [...undone.map((acquire) => acquire.words('CANCEL')), ['LOCK.SESSION', 'CLOSE', id]];
    this.id = '';
    if (id !== '') await this.#io.batch(calls, CLOSE_TIMEOUT);
    this.#io.close();
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
