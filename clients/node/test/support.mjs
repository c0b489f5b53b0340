// SPDX-License-Identifier: MIT

// Real servers, a proxy that breaks and freezes connections, and both client libraries.

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
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
    if (performance.now() > deadline) throw new Error(`${what} does not happen`);
    await sleep(5);
  }
}

/** Blocks the event loop. */
export function blockFor(ms) {
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
  static async start({ hasModule = true, more = [] } = {}) {
    const server = new Server();
    server.more = [...(hasModule ? ['--loadmodule', MODULE] : []), ...more];
    server.folder = mkdtempSync(join(tmpdir(), 'redis-lock-node-'));
    for (let attempt = 0; attempt < 5; attempt++) {
      server.port = await freePort();
      await server.run();
      if (server.process.exitCode === null) return server;
      // Another process may have taken the port meanwhile.
    }
    throw new Error('redis-server does not start');
  }

  async run() {
    const words = `--port ${this.port} --bind 127.0.0.1 --dir ${this.folder}`.split(' ');
    this.process = spawn('redis-server', [...words, '--save', '', ...this.more], { stdio: 'ignore' });
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

  /** Writes each change to a file, so that a restart keeps it. */
  async persist() {
    await this.admin.config('SET', 'appendfsync', 'always');
    await this.admin.config('SET', 'appendonly', 'yes');
    await until(async () => (await this.admin.info('persistence')).includes('aof_rewrite_in_progress:0'), 'the first file');
    this.more.push('--appendonly', 'yes');
  }

  /** Accepts TLS as well. Returns the port and the certificate. */
  async serveTls() {
    const [key, certificate] = [join(this.folder, 'key'), join(this.folder, 'certificate')];
    const words = 'req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1';
    execFileSync('openssl', [...words.split(' '), '-keyout', key, '-out', certificate], { stdio: 'ignore' });
    const settings = { 'key-file': key, 'cert-file': certificate, 'ca-cert-file': certificate, 'auth-clients': 'no' };
    const port = await freePort();
    for (const [name, value] of Object.entries({ ...settings, port })) await this.admin.config('SET', `tls-${name}`, value);
    return { port, certificate: readFileSync(certificate) };
  }

  async kill(signal = 'SIGKILL') {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    this.process.kill(signal);
    await once(this.process, 'exit');
  }

  async restart() {
    await this.kill();
    await this.run();
  }

  async stop() {
    this.admin.disconnect();
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Number of holders. */
  async holders(key) {
    return (fields(await this.admin.call('LOCK.INFO', key)).holders ?? []).length;
  }

  async ttl(key) {
    return fields(await this.admin.call('LOCK.INFO', key)).ttl;
  }

  async waiters(key) {
    return (await this.admin.call('LOCK.WAITERS', key, 'COUNT', '100000')).length;
  }

  /** Whether the lock has neither holders nor waiters. */
  async isEmpty(key) {
    return (await this.holders(key)) === 0 && (await this.waiters(key)) === 0;
  }

  /** The ids of all connections except this one. */
  async connections() {
    const [list, own] = await Promise.all([this.admin.client('LIST'), this.admin.client('ID')]);
    const ids = list.split('\n').filter(Boolean).map((line) => /^id=(\d+)/.exec(line)[1]);
    return ids.filter((id) => id !== String(own));
  }

  /** Allows or refuses writes. */
  async writes(yes) {
    await this.admin.config('SET', 'min-replicas-to-write', yes ? 0 : 1);
  }

  /** A number from INFO. */
  async number(name) {
    return Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(await this.admin.info())[1]);
  }

  /** Number of calls of a command that failed or were refused. */
  async refused(command) {
    const [, refused, failed] = new RegExp(`cmdstat_${command}:.*rejected_calls=(\\d+),failed_calls=(\\d+)`)
      .exec(await this.admin.info('commandstats'));
    return Number(refused) + Number(failed);
  }

  /** Number of calls of a command. */
  async calls(command) {
    const info = await this.admin.info('commandstats');
    return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(info)?.[1] ?? 0);
  }
}

/** Passes bytes on, and breaks or freezes connections. */
export class Proxy {
  #pairs = new Set();
  /** Connections that were made so far. */
  made = 0;

  static async to(port) {
    const proxy = new Proxy();
    proxy.server = net.createServer({ allowHalfOpen: true }, (near) => proxy.#join(near, net.connect(port, '127.0.0.1')));
    proxy.server.listen(0, '127.0.0.1');
    await once(proxy.server, 'listening');
    proxy.port = proxy.server.address().port;
    return proxy;
  }

  #join(near, far) {
    const pair = { near, far, isFrozen: this.isFrozen };
    this.made += 1;
    this.#pairs.add(pair);
    const end = () => {
      near.destroy();
      far.destroy();
      this.#pairs.delete(pair);
    };
    for (const one of [near, far]) one.on('error', end).on('close', end);
    near.on('end', () => pair.isFrozen || end());
    near.on('data', (data) => pair.isFrozen || far.write(data));
    far.on('data', (data) => pair.isFrozen || near.write(data));
  }

  /** Present and new connections pass nothing on. */
  freeze() {
    this.isFrozen = true;
    for (const pair of this.#pairs) pair.isFrozen = true;
  }

  /** New connections pass bytes on, and frozen ones break. */
  thaw() {
    this.isFrozen = false;
    this.cut();
  }

  get connections() {
    return this.#pairs.size;
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

/** Makes and ends a client of each library. */
export const LIBRARIES = {
  ioredis: {
    async connect(port, options = {}) {
      const client = new Redis({ port, host: '127.0.0.1', ...options });
      client.on('error', () => undefined);
      return client;
    },
    end: (client) => client.disconnect(),
    tls: (ca) => ({ tls: { ca } }),
    strange: { keyPrefix: 'p:', commandTimeout: 20, stringNumbers: true, enableAutoPipelining: true, maxRetriesPerRequest: 1 },
  },
  'node-redis': {
    async connect(port, options = {}) {
      const client = createClient({ ...options, socket: { port, host: '127.0.0.1', ...options.socket } });
      client.on('error', () => undefined);
      await client.connect();
      return client;
    },
    end: (client) => client.destroy(),
    tls: (ca) => ({ socket: { tls: true, ca } }),
    strange: {
      RESP: 3, commandsQueueMaxLength: 10, disableOfflineQueue: true, pingInterval: 20,
      commandOptions: { timeout: 20, typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer, [RESP_TYPES.NUMBER]: String } },
    },
  },
};
