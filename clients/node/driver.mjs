// SPDX-License-Identifier: MIT

// Does what it reads, a line each: see clients/spec/README.md. `node driver.mjs redis://127.0.0.1:6379 [--client node-redis]`

import { createInterface } from 'node:readline';
import { LockError, Locks } from 'redis-lock-client';

const url = process.argv[2];
const isNodeRedis = process.argv[4] === 'node-redis';

async function connect() {
  if (isNodeRedis) {
    const { createClient } = await import('redis');
    const client = createClient({ url });
    client.on('error', () => undefined);
    await client.connect();
    // A connection that is being made while the client is destroyed stays open.
    client.unref();
    return { client, call: (...words) => client.sendCommand(words), end: () => client.destroy() };
  }
  const { Redis } = await import('ioredis');
  const client = new Redis(url);
  client.on('error', () => undefined);
  return { client, call: (command, ...words) => client.call(command, ...words), end: () => client.disconnect() };
}

const { client, call, end } = await connect();
const events = [];
const fromEnvironment = { ttl: process.env.REDIS_LOCK_TTL, grace: process.env.REDIS_LOCK_GRACE };
const settings = Object.fromEntries(
  Object.entries(fromEnvironment).filter(([, text]) => text).map(([name, text]) => [name, Number(text)]),
);
const listener = ({ label, event, outcome }) => events.push([label ?? null, event, outcome]);
const locks = new Locks(client, { ...settings, listener });
const holds = new Map();
const aborts = new Map();
const leaves = new Map();

class BodyError extends Error {}

function lockOf({ lock, lease, wait, max_hold: maxHold, limit, fence, label, owner, reentrant, shared }) {
  const mode = shared ? 'shared' : 'exclusive';
  return locks.lock(lock, { lease, wait, maxHold, limit, fence, label, owner, reentrant, mode });
}

function granted(as, hold) {
  holds.set(as, hold);
  return hold.token === undefined ? { is: 'granted' } : { is: 'granted', token: hold.token };
}

const VERBS = {
  async acquire({ as, ...request }) {
    const abort = new AbortController();
    aborts.set(as, abort);
    return granted(as, await lockOf(request).acquire({ signal: abort.signal }));
  },
  async try({ as, ...request }) {
    const hold = await lockOf(request).tryAcquire();
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
    const hold = holds.get(as);
    return { is: hold.isLost ? 'lost' : hold.validFor > 0 ? 'safe' : 'jeopardy' };
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
    return { is: 'done', owner: String(holds.get(as).owner) };
  },
  async 'hand over'({ as }) {
    return { is: 'done', owner: holds.get(as).handOver() };
  },
  async attach({ as, owner, ...request }) {
    return granted(as, await lockOf(request).attach(owner));
  },
  async with({ as, ...request }) {
    const left = new Promise((resolve) => leaves.set(as, resolve));
    await lockOf(request).run(async (hold) => {
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
  async count({ key, rounds, ...request }) {
    const lock = lockOf(request);
    for (let round = 0; round < rounds; round++) {
      await lock.run(async () => call('SET', key, String(Number(await call('GET', key)) + 1)));
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
