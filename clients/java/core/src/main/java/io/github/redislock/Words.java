// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;

/** A command and its arguments. Times are in nanoseconds, and {@link #NONE} without a value. */
final class Words extends ArrayList<byte[]> {
    static final long NONE = Long.MAX_VALUE;
    private static final long serialVersionUID = 1;

    static Words of(Object... words) {
        return new Words().and(words);
    }

    /** Appends words: strings of ASCII, integers, or bytes. */
    Words and(Object... words) {
        for (Object word : words) {
            add(word instanceof byte[] bytes ? bytes : word.toString().getBytes(StandardCharsets.US_ASCII));
        }
        return this;
    }

    /** Appends a time in milliseconds, unless it is {@link #NONE}. */
    Words time(String name, long time) {
        return time == NONE ? this : and(name, milliseconds(time));
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

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** A time in nanoseconds. A time without an end is as long as the server can measure. */
    static long nanoseconds(String what, Duration time, long least) {
        Duration longest = Duration.ofDays(36_500);
        if (time == null || time.compareTo(Duration.ofNanos(least)) < 0) {
            throw LockException.misuse(what + " must be at least " + Duration.ofNanos(least) + ", and is " + time);
        }
        return (time.compareTo(longest) > 0 ? longest : time).toNanos();
    }
}
