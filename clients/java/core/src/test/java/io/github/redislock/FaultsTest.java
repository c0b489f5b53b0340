// SPDX-License-Identifier: MIT
package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeout;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.LockException.Kind;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A network that fails. */
@Timeout(60)
class FaultsTest extends Fixture {
    private Proxy proxy;
    private final Queue<LockEvent> events = new ConcurrentLinkedQueue<>();

    @BeforeEach
    void startProxy() throws Exception {
        proxy = closed(new Proxy(server.port));
    }

    @AfterEach
    void heal() {
        proxy.isSilent = false;
    }

    private Locks locks(Library library, int ttl, int grace) {
        return locks(
                library,
                proxy.uri(),
                builder -> builder.ttl(Duration.ofMillis(ttl))
                        .grace(Duration.ofMillis(grace))
                        .patience(Duration.ofSeconds(3))
                        .listener(events::add));
    }

    private boolean has(String name, String outcome) {
        return events.stream()
                .anyMatch(event -> event.name().equals(name) && event.outcome().equals(outcome));
    }

    @ParameterizedTest
    @EnumSource
    void brokenConnectionsLoseNothing(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 3000);
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
        untilWaiters(1);
        for (int round = 0; round < 3; round++) {
            long calls = calls("lock.events");
            proxy.breakAll();
            until("events are read again", () -> calls("lock.events") > calls + 1);
        }
        assertEquals(1, calls("lock.session"));
        assertFalse(hold.isLost());
        hold.release();
        wait.get(5, TimeUnit.SECONDS).release();
    }

    @ParameterizedTest
    @EnumSource
    void jeopardyEndsWithTheOutage(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 800);
        Hold hold = locks.lock("k").acquire();
        proxy.isSilent = true;
        until(
                "the hold is in jeopardy",
                () -> has("jeopardy", "") && hold.validFor().isZero());
        assertFalse(hold.isLost());
        proxy.isSilent = false;
        until("the hold is safe", () -> has("safe", "") && !hold.validFor().isZero());
        hold.release();
    }

    @ParameterizedTest
    @EnumSource
    void silenceBeyondTheTtlIsALoss(Library library) throws Exception {
        Locks locks = locks(library, 3000, 800);
        Hold hold = locks.lock("k").acquire();
        proxy.isSilent = true;
        assertTrue(hold.awaitLost(Duration.ofSeconds(20)));
        assertTrue(has("held", "lost"));
        proxy.isSilent = false;
        until("the server has released it", () -> !server.jedis.exists("k"));
        assertThrows(LockException.Lost.class, hold::release);
        locks.lock("k").acquire().release();
    }

    @ParameterizedTest
    @EnumSource
    void releaseThatFailedContinues(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 10_000);
        Hold hold = locks.lock("k").acquire();
        proxy.isSilent = true;
        assertKind(Kind.UNAVAILABLE, hold::release);
        hold.release();
        assertTrue(server.jedis.exists("k"));
        proxy.isSilent = false;
        until("the lock is free", () -> !server.jedis.exists("k"));
    }

    @ParameterizedTest
    @EnumSource
    void outageEndsATryAndWaitsWithoutALimit(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 10_000);
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
        untilWaiters(1);
        proxy.isSilent = true;
        assertTimeout(
                Duration.ofMillis(3500),
                () -> assertKind(Kind.UNAVAILABLE, () -> locks.lock("l").tryAcquire()));
        LockException error = assertThrows(LockException.class, () -> {
            try {
                wait.join();
            } catch (java.util.concurrent.CompletionException failed) {
                throw failed.getCause();
            }
        });
        assertEquals(Kind.UNAVAILABLE, error.kind());
        proxy.isSilent = false;
        untilWaiters(0);
        until("the try left nothing", () -> !server.jedis.exists("l"));
        hold.release();
    }

    /** A client of Redisson exists only once it has connected. */
    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "REDISSON")
    void shortWaitWithoutAServerIsUnavailable(Library library) throws Exception {
        try (ServerSocket full = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            // Nobody accepts its connections, so that a further attempt neither succeeds nor fails.
            for (int i = 0; i < 3; i++) {
                SocketChannel connection = closed(SocketChannel.open());
                connection.configureBlocking(false);
                connection.connect(full.getLocalSocketAddress());
            }
            Locks locks = locks(library, "redis://127.0.0.1:" + full.getLocalPort(), builder -> builder);
            RedisLock lock = locks.lock("k").waiting(Duration.ofMillis(100));
            assertKind(Kind.UNAVAILABLE, lock::acquire);
            assertTimeout(Duration.ofMillis(5500), () -> assertKind(Kind.UNAVAILABLE, lock::tryAcquire));
        }
    }

    @ParameterizedTest
    @EnumSource
    void waitInAnOutageIsUnavailable(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 10_000);
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Hold> wait =
                locks.lock("k").owner("waiter").waiting(Duration.ofSeconds(3)).acquireAsync();
        untilWaiters(1);
        proxy.isSilent = true;
        Throwable error = assertThrows(ExecutionException.class, () -> wait.get(10, TimeUnit.SECONDS));
        assertEquals(Kind.UNAVAILABLE, ((LockException) error.getCause()).kind());
        proxy.isSilent = false;
        untilWaiters(0);
        // After the outage a wait reaches its limit as usual.
        long before = calls("lock.events");
        until("events are read again", () -> calls("lock.events") > before + 2);
        RedisLock lock = locks.lock("k").owner("other").waiting(Duration.ofMillis(100));
        assertKind(Kind.TIMED_OUT, lock::acquire);
        hold.release();
    }

    @ParameterizedTest
    @EnumSource
    void endedSessionIsOpenedAgain(Library library) throws Exception {
        // Without a grace, a session ends with its connection. Holds with a lease remain.
        Locks locks = locks(library, 30_000, 0);
        Hold leased = locks.lock("k").lease(Duration.ofMinutes(1)).acquire();
        Hold renewed = locks.lock("l").acquire();
        CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
        untilWaiters(1);
        proxy.breakAll();
        assertTrue(renewed.awaitLost(Duration.ofSeconds(10)));
        untilWaiters(1);
        assertEquals(2, calls("lock.session"));
        assertFalse(leased.isLost());
        leased.release();
        wait.get(5, TimeUnit.SECONDS).release();
    }

    @ParameterizedTest
    @EnumSource
    void timedOutTryIsEmptyWithoutItsEvent(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 10_000);
        Hold hold = locks.lock("k").acquire();
        Hold other = locks.lock("l").acquire();
        FutureTask<Optional<Hold>> wait = thread(() -> locks.lock("k").tryAcquire(Duration.ofMillis(700)));
        untilWaiters(1);
        server.jedis.del("l");
        assertTrue(other.awaitLost(Duration.ofSeconds(5)));
        // The reader has just had a reply, so it regards the server as answering for two seconds more.
        proxy.isSilent = true;
        assertTrue(wait.get(10, TimeUnit.SECONDS).isEmpty());
        proxy.isSilent = false;
        untilWaiters(0);
        hold.release();
    }

    @ParameterizedTest
    @EnumSource
    void closeCancelsAWaitForTheFirstConnection(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 10_000);
        proxy.isSilent = true;
        CompletableFuture<Hold> wait =
                locks.lock("k").waiting(Duration.ofMinutes(1)).acquireAsync();
        until("the reader connects", () -> proxy.accepted.get() > 0);
        locks.close();
        ExecutionException error = assertThrows(ExecutionException.class, () -> wait.get(10, TimeUnit.SECONDS));
        assertEquals(Kind.CANCELLED, ((LockException) error.getCause()).kind());
    }

    @ParameterizedTest
    @EnumSource
    void namedOwnerWaitsForItsCancel(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 10_000);
        RedisLock lock = locks.lock("k").owner("named");
        Hold hold = lock.acquire();
        proxy.isSilent = true;
        assertKind(Kind.UNAVAILABLE, hold::release);
        CompletableFuture<Hold> next = lock.waiting(Duration.ofSeconds(20)).acquireAsync();
        proxy.isSilent = false;
        next.get(20, TimeUnit.SECONDS).release();
    }

    @ParameterizedTest
    @EnumSource
    void threadWaitsForNoHoldOfItsOwn(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 10_000);
        RedisLock lock = locks.lock("k").reentrant();
        Hold hold = lock.acquire();
        proxy.isSilent = true;
        assertKind(Kind.UNAVAILABLE, lock::tryAcquire);
        proxy.isSilent = false;
        lock.waiting(Duration.ofSeconds(20)).acquire().release();
        assertFalse(hold.isLost());
        hold.release();
    }

    @ParameterizedTest
    @EnumSource
    void restartWithoutDataLosesHolds(Library library) throws Exception {
        Locks locks = locks(library, 30_000, 3000);
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
        untilWaiters(1);
        server.restart();
        assertTrue(hold.awaitLost(Duration.ofSeconds(20)));
        assertThrows(LockException.Lost.class, hold::release);
        wait.get(20, TimeUnit.SECONDS).release();
        locks.lock("k").acquire().release();
    }

    @ParameterizedTest
    @EnumSource
    void overwrittenKeyIsALossAtTheRenewal(Library library) throws Exception {
        server.jedis.configSet("lock.default-lease", "900");
        Hold hold = locks(library, 3000, 300).lock("k").acquire();
        server.jedis.set("k", "no lock");
        assertTrue(hold.awaitLost(Duration.ofSeconds(20)));
        LockException error = assertThrows(LockException.Lost.class, hold::release);
        assertTrue(error.getMessage().contains("wrongtype"), error::toString);
        assertEquals("no lock", server.jedis.getDel("k"));
    }

    @ParameterizedTest
    @EnumSource
    void callForAnOverwrittenKeyIsALoss(Library library) throws Exception {
        RedisLock lock = locks(library, 30_000, 3000).lock("k").lease(Duration.ofMinutes(1));
        for (Consumer<Hold> call : List.<Consumer<Hold>>of(Hold::release, Hold::extend)) {
            Hold hold = lock.acquire();
            server.jedis.set("k", "no lock");
            assertThrows(LockException.Lost.class, () -> call.accept(hold));
            assertTrue(hold.isLost());
            assertEquals("no lock", server.jedis.getDel("k"));
        }
    }

    @Test
    void briefStallKeepsTheConnection() throws Exception {
        Locks locks = locks(Library.LETTUCE, 30_000, 10_000);
        Hold hold = locks.lock("k").acquire();
        Hold other = locks.lock("l").acquire();
        CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
        untilWaiters(1);
        server.signal("STOP");
        CompletableFuture<Void> released = other.releaseAsync();
        // Its cancel is overdue after a second.
        wait.cancel(true);
        Thread.sleep(1300);
        server.signal("CONT");
        released.get(5, TimeUnit.SECONDS);
        assertEquals(1, calls("lock.release"));
        hold.release();
    }
}
