// SPDX-License-Identifier: MIT

import { strict as assert } from 'node:assert';
import { type Hold, LockManager, Locks, LostError, MisuseError, Redlock } from 'redis-lock-client';
import { redisLockStore } from 'redis-lock-client/verrou';
import { Verrou } from '@verrou/core';
import { Cluster, Redis } from 'ioredis';
import { createClient, createCluster, createSentinel } from 'redis';

// Nothing connects before the first call.
const locks = new Locks(new Redis({ lazyConnect: true }));
export const others = new Locks(createClient());
export const third = new Locks(createClient({ RESP: 3, url: 'redis://localhost' }), { patience: 1000 });
export const clusters = (): Locks[] => [new Locks(new Cluster([])), new Locks(createCluster({ rootNodes: [] }))];
export const sentinel = (): Locks => new Locks(createSentinel({ name: 'm', sentinelRootNodes: [] }));
export const verrou = new Verrou({ default: 'redis', stores: { redis: redisLockStore(locks) } });

export async function uses(): Promise<string> {
  const length: number = await locks.lock('k').run(async (hold) => hold.key.length);
  const manager = new LockManager(locks);
  const owner = await manager.request('k', { ifAvailable: true }, (hold) => hold?.owner);
  // @ts-expect-error with ifAvailable there may be no hold
  await manager.request('k', { ifAvailable: true }, (hold) => hold.owner);
  // @ts-expect-error this is no client
  new Locks({ host: 'localhost' });
  // @ts-expect-error there is no such mode
  locks.lock('k', { mode: 'both' });
  await using hold: Hold = await locks.lock(['k', 'l'], { mode: 'shared' }).acquire({ signal: AbortSignal.timeout(10), wait: 5 });
  hold.signal.throwIfAborted();
  const again = await locks.lock('k', { lease: 1000 }).attach(hold.handOver());
  await new Redlock(locks).using(['k'], 1000, async (signal: AbortSignal) => signal.reason instanceof LostError);
  const { held, pending } = await manager.query();
  return [length, owner, again.validFor, held[0]?.mode, pending[0]?.clientId].join();
}

assert.throws(() => locks.lock('k', { lease: -1 }), MisuseError);

let isDisposed = false;
{
  await using scope = { [Symbol.asyncDispose]: async () => void (isDisposed = true) };
  void scope;
}
assert.ok(isDisposed);
await locks.close();
