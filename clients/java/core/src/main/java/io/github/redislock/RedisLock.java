// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Words.NONE;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.stream.Collectors;

/**
 * A lock, or several locks, with options. It holds nothing itself: {@link #acquire} returns a {@link Hold}. It does not change:
 * methods that set an option return another lock. Threads may share it.
 *
 * <p>Each acquire has the calling thread as its owner, unless {@link #owner} names one. So a thread that acquires a lock which it
 * holds gets {@code DEADLOCK}, and so do threads that wait for each other.
 */
@CheckReturnValue
public final class RedisLock implements Cloneable {
    /** Work under a lock. */
    @FunctionalInterface
    public interface Body<T, E extends Exception> {
        /** Does the work. */
        T run(Hold hold) throws E;
    }

    final Locks locks;
    final List<byte[]> keys;
    /** The keys, comparable. */
    final List<ByteBuffer> ids;

    final String name;
    long wait = NONE;
    long lease = NONE;
    long maxHold = NONE;
    boolean isShared;
    int limit;
    boolean isFenced;
    boolean isReentrant;
    byte[] owner;
    String label;

    RedisLock(Locks locks, List<byte[]> keys) {
        if (keys.isEmpty()) {
            throw LockException.misuse("a lock needs a key");
        }
        this.locks = locks;
        this.keys = keys;
        ids = keys.stream().map(ByteBuffer::wrap).toList();
        name = keys.stream().map(Words::text).collect(Collectors.joining(", "));
    }

    private RedisLock set(Consumer<RedisLock> option) {
        try {
            RedisLock copy = (RedisLock) clone();
            option.accept(copy);
            if (copy.lease != NONE && copy.maxHold != NONE) {
                throw LockException.misuse(
                        "maxHold limits renewals, and a hold with a lease has none; use one of them");
            } else if (copy.limit > 0 && isSeveral()) {
                throw LockException.misuse("a limit is not available for several locks");
            }
            return copy;
        } catch (CloneNotSupportedException impossible) {
            throw new AssertionError(impossible);
        }
    }

    byte[] key() {
        return keys.get(0);
    }

    boolean isSeveral() {
        return keys.size() > 1;
    }

    /** The first words of a call: {@code ACQUIRE}, {@code RENEW} or {@code RELEASE}. */
    Words words(String verb, byte[] holder) {
        Words words = isSeveral() ? Words.of("LOCK.M" + verb, keys.size()) : Words.of("LOCK." + verb);
        words.addAll(keys);
        return words.and((Object) holder);
    }

    /** Appends the lease of a hold. Without one, the server renews the hold, and ends it with the session. */
    @CanIgnoreReturnValue
    Words bind(Words words, long lease, long maxHold) {
        if (lease != NONE) {
            return words.time("PX", lease);
        }
        long renewed = locks.settings.renewedLease;
        words.time("PX", renewed);
        if (renewed != NONE || maxHold != NONE) {
            words.and("WATCHDOG");
        }
        return words.time("MAX", maxHold).and("EPHEMERAL");
    }

    /** Limits the wait of {@link #acquire}. No limit by default; zero does not wait. */
    public RedisLock waiting(Duration wait) {
        long time = Words.nanoseconds("wait", wait, 0);
        return set(copy -> copy.wait = time);
    }

    /** Ends the hold after this time, at least 1 ms. By default the server renews the hold while this process lives. */
    public RedisLock lease(Duration lease) {
        long time = Words.nanoseconds("lease", lease, 1_000_000);
        return set(copy -> copy.lease = time);
    }

    /** The age at which the server stops the renewals of a hold without a lease. No limit by default. */
    public RedisLock maxHold(Duration age) {
        long time = Words.nanoseconds("maxHold", age, 1_000_000);
        return set(copy -> copy.maxHold = time);
    }

    /** Admits other shared holders: a reader. */
    public RedisLock shared() {
        return set(copy -> copy.isShared = true);
    }

    /** Admits this number of holders at most: a semaphore. Not for several locks. */
    public RedisLock limit(int permits) {
        if (permits < 1) {
            throw LockException.misuse("limit must be at least 1, and is " + permits);
        }
        return set(copy -> {
            copy.isShared = true;
            copy.limit = permits;
        });
    }

    /** Gives each hold a {@link Hold#token} greater than those of all earlier holds. */
    public RedisLock fence() {
        return set(copy -> copy.isFenced = true);
    }

    /** Lets an owner acquire a lock that it holds. Without this it gets {@code DEADLOCK}. */
    public RedisLock reentrant() {
        return set(copy -> copy.isReentrant = true);
    }

    /** Names the holder on the server. By default each thread has an owner of its own. */
    public RedisLock owner(String owner) {
        return owner(Words.bytes("owner", owner));
    }

    /** Names the holder on the server by bytes. */
    public RedisLock owner(byte[] owner) {
        byte[] bytes = Words.bytes("owner", owner);
        if (bytes.length == 1 && bytes[0] == '*') {
            throw LockException.misuse("owner must not be *");
        }
        return set(copy -> copy.owner = bytes);
    }

    /** Names the lock for the listener of {@link Locks}. No label by default. */
    public RedisLock label(String label) {
        return set(copy -> copy.label = label);
    }

    Acquiring acquiring(long wait, boolean mustSucceed) {
        Owner holder = owner == null ? locks.owners.get() : new Owner(owner);
        return new Acquiring(this, wait, holder, null, mustSucceed);
    }

    /**
     * Waits for the lock, first come, first served. An acquire that fails or is interrupted leaves no wait and no hold behind.
     *
     * @throws LockException {@code TIMED_OUT}, or {@code BUSY} without a wait; {@code DEADLOCK}; {@code MISUSE}; {@code
     *     UNAVAILABLE}; {@code CANCELLED} if {@link Locks} is closed meanwhile
     */
    public Hold acquire() throws InterruptedException {
        return acquiring(wait, true).run(true);
    }

    /** Returns a hold if the lock is free, and otherwise nothing. Fails as {@link #acquire}. */
    public Optional<Hold> tryAcquire() throws InterruptedException {
        return tryAcquire(Duration.ZERO);
    }

    /** Waits for this time at most, and returns nothing if the lock was not granted. Fails as {@link #acquire}. */
    public Optional<Hold> tryAcquire(Duration wait) throws InterruptedException {
        return Optional.ofNullable(
                acquiring(Words.nanoseconds("wait", wait, 0), false).run(true));
    }

    /**
     * Waits for the lock without a thread. The owner is the calling thread. To cancel the future, also by {@code orTimeout},
     * leaves no wait and no hold behind. The future fails as {@link #acquire}. Dependents run in the executor of {@link Locks}.
     */
    public CompletableFuture<Hold> acquireAsync() {
        return acquiring(wait, true).start();
    }

    /**
     * Runs the body while the lock is held, and releases it. An exception of the body is thrown, even if the lock is lost.
     *
     * @throws LockException.Lost if the lock was lost and the body did not fail
     */
    @CanIgnoreReturnValue
    public <T, E extends Exception> T with(Body<T, E> body) throws E, InterruptedException {
        try (Hold hold = acquire()) {
            return body.run(hold);
        }
    }

    /**
     * Takes over a hold that another process has handed over. The options are those of this lock.
     *
     * @param ticket of {@link Hold#handOver}
     * @throws LockException.Lost if the hold has ended
     */
    public Hold attach(String ticket) throws InterruptedException {
        String[] parts = ticket.split("\\|", 3);
        try {
            Owner holder = new Owner(HexFormat.of().parseHex(parts[0]));
            Words from = Words.of("FROM", Words.bytes("name", parts[2]), Long.parseLong(parts[1]));
            return new Acquiring(this, NONE, holder, from, true).run(true);
        } catch (IllegalArgumentException | ArrayIndexOutOfBoundsException error) {
            throw LockException.misuse("the ticket was not made by handOver()");
        }
    }

    /** Holders, waiters and more, as {@code LOCK.INFO} replies. Nothing if the lock is free. */
    @SuppressWarnings("unchecked")
    public Optional<Map<String, Object>> query() {
        Object reply = locks.execute(this, Words.of("LOCK.INFO", key()));
        if (reply == null) {
            return Optional.empty();
        }
        Map<String, Object> info = Replies.map(reply);
        info.computeIfPresent(
                "holders",
                (name, all) -> ((List<Object>) all).stream().map(Replies::map).toList());
        info.replaceAll((name, value) -> Replies.readable(value));
        return Optional.of(info);
    }

    /** Takes the lock from its holders ({@code LOCK.BREAK}). Returns whether there was one. */
    @CanIgnoreReturnValue
    public boolean forceRelease() {
        return !Long.valueOf(0).equals(locks.execute(this, Words.of("LOCK.BREAK", key())));
    }

    /** The lock with the interface of {@code java.util.concurrent}, re-entrant for each thread. */
    public ThreadLock asLock() {
        return new ThreadLock(this);
    }

    @Override
    public String toString() {
        return "RedisLock of " + name;
    }
}
