// SPDX-License-Identifier: MIT

import { type Hold, type LockEvent, Locks, type LockOptions } from 'redis-lock-client';

export async function work(locks: Locks, options: LockOptions, listener: (event: LockEvent) => void): Promise<unknown> {
  const hold: Hold | null = await locks.lock('k', options).tryAcquire();
  listener({ label: 'k', event: 'held', outcome: 'released', ms: 1 });
  return hold?.token;
}
