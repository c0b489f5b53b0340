// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Words.NONE;

import io.github.redislock.Acquire.State;
import java.lang.System.Logger.Level;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * The presence of this process on one server: its numbers, holds and waits, and the loop that reads events. Rules R1 to R23 are
 * those of docs/sessions.md.
 */
final class Session {
    /** Time that LOCK.EVENTS waits in the server, and at most a third of the grace. */
    static final long EVENTS_BLOCK = TimeUnit.SECONDS.toNanos(1);
    /** Maximum number of events in a reply. A full reply confirms nothing (R2). */
    static final int EVENTS_COUNT = 1000;
    /** Limit for one call without a reply. */
    static final long CALL_TIMEOUT = TimeUnit.SECONDS.toNanos(2);
    /** Extra time for the reply to a call that waits in the server. */
    static final long REPLY_GRACE = TimeUnit.SECONDS.toNanos(1);
    /** The pause before a call is repeated. */
    static final long RETRY_PAUSE = TimeUnit.MILLISECONDS.toNanos(50);
    /** The limit of the reader's first random pause after a failure without a reply. */
    static final long RECONNECT_PAUSE = TimeUnit.MILLISECONDS.toNanos(500);
    /** The limit of its later pauses. */
    static final long MAX_RETRY_PAUSE = TimeUnit.SECONDS.toNanos(1);
    /** Limit for the last call of a session. */
    static final long CLOSE_TIMEOUT = TimeUnit.SECONDS.toNanos(1);

    private static final Set<String> MOVING = Set.of("MOVED", "ASK", "TRYAGAIN");
    private static final long NEVER = Long.MIN_VALUE / 2;
    private static final System.Logger LOG = System.getLogger(Session.class.getPackageName());

    final Connector.Node node;
    private final Locks locks;

    // The mutex of Locks protects all that follows.
    byte[] id;
    /** All holds are declared, and an EVENTS has confirmed them. */
    private boolean isUp;
    /** The last failure of the reader, and when the first failure in sequence happened. */
    volatile LockException failure;

    private long failing = NONE;
    /** The failures have lasted for the patience. */
    private boolean isLong;

    /** All that are asked, held, or to undo, by their numbers. */
    private final TreeMap<Long, Acquire> acquires = new TreeMap<>();
    /** Holds to declare (R3), and acquires to undo. */
    private final Set<Acquire> unsettled = new LinkedHashSet<>();
    /** Calls for the reader. */
    final Set<Call> repeats = new LinkedHashSet<>();

    private long lastNumber;
    private long beat;
    private long seen;
    /** When the last confirming LOCK.EVENTS was sent: with the present id, and in any session that had its holds before. */
    private long confirmed = NEVER;

    private long lastConfirmed = NEVER;
    private boolean isInJeopardy;
    private boolean isClosed;
    private Thread reader;
    /** The server has answered the reader that another node has a lock. */
    private boolean hasMoved;

    private final CompletableFuture<Void> ended = new CompletableFuture<>();

    Session(Connector.Node node, Locks locks) {
        this.node = node;
        this.locks = locks;
    }

    // The life of an acquire, under the mutex.

    boolean isReader() {
        return Thread.currentThread() == reader;
    }

    /** Whether the server has answered the last call of the reader. */
    boolean isAnswering() {
        return isUp && failing == NONE;
    }

    /** Gives the acquire the next number. The server does not know it yet. */
    void enrol(Acquire acquire) {
        acquire.session = this;
        acquire.id = null;
        acquire.n = ++lastNumber;
        acquires.put(acquire.n, acquire);
        if (reader == null && !isClosed) {
            Thread thread = new Thread(this::read, "redis-lock-" + node.name());
            thread.setDaemon(true);
            thread.start();
            reader = thread;
        }
    }

    /** Takes an acquire of another session, or of the previous one on this server. */
    private void adopt(Acquire acquire) {
        Session former = acquire.session;
        if (acquire.state == State.ASKED && acquire.id != null) {
            // It may have been granted. Its caller asks again.
            former.end(acquire, "restarted", true);
        }
        former.acquires.remove(acquire.n);
        former.unsettled.remove(acquire);
        enrol(acquire);
        if (acquire.state != State.ASKED) {
            unsettled.add(acquire);
        }
        former.repeats.removeIf(each -> former != this && each.acquire == acquire && repeats.add(each));
        lastConfirmed = Math.max(lastConfirmed, former.lastConfirmed);
    }

    /** The owner, or another one if a call of it may be late. A thread does not wait for its own hold: that keeps its owner. */
    Owner freeOwner(Owner owner, RedisLock lock) {
        Owner free = owner;
        while (lock.owner == null && isRetired(free, lock) && !holds(free, lock)) {
            free = free.retire(lock);
        }
        return free;
    }

    private boolean isRetired(Owner owner, RedisLock lock) {
        return !Collections.disjoint(owner.retired, lock.ids)
                || unsettled.stream().anyMatch(each -> each.state == State.UNDO && each.matches(owner, lock));
    }

    private boolean holds(Owner owner, RedisLock lock) {
        return acquires.values().stream().anyMatch(each -> each.state == State.HELD && each.matches(owner, lock));
    }

    /** The words of an attempt. Null if the reader has to send it, or if it has failed. */
    Words begin(Call call) {
        Acquire acquire = call.acquire;
        if (call.isOver()) {
            return null;
        } else if (isHopeless(call)) {
            call.end(failure);
            return null;
        } else if (!canSend(acquire)) {
            repeats.add(call);
            return null;
        }
        call.session = this;
        call.id = id;
        call.n = acquire.n;
        call.sent = Math.min(call.sent, Locks.now());
        if (acquire.state == State.ASKED) {
            acquire.id = id;
            acquire.sent = call.sent;
        }
        return acquire.words(call.verb, call.lease);
    }

    /** Whether a failure of the reader is one of the call. */
    private boolean isHopeless(Call call) {
        boolean isPatient = call.state == State.HELD || !(call.acquire.by.isTry || call.giveUp == NONE);
        return isClosed || (failing != NONE && (!failure.isTransient() || (isLong && !isPatient)));
    }

    /** Only the reader calls a server that has stopped to answer it, so that no other thread waits there. */
    private boolean canSend(Acquire acquire) {
        // The server would refuse a release of a number that is not declared yet, and remember that (R23).
        return (isReader() ? isUp : isAnswering())
                && (acquire.state == State.ASKED
                        ? unsettled.stream().noneMatch(each -> blocks(each, acquire))
                        : acquire.isDeclared());
    }

    /** A late acquire of an owner must not be granted to its next one, and a hold must be declared before its lock is asked. */
    private static boolean blocks(Acquire first, Acquire next) {
        return first.state == State.HELD
                ? !Collections.disjoint(first.lock.ids, next.lock.ids)
                : first.matches(next.owner, next.lock);
    }

    /** Handles the reply to an attempt. Returns whether the call must be repeated. */
    boolean answer(Call call, Object reply) {
        Acquire acquire = call.acquire;
        boolean isAsk = acquire.state == State.ASKED;
        // R14: a reply counts only for the present number.
        boolean isPresent = acquire.session == this && acquire.n == call.n && call.id == id;
        if (call.isOver()) {
            return false;
        } else if (!(reply instanceof LockException error)) {
            if (isPresent) {
                answered(call, reply);
            }
            return !isPresent;
        } else {
            hasMoved |= error.is("MOVED");
            call.isInDoubt |= error.is("");
            acquire.isReleaseInDoubt |= acquire.isReleasing && error.is("");
            call.error = error;
            call.failing = Math.min(call.failing, Locks.now());
            if (isPresent && isAsk && !call.isInDoubt) {
                // The server has not executed it.
                acquire.id = null;
            }
            boolean isLate = call.giveUp == NONE && Locks.now() - call.failing >= locks.settings.patience;
            if (!isPresent || (error.isTransient() && !isLate)) {
                return true;
            } else if (isAsk && error.is("NOTOWNER") && acquire.by.from == null) {
                // R12: the hold of a repeated acquire has ended.
                end(acquire, "restarted", acquire.lock.isSeveral());
            } else if (!isAsk
                    && (error.is("NOTOWNER") || error.is("WRONGTYPE"))
                    && (call.verb.equals("RELEASE") || !acquire.isReleasing)) {
                String why = error.is("WRONGTYPE") ? "wrongtype" : "deleted";
                end(acquire, acquire.isReleaseInDoubt ? "released" : why, acquire.lock.isSeveral());
            } else {
                call.end(error);
            }
            return false;
        }
    }

    private void answered(Call call, Object reply) {
        Acquire acquire = call.acquire;
        if (acquire.state == State.HELD && call.verb.equals("RELEASE")) {
            end(acquire, "released", false);
        } else if (acquire.state == State.HELD) {
            acquire.isProvisional = false;
            if (call.lease != NONE) {
                acquire.leaseEnds = call.sent + call.lease;
            }
            call.end(null);
        } else if (reply == null) {
            end(acquire, "timeout", false);
        } else if (reply.equals(0L)) {
            // An event follows.
            call.error = null;
        } else {
            acquire.isProvisional = call.isInDoubt;
            grant(acquire, reply, null, acquire.sent);
        }
    }

    /** Takes the grant from a reply, or from the fields of an event. Its lease may end this early, but not earlier. */
    private void grant(Acquire acquire, Object counts, Object tokens, long leaseStart) {
        acquire.take(counts, tokens);
        acquire.granted = Locks.now();
        if (acquire.lock.lease != NONE) {
            acquire.leaseEnds = leaseStart + acquire.lock.lease;
        }
        leave(acquire, State.HELD);
    }

    private static void leave(Acquire acquire, State next) {
        acquire.state = next;
        List.copyOf(acquire.calls).forEach(each -> each.end(null));
    }

    /** Ends the wait or the hold for its caller. The reader cancels what may remain on the server. */
    void end(Acquire acquire, String reason, boolean mayRemain) {
        if (acquire.state != State.ASKED && acquire.state != State.HELD) {
            return;
        }
        boolean wasHeld = acquire.state == State.HELD;
        acquire.reason = reason;
        if (mayRemain && (wasHeld || acquire.id != null)) {
            leave(acquire, State.UNDO);
            unsettled.add(acquire);
        } else {
            undone(acquire);
        }
        if (wasHeld && acquire.reference != null && !reason.equals("handed over")) {
            notify(acquire, "held", acquire.isLost() ? "lost" : "released");
        }
        locks.later(() -> acquire.ended.complete(null));
    }

    private void undone(Acquire acquire) {
        leave(acquire, State.OVER);
        acquires.remove(acquire.n);
        unsettled.remove(acquire);
    }

    /** Ends an acquire that failed or was cancelled, and cancels it at once if that is possible. */
    void cancel(Acquire acquire) {
        Words words = locks.locked(() -> {
            end(acquire, "cancelled", true);
            boolean canCancel = acquire.state == State.UNDO && isAnswering() && acquire.isDeclared();
            return canCancel ? acquire.words("CANCEL", NONE) : null;
        });
        if (words != null) {
            Object reply = node.calls().send(words, REPLY_GRACE);
            locks.update(() -> cancelled(acquire, reply));
        }
    }

    private void cancelled(Acquire acquire, Object reply) {
        if (isAnswer(reply) && acquire.isDeclared() && acquire.state == State.UNDO) {
            undone(acquire);
        }
    }

    /** Whether a repetition would get the same reply. */
    private boolean isAnswer(Object reply) {
        boolean isElsewhere = LockException.is(reply, "MOVED");
        hasMoved |= isElsewhere;
        return LockException.is(reply, "LATE")
                || (isElsewhere && !locks.connector.isCluster())
                || !(reply instanceof LockException error && error.isTransient());
    }

    private void notify(Acquire acquire, String name, String outcome) {
        locks.later(() -> locks.notify(acquire.lock.label, name, outcome, acquire.granted));
    }

    /** Time for which no other owner can have the lock, even if the network fails. */
    long validFor(Acquire acquire) {
        if (acquire.state != State.HELD || acquire.isReleasing || !acquire.isDeclared() || !isUp) {
            return 0;
        }
        boolean needsSession = acquire.lock.lease == NONE || (acquire.isProvisional && acquire.granted >= confirmed);
        // Without a lease, it has no end.
        return Math.max(
                0, Math.min(acquire.leaseEnds, needsSession ? confirmed + locks.settings.grace : NONE) - Locks.now());
    }

    // The reader.

    /** Heartbeat, events and losses: the only loop. */
    private void read() {
        long pause = 0;
        long last = 0;
        while (!locks.locked(() -> isClosed)) {
            long first = RETRY_PAUSE;
            try {
                turn();
                last = 0;
                if (hasMoved) {
                    hasMoved = false;
                    relocate();
                }
                continue;
            } catch (RuntimeException | Error thrown) {
                LockException error = locks.connector.error(thrown);
                if (error.is("")) {
                    node.reader().close();
                    // Other clients may have lost their connections at the same moment.
                    first = Math.max(first, Math.min(RECONNECT_PAUSE, locks.settings.grace / 3));
                }
                locks.update(() -> fail(error));
            }
            if (locks.connector.isCluster()) {
                relocate();
            }
            pause = first == last ? Math.min(2 * pause, MAX_RETRY_PAUSE) : first;
            last = first;
            // The call may have used up the wake-up by `close`.
            if (!locks.locked(() -> isClosed)) {
                LockSupport.parkNanos((long) (Math.random() * pause));
            }
        }
        node.reader().close();
        ended.complete(null);
    }

    private void fail(LockException error) {
        if (isClosed) {
            return;
        }
        failure = error;
        // With NOSESSION, the server answers again.
        failing = error.is("NOSESSION") ? Locks.now() : Math.min(failing, Locks.now());
        isLong = Locks.now() - failing >= locks.settings.patience;
        if (error.is("NOSESSION") || error.is("LATE")) {
            id = null;
            isUp = false;
            confirmed = NEVER;
        }
        if (error.is("NOSESSION") || error.is("READONLY")) {
            locks.later(node::reset);
        }
        if (error.is("LATE")) {
            // R16: another process uses the id.
            endRenewed("late");
        }
        for (Acquire each : acquires.values()) {
            List.copyOf(each.calls).stream().filter(this::isHopeless).forEach(call -> call.end(error));
        }
        checkClocks();
        if (locks.connector.isCluster() && acquires.isEmpty() && Locks.now() - lastConfirmed >= locks.settings.ttl) {
            // Perhaps the node has left the cluster.
            isClosed = true;
            locks.forget(this);
        }
    }

    /** The calls of a turn, and what their replies mean. */
    private static final class Batch {
        final List<Words> calls = new ArrayList<>();
        final List<Consumer<Object>> handlers = new ArrayList<>();
        /** The counts of the owners of declared holds. */
        final Map<Acquire, Long> counts = new HashMap<>();
        /** Why a hold was not declared. */
        LockException failure;

        void add(Words call, Consumer<Object> handler) {
            calls.add(call);
            handlers.add(handler);
        }
    }

    /** Declares, undoes, repeats, and then polls (R3, R6, R13). */
    private void turn() {
        if (id == null) {
            open();
        }
        settle();
        poll();
    }

    private void open() {
        Words words = Words.of(
                        "LOCK.SESSION", "OPEN", "NEW", ++beat, "TTL", Words.milliseconds(locks.settings.ttl), "GRACE")
                .and(locks.settings.grace / 1_000_000, "NAME", Words.bytes("name", locks.settings.name));
        Object reply = node.reader().send(words, REPLY_GRACE);
        if (reply instanceof LockException error) {
            throw error;
        }
        locks.update(() -> {
            id = (byte[]) ((List<?>) reply).get(0);
            seen = 0;
            List.copyOf(acquires.values()).stream()
                    .filter(each -> each.id != null || each.state != State.ASKED)
                    .forEach(this::adopt);
        });
    }

    private void settle() {
        Batch batch = new Batch();
        locks.update(() -> fill(batch));
        if (batch.calls.isEmpty()) {
            return;
        }
        List<Object> replies = node.reader().send(batch.calls, REPLY_GRACE + 1_000_000L * batch.calls.size());
        locks.update(() -> {
            for (int i = 0; i < replies.size(); i++) {
                batch.handlers.get(i).accept(replies.get(i));
            }
            checkCounts(batch.counts);
            if (!isUp && batch.failure != null) {
                throw batch.failure;
            }
        });
    }

    /** Adds declarations, cancels and repeated calls. */
    private void fill(Batch batch) {
        locks.endDropped();
        // Holds first, as a declaration takes any hold of its owner without a number. Exclusive ones first.
        unsettled.stream()
                .filter(each -> each.state == State.HELD)
                .sorted(Comparator.comparing(each -> each.lock.isShared))
                .forEach(each -> declare(each, batch));
        for (Acquire each : unsettled) {
            if (each.state == State.UNDO) {
                if (!each.isDeclared()) {
                    declare(each, batch);
                }
                batch.add(each.words("CANCEL", NONE), reply -> cancelled(each, reply));
            }
        }
        List<Call> calls = List.copyOf(repeats);
        repeats.clear();
        for (Call each : calls) {
            Words words = begin(each);
            if (words != null) {
                batch.add(words, reply -> {
                    if (answer(each, reply)) {
                        each.acquire.session.repeats.add(each);
                    }
                });
            }
        }
    }

    private void declare(Acquire acquire, Batch batch) {
        batch.add(acquire.words("RENEW", acquire.leaseEnds == NONE ? NONE : acquire.leaseEnds - Locks.now()), reply -> {
            if (!isAnswer(reply)) {
                LockException error = (LockException) reply;
                // Those of a slot that moves are declared elsewhere, or later.
                batch.failure = MOVING.contains(error.code()) ? batch.failure : error;
                return;
            }
            boolean isRefused = reply instanceof LockException;
            acquire.id = id;
            if (acquire.state == State.HELD && isRefused) {
                end(acquire, acquire.isReleaseInDoubt ? "released" : "restarted", acquire.lock.isSeveral());
            } else if (acquire.state == State.HELD) {
                unsettled.remove(acquire);
                batch.counts.put(acquire, Collections.min(Replies.longs(reply)));
            }
        });
    }

    /** R3, R22: if the server counts less, another hold of this owner has ended, and nobody knows which. */
    private void checkCounts(Map<Acquire, Long> counts) {
        if (!counts.isEmpty()) {
            Map<List<?>, Long> ours = new HashMap<>();
            acquires.values().stream()
                    .filter(each -> each.state == State.HELD)
                    .forEach(each -> ours.merge(each.holdKey(), 1L, Long::sum));
            counts.forEach((each, count) -> {
                if (count < ours.getOrDefault(each.holdKey(), 0L)) {
                    end(each, "restarted", true);
                }
            });
        }
    }

    /** The least number whose acquire, undo or declaration has no answer (R11). */
    private long done() {
        for (Acquire each : acquires.values()) {
            if (each.state != State.HELD || !each.isDeclared()) {
                return each.n;
            }
        }
        return lastNumber + 1;
    }

    /** One LOCK.EVENTS: heartbeat, acknowledgement and events. */
    private void poll() {
        Locks.Builder settings = locks.settings;
        long longest = Math.min(EVENTS_BLOCK, (settings.grace == 0 ? settings.ttl : settings.grace) / 3);
        long block = locks.locked(() -> {
            boolean isBusy = !unsettled.isEmpty() || !repeats.isEmpty();
            return !isAnswering() ? 0 : isBusy ? Math.min(RETRY_PAUSE, longest) : longest;
        });
        long sent = Locks.now();
        Words words = locks.locked(
                () -> Words.of("LOCK.EVENTS", id, ++beat, seen, done()).and(block / 1_000_000, EVENTS_COUNT));
        Object reply = node.reader().send(words, block + REPLY_GRACE);
        if (reply instanceof LockException error) {
            throw error;
        }
        locks.update(() -> {
            List<?> events = (List<?>) reply;
            events.forEach(each -> handle((List<?>) each));
            if (events.size() < EVENTS_COUNT) {
                confirmed = sent;
                lastConfirmed = sent;
                setJeopardy(false);
            }
            isUp = !isClosed;
            failing = NONE;
            isLong = false;
            failure = null;
            checkClocks();
        });
    }

    private void handle(List<?> event) {
        seen = (Long) event.get(0);
        Acquire acquire = acquires.get((Long) event.get(2));
        String kind = Replies.text(event.get(1));
        if (acquire == null || acquire.state == State.UNDO) {
            return;
        } else if (kind.equals("granted") && acquire.state == State.ASKED) {
            acquire.isProvisional = true;
            Object tokens = event.size() > 4 ? event.get(4) : null;
            // The last confirming reply would have reported an earlier grant.
            grant(acquire, event.get(3), tokens, Math.max(acquire.sent, confirmed));
        } else if (kind.equals("lost")) {
            String reason = Replies.text(event.get(3));
            if (reason.equals("moved") && acquire.state == State.HELD) {
                // The number has ended here.
                adopt(acquire);
                hasMoved = true;
            } else {
                // Perhaps only one of several locks was lost.
                end(acquire, reason, acquire.lock.isSeveral());
            }
        }
    }

    /** Leaves acquires to the sessions on the nodes that serve their slots now. */
    void relocate() {
        try {
            locks.connector.refresh();
        } catch (RuntimeException later) {
            return;
        }
        for (Acquire each : locks.locked(() -> List.copyOf(acquires.values()))) {
            try {
                Connector.Node to = locks.node(each.lock.key());
                locks.update(() -> {
                    Session session = locks.session(to);
                    if (session != this && each.session == this && each.state != State.OVER) {
                        session.adopt(each);
                    }
                });
            } catch (LockException later) {
                // The reader tries again.
            }
        }
    }

    private List<Acquire> renewed() {
        return acquires.values().stream()
                .filter(each -> each.state == State.HELD && each.lock.lease == NONE)
                .toList();
    }

    private void setJeopardy(boolean value) {
        if (value != isInJeopardy) {
            isInJeopardy = value;
            renewed().forEach(each -> notify(each, value ? "jeopardy" : "safe", ""));
        }
    }

    private void endRenewed(String reason) {
        renewed().forEach(each -> end(each, reason, true));
    }

    private void checkClocks() {
        long now = Locks.now();
        if (failing != NONE && now - confirmed >= locks.settings.grace) {
            setJeopardy(true);
        }
        if (now - lastConfirmed >= locks.settings.ttl) {
            endRenewed("silent");
        }
        List.copyOf(acquires.values()).stream()
                .filter(each -> each.state == State.HELD && each.isLost())
                .forEach(each -> end(each, "expired", true));
    }

    /** Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends. */
    void close() {
        List<Words> calls = new ArrayList<>();
        locks.update(() -> {
            LockException closed = LockException.of(LockException.Kind.CANCELLED, "the locks are closed");
            for (Acquire each : List.copyOf(acquires.values())) {
                List.copyOf(each.calls).forEach(call -> call.end(closed));
                if (each.state == State.ASKED || each.lock.lease == NONE) {
                    end(each, "closed", each.state == State.ASKED);
                }
                // The end of the session releases all others.
                if (each.state == State.UNDO && each.lock.lease != NONE && each.isDeclared()) {
                    calls.add(each.words("CANCEL", NONE));
                }
            }
            failure = closed;
            isClosed = true;
            isUp = false;
            if (id != null) {
                calls.add(Words.of("LOCK.SESSION", "CLOSE", id));
            }
        });
        if (!calls.isEmpty()) {
            node.calls().send(calls, CLOSE_TIMEOUT);
        }
        node.reader().close();
        if (reader != null && !isReader()) {
            LockSupport.unpark(reader);
            ended.join();
        }
    }

    static void warn(String text, Throwable error) {
        LOG.log(Level.WARNING, text, error);
    }
}
