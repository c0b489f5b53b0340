// SPDX-License-Identifier: MIT

// How this compares with redis-semaphore and node-redlock when many want one lock, with a server of its own:
// `REDIS_LOCK_MODULE=… node bench.mjs [SECONDS]`. Each of N tasks takes the lock, gives it back, and begins again. Said are
// locks a second, the longest that a task waited, and the server's CPU time for a lock. Everything shares this machine's cores:
// read ratios, not numbers.

import Redlock from 'redlock';
import { Mutex } from 'redis-semaphore';
import { Locks } from '@redis-lock/client';
import { LIBRARIES, Server } from './test/support.mjs';

const seconds = Number(process.argv[2] ?? 5);
const FOREVER = { acquireTimeout: 10 ** 9, acquireAttemptsLimit: Infinity, lockTimeout: 30_000 };

function ours(library, ownConnection = false) {
  return async (port) => {
    const client = await LIBRARIES[library].connect(port);
    const locks = new Locks(client);
    const close = async () => {
      await locks.close();
      LIBRARIES[library].end(client);
    };
    return { take: () => locks.acquire('bench', { lease: 30_000, ownConnection }), close };
  };
}

function semaphore(retryInterval) {
  return async (port) => {
    const client = await LIBRARIES.ioredis.connect(port);
    const take = async () => {
      const mutex = new Mutex(client, 'bench', { ...FOREVER, retryInterval, refreshInterval: 0 });
      await mutex.acquire();
      return mutex;
    };
    return { take, close: async () => client.disconnect() };
  };
}

function nodeRedlock(retryDelay) {
  return async (port) => {
    const client = await LIBRARIES.ioredis.connect(port);
    const locks = new Redlock([client], { retryCount: -1, retryDelay, retryJitter: retryDelay / 2 });
    return { take: () => locks.acquire(['bench'], 30_000), close: async () => client.disconnect() };
  };
}

const CANDIDATES = {
  'redis-lock, ioredis': ours('ioredis'),
  'redis-lock, node-redis': ours('node-redis'),
  'redis-lock, ioredis, ownConnection': ours('ioredis', true),
  'redis-semaphore, retryInterval 10': semaphore(10),
  'redis-semaphore, retryInterval 100': semaphore(100),
  'node-redlock, retryDelay 10': nodeRedlock(10),
  'node-redlock, retryDelay 200': nodeRedlock(200),
};

async function cpu(server) {
  const info = await server.admin.info('cpu');
  const of = (name) => Number(new RegExp(`${name}:([\\d.]+)`).exec(info)[1]);
  return of('used_cpu_sys') + of('used_cpu_user');
}

async function measure(make, tasks) {
  const server = await Server.start();
  try {
    const candidate = await make(server.port);
    let [count, longest, isOver] = [0, 0, false];
    const waitingSince = new Map();
    const run = async (task) => {
      while (!isOver) {
        waitingSince.set(task, performance.now());
        const hold = await candidate.take();
        longest = Math.max(longest, performance.now() - waitingSince.get(task));
        waitingSince.delete(task);
        if (!isOver) count += 1;
        await hold.release();
      }
    };
    const before = await cpu(server);
    const running = Array.from({ length: tasks }, (_, task) => run(task));
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    const spent = (await cpu(server)) - before;
    // Who still waits has waited, too.
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

for (const tasks of [2, 50, 200]) {
  for (const [name, make] of Object.entries(CANDIDATES)) {
    const { perSecond, longest, micros } = await measure(make, tasks);
    const said = `${perSecond.toFixed(0)} locks/s, longest wait ${longest.toFixed(0)} ms, ${micros.toFixed(0)} µs of the server`;
    console.log(`${String(tasks).padStart(4)} tasks  ${name.padEnd(36)} ${said}`);
  }
}
