// SPDX-License-Identifier: MIT

// What locks do while nothing goes wrong, with each library.

import assert from 'node:assert/strict';
import diagnostics from 'node:diagnostics_channel';
import { getEventListeners } from 'node:events';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  BusyError, CancelledError, DeadlockError, LockError, Locks, LostError, MisuseError, TimedOutError, UnavailableError,
} from '@redis-lock/client';
import { RedisLockStore } from '@redis-lock/client/verrou';
import { busyFor, LIBRARIES, Server, until } from './support.mjs';

for (const [name, library] of Object.entries(LIBRARIES)) {
  describe(name, () => {
    let server, client, locks;

    beforeEach(async () => {
      server = await Server.start();
      client = await library.connect(server.port);
      locks = new Locks(client);
    });

    afterEach(async () => {
      await locks.close();
      library.end(client);
      await server.stop();
    });

    test('a try gets what is free, and null else; it is not re-entrant', async () => {
      const hold = await locks.tryAcquire('k');
      assert.match(hold.owner, new RegExp(`/${process.pid}/`));
      assert.equal(await locks.tryAcquire('k'), null);
      assert.equal(await server.holders('k'), 1);
      await hold.release();
      await hold.release();
      assert.equal(await server.admin.exists('k'), 0);
      assert.equal(hold.validFor, 0);
    });

    test('five are served in the order in which they came', async () => {
      const first = await locks.acquire('k');
      const served = [];
      const waits = [];
      for (let nr = 0; nr < 5; nr++) {
        waits.push(locks.request('k', () => served.push(nr)));
        await until(async () => (await server.waiters('k')) === nr + 1);
      }
      await first.release();
      await Promise.all(waits);
      assert.deepEqual(served, [0, 1, 2, 3, 4]);
      assert.ok(await server.isEmpty('k'));
    });

    test('a wait that is over leaves nothing', async () => {
      const hold = await locks.acquire('k');
      const began = performance.now();
      await assert.rejects(locks.acquire('k', { wait: 150 }), TimedOutError);
      assert.ok(performance.now() - began >= 149);
      assert.equal(await server.waiters('k'), 0);
      await hold.release();
      assert.ok(await server.isEmpty('k'));
    });

    test('a wait that is aborted leaves nothing', async () => {
      const timers = () => process.getActiveResourcesInfo().filter((what) => what === 'Timeout').length;
      const hold = await locks.acquire('k');
      const timersBefore = timers();
      const abort = new AbortController();
      const wait = locks.acquire('k', { signal: abort.signal });
      await until(async () => (await server.waiters('k')) === 1);
      abort.abort('enough');
      const error = await wait.catch((reason) => reason);
      assert.ok(error instanceof CancelledError);
      assert.deepEqual([error.name, error.cause, error.kind], ['AbortError', 'enough', 'cancelled']);
      await until(() => timers() <= timersBefore, 'the end of its timer', 1000);
      assert.equal(await server.waiters('k'), 0);
      const before = await server.calls('lock.acquire');
      await assert.rejects(locks.acquire('k', { signal: abort.signal }), CancelledError);
      assert.equal(await server.calls('lock.acquire'), before);
      await hold.release();
    });

    test('an abort that meets the grant leaves nothing, 200 times', async () => {
      const outcomes = { granted: 0, cancelled: 0 };
      for (let round = 0; round < 200; round++) {
        const hold = await locks.acquire('k', { lease: 60_000 });
        const abort = new AbortController();
        const wait = locks.acquire('k', { signal: abort.signal, lease: 60_000 });
        await until(async () => (await server.waiters('k')) === 1);
        const released = hold.release();
        // From before the release is sent until after the grant came.
        if (round % 4 === 1) await released;
        if (round % 4 === 2) await sleep(round % 3);
        if (round % 4 === 3) await Promise.race([wait.catch(() => undefined), sleep(2)]);
        abort.abort();
        const got = await wait.catch((error) => {
          assert.equal(error.kind, 'cancelled');
          return null;
        });
        outcomes[got === null ? 'cancelled' : 'granted'] += 1;
        await got?.release();
        await released;
        assert.ok(await server.isEmpty('k'), `round ${round}`);
      }
      assert.ok(outcomes.granted > 0 && outcomes.cancelled > 0, JSON.stringify(outcomes));
    });

    test('a thousand waits need two connections, and no polling', async () => {
      const hold = await locks.acquire('k');
      let served = 0;
      const waits = Array.from({ length: 1000 }, () => locks.request('k', () => (served += 1)));
      await until(async () => (await server.waiters('k')) === 1000);
      // The user's own, and two.
      assert.equal((await server.connections()).length, 3);
      await hold.release();
      await Promise.all(waits);
      assert.equal(served, 1000);
      assert.ok(await server.isEmpty('k'));
      // Asked for, confirmed, and asked again every three seconds.
      assert.ok((await server.calls('lock.acquire')) < 8000);
    });

    test('it is kept for three leases, and no longer than maxHold', async () => {
      const hold = await locks.acquire('k', { lease: 300, keep: true });
      const other = await locks.acquire('m', { lease: 300, keep: true, maxHold: 700 });
      await until(async () => (await server.calls('lock.renew')) >= 14);
      assert.equal(hold.signal.aborted, false);
      assert.ok(hold.validFor > 0);
      assert.ok(await server.holders('k'));
      await until(() => other.signal.aborted, 'the end of maxHold');
      await until(() => server.isEmpty('m'));
      await hold.release();
    });

    test('it is kept while the event loop is busy for two leases', async () => {
      const hold = await locks.acquire('k', { lease: 400, keep: true });
      busyFor(900);
      assert.equal(await server.holders('k'), 1);
      await sleep(200);
      assert.equal(hold.signal.aborted, false);
      await hold.release();
    });

    test('a lease that is over is a loss, told once', async () => {
      const hold = await locks.acquire('k', { lease: 200 });
      let told = 0;
      hold.signal.addEventListener('abort', () => (told += 1));
      await until(() => hold.signal.aborted);
      assert.ok(hold.signal.reason instanceof LostError);
      await assert.rejects(hold.release(), LostError);
      await assert.rejects(hold.release(), LostError);
      assert.equal(told, 1);
    });

    test('an extension is the same hold, and counts for the own clock', async () => {
      const hold = await locks.acquire('k', { lease: 300 });
      await hold.extend(5000);
      assert.ok(hold.validFor > 4000);
      assert.ok((await server.ttl('k')) > 4000);
      await sleep(400);
      assert.equal(hold.signal.aborted, false);
      await hold.release();
      const kept = await locks.acquire('k', { lease: 300, keep: true });
      await kept.extend(5000);
      await sleep(250);
      assert.ok((await server.ttl('k')) > 4000, 'a renewal sets the lease that was last said');
      await kept.release();
    });

    test('the body is given the hold; its own error comes out', async () => {
      assert.equal(await locks.request('k', (hold) => (assert.equal(hold.name, 'k'), 7)), 7);
      const mine = new Error('mine');
      const lost = async (error) => {
        await locks.request('k', async (hold) => {
          await server.admin.call('LOCK.BREAK', 'k');
          await assert.rejects(hold.guard('SET', 'v', 1), LostError);
          assert.equal(hold.signal.aborted, true);
          if (error) throw error;
        });
      };
      await assert.rejects(lost(mine), mine);
      await assert.rejects(lost(), LostError);
      await assert.rejects(locks.request('k', () => Promise.reject(mine)), mine);
      assert.ok(await server.isEmpty('k'));
    });

    test('with ifAvailable, the callback gets null', async () => {
      const hold = await locks.acquire('k');
      assert.equal(await locks.request('k', { ifAvailable: true }, (got) => got), null);
      await hold.release();
      assert.equal(await locks.request('k', { ifAvailable: true }, (got) => got.name), 'k');
    });

    test('a scope gives it back; so does using, with a signal', async () => {
      const hold = await locks.acquire('k');
      await hold[Symbol.asyncDispose]();
      assert.ok(await server.isEmpty('k'));
      const lost = await locks.acquire('k', { lease: 60_000 });
      await server.admin.call('LOCK.BREAK', 'k');
      await lost[Symbol.asyncDispose]();
      assert.equal(lost.signal.aborted, true);
      const kept = await locks.using(['k'], 300, async (signal) => {
        await sleep(700);
        return [signal.aborted, await server.holders('k')];
      });
      assert.deepEqual(kept, [false, 1]);
      await assert.rejects(locks.using(['a', 'b'], 300, async () => 1), MisuseError);
    });

    test('many waits may share a signal', async () => {
      const warnings = [];
      const warn = (warning) => warnings.push(String(warning));
      process.on('warning', warn);
      try {
        const hold = await locks.acquire('k');
        const abort = new AbortController();
        const waits = Array.from({ length: 30 }, () => locks.acquire('k', { signal: abort.signal }).catch(({ kind }) => kind));
        await until(async () => (await server.waiters('k')) === 30);
        abort.abort();
        assert.deepEqual(new Set(await Promise.all(waits)), new Set(['cancelled']));
        assert.equal(await server.waiters('k'), 0);
        await hold.release();
        const { signal } = new AbortController();
        await locks.request('k', { signal }, () => undefined);
        assert.deepEqual(getEventListeners(signal, 'abort'), []);
      } finally {
        process.off('warning', warn);
      }
      assert.deepEqual(warnings, []);
    });

    test('what the user has set for the own client does not matter', async () => {
      let strange = await library.connect(server.port, library.strange);
      const others = new Locks(strange);
      try {
        assert.ok((await others.request('k', { fence: true }, ({ token }) => token)) > 0);
        const hold = await others.acquire('k', { fence: true });
        assert.equal(await server.holders('k'), 1);
        const wait = others.acquire('k', { fence: true, label: 'waits' });
        await until(async () => (await server.waiters('k')) === 1);
        const { held, pending } = await others.query();
        assert.deepEqual([held[0].owner, pending.length], [hold.owner, 1]);
        await hold.release();
        assert.ok((await wait).token > hold.token);
        await (await wait).release();
        await Promise.all(Array.from({ length: 30 }, () => others.request('k', () => undefined)));
        library.end(strange);
        strange = undefined;
        // The client that is like others', and two.
        await until(async () => (await server.connections()).length === 3);
        const before = await server.connections();
        server.process.kill('SIGSTOP');
        setTimeout(() => server.process.kill('SIGCONT'), 100);
        await others.request('k', () => undefined);
        assert.deepEqual(await server.connections(), before, 'no call was given up so early');
      } finally {
        server.process.kill('SIGCONT');
        await others.close();
        if (strange !== undefined) library.end(strange);
      }
    });

    test('tokens grow', async () => {
      let last = 0;
      for (let round = 0; round < 5; round++) {
        const token = await locks.request('k', { fence: true }, (hold) => hold.token);
        assert.ok(token > last);
        last = token;
      }
      assert.equal(await locks.request('k', (hold) => hold.token), undefined);
    });

    test('readers share, writers do not, permits are counted', async () => {
      const [one, two] = [await locks.acquire('k', { mode: 'shared' }), await locks.acquire('k', { mode: 'shared' })];
      assert.equal(await locks.tryAcquire('k'), null);
      const writer = locks.acquire('k');
      await until(async () => (await server.waiters('k')) === 1);
      assert.equal(await locks.tryAcquire('k', { mode: 'shared' }), null, 'who comes later waits behind the writer');
      const { held, pending } = await locks.query('k');
      assert.deepEqual(held.map(({ mode }) => mode), ['shared', 'shared']);
      assert.deepEqual(pending.map(({ name: key, mode }) => [key, mode]), [['k', 'exclusive']]);
      await one.release();
      await two.release();
      await (await writer).release();
      const permits = [await locks.tryAcquire('s', { limit: 2 }), await locks.tryAcquire('s', { limit: 2 })];
      assert.equal(await locks.tryAcquire('s', { limit: 2 }), null);
      const all = await locks.query();
      assert.deepEqual(all.held.map(({ owner }) => owner).sort(), permits.map(({ owner }) => owner).sort());
      const many = await Promise.all(Array.from({ length: 200 }, (_, nr) => locks.acquire(`many:${nr}`)));
      assert.equal((await locks.query()).held.length, 202);
      for (const permit of [...permits, ...many]) await permit.release();
      assert.deepEqual(await locks.query('s'), { held: [], pending: [] });
    });

    test('a deadlock is an error, with the cycle', async () => {
      const x = await locks.acquire('a', { owner: 'x' });
      const y = await locks.acquire('b', { owner: 'y' });
      const wait = locks.acquire('b', { owner: 'x' });
      await until(async () => (await server.waiters('b')) === 1);
      await assert.rejects(locks.acquire('a', { owner: 'y' }), (error) => {
        assert.ok(error instanceof DeadlockError);
        assert.match(error.message, /^DEADLOCK .*b/);
        return true;
      });
      await y.release();
      await (await wait).release();
      await x.release();
      assert.ok((await server.isEmpty('a')) && (await server.isEmpty('b')));
    });

    test('each kind of error', async () => {
      const kinds = async (call) => {
        const error = await call.catch((reason) => reason);
        assert.ok(error instanceof LockError && error instanceof Error, String(error));
        return error.kind;
      };
      const hold = await locks.acquire('k');
      assert.equal(await kinds(locks.acquire('k', { wait: 0 })), 'busy');
      await assert.rejects(locks.acquire('k', { wait: 0 }), BusyError);
      assert.equal(await kinds(locks.acquire('k', { wait: 20 })), 'timed out');
      assert.equal(await kinds(locks.acquire('k', { signal: AbortSignal.timeout(20) })), 'cancelled');
      await server.admin.set('string', 'x');
      assert.equal(await kinds(locks.acquire('string')), 'misuse');
      await server.admin.config('SET', 'lock.max-waiters', 1);
      const wait = locks.acquire('k');
      await until(async () => (await server.waiters('k')) === 1);
      const full = await locks.acquire('k').catch((reason) => reason);
      assert.ok(full instanceof UnavailableError);
      assert.match(full.message, /too many waiters/);
      await server.admin.call('LOCK.BREAK', 'k');
      await (await wait).release();
      assert.equal(await kinds(hold.release()), 'lost');
    });

    test('who may not connect is told what the server said, and a database is the own client\'s', async () => {
      const second = await library.connect(server.port, { db: 2, database: 2 });
      const others = new Locks(second);
      try {
        await others.acquire('k', { lease: 60_000 });
        assert.equal(await server.admin.exists('k'), 0);
        await server.admin.select(2);
        assert.equal(await server.holders('k'), 1);
        await server.admin.config('SET', 'requirepass', 'secret');
        const began = performance.now();
        await assert.rejects(locks.acquire('k'), { kind: 'unavailable', message: /NOAUTH/ });
        await assert.rejects(locks.tryAcquire('k'), { kind: 'unavailable', message: /NOAUTH/ });
        assert.ok(performance.now() - began < 4000, 'at once');
      } finally {
        await others.close();
        library.end(second);
      }
    });

    test('what is wrong changes nothing', async () => {
      const wrong = [
        { lease: 0 }, { lease: -1 }, { lease: NaN }, { lease: '5' }, { wait: -1 }, { limit: 1.5 }, { limit: 0 }, { mode: 'both' },
        { maxHold: 0 }, { steal: true }, { owner: '*' }, { signal: {} }, { signal: 'x' },
        { signal: { aborted: false, addEventListener() {}, removeEventListener() {} } },
      ];
      for (const options of wrong) await assert.rejects(locks.acquire('k', options), MisuseError, JSON.stringify(options));
      await assert.rejects(locks.acquire(undefined), MisuseError);
      await assert.rejects(locks.attach('k', '*'), MisuseError);
      await assert.rejects(locks.request('k'), MisuseError);
      assert.equal(await server.calls('lock.acquire'), 0);
      const hold = await locks.acquire('k', { lease: 60_000 });
      for (const lease of [0, -1, NaN, '5']) await assert.rejects(hold.extend(lease), MisuseError, String(lease));
      assert.ok((await server.ttl('k')) > 50_000 && hold.validFor > 50_000);
      await hold.release();
      for (const client of [undefined, {}, { duplicate() {}, isCluster: true, call() {} }]) {
        assert.throws(() => new Locks(client), MisuseError);
      }
      for (const patience of [0, NaN, Infinity]) assert.throws(() => new Locks(client, { patience }), MisuseError);
    });

    test('a hold is handed to another session', async () => {
      const hold = await locks.acquire('k', { lease: 60_000 });
      const others = new Locks(client);
      try {
        const theirs = await others.attach('k', hold.owner, { lease: 60_000 });
        await theirs.extend(50_000);
        await theirs.release();
        assert.ok(await server.isEmpty('k'));
        await assert.rejects(others.attach('k', hold.owner, { lease: 60_000 }), LostError);
        await assert.rejects(hold.release(), LostError);
        const kept = await locks.acquire('k');
        const taken = await others.attach('k', kept.owner, { keep: true, maxHold: 30_000 });
        await locks.close();
        await until(() => kept.signal.aborted);
        assert.equal(await server.holders('k'), 1, 'it is bound to its new session');
        await taken.release();
      } finally {
        await others.close();
      }
    });

    test('what is kept is attached as such, or not at all', async () => {
      const kept = await locks.acquire('k');
      const others = new Locks(client);
      try {
        await assert.rejects(others.attach('k', kept.owner, { lease: 60_000 }), MisuseError);
        assert.ok((await server.ttl('k')) <= 30_000, 'it changed nothing');
        await (await others.attach('k', kept.owner)).release();
        assert.ok(await server.isEmpty('k'));
        const [mine, theirs] = [new RedisLockStore(locks, ''), new RedisLockStore(others, '')];
        assert.ok(await mine.save('k', 'o', null));
        await theirs.forceDelete('k');
        assert.ok(await server.isEmpty('k'));
      } finally {
        await others.close();
      }
    });

    test('who has handed it over has nothing to do with it any more', async () => {
      const heard = [];
      const listener = ({ event, outcome }) => event === 'held' && heard.push(outcome);
      const others = new Locks(client);
      diagnostics.subscribe('redis-lock', listener);
      try {
        const hold = await locks.acquire('k', { lease: 300, keep: true });
        const owner = await hold.handOver();
        assert.equal(owner, hold.owner);
        assert.deepEqual([hold.validFor, hold.signal.aborted, heard], [0, false, ['released']]);
        const theirs = await others.attach('k', owner, { lease: 60_000, keep: true });
        await sleep(400);
        await hold.release();
        await hold[Symbol.asyncDispose]();
        await assert.rejects(hold.extend(), LostError);
        assert.ok((await server.ttl('k')) > 50_000);
        assert.deepEqual([theirs.signal.aborted, hold.signal.aborted, heard], [false, false, ['released']]);
        await theirs.release();
      } finally {
        diagnostics.unsubscribe('redis-lock', listener);
        await others.close();
      }
    });

    test('what a guarded command says is no matter of the connection', async () => {
      const kept = await locks.acquire('other');
      const before = await server.connections();
      const hold = await locks.acquire('k', { lease: 60_000 });
      for (const text of ['MY_CODE hi', 'boom happened', 'WRONG_STATE no money', 'LOADING data', 'READONLY text']) {
        const words = ['EVAL', 'return redis.error_reply(ARGV[1])', '0', text];
        await assert.rejects(hold.guard(...words), { kind: 'unavailable', message: new RegExp(text) });
      }
      await sleep(100);
      assert.deepEqual(await server.connections(), before);
      assert.equal(kept.signal.aborted, false);
      await hold.release();
      await kept.release();
    });

    test('a server with too many clients is one that is away', async () => {
      await server.admin.config('SET', 'maxclients', 1);
      await assert.rejects(locks.tryAcquire('k'), { kind: 'unavailable', message: /max number of clients/ });
      const waits = [locks.acquire('k'), locks.acquire('k', { ownConnection: true })].map(async (wait) => (await wait).release());
      await sleep(300);
      await server.admin.config('SET', 'maxclients', 10_000);
      await Promise.all(waits);
    });

    test('events are told by label', async () => {
      const heard = [];
      const listener = ({ label, event, outcome, ms }) => heard.push([label, event, outcome, ms >= 0]);
      diagnostics.subscribe('redis-lock', listener);
      try {
        const hold = await locks.acquire('k:1', { label: 'orders' });
        assert.equal(await locks.tryAcquire('k:1', { label: 'orders' }), null);
        await hold.release();
        const lost = await locks.acquire('k:1', { lease: 60_000 });
        await server.admin.call('LOCK.BREAK', 'k:1');
        await assert.rejects(lost.release(), LostError);
        await assert.rejects(lost.release(), LostError);
      } finally {
        diagnostics.unsubscribe('redis-lock', listener);
      }
      assert.deepEqual(heard, [
        ['orders', 'waited', 'granted', true], ['orders', 'waited', 'busy', true], ['orders', 'held', 'released', true],
        ['k:1', 'waited', 'granted', true], ['k:1', 'held', 'lost', true],
      ]);
    });

    test('a renewal that meets the release is no loss', async () => {
      const hold = await locks.acquire('k');
      const [released, extended] = await Promise.allSettled([hold.release(), hold.extend()]);
      assert.deepEqual([released.status, extended.reason?.kind, hold.signal.aborted], ['fulfilled', 'lost', false]);
      const outcomes = [];
      const listener = ({ event, outcome }) => event === 'held' && outcomes.push(outcome);
      diagnostics.subscribe('redis-lock', listener);
      try {
        await Promise.all(Array.from({ length: 20 }, async (_, lane) => {
          for (let round = 0; round < 25; round++) {
            // A renewal is due every 10 ms.
            const work = locks.request(`k${lane}`, { lease: 30, keep: true }, () => sleep(10));
            await work.catch((error) => assert.equal(error.kind, 'lost'));
          }
        }));
      } finally {
        diagnostics.unsubscribe('redis-lock', listener);
      }
      assert.equal(outcomes.length, 500);
      // The lease is so short that a pause of this machine may lose a few.
      const lost = outcomes.filter((outcome) => outcome === 'lost').length;
      assert.ok(lost < 25, `${lost} lost`);
    });
  });
}
