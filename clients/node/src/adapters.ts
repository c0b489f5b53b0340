// SPDX-License-Identifier: MIT

/** Connections of the client library that the user has. They are told to fail at once: this package sends a call again itself,
 *  with the same request id. They never keep a process alive: what is on its way or held has timers that do. */

import { MisuseError } from './errors.js';

/** One connection. What is not answered when it ends fails. */
export interface Wire {
  /** Until then no call may be made. */
  readonly ready: Promise<void>;
  call(words: readonly string[]): Promise<unknown>;
  /** Ends it at once. May be called again. */
  close(): void;
}

/** A channel that is subscribed to, and who hears its messages. */
export interface Inbox {
  channel: string;
  told(text: string): void;
}

/** Makes a connection. `onEnd` is called once it is not there any more. */
export type Open = (onEnd: () => void, inbox?: Inbox) => Wire;

/** What is used of a client of ioredis. */
export interface IoredisLike {
  duplicate(options?: object): IoredisLike;
  connect(): Promise<void>;
  call(command: string, ...words: string[]): Promise<unknown>;
  subscribe(channel: string): Promise<unknown>;
  disconnect(): void;
  on(event: string, listener: (...what: unknown[]) => void): unknown;
  readonly stream: { unref?(): unknown; destroy(): unknown } | undefined;
}

/** What is used of a client of node-redis. */
export interface NodeRedisLike {
  readonly isOpen: boolean;
  readonly options?: { socket?: object } | undefined;
  duplicate(options?: object): NodeRedisLike;
  connect(): Promise<unknown>;
  sendCommand(words: readonly string[]): Promise<unknown>;
  subscribe(channel: string, listener: (message: string) => void): Promise<unknown>;
  destroy(): void;
  unref(): void;
  on(event: string, listener: (...what: unknown[]) => void): unknown;
}

/** A client of ioredis 5 or node-redis 5, for one server or, with ioredis, for its Sentinels. */
export type Client = IoredisLike | NodeRedisLike;

/** How connections like that of `client` are made. */
export function adapt(client: Client): Open {
  const { duplicate, call, isOpen, unref, isCluster } = ((client as unknown) ?? {}) as Record<string, unknown>;
  if (typeof duplicate === 'function' && isCluster !== true) {
    if (typeof isOpen === 'boolean' && typeof unref === 'function') return nodeRedis(client as NodeRedisLike);
    if (typeof call === 'function') return ioredis(client as IoredisLike);
  }
  throw new MisuseError('a client of ioredis or node-redis is needed, for one server: no cluster, no pool');
}

function ioredis(client: IoredisLike): Open {
  return (onEnd, inbox) => {
    const redis = client.duplicate({
      lazyConnect: true,
      // Fails at once.
      retryStrategy: () => null,
      sentinelRetryStrategy: () => null,
      reconnectOnError: null,
      enableOfflineQueue: false,
      // Waits as long as it takes.
      commandTimeout: undefined,
      socketTimeout: undefined,
      // Says what it is told to say, and no more.
      enableReadyCheck: false,
      disableClientInfo: true,
      enableAutoPipelining: false,
      stringNumbers: false,
      keyPrefix: '',
    });
    let [why, ended] = [undefined as unknown, false];
    redis.on('error', (error) => (why = error));
    redis.on('connect', () => redis.stream?.unref?.());
    redis.on('end', () => {
      ended = true;
      onEnd();
    });
    const close = (): void => {
      if (ended) return;
      redis.disconnect();
      redis.stream?.destroy();
    };
    const start = async (): Promise<void> => {
      try {
        await redis.connect();
        if (inbox === undefined) return;
        redis.on('message', (_channel, text) => inbox.told(String(text)));
        await redis.subscribe(inbox.channel);
      } catch (error) {
        close();
        // ioredis says only that the connection is closed.
        throw why ?? error;
      }
    };
    return { ready: start(), call: ([command = '', ...words]) => redis.call(command, ...words), close };
  };
}

function nodeRedis(client: NodeRedisLike): Open {
  return (onEnd, inbox) => {
    const redis = client.duplicate({
      socket: { ...client.options?.socket, reconnectStrategy: false, socketTimeout: undefined },
      disableOfflineQueue: true,
      commandsQueueMaxLength: undefined,
      commandOptions: undefined,
      pingInterval: undefined,
      readonly: false,
      // In which a message comes without being asked for only where it is subscribed to.
      RESP: 2,
      clientSideCache: undefined,
      emitInvalidate: undefined,
      maintNotifications: 'disabled',
    });
    let [connected, ended] = [false, false];
    let giveUp: (why: unknown) => void;
    const gone = new Promise<never>((_, reject) => (giveUp = reject));
    const close = (why?: unknown): void => {
      if (ended) return;
      ended = true;
      giveUp(why ?? new Error('closed'));
      // While it connects, its socket cannot be reached: see below.
      if (connected && redis.isOpen) redis.destroy();
      onEnd();
    };
    redis.on('connect', () => {
      connected = true;
      if (ended) redis.destroy();
    });
    redis.on('error', close);
    redis.on('end', close);
    redis.unref();
    const start = async (): Promise<void> => {
      try {
        await redis.connect();
        if (inbox !== undefined) await redis.subscribe(inbox.channel, (text) => inbox.told(text));
      } catch (error) {
        close();
        throw error;
      }
    };
    return { ready: Promise.race([start(), gone]), call: (words) => redis.sendCommand(words), close };
  };
}
