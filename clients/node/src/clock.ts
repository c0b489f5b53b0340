// SPDX-License-Identifier: MIT

/** Time, in milliseconds of the monotonic clock. No timer of this package keeps the process alive. */

/** The longest time of a timer of Node. */
export const MAX_TIMER = 2 ** 31 - 1;

/** @internal */
export const now = (): number => performance.now();

/** @internal */
export const sleep = (time: number): Promise<void> => new Promise((resolve) => void setTimeout(resolve, time).unref());

/** Calls back at that time. Returns the function that stops it. @internal */
export function at(time: number, callback: () => void): () => void {
  if (time === Infinity) return () => undefined;
  let timer: NodeJS.Timeout;
  let isStopped = false;
  const arm = (): void => void (timer = setTimeout(check, Math.min(Math.max(0, time - now()), MAX_TIMER)).unref());
  const end = (): void => (isStopped ? undefined : callback());
  // After a busy time of the process, replies may have arrived: the event loop reads them before `setImmediate`.
  const check = (): void => (now() < time ? arm() : void setImmediate(end));
  arm();
  return () => {
    isStopped = true;
    clearTimeout(timer);
  };
}

/** Wakes those that wait for a change. @internal */
export class Signal {
  #waiters: Set<() => void> | undefined;

  notify(): void {
    if (this.#waiters !== undefined) for (const wake of [...this.#waiters]) wake();
  }

  /** Waits for a notification until that time. */
  wait(until: number): Promise<void> {
    const waiters = (this.#waiters ??= new Set());
    return new Promise((resolve) => {
      const wake = (): void => {
        stop();
        waiters.delete(wake);
        resolve();
      };
      const stop = at(until, wake);
      waiters.add(wake);
    });
  }
}
