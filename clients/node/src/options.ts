// SPDX-License-Identifier: MIT

import { MisuseError } from './errors.js';

/** How a lock is to be held. Times are in milliseconds. */
export interface Options {
  /** After which the hold ends unless it is renewed; 30,000 if nothing is said. */
  lease?: number | undefined;
  /** Client and server renew the lease, and the hold ends at once with this process. On if no lease is given. */
  keep?: boolean | undefined;
  /** After which a kept hold is not renewed any more. */
  maxHold?: number | undefined;
  /** How long to wait: without limit if nothing is said; 0 is a try. */
  wait?: number | undefined;
  /** `shared` is a reader. */
  mode?: 'exclusive' | 'shared' | undefined;
  /** So many may hold it at once. */
  limit?: number | undefined;
  /** The hold has a token that is greater than all before. */
  fence?: boolean | undefined;
  /** What the events call the lock; its name if nothing is said. */
  label?: string | undefined;
  /** Waits on a connection that no other wait has meanwhile: for a lock that goes from hand to hand all the time. */
  ownConnection?: boolean | undefined;
  /** Ends the wait when it is aborted. */
  signal?: AbortSignal | undefined;
  /** Who holds it, as the server knows it: new for each hold if nothing is said, and else to be one that nobody else has. */
  owner?: string | undefined;
}

/** Options of `request`. */
export interface RequestOptions extends Options {
  /** Does not wait: the callback gets null if somebody else has the lock. */
  ifAvailable?: boolean | undefined;
}

/** The options, with what they mean if nothing is said. @internal */
export interface How extends Options {
  lease: number;
  keep: boolean;
  shared: boolean;
  label: string;
}

const LEAST = { lease: 1, maxHold: 1, wait: 0, limit: 1 } as const;
const OTHERS = new Set(['keep', 'mode', 'fence', 'label', 'signal', 'owner', 'ownConnection', 'ifAvailable']);

/** Throws unless the value is one that the option may have. @internal */
export function check(word: keyof typeof LEAST, value: unknown): void {
  const least = LEAST[word];
  const fits = Number.isFinite(value) && (value as number) >= least && (word !== 'limit' || Number.isInteger(value));
  if (!fits) throw new MisuseError(`${word} must be a number, ${least} or more, and is ${JSON.stringify(value)}`);
}

/** As the server wants it: it must not end what is still valid here. @internal */
export const ms = (time: number): string => String(Math.ceil(time));

/** @internal */
export function howOf(name: string, options: Options): How {
  if (typeof name !== 'string') throw new MisuseError('the name of a lock must be a string');
  for (const [word, value] of Object.entries(options) as [string, unknown][]) {
    if (!(word in LEAST) && !OTHERS.has(word)) throw new MisuseError(`there is no option ${word}`);
    if (word in LEAST && value !== undefined) check(word as keyof typeof LEAST, value);
  }
  const { lease, mode = 'exclusive', limit, signal, owner } = options;
  if (!['exclusive', 'shared'].includes(mode)) throw new MisuseError(`mode must be exclusive or shared, and is ${mode}`);
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw new MisuseError('signal must be an AbortSignal of Node');
  if (owner === '*') throw new MisuseError('the owner * means any, to the server');
  return {
    ...options,
    lease: lease ?? 30_000,
    keep: options.keep ?? lease === undefined,
    shared: mode === 'shared' || limit !== undefined,
    label: options.label ?? name,
  };
}

/** What binds a hold that is so old to the connection of the call. @internal */
export function bound({ keep, maxHold }: How, age = 0): string[] {
  if (!keep) return [];
  return ['WATCHDOG', ...(maxHold === undefined ? [] : ['MAX', ms(Math.max(1, maxHold - age))]), 'EPHEMERAL'];
}
