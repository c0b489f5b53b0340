// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import io.github.redislock.Hold;
import io.github.redislock.RedisLock;
import io.github.redislock.redisson.HeldLocks.Holder;
import io.github.redislock.redisson.HeldLocks.Request;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Supplier;
import org.redisson.RedissonFencedLock;
import org.redisson.api.RFuture;
import org.redisson.client.codec.StringCodec;
import org.redisson.client.protocol.RedisCommands;
import org.redisson.command.CommandAsyncExecutor;
import org.redisson.misc.CompletableFutureWrapper;

/**
 * An {@code RLock} or {@code RFencedLock} that waits in the queue of the server. The code of Redisson answers the queries. It
 * also unlocks what a thread has locked by the same client without this package, or refuses to.
 */
public class NativeLock extends RedissonFencedLock {
    enum Kind {
        PLAIN,
        NON_REENTRANT,
        FENCED,
        READ,
        WRITE
    }

    final HeldLocks held;
    private final Kind kind;
    final CommandAsyncExecutor executor;
    private final RedisLock lock;

    NativeLock(HeldLocks held, CommandAsyncExecutor executor, String name, Kind kind) {
        super(executor, name);
        this.held = held;
        this.executor = executor;
        this.kind = kind;
        RedisLock plain = held.locks.lock(getRawName());
        lock = switch (kind) {
            case NON_REENTRANT -> plain;
            case FENCED -> plain.reentrant().fence();
            case READ -> plain.reentrant().shared();
            case PLAIN, WRITE -> plain.reentrant();
        };
    }

    private static long thread() {
        return Thread.currentThread().getId();
    }

    /** A wait that is not positive is a try. A lease that is not positive is none. */
    private Request limited(long thread, long wait, long lease, TimeUnit unit) {
        return request(thread, wait <= 0 ? 0 : unit.toMillis(wait), lease, unit);
    }

    private Request unlimited(long thread, long lease, TimeUnit unit) {
        return request(thread, HeldLocks.FOREVER, lease, unit);
    }

    private Request request(long thread, long milliseconds, long lease, TimeUnit unit) {
        long time = lease <= 0 ? 0 : Math.max(1, unit.toMillis(lease));
        return new Request(lock, holder(thread), milliseconds, time, kind == Kind.NON_REENTRANT);
    }

    private Holder holder(long thread) {
        return new Holder(getRawName(), kind == Kind.READ, thread);
    }

    /** For a multi-lock. The hold, or null if the lock was not granted. Times are in milliseconds. */
    Hold take(long thread, long wait, long lease) throws InterruptedException {
        return held.acquire(request(thread, wait, lease, TimeUnit.MILLISECONDS));
    }

    /** Releases just this hold, if the thread still has it. */
    CompletableFuture<?> drop(long thread, Hold hold) {
        return held.drop(holder(thread), hold);
    }

    boolean isReentrant() {
        return kind != Kind.NON_REENTRANT;
    }

    private static Long token(Hold hold) {
        return hold == null ? null : hold.token().getAsLong();
    }

    @Override
    public void lock() {
        lock(-1, null);
    }

    @Override
    public void lock(long leaseTime, TimeUnit unit) {
        held.acquireUninterrupted(unlimited(thread(), leaseTime, unit));
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        lockInterruptibly(-1, null);
    }

    @Override
    public void lockInterruptibly(long leaseTime, TimeUnit unit) throws InterruptedException {
        held.acquire(unlimited(thread(), leaseTime, unit));
    }

    @Override
    public boolean tryLock() {
        return held.acquireUninterrupted(limited(thread(), 0, -1, null)) != null;
    }

    @Override
    public boolean tryLock(long waitTime, TimeUnit unit) throws InterruptedException {
        return tryLock(waitTime, -1, unit);
    }

    @Override
    public boolean tryLock(long waitTime, long leaseTime, TimeUnit unit) throws InterruptedException {
        return held.acquire(limited(thread(), waitTime, leaseTime, unit)) != null;
    }

    @Override
    public void unlock() {
        if (!held.release(holder(thread()))) {
            super.unlock();
        }
    }

    // The other asynchronous forms call these.

    @Override
    public RFuture<Void> lockAsync(long leaseTime, TimeUnit unit, long threadId) {
        return grant(() -> unlimited(threadId, leaseTime, unit), hold -> null);
    }

    @Override
    public RFuture<Boolean> tryLockAsync(long threadId) {
        return tryLockAsync(0, -1, null, threadId);
    }

    @Override
    public RFuture<Boolean> tryLockAsync(long waitTime, long leaseTime, TimeUnit unit, long threadId) {
        return grant(() -> limited(threadId, waitTime, leaseTime, unit), hold -> hold != null);
    }

    private <T> RFuture<T> grant(Supplier<Request> request, Function<Hold, T> result) {
        CompletableFuture<T> future;
        try {
            future = held.acquireAsync(request.get(), result);
        } catch (RuntimeException error) {
            future = CompletableFuture.failedFuture(error);
        }
        return new CompletableFutureWrapper<>(future);
    }

    @Override
    public RFuture<Void> unlockAsync(long threadId) {
        CompletableFuture<Void> all = held.releaseAsync(holder(threadId))
                .thenCompose(
                        isReleased -> isReleased ? CompletableFuture.completedFuture(null) : unlockOther(threadId));
        return new CompletableFutureWrapper<>(all);
    }

    /** Unlocks what the same client has locked without this package, or refuses to. */
    CompletableFuture<Void> unlockOther(long thread) {
        return super.unlockAsync(thread).toCompletableFuture();
    }

    // A replica may be late, so the primary answers.

    @Override
    public RFuture<Boolean> isExistsAsync() {
        return executor.writeAsync(getRawName(), StringCodec.INSTANCE, RedisCommands.EXISTS, getRawName());
    }

    @Override
    public RFuture<Long> remainTimeToLiveAsync() {
        return executor.writeAsync(getRawName(), StringCodec.INSTANCE, RedisCommands.PTTL, getRawName());
    }

    /** A red lock sets the leases of its members in this way. */
    @Override
    public RFuture<Boolean> expireAsync(long timeToLive, TimeUnit timeUnit) {
        CompletableFuture<Boolean> all = CompletableFuture.supplyAsync(
                        () -> held.extend(holder(0), timeUnit.toMillis(timeToLive)))
                .thenCompose(isHeld -> isHeld
                        ? CompletableFuture.completedFuture(true)
                        : super.expireAsync(timeToLive, timeUnit).toCompletableFuture());
        return new CompletableFutureWrapper<>(all);
    }

    // With a fence.

    @Override
    public Long lockAndGetToken() {
        return lockAndGetToken(-1, null);
    }

    @Override
    public Long lockAndGetToken(long leaseTime, TimeUnit unit) {
        return token(held.acquireUninterrupted(unlimited(thread(), leaseTime, unit)));
    }

    @Override
    public Long tryLockAndGetToken() {
        return tryLockAndGetToken(0, -1, null);
    }

    @Override
    public Long tryLockAndGetToken(long waitTime, TimeUnit unit) {
        return tryLockAndGetToken(waitTime, -1, unit);
    }

    @Override
    public Long tryLockAndGetToken(long waitTime, long leaseTime, TimeUnit unit) {
        return token(held.acquireUninterrupted(limited(thread(), waitTime, leaseTime, unit)));
    }

    @Override
    public RFuture<Long> lockAndGetTokenAsync() {
        return lockAndGetTokenAsync(-1, null);
    }

    @Override
    public RFuture<Long> lockAndGetTokenAsync(long leaseTime, TimeUnit unit) {
        long thread = thread();
        return grant(() -> unlimited(thread, leaseTime, unit), NativeLock::token);
    }

    @Override
    public RFuture<Long> tryLockAndGetTokenAsync() {
        return tryLockAndGetTokenAsync(0, -1, null);
    }

    @Override
    public RFuture<Long> tryLockAndGetTokenAsync(long waitTime, TimeUnit unit) {
        return tryLockAndGetTokenAsync(waitTime, -1, unit);
    }

    @Override
    public RFuture<Long> tryLockAndGetTokenAsync(long waitTime, long leaseTime, TimeUnit unit) {
        return tryLockAndGetTokenAsync(waitTime, leaseTime, unit, thread());
    }

    @Override
    public RFuture<Long> tryLockAndGetTokenAsync(long waitTime, long leaseTime, TimeUnit unit, long threadId) {
        return grant(() -> limited(threadId, waitTime, leaseTime, unit), NativeLock::token);
    }
}
