// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import io.github.redislock.Hold;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.RedissonMultiLock;
import org.redisson.api.RFuture;
import org.redisson.misc.CompletableFutureWrapper;

/**
 * A multi-lock of native locks. It acquires one after the other, and releases them all if one is not granted. An error or an
 * interrupt ends a call.
 */
final class NativeGroup extends RedissonMultiLock {
    /** Time in milliseconds for the first attempt of a wait without a limit, for each lock. */
    private static final long ATTEMPT = 1500;
    /** Longest attempt. */
    private static final long LONGEST = TimeUnit.HOURS.toMillis(1);

    private final List<NativeLock> members;

    NativeGroup(List<NativeLock> members) {
        super(members.toArray(NativeLock[]::new));
        this.members = members;
    }

    /** A lock of the group, and the hold that an attempt got. */
    private record Grant(NativeLock lock, Hold hold) {}

    /**
     * The grants, or null if not all locks were granted. Times are in milliseconds. A lease that is not positive is none.
     *
     * <p>Locks of several servers may form a cycle that no server sees. So an attempt ends, and the next one is longer.
     */
    private List<Grant> attempt(long thread, long wait, long lease) throws InterruptedException {
        long began = System.nanoTime();
        long longest = ATTEMPT * members.size();
        while (true) {
            long time = wait == HeldLocks.FOREVER
                    ? ThreadLocalRandom.current().nextLong(longest / 2, longest)
                    : wait - elapsed(began);
            List<Grant> grants = once(thread, time, lease);
            if (grants != null || (wait != HeldLocks.FOREVER && elapsed(began) >= wait)) {
                return grants;
            }
            longest = Math.min(2 * longest, LONGEST);
        }
    }

    private static long elapsed(long began) {
        return (System.nanoTime() - began) / 1_000_000;
    }

    /** The server renews the locks until all are granted. So they are free soon if this process ends. */
    private List<Grant> once(long thread, long wait, long lease) throws InterruptedException {
        long began = System.nanoTime();
        List<Grant> grants = new ArrayList<>();
        List<Grant> leased = new ArrayList<>();
        boolean isGranted = false;
        try {
            isGranted = take(grants, thread, began, wait, 0) && (lease <= 0 || take(leased, thread, began, 0, lease));
            return !isGranted ? null : lease > 0 ? leased : grants;
        } finally {
            if (!isGranted) {
                drop(thread, leased);
            }
            if (!isGranted || lease > 0) {
                drop(thread, grants);
            }
        }
    }

    private boolean take(List<Grant> grants, long thread, long began, long wait, long lease)
            throws InterruptedException {
        for (NativeLock lock : members) {
            Hold hold = lock.take(thread, Math.max(0, wait - elapsed(began)), lease);
            if (hold == null) {
                return false;
            }
            grants.add(new Grant(lock, hold));
        }
        return grants.stream().noneMatch(grant -> grant.hold.isLost());
    }

    private static void drop(long thread, List<Grant> grants) {
        List<CompletableFuture<?>> all = new ArrayList<>();
        grants.forEach(grant -> all.add(grant.lock.drop(thread, grant.hold)));
        // The server also frees what cannot be released now.
        all.forEach(each -> each.handle((done, error) -> null).join());
    }

    private static long thread() {
        return Thread.currentThread().getId();
    }

    private static long milliseconds(long time, TimeUnit unit) {
        return time <= 0 ? 0 : Math.max(1, unit.toMillis(time));
    }

    @Override
    public void lock() {
        lock(-1, null);
    }

    @Override
    public void lock(long leaseTime, TimeUnit unit) {
        boolean isInterrupted = Thread.interrupted();
        try {
            while (true) {
                try {
                    lockInterruptibly(leaseTime, unit);
                    return;
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

    // The other forms call these.

    @Override
    public void lockInterruptibly(long leaseTime, TimeUnit unit) throws InterruptedException {
        attempt(thread(), HeldLocks.FOREVER, milliseconds(leaseTime, unit));
    }

    @Override
    public boolean tryLock(long waitTime, long leaseTime, TimeUnit unit) throws InterruptedException {
        return attempt(thread(), milliseconds(waitTime, unit), milliseconds(leaseTime, unit)) != null;
    }

    @Override
    public RFuture<Void> lockAsync(long leaseTime, TimeUnit unit, long threadId) {
        return async(
                threadId, () -> attempt(threadId, HeldLocks.FOREVER, milliseconds(leaseTime, unit)), grants -> null);
    }

    @Override
    public RFuture<Boolean> tryLockAsync(long waitTime, long leaseTime, TimeUnit unit, long threadId) {
        return async(
                threadId,
                () -> attempt(threadId, milliseconds(waitTime, unit), milliseconds(leaseTime, unit)),
                grants -> grants != null);
    }

    /** Each waiting call occupies a thread. To cancel the future ends the wait. */
    private <T> RFuture<T> async(
            long thread, Callable<List<Grant>> attempt, java.util.function.Function<List<Grant>, T> result) {
        CompletableFuture<T> future = new CompletableFuture<>();
        Future<?> task = members.get(0).held.submit(() -> {
            try {
                List<Grant> grants = attempt.call();
                if (!future.complete(result.apply(grants)) && grants != null) {
                    drop(thread, grants);
                }
            } catch (Exception error) {
                future.completeExceptionally(error);
            }
        });
        future.whenComplete((value, error) -> {
            if (error != null) {
                task.cancel(true);
            }
        });
        return new CompletableFutureWrapper<>(future);
    }

    /** Unlocks all, also if the thread has lost some of them. */
    @Override
    public void unlock() {
        RuntimeException first = null;
        for (NativeLock lock : members) {
            try {
                lock.unlock();
            } catch (RuntimeException error) {
                first = first == null ? error : first;
            }
        }
        if (first != null) {
            throw first;
        }
    }
}
