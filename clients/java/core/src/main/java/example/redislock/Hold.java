// SPDX-License-Identifier: MIT
package example.redislock;

import example.redislock.LockException.Disconnected;
import example.redislock.LockException.Kind;
import example.redislock.LockException.Lost;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.OptionalLong;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;

/** A lock that is held. Any thread may use it. {@code close} gives it back. */
public final class Hold implements AutoCloseable {
    private final Session session;
    private final How how;
    private final String owner;
    private final String releaseId = UUID.randomUUID().toString();
    private final CompletableFuture<Void> lost = new CompletableFuture<>();
    /** Why it is lost. Set in the loop, as all below. */
    private volatile Lost why;

    private volatile boolean released;
    private volatile long until;
    private volatile Long token;
    private volatile long lease;
    private long granted;
    private int releasing;
    private boolean renewing;
    private ScheduledFuture<?> timer;

    Hold(Session session, How how, String owner) {
        this.session = session;
        this.how = how;
        this.owner = owner;
        lease = how.lease();
    }

    /** Of the lock. */
    public String key() {
        return how.key();
    }

    /** Who holds it, as the server knows it. May be handed to another process: see {@link RedisLock#attach}. */
    public String owner() {
        return owner;
    }

    /** With {@code fence} greater than that of every hold before. */
    public OptionalLong token() {
        return token == null ? OptionalLong.empty() : OptionalLong.of(token);
    }

    /** Whether the hold has ended before it was given back: others may work now. */
    public boolean isLost() {
        return why != null;
    }

    /** Completes when the hold ended before it was given back. What depends on it runs in the common pool. */
    public CompletableFuture<Void> lost() {
        return lost.copy();
    }

    /** Waits so long; true, at once, if the hold is lost. */
    public boolean awaitLost(Duration time) throws InterruptedException {
        try {
            lost.get(time.toNanos(), TimeUnit.NANOSECONDS);
            return true;
        } catch (TimeoutException held) {
            return false;
        } catch (ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }

    /** How long nobody else can have the lock, whatever the network does. */
    public Duration validFor() {
        return isLost() || released ? Duration.ZERO : Duration.ofNanos(Math.max(0, until - Session.now()));
    }

    /**
     * Sets the lease anew, from now on.
     *
     * @throws Lost if there is nothing to extend
     * @throws LockException of another kind if it is not known whether it was
     */
    public void extend(Duration lease) {
        long time = How.time("lease", lease, false);
        await(session.begin(() -> isLost()
                ? ended()
                : renew(time, () -> session.insist(renewal(time, age()), Math.max(0, until - Session.now())))
                        .thenRun(() -> {
                            this.lease = time;
                            watch();
                        })));
    }

    /** As the other, with the lease that it has. */
    public void extend() {
        extend(Duration.ofNanos(lease));
    }

    /**
     * Carries out a command of Redis if the lock is still held, in the same step ({@code LOCK.GUARD}).
     *
     * @return its reply: a {@code Long}, a {@code String}, a list, or null
     * @throws Lost if it is not held any more; then nothing was carried out
     */
    public Object guard(String... command) {
        List<String> words = new ArrayList<>(List.of("LOCK.GUARD", key(), "OWNER", owner));
        words.addAll(Arrays.asList(command));
        return await(session.begin(() -> orLose(session.call(words, session.patience))));
    }

    /**
     * Gives the lock back. If that fails it may be called again, and counts once.
     *
     * @throws Lost if it ended before
     */
    public void release() {
        await(releaseAsync());
    }

    /** As {@link #release}. */
    @Override
    public void close() {
        release();
    }

    /**
     * Gives the lock back after so long, even if this process ends. Nothing else can be done with the hold after that.
     *
     * @throws Lost if it ended before
     */
    public void releaseAfter(Duration rest) {
        long time = How.time("rest", rest, false);
        // Neither renewed nor bound to a connection any more.
        List<String> words = List.of("LOCK.RENEW", key(), owner, "PX", How.ms(time));
        await(session.begin(() -> isLost()
                ? ended()
                : renew(time, () -> session.insist(words, Math.max(0, until - Session.now())))
                        .thenRun(() -> {
                            released = true;
                            end("released");
                        })));
    }

    /** As {@link #release}, without blocking. */
    public CompletableFuture<Void> releaseAsync() {
        return session.begin(() -> {
            if (released) {
                return ended();
            }
            List<String> words = new ArrayList<>(List.of("LOCK.RELEASE", key(), owner));
            if (how.shared()) {
                words.add("SHARED");
            }
            words.addAll(List.of("ID", releaseId));
            releasing++;
            return session.insist(words, isLost() ? 0 : lease)
                    .handle((left, error) -> {
                        releasing--;
                        LockException failure = error == null ? null : LockException.of(error);
                        if (failure instanceof Lost told) {
                            lose(told);
                        } else if (failure != null && !(isLost() && failure.is(Kind.UNAVAILABLE))) {
                            // What is lost may be impossible to give back.
                            throw failure;
                        }
                        released = true;
                        end("released");
                        return null;
                    })
                    .thenCompose(done -> ended());
        });
    }

    private CompletableFuture<Void> ended() {
        return isLost() ? CompletableFuture.failedFuture(why) : CompletableFuture.completedFuture(null);
    }

    /** The result, in the caller's thread. It cannot be interrupted, as it comes soon. */
    static <T> T await(CompletableFuture<T> result) {
        try {
            return result.join();
        } catch (CompletionException wrapped) {
            LockException error = LockException.of(wrapped);
            error.setStackTrace(new Throwable().getStackTrace());
            throw error;
        }
    }

    /** It is ours, by a call that was sent then. */
    void begin(long sent, long renewed, Long token) {
        granted = sent;
        until = renewed + lease;
        this.token = token;
        session.holds.add(this);
        watch();
    }

    /** Whether the server knows of it; its lease is set anew. */
    CompletableFuture<Object> confirm(long within) {
        return session.insist(renewal(lease, 0), within);
    }

    /** A connection broke. */
    void ring() {
        if (session.isClosed()) {
            watch();
        } else if (keeps() && !renewing) {
            keep();
        }
    }

    private long age() {
        return Session.now() - granted;
    }

    private List<String> renewal(long time, long age) {
        List<String> words = new ArrayList<>(List.of("LOCK.RENEW", key(), owner, "PX", How.ms(time)));
        how.bind(words, age);
        return words;
    }

    private CompletableFuture<Void> renew(long time, Supplier<CompletableFuture<Object>> call) {
        long sent = Session.now();
        return orLose(call.get()).thenAccept(holds -> until = sent + time);
    }

    private <T> CompletableFuture<T> orLose(CompletableFuture<T> call) {
        return call.whenComplete((reply, error) -> {
            // It may have been given back just before.
            if (error != null && LockException.of(error) instanceof Lost told && releasing == 0) {
                lose(told);
            }
        });
    }

    private void lose(Lost told) {
        if (isLost() || released) {
            return;
        }
        why = told;
        end("lost");
        lost.completeAsync(() -> null);
    }

    /** A hold ends once. */
    private void end(String outcome) {
        stop();
        if (session.holds.remove(this)) {
            session.heard(how.label(), "held", outcome, granted);
        }
    }

    private void stop() {
        if (timer != null) {
            timer.cancel(false);
        }
    }

    private boolean keeps() {
        return how.keep() && (how.maxHold() == 0 || age() < how.maxHold());
    }

    /** Renews when it is time, if it is to be kept, and tells when the lock is lost by the own clock. */
    private void watch() {
        stop();
        if (isLost() || released) {
            return;
        }
        long left = until - Session.now();
        if (session.isClosed()) {
            lose(new Lost(key() + ": the session was closed"));
        } else if (keeps()) {
            timer = session.after(Math.min(lease / 3, left), this::keep);
        } else if (left <= 0) {
            lose(new Lost(key() + ": the lease is over"));
        } else {
            timer = session.after(left, this::watch);
        }
    }

    private void keep() {
        stop();
        if (isLost() || released || renewing) {
            return;
        }
        if (!keeps()) {
            watch();
            return;
        }
        // A process that slept through its lease asks once: the server may have renewed, and then nobody else had the
        // lock, as no
        // other ever has this owner's name.
        long pause = lease / 3;
        long left = until - Session.now();
        long time = lease;
        renewing = true;
        renew(time, () -> session.call(renewal(time, age()), left <= 0 ? pause : left))
                .whenComplete((done, error) -> {
                    renewing = false;
                    LockException failure = error == null ? null : LockException.of(error);
                    if (failure != null && until - Session.now() <= 0) {
                        lose(new Lost(key() + ": the lease is over, and the server does not answer"));
                    } else if (failure instanceof Disconnected && !isLost() && !released && !session.isClosed()) {
                        timer = session.after(Math.min(Session.TRY_AGAIN, pause), this::keep);
                    } else {
                        watch();
                    }
                });
    }
}
