// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.Set;

/** The name under which a thread acquires locks. The mutex of {@link Locks} protects the rest. */
final class Owner {
    final byte[] name;
    /** Locks for which this name is not used again: a call may be late, or another process may hold the lock. */
    final Set<ByteBuffer> retired = new HashSet<>();
    /** The owner for those locks. */
    private Owner next;

    Owner(byte[] name) {
        this.name = name;
    }

    Owner retire(RedisLock lock) {
        retired.addAll(lock.ids);
        next = next == null ? lock.locks.newOwner() : next;
        return next;
    }
}
