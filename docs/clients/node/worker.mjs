// SPDX-License-Identifier: MIT

// Works under a lock, with ioredis: waits for it, renews it in the background, gives it back. Start two:
//
//     redis-server --loadmodule target/release/libredis_lock.so
//     cd docs/clients/node && npm ci
//     node worker.mjs redis://127.0.0.1:6379 example:lock 5
//
// After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what
// a round takes, and how long to wait for the lock at most. Then, how many tasks do that; and a time in milliseconds
// within which each wait is cancelled, at a random moment.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';

const RESOURCE = 'example:resource';
const TOKEN = 'example:token';
const INSIDE = 'example:inside';

/** It was not our turn in time. */
class NotGranted extends Error {}

/** The lock was lost during the work, whose result must not be trusted. */
class LockLost extends Error {}

const isNotOwner = (error) => error.message?.startsWith('NOTOWNER');

/** The connections of a process. Its tasks share them. */
class Clients {
  #idle = [];

  constructor(url, wait) {
    // For what is answered at once. Unless told otherwise ioredis waits for a reply without limit.
    this.shared = connected(new Redis(url, { commandTimeout: 5000 }));
    this.wait = wait;
  }

  // All calls of a client share one connection, in which a call that waits keeps back all that come after it: a
  // renewal, a release. So each call that waits has a client of its own, which can also be closed alone. Its time-out
  // must be longer than BLOCK.
  takeWaiting() {
    const commandTimeout = this.wait > 0 ? this.wait + 5000 : undefined;
    return this.#idle.pop() ?? connected(this.shared.duplicate({ commandTimeout }));
  }

  giveBack(waiting) {
    this.#idle.push(waiting);
  }

  disconnect() {
    for (const client of [this.shared, ...this.#idle]) client.disconnect();
  }
}

function connected(client) {
  // Without a listener ioredis prints each attempt to reconnect.
  return client.on('error', (error) => console.error(`redis: ${error.message}`));
}

/** Settles as the promise does, or when the signal is aborted. */
async function orAborted(promise, signal) {
  if (!signal) return promise;
  let abort;
  const aborted = new Promise((_, reject) => {
    abort = () => reject(signal.reason);
    signal.addEventListener('abort', abort);
    if (signal.aborted) abort();
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/** Waits for the lock. Gives the reply, and when the call was sent that the server has confirmed. */
async function acquire({ clients, key, owner, lease, signal }) {
  // New for each call: it tells the calls of an owner apart, for LOCK.CANCEL; and ioredis sends a call again whose
  // connection broke. The repetition gets the reply that was lost instead of a second hold.
  const request = randomUUID();
  const waiting = clients.takeWaiting();
  try {
    let sent = performance.now();
    const reply = await orAborted(waiting.call(
      'LOCK.ACQUIRE', key, owner, 'PX', lease, 'BLOCK', clients.wait, 'FENCE', 'ID', request), signal);
    // The lease runs from the grant. Of that we know only that it was after the call was sent: long ago, if we had to
    // wait. So it is set anew by a call that takes no time.
    if (reply !== null && performance.now() - sent > lease / 3) {
      sent = performance.now();
      await waiting.call('LOCK.RENEW', key, owner, 'PX', lease);
    }
    signal?.throwIfAborted();
    clients.giveBack(waiting);
    if (reply !== null) return { reply, sent };
  } catch (error) {
    // The wait was cancelled, or the connection broke, or a time-out is over: whether the lock was granted is not
    // known. LOCK.CANCEL undoes the call, whatever has become of it. On another connection, as this one is occupied.
    // Closing it would not do: if the lock was granted, and the reply is on its way, nobody gives it back.
    await clients.shared.call('LOCK.CANCEL', key, owner, 'ID', request).catch(() => {});
    // If the server could not be told, it takes a call whose connection is closed out of the queue.
    waiting.disconnect();
    throw isNotOwner(error) ? new LockLost(error.message) : error;
  }
  throw new NotGranted();
}

/**
 * Runs `work` while `owner` holds the lock. It gets the fencing token, and an AbortSignal: aborted if the lock is lost.
 * The signal in the options cancels the wait for the lock, and nothing else.
 */
async function withLock({ clients, key, owner, lease, signal }, work) {
  const { reply, sent } = await acquire({ clients, key, owner, lease, signal });
  const lost = new AbortController();
  const lose = (why) => lost.abort(new LockLost(why));
  let validUntil, expiring;
  // The server counts the lease from a later moment than `sent`. So nobody else has the lock before this time is over,
  // even if the server cannot be reached to ask.
  const isValidFrom = (sent) => {
    validUntil = sent + lease;
    clearTimeout(expiring);
    expiring = setTimeout(lose, validUntil - performance.now(), 'the lease could not be renewed in time');
  };
  isValidFrom(sent);
  // A timer does not run while the program computes without a pause. Let the server renew then: acquire with
  // WATCHDOG, and do not give the connection back.
  const renewing = setInterval(async () => {
    const sent = performance.now();
    try {
      await clients.shared.call('LOCK.RENEW', key, owner, 'PX', lease);
      if (!lost.signal.aborted && expiring) isValidFrom(sent);
    } catch (error) {
      // Anything else, such as a broken connection, may be over the next time.
      if (isNotOwner(error)) lose(error.message);
    }
  }, lease / 3);
  try {
    return await work(tokenOf(reply), lost.signal);
  } finally {
    clearInterval(renewing);
    clearTimeout(expiring);
    expiring = undefined;
    // A timer may be late.
    if (performance.now() >= validUntil) lose('the lease could not be renewed in time');
    try {
      await clients.shared.call('LOCK.RELEASE', key, owner, 'ID', randomUUID());
    } catch (error) {
      // The lease ran out, or somebody broke the lock: others may have worked at the same time.
      if (isNotOwner(error)) lose(error.message);
      if (!lost.signal.aborted) throw error;
    }
    // It is what the caller gets then, whatever else the work has thrown.
    lost.signal.throwIfAborted();
  }
}

/** With FENCE the reply is a map: in ioredis a flat array of names and values. (In RESP3 a client has a real one.) */
function tokenOf(reply) {
  for (let i = 0; i < reply.length; i += 2) {
    if (reply[i] === 'token') return reply[i + 1];
  }
  throw new Error('no token in the reply');
}

/** Reads, and writes what it has read plus one: wrong if anybody else works in between. */
async function increment(redis, token, signal, workMs) {
  if (await redis.incr(INSIDE) !== 1) console.error('OVERLAP: somebody else is at work, too');
  try {
    const value = Number(await redis.get(RESOURCE) ?? 0);
    // The pause stands for the work. Whatever takes a signal ends when the lock is lost.
    await sleep(workMs, undefined, { signal });
    // Let a store that can do so refuse a token that is smaller than the one it has.
    await redis.mset(RESOURCE, value + 1, TOKEN, token);
  } finally {
    await redis.decr(INSIDE);
  }
}

/** What each task does. */
async function run(clients, key, rounds, lease, workMs, cancel) {
  // Whoever uses the same string is the same owner: so it is random, and one for each task that locks.
  const owner = randomUUID();
  for (let finished = 0; finished < rounds;) {
    // Stands for a request that is given up, or a program that shuts down.
    const signal = cancel > 0 ? AbortSignal.timeout(Math.floor(Math.random() * cancel)) : undefined;
    try {
      await withLock({ clients, key, owner, lease, signal },
        (token, lost) => increment(clients.shared, token, lost, workMs));
      finished += 1;
      console.log(`round ${finished} of ${rounds} is done`);
    } catch (error) {
      if (error instanceof NotGranted) {
        console.log(`not granted within ${clients.wait} ms, trying again`);
      } else if (signal?.aborted && error === signal.reason) {
        finished += 1;
        console.log('cancelled');
      } else {
        throw error;
      }
    }
  }
}

async function main([url, key, ...numbers]) {
  const [rounds, lease = 3000, workMs = 5000, wait = 30000, tasks = 1, cancel = 0] = numbers.map(Number);
  const clients = new Clients(url, wait);
  const all = Array.from({ length: tasks }, () => run(clients, key, rounds, lease, workMs, cancel));
  const failures = (await Promise.allSettled(all)).filter(({ status }) => status === 'rejected');
  clients.disconnect();
  for (const { reason } of failures) {
    if (!(reason instanceof LockLost)) throw reason;
    console.error(`the lock was lost, the result of this round must not be trusted: ${reason.message}`);
  }
  return failures.length > 0 ? 1 : 0;
}

const args = process.argv.slice(2);
if (args.length < 3 || args.length > 8) {
  console.error('usage: worker.mjs URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS [TASKS [CANCEL_MS]]]]]');
  process.exitCode = 2;
} else {
  process.exitCode = await main(args);
}
