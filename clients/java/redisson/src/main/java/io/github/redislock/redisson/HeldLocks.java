// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import io.github.redislock.Hold;
import io.github.redislock.LockException;
import io.github.redislock.LockException.Kind;
import io.github.redislock.Locks;
import io.github.redislock.RedisLock;
import java.time.Duration;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.redisson.client.RedisException;

/** The holds of the threads of a client. Owners have the names that Redisson gives them. */
final class HeldLocks {
    private static final String WRONG_TYPE =
            " (another object of Redisson, or a read-write or fair lock of a client without"
                    + " NativeLocks, may have this name)";

    /** A wait without a limit. */
    static final long FOREVER = -1;

    /** A thread and a lock. Holds of a reader and of a writer are different. */
    record Holder(String key, boolean isShared, long thread) {}

    /** An acquire of a thread. Times are in milliseconds. A lease of 0 means that the server renews the hold. */
    record Request(RedisLock lock, Holder holder, long patience, long lease, boolean isOnce) {
        Request within(long time) {
            return new Request(lock, holder, Math.max(0, time), lease, isOnce);
        }
    }

    /** A hold and the local time in nanoseconds at which its lease ends. */
    private record Entry(Hold hold, long leaseEnds) {
        boolean isRenewed() {
            return leaseEnds == Long.MAX_VALUE;
        }
    }

    final Locks locks;
    final String client;
    /**
     * Runs what the application does with results. That may block until another lock is granted, so the number of threads has no
     * limit.
     */
    private final ExecutorService executor = new ThreadPoolExecutor(
            0,
            Integer.MAX_VALUE,
            10,
            TimeUnit.SECONDS,
            new SynchronousQueue<>(),
            work -> {
                Thread thread = new Thread(work, "redis-lock-result");
                thread.setDaemon(true);
                return thread;
            },
            // After the end of the pool.
            (work, pool) -> work.run());
    /**
     * The holds of a thread, the first one to end first. They count as one: it is lost when all of them are. So a hold whose
     * lease is over is released before the others, which keep the lock.
     */
    private final Map<Holder, PriorityQueue<Entry>> holds = new ConcurrentHashMap<>();

    private final AtomicBoolean isClosed = new AtomicBoolean();

    HeldLocks(Locks locks, String client) {
        this.locks = locks;
        this.client = client;
    }

    /** Releases the holds without a lease. */
    void close() {
        if (!isClosed.getAndSet(true)) {
            locks.close();
            executor.shutdown();
        }
    }

    private RedisLock lock(Request request) {
        RedisLock lock = request.lock.owner(client + ":" + request.holder.thread);
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
            if (isNotGranted(request, error)) {
                return null;
            }
            throw failure(request, error);
        }
    }

    /** A wait with a limit is not granted if it could only end by that limit. */
    private static boolean isNotGranted(Request request, LockException error) {
        return switch (error.kind()) {
            case BUSY, TIMED_OUT -> true;
            case DEADLOCK -> request.patience != FOREVER && !request.isOnce;
            default -> false;
        };
    }

    private RuntimeException failure(Request request, LockException error) {
        if (error.kind() == Kind.DEADLOCK && request.isOnce && isHeld(request.holder)) {
            return new IllegalMonitorStateException("Lock '" + request.holder.key
                    + "' is non-reentrant and is already held by thread " + request.holder.thread);
        }
        return failure(error);
    }

    /**
     * Acquires a lock without regard to interrupts. An interrupt is kept for later, and moves the wait to the end of the queue.
     * The time limit remains.
     */
    Hold acquireUninterrupted(Request request) {
        long began = System.nanoTime();
        Request next = request;
        boolean isInterrupted = Thread.interrupted();
        try {
            while (true) {
                try {
                    return acquire(next);
                } catch (InterruptedException later) {
                    isInterrupted = true;
                    if (request.patience != FOREVER) {
                        next = request.within(request.patience - (System.nanoTime() - began) / 1_000_000);
                    }
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
            if (hold != null) {
                push(request, hold);
            }
            executor.execute(() -> {
                Throwable cause = cause(error);
                if (hold != null) {
                    if (!future.complete(result.apply(hold)) && remove(request.holder, hold)) {
                        hold.releaseAsync();
                    }
                } else if (cause instanceof LockException known && isNotGranted(request, known)) {
                    future.complete(result.apply(null));
                } else {
                    future.completeExceptionally(
                            cause instanceof LockException known ? failure(request, known) : cause);
                }
            });
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
        Holder holder = request.holder;
        long end =
                request.lease == 0 ? Long.MAX_VALUE : System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.lease);
        holds.compute(holder, (same, present) -> {
            // A first hold shows that all earlier ones are lost.
            PriorityQueue<Entry> all = present == null || hold.count() == 1
                    ? new PriorityQueue<>((one, other) -> one.isRenewed() || other.isRenewed()
                            ? Boolean.compare(one.isRenewed(), other.isRenewed())
                            : Long.signum(one.leaseEnds - other.leaseEnds))
                    : present;
            all.add(new Entry(hold, end));
            return all;
        });
        hold.lost().thenRun(() -> holds.computeIfPresent(holder, (same, all) -> isLost(all) ? null : all));
    }

    private boolean remove(Holder holder, Hold hold) {
        boolean[] isRemoved = new boolean[1];
        holds.computeIfPresent(holder, (same, all) -> {
            isRemoved[0] = all.removeIf(entry -> entry.hold == hold);
            return all.isEmpty() ? null : all;
        });
        return isRemoved[0];
    }

    private static boolean isLost(PriorityQueue<Entry> all) {
        return all.stream().allMatch(entry -> entry.hold.isLost());
    }

    /** Any valid hold of a thread, or null if it has lost the lock, or has none. */
    private Entry valid(Holder holder) {
        Entry[] valid = new Entry[1];
        holds.computeIfPresent(holder, (same, all) -> {
            valid[0] = all.stream()
                    .filter(entry -> !entry.hold.isLost())
                    .findFirst()
                    .orElse(null);
            return all;
        });
        return valid[0];
    }

    private boolean isHeld(Holder holder) {
        return valid(holder) != null;
    }

    /** Takes the hold of a thread that ends first, or null if the thread has lost the lock, or has none. */
    private Hold pop(Holder holder) {
        Hold[] first = new Hold[1];
        holds.computeIfPresent(holder, (same, all) -> {
            if (isLost(all)) {
                return null;
            }
            first[0] = all.remove().hold;
            return all.isEmpty() ? null : all;
        });
        return first[0];
    }

    /** Returns false if the thread has no hold here, or has lost it. */
    boolean release(Holder holder) {
        Hold hold = pop(holder);
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

    /** Releases the hold that ends first. The result is false if the thread has no hold here, or has lost the lock. */
    CompletableFuture<Boolean> releaseAsync(Holder holder) {
        Hold hold = pop(holder);
        if (hold == null || hold.isLost()) {
            return CompletableFuture.completedFuture(hold != null);
        }
        return hold.releaseAsync()
                .handleAsync(
                        (done, error) -> {
                            if (cause(error) instanceof LockException known && !(known instanceof LockException.Lost)) {
                                throw failure(known);
                            }
                            return error == null;
                        },
                        executor);
    }

    /** Sets the lease of a lock for any thread, unless the server renews it. Returns false if this client does not hold it. */
    boolean extend(Holder holder, long milliseconds) {
        for (Holder each : holds.keySet()) {
            boolean isSame = each.key.equals(holder.key) && each.isShared == holder.isShared;
            Entry entry = isSame ? valid(each) : null;
            try {
                if (entry != null) {
                    if (!entry.isRenewed()) {
                        entry.hold.extend(Duration.ofMillis(milliseconds));
                    }
                    return true;
                }
            } catch (LockException.Lost lost) {
                // Another thread may hold it.
            } catch (LockException error) {
                throw failure(error);
            }
        }
        return false;
    }

    private static RedisException failure(LockException error) {
        String hint = error.code().equals("WRONGTYPE") ? WRONG_TYPE : "";
        return new RedisException(error.getMessage() + hint, error);
    }
}
