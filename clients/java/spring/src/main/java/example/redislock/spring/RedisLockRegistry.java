// SPDX-License-Identifier: MIT
package example.redislock.spring;

import example.redislock.LockException;
import example.redislock.Locks;
import example.redislock.RedisLock;
import java.util.concurrent.locks.Lock;
import java.util.function.UnaryOperator;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * Spring Integration's lock registry over locks of the redis-lock server module. They are renewed by client and server, so nothing
 * must be scheduled. There is nothing to expire either: a lock that nobody holds is remembered nowhere.
 */
public final class RedisLockRegistry implements RenewableLockRegistry {
    private final Locks locks;
    private final String prefix;
    private final UnaryOperator<RedisLock> how;

    /** With locks that are renewed as long as they are held. */
    public RedisLockRegistry(Locks locks, String registryKey) {
        this(locks, registryKey, lock -> lock);
    }

    /**
     * As the other.
     *
     * @param how sets a lease, a label or a limit
     */
    public RedisLockRegistry(Locks locks, String registryKey, UnaryOperator<RedisLock> how) {
        this.locks = locks;
        prefix = registryKey + ":";
        this.how = how;
    }

    /** Always another object; they exclude each other, and a thread may enter by any of them. */
    @Override
    public Lock obtain(Object lockKey) {
        return lock(lockKey);
    }

    /**
     * Sets the lease anew.
     *
     * @throws IllegalStateException if this thread does not have the lock
     */
    @Override
    public void renewLock(Object lockKey) {
        RedisLock lock = lock(lockKey);
        try {
            lock.heldByCurrentThread()
                    .orElseThrow(() -> new IllegalStateException(prefix + lockKey + ": not locked by this thread"))
                    .extend();
        } catch (LockException.Lost lost) {
            throw new IllegalStateException(lost.getMessage(), lost);
        }
    }

    private RedisLock lock(Object lockKey) {
        if (!(lockKey instanceof String)) {
            throw new IllegalArgumentException("a lock's key must be a string");
        }
        return how.apply(locks.lock(prefix + lockKey));
    }
}
