// SPDX-License-Identifier: MIT

// Locks on what Sentinels say is the primary. node-redis has a client of its own for that, with which these locks do not work.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Redis } from 'ioredis';
import { Locks } from '@redis-lock/client';
import { fields, freePort, Server, until } from './support.mjs';

test('a hold and a wait go over to the new primary', async () => {
  const servers = [await Server.start(), await Server.start()];
  const [first, second] = servers;
  await first.admin.config('SET', 'repl-diskless-sync-delay', 0);
  await second.admin.call('REPLICAOF', '127.0.0.1', first.port);
  // A Sentinel that is there before looks for replicas every ten seconds only.
  await until(async () => (await first.admin.info('replication')).includes('state=online'), 'a replica');
  const port = await freePort();
  const file = join(first.folder, 'sentinel.conf');
  const settings = ['down-after-milliseconds m 500', 'failover-timeout m 10000'].map((line) => `sentinel ${line}\n`).join('');
  const head = `port ${port}\nbind 127.0.0.1\ndir ${first.folder}\nsentinel monitor m 127.0.0.1 ${first.port} 1\n`;
  writeFileSync(file, head + settings);
  const process = spawn('redis-server', [file, '--sentinel'], { stdio: 'ignore' });
  const sentinel = new Redis({ port, host: '127.0.0.1', retryStrategy: () => 20, maxRetriesPerRequest: null });
  sentinel.on('error', () => undefined);
  const client = new Redis({ sentinels: [{ host: '127.0.0.1', port }], name: 'm', sentinelRetryStrategy: () => 20 });
  client.on('error', () => undefined);
  const locks = new Locks(client);
  try {
    const replica = async () => fields((await sentinel.call('SENTINEL', 'REPLICAS', 'm'))[0]);
    await until(async () => (await replica())['master-link-status'] === 'ok', 'a replica', 15_000);
    const hold = await locks.acquire('k', { lease: 60_000 });
    const wait = locks.acquire('k', { lease: 60_000, wait: 30_000 });
    await until(async () => (await first.waiters('k')) === 1);
    await until(async () => (await second.holders('k')) === 1);
    first.process.kill('SIGKILL');
    await until(async () => (await second.waiters('k')) === 1, 'the wait at the new primary', 20_000);
    assert.equal(hold.signal.aborted, false);
    await hold.release();
    const next = await wait;
    assert.equal(await second.holders('k'), 1);
    await next.release();
    assert.ok(await second.isEmpty('k'));
  } finally {
    await locks.close();
    client.disconnect();
    sentinel.disconnect();
    process.kill('SIGKILL');
    if (process.exitCode === null) await once(process, 'exit');
    for (const server of servers) await server.stop();
  }
});
