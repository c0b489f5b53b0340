// SPDX-License-Identifier: MIT

/** One acquire, from its first call to the end of its hold. */

import { at, MAX_TIMER, now, Signal } from './clock.js';
import { LostError } from './errors.js';
import { ms, type Name, type Request, type Words } from './request.js';
import type { Session } from './session.js';

/** Ends of a hold that are no loss. */
const GOOD_ENDS = ['released', 'cancelled', 'taken'];

/** The name under which code acquires locks. @internal */
export interface Owner {
  readonly name: Name;
  /** Number of its acquires that are not over. One that was handed over counts for ever: another process has the name. */
  live: number;
}

/** @internal */
export class Acquire {
  /** It is `given` from the ticket on, until another process has taken it. */
  state: 'asked' | 'held' | 'given' | 'over' = 'asked';
  /** Why it is over. */
  reason = '';
  /** Its number in its session. No number is used twice, not even under a new id. */
  n = 0;
  /** Whether the server may know the number: it was sent, or declared. */
  isKnown = false;
  /** The table of its session that has it. */
  place: Map<number, Acquire> | undefined;
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
  /** An acquire or a release has no reply, so it may have succeeded. */
  inDoubt = false;
  isReleasing = false;
  #loss: AbortController | undefined;
  #stopClock: (() => void) | undefined;

  constructor(
    public session: Session,
    readonly request: Request,
    readonly owner: Owner,
    wait: number,
    /** A listener asked for it, so it causes no events. */
    readonly isSilent: boolean,
    /** The hold of another session that this acquire takes over: FROM, name, number. */
    readonly source?: Words,
  ) {
    [this.until, this.isTry] = [this.began + wait, wait === 0];
    owner.live += 1;
    keepAlive(this, true);
  }

  /** A call about this acquire. The lease is that of ACQUIRE and RENEW. */
  words(verb: 'ACQUIRE' | 'RENEW' | 'RELEASE' | 'CANCEL', lease?: number): Words {
    const { keys, key, several, flags, options: { maxHold } } = this.request;
    const words = several && verb !== 'CANCEL' ? [`LOCK.M${verb}`, String(keys.length), ...keys] : [`LOCK.${verb}`, key];
    words.push(this.owner.name);
    if (verb === 'ACQUIRE') words.push(...flags);
    if (verb === 'ACQUIRE' || verb === 'RENEW') {
      if (lease !== undefined) words.push('PX', ms(lease));
      else if (maxHold === undefined) words.push('EPHEMERAL');
      else words.push('WATCHDOG', 'MAX', ms(maxHold - (this.is('asked') ? 0 : now() - this.granted)), 'EPHEMERAL');
    }
    words.push('SESSION', this.session.id, String(this.n));
    if (this.is('asked') && this.source !== undefined) words.push(...this.source);
    else if (verb === 'ACQUIRE' && !this.isTry) words.push('QUEUE', this.until === Infinity ? '0' : ms(this.until - now()));
    return words;
  }

  is(state: Acquire['state']): boolean {
    return this.state === state;
  }

  /** Whether the server renews the hold. */
  get isRenewed(): boolean {
    return this.request.options.lease === undefined;
  }

  /** Whether the hold ended before its release. */
  get isLost(): boolean {
    if (this.state === 'held') return this.leaseEnds <= now();
    return this.state === 'over' && !GOOD_ENDS.includes(this.reason);
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

const inUse = new Set<Acquire>();
const alive = setInterval(() => undefined, MAX_TIMER).unref();

/** Keeps the process alive while an acquire is asked, held or being undone. @internal */
export function keepAlive(acquire: Acquire, isInUse: boolean): void {
  if (isInUse) inUse.add(acquire);
  else inUse.delete(acquire);
  if (inUse.size > 0) alive.ref();
  else alive.unref();
}
