// SPDX-License-Identifier: MIT

import { MisuseError } from './errors.js';

/** A key or an owner: a string without lone surrogates, or bytes. */
export type Name = string | Buffer;

/** A call of the protocol. @internal */
export type Words = readonly Name[];

/** Options of a lock. Times are in milliseconds. */
export interface LockOptions {
  /** Time after which the hold ends by itself. By default the server renews the hold while this process lives. */
  lease?: number | undefined;
  /** Time after which the server stops the renewals of a hold. */
  maxHold?: number | undefined;
  /** Limit of the wait for a grant: none by default; 0 does not wait. */
  wait?: number | undefined;
  /** `shared` admits other shared holders. */
  mode?: 'exclusive' | 'shared' | undefined;
  /** Admits at most this number of holders, for a semaphore. */
  limit?: number | undefined;
  /** Gives each hold a `token` greater than those of all earlier holds. */
  fence?: boolean | undefined;
  /** Lets an owner acquire the lock again. By default it gets a `DeadlockError`. */
  reentrant?: boolean | undefined;
  /** The name of the holder. By default each scope or acquire has its own. */
  owner?: Name | undefined;
  /** The name of the lock for the listener; none by default. */
  label?: string | undefined;
}

const LEAST = { lease: 1, maxHold: 1, wait: 0, limit: 1 } as const;
const OTHERS = new Set(['mode', 'fence', 'reentrant', 'owner', 'label']);

/** Throws if an options object has other options than those that were taken from it. @internal */
export function refuse(others: object): void {
  for (const option of Object.keys(others)) throw new MisuseError(`unknown option ${option}`);
}

/** Throws unless the value is a number of at least `least`. @internal */
export function check(option: string, value: unknown, least: number): void {
  if (typeof value !== 'number' || !(value >= least) || !Number.isSafeInteger(Math.ceil(value))) {
    throw new MisuseError(`${option} must be a number, and at least ${least}`);
  }
}

/** The time as a word. The server must not end a hold that is valid here. @internal */
export const ms = (time: number): string => String(Math.max(1, Math.ceil(time)));

function checkName(name: Name, what: string): Name {
  if (typeof name !== 'string' && !Buffer.isBuffer(name)) throw new MisuseError(`${what} must be a string or a Buffer`);
  if (name.length === 0) throw new MisuseError(`${what} must not be empty`);
  if (typeof name === 'string' && !name.isWellFormed()) throw new MisuseError(`${what} has a lone surrogate; pass a Buffer`);
  return name;
}

/** One lock, or several locks at once, with options. Throws a `MisuseError` if they do not fit together. @internal */
export class Request {
  readonly keys: readonly Name[];
  /** The first key. */
  readonly key: Name;
  /** For error texts. */
  readonly name: string;
  readonly several: boolean;
  /** The words of these options for `LOCK.ACQUIRE`. */
  readonly flags: string[] = [];

  constructor(keys: Name | readonly Name[], readonly options: LockOptions) {
    for (const [option, value] of Object.entries(options) as [string, unknown][]) {
      if (!(option in LEAST) && !OTHERS.has(option)) throw new MisuseError(`unknown option ${option}`);
      if (option in LEAST && value !== undefined) check(option, value, LEAST[option as keyof typeof LEAST]);
    }
    const { mode = 'exclusive', limit, lease, maxHold, owner } = options;
    this.keys = [keys].flat().map((key) => checkName(key, 'key'));
    const [key] = this.keys;
    if (key === undefined) throw new MisuseError('a lock needs a key');
    this.key = key;
    this.several = this.keys.length > 1;
    this.name = this.keys.join(', ');
    if (owner !== undefined) checkName(owner, 'owner');
    if (!['exclusive', 'shared'].includes(mode)) throw new MisuseError('mode must be exclusive or shared');
    if (limit !== undefined && !Number.isInteger(limit)) throw new MisuseError('limit must be an integer');
    if (limit !== undefined && this.several) throw new MisuseError('limit is not available for several locks');
    if (lease !== undefined && maxHold !== undefined) throw new MisuseError('maxHold limits renewals; a lease has none');
    if (mode === 'shared' || limit !== undefined) this.flags.push('SHARED');
    if (limit !== undefined) this.flags.push('LIMIT', String(limit));
    if (options.fence === true) this.flags.push('FENCE');
  }
}
