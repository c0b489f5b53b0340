#!/usr/bin/env node
// SPDX-License-Identifier: MIT

// A thousand tasks wait for locks, and block no connection: NOTIFY, with ioredis. It speaks RESP2, in which a connection that has
// subscribed runs no commands. So a process has two: one for all calls of all tasks, and one for their messages.
//
//     redis-server --loadmodule target/release/libredis_lock.so
//     cd docs/clients/node && npm ci
//     node inbox.mjs redis://127.0.0.1:6379 1000 10
//
// After the address, it takes how many tasks there are, and how many counters: each task adds one to a counter under its lock.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';

const LEASE_MS = 30_000;

// A message may be lost. Who waits asks again every few seconds, and keeps its place.
const ASK_AGAIN_MS = 5_000;

/** Locks whose waits block no connection. */
class Locks {
  #inbox = `inbox-${randomUUID()}`;
  // What wakes those up who wait, by their requests.
  #waits = new Map();

  constructor(url) {
    // A call that is sent again by itself is no harm: its ID makes it the same call.
    this.calls = new Redis(url).on('error', (error) => console.error(`redis: ${error.message}`));
    this.messages = this.calls.duplicate().on('error', (error) => console.error(`redis: ${error.message}`));
    // `granted <request> <key>` or `lost <request> <key>`: both mean to ask again.
    this.messages.on('message', (_channel, message) => this.#waits.get(message.split(' ')[1])?.());
    // What was published while there was no connection is lost: all ask again.
    this.messages.on('ready', () => this.#waits.forEach((wake) => wake()));
  }

  // Before the first wait: a message that nobody hears is taken for a refusal.
  async connect() {
    await this.messages.subscribe(`lock:inbox:${this.#inbox}`);
  }

  /** Does `work` while it holds the lock. */
  async hold(key, work) {
    const owner = randomUUID();
    await this.#acquire(key, owner, owner);
    try {
      return await work();
    } finally {
      await this.calls.call('LOCK.RELEASE', key, owner);
    }
  }

  async #acquire(key, owner, request) {
    const call = ['LOCK.ACQUIRE', key, owner, 'PX', LEASE_MS, 'NOTIFY', this.#inbox, 'ID', request];
    for (;;) {
      const told = new Promise((wake) => this.#waits.set(request, wake));
      // 0: it is queued, or still queued. When a message says that it is granted, the same call confirms that.
      const holds = await this.calls.call(...call);
      if (holds > 0) break;
      const giveUp = new AbortController();
      await Promise.race([told, sleep(ASK_AGAIN_MS, undefined, { signal: giveUp.signal }).catch(() => {})]);
      giveUp.abort();
    }
    this.#waits.delete(request);
  }

  disconnect() {
    this.calls.disconnect();
    this.messages.disconnect();
  }
}

const [url = 'redis://127.0.0.1:6379', tasks = 1000, counters = 10] = process.argv.slice(2);
const locks = new Locks(url);
await locks.connect();

async function addOne(number) {
  const name = `example:inbox:${number % counters}`;
  await locks.hold(`${name}:lock`, async () => {
    // Wrong if anybody else does the same meanwhile: both the read and the write go to the server and back.
    const value = Number(await locks.calls.get(name));
    await locks.calls.set(name, value + 1);
  });
}

await Promise.all(Array.from({ length: Number(tasks) }, (_, number) => addOne(number)));
const names = Array.from({ length: Number(counters) }, (_, number) => `example:inbox:${number}`);
const values = await locks.calls.mget(names);
const total = values.reduce((sum, value) => sum + Number(value), 0);
await locks.calls.del(names);
locks.disconnect();
console.log(`${tasks} tasks over two connections: expected ${tasks}, got ${total}`);
process.exitCode = total === Number(tasks) ? 0 : 1;
