// SPDX-License-Identifier: MIT

import { type Hold, type LockEvent, Locks, type Options } from '@redis-lock/client';

export async function work(locks: Locks, options: Options, told: (event: LockEvent) => void): Promise<number | undefined> {
  const hold: Hold | null = await locks.tryAcquire('k', options);
  told({ label: 'k', event: 'held', outcome: 'released', ms: 1 });
  return hold?.token;
}
