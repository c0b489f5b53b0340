// SPDX-License-Identifier: MIT
package io.github.redislock;

/** The name under which a thread acquires locks. A retired owner is not used again: a call of it may be late. */
final class Owner {
    final byte[] name;
    volatile boolean isRetired;

    Owner(byte[] name) {
        this.name = name;
    }
}
