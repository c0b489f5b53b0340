// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Words.NONE;

import io.github.redislock.Acquire.State;
import java.lang.ref.PhantomReference;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A lock that is held. Any thread may use it. The server renews a hold without a lease while this process lives. A process that
 * hangs keeps its hold, unless the lock has {@link RedisLock#maxHold}.
 */
public final class Hold implements AutoCloseable {
    /** Notices a hold that was never released. */
    static final class Dropped extends PhantomReference<Hold> {
        final Acquire acquire;

        Dropped(Hold hold, Acquire acquire) {
            super(hold, hold.locks.dropped);
            this.acquire = acquire;
        }
    }

    private final Locks locks;
    private final Acquire acquire;

    Hold(Locks locks, Acquire acquire) {
        this.locks = locks;
        this.acquire = acquire;
        acquire.reference = new Dropped(this, acquire);
    }

    /** The key of the lock, or of the first of several locks. */
    public String key() {
        return Words.text(acquire.lock.key());
    }

    /** The name of the holder on the server. By default each thread has one. */
    public String owner() {
        return Words.text(acquire.owner.name);
    }

    /** The number of holds that the owner had after this grant: more than one only for a re-entry. */
    public long count() {
        return acquire.holds;
    }

    /** With {@link RedisLock#fence}, a number greater than those of all earlier grants: that of the first lock. */
    public OptionalLong token() {
        return acquire.tokens.stream().mapToLong(Long::longValue).findFirst();
    }

    /** With {@link RedisLock#fence}, the token of each lock. */
    public List<Long> tokens() {
        return acquire.tokens;
    }

    /** Whether the hold ended before its release, so that another owner may have the lock. Makes no call. */
    public boolean isLost() {
        return acquire.isLost();
    }

    /**
     * Completes if the hold ends before its release: at the server's event, or after its end by the local clock. The session
     * checks the clock after each call: at least once a second, and less often in an outage. Never fails. Dependents run in the
     * executor of {@link Locks}.
     */
    public CompletableFuture<Void> lost() {
        CompletableFuture<Void> result = new CompletableFuture<>();
        // Without a reference to this object, which would never be dropped.
        Acquire watched = acquire;
        Locks all = locks;
        watched.ended.thenRun(() -> {
            if (watched.isLost()) {
                all.result(() -> result.complete(null));
            }
        });
        return result;
    }

    /** Waits for this time at most. Returns true at once if the hold is lost, and false if it is not, or was released. */
    public boolean awaitLost(Duration limit) throws InterruptedException {
        long time = Words.nanoseconds("time", limit, 0);
        try {
            acquire.ended.get(Math.max(0, Math.min(time, acquire.leaseEnds - Locks.now())), TimeUnit.NANOSECONDS);
        } catch (TimeoutException | ExecutionException notYet) {
            // Perhaps the lease has ended.
        }
        return isLost();
    }

    /**
     * Time for which no other owner can have the lock, even if the network fails. Zero means that nothing is proven: the hold is
     * in jeopardy, lost or released, or the session has no grace. Makes no call.
     */
    public Duration validFor() {
        return Duration.ofNanos(locks.locked(() -> acquire.session.validFor(acquire)));
    }

    /** Sets the lease of the acquire again, from now on. Without a lease, asks the server whether the hold has ended. */
    public void extend() {
        renew(acquire.lock.lease);
    }

    /**
     * Sets the lease, from now on. Not interruptible.
     *
     * @throws LockException.Lost if the hold has ended
     * @throws LockException {@code MISUSE} if the hold has no lease. {@code UNAVAILABLE} if no server answered in time; then the
     *     shorter of both leases counts
     */
    public void extend(Duration lease) {
        if (acquire.lock.lease == NONE) {
            throw LockException.misuse(
                    acquire.lock.name + ": the server renews this hold; acquire it with a lease to set one");
        }
        renew(Words.nanoseconds("lease", lease, 1_000_000));
    }

    private void renew(long lease) {
        if (isLost()) {
            throw acquire.lost();
        } else if (lease != NONE) {
            // A shorter lease may count even if its reply is lost.
            acquire.leaseEnds = Math.min(acquire.leaseEnds, Locks.now() + lease);
        }
        try {
            acquire.renew(lease);
        } catch (LockException error) {
            throw error.forCaller(acquire.lock.name);
        }
        if (acquire.state != State.HELD) {
            throw acquire.lost();
        }
    }

    /**
     * Carries out a command if the lock is still held, in one step ({@code LOCK.GUARD}).
     *
     * @return the reply: a {@code Long}, a string, a list, a map or null
     * @throws LockException.Lost if the hold has ended; then nothing was carried out
     */
    public Object guard(String... command) {
        if (isLost()) {
            throw acquire.lost();
        } else if (acquire.lock.isSeveral()) {
            throw LockException.misuse(acquire.lock.name + ": a guarded command works with one lock");
        }
        Words words = Words.of("LOCK.GUARD", acquire.lock.key(), "OWNER", acquire.owner.name);
        for (String word : command) {
            words.and((Object) word.getBytes(java.nio.charset.StandardCharsets.UTF_8));
        }
        return Replies.readable(locks.execute(acquire.lock, words));
    }

    /**
     * Releases the lock. Not interruptible. If no server answers, the release continues in the background, and a further call
     * does nothing.
     *
     * @throws LockException.Lost if the hold ended before
     * @throws LockException {@code UNAVAILABLE} if no server answered in the patience of {@link Locks}
     */
    public void release() {
        endRelease(beginRelease());
    }

    /** Releases the lock. See {@link #release}. */
    @Override
    public void close() {
        release();
    }

    /** Releases the lock without blocking. The future fails as {@link #release} does. */
    public CompletableFuture<Void> releaseAsync() {
        CompletableFuture<Void> future = new CompletableFuture<>();
        locks.async(() -> {
            Call call = beginRelease();
            if (call == null) {
                complete(future, null);
            } else {
                call.whenDone(() -> complete(future, call));
            }
        });
        return future;
    }

    private void complete(CompletableFuture<Void> future, Call call) {
        try {
            endRelease(call);
            locks.result(() -> future.complete(null));
        } catch (RuntimeException | Error error) {
            locks.result(() -> future.completeExceptionally(error));
        }
    }

    /** Null if there is nothing to release. */
    private Call beginRelease() {
        Call call = locks.locked(() -> {
            if (acquire.state != State.HELD || acquire.isReleasing) {
                return null;
            } else if (acquire.isLost()) {
                // Expired by the local clock. The server may still have the hold.
                acquire.session.end(acquire, "expired", true);
                return null;
            }
            acquire.isReleasing = true;
            return new Call(acquire, "RELEASE", NONE, Locks.now() + locks.settings.patience);
        });
        if (call != null) {
            call.send();
        }
        return call;
    }

    /** After a failure, the release continues in the background. */
    private void endRelease(Call call) {
        try {
            if (call != null) {
                call.awaitUninterrupted();
            }
        } catch (LockException error) {
            locks.update(() -> acquire.session.end(acquire, "released", true));
            throw error.forCaller(acquire.lock.name);
        }
        if (acquire.isLost()) {
            throw acquire.lost();
        }
    }

    /**
     * Leaves the lock to a rest of its lease, even if this process ends. Then the hold counts as released. If a call fails, the
     * lock remains until the end of its lease.
     *
     * @param rest at least 1 ms
     * @throws LockException.Lost if the hold ended before
     * @throws LockException {@code MISUSE} if the hold has no lease, is shared, or has several locks; {@code UNAVAILABLE} if no
     *     server answered
     */
    public void releaseAfter(Duration rest) {
        RedisLock lock = acquire.lock;
        byte[] owner = acquire.owner.name;
        long time = Words.nanoseconds("rest", rest, 1_000_000);
        if (lock.lease == NONE || lock.isShared || lock.isSeveral()) {
            throw LockException.misuse(lock.name + ": only a hold with a lease of one lock can be left to it");
        } else if (isLost()) {
            throw acquire.lost();
        }
        // The owner is not the thread any longer.
        locks.update(() -> acquire.owner.retired.addAll(lock.ids));
        // R7: the lease of a hold with a number is never shortened. So another one without a number takes its place.
        Object holds = locks.execute(lock, lock.bind(lock.words("ACQUIRE", owner), time, NONE));
        try {
            release();
        } finally {
            boolean isOurs = holds instanceof Long count && count > 1;
            Words words = lock.words(isOurs ? "RENEW" : "RELEASE", owner);
            locks.execute(lock, isOurs ? lock.bind(words, time, NONE) : words);
        }
    }

    /**
     * Lets another process take over the hold by {@link RedisLock#attach}. Until then this process keeps it alive. It does not
     * release it, and reports no loss of it. Not interruptible.
     *
     * @return a ticket for the other process
     * @throws LockException.Lost if the hold has ended
     */
    public String handOver() {
        if (acquire.lock.isSeveral()) {
            throw LockException.misuse(acquire.lock.name + ": several locks cannot be handed over together");
        }
        renew(acquire.lock.lease);
        return locks.locked(() -> {
            if (acquire.state != State.HELD) {
                throw acquire.lost();
            }
            acquire.session.end(acquire, "handed over", false);
            acquire.owner.retired.addAll(acquire.lock.ids);
            return HexFormat.of().formatHex(acquire.owner.name) + "|" + acquire.n + "|" + locks.settings.name;
        });
    }

    @Override
    public String toString() {
        String present = validFor().isZero() ? "in jeopardy" : "held";
        String state = isLost() ? "lost" : acquire.state == State.HELD ? present : "released";
        return "Hold of " + acquire.lock.name + ": " + state;
    }
}
