// SPDX-License-Identifier: MIT
package example.redislock;

import java.time.Duration;
import java.util.List;

/**
 * How a lock is to be held. Times are in nanoseconds.
 *
 * @param given the lease; 0 if nothing is said
 * @param said whether it is to be kept; null if nothing is said
 * @param maxHold 0: no limit
 * @param waiting negative: without limit
 * @param limit 0: none
 * @param owner null: a new one for each hold
 * @param own whether a wait has a connection for itself
 */
record How(
        String key,
        long given,
        Boolean said,
        long maxHold,
        long waiting,
        boolean shared,
        int limit,
        boolean fence,
        String label,
        String owner,
        boolean own) {
    private static final long LEASE = Duration.ofSeconds(30).toNanos();
    static final long FOREVER = -1;

    static How of(String key) {
        if (key == null) {
            throw LockException.misuse("a lock has a key");
        }
        return new How(key, 0, null, 0, FOREVER, false, 0, false, key, null, false);
    }

    long lease() {
        return given == 0 ? LEASE : given;
    }

    /** Whether client and server renew the lease. */
    boolean keep() {
        return said == null ? given == 0 : said;
    }

    How lease(long lease) {
        return new How(key, lease, said, maxHold, waiting, shared, limit, fence, label, owner, own);
    }

    How keep(boolean keep) {
        return new How(key, given, keep, maxHold, waiting, shared, limit, fence, label, owner, own);
    }

    How maxHold(long maxHold) {
        return new How(key, given, said, maxHold, waiting, shared, limit, fence, label, owner, own);
    }

    How waiting(long waiting) {
        return new How(key, given, said, maxHold, waiting, shared, limit, fence, label, owner, own);
    }

    How shared(int limit) {
        return new How(key, given, said, maxHold, waiting, true, limit, fence, label, owner, own);
    }

    How fenced() {
        return new How(key, given, said, maxHold, waiting, shared, limit, true, label, owner, own);
    }

    How label(String label) {
        return new How(key, given, said, maxHold, waiting, shared, limit, fence, label, owner, own);
    }

    How owner(String owner) {
        // The server would make up another, by which nobody here could give the lock back.
        if ("*".equals(owner)) {
            throw LockException.misuse("owner must not be *");
        }
        return new How(key, given, said, maxHold, waiting, shared, limit, fence, label, owner, own);
    }

    How onItsOwn() {
        return new How(key, given, said, maxHold, waiting, shared, limit, fence, label, owner, true);
    }

    /** What binds a hold that is so old to the connection of the call. */
    void bind(List<String> words, long age) {
        if (keep()) {
            words.add("WATCHDOG");
            if (maxHold > 0) {
                words.add("MAX");
                words.add(ms(Math.max(1, maxHold - age)));
            }
            words.add("EPHEMERAL");
        }
    }

    /** As the server wants it: it must not end what is still valid here. */
    static String ms(long time) {
        return Long.toString((time + 999_999) / 1_000_000);
    }

    /** A time that the server can keep. */
    static long time(String word, Duration time, boolean mayBeZero) {
        if (time == null || time.isNegative() || (time.isZero() && !mayBeZero) || time.toDays() > 36_500) {
            throw LockException.misuse(word + " must be a time" + (mayBeZero ? "" : " above 0") + ", and is " + time);
        }
        return time.toNanos();
    }
}
