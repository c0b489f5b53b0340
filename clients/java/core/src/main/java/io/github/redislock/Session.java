// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Request.NONE;

import io.github.redislock.Acquire.State;
import java.lang.System.Logger.Level;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Stream;

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
    /** The first and the longest pause before a call is repeated. */
    static final long RETRY_PAUSE = TimeUnit.MILLISECONDS.toNanos(50);

    static final long MAX_RETRY_PAUSE = TimeUnit.SECONDS.toNanos(1);
    /** Limit for the last call of a session. */
    static final long CLOSE_TIMEOUT = TimeUnit.SECONDS.toNanos(1);

    private static final System.Logger LOG = System.getLogger(Session.class.getPackageName());

    final Connector.Node node;
    private final Locks locks;

    // The mutex of Locks protects all that follows.
    byte[] id;
    /** All holds are declared, and an EVENTS has confirmed them. */
    volatile boolean isUp;
    /** Why waits fail now. */
    private LockException failure;
    /** The last failure of the reader. */
    private LockException lastFailure;
    /** Completes and is replaced when one of the two above changes, or a hold was declared. */
    private CompletableFuture<Void> changed = new CompletableFuture<>();

    /** The acquires by number, each in one of these at most. */
    private final Map<Long, Acquire> asked = new LinkedHashMap<>();

    private final Map<Long, Acquire> held = new HashMap<>();
    /** Acquires that are over for their callers, and must be cancelled. */
    private final TreeMap<Long, Acquire> undo = new TreeMap<>();
    /** Holds that this session must declare (R3), and acquires that may have become holds. */
    private final List<Acquire> undeclared = new ArrayList<>();

    private long lastNumber;
    private long beat;
    private long seen;
    /** Whether the previous LOCK.EVENTS was answered. If not, the next one does not wait in the server. */
    private boolean isPolled;

    private long confirmed;
    /** When the last LOCK.EVENTS was sent whose reply had all events. Events that arrive now are later. */
    private volatile long eventsKnown;

    private volatile long safeUntil;
    private boolean isInJeopardy;
    volatile boolean isClosed;
    private Thread reader;
    /** The server has answered the reader that another node has a lock. */
    private boolean hasMoved;

    private final CompletableFuture<Void> ended = new CompletableFuture<>();

    Session(Connector.Node node, Locks locks) {
        this.node = node;
        this.locks = locks;
    }

    // The life of an acquire, under the mutex.

    void start() {
        if (reader == null && !isClosed && !locks.isClosed) {
            Thread thread = new Thread(this::read, "redis-lock-" + node.name());
            thread.setDaemon(true);
            thread.start();
            reader = thread;
        }
    }

    boolean isReader() {
        return Thread.currentThread() == reader;
    }

    /** Whether an acquire of this lock can be sent. */
    boolean isReady(Request request) {
        return isUp && undeclared.stream().noneMatch(each -> each.request.ids.equals(request.ids));
    }

    /** Whether an earlier call of this owner may be late, or another process may hold the lock under its name. */
    boolean isRetired(Owner owner, Request request) {
        return !Collections.disjoint(owner.retired, request.ids)
                || Stream.concat(undo.values().stream(), undeclared.stream())
                        .anyMatch(each -> each.matches(State.OVER, owner, request));
    }

    /** Whether another owner would wait for this one. */
    boolean holds(Owner owner, Request request) {
        return held.values().stream().anyMatch(each -> !each.isHandedOver && each.matches(State.HELD, owner, request));
    }

    /** The pause of a call that cannot be sent now. */
    Work.Pause pause(boolean isTry, long giveUp) {
        if (isClosed || locks.isClosed) {
            throw LockException.of(LockException.Kind.CANCELLED, "the locks are closed");
        } else if (failure != null && (isTry || giveUp == NONE || !failure.isTransient())) {
            throw failure;
        } else if (Locks.now() >= giveUp || isReader()) {
            String why = lastFailure == null ? "" : " (" + lastFailure.getMessage() + ")";
            throw LockException.of(
                    !isTry && isAnswering() ? LockException.Kind.TIMED_OUT : LockException.Kind.UNAVAILABLE,
                    "no connection to the server; try again" + why);
        }
        return new Work.Pause(changed, giveUp);
    }

    /** Whether the server has answered the last call of the reader. */
    boolean isAnswering() {
        return isUp && isPolled;
    }

    void enrol(Acquire acquire) {
        acquire.session = this;
        acquire.id = id;
        acquire.n = ++lastNumber;
        if (acquire.state == State.ASKED) {
            asked.put(acquire.n, acquire);
        }
    }

    /** Takes the grant from a reply, or from the fields of an event. Its lease may end this early, but not earlier. */
    void grant(Acquire acquire, Object counts, Object tokens, long leaseStart) {
        acquire.take(counts, tokens);
        acquire.granted = Locks.now();
        if (acquire.request.lease != NONE) {
            acquire.leaseEnds = leaseStart + acquire.request.lease;
        }
        asked.remove(acquire.n);
        held.put(acquire.n, acquire);
        acquire.state = State.HELD;
        signal(acquire);
    }

    /** The acquire neither waits nor holds any longer. */
    void over(Acquire acquire, String reason) {
        boolean wasHeld = acquire.state == State.HELD && acquire.reference != null && !acquire.isHandedOver;
        acquire.reason = reason;
        acquire.state = State.OVER;
        if (acquire.session == this) {
            asked.remove(acquire.n, acquire);
            held.remove(acquire.n, acquire);
        }
        if (wasHeld) {
            notify(acquire, "held", acquire.isLost() ? "lost" : "released");
        }
        locks.later(() -> acquire.ended.complete(null));
        signal(acquire);
    }

    /** Ends an acquire for its caller. The reader cancels what the server may still have of it. */
    void discard(Acquire acquire, String reason) {
        if (acquire.state != State.OVER) {
            over(acquire, reason);
            if (!acquire.isUndeclared) {
                undo.put(acquire.n, acquire);
            }
        }
    }

    /** Cancels a discarded acquire if that can be done at once. Returns false if there is no answer. Not under the mutex. */
    boolean cancelNow(Acquire acquire) {
        Words words = locks.locked(
                () -> isUp && acquire.session == this && undo.containsKey(acquire.n) ? acquire.cancelWords() : null);
        long n = acquire.n;
        boolean isAnswered = words != null && isAnswer(locks.connector.answer(node, words, REPLY_GRACE));
        if (isAnswered) {
            locks.update(() -> undone(n, acquire));
        }
        return words == null || isAnswered;
    }

    /** A named owner may wait for this. */
    private void undone(long n, Acquire acquire) {
        if (undo.remove(n, acquire)) {
            signal();
        }
    }

    private static boolean isAnswer(Object reply) {
        return !(reply instanceof LockException error && error.isTransient());
    }

    private void signal(Acquire acquire) {
        CompletableFuture<Void> old = acquire.changed;
        acquire.changed = new CompletableFuture<>();
        locks.later(() -> old.complete(null));
    }

    private void signal() {
        CompletableFuture<Void> old = changed;
        changed = new CompletableFuture<>();
        locks.later(() -> old.complete(null));
    }

    private void notify(Acquire acquire, String name, String outcome) {
        locks.later(() -> locks.notify(acquire.request.label, name, outcome, acquire.granted));
    }

    /** Time for which no other owner can have the lock, even if the network fails. */
    long validFor(Acquire acquire) {
        if (acquire.state != State.HELD || acquire.isReleasing || acquire.isUndeclared || !isUp) {
            return 0;
        }
        boolean needsSession =
                acquire.request.lease == NONE || (acquire.isProvisional && acquire.granted >= eventsKnown);
        // Without a lease, it has no end.
        return Math.max(0, Math.min(acquire.leaseEnds, needsSession ? safeUntil : NONE) - Locks.now());
    }

    // The reader.

    /** Heartbeat, events and losses: the only loop. */
    private void read() {
        long failing = NONE;
        long pause = RETRY_PAUSE;
        while (!isClosed) {
            try {
                turn();
                failing = NONE;
                pause = RETRY_PAUSE;
                continue;
            } catch (RuntimeException | Error thrown) {
                LockException error = locks.connector.error(thrown);
                failing = Math.min(failing, Locks.now());
                boolean isLong = Locks.now() >= failing + locks.patience;
                locks.update(() -> fail(error, isLong));
            }
            if (!isClosed && locks.connector.isCluster()) {
                relocate();
                leaveNode(failing);
            }
            Work.Pause rest = new Work.Pause(locks.locked(() -> changed), Locks.now() + pause);
            if (!isClosed) {
                rest.awaitUninterrupted();
            }
            pause = Math.min(2 * pause, MAX_RETRY_PAUSE);
        }
        node.closeReader();
        ended.complete(null);
    }

    /** Ends the session of a node that has failed for long and has no acquires: perhaps it has left the cluster. */
    private void leaveNode(long failing) {
        locks.update(() -> {
            boolean isEmpty = asked.isEmpty() && held.isEmpty() && undo.isEmpty() && undeclared.isEmpty();
            if (isEmpty && Locks.now() >= failing + locks.patience) {
                isClosed = true;
                locks.forget(this);
                signal();
            }
        });
    }

    private void fail(LockException error, boolean isLong) {
        isPolled = false;
        lastFailure = error;
        if (error.is("NOSESSION") || error.is("LATE")) {
            id = null;
            isUp = false;
            safeUntil = 0;
            signal();
        }
        if (error.is("NOSESSION") || error.is("READONLY")) {
            locks.later(node::reset);
        }
        if (error.is("LATE")) {
            // R16: another process uses the id.
            loseRenewed("late");
        } else if (!error.isTransient() || isLong) {
            failure = error;
            for (Acquire each : List.copyOf(asked.values())) {
                if (each.until == NONE || !error.isTransient()) {
                    each.failure = error;
                    signal(each);
                }
            }
            signal();
        }
        checkClocks();
    }

    private void turn() {
        if (id == null) {
            open();
        }
        try {
            declare();
            repeatCancels();
        } catch (LockException error) {
            // While the session is up, the heartbeat does not wait for them.
            if (!isUp || !error.isTransient()) {
                throw error;
            }
        }
        poll();
        locks.update(() -> {
            failure = null;
            if (!isUp && !isClosed) {
                isUp = true;
                signal();
            }
        });
        if (hasMoved) {
            hasMoved = false;
            relocate();
        }
    }

    private Object readOne(Words words, long timeout) {
        Object reply = node.read(List.of(words), timeout).get(0);
        if (reply instanceof LockException error) {
            throw error;
        }
        return reply;
    }

    private void open() {
        List<?> reply = (List<?>) readOne(
                Words.of("LOCK.SESSION", "OPEN", "NEW", ++beat, "TTL", Request.milliseconds(locks.ttl), "GRACE")
                        .and(locks.grace / 1_000_000, "NAME", Request.bytes("name", locks.name)),
                REPLY_GRACE);
        locks.update(() -> {
            id = (byte[]) reply.get(0);
            seen = 0;
            isPolled = false;
            safeUntil = 0;
            leave(each -> this);
        });
    }

    /** Moves acquires to the list of those that a session must declare, holds first. */
    private void leave(Function<Acquire, Session> successors) {
        List<Acquire> all = new ArrayList<>(undeclared);
        held.values().stream().filter(each -> !each.isUndeclared).forEach(all::add);
        all.addAll(asked.values());
        all.addAll(undo.values());
        for (Acquire each : all) {
            Session to = successors.apply(each);
            if (to == null) {
                continue;
            }
            undeclared.remove(each);
            if (each.isHandedOver) {
                // Its lease runs out.
                over(each, "handed over");
                continue;
            }
            if (each.state == State.ASKED) {
                over(each, "restarted");
            }
            held.remove(each.n, each);
            undo.remove(each.n, each);
            each.isUndeclared = true;
            each.session = to;
            each.n = 0;
            to.undeclared.add(each);
            to.confirmed = Math.max(to.confirmed, confirmed);
            to.start();
        }
        signal();
    }

    /** Declares holds. An acquire that is over may have become a hold: it is declared and cancelled. */
    private void declare() {
        List<Words> calls = new ArrayList<>();
        List<Acquire> holds = new ArrayList<>();
        List<Acquire> others = new ArrayList<>();
        locks.update(() -> {
            undeclared.forEach(each -> (each.state == State.HELD ? holds : others).add(each));
            undeclared.stream().filter(each -> each.n == 0).forEach(this::enrol);
            // Holds first, as a declaration takes any hold of its owner that has no number: an exclusive one before
            // shared ones.
            holds.sort(Comparator.comparing(each -> each.request.shared));
            holds.forEach(each -> calls.add(each.declareWords()));
            for (Acquire each : others) {
                calls.add(each.declareWords());
                calls.add(each.cancelWords());
            }
        });
        if (calls.isEmpty()) {
            return;
        }
        List<Object> replies = node.read(calls, REPLY_GRACE + 1_000_000L * calls.size());
        for (Object reply : replies) {
            if (!isAnswer(reply) && !isMoved(reply) && !((LockException) reply).is("LATE")) {
                throw (LockException) reply;
            }
        }
        locks.update(() -> {
            Map<List<ByteBuffer>, Long> counts = new HashMap<>();
            for (int i = 0; i < holds.size(); i++) {
                declared(holds.get(i), replies.get(i), counts);
            }
            for (int i = 0; i < others.size(); i++) {
                Acquire each = others.get(i);
                if (isMoved(replies.get(holds.size() + 2 * i + 1))) {
                    each.n = 0;
                } else {
                    undeclared.remove(each);
                    each.isUndeclared = false;
                }
            }
            Map<List<ByteBuffer>, Long> ours = new HashMap<>();
            holds.forEach(each -> ours.merge(each.holdKey(), 1L, Long::sum));
            held.values().stream()
                    .filter(each -> !holds.contains(each))
                    .forEach(each -> ours.merge(each.holdKey(), 1L, Long::sum));
            for (Acquire each : List.copyOf(held.values())) {
                List<ByteBuffer> key = each.holdKey();
                if (counts.containsKey(key) && counts.get(key) < ours.get(key)) {
                    // R3, R22: another hold of this owner has ended, and nobody knows which.
                    discard(each, "restarted");
                }
            }
            signal();
        });
        hasMoved |= replies.stream().anyMatch(Session::isMoved);
    }

    private void declared(Acquire acquire, Object reply, Map<List<ByteBuffer>, Long> counts) {
        if (isMoved(reply)) {
            acquire.n = 0;
            return;
        }
        undeclared.remove(acquire);
        acquire.isUndeclared = false;
        boolean isRefused = reply instanceof LockException;
        if (acquire.state == State.HELD && isRefused) {
            over(acquire, acquire.isReleaseInDoubt ? Acquire.RELEASED : "restarted");
        } else if (acquire.state == State.HELD) {
            held.put(acquire.n, acquire);
            counts.merge(acquire.holdKey(), Collections.min(Replies.longs(reply)), Math::min);
        } else if (!isRefused) {
            undo.put(acquire.n, acquire);
        }
    }

    private static boolean isMoved(Object reply) {
        return reply instanceof LockException error && error.is("MOVED");
    }

    private void repeatCancels() {
        List<Words> calls = new ArrayList<>();
        List<Acquire> all = locks.locked(() -> {
            locks.discardDropped();
            undo.values().forEach(each -> calls.add(each.cancelWords()));
            return List.copyOf(undo.values());
        });
        if (calls.isEmpty()) {
            return;
        }
        List<Object> replies = node.read(calls, REPLY_GRACE);
        locks.update(() -> {
            for (int i = 0; i < replies.size(); i++) {
                if (isAnswer(replies.get(i))) {
                    undone(all.get(i).n, all.get(i));
                }
            }
        });
        hasMoved |= replies.stream().anyMatch(Session::isMoved);
    }

    /** One LOCK.EVENTS: heartbeat, acknowledgement and events. */
    private void poll() {
        long block =
                isPolled && !hasMoved ? Math.min(EVENTS_BLOCK, (locks.grace == 0 ? locks.ttl : locks.grace) / 3) : 0;
        Words words = locks.locked(() -> {
            long done = Math.min(
                    asked.isEmpty() ? lastNumber + 1 : asked.keySet().iterator().next(),
                    undo.isEmpty() ? lastNumber + 1 : undo.firstKey());
            for (Acquire each : undeclared) {
                // Its declaration has no answer yet.
                done = each.n == 0 ? done : Math.min(done, each.n);
            }
            return Words.of("LOCK.EVENTS", id == null ? "" : id, ++beat, seen, done, block / 1_000_000, EVENTS_COUNT);
        });
        long sent = Locks.now();
        List<?> events = (List<?>) readOne(words, block + REPLY_GRACE);
        locks.update(() -> {
            events.forEach(each -> handle((List<?>) each));
            isPolled = true;
            if (events.size() < EVENTS_COUNT) {
                confirmed = sent;
                eventsKnown = sent;
                safeUntil = sent + locks.grace;
                setJeopardy(false);
            }
            expireLeases();
        });
    }

    private void handle(List<?> event) {
        seen = (Long) event.get(0);
        Long n = (Long) event.get(2);
        Acquire acquire = asked.getOrDefault(n, held.get(n));
        String kind = Replies.text(event.get(1));
        if (acquire == null) {
            return;
        } else if (kind.equals("granted")) {
            if (acquire.state == State.ASKED) {
                acquire.isProvisional = true;
                Object tokens = event.size() > 4 ? event.get(4) : null;
                grant(acquire, event.get(3), tokens, Math.max(acquire.sent, eventsKnown));
            }
        } else if (kind.equals("lost")) {
            String reason = Replies.text(event.get(3));
            if (reason.equals("moved") && acquire.state == State.HELD) {
                held.remove(n);
                acquire.n = 0;
                acquire.isUndeclared = true;
                undeclared.add(acquire);
                hasMoved = true;
                return;
            }
            over(acquire, reason);
            if (acquire.request.isSeveral()) {
                // Perhaps only one of the locks was lost.
                undo.put(n, acquire);
            }
        }
    }

    /** Leaves acquires to the sessions on the nodes that serve their slots now. */
    private void relocate() {
        try {
            locks.connector.refresh();
        } catch (RuntimeException later) {
            return;
        }
        locks.update(() -> leave(each -> {
            try {
                Session to = locks.sessionOf(each.request.key());
                return to == this ? null : to;
            } catch (RuntimeException unknown) {
                return null;
            }
        }));
    }

    private List<Acquire> renewed() {
        return Stream.concat(held.values().stream(), undeclared.stream())
                .filter(each -> each.state == State.HELD && each.request.lease == NONE)
                .toList();
    }

    private void setJeopardy(boolean value) {
        if (value != isInJeopardy) {
            isInJeopardy = value;
            renewed().forEach(each -> notify(each, value ? "jeopardy" : "safe", ""));
        }
    }

    private void loseRenewed(String reason) {
        renewed().forEach(each -> discard(each, reason));
    }

    private void expireLeases() {
        List.copyOf(held.values()).stream().filter(Acquire::isLost).forEach(each -> discard(each, "expired"));
    }

    private void checkClocks() {
        long now = Locks.now();
        if (now >= safeUntil) {
            setJeopardy(true);
        }
        if (now >= confirmed + locks.ttl) {
            loseRenewed("silent");
        }
        expireLeases();
    }

    /** Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends. */
    void close() {
        List<Acquire> all = locks.locked(() -> List.copyOf(undo.values()));
        for (Acquire each : all) {
            if (!cancelNow(each)) {
                break;
            }
        }
        byte[] old = locks.locked(() -> {
            isClosed = true;
            isUp = false;
            for (Acquire each : List.copyOf(asked.values())) {
                each.failure = LockException.of(LockException.Kind.CANCELLED, "the locks are closed");
                signal(each);
            }
            renewed().forEach(each -> over(each, "closed"));
            signal();
            return id;
        });
        if (old != null) {
            locks.connector.answer(node, Words.of("LOCK.SESSION", "CLOSE", old), CLOSE_TIMEOUT);
        }
        node.closeReader();
        if (reader != null && !isReader()) {
            new Work.Pause(ended, NONE).awaitUninterrupted();
        }
    }

    static void warn(String text, Throwable error) {
        LOG.log(Level.WARNING, text, error);
    }
}
