// Works under a lock, with ioredis: waits for it, renews it in the background, gives it back. Start two:
//
//     redis-server --loadmodule target/release/libredis_lock.so
//     cd examples/clients/node && npm ci
//     node worker.mjs redis://127.0.0.1:6379 example:lock 5
//
// After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what
// a round takes, and how long to wait for the lock at most.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';

const RESOURCE = 'example:resource';
const INSIDE = 'example:inside';

class NotGranted extends Error {}

const isNotOwner = (error) => error.message?.startsWith('NOTOWNER');

/** Runs `work` while `owner` holds the lock. It gets an AbortSignal: aborted if the lock is lost. */
async function withLock({ redis, waiting, key, owner, lease, wait }, work) {
  // ioredis sends a call again whose connection broke. With an ID that is new for each call, the repetition gets
  // the reply that was lost instead of a second hold.
  const granted = await waiting.call(
    'LOCK.ACQUIRE', key, owner, 'PX', lease, 'BLOCK', wait, 'ID', randomUUID());
  if (granted === null) throw new NotGranted();
  const lost = new AbortController();
  // A timer does not run while the program computes without a pause. Let the server renew then: acquire with
  // WATCHDOG, and keep `waiting` open.
  const renewing = setInterval(() => {
    redis.call('LOCK.RENEW', key, owner, 'PX', lease).catch((error) => {
      // Anything else, such as a broken connection, may be over the next time.
      if (isNotOwner(error)) lost.abort(error);
    });
  }, lease / 3);
  try {
    return await work(lost.signal);
  } finally {
    clearInterval(renewing);
    // NOTOWNER if the lease ran out, or somebody broke the lock: others may have worked at the same time. It is
    // what the caller gets then, whatever else the work has thrown.
    await redis.call('LOCK.RELEASE', key, owner, 'ID', randomUUID());
  }
}

/** Reads, and writes what it has read plus one: wrong if anybody else works in between. */
async function increment(redis, signal, workMs) {
  if (await redis.incr(INSIDE) !== 1) console.error('OVERLAP: somebody else is at work, too');
  try {
    const value = Number(await redis.get(RESOURCE) ?? 0);
    // The pause stands for the work. Whatever takes a signal ends when the lock is lost.
    await sleep(workMs, undefined, { signal });
    await redis.set(RESOURCE, value + 1);
  } finally {
    await redis.decr(INSIDE);
  }
}

async function main([url, key, rounds, lease = 3000, workMs = 5000, wait = 30000]) {
  const redis = new Redis(url);
  // All calls of a client share one connection, in which a call that waits keeps back all that come after it. So
  // it needs another one; and one more for each lock that is waited for at the same time. If you set
  // commandTimeout or socketTimeout, override them here: they must be longer than BLOCK. After a commandTimeout
  // the call still waits in the server, and is granted a lock that nobody knows of.
  const waiting = redis.duplicate();
  // Without a listener ioredis prints each attempt to reconnect.
  for (const client of [redis, waiting]) client.on('error', (error) => console.error(`redis: ${error.message}`));
  // Whoever uses the same string is the same owner: so it is random, and one for each task that locks.
  const owner = randomUUID();
  try {
    for (let finished = 0; finished < rounds;) {
      try {
        await withLock({ redis, waiting, key, owner, lease: Number(lease), wait },
          (signal) => increment(redis, signal, Number(workMs)));
        finished += 1;
        console.log(`round ${finished} of ${rounds} is done`);
      } catch (error) {
        if (!(error instanceof NotGranted)) throw error;
        console.log(`not granted within ${wait} ms, trying again`);
      }
    }
    return 0;
  } catch (error) {
    if (!isNotOwner(error)) throw error;
    console.error(`the lock was lost, the result of this round must not be trusted: ${error.message}`);
    return 1;
  } finally {
    redis.disconnect();
    waiting.disconnect();
  }
}

const args = process.argv.slice(2);
if (args.length < 3 || args.length > 6) {
  console.error('usage: worker.mjs URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS]]]');
  process.exitCode = 2;
} else {
  process.exitCode = await main(args);
}
