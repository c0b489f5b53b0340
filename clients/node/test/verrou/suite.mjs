// SPDX-License-Identifier: MIT

// Verrou's own tests of stores, on ours. The server's port is in the environment.

import { test } from '@japa/runner';
import { registerStoreTestSuite } from '@verrou/core/test_suite';
import { Redis } from 'ioredis';
import { Locks } from '@redis-lock/client';
import { RedisLockStore } from '@redis-lock/client/verrou';

const client = new Redis(Number(process.env.PORT));
const locks = new Locks(client);
test.group('a store of redis-lock', (group) => {
  group.each.setup(() => client.flushall());
  group.teardown(async () => {
    await locks.close();
    client.disconnect();
  });
  registerStoreTestSuite({ test, createStore: () => new RedisLockStore(locks) });
});
