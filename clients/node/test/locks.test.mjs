// SPDX-License-Identifier: MIT

// What clients/spec/scenarios.json does not try: sockets, signals, the scope forms, and what is left behind.

import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import {
  BusyError, CancelledError, DeadlockError, LockError, Locks, LostError, MisuseError, TimedOutError, UnavailableError,
} from '@redis-lock/client';
import { Server, until } from './support.mjs';

for (const library of ['ioredis', 'node-redis']) {
  describe(library, () => {
    let server, user, locks;
    before(async () => {
      server = await Server.start();
    });
    after(() => server.stop());

    /** A test with locks of its own, after which nothing of them is left. */
    const test = (name, body) =>
      it(name, async () => {
        const connections = await server.connections();
        user = await server.client(library);
        locks = new Locks(user.client);
        try {
          await body();
        } finally {
          await locks.close();
          user.end();
        }
        await until('all connections are closed', async () => (await server.connections()) === connections);
        assert.equal(await server.info('lock_waiters'), '0');
        await server.admin.flushall();
      });

    test('a thousand waits need two connections', async () => {
      const before = await server.connections();
      let inside = 0;
      let done = 0;
      const works = Array.from({ length: 1000 }, () =>
        locks.request('k', async () => {
          assert.equal(++inside, 1);
          await Promise.resolve();
          inside--;
          done++;
        }),
      );
      await until('many wait', async () => (await server.waiters('k')) > 100 || done > 100);
      assert.equal((await server.connections()) - before, 2);
      await Promise.all(works);
      assert.equal(done, 1000);
    });

    test('an abort ends a wait, also one that has not begun', async () => {
      const hold = await locks.acquire('k');
      const abort = new AbortController();
      const wait = locks.acquire('k', { signal: abort.signal });
      await until('it waits', async () => (await server.waiters('k')) === 1);
      abort.abort(new Error('enough'));
      const error = await wait.catch((error) => error);
      assert.ok(error instanceof CancelledError && error instanceof LockError);
      assert.equal(error.name, 'AbortError');
      assert.equal(error.cause.message, 'enough');
      await assert.rejects(locks.acquire('k', { signal: AbortSignal.abort() }), { name: 'AbortError' });
      assert.equal(await server.waiters('k'), 0);
      await hold.release();
    });

    test('a request is busy, or gives null, or waits', async () => {
      const hold = await locks.acquire('k');
      await assert.rejects(locks.acquire('k', { wait: 0 }), BusyError);
      await assert.rejects(locks.acquire('k', { wait: 50 }), TimedOutError);
      assert.equal(await locks.request('k', { ifAvailable: true }, (hold) => hold), null);
      assert.equal(await locks.tryAcquire('k'), null);
      assert.equal(await locks.request('other', () => 7), 7);
      await hold.release();
    });

    test('the body has its say, and a loss comes out', async () => {
      await assert.rejects(locks.request('k', async () => Promise.reject(new RangeError('mine'))), RangeError);
      assert.equal(await server.admin.exists('k'), 0);
      const lost = locks.request('k', () => server.admin.call('LOCK.BREAK', 'k'));
      await assert.rejects(lost, LostError);
      const both = locks.request('k', async () => {
        await server.admin.call('LOCK.BREAK', 'k');
        throw new RangeError('mine');
      });
      await assert.rejects(both, RangeError);
    });

    test('a hold can be disposed of', async () => {
      const hold = await locks.acquire('k');
      await hold[Symbol.asyncDispose]();
      assert.equal(await server.admin.exists('k'), 0);
      assert.equal(hold.validFor, 0);
      const broken = await locks.acquire('k');
      await server.admin.call('LOCK.BREAK', 'k');
      await broken[Symbol.asyncDispose]();
      assert.ok(broken.signal.aborted);
    });

    test('the signal says why', async () => {
      const hold = await locks.acquire('k', { lease: 300, keep: true });
      assert.ok(hold.validFor > 0 && hold.validFor <= 300);
      await server.admin.call('LOCK.BREAK', 'k');
      await until('it is lost', () => hold.signal.aborted);
      assert.ok(hold.signal.reason instanceof LostError);
      assert.match(hold.signal.reason.message, /NOTOWNER/);
    });

    test('a server that stands still is noticed by the own clock', async () => {
      const hold = await locks.acquire('k', { lease: 400, keep: true });
      server.process.kill('SIGSTOP');
      await until('it is lost', () => hold.signal.aborted);
      server.process.kill('SIGCONT');
      assert.equal(hold.validFor, 0);
      // Whatever the server says now.
      await assert.rejects(hold.release(), LostError);
      await assert.rejects(hold.release(), LostError);
      assert.equal(await server.admin.exists('k'), 0);
    });

    test('a routine with a signal, as in node-redlock', async () => {
      const result = await locks.using('k', 300, async (signal) => {
        await until('it was renewed', async () => /cmdstat_lock.renew:calls=[2-9]/.test(await server.admin.info('commandstats')));
        return signal.aborted;
      });
      assert.equal(result, false);
    });

    test('who holds and who waits can be seen', async () => {
      assert.deepEqual(await locks.query('k'), { held: [], pending: [] });
      const hold = await locks.acquire('k', { mode: 'shared' });
      const wait = locks.acquire('k');
      await until('it waits', async () => (await server.waiters('k')) === 1);
      const { held, pending } = await locks.query('k');
      assert.deepEqual(held, [{ name: 'k', mode: 'shared', owner: hold.owner }]);
      assert.equal(pending.length, 1);
      assert.equal(pending[0].mode, 'exclusive');
      await hold.release();
      await (await wait).release();
    });

    test('what is wrong is said before anything is sent', async () => {
      for (const wrong of [{ lease: 0 }, { lease: NaN }, { wait: -1 }, { limit: 0 }, { maxHold: 0 }, { mode: 'x' }]) {
        await assert.rejects(locks.acquire('k', wrong), MisuseError);
      }
      assert.equal(await server.admin.exists('k'), 0);
      assert.throws(() => new Locks({}), MisuseError);
      assert.throws(() => new Locks({ duplicate() {}, isCluster: true }), MisuseError);
    });

    test('no server is unavailable, and so is what was closed', async () => {
      const hold = await locks.acquire('k', { lease: 60_000 });
      await locks.close();
      await assert.rejects(hold.release(), UnavailableError);
      await assert.rejects(locks.acquire('k'), UnavailableError);
      assert.ok(!(new DeadlockError('x') instanceof UnavailableError));
    });
  });
}
