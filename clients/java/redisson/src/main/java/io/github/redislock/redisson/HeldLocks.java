// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import io.github.redislock.Hold;
import io.github.redislock.LockException;
import io.github.redislock.LockException.Kind;
import io.github.redislock.Locks;
import io.github.redislock.RedisLock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.redisson.RedissonShutdownException;
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

    /** A refused wait with a limit takes this time in milliseconds, since multi-locks repeat it at once. */
    private static final long PAUSE = 50;

    /** An acquire of a thread. Times are in milliseconds. A lease of 0 means that the server renews the hold. */
    record Request(RedisLock lock, Holder holder, long patience, long lease, boolean isOnce) {
        Request within(long time) {
            return new Request(lock, holder, Math.max(0, time), lease, isOnce);
        }

        void pause() throws InterruptedException {
            Thread.sleep(Math.max(0, Math.min(patience, PAUSE)));
        }
    }

    /** A hold, and the local times in nanoseconds at which its client got it and its lease ends. */
    private record Entry(Hold hold, long got, long leaseEnds) {
        static Entry of(Hold hold, long lease) {
            long now = System.nanoTime();
            return new Entry(hold, now, lease == 0 ? Long.MAX_VALUE : now + TimeUnit.MILLISECONDS.toNanos(lease));
        }

        boolean isRenewed() {
            return leaseEnds == Long.MAX_VALUE;
        }

        boolean lasts(long milliseconds) {
            return isRenewed() || leaseEnds - System.nanoTime() >= TimeUnit.MILLISECONDS.toNanos(milliseconds);
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
            holds.clear();
        }
    }

    private RedisLock lock(Request request) {
        RedisLock lock = request.lock.owner(client + ":" + request.holder.thread);
        return request.lease > 0 ? lock.lease(Duration.ofMillis(request.lease)) : lock;
    }

    /** The hold, or null if the lock was not granted in time. */
    Hold acquire(Request request) throws InterruptedException {
        long began = System.nanoTime();
        try {
            RedisLock lock = lock(request);
            Hold hold = request.patience == FOREVER
                    ? lock.acquire()
                    : lock.tryAcquire(Duration.ofMillis(request.patience)).orElse(null);
            if (hold != null) {
                push(request, hold, began);
            }
            return hold;
        } catch (LockException error) {
            refuse(request, error);
            return null;
        }
    }

    /** Returns if the lock was not granted. A wait with a limit is not granted if it could only end by that limit. */
    private void refuse(Request request, LockException error) throws InterruptedException {
        if (error.kind() == Kind.BUSY || error.kind() == Kind.TIMED_OUT) {
            return;
        }
        boolean isOwn = request.isOnce && isHeld(request.holder);
        request.pause();
        if (error.kind() != Kind.DEADLOCK || request.patience == FOREVER || isOwn) {
            throw failure(request, error);
        }
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
        long began = System.nanoTime();
        RedisLock lock = lock(request);
        CompletableFuture<Hold> grant =
                (request.patience == FOREVER ? lock : lock.waiting(Duration.ofMillis(request.patience))).acquireAsync();
        CompletableFuture<Hold> hold = grant.whenComplete((granted, error) -> {
            if (granted != null) {
                push(request, granted, began);
            }
        });
        CompletableFuture<T> future = new CompletableFuture<>();
        hold.handleAsync((granted, error) -> result.apply(granted(request, granted, cause(error))), executor)
                .whenComplete((value, error) -> {
                    if (error != null) {
                        future.completeExceptionally(cause(error));
                    }
                    if (error != null || !future.complete(value)) {
                        // Nobody knows of it.
                        hold.thenAccept(unknown -> drop(request.holder, unknown));
                    }
                });
        future.whenComplete((value, error) -> grant.cancel(true));
        return future;
    }

    /** Runs work that may block. */
    Future<?> submit(Runnable work) {
        return executor.submit(work);
    }

    /** Releases just this hold, if the thread still has it. */
    CompletableFuture<?> drop(Holder holder, Hold hold) {
        return remove(holder, hold) ? hold.releaseAsync() : CompletableFuture.completedFuture(null);
    }

    /** The hold, or null if the lock was not granted. */
    private Hold granted(Request request, Hold hold, Throwable error) {
        try {
            if (error instanceof LockException known) {
                refuse(request, known);
            } else if (error != null) {
                throw new CompletionException(error);
            }
            return hold;
        } catch (InterruptedException ended) {
            throw new CompletionException(ended);
        }
    }

    private static Throwable cause(Throwable error) {
        return error instanceof CompletionException ? error.getCause() : error;
    }

    private void push(Request request, Hold hold, long began) {
        Holder holder = request.holder;
        holds.compute(holder, (same, present) -> {
            PriorityQueue<Entry> all = present != null
                    ? present
                    : new PriorityQueue<>((one, other) -> one.isRenewed() || other.isRenewed()
                            ? Boolean.compare(one.isRenewed(), other.isRenewed())
                            : Long.signum(one.leaseEnds - other.leaseEnds));
            if (hold.count() == 1 || isLost(all)) {
                // Those of before its call are lost. Later grants may have become known earlier.
                all.removeIf(entry -> entry.got - began < 0);
            }
            all.add(Entry.of(hold, request.lease));
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

    /** Whether no thread has a hold. */
    boolean isEmpty() {
        return holds.isEmpty();
    }

    private boolean isHeld(Holder holder) {
        return !valid(holder).isEmpty();
    }

    /** The holds of a thread, unless they are lost. */
    private List<Entry> valid(Holder holder) {
        List<Entry> valid = new ArrayList<>();
        holds.computeIfPresent(holder, (same, all) -> {
            all.stream().filter(entry -> !entry.hold.isLost()).forEach(valid::add);
            return all;
        });
        return valid;
    }

    /** Takes the hold of a thread that ends first, or null if the thread has lost the lock, or has none. */
    private Hold pop(Holder holder) {
        Hold[] first = new Hold[1];
        holds.computeIfPresent(holder, (same, all) -> {
            if (isLost(all)) {
                return null;
            }
            // The release of a lost hold leaves the others.
            Entry entry =
                    all.stream().filter(each -> each.hold.isLost()).findFirst().orElse(all.peek());
            all.remove(entry);
            first[0] = entry.hold;
            return all.isEmpty() ? null : all;
        });
        return first[0];
    }

    /** Returns false if the thread has no hold here, or has lost it. */
    boolean release(Holder holder) {
        if (isClosed.get()) {
            throw closed();
        }
        Hold hold = pop(holder);
        try {
            if (hold != null && !hold.isLost()) {
                hold.release();
            }
            return hold != null;
        } catch (LockException.Lost lost) {
            return isHeld(holder);
        } catch (LockException error) {
            throw failure(error);
        }
    }

    /** Releases the hold that ends first. The result is false if the thread has no hold here, or has lost the lock. */
    CompletableFuture<Boolean> releaseAsync(Holder holder) {
        if (isClosed.get()) {
            return CompletableFuture.failedFuture(closed());
        }
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
                            return error == null || isHeld(holder);
                        },
                        executor);
    }

    /**
     * Makes the leases of all holders of a lock here last at least this time, as the call names no thread. Returns false if this
     * client does not hold the lock.
     */
    boolean extend(Holder holder, long milliseconds) {
        boolean isHeld = false;
        for (Holder each : holds.keySet()) {
            if (each.key.equals(holder.key) && each.isShared == holder.isShared) {
                for (Entry entry : valid(each)) {
                    isHeld |= entry.lasts(milliseconds) || extend(each, entry, milliseconds);
                }
            }
        }
        return isHeld;
    }

    private boolean extend(Holder holder, Entry entry, long milliseconds) {
        try {
            entry.hold.extend(Duration.ofMillis(milliseconds));
        } catch (LockException.Lost lost) {
            return false;
        } catch (LockException error) {
            throw failure(error);
        }
        holds.computeIfPresent(holder, (same, all) -> {
            if (all.remove(entry)) {
                all.add(Entry.of(entry.hold, milliseconds));
            }
            return all;
        });
        return true;
    }

    private static RedisException closed() {
        return new RedissonShutdownException("Redisson is shutdown");
    }

    private RedisException failure(LockException error) {
        if (isClosed.get()) {
            return closed();
        }
        String hint = error.code().equals("WRONGTYPE") ? WRONG_TYPE : "";
        return new RedisException(error.getMessage() + hint, error);
    }
}
