// SPDX-License-Identifier: MIT

/** The user's clients of ioredis and node-redis: their connections, with the user's options, and their clusters. Only repetitions
 *  and time limits are this package's own. */

import { MisuseError, Transient } from './errors.js';
import { CALL_TIMEOUT } from './io.js';
import type { Name, Words } from './request.js';

/** A client of ioredis 5 or node-redis 5: for one server, for a cluster, or for Sentinels. */
export interface Client {
  on(event: string, listener: (...values: unknown[]) => void): unknown;
}

/** The used part of a client of ioredis. */
interface Ioredis extends Client {
  readonly options?: object | undefined;
  readonly stream: { unref?(): unknown; destroy(): unknown; cork(): void; uncork(): void } | undefined;
  duplicate(options: object): Ioredis;
  call(command: string, ...words: Name[]): Promise<unknown>;
  disconnect(): void;
}

/** The used part of a client of node-redis. */
interface NodeRedis extends Client {
  readonly isOpen: boolean;
  readonly options?: { socket?: object } | undefined;
  duplicate(options: object): NodeRedis;
  connect(): Promise<unknown>;
  sendCommand(words: Words): Promise<unknown>;
  destroy(): void;
  unref(): void;
}

/** One connection of the client library. @internal */
export interface Connection {
  send(words: Words): Promise<unknown>;
  close(): void;
}

/** A server. @internal */
export interface Node {
  /** Empty unless it is one of a cluster. */
  name: string;
  /** Opens a connection. `onEnd` may be called several times. */
  open(onEnd: (cause: unknown) => void): Connection;
}

/** Finds the node that serves a key. @internal */
export interface Nodes {
  readonly isCluster: boolean;
  find(key: Name): Node;
  /** Asks the node that used to serve the key, or another one, which node serves which slot. */
  refresh(key: Name): Promise<unknown>;
  /** A command on the user's own client, with its encodings and hooks. */
  execute(key: Name, words: Words): Promise<unknown>;
}

/** Stands for a node of a cluster that is not known yet. Its session waits until it is. */
const UNKNOWN: Node = {
  name: '',
  open: () => {
    const send = (): Promise<never> => Promise.reject(new Transient('the cluster has no node for this key'));
    return { send, close: () => undefined };
  },
};

function ioredisNode(name: string, client: Ioredis): Node {
  const open: Node['open'] = (onEnd) => {
    const own = (client.options ?? {}) as Record<string, number>;
    // A Sentinel that is silent must leave time for the next one.
    const { connectTimeout = CALL_TIMEOUT, sentinelCommandTimeout = CALL_TIMEOUT / 8 } = own;
    const options = {
      lazyConnect: true, retryStrategy: () => null, sentinelRetryStrategy: () => null, reconnectOnError: null,
      enableOfflineQueue: true, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0,
      commandTimeout: undefined, socketTimeout: undefined, sentinelCommandTimeout,
      connectTimeout: Math.min(connectTimeout, CALL_TIMEOUT),
      enableReadyCheck: false, disableClientInfo: true, enableAutoPipelining: false, stringNumbers: false, keyPrefix: '',
    };
    const redis = client.duplicate(options);
    let cause: unknown = new Error('the connection is closed');
    redis.on('error', (error) => (cause = error));
    redis.on('connect', () => redis.stream?.unref?.());
    redis.on('end', () => onEnd(cause));
    let isCorked = false;
    return {
      send: (words) => {
        const { stream } = redis;
        if (!isCorked && stream !== undefined) {
          // The calls of a tick share a system call.
          isCorked = true;
          stream.cork();
          process.nextTick(() => {
            isCorked = false;
            stream.uncork();
          });
        }
        return redis.call(...(words as [string, ...Name[]]));
      },
      close: () => {
        redis.disconnect();
        redis.stream?.destroy();
      },
    };
  };
  return { name, open };
}

function nodeRedisNode(name: string, find: () => Promise<NodeRedis> | NodeRedis): Node {
  const open: Node['open'] = (onEnd) => {
    let [isClosed, hasSocket] = [false, false];
    let redis: NodeRedis | undefined;
    // node-redis cannot close a socket that is connecting.
    const close = (): void => {
      isClosed = true;
      if (hasSocket && redis?.isOpen) redis.destroy();
    };
    const connect = async (): Promise<void> => {
      const client = await find();
      redis = client.duplicate({
        socket: { connectTimeout: CALL_TIMEOUT, ...client.options?.socket, reconnectStrategy: false, socketTimeout: undefined },
        disableOfflineQueue: false, commandsQueueMaxLength: undefined, commandOptions: undefined, pingInterval: undefined,
        readonly: false, RESP: 2, clientSideCache: undefined, emitInvalidate: undefined, maintNotifications: 'disabled',
        disableClientInfo: true,
      });
      redis.on('error', onEnd);
      redis.on('end', () => onEnd(new Error('the connection is closed')));
      redis.on('connect', () => {
        hasSocket = true;
        if (isClosed) close();
      });
      redis.unref();
      if (!isClosed) await redis.connect();
    };
    const connecting = connect();
    connecting.catch(onEnd);
    const send = (words: Words): Promise<unknown> => redis?.sendCommand(words) ?? connecting.then(() => send(words));
    return { send, close };
  };
  return { name, open };
}

function single(node: Node, execute: (words: Words) => Promise<unknown>): Nodes {
  return { isCluster: false, find: () => node, refresh: async () => undefined, execute: (_key, words) => execute(words) };
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

interface IoredisCluster {
  readonly status: string;
  readonly slots: (string[] | undefined)[];
  readonly connectionPool: { getInstanceByKey(node: string): Ioredis | undefined };
  connect(): Promise<void>;
  refreshSlotsCache(callback: () => void): void;
  call(command: string, ...words: Name[]): Promise<unknown>;
}

function ioredisCluster(cluster: IoredisCluster): Nodes {
  const find = (key: Name): Node => {
    const name = cluster.slots[slotOf(key)]?.[0] ?? '';
    const client = cluster.connectionPool.getInstanceByKey(name);
    return client === undefined ? UNKNOWN : ioredisNode(name, client);
  };
  const refresh = async (): Promise<void> => {
    if (cluster.status === 'wait') await cluster.connect();
    else cluster.refreshSlotsCache(() => undefined);
  };
  return { isCluster: true, find, refresh, execute: (_key, words) => cluster.call(...(words as [string, ...Name[]])) };
}

interface NodeRedisCluster {
  readonly slots: ({ master: { address: string } } | undefined)[];
  readonly masters: { address: string }[];
  readonly _slots: { rediscover(startWith: NodeRedis): Promise<void> };
  nodeClient(node: object | undefined): NodeRedis | Promise<NodeRedis>;
  sendCommand(key: Name, isReadonly: boolean, words: Words): Promise<unknown>;
}

function nodeRedisCluster(cluster: NodeRedisCluster): Nodes {
  const masterOf = (key: Name) => cluster.slots[slotOf(key)]?.master;
  const find = (key: Name): Node => {
    const master = masterOf(key);
    return master === undefined ? UNKNOWN : nodeRedisNode(master.address, () => cluster.nodeClient(master));
  };
  const refresh = async (key: Name): Promise<void> =>
    cluster._slots.rediscover(await cluster.nodeClient(masterOf(key) ?? cluster.masters[0]));
  return { isCluster: true, find, refresh, execute: (key, words) => cluster.sendCommand(key, false, words) };
}

interface NodeRedisSentinel {
  /** Runs a function with the client of the primary. */
  _execute<T>(isReadonly: boolean, run: (client: NodeRedis) => Promise<T>): Promise<T>;
  sendCommand(isReadonly: boolean, words: Words): Promise<unknown>;
}

function nodeRedisSentinel(sentinel: NodeRedisSentinel): Nodes {
  const node = nodeRedisNode('', () => sentinel._execute(false, async (client) => client));
  return single(node, (words) => sentinel.sendCommand(false, words));
}

/** Throws unless it is a client of ioredis or node-redis. @internal */
export function nodesOf(client: Client): Nodes {
  const given: unknown = client;
  const member = (name: string): unknown => (given as Record<string, unknown> | null)?.[name];
  const has = (...methods: string[]): boolean => methods.every((name) => typeof member(name) === 'function');
  if (has('refreshSlotsCache', 'call')) return ioredisCluster(given as IoredisCluster);
  if (has('nodeClient')) return nodeRedisCluster(given as NodeRedisCluster);
  if (has('getMasterNode', '_execute')) return nodeRedisSentinel(given as NodeRedisSentinel);
  if (has('duplicate', 'unref', 'sendCommand')) {
    const redis = given as NodeRedis;
    return single(nodeRedisNode('', () => redis), (words) => redis.sendCommand(words));
  }
  if (has('duplicate', 'call')) {
    const redis = given as Ioredis;
    return single(ioredisNode('', redis), (words) => redis.call(...(words as [string, ...Name[]])));
  }
  throw new MisuseError('the locks need a client of ioredis or node-redis');
}
