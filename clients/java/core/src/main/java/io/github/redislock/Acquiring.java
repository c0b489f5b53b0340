// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Request.NONE;

import io.github.redislock.Acquire.State;
import io.github.redislock.LockException.Kind;
import java.util.function.Function;

/** Asks until the lock is granted or the wait is over. The result is null if the lock was not granted in time. */
final class Acquiring extends Work<Hold> {
    private enum Phase {
        BEGIN,
        ASK,
        WAIT,
        SECURE
    }

    private final Locks locks;
    private final Request request;
    private final Function<Acquire, Words> words;
    private final boolean isAttach;
    private final boolean isTry;
    /** Whether a lock that was not granted is a failure. */
    private final boolean mustSucceed;

    private final long began = Locks.now();
    private final long until;
    private final long giveUp;
    private Owner owner;
    private Phase phase = Phase.BEGIN;
    private Acquire acquire;
    private Call call;
    private final boolean isTooLate;
    private boolean isStopped;
    private boolean isFinished;
    private boolean isReported;

    Acquiring(RedisLock lock, long wait, Owner owner, Words from, boolean mustSucceed) {
        locks = lock.locks;
        request = lock.request;
        isTooLate = locks.isClosed;
        this.owner = owner;
        this.mustSucceed = mustSucceed;
        isAttach = from != null;
        isTry = wait == 0 && !isAttach;
        until = wait == NONE ? NONE : began + wait;
        giveUp = isTry || isAttach ? began + locks.patience : wait == NONE ? NONE : until + Session.REPLY_GRACE;
        words = isAttach
                ? each -> {
                    Words all = each.renewWords(request.lease);
                    all.addAll(from);
                    return all;
                }
                : Acquire::acquireWords;
    }

    @Override
    Pause step() {
        try {
            Pause pause = next();
            if (pause == null && result == null && mustSucceed) {
                throw LockException.of(isTry ? Kind.BUSY : Kind.TIMED_OUT, "another owner holds the lock");
            } else if (pause == null) {
                finish(result != null ? "granted" : isTry ? Kind.BUSY.words() : Kind.TIMED_OUT.words());
            }
            return pause;
        } catch (LockException error) {
            LockException known = error.forCaller(request.name);
            finish(known.kind().words());
            end();
            if (known.kind() == Kind.TIMED_OUT && !mustSucceed) {
                return null;
            }
            throw known;
        }
    }

    private Pause next() {
        while (true) {
            Pause pause = switch (phase) {
                case BEGIN -> begin();
                case ASK -> ask();
                case WAIT -> await();
                case SECURE -> secure();
            };
            if (pause != null || isFinished) {
                return pause;
            }
        }
    }

    private Pause begin() {
        if (isTooLate) {
            throw LockException.misuse("the locks are closed; make new ones");
        }
        Session session = locks.sessionOf(request.key());
        return locks.locked(() -> {
            if (isStopped) {
                throw LockException.of(Kind.CANCELLED, "the acquire was cancelled");
            }
            session.start();
            if (session.isClosed && !locks.isClosed) {
                // Its node has failed. The next step finds another session.
                return Pause.of(Session.RETRY_PAUSE);
            } else if (session.isReader() && !isTry) {
                throw LockException.misuse(
                        "a listener must not wait for a lock; try to acquire it, or use another thread");
            } else if (acquire != null && !isTry && Locks.now() >= until && session.isAnswering()) {
                isFinished = true;
                return null;
            } else if (!session.isReady(request) || (acquire != null && Locks.now() >= giveUp)) {
                return session.pause(isTry, giveUp);
            }
            while (!isAttach && session.isRetired(owner, request)) {
                if (request.owner != null || session.holds(owner, request)) {
                    return session.pause(isTry, giveUp);
                }
                owner = owner.retire(request, locks);
            }
            acquire = new Acquire(request, owner, isTry, until);
            session.enrol(acquire);
            phase = Phase.ASK;
            call = new Call(locks, acquire, State.ASKED, giveUp, words);
            return null;
        });
    }

    private Pause ask() {
        Object reply = null;
        boolean isEnd = false;
        try {
            Pause pause = call.step();
            if (pause != null) {
                return pause;
            }
            reply = call.result;
        } catch (LockException error) {
            long end = until == NONE || isTry ? began + locks.patience : until;
            if (error.is("MOVED") && Locks.now() < end) {
                move();
                return Pause.of(Session.RETRY_PAUSE);
            } else if (isAttach || error.kind() != Kind.LOST) {
                throw error;
            }
            // R12: the hold of a repeated acquire has ended.
            isEnd = true;
        }
        Object answer = reply;
        boolean isOver = isEnd;
        locks.update(() -> {
            Session session = acquire.session;
            if (call.isMoot || acquire.state != State.ASKED) {
                return;
            } else if (isOver) {
                session.over(acquire, "restarted");
            } else if (answer == null) {
                session.over(acquire, "timeout");
            } else if (!answer.equals(0L)) {
                acquire.isProvisional = call.isInDoubt;
                session.grant(acquire, answer, null, acquire.sent);
            }
        });
        phase = Phase.WAIT;
        return null;
    }

    /** The wait continues on the node that serves the slot now. */
    private void move() {
        locks.update(() -> {
            if (call.isInDoubt) {
                acquire.session.discard(acquire, "moved");
            } else if (acquire.state != State.OVER) {
                acquire.session.over(acquire, "moved");
            }
        });
        phase = Phase.BEGIN;
        try {
            locks.refresh();
        } catch (LockException later) {
            // The next attempt is refused in the same way.
        }
    }

    private Pause await() {
        return locks.locked(() -> {
            if (acquire.failure != null) {
                throw acquire.failure;
            } else if (acquire.state == State.ASKED) {
                if (Locks.now() >= giveUp) {
                    throw LockException.of(
                            acquire.session.isAnswering() ? Kind.TIMED_OUT : Kind.UNAVAILABLE,
                            "the server has not answered in time");
                }
                return new Pause(acquire.changed, giveUp);
            } else if (acquire.state == State.HELD) {
                if (acquire.holds > 1 && !request.reentrant && !isAttach) {
                    throw LockException.of(
                            Kind.DEADLOCK, "this owner has the lock already; release it first, or use reentrant()");
                }
                phase = Phase.SECURE;
                long end = Locks.now() + locks.patience;
                call = acquire.leaseEnds <= Locks.now()
                        ? new Call(locks, acquire, State.HELD, end, each -> each.renewWords(request.lease))
                        : null;
                return null;
            } else if (isAttach) {
                throw acquire.lost();
            }
            switch (acquire.reason) {
                case "timeout" -> isFinished = true;
                case "deadlock" -> throw LockException.of(Kind.DEADLOCK, "the wait could never end");
                case "noreplicas" ->
                    throw LockException.of(Kind.UNAVAILABLE, "too few replicas acknowledged the grant");
                case "refused" -> throw LockException.misuse("the server refused the grant");
                default -> phase = Phase.BEGIN;
            }
            return null;
        });
    }

    /** A lease that may be over is set again before the body begins. */
    private Pause secure() {
        Pause pause = call == null ? null : call.step();
        if (pause != null) {
            return pause;
        }
        locks.update(() -> {
            if (call != null && !call.isMoot) {
                // A lease that is shorter than a round trip is over already. The caller gets a hold that is lost.
                acquire.leaseEnds = call.sent + request.lease;
            }
            if (acquire.state == State.OVER) {
                phase = Phase.BEGIN;
            } else {
                isFinished = true;
                result = new Hold(locks, acquire);
            }
        });
        return null;
    }

    private void finish(String outcome) {
        boolean isFirst = locks.locked(() -> {
            boolean first = !isReported;
            isFinished = true;
            isReported = true;
            return first;
        });
        if (isFirst) {
            locks.notify(request.label, "waited", outcome, began);
        }
    }

    /** Leaves no wait and no hold behind. */
    private void end() {
        Acquire last = locks.locked(() -> {
            if (acquire != null) {
                acquire.session.discard(acquire, Acquire.CANCELLED);
            }
            return acquire;
        });
        if (last != null) {
            last.session.cancelNow(last);
        }
    }

    @Override
    void stop() {
        boolean isLate = locks.locked(() -> {
            isStopped = true;
            return isFinished;
        });
        if (!isLate) {
            finish(Kind.CANCELLED.words());
            end();
        }
    }

    @Override
    void discard() {
        result.releaseAsync();
    }
}
