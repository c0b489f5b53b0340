// SPDX-License-Identifier: MIT

/** Time, in milliseconds of the monotonic clock. No timer of this package keeps the process alive. */

/** The longest time of a timer of Node. */
export const MAX_TIMER = 2 ** 31 - 1;

/** @internal */
export const now = (): number => performance.now();

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

/** Wakes those that wait for a change. They look whether it is theirs. @internal */
export class Signal {
  #wakers: (() => void)[] = [];

  notify(): void {
    const wakers = this.#wakers;
    if (wakers.length === 0) return;
    this.#wakers = [];
    for (const wake of wakers) wake();
  }

  /** Waits for a notification, until that time. */
  wait(until: number): Promise<void> {
    return new Promise((resolve) => {
      const stop = at(until, () => this.notify());
      this.#wakers.push(() => {
        stop();
        resolve();
      });
    });
  }
}
