// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.Set;

/** The name under which a thread acquires locks. The mutex of {@link Locks} protects its set. */
final class Owner {
    final byte[] name;
    /** Locks that another process may hold under this name. */
    final Set<ByteBuffer> handedOver = new HashSet<>();

    Owner(byte[] name) {
        this.name = name;
    }
}
