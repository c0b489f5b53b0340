// SPDX-License-Identifier: MIT

/** Connections of the user's client library, with the user's options. Only repetitions and time limits are this package's own. */

import { Demoted, errorOf, type LockError, MisuseError, Transient } from './errors.js';
import type { Name, Words } from './request.js';

/** Limit in milliseconds for one call without a reply. Then the call is repeated on another connection. */
export const CALL_TIMEOUT = 2000;

/** The used part of a client of ioredis. */
export interface IoredisLike {
  readonly options?: object | undefined;
  duplicate(options?: object): IoredisLike;
  call(command: string, ...words: Name[]): Promise<unknown>;
  disconnect(): void;
  on(event: string, listener: (...values: unknown[]) => void): unknown;
  readonly stream: { unref?(): unknown; destroy(): unknown } | undefined;
}

/** The used part of a client of node-redis. */
export interface NodeRedisLike {
  readonly isOpen: boolean;
  readonly options?: { socket?: object } | undefined;
  duplicate(options?: object): NodeRedisLike;
  connect(): Promise<unknown>;
  sendCommand(words: readonly Name[]): Promise<unknown>;
  destroy(): void;
  unref(): void;
  on(event: string, listener: (...values: unknown[]) => void): unknown;
}

/** The used part of a cluster client of ioredis. */
export interface IoredisClusterLike {
  readonly isCluster: true;
  nodes(role?: 'master'): IoredisLike[];
}

/** The used part of a cluster client of node-redis. */
export interface NodeRedisClusterLike {
  readonly slots: { readonly master: object }[];
  sendCommand(key: string | undefined, isReadonly: boolean | undefined, words: string[]): Promise<unknown>;
}

/** A client of ioredis 5 or node-redis 5: for one server, for a cluster, or, with ioredis, for Sentinels. */
export type Client = IoredisLike | NodeRedisLike | IoredisClusterLike | NodeRedisClusterLike;

/** One connection of the client library. */
interface Connection {
  send(words: Words): Promise<unknown>;
  close(): void;
  /** Calls back when the calls so far have been written to the socket. */
  afterWrites(callback: () => void): void;
}

/** Opens a connection. `onEnd` may be called several times. */
type Open = (onEnd: (cause: unknown) => void) => Connection;

/** A server, and the way to connect to it. @internal */
export interface Node {
  name: string;
  open: Open;
}

function openIoredis(client: IoredisLike): Open {
  const { connectTimeout = CALL_TIMEOUT } = (client.options ?? {}) as { connectTimeout?: number };
  const options = {
    lazyConnect: true, retryStrategy: () => null, sentinelRetryStrategy: () => null, reconnectOnError: null,
    enableOfflineQueue: true, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0,
    commandTimeout: undefined, socketTimeout: undefined, connectTimeout: Math.min(connectTimeout, CALL_TIMEOUT),
    enableReadyCheck: false, disableClientInfo: true, enableAutoPipelining: false, stringNumbers: false, keyPrefix: '',
  };
  return (onEnd) => {
    const redis = client.duplicate(options);
    let cause: unknown;
    redis.on('error', (error) => (cause = error));
    redis.on('connect', () => redis.stream?.unref?.());
    redis.on('end', () => onEnd(cause ?? new Error('the connection is closed')));
    return {
      send: (words) => redis.call(...(words as [string, ...Name[]])),
      close: () => {
        redis.disconnect();
        redis.stream?.destroy();
      },
      afterWrites: (callback) => callback(),
    };
  };
}

function openNodeRedis(client: NodeRedisLike): Open {
  const options = {
    socket: { connectTimeout: CALL_TIMEOUT, ...client.options?.socket, reconnectStrategy: false, socketTimeout: undefined },
    disableOfflineQueue: false, commandsQueueMaxLength: undefined, commandOptions: undefined, pingInterval: undefined,
    readonly: false, RESP: 2, clientSideCache: undefined, emitInvalidate: undefined, maintNotifications: 'disabled',
    disableClientInfo: true,
  };
  return (onEnd) => {
    const redis = client.duplicate(options);
    let [isConnected, isClosed] = [false, false];
    // node-redis cannot close a socket that is connecting.
    const close = (): void => {
      isClosed = true;
      if (isConnected && redis.isOpen) redis.destroy();
    };
    redis.on('connect', () => {
      isConnected = true;
      if (isClosed) close();
    });
    redis.on('error', onEnd);
    redis.on('end', () => onEnd(new Error('the connection is closed')));
    redis.unref();
    redis.connect().catch(onEnd);
    return { send: (words) => redis.sendCommand(words), close, afterWrites: (callback) => void setImmediate(callback) };
  };
}

/** A connection with its unanswered calls. */
class Wire {
  readonly connection: Connection;
  readonly #unanswered = new Set<(error: LockError) => void>();
  isClosed = false;

  constructor(open: Open) {
    this.connection = open((cause) => this.close(errorOf(cause)));
  }

  call(words: Words, timeout: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const fail = (error: LockError): void => {
        clearTimeout(timer);
        this.#unanswered.delete(fail);
        reject(error);
      };
      // After a busy time of the process, the reply may have arrived: the event loop reads it before `setImmediate`.
      const expire = (): void => void setImmediate(() => {
        if (this.#unanswered.has(fail)) this.close(new Transient(`no reply within ${Math.round(timeout)} ms`));
      });
      const timer = setTimeout(expire, timeout).unref();
      this.#unanswered.add(fail);
      this.connection.send(words).then((reply) => {
        clearTimeout(timer);
        this.#unanswered.delete(fail);
        resolve(reply);
      }, (cause: unknown) => {
        const error = errorOf(cause);
        fail(error);
        // The next connection leads to the new primary.
        if (error instanceof Demoted) this.close(error);
      });
    });
  }

  close(error: LockError): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.connection.close();
    for (const fail of [...this.#unanswered]) fail(error);
  }
}

/** The connections of a session: one for the reader, and one for all other calls. @internal */
export class Io {
  readonly #open: Open;
  #reader: Wire | undefined;
  #caller: Wire | undefined;

  constructor({ open }: Node) {
    this.#open = open;
  }

  /** The reply to a call. Rejects with errors of `errors`. */
  call(words: Words, timeout: number): Promise<unknown> {
    if (this.#caller?.isClosed !== false) this.#caller = new Wire(this.#open);
    return this.#caller.call(words, timeout);
  }

  /** The replies to calls in one round trip. Errors are elements of the list. */
  batch(calls: readonly Words[], timeout: number): Promise<unknown[]> {
    return Promise.all(calls.map((words) => this.call(words, timeout).catch((error: unknown) => error)));
  }

  /** The reply to a call over the connection of the reader. */
  read(words: Words, timeout: number): Promise<unknown> {
    if (this.#reader?.isClosed !== false) this.#reader = new Wire(this.#open);
    return this.#reader.call(words, timeout);
  }

  /** Calls back when the reader's calls so far have been written to its socket. */
  afterReads(callback: () => void): void {
    if (this.#reader === undefined) callback();
    else this.#reader.connection.afterWrites(callback);
  }

  close(): void {
    for (const wire of [this.#reader, this.#caller]) wire?.close(new Transient('the locks are closed'));
  }
}

function slotOf(key: Name): number {
  const bytes = Buffer.from(key as string);
  const open = bytes.indexOf('{');
  const close = bytes.indexOf('}', open + 1);
  let crc = 0;
  for (const byte of open >= 0 && close > open + 1 ? bytes.subarray(open + 1, close) : bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  }
  return crc & 0x3fff;
}

/** Finds the node that serves a key. @internal */
export interface Nodes {
  /** The node of all keys, unless the client is one of a cluster. */
  readonly only: Node | undefined;
  find(key: Name): Promise<Node>;
  /** Asks the cluster which node serves the slot of the key. */
  refresh(key: Name): Promise<unknown>;
  /** A command on the user's own client, with its encodings and hooks. */
  execute(key: Name, words: Words): Promise<unknown>;
}

type Members = Record<string, unknown>;

function single(open: Open, execute: (words: Words) => Promise<unknown>): Nodes {
  const only = { name: '', open };
  return { only, find: async () => only, refresh: async () => undefined, execute: async (_key, words) => execute(words) };
}

interface IoredisCluster {
  readonly status: string;
  readonly slots: (string[] | undefined)[];
  readonly connectionPool: { getInstanceByKey(node: string): IoredisLike | undefined };
  connect(): Promise<void>;
  refreshSlotsCache(callback: () => void): void;
  call(command: string, ...words: Name[]): Promise<unknown>;
}

function ioredisCluster(cluster: IoredisCluster): Nodes {
  const refresh = (): Promise<void> => new Promise((resolve) => cluster.refreshSlotsCache(resolve));
  const find = async (key: Name): Promise<Node> => {
    if (cluster.status === 'wait') await cluster.connect();
    const name = (): string => cluster.slots[slotOf(key)]?.[0] ?? '';
    if (name() === '') await refresh();
    const client = cluster.connectionPool.getInstanceByKey(name());
    if (client === undefined) throw new Transient('the cluster has no node for this key');
    return { name: name(), open: openIoredis(client) };
  };
  return { only: undefined, find, refresh, execute: async (_key, words) => cluster.call(...(words as [string, ...Name[]])) };
}

interface NodeRedisCluster {
  readonly slots: ({ master: { address: string } } | undefined)[];
  nodeClient(node: object): NodeRedisLike | Promise<NodeRedisLike>;
  sendCommand(key: Name, isReadonly: boolean, words: Words): Promise<unknown>;
}

function nodeRedisCluster(cluster: NodeRedisCluster): Nodes {
  const execute = (key: Name, words: Words): Promise<unknown> => cluster.sendCommand(key, false, words);
  const find = async (key: Name): Promise<Node> => {
    const master = cluster.slots[slotOf(key)]?.master;
    if (master === undefined) throw new Transient('the cluster has no node for this key');
    return { name: master.address, open: openNodeRedis(await cluster.nodeClient(master)) };
  };
  // The cluster client follows the redirection of any call. This call changes nothing, as its session does not exist.
  const refresh = (key: Name): Promise<unknown> =>
    execute(key, ['LOCK.CANCEL', key, '-', 'SESSION', '0'.repeat(32), '1']).catch(() => undefined);
  return { only: undefined, find, refresh, execute };
}

/** Throws unless it is a client of ioredis or node-redis. @internal */
export function nodesOf(client: Client): Nodes {
  const { duplicate, call, isOpen, unref, isCluster, nodeClient } = ((client as unknown) ?? {}) as Members;
  if (isCluster === true && typeof call === 'function') return ioredisCluster(client as unknown as IoredisCluster);
  if (typeof nodeClient === 'function') return nodeRedisCluster(client as unknown as NodeRedisCluster);
  if (typeof duplicate === 'function' && typeof isOpen === 'boolean' && typeof unref === 'function') {
    const redis = client as NodeRedisLike;
    return single(openNodeRedis(redis), (words) => redis.sendCommand(words));
  }
  if (typeof duplicate === 'function' && typeof call === 'function') {
    const redis = client as IoredisLike;
    return single(openIoredis(redis), (words) => redis.call(...(words as [string, ...Name[]])));
  }
  throw new MisuseError('the locks need a client of ioredis or node-redis');
}
