// SPDX-License-Identifier: MIT
package example.redislock;

import example.redislock.LockException.Disconnected;
import example.redislock.LockException.Kind;
import java.time.Duration;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import java.util.function.Supplier;

/**
 * Two connections that carry all waits and holds of a process: one for commands, one for messages. All that is here happens in
 * one thread, the loop: so nothing needs a lock, and nothing may block. Times are in nanoseconds.
 */
final class Session {
    static final long TRY_AGAIN = Duration.ofMillis(50).toNanos();
    /** A call that has no time to wait has so long for its reply. */
    static final long SOON = Duration.ofSeconds(1).toNanos();

    /** So often at most who waits in the server looks whether it is there. With the patience, a server remembers a call for longer. */
    private static final long LOOK_AGAIN = Duration.ofSeconds(8).toNanos();

    /** Who is not answered in so long moves: later the server may have forgotten the request. */
    private static final long LOOK_FOR = Duration.ofSeconds(5).toNanos();

    /** What could not be given back is tried for so long behind the caller's back. */
    static final long TRY_FOR = Duration.ofMinutes(10).toNanos();

    private enum Use {
        COMMANDS,
        MESSAGES,
        OWN
    }

    final String inbox = "inbox-" + UUID.randomUUID();
    /** How long a call may go without an answer. */
    final long patience;

    /** A release, or what is tried again else, blocks for so long at most. A test has less time. */
    long blockFor = Duration.ofSeconds(30).toNanos();

    /** What is kept is renewed so often at least, as servers and networks end a connection that is idle. */
    long beat = Duration.ofSeconds(10).toNanos();

    final Consumer<LockEvent> listener;
    /** Who waits, by the id of its request: a message rings. */
    final Map<String, Attempt> waits = new HashMap<>();

    final Set<Hold> holds = new HashSet<>();
    /** What is given back behind somebody's back, by key and owner. */
    private final Map<CompletableFuture<Void>, List<String>> giving = new HashMap<>();
    /** Those who wait for what is sent again, with the timer for that. */
    private final Map<CompletableFuture<?>, ScheduledFuture<?>> insisting = new HashMap<>();

    private final Wire.Connector connector;
    private final ScheduledThreadPoolExecutor loop;
    /** For what depends on the futures of users, which may block. After close it runs where the future ends. */
    private final ThreadPoolExecutor users = new ThreadPoolExecutor(
            0,
            Integer.MAX_VALUE,
            10,
            TimeUnit.SECONDS,
            new SynchronousQueue<>(),
            work -> daemon(work, "redis-lock-tell"),
            (work, ended) -> work.run());

    private final Map<Use, Link> links = new EnumMap<>(Use.class);
    /** Each carries one call that waits in the server; or waits for the next such call itself. */
    private final Set<Link> own = new HashSet<>();

    private Link idle;
    /** How many connections were begun. */
    private long made;
    /** What a server said that serves nobody; null after a good reply. So no connection is made before a pause is over. */
    private String refusal;

    private long notBefore;
    private long pause;
    private volatile boolean closed;
    /** The connections are being dropped, or have been. */
    private boolean dropping;

    private volatile Thread thread;

    Session(Wire.Connector connector, Duration patience, Consumer<LockEvent> listener) {
        this.connector = connector;
        this.patience = patience.toNanos();
        this.listener = listener;
        loop = new ScheduledThreadPoolExecutor(1, work -> {
            thread = daemon(work, "redis-lock");
            return thread;
        });
        // After close there is no timer left to wait for, and what somebody has begun at that moment ends as closed.
        loop.setRemoveOnCancelPolicy(true);
    }

    private static Thread daemon(Runnable work, String name) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        return thread;
    }

    static long now() {
        return System.nanoTime();
    }

    boolean isClosed() {
        return closed;
    }

    /** Does something in the loop. Nothing, and false, if that has ended. */
    boolean run(Runnable work) {
        try {
            // What comes in while the loop ends is dropped, and nothing is thrown.
            return !loop.schedule(work, 0, TimeUnit.NANOSECONDS).isCancelled();
        } catch (RejectedExecutionException ended) {
            // What was waited for has been ended by close.
            return false;
        }
    }

    /** Begins something in the loop. */
    <T> CompletableFuture<T> begin(Supplier<CompletableFuture<T>> work) {
        CompletableFuture<T> result = new CompletableFuture<>();
        boolean begun = run(() -> {
            try {
                work.get().whenComplete((value, error) -> {
                    if (error == null) {
                        result.complete(value);
                    } else {
                        result.completeExceptionally(LockException.of(error));
                    }
                });
            } catch (RuntimeException defect) {
                result.completeExceptionally(defect);
            }
        });
        if (!begun) {
            result.completeExceptionally(over());
        }
        return result;
    }

    /** The same for a user. */
    <T> CompletableFuture<T> tell(CompletableFuture<T> work) {
        return tell(work, new CompletableFuture<>(), tooLate -> {});
    }

    <T> CompletableFuture<T> tell(CompletableFuture<T> work, CompletableFuture<T> user, Consumer<T> tooLate) {
        work.whenCompleteAsync(
                (value, error) -> {
                    if (error != null) {
                        user.completeExceptionally(error instanceof CompletionException ? error.getCause() : error);
                    } else if (!user.complete(value)) {
                        tooLate.accept(value);
                    }
                },
                this::onAThread);
        return user;
    }

    private void onAThread(Runnable work) {
        try {
            users.execute(work);
        } catch (OutOfMemoryError noThread) {
            // The machine gives no more of them. Whoever waits for this must be told all the same.
            work.run();
        }
    }

    ScheduledFuture<?> after(long time, Runnable work) {
        return loop.schedule(work, Math.max(0, time), TimeUnit.NANOSECONDS);
    }

    static LockException over() {
        return new LockException(Kind.UNAVAILABLE, "closed");
    }

    /** The reply; Disconnected if there is none in time: the session's own patience is the most. */
    CompletableFuture<Object> call(List<String> words, long within) {
        return call(words, within, List.of());
    }

    /** As the first. If there is no reply in time, something is said that undoes it, behind it on the same connection only. */
    private CompletableFuture<Object> call(List<String> words, long within, List<String> undo) {
        return use(Use.COMMANDS, within, call -> {
            call.undo = undo;
            call.link.wire.call(words).whenComplete(call::answer);
        });
    }

    /** As the first, unless the last word before it is sent is an error. */
    CompletableFuture<Object> call(List<String> words, long within, Runnable check) {
        return use(Use.COMMANDS, within, call -> {
            check.run();
            call.link.wire.call(words).whenComplete(call::answer);
        });
    }

    /** Until there is a connection for commands. */
    CompletableFuture<Object> ready(long within) {
        return use(Use.COMMANDS, within, call -> call.end(null, null));
    }

    /** As the first, for {@code LOCK.GUARD}: an error may be that of the guarded command, which says nothing of the server. */
    CompletableFuture<Object> guard(List<String> words) {
        return use(
                Use.COMMANDS,
                patience,
                call -> call.link
                        .wire
                        .call(words)
                        .whenComplete((reply, error) ->
                                call.answer(reply, error == null ? null : LockException.guarded(error))));
    }

    /** Before a wait: a message that nobody hears is taken for a refusal. */
    CompletableFuture<Object> listen(long within) {
        return use(Use.MESSAGES, within, call -> call.end(null, null));
    }

    /** A wait was told nothing for long. A connection for messages that is dead says nothing, and breaks for nobody. */
    void probeMessages() {
        Link link = links.get(Use.MESSAGES);
        if (link != null) {
            link.probe();
        }
    }

    /** A connection for a call that waits in the server. What is bound to it stays until it is closed, or rests. */
    Link ownLink() {
        Link link = idle;
        idle = null;
        if (link != null && link.isOlder()) {
            link.giveUp();
            link = null;
        }
        return link != null ? link : newLink();
    }

    /** The same, and always a new one. */
    Link newLink() {
        LockException unable = unable();
        if (unable != null) {
            throw unable;
        }
        Link link = new Link(Use.OWN);
        own.add(link);
        link.open();
        return link;
    }

    /** Why no connection can be made now; null if one can. */
    private LockException unable() {
        if (closed) {
            return over();
        }
        return refusal != null && now() - notBefore < 0 ? new Disconnected(refusal) : null;
    }

    /** How many calls go on that are sent again. */
    int errands() {
        return insisting.size();
    }

    /** For how long no connection can be made. */
    long calmFor() {
        return refusal == null ? 0 : Math.max(0, notBefore - now());
    }

    /** Many calls may hear the same at once. */
    private void refused(String text) {
        if (refusal == null || now() - notBefore >= 0) {
            pause = refusal == null ? TRY_AGAIN : Math.min(2 * pause, SOON);
            notBefore = now() + pause;
            refusal = text;
        }
    }

    /** A call that may be sent twice, and is, for so long, when its connection breaks or the server can do nothing. */
    CompletableFuture<Object> insist(List<String> words, long within) {
        return insist(words, within, LockException::passes, List.of());
    }

    /** The same also after other errors, and with what undoes it. */
    CompletableFuture<Object> insist(
            List<String> words, long within, Predicate<LockException> again, List<String> undo) {
        long deadline = now() + within;
        return insist(
                () -> call(words, within == 0 ? patience : Math.max(SOON, deadline - now()), undo), within, again);
    }

    /** Tries something for so long, with pauses. It is told when the session is closed. */
    <T> CompletableFuture<T> insist(Supplier<CompletableFuture<T>> work, long within, Predicate<LockException> again) {
        CompletableFuture<T> result = new CompletableFuture<>();
        insisting.put(result, null);
        insist(work, now() + within, again, TRY_AGAIN, result);
        return result.whenComplete((reply, error) -> {
            ScheduledFuture<?> timer = insisting.remove(result);
            if (timer != null) {
                timer.cancel(false);
            }
        });
    }

    private <T> void insist(
            Supplier<CompletableFuture<T>> work,
            long deadline,
            Predicate<LockException> again,
            long pause,
            CompletableFuture<T> result) {
        work.get().whenComplete((reply, error) -> {
            if (result.isDone()) {
                return;
            }
            if (error == null) {
                result.complete(reply);
            } else if (now() - deadline >= 0 || !again.test(LockException.of(error))) {
                result.completeExceptionally(error);
            } else if (closed) {
                result.completeExceptionally(over());
            } else {
                insisting.put(
                        result, after(pause, () -> insist(work, deadline, again, Math.min(2 * pause, SOON), result)));
            }
        });
    }

    /** Notes that this hold is given back behind somebody's back. */
    void giveBack(String key, String owner, CompletableFuture<?> work) {
        CompletableFuture<Void> over = new CompletableFuture<>();
        giving.put(over, List.of(key, owner));
        work.whenComplete((done, error) -> {
            giving.remove(over);
            over.complete(null);
        });
    }

    boolean isGivenBack(String key, String owner) {
        return !giving.containsValue(List.of(key, owner));
    }

    /**
     * Waits until nothing of that owner is given back any more, and fails after so long. A release goes by the owner's name, and would
     * give back the next hold, too.
     */
    CompletableFuture<Void> givenBack(String key, String owner, long within) {
        List<String> mine = List.of(key, owner);
        CompletableFuture<?>[] pending = giving.entrySet().stream()
                .filter(one -> one.getValue().equals(mine))
                .map(Map.Entry::getKey)
                .toArray(CompletableFuture<?>[]::new);
        String text = key + ": the last hold of this owner could not be given back yet";
        return limit(CompletableFuture.allOf(pending), within, text);
    }

    /** What that work comes to; or, after so long, the error with that text. The work goes on. */
    <T> CompletableFuture<T> limit(CompletableFuture<T> work, long within, String text) {
        if (work.isDone()) {
            return work;
        }
        CompletableFuture<T> result = new CompletableFuture<>();
        ScheduledFuture<?> late =
                after(within, () -> result.completeExceptionally(new LockException(Kind.UNAVAILABLE, text)));
        work.whenComplete((value, error) -> {
            late.cancel(false);
            if (error == null) {
                result.complete(value);
            } else {
                result.completeExceptionally(error);
            }
        });
        return result;
    }

    /** Whether that owner has the lock by a call of this session. */
    boolean has(String key, String owner) {
        return holds.stream()
                .anyMatch(hold -> hold.key().equals(key) && hold.owner().equals(owner));
    }

    /** That owner has got the lock anew: so its other holds here have ended, unless both are shared. */
    void outlived(String key, String owner, boolean shared) {
        List.copyOf(holds).stream()
                .filter(hold -> hold.key().equals(key) && hold.owner().equals(owner))
                .forEach(hold -> hold.outlived(shared));
    }

    void heard(String label, String name, String outcome, long since) {
        if (listener == null) {
            return;
        }
        try {
            listener.accept(new LockEvent(label, name, outcome, Duration.ofNanos(now() - since)));
        } catch (RuntimeException error) {
            // It must not keep a lock from being granted or given back.
            warn("the listener failed", error);
        }
    }

    private static void warn(String text, Throwable error) {
        System.getLogger(Session.class.getName()).log(System.Logger.Level.WARNING, text, error);
    }

    /** Takes back the waits, and drops the connections: the server ends the holds that are bound to them. */
    void close() {
        closed = true;
        run(this::takeBack);
        if (Thread.currentThread() == thread) {
            return;
        }
        boolean interrupted = false;
        while (true) {
            try {
                if (loop.awaitTermination(1, TimeUnit.DAYS)) {
                    break;
                }
            } catch (InterruptedException again) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** A lease that nobody knows of would go on. So what takes it back, or gives it back, has a second for its answer. */
    private void takeBack() {
        List.copyOf(waits.values()).forEach(attempt -> attempt.fail(over()));
        Link commands = links.get(Use.COMMANDS);
        if (commands == null || commands.calls.isEmpty()) {
            drop();
        } else {
            // Its answer comes after those. While a script runs, they are sent again.
            call(List.of("PING"), SOON).whenComplete((pong, error) -> {
                if (error != null && LockException.of(error) instanceof LockException.Passing) {
                    after(SOON, this::drop);
                } else {
                    drop();
                }
            });
        }
    }

    private void drop() {
        if (dropping) {
            return;
        }
        dropping = true;
        List.copyOf(links.values()).forEach(Link::close);
        List.copyOf(own).forEach(Link::close);
        // Each ends now, as there is nothing to ask any more.
        ring();
        List.copyOf(insisting.keySet()).forEach(result -> result.completeExceptionally(over()));
        loop.shutdown();
        users.shutdown();
        connector.close();
    }

    private void ring() {
        List.copyOf(waits.values()).forEach(Attempt::ring);
        List.copyOf(holds).forEach(Hold::ring);
    }

    /** "granted (request) (key)" and "lost (request) (key)" both mean: ask again. */
    private void told(String message) {
        String[] words = message.split(" ", 3);
        Attempt attempt = words.length < 2 ? null : waits.get(words[1]);
        if (attempt != null) {
            attempt.ring();
        }
    }

    private CompletableFuture<Object> use(Use use, long within, Consumer<Call> work) {
        CompletableFuture<Object> answer = new CompletableFuture<>();
        Link link = links.get(use);
        LockException unable = link == null ? unable() : null;
        if (unable != null) {
            answer.completeExceptionally(unable);
            return answer;
        }
        if (link == null) {
            link = new Link(use);
            links.put(use, link);
            link.open();
        }
        link.use(new Call(link, answer), within, work);
        return answer;
    }

    /** One use of a connection. */
    private final class Call {
        private final Link link;
        private final CompletableFuture<Object> answer;
        private List<String> undo = List.of();
        private ScheduledFuture<?> timer;

        Call(Link link, CompletableFuture<Object> answer) {
            this.link = link;
            this.answer = answer;
        }

        /** By whatever thread of the library. */
        void answer(Object reply, Throwable error) {
            run(() -> {
                if (error == null) {
                    refusal = null;
                    link.useful = true;
                }
                end(reply, error == null ? null : LockException.of(error));
            });
        }

        private boolean leave() {
            boolean first = link.calls.remove(this);
            if (timer != null) {
                timer.cancel(false);
            }
            return first;
        }

        void end(Object reply, LockException error) {
            if (!leave()) {
                return;
            }
            if (error == null) {
                answer.complete(reply);
                return;
            }
            // The next connection may lead to another server.
            if (error instanceof Disconnected disconnected) {
                if (disconnected.isTold) {
                    refused(error.getMessage());
                }
                leadsNowhere(link);
            }
            answer.completeExceptionally(error);
        }
    }

    /** Another call may have given it up before, and then the other connection is a new one. */
    private void leadsNowhere(Link link) {
        // One that never was says nothing of the other.
        if (links.get(link.use) == link && link.wire != null) {
            List.copyOf(links.values()).forEach(Link::giveUp);
        } else {
            link.giveUp();
        }
    }

    /** A connection, from when it is needed until it broke. */
    final class Link {
        private final Use use;
        private final long number = ++made;
        /** Those without an answer, in their order. */
        private final Set<Call> calls = new LinkedHashSet<>();
        /** What is to be done when it is ready. A list, as dependents of a future run in no order. */
        private final List<Runnable> queue = new ArrayList<>();

        private Wire wire;
        private boolean answered;
        /** A server has carried out a call on it, or it hears messages. */
        private boolean useful;

        private boolean gone;
        /** When it has been silent for too long after a question, on the connection for messages; null if nobody asked. */
        private ScheduledFuture<?> silence;

        private long heard = now();

        Link(Use use) {
            this.use = use;
        }

        void open() {
            boolean hears = use == Use.MESSAGES;
            try {
                connector
                        .open(
                                hears ? "lock:inbox:" + inbox : null,
                                text -> run(() -> {
                                    heard();
                                    told(text);
                                }),
                                () -> run(this::giveUp))
                        .whenComplete((wire, error) -> {
                            if (!run(() -> opened(wire, error)) && wire != null) {
                                wire.close();
                            }
                        });
            } catch (RuntimeException | LinkageError error) {
                // Two versions of Netty, say, of which the library has got the wrong one.
                run(() -> opened(null, error));
            }
        }

        private void opened(Wire wire, Throwable error) {
            if (error != null) {
                LockException why = LockException.of(error);
                List.copyOf(calls).forEach(call -> call.end(null, why));
                giveUp();
            } else if (gone) {
                wire.giveUp();
            } else {
                this.wire = wire;
                useful = use == Use.MESSAGES;
                queue.forEach(Runnable::run);
                queue.clear();
            }
        }

        /**
         * The reply to a call that waits in the server. What it says, and for how long, is asked when there is a connection. It is
         * told when that for commands is younger, or nobody answers there.
         */
        CompletableFuture<Object> block(Supplier<List<String>> words, LongSupplier within, Runnable move) {
            CompletableFuture<Object> answer = new CompletableFuture<>();
            // TCP may take long to find that nobody is there. Who does not answer on the other connection does not on
            // this one. An answer on one that was made later says nothing: it may lead to another server.
            Runnable look = () -> {
                if (calmFor() > 0) {
                    return;
                }
                call(List.of("PING"), Math.min(patience, LOOK_FOR)).whenComplete((pong, error) -> {
                    // One that is too many is told so: somebody is there.
                    boolean full =
                            error != null && String.valueOf(error.getMessage()).contains(LockException.FULL);
                    if (!answer.isDone() && !full && (error instanceof Disconnected || isOlder())) {
                        move.run();
                    }
                });
            };
            long often = Math.min(LOOK_AGAIN, patience / 5 * 8);
            ScheduledFuture<?> probe = loop.scheduleWithFixedDelay(look, often, often, TimeUnit.NANOSECONDS);
            Consumer<Call> send = call -> {
                try {
                    List<String> said = words.get();
                    limit(call, within.getAsLong(), 0);
                    wire.call(said).whenComplete(call::answer);
                } catch (LockException notNow) {
                    call.end(null, notNow);
                }
            };
            use(new Call(this, answer), patience, call -> {
                if (answered) {
                    send.accept(call);
                    return;
                }
                // A connection says nothing of whether anybody is behind it who answers. A refusal is an answer, too.
                wire.call(List.of("PING"))
                        .whenComplete((pong, error) -> run(() -> {
                            answered = error == null || !(LockException.of(error) instanceof Disconnected);
                            if (answered && calls.contains(call)) {
                                send.accept(call);
                            } else if (!answered) {
                                call.end(null, LockException.of(error));
                            }
                        }));
            });
            return answer.whenComplete((reply, error) -> probe.cancel(false));
        }

        /** Nothing is bound to it any more: it may carry the next call that waits. */
        void rest() {
            if (idle == null && own.contains(this)) {
                idle = this;
            } else {
                close();
            }
        }

        /** The server is to hear that its call is elsewhere before it hears of its end: then it has answered. */
        void giveUpSoon() {
            silence = after(SOON, this::giveUp);
        }

        private void probe() {
            if (wire == null || silence != null || now() - heard < SOON) {
                return;
            }
            silence = after(patience, this::giveUp);
            wire.call(List.of("PING")).whenComplete((pong, error) -> {
                // A refusal is an answer, too.
                if (error == null || !(LockException.of(error) instanceof Disconnected)) {
                    run(this::heard);
                }
            });
        }

        private void heard() {
            heard = now();
            if (silence != null) {
                silence.cancel(false);
                silence = null;
            }
        }

        boolean isGone() {
            return gone;
        }

        private boolean isOlder() {
            Link commands = links.get(Use.COMMANDS);
            return commands != null && number < commands.number;
        }

        private void use(Call call, long within, Consumer<Call> work) {
            calls.add(call);
            limit(call, Math.min(within, patience), Math.max(0, patience - within));
            Runnable send = () -> {
                // Nobody waits for it any more.
                if (call.answer.isDone()) {
                    call.leave();
                    return;
                }
                try {
                    work.accept(call);
                } catch (RuntimeException | LinkageError error) {
                    call.end(null, LockException.of(error));
                }
            };
            if (wire != null) {
                send.run();
            } else {
                queue.add(send);
            }
        }

        /** Whoever asked is told after so long. The rest of the patience later this leads nowhere, whether anybody waits or not. */
        private void limit(Call call, long within, long rest) {
            if (call.timer != null) {
                call.timer.cancel(false);
            }
            call.timer = after(Math.max(1, within), () -> {
                if (rest > 0) {
                    limit(call, rest, 0);
                } else if (call.leave()) {
                    leadsNowhere(this);
                }
                call.answer.completeExceptionally(new Disconnected("the server does not answer"));
                if (rest > 0 && !call.undo.isEmpty()) {
                    wire.call(call.undo);
                }
            });
        }

        /** So that the server hears of it, even after an outage. */
        void close() {
            end(Wire::close);
        }

        /** What was said here must not be heard after what is said on the next. */
        void giveUp() {
            end(Wire::giveUp);
        }

        private void end(Consumer<Wire> how) {
            if (gone) {
                return;
            }
            gone = true;
            links.remove(use, this);
            own.remove(this);
            heard();
            if (use == Use.COMMANDS) {
                holds.forEach(Hold::unbind);
            }
            if (idle == this) {
                idle = null;
            }
            try {
                if (wire != null) {
                    how.accept(wire);
                }
            } catch (RuntimeException | LinkageError failed) {
                // It may be of a user's own kind. Those who wait for its answers must be told all the same.
                warn("a connection could not be closed", failed);
            }
            LockException lost = new Disconnected("the connection is lost");
            List.copyOf(calls).forEach(call -> call.end(null, lost));
            // Who waited for one that never was of use has been told, and pauses. All others would make the next at
            // once.
            if (use != Use.OWN && useful) {
                ring();
            }
        }
    }
}
