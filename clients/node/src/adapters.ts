// SPDX-License-Identifier: MIT

/** Connections of the client library that the user has. They are told to fail at once: calls are sent again by this package, which
 *  gives them the same request id. */

import { MisuseError } from './errors.js';

/** A connection that is there, until it is not. */
export interface Wire {
  call(words: readonly string[]): Promise<unknown>;
  /** Ends it. What is not answered fails. */
  close(): void;
}

/** Makes a connection, subscribed to a channel if one is given. `onEnd` is called once it is not there any more. */
export type Open = (onEnd: () => void, channel?: string, onMessage?: (text: string) => void) => Promise<Wire>;

/** What is used of ioredis. */
export interface IoredisLike {
  duplicate(options?: Record<string, unknown>): IoredisLike;
  connect(): Promise<void>;
  call(command: string, ...words: string[]): Promise<unknown>;
  subscribe(channel: string): Promise<unknown>;
  disconnect(reconnect?: boolean): void;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any -- each library has types of its own for each event
  on(event: string, listener: (...what: any[]) => void): unknown;
}

/** What is used of node-redis. */
export interface NodeRedisLike {
  readonly isOpen: boolean;
  readonly options?: { socket?: object } | undefined;
  duplicate(options?: Record<string, unknown>): NodeRedisLike;
  connect(): Promise<unknown>;
  sendCommand(words: readonly string[]): Promise<unknown>;
  subscribe(channel: string, listener: (message: string) => void): Promise<unknown>;
  destroy(): void;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any -- each library has types of its own for each event
  on(event: string, listener: (...what: any[]) => void): unknown;
}

export type Client = IoredisLike | NodeRedisLike;

/** How to make connections like that of `client`, and how to call on that one. */
export function adapt(client: unknown): { open: Open; call: (words: readonly string[]) => Promise<unknown> } {
  const any = client as Partial<IoredisLike & NodeRedisLike> & { isCluster?: boolean; slots?: unknown };
  if (typeof any?.duplicate !== 'function' || any.isCluster === true || any.slots !== undefined) {
    throw new MisuseError('an ioredis or node-redis client of one server is needed; clusters are not supported');
  }
  if (typeof any.isOpen === 'boolean') {
    const redis = client as NodeRedisLike;
    return { open: openNodeRedis(redis), call: (words) => redis.sendCommand(words) };
  }
  const redis = client as IoredisLike;
  return { open: openIoredis(redis), call: ([command = '', ...words]) => redis.call(command, ...words) };
}

function openIoredis(client: IoredisLike): Open {
  return async (onEnd, channel, onMessage) => {
    const redis = client.duplicate({
      lazyConnect: true,
      retryStrategy: () => null,
      enableOfflineQueue: false,
      autoResendUnfulfilledCommands: false,
      autoResubscribe: false,
      maxRetriesPerRequest: null,
      commandTimeout: undefined,
      keyPrefix: '',
    });
    // What went wrong is told by the calls.
    redis.on('error', () => undefined);
    redis.on('end', onEnd);
    await redis.connect();
    if (channel !== undefined) {
      redis.on('message', (_channel: string, text: string) => onMessage?.(text));
      await redis.subscribe(channel);
    }
    return { call: ([command = '', ...words]) => redis.call(command, ...words), close: () => redis.disconnect() };
  };
}

function openNodeRedis(client: NodeRedisLike): Open {
  return async (onEnd, channel, onMessage) => {
    const redis = client.duplicate({
      socket: { ...client.options?.socket, reconnectStrategy: false, socketTimeout: undefined },
      disableOfflineQueue: true,
      RESP: 2,
      maintNotifications: 'disabled',
    });
    let ended = false;
    const end = (): void => {
      if (ended) return;
      ended = true;
      if (redis.isOpen) redis.destroy();
      onEnd();
    };
    redis.on('error', end);
    redis.on('end', end);
    await redis.connect();
    if (channel !== undefined) await redis.subscribe(channel, (text) => onMessage?.(text));
    return { call: (words) => redis.sendCommand(words), close: end };
  };
}
