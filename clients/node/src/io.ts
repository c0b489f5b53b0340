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
  readonly stream: { unref?(): unknown; destroy(): unknown; cork(): void; uncork(): void } | undefined;
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
  readonly isCluster: boolean;
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
  const own = (client.options ?? {}) as Record<string, number>;
  const { connectTimeout = CALL_TIMEOUT, sentinelCommandTimeout = CALL_TIMEOUT / 2 } = own;
  const options = {
    lazyConnect: true, retryStrategy: () => null, sentinelRetryStrategy: () => null, reconnectOnError: null,
    enableOfflineQueue: true, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0,
    commandTimeout: undefined, socketTimeout: undefined, sentinelCommandTimeout,
    connectTimeout: Math.min(connectTimeout, CALL_TIMEOUT),
    enableReadyCheck: false, disableClientInfo: true, enableAutoPipelining: false, stringNumbers: false, keyPrefix: '',
  };
  return (onEnd) => {
    const redis = client.duplicate(options);
    let cause: unknown;
    redis.on('error', (error) => (cause = error));
    redis.on('connect', () => redis.stream?.unref?.());
    redis.on('end', () => onEnd(cause ?? new Error('the connection is closed')));
    let writes = 0;
    const uncork = (): void => {
      if (writes > 1) redis.stream?.uncork();
      writes = 0;
    };
    /** The second and later calls of a tick share a system call. */
    const cork = (): void => {
      if (writes === 0) process.nextTick(uncork);
      else if (writes === 1) redis.stream?.cork();
      writes += 1;
    };
    return {
      send: (words) => {
        cork();
        return redis.call(...(words as [string, ...Name[]]));
      },
      close: () => {
        redis.disconnect();
        redis.stream?.destroy();
      },
      afterWrites: (callback) => process.nextTick(callback),
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
  isClosed = false;
  #cause: LockError | undefined;
  /** When the unanswered calls time out. Replies arrive in the order of the calls. */
  #deadlines: number[] = [];
  #answered = 0;
  #timer: NodeJS.Timeout | undefined;
  /** Until the first reply, the client library may not be able to fail its calls. */
  #hasReplied = false;
  #fail: (error: LockError) => void = () => undefined;
  readonly #failed = new Promise<never>((_, reject) => (this.#fail = reject));

  constructor(open: Open) {
    this.#failed.catch(() => undefined);
    this.connection = open((cause) => this.close(errorOf(cause)));
  }

  call(words: Words, timeout: number): Promise<unknown> {
    this.#deadlines.push(performance.now() + timeout);
    this.#timer ??= setTimeout(this.#expire, timeout).unref();
    const reply = this.connection.send(words).then(this.#onReply, this.#onError);
    return this.#hasReplied ? reply : Promise.race([reply, this.#failed]);
  }

  close(error: LockError): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.#cause = error;
    clearTimeout(this.#timer);
    this.connection.close();
    this.#fail(error);
  }

  readonly #onReply = (reply: unknown): unknown => {
    this.#hasReplied = true;
    this.#settle();
    return reply;
  };

  readonly #onError = (cause: unknown): never => {
    this.#settle();
    const error = this.#cause ?? errorOf(cause);
    // The next connection leads to the new primary.
    if (error instanceof Demoted) this.close(error);
    throw error;
  };

  #settle(): void {
    this.#answered += 1;
    if (this.#answered < this.#deadlines.length) return;
    this.#deadlines = [];
    this.#answered = 0;
  }

  readonly #expire = (): void => {
    this.#timer = undefined;
    // After a busy time of the process, the reply may have arrived: the event loop reads it before `setImmediate`.
    setImmediate(() => {
      const deadline = this.#deadlines[this.#answered];
      if (deadline === undefined || this.isClosed) return;
      const left = deadline - performance.now();
      if (left <= 0) this.close(new Transient('no reply in time'));
      else this.#timer ??= setTimeout(this.#expire, left).unref();
    });
  };
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
