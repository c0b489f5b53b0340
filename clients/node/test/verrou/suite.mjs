// SPDX-License-Identifier: MIT

// Verrou's own tests of a store. Each test has a new store. Tests in the list of skips must fail.

import { readFileSync } from 'node:fs';
import { test } from '@japa/runner';
import { registerStoreTestSuite } from '@verrou/core/test_suite';
import { Locks } from 'redis-lock-client';
import { RedisLockStore } from 'redis-lock-client/verrou';
import { LIBRARIES, Server } from '../support.mjs';

const library = LIBRARIES[process.env.LIBRARY];
let server, client, locks;
let stores = 0;

const text = readFileSync(new URL('skips', import.meta.url), 'utf8');
const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
const [[, expected], ...skips] = lines.map((line) => /^(.*?): (.*)$/.exec(line).slice(1));
const reasons = new Map(skips);
let registered = 0;

function counted(title, body) {
  const one = test(title, body);
  registered += 1;
  if (reasons.has(title)) one.fails(reasons.get(title));
  reasons.delete(title);
  return one;
}

registerStoreTestSuite({ test: counted, createStore: () => new RedisLockStore(locks, `verrou:${(stores += 1)}:`) });
if (registered !== Number(expected)) throw new Error(`${registered} tests, expected ${expected}`);
if (reasons.size > 0) throw new Error(`no such tests: ${[...reasons.keys()].join(', ')}`);

// Last, so that an error above leaves no server behind.
server = await Server.start();
client = await library.connect(server.port);
locks = new Locks(client);

export async function end() {
  await locks.close();
  library.end(client);
  await server.stop();
}
