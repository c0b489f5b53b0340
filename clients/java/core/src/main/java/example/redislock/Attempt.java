// SPDX-License-Identifier: MIT
package example.redislock;

import example.redislock.LockException.Disconnected;
import example.redislock.LockException.Kind;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;

/** One acquire, until the lock is granted or nothing of it is left. All in the session's loop. */
final class Attempt {
    /** A message may be lost. Who waits asks again so often, and keeps its place. */
    private static final long ASK_AGAIN = Duration.ofSeconds(3).toNanos();

    /** With a short lease it is more often, but not than this. */
    private static final long OFTEN = Duration.ofMillis(100).toNanos();

    /** The longest wait that a server takes. */
    private static final long LONGEST = Duration.ofSeconds(1_000_000_000).toNanos();

    private static final String PROCESS = host() + "/" + ProcessHandle.current().pid();

    /** The hold; null if somebody else has the lock. */
    final CompletableFuture<Hold> result = new CompletableFuture<>();

    private final Session session;
    private final How how;
    private final boolean waits;
    private final boolean own;
    private final long began = Session.now();
    /** When the call was sent that waits in the server; 0 if it is not. */
    private long asked;
    /** What an own call waits on, and what it gets is bound to. */
    private Session.Link link;
    /** What it is to wait on from when the call is sent there; null if it is not to move. */
    private Session.Link next;

    private Hold hold;
    private String request;
    private List<String> words;
    /** A call failed: a later reply may be that to it. */
    private boolean broken;
    /** It was sent, and may have a place in the queue, or the lock. */
    private boolean placed;
    /** It had an answer: a refusal says nothing of an earlier call. */
    private boolean heard;
    /** Since when nothing was answered; 0 if something was. */
    private long failing;

    /** Before the next call, when one has failed. */
    private long pause = Session.TRY_AGAIN;

    /** When it was asked last. */
    private long since;

    private boolean asking;
    private boolean rung;
    private boolean ended;
    private ScheduledFuture<?> timer;

    Attempt(Session session, How how) {
        this.session = session;
        this.how = how;
        waits = how.waiting() != 0;
        own = waits && how.own();
    }

    void start() {
        if (ended) {
            return;
        }
        if (session.isClosed()) {
            end(null, Session.over());
            return;
        }
        String owner = how.owner() != null ? how.owner() : PROCESS + "/" + UUID.randomUUID();
        hold = new Hold(session, how, owner);
        request = UUID.randomUUID().toString();
        words = new ArrayList<>(
                List.of("LOCK.ACQUIRE", how.key(), owner, "PX", How.ms(how.lease()), "ONCE", "ID", request));
        if (how.shared()) {
            words.add("SHARED");
        }
        if (how.limit() > 0) {
            words.addAll(List.of("LIMIT", Integer.toString(how.limit())));
        }
        if (how.fence()) {
            words.add("FENCE");
        }
        if (waits && !own) {
            words.addAll(List.of("NOTIFY", session.inbox));
        }
        how.bind(words, 0);
        broken = false;
        placed = false;
        heard = false;
        failing = 0;
        session.waits.put(request, this);
        ask();
    }

    /** A message came, or a connection broke. */
    void ring() {
        if (asking) {
            rung = true;
        } else if (!ended && timer != null && timer.cancel(false)) {
            ask();
        }
    }

    /** Nothing waits and nothing is held when the result says that it is cancelled. If it is there already, it is given back. */
    void cancel() {
        if (!ended) {
            fail(new LockException(Kind.CANCELLED, how.key() + ": the wait was cancelled"));
            return;
        }
        result.thenAccept(hold -> {
            if (hold != null) {
                hold.giveBackNow();
            }
        });
    }

    private long left() {
        return how.waiting() < 0 ? Long.MAX_VALUE : how.waiting() - (Session.now() - began);
    }

    private long patience() {
        return Math.min(session.patience, Math.max(Session.SOON, left()));
    }

    /** A release goes by the owner's name: what is given back behind somebody's back would take what is granted now. */
    private CompletableFuture<Void> givenBack() {
        return session.givenBack(how.key(), hold.owner(), patience());
    }

    private boolean isGivenBack() {
        // No other has a name that was made for one acquire.
        return how.owner() == null || session.isGivenBack(how.key(), hold.owner());
    }

    private void ask() {
        asking = true;
        if (isGivenBack()) {
            send();
            return;
        }
        givenBack().whenComplete((done, error) -> {
            if (ended) {
                return;
            }
            if (error == null) {
                ask();
            } else {
                fail(LockException.of(error));
            }
        });
    }

    private void send() {
        rung = false;
        asked = 0;
        since = Session.now();
        if (own) {
            block();
            return;
        }
        // Who waits without limit has the patience, after which it is tried once more on another connection.
        long rest = how.waiting() < 0 && failing != 0 ? session.patience - (since - failing) : left();
        long within = Math.max(Session.SOON, rest);
        CompletableFuture<Object> heard = waits ? session.listen(within) : CompletableFuture.completedFuture(null);
        heard.thenCompose(ready -> {
                    if (ended) {
                        return CompletableFuture.<Void>completedFuture(null);
                    }
                    long sent = Session.now();
                    return session.call(words, within, this::sending).thenAccept(reply -> answered(reply, sent));
                })
                .whenComplete((done, error) -> {
                    if (error != null) {
                        failed(LockException.of(error));
                    }
                });
    }

    /** Fails if it is not to be sent any more, or not yet. From then on there is something to take back. */
    private void sending() {
        if (ended) {
            // Nobody would take it back.
            throw new LockException(Kind.CANCELLED, "it is not wanted any more");
        }
        if (!isGivenBack()) {
            throw new LockException.NotYet(how.key() + ": the last hold of this owner is being given back");
        }
        placed = true;
    }

    private void block() {
        // First that on which it is looked whether anybody is there: an answer on a younger one would say nothing, and
        // the wait would lose its place.
        session.ready(patience()).whenComplete((ready, error) -> {
            if (ended) {
                return;
            }
            try {
                if (error != null) {
                    throw LockException.of(error);
                }
                link = link != null && !link.isGone() ? link : session.ownLink();
                waitOn(link);
            } catch (LockException notNow) {
                failed(notNow);
            }
        });
    }

    private void waitOn(Session.Link on) {
        on.block(() -> blocking(on), () -> Math.min(LONGEST, left()) + Session.SOON, () -> move(on))
                .whenComplete((reply, error) -> {
                    if (on == next) {
                        stay();
                        // It cannot move: what it waits on may lead nowhere. Or it may not yet, and keeps its place.
                        if (!(LockException.of(error) instanceof LockException.NotYet)) {
                            link.giveUp();
                        }
                    } else if (on != link) {
                        // The server knows that it waits elsewhere, or nothing is to be waited for. But a grant may be
                        // bound to this until the same call has come on the other.
                        if (reply == null) {
                            on.giveUp();
                        }
                    } else {
                        stay();
                        if (error == null) {
                            answered(reply, asked);
                        } else {
                            failed(LockException.of(error));
                        }
                    }
                });
    }

    private void stay() {
        Session.Link other = next;
        next = null;
        if (other != null) {
            other.giveUp();
        }
    }

    /** An answer on the connection for commands says nothing of an older one. The same call on another keeps the place. */
    private void move(Session.Link from) {
        if (from != link || next != null) {
            return;
        }
        try {
            next = session.newLink();
            waitOn(next);
        } catch (LockException notNow) {
            link.giveUp();
        }
    }

    /** What is sent, now. */
    private List<String> blocking(Session.Link on) {
        sending();
        if (on == next) {
            link.giveUpSoon();
            link = on;
            next = null;
            broken = true;
        } else {
            asked = Session.now();
        }
        List<String> blocking = new ArrayList<>(words);
        blocking.add("BLOCK");
        // 0 is without limit, and what is too long for a server comes to the same.
        blocking.add(left() > LONGEST ? "0" : How.ms(Math.max(1, left())));
        return blocking;
    }

    private void answered(Object reply, long sent) {
        asking = false;
        heard = true;
        if (ended) {
            return;
        }
        if (reply == null) {
            rest();
            end(null, null);
        } else if (reply.equals(0L)) {
            failing = 0;
            pause = Session.TRY_AGAIN;
            long left = Math.min(often(), left());
            if (left <= 0) {
                giveBack(() -> end(null, null));
            } else if (rung) {
                again(0, this::ask);
            } else {
                again(left, this::askUntold);
            }
        } else if (!broken && isGivenBack() && !(own && isToConfirm(sent))) {
            rest();
            granted(sent, sent, reply);
        } else {
            // The reply may be that of a call whose hold ended with its connection, or was given back.
            givenBack().whenComplete((done, late) -> {
                if (late == null) {
                    confirm(sent, reply);
                } else {
                    failed(LockException.of(late));
                }
            });
        }
    }

    /**
     * Nobody knows how old the grant is for which it was waited in the server, nor whether a release has come behind it; and
     * what is bound to a connection of its own is to be bound to the session's.
     */
    private boolean isToConfirm(long sent) {
        return how.keep() || how.owner() != null || Session.now() - sent > how.lease() / 20;
    }

    private void confirm(long sent, Object reply) {
        if (ended) {
            return;
        }
        long confirmed = Session.now();
        hold.confirm().whenComplete((holds, error) -> {
            if (ended) {
                return;
            }
            if (error == null) {
                rest();
                granted(own ? confirmed : sent, confirmed, reply);
            } else {
                failed(LockException.of(error));
            }
        });
    }

    private void granted(long sent, long renewed, Object reply) {
        if (Session.now() - renewed >= how.lease() && !how.keep()) {
            // Who slept through the whole lease begins nothing.
            LockException lost = new LockException.Lost(how.key() + ": the lease was over before it began");
            giveBack(() -> end(null, lost));
            return;
        }
        session.outlived(how.key(), hold.owner(), how.shared());
        hold.begin(sent, renewed, token(reply));
        end(hold, null);
    }

    private void failed(LockException error) {
        asking = false;
        if (ended) {
            return;
        }
        long now = Session.now();
        if (error instanceof Disconnected && link != null) {
            link.giveUp();
        }
        if (error.is(Kind.MISUSE)) {
            placed = heard || broken;
        }
        boolean isFirst = failing == 0;
        if (asked != 0 && now - asked > Math.min(Session.SOON, session.patience)) {
            // It waited in a server that was there.
            failing = now;
        } else if (isFirst) {
            failing = since;
        }
        // A try is sent again once, and a wait without limit until there was no server for some time.
        boolean isOver =
                !waits ? broken : how.waiting() < 0 ? !isFirst && now - failing > session.patience : left() < 0;
        if (error.passes() && !isOver) {
            broken = true;
            // A try has no time left, and is for the next connection.
            again(waits ? Math.min(pause, Math.max(0, left())) : Math.max(pause, session.calmFor()), this::ask);
            pause = Math.min(2 * pause, Session.SOON);
        } else {
            fail(error);
        }
    }

    private void rest() {
        if (link != null) {
            link.rest();
            link = null;
        }
    }

    /** After an outage the network would send the call again, when the server has forgotten that it was cancelled. */
    private void giveUpLink() {
        stay();
        if (link != null) {
            link.giveUp();
            link = null;
        }
    }

    private void again(long later, Runnable work) {
        timer = session.after(later, work);
    }

    /** A grant is remembered for no longer than the lease. */
    private long often() {
        return Math.min(ASK_AGAIN, Math.max(OFTEN, how.lease() / 2));
    }

    private void askUntold() {
        session.probeMessages();
        ask();
    }

    void fail(LockException error) {
        if (error.is(Kind.LOST)) {
            // It was granted to a connection that broke, and ended with it.
            session.waits.remove(request);
            giveUpLink();
            start();
            return;
        }
        giveBack(() -> end(null, error));
    }

    /** Whatever the acquire has got. Where that cannot be now, this goes on behind the caller's back. */
    private void giveBack(Runnable then) {
        ended = true;
        giveUpLink();
        if (timer != null) {
            timer.cancel(false);
        }
        session.waits.remove(request);
        if (!placed) {
            then.run();
            return;
        }
        List<String> cancel = List.of("LOCK.CANCEL", how.key(), hold.owner(), "ID", request);
        CompletableFuture<Object> first = session.call(cancel, Session.SOON);
        CompletableFuture<?> over =
                first.exceptionallyCompose(error -> goOn(cancel, error)).exceptionallyCompose(this::orRelease);
        if (how.owner() != null) {
            // One that comes late would take the next hold of this owner.
            session.giveBack(how.key(), hold.owner(), over);
        }
        first.whenComplete((reply, error) -> then.run());
    }

    private CompletableFuture<Object> goOn(List<String> cancel, Throwable error) {
        return LockException.of(error).is(Kind.UNAVAILABLE)
                ? session.insist(cancel, Session.TRY_FOR, failure -> failure.is(Kind.UNAVAILABLE), List.of())
                : CompletableFuture.failedFuture(error);
    }

    /**
     * Who may not cancel gives back what came late. A place in the queue ends with its connection. With another hold of that
     * owner this got nothing, and would end the other.
     */
    private CompletableFuture<Object> orRelease(Throwable error) {
        boolean refused = LockException.of(error).says("NOPERM");
        return refused && !session.has(how.key(), hold.owner())
                ? hold.abandon().thenApply(done -> null)
                : CompletableFuture.failedFuture(error);
    }

    private void end(Hold got, LockException error) {
        ended = true;
        session.waits.remove(request);
        String outcome = error != null ? error.kind().words() : got != null ? "granted" : waits ? "timed out" : "busy";
        session.heard(how.label(), "waited", outcome, began);
        if (error != null) {
            result.completeExceptionally(error);
        } else {
            result.complete(got);
        }
    }

    private static Long token(Object reply) {
        Object token = field(reply, "token");
        return token == null ? null : Long.valueOf(token.toString());
    }

    /** Of a map; null if it has none. */
    static Object field(Object reply, String name) {
        if (reply instanceof List<?> map) {
            for (int at = 0; at + 1 < map.size(); at += 2) {
                if (name.equals(map.get(at))) {
                    return map.get(at + 1);
                }
            }
        }
        return null;
    }

    private static String host() {
        try {
            return java.net.InetAddress.getLocalHost().getHostName();
        } catch (java.net.UnknownHostException unknown) {
            return "localhost";
        }
    }
}
