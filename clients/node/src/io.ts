// SPDX-License-Identifier: MIT

/** The connections of a session: one for the reader, and one for all other calls. */

import { at, now } from './clock.js';
import type { Connection, Node } from './clients.js';
import { CancelledError, errorOf, type LockError, Transient } from './errors.js';
import type { Words } from './request.js';

/** Limit in milliseconds for one call without a reply. Then the call is repeated on another connection. */
export const CALL_TIMEOUT = 2000;

/** A connection with its unanswered calls. */
class Wire {
  isClosed = false;
  readonly #connection: Connection;
  /** Functions that fail the unanswered calls. */
  readonly #pending = new Set<(error: LockError) => void>();

  constructor(node: Node) {
    this.#connection = node.open((cause) => this.close(errorOf(cause)));
  }

  call(words: Words, timeout: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const stop = at(now() + timeout, () => this.close(new Transient('no reply in time')));
      const settle = (): void => {
        stop();
        this.#pending.delete(fail);
      };
      const fail = (error: LockError): void => {
        settle();
        reject(error);
      };
      this.#pending.add(fail);
      this.#connection.send(words).then((reply) => {
        settle();
        resolve(reply);
      }, (cause: unknown) => {
        const error = errorOf(cause);
        fail(error);
        // The next connection leads to the new primary.
        if (error.message.startsWith('READONLY')) this.close(error);
      });
    });
  }

  close(error: LockError): void {
    if (this.isClosed) return;
    this.isClosed = true;
    for (const fail of this.#pending) fail(error);
    this.#connection.close();
  }
}

/** @internal */
export class Io {
  readonly #node: Node;
  #reader: Wire | undefined;
  #caller: Wire | undefined;
  #isClosed = false;

  constructor(node: Node) {
    this.#node = node;
  }

  /** The reply to a call. Rejects with errors of `errors`. */
  async call(words: Words, timeout: number): Promise<unknown> {
    this.#caller = this.#usable(this.#caller);
    return this.#caller.call(words, timeout);
  }

  /** The replies to calls in one round trip. Errors are elements of the list. */
  batch(calls: readonly Words[], timeout: number): Promise<unknown[]> {
    return Promise.all(calls.map((words) => this.call(words, timeout).catch((error: unknown) => error)));
  }

  /** The reply to a call over the connection of the reader. */
  async read(words: Words, timeout: number): Promise<unknown> {
    this.#reader = this.#usable(this.#reader);
    return this.#reader.call(words, timeout);
  }

  #usable(wire: Wire | undefined): Wire {
    if (this.#isClosed) throw new CancelledError('the locks are closed');
    return wire?.isClosed === false ? wire : new Wire(this.#node);
  }

  /** Closes both connections. The next ones may lead to another primary. */
  disconnect(): void {
    for (const wire of [this.#reader, this.#caller]) wire?.close(new Transient('the connection was closed'));
  }

  close(): void {
    this.#isClosed = true;
    this.disconnect();
  }
}
