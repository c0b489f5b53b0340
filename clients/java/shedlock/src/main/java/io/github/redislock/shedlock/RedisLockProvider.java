// SPDX-License-Identifier: MIT
package io.github.redislock.shedlock;

import io.github.redislock.Hold;
import io.github.redislock.LockException;
import io.github.redislock.Locks;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * ShedLock over locks of the redis-lock server module. {@code lockAtMostFor} is the lease. A task that ends before
 * {@code lockAtLeastFor} leaves the rest of it as the lease, so the lock stays even if this process ends.
 */
public final class RedisLockProvider implements ExtensibleLockProvider {
    private final Locks locks;
    private final String prefix;

    /** Uses keys that begin with {@code shedlock:}. */
    public RedisLockProvider(Locks locks) {
        this(locks, "shedlock:");
    }

    /** Uses keys with this prefix. The provider of ShedLock itself has other keys, so it does not exclude these tasks. */
    public RedisLockProvider(Locks locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        try {
            return locks.lock(prefix + configuration.getName())
                    .lease(configuration.getLockAtMostFor())
                    // ShedLock does not bind a lock to a thread.
                    .owner(UUID.randomUUID().toString())
                    .tryAcquire()
                    .map(hold -> new Held(configuration, hold));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    private static final class Held extends AbstractSimpleLock {
        private final Hold hold;

        Held(LockConfiguration configuration, Hold hold) {
            super(configuration);
            this.hold = hold;
        }

        @Override
        protected void doUnlock() {
            Duration rest = Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil());
            try {
                if (rest.toMillis() > 0) {
                    hold.releaseAfter(rest);
                } else {
                    hold.release();
                }
            } catch (LockException.Lost lost) {
                // The task may have an error of its own, which says more. The listener of Locks gets the loss.
                System.getLogger(getClass().getName()).log(System.Logger.Level.WARNING, lost.getMessage());
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration longer) {
            try {
                hold.extend(longer.getLockAtMostFor());
                return Optional.of(new Held(longer, hold));
            } catch (LockException.Lost lost) {
                return Optional.empty();
            }
        }
    }
}
