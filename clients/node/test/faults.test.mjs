// SPDX-License-Identifier: MIT

// What happens when something breaks, and at the end, with each library.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import diagnostics from 'node:diagnostics_channel';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Locks, LostError, UnavailableError } from '@redis-lock/client';
import { busyFor, LIBRARIES, Proxy, Server, until } from './support.mjs';

for (const [name, library] of Object.entries(LIBRARIES)) {
  describe(name, () => {
    let server, proxy, client, locks;

    beforeEach(async () => {
      server = await Server.start();
      proxy = await Proxy.to(server.port);
      client = await library.connect(proxy.port);
      locks = new Locks(client);
    });

    afterEach(async () => {
      server.process.kill('SIGCONT');
      await locks.close();
      if (client !== undefined) library.end(client);
      proxy.close();
      await server.stop();
    });

    test('the reply of an acquire is lost: it counts once', async () => {
      for (const options of [{ lease: 60_000 }, {}, { lease: 60_000, wait: 0 }, { wait: 0 }]) {
        await locks.request('other', () => undefined);
        proxy.cutReplyOf = 'LOCK.ACQUIRE';
        const before = proxy.happened;
        const hold = await locks.acquire('k', options);
        assert.equal(proxy.happened, before + 1);
        assert.equal(await server.holders('k'), 1);
        await hold.extend(60_000);
        await hold.release();
        assert.ok(await server.isEmpty('k'));
      }
    });

    test('the reply of a release is lost: it counts once', async () => {
      // A kept hold is renewed as soon as the connection is gone, before the release is sent again: that is no loss.
      for (const keep of [false, true]) {
        const hold = await locks.acquire('k', { lease: 60_000, keep });
        proxy.cutReplyOf = 'LOCK.RELEASE';
        const before = proxy.happened;
        await hold.release();
        assert.equal(proxy.happened, before + 1);
        assert.ok(await server.isEmpty('k'));
        assert.equal(hold.signal.aborted, false);
      }
    });

    test('a release that failed may be called again', async () => {
      const hold = await locks.acquire('k', { lease: 60_000 });
      await server.admin.call('ACL', 'SETUSER', 'default', '-lock.release');
      await assert.rejects(hold.release(), { kind: 'misuse' });
      await server.admin.call('ACL', 'SETUSER', 'default', '+lock.release');
      await hold.release();
      assert.ok(await server.isEmpty('k'));
    });

    test('a release and a cancel go on while the server writes nothing', async () => {
      const writes = (yes) => server.admin.config('SET', 'min-replicas-to-write', yes ? 0 : 1);
      const hold = await locks.acquire('k');
      const abort = new AbortController();
      const wait = locks.acquire('k', { signal: abort.signal });
      await until(async () => (await server.waiters('k')) === 1);
      await writes(false);
      abort.abort();
      await assert.rejects(wait, { kind: 'cancelled' });
      const release = hold.release();
      await sleep(300);
      await writes(true);
      await release;
      await until(() => server.isEmpty('k'), 'what is taken back later', 1000);
    });

    // It is bound to the connection of the wait, which must not end before the other has it.
    test('a grant is kept until it can be confirmed', async () => {
      await server.admin.call('LOCK.ACQUIRE', 'k', 'me', 'PX', 60_000);
      const served = [];
      const waits = [];
      for (const name of ['first', 'second']) {
        const wait = locks.acquire('k', { ownConnection: true, keep: true });
        waits.push(wait.then((hold) => served.push(name) && hold.release()));
        await until(async () => (await server.waiters('k')) === waits.length);
      }
      await server.admin.multi().call('LOCK.RELEASE', 'k', 'me').config('SET', 'min-replicas-to-write', 1).exec();
      await sleep(200);
      await server.writes(true);
      await Promise.all(waits);
      assert.deepEqual(served, ['first', 'second']);
    });

    // A release goes by the owner's name.
    test('an owner that is used again keeps what it gets', async () => {
      const writes = (yes) => server.admin.config('SET', 'min-replicas-to-write', yes ? 0 : 1);
      const old = await locks.acquire('k', { owner: 'me', lease: 1000, keep: true });
      await writes(false);
      await assert.rejects(old.release(), ({ kind }) => kind === 'unavailable' || kind === 'lost');
      assert.equal(old.validFor, 0);
      await assert.rejects(locks.acquire('k', { owner: 'me', wait: 100 }), { kind: 'unavailable' });
      await assert.rejects(locks.attach('k', 'me', { signal: AbortSignal.timeout(100) }), { kind: 'cancelled' });
      const again = locks.acquire('k', { owner: 'me' });
      await sleep(200);
      await writes(true);
      const hold = await again;
      await assert.rejects(old.guard('SET', 'written', 'v'), { kind: 'lost' });
      await old.release().catch(({ kind }) => assert.equal(kind, 'lost'));
      // Longer than until the next attempt.
      await sleep(400);
      await hold.guard('PING');
      assert.ok(hold.validFor > 0);
      await hold.release();
      assert.ok(await server.isEmpty('k', 'written'));
    });

    test('who waits by a name waits for what is given back by it, also while that is tried by `release`', async () => {
      for (const isReleased of [false, true]) {
        const before = await server.calls('lock.release');
        const old = await locks.acquire('k', { owner: 'me', lease: 1000, keep: true });
        const wait = () => locks.acquire('k', { owner: 'me', lease: 60_000, wait: 20_000 });
        const waits = isReleased ? [] : [wait()];
        await until(async () => (await server.waiters('k')) === waits.length);
        await server.writes(false);
        const release = isReleased ? old.release().catch(({ kind }) => assert.equal(kind, 'lost')) : undefined;
        if (isReleased) waits.push(wait());
        await until(() => old.signal.aborted);
        await until(() => server.holders('k').then((count) => count === 0));
        await server.writes(true);
        const hold = await waits[0];
        await until(async () => (await server.calls('lock.release')) > before);
        await hold.guard('PING');
        await release;
        await hold.release();
      }
    });

    test('who uses a name again waits for the undoing of its last acquire', async () => {
      assert.equal(await server.admin.call('LOCK.ACQUIRE', 'k', 'somebody', 'PX', '60000'), 1);
      const abort = new AbortController();
      const wait = locks.acquire('k', { owner: 'me', signal: abort.signal });
      await until(async () => (await server.waiters('k')) === 1);
      await server.writes(false);
      abort.abort();
      await assert.rejects(wait, { kind: 'cancelled' });
      proxy.heard = '';
      await assert.rejects(locks.acquire('k', { owner: 'me', wait: 100 }), { kind: 'unavailable', message: /given back/ });
      await assert.rejects(locks.attach('k', 'me', { signal: AbortSignal.timeout(100) }), { kind: 'cancelled' });
      assert.deepEqual([...proxy.said('LOCK.ACQUIRE'), ...proxy.said('LOCK.RENEW')], []);
      const again = locks.acquire('k', { owner: 'me' });
      await server.writes(true);
      await until(async () => (await server.waiters('k')) === 1 && proxy.said('LOCK.ACQUIRE').length > 0);
      await server.admin.call('LOCK.RELEASE', 'k', 'somebody');
      await (await again).release();
    });

    test('who lost a lock does not give back the next of its name', async () => {
      for (const keep of [false, true]) {
        const old = await locks.acquire('k', { owner: 'me', lease: 200, keep });
        await server.admin.del('k');
        await until(() => old.signal.aborted);
        const hold = await locks.acquire('k', { owner: 'me' });
        await assert.rejects(old.release(), { kind: 'lost' });
        await assert.rejects(old.guard('SET', 'written', 'v'), { kind: 'lost' });
        await hold.guard('PING');
        await hold.release();
        assert.ok(await server.isEmpty('k', 'written'));
      }
    });

    test('a kept hold that cannot be given back is renewed no more', async () => {
      const hold = await locks.acquire('k', { lease: 600, keep: true });
      await server.admin.call('ACL', 'SETUSER', 'default', '-lock.release');
      await assert.rejects(hold.release(), { kind: 'misuse' });
      await until(() => server.isEmpty('k'), 'its end', 2000);
      await until(() => hold.signal.aborted);
    });

    test('what is kept is valid no more when its connection broke, until it is renewed on another', async () => {
      const hold = await locks.acquire('k');
      proxy.shutsThen = true;
      proxy.cutReplyOf = 'LOCK.INFO';
      await assert.rejects(locks.query('k'), UnavailableError);
      await until(() => hold.validFor === 0, 'its end', 500);
      await until(() => server.isEmpty('k'));
      assert.equal(hold.signal.aborted, false);
      // As if the server had seen no end.
      assert.equal(await server.admin.call('LOCK.ACQUIRE', 'k', hold.owner), 1);
      proxy.open();
      await until(() => hold.validFor > 0, 'its renewal', 1000);
      await hold.release();
    });

    test('what the own clock lost is not kept by the server', async () => {
      const hold = await locks.acquire('k', { lease: 600, keep: true });
      proxy.delay(true);
      await until(() => hold.signal.aborted);
      proxy.delay(false);
      await until(() => server.isEmpty('k'), 'its end', 2000);
    });

    test('a hand-over waits for a renewal on its way', async () => {
      const hold = await locks.acquire('k', { lease: 3000, keep: true });
      proxy.delay(true);
      // A third of the lease, and more.
      await sleep(1300);
      let isOver = false;
      const handingOver = hold.handOver().then(() => (isOver = true));
      await sleep(50);
      assert.equal(isOver, false);
      proxy.delay(false);
      await handingOver;
      assert.equal(hold.signal.aborted, false);
    });

    test('what is lost during a hand-over is lost, and told', async () => {
      const heard = [];
      const listener = ({ event, outcome }) => event === 'held' && heard.push(outcome);
      diagnostics.subscribe('redis-lock', listener);
      try {
        const hold = await locks.acquire('k', { lease: 60_000 });
        proxy.delay(true);
        const both = Promise.allSettled([hold.extend(30_000), hold.handOver()]);
        await assert.rejects(hold.extend(30_000), { kind: 'unavailable', message: /handed over/ });
        await server.admin.call('LOCK.BREAK', 'k');
        proxy.delay(false);
        assert.deepEqual((await both).map(({ reason }) => reason?.kind), ['lost', 'lost']);
        assert.deepEqual([hold.signal.aborted, heard], [true, ['lost']]);
      } finally {
        diagnostics.unsubscribe('redis-lock', listener);
      }
    });

    test('who extends or hands over waits no longer than what is left of the lease', async () => {
      const hold = await locks.acquire('k', { lease: 600 });
      proxy.freezeWhatIsThere();
      const both = Promise.allSettled([hold.extend(60_000), hold.handOver()]);
      await until(() => hold.signal.aborted);
      const kinds = await Promise.race([both.then((all) => all.map(({ reason }) => reason?.kind)), sleep(3000, 'both hang')]);
      assert.deepEqual(kinds, ['lost', 'lost']);
    });

    test('what is not renewed any more is told as lost when its connection ends', async () => {
      const hold = await locks.acquire('k', { lease: 60_000, keep: true, maxHold: 200 });
      await sleep(300);
      await server.admin.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      await until(() => hold.signal.aborted);
    });

    test('nobody waits much longer than the own time for a server that is silent', async () => {
      server.process.kill('SIGSTOP');
      const longest = async (call, ms) => {
        const began = performance.now();
        await assert.rejects(call, UnavailableError);
        assert.ok(performance.now() - began < ms, `${performance.now() - began} ms`);
      };
      for (const ownConnection of [false, true]) await longest(locks.acquire('k', { wait: 500, ownConnection }), 1700);
      await longest(locks.tryAcquire('k'), 1700);
    });

    test('killed connections come back: a lease and a wait go on, what was kept is told as lost at once', async () => {
      const lease = await locks.acquire('a', { lease: 60_000 });
      const kept = await locks.acquire('b', { lease: 60_000, keep: true });
      const other = await server.admin.call('LOCK.ACQUIRE', 'c', 'somebody', 'PX', '60000');
      assert.equal(other, 1);
      const wait = locks.acquire('c');
      await until(async () => (await server.waiters('c')) === 1);
      // The user's own client is not needed, and makes itself a new connection when it likes.
      library.end(client);
      client = undefined;
      await until(async () => (await server.connections()).length === 2);
      const before = await server.connections();
      await server.admin.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      await server.admin.client('KILL', 'TYPE', 'pubsub');
      const began = performance.now();
      await until(() => kept.signal.aborted);
      assert.ok(performance.now() - began < 5000, 'at once, and not when a third of the lease is over');
      await assert.rejects(kept.release(), LostError);
      await until(async () => (await server.waiters('c')) === 1);
      const isNew = (id) => !before.includes(id);
      await until(async () => (await server.connections()).filter(isNew).length === 2, 'two new connections');
      await server.admin.call('LOCK.RELEASE', 'c', 'somebody');
      await (await wait).release();
      assert.equal(lease.signal.aborted, false);
      await lease.extend(60_000);
      await lease.release();
    });

    test('a frozen server is a loss by the own clock, and prolongs neither a wait nor an abort', async () => {
      const kept = await locks.acquire('a', { lease: 600, keep: true });
      const leased = await locks.acquire('b', { lease: 600 });
      const began = performance.now();
      server.process.kill('SIGSTOP');
      const abort = new AbortController();
      const timed = locks.acquire('c', { wait: 200 }).catch((error) => error.kind);
      const aborted = locks.acquire('d', { signal: abort.signal }).catch((error) => error.kind);
      await until(() => kept.signal.aborted && leased.signal.aborted);
      assert.ok(performance.now() - began < 2000);
      abort.abort();
      assert.deepEqual(await Promise.all([timed, aborted]), ['unavailable', 'cancelled']);
      assert.ok(performance.now() - began < 4500, 'no call waited for five seconds');
      server.process.kill('SIGCONT');
      await assert.rejects(kept.release(), LostError);
      await assert.rejects(leased.release(), LostError);
      await until(async () => (await server.isEmpty('c')) && (await server.isEmpty('d')), 'what was taken back later');
    });

    test('a network that is silent is given up, and another connection is made', async () => {
      const impatient = new Locks(client, { patience: 300 });
      try {
        const hold = await impatient.acquire('k', { lease: 60_000 });
        proxy.frozen = true;
        const release = hold.release();
        await sleep(700);
        proxy.frozen = false;
        await release;
        assert.ok(await server.isEmpty('k'));
      } finally {
        await impatient.close();
      }
    });

    test('what an aborted acquire has got is given back, also if the connection is silent', async () => {
      const impatient = new Locks(client, { patience: 1200 });
      try {
        await impatient.request('other', () => undefined);
        server.process.kill('SIGSTOP');
        const abort = new AbortController();
        const acquire = impatient.acquire('k', { lease: 60_000, signal: abort.signal });
        await sleep(50);
        proxy.freezeWhatIsThere();
        server.process.kill('SIGCONT');
        await until(async () => (await server.holders('k')) === 1);
        abort.abort();
        await assert.rejects(acquire, { kind: 'cancelled' });
        await until(() => server.isEmpty('k'), 'what is given back later');
      } finally {
        await impatient.close();
      }
    });

    test('a wait without limit outlives a connection that is silent', async () => {
      const impatient = new Locks(client, { patience: 300 });
      try {
        assert.equal(await server.admin.call('LOCK.ACQUIRE', 'k', 'somebody', 'PX', '60000'), 1);
        const wait = impatient.acquire('k');
        await until(async () => (await server.waiters('k')) === 1);
        const before = await server.connections();
        proxy.freezeWhatIsThere();
        const isNew = (id) => !before.includes(id);
        await until(async () => (await server.connections()).filter(isNew).length === 2, 'two new connections');
        await until(async () => (await server.waiters('k')) === 1);
        await server.admin.call('LOCK.RELEASE', 'k', 'somebody');
        await (await wait).release();
      } finally {
        await impatient.close();
      }
    });

    test('so does a wait on a connection of its own', async () => {
      const impatient = new Locks(client, { patience: 300 });
      try {
        // There is a connection for commands.
        await impatient.request('other', () => undefined);
        assert.equal(await server.admin.call('LOCK.ACQUIRE', 'k', 'somebody', 'PX', '60000'), 1);
        const wait = impatient.acquire('k', { ownConnection: true });
        await until(async () => (await server.waiters('k')) === 1);
        proxy.freezeWhatIsThere();
        await server.admin.call('LOCK.RELEASE', 'k', 'somebody');
        await (await wait).release();
      } finally {
        await impatient.close();
      }
    });

    test('who waits asks at once when only the connection for messages broke', async () => {
      assert.equal(await server.admin.call('LOCK.ACQUIRE', 'k', 'somebody', 'PX', '60000'), 1);
      const wait = locks.acquire('k');
      await until(async () => (await server.waiters('k')) === 1);
      const asked = await server.calls('lock.acquire');
      const began = performance.now();
      await server.admin.client('KILL', 'TYPE', 'pubsub');
      await until(async () => (await server.calls('lock.acquire')) > asked);
      await sleep(100);
      assert.ok((await server.calls('lock.acquire')) <= asked + 3, 'it asks, but not again and again');
      await server.admin.call('LOCK.RELEASE', 'k', 'somebody');
      await (await wait).release();
      assert.ok(performance.now() - began < 2500, 'at once, and not when it would have asked anyway');
    });

    test('a process that was busy takes no server for silent', async () => {
      const impatient = new Locks(client, { patience: 300 });
      try {
        const hold = await impatient.acquire('k', { lease: 60_000, keep: true });
        const before = await server.connections();
        server.process.kill('SIGSTOP');
        const extension = hold.extend(50_000);
        await sleep(50);
        server.process.kill('SIGCONT');
        busyFor(700);
        await extension;
        assert.deepEqual(await server.connections(), before);
        assert.equal(hold.signal.aborted, false);
        await hold.release();
      } finally {
        await impatient.close();
      }
    });

    test('a try whose time is over leaves the connections to the others', async () => {
      const hold = await locks.acquire('k');
      await locks.acquire('l', { lease: 60_000 });
      const before = await server.connections();
      server.process.kill('SIGSTOP');
      await assert.rejects(locks.tryAcquire('other'), UnavailableError);
      server.process.kill('SIGCONT');
      await until(() => server.isEmpty('other'));
      await hold.release();
      assert.deepEqual(await server.connections(), before);
    });

    test('who slept through the whole lease of a grant begins nothing', async () => {
      await locks.request('other', () => undefined);
      server.process.kill('SIGSTOP');
      const work = locks.request('k', { lease: 600 }, () => assert.fail('it has begun'));
      await sleep(400);
      server.process.kill('SIGCONT');
      // For the server the lease begins now.
      busyFor(300);
      await assert.rejects(work, LostError);
      assert.ok(await server.isEmpty('k'));
    });

    test('a wait goes on while the server is away; a wait without limit ends when it does not come back', async () => {
      const impatient = new Locks(client, { patience: 1500 });
      try {
        assert.equal(await server.admin.call('LOCK.ACQUIRE', 'k', 'somebody', 'PX', '60000'), 1);
        const wait = impatient.acquire('k');
        await until(async () => (await server.waiters('k')) === 1);
        server.process.kill('SIGKILL');
        await once(server.process, 'exit');
        await server.run();
        await (await wait).release();
        server.process.kill('SIGKILL');
        await once(server.process, 'exit');
        await assert.rejects(impatient.acquire('k'), UnavailableError);
        await assert.rejects(impatient.tryAcquire('k'), UnavailableError);
      } finally {
        await impatient.close();
      }
    });

    test('an acquire that is sent again after its hold ended is no hold', async () => {
      await locks.request('other', () => undefined);
      proxy.shutsThen = true;
      for (const options of [{}, { wait: 0 }, { lease: 60_000 }, { lease: 60_000, wait: 0 }]) {
        const before = proxy.happened;
        proxy.cutReplyOf = 'LOCK.ACQUIRE';
        const acquire = locks.acquire('k', options);
        // It was granted, and has ended. The same request gets the same reply.
        await until(() => proxy.happened > before);
        await server.admin.call('LOCK.BREAK', 'k');
        proxy.open();
        const hold = await acquire;
        assert.equal(await server.holders('k'), 1);
        await hold.extend();
        await hold.release();
      }
    });

    test('close ends waits and kept holds, and leaves no connection', async () => {
      const somebody = await server.admin.call('LOCK.ACQUIRE', 'w', 'somebody', 'PX', '60000');
      assert.equal(somebody, 1);
      const holds = await Promise.all(['a', 'b', 'c'].map((key) => locks.acquire(key)));
      const waits = [1, 2, 3].map(() => locks.acquire('w').catch((error) => error.kind));
      await until(async () => (await server.waiters('w')) === 3);
      await locks.close();
      assert.deepEqual(await Promise.all(waits), ['unavailable', 'unavailable', 'unavailable']);
      await until(() => holds.every(({ signal }) => signal.aborted));
      await until(async () => (await server.waiters('w')) === 0 && (await server.isEmpty('a')));
      await until(async () => (await server.connections()).length === 1, 'the end of the connections');
      await assert.rejects(locks.acquire('a'), UnavailableError);
      await assert.rejects(holds[0].release(), LostError);
      await locks.close();
    });

    test('close ends what is held while there is no connection', async () => {
      const hold = await locks.acquire('k', { lease: 60_000 });
      proxy.close();
      await until(async () => (await server.connections()).length === 0);
      await sleep(20);
      await locks.close();
      await until(() => hold.signal.aborted, 'its end', 1000);
      await assert.rejects(hold.release(), LostError);
    });

    test('close while it connects leaves no connection', async () => {
      const wait = locks.acquire('a').catch((error) => error.kind);
      await locks.close();
      assert.equal(await wait, 'unavailable');
      await until(async () => (await server.connections()).length === 1, 'the end of the connections');
      await sleep(100);
      assert.equal((await server.connections()).length, 1);
    });

    for (const [what, ends] of [
      ['a process ends by itself when nothing is held or waited for', true],
      ['a process that is told of a close ends', true],
      ['a process goes on while something is held', false],
      ['a process goes on while something is waited for', false],
    ]) {
      test(what, async () => {
        await server.admin.call('LOCK.ACQUIRE', 'taken', 'somebody', 'PX', '60000');
        const script = fileURLToPath(new URL('child.mjs', import.meta.url));
        const child = spawn(process.execPath, [script, name, String(server.port), what]);
        try {
          await once(child.stdout, 'data');
          const ended = once(child, 'exit');
          if (ends) {
            const [code] = await Promise.race([ended, sleep(5000, ['it does not end'], { ref: false })]);
            assert.equal(code, 0);
          } else {
            await Promise.race([ended.then(() => assert.fail('it ended')), sleep(1500)]);
            child.kill('SIGKILL');
            await ended;
            await until(async () => (await server.holders('k')) === 0 && (await server.waiters('taken')) === 0, 'its end', 1000);
          }
        } finally {
          child.kill('SIGKILL');
        }
      });
    }
  });
}
