// SPDX-License-Identifier: MIT

// Compares this package with redis-semaphore and node-redlock, with a server of its own:
// `REDIS_LOCK_MODULE=… node bench.mjs [SECONDS]`. Tasks acquire a lock, release it, and begin again. Impatient tasks hold it for
// 1 ms, and wait for it for at most 5 ms. One candidate holds and renews 1,000 other locks meanwhile. For each package, the bench
// prints locks per second, the longest wait, and the server's CPU time per lock. The ratio to the fastest other library is the
// median of all rounds. All processes share the cores of this machine: compare ratios, not numbers.

import Redlock from 'redlock';
import { Mutex } from 'redis-semaphore';
import { Locks } from 'redis-lock-client';
import { LIBRARIES, Server } from './test/support.mjs';

const seconds = Number(process.argv[2] ?? 3);
const [WARM_UP, ROUNDS] = [3, 10];
// In milliseconds: how long an impatient task waits, and how long it holds the lock.
const [PATIENCE, HOLD] = [5, 1];
const FOREVER = { acquireTimeout: 10 ** 9, acquireAttemptsLimit: Infinity, lockTimeout: 30_000 };

function ours(library, others = 0) {
  return async (port, keys) => {
    const client = await LIBRARIES[library].connect(port);
    const locks = new Locks(client);
    const all = keys.map((key) => locks.lock(key, { lease: 30_000 }));
    const held = [];
    for (let other = 0; other < others; other++) held.push(await locks.lock(`other:${other}`).acquire());
    const close = async () => {
      for (const hold of held) await hold.release();
      await locks.close();
      LIBRARIES[library].end(client);
    };
    return { take: (index) => all[index].acquire(), takeSoon: (index) => all[index].tryAcquire({ wait: PATIENCE }), close };
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
    const takeSoon = async (index) => {
      const limits = { acquireTimeout: PATIENCE, retryInterval, lockTimeout: 30_000, refreshInterval: 0 };
      const mutex = new Mutex(client, keys[index], limits);
      return (await mutex.tryAcquire()) ? mutex : null;
    };
    return { take, takeSoon, close: async () => client.disconnect() };
  };
}

function nodeRedlock(retryDelay) {
  return async (port, keys) => {
    const client = await LIBRARIES.ioredis.connect(port);
    const locks = new Redlock([client], { retryCount: -1, retryDelay, retryJitter: retryDelay / 2 });
    const soon = { retryCount: Math.floor(PATIENCE / retryDelay), retryDelay, retryJitter: 0 };
    return {
      take: (index) => locks.acquire([keys[index]], 30_000),
      takeSoon: (index) => locks.acquire([keys[index]], 30_000, soon).catch(() => null),
      close: async () => client.disconnect(),
    };
  };
}

const CANDIDATES = {
  'redis-semaphore, retryInterval 10': semaphore(10),
  'redis-semaphore, retryInterval 1': semaphore(1),
  'node-redlock, retryDelay 10': nodeRedlock(10),
  'redis-lock, ioredis': ours('ioredis'),
  'redis-lock, 1,000 others held': ours('ioredis', 1000),
  'redis-lock, node-redis': ours('node-redis'),
};

async function cpu(server) {
  const info = await server.admin.info('cpu');
  const of = (name) => Number(new RegExp(`${name}:([\\d.]+)`).exec(info)[1]);
  return of('used_cpu_sys') + of('used_cpu_user');
}

/** Makes each candidate work in turn, in short rounds, so that a busy machine slows all of them alike. Returns their medians. */
async function measure(tasks, keys, isImpatient) {
  const server = await Server.start();
  const names = Array.from({ length: keys }, (_, index) => `bench:${index}`);
  const results = new Map();
  try {
    for (const [name, make] of Object.entries(CANDIDATES)) {
      results.set(name, { candidate: await make(server.port, names.map((key) => `${name}:${key}`)), rounds: [] });
    }
    for (let round = -WARM_UP; round < ROUNDS; round++) {
      for (const { candidate, rounds } of results.values()) {
        const result = await work(server, candidate, tasks, keys, isImpatient);
        if (round >= 0) rounds.push(result);
      }
    }
    for (const { candidate } of results.values()) await candidate.close();
  } finally {
    await server.stop();
  }
  const all = [...results].map(([name, { rounds }]) => ({
    name, rounds, perSecond: median(rounds.map(({ perSecond }) => perSecond)), micros: median(rounds.map(({ micros }) => micros)),
    longest: Math.max(...rounds.map(({ longest }) => longest)),
  }));
  const others = all.filter(({ name }) => !name.startsWith('redis-lock'));
  const best = others.reduce((one, other) => (other.perSecond > one.perSecond ? other : one));
  for (const one of all) one.ratio = median(one.rounds.map(({ perSecond }, round) => perSecond / best.rounds[round].perSecond));
  return all;
}

function median(values) {
  return values.sort((a, b) => a - b)[values.length >> 1];
}

async function work(server, candidate, tasks, keys, isImpatient) {
  let [count, longest, isOver] = [0, 0, false];
  const began = performance.now();
  const before = await cpu(server);
  const run = async (task) => {
    while (!isOver) {
      const asked = performance.now();
      const hold = await (isImpatient ? candidate.takeSoon(task % keys) : candidate.take(task % keys));
      if (hold === null) continue;
      longest = Math.max(longest, performance.now() - asked);
      count += 1;
      if (isImpatient) await new Promise((resolve) => setTimeout(resolve, HOLD));
      await hold.release();
    }
  };
  const running = Array.from({ length: tasks }, (_, task) => run(task));
  await new Promise((resolve) => setTimeout(resolve, (seconds * 1000) / ROUNDS));
  isOver = true;
  await Promise.all(running);
  const spent = (await cpu(server)) - before;
  return { perSecond: (count * 1000) / (performance.now() - began), longest, micros: (spent * 1e6) / count };
}

for (const [tasks, keys, isImpatient] of [[1, 1], [50, 50], [50, 1], [50, 1, true]]) {
  if (isImpatient) console.log('Impatient:');
  for (const { name, perSecond, ratio, longest, micros } of await measure(tasks, keys, isImpatient)) {
    const numbers = `${perSecond.toFixed(0)} locks/s, ratio ${ratio.toFixed(2)}`;
    const rest = `longest wait ${longest.toFixed(0)} ms, ${micros.toFixed(0)} µs of the server`;
    console.log(`${String(tasks).padStart(3)} tasks, ${String(keys).padStart(2)} keys  ${name.padEnd(34)} ${numbers}, ${rest}`);
  }
}
