// SPDX-License-Identifier: MIT

/** One acquire, from its first call to the end of its hold. */

import { at, MAX_TIMER, now, Signal } from './clock.js';
import { type LockError, LostError } from './errors.js';
import { ms, type Name, type Request, type Words } from './request.js';
import type { Session } from './session.js';

/** Ends of a hold that are no loss. */
const GOOD_ENDS = ['released', 'cancelled', 'taken'];

/** The name under which code acquires locks. A retired owner is not used again: a call of it may be late. @internal */
export class Owner {
  /** Number of its acquires that the server may still have to undo. */
  retired = 0;
  /** Number of its acquires that are not over. */
  live = 0;

  constructor(readonly name: Name) {}
}

/** The identity of an acquire on the server. @internal */
export interface Numbered {
  readonly session: Session;
  /** The id of the session under which the acquire has its number. */
  readonly id: string;
  readonly n: number;
}

/** @internal */
export class Acquire {
  state: 'asked' | 'held' | 'over' = 'asked';
  /** Why it is over. */
  reason = '';
  number: Numbered;
  /** The error to throw from the wait. */
  error: LockError | undefined;
  readonly changed = new Signal();
  holds = 0;
  token: number | number[] | undefined;
  readonly began = now();
  granted = this.began;
  leaseEnds = Infinity;
  /** Until a `LOCK.EVENTS` sent after this time confirms, the server may revoke the grant (R1). */
  revocableSince = -Infinity;
  readonly until: number;
  readonly isTry: boolean;
  /** An attempt of the present call has no reply, so it may have succeeded. */
  inDoubt = false;
  isInUse = false;
  isReleasing = false;
  isHandedOver = false;
  #loss: AbortController | undefined;
  #stopClock: (() => void) | undefined;

  constructor(
    session: Session,
    readonly request: Request,
    readonly owner: Owner,
    wait: number,
    /** The hold of another session that this acquire takes over: FROM, name, number. */
    readonly source?: Words,
  ) {
    this.number = { session, id: '', n: 0 };
    [this.until, this.isTry] = [this.began + wait, wait === 0];
    owner.live += 1;
    keepAlive(this, true);
  }

  acquireWords(): Words {
    if (this.source !== undefined) return [...this.renewWords(this.request.options.lease), ...this.source];
    const words = [...this.request.acquire(this.owner.name), ...this.#sessionWords()];
    if (!this.isTry) words.push('QUEUE', this.until === Infinity ? '0' : ms(this.until - now()));
    return words;
  }

  renewWords(lease: number | undefined): Words {
    const { maxHold } = this.request.options;
    const left = maxHold && Math.max(1, maxHold - (now() - this.granted));
    return [...this.request.words('LOCK.RENEW', this.owner.name), ...this.request.hold(lease, left), ...this.#sessionWords()];
  }

  declareWords(): Words {
    const { lease } = this.request.options;
    return this.renewWords(this.leaseEnds === Infinity ? lease : this.leaseEnds - now());
  }

  releaseWords(): Words {
    return [...this.request.words('LOCK.RELEASE', this.owner.name), ...this.#sessionWords()];
  }

  cancelWords(): Words {
    return ['LOCK.CANCEL', this.request.key, this.owner.name, ...this.#sessionWords()];
  }

  #sessionWords(): string[] {
    return ['SESSION', this.number.id, String(this.number.n)];
  }

  is(state: Acquire['state']): boolean {
    return this.state === state;
  }

  /** Whether the present session of its server has this hold. */
  get isDeclared(): boolean {
    const { session, id, n } = this.number;
    return id === session.id && session.held.get(n) === this;
  }

  /** Whether the hold ended before its release. */
  get isLost(): boolean {
    if (this.state === 'held') return this.leaseEnds <= now();
    return this.state === 'over' && !GOOD_ENDS.includes(this.reason) && !this.isHandedOver;
  }

  lost(): LostError {
    const reason = this.reason || 'expired';
    return new LostError(`${this.request.name}: the hold ended before its release (${reason}); acquire the lock again`);
  }

  /** A signal that is aborted when the hold is lost. */
  get signal(): AbortSignal {
    this.#loss ??= new AbortController();
    this.onChange();
    return this.#loss.signal;
  }

  /** Wakes the waiting caller, and aborts the signal if the hold is lost: now, or at the end of its lease. */
  onChange(): void {
    this.changed.notify();
    this.#stopClock?.();
    if (this.#loss === undefined) return;
    if (this.isLost) this.#loss.abort(this.lost());
    else if (this.is('held')) this.#stopClock = at(this.leaseEnds, () => this.onChange());
  }
}

let inUse = 0;
const alive = setInterval(() => undefined, MAX_TIMER).unref();

/** Keeps the process alive while an acquire is asked, held or being released. @internal */
export function keepAlive(acquire: Acquire, isInUse: boolean): void {
  if (acquire.isInUse === isInUse) return;
  acquire.isInUse = isInUse;
  inUse += isInUse ? 1 : -1;
  if (inUse > 0) alive.ref();
  else alive.unref();
}
