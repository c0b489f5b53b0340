// SPDX-License-Identifier: MIT
package example.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.redislock.LockException.Kind;
import example.redislock.LockException.Lost;
import example.redislock.LocksTest.Library;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** What the network and the server do to connections. */
@Timeout(60)
class FaultsTest {
    private final Set<Thread> before = LocksTest.threads();
    private Server server;
    private Proxy proxy;

    @BeforeEach
    void start() throws Exception {
        server = new Server();
        proxy = new Proxy(server.port);
    }

    @AfterEach
    void nothingStays() throws Exception {
        try (Server used = server) {
            LocksTest.nothingStays(used);
        } finally {
            proxy.close();
        }
        LocksTest.until("the threads have ended", () -> before.containsAll(LocksTest.threads()));
    }

    private Locks locks(Library library, String uri, long patience) {
        return new Locks(library.connector.apply(uri), Duration.ofMillis(patience), null);
    }

    private long made() {
        return Long.parseLong(server.info("total_connections_received"));
    }

    private static LockException failure(CompletableFuture<?> call) {
        ExecutionException error = assertThrows(ExecutionException.class, () -> call.get(20, TimeUnit.SECONDS));
        return (LockException) error.getCause();
    }

    /** The kernel would send what is queued after what is said on the next connection. */
    @ParameterizedTest
    @EnumSource
    void whatIsGivenUpIsResetAndWhatIsClosedIsNot(Library library) throws Exception {
        Locks locks = locks(library, proxy.uri(), 400);
        RedisLock lock = locks.lock("k").lease(Duration.ofMinutes(10));
        Hold hold = lock.acquire();
        CompletableFuture<Hold> waits = lock.ownConnection().acquireAsync();
        LocksTest.untilWaiters(server, 1);
        // Or the proxy may hear of it by what it cannot write any more.
        server.signal("STOP");
        waits.cancel(true);
        LocksTest.until("it is heard of", () -> !proxy.ends.isEmpty());
        server.signal("CONT");
        assertEquals("reset", proxy.ends.poll());
        proxy.silent = true;
        CompletableFuture<Void> extended = CompletableFuture.runAsync(hold::extend);
        // That for commands, and that for messages.
        LocksTest.until("both are given up", () -> proxy.ends.size() >= 2);
        assertEquals(Set.of("reset"), Set.copyOf(proxy.ends));
        proxy.silent = false;
        extended.get(10, TimeUnit.SECONDS);
        hold.release();
        LocksTest.until("what was begun in the silence has ended", () -> proxy.connections.size() == 1);
        proxy.ends.clear();
        locks.close();
        LocksTest.until("it is closed", () -> proxy.connections.isEmpty());
        assertEquals(Set.of("closed"), Set.copyOf(proxy.ends));
    }

    /** Nobody waits for it any more. */
    @ParameterizedTest
    @EnumSource
    void whatBeginsInASilenceEnds(Library library) throws Exception {
        proxy.silent = true;
        try (Locks locks = locks(library, proxy.uri(), 300)) {
            LockException error =
                    assertThrows(LockException.class, () -> locks.lock("k").tryAcquire());
            assertTrue(error.is(Kind.UNAVAILABLE), error::toString);
            LocksTest.until("it has ended", () -> proxy.connections.isEmpty());
        }
    }

    /** With calls on their way. */
    @ParameterizedTest
    @EnumSource
    void aBrokenConnectionIsToldToTheSession(Library library) throws Exception {
        Wire.Connector connector = library.connector.apply(proxy.uri());
        for (int round = 0; round < 20; round++) {
            CompletableFuture<Void> ended = new CompletableFuture<>();
            Wire wire = connector
                    .open(null, text -> {}, () -> ended.complete(null))
                    .toCompletableFuture()
                    .get(10, TimeUnit.SECONDS);
            AtomicBoolean stop = new AtomicBoolean();
            Thread caller = new Thread(() -> {
                while (!stop.get()) {
                    for (int number = 0; number < 100; number++) {
                        wire.call(List.of("PING"));
                    }
                    Thread.onSpinWait();
                }
            });
            caller.start();
            LocksTest.until("the proxy knows of it", () -> proxy.connections.size() == 1);
            Thread.sleep(10);
            proxy.reset();
            try {
                ended.get(5, TimeUnit.SECONDS);
            } finally {
                stop.set(true);
                caller.join();
                wire.giveUp();
            }
        }
        connector.close();
    }

    /** It reads nothing more, and what is to be sent is more than fits. */
    @ParameterizedTest
    @EnumSource
    void aServerThatHangsBlocksNobody(Library library) throws Exception {
        Locks locks = locks(library, server.uri(), 500);
        Hold hold = locks.lock("other").lease(Duration.ofSeconds(2)).acquire();
        server.signal("STOP");
        String big = "x".repeat(7000);
        List<CompletableFuture<Hold>> waits = new ArrayList<>();
        for (int number = 0; number < 2000; number++) {
            waits.add(locks.lock(big + number).waiting(Duration.ofMillis(500)).acquireAsync());
        }
        assertTrue(hold.awaitLost(Duration.ofSeconds(8)));
        for (CompletableFuture<Hold> wait : waits) {
            assertEquals(Kind.UNAVAILABLE, failure(wait).kind());
        }
        CompletableFuture.runAsync(locks::close).get(5, TimeUnit.SECONDS);
        server.signal("CONT");
        LocksTest.until("it is over", () -> !server.jedis.exists("other"));
        server.jedis.flushAll();
    }

    /** A renewal that comes late, from a dead connection, must not bind the hold to that. */
    @ParameterizedTest
    @EnumSource
    void onlyTheFirstRenewalOnAConnectionBinds(Library library) throws Exception {
        ConcurrentLinkedQueue<String> renewals = new ConcurrentLinkedQueue<>();
        Wire.Connector connector = LocksTest.changed(library.connector.apply(proxy.uri()), (wire, words) -> {
            if (words.get(0).equals("LOCK.RENEW")) {
                renewals.add(words.contains("EPHEMERAL") ? "binds" : "plain");
            }
            return wire.call(words);
        });
        try (Locks locks = new Locks(connector);
                Locks other = locks(library, server.uri(), 5000)) {
            Hold hold = locks.lock("k").lease(Duration.ofMillis(900)).keep(true).acquire();
            hold.extend();
            LocksTest.until("it is renewed", () -> renewals.size() >= 2);
            assertEquals(Set.of("plain"), Set.copyOf(renewals));
            renewals.clear();
            // So it does not end with the connection.
            other.lock("k").lease(Duration.ofSeconds(60)).keep(true).attach(hold.owner());
            proxy.reset();
            LocksTest.until("it is bound", () -> renewals.contains("binds"));
            renewals.removeIf("plain"::equals);
            LocksTest.until("it is renewed", () -> renewals.size() >= 3);
            assertEquals(List.of("binds", "plain", "plain"), List.copyOf(renewals));
            assertTrue(hold.validFor().toMillis() > 0);
            hold.release();
            hold = locks.lock("k").keep(true).ownConnection().acquire();
            hold.extend();
            hold = locks.lock("k").keep(true).attach(hold.handOver());
            hold.extend();
            hold.release();
            assertEquals(
                    List.of("binds", "plain", "binds", "plain"),
                    List.copyOf(renewals).subList(renewals.size() - 4, renewals.size()));
        }
    }

    /** It was shortened, and nobody was told. */
    @Test
    void aLeaseThatIsMadeShorterCountsAtOnce() throws Exception {
        Wire.Connector connector = LocksTest.changed(
                Library.JEDIS.connector.apply(server.uri()),
                (wire, words) -> words.get(0).equals("LOCK.RENEW")
                        ? wire.call(words).thenCompose(reply -> new CompletableFuture<>())
                        : wire.call(words));
        try (Locks locks = new Locks(connector)) {
            for (boolean after : new boolean[] {false, true}) {
                Hold hold = locks.lock("k").lease(Duration.ofMinutes(10)).acquire();
                CompletableFuture<Void> call = CompletableFuture.runAsync(() -> {
                    if (after) {
                        hold.releaseAfter(Duration.ofMillis(500));
                    } else {
                        hold.extend(Duration.ofMillis(500));
                    }
                });
                assertTrue(hold.awaitLost(Duration.ofMillis(1500)));
                LocksTest.until("it is over", () -> !server.jedis.exists("k"));
                failure(call);
            }
        }
    }

    @Test
    void ofTwoExtensionsTheShorterCountsUntilItIsAnswered() throws Exception {
        CompletableFuture<Void> answered = new CompletableFuture<>();
        Set<String> asked = ConcurrentHashMap.newKeySet();
        Wire.Connector connector = LocksTest.changed(Library.JEDIS.connector.apply(server.uri()), (wire, words) -> {
            if (!words.get(0).equals("LOCK.RENEW")) {
                return wire.call(words);
            }
            asked.add(words.get(4));
            return wire.call(words)
                    .thenCompose(reply -> words.get(4).equals("90000")
                            ? answered.thenApply(now -> reply)
                            : new CompletableFuture<>());
        });
        try (Locks locks = new Locks(connector)) {
            Hold hold = locks.lock("k").lease(Duration.ofSeconds(30)).acquire();
            CompletableFuture<Void> longer = CompletableFuture.runAsync(() -> hold.extend(Duration.ofSeconds(90)));
            LocksTest.until("a call", () -> asked.contains("90000"));
            CompletableFuture<Void> shorter = CompletableFuture.runAsync(() -> hold.extend(Duration.ofSeconds(60)));
            LocksTest.until("another", () -> asked.contains("60000"));
            answered.complete(null);
            longer.get(10, TimeUnit.SECONDS);
            long valid = hold.validFor().toSeconds();
            assertTrue(valid >= 30 && valid < 60, valid + " s");
            hold.release();
            failure(shorter);
        }
    }

    @Test
    void aPermissionThatComesBackFreesTheLock() throws Exception {
        server.call("ACL", "SETUSER", "default", "-lock.release", "-lock.renew");
        try (Locks locks = locks(Library.LETTUCE, server.uri(), 5000)) {
            Hold hold = locks.lock("k").lease(Duration.ofMillis(600)).keep(true).acquire();
            assertEquals(
                    Kind.MISUSE,
                    assertThrows(LockException.class, hold::release).kind());
            Thread.sleep(1500);
            assertTrue(server.jedis.exists("k"));
            server.call("ACL", "SETUSER", "default", "+lock.release");
            LocksTest.until("it is given back", () -> !server.jedis.exists("k"));
        }
    }

    @Test
    void aReleaseDoesNotBlockForLong() throws Exception {
        AtomicInteger refusals = new AtomicInteger(Integer.MAX_VALUE);
        Wire.Connector refusing = LocksTest.refusing(server, "LOCK.RELEASE", "NOREPLICAS on purpose", refusals);
        try (Locks locks = new Locks(refusing)) {
            assertEquals(TimeUnit.SECONDS.toNanos(30), locks.session.blockFor);
            locks.session.blockFor = TimeUnit.MILLISECONDS.toNanos(300);
            Hold hold = locks.lock("k").lease(Duration.ofMinutes(10)).acquire();
            CompletableFuture<Void> release = hold.releaseAsync();
            assertTrue(failure(release).getMessage().startsWith("NOREPLICAS"));
            refusals.set(0);
            LocksTest.until("it is given back", () -> !server.jedis.exists("k"));
        }
    }

    /** As after a failover, when the replicas are not there yet. */
    @ParameterizedTest
    @EnumSource
    void aWaitGoesOnWithoutReplicas(Library library) throws Exception {
        AtomicInteger refusals = new AtomicInteger();
        Wire.Connector refusing = LocksTest.refusing(server, "LOCK.ACQUIRE", "NOREPLICAS on purpose", refusals);
        try (Locks locks = locks(library, server.uri(), 5000);
                Locks refused = new Locks(refusing)) {
            RedisLock lock = locks.lock("k").lease(Duration.ofMinutes(10));
            lock.acquire().release();
            lock.ownConnection().acquire().release();
            LocksTest.canWrite(server, false);
            LockException error = assertThrows(LockException.class, lock::tryAcquire);
            assertTrue(error.is(Kind.UNAVAILABLE) && error.getMessage().startsWith("NOREPLICAS"), error::toString);
            error = assertThrows(
                    LockException.class,
                    () -> lock.waiting(Duration.ofMillis(300)).acquire());
            assertTrue(error.getMessage().startsWith("NOREPLICAS"), error::toString);
            long before = made();
            for (RedisLock each : List.of(lock, lock.ownConnection())) {
                LocksTest.canWrite(server, false);
                CompletableFuture<Hold> wait = each.acquireAsync();
                Thread.sleep(400);
                assertFalse(wait.isDone());
                LocksTest.canWrite(server, true);
                wait.get(5, TimeUnit.SECONDS).release();
            }
            assertEquals(before, made());
            refusals.set(1);
            refused.lock("k").tryAcquire().orElseThrow().release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aServerThatWasThePrimaryIsNotOverrun(Library library) throws Exception {
        try (Locks locks = locks(library, server.uri(), 5000)) {
            List<Hold> holds = new ArrayList<>();
            List<CompletableFuture<Void>> waits = new ArrayList<>();
            RedisLock lock = locks.lock("h0").waiting(Duration.ofSeconds(30));
            for (int number = 0; number < 10; number++) {
                holds.add(locks.lock("h" + number).acquire());
                waits.add(lock.acquireAsync().thenCompose(Hold::releaseAsync));
            }
            LocksTest.untilWaiters(server, 10);
            long before = made();
            server.call("REPLICAOF", "127.0.0.1", "1");
            Thread.sleep(2500);
            assertTrue(made() - before < 30, () -> made() - before + " connections");
            server.call("REPLICAOF", "NO", "ONE");
            holds.forEach(Hold::releaseAsync);
            CompletableFuture.allOf(waits.toArray(CompletableFuture[]::new)).get(10, TimeUnit.SECONDS);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aDeadConnectionForMessagesIsReplaced(Library library) throws Exception {
        try (Locks locks = locks(library, proxy.uri(), 2000);
                Locks other = locks(library, server.uri(), 5000)) {
            RedisLock lock = locks.lock("k").lease(Duration.ofMillis(400));
            Hold first = other.lock("k").acquire();
            Hold kept = locks.lock("other").acquire();
            CompletableFuture<Hold> waits = lock.acquireAsync();
            // It is asked whether it is there, and is. A refusal is an answer, too.
            for (String rule : List.of("+ping", "-ping")) {
                server.call("ACL", "SETUSER", "default", rule);
                Thread.sleep(2300);
                assertEquals(2, proxy.accepted.get());
            }
            proxy.silenceMessages();
            LocksTest.until("there is another", () -> proxy.accepted.get() == 3);
            assertFalse(kept.validFor().isZero());
            first.release();
            waits.get(5, TimeUnit.SECONDS).release();
            kept.release();
        }
    }

    /** A server that is not there knows of nothing. */
    @ParameterizedTest
    @EnumSource
    void whatWasNeverSaidIsNotTakenBack(Library library) throws Exception {
        try (Locks locks = locks(library, "redis://127.0.0.1:1", 300)) {
            for (int round = 0; round < 3; round++) {
                assertThrows(LockException.class, () -> locks.lock("k").tryAcquire());
            }
            untilNothingGoesOn(locks);
        }
    }

    private static void untilNothingGoesOn(Locks locks) throws Exception {
        Session session = locks.session;
        LocksTest.until(
                "nothing goes on",
                () -> Hold.await(session.begin(() -> CompletableFuture.completedFuture(session.errands()))) == 0);
    }

    /** It would take back the next hold of that owner. */
    @Test
    void whoIsNamedWaitsForACancelThatIsPending() throws Exception {
        AtomicInteger refusals = new AtomicInteger(Integer.MAX_VALUE);
        Wire.Connector refusing = LocksTest.refusing(server, "LOCK.CANCEL", "NOREPLICAS on purpose", refusals);
        try (Locks locks = new Locks(refusing, Duration.ofSeconds(2), null)) {
            server.call("LOCK.ACQUIRE", "k", "somebody");
            RedisLock lock = locks.lock("k").owner("me");
            RedisLock hurried = lock.waiting(Duration.ofMillis(100));
            assertTrue(assertThrows(LockException.class, hurried::acquire).is(Kind.TIMED_OUT));
            server.call("LOCK.RELEASE", "k", "somebody");
            for (Executable call : List.<Executable>of(hurried::acquire, () -> lock.attach("me"))) {
                LockException error = assertThrows(LockException.class, call);
                assertTrue(error.is(Kind.UNAVAILABLE), error::toString);
            }
            CompletableFuture<Hold> again = lock.acquireAsync();
            refusals.set(0);
            Hold hold = again.get(10, TimeUnit.SECONDS);
            untilNothingGoesOn(locks);
            hold.extend();
            hold.release();
        }
    }

    /** Its lease runs out while it is given back, and the next of its owner waits already. */
    @Test
    void whoIsNamedAndWaitsKeepsWhatItGetsDuringARelease() throws Exception {
        AtomicInteger refusals = new AtomicInteger(Integer.MAX_VALUE);
        Wire.Connector refusing = LocksTest.refusing(server, "LOCK.RELEASE", "NOREPLICAS on purpose", refusals);
        try (Locks locks = new Locks(refusing)) {
            List<Hold> old = new ArrayList<>();
            List<CompletableFuture<Hold>> again = new ArrayList<>();
            for (RedisLock each : List.of(locks.lock("k"), locks.lock("other").ownConnection())) {
                RedisLock lock = each.owner("me");
                old.add(lock.lease(Duration.ofSeconds(3)).acquire());
                again.add(lock.lease(Duration.ofMinutes(10)).acquireAsync());
            }
            LocksTest.untilWaiters(server, 2);
            Thread.sleep(1500);
            old.forEach(Hold::releaseAsync);
            Thread.sleep(1900);
            refusals.set(0);
            List<Hold> holds = new ArrayList<>();
            for (CompletableFuture<Hold> each : again) {
                holds.add(each.get(10, TimeUnit.SECONDS));
            }
            // Longer than until the next attempt.
            Thread.sleep(1200);
            for (Hold hold : holds) {
                assertEquals("PONG", hold.guard("PING"));
                hold.release();
            }
        }
    }

    /** It may lead to another server, or through a network that has forgotten the older ones. */
    @ParameterizedTest
    @EnumSource
    void anAnswerOnAYoungerConnectionSaysNothing(Library library) throws Exception {
        try (Locks locks = locks(library, proxy.uri(), 1000)) {
            server.call("LOCK.ACQUIRE", "k", "somebody");
            RedisLock lock = locks.lock("k").lease(Duration.ofMinutes(10)).ownConnection();
            CompletableFuture<Hold> wait = lock.acquireAsync();
            LocksTest.untilWaiters(server, 1);
            proxy.silencePresent();
            locks.lock("other").waiting(Duration.ofSeconds(20)).acquire().release();
            server.call("LOCK.RELEASE", "k", "somebody");
            wait.get(20, TimeUnit.SECONDS).release();
            // What is kept for the next wait has become the older one.
            proxy.silencePresent();
            locks.lock("other").waiting(Duration.ofSeconds(20)).acquire().release();
            int before = proxy.accepted.get();
            lock.acquire().release();
            assertEquals(before + 1, proxy.accepted.get());
        }
    }

    private record Line(CompletableFuture<Hold> first, CompletableFuture<Hold> second) {}

    /** Somebody has it; one waits for it on a connection of its own, and one behind. */
    private Line inLine(RedisLock lock, Locks others) throws Exception {
        server.call("LOCK.ACQUIRE", "k", "somebody");
        CompletableFuture<Hold> first = lock.ownConnection().acquireAsync();
        LocksTest.untilWaiters(server, 1);
        CompletableFuture<Hold> second = others.lock("k").acquireAsync();
        LocksTest.untilWaiters(server, 2);
        return new Line(first, second);
    }

    /** The server drops who waits when the connection ends, unless the same call has come on another. */
    @ParameterizedTest
    @EnumSource
    void whoMovesToAYoungerConnectionKeepsTheirPlace(Library library) throws Exception {
        try (Locks locks = locks(library, proxy.uri(), 1000);
                Locks others = locks(library, server.uri(), 5000)) {
            Line line = inLine(locks.lock("k"), others);
            for (int round = 1; round <= 2; round++) {
                server.call("CLIENT", "KILL", "ID", Long.toString(commands(locks)));
                LocksTest.until("it has moved", () -> proxy.ends.contains("reset"));
                proxy.ends.clear();
                assertEquals("2", server.info("lock_waiters"));
                assertEquals(2 + 2 * round, proxy.accepted.get());
            }
            server.call("LOCK.RELEASE", "k", "somebody");
            Hold hold = line.first.get(10, TimeUnit.SECONDS);
            assertFalse(line.second.isDone());
            assertEquals("PONG", hold.guard("PING"));
            hold.release();
            line.second.get(10, TimeUnit.SECONDS).release();
        }
    }

    /** Its connection is alive, and only that for commands is not. */
    @ParameterizedTest
    @EnumSource
    void whoHearsNothingMovesAndKeepsTheirPlace(Library library) throws Exception {
        AtomicBoolean silent = new AtomicBoolean();
        Set<Wire> dead = ConcurrentHashMap.newKeySet();
        Wire.Connector connector = LocksTest.changed(library.connector.apply(proxy.uri()), (wire, words) -> {
            if (!silent.get()) {
                dead.add(wire);
            }
            return silent.get() && dead.contains(wire) && words.get(0).equals("PING")
                    ? new CompletableFuture<>()
                    : wire.call(words);
        });
        try (Locks locks = new Locks(connector, Duration.ofSeconds(1), null);
                Locks others = locks(library, server.uri(), 5000)) {
            Line line = inLine(locks.lock("k"), others);
            commands(locks);
            silent.set(true);
            // That for commands, and the old one.
            LocksTest.until("it has moved", () -> proxy.ends.size() == 2);
            server.call("LOCK.RELEASE", "k", "somebody");
            line.first.get(10, TimeUnit.SECONDS).release();
            line.second.get(10, TimeUnit.SECONDS).release();
        }
    }

    /** It would get what a cancel of that owner takes back, and waits where it is until that is over. */
    @ParameterizedTest
    @EnumSource
    void whoMayNotMoveYetKeepsTheirPlace(Library library) throws Exception {
        AtomicInteger refusals = new AtomicInteger(Integer.MAX_VALUE);
        Wire.Connector refusing = LocksTest.changed(
                library.connector.apply(proxy.uri()),
                (wire, words) -> words.get(0).equals("LOCK.CANCEL") && refusals.getAndDecrement() > 0
                        ? CompletableFuture.failedFuture(new Wire.ServerError("NOREPLICAS on purpose"))
                        : wire.call(words));
        try (Locks locks = new Locks(refusing, Duration.ofSeconds(1), null);
                Locks others = locks(library, server.uri(), 5000)) {
            RedisLock lock = locks.lock("k").owner("me");
            Line line = inLine(lock, others);
            RedisLock hurried = lock.waiting(Duration.ofMillis(100));
            assertTrue(assertThrows(LockException.class, hurried::acquire).is(Kind.TIMED_OUT));
            server.call("CLIENT", "KILL", "ID", Long.toString(commands(locks)));
            LocksTest.until("it has tried to move twice", () -> proxy.accepted.get() >= 6);
            assertFalse(line.first.isDone());
            LocksTest.until("nothing is left of that", () -> proxy.connections.size() <= 3);
            refusals.set(0);
            server.call("LOCK.RELEASE", "k", "somebody");
            line.first.get(10, TimeUnit.SECONDS).release();
            line.second.get(10, TimeUnit.SECONDS).release();
        }
    }

    /** What is kept is bound to the old connection, until the same call has come on the new one. */
    @ParameterizedTest
    @EnumSource
    void aGrantThatCrossesAMoveIsKept(Library library) throws Exception {
        AtomicInteger calls = new AtomicInteger();
        Wire.Connector slow = LocksTest.changed(library.connector.apply(proxy.uri()), (wire, words) -> {
            if (!words.contains("BLOCK") || calls.incrementAndGet() != 2) {
                return wire.call(words);
            }
            return CompletableFuture.runAsync(() -> server.call("LOCK.RELEASE", "k", "somebody"))
                    .thenRunAsync(() -> {}, CompletableFuture.delayedExecutor(300, TimeUnit.MILLISECONDS))
                    .thenCompose(later -> wire.call(words));
        });
        try (Locks locks = new Locks(slow, Duration.ofSeconds(1), null);
                Locks others = locks(library, server.uri(), 5000)) {
            Line line = inLine(locks.lock("k"), others);
            server.call("CLIENT", "KILL", "ID", Long.toString(commands(locks)));
            Hold hold = line.first.get(10, TimeUnit.SECONDS);
            assertFalse(line.second.isDone());
            hold.release();
            line.second.get(10, TimeUnit.SECONDS).release();
        }
    }

    /** By a network that brings the older call after the last. */
    @Test
    void whatIsSaidToHaveBeenSentAgainIsSentAgain() throws Exception {
        String text = "UNBLOCKED the same request was sent again, on another connection";
        Wire.Connector refusing = LocksTest.refusing(server, "LOCK.ACQUIRE", text, new AtomicInteger(1));
        try (Locks locks = new Locks(refusing)) {
            locks.lock("k").ownConnection().acquire().release();
        }
    }

    private static long commands(Locks locks) {
        Session session = locks.session;
        return (Long) Hold.await(session.begin(() -> session.call(List.of("CLIENT", "ID"), session.patience)));
    }

    /** It has got nothing, and a release would end the other. */
    @Test
    void whatMayNotBeCancelledLeavesAnotherHoldOfItsOwner() throws Exception {
        server.call("ACL", "SETUSER", "default", "-lock.cancel");
        try (Locks locks = locks(Library.LETTUCE, server.uri(), 5000);
                Locks others = locks(Library.LETTUCE, server.uri(), 5000)) {
            RedisLock lock = locks.lock("k").owner("me");
            Hold hold = lock.acquire();
            CompletableFuture<Hold> next = others.lock("k").acquireAsync();
            LocksTest.untilWaiters(server, 1);
            RedisLock hurried = lock.waiting(Duration.ofMillis(100));
            assertThrows(LockException.class, hurried::acquire);
            untilNothingGoesOn(locks);
            assertEquals("PONG", hold.guard("PING"));
            hold.release();
            next.get(10, TimeUnit.SECONDS).release();
        }
    }

    /** Nobody waits for the answer any more. */
    @ParameterizedTest
    @EnumSource
    void whatIsNotAnsweredEndsItsConnection(Library library) throws Exception {
        try (Locks locks = locks(library, proxy.uri(), 1000)) {
            locks.lock("k").tryAcquire().orElseThrow().release();
            proxy.silent = true;
            Session session = locks.session;
            CompletableFuture<Object> call = session.begin(() -> session.call(List.of("PING"), 1));
            assertTrue(failure(call).is(Kind.UNAVAILABLE));
            LocksTest.until("it is given up", () -> proxy.ends.contains("reset"));
            proxy.silent = false;
        }
    }

    @ParameterizedTest
    @EnumSource
    void aHoldIsHandedOverWhenNothingIsOnItsWay(Library library) throws Exception {
        try (Locks locks = locks(library, server.uri(), 10_000)) {
            Hold hold = locks.lock("k").lease(Duration.ofMinutes(10)).acquire();
            server.signal("STOP");
            locks.session.blockFor = 1;
            for (Executable call : List.<Executable>of(hold::extend, hold::handOver)) {
                LockException error = assertThrows(LockException.class, call);
                assertTrue(error.is(Kind.UNAVAILABLE), error::toString);
            }
            assertFalse(hold.validFor().isZero());
            locks.session.blockFor = TimeUnit.MINUTES.toNanos(1);
            CompletableFuture<String> handedOver = CompletableFuture.supplyAsync(hold::handOver);
            assertThrows(TimeoutException.class, () -> handedOver.get(300, TimeUnit.MILLISECONDS));
            server.signal("CONT");
            assertEquals(hold.owner(), handedOver.get(10, TimeUnit.SECONDS));
            locks.lock("k").lease(Duration.ofMinutes(10)).attach(hold.owner()).release();
        }
    }

    /** The answer to a renewal that is on its way says so, whether its caller waits for it or not. */
    @Test
    void whatHasEndedIsNotHandedOver() throws Exception {
        for (boolean keep : new boolean[] {true, false}) {
            List<CompletableFuture<Object>> renewals = new CopyOnWriteArrayList<>();
            Wire.Connector connector = LocksTest.changed(new LettuceConnector(server.uri()), (wire, words) -> {
                if (!words.get(0).equals("LOCK.RENEW")) {
                    return wire.call(words);
                }
                renewals.add(new CompletableFuture<>());
                return renewals.get(renewals.size() - 1);
            });
            try (Locks locks = new Locks(connector)) {
                RedisLock lock = locks.lock("k").lease(Duration.ofSeconds(keep ? 6 : 600));
                Hold hold = lock.keep(keep).acquire();
                if (!keep) {
                    locks.session.blockFor = 1;
                    assertThrows(LockException.class, hold::extend);
                    locks.session.blockFor = TimeUnit.MINUTES.toNanos(1);
                }
                LocksTest.until("a renewal", () -> renewals.size() == 1);
                CompletableFuture<String> handedOver = CompletableFuture.supplyAsync(hold::handOver);
                assertThrows(TimeoutException.class, () -> handedOver.get(300, TimeUnit.MILLISECONDS));
                server.jedis.del("k");
                renewals.get(0).completeExceptionally(new Wire.ServerError("NOTOWNER on purpose"));
                assertTrue(failure(handedOver).is(Kind.LOST));
                assertTrue(hold.isLost());
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatIsKeptIsHandedOverWithAConnection(Library library) throws Exception {
        AtomicReference<CompletableFuture<Object>> answer = new AtomicReference<>();
        Wire.Connector connector = LocksTest.changed(
                library.connector.apply(proxy.uri()),
                (wire, words) ->
                        words.get(0).equals("LOCK.RENEW") && answer.get() != null ? answer.get() : wire.call(words));
        Locks locks = new Locks(connector);
        try (Locks other = locks(library, server.uri(), 5000)) {
            RedisLock lock = locks.lock("k").keep(true).lease(Duration.ofSeconds(20));
            Hold hold = lock.acquire();
            answer.set(CompletableFuture.failedFuture(new java.io.IOException("on purpose")));
            proxy.reset();
            LocksTest.until("it is not bound", () -> hold.validFor().isZero());
            locks.session.blockFor = 1;
            LockException error = assertThrows(LockException.class, hold::handOver);
            assertTrue(error.is(Kind.UNAVAILABLE), error::toString);
            answer.set(null);
            locks.session.blockFor = TimeUnit.MINUTES.toNanos(1);
            Hold next = locks.lock("other").acquire();
            String owner = next.handOver();
            other.lock("other").keep(true).attach(owner).release();
            answer.set(new CompletableFuture<>());
            Hold last = lock.lease(Duration.ofSeconds(3))
                    .waiting(Duration.ofSeconds(10))
                    .acquire();
            Thread.sleep(1200);
            CompletableFuture<String> handedOver = CompletableFuture.supplyAsync(last::handOver);
            assertThrows(TimeoutException.class, () -> handedOver.get(100, TimeUnit.MILLISECONDS));
            locks.close();
            assertTrue(failure(handedOver).is(Kind.LOST));
        } finally {
            locks.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void anAttachThatFailedBindsNothing(Library library) throws Exception {
        ConcurrentLinkedQueue<List<String>> renewals = new ConcurrentLinkedQueue<>();
        Set<Wire> used = ConcurrentHashMap.newKeySet();
        Wire.Connector connector = LocksTest.changed(library.connector.apply(server.uri()), (wire, words) -> {
            if (!words.get(0).equals("LOCK.RENEW")) {
                return wire.call(words);
            }
            renewals.add(words);
            if (renewals.size() == 1) {
                return CompletableFuture.failedFuture(new java.io.IOException("on purpose"));
            }
            used.add(wire);
            return wire.call(words).thenCompose(reply -> new CompletableFuture<>());
        });
        try (Locks first = locks(library, server.uri(), 5000);
                Locks second = new Locks(connector, Duration.ofMillis(1500), null)) {
            Hold hold = first.lock("k").keep(true).lease(Duration.ofMillis(900)).acquire();
            RedisLock lock = second.lock("k").keep(true).lease(Duration.ofMillis(900));
            LockException error = assertThrows(LockException.class, () -> lock.attach(hold.handOver()));
            assertTrue(error.is(Kind.UNAVAILABLE), error::toString);
            LocksTest.until("it is unbound", () -> renewals.size() == 3);
            assertTrue(List.copyOf(renewals).get(2).contains("MAX"));
            assertEquals(1, used.size());
            LocksTest.until("it is over", () -> !server.jedis.exists("k"));
        }
    }

    /** It comes after its caller has gone. */
    @ParameterizedTest
    @EnumSource
    void whatMayNotBeCancelledIsGivenBack(Library library) throws Exception {
        for (String refused : List.of("-lock.cancel", "-lock.release")) {
            server.call("ACL", "SETUSER", "default", refused);
            try (Locks locks = locks(library, server.uri(), 5000)) {
                RedisLock lock = locks.lock("k").keep(true).lease(Duration.ofMillis(900));
                server.call("CLIENT", "PAUSE", "60000", "WRITE");
                assertTrue(assertThrows(LockException.class, lock::tryAcquire).is(Kind.UNAVAILABLE));
                server.call("CLIENT", "UNPAUSE");
                untilNothingGoesOn(locks);
                LocksTest.until("it is over", () -> !server.jedis.exists("k"));
            }
        }
    }

    /** Nobody may do anything: there is nothing to give back. */
    @Test
    void whatWasRefusedIsNotGivenBack() throws Exception {
        server.call("ACL", "SETUSER", "default", "-@all", "+info", "+client", "+exists");
        try (Locks locks = locks(Library.LETTUCE, server.uri(), 5000)) {
            assertTrue(assertThrows(LockException.class, () -> locks.lock("k").tryAcquire())
                    .is(Kind.MISUSE));
            assertEquals(
                    0,
                    Hold.await(locks.session.begin(() -> CompletableFuture.completedFuture(locks.session.errands()))));
        }
    }

    /** The server knows of a lease that nobody else does. */
    @ParameterizedTest
    @EnumSource
    void aLeaseThatIsMadeLongerIsGivenBackIfNobodyWasTold(Library library) throws Exception {
        Wire.Connector connector = LocksTest.changed(
                library.connector.apply(server.uri()),
                (wire, words) -> words.get(0).equals("LOCK.RENEW")
                        ? wire.call(words).thenCompose(reply -> new CompletableFuture<>())
                        : wire.call(words));
        try (Locks locks = new Locks(connector)) {
            Hold hold = locks.lock("k").lease(Duration.ofMillis(700)).acquire();
            LockException error = assertThrows(LockException.class, () -> hold.extend(Duration.ofMinutes(10)));
            assertTrue(error.is(Kind.UNAVAILABLE) || error.is(Kind.LOST), error::toString);
            assertTrue(hold.awaitLost(Duration.ofSeconds(5)));
            LocksTest.until("it is given back", () -> !server.jedis.exists("k"));
            assertThrows(Lost.class, hold::release);
        }
    }

    /** A server may end a connection that is idle. */
    @Test
    void aLongLeaseIsRenewedOftenToo() throws Exception {
        AtomicInteger renewals = new AtomicInteger();
        Wire.Connector connector = LocksTest.changed(new LettuceConnector(server.uri()), (wire, words) -> {
            if (words.get(0).equals("LOCK.RENEW")) {
                renewals.incrementAndGet();
            }
            return wire.call(words);
        });
        try (Locks locks = new Locks(connector)) {
            assertEquals(TimeUnit.SECONDS.toNanos(10), locks.session.beat);
            locks.session.beat = TimeUnit.MILLISECONDS.toNanos(50);
            Hold hold = locks.lock("k").keep(true).lease(Duration.ofMinutes(10)).acquire();
            LocksTest.until("it is renewed", () -> renewals.get() > 3);
            hold.release();
        }
    }

    @Test
    void jedisDoesNotConnectForEver() throws Exception {
        DefaultJedisClientConfig config =
                DefaultJedisClientConfig.builder().connectionTimeoutMillis(0).build();
        Wire.Connector connector = new JedisConnector(new HostAndPort("127.0.0.1", server.port), config);
        try (Locks locks = new Locks(connector, Duration.ofMillis(100), null)) {
            server.signal("STOP");
            assertThrows(LockException.class, () -> locks.lock("k").tryAcquire());
            LocksTest.until(
                    "nothing connects",
                    () -> LocksTest.threads().stream()
                            .noneMatch(thread -> thread.getName().equals("redis-lock-connect")));
        } finally {
            server.signal("CONT");
        }
    }

    /** A grant is there for no longer than the lease. */
    @Test
    void whoHasAShortLeaseAsksSooner() throws Exception {
        try (Locks locks = locks(Library.LETTUCE, proxy.uri(), 20_000);
                Locks other = locks(Library.LETTUCE, server.uri(), 5000)) {
            Hold first = other.lock("k").acquire();
            CompletableFuture<Hold> waits =
                    locks.lock("k").lease(Duration.ofSeconds(1)).acquireAsync();
            LocksTest.untilWaiters(server, 1);
            proxy.silenceMessages();
            first.release();
            waits.get(2, TimeUnit.SECONDS).release();
        }
    }

    /** It may be about another lock. */
    @ParameterizedTest
    @EnumSource
    void theServerSaysWhetherAGuardedHoldIsLost(Library library) throws Exception {
        try (Locks locks = locks(library, server.uri(), 5000)) {
            for (boolean keep : new boolean[] {false, true}) {
                Hold hold =
                        locks.lock("k").lease(Duration.ofSeconds(60)).keep(keep).acquire();
                String[] script = {"EVAL", "return redis.error_reply('NOTOWNER of another')", "0"};
                Lost told = assertThrows(Lost.class, () -> hold.guard(script));
                assertEquals("NOTOWNER of another", told.getMessage());
                assertFalse(hold.isLost());
                assertTrue(hold.validFor().toSeconds() > 50);
                assertEquals("PONG", hold.guard("PING"));
                server.jedis.del("k");
                assertThrows(Lost.class, () -> hold.guard("PING"));
                assertTrue(hold.isLost());
            }
        }
    }

    /** Its release is on its way. */
    @Test
    void whatIsBeingReleasedIsNotHandedOver() throws Exception {
        try (Locks locks = locks(Library.LETTUCE, server.uri(), 5000)) {
            Hold hold = locks.lock("k").acquire();
            server.signal("STOP");
            hold.releaseAsync().cancel(true);
            assertThrows(Lost.class, hold::handOver);
            server.signal("CONT");
            LocksTest.until("it is given back", () -> !server.jedis.exists("k"));
        }
    }

    /** After the patience it is tried once more, on another connection. */
    @ParameterizedTest
    @EnumSource
    void silenceEndsAWaitForMessagesToo(Library library) throws Exception {
        try (Locks locks = locks(library, server.uri(), 2000)) {
            server.call("LOCK.ACQUIRE", "k", "somebody");
            CompletableFuture<Hold> wait =
                    locks.lock("k").lease(Duration.ofMillis(400)).acquireAsync();
            LocksTest.untilWaiters(server, 1);
            server.signal("STOP");
            long before = System.nanoTime();
            assertEquals(Kind.UNAVAILABLE, failure(wait).kind());
            long took = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - before);
            server.signal("CONT");
            // The last try has a second, and so has the end of the wait.
            assertTrue(took > 1900 && took < 8000, () -> took + " ms");
            LocksTest.untilWaiters(server, 0);
            server.call("LOCK.RELEASE", "k", "somebody");
        }
    }
}
