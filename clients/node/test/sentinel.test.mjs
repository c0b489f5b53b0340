// SPDX-License-Identifier: MIT

// Locks on what Sentinels say is the primary. node-redis has a client of its own for that, with which these locks do not work.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
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

/** Says nothing, or where the primary is. Knows its connections. */
async function sentinel(primary) {
  const sockets = new Set();
  const address = `*2\r\n$9\r\n127.0.0.1\r\n$${String(primary).length}\r\n${primary}\r\n`;
  const replies = { 'get-master-addr-by-name': address, sentinels: '*0\r\n', setinfo: '+OK\r\n' };
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined).on('close', () => sockets.delete(socket));
    socket.on('data', (data) => {
      const asked = String(data).toLowerCase().match(/get-master-addr-by-name|sentinels|setinfo/g) ?? [];
      if (primary !== undefined) for (const word of asked) socket.write(replies[word]);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const end = () => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { host: '127.0.0.1', port: server.address().port, sockets, end };
}

test('a Sentinel that hangs costs a second, and nobody asks it first again', async () => {
  const server = await Server.start();
  const sentinels = [await sentinel(), await sentinel(server.port)];
  const [hung, good] = sentinels.map(({ host, port }) => ({ host, port }));
  const clients = [[hung, good], [hung]].map((all) => new Redis({ sentinels: all, name: 'm', lazyConnect: true }));
  const all = clients.map((client) => new Locks(client));
  const [locks, stuck] = all;
  try {
    const began = performance.now();
    const hold = await locks.acquire('k');
    const time = performance.now() - began;
    assert.ok(time > 900 && time < 2000, `${time} ms`);
    await server.admin.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    await until(() => hold.signal.aborted, 'its end', 800);
    const hasty = new Locks(clients[0], { patience: 300 });
    all.push(hasty);
    await (await hasty.acquire('k', { wait: 2000 })).release();
    const wait = stuck.acquire('k').catch(({ kind }) => kind);
    await until(() => sentinels[0].sockets.size > 0, 'a question');
    await stuck.close();
    await until(() => sentinels[0].sockets.size === 0, 'its end', 300);
    assert.equal(await wait, 'unavailable');
  } finally {
    for (const one of all) await one.close();
    await sleep(100);
    assert.deepEqual(sentinels.map(({ sockets }) => sockets.size), [0, 0]);
    for (const one of [...clients, ...sentinels]) one.end();
    await server.stop();
  }
});
