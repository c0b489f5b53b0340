// SPDX-License-Identifier: MIT

/** The connections of a session: one for the reader, and one for all other calls. */

import { at, now } from './clock.js';
import type { Connection, Node } from './clients.js';
import { CancelledError, errorOf, type LockError, Transient } from './errors.js';
import type { Words } from './request.js';

/** Limit in milliseconds for one call without a reply. Then the call is repeated on another connection. */
export const CALL_TIMEOUT = 2000;

/** An unanswered call. */
interface Pending {
  readonly deadline: number;
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
      const call = { deadline: now() + timeout, reject };
      this.#pending.add(call);
      if (call.deadline < this.#nextCheck) this.#checkAt(call.deadline);
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
      let first = Infinity;
      for (const { deadline } of this.#pending) first = Math.min(first, deadline);
      if (first <= now()) this.close(new Transient('no reply in time'));
      else this.#checkAt(first);
    });
  }

  flush(callback: () => void): void {
    this.#connection.flush(callback);
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
  readonly #node: Node;
  readonly #wires: { reader?: Wire; caller?: Wire } = {};
  #isClosed = false;

  constructor(node: Node) {
    this.#node = node;
  }

  /** The reply to a call. Rejects with errors of `errors`. */
  call(words: Words, timeout: number, role: 'reader' | 'caller' = 'caller'): Promise<unknown> {
    if (this.#isClosed) return Promise.reject(new CancelledError('the locks are closed'));
    let wire = this.#wires[role];
    if (wire?.isClosed !== false) this.#wires[role] = wire = new Wire(this.#node);
    return wire.call(words, timeout);
  }

  /** The replies to calls in one round trip. Errors are elements of the list. */
  batch(calls: readonly Words[], timeout: number): Promise<unknown[]> {
    return Promise.all(calls.map((words) => this.call(words, timeout).catch((error: unknown) => error)));
  }

  /** The reply to a call over the connection of the reader. */
  read(words: Words, timeout: number): Promise<unknown> {
    return this.call(words, timeout, 'reader');
  }

  /** Calls back once the calls of the reader are written. */
  flush(callback: () => void): void {
    this.#wires.reader?.flush(callback);
  }

  /** Closes both connections. The next ones may lead to another primary. */
  disconnect(): void {
    for (const wire of Object.values(this.#wires)) wire.close(new Transient('the connection was closed'));
  }

  close(): void {
    this.#isClosed = true;
    this.disconnect();
  }
}
