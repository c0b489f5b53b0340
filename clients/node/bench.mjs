// SPDX-License-Identifier: MIT

// Compares this package with redis-semaphore and node-redlock, with a server of its own:
// `REDIS_LOCK_MODULE=… node bench.mjs [SECONDS]`. Tasks acquire a lock, release it, and begin again. It prints locks per second,
// the ratio to the fastest other library, the longest wait, and the server's CPU time per lock. All processes share the cores of
// this machine: compare ratios, not numbers.

import Redlock from 'redlock';
import { Mutex } from 'redis-semaphore';
import { Locks } from '@redis-lock/client';
import { LIBRARIES, Server } from './test/support.mjs';

const seconds = Number(process.argv[2] ?? 3);
const FOREVER = { acquireTimeout: 10 ** 9, acquireAttemptsLimit: Infinity, lockTimeout: 30_000 };

function ours(library) {
  return async (port, keys) => {
    const client = await LIBRARIES[library].connect(port);
    const locks = new Locks(client);
    const all = keys.map((key) => locks.lock(key, { lease: 30_000 }));
    const close = async () => {
      await locks.close();
      LIBRARIES[library].end(client);
    };
    return { take: (index) => all[index].acquire(), close };
  };
}

function semaphore(retryInterval) {
  return async (port, keys) => {
    const client = await LIBRARIES.ioredis.connect(port);
    const take = async (index) => {
      const mutex = new Mutex(client, keys[index], { ...FOREVER, retryInterval, refreshInterval: 0 });
      await mutex.acquire();
      return mutex;
    };
    return { take, close: async () => client.disconnect() };
  };
}

function nodeRedlock(retryDelay) {
  return async (port, keys) => {
    const client = await LIBRARIES.ioredis.connect(port);
    const locks = new Redlock([client], { retryCount: -1, retryDelay, retryJitter: retryDelay / 2 });
    return { take: (index) => locks.acquire([keys[index]], 30_000), close: async () => client.disconnect() };
  };
}

const CANDIDATES = {
  'redis-semaphore, retryInterval 10': semaphore(10),
  'redis-semaphore, retryInterval 1': semaphore(1),
  'node-redlock, retryDelay 10': nodeRedlock(10),
  'redis-lock, ioredis': ours('ioredis'),
  'redis-lock, node-redis': ours('node-redis'),
};

async function cpu(server) {
  const info = await server.admin.info('cpu');
  const of = (name) => Number(new RegExp(`${name}:([\\d.]+)`).exec(info)[1]);
  return of('used_cpu_sys') + of('used_cpu_user');
}

async function measure(make, tasks, keys) {
  const server = await Server.start();
  try {
    const candidate = await make(server.port, Array.from({ length: keys }, (_, index) => `bench:${index}`));
    let [count, longest, isOver] = [0, 0, false];
    const waitingSince = new Map();
    const run = async (task) => {
      while (!isOver) {
        waitingSince.set(task, performance.now());
        const hold = await candidate.take(task % keys);
        longest = Math.max(longest, performance.now() - waitingSince.get(task));
        waitingSince.delete(task);
        if (!isOver) count += 1;
        await hold.release();
      }
    };
    const running = Array.from({ length: tasks }, (_, task) => run(task));
    // The first half second warms up.
    await new Promise((resolve) => setTimeout(resolve, 500));
    [count, longest] = [0, 0];
    const before = await cpu(server);
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    const spent = (await cpu(server)) - before;
    // A task that still waits has waited, too.
    for (const since of waitingSince.values()) longest = Math.max(longest, performance.now() - since);
    const result = { perSecond: count / seconds, longest, micros: (spent * 1e6) / count };
    isOver = true;
    await Promise.all(running);
    await candidate.close();
    return result;
  } finally {
    await server.stop();
  }
}

for (const [tasks, keys] of [[1, 1], [50, 50], [50, 1]]) {
  let best = 0;
  for (const [name, make] of Object.entries(CANDIDATES)) {
    const { perSecond, longest, micros } = await measure(make, tasks, keys);
    const isOurs = name.startsWith('redis-lock');
    if (!isOurs) best = Math.max(best, perSecond);
    const ratio = isOurs ? `, ratio ${(perSecond / best).toFixed(2)}` : '';
    const rest = `longest wait ${longest.toFixed(0)} ms, ${micros.toFixed(0)} µs of the server`;
    const text = `${perSecond.toFixed(0)} locks/s${ratio}, ${rest}`;
    console.log(`${String(tasks).padStart(3)} tasks, ${String(keys).padStart(2)} keys  ${name.padEnd(34)} ${text}`);
  }
}
