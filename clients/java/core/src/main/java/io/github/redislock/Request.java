// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/** One lock, or several at once, with options. Times are in nanoseconds, and {@link #NONE} without a value. */
final class Request implements Cloneable {
    static final long NONE = Long.MAX_VALUE;

    final List<byte[]> keys;
    /** The keys, comparable. */
    final List<ByteBuffer> ids;

    final String name;
    long wait = NONE;
    long lease = NONE;
    long maxHold = NONE;
    /** The lease that the server sets at each renewal. By default the server chooses it. */
    final long renewedLease;

    boolean shared;
    int limit;
    boolean fence;
    boolean reentrant;
    byte[] owner;
    String label;

    Request(List<byte[]> keys, long renewedLease) {
        if (keys.isEmpty()) {
            throw LockException.misuse("a lock needs a key");
        }
        this.keys = keys;
        ids = keys.stream().map(ByteBuffer::wrap).toList();
        this.renewedLease = renewedLease;
        name = keys.stream().map(Request::text).collect(Collectors.joining(", "));
    }

    Request copy() {
        try {
            return (Request) clone();
        } catch (CloneNotSupportedException impossible) {
            throw new AssertionError(impossible);
        }
    }

    Request checked() {
        if (lease != NONE && maxHold != NONE) {
            throw LockException.misuse("maxHold limits renewals, and a hold with a lease has none; use one of them");
        } else if (limit > 0 && isSeveral()) {
            throw LockException.misuse("a limit is not available for several locks");
        }
        return this;
    }

    boolean isSeveral() {
        return keys.size() > 1;
    }

    byte[] key() {
        return keys.get(0);
    }

    /** The first words of a call: {@code ACQUIRE}, {@code RENEW} or {@code RELEASE}. */
    Words words(String verb, byte[] owner) {
        Words words = isSeveral() ? Words.of("LOCK.M" + verb, keys.size()) : Words.of("LOCK." + verb);
        words.addAll(keys);
        return words.and((Object) owner);
    }

    Words acquire(byte[] owner) {
        Words words = words("ACQUIRE", owner);
        if (shared) {
            words.and("SHARED");
        }
        if (limit > 0) {
            words.and("LIMIT", limit);
        }
        return bind(fence ? words.and("FENCE") : words, lease, maxHold);
    }

    /** Appends the lease of a hold. Without one, the server renews the hold, and ends it with the session. */
    Words bind(Words words, long lease, long maxHold) {
        if (lease != NONE) {
            return words.and("PX", milliseconds(lease));
        }
        if (renewedLease != NONE) {
            words.and("PX", milliseconds(renewedLease));
        }
        if (renewedLease != NONE || maxHold != NONE) {
            words.and("WATCHDOG");
        }
        return (maxHold == NONE ? words : words.and("MAX", milliseconds(maxHold))).and("EPHEMERAL");
    }

    static long milliseconds(long time) {
        return Math.max(1, (time + 999_999) / 1_000_000);
    }

    static byte[] bytes(String what, String text) {
        try {
            ByteBuffer encoded = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
            byte[] bytes = new byte[encoded.remaining()];
            encoded.get(bytes);
            return bytes(what, bytes);
        } catch (CharacterCodingException error) {
            throw LockException.misuse(what + " is not valid Unicode; pass bytes");
        }
    }

    static byte[] bytes(String what, byte[] bytes) {
        if (bytes.length == 0) {
            throw LockException.misuse(what + " must not be empty");
        }
        return bytes.clone();
    }

    static List<byte[]> keys(String... keys) {
        List<byte[]> all = new ArrayList<>();
        for (String key : keys) {
            all.add(bytes("key", key));
        }
        return all;
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** A time in nanoseconds. A time without an end is as long as the server can measure. */
    static long time(String what, Duration time, long least) {
        Duration longest = Duration.ofDays(36_500);
        if (time == null || time.compareTo(Duration.ofNanos(least)) < 0) {
            throw LockException.misuse(what + " must be at least " + Duration.ofNanos(least) + ", and is " + time);
        }
        return (time.compareTo(longest) > 0 ? longest : time).toNanos();
    }
}
