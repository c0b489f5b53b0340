// SPDX-License-Identifier: MIT
package example.redislock;

import example.redislock.LockException.Disconnected;
import example.redislock.LockException.Kind;
import example.redislock.LockException.Lost;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.OptionalLong;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongBinaryOperator;
import java.util.function.Supplier;

/** A lock that is held. Any thread may use it. {@code close} gives it back. */
public final class Hold implements AutoCloseable {
    private static final String SILENT = "the server does not answer";

    private final Session session;
    private final How how;
    private final String owner;
    private final String releaseId = UUID.randomUUID().toString();
    private final CompletableFuture<Void> lost = new CompletableFuture<>();
    /** Why it is lost. Set in the loop, as all below. */
    private volatile Lost why;

    private volatile boolean released;
    /** It counts as released until it is known whether it can be handed over. */
    private boolean handing;
    /** To give it back has failed: nothing renews it. */
    private volatile boolean left;
    /** The server has bound it to the connection for commands that there is now. */
    private volatile boolean bound;

    /** What each call makes of the lease, from the last that was confirmed on. The server has the end of one of these. */
    private final Deque<Sent> sent = new ArrayDeque<>();
    /** The earliest of them. */
    private volatile long until;

    private volatile Long token;
    private volatile long lease;
    private long granted;
    private final AtomicInteger releasing = new AtomicInteger();
    private boolean renewing;
    private ScheduledFuture<?> timer;
    /** When no call that renews it is on its way. */
    private CompletableFuture<Void> renewal = CompletableFuture.completedFuture(null);

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

    /** Who holds it, as the server knows it. */
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

    /** Completes when the hold ended before it was given back. What depends on it may block. */
    public CompletableFuture<Void> lost() {
        return isLost() ? CompletableFuture.completedFuture(null) : session.tell(lost);
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

    /**
     * How long nobody else can have the lock, whatever the network does. One that is kept ends with its connection: from then on this
     * is zero, until a renewal has been confirmed on the next.
     */
    public Duration validFor() {
        boolean over = isLost() || released || left || releasing.get() > 0 || (how.keep() && !bound);
        return over ? Duration.ZERO : Duration.ofNanos(Math.max(0, until - Session.now()));
    }

    /**
     * Sets the lease anew, from now on. That is tried for as long as the hold is valid, and for 30 s at most. It is not interrupted.
     *
     * @throws Lost if there is nothing to extend
     * @throws LockException of another kind if it is not known whether it was
     */
    public void extend(Duration anew) {
        long time = How.time("lease", anew, false);
        await(session.begin(() -> {
            // If it is shorter, it may count though its reply is lost.
            lease = Math.min(lease, time);
            return renew(time, renewal(time, age())).thenRun(() -> {
                lease = time;
                watch();
            });
        }));
    }

    /** As the other, with the lease that it has. */
    public void extend() {
        extend(Duration.ofNanos(lease));
    }

    /**
     * Carries out a command of Redis if the lock is still held, in the same step ({@code LOCK.GUARD}).
     *
     * @return its reply: a {@code Long}, a {@code String}, a list, or null. An error in a list is the {@link LockException} that
     *     would have been thrown
     * @throws Lost if it is not held any more; then nothing was carried out
     */
    public Object guard(String... command) {
        List<String> words = new ArrayList<>(List.of("LOCK.GUARD", key(), "OWNER", owner));
        words.addAll(Arrays.asList(command));
        return await(session.begin(() -> over() != null
                ? CompletableFuture.failedFuture(over())
                : session.guard(words).exceptionallyCompose(this::orAsk).thenApply(Hold::withErrors)));
    }

    /** {@code NOTOWNER} may be the word of a script about another lock. The server's word on this one comes before the error. */
    private CompletableFuture<Object> orAsk(Throwable failure) {
        LockException error = LockException.of(failure);
        CompletableFuture<Object> told = CompletableFuture.failedFuture(error);
        long now = Session.now();
        long time = keeps() ? lease : until - now;
        if (!error.is(Kind.LOST) || over() != null || time <= 0) {
            return told;
        }
        return renewed(() -> ask(time, renewal(time, age())))
                .handle((holds, lost) -> null)
                .thenCompose(asked -> told);
    }

    private static Object withErrors(Object reply) {
        if (reply instanceof List<?> list) {
            return list.stream().map(Hold::withErrors).toList();
        }
        return reply instanceof Wire.ServerError error ? LockException.of(error) : reply;
    }

    /**
     * Gives the lock back. If that fails it may be called again, and counts once. Nobody has to: the lock is not renewed any more,
     * and given back in the background, or runs out.
     *
     * @throws Lost if it ended before
     */
    public void release() {
        await(releasing());
    }

    /** As {@link #release}. */
    @Override
    public void close() {
        release();
    }

    /**
     * Gives the lock back after so long, even if this process ends. Nothing else can be done with the hold after that. Only for a
     * hold with a lease: one that is kept is refused as {@code MISUSE}, as it ends with its connection, and the server renews it
     * until then.
     *
     * @throws Lost if it ended before
     */
    public void releaseAfter(Duration rest) {
        long time = How.time("rest", rest, false);
        if (how.keep()) {
            throw bound("only one that is not kept can be left to its lease");
        }
        List<String> words = List.of("LOCK.RENEW", key(), owner, "PX", How.ms(time));
        await(session.begin(() -> renew(time, words).thenRun(() -> {
            released = true;
            end("released");
        })));
    }

    /**
     * Leaves the hold to another process, which takes it over by {@link RedisLock#attach}. Here it is neither renewed nor watched nor
     * given back any more, and counts as released. A kept hold is bound to this process's connection until the other has attached: so
     * this process should live until then. What renews it may be on its way yet: that is waited for as long as the hold is valid, and
     * for 30 s at most. It is not interrupted.
     *
     * @return the owner
     * @throws Lost if it ended before
     * @throws LockException {@code UNAVAILABLE} if it took too long: then nothing has changed
     */
    public String handOver() {
        return await(session.begin(this::handingOver));
    }

    private CompletableFuture<String> handingOver() {
        Lost over = releasing.get() > 0 ? notHeld() : over();
        if (over != null) {
            return CompletableFuture.failedFuture(over);
        }
        released = handing = true;
        stop();
        // What comes after the other has attached would shorten its lease, or bind the hold to this process again.
        long within = Math.min(until - Session.now(), session.blockFor);
        return session.limit(renewal, within, key() + ": a renewal is on its way yet")
                .handle((done, late) -> {
                    handing = false;
                    boolean ended = how.keep() && !bound;
                    if (late == null && !isLost() && !ended && !session.isClosed()) {
                        end("released");
                        return CompletableFuture.completedFuture(owner);
                    }
                    released = false;
                    watch();
                    if (isLost() || late != null) {
                        throw isLost() ? why : LockException.of(late);
                    }
                    // With its connection, unless it is bound to the next.
                    return renew(lease, renewal(lease, age())).thenCompose(again -> handingOver());
                })
                .thenCompose(next -> next);
    }

    /** As {@link #release}, without blocking. */
    public CompletableFuture<Void> releaseAsync() {
        return session.tell(releasing());
    }

    private CompletableFuture<Void> releasing() {
        return session.begin(this::giveBackNow);
    }

    CompletableFuture<Void> giveBackNow() {
        if (handing) {
            throw new LockException(Kind.UNAVAILABLE, key() + ": it is being handed over");
        }
        // What is lost is given back already, if it must be, and another hold may have the same owner by now.
        if (released || (isLost() && (how.owner() != null || left))) {
            return ended();
        }
        CompletableFuture<Void> work = giveBack(isLost() ? 0 : Math.min(lease, session.blockFor))
                .exceptionally(error -> {
                    // What is lost may be impossible to give back.
                    if (!isLost() || !LockException.of(error).is(Kind.UNAVAILABLE)) {
                        leave();
                        throw LockException.of(error);
                    }
                    return null;
                });
        // It counts as pending until what goes on behind the caller's back does.
        if (how.owner() != null) {
            session.giveBack(key(), owner, work);
        }
        return work.thenCompose(done -> ended());
    }

    private CompletableFuture<Void> giveBack(long within) {
        List<String> words = new ArrayList<>(List.of("LOCK.RELEASE", key(), owner));
        if (how.shared()) {
            words.add("SHARED");
        }
        words.addAll(List.of("ID", releaseId));
        releasing.incrementAndGet();
        return session.insist(words, within, error -> error.is(Kind.UNAVAILABLE), List.of())
                .handle((held, error) -> {
                    releasing.decrementAndGet();
                    if (error != null) {
                        if (!(LockException.of(error) instanceof Lost told)) {
                            throw LockException.of(error);
                        }
                        lose(told);
                    }
                    released = true;
                    end("released");
                    return null;
                });
    }

    /** Nobody may give it back again. The server would renew it for as long as the connection lives. */
    private void leave() {
        if (left) {
            return;
        }
        left = true;
        watch();
        session.giveBack(key(), owner, giveBackLater(latest() - Session.now()));
    }

    /** Gives back what an acquire may have got that was given up. */
    CompletableFuture<Void> abandon() {
        left = true;
        return giveBackLater(lease);
    }

    private CompletableFuture<Void> giveBackLater(long leased) {
        long within = how.keep() ? Session.TRY_FOR : Math.max(0, leased);
        return session.insist(this::giveBackOrEnd, within, error -> !isOther(error));
    }

    /** Something else is in the lock's place. */
    private static boolean isOther(LockException error) {
        return error.says("WRONGTYPE");
    }

    private CompletableFuture<Void> giveBackOrEnd() {
        return released
                ? CompletableFuture.completedFuture(null)
                : giveBack(0).exceptionallyCompose(this::runOutIfRefused);
    }

    /** Who may not give it back may have it run out: it is older than that, so the server renews no more. */
    private CompletableFuture<Void> runOutIfRefused(Throwable error) {
        if (!how.keep() || !LockException.of(error).is(Kind.MISUSE)) {
            return CompletableFuture.failedFuture(error);
        }
        return renewal.thenCompose(answered -> session.call(lastRenewal(), session.patience))
                .handle(Hold::unlessLost);
    }

    private List<String> lastRenewal() {
        return List.of("LOCK.RENEW", key(), owner, "PX", How.ms(lease), "WATCHDOG", "MAX", "1", "EPHEMERAL");
    }

    private static Void unlessLost(Object reply, Throwable error) {
        if (error != null && !LockException.of(error).is(Kind.LOST)) {
            throw LockException.of(error);
        }
        return null;
    }

    boolean isLeft() {
        return left;
    }

    /** It was left, and is not held any more. */
    boolean isGone() {
        return left && (released || isLost());
    }

    /** If there is nothing to renew. */
    private Lost over() {
        return isLost() || !(released || left) ? why : notHeld();
    }

    private Lost notHeld() {
        return new Lost(key() + ": it is not held any more");
    }

    private CompletableFuture<Void> ended() {
        if (!isLost()) {
            return CompletableFuture.completedFuture(null);
        }
        return session.givenBack(key(), owner, Session.SOON).handle((done, late) -> {
            throw why;
        });
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

    /** It is ours, by a call that was sent then. What is kept was bound by the last one. */
    void begin(long asked, long renewed, Long token) {
        granted = asked;
        bound = true;
        until = renewed + lease;
        sent.add(new Sent(until));
        this.token = token;
        session.holds.add(this);
        watch();
    }

    /** Whether the server knows of it; its lease is set anew. */
    CompletableFuture<Object> confirm() {
        return session.insist(renewal(lease, 0), 0);
    }

    /** Takes it over. */
    CompletableFuture<Hold> attach() {
        return session.givenBack(key(), owner, session.patience).thenCompose(done -> takeOver());
    }

    private CompletableFuture<Hold> takeOver() {
        // A renewal without the words that bind does not undo them, and nothing else does.
        CompletableFuture<Object> info = how.keep()
                ? CompletableFuture.completedFuture(null)
                : session.insist(List.of("LOCK.INFO", key()), session.patience);
        return info.thenCompose(told -> {
            if (isBound(told)) {
                throw bound("attach it as one that is kept");
            }
            long sent = Session.now();
            // One that comes late would bind the hold to a process that does not know of it.
            // What is looked after here by another call must go on.
            List<String> undo = how.keep() && !session.has(key(), owner) ? lastRenewal() : List.of();
            return session.insist(renewal(lease, 0), session.patience, LockException::passes, undo)
                    .thenApply(holds -> {
                        begin(sent, sent, null);
                        return this;
                    });
        });
    }

    private boolean isBound(Object info) {
        return Attempt.field(info, "holders") instanceof List<?> holders
                && holders.stream()
                        .filter(holder -> owner.equals(Attempt.field(holder, "owner")))
                        .anyMatch(holder -> Long.valueOf(1).equals(Attempt.field(holder, "watchdog"))
                                || Long.valueOf(1).equals(Attempt.field(holder, "ephemeral")));
    }

    private LockException bound(String instead) {
        return LockException.misuse(key() + ": the hold is bound to a connection: " + instead);
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
        // One that comes late, from a dead connection, must not bind the hold to that.
        if (!bound) {
            how.bind(words, age);
        }
        return words;
    }

    /** Not again, if the hold is over or another's by then. It fails if the hold is over when the answer comes. */
    private CompletableFuture<Void> renew(long time, List<String> words) {
        long within = Math.max(0, Math.min(until - Session.now(), session.blockFor));
        Supplier<CompletableFuture<Object>> again =
                () -> over() == null ? ask(time, words) : CompletableFuture.failedFuture(over());
        CompletableFuture<Void> done = renewed(() -> session.insist(again, within, LockException::passes));
        return session.limit(done, Math.max(Session.SOON, within), SILENT).thenRun(() -> {
            if (over() != null) {
                throw over();
            }
        });
    }

    /** The answer counts, also if nobody waits for it any more: so it has as long as an answer may take. */
    private CompletableFuture<Object> ask(long time, List<String> words) {
        Sent now = new Sent(Session.now() + time);
        sent.add(now);
        if (now.end - until < 0) {
            // The server may set it, and its reply may be lost.
            until = now.end;
            watch();
        }
        return session.call(words, session.patience).whenComplete((reply, error) -> {
            if (error == null) {
                confirmed(now);
            } else if (LockException.of(error) instanceof Lost told
                    // It may have been given back just before.
                    && releasing.get() == 0
                    && (handing || over() == null)) {
                lose(told);
            }
        });
    }

    /** Each of those that were sent since may have set another end. */
    private void confirmed(Sent one) {
        if (sent.contains(one)) {
            while (sent.getFirst() != one) {
                sent.removeFirst();
            }
            until = end(Math::min);
        }
    }

    /** When its lease is over at the server, at the latest: what was sent may have come there, and nobody was told. */
    private long latest() {
        return end(Math::max);
    }

    private long end(LongBinaryOperator which) {
        long now = Session.now();
        return now + sent.stream().mapToLong(one -> one.end - now).reduce(which).orElse(0);
    }

    private CompletableFuture<Void> renewed(Supplier<CompletableFuture<Object>> call) {
        // Its words say so, and stay if it is sent again on another connection.
        boolean binds = !bound;
        CompletableFuture<Void> done = call.get().thenAccept(holds -> bound |= binds);
        renewal = CompletableFuture.allOf(renewal, done).exceptionally(error -> null);
        return done;
    }

    /** The connection for commands has ended. */
    void unbind() {
        bound = false;
    }

    private void lose(Lost told) {
        if (isLost() || (released && !handing)) {
            return;
        }
        why = told;
        end("lost");
        lost.complete(null);
    }

    /** Another hold of this owner has begun, which a release would end. */
    void outlived(boolean byShared) {
        if (!byShared || !how.shared()) {
            left = true;
            lose(new Lost(key() + ": it had ended, as its owner has got the lock anew"));
        }
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
        return how.keep() && !left && (how.maxHold() == 0 || age() < how.maxHold());
    }

    /** Renews when it is time, if it is to be kept, and tells when the lock is lost by the own clock. */
    private void watch() {
        stop();
        if (isLost() || released) {
            return;
        }
        long rest = until - Session.now();
        if (session.isClosed()) {
            lose(new Lost(key() + ": the session was closed"));
        } else if (keeps()) {
            timer = session.after(bound ? Math.min(pause(), rest) : 0, this::keep);
        } else if (rest <= 0) {
            runOut("the lease is over");
        } else {
            timer = session.after(rest, this::watch);
        }
    }

    /** Between two renewals. */
    private long pause() {
        return Math.min(lease / 3, session.beat);
    }

    /** By the own clock. The server may have it yet, and renew it for ever. */
    private void runOut(String text) {
        if (!isLost() && !released) {
            lose(new Lost(key() + ": " + text));
            if (how.keep() || latest() - Session.now() > 0) {
                leave();
            }
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
        // lock, as no other ever has this owner's name.
        long pause = pause();
        long rest = until - Session.now();
        renewing = true;
        session.limit(renewed(() -> ask(lease, renewal(lease, age()))), rest <= 0 ? pause : rest, SILENT)
                .whenComplete((done, error) -> {
                    renewing = false;
                    if (error == null || isLost() || released || session.isClosed()) {
                        watch();
                    } else {
                        keepLater(LockException.of(error), pause);
                    }
                });
    }

    private void keepLater(LockException failure, long pause) {
        long rest = until - Session.now();
        if (rest <= 0) {
            runOut("the lease is over, and the server does not answer");
            return;
        }
        long later = failure instanceof Disconnected ? Session.TRY_AGAIN : failure.passes() ? Session.SOON : pause;
        stop();
        timer = session.after(Math.min(later, Math.min(pause, rest)), this::keep);
    }

    /** A call that sets the lease. */
    private static final class Sent {
        private final long end;

        private Sent(long end) {
            this.end = end;
        }
    }
}
