// SPDX-License-Identifier: MIT

// Locks in a cluster of two nodes, and on the primary of Sentinels.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis } from 'ioredis';
import { createCluster, createSentinel } from 'redis';
import { Locks } from 'redis-lock-client';
import { blockFor, fields, freePort, Server, until } from './support.mjs';

const HALF = 8192;
const LAST = 16_383;

/** Keys of the first node and one of the second: their slots are 3300, 3300, 7365 and 15495. */
const [LOW, ALSO_LOW, KEPT, HIGH] = ['{b}:1', '{b}:2', '{c}:1', '{a}:1'];

const CLIENTS = {
  ioredis: {
    connect: async (ports) => {
      const client = new Cluster(ports.map((port) => ({ host: '127.0.0.1', port })));
      client.on('error', () => undefined);
      return client;
    },
    end: (client) => client.disconnect(),
  },
  'node-redis': {
    connect: async (ports) => {
      const client = createCluster({ rootNodes: ports.map((port) => ({ url: `redis://127.0.0.1:${port}` })) });
      client.on('error', () => undefined);
      await client.connect();
      return client;
    },
    end: (client) => client.destroy(),
  },
};

const CLUSTER = [
  '--cluster-enabled', 'yes', '--cluster-node-timeout', '2000', '--cluster-require-full-coverage', 'no',
  '--repl-diskless-sync-delay', '0',
];

async function startCluster() {
  const nodes = [await Server.start({ more: CLUSTER }), await Server.start({ more: CLUSTER })];
  const [one, two] = nodes;
  await one.admin.call('CLUSTER', 'ADDSLOTSRANGE', 0, HALF - 1);
  await two.admin.call('CLUSTER', 'ADDSLOTSRANGE', HALF, LAST);
  await one.admin.call('CLUSTER', 'SET-CONFIG-EPOCH', 1);
  await two.admin.call('CLUSTER', 'SET-CONFIG-EPOCH', 2);
  await one.admin.call('CLUSTER', 'MEET', '127.0.0.1', two.port);
  for (const node of nodes) {
    const isReady = async () => {
      const info = await node.admin.call('CLUSTER', 'INFO');
      return info.includes('cluster_state:ok') && info.includes('cluster_slots_assigned:16384');
    };
    await until(isReady, 'the cluster', 20_000);
  }
  return nodes;
}

/** Moves the slot of a key with its keys. Calls back before the nodes know of it. */
async function moveSlot(from, to, key, onMigrated = async () => undefined) {
  const slot = await from.admin.call('CLUSTER', 'KEYSLOT', key);
  const [source, target] = [await from.admin.call('CLUSTER', 'MYID'), await to.admin.call('CLUSTER', 'MYID')];
  await to.admin.call('CLUSTER', 'SETSLOT', slot, 'IMPORTING', source);
  await from.admin.call('CLUSTER', 'SETSLOT', slot, 'MIGRATING', target);
  const keys = await from.admin.call('CLUSTER', 'GETKEYSINSLOT', slot, 100);
  if (keys.length > 0) await from.admin.call('MIGRATE', '127.0.0.1', to.port, '', 0, 5000, 'KEYS', ...keys);
  await onMigrated();
  for (const node of [to, from]) await node.admin.call('CLUSTER', 'SETSLOT', slot, 'NODE', target);
}

for (const [name, library] of Object.entries(CLIENTS)) {
  describe(`a cluster with ${name}`, () => {
    let nodes, client, locks;

    before(async () => {
      nodes = await startCluster();
      client = await library.connect(nodes.map(({ port }) => port));
      locks = new Locks(client);
    });

    after(async () => {
      await locks.close();
      library.end(client);
      for (const node of nodes) await node.stop();
    });

    test('each node in use has a session', async () => {
      const [low, high] = [await locks.lock(LOW).acquire(), await locks.lock(HIGH).acquire()];
      assert.deepEqual([await nodes[0].holders(LOW), await nodes[1].holders(HIGH)], [1, 1]);
      await until(() => low.validFor > 0 && high.validFor > 0);
      for (const node of nodes) assert.equal((await node.admin.call('LOCK.SESSION', 'LIST')).length, 1);
      await low.release();
      await high.release();
      const both = await locks.lock([LOW, ALSO_LOW]).acquire();
      await both.release();
      await assert.rejects(locks.lock([LOW, HIGH]).acquire(), { kind: 'misuse' });
    });

    test('a key without a node delays no other hold', async (context) => {
      const impatient = new Locks(client, { ttl: 700, grace: 200 });
      context.after(() => impatient.close());
      const slot = await nodes[0].admin.call('CLUSTER', 'KEYSLOT', LOW);
      const [low, kept] = [
        await impatient.lock(LOW, { lease: 60_000 }).acquire(), await impatient.lock(KEPT, { lease: 60_000 }).acquire(),
      ];
      await nodes[0].admin.call('CLUSTER', 'DELSLOTS', slot);
      // The session ends meanwhile.
      blockFor(1200);
      await until(() => kept.validFor === 0, 'the end of the session');
      await until(() => kept.validFor > 0, 'the declaration');
      assert.deepEqual([low.validFor, low.isLost], [0, false]);
      await nodes[0].admin.call('CLUSTER', 'ADDSLOTS', slot);
      await until(() => low.validFor > 0, 'the declaration of the other hold');
      await Promise.all([low.release(), kept.release()]);
    });

    test('a failover of a node keeps a hold and a wait', async () => {
      const [first] = nodes;
      const replica = await Server.start({ more: CLUSTER });
      nodes.push(replica);
      await replica.admin.call('CLUSTER', 'MEET', '127.0.0.1', first.port);
      const id = await first.admin.call('CLUSTER', 'MYID');
      await until(async () => (await replica.admin.call('CLUSTER', 'NODES')).includes(id), 'the meeting');
      await until(async () => (await replica.admin.call('CLUSTER', 'REPLICATE', id).catch(() => '')) === 'OK', 'a replica');
      await until(async () => (await replica.admin.info('replication')).includes('master_link_status:up'), 'the link', 20_000);
      const known = new RegExp(`^${await replica.admin.call('CLUSTER', 'MYID')} .*slave ${id}`, 'm');
      for (const { admin } of nodes) {
        await until(async () => known.test(await admin.call('CLUSTER', 'NODES')), 'the replica', 20_000);
      }
      const other = await nodes[1].admin.call('CLUSTER', 'MYID');
      await until(async () => (await replica.admin.call('CLUSTER', 'NODES')).includes(other), 'the other primary', 20_000);
      const hold = await locks.lock(KEPT).acquire();
      const wait = locks.lock(KEPT).acquire();
      await until(async () => (await first.waiters(KEPT)) === 1);
      await until(async () => (await first.admin.call('WAIT', 1, 1000)) === 1, 'replication');
      await replica.admin.call('CLUSTER', 'FAILOVER', 'TAKEOVER');
      await until(async () => (await replica.admin.info('replication')).includes('role:master'), 'the failover', 20_000);
      await until(async () => (await replica.waiters(KEPT).catch(() => 0)) === 1, 'the wait at the new primary', 20_000);
      await until(() => hold.validFor > 0 || hold.isLost, 'the declaration', 20_000);
      hold.signal.throwIfAborted();
      await hold.release();
      await (await wait).release();
      const isMaster = new RegExp(`^${await replica.admin.call('CLUSTER', 'MYID')} .*master`, 'm');
      for (const { admin } of nodes) await until(async () => isMaster.test(await admin.call('CLUSTER', 'NODES')), 'the gossip');
      nodes[0] = replica;
      nodes[2] = first;
    });

    test('a slot that moves keeps a hold and a wait', async () => {
      const hold = await locks.lock(LOW).acquire();
      const wait = locks.lock(LOW).acquire();
      await until(async () => (await nodes[0].waiters(LOW)) === 1);
      await moveSlot(nodes[0], nodes[1], LOW);
      await until(async () => (await nodes[1].waiters(LOW)) === 1, 'the wait at the new node');
      await until(() => hold.validFor > 0, 'the declaration');
      assert.deepEqual([hold.isLost, await nodes[1].holders(LOW)], [false, 1]);
      await hold.release();
      const next = await wait;
      await next.guard('SET', '{b}:value', '1');
      await next.release();
      const began = performance.now();
      await locks.lock(ALSO_LOW).run(() => undefined);
      assert.ok(performance.now() - began < 1000, 'a moved slot delays nothing');
      await moveSlot(nodes[1], nodes[0], LOW);
    });

    test('an old wait without a limit follows its slot', async (context) => {
      const impatient = new Locks(client, { patience: 3000 });
      context.after(() => impatient.close());
      const hold = await impatient.lock(LOW).acquire();
      const wait = impatient.lock(LOW).acquire();
      wait.catch(() => undefined);
      // The wait is older than the patience.
      await sleep(3100);
      await moveSlot(nodes[0], nodes[1], LOW);
      await until(async () => (await nodes[1].waiters(LOW)) === 1, 'the wait at the new node');
      await hold.release();
      await (await wait).release();
      await moveSlot(nodes[1], nodes[0], LOW);
    });

    test('a new node that confirms late loses no hold', async (context) => {
      const fresh = new Locks(client);
      context.after(() => fresh.close());
      const hold = await fresh.lock(LOW).acquire();
      const refused = async () => Number(/NOREPLICAS:count=(\d+)/.exec(await nodes[1].admin.info('errorstats'))?.[1] ?? 0);
      const before = await refused();
      await moveSlot(nodes[0], nodes[1], LOW, () => nodes[1].writes(false));
      await until(async () => (await refused()) > before + 2, 'calls at the new node');
      assert.deepEqual([hold.isLost, hold.validFor], [false, 0]);
      await nodes[1].writes(true);
      await until(() => hold.validFor > 0, 'the declaration');
      await hold.release();
      await moveSlot(nodes[1], nodes[0], LOW);
    });

    test('a release meets a move of its slot', async () => {
      const hold = await locks.lock(LOW).acquire();
      const moved = moveSlot(nodes[0], nodes[1], LOW);
      const released = hold.release();
      await moved;
      await released;
      await until(async () => (await nodes[0].isEmpty(LOW).catch(() => true)) && nodes[1].isEmpty(LOW), 'the release', 5000);
    });

    test('a replica replaces a killed node', async () => {
      const [primary, , replica] = nodes;
      const hold = await locks.lock(KEPT).acquire();
      const wait = locks.lock(KEPT).acquire();
      await until(async () => (await primary.waiters(KEPT)) === 1);
      await until(async () => (await primary.admin.call('WAIT', 1, 1000)) === 1, 'replication');
      await primary.kill();
      await replica.admin.call('CLUSTER', 'FAILOVER', 'TAKEOVER');
      await until(async () => (await replica.waiters(KEPT).catch(() => 0)) === 1, 'the wait at the new primary', 20_000);
      await until(() => hold.validFor > 0 || hold.isLost, 'the declaration', 20_000);
      hold.signal.throwIfAborted();
      await hold.release();
      await (await wait).release();
      // Nothing connects to the killed node any longer, except the user's client.
      let received = '';
      const imposter = net.createServer((socket) => socket.on('data', (data) => (received += data)).on('error', () => undefined));
      imposter.listen(primary.port, '127.0.0.1');
      await once(imposter, 'listening');
      await sleep(2500);
      assert.ok(!received.includes('LOCK'), received);
      imposter.close();
    });
  });
}

for (const lazyConnect of [false, true]) {
  test(`a client of a cluster connects ${lazyConnect ? 'for the first acquire' : 'during the first acquire'}`, async () => {
    const nodes = await startCluster();
    const client = new Cluster(nodes.map(({ port }) => ({ host: '127.0.0.1', port })), { lazyConnect });
    const locks = new Locks(client);
    try {
      const holds = await Promise.all([LOW, HIGH].map((key) => locks.lock(key).tryAcquire()));
      for (const hold of holds) await hold.release();
    } finally {
      await locks.close();
      client.disconnect();
      for (const node of nodes) await node.stop();
    }
  });
}

test('an acquire in a cluster without nodes waits until its limit', async () => {
  const client = new Cluster([{ host: '127.0.0.1', port: await freePort() }], { clusterRetryStrategy: () => 20 });
  client.on('error', () => undefined);
  const locks = new Locks(client, { patience: 700 });
  const began = performance.now();
  const lasts = (call) => call.then(() => 'granted', ({ kind }) => [kind, performance.now() - began]);
  const [limited, unlimited, tried] = await Promise.all([
    lasts(locks.lock('k').acquire({ wait: 1000 })), lasts(locks.lock('k').acquire()), lasts(locks.lock('k').tryAcquire()),
  ]);
  for (const [[kind, time], limit] of [[limited, 1000], [unlimited, 700], [tried, 700]]) {
    assert.equal(kind, 'unavailable');
    assert.ok(time >= limit - 1 && time < limit + 1500, `${time} of ${limit} ms`);
  }
  const others = new Locks(client);
  const closed = others.lock('k').acquire().catch(({ kind }) => kind);
  await sleep(100);
  await others.close();
  assert.equal(await closed, 'cancelled');
  await locks.close();
  client.disconnect();
});

const SENTINELS = {
  ioredis: {
    connect: async (port) => {
      const client = new Redis({ sentinels: [{ host: '127.0.0.1', port }], name: 'm', sentinelRetryStrategy: () => 20 });
      client.on('error', () => undefined);
      return client;
    },
    end: (client) => client.disconnect(),
  },
  'node-redis': {
    connect: async (port) => {
      const sentinelRootNodes = [{ host: '127.0.0.1', port }];
      const client = createSentinel({ name: 'm', sentinelRootNodes, nodeClientOptions: { RESP: 3 } });
      client.on('error', () => undefined);
      return client.connect();
    },
    end: (client) => client.destroy(),
  },
};

async function movesToTheNewPrimary(library) {
  const servers = [await Server.start(), await Server.start()];
  const [first, second] = servers;
  await first.admin.config('SET', 'repl-diskless-sync-delay', 0);
  await second.admin.call('REPLICAOF', '127.0.0.1', first.port);
  // A Sentinel that starts earlier looks for replicas only every ten seconds.
  await until(async () => (await first.admin.info('replication')).includes('state=online'), 'a replica');
  const port = await freePort();
  const file = join(first.folder, 'sentinel.conf');
  const settings = ['down-after-milliseconds m 500', 'failover-timeout m 10000'].map((line) => `sentinel ${line}\n`).join('');
  const head = `port ${port}\nbind 127.0.0.1\ndir ${first.folder}\nsentinel monitor m 127.0.0.1 ${first.port} 1\n`;
  writeFileSync(file, head + settings);
  const process = spawn('redis-server', [file, '--sentinel'], { stdio: 'ignore' });
  const sentinel = new Redis({ port, host: '127.0.0.1', retryStrategy: () => 20, maxRetriesPerRequest: null });
  sentinel.on('error', () => undefined);
  let client, locks;
  try {
    const replica = async () => fields((await sentinel.call('SENTINEL', 'REPLICAS', 'm'))[0]);
    await until(async () => (await replica())['master-link-status'] === 'ok', 'a replica', 15_000);
    client = await library.connect(port);
    locks = new Locks(client);
    const hold = await locks.lock('k').acquire();
    const wait = locks.lock('k', { wait: 60_000 }).acquire();
    await until(async () => (await first.waiters('k')) === 1);
    await until(async () => (await second.holders('k')) === 1);
    await first.kill();
    await until(async () => (await second.waiters('k')) === 1, 'the wait at the new primary', 20_000);
    await until(() => hold.validFor > 0, 'the declaration');
    assert.equal(hold.signal.aborted, false);
    await hold.release();
    await (await wait).release();
    assert.ok(await second.isEmpty('k'));
  } finally {
    await locks?.close();
    if (client !== undefined) await library.end(client);
    sentinel.disconnect();
    process.kill('SIGKILL');
    for (const server of servers) await server.stop();
  }
}

for (const [name, library] of Object.entries(SENTINELS)) {
  test(`a hold and a wait move to the new primary of ${name}`, () => movesToTheNewPrimary(library));
}
