// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Request.NONE;

import java.lang.ref.PhantomReference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;

/** One numbered acquire, from its first call to the end of its hold. The mutex of {@link Locks} protects its state. */
final class Acquire {
    enum State {
        ASKED,
        HELD,
        OVER
    }

    /** Ends of a hold that are no loss. */
    static final String RELEASED = "released";

    static final String CANCELLED = "cancelled";

    final Request request;
    final Owner owner;
    final boolean isTry;
    final long until;

    Session session;
    /** The id of the session that has the number, which is 0 if none has it. */
    byte[] id;

    long n;
    volatile State state = State.ASKED;
    volatile String reason = "";
    /** Why the client ends a wait that the server may keep. */
    LockException failure;

    /** When the first attempt was sent. A lease begins then at the earliest. */
    long sent = NONE;

    long holds;
    List<Long> tokens = List.of();
    volatile long granted;
    volatile long leaseEnds = NONE;
    /** The server may still revoke the grant (R1), until it has acknowledged a later LOCK.EVENTS. */
    volatile boolean isProvisional;
    /** The session has still to declare it. */
    volatile boolean isUndeclared;

    volatile boolean isHandedOver;
    volatile boolean isReleasing;
    /** A release has no reply, so it may have succeeded. */
    boolean isReleaseInDoubt;
    /** Completes and is replaced at the next change of a wait. */
    CompletableFuture<Void> changed = new CompletableFuture<>();
    /** Completes when the state is OVER. */
    final CompletableFuture<Void> ended = new CompletableFuture<>();
    /** Notices that the application has dropped its hold. Null until the application has one. */
    PhantomReference<Hold> reference;

    Acquire(Request request, Owner owner, boolean isTry, long until) {
        this.request = request;
        this.owner = owner;
        this.isTry = isTry;
        this.until = until;
    }

    Words numbered(Words words) {
        return words.and("SESSION", id, n);
    }

    Words acquireWords() {
        Words words = numbered(request.acquire(owner.name));
        if (isTry) {
            return words;
        }
        return words.and("QUEUE", until == NONE ? 0 : Request.milliseconds(Math.max(0, until - Locks.now())));
    }

    Words renewWords(long lease) {
        long left = request.maxHold;
        if (left != NONE && granted != 0) {
            left = Math.max(0, left - (Locks.now() - granted));
        }
        return numbered(request.bind(request.words("RENEW", owner.name), lease, left));
    }

    Words declareWords() {
        return renewWords(leaseEnds == NONE ? request.lease : Math.max(0, leaseEnds - Locks.now()));
    }

    Words cancelWords() {
        return numbered(Words.of("LOCK.CANCEL", request.key(), owner.name));
    }

    /** Whether the hold ended before its release. */
    boolean isLost() {
        if (state == State.HELD) {
            // Before the application has the hold, its lease can be set again.
            return reference != null && leaseEnds <= Locks.now() && !isHandedOver;
        }
        return state == State.OVER && !isHandedOver && !reason.equals(RELEASED) && !reason.equals(CANCELLED);
    }

    LockException lost() {
        String why = reason.isEmpty() ? "expired" : reason;
        return LockException.of(
                LockException.Kind.LOST,
                request.name + ": the hold ended before its release (" + why + "); acquire the lock again");
    }

    /** Takes the number of holds and the tokens from a reply, or from the fields of an event. */
    void take(Object counts, Object eventTokens) {
        List<Long> all = new ArrayList<>();
        for (Object each : request.isSeveral() ? (List<?>) counts : List.of(counts)) {
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
    List<ByteBuffer> holdKey() {
        return Stream.concat(Stream.of(ByteBuffer.wrap(owner.name)), request.ids.stream())
                .toList();
    }

    /** Whether it has this state and owner, and one of these locks. */
    boolean matches(State other, Owner another, Request next) {
        return state == other
                && Arrays.equals(owner.name, another.name)
                && !Collections.disjoint(request.ids, next.ids);
    }
}
