// SPDX-License-Identifier: MIT
package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.LockException.Kind;
import io.github.redislock.LockException.Lost;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.logging.Filter;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.RedisClient;

@Timeout(60)
class LocksTest extends Fixture {
    private static final Duration LONG = Duration.ofMinutes(1);

    @ParameterizedTest
    @EnumSource
    void waitsAreServedInOrder(Library library) throws Exception {
        Locks locks = locks(library);
        Queue<Integer> order = new ConcurrentLinkedQueue<>();
        List<CompletableFuture<Void>> all = new ArrayList<>();
        Hold hold = locks.lock("k").acquire();
        for (int number = 0; number < 5; number++) {
            int each = number;
            all.add(locks.lock("k").owner("owner " + number).acquireAsync().thenAccept(next -> {
                order.add(each);
                next.release();
            }));
            untilWaiters(number + 1);
        }
        hold.release();
        CompletableFuture.allOf(all.toArray(CompletableFuture[]::new)).get(10, TimeUnit.SECONDS);
        assertEquals(List.of(0, 1, 2, 3, 4), List.copyOf(order));
    }

    @ParameterizedTest
    @EnumSource
    void interruptedWaitLeavesNothing(Library library) throws Exception {
        Locks locks = locks(library);
        try (Hold hold = locks.lock("k").acquire()) {
            AtomicReference<Thread> waiting = new AtomicReference<>();
            FutureTask<Hold> wait = thread(() -> {
                waiting.set(Thread.currentThread());
                return locks.lock("k").acquire();
            });
            untilWaiters(1);
            waiting.get().interrupt();
            ExecutionException error = assertThrows(ExecutionException.class, () -> wait.get(5, TimeUnit.SECONDS));
            assertEquals(InterruptedException.class, error.getCause().getClass());
            untilWaiters(0);
            assertFalse(hold.isLost());
        }
    }

    @ParameterizedTest
    @EnumSource
    void cancelledFutureLeavesNothing(Library library) throws Exception {
        Locks locks = locks(library);
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Hold> cancelled = locks.lock("k").owner("a").acquireAsync();
        CompletableFuture<Hold> timed =
                locks.lock("k").owner("b").acquireAsync().orTimeout(100, TimeUnit.MILLISECONDS);
        untilWaiters(2);
        cancelled.cancel(true);
        assertThrows(CancellationException.class, cancelled::get);
        ExecutionException error = assertThrows(ExecutionException.class, timed::get);
        assertEquals(TimeoutException.class, error.getCause().getClass());
        untilWaiters(0);
        hold.release();
    }

    @ParameterizedTest
    @EnumSource
    void cancelDuringTheGrantLeavesNothing(Library library) throws Exception {
        Locks locks = locks(library);
        for (int round = 0; round < 50; round++) {
            Hold hold = locks.lock("k").acquire();
            CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
            untilWaiters(1);
            CompletableFuture<Void> released = hold.releaseAsync();
            if (!wait.cancel(true)) {
                wait.get().release();
            }
            released.get(5, TimeUnit.SECONDS);
            until("the lock is free", () -> !server.jedis.exists("k"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void impatientWaitersMakeNoConnections(Library library) throws Exception {
        try (Proxy proxy = new Proxy(server.port)) {
            Locks locks = locks(library, proxy.uri(), builder -> builder);
            Hold hold = locks.lock("k").acquire();
            int before = proxy.accepted.get();
            for (int round = 0; round < 20; round++) {
                List<CompletableFuture<Hold>> waits = new ArrayList<>();
                for (int number = 0; number < 10; number++) {
                    waits.add(locks.lock("k")
                            .owner("w" + number)
                            .waiting(Duration.ofMillis(5))
                            .acquireAsync());
                }
                for (CompletableFuture<Hold> wait : waits) {
                    CompletionException error = assertThrows(CompletionException.class, wait::join);
                    assertEquals(Kind.TIMED_OUT, ((LockException) error.getCause()).kind());
                }
            }
            assertTrue(proxy.accepted.get() - before <= 20, () -> proxy.accepted + " connections");
            untilWaiters(0);
            hold.release();
            locks.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void ownerThatBlocksItselfGetsDeadlock(Library library) throws Exception {
        Locks locks = locks(library);
        try (Hold hold = locks.lock("k").acquire()) {
            assertKind(Kind.DEADLOCK, () -> locks.lock("k").acquire());
            assertKind(Kind.DEADLOCK, () -> locks.lock("k").tryAcquire());
            try (Hold again = locks.lock("k").reentrant().acquire()) {
                assertEquals(hold.owner(), again.owner());
            }
            assertEquals(1, holders("k"));
            assertFalse(hold.isLost());
        }
    }

    @ParameterizedTest
    @EnumSource
    void crossingThreadsGetDeadlock(Library library) throws Exception {
        Locks locks = locks(library);
        try (Hold first = locks.lock("k").acquire()) {
            FutureTask<Void> other = thread(() -> {
                try (Hold second = locks.lock("l").acquire();
                        Hold third = locks.lock("k").acquire()) {
                    assertNotEquals(second.owner(), first.owner());
                    assertEquals(second.owner(), third.owner());
                }
                return null;
            });
            untilWaiters(1);
            assertKind(Kind.DEADLOCK, () -> locks.lock("l").acquire());
            first.release();
            other.get(5, TimeUnit.SECONDS);
        }
    }

    private long holders(String key) {
        return ((List<?>) locks(Library.LETTUCE).lock(key).query().orElseThrow().get("holders")).size();
    }

    @ParameterizedTest
    @EnumSource
    void scopeReleasesWhatItAcquired(Library library) throws Exception {
        Locks locks = locks(library);
        RedisLock lock = locks.lock("k").reentrant();
        try (Hold outer = lock.acquire()) {
            assertEquals(7, lock.<Integer, RuntimeException>with(inner -> 7));
            assertEquals(1, holders("k"));
            IllegalStateException body = assertThrows(
                    IllegalStateException.class,
                    () -> lock.with(inner -> {
                        throw new IllegalStateException("of the body");
                    }));
            assertEquals(0, body.getSuppressed().length);
            assertFalse(outer.isLost());
        }
        IllegalStateException body = assertThrows(
                IllegalStateException.class,
                () -> lock.with(hold -> {
                    lock.forceRelease();
                    assertTrue(hold.awaitLost(LONG));
                    throw new IllegalStateException("of the body");
                }));
        assertEquals(Lost.class, body.getSuppressed()[0].getClass());
    }

    @ParameterizedTest
    @EnumSource
    void scopeLeavesALaterHold(Library library) throws Exception {
        RedisLock lock = locks(library).lock("k").owner("me");
        AtomicReference<Hold> later = new AtomicReference<>();
        assertThrows(Lost.class, () -> {
            try (Hold hold = lock.acquire()) {
                lock.forceRelease();
                assertTrue(hold.awaitLost(LONG));
                later.set(lock.acquire());
            }
        });
        assertFalse(later.get().isLost());
        assertEquals(1, holders("k"));
        later.get().release();
    }

    @ParameterizedTest
    @EnumSource
    void dependentsOfALossMayUseLocks(Library library) throws Exception {
        Locks locks = locks(library);
        Hold other = locks.lock("l").acquire();
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Hold> next = hold.lost().thenApply(none -> {
            assertThrows(Lost.class, hold::release);
            other.release();
            try {
                return locks.lock("k").acquire();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        server.jedis.del("k");
        next.get(20, TimeUnit.SECONDS).release();
        assertFalse(server.jedis.exists("l"));
    }

    @ParameterizedTest
    @EnumSource
    void lossCompletesTheFuture(Library library) throws Exception {
        Locks locks = locks(library);
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Void> lost = hold.lost();
        assertFalse(lost.isDone());
        assertTrue(hold.validFor().toMillis() > 0);
        server.jedis.del("k");
        lost.get(5, TimeUnit.SECONDS);
        assertTrue(hold.isLost());
        assertEquals(Duration.ZERO, hold.validFor());
        assertThrows(Lost.class, hold::release);
        assertThrows(Lost.class, hold::extend);
        assertThrows(Lost.class, hold::handOver);
        assertThrows(Lost.class, () -> hold.guard("SET", "other", "1"));
        Hold leased = locks.lock("k").lease(Duration.ofMillis(200)).acquire();
        leased.lost().get(5, TimeUnit.SECONDS);
        assertThrows(Lost.class, leased::release);
    }

    @ParameterizedTest
    @EnumSource
    void droppedHoldIsReleasedWithAWarning(Library library) throws Exception {
        Queue<String> warnings = new ConcurrentLinkedQueue<>();
        Logger logger = Logger.getLogger("io.github.redislock");
        Filter usual = logger.getFilter();
        logger.setFilter(record -> !record.getLevel().equals(Level.WARNING) || !warnings.add(record.getMessage()));
        closed(() -> logger.setFilter(usual));
        Locks locks = locks(library);
        assertFalse(drop(locks));
        until("the hold is released", () -> {
            System.gc();
            return !server.jedis.exists("k");
        });
        until("a warning", () -> warnings.contains("k: a hold was never released; use try-with-resources"));
    }

    @ParameterizedTest
    @EnumSource
    void failedAcquireKeepsTheOwner(Library library) throws Exception {
        Locks locks = locks(library);
        Hold other = locks.lock("l").owner("other").acquire();
        try (Hold hold = locks.lock("k").acquire()) {
            RedisLock busy = locks.lock("l").waiting(Duration.ofMillis(20));
            assertKind(Kind.TIMED_OUT, busy::acquire);
            assertKind(Kind.BUSY, () -> busy.waiting(Duration.ZERO).acquire());
            RedisLock again = locks.lock("k").waiting(Duration.ofSeconds(10));
            assertKind(Kind.DEADLOCK, again::acquire);
            again.reentrant().acquire().release();
            assertFalse(hold.isLost());
        }
        other.release();
    }

    @ParameterizedTest
    @EnumSource
    void handedOverOwnerRemainsForOtherLocks(Library library) throws Exception {
        Locks locks = locks(library);
        try (Hold hold = locks.lock("k").acquire()) {
            Hold given = locks.lock("l").acquire();
            String ticket = given.handOver();
            assertTrue(locks.lock("l").tryAcquire().isEmpty());
            assertKind(Kind.DEADLOCK, () -> locks.lock("k").tryAcquire());
            Hold taken = locks(library).lock("l").attach(ticket);
            assertEquals(hold.owner(), taken.owner());
            taken.release();
            try (Hold next = locks.lock("l").acquire()) {
                RedisLock again = locks.lock("l").reentrant().waiting(Duration.ofSeconds(5));
                again.acquire().release();
                assertNotEquals(hold.owner(), next.owner());
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void cancelledFutureIsReportedOnce(Library library) throws Exception {
        Queue<LockEvent> events = new ConcurrentLinkedQueue<>();
        Locks locks = locks(library, server.uri(), builder -> builder.listener(events::add));
        Hold hold = locks.lock("k").acquire();
        for (int round = 1; round <= 10; round++) {
            CompletableFuture<Hold> wait =
                    locks.lock("k").owner("waiter").label("wait").acquireAsync();
            untilWaiters(1);
            wait.cancel(true);
            untilWaiters(0);
        }
        hold.release();
        locks.close();
        until(
                "the calls have ended",
                () -> threads().stream().noneMatch(each -> each.getName().startsWith("redis-lock")));
        assertEquals(
                10,
                events.stream().filter(event -> "wait".equals(event.label())).count(),
                events::toString);
    }

    @ParameterizedTest
    @EnumSource
    void errorOfAListenerEndsNothing(Library library) throws Exception {
        Locks locks = locks(
                library,
                server.uri(),
                builder -> builder.listener(event -> {
                    throw new AssertionError("of the listener");
                }));
        Hold hold = locks.lock("k").acquire();
        server.jedis.del("k");
        assertTrue(hold.awaitLost(Duration.ofSeconds(5)));
        Hold next = locks.lock("k").acquireAsync().get(5, TimeUnit.SECONDS);
        server.jedis.del("k");
        assertTrue(next.awaitLost(Duration.ofSeconds(5)));
    }

    @ParameterizedTest
    @EnumSource
    void refusingExecutorDelaysNothing(Library library) throws Exception {
        Locks locks = locks(
                library,
                server.uri(),
                builder -> builder.executor(work -> {
                    throw new RejectedExecutionException("full");
                }));
        Hold hold = locks.lock("k").acquireAsync().get(5, TimeUnit.SECONDS);
        CompletableFuture<Void> lost = hold.lost();
        CompletableFuture<String> wait = locks.lock("k")
                .owner("waiter")
                .acquireAsync()
                .thenApply(next -> {
                    next.release();
                    return Thread.currentThread().getName();
                });
        untilWaiters(1);
        server.jedis.del("k");
        lost.get(5, TimeUnit.SECONDS);
        assertEquals("redis-lock-call", wait.get(5, TimeUnit.SECONDS));
    }

    @ParameterizedTest
    @EnumSource
    void blockedDependentsDelayNoGrant(Library library) throws Exception {
        Locks locks = locks(library);
        CountDownLatch blocked = new CountDownLatch(25);
        CountDownLatch end = new CountDownLatch(1);
        List<CompletableFuture<Hold>> all = new ArrayList<>();
        for (int number = 0; number < 25; number++) {
            RedisLock lock = locks.lock("k").shared().owner("reader " + number);
            all.add(lock.acquireAsync().thenApply(hold -> {
                blocked.countDown();
                awaitQuietly(end);
                return hold;
            }));
        }
        assertTrue(blocked.await(10, TimeUnit.SECONDS), () -> blocked + " dependents do not run");
        Hold hold = locks.lock("l").acquireAsync().get(5, TimeUnit.SECONDS);
        hold.releaseAsync().get(5, TimeUnit.SECONDS);
        end.countDown();
        for (CompletableFuture<Hold> each : all) {
            each.get(5, TimeUnit.SECONDS).release();
        }
    }

    private static void awaitQuietly(CountDownLatch latch) {
        try {
            assertTrue(latch.await(30, TimeUnit.SECONDS));
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    @ParameterizedTest
    @EnumSource
    void thousandsOfWaitsNeedFewThreads(Library library) throws Exception {
        Locks locks = locks(library);
        Hold hold = locks.lock("k").acquire();
        List<CompletableFuture<Hold>> waits = new ArrayList<>();
        for (int number = 0; number < 3000; number++) {
            waits.add(locks.lock("k").owner("waiter " + number).acquireAsync());
        }
        untilWaiters(3000);
        long threads = threads().stream()
                .filter(each -> each.getName().equals("redis-lock-call"))
                .count();
        assertTrue(threads <= 20, () -> threads + " threads");
        waits.forEach(each -> each.cancel(true));
        untilWaiters(0);
        hold.release();
    }

    @ParameterizedTest
    @EnumSource
    void interruptedThreadReleases(Library library) throws Exception {
        Locks locks = locks(library);
        Hold hold = locks.lock("k").acquire();
        long turns = calls("lock.events");
        Thread.currentThread().interrupt();
        hold.extend();
        hold.release();
        assertTrue(Thread.interrupted());
        assertFalse(server.jedis.exists("k"));
        // An interrupted virtual thread cannot read from a socket. The reader would repeat both calls, in two turns.
        assertTrue(calls("lock.events") <= turns + 1);
    }

    @Test
    void exhaustedPoolDelaysCallsOnly() throws Exception {
        ConnectionPoolConfig config = new ConnectionPoolConfig();
        config.setMaxTotal(1);
        RedisClient client = closed(RedisClient.builder()
                .hostAndPort("127.0.0.1", server.port)
                .poolConfig(config)
                .build());
        Locks locks = closed(new Locks(new JedisConnector(client)));
        Hold first = locks.lock("l").acquire();
        try (Connection taken = client.getPool().getResource()) {
            assertTimeoutPreemptively(Duration.ofSeconds(20), () -> {
                first.release();
                locks.lock("k").tryAcquire().orElseThrow().release();
                locks.close();
            });
            assertTrue(taken.ping());
        }
    }

    @Test
    void handedOverHoldIsNotAwaited() throws Exception {
        Locks locks = locks(Library.LETTUCE);
        Hold hold = locks.lock("k").lease(Duration.ofSeconds(1)).acquire();
        hold.handOver();
        assertTimeoutPreemptively(Duration.ofSeconds(5), () -> assertFalse(hold.awaitLost(LONG)));
        until("the lease has ended", () -> !server.jedis.exists("k"));
    }

    private static boolean drop(Locks locks) throws InterruptedException {
        Hold hold = locks.lock("k").acquire();
        return hold.isLost() || hold.lost().isDone();
    }

    @ParameterizedTest
    @EnumSource
    void leasesAreExtended(Library library) throws Exception {
        Locks locks = locks(library);
        try (Hold hold = locks.lock("k").lease(Duration.ofSeconds(10)).acquire()) {
            hold.extend(LONG);
            assertTrue(hold.validFor().toSeconds() > 50 && server.jedis.pttl("k") > 50_000);
            hold.extend();
            assertTrue(hold.validFor().toSeconds() <= 10);
        }
        try (Hold hold = locks.lock("k").acquire()) {
            hold.extend();
            assertKind(Kind.MISUSE, () -> hold.extend(LONG));
            assertKind(Kind.MISUSE, () -> hold.releaseAfter(LONG));
        }
    }

    @ParameterizedTest
    @EnumSource
    void contendedLeasesNeedNoRenewal(Library library) throws Exception {
        RedisLock lock = locks(library).lock("k").lease(Duration.ofMinutes(1));
        Hold hold = lock.acquire();
        for (int round = 0; round < 5; round++) {
            CompletableFuture<Hold> wait = lock.owner("waiter " + round).acquireAsync();
            untilWaiters(1);
            hold.release();
            hold = wait.get(5, TimeUnit.SECONDS);
            assertFalse(hold.validFor().isZero());
        }
        Hold last = hold;
        // Until a later heartbeat confirms the grant, the server may revoke it after the grace of 3 s.
        until("the lease alone counts", () -> last.validFor().compareTo(Duration.ofSeconds(50)) > 0);
        last.release();
        assertEquals(0, calls("lock.renew"));
    }

    @ParameterizedTest
    @EnumSource
    void shortContendedLeaseIsSetAgain(Library library) throws Exception {
        Locks locks = locks(library);
        // A LOCK.EVENTS shortly before the grant may prove the lease, but not in every round.
        for (int round = 0; round < 3 || (calls("lock.renew") == 0 && round < 20); round++) {
            Hold hold = locks.lock("k").acquire();
            CompletableFuture<Hold> wait = locks.lock("k")
                    .owner("waiter")
                    .lease(Duration.ofMillis(250))
                    .acquireAsync();
            untilWaiters(1);
            // Longer than the lease, so that the acquire does not prove it.
            Thread.sleep(300);
            hold.release();
            assertFalse(wait.get(5, TimeUnit.SECONDS).isLost());
            until("the lease has ended", () -> !server.jedis.exists("k"));
        }
        assertTrue(calls("lock.renew") >= 1);
    }

    @ParameterizedTest
    @EnumSource
    void restOfALeaseIsNoLoss(Library library) throws Exception {
        Queue<LockEvent> events = new ConcurrentLinkedQueue<>();
        Locks locks = locks(library, server.uri(), builder -> builder.listener(events::add));
        for (int round = 0; round < 30; round++) {
            locks.lock("k").lease(LONG).owner("job " + round).acquire().releaseAfter(Duration.ofMillis(1));
        }
        locks.lock("k").lease(LONG).acquire().releaseAfter(Duration.ofSeconds(1));
        assertTrue(locks.lock("k").tryAcquire().isEmpty());
        assertTrue(server.jedis.pttl("k") <= 1000);
        assertFalse(events.stream().anyMatch(event -> event.outcome().equals("lost")), events::toString);
        until("the lease has ended", () -> !server.jedis.exists("k"));
    }

    @ParameterizedTest
    @EnumSource
    void severalLocksAreGrantedTogether(Library library) throws Exception {
        Locks locks = locks(library);
        try (Hold hold = locks.lockAll("k", "l").fence().acquire()) {
            assertEquals(2, hold.tokens().size());
            assertTrue(locks.lockAll("l", "other").owner("x").tryAcquire().isEmpty());
            CompletableFuture<Hold> wait =
                    locks.lockAll("l", "k").owner("y").fence().acquireAsync();
            untilWaiters(1);
            hold.release();
            Hold next = wait.get(5, TimeUnit.SECONDS);
            assertTrue(next.token().getAsLong() > 0);
            next.release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void holdIsHandedOver(Library library) throws Exception {
        Locks giver = locks(library);
        Locks taker = locks(library);
        Hold hold = giver.lock("k").acquire();
        String ticket = hold.handOver();
        hold.release();
        Hold taken = taker.lock("k").attach(ticket);
        assertEquals(hold.owner(), taken.owner());
        giver.close();
        assertFalse(hold.isLost());
        taken.extend();
        taken.release();
        assertThrows(Lost.class, () -> taker.lock("k").attach(ticket));
        assertKind(Kind.MISUSE, () -> taker.lock("k").attach("no ticket"));
    }

    @Test
    void wrongOptionsAreRefused() throws Exception {
        Locks locks = locks(Library.LETTUCE);
        RedisLock lock = locks.lock("k");
        assertKind(Kind.MISUSE, () -> locks.lock(""));
        assertKind(Kind.MISUSE, () -> locks.lock("\ud800"));
        assertKind(Kind.MISUSE, () -> locks.lock(new byte[0]));
        assertKind(Kind.MISUSE, () -> locks.lockAll());
        assertKind(Kind.MISUSE, () -> lock.lease(Duration.ZERO));
        assertKind(Kind.MISUSE, () -> lock.waiting(Duration.ofMillis(-1)));
        assertKind(Kind.MISUSE, () -> lock.limit(0));
        assertKind(Kind.MISUSE, () -> lock.owner("*"));
        assertKind(Kind.MISUSE, () -> lock.lease(LONG).maxHold(LONG));
        assertKind(Kind.MISUSE, () -> locks.lockAll("k", "l").limit(2));
        assertKind(
                Kind.MISUSE,
                () -> new Locks.Builder(connector(Library.LETTUCE, server.uri())).grace(Duration.ofMillis(1)));
        server.jedis.set("other", "no lock");
        assertKind(Kind.MISUSE, () -> locks.lock("other").acquire());
        server.jedis.del("other");
    }

    @ParameterizedTest
    @EnumSource
    void serverWithoutTheModuleIsMisuse(Library library) throws Exception {
        try (Server plain = new Server(false)) {
            Locks locks = locks(library, plain.uri(), builder -> builder);
            LockException error =
                    assertThrows(LockException.class, () -> locks.lock("k").acquire());
            assertEquals(Kind.MISUSE, error.kind());
            assertTrue(error.getMessage().contains("load the redis-lock module"), error::toString);
            locks.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void listenerMayReleaseAndTryButNotWait(Library library) throws Exception {
        Queue<Object> seen = new ConcurrentLinkedQueue<>();
        AtomicReference<Hold> other = new AtomicReference<>();
        AtomicReference<Locks> all = new AtomicReference<>();
        Locks locks = locks(
                library,
                server.uri(),
                builder -> builder.listener(event -> {
                    seen.add(event.outcome());
                    if (event.outcome().equals("lost")) {
                        other.get().release();
                        try {
                            all.get().lock("other").tryAcquire().orElseThrow().release();
                            all.get().lock("other").acquire().release();
                        } catch (LockException | InterruptedException error) {
                            seen.add(((LockException) error).kind());
                        }
                        throw new IllegalStateException("of the listener");
                    }
                }));
        all.set(locks);
        other.set(locks.lock("l").acquire());
        Hold hold = locks.lock("k").acquire();
        server.jedis.del("k");
        until("the wait is refused", () -> seen.contains(Kind.MISUSE));
        assertTrue(hold.isLost());
        assertFalse(server.jedis.exists("l"));
        locks.lock("k").acquire().release();
    }

    @ParameterizedTest
    @EnumSource
    void closeEndsAll(Library library) throws Exception {
        Locks locks = locks(library);
        Locks others = locks(library);
        Hold busy = others.lock("k").acquire();
        Hold hold = locks.lock("l").acquire();
        CompletableFuture<Hold> wait = locks.lock("k").acquireAsync();
        untilWaiters(1);
        locks.close();
        CompletionException error = assertThrows(CompletionException.class, wait::join);
        assertEquals(Kind.CANCELLED, ((LockException) error.getCause()).kind());
        assertTrue(hold.isLost());
        assertFalse(server.jedis.exists("l"));
        assertKind(Kind.MISUSE, () -> locks.lock("k").acquire());
        untilWaiters(0);
        busy.release();
    }

    @Test
    void threadLockIsReentrant() throws Exception {
        Locks locks = locks(Library.LETTUCE);
        ThreadLock lock = locks.lock("k").asLock();
        ThreadLock same = locks.lock("k").asLock();
        assertEquals(lock, same);
        lock.lock();
        assertTrue(same.tryLock());
        same.unlock();
        FutureTask<Boolean> other = thread(() -> {
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            return lock.tryLock() || lock.tryLock(10, TimeUnit.MILLISECONDS);
        });
        assertFalse(other.get());
        Hold hold = lock.heldByCurrentThread().orElseThrow();
        server.jedis.del("k");
        assertTrue(hold.awaitLost(LONG));
        assertTrue(lock.heldByCurrentThread().isEmpty());
        assertFalse(lock.tryLock());
        assertThrows(IllegalMonitorStateException.class, lock::lock);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        Thread.currentThread().interrupt();
        lock.lock();
        assertTrue(Thread.interrupted());
        lock.unlock();
    }

    @Test
    void threadLocksAreDistinguishedByTheirBytes() throws Exception {
        Locks locks = locks(Library.LETTUCE);
        ThreadLock first = locks.lock(new byte[] {(byte) 0x80}).asLock();
        ThreadLock second = locks.lock(new byte[] {(byte) 0x81}).asLock();
        assertNotEquals(first, second);
        assertNotEquals(locks.lock("k, l").asLock(), locks.lockAll("k", "l").asLock());
        first.lock();
        assertTrue(second.heldByCurrentThread().isEmpty());
        first.unlock();
        assertThrows(IllegalMonitorStateException.class, second::unlock);
    }

    @ParameterizedTest
    @EnumSource
    void queryAndForceRelease(Library library) throws Exception {
        Locks locks = locks(library);
        RedisLock lock = locks.lock(new byte[] {(byte) 0xff, 0});
        assertTrue(lock.query().isEmpty());
        Hold hold = lock.owner("me").acquire();
        Map<String, Object> info = lock.query().orElseThrow();
        assertTrue(info.get("holders").toString().contains("me"), info::toString);
        assertEquals("OK", hold.guard("SET", "other", "1"));
        assertEquals(1L, hold.guard("DEL", "other"));
        assertTrue(lock.forceRelease());
        assertTrue(hold.awaitLost(LONG));
        assertFalse(lock.forceRelease());
    }
}
