// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Words.NONE;

import io.github.redislock.Acquire.State;
import io.github.redislock.LockException.Kind;
import java.util.concurrent.CompletableFuture;

/** Asks until the lock is granted or the wait is over. */
final class Acquiring {
    private final Locks locks;
    final RedisLock lock;
    /** The hold of another session that this acquire takes over, or null. */
    final Words from;

    final boolean isTry;
    /** Whether a lock that was not granted is a failure. */
    private final boolean mustSucceed;

    private final boolean isTooLate;
    private final long began = Locks.now();
    final long until;
    private final long giveUp;
    private final Owner owner;
    private Acquire acquire;
    private Call call;
    /** The listener has the outcome, so nothing is asked after that. */
    private boolean isReported;

    Acquiring(RedisLock lock, long wait, Owner owner, Words from, boolean mustSucceed) {
        locks = lock.locks;
        this.lock = lock;
        this.owner = owner;
        this.from = from;
        this.mustSucceed = mustSucceed;
        isTooLate = locks.isClosed;
        isTry = wait == 0;
        until = wait == NONE ? NONE : began + wait;
        giveUp = isTry || from != null
                ? began + locks.settings.patience
                : wait == NONE ? NONE : until + Session.REPLY_GRACE;
    }

    /** The hold, or null if the lock was not granted in time. */
    Hold run(boolean isInterruptible) throws InterruptedException {
        if (isInterruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        return guarded(() -> {
            while (true) {
                begin();
                call.await(isInterruptible);
                Hold hold = end();
                if (hold != null) {
                    return hold;
                }
            }
        });
    }

    Hold runUninterrupted() {
        try {
            return run(false);
        } catch (InterruptedException impossible) {
            throw new AssertionError(impossible);
        }
    }

    /** Waits without a thread. To cancel the future ends the wait. */
    CompletableFuture<Hold> start() {
        CompletableFuture<Hold> future = new CompletableFuture<>();
        locks.async(() -> step(future));
        future.whenComplete((hold, error) -> {
            if (error != null) {
                locks.async(() -> drop(Kind.CANCELLED.words()));
            }
        });
        return future;
    }

    private void step(CompletableFuture<Hold> future) {
        try {
            Hold hold = guarded(() -> {
                if (call != null) {
                    call.await(false);
                    Hold granted = end();
                    if (granted != null) {
                        return granted;
                    }
                }
                begin();
                call.whenDone(() -> step(future));
                return null;
            });
            if (hold != null) {
                locks.result(() -> {
                    if (!future.complete(hold)) {
                        hold.releaseAsync();
                    }
                });
            }
        } catch (InterruptedException | RuntimeException | Error error) {
            locks.result(() -> future.completeExceptionally(error));
        }
    }

    private interface Work {
        Hold run() throws InterruptedException;
    }

    /** Leaves no wait and no hold behind after a failure. */
    private Hold guarded(Work work) throws InterruptedException {
        try {
            return work.run();
        } catch (LockException error) {
            LockException known = error.forCaller(lock.name);
            drop(known.kind().words());
            if (!mustSucceed && (known.kind() == Kind.BUSY || known.kind() == Kind.TIMED_OUT)) {
                return null;
            }
            throw known;
        } catch (InterruptedException | RuntimeException | Error failure) {
            drop(Kind.CANCELLED.words());
            throw failure;
        }
    }

    private void drop(String outcome) {
        if (report(outcome)) {
            Acquire last = locks.locked(() -> acquire);
            if (last != null) {
                last.session.cancel(last);
            }
        }
    }

    /** Returns false after the first time. */
    private boolean report(String outcome) {
        boolean isFirst = locks.locked(() -> {
            boolean first = !isReported;
            isReported = true;
            return first;
        });
        if (isFirst) {
            locks.notify(lock.label, "waited", outcome, began);
        }
        return isFirst;
    }

    /** Asks with a new number. */
    private void begin() {
        if (isTooLate) {
            throw LockException.misuse("the locks are closed; make new ones");
        }
        Connector.Node node = locks.node(lock.key());
        locks.update(() -> {
            if (isReported) {
                throw LockException.of(Kind.CANCELLED, "the acquire was cancelled");
            }
            Session session = locks.session(node);
            if (session.isReader() && !isTry) {
                throw LockException.misuse(
                        "a listener must not wait for a lock; try to acquire it, or use another thread");
            }
            acquire = new Acquire(this, from == null ? session.freeOwner(owner, lock) : owner);
            session.enrol(acquire);
            call = new Call(acquire, from == null ? "ACQUIRE" : "RENEW", lock.lease, giveUp);
        });
        call.send();
    }

    /** The hold, or null if the wait continues with a new number. */
    private Hold end() {
        if (acquire.state == State.HELD && acquire.holds > 1 && !lock.isReentrant && from == null) {
            throw LockException.of(
                    Kind.DEADLOCK, "this owner has the lock already; release it first, or use reentrant()");
        } else if (acquire.state == State.HELD && acquire.leaseEnds <= Locks.now()) {
            // It may be over, as the grant is old. If it is shorter than a round trip, the caller gets a hold that is
            // lost.
            acquire.renew(lock.lease);
        }
        Hold hold = locks.locked(() -> acquire.state == State.HELD ? new Hold(locks, acquire) : null);
        if (hold != null) {
            report("granted");
            return hold;
        } else if (from != null) {
            throw acquire.lost();
        }
        switch (acquire.reason) {
            case "timeout" ->
                throw LockException.of(isTry ? Kind.BUSY : Kind.TIMED_OUT, "another owner holds the lock");
            case "deadlock" -> throw LockException.of(Kind.DEADLOCK, "the wait could never end");
            case "noreplicas" -> throw LockException.of(Kind.UNAVAILABLE, "too few replicas acknowledged the grant");
            case "refused" -> throw LockException.misuse("the server refused the grant");
            default -> {
                if (Locks.now() >= giveUp) {
                    throw LockException.of(
                            Kind.UNAVAILABLE, "the lock was not granted in time (" + acquire.reason + ")");
                }
                return null;
            }
        }
    }
}
