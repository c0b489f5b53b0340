// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Words.NONE;

import java.lang.ref.PhantomReference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/** One numbered acquire, from its first call to the end of its hold. The mutex of {@link Locks} protects its state. */
final class Acquire {
    /** Replies, events and the clock move an acquire forward, and never back. */
    enum State {
        ASKED,
        HELD,
        /** Over for its caller, but perhaps not on the server. */
        UNDO,
        OVER
    }

    /** Ends of a hold that are no loss. */
    private static final Set<String> GOOD_ENDS = Set.of("released", "cancelled", "handed over");

    final Acquiring by;
    final RedisLock lock;
    final Owner owner;

    Session session;
    long n;
    /** The id of the session that may know the number, or null. */
    byte[] id;

    volatile State state = State.ASKED;
    volatile String reason = "";
    /** Calls without an answer. They are moot when the state changes. */
    final List<Call> calls = new ArrayList<>(1);

    /** When the first attempt was sent. A lease begins then at the earliest. */
    long sent = NONE;

    long holds;
    List<Long> tokens = List.of();
    long granted;
    volatile long leaseEnds = NONE;
    /** The server may still revoke the grant (R1), until it has acknowledged a later LOCK.EVENTS. */
    boolean isProvisional;

    boolean isReleasing;
    /** A release has no reply, so it may have succeeded. */
    boolean isReleaseInDoubt;
    /** Completes when the hold ends. */
    final CompletableFuture<Void> ended = new CompletableFuture<>();
    /** Notices that the application has dropped its hold. Null until the application has one. */
    PhantomReference<Hold> reference;

    Acquire(Acquiring by, Owner owner) {
        this.by = by;
        this.owner = owner;
        lock = by.lock;
    }

    /** A call about this acquire. The lease is that of {@code ACQUIRE} and {@code RENEW}. */
    Words words(String verb, long lease) {
        Words words =
                verb.equals("CANCEL") ? Words.of("LOCK.CANCEL", lock.key(), owner.name) : lock.words(verb, owner.name);
        if (verb.equals("ACQUIRE")) {
            if (lock.isShared) {
                words.and("SHARED");
            }
            if (lock.limit > 0) {
                words.and("LIMIT", lock.limit);
            }
            if (lock.isFenced) {
                words.and("FENCE");
            }
            lock.bind(words, lease, lock.maxHold);
        } else if (verb.equals("RENEW")) {
            long age = granted == 0 || lock.maxHold == NONE ? 0 : Locks.now() - granted;
            lock.bind(words, lease, lock.maxHold - age);
        }
        words.and("SESSION", session.id, n);
        if (state == State.ASKED && by.from != null) {
            words.addAll(by.from);
        } else if (state == State.ASKED && !by.isTry) {
            words.and("QUEUE", by.until == NONE ? 0 : Words.milliseconds(by.until - Locks.now()));
        }
        return words;
    }

    /** Whether the present session of its server knows it. */
    boolean isDeclared() {
        return id != null && id == session.id;
    }

    /** Whether the hold ended before its release. */
    boolean isLost() {
        if (state == State.HELD) {
            // Before the application has the hold, its lease can be set again.
            return reference != null && leaseEnds <= Locks.now();
        }
        return state != State.ASKED && !GOOD_ENDS.contains(reason);
    }

    LockException lost() {
        String why = reason.isEmpty() ? "expired" : reason;
        return LockException.of(
                LockException.Kind.LOST,
                lock.name + ": the hold ended before its release (" + why + "); acquire the lock again");
    }

    /** Sets the lease, or checks a hold that the server renews. After that the hold may have ended. */
    void renew(long lease) {
        Call call = lock.locks.locked(() -> state == State.HELD
                ? new Call(this, "RENEW", lease, Locks.now() + lock.locks.settings.patience)
                : null);
        if (call != null) {
            call.send();
            call.awaitUninterrupted();
        }
    }

    /** Takes the number of holds and the tokens from a reply, or from the fields of an event. */
    void take(Object counts, Object eventTokens) {
        List<Long> all = new ArrayList<>();
        for (Object each : lock.isSeveral() ? (List<?>) counts : List.of(counts)) {
            Object count = each;
            if (!(each instanceof Long)) {
                Map<String, Object> fields = Replies.map(each);
                count = fields.get("holds");
                all.add((Long) fields.get("token"));
            }
            holds = Math.max(holds, (Long) count);
        }
        tokens = eventTokens == null ? all : Replies.longs(eventTokens);
    }

    /** Equal for holds that the server counts together. */
    List<?> holdKey() {
        return List.of(ByteBuffer.wrap(owner.name), lock.ids);
    }

    /** Whether it has this owner and one of these locks. */
    boolean matches(Owner other, RedisLock next) {
        return Arrays.equals(owner.name, other.name) && !Collections.disjoint(lock.ids, next.ids);
    }
}
