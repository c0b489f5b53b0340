// SPDX-License-Identifier: MIT

import { channel } from 'node:diagnostics_channel';
import { now } from './session.js';

/** What is published on the channel `redis-lock` of `diagnostics_channel`. */
export interface LockEvent {
  label: string;
  /** `waited` when an acquire ends, `held` when a hold does. */
  event: 'waited' | 'held';
  /** Of a wait `granted`, or a kind of error; of a hold `released` or `lost`. */
  outcome: string;
  /** How long it was, in milliseconds. */
  ms: number;
}

const CHANNEL = channel('redis-lock');

/** @internal */
export function tell(label: string, event: LockEvent['event'], outcome: string, since: number): void {
  if (CHANNEL.hasSubscribers) CHANNEL.publish({ label, event, outcome, ms: now() - since } satisfies LockEvent);
}
