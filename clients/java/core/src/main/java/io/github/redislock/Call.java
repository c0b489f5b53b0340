// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Words.NONE;

import io.github.redislock.Acquire.State;
import io.github.redislock.LockException.Kind;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;

/**
 * A call about an acquire. It is repeated until there is an answer, as the acquire has a number. Its own thread repeats it for a
 * second, as the reader may wait in the server that long. Then the reader repeats it.
 */
final class Call {
    private final Locks locks;
    final Acquire acquire;
    final State state;
    final String verb;
    final long lease;
    /** When the caller gives up. */
    final long giveUp;
    /** Completes with an answer, or when the acquire leaves its state. */
    final CompletableFuture<Void> done = new CompletableFuture<>();

    /** The session, its id and the number of the last attempt. */
    Session session;

    byte[] id;
    long n;

    /** When the first attempt was sent, and when the first one failed. */
    long sent = NONE;

    long failing = NONE;
    /** An attempt has no reply, so it may have succeeded. */
    boolean isInDoubt;
    /** The last failure. */
    LockException error;

    /** Under the mutex of the locks. */
    Call(Acquire acquire, String verb, long lease, long giveUp) {
        locks = acquire.lock.locks;
        this.acquire = acquire;
        this.verb = verb;
        this.lease = lease;
        this.giveUp = giveUp;
        state = acquire.state;
        acquire.calls.add(this);
    }

    boolean isOver() {
        return !acquire.calls.contains(this);
    }

    void end(LockException failure) {
        acquire.calls.remove(this);
        if (failure == null) {
            locks.later(() -> done.complete(null));
        } else {
            locks.later(() -> done.completeExceptionally(failure));
        }
    }

    /** Calls on this thread. Leaves it to the reader if the session is not up, and after a second of failures. */
    void send() {
        long end = Locks.now() + Session.EVENTS_BLOCK;
        while (true) {
            Words words = locks.locked(() -> acquire.session.begin(this));
            if (words == null) {
                return;
            }
            long timeout = Math.min(Session.CALL_TIMEOUT, Math.max(Session.REPLY_GRACE, giveUp - Locks.now()));
            Object reply = session.node.calls().send(words, timeout);
            // A listener in the thread of the reader must not delay the heartbeat.
            boolean isLate = Locks.now() >= end
                    || session.isReader()
                    || Thread.currentThread().isInterrupted();
            if (!locks.locked(() -> session.answer(this, reply) && (!isLate || acquire.session.repeats.add(this)))
                    || isLate) {
                return;
            }
            if (LockException.is(reply, "MOVED")) {
                session.relocate();
            }
            LockSupport.parkNanos(Session.RETRY_PAUSE);
        }
    }

    /** Waits for the answer. Otherwise an interrupt is kept for later. */
    void await(boolean isInterruptible) throws InterruptedException {
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    // The reader cannot wait for itself.
                    long time = acquire.session.isReader() ? 0 : giveUp - Locks.now();
                    done.get(Math.max(0, time), TimeUnit.NANOSECONDS);
                    return;
                } catch (InterruptedException later) {
                    if (isInterruptible) {
                        throw later;
                    }
                    isInterrupted = true;
                }
            }
        } catch (TimeoutException late) {
            locks.update(() -> end(null));
            throw late();
        } catch (ExecutionException failed) {
            throw (LockException) failed.getCause();
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    void awaitUninterrupted() {
        try {
            await(false);
        } catch (InterruptedException impossible) {
            throw new AssertionError(impossible);
        }
    }

    /** Continues in the executor after the answer, or when it is time to give up. */
    void whenDone(Runnable next) {
        CompletableFuture<Void> limited = done.copy();
        if (giveUp != NONE) {
            limited.orTimeout(Math.max(0, giveUp - Locks.now()), TimeUnit.NANOSECONDS);
        }
        limited.whenComplete((none, failure) -> locks.async(next));
    }

    private LockException late() {
        Session session = acquire.session;
        if (error != null) {
            return error;
        }
        boolean isTimeout = state == State.ASKED && !acquire.by.isTry && session.isAnswering();
        String why = session.failure == null ? "" : " (" + session.failure.getMessage() + ")";
        return LockException.of(
                isTimeout ? Kind.TIMED_OUT : Kind.UNAVAILABLE, "the server has not answered in time; try again" + why);
    }
}
