// SPDX-License-Identifier: MIT

// Locks without faults, with each library.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { getEventListeners, once } from 'node:events';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  BusyError, CancelledError, DeadlockError, LockError, LockManager, Locks, LostError, MisuseError, Redlock, TimedOutError,
} from 'redis-lock-client';
import { RedisLockStore } from 'redis-lock-client/verrou';
import { fields, LIBRARIES, Server, until } from './support.mjs';

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc');

for (const [name, library] of Object.entries(LIBRARIES)) {
  describe(name, () => {
    let server, client, locks, heard;
    const listener = ({ label, event, outcome, ms }) => heard.push([label, event, outcome, ms >= 0]);

    beforeEach(async () => {
      server = await Server.start();
      client = await library.connect(server.port);
      heard = [];
      locks = new Locks(client, { listener });
    });

    afterEach(async () => {
      await locks.close();
      library.end(client);
      await server.stop();
    });

    test('a try gets a free lock, and null otherwise', async () => {
      const hold = await locks.lock('k').tryAcquire();
      assert.match(hold.owner, new RegExp(`/${process.pid}/`));
      assert.equal(await locks.lock('k').tryAcquire(), null);
      assert.equal(await server.holders('k'), 1);
      assert.ok(hold.validFor > 0 && hold.validFor <= 3000);
      await hold.release();
      await hold.release();
      assert.equal(await server.admin.exists('k'), 0);
      assert.deepEqual([hold.validFor, hold.signal.aborted], [0, false]);
    });

    test('waiters are served in order', async () => {
      const first = await locks.lock('k').acquire();
      const served = [];
      const waits = [];
      for (let nr = 0; nr < 5; nr++) {
        waits.push(locks.lock('k').run(() => served.push(nr)));
        await until(async () => (await server.waiters('k')) === nr + 1);
      }
      await first.release();
      await Promise.all(waits);
      assert.deepEqual(served, [0, 1, 2, 3, 4]);
      assert.ok(await server.isEmpty('k'));
    });

    test('a timed out wait leaves nothing', async () => {
      const hold = await locks.lock('k').acquire();
      const began = performance.now();
      await assert.rejects(locks.lock('k', { wait: 150 }).acquire(), TimedOutError);
      await assert.rejects(locks.lock('k').acquire({ wait: 0 }), BusyError);
      assert.ok(performance.now() - began >= 149);
      assert.equal(await server.waiters('k'), 0);
      await hold.release();
      assert.ok(await server.isEmpty('k'));
    });

    test('a try never ends early', async () => {
      const hold = await locks.lock('k').acquire();
      for (const wait of [1, 30, 200]) {
        for (let round = 0; round < 10; round++) {
          const began = performance.now();
          assert.equal(await locks.lock('k').tryAcquire({ wait }), null);
          const took = performance.now() - began;
          assert.ok(took >= wait, `${took}`);
          assert.equal(await server.waiters('k'), 0);
        }
      }
      await hold.release();
    });

    test('a try without a wait is one call and no place', async () => {
      const hold = await locks.lock('k').acquire();
      const wait = locks.lock('k').acquire();
      await until(async () => (await server.waiters('k')) === 1);
      // Another place would be refused.
      await server.admin.config('SET', 'lock.max-waiters', 1);
      const before = await server.calls('lock.acquire');
      assert.equal(await locks.lock('k').tryAcquire(), null);
      await assert.rejects(locks.lock('k').acquire({ wait: 0 }), BusyError);
      assert.equal(await server.calls('lock.acquire'), before + 2);
      await hold.release();
      await (await wait).release();
    });

    test('an aborted wait leaves nothing', async () => {
      const hold = await locks.lock('k').acquire();
      const abort = new AbortController();
      const wait = locks.lock('k').acquire({ signal: abort.signal });
      await until(async () => (await server.waiters('k')) === 1);
      abort.abort('enough');
      const error = await wait.catch((reason) => reason);
      assert.ok(error instanceof CancelledError);
      assert.deepEqual([error.name, error.cause, error.kind], ['AbortError', 'enough', 'cancelled']);
      await until(async () => (await server.waiters('k')) === 0, 'the cancellation');
      assert.deepEqual(getEventListeners(abort.signal, 'abort'), []);
      const before = await server.calls('lock.acquire');
      await assert.rejects(locks.lock('k').acquire({ signal: abort.signal }), CancelledError);
      assert.equal(await server.calls('lock.acquire'), before);
      await hold.release();
    });

    test('an abort during the grant leaves nothing', async () => {
      const outcomes = { granted: 0, cancelled: 0 };
      for (let round = 0; round < 100; round++) {
        const hold = await locks.lock('k').acquire();
        const abort = new AbortController();
        const wait = locks.lock('k').acquire({ signal: abort.signal });
        await until(async () => (await server.waiters('k')) === 1);
        const released = hold.release();
        if (round % 4 === 1) await released;
        if (round % 4 === 2) await sleep(round % 3);
        if (round % 4 === 3) await Promise.race([wait.catch(() => undefined), sleep(2)]);
        abort.abort();
        const got = await wait.catch(({ kind }) => void assert.equal(kind, 'cancelled'));
        outcomes[got === undefined ? 'cancelled' : 'granted'] += 1;
        await got?.release();
        await released;
        await until(async () => server.isEmpty('k'), `an empty lock in round ${round}`);
      }
      assert.ok(outcomes.granted > 0 && outcomes.cancelled > 0, JSON.stringify(outcomes));
    });

    test('many waits share a signal', async () => {
      const warnings = [];
      const warn = (warning) => warnings.push(String(warning));
      process.on('warning', warn);
      try {
        const hold = await locks.lock('k').acquire();
        const abort = new AbortController();
        const acquire = () => locks.lock('k').acquire({ signal: abort.signal }).catch(({ kind }) => kind);
        const waits = Array.from({ length: 30 }, acquire);
        await until(async () => (await server.waiters('k')) === 30);
        abort.abort();
        assert.deepEqual(new Set(await Promise.all(waits)), new Set(['cancelled']));
        await until(async () => (await server.waiters('k')) === 0, 'the cancellation');
        await hold.release();
      } finally {
        process.off('warning', warn);
      }
      assert.deepEqual(warnings, []);
    });

    test('a thousand waits need two connections', async () => {
      const hold = await locks.lock('k').acquire();
      let served = 0;
      const waits = Array.from({ length: 1000 }, () => locks.lock('k').run(() => (served += 1)));
      await until(async () => (await server.waiters('k')) === 1000);
      // The user's connection, the reader's and that of calls.
      assert.equal((await server.connections()).length, 3);
      await hold.release();
      await Promise.all(waits);
      assert.equal(served, 1000);
      assert.equal(await server.calls('lock.acquire'), 1001);
      assert.ok(await server.isEmpty('k'));
    });

    test('impatient waits make no connections', async () => {
      const hold = await locks.lock('k').acquire();
      const before = await server.connections();
      for (let round = 0; round < 10; round++) {
        const waits = Array.from({ length: 20 }, () => locks.lock('k', { wait: 3 }).tryAcquire({ wait: 3 }));
        assert.deepEqual(new Set(await Promise.all(waits)), new Set([null]));
      }
      assert.deepEqual([await server.connections(), await server.waiters('k')], [before, 0]);
      await hold.release();
    });

    test('a lease that ends is a loss', async () => {
      const hold = await locks.lock('k', { lease: 200 }).acquire();
      let losses = 0;
      hold.signal.addEventListener('abort', () => (losses += 1));
      assert.equal(hold.signal.aborted, false);
      await until(() => hold.signal.aborted);
      assert.ok(hold.signal.reason instanceof LostError && hold.isLost);
      await assert.rejects(hold.release(), LostError);
      await assert.rejects(hold.release(), LostError);
      assert.equal(losses, 1);
    });

    test('an extension sets the lease', async () => {
      const hold = await locks.lock('k', { lease: 300 }).acquire();
      assert.equal(hold.signal.aborted, false);
      await hold.extend(60_000);
      assert.ok(hold.validFor > 50_000 && (await server.ttl('k')) > 50_000);
      await sleep(400);
      assert.equal(hold.signal.aborted, false);
      await hold.release();
      const renewed = await locks.lock('k').acquire();
      await renewed.extend();
      await assert.rejects(renewed.extend(1000), MisuseError);
      await server.admin.call('LOCK.BREAK', 'k');
      await assert.rejects(renewed.extend(), LostError);
    });

    test('the error of a callback is passed on', async () => {
      assert.equal(await locks.lock('k').run((hold) => (assert.equal(hold.key, 'k'), 7)), 7);
      const mine = new Error('mine');
      const lose = (error) => locks.lock('k').run(async (hold) => {
        await server.admin.call('LOCK.BREAK', 'k');
        await assert.rejects(hold.guard('SET', 'v', '1'), LostError);
        if (error) throw error;
      });
      await assert.rejects(lose(mine), mine);
      await assert.rejects(lose(), LostError);
      await assert.rejects(locks.lock('k').run(() => Promise.reject(mine)), mine);
      assert.ok(await server.isEmpty('k'));
    });

    test('disposal releases exactly its hold', async () => {
      const hold = await locks.lock('k').acquire();
      await hold[Symbol.asyncDispose]();
      const next = await locks.lock('k').acquire();
      await hold[Symbol.asyncDispose]();
      assert.equal(await server.holders('k'), 1);
      await server.admin.call('LOCK.BREAK', 'k');
      await until(() => next.isLost);
      const warned = once(process, 'warning');
      await next[Symbol.asyncDispose]();
      assert.match((await warned)[0].message, /LostError/);
    });

    test('nested scopes detect their deadlock', async () => {
      const [k, l] = [locks.lock('k'), locks.lock('l')];
      await k.run(async ({ owner }) => {
        await assert.rejects(k.run(() => undefined), DeadlockError);
        assert.equal(await server.holders('k'), 1);
        await l.run((inner) => assert.equal(inner.owner, owner));
      });
      let ready = 0;
      const cross = (outer, inner) => outer.run(async () => {
        ready += 1;
        await until(() => ready === 2);
        await inner.run(() => undefined);
      }).then(() => 'done', ({ kind }) => kind);
      assert.deepEqual((await Promise.all([cross(k, l), cross(l, k)])).sort(), ['deadlock', 'done']);
    });

    test('concurrent branches of a scope wait', async () => {
      const order = [];
      await locks.lock('k').run(async () => {
        await Promise.all([1, 2, 3].map((nr) => locks.lock('l').run(() => order.push(nr))));
        const hold = await locks.lock('m').acquire();
        const wait = locks.lock('m').run(() => order.push(4));
        await until(async () => (await server.waiters('m')) === 1);
        await hold.release();
        await wait;
      });
      assert.deepEqual(order.sort(), [1, 2, 3, 4]);
    });

    test('a reentrant owner acquires again', async () => {
      const lock = locks.lock('k', { owner: 'one', reentrant: true });
      const [first, second] = [await lock.acquire(), await lock.acquire()];
      await assert.rejects(locks.lock('k', { owner: 'one' }).acquire(), DeadlockError);
      await second.release();
      assert.equal(await server.holders('k'), 1);
      await first.release();
      assert.ok(await server.isEmpty('k'));
    });

    test('several locks are granted together', async () => {
      const one = await locks.lock('b').acquire();
      const wait = locks.lock(['a', 'b'], { fence: true }).acquire();
      await until(async () => (await server.waiters('b')) === 1);
      assert.equal(await server.holders('a'), 0);
      await one.release();
      const both = await wait;
      assert.equal(both.token.length, 2);
      assert.equal(await locks.lock(['b', 'c']).tryAcquire(), null);
      await server.admin.call('LOCK.BREAK', 'a');
      await until(() => both.isLost);
      await until(async () => server.isEmpty('b'), 'the release of the other lock');
    });

    test('tokens grow', async () => {
      let last = 0;
      for (let round = 0; round < 5; round++) {
        const token = await locks.lock('k', { fence: true }).run((hold) => hold.token);
        assert.ok(token > last);
        last = token;
      }
      assert.equal(await locks.lock('k').run((hold) => hold.token), undefined);
    });

    test('readers share and permits are counted', async () => {
      const shared = locks.lock('k', { mode: 'shared' });
      const [one, two] = [await shared.acquire(), await shared.acquire()];
      const writer = locks.lock('k').acquire();
      await until(async () => (await server.waiters('k')) === 1);
      assert.equal(await shared.tryAcquire(), null);
      const manager = new LockManager(locks);
      const { held, pending } = await manager.query('k');
      assert.deepEqual(held.map(({ mode }) => mode), ['shared', 'shared']);
      assert.deepEqual(pending.map(({ name: key, mode }) => [key, mode]), [['k', 'exclusive']]);
      await Promise.all([one.release(), two.release()]);
      await (await writer).release();
      const permit = locks.lock('s', { limit: 2 });
      const permits = [await permit.tryAcquire(), await permit.tryAcquire()];
      assert.equal(await permit.tryAcquire(), null);
      assert.equal((await manager.query()).held.length, 2);
      for (const each of permits) await each.release();
      assert.deepEqual(await manager.query('s'), { held: [], pending: [] });
    });

    test('Web Locks options work', async () => {
      const manager = new LockManager(locks);
      const hold = await locks.lock('k').acquire();
      assert.equal(await manager.request('k', { ifAvailable: true }, (got) => got), null);
      const stolen = await manager.request('k', { steal: true }, async (got) => {
        await until(() => hold.isLost);
        return got.isLost;
      });
      assert.equal(stolen, false);
      await assert.rejects(manager.request('k', { signal: AbortSignal.abort() }, () => 1), CancelledError);
      assert.equal(await manager.request('k', { ifAvailable: true }, (got) => got.key), 'k');
      await assert.rejects(manager.request('k'), MisuseError);
    });

    test('Web Locks requests share and are aborted', async () => {
      const manager = new LockManager(locks);
      let inside = 0;
      const read = () => manager.request('k', { mode: 'shared' }, () => {
        inside += 1;
        return until(() => inside === 2, 'the other reader');
      });
      await Promise.all([read(), read()]);
      const hold = await locks.lock('k', { mode: 'shared' }).acquire();
      const abort = new AbortController();
      const options = { mode: 'exclusive', signal: abort.signal };
      const wait = manager.request('k', options, () => 'granted').catch((error) => [error.name, error.cause]);
      await until(async () => (await server.waiters('k')) === 1);
      abort.abort('enough');
      await until(async () => (await server.waiters('k')) === 0, 'the cancellation');
      assert.deepEqual(await wait, ['AbortError', 'enough']);
      await hold.release();
    });

    test('the shape of node-redlock works', async () => {
      const redlock = new Redlock(locks, { wait: 50 });
      assert.equal(await redlock.using(['a', 'b'], 300, async (signal) => {
        assert.equal(await server.holders('b'), 1);
        return signal.aborted;
      }), false);
      const lock = await redlock.acquire(['a'], 60_000);
      await assert.rejects(redlock.acquire(['a'], 1000), TimedOutError);
      assert.equal(await lock.extend(90_000), lock);
      await lock.release();
      assert.ok(await server.isEmpty('a'));
    });

    test('each kind of error has its cause', async () => {
      const kind = async (call) => {
        const error = await call.catch((reason) => reason);
        assert.ok(error instanceof LockError && error instanceof Error, String(error));
        return error.kind;
      };
      const hold = await locks.lock('k').acquire();
      assert.equal(await kind(locks.lock('k').acquire({ signal: AbortSignal.timeout(20) })), 'cancelled');
      await server.admin.set('string', 'x');
      assert.equal(await kind(locks.lock('string').acquire()), 'misuse');
      await server.admin.config('SET', 'lock.max-waiters', 1);
      const wait = locks.lock('k').acquire();
      await until(async () => (await server.waiters('k')) === 1);
      assert.equal(await kind(locks.lock('k').acquire()), 'unavailable');
      await server.admin.call('LOCK.BREAK', 'k');
      await (await wait).release();
      assert.equal(await kind(hold.release()), 'lost');
      await server.admin.config('SET', 'requirepass', 'secret');
      const others = new Locks(client);
      assert.equal(await kind(others.lock('k').acquire()), 'misuse');
      await others.close();
    });

    test('wrong options are refused at construction', async () => {
      const wrong = [
        { lease: 0 }, { lease: -1 }, { lease: NaN }, { lease: '5' }, { lease: Infinity }, { wait: -1 }, { limit: 1.5 },
        { limit: 0 }, { mode: 'both' }, { maxHold: 0 }, { lease: 1, maxHold: 1 }, { steal: true },
        { owner: '' }, { owner: '\ud800' },
      ];
      for (const options of wrong) assert.throws(() => locks.lock('k', options), MisuseError, JSON.stringify(options));
      for (const key of [undefined, '', 'a\ud800', [], ['a', '']]) assert.throws(() => locks.lock(key), MisuseError);
      assert.throws(() => locks.lock(['a', 'b'], { limit: 2 }), MisuseError);
      for (const wait of [-1, NaN, '1']) await assert.rejects(locks.lock('k').acquire({ wait }), MisuseError);
      await assert.rejects(locks.lock('k').acquire({ signal: {} }), MisuseError);
      await assert.rejects(locks.lock('k').acquire({ ifAvailable: true }), MisuseError);
      await assert.rejects(locks.lock('k').tryAcquire({ timeout: 1 }), MisuseError);
      await assert.rejects(locks.lock('k').attach('no ticket'), MisuseError);
      assert.equal(await server.calls('lock.acquire'), 0);
      for (const other of [undefined, {}, { duplicate() {} }]) assert.throws(() => new Locks(other), MisuseError);
      for (const options of [{ patience: 0 }, { ttl: NaN }, { grace: -1 }, { ttl: 10, grace: 20 }]) {
        assert.throws(() => new Locks(client, options), MisuseError);
      }
    });

    test('a key may be bytes', async () => {
      const key = Buffer.from([0xff, 0x00, 0x80]);
      const hold = await locks.lock(key).acquire();
      assert.equal(await locks.lock(key).tryAcquire(), null);
      assert.equal((await server.admin.keysBuffer('*'))[0].compare(key), 0);
      await hold.release();
    });

    test('a hold is handed to another session', async () => {
      const others = new Locks(client);
      try {
        for (const options of [{}, { lease: 60_000 }]) {
          const hold = await locks.lock('k', options).acquire();
          const ticket = hold.handOver();
          const theirs = await others.lock('k', options).attach(ticket);
          await until(() => theirs.validFor > 0);
          await hold.release();
          assert.deepEqual([await server.holders('k'), hold.signal.aborted], [1, false]);
          await theirs.release();
          assert.ok(await server.isEmpty('k'));
          await assert.rejects(others.lock('k', options).attach(ticket), LostError);
        }
      } finally {
        await others.close();
      }
    });

    test('a query names holders, and force release ends them', async () => {
      const lock = locks.lock('k');
      assert.equal(await lock.query(), null);
      const hold = await lock.acquire();
      const { mode, holders } = await lock.query();
      assert.deepEqual([mode, holders[0].owner, holders[0].ephemeral], ['exclusive', hold.owner, 1]);
      assert.deepEqual([await lock.forceRelease(), await lock.forceRelease()], [true, false]);
      await until(() => hold.signal.aborted);
    });

    test('strange options of the client do not matter', async () => {
      const strange = await library.connect(server.port, library.strange);
      const others = new Locks(strange);
      try {
        assert.ok((await others.lock('k', { fence: true }).run(({ token }) => token)) > 0);
        const hold = await others.lock('k').acquire();
        assert.equal(await server.holders('k'), 1);
        const wait = others.lock('k').acquire();
        await until(async () => (await server.waiters('k')) === 1);
        await hold.release();
        await (await wait).release();
        await Promise.all(Array.from({ length: 30 }, () => others.lock('k').run(() => undefined)));
      } finally {
        await others.close();
        library.end(strange);
      }
    });

    test('the listener gets waits and holds by label', async () => {
      const lock = locks.lock('k', { label: 'orders' });
      const hold = await lock.acquire();
      assert.equal(await lock.tryAcquire(), null);
      await hold.release();
      const lost = await locks.lock('k').acquire();
      await lock.forceRelease();
      await assert.rejects(lost.release(), LostError);
      assert.deepEqual(heard, [
        ['orders', 'waited', 'granted', true], ['orders', 'waited', 'busy', true], ['orders', 'held', 'released', true],
        [undefined, 'waited', 'granted', true], [undefined, 'held', 'lost', true],
      ]);
    });

    test('a listener that throws disturbs nothing', async () => {
      const others = new Locks(client, { listener: () => { throw new Error('mine'); } });
      const warned = once(process, 'warning');
      try {
        assert.equal(await others.lock('k').run(() => 5), 5);
        assert.match((await warned)[0].message, /the listener of locks failed: Error: mine/);
      } finally {
        await others.close();
      }
    });

    test('an asynchronous listener may use locks and fail', async () => {
      const warnings = [];
      const warn = ({ message }) => warnings.push(message);
      process.on('warning', warn);
      const reasons = [];
      const listen = async ({ event }) => {
        reasons.push(event);
        await others.lock('m').run(() => undefined);
        throw new Error('mine');
      };
      const others = new Locks(client, { listener: listen });
      try {
        await others.lock('k').run(() => undefined);
        await until(() => warnings.length === 2, 'the warnings');
        assert.deepEqual([reasons, await server.calls('lock.acquire')], [['waited', 'held'], 3]);
        // The listener's own locks begin nothing that is silent.
        await others.lock('k').run(() => undefined);
        assert.deepEqual(reasons, ['waited', 'held', 'waited', 'held']);
        await until(() => warnings.length === 4, 'the warnings');
      } finally {
        process.off('warning', warn);
        await others.close();
      }
    });

    test('callbacks of a loss may use locks', async () => {
      const calls = [];
      const listen = ({ outcome }) => {
        if (outcome === 'lost') calls.push(others.lock('l').run(() => 'in the listener'));
      };
      const others = new Locks(client, { listener: listen });
      try {
        const [hold, other] = [await others.lock('k').acquire(), await others.lock('m').acquire()];
        hold.signal.addEventListener('abort', () => {
          calls.push(other.release(), hold.release().catch(({ kind }) => kind));
          calls.push(others.lock('k').run(() => 'at the signal'));
        });
        await server.admin.del('k');
        await until(() => calls.length === 4, 'the loss');
        const results = new Set(await Promise.all(calls));
        assert.deepEqual(results, new Set(['in the listener', undefined, 'lost', 'at the signal']));
        assert.deepEqual([await server.isEmpty('k'), await server.isEmpty('m')], [true, true]);
      } finally {
        await others.close();
      }
    });

    test('locks work over TLS', async () => {
      const { port, certificate } = await server.serveTls();
      const secure = await library.connect(port, library.tls(certificate));
      const others = new Locks(secure);
      try {
        const hold = await others.lock('k').acquire();
        const wait = others.lock('k').acquire();
        await until(async () => (await server.waiters('k')) === 1);
        await hold.release();
        const next = await wait;
        assert.ok(next.validFor > 0);
        await next.release();
      } finally {
        await others.close();
        library.end(secure);
      }
    });

    test('each connection asks the credentials provider', { skip: name === 'ioredis' && 'ioredis has none' }, async () => {
      let password = 'first';
      await server.admin.acl('SETUSER', 'app', 'on', '>first', '+@all', '~*', '&*');
      const credentialsProvider = {
        type: 'async-credentials-provider', credentials: async () => ({ username: 'app', password }),
      };
      const known = await library.connect(server.port, { credentialsProvider });
      const others = new Locks(known);
      try {
        const hold = await others.lock('k').acquire();
        const [session] = await server.admin.call('LOCK.SESSION', 'LIST');
        assert.equal(fields(session).user, 'app');
        password = 'second';
        await server.admin.acl('SETUSER', 'app', '<first', '>second');
        await server.admin.client('KILL', 'USER', 'app');
        const before = await server.calls('lock.events');
        await until(async () => (await server.calls('lock.events')) > before + 1, 'a new reader');
        assert.equal(hold.isLost, false);
        await hold.release();
      } finally {
        await others.close();
        library.end(known);
      }
    });

    test('a dropped hold is released with a warning', async () => {
      const warned = once(process, 'warning');
      await (async () => void (await locks.lock('dropped').acquire()))();
      await until(async () => {
        gc();
        return server.isEmpty('dropped');
      }, 'the release', 5000);
      const [{ name: type, message }] = await warned;
      assert.equal(type, 'ResourceWarning');
      assert.match(message, /the hold of dropped was never released/);
    });

    test('a database is that of the client', async () => {
      const second = await library.connect(server.port, { db: 2, database: 2 });
      const others = new Locks(second);
      try {
        await others.lock('k').run(async () => {
          assert.equal(await server.admin.exists('k'), 0);
          await server.admin.select(2);
          assert.equal(await server.holders('k'), 1);
        });
      } finally {
        await others.close();
        library.end(second);
      }
    });

    test('a close leaves nothing running', async () => {
      const timers = () => process.getActiveResourcesInfo().filter((type) => type === 'Timeout').length;
      await until(async () => (await server.connections()).length === 1, 'the connection of the user');
      const before = timers();
      const others = new Locks(client);
      const [hold, leased] = [await others.lock('k').acquire(), await others.lock('l', { lease: 60_000 }).acquire()];
      const wait = others.lock('l').acquire().catch(({ kind }) => kind);
      await until(async () => (await server.waiters('l')) === 1);
      await others.close();
      await others.close();
      assert.equal(await wait, 'cancelled');
      assert.deepEqual([hold.signal.aborted, await server.isEmpty('k'), await server.holders('l')], [true, true, 1]);
      await assert.rejects(hold.release(), LostError);
      await assert.rejects(leased.release(), CancelledError);
      await assert.rejects(others.lock('k').acquire(), MisuseError);
      await until(async () => (await server.connections()).length === 1, 'the end of connections');
      await until(() => timers() <= before, 'the end of timers');
    });

    for (const mode of ['free', 'closed', 'held', 'waiting']) {
      test(`a process with a ${mode} lock ${['free', 'closed'].includes(mode) ? 'ends' : 'goes on'}`, async () => {
        const taken = await locks.lock('taken').acquire();
        const child = spawn('node', [new URL('child.mjs', import.meta.url).pathname, name, server.port, mode]);
        try {
          await once(child.stdout, 'data');
          if (mode === 'held') assert.equal(await server.holders('k'), 1);
          if (mode === 'waiting') await until(async () => (await server.waiters('taken')) === 1);
          if (['free', 'closed'].includes(mode)) await until(() => child.exitCode === 0, 'its end');
          else await sleep(500).then(() => assert.equal(child.exitCode, null));
        } finally {
          child.kill('SIGKILL');
        }
        await taken.release();
      });
    }

    test('a Verrou store shares locks by owner', async () => {
      const others = new Locks(client);
      const [mine, theirs] = [new RedisLockStore(locks, ''), new RedisLockStore(others, '')];
      try {
        assert.ok(await mine.save('k', 'o', 60_000));
        assert.equal(await theirs.save('k', 'p', 1000), false);
        assert.equal(await mine.save('k', 'o', 1000), false);
        await theirs.extend('k', 'o', 90_000);
        assert.ok((await server.ttl('k')) > 60_000);
        await theirs.delete('k', 'o');
        assert.ok(await mine.save('k', 'o', null));
        await theirs.forceDelete('k');
        assert.equal(await mine.exists('k'), false);
      } finally {
        await others.close();
      }
    });
  });
}
