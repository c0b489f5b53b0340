// SPDX-License-Identifier: MIT
package io.github.redislock.spring;

import io.github.redislock.Hold;
import io.github.redislock.LockException;
import io.github.redislock.Locks;
import io.github.redislock.RedisLock;
import io.github.redislock.ThreadLock;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * The lock registry of Spring Integration over locks of the redis-lock server module. The server renews them while they are held,
 * so nothing must be scheduled. Nothing must expire either: a lock that no thread holds needs no memory.
 */
public final class RedisLockRegistry
        implements RenewableLockRegistry<DistributedLock>, ExpirableLockRegistry<DistributedLock> {
    private final Locks locks;
    private final String prefix;
    private final UnaryOperator<RedisLock> options;

    /** Uses keys that begin with the registry's key and a colon. */
    public RedisLockRegistry(Locks locks, String registryKey) {
        this(locks, registryKey, lock -> lock);
    }

    /**
     * Uses keys that begin with the registry's key and a colon.
     *
     * @param options sets options of each lock, such as a lease or a label
     */
    public RedisLockRegistry(Locks locks, String registryKey, UnaryOperator<RedisLock> options) {
        this.locks = locks;
        prefix = registryKey + ":";
        this.options = options;
    }

    /** The lock of this name. Locks of the same name are equal, and a thread may lock one and unlock the other. */
    @Override
    public DistributedLock obtain(Object lockKey) {
        return new RegistryLock(lock(lockKey));
    }

    private RedisLock lock(Object lockKey) {
        if (!(lockKey instanceof String)) {
            throw new IllegalArgumentException("a lock's key must be a string");
        }
        return options.apply(locks.lock(prefix + lockKey));
    }

    /**
     * Sets the lease of a lock again, or checks a lock that the server renews.
     *
     * @throws IllegalStateException if this thread does not have the lock
     */
    @Override
    public void renewLock(Object lockKey) {
        renew(lockKey, Hold::extend);
    }

    /**
     * Sets another lease of a lock that has one.
     *
     * @throws IllegalStateException if this thread does not have the lock
     */
    @Override
    public void renewLock(Object lockKey, Duration ttl) {
        renew(lockKey, hold -> hold.extend(ttl));
    }

    private void renew(Object lockKey, Consumer<Hold> renewal) {
        try {
            renewal.accept(lock(lockKey)
                    .asLock()
                    .heldByCurrentThread()
                    .orElseThrow(() -> new IllegalStateException(prefix + lockKey + ": not locked by this thread")));
        } catch (LockException.Lost lost) {
            throw new IllegalStateException(lost.getMessage(), lost);
        }
    }

    /** Does nothing: this registry has no locks that are not held. */
    @Override
    public void expireUnusedOlderThan(long age) {}

    private static final class RegistryLock implements DistributedLock {
        private final RedisLock options;
        private final ThreadLock lock;

        RegistryLock(RedisLock options) {
            this.options = options;
            lock = options.asLock();
        }

        @Override
        public void lock() {
            lock.lock();
        }

        @Override
        public void lock(Duration ttl) {
            options.lease(ttl).asLock().lock();
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            lock.lockInterruptibly();
        }

        @Override
        public boolean tryLock() {
            return lock.tryLock();
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return lock.tryLock(time, unit);
        }

        @Override
        public boolean tryLock(Duration wait, Duration ttl) throws InterruptedException {
            return options.lease(ttl).asLock().tryLock(wait.toNanos(), TimeUnit.NANOSECONDS);
        }

        @Override
        public void unlock() {
            lock.unlock();
        }

        @Override
        public Condition newCondition() {
            return lock.newCondition();
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof RegistryLock that && that.lock.equals(lock);
        }

        @Override
        public int hashCode() {
            return lock.hashCode();
        }
    }
}
