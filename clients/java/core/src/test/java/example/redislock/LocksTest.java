// SPDX-License-Identifier: MIT
package example.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.redislock.LockException.Kind;
import example.redislock.LockException.Lost;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** On a real server, with both libraries where they could differ. */
@Timeout(60)
class LocksTest {
    enum Library {
        LETTUCE(LettuceConnector::new),
        JEDIS(JedisConnector::new);

        @SuppressWarnings("ImmutableEnumChecker")
        final Function<String, Wire.Connector> connector;

        Library(Function<String, Wire.Connector> connector) {
            this.connector = connector;
        }

        Locks locks(Server server) {
            return new Locks(connector.apply(server.uri()));
        }
    }

    private Server server;

    @BeforeEach
    void start() throws Exception {
        server = new Server();
    }

    /** Each test leaves nothing on the server, and no thread. */
    @AfterEach
    void nothingStays() throws Exception {
        until(
                "the connections are closed",
                () -> server.info("connected_clients").equals("1"));
        assertEquals("0", server.info("lock_waiters"));
        assertEquals("0", server.info("lock_internal_errors"));
        assertEquals(0, server.jedis.exists("k", "other"));
        server.close();
        until("the threads have ended", () -> threads().isEmpty());
    }

    private static Set<String> threads() {
        return Thread.getAllStackTraces().keySet().stream()
                .map(Thread::getName)
                .filter(name -> name.startsWith("redis-lock") || name.startsWith("lettuce-nio"))
                .collect(Collectors.toSet());
    }

    static void until(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (!condition.call()) {
            assertTrue(System.nanoTime() - deadline < 0, () -> "waited in vain until " + what + ": " + threads());
            Thread.sleep(5);
        }
    }

    private void untilWaiters(int count) throws Exception {
        until(count + " wait", () -> server.info("lock_waiters").equals("" + count));
    }

    private static <T> FutureTask<T> thread(Callable<T> work) {
        FutureTask<T> task = new FutureTask<>(work);
        new Thread(task).start();
        return task;
    }

    @ParameterizedTest
    @EnumSource
    void firstComeFirstServed(Library library) throws Exception {
        try (Locks locks = library.locks(server)) {
            Hold first = locks.lock("k").acquire();
            ConcurrentLinkedQueue<Integer> order = new ConcurrentLinkedQueue<>();
            List<FutureTask<Void>> others = new ArrayList<>();
            for (int number = 0; number < 5; number++) {
                int me = number;
                others.add(thread(() -> locks.lock("k").with(hold -> {
                    order.add(me);
                    return null;
                })));
                untilWaiters(number + 1);
            }
            first.release();
            for (FutureTask<Void> other : others) {
                other.get();
            }
            assertEquals(List.of(0, 1, 2, 3, 4), List.copyOf(order));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aThousandWaitOverTwoConnections(Library library) throws Exception {
        try (Locks locks = library.locks(server)) {
            Hold first = locks.lock("k").acquire();
            AtomicInteger served = new AtomicInteger();
            AtomicInteger inside = new AtomicInteger();
            List<CompletableFuture<Void>> waits = new ArrayList<>();
            for (int number = 0; number < 1000; number++) {
                waits.add(locks.lock("k").acquireAsync().thenCompose(hold -> {
                    assertEquals(1, inside.incrementAndGet());
                    served.incrementAndGet();
                    inside.decrementAndGet();
                    return hold.releaseAsync();
                }));
            }
            untilWaiters(1000);
            assertEquals("3", server.info("connected_clients"));
            first.release();
            CompletableFuture.allOf(waits.toArray(CompletableFuture[]::new)).get(50, TimeUnit.SECONDS);
            assertEquals(1000, served.get());
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoIsInterruptedLeavesNothing(Library library) throws Exception {
        try (Locks locks = library.locks(server)) {
            Hold first = locks.lock("k").acquire();
            CompletableFuture<Thread> waiting = new CompletableFuture<>();
            FutureTask<Boolean> waiter = thread(() -> {
                waiting.complete(Thread.currentThread());
                locks.lock("k").lockInterruptibly();
                return true;
            });
            untilWaiters(1);
            waiting.get().interrupt();
            assertInstanceOf(
                    InterruptedException.class,
                    assertThrows(ExecutionException.class, waiter::get).getCause());
            assertEquals("0", server.info("lock_waiters"));
            first.release();
        }
    }

    @Test
    void whoCancelsAFutureLeavesNothing() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            Hold first = locks.lock("k").acquire();
            CompletableFuture<Hold> waits = locks.lock("k").acquireAsync();
            untilWaiters(1);
            assertTrue(waits.cancel(true));
            untilWaiters(0);
            assertThrows(CancellationException.class, waits::get);
            CompletableFuture<Hold> late = locks.lock("k").acquireAsync().orTimeout(100, TimeUnit.MILLISECONDS);
            assertInstanceOf(
                    TimeoutException.class,
                    assertThrows(ExecutionException.class, late::get).getCause());
            untilWaiters(0);
            first.release();
        }
    }

    /** At each moment, among them that of the grant. */
    @Test
    void aCancelThatMeetsTheGrantLeavesNothing() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            int granted = 0;
            for (int round = 0; round < 200; round++) {
                Hold first = locks.lock("k").acquire();
                CompletableFuture<Hold> waits =
                        locks.lock("k").lease(Duration.ofMinutes(10)).acquireAsync();
                untilWaiters(1);
                CompletableFuture<Void> released = first.releaseAsync();
                long until = System.nanoTime() + round * 5_000L;
                while (System.nanoTime() - until < 0) {
                    Thread.onSpinWait();
                }
                if (!waits.cancel(true)) {
                    granted++;
                    waits.get().release();
                }
                released.get();
                until("nobody holds it", () -> !server.jedis.exists("k"));
            }
            assertTrue(granted < 200, "none was cancelled");
        }
    }

    @Test
    void aLockOfAThreadIsReentrant() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            RedisLock lock = locks.lock("k");
            lock.lock();
            assertTrue(lock.tryLock());
            // Another object is the same lock.
            locks.lock("k").lock();
            lock.unlock();
            lock.unlock();
            assertTrue(lock.heldByCurrentThread().isPresent());
            assertFalse(thread(() -> locks.lock("k").tryLock()).get());
            assertFalse(thread(() -> locks.lock("k").tryLock(50, TimeUnit.MILLISECONDS))
                    .get());
            ExecutionException refused = assertThrows(
                    ExecutionException.class,
                    () -> thread(() -> {
                                lock.unlock();
                                return null;
                            })
                            .get());
            assertInstanceOf(IllegalMonitorStateException.class, refused.getCause());
            lock.unlock();
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            assertTrue(thread(() -> {
                        boolean locked = lock.tryLock(1, TimeUnit.SECONDS);
                        lock.unlock();
                        return locked;
                    })
                    .get());
            assertThrows(UnsupportedOperationException.class, lock::newCondition);
            assertTrue(locks.entries.isEmpty());
        }
    }

    @Test
    void lockIsNotInterruptedAndKeepsTheInterrupt() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            Hold first = locks.lock("k").acquire();
            CompletableFuture<Thread> waiting = new CompletableFuture<>();
            FutureTask<Boolean> waiter = thread(() -> {
                waiting.complete(Thread.currentThread());
                locks.lock("k").lock();
                boolean interrupted = Thread.interrupted();
                locks.lock("k").unlock();
                return interrupted;
            });
            untilWaiters(1);
            waiting.get().interrupt();
            first.release();
            assertTrue(waiter.get());
        }
    }

    @Test
    void readersShareAndWritersDoNot() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            ReadWriteLock lock = locks.readWriteLock("k");
            lock.readLock().lock();
            assertTrue(thread(() -> {
                        boolean shared = lock.readLock().tryLock();
                        lock.readLock().unlock();
                        return shared;
                    })
                    .get());
            assertFalse(thread(() -> lock.writeLock().tryLock()).get());
            lock.readLock().unlock();
            lock.writeLock().lock();
            assertFalse(thread(() -> lock.readLock().tryLock()).get());
            lock.writeLock().unlock();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLossIsToldOnce(Library library) throws Exception {
        ConcurrentLinkedQueue<LockEvent> events = new ConcurrentLinkedQueue<>();
        try (Locks locks = new Locks(library.connector.apply(server.uri()), Duration.ofSeconds(5), events::add)) {
            Hold hold = locks.lock("k").keep(true).lease(Duration.ofMillis(600)).acquire();
            CompletableFuture<Void> told = hold.lost();
            assertFalse(hold.isLost());
            server.call("LOCK.BREAK", "k");
            told.get(10, TimeUnit.SECONDS);
            assertTrue(hold.isLost() && hold.awaitLost(Duration.ZERO));
            assertEquals(Duration.ZERO, hold.validFor());
            for (int twice = 0; twice < 2; twice++) {
                assertThrows(Lost.class, hold::release);
            }
            assertThrows(Lost.class, () -> hold.extend(Duration.ofSeconds(1)));
            assertThrows(Lost.class, () -> hold.guard("SET", "other", "1"));
        }
        assertEquals(
                List.of("granted", "lost"),
                events.stream().map(LockEvent::outcome).toList());
    }

    @Test
    void aLossInTheBodyIsTold() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            assertThrows(Lost.class, () -> locks.lock("k").with(hold -> server.jedis.del("k")));
            IllegalStateException own = new IllegalStateException();
            assertSame(
                    own,
                    assertThrows(
                            IllegalStateException.class,
                            () -> locks.lock("k").with(hold -> {
                                server.jedis.del("k");
                                throw own;
                            })));
            RedisLock lock = locks.lock("k");
            lock.lock();
            server.jedis.del("k");
            Throwable lost = assertThrows(IllegalMonitorStateException.class, lock::unlock);
            assertInstanceOf(Lost.class, lost.getCause());
            assertTrue(locks.entries.isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aServerThatIsSilentLosesByTheOwnClock(Library library) throws Exception {
        try (Locks locks = library.locks(server)) {
            Hold hold = locks.lock("k").keep(true).lease(Duration.ofMillis(800)).acquire();
            server.signal("STOP");
            try {
                assertTrue(hold.awaitLost(Duration.ofSeconds(10)));
            } finally {
                server.signal("CONT");
            }
            assertThrows(Lost.class, hold::release);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aBrokenConnectionKeepsTheHoldAndTheWait(Library library) throws Exception {
        try (Locks locks = library.locks(server)) {
            Hold hold = locks.lock("k").lease(Duration.ofMinutes(10)).acquire();
            CompletableFuture<Hold> waits = locks.lock("k").acquireAsync();
            untilWaiters(1);
            for (String id : server.jedis
                    .clientList()
                    .lines()
                    .filter(line -> !line.contains("cmd=client"))
                    .map(line -> line.split("[ =]", -1)[1])
                    .toList()) {
                server.call("CLIENT", "KILL", "ID", id);
            }
            until(
                    "it waits again",
                    () -> server.info("lock_waiters").equals("1")
                            && server.info("connected_clients").equals("3"));
            hold.release();
            waits.get(10, TimeUnit.SECONDS).release();
        }
    }

    @Test
    void aHoldIsHandedOn() throws Exception {
        Locks first = Library.LETTUCE.locks(server);
        String owner =
                first.lock("k").lease(Duration.ofMinutes(10)).fence().acquire().owner();
        first.close();
        try (Locks second = Library.LETTUCE.locks(server)) {
            RedisLock lock = second.lock("k").lease(Duration.ofMinutes(10));
            Hold hold = lock.attach(owner);
            assertTrue(hold.validFor().toSeconds() > 500);
            assertEquals("OK", hold.guard("SET", "other", "1"));
            assertEquals("1", server.jedis.get("other"));
            hold.close();
            assertThrows(Lost.class, () -> lock.attach(owner));
            server.jedis.del("other");
        }
    }

    @Test
    void tokensGrow() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            long before = 0;
            for (int round = 0; round < 3; round++) {
                try (Hold hold = locks.lock("k").fence().acquire()) {
                    assertTrue(hold.token().orElseThrow() > before);
                    before = hold.token().orElseThrow();
                }
            }
            try (Hold hold = locks.lock("k").acquire()) {
                assertTrue(hold.token().isEmpty());
            }
        }
        server.jedis.del("redisson_lock_token:{k}");
    }

    @Test
    void badInputChangesNothing() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            RedisLock lock = locks.lock("k");
            List<Runnable> wrong = List.of(
                    () -> locks.lock(null),
                    () -> lock.lease(Duration.ZERO),
                    () -> lock.lease(null),
                    () -> lock.lease(Duration.ofDays(100_000)),
                    () -> lock.waiting(Duration.ofMillis(-1)),
                    () -> lock.maxHold(Duration.ofMillis(-1)),
                    () -> lock.limit(0));
            for (Runnable call : wrong) {
                assertEquals(
                        Kind.MISUSE,
                        assertThrows(LockException.class, call::run).kind());
            }
            server.jedis.set("other", "text");
            LockException error =
                    assertThrows(LockException.class, () -> locks.lock("other").acquire());
            assertEquals(Kind.MISUSE, error.kind());
            assertTrue(error.getMessage().startsWith("WRONGTYPE"));
            server.jedis.del("other");
            Hold hold = lock.acquire();
            assertEquals(
                    Kind.BUSY,
                    assertThrows(
                                    LockException.class,
                                    () -> lock.waiting(Duration.ZERO).acquire())
                            .kind());
            assertEquals(
                    Kind.TIMED_OUT,
                    assertThrows(
                                    LockException.class,
                                    () -> lock.waiting(Duration.ofMillis(20)).acquire())
                            .kind());
            assertTrue(lock.tryAcquire().isEmpty());
            hold.release();
        }
    }

    /** One owner for all locks of a task: the server sees the circle. */
    @Test
    void aDeadlockIsFound() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            Hold a = locks.lock("k").owner("a").acquire();
            Hold b = locks.lock("other").owner("b").acquire();
            CompletableFuture<Hold> waits = locks.lock("other").owner("a").acquireAsync();
            untilWaiters(1);
            LockException error = assertThrows(
                    LockException.class, () -> locks.lock("k").owner("b").acquire());
            assertEquals(Kind.DEADLOCK, error.kind());
            b.release();
            waits.get(10, TimeUnit.SECONDS).release();
            a.release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aCloseEndsAll(Library library) throws Exception {
        Locks locks = library.locks(server);
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Hold> waits = locks.lock("k").acquireAsync();
        untilWaiters(1);
        locks.close();
        assertTrue(hold.isLost());
        ExecutionException ended = assertThrows(ExecutionException.class, waits::get);
        assertEquals(
                Kind.UNAVAILABLE,
                assertInstanceOf(LockException.class, ended.getCause()).kind());
        LockException closed =
                assertThrows(LockException.class, () -> locks.lock("k").acquire());
        assertEquals("closed", closed.getMessage());
        locks.close();
        until("the hold is gone", () -> !server.jedis.exists("k"));
    }

    /** What is begun while it closes ends as well. */
    @Test
    void aCloseEndsWhatIsBegunMeanwhile() throws Exception {
        for (int round = 0; round < 100; round++) {
            Locks locks = Library.LETTUCE.locks(server);
            List<FutureTask<Boolean>> others = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                others.add(thread(() -> {
                    while (true) {
                        try {
                            locks.lock("k").tryAcquire().ifPresent(Hold::release);
                        } catch (LockException ended) {
                            if (ended.getMessage().equals("closed")) {
                                return true;
                            }
                        }
                    }
                }));
            }
            Thread.sleep(round % 10);
            locks.close();
            for (FutureTask<Boolean> other : others) {
                assertTrue(other.get(10, TimeUnit.SECONDS));
            }
        }
        until("nobody holds it", () -> !server.jedis.exists("k"));
    }

    @Test
    void aCloseEndsAReleaseThatIsTried() throws Exception {
        Locks locks = Library.LETTUCE.locks(server);
        Hold hold = locks.lock("k").lease(Duration.ofMinutes(10)).acquire();
        server.signal("STOP");
        CompletableFuture<Void> release = hold.releaseAsync();
        locks.close();
        server.signal("CONT");
        assertNotNull(assertThrows(ExecutionException.class, release::get));
        until("it is free", () -> {
            server.jedis.del("k");
            return !server.jedis.exists("k");
        });
    }

    /** A listener that fails keeps nobody from a lock. */
    @Test
    void aListenerMayFail() throws Exception {
        try (Locks locks = new Locks(new LettuceConnector(server.uri()), Duration.ofSeconds(5), event -> {
            throw new IllegalStateException("on purpose");
        })) {
            locks.lock("k").acquire().release();
            locks.lock("k").acquire().release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void silenceEndsAWaitWithoutLimit(Library library) throws Exception {
        try (Locks locks = new Locks(library.connector.apply(server.uri()), Duration.ofMillis(300), event -> {})) {
            server.call("LOCK.ACQUIRE", "k", "somebody", "PX", "600");
            CompletableFuture<Hold> wait = locks.lock("k").ownConnection().acquireAsync();
            untilWaiters(1);
            server.signal("STOP");
            ExecutionException error = assertThrows(ExecutionException.class, () -> wait.get(30, TimeUnit.SECONDS));
            assertTrue(((LockException) error.getCause()).is(Kind.UNAVAILABLE), error::toString);
            server.signal("CONT");
            untilWaiters(0);
            until("it is free", () -> server.jedis.exists("k", "other") == 0);
            // As long as Java can say.
            assertTrue(locks.lock("k").ownConnection().tryLock(Long.MAX_VALUE, TimeUnit.NANOSECONDS));
            locks.lock("k").unlock();
        }
    }
}
