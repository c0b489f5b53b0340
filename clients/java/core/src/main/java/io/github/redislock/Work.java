// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Request.NONE;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Work in steps: on the calling thread, or without a thread that waits. */
abstract class Work<T> {
    /** A wait before the next step: for a signal, or until a time. */
    record Pause(CompletableFuture<?> signal, long until) {
        static Pause of(long time) {
            return new Pause(new CompletableFuture<>(), Locks.now() + time);
        }

        void await() throws InterruptedException {
            try {
                signal.get(Math.max(0, until - Locks.now()), TimeUnit.NANOSECONDS);
            } catch (TimeoutException | ExecutionException | java.util.concurrent.CancellationException next) {
                // The next step looks at the signal.
            }
        }

        /** Waits. An interrupt is kept for later. */
        void awaitUninterrupted() {
            boolean isInterrupted = false;
            while (true) {
                try {
                    await();
                    break;
                } catch (InterruptedException later) {
                    isInterrupted = true;
                }
            }
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    T result;

    /** Does what can be done now. Returns null at the end, when the result is set. */
    abstract Pause step();

    /** Ends the work early. */
    void stop() {}

    /** Undoes the result, as nobody waits for it. */
    void discard() {}

    T run() throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        try {
            for (Pause pause = step(); pause != null; pause = step()) {
                pause.await();
            }
            return result;
        } catch (InterruptedException | RuntimeException | Error failure) {
            stop();
            throw failure;
        }
    }

    /** The result. An interrupt is kept for later. */
    T runUninterrupted() {
        // An interrupted virtual thread cannot read from a socket.
        boolean isInterrupted = Thread.interrupted();
        try {
            for (Pause pause = step(); pause != null; pause = step()) {
                pause.awaitUninterrupted();
                isInterrupted |= Thread.interrupted();
            }
            return result;
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Starts the work. To cancel the future stops it. */
    CompletableFuture<T> start(Locks locks) {
        CompletableFuture<T> future = new CompletableFuture<>();
        advance(locks, future);
        future.whenComplete((value, error) -> {
            if (error != null) {
                locks.async(this::stop);
            }
        });
        return future;
    }

    private void advance(Locks locks, CompletableFuture<T> future) {
        locks.async(() -> {
            try {
                Pause pause = step();
                if (pause != null) {
                    CompletableFuture<Void> signal = pause.signal.handle((value, error) -> null);
                    if (pause.until != NONE) {
                        signal.completeOnTimeout(null, Math.max(0, pause.until - Locks.now()), TimeUnit.NANOSECONDS);
                    }
                    signal.thenRun(() -> advance(locks, future));
                } else if (!future.complete(result)) {
                    discard();
                }
            } catch (RuntimeException | Error error) {
                future.completeExceptionally(error);
            }
        });
    }
}
