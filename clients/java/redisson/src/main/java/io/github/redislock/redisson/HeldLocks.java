// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import io.github.redislock.Hold;
import io.github.redislock.LockException;
import io.github.redislock.LockException.Kind;
import io.github.redislock.Locks;
import io.github.redislock.RedisLock;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.redisson.client.RedisException;

/** The holds of the threads of a client. Owners have the names that Redisson gives them. */
final class HeldLocks {
    /** A wait without a limit. */
    static final long FOREVER = -1;

    private record Holder(String key, long thread) {}

    /** An acquire of a thread. Times are in milliseconds. A lease of 0 means that the server renews the hold. */
    record Request(RedisLock lock, String key, long thread, long patience, long lease) {}

    final Locks locks;
    private final String client;
    /** The holds of a thread, the last one first. They count as one: it is lost when all of them are. */
    private final Map<Holder, Deque<Hold>> holds = new ConcurrentHashMap<>();

    private final AtomicBoolean isClosed = new AtomicBoolean();

    HeldLocks(Locks locks, String client) {
        this.locks = locks;
        this.client = client;
    }

    /** Releases the holds without a lease. */
    void close() {
        if (!isClosed.getAndSet(true)) {
            locks.close();
        }
    }

    private RedisLock lock(Request request) {
        RedisLock lock = request.lock.owner(client + ":" + request.thread);
        return request.lease > 0 ? lock.lease(Duration.ofMillis(request.lease)) : lock;
    }

    /** The hold, or null if the lock was not granted in time. */
    Hold acquire(Request request) throws InterruptedException {
        try {
            RedisLock lock = lock(request);
            Hold hold = request.patience == FOREVER
                    ? lock.acquire()
                    : lock.tryAcquire(Duration.ofMillis(request.patience)).orElse(null);
            if (hold != null) {
                push(request, hold);
            }
            return hold;
        } catch (LockException error) {
            throw failure(error);
        }
    }

    /**
     * Acquires a lock without regard to interrupts. An interrupt is kept for later, and moves the wait to the end of the queue.
     */
    Hold acquireUninterrupted(Request request) {
        boolean isInterrupted = Thread.interrupted();
        try {
            while (true) {
                try {
                    return acquire(request);
                } catch (InterruptedException later) {
                    isInterrupted = true;
                }
            }
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Acquires a lock without a thread that waits. To cancel the future ends the wait. */
    <T> CompletableFuture<T> acquireAsync(Request request, Function<Hold, T> result) {
        RedisLock lock = lock(request);
        CompletableFuture<Hold> grant =
                (request.patience == FOREVER ? lock : lock.waiting(Duration.ofMillis(request.patience))).acquireAsync();
        CompletableFuture<T> future = new CompletableFuture<>();
        grant.whenComplete((hold, error) -> {
            Throwable cause = cause(error);
            if (hold != null) {
                push(request, hold);
                if (!future.complete(result.apply(hold))) {
                    releaseAsync(request.key, request.thread);
                }
            } else if (cause instanceof LockException known
                    && (known.kind() == Kind.BUSY || known.kind() == Kind.TIMED_OUT)) {
                future.complete(result.apply(null));
            } else {
                future.completeExceptionally(cause instanceof LockException known ? failure(known) : cause);
            }
        });
        future.whenComplete((value, error) -> {
            if (error != null) {
                grant.cancel(true);
            }
        });
        return future;
    }

    private static Throwable cause(Throwable error) {
        return error instanceof CompletionException ? error.getCause() : error;
    }

    private void push(Request request, Hold hold) {
        Holder holder = new Holder(request.key, request.thread);
        holds.compute(holder, (same, stack) -> {
            Deque<Hold> present = stack == null ? new ArrayDeque<>() : stack;
            present.push(hold);
            return present;
        });
        hold.lost().thenRun(() -> holds.computeIfPresent(holder, (same, stack) -> isLost(stack) ? null : stack));
    }

    private static boolean isLost(Deque<Hold> stack) {
        return stack.stream().allMatch(Hold::isLost);
    }

    /** The last hold of a thread, which is null if it has none, or has lost the lock. */
    private Hold last(Holder holder) {
        Hold[] last = new Hold[1];
        holds.computeIfPresent(holder, (same, stack) -> {
            last[0] = isLost(stack) ? null : stack.peek();
            return stack;
        });
        return last[0];
    }

    boolean isHeld(String key, long thread) {
        return last(new Holder(key, thread)) != null;
    }

    /** Takes the last hold of a thread, which is null if it has none, or has lost the lock. */
    private Hold pop(String key, long thread) {
        Hold[] last = new Hold[1];
        holds.computeIfPresent(new Holder(key, thread), (same, stack) -> {
            if (isLost(stack)) {
                return null;
            }
            last[0] = stack.pop();
            return stack.isEmpty() ? null : stack;
        });
        return last[0];
    }

    /** Returns false if the thread has no hold here, or has lost it. */
    boolean release(String key, long thread) {
        Hold hold = pop(key, thread);
        try {
            if (hold != null && !hold.isLost()) {
                hold.release();
            }
            return hold != null;
        } catch (LockException.Lost lost) {
            return false;
        } catch (LockException error) {
            throw failure(error);
        }
    }

    /** Releases the last hold without blocking. The result is false if the thread has no hold here, or has lost it. */
    CompletableFuture<Boolean> releaseAsync(String key, long thread) {
        Hold hold = pop(key, thread);
        if (hold == null || hold.isLost()) {
            return CompletableFuture.completedFuture(hold != null);
        }
        return hold.releaseAsync().handle((done, error) -> {
            if (cause(error) instanceof LockException known && !(known instanceof LockException.Lost)) {
                throw failure(known);
            }
            return error == null;
        });
    }

    /** Sets the lease of a lock. Returns false if this client does not hold it. */
    boolean extend(String key, long milliseconds) {
        for (Holder each : holds.keySet()) {
            Hold hold = each.key.equals(key) ? last(each) : null;
            if (hold != null) {
                try {
                    hold.extend(Duration.ofMillis(milliseconds));
                    return true;
                } catch (LockException error) {
                    throw failure(error);
                }
            }
        }
        return false;
    }

    private static RedisException failure(LockException error) {
        return new RedisException(error.getMessage(), error);
    }
}
