// SPDX-License-Identifier: MIT

// Real servers, a proxy that cuts and freezes, and both client libraries.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { createClient, RESP_TYPES } from 'redis';

const MODULE = process.env.REDIS_LOCK_MODULE;
if (MODULE === undefined) throw new Error('REDIS_LOCK_MODULE must name the module');

export async function until(condition, what = 'it', ms = 10_000) {
  const deadline = performance.now() + ms;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`${what} does not come about`);
    await sleep(5);
  }
}

/** Keeps the event loop as busy as it can be. */
export function busyFor(ms) {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

export function fields(reply) {
  return Object.fromEntries((reply ?? []).flatMap((name, at) => (at % 2 === 0 ? [[name, reply[at + 1]]] : [])));
}

export async function freePort() {
  const probe = net.createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

export class Server {
  static async start() {
    const server = new Server();
    server.folder = mkdtempSync(join(tmpdir(), 'redis-lock-node-'));
    for (let attempt = 0; attempt < 5; attempt++) {
      server.port = await freePort();
      await server.run();
      if (server.process.exitCode === null) return server;
      // Somebody else may have taken the port meanwhile.
    }
    throw new Error('redis-server does not start');
  }

  async run() {
    const words = `--port ${this.port} --bind 127.0.0.1 --dir ${this.folder}`.split(' ');
    this.process = spawn('redis-server', [...words, '--save', '', '--loadmodule', MODULE], { stdio: 'ignore' });
    this.admin?.disconnect();
    this.admin = new Redis({ port: this.port, host: '127.0.0.1', retryStrategy: () => 20, maxRetriesPerRequest: null });
    this.admin.on('error', () => undefined);
    let isOurs = false;
    const find = async () => {
      const info = await this.admin.info('server');
      isOurs = info.includes(`process_id:${this.process.pid}\r`);
    };
    void find().catch(() => undefined);
    await until(() => isOurs || this.process.exitCode !== null, 'a server');
  }

  async stop() {
    this.admin.disconnect();
    if (this.process.exitCode === null && this.process.signalCode === null) {
      this.process.kill('SIGKILL');
      await once(this.process, 'exit');
    }
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** How many hold it. */
  async holders(key) {
    return (fields(await this.admin.call('LOCK.INFO', key)).holders ?? []).length;
  }

  async ttl(key) {
    return fields(await this.admin.call('LOCK.INFO', key)).ttl;
  }

  async waiters(key) {
    return (await this.admin.call('LOCK.WAITERS', key, 'COUNT', '100000')).length;
  }

  /** Neither holds nor waiters nor queued waits. */
  async isEmpty(key) {
    return (await this.holders(key)) === 0 && (await this.waiters(key)) === 0;
  }

  /** Ids of all connections but this one's. */
  async connections() {
    const [list, own] = await Promise.all([this.admin.client('LIST'), this.admin.client('ID')]);
    const ids = list.split('\n').filter(Boolean).map((line) => /^id=(\d+)/.exec(line)[1]);
    return ids.filter((id) => id !== String(own));
  }

  /** Whether it carries out what changes something. */
  async writes(yes) {
    await this.admin.config('SET', 'min-replicas-to-write', yes ? 0 : 1);
  }

  /** A number of what INFO says. */
  async number(name) {
    return Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(await this.admin.info())[1]);
  }

  /** How often a command was called. */
  async calls(command) {
    const info = await this.admin.info('commandstats');
    return Number(new RegExp(`cmdstat_${command.toLowerCase()}:calls=(\\d+)`).exec(info)?.[1] ?? 0);
  }
}

/** Passes bytes on, but for those of replies that are to be lost. */
export class Proxy {
  #pairs = new Set();
  #held = [];
  cutReplyOf = undefined;
  frozen = false;
  happened = 0;
  /** How many connections ended with a reset. */
  resets = 0;
  /** What clients have said. */
  heard = '';
  /** What of that was said on connections that are frozen. */
  unheard = '';
  /** Whether new connections wait for `open` from then on. */
  shutsThen = false;
  #isShut = false;

  static async to(port) {
    const proxy = new Proxy();
    proxy.server = net.createServer({ allowHalfOpen: true }, (near) => proxy.#join(near, net.connect(port, '127.0.0.1')));
    proxy.server.listen(0, '127.0.0.1');
    await once(proxy.server, 'listening');
    proxy.port = proxy.server.address().port;
    return proxy;
  }

  #join(near, far) {
    const pair = { near, far, isCut: false, isFrozen: false, isForMessages: false };
    this.#pairs.add(pair);
    if (this.#isShut) this.#held.push(near.pause());
    const end = () => {
      near.destroy();
      far.destroy();
      this.#pairs.delete(pair);
    };
    for (const one of [near, far]) one.on('error', end).on('close', end);
    near.on('error', ({ code }) => (this.resets += code === 'ECONNRESET' ? 1 : 0));
    // Whoever hears nothing does not hear the end either.
    near.on('end', () => this.frozen || pair.isFrozen || end());
    near.on('data', (data) => {
      this.heard += data;
      pair.isForMessages ||= /subscribe/i.test(data);
      if (pair.isFrozen) this.unheard += data;
      if (this.frozen || pair.isFrozen) return;
      if (this.cutReplyOf !== undefined && data.includes(this.cutReplyOf)) {
        this.cutReplyOf = undefined;
        pair.isCut = true;
      }
      far.write(data);
    });
    far.on('data', (data) => {
      if (this.frozen || pair.isFrozen) return;
      if (pair.isCut) {
        this.happened += 1;
        this.#isShut = this.shutsThen;
        end();
      } else {
        near.write(data);
      }
    });
  }

  /** The words of each call of a command, since `heard` was emptied. */
  said(command, heard = this.heard) {
    const lines = heard.replaceAll(/\r\n\$\d+\r\n/g, ' ').split('\r\n');
    return lines.map((line) => line.split(' ').slice(1)).filter(([word]) => word === command);
  }

  /** What is connected now hears nothing any more; new connections do. */
  freezeWhatIsThere() {
    for (const pair of this.#pairs) pair.isFrozen = true;
  }

  freezeMessages() {
    for (const pair of this.#pairs) pair.isFrozen ||= pair.isForMessages;
  }

  /** What is connected now hears all, but not before it may. */
  delay(yes) {
    for (const { near, far } of this.#pairs) for (const one of [near, far]) one[yes ? 'pause' : 'resume']();
  }

  open() {
    this.#isShut = false;
    for (const near of this.#held.splice(0)) near.resume();
  }

  /** Breaks all connections. */
  cut() {
    for (const { near, far } of this.#pairs) {
      near.destroy();
      far.destroy();
    }
  }

  close() {
    this.server.close();
    this.cut();
  }
}

/** How a client of each library is made, and ended. */
export const LIBRARIES = {
  ioredis: {
    async connect(port, options = {}) {
      const client = new Redis({ port, host: '127.0.0.1', ...options });
      client.on('error', () => undefined);
      return client;
    },
    end: (client) => client.disconnect(),
    strange: { keyPrefix: 'p:', commandTimeout: 20, stringNumbers: true, enableAutoPipelining: true, maxRetriesPerRequest: 1 },
  },
  'node-redis': {
    async connect(port, options = {}) {
      const client = createClient({ socket: { port, host: '127.0.0.1' }, ...options });
      client.on('error', () => undefined);
      await client.connect();
      return client;
    },
    end: (client) => client.destroy(),
    strange: {
      RESP: 3, commandsQueueMaxLength: 10, disableOfflineQueue: true, pingInterval: 20,
      commandOptions: { timeout: 20, typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer, [RESP_TYPES.NUMBER]: String } },
    },
  },
};
