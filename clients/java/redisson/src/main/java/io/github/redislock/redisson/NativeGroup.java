// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.RedissonBaseLock;
import org.redisson.RedissonMultiLock;
import org.redisson.api.RLock;

/**
 * A multi-lock that acquires its members one after the other. An error or an interrupt ends an attempt. Redisson would repeat it
 * without end. The asynchronous forms are those of Redisson.
 */
final class NativeGroup extends RedissonMultiLock {
    /** Longest lease of a member in milliseconds until all are locked. */
    private static final long LONGEST = TimeUnit.HOURS.toMillis(1);

    private final List<RLock> members;

    NativeGroup(RLock... members) {
        super(members);
        this.members = List.of(members);
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

    @Override
    public boolean tryLock(long waitTime, long leaseTime, TimeUnit unit) throws InterruptedException {
        long began = System.nanoTime();
        long wait = waitTime <= 0 ? 0 : unit.toMillis(waitTime);
        long lease = leaseTime <= 0 ? -1 : Math.max(1, unit.toMillis(leaseTime));
        long left = wait;
        do {
            if (tryAll(left, lease)) {
                return true;
            }
            left = wait - (System.nanoTime() - began) / 1_000_000;
        } while (left > 0);
        return false;
    }

    private boolean tryAll(long wait, long lease) throws InterruptedException {
        long began = System.nanoTime();
        // The first member is held while the others are awaited.
        long first = lease < 0 ? -1 : Math.max(lease, 2 * Math.min(wait, LONGEST));
        List<RLock> locked = new ArrayList<>();
        boolean isLocked = false;
        try {
            for (RLock member : members) {
                long left = wait - (System.nanoTime() - began) / 1_000_000;
                if (!member.tryLock(Math.max(0, left), first, TimeUnit.MILLISECONDS)) {
                    return false;
                }
                locked.add(member);
            }
            isLocked = first == lease || members.stream().allMatch(member -> setLease(member, lease));
            return isLocked;
        } finally {
            if (!isLocked) {
                unlockInner(locked);
            }
        }
    }

    private static boolean setLease(RLock member, long lease) {
        return !(member instanceof RedissonBaseLock lock) || lock.expire(lease, TimeUnit.MILLISECONDS);
    }
}
