// SPDX-License-Identifier: MIT

// What must not come late, or must go on for long, when something breaks, with each library.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { Locks } from '@redis-lock/client';
import { fields, LIBRARIES, Proxy, Server, until } from './support.mjs';

for (const [name, library] of Object.entries(LIBRARIES)) {
  describe(name, () => {
    let server, proxy, client, locks, impatient;

    beforeEach(async () => {
      server = await Server.start();
      proxy = await Proxy.to(server.port);
      client = await library.connect(proxy.port);
      locks = new Locks(client);
      impatient = new Locks(client, { patience: 400 });
    });

    afterEach(async () => {
      server.process.kill('SIGCONT');
      await locks.close();
      await impatient.close();
      library.end(client);
      proxy.close();
      await server.stop();
    });

    const taken = async (key) => assert.equal(await server.admin.call('LOCK.ACQUIRE', key, 'somebody', 'PX', '60000'), 1);
    const free = (key) => server.admin.call('LOCK.RELEASE', key, 'somebody');
    /** Those for messages, and those on which a wait is, are of another kind. */
    const killCommands = async () => {
      const list = (await server.admin.client('LIST')).split('\n').filter((line) => / flags=N /.test(line) && !/ cmd=client/.test(line));
      for (const [id] of list.map((line) => line.match(/\d+/))) await server.admin.client('KILL', 'ID', id);
    };
    const may = (...rights) => server.admin.call('ACL', 'SETUSER', 'default', ...rights);

    test('what is given up or cancelled is reset; who closes ends in order', async () => {
      await taken('k');
      const abort = new AbortController();
      const cancelled = locks.acquire('k', { ownConnection: true, signal: abort.signal });
      await until(async () => (await server.waiters('k')) === 1);
      abort.abort();
      await assert.rejects(cancelled, { kind: 'cancelled' });
      await until(async () => (await server.waiters('k')) === 0);
      await until(() => proxy.resets > 0, 'the end of its connection');
      await locks.close();
      await impatient.request('other', () => undefined);
      assert.equal(proxy.resets, 1);
      proxy.freezeWhatIsThere();
      // It is sent again.
      await impatient.request('other', () => undefined);
      assert.equal(proxy.resets, 3);
      const wait = impatient.acquire('k', { ownConnection: true });
      await until(async () => (await server.waiters('k')) === 1);
      const before = proxy.resets;
      proxy.freezeWhatIsThere();
      await until(() => proxy.resets >= before + 3, 'the end of the own connection and of the two');
      await free('k');
      await (await wait).release();
    });

    test('a renewal binds only what is not bound', async () => {
      const renewals = () => proxy.said('LOCK.RENEW').map((words) => words.slice(3).join(' '));
      const binds = () => renewals().filter((words) => words.endsWith('EPHEMERAL')).length;
      const hold = await locks.acquire('k', { lease: 900, keep: true, maxHold: 60_000 });
      await until(() => renewals().length >= 2);
      await hold.extend(800);
      assert.deepEqual([...new Set(renewals())], ['PX 900', 'PX 800']);
      proxy.shutsThen = true;
      proxy.cutReplyOf = 'LOCK.INFO';
      await assert.rejects(locks.query('k'), { kind: 'unavailable' });
      await until(() => server.isEmpty('k'));
      // As if the server had seen no end.
      assert.equal(await server.admin.call('LOCK.ACQUIRE', 'k', hold.owner), 1);
      proxy.heard = '';
      proxy.open();
      await until(() => hold.validFor > 0, 'its renewal', 1000);
      await until(() => renewals().length >= 3);
      assert.match(renewals()[0], /^PX 800 WATCHDOG MAX \d+ EPHEMERAL$/);
      assert.equal(binds(), 1);
      await hold.release();
      proxy.heard = '';
      const own = await locks.acquire('k', { lease: 900, keep: true, ownConnection: true });
      await until(() => renewals().length >= 2);
      assert.equal(binds(), 1);
      await own.release();
    });

    test('a shorter lease counts before its reply is there', async () => {
      for (const keep of [false, true]) {
        const hold = await locks.acquire('k', { lease: 60_000, keep });
        proxy.shutsThen = true;
        proxy.cutReplyOf = 'LOCK.RENEW';
        const extension = hold.extend(300).catch(({ kind }) => kind);
        await until(() => hold.signal.aborted, 'its end', 1500);
        proxy.open();
        assert.match(String(await extension), /lost|unavailable/);
        await until(() => server.isEmpty('k'));
      }
    });

    test('a shorter lease counts when it is sent again, too', async () => {
      const hold = await locks.acquire('k', { lease: 60_000 });
      const real = globalThis.setTimeout;
      // The first pause of what is sent again.
      globalThis.setTimeout = (work, ms, ...rest) => real(work, ms === 50 ? 2000 : ms, ...rest);
      try {
        proxy.cutReplyOf = '\r\n1500\r\n';
        const shorter = hold.extend(1500).catch(({ kind }) => kind);
        await until(() => proxy.happened === 1);
        await hold.extend(60_000);
        assert.ok(hold.validFor > 50_000);
        proxy.shutsThen = true;
        proxy.cutReplyOf = '\r\n1500\r\n';
        await until(() => proxy.happened === 2, 'the second of the shorter ones');
        await until(() => hold.signal.aborted, 'its end');
        assert.equal(await shorter, 'lost');
      } finally {
        globalThis.setTimeout = real;
        proxy.open();
      }
    });

    test('a shorter lease counts beside a longer one, also if it is no shorter than the last', async () => {
      const hold = await impatient.acquire('k', { lease: 30_000 });
      server.process.kill('SIGSTOP');
      const extends_ = (lease) => {
        const extension = hold.extend(lease);
        return until(() => proxy.heard.includes(String(lease))).then(() => ({ extension }));
      };
      const longer = await extends_(90_000);
      // As if the server had it, and no reply came.
      proxy.frozen = true;
      const shorter = await extends_(60_000);
      proxy.frozen = false;
      server.process.kill('SIGCONT');
      await longer.extension;
      assert.ok(hold.validFor <= 60_000, `${hold.validFor}`);
      await shorter.extension;
      assert.ok(hold.validFor > 50_000 && hold.validFor <= 60_000);
      await hold.release();
    });

    test('an extension whose reply is lost leaves nothing', async () => {
      for (const owner of [undefined, 'me']) {
        const hold = await locks.acquire('k', { lease: 1000, owner });
        proxy.shutsThen = true;
        proxy.cutReplyOf = 'LOCK.RENEW';
        const extension = hold.extend(60_000).catch(({ kind }) => kind);
        await until(() => hold.signal.aborted, 'its end');
        assert.equal(await extension, 'lost');
        assert.equal(await server.holders('k'), 1);
        const again = locks.acquire('k', { owner: 'me', wait: 100 });
        await assert.rejects(again, { kind: 'unavailable', message: owner ? /given back/ : /./ });
        proxy.open();
        await until(() => server.isEmpty('k'), 'its end');
        await assert.rejects(hold.release(), { kind: 'lost' });
      }
    });

    test('a late grant is given back, or runs out, also if LOCK.CANCEL is not permitted', async () => {
      for (const rights of [['-lock.cancel'], ['-lock.cancel', '-lock.release']]) {
        await may(...rights);
        await locks.query('k');
        const before = await server.calls('lock.acquire');
        server.process.kill('SIGSTOP');
        await assert.rejects(locks.tryAcquire('k', { lease: 600, keep: true }), { kind: 'unavailable' });
        server.process.kill('SIGCONT');
        await until(async () => (await server.calls('lock.acquire')) > before);
        await until(() => server.isEmpty('k'), 'its end');
      }
    });

    test('who may not acquire leaves nothing to give back', async () => {
      await may('resetkeys', '~allowed');
      for (const owner of [undefined, 'me']) {
        const options = owner === undefined ? { keep: true } : { keep: true, owner };
        await assert.rejects(locks.acquire('forbidden', options), { kind: 'misuse' });
      }
      // What is sent now comes behind what would give it back.
      await locks.tryAcquire('allowed');
      assert.equal(proxy.said('LOCK.RELEASE').length, 0);
    });

    test('who may not cancel gives back nothing that its owner has by another call', async () => {
      await may('-lock.cancel');
      const hold = await locks.acquire('k', { lease: 60_000, owner: 'me' });
      await assert.rejects(locks.acquire('k', { owner: 'me', wait: 50 }), { kind: 'timed out' });
      // What is sent now comes behind what would give it back.
      await locks.query('k');
      assert.equal(await server.calls('lock.release'), 0);
      await hold.release();
    });

    test('a connection on which a call is too old is given up, also if nobody waits for that any more', async () => {
      const patient = new Locks(client, { patience: 1500 });
      try {
        await patient.request('other', () => undefined);
        proxy.freezeWhatIsThere();
        await assert.rejects(patient.tryAcquire('k'), { kind: 'unavailable' });
        await until(() => proxy.resets > 0, 'the end of its connection');
        // The second comes a second later.
        assert.equal(proxy.said('LOCK.CANCEL', proxy.unheard).length, 1);
      } finally {
        await patient.close();
      }
    });

    test('a wait on an own connection finds that this died with that for commands', async () => {
      const isNew = () => impatient.query('k').then(() => true, () => false);
      const own = () => impatient.acquire('k', { lease: 60_000, ownConnection: true });
      const inTime = (wait) => Promise.race([wait, sleep(5000).then(() => assert.fail('it hangs'))]);
      await (await own()).release();
      // The connection that is kept for the next wait.
      proxy.freezeWhatIsThere();
      await until(isNew);
      await (await inTime(own())).release();
      await taken('k');
      const wait = own();
      await until(async () => (await server.waiters('k')) === 1);
      proxy.freezeWhatIsThere();
      await until(isNew);
      await free('k');
      await (await inTime(wait)).release();
    });

    test('an answer on a younger connection says nothing about that of a wait', async () => {
      await taken('k');
      const wait = impatient.acquire('k', { lease: 60_000, ownConnection: true });
      await until(async () => (await server.waiters('k')) === 1);
      // So the next question of this wait makes the connection for commands anew.
      await killCommands();
      proxy.freezeWhatIsThere();
      await free('k');
      await (await wait).release();
    });

    test('a wait on an own connection keeps its place when the connection for commands is made anew', async () => {
      await taken('k');
      const wait = impatient.acquire('k', { lease: 60_000, ownConnection: true });
      await until(async () => (await server.waiters('k')) === 1);
      const behind = locks.acquire('k', { lease: 60_000 });
      await until(async () => (await server.waiters('k')) === 2);
      const owners = async () => (await server.admin.call('LOCK.WAITERS', 'k')).map((one) => fields(one).owner);
      const ids = async () => (await server.admin.call('LOCK.WAITERS', 'k')).map((one) => fields(one).client);
      const [order, [own]] = [await owners(), await ids()];
      await killCommands();
      await until(async () => (await ids())[0] !== own, 'another own connection');
      await until(async () => !(await server.connections()).includes(String(own)), 'the old one is gone');
      assert.deepEqual(await owners(), order);
      await free('k');
      await (await wait).release();
      await (await behind).release();
    });

    test('a wait on an own connection keeps its place when only that for commands falls silent', async () => {
      await taken('k');
      await (await impatient.acquire('other')).release();
      proxy.freezeWhatIsThere();
      const wait = impatient.acquire('k', { lease: 60_000, ownConnection: true });
      await until(async () => (await server.waiters('k')) === 1);
      const behind = locks.acquire('k', { lease: 60_000 });
      await until(async () => (await server.waiters('k')) === 2);
      const ids = async () => (await server.admin.call('LOCK.WAITERS', 'k')).map((one) => fields(one).client);
      const [own, other] = await ids();
      await until(async () => !(await ids()).includes(own), 'another own connection');
      assert.equal((await ids())[1], other);
      await free('k');
      await (await wait).release();
      await (await behind).release();
    });

    test('a wait whose call comes again late goes on', async () => {
      await taken('k');
      proxy.heard = '';
      const wait = impatient.acquire('k', { lease: 60_000, ownConnection: true });
      await until(async () => (await server.waiters('k')) === 1);
      // As if a proxy had it yet.
      await assert.rejects(server.admin.call(...proxy.said('LOCK.ACQUIRE')[0]), /was sent again/);
      await free('k');
      await (await wait).release();
    });

    test('close leaves nothing of what was being acquired or given back', async () => {
      for (let turn = 0; turn < 40; turn++) {
        const closing = new Locks(client);
        await (await closing.acquire('other')).release();
        const how = { lease: 600_000, ownConnection: turn % 4 === 1 };
        const abort = new AbortController();
        const work = turn % 4 === 0 ? (await closing.acquire(`k${turn}`, how)).release() : closing.acquire(`k${turn}`, { ...how, signal: abort.signal });
        const over = Promise.allSettled([work]);
        for (let step = 0; step < turn / 4; step++) await nextTurn();
        if (turn % 4 > 1) abort.abort();
        await closing.close();
        const [{ status }] = await over;
        if (turn % 4 > 0 && status === 'fulfilled') continue;
        await until(async () => (await server.admin.call('EXISTS', `k${turn}`)) === 0, `the end of k${turn}`);
      }
    });

    test('a grant ends what its owner had before', async () => {
      const old = await locks.acquire('k', { lease: 60_000, owner: 'me' });
      await server.admin.call('LOCK.BREAK', 'k');
      const hold = await locks.acquire('k', { lease: 60_000, owner: 'me' });
      assert.ok(old.signal.aborted && !hold.signal.aborted);
      await assert.rejects(old.release(), { kind: 'lost' });
      await hold.guard('PING');
      await hold.release();
      // Of readers, each counts.
      const [one, other] = [await locks.acquire('k', { mode: 'shared', owner: 'me' }), await locks.acquire('k', { mode: 'shared', owner: 'me' })];
      assert.ok(!one.signal.aborted);
      await one.release();
      await other.release();
      assert.ok(await server.isEmpty('k'));
    });

    test('what may have ended with its connection is not handed over', async () => {
      const hold = await impatient.acquire('k', { lease: 2000, keep: true });
      server.process.kill('SIGKILL');
      await until(() => hold.validFor === 0, 'the end of the connection');
      await assert.rejects(hold.handOver(), (error) => ['lost', 'unavailable'].includes(error.kind));
    });

    test('silence on a new connection for messages ends no wait on an own connection', async () => {
      const patient = new Locks(client, { patience: 1500 });
      try {
        await taken('k');
        const wait = patient.acquire('k', { lease: 60_000, ownConnection: true });
        await until(async () => (await server.waiters('k')) === 1);
        const waiters = async () => (await server.admin.call('LOCK.WAITERS', 'k')).map((one) => fields(one).client);
        const before = await waiters();
        proxy.frozen = true;
        const other = patient.acquire('other');
        await until(() => proxy.resets > 0, 'the end of that for messages');
        proxy.frozen = false;
        await (await other).release();
        assert.deepEqual(await waiters(), before);
        await free('k');
        await (await wait).release();
      } finally {
        await patient.close();
      }
    });

    test('attach is tried again on the next connection', async () => {
      for (const keep of [false, true]) {
        const { owner } = await locks.acquire('k', { lease: 60_000 });
        await impatient.request('other', () => undefined);
        proxy.freezeWhatIsThere();
        await (await impatient.attach('k', owner, { lease: 60_000, keep })).release();
        assert.ok(await server.isEmpty('k'));
      }
    });

    test('what is kept for long is renewed every ten seconds', async () => {
      const real = globalThis.setTimeout;
      globalThis.setTimeout = (work, ms, ...rest) => real(work, ms > 9000 && ms <= 10_000 ? 20 : ms, ...rest);
      try {
        const hold = await locks.acquire('k', { lease: 3_600_000, keep: true });
        await until(() => proxy.said('LOCK.RENEW').length > 1, 'renewals');
        await hold.release();
      } finally {
        globalThis.setTimeout = real;
      }
    });

    test('what could not be given back is, when that is permitted again', async () => {
      for (const keep of [false, true]) {
        const hold = await locks.acquire('k', { lease: 60_000, keep });
        await may('-lock.release', '-lock.renew');
        await assert.rejects(hold.release(), { kind: 'misuse' });
        await sleep(300);
        await may('+lock.release', '+lock.renew');
        await until(() => server.isEmpty('k'), 'its end', 2500);
      }
    });

    test('a wait that was given up ends when the server writes again, also after a lease', async () => {
      await taken('k');
      const abort = new AbortController();
      const wait = locks.acquire('k', { lease: 200, signal: abort.signal });
      await until(async () => (await server.waiters('k')) === 1);
      await server.writes(false);
      abort.abort();
      await assert.rejects(wait, { kind: 'cancelled' });
      await sleep(1000);
      await server.writes(true);
      await until(async () => (await server.waiters('k')) === 0, 'the end of the wait', 2500);
    });

    test('a release keeps nobody waiting for an hour', async () => {
      const short = await locks.acquire('short', { lease: 1000 });
      server.process.kill('SIGSTOP');
      const began = performance.now();
      await assert.rejects(short.release(), { kind: 'lost' });
      assert.ok(performance.now() - began < 3000, 'nor much longer than its lease');
      server.process.kill('SIGCONT');
      const hold = await locks.acquire('k', { lease: 3_600_000 });
      await server.writes(false);
      let isOver = false;
      const release = hold.release().finally(() => (isOver = true));
      await Promise.all([
        assert.rejects(release, { kind: 'unavailable' }),
        (async () => {
          await sleep(300);
          assert.equal(isOver, false);
          const real = performance.now;
          performance.now = () => real.call(performance) + 30_000;
          await sleep(700);
          performance.now = real;
          assert.equal(isOver, true);
          await server.writes(true);
        })(),
      ]);
      await until(() => server.isEmpty('k'), 'its end', 2500);
    });

    test('a primary that waits for its replicas is waited for, on the same connection', async () => {
      await (await locks.acquire('k')).release();
      const before = await server.connections();
      const [made, own] = [await server.number('total_connections_received'), { wait: 5000, ownConnection: true }];
      await server.writes(false);
      const waits = [{ wait: 5000 }, { lease: 60_000 }, own].map((options) => locks.acquire('k', options));
      const late = assert.rejects(locks.acquire('k', { wait: 300 }), { kind: 'unavailable', message: /NOREPLICAS/ });
      await sleep(600);
      const after = await server.connections();
      assert.deepEqual(before.filter((id) => !after.includes(id)), []);
      assert.equal(await server.number('total_connections_received'), made + 1, 'only its own');
      await late;
      await server.writes(true);
      await Promise.all(waits.map((wait) => wait.then((hold) => hold.release())));
      await server.writes(false);
      const stats = () => server.admin.info('commandstats');
      const rejected = async () => Number(/lock\.acquire:.*rejected_calls=(\d+)/.exec(await stats())[1]);
      const sent = await rejected();
      await assert.rejects(locks.tryAcquire('k'), { kind: 'unavailable', message: /NOREPLICAS/ });
      assert.equal(await rejected(), sent + 2, 'a try is sent again once');
      await assert.rejects(impatient.acquire('k'), { kind: 'unavailable', message: /NOREPLICAS/ });
      await server.writes(true);
    });

    test('who is told that another server has the locks makes no storm of connections', async () => {
      const warnings = [];
      const warn = (warning) => warnings.push(String(warning));
      process.on('warning', warn);
      try {
        const holds = await Promise.all(Array.from({ length: 30 }, (_, nr) => locks.acquire(`h${nr}`, { keep: true })));
        await taken('k');
        const waits = Array.from({ length: 30 }, (_, nr) => locks.acquire('k', { wait: 20_000, ownConnection: nr % 10 === 0 }));
        let isOver = false;
        const tries = Array.from({ length: 10 }, async () => {
          while (!isOver) await locks.tryAcquire('other').then((hold) => hold?.release()).catch(() => sleep(5));
        });
        await until(async () => (await server.waiters('k')) === 30);
        const before = await server.number('total_connections_received');
        await server.admin.call('REPLICAOF', '127.0.0.1', '1');
        const answers = Promise.allSettled(holds.map((hold) => hold.guard('PING')));
        await sleep(2000);
        const made = (await server.number('total_connections_received')) - before;
        assert.ok(made > 2 && made < 40, `${made} connections`);
        isOver = true;
        await answers;
        await server.admin.call('REPLICAOF', 'NO', 'ONE');
        await free('k');
        await Promise.all(tries);
        await Promise.all(waits.map((wait) => wait.then((hold) => hold.release())));
        await Promise.allSettled(holds.map((hold) => hold.release()));
      } finally {
        process.off('warning', warn);
      }
      assert.deepEqual(warnings, []);
    });

    test('a connection for messages that died silently is found, and costs a short lease nothing', async () => {
      await taken('k');
      const wait = impatient.acquire('k', { lease: 400 });
      await until(async () => (await server.waiters('k')) === 1);
      // It asks again and again, and finds all well.
      await sleep(700);
      assert.equal(proxy.resets, 0);
      proxy.freezeMessages();
      const began = performance.now();
      await free('k');
      await (await wait).release();
      assert.ok(performance.now() - began < 1000);
      await taken('k');
      const next = impatient.acquire('k', { lease: 400 });
      await until(() => proxy.resets > 0, 'the end of the connection', 2000);
      // Only that one.
      assert.equal(proxy.resets, 1);
      await free('k');
      await (await next).release();
    });

    test('a command that says NOTOWNER of another lock loses nothing', async () => {
      for (const keep of [false, true]) {
        const hold = await locks.acquire('k', { lease: 20_000, keep });
        await sleep(50);
        const words = ['EVAL', 'return redis.error_reply(ARGV[1])', '0', 'NOTOWNER of another'];
        await assert.rejects(hold.guard(...words), { kind: 'lost', message: /of another/ });
        assert.equal(hold.signal.aborted, false);
        assert.ok(hold.validFor > 19_000);
        if (!keep) assert.ok((await server.ttl('k')) <= 19_960, 'its end is the same');
        await hold.release();
        assert.ok(await server.isEmpty('k'));
      }
    });
  });
}
