// SPDX-License-Identifier: MIT

/** Connections of the client library that the user has. They are told to fail at once: this package sends a call again itself,
 *  with the same request id. They never keep a process alive: what is on its way or held has timers that do. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';
import { MisuseError } from './errors.js';

/** One connection. What is not answered when it ends fails. */
export interface Wire {
  /** Until then no call may be made. */
  readonly ready: Promise<void>;
  call(words: readonly string[]): Promise<unknown>;
  /** Ends it at once, and in order: the server hears of it, also after an outage. May be called again. */
  close(): void;
  /** Gives it up: what is queued is dropped, so that nothing of it reaches the server later. May be called again. */
  reset(): void;
}

/** A channel that is subscribed to, and who hears its messages. */
export interface Inbox {
  channel: string;
  told(text: string): void;
}

/** Makes a connection. `onEnd` is called once it is not there any more. */
export type Open = (onEnd: () => void, inbox?: Inbox) => Wire;

/** After so many milliseconds of silence TCP looks whether somebody is there. */
const KEEP_ALIVE = 10_000;

/** A Sentinel that does not answer costs so many milliseconds at most; then the next is asked. */
const ASK_SENTINEL = 1000;

/** What is used of a client of ioredis. */
export interface IoredisLike {
  readonly options?: object | undefined;
  duplicate(options?: object): IoredisLike;
  connect(): Promise<void>;
  call(command: string, ...words: string[]): Promise<unknown>;
  subscribe(channel: string): Promise<unknown>;
  disconnect(): void;
  on(event: string, listener: (...what: unknown[]) => void): unknown;
  readonly stream: { unref?(): unknown; destroy(): unknown; destroyed?: boolean } | undefined;
}

/** Of its options. */
interface IoredisOptions {
  keepAlive?: number | undefined;
  connectTimeout?: number | undefined;
  sentinelCommandTimeout?: number | undefined;
  sentinels?: readonly unknown[] | null | undefined;
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

/** How connections like that of `client` are made, each in `patience` milliseconds. */
export function adapt(client: Client, patience: number): Open {
  const { duplicate, call, isOpen, unref, isCluster } = ((client as unknown) ?? {}) as Record<string, unknown>;
  if (typeof duplicate === 'function' && isCluster !== true) {
    if (typeof isOpen === 'boolean' && typeof unref === 'function') return nodeRedis(client as NodeRedisLike);
    if (typeof call === 'function') return ioredis(client as IoredisLike, patience);
  }
  throw new MisuseError('a client of ioredis or node-redis is needed, for one server: no cluster, no pool');
}

/** What the system has queued is dropped, too, where it is TCP without TLS. */
function reset(stream: object | undefined): void {
  const socket = stream as Socket | undefined;
  if (socket === undefined || socket.destroyed || socket.connecting) return;
  // Node loses what it cannot reset, as it is ending, and its process would never end.
  if (socket.writableEnded) return;
  try {
    socket.resetAndDestroy();
  } catch {
    // It is no TCP: then it ends as others do.
  }
}

/** ioredis asks a Sentinel with a client of its own. What is returned ends that. */
function endOfAsking(redis: IoredisLike): () => void {
  type Ask = (endpoint: unknown, options?: object) => IoredisLike;
  let asking: IoredisLike | undefined;
  const end = (): void => {
    // To one that has ended ioredis would give a timer.
    if (asking?.stream?.destroyed !== true) asking?.disconnect();
    asking?.stream?.destroy();
  };
  const { connector } = redis as { connector?: { connectToSentinel?: Ask } };
  const ask = connector?.connectToSentinel;
  if (connector !== undefined && ask !== undefined) {
    connector.connectToSentinel = (endpoint, options) => {
      const asked = ask.call(connector, endpoint, options);
      // Those with options stay, and are ended by ioredis.
      if (options !== undefined) return asked;
      end();
      return (asking = asked);
    };
  }
  return end;
}

function ioredis(client: IoredisLike, patience: number): Open {
  const options = (client.options ?? {}) as IoredisOptions;
  const { keepAlive, connectTimeout, sentinelCommandTimeout, sentinels } = options;
  const soon = Math.min(ASK_SENTINEL, patience / 2);
  /** The Sentinel to be asked first: not one that said nothing to the last connection. */
  let first = 0;
  const ofSentinels = (all: readonly unknown[]): object => ({
    sentinels: [...all.slice(first), ...all.slice(0, first)],
    sentinelCommandTimeout: sentinelCommandTimeout ?? soon,
    // ioredis' own is longer than anybody here waits. This is for the primary, too, and for a process that is busy.
    connectTimeout: connectTimeout === 10_000 ? patience / 2 : connectTimeout,
  });
  return (onEnd, inbox) => {
    const redis = client.duplicate({
      ...(sentinels ? ofSentinels(sentinels) : {}),
      keepAlive: keepAlive === 0 ? KEEP_ALIVE : keepAlive,
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
    let [why, over, next] = [undefined as unknown, false, first];
    const endAsking = endOfAsking(redis);
    redis.on('error', (error) => (why = error));
    redis.on('sentinelError', () => (first = ++next % (sentinels?.length ?? 1)));
    redis.on('connect', () => redis.stream?.unref?.());
    redis.on('end', () => {
      over = true;
      onEnd();
    });
    const end = (isReset: boolean): void => {
      // Once: each time ioredis adds a listener to the socket.
      if (over) return;
      over = true;
      endAsking();
      if (isReset) reset(redis.stream);
      redis.disconnect();
      redis.stream?.destroy();
    };
    const close = (): void => end(false);
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
    const call: Wire['call'] = ([command = '', ...words]) => redis.call(command, ...words);
    return { ready: start(), call, close, reset: () => end(true) };
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
    let socket: Socket | undefined;
    /** Its socket is hidden, but Node tells of it while it is made; with TLS it does not. */
    const begin = (): Promise<unknown> => {
      const made = (message: unknown): void => void (socket = (message as { socket: Socket }).socket);
      subscribe('net.client.socket', made);
      try {
        return redis.connect();
      } finally {
        unsubscribe('net.client.socket', made);
      }
    };
    const start = async (): Promise<void> => {
      try {
        await begin();
        if (inbox !== undefined) await redis.subscribe(inbox.channel, (text) => inbox.told(text));
      } catch (error) {
        close();
        throw error;
      }
    };
    const giveUpNow = (): void => {
      reset(socket);
      close();
    };
    return { ready: Promise.race([start(), gone]), call: (words) => redis.sendCommand(words), close, reset: giveUpNow };
  };
}
