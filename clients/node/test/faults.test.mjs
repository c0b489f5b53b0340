// SPDX-License-Identifier: MIT

// Locks while connections, servers and processes fail, with each library.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Locks, LostError, MisuseError, UnavailableError } from 'redis-lock-client';
import { blockFor, LIBRARIES, Proxy, Server, until } from './support.mjs';

for (const [name, library] of Object.entries(LIBRARIES)) {
  describe(name, () => {
    let server, proxy, client, locks, events;


    beforeEach(async () => {
      server = await Server.start();
      proxy = await Proxy.to(server.port);
      client = await library.connect(proxy.port);
      events = [];
    });

    afterEach(async () => {
      await locks.close();
      library.end(client);
      proxy.close();
      await server.stop();
    });

    /** Without the proxy, as this event loop serves it. */
    const connectDirectly = async () => {
      library.end(client);
      client = await library.connect(server.port);
    };
    const make = (options = {}) => (locks = new Locks(client, { listener: ({ event }) => events.push(event), ...options }));

    test('broken connections lose nothing', async () => {
      make();
      const hold = await locks.lock('k').acquire();
      const other = await locks.lock('l').acquire();
      const wait = locks.lock('l').acquire();
      await until(async () => (await server.waiters('l')) === 1);
      for (let round = 0; round < 3; round++) {
        const before = await server.calls('lock.events');
        proxy.cut();
        await until(async () => (await server.calls('lock.events')) > before + 1, 'a new reader');
      }
      await until(() => hold.validFor > 0);
      assert.deepEqual([hold.isLost, await server.waiters('l'), await server.calls('lock.session')], [false, 1, 1]);
      await other.release();
      await (await wait).release();
      await hold.release();
    });

    test('an outage is jeopardy, and ends without a loss', async () => {
      make({ grace: 600 });
      const hold = await locks.lock('k').acquire();
      await until(() => hold.validFor > 0);
      proxy.freeze();
      await until(() => events.includes('jeopardy'));
      assert.deepEqual([hold.validFor, hold.isLost, hold.signal.aborted], [0, false, false]);
      proxy.thaw();
      await until(() => events.includes('safe'));
      await until(() => hold.validFor > 0);
      await hold.release();
    });

    test('a silent network loses by the local clock', async () => {
      make({ ttl: 1500, grace: 400 });
      const hold = await locks.lock('k').acquire();
      await until(() => hold.validFor > 0);
      proxy.freeze();
      await until(() => hold.signal.aborted);
      assert.match(hold.signal.reason.message, /silent/);
      proxy.thaw();
      await assert.rejects(hold.release(), LostError);
      await until(async () => server.isEmpty('k'));
    });

    test('a busy event loop breaks no connection', async () => {
      await connectDirectly();
      make({ grace: 600 });
      const hold = await locks.lock('k').acquire();
      await until(() => hold.validFor > 0);
      const connections = await server.connections();
      blockFor(3500);
      await until(() => hold.validFor > 0);
      assert.deepEqual([await server.connections(), hold.isLost], [connections, false]);
      await hold.release();
    });

    test('a call without a reply is repeated elsewhere', async () => {
      make();
      await locks.lock('warm').run(() => undefined);
      proxy.freeze();
      const acquired = locks.lock('k').acquire();
      await sleep(100);
      proxy.isFrozen = false;
      const hold = await acquired;
      assert.equal(await server.holders('k'), 1);
      await hold.release();
      assert.ok(await server.isEmpty('k'));
    });

    test('a try without a server ends within the patience', async () => {
      make({ patience: 400 });
      await locks.lock('k').run(() => undefined);
      proxy.freeze();
      const began = performance.now();
      await assert.rejects(locks.lock('k').tryAcquire(), UnavailableError);
      await assert.rejects(locks.lock('k').acquire(), UnavailableError);
      assert.ok(performance.now() - began < 8000);
    });

    test('an aborted acquire is cancelled after an outage', async () => {
      make();
      const hold = await locks.lock('k').acquire();
      const abort = new AbortController();
      const wait = locks.lock('k').acquire({ signal: abort.signal }).catch(({ kind }) => kind);
      await until(async () => (await server.waiters('k')) === 1);
      proxy.freeze();
      const began = performance.now();
      abort.abort();
      assert.equal(await wait, 'cancelled');
      assert.ok(performance.now() - began < 300, 'the abort waits for no server');
      assert.equal(await server.waiters('k'), 1);
      proxy.thaw();
      await until(async () => (await server.waiters('k')) === 0, 'the cancellation');
      await hold.release();
    });

    test('a wait ends soon after its limit in an outage', async () => {
      make();
      const hold = await locks.lock('k').acquire();
      const wait = locks.lock('k').acquire({ wait: 500 }).catch(({ kind }) => kind);
      const began = performance.now();
      await until(async () => (await server.waiters('k')) === 1);
      proxy.freeze();
      assert.ok(['timed out', 'unavailable'].includes(await wait));
      const late = performance.now() - began - 500;
      assert.ok(late < 1400, `${late} ms after its limit`);
      proxy.thaw();
      await until(async () => (await server.waiters('k')) === 0, 'the cancellation');
      await hold.release();
    });

    test('a repeated call does not outlive the limit of its wait', async () => {
      make();
      await locks.lock('k').run(() => undefined);
      await server.writes(false);
      const began = performance.now();
      const wait = locks.lock('k').acquire({ wait: 300 }).catch(({ kind }) => kind);
      await sleep(900);
      proxy.freeze();
      assert.equal(await wait, 'unavailable');
      const late = performance.now() - began - 300;
      assert.ok(late < 1300, `${late} ms after its limit`);
      proxy.thaw();
      await server.writes(true);
    });

    test('an unanswered undo retires an owner for its lock only', async () => {
      make();
      const other = await locks.lock('l').acquire();
      await locks.lock('k').run(async ({ owner }) => {
        const abort = new AbortController();
        const aborted = locks.lock('l').acquire({ signal: abort.signal }).catch(({ kind }) => kind);
        await until(async () => (await server.waiters('l')) === 1);
        await server.writes(false);
        abort.abort();
        assert.equal(await aborted, 'cancelled');
        const [l, m] = [locks.lock('l').acquire(), locks.lock('m').acquire()];
        await server.writes(true);
        assert.equal((await m).owner, owner);
        await other.release();
        assert.notEqual((await l).owner, owner);
        await Promise.all([(await l).release(), (await m).release()]);
      });
      for (const key of ['k', 'l', 'm']) assert.ok(await server.isEmpty(key));
    });

    test('an owner waits for its own unanswered undo', async () => {
      make();
      const other = await locks.lock('k').acquire();
      const abort = new AbortController();
      const lock = locks.lock('k', { owner: 'mine' });
      const aborted = lock.acquire({ signal: abort.signal }).catch(({ kind }) => kind);
      await until(async () => (await server.waiters('k')) === 1);
      await server.writes(false);
      abort.abort();
      assert.equal(await aborted, 'cancelled');
      const before = await server.refused('lock.acquire');
      const wait = lock.acquire();
      await sleep(300);
      assert.equal(await server.refused('lock.acquire'), before);
      await server.writes(true);
      await until(async () => (await server.waiters('k')) === 1);
      await other.release();
      await (await wait).release();
      assert.ok(await server.isEmpty('k'));
    });

    test('a failed release continues in the background', async () => {
      make({ patience: 300 });
      const hold = await locks.lock('k').acquire();
      await until(() => hold.validFor > 0);
      await server.writes(false);
      await assert.rejects(hold.release(), UnavailableError);
      assert.equal(await server.holders('k'), 1);
      await server.writes(true);
      await until(async () => server.isEmpty('k'), 'the release');
    });

    test('a release without a session continues in the background', async () => {
      make({ ttl: 1500, grace: 400 });
      const hold = await locks.lock('k', { lease: 60_000 }).acquire();
      await server.admin.call('ACL', 'SETUSER', 'default', '-lock.session', '+lock.session|list');
      proxy.freeze();
      await until(async () => (await server.admin.call('LOCK.SESSION', 'LIST')).length === 0, 'the end of the session');
      proxy.thaw();
      await until(async () => hold.release().then(() => true, (error) => error instanceof MisuseError), 'the refusal');
      assert.equal(await server.holders('k'), 1);
      await server.admin.call('ACL', 'SETUSER', 'default', '+lock.session');
      await until(async () => server.isEmpty('k'), 'the release');
    });

    test('processes with the same name have different owners', async () => {
      const other = new Locks(client, { name: 'web' });
      make({ name: 'web' });
      const hold = await other.lock('k', { reentrant: true }).acquire();
      assert.equal(await locks.lock('k', { reentrant: true }).tryAcquire(), null);
      await hold.release();
      await other.close();
    });

    test('a grant by event needs no renewal', async () => {
      make();
      const hold = await locks.lock('k').acquire();
      const wait = locks.lock('k', { lease: 60_000 }).acquire();
      await until(async () => (await server.waiters('k')) === 1);
      await hold.release();
      const granted = await wait;
      // Until the next confirmation, the server may revoke it.
      assert.ok(granted.validFor > 0 && granted.validFor <= 3000);
      await until(() => granted.validFor > 50_000, 'the confirmation');
      assert.ok(granted.validFor < 60_000);
      await granted.release();
      assert.equal(await server.calls('lock.renew'), 0);
    });

    test('an expired grant by event is not used', async () => {
      await connectDirectly();
      make();
      const hold = await locks.lock('k').acquire();
      const wait = locks.lock('k', { lease: 1000 }).acquire();
      await until(async () => (await server.waiters('k')) === 1);
      // The event loop stands still while the lock is granted, and until the lease has ended.
      execFileSync('redis-cli', ['-p', String(server.port), 'LOCK.BREAK', 'k']);
      blockFor(1300);
      const granted = await wait;
      assert.deepEqual([await server.calls('lock.renew'), granted.isLost], [1, false]);
      await granted.release();
      await assert.rejects(hold.release(), LostError);
    });

    test('a restart keeps a hold and a wait', async () => {
      await server.persist();
      make();
      const hold = await locks.lock('k').acquire();
      const wait = locks.lock('k').acquire();
      await until(async () => (await server.waiters('k')) === 1);
      await server.restart();
      await until(async () => (await server.waiters('k')) === 1, 'the wait');
      await until(() => hold.validFor > 0);
      await hold.release();
      await (await wait).release();
      assert.equal(await server.calls('lock.session'), 1);
    });

    test('an empty restart loses a hold', async () => {
      make();
      const hold = await locks.lock('k').acquire();
      await server.restart();
      await until(() => hold.signal.aborted);
      assert.match(hold.signal.reason.message, /restarted/);
    });

    test('an overwritten key is noticed at the renewal', async () => {
      make({ ttl: 2000, grace: 200 });
      await server.admin.config('SET', 'lock.default-lease', 600);
      const hold = await locks.lock('k').acquire();
      await server.admin.set('k', 'x');
      await until(() => hold.signal.aborted);
      assert.match(hold.signal.reason.message, /wrongtype/);
      await assert.rejects(hold.release(), LostError);
      assert.equal(await server.admin.get('k'), 'x');
    });

    test('a call for an overwritten key is a loss', async () => {
      make();
      for (const call of ['release', 'extend']) {
        await server.admin.del('k');
        const hold = await locks.lock('k', { lease: 60_000 }).acquire();
        await server.admin.set('k', 'x');
        await assert.rejects(hold[call](), LostError);
        assert.deepEqual([hold.isLost, await server.admin.get('k')], [true, 'x']);
      }
    });

    test('a grace of 0 proves nothing, and polls slowly', async () => {
      make({ grace: 0 });
      const hold = await locks.lock('k').acquire();
      const before = await server.calls('lock.events');
      await sleep(1000);
      assert.ok((await server.calls('lock.events')) - before < 10);
      assert.equal(hold.validFor, 0);
      proxy.cut();
      await until(() => hold.signal.aborted);
    });

    test('a grant is acknowledged before its body runs', async () => {
      await connectDirectly();
      make();
      const hold = await locks.lock('k').acquire();
      const pending = locks.lock('k').acquire().then((granted) => {
        // The event loop stands still meanwhile.
        const listed = execFileSync('redis-cli', ['-p', String(server.port), '--json', 'LOCK.SESSION', 'LIST']);
        void granted.release();
        return JSON.parse(String(listed))[0];
      });
      await until(async () => (await server.waiters('k')) === 1);
      await hold.release();
      const { holds, events: unacknowledged } = await pending;
      assert.deepEqual([holds, unacknowledged], [1, 0]);
    });

    test('a server without the module is misuse', async () => {
      make();
      const plain = await Server.start({ hasModule: false });
      const theirs = await library.connect(plain.port);
      const others = new Locks(theirs);
      try {
        const error = await others.lock('k').acquire().catch((reason) => reason);
        assert.ok(error instanceof MisuseError);
        assert.match(error.message, /load the redis-lock module/);
      } finally {
        await others.close();
        library.end(theirs);
        await plain.stop();
      }
    });

    test('close ends while the server hangs', async () => {
      make();
      await locks.lock('k').acquire();
      proxy.freeze();
      const began = performance.now();
      await locks.close();
      assert.ok(performance.now() - began < 3000);
    });
  });
}
