// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Request.NONE;

import io.github.redislock.Acquire.State;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Function;

/** A call about an acquire. It is repeated until there is an answer, as the acquire has a number. An error may end a hold. */
final class Call extends Work<Object> {
    private final Locks locks;
    private final Acquire acquire;
    private final State state;
    private final Function<Acquire, Words> words;
    private final long giveUp;

    /** The acquire has left the state, so there is no result. */
    boolean isMoot;
    /** An attempt has no reply, so it may have succeeded. */
    boolean isInDoubt;
    /** When the first attempt was sent. */
    long sent = NONE;

    private long failing = NONE;
    private Pause pause;
    /** Ends when the call may be possible. Null if it was sent. */
    private Pause blocked;

    private CompletableFuture<Object> reply;
    private long replyUntil;
    private Session session;
    private byte[] id;
    private long n;

    Call(Locks locks, Acquire acquire, State state, long giveUp, Function<Acquire, Words> words) {
        this.locks = locks;
        this.acquire = acquire;
        this.state = state;
        this.giveUp = giveUp;
        this.words = words;
    }

    @Override
    Pause step() {
        while (true) {
            if (pause != null && Locks.now() < pause.until()) {
                return pause;
            }
            pause = null;
            if (reply == null) {
                send();
                if (blocked != null || isMoot) {
                    return blocked;
                }
            }
            if (!reply.isDone() && Locks.now() < replyUntil) {
                return new Pause(reply, replyUntil);
            }
            if (receive()) {
                return null;
            }
        }
    }

    /** Sends the call if its number is in the present session. */
    private void send() {
        blocked = null;
        Words call = locks.locked(() -> {
            session = acquire.session;
            isMoot = acquire.state != state || acquire.failure != null;
            if (isMoot) {
                return null;
            } else if (!session.isUp || acquire.isUndeclared || acquire.id != session.id) {
                blocked = session.pause(acquire.isTry, giveUp);
                return null;
            }
            id = acquire.id;
            n = acquire.n;
            sent = Math.min(sent, Locks.now());
            if (state == State.ASKED) {
                acquire.sent = sent;
            }
            return words.apply(acquire);
        });
        if (call == null) {
            return;
        }
        long now = Locks.now();
        long timeout = Math.min(Session.CALL_TIMEOUT, Math.max(Session.REPLY_GRACE, giveUp - now));
        replyUntil = now + timeout;
        try {
            reply = session.node.call(call, timeout);
        } catch (RuntimeException closed) {
            reply = CompletableFuture.failedFuture(closed);
        }
    }

    /** Returns whether the call has ended. */
    private boolean receive() {
        CompletableFuture<Object> arrived = reply;
        reply = null;
        LockException error;
        try {
            if (!arrived.isDone()) {
                arrived.cancel(true);
            }
            result = arrived.join();
            error = null;
        } catch (CompletionException | CancellationException failed) {
            error = locks.connector.error(failed);
        }
        LockException failure = error;
        return locks.locked(() -> {
            isMoot = acquire.state != state || acquire.failure != null;
            // R14: a reply counts only for the present number.
            boolean isPresent = acquire.n == n && acquire.id == id;
            if (isMoot || (failure == null && isPresent)) {
                return true;
            }
            if (failure != null) {
                isInDoubt |= failure.is("");
                acquire.isReleaseInDoubt |= acquire.isReleasing && failure.is("");
                failing = Math.min(failing, Locks.now());
                long end = giveUp == NONE ? failing + locks.patience : giveUp;
                if (isPresent && state == State.HELD && failure.isEnd()) {
                    String reason = failure.is("WRONGTYPE") ? "wrongtype" : "deleted";
                    acquire.session.over(acquire, acquire.isReleaseInDoubt ? Acquire.RELEASED : reason);
                    isMoot = true;
                    return true;
                }
                boolean isFinal = !failure.isTransient() || Locks.now() >= end || session.isReader();
                if (isPresent && (isFinal || (failure.is("MOVED") && state == State.ASKED))) {
                    throw failure;
                }
            }
            pause = Pause.of(Session.RETRY_PAUSE);
            return false;
        });
    }
}
