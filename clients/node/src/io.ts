// SPDX-License-Identifier: MIT

/** The connections of a session: one for the reader, and one for all other calls. */

import { at, now } from './clock.js';
import type { Connection, Node } from './clients.js';
import { errorOf, type LockError, NoReply } from './errors.js';
import type { Words } from './request.js';

/** Limit in milliseconds for one call without a reply. Then the call is repeated on another connection. */
export const CALL_TIMEOUT = 2000;
/** Extra time for the reply to a call that waits in the server, and the least time after which a silent connection is closed. */
export const REPLY_GRACE = 1000;

type Role = 'reader' | 'caller';

/** An unanswered call. */
interface Pending {
  readonly limit: number;
  /** When the connection counts as broken. */
  readonly broken: number;
  readonly reject: (error: LockError) => void;
}

/** A connection with its unanswered calls. One timer serves them all: hardly a call reaches its limit. */
class Wire {
  isClosed = false;
  readonly #connection: Connection;
  readonly #pending = new Set<Pending>();
  /** When the limits of the calls are checked. */
  #nextCheck = Infinity;
  #stopClock = (): void => undefined;

  constructor(node: Node) {
    this.#connection = node.open((cause) => this.close(errorOf(cause)));
  }

  call(words: Words, timeout: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const sent = now();
      const call = { limit: sent + timeout, broken: sent + Math.max(timeout, REPLY_GRACE), reject };
      this.#pending.add(call);
      if (call.limit < this.#nextCheck) this.#checkAt(call.limit);
      this.#connection.send(words).then((reply) => {
        this.#pending.delete(call);
        resolve(reply);
      }, (cause: unknown) => {
        this.#pending.delete(call);
        const error = errorOf(cause);
        reject(error);
        // The next connection leads to the new primary.
        if (error.message.startsWith('READONLY')) this.close(error);
      });
    });
  }

  #checkAt(time: number): void {
    this.#stopClock();
    this.#nextCheck = time;
    this.#stopClock = at(time, () => {
      let next = Infinity;
      for (const { limit, broken, reject } of this.#pending) {
        if (broken <= now()) return this.close(new NoReply('no reply in time'));
        if (limit <= now()) reject(new NoReply('no reply in time'));
        next = Math.min(next, limit <= now() ? broken : limit);
      }
      this.#checkAt(next);
    });
  }

  close(error: LockError): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.#stopClock();
    for (const { reject } of this.#pending) reject(error);
    this.#connection.close();
  }
}

/** @internal */
export class Io {
  readonly #wires = new Map<Role, Wire>();
  #isClosed = false;

  constructor(readonly node: Node) {}

  /** The reply to a call. Rejects with errors of `errors`. */
  call(words: Words, timeout: number, role: Role = 'caller'): Promise<unknown> {
    if (this.#isClosed) return Promise.reject(new NoReply('the locks are closed'));
    let wire = this.#wires.get(role);
    if (wire?.isClosed !== false) this.#wires.set(role, (wire = new Wire(this.node)));
    return wire.call(words, timeout);
  }

  /** The replies to calls in one round trip. Errors are elements of the list. */
  batch(calls: readonly Words[], timeout: number, role?: Role): Promise<unknown[]> {
    return Promise.all(calls.map((words) => this.call(words, timeout, role).catch((error: unknown) => error)));
  }

  /** Closes both connections. The next ones may lead to another primary. */
  disconnect(): void {
    for (const wire of this.#wires.values()) wire.close(new NoReply('the connection was closed'));
  }

  close(): void {
    this.#isClosed = true;
    this.disconnect();
  }
}
