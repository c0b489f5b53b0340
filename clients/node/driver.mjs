// SPDX-License-Identifier: MIT

// Does what it reads, a line each: see clients/spec/README.md. `node driver.mjs redis://127.0.0.1:6379 [--client node-redis]`

import diagnostics from 'node:diagnostics_channel';
import { createInterface } from 'node:readline';
import { LockError, Locks } from '@redis-lock/client';

const url = process.argv[2];
const isNodeRedis = process.argv[4] === 'node-redis';

async function connect() {
  if (isNodeRedis) {
    const { createClient } = await import('redis');
    const client = createClient({ url });
    client.on('error', () => undefined);
    await client.connect();
    // A connection that is being made anew while the client is destroyed stays open.
    client.unref();
    return { client, call: (...words) => client.sendCommand(words), end: () => client.destroy() };
  }
  const { Redis } = await import('ioredis');
  const client = new Redis(url);
  client.on('error', () => undefined);
  return { client, call: (command, ...words) => client.call(command, ...words), end: () => client.disconnect() };
}

const { client, call, end } = await connect();
const locks = new Locks(client);
const holds = new Map();
const aborts = new Map();
const leaves = new Map();
const events = [];
diagnostics.subscribe('redis-lock', ({ label, event, outcome }) => events.push([label, event, outcome]));

class BodyError extends Error {}

function optionsOf(request) {
  const { lease, wait, keep, max_hold: maxHold, limit, fence, label, own: ownConnection } = request;
  const all = { lease, wait, keep, maxHold, limit, fence, label, ownConnection, mode: request.shared ? 'shared' : undefined };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
}

function granted(as, hold) {
  holds.set(as, hold);
  return hold.token === undefined ? { is: 'granted' } : { is: 'granted', token: hold.token };
}

const VERBS = {
  async acquire({ as, lock, ...request }) {
    const abort = new AbortController();
    aborts.set(as, abort);
    return granted(as, await locks.acquire(lock, { ...optionsOf(request), signal: abort.signal }));
  },
  async try({ as, lock, ...request }) {
    const hold = await locks.tryAcquire(lock, optionsOf(request));
    return hold === null ? { is: 'busy' } : granted(as, hold);
  },
  async cancel({ as }) {
    aborts.get(as).abort();
    return { is: 'done' };
  },
  async release({ as }) {
    await holds.get(as).release();
    return { is: 'released' };
  },
  async extend({ as, lease }) {
    await holds.get(as).extend(lease);
    return { is: 'extended' };
  },
  async state({ as }) {
    return { is: holds.get(as).signal.aborted ? 'lost' : 'held' };
  },
  async until_lost({ as, within }) {
    const { signal } = holds.get(as);
    if (!signal.aborted) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, within);
        signal.addEventListener('abort', () => (clearTimeout(timer), resolve()));
      });
    }
    return { is: signal.aborted ? 'lost' : 'held' };
  },
  async owner({ as }) {
    return { is: 'done', owner: holds.get(as).owner };
  },
  async 'hand over'({ as }) {
    return { is: 'done', owner: await holds.get(as).handOver() };
  },
  async attach({ as, lock, owner, lease }) {
    return granted(as, await locks.attach(lock, owner, { lease }));
  },
  async with({ as, lock, ...request }) {
    const left = new Promise((resolve) => leaves.set(as, resolve));
    await locks.request(lock, optionsOf(request), async (hold) => {
      holds.set(as, hold);
      if (await left) throw new BodyError();
    });
    return { is: 'done' };
  },
  async leave({ as, fails }) {
    leaves.get(as)(fails);
    return { is: 'done' };
  },
  async guard({ as, command }) {
    await holds.get(as).guard(...command);
    return { is: 'done' };
  },
  async count({ lock, key, rounds }) {
    for (let round = 0; round < rounds; round++) {
      await locks.request(lock, async () => call('SET', key, String(Number(await call('GET', key)) + 1)));
    }
    return { is: 'done' };
  },
  async calls({ count }) {
    for (let made = 0; made < count; made++) await call('PING');
    return { is: 'done' };
  },
  async spin({ for: ms }) {
    const until = performance.now() + ms;
    while (performance.now() < until);
    return { is: 'done' };
  },
  async events() {
    return { is: 'done', events };
  },
  async close() {
    await locks.close();
    return { is: 'closed' };
  },
};

const answer = (n, what) => process.stdout.write(`${JSON.stringify({ n, ...what })}\n`);

for await (const line of createInterface({ input: process.stdin })) {
  const { n, do: verb, ...request } = JSON.parse(line);
  const work = VERBS[verb] === undefined ? Promise.resolve({ is: 'unknown' }) : VERBS[verb](request);
  work.then(
    (what) => answer(n, what),
    (error) => {
      if (error instanceof BodyError) answer(n, { is: 'body' });
      else answer(n, { is: error instanceof LockError ? error.kind : `defect: ${error.stack}`, text: error.message });
    },
  );
}
end();
