// SPDX-License-Identifier: MIT

import { strict as assert } from 'node:assert';
import { type Hold, Locks, LostError, MisuseError } from '@redis-lock/client';
import { redisLockStore } from '@redis-lock/client/verrou';
import { Verrou } from '@verrou/core';
import { Redis } from 'ioredis';
import { createClient } from 'redis';

// Nothing is connected before the first call.
const locks = new Locks(new Redis({ lazyConnect: true }));
export const others = new Locks(createClient());
export const third = new Locks(createClient({ RESP: 3, url: 'redis://localhost' }), { patience: 1000 });
export const verrou = new Verrou({ default: 'redis', stores: { redis: redisLockStore(locks) } });

export async function uses(): Promise<string> {
  const length: number = await locks.request('k', async (hold) => hold.name.length);
  const owner: string | undefined = await locks.request('k', { ifAvailable: true }, (hold) => hold?.owner);
  // @ts-expect-error with ifAvailable there may be no hold
  await locks.request('k', { ifAvailable: true }, (hold) => hold.owner);
  // @ts-expect-error there is no such mode
  await locks.acquire('k', { mode: 'both' });
  await using hold: Hold = await locks.acquire('k', { mode: 'shared', signal: AbortSignal.timeout(10), wait: 5 });
  hold.signal.throwIfAborted();
  const again = await locks.attach('k', hold.owner, { lease: 1000 });
  await locks.using(['k'], 1000, async (signal: AbortSignal) => signal.reason instanceof LostError);
  const { held, pending } = await locks.query();
  return [length, owner, again.validFor, held[0]?.mode, pending[0]?.owner].join();
}

await assert.rejects(locks.acquire('k', { lease: -1 }), MisuseError);

let isGivenBack = false;
{
  await using scope = { [Symbol.asyncDispose]: async () => void (isGivenBack = true) };
  void scope;
}
assert.ok(isGivenBack);
await locks.close();
