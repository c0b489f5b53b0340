// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock with the interface of {@code java.util.concurrent}: the thread that locks it unlocks it, and may lock it again. Two of
 * them are equal if they have the same {@link Locks} and the same keys, and both are shared or neither is.
 */
public final class ThreadLock implements Lock {
    /** The locks of each thread. A lock has its hold once for each time that the thread locked it. */
    private static final ThreadLocal<Map<ThreadLock, Deque<Hold>>> HOLDS = ThreadLocal.withInitial(HashMap::new);

    private final RedisLock lock;

    ThreadLock(RedisLock lock) {
        this.lock = lock;
    }

    /** The hold of this thread, or null. */
    private Hold hold() {
        Deque<Hold> holds = HOLDS.get().get(this);
        return holds == null ? null : holds.peek();
    }

    /** Returns whether this thread has the lock. */
    private boolean enterAgain() {
        if (hasLost()) {
            throw new IllegalMonitorStateException(lock.name + ": lost, and not unlocked yet");
        }
        return enter(hold());
    }

    private boolean enter(Hold hold) {
        if (hold != null) {
            HOLDS.get().computeIfAbsent(this, none -> new ArrayDeque<>()).push(hold);
        }
        return hold != null;
    }

    private boolean hasLost() {
        Hold hold = hold();
        return hold != null && hold.isLost();
    }

    /**
     * Waits for the lock. Not interruptible. Fails as {@link RedisLock#acquire}.
     *
     * @throws IllegalMonitorStateException if this thread has lost the lock, and not unlocked it yet
     */
    @Override
    public void lock() {
        if (!enterAgain()) {
            enter(lock.acquiring(lock.wait, true).runUninterrupted());
        }
    }

    /** Waits for the lock, as {@link #lock}, unless it is interrupted. */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        if (!enterAgain()) {
            enter(lock.acquire());
        }
    }

    /** Returns whether this thread has the lock now: false if it has lost it. Not interruptible. */
    @Override
    public boolean tryLock() {
        return hasLost()
                ? false
                : enterAgain() || enter(lock.acquiring(0, false).runUninterrupted());
    }

    /** Waits for this time at most. Returns whether this thread has the lock now: false if it has lost it. */
    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        Duration wait = Duration.ofNanos(Math.max(0, unit.toNanos(time)));
        return hasLost() ? false : enterAgain() || enter(lock.tryAcquire(wait).orElse(null));
    }

    /**
     * Releases the lock, if this thread has locked it once.
     *
     * @throws IllegalMonitorStateException if this thread does not have it, or has lost it: then the cause is the {@link
     *     LockException.Lost}
     */
    @Override
    public void unlock() {
        Deque<Hold> holds = HOLDS.get().get(this);
        if (holds == null) {
            throw new IllegalMonitorStateException(lock.name + ": not locked by this thread");
        }
        Hold hold = holds.pop();
        if (!holds.isEmpty()) {
            return;
        }
        HOLDS.get().remove(this);
        try {
            hold.release();
        } catch (LockException.Lost lost) {
            throw (IllegalMonitorStateException) new IllegalMonitorStateException(lost.getMessage()).initCause(lost);
        }
    }

    /** Not supported: a lock of Redis has no conditions. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of Redis has no conditions");
    }

    /** The hold of the calling thread, or nothing if it has none, or has lost it. */
    public Optional<Hold> heldByCurrentThread() {
        return Optional.ofNullable(hold()).filter(hold -> !hold.isLost());
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof ThreadLock that
                && that.lock.locks == lock.locks
                && that.lock.ids.equals(lock.ids)
                && that.lock.isShared == lock.isShared;
    }

    @Override
    public int hashCode() {
        return Objects.hash(lock.ids, lock.isShared);
    }

    @Override
    public String toString() {
        return "ThreadLock of " + lock.name;
    }
}
