// SPDX-License-Identifier: MIT

// A real server with the module, and clients of both libraries.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { createClient } from 'redis';

const module = process.env.REDIS_LOCK_MODULE ?? join(dirname(fileURLToPath(import.meta.url)), '../../release/libredis_lock.so');

const freePort = () =>
  new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

/** Waits for a condition, and fails if it does not come. */
export async function until(what, condition) {
  const deadline = performance.now() + 20_000;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`waited in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

export class Server {
  static async start() {
    const server = new Server();
    server.port = await freePort();
    server.dir = mkdtempSync(join(tmpdir(), 'redis-lock-node-'));
    const args = ['--port', server.port, '--bind', '127.0.0.1', '--save', '', '--dir', server.dir, '--loadmodule', module];
    server.process = spawn('redis-server', args.map(String), { stdio: 'ignore' });
    server.admin = new Redis(server.port, '127.0.0.1', { retryStrategy: () => 20 });
    server.admin.on('error', () => undefined);
    await until('the server answers', () => server.admin.call('LOCK.LIST').then(() => true, () => false));
    return server;
  }

  async stop() {
    this.admin.disconnect();
    this.process.kill('SIGCONT');
    this.process.kill('SIGKILL');
    rmSync(this.dir, { recursive: true, force: true });
  }

  /** A client of ioredis or node-redis. */
  async client(library) {
    if (library === 'ioredis') {
      const client = new Redis(this.port, '127.0.0.1', { commandTimeout: 500 });
      client.on('error', () => undefined);
      await client.ping();
      return { client, end: () => client.disconnect() };
    }
    const client = createClient({ socket: { host: '127.0.0.1', port: this.port } });
    client.on('error', () => undefined);
    await client.connect();
    return { client, end: () => client.destroy() };
  }

  async waiters(name) {
    return (await this.admin.call('LOCK.WAITERS', name)).length;
  }

  async connections() {
    return (await this.admin.call('CLIENT', 'LIST')).trim().split('\n').length;
  }

  async info(field) {
    return (await this.admin.info('lock')).match(new RegExp(`^${field}:(\\d+)`, 'm'))?.[1];
  }
}
