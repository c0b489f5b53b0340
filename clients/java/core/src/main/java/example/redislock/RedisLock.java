// SPDX-License-Identifier: MIT
package example.redislock;

import example.redislock.LockException.Kind;
import example.redislock.LockException.Lost;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock, and how it is to be held. It does not change: each method that says how gives another one.
 *
 * <p>{@link #acquire} gives a {@link Hold}, which any thread may release, and is not re-entrant. The methods of {@link Lock} are for
 * a thread, and re-entrant for it. First come is first served by both.
 */
public final class RedisLock implements Lock {
    /** What is done under the lock. */
    @FunctionalInterface
    public interface Body<T, E extends Exception> {
        /** Does it. */
        T run(Hold hold) throws E;
    }

    final How how;
    private final Locks locks;

    RedisLock(Locks locks, How how) {
        this.locks = locks;
        this.how = how;
    }

    /** The hold ends after so long unless it is renewed; 30 s. */
    public RedisLock lease(Duration lease) {
        return with(how.lease(How.time("lease", lease, false)));
    }

    /** Whether client and server renew the lease, and the hold ends at once with this process. So it is if no lease is given. */
    public RedisLock keep(boolean keep) {
        return with(how.keep(keep));
    }

    /** How old a hold may become that is renewed. */
    public RedisLock maxHold(Duration time) {
        return with(how.maxHold(How.time("maxHold", time, false)));
    }

    /** How long to wait; zero is a try. */
    public RedisLock waiting(Duration time) {
        return with(how.waiting(How.time("wait", time, true)));
    }

    /** A reader. */
    public RedisLock shared() {
        return with(how.shared(how.limit()));
    }

    /** One of so many permits. */
    public RedisLock limit(int permits) {
        if (permits < 1) {
            throw LockException.misuse("limit must be 1 or more, and is " + permits);
        }
        return with(how.shared(permits));
    }

    /** {@link Hold#token} is greater than that of every grant before. */
    public RedisLock fence() {
        return with(how.fenced());
    }

    /** What the listener hears it called. */
    public RedisLock label(String label) {
        return with(how.label(label));
    }

    /** Who holds it, as the server knows it: one name for all locks of a task, so that the server finds deadlocks among tasks. */
    public RedisLock owner(String owner) {
        return with(how.owner(owner));
    }

    /**
     * Waits on a connection that no other wait has meanwhile: for a lock that goes from hand to hand all the time, as the server's
     * reply is the grant.
     */
    public RedisLock ownConnection() {
        return with(how.onItsOwn());
    }

    private RedisLock with(How other) {
        return new RedisLock(locks, other);
    }

    /**
     * Waits for the lock. Who is interrupted leaves no place in the queue and no hold.
     *
     * @throws LockException {@code BUSY} if it is not to wait, {@code TIMED_OUT}, {@code DEADLOCK}, {@code MISUSE},
     *     {@code UNAVAILABLE}. Then nothing waits, and nothing is held
     */
    public Hold acquire() throws InterruptedException {
        return granted(await(begin(how)));
    }

    /** The hold, or nothing if somebody else has the lock. */
    public Optional<Hold> tryAcquire() throws InterruptedException {
        return Optional.ofNullable(await(begin(how.waiting(0))));
    }

    /**
     * As {@link #acquire}, without a thread that waits. What depends on the future may block. To cancel the future ends the wait, and
     * so does its {@code orTimeout}.
     */
    public CompletableFuture<Hold> acquireAsync() {
        Attempt attempt = begin(how);
        CompletableFuture<Hold> result = new CompletableFuture<>();
        // By the caller: cancelled, or by orTimeout.
        result.whenComplete((hold, error) -> {
            if (error != null) {
                locks.session.run(attempt::cancel);
            }
        });
        // It may be cancelled at the moment of the grant.
        return locks.session.tell(attempt.result.thenApply(this::granted), result, Hold::releaseAsync);
    }

    /**
     * Does something while the lock is held. What the body throws comes out, whatever becomes of the lock.
     *
     * @throws Lost if the lock was lost meanwhile
     */
    public <T, E extends Exception> T with(Body<T, E> body) throws E, InterruptedException {
        try (Hold hold = acquire()) {
            return body.run(hold);
        }
    }

    /**
     * Takes over the hold of an owner, of another process maybe, and sets its lease. One that is kept there is to be kept here, too:
     * else this is {@code MISUSE}, and changes nothing.
     *
     * @throws Lost if it has ended
     * @see Hold#handOver
     */
    public Hold attach(String owner) {
        if (owner == null) {
            throw LockException.misuse(how.key() + ": a hold has an owner");
        }
        Session session = locks.session;
        Hold hold = new Hold(session, how.owner(owner), owner);
        return Hold.await(session.begin(hold::attach));
    }

    /** As {@link #acquire}, for this thread; it cannot be interrupted. */
    @Override
    public void lock() {
        boolean interrupted = false;
        if (reenterToWait()) {
            return;
        }
        Attempt attempt = begin(how);
        while (true) {
            try {
                enter(granted(get(attempt)));
                break;
            } catch (InterruptedException again) {
                interrupted = true;
            } finally {
                if (interrupted && attempt.result.isDone()) {
                    Thread.currentThread().interrupt();
                }
            }
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        checkInterrupt();
        if (!reenterToWait()) {
            enter(acquire());
        }
    }

    /** Whether this thread has the lock now. An interrupt is kept for later. */
    @Override
    public boolean tryLock() {
        if (reenter()) {
            return true;
        }
        return enter(Hold.await(begin(how.waiting(0)).result));
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        checkInterrupt();
        if (reenterToWait()) {
            return true;
        }
        return enter(await(begin(how.waiting(Math.max(0, unit.toNanos(time))))));
    }

    /**
     * Gives back what this thread has.
     *
     * @throws IllegalMonitorStateException if it does not have it, also if it was lost meanwhile: then with the {@link Lost}
     */
    @Override
    public void unlock() {
        Locks.Entry entry = locks.entries.get(holder());
        if (entry == null) {
            throw new IllegalMonitorStateException(how.key() + ": not locked by this thread");
        }
        if (entry.count > 1) {
            entry.count--;
            return;
        }
        try {
            entry.hold.release();
        } catch (Lost lost) {
            locks.entries.remove(holder());
            throw (IllegalMonitorStateException) new IllegalMonitorStateException(lost.getMessage()).initCause(lost);
        }
        // If the release failed, it may be called again.
        locks.entries.remove(holder());
    }

    /** There are none: use a lock and a channel of Redis. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of Redis has no conditions");
    }

    /** What this thread holds by {@link #lock}; nothing if it does not, or if it was lost, or {@link #unlock} has failed. */
    public Optional<Hold> heldByCurrentThread() {
        return Optional.ofNullable(locks.entries.get(holder()))
                .map(entry -> entry.hold)
                .filter(hold -> !hold.isLost() && !hold.isLeft());
    }

    private Locks.Holder holder() {
        return new Locks.Holder(Thread.currentThread(), how.key(), how.shared());
    }

    private boolean reenter() {
        Locks.Entry entry = locks.entries.get(holder());
        if (entry != null && entry.hold.isGone()) {
            // It could not be given back at once. Nobody has to try again.
            locks.entries.remove(holder());
            entry = null;
        }
        if (entry == null) {
            return false;
        }
        if (entry.hold.isLost() || entry.hold.isLeft()) {
            throw new IllegalMonitorStateException(how.key() + ": lost or being given back, and not unlocked yet");
        }
        entry.count++;
        return true;
    }

    /** As the other, for who is to wait if this says no. */
    private boolean reenterToWait() {
        Locks.Entry other = locks.entries.get(new Locks.Holder(Thread.currentThread(), how.key(), !how.shared()));
        // Each hold has an owner of its own, so the server would not see that a thread waits for itself.
        if (how.owner() == null && other != null && !other.hold.isLost() && !other.hold.isLeft()) {
            throw new IllegalMonitorStateException(how.key() + ": this thread would wait for itself, as it has the "
                    + (how.shared() ? "write" : "read") + " lock");
        }
        return reenter();
    }

    private static void checkInterrupt() throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
    }

    private boolean enter(Hold hold) {
        if (hold != null) {
            locks.entries.put(holder(), new Locks.Entry(hold));
        }
        return hold != null;
    }

    private Attempt begin(How how) {
        Attempt attempt = new Attempt(locks.session, how);
        locks.session
                .begin(() -> {
                    attempt.start();
                    return CompletableFuture.completedFuture(null);
                })
                .exceptionally(error -> {
                    attempt.result.completeExceptionally(error);
                    return null;
                });
        return attempt;
    }

    private Hold granted(Hold hold) {
        if (hold == null) {
            throw notGranted();
        }
        return hold;
    }

    private LockException notGranted() {
        return new LockException(how.waiting() == 0 ? Kind.BUSY : Kind.TIMED_OUT, how.key() + ": somebody else has it");
    }

    private Hold await(Attempt attempt) throws InterruptedException {
        try {
            return get(attempt);
        } catch (InterruptedException interrupted) {
            locks.session.run(attempt::cancel);
            // That takes a second at most.
            attempt.result.handle((hold, error) -> null).join();
            throw interrupted;
        }
    }

    private static Hold get(Attempt attempt) throws InterruptedException {
        try {
            return attempt.result.get();
        } catch (ExecutionException error) {
            LockException known = LockException.of(error.getCause());
            known.setStackTrace(new Throwable().getStackTrace());
            throw known;
        }
    }
}
