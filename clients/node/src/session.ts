// SPDX-License-Identifier: MIT

/** A client's presence on one server: its numbers, holds and waits, and the loop that reads events. Rules R1 to R23 are those of
 *  docs/sessions.md. Times are in milliseconds, by the monotonic clock. */

import { CancelledError, Late, LockError, LostError, Moved, NoSession, Transient, UnavailableError } from './errors.js';
import { CALL_TIMEOUT, type Io } from './io.js';
import { ms, type Name, type Request, type Words } from './request.js';

/** The session ends if its client is silent for `TTL`, or its connection is closed for `GRACE`. */
export const TTL = 30_000;
export const GRACE = 3000;
/** Time that `LOCK.EVENTS` waits in the server, and at most a third of `GRACE`. */
const EVENTS_BLOCK = 1000;
/** Maximum number of events in a reply. A full reply confirms nothing (R2). */
const EVENTS_COUNT = 1000;
/** Limit for a try or a release, and for a wait without a limit while no server answers. */
export const PATIENCE = 5000;
/** Extra time for the reply to a call that waits in the server. */
const REPLY_GRACE = 1000;
/** The first and the longest pause before a call is repeated. */
export const RETRY_PAUSE = 50;
const MAX_RETRY_PAUSE = 1000;
/** Limit for the last call of a session, `LOCK.SESSION CLOSE`. */
const CLOSE_TIMEOUT = 1000;
/** The longest time of a timer of Node. */
const MAX_TIMER = 2 ** 31 - 1;

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
  notify(event: LockEvent): void;
}

/** @internal */
export const now = (): number => performance.now();

/** @internal */
export const sleep = (time: number): Promise<void> => new Promise((resolve) => void setTimeout(resolve, time).unref());

/** Calls back at a time of the monotonic clock, after replies that have arrived by then. Returns the function that stops it. */
function at(time: number, callback: () => void): () => void {
  if (time === Infinity) return () => undefined;
  let timer: NodeJS.Timeout;
  const arm = (): void => void (timer = setTimeout(check, Math.min(Math.max(0, time - now()), MAX_TIMER)).unref());
  const check = (): void => (now() < time ? arm() : void setImmediate(callback));
  arm();
  return () => clearTimeout(timer);
}

/** Wakes those that wait for a condition. */
class Signal {
  readonly #waiters = new Set<() => void>();

  notify(): void {
    for (const wake of [...this.#waiters]) wake();
  }

  /** Waits for a notification until that time. */
  wait(until: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        stop();
        this.#waiters.delete(wake);
        resolve();
      };
      const stop = at(until, wake);
      this.#waiters.add(wake);
    });
  }
}

/** The name of holders on the server. A retired owner is not used again: a call of it may be late. @internal */
export class Owner {
  retired = false;
  /** The acquires of this owner that are not over. */
  readonly live = new Set<Acquire>();

  constructor(readonly name: Name) {}
}

/** The identity of an acquire on the server. */
interface Numbered {
  readonly session: Session;
  readonly id: string;
  readonly n: number;
}

type Verb = 'RELEASE' | 'CANCEL';
const REASONS = { RELEASE: 'released', CANCEL: 'cancelled' } as const;

/** One numbered acquire, from its first call to the end of its hold. @internal */
export class Acquire {
  at: Numbered | undefined;
  state: 'asked' | 'held' | 'ending' | 'over' = 'asked';
  verb: Verb | undefined;
  reason = '';
  /** The reason for which the client ends a wait that may continue on the server. */
  error: LockError | undefined;
  holds = 0;
  token: number | number[] | undefined;
  readonly began = now();
  granted = this.began;
  readonly until: number;
  leaseEnds = Infinity;
  undeclared = false;
  handedOver = false;
  /** Whether another node is being asked whether it serves the slot. */
  isMoving = false;
  /** Whether the reader continues its release or cancellation. */
  isOrphan = false;
  /** Whether it keeps the process alive. */
  counted = false;
  wake: (() => void) | undefined;
  loss: AbortController | undefined;
  #stopClock: (() => void) | undefined;

  constructor(
    readonly request: Request,
    readonly owner: Owner,
    readonly isTry = false,
    wait = Infinity,
    /** The hold of another session that this acquire takes over: FROM, name, number. */
    readonly source?: Words,
  ) {
    this.until = this.began + wait;
    owner.live.add(this);
  }

  askWords({ id, n }: Numbered): Words {
    const { lease, maxHold } = this.request.options;
    if (this.source) return [...this.renewWords({ id, n }, lease, maxHold), ...this.source];
    const words = this.request.acquire(this.owner.name);
    words.push('SESSION', id, String(n));
    if (!this.isTry) words.push('QUEUE', this.until === Infinity ? '0' : ms(this.until - now()));
    return words;
  }

  endWords({ id, n }: Numbered): Words {
    const [key] = this.request.keys as [Name];
    const isCancel = this.verb === 'CANCEL';
    const words = isCancel ? ['LOCK.CANCEL', key, this.owner.name] : this.request.words('RELEASE', this.owner.name);
    words.push('SESSION', id, String(n));
    return words;
  }

  renewWords({ id, n }: { id: string; n: number }, lease: number | undefined, maxHold: number | undefined): Words {
    return [...this.request.words('RENEW', this.owner.name), ...this.request.hold(lease, maxHold), 'SESSION', id, String(n)];
  }

  /** Whether the hold ended before its release. */
  get isLost(): boolean {
    if (this.state === 'held') return this.leaseEnds <= now();
    return this.state === 'over' && !['released', 'cancelled'].includes(this.reason) && !this.handedOver;
  }

  lost(): LostError {
    const reason = this.reason || 'expired';
    return new LostError(`${this.request.name}: the hold ended before its release (${reason}); acquire the lock again`);
  }

  /** The signal that is aborted when the hold is lost. */
  get signal(): AbortSignal {
    if (this.loss === undefined) {
      this.loss = new AbortController();
      this.checkLoss();
    }
    return this.loss.signal;
  }

  /** Aborts the signal if the hold is lost, or looks again at the end of the lease. */
  checkLoss(): void {
    this.#stopClock?.();
    if (this.loss === undefined) return;
    if (this.isLost) this.loss.abort(this.lost());
    else if (this.state === 'held') this.#stopClock = at(this.leaseEnds, () => this.checkLoss());
  }

  is(state: Acquire['state']): boolean {
    return this.state === state;
  }

  /** Identifies the lock and the owner. */
  get holdOf(): string {
    return [...this.request.keys, this.owner.name].map((name) => Buffer.from(name as string).toString('hex')).join();
  }
}

/** A timer that keeps the process alive while an acquire is asked, held or being released. */
const alive = setInterval(() => undefined, MAX_TIMER).unref();
let inUse = 0;

function count(acquire: Acquire, counts: boolean): void {
  if (acquire.counted === counts) return;
  acquire.counted = counts;
  inUse += counts ? 1 : -1;
  if (inUse === 0) alive.unref();
  else if (counts && inUse === 1) alive.ref();
}

type Event = [seq: number, kind: string, n: number, ...rest: unknown[]];

/** @internal */
export class Session {
  closed = false;
  #id: string | undefined;
  /** Every hold of the previous session has been declared in this one (R3), and an `EVENTS` has confirmed them. */
  #isUp = false;
  readonly #up = new Signal();
  readonly #closing = new Signal();
  #error: LockError | undefined;
  #beat = 0;
  #seen = 0;
  #lastN = 0;
  /** The acquires by number. The unanswered ones ask, release or cancel (R11). The reader repeats the calls of orphans. */
  #numbers = new Map<number, Acquire>();
  #unanswered = new Map<number, Acquire>();
  #orphans: Acquire[] = [];
  /** Acquires that wait for the session. */
  readonly #early = new Set<Acquire>();
  #isRepeating = false;
  /** Acquires whose callers continue once the next `EVENTS` is sent (R1). */
  #toWake: Acquire[] = [];
  #confirmed = -Infinity;
  #safeUntil = -Infinity;
  #polled = 0;
  #inJeopardy = false;
  #reading: Promise<void> | undefined;

  constructor(
    readonly io: Io,
    readonly options: SessionOptions,
    /** Moves acquires to the sessions of the nodes that serve their slots now. */
    readonly relocate: (session: Session, acquires: Acquire[], haveLeft: boolean) => Promise<void>,
  ) {}

  // The life of an acquire.

  /** Returns when the acquire has been granted or is over. After an error it may still be granted, so cancel it. */
  async ask(asked: Acquire): Promise<void> {
    const isShort = asked.isTry || asked.source !== undefined;
    const giveUp = isShort ? asked.began + this.options.patience : asked.until + REPLY_GRACE;
    count(asked, true);
    if (!this.#isUp) {
      this.#early.add(asked);
      await this.#untilUp(giveUp, !asked.isTry, () => asked.error).finally(() => this.#early.delete(asked));
    }
    this.#enrol(asked);
    const [reply, numbered, sent] = await this.#repeat(asked, 'asked', (at) => asked.askWords(at), giveUp);
    // R14: an event, or a new session, overrules the reply.
    if (asked.state === 'asked' && asked.at === numbered && asked.error === undefined) {
      if (reply === null) this.#over(asked, 'timeout');
      else if (reply !== 0) this.#grant(asked, reply, sent);
    }
    if (asked.state === 'asked' && asked.error === undefined) {
      await new Promise<void>((resolve) => {
        const stop = at(giveUp, resolve);
        asked.wake = () => (stop(), resolve());
      });
      if (asked.is('asked')) asked.error ??= new UnavailableError(`${asked.request.name}: the server does not answer; try again`);
    }
    if (asked.error !== undefined) throw asked.error;
  }

  /** Releases exactly this hold, or cancels an acquire in any state. The reader continues an attempt that fails. */
  async end(acquire: Acquire, verb: Verb, patience: number): Promise<void> {
    if (acquire.state === 'ending' || acquire.state === 'over' || acquire.handedOver) return;
    if (acquire.at === undefined || (acquire.state === 'asked' && acquire.at.id !== acquire.at.session.#id)) {
      return this.#over(acquire, REASONS[verb]);
    }
    acquire.state = 'ending';
    acquire.verb = verb;
    acquire.at.session.#unanswered.set(acquire.at.n, acquire);
    try {
      const [reply] = await this.#repeat(acquire, 'ending', (at) => acquire.endWords(at), now() + patience);
      this.#settle(acquire, reply);
    } catch (error) {
      if (error instanceof Transient) {
        acquire.owner.retired = true;
        acquire.at.session.#orphan(acquire);
      } else {
        this.#settle(acquire, error);
      }
      if (!(error instanceof LostError)) throw error;
    }
  }

  async release(hold: Acquire): Promise<void> {
    if (!hold.isLost) await this.end(hold, 'RELEASE', this.options.patience);
    if (hold.isLost) throw hold.lost();
  }

  async cancel(asked: Acquire): Promise<void> {
    asked.owner.retired = true;
    await this.end(asked, 'CANCEL', 0).catch(() => undefined);
    count(asked, false);
  }

  /** Leaves the release of a hold that no object refers to any longer to the reader. */
  drop(hold: Acquire): void {
    hold.state = 'ending';
    hold.verb = 'RELEASE';
    this.#unanswered.set(this.#n(hold), hold);
    this.#orphan(hold);
  }

  /** Sets the lease, or checks a hold that the server renews. */
  async renew(hold: Acquire, lease: number | undefined): Promise<void> {
    if (hold.isLost) throw hold.lost();
    let sent = 0;
    try {
      [, , sent] = await this.#repeat(hold, 'held', (at) => hold.renewWords(at, lease, undefined), now() + this.options.patience);
    } catch (error) {
      if (!(error instanceof LostError)) throw error;
      if (hold.state === 'held') this.#over(hold, 'deleted');
    }
    if (hold.state !== 'held') throw hold.lost();
    if (lease === undefined) return;
    hold.leaseEnds = sent + lease;
    hold.checkLoss();
  }

  /** The reply to a call that may be sent again, as it has a number; that number; and the time when it was sent. */
  async #repeat(
    acquire: Acquire,
    state: Acquire['state'],
    words: (at: Numbered) => Words,
    giveUp: number,
  ): Promise<[reply: unknown, at: Numbered | undefined, sent: number]> {
    let failing = Infinity;
    while (acquire.state === state && (acquire.error === undefined || state !== 'asked')) {
      const session = acquire.at?.session ?? this;
      if (!session.#isUp) await session.#untilUp(giveUp, true, () => (state === 'asked' ? acquire.error : undefined));
      const { at } = acquire;
      const sent = now();
      if (at?.session !== session) continue;
      try {
        const reply = await session.io.call(words(at), Math.min(CALL_TIMEOUT, Math.max(REPLY_GRACE, giveUp - sent)));
        return [reply, at, sent];
      } catch (error) {
        // After `NOSESSION`, the reader opens a new session and declares the acquire there.
        if (!(error instanceof Transient) || (error instanceof Moved && state === 'asked')) throw error;
        if (!(error instanceof NoSession)) {
          failing = Math.min(failing, sent);
          if (now() >= (giveUp < Infinity ? giveUp : failing + this.options.patience)) throw error;
        }
        await sleep(RETRY_PAUSE);
      }
    }
    return [0, undefined, 0];
  }

  async #untilUp(giveUp: number, patient: boolean, interrupted: () => LockError | undefined): Promise<void> {
    this.#reading ??= this.#read();
    while (!this.#isUp) {
      if (this.closed) throw new CancelledError('the locks are closed; make new ones');
      const interruption = interrupted();
      if (interruption !== undefined) throw interruption;
      const error = this.#error;
      if (error !== undefined && !(patient && giveUp < Infinity && error instanceof Transient)) throw error;
      await this.#up.wait(giveUp);
      if (!this.#canCall() && now() >= giveUp) throw new UnavailableError('no connection to the server; try again');
    }
  }

  // Transitions.

  /** Gives the acquire the next number of this session. */
  #enrol(acquire: Acquire): void {
    this.#lastN += 1;
    acquire.at = { session: this, id: this.#id ?? '', n: this.#lastN };
    this.#numbers.set(this.#lastN, acquire);
    if (acquire.state !== 'held') this.#unanswered.set(this.#lastN, acquire);
  }

  #n({ at }: Acquire): number {
    return at?.session === this ? at.n : 0;
  }

  #grant(asked: Acquire, reply: unknown, since: number): void {
    this.#unanswered.delete(this.#n(asked));
    asked.state = 'held';
    asked.granted = now();
    let counts = asked.request.several ? (reply as unknown[]) : [reply];
    if (typeof counts[0] !== 'number') {
      // Maps, as lists of names and values.
      const field = (name: string) => (map: unknown) => (map as unknown[])[(map as unknown[]).indexOf(name) + 1] as number;
      const tokens = counts.map(field('token'));
      asked.token = asked.request.several ? tokens : tokens[0];
      counts = counts.map(field('holds'));
    }
    asked.holds = Math.max(...(counts as number[]));
    if (asked.request.options.lease !== undefined) asked.leaseEnds = since + asked.request.options.lease;
    if (asked.wake !== undefined) this.#toWake.push(asked);
    asked.checkLoss();
  }

  /** The acquire neither waits nor holds any longer. */
  #over(acquire: Acquire, reason: string): void {
    const wasHeld = acquire.state === 'held' || acquire.verb === 'RELEASE';
    acquire.state = 'over';
    acquire.reason = reason;
    acquire.owner.live.delete(acquire);
    if (acquire.at !== undefined) acquire.at.session.#forget(acquire);
    count(acquire, false);
    if (wasHeld && !acquire.handedOver) this.#notify(acquire, 'held', reason === 'released' ? 'released' : 'lost');
    if (acquire.wake !== undefined) this.#toWake.push(acquire);
    acquire.checkLoss();
  }

  #forget(acquire: Acquire): void {
    const n = this.#n(acquire);
    if (this.#numbers.get(n) === acquire) this.#numbers.delete(n);
    if (this.#unanswered.get(n) === acquire) this.#unanswered.delete(n);
  }

  /** Handles the reply to a release or a cancellation. The server gives the same reply to a repeated call. */
  #settle(ending: Acquire, reply: unknown): void {
    const isFinal = !(reply instanceof Transient) || (reply instanceof Moved && ending.verb === 'CANCEL');
    if (ending.state !== 'ending' || !isFinal) return;
    this.#over(ending, reply instanceof LostError ? 'deleted' : REASONS[ending.verb as Verb]);
  }

  /** Ends a hold here, and leaves to the reader to cancel by its number what the server may still have of it. */
  #lose(acquire: Acquire, reason: string): void {
    this.#over(acquire, reason);
    const rest = new Acquire(acquire.request, new Owner(acquire.owner.name));
    rest.at = acquire.at;
    rest.state = 'ending';
    rest.verb = 'CANCEL';
    this.#orphans.push(rest);
  }

  #orphan(acquire: Acquire): void {
    acquire.isOrphan = true;
    this.#orphans.push(acquire);
    count(acquire, false);
  }

  #notify({ request, granted }: Acquire, event: LockEvent['event'], outcome: string): void {
    this.options.notify({ label: request.options.label, event, outcome, ms: now() - granted });
  }

  /** Lets callers continue. */
  #wakeAll(): void {
    for (const acquire of this.#toWake.splice(0)) acquire.wake?.();
  }

  /** Ends a wait here. It may continue on the server. */
  interrupt(asked: Acquire, error: LockError): void {
    asked.error = error;
    asked.wake?.();
    this.#up.notify();
  }

  // The reader.

  /** Heartbeat, events and losses: the only loop. */
  async #read(): Promise<void> {
    let [failing, pause] = [Infinity, RETRY_PAUSE];
    while (!this.closed) {
      try {
        if (!this.#isUp) await this.#open();
        await this.#poll();
        this.#setUp();
        this.#repeatOrphans();
        [failing, pause, this.#error] = [Infinity, RETRY_PAUSE, undefined];
        continue;
      } catch (error) {
        if (error instanceof NoSession || error instanceof Late) this.#drop();
        // R16: another process uses the id.
        if (error instanceof Late) this.#loseRenewed('late');
        [failing, this.#polled] = [Math.min(failing, now()), 0];
        const cause = error instanceof LockError ? error : new UnavailableError('the session failed', { cause: error });
        // In a cluster, another node may serve the slots of this one.
        void this.relocate(this, [...this.#numbers.values(), ...this.#early], false);
        if (!(cause instanceof Transient) || now() >= failing + this.options.patience) this.#fail(cause);
      }
      this.#checkClock();
      this.#wakeAll();
      await this.#pause(pause);
      pause = Math.min(2 * pause, MAX_RETRY_PAUSE);
    }
  }

  async #open(): Promise<void> {
    if (this.#id === undefined) {
      const { ttl, grace, name } = this.options;
      const times = ['TTL', ms(ttl), 'GRACE', String(Math.ceil(grace))];
      const words = ['LOCK.SESSION', 'OPEN', 'NEW', this.#nextBeat(), ...times, 'NAME', name];
      const [id] = (await this.io.read(words, REPLY_GRACE)) as [unknown];
      [this.#id, this.#seen, this.#polled, this.#safeUntil] = [String(id), 0, 0, -Infinity];
      const acquires = [...this.#numbers.values()];
      this.#numbers = new Map();
      this.#unanswered = new Map();
      for (const acquire of acquires) {
        acquire.undeclared = acquire.verb !== 'CANCEL';
        if (acquire.undeclared) this.#enrol(acquire);
        else this.#over(acquire, 'cancelled');
      }
    }
    await this.#declare([...this.#numbers.values()].filter(({ undeclared }) => undeclared));
  }

  /** R3, R6, R13: binds holds to this session, and unanswered acquires that were granted. */
  async #declare(acquires: Acquire[]): Promise<void> {
    if (acquires.length === 0) return;
    const sent = now();
    const calls = acquires.map((acquire) => {
      const { lease, maxHold } = acquire.request.options;
      const leaseLeft = lease && Math.max(1, Math.min(lease, acquire.leaseEnds - sent));
      return acquire.renewWords(acquire.at as Numbered, leaseLeft, maxHold && Math.max(1, maxHold - (sent - acquire.granted)));
    });
    const replies = await this.io.batch(calls, REPLY_GRACE + calls.length);
    for (const reply of replies) if (reply instanceof Transient && !(reply instanceof Moved)) throw reply;
    const declared = new Map<string, number>();
    acquires.forEach(({ holdOf }, index) => {
      if (!(replies[index] instanceof LockError)) declared.set(holdOf, (declared.get(holdOf) ?? 0) + 1);
    });
    const moved: Acquire[] = [];
    acquires.forEach((acquire, index) => {
      const reply = replies[index];
      acquire.undeclared = false;
      if (acquire.state === 'over') return;
      if (reply instanceof Moved) {
        moved.push(acquire);
      } else if (reply instanceof LockError) {
        this.#over(acquire, 'restarted');
      } else if (Math.min(...[reply as number].flat()) < (declared.get(acquire.holdOf) ?? 0)) {
        // R3, R22: another hold of this owner has ended, and nobody knows which.
        this.#lose(acquire, 'restarted');
      } else if (acquire.state === 'asked' && acquire.request.options.fence === true) {
        // The reply to a renewal has no token.
        this.#lose(acquire, 'restarted');
      } else if (acquire.state === 'asked') {
        this.#grant(acquire, reply, sent);
      }
    });
    if (moved.length > 0) void this.relocate(this, moved, true);
  }

  /** Whether the acquire belongs to this session. */
  has(acquire: Acquire): boolean {
    return acquire.state !== 'over' && acquire.error === undefined && (acquire.at?.session === this || this.#early.has(acquire));
  }

  /** Takes over an acquire of the session of another node, which does not serve its slot any longer. */
  async adopt(acquire: Acquire): Promise<void> {
    try {
      if (!this.#isUp) await this.#untilUp(now() + this.options.patience, true, () => undefined);
      if (acquire.at !== undefined) acquire.at.session.#forget(acquire);
      this.#enrol(acquire);
      if (acquire.isOrphan) this.#orphans.push(acquire);
      await this.#declareWithin(acquire, now() + this.options.patience);
    } catch {
      if (acquire.state !== 'over') this.#over(acquire, 'moved');
    }
  }

  async #declareWithin(acquire: Acquire, giveUp: number): Promise<void> {
    for (;;) {
      try {
        return await this.#declare([acquire]);
      } catch (error) {
        if (!(error instanceof Transient) || now() >= giveUp) throw error;
        await sleep(RETRY_PAUSE);
      }
    }
  }

  #nextBeat(): string {
    // R16: never taken from a reply.
    this.#beat += 1;
    return String(this.#beat);
  }

  /** One `LOCK.EVENTS`: heartbeat, acknowledgement and events. The first one after a failure does not wait. */
  async #poll(): Promise<void> {
    const { grace, ttl } = this.options;
    const block = this.#polled === 0 ? 0 : Math.floor(Math.min(EVENTS_BLOCK, (grace || ttl) / 3));
    let done = this.#lastN + 1;
    for (const n of this.#unanswered.keys()) done = Math.min(done, n);
    const sent = now();
    const numbers = [this.#seen, done, block, EVENTS_COUNT].map(String);
    const reply = this.io.read(['LOCK.EVENTS', this.#id ?? '', this.#nextBeat(), ...numbers], block + REPLY_GRACE);
    if (this.#toWake.length > 0) this.io.afterReads(() => this.#wakeAll());
    const events = (await reply) as Event[];
    const moved = events.map((event) => this.#handle(event)).filter((acquire) => acquire !== undefined);
    this.#polled = sent;
    if (events.length < EVENTS_COUNT) {
      this.#confirmed = sent;
      this.#safeUntil = sent + grace;
      this.#setJeopardy(false);
    }
    if (moved.length > 0) void this.relocate(this, moved, true);
  }

  /** Returns an acquire whose slot another node serves now. */
  #handle([seq, kind, n, ...rest]: Event): Acquire | undefined {
    this.#seen = seq;
    const acquire = this.#numbers.get(n);
    if (acquire === undefined) return undefined;
    const [first, token] = rest;
    if (kind === 'granted' && acquire.state === 'asked') {
      // The lease began after the previous reply, which did not have this event.
      this.#grant(acquire, first, Math.max(acquire.began, this.#polled));
      acquire.token = token as Acquire['token'];
    } else if (kind === 'lost' && first === 'moved' && acquire.state !== 'asked' && acquire.verb !== 'CANCEL') {
      return acquire;
    } else if (kind === 'lost' && acquire.request.several) {
      // Perhaps only one of several locks was lost.
      this.#lose(acquire, String(first));
    } else if (kind === 'lost') {
      this.#over(acquire, String(first));
    }
    return undefined;
  }

  /** Repeats the releases and cancellations that nobody waits for. */
  #repeatOrphans(): void {
    if (this.#isRepeating) return;
    this.#orphans = this.#orphans.filter(({ state, at }) => state === 'ending' && at?.session === this && at.id === this.#id);
    const orphans = [...this.#orphans];
    if (orphans.length === 0) return;
    this.#isRepeating = true;
    void this.io.batch(orphans.map((orphan) => orphan.endWords(orphan.at as Numbered)), REPLY_GRACE).then((replies) => {
      this.#isRepeating = false;
      orphans.forEach((orphan, index) => this.#settle(orphan, replies[index]));
    });
  }

  #setJeopardy(value: boolean): void {
    if (value === this.#inJeopardy) return;
    this.#inJeopardy = value;
    for (const hold of this.#numbers.values()) {
      if (hold.state === 'held' && hold.request.options.lease === undefined) this.#notify(hold, value ? 'jeopardy' : 'safe', '');
    }
  }

  #checkClock(): void {
    if (now() >= this.#safeUntil) this.#setJeopardy(true);
    if (now() >= this.#confirmed + this.options.ttl) this.#loseRenewed('silent');
    for (const hold of this.#numbers.values()) if (hold.state === 'held' && hold.leaseEnds <= now()) this.#lose(hold, 'expired');
  }

  #loseRenewed(reason: string): void {
    for (const hold of this.#numbers.values()) {
      if (hold.state === 'held' && hold.request.options.lease === undefined) this.#lose(hold, reason);
    }
  }

  async #pause(time: number): Promise<void> {
    if (!this.closed) await this.#closing.wait(now() + time);
  }

  #canCall(): boolean {
    return this.#isUp;
  }

  #setUp(): void {
    if (this.#isUp || this.closed) return;
    this.#isUp = true;
    this.#up.notify();
  }

  /** The session is over on the server. */
  #drop(): void {
    [this.#id, this.#isUp, this.#safeUntil] = [undefined, false, -Infinity];
  }

  /** Ends the waits that no limit would end, and those that can never succeed. */
  #fail(error: LockError): void {
    this.#error = error;
    for (const asked of this.#unanswered.values()) {
      if (asked.state === 'asked' && (asked.until === Infinity || !(error instanceof Transient))) this.interrupt(asked, error);
    }
    this.#up.notify();
  }

  /** Milliseconds for which no other owner can have the lock, even if the network fails. */
  validFor(hold: Acquire): number {
    if (hold.state !== 'held' || hold.at?.id !== this.#id) return 0;
    return Math.max(0, (hold.request.options.lease === undefined ? this.#safeUntil : hold.leaseEnds) - now());
  }

  /** Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends. */
  async close(): Promise<void> {
    this.closed = true;
    const id = this.#id;
    this.#drop();
    for (const acquire of [...this.#numbers.values()]) {
      count(acquire, false);
      if (acquire.state === 'asked') this.interrupt(acquire, new CancelledError(`${acquire.request.name}: the locks are closed`));
      else if (acquire.verb !== undefined) this.#over(acquire, REASONS[acquire.verb]);
      else if (acquire.request.options.lease === undefined) this.#over(acquire, 'closed');
    }
    this.#wakeAll();
    this.#up.notify();
    this.#closing.notify();
    if (id !== undefined) await this.io.call(['LOCK.SESSION', 'CLOSE', id], CLOSE_TIMEOUT).catch(() => undefined);
    this.io.close();
    await this.#reading;
  }
}
