// SPDX-License-Identifier: MIT
package example.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.redislock.LockException.Kind;
import example.redislock.LockException.Lost;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.DefaultEventLoopGroupProvider;
import io.lettuce.core.resource.EventLoopGroupProvider;
import io.netty.util.concurrent.DefaultPromise;
import io.netty.util.concurrent.EventExecutorGroup;
import io.netty.util.concurrent.ImmediateEventExecutor;
import io.netty.util.concurrent.Promise;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
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

    /** Of a test that failed, maybe. */
    private final Set<Thread> before = threads();

    private Server server;

    @BeforeEach
    void start() throws Exception {
        server = new Server();
    }

    /** Each test leaves nothing on the server, and no thread. */
    @AfterEach
    void nothingStays() throws Exception {
        try (Server used = server) {
            nothingStays(used);
        }
        until("the threads have ended", () -> before.containsAll(threads()));
    }

    static void nothingStays(Server server) throws Exception {
        until(
                "the connections are closed",
                () -> server.info("connected_clients").equals("1"));
        assertEquals("0", server.info("lock_waiters"));
        assertEquals("0", server.info("lock_internal_errors"));
        assertEquals(0, server.jedis.exists("k", "other"));
    }

    static Set<Thread> threads() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().startsWith("redis-lock")
                        || thread.getName().startsWith("lettuce-nio"))
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
        untilWaiters(server, count);
    }

    static void untilWaiters(Server server, int count) throws Exception {
        until(count + " wait", () -> server.info("lock_waiters").equals("" + count));
    }

    private static void spin(long time) {
        long until = System.nanoTime() + time;
        while (System.nanoTime() - until < 0) {
            Thread.onSpinWait();
        }
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
                spin(round * 5_000L);
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
            lock.lock();
            for (Executable call :
                    List.<Executable>of(lock::lockInterruptibly, () -> lock.tryLock(1, TimeUnit.SECONDS))) {
                Thread.currentThread().interrupt();
                assertThrows(InterruptedException.class, call);
                assertFalse(Thread.interrupted());
            }
            lock.unlock();
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

    @Test
    void neitherDowngradeNorUpgrade() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            ReadWriteLock lock = locks.readWriteLock("k");
            for (List<Lock> kinds :
                    List.of(List.of(lock.readLock(), lock.writeLock()), List.of(lock.writeLock(), lock.readLock()))) {
                kinds.get(0).lock();
                Lock other = kinds.get(1);
                for (Executable call : List.<Executable>of(
                        other::lockInterruptibly, () -> other.tryLock(1, TimeUnit.SECONDS), other::lock)) {
                    assertThrows(IllegalMonitorStateException.class, call);
                }
                assertFalse(other.tryLock());
                kinds.get(0).unlock();
            }
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

    /** Whatever other programs do in the common pool, or users where they are told. */
    @ParameterizedTest
    @EnumSource
    void nobodyKeepsOthersFromBeingTold(Library library) throws Exception {
        CompletableFuture<Void> end = new CompletableFuture<>();
        for (int number = 0; number < 10; number++) {
            ForkJoinPool.commonPool().execute(() -> {
                try {
                    end.get();
                } catch (InterruptedException | ExecutionException never) {
                    throw new AssertionError(never);
                }
            });
        }
        Locks locks = library.locks(server);
        try {
            Hold hold = locks.lock("k").keep(true).lease(Duration.ofMillis(600)).acquire();
            CompletableFuture<Void> told = hold.lost();
            CompletableFuture<Void> busy = hold.lost().thenRun(end::join);
            server.call("LOCK.BREAK", "k");
            assertTrue(hold.awaitLost(Duration.ofSeconds(10)));
            told.get(10, TimeUnit.SECONDS);
            assertTrue(hold.lost().isDone());
            hold = locks.lock("k").acquireAsync().get(10, TimeUnit.SECONDS);
            server.signal("STOP");
            CompletableFuture<Void> busyToo = hold.releaseAsync().thenRun(end::join);
            server.signal("CONT");
            locks.lock("k").acquireAsync().get(10, TimeUnit.SECONDS).release();
            assertFalse(busy.isDone() || busyToo.isDone());
        } finally {
            end.complete(null);
            locks.close();
        }
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
    void aKeptHoldIsHandedOnToWhoKeepsIt() throws Exception {
        ConcurrentLinkedQueue<LockEvent> events = new ConcurrentLinkedQueue<>();
        Locks first = new Locks(new LettuceConnector(server.uri()), Duration.ofSeconds(5), events::add);
        RedisLock lock = first.lock("k").keep(true).lease(Duration.ofMillis(900));
        try (Locks second = Library.JEDIS.locks(server)) {
            Hold hold = lock.acquire();
            assertEquals(hold.owner(), hold.handOver());
            assertEquals(Duration.ZERO, hold.validFor());
            Hold theirs = second.lock("k").attach(hold.owner());
            hold.close();
            // So long that the first would have renewed.
            assertFalse(hold.awaitLost(Duration.ofMillis(500)) || hold.isLost());
            first.close();
            assertFalse(theirs.awaitLost(Duration.ofMillis(200)));
            assertEquals("OK", theirs.guard("SET", "other", "1"));
            theirs.release();
            server.jedis.del("other");
        }
        assertEquals(
                List.of("granted", "released"),
                events.stream().map(LockEvent::outcome).toList());
    }

    /** A renewal that comes after the other has attached would take the hold back. */
    @Test
    void aHoldIsHandedOverAfterItsRenewal() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            Hold hold = locks.lock("k").keep(true).lease(Duration.ofSeconds(3)).acquire();
            server.signal("STOP");
            Thread.sleep(1300);
            FutureTask<String> handedOver = thread(hold::handOver);
            assertThrows(TimeoutException.class, () -> handedOver.get(200, TimeUnit.MILLISECONDS));
            server.signal("CONT");
            locks.lock("k").attach(handedOver.get()).release();
            server.call("LOCK.ACQUIRE", "k", "somebody");
            server.call("LOCK.RELEASE", "k", "somebody");
        }
    }

    @ParameterizedTest
    @EnumSource
    void aKeptHoldIsNotLeftToALease(Library library) throws Exception {
        try (Locks first = library.locks(server);
                Locks second = library.locks(server)) {
            for (RedisLock lock : List.of(first.lock("k"), first.lock("k").shared())) {
                Hold hold = lock.acquire();
                Object before = holder();
                for (Runnable call : List.<Runnable>of(
                        () -> second.lock("k").lease(Duration.ofSeconds(9)).attach(hold.owner()),
                        () -> hold.releaseAfter(Duration.ofSeconds(9)))) {
                    LockException error = assertThrows(LockException.class, call::run);
                    assertEquals(Kind.MISUSE, error.kind());
                    assertTrue(error.getMessage().startsWith("k: the hold is bound to a connection"), error::toString);
                }
                assertEquals(before, holder());
                hold.release();
            }
        }
    }

    /** Whose it is, and what it is bound to. */
    private List<?> holder() {
        List<?> holders = (List<?>) ((List<?>) server.call("LOCK.INFO", "k")).get(7);
        return List.of(1, 11, 13, 15).stream()
                .map(field -> ((List<?>) holders.get(0)).get(field))
                .map(value -> value instanceof byte[] text ? new String(text, StandardCharsets.UTF_8) : value)
                .toList();
    }

    /** What is refused for now is tried again. */
    @ParameterizedTest
    @EnumSource
    void aServerWithTooManyClients(Library library) throws Exception {
        for (String password : List.of("", "secret")) {
            server.call("CONFIG", "SET", "requirepass", password);
            String uri = password.isEmpty() ? server.uri() : server.uri().replace("//", "//:" + password + "@");
            try (Locks locks = new Locks(library.connector.apply(uri));
                    Locks late = new Locks(library.connector.apply(uri))) {
                Hold hold = locks.lock("k").lease(Duration.ofMinutes(10)).acquire();
                server.call("CONFIG", "SET", "maxclients", "1");
                server.call("CLIENT", "KILL", "SKIPME", "yes");
                until("nobody is there", () -> server.info("connected_clients").equals("1"));
                LockException refused = assertThrows(
                        LockException.class, () -> late.lock("other").tryAcquire());
                assertEquals(Kind.UNAVAILABLE, refused.kind(), refused::toString);
                CompletableFuture<Void> release = hold.releaseAsync();
                CompletableFuture<Hold> wait = late.lock("other").acquireAsync();
                Thread.sleep(300);
                server.call("CONFIG", "SET", "maxclients", "100");
                release.get(10, TimeUnit.SECONDS);
                wait.get(10, TimeUnit.SECONDS).release();
            }
        }
    }

    @Test
    void aReleaseWaitsUntilTheServerCanWrite() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            Hold hold = locks.lock("k").acquire();
            canWrite(server, false);
            CompletableFuture<Void> release = hold.releaseAsync();
            Thread.sleep(200);
            canWrite(server, true);
            release.get(10, TimeUnit.SECONDS);
            // It fails, and nobody calls it again.
            hold = locks.lock("k").keep(true).lease(Duration.ofMillis(600)).acquire();
            canWrite(server, false);
            assertThrows(LockException.class, hold::release);
            canWrite(server, true);
            until("it is given back", () -> !server.jedis.exists("k"));
        }
    }

    static void canWrite(Server server, boolean can) {
        server.call("CONFIG", "SET", "min-replicas-to-write", can ? "0" : "1");
    }

    /** A release goes by the owner's name. */
    @Test
    void anOwnerThatIsUsedAgainKeepsWhatItGets() throws Exception {
        AtomicInteger refusals = new AtomicInteger(Integer.MAX_VALUE);
        try (Locks locks = new Locks(refusing(server, "LOCK.RELEASE", "NOREPLICAS on purpose", refusals))) {
            RedisLock lock = locks.lock("k").owner("me");
            Hold old = lock.keep(true).lease(Duration.ofMillis(300)).acquire();
            assertThrows(LockException.class, old::release);
            assertEquals(Duration.ZERO, old.validFor());
            RedisLock hurried = lock.waiting(Duration.ofMillis(100));
            assertEquals(
                    Kind.UNAVAILABLE,
                    assertThrows(LockException.class, hurried::acquire).kind());
            CompletableFuture<Hold> again = lock.acquireAsync();
            refusals.set(0);
            Hold hold = again.get(10, TimeUnit.SECONDS);
            assertThrows(Lost.class, () -> old.guard("SET", "written", "v"));
            try {
                old.release();
            } catch (Lost lost) {
                // By its own clock, maybe.
            }
            // Longer than until the next attempt.
            Thread.sleep(1200);
            assertEquals("PONG", hold.guard("PING"));
            assertFalse(hold.validFor().isZero());
            hold.release();
            assertFalse(server.jedis.exists("k") || server.jedis.exists("written"));
        }
    }

    @Test
    void whoLostALockDoesNotGiveBackTheNextOfItsName() throws Exception {
        try (Locks locks = new Locks(new JedisConnector(server.uri()))) {
            for (boolean keep : new boolean[] {false, true}) {
                RedisLock lock = locks.lock("k").owner("me");
                Hold old = lock.lease(Duration.ofMillis(200)).keep(keep).acquire();
                server.jedis.del("k");
                assertTrue(old.awaitLost(Duration.ofSeconds(5)));
                Hold hold = lock.acquire();
                assertThrows(Lost.class, old::release);
                assertThrows(Lost.class, () -> old.guard("SET", "written", "v"));
                assertEquals("PONG", hold.guard("PING"));
                hold.release();
                assertFalse(server.jedis.exists("k") || server.jedis.exists("written"));
            }
        }
    }

    /** It was told: the other was granted, so nothing of that owner was held. */
    @Test
    void whatANewHoldOfTheOwnerFollowsIsLost() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            for (boolean own : new boolean[] {false, true}) {
                RedisLock lock = locks.lock("k").owner("me").lease(Duration.ofMinutes(10));
                Hold old = lock.acquire();
                server.jedis.del("k");
                Hold hold = (own ? lock.ownConnection() : lock).acquire();
                assertTrue(old.isLost());
                assertTrue(old.awaitLost(Duration.ZERO));
                assertThrows(Lost.class, old::release);
                assertEquals("PONG", hold.guard("PING"));
                locks.lock("k").lease(Duration.ofMinutes(10)).attach("me");
                assertFalse(hold.isLost());
                hold.release();
            }
            // Of readers, each counts.
            RedisLock shared = locks.lock("k").owner("me").shared();
            Hold one = shared.acquire();
            Hold other = shared.acquire();
            assertFalse(one.isLost());
            one.release();
            other.release();
            assertFalse(server.jedis.exists("k"));
        }
    }

    /** With a renewal that is due. */
    @Test
    void aReleaseThatFailedGoesOn() throws Exception {
        AtomicInteger refusals = new AtomicInteger(20);
        Wire.Connector refusing = refusing(server, "LOCK.RELEASE", "NOREPLICAS on purpose", refusals);
        try (Locks locks = new Locks(refusing)) {
            RedisLock lock = locks.lock("k").keep(true).lease(Duration.ofMillis(600));
            lock.lock();
            Hold hold = lock.heldByCurrentThread().orElseThrow();
            assertEquals(
                    Kind.UNAVAILABLE,
                    assertThrows(LockException.class, lock::unlock).kind());
            refusals.set(1);
            assertThrows(IllegalMonitorStateException.class, lock::lock);
            assertTrue(lock.heldByCurrentThread().isEmpty());
            assertEquals(Duration.ZERO, hold.validFor());
            assertThrows(Lost.class, () -> hold.extend(Duration.ofSeconds(9)));
            assertThrows(Lost.class, hold::handOver);
            until("it is given back", () -> !server.jedis.exists("k"));
            // Nobody has to unlock it again.
            until("it is known here", hold::isGone);
            lock.lock();
            lock.unlock();
        }
    }

    /** A server that refuses a command so often. */
    static Wire.Connector refusing(Server server, String verb, String text, AtomicInteger refusals) {
        return changed(
                new LettuceConnector(server.uri()),
                (wire, words) -> words.get(0).equals(verb) && refusals.getAndDecrement() > 0
                        ? CompletableFuture.failedFuture(new Wire.ServerError(text))
                        : wire.call(words));
    }

    /** With other calls. */
    static Wire.Connector changed(
            Wire.Connector connector, BiFunction<Wire, List<String>, CompletionStage<Object>> call) {
        return changed(connector, call, () -> {});
    }

    /** The same, which does something after it has closed a connection. */
    private static Wire.Connector changed(
            Wire.Connector connector,
            BiFunction<Wire, List<String>, CompletionStage<Object>> call,
            Runnable afterClose) {
        return new Wire.Connector() {
            @Override
            public CompletionStage<Wire> open(String channel, Consumer<String> told, Runnable ended) {
                return connector.open(channel, told, ended).thenApply(wire -> new Wire() {
                    @Override
                    public CompletionStage<Object> call(List<String> words) {
                        return call.apply(wire, words);
                    }

                    @Override
                    public void close() {
                        wire.close();
                        afterClose.run();
                    }

                    @Override
                    public void giveUp() {
                        wire.giveUp();
                    }
                });
            }

            @Override
            public void close() {
                connector.close();
            }
        };
    }

    @Test
    void whatMayNotBeGivenBackRunsOut() throws Exception {
        server.call("ACL", "SETUSER", "default", "-lock.release");
        try (Locks locks = Library.LETTUCE.locks(server)) {
            Hold hold = locks.lock("k").keep(true).lease(Duration.ofMillis(900)).acquire();
            assertEquals(
                    Kind.MISUSE,
                    assertThrows(LockException.class, hold::release).kind());
            until("it is over", () -> !server.jedis.exists("k"));
            assertTrue(hold.awaitLost(Duration.ofSeconds(2)));
        }
    }

    @Test
    void aCancelledWaitLeavesWhenTheServerCanWrite() throws Exception {
        try (Locks locks = Library.LETTUCE.locks(server)) {
            Hold first = locks.lock("k").lease(Duration.ofMinutes(10)).acquire();
            CompletableFuture<Hold> waits =
                    locks.lock("k").lease(Duration.ofMillis(100)).acquireAsync();
            untilWaiters(1);
            canWrite(server, false);
            assertTrue(waits.cancel(true));
            // For longer than the lease.
            Thread.sleep(1500);
            assertEquals("1", server.info("lock_waiters"));
            canWrite(server, true);
            untilWaiters(0);
            first.release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aKeptHoldIsNotValidWithoutItsConnection(Library library) throws Exception {
        try (Locks first = library.locks(server);
                Locks second = library.locks(server)) {
            Hold hold = first.lock("k").acquire();
            Hold leased = first.lock("other").lease(Duration.ofMinutes(10)).acquire();
            List<String> ids = server.jedis
                    .clientList()
                    .lines()
                    .filter(line -> line.contains("cmd=lock"))
                    .map(line -> line.split("[ =]", -1)[1])
                    .toList();
            server.call("CLIENT", "KILL", "TYPE", "pubsub");
            Thread.sleep(200);
            assertTrue(hold.validFor().toSeconds() > 20);
            // So it does not end.
            second.lock("k").attach(hold.owner());
            server.call("CONFIG", "SET", "maxclients", "1");
            for (String id : ids) {
                server.call("CLIENT", "KILL", "ID", id);
            }
            until("it is not valid", () -> hold.validFor().isZero());
            assertTrue(leased.validFor().toSeconds() > 500);
            assertFalse(hold.isLost());
            server.call("CONFIG", "SET", "maxclients", "100");
            until("it is renewed", () -> hold.validFor().toSeconds() > 20);
            hold.release();
            leased.release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatIsLostByTheOwnClockIsGivenBack(Library library) throws Exception {
        try (Locks locks = library.locks(server)) {
            Hold hold = locks.lock("k").keep(true).lease(Duration.ofMillis(600)).acquire();
            server.call("ACL", "SETUSER", "default", "-lock.renew");
            assertTrue(hold.awaitLost(Duration.ofSeconds(5)));
            until("it is given back", () -> !server.jedis.exists("k"));
            assertThrows(Lost.class, hold::release);
        }
    }

    /** It would bind the hold to this process again. */
    @Test
    void whatIsGivenAwayIsNotRenewed() throws Exception {
        try (Locks first = Library.LETTUCE.locks(server);
                Locks second = Library.LETTUCE.locks(server)) {
            Hold hold = first.lock("k").acquire();
            Hold theirs = second.lock("k").attach(hold.handOver());
            Object before = holder();
            for (Runnable call : List.<Runnable>of(hold::extend, hold::handOver)) {
                assertThrows(Lost.class, call::run);
            }
            assertEquals(before, holder());
            theirs.release();
            Hold again = second.lock("k").owner(hold.owner()).acquire();
            before = holder();
            assertThrows(Lost.class, theirs::extend);
            assertEquals(before, holder());
            again.release();
            Hold leased = first.lock("k").lease(Duration.ofMinutes(10)).acquire();
            leased.releaseAfter(Duration.ofSeconds(1));
            assertThrows(Lost.class, leased::extend);
            until("it is over", () -> !server.jedis.exists("k"));
            assertFalse(hold.isLost() || theirs.isLost() || leased.isLost());
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
                    () -> lock.limit(0),
                    () -> lock.owner("*"),
                    () -> lock.attach("*"),
                    () -> lock.attach(null));
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

    /** It was carried out. */
    @ParameterizedTest
    @EnumSource
    void anErrorInAReplyIsAnElementOfIt(Library library) throws Exception {
        try (Locks locks = library.locks(server);
                Hold hold = locks.lock("k").acquire()) {
            String script = "return {{redis.error_reply('WRONGTYPE in'), false}, 'a'}";
            List<?> reply = assertInstanceOf(List.class, hold.guard("EVAL", script, "0"));
            assertEquals("a", reply.get(1));
            List<?> inner = assertInstanceOf(List.class, reply.get(0));
            assertNull(inner.get(1));
            LockException error = assertInstanceOf(LockException.class, inner.get(0));
            assertEquals(Kind.MISUSE, error.kind());
            assertEquals("WRONGTYPE in", error.getMessage());
            assertThrows(LockException.class, () -> hold.guard("EVAL", "return {err='ERR out'}", "0"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void theWordsOfAScriptEndNoConnection(Library library) throws Exception {
        try (Locks locks = library.locks(server);
                Hold hold = locks.lock("k").acquire()) {
            String before = server.info("total_connections_received");
            for (String text : List.of(
                    "LOADING data",
                    "READONLY x",
                    "MASTERDOWN x",
                    "UNBLOCKED x instance state changed",
                    "ERR max number of clients")) {
                LockException error =
                        assertThrows(LockException.class, () -> hold.guard("EVAL", "return {err='" + text + "'}", "0"));
                assertEquals(Kind.UNAVAILABLE, error.kind());
                assertEquals(text, error.getMessage());
                assertEquals("OK", hold.guard("SET", "other", "1"));
            }
            assertEquals(before, server.info("total_connections_received"));
            server.jedis.del("other");
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

    /** Nobody knows of a lease that is left, and it may be long. */
    @ParameterizedTest
    @EnumSource
    void aCloseLeavesNoLeaseToNobody(Library library) throws Exception {
        try (Locks other = library.locks(server)) {
            for (int round = 0; round < 120; round++) {
                Locks locks = library.locks(server);
                locks.lock("other").acquire().release();
                RedisLock lock = locks.lock("k").lease(Duration.ofMinutes(10));
                lock = round % 4 == 0 ? lock.ownConnection() : round % 4 == 1 ? lock.waiting(Duration.ZERO) : lock;
                CompletableFuture<?> over;
                if (round % 4 == 3) {
                    over = lock.acquire().releaseAsync();
                } else if (round % 8 < 4) {
                    over = lock.acquireAsync();
                    spin(round * 10_000L);
                    over.cancel(true);
                } else {
                    Hold first = other.lock("k").acquire();
                    over = lock.acquireAsync();
                    if (round % 4 != 1) {
                        untilWaiters(1);
                    }
                    first.releaseAsync();
                    spin(round * 5_000L);
                }
                locks.close();
                if (over.handle((got, error) -> got instanceof Hold).get(5, TimeUnit.SECONDS)) {
                    server.jedis.del("k");
                }
                untilWaiters(0);
                String left = "round " + round;
                until(left, () -> !server.jedis.exists("k"));
            }
        }
    }

    /** What is begun while it closes ends as well. */
    @ParameterizedTest
    @EnumSource
    void aCloseEndsWhatIsBegunMeanwhile(Library library) throws Exception {
        for (int round = 0; round < 100; round++) {
            Locks locks = library.locks(server);
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

    /** The loop's executor drops what comes in as it ends, and says nothing. */
    @Test
    void noCallIsForgottenByAClose() throws Exception {
        for (int round = 0; round < 1000; round++) {
            Locks locks = Library.JEDIS.locks(server);
            List<FutureTask<Void>> others = new ArrayList<>();
            for (int number = 0; number < 3; number++) {
                others.add(thread(() -> {
                    CompletableFuture<Void> begun;
                    do {
                        begun = locks.session.begin(() -> CompletableFuture.completedFuture(null));
                        begun.handle((done, closed) -> null).get(10, TimeUnit.SECONDS);
                    } while (!begun.isCompletedExceptionally());
                    return null;
                }));
            }
            locks.close();
            for (FutureTask<Void> other : others) {
                other.get(20, TimeUnit.SECONDS);
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void twoMayCloseAtOnce(Library library) throws Exception {
        for (int round = 0; round < 30; round++) {
            Locks locks = library.locks(server);
            locks.lock("k").acquire().release();
            List<CompletableFuture<Void>> closes = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                closes.add(CompletableFuture.runAsync(locks::close));
            }
            for (CompletableFuture<Void> close : closes) {
                close.get(10, TimeUnit.SECONDS);
            }
        }
    }

    /** Lettuce's own shutdown may wait for what never ends. */
    @Test
    void aCloseEndsThoughItsLibraryDoesNot() throws Exception {
        EventLoopGroupProvider threads = new DefaultEventLoopGroupProvider(1) {
            @Override
            public Promise<Boolean> release(EventExecutorGroup group, long quiet, long time, TimeUnit unit) {
                return new DefaultPromise<>(ImmediateEventExecutor.INSTANCE);
            }
        };
        ClientResources resources =
                ClientResources.builder().eventLoopGroupProvider(threads).build();
        RedisClient client = RedisClient.create(resources);
        try {
            Locks locks = new Locks(new LettuceConnector(client, RedisURI.create(server.uri())));
            locks.lock("k").acquire().release();
            CompletableFuture.runAsync(locks::close).get(10, TimeUnit.SECONDS);
            assertEquals("1", server.info("connected_clients"));
        } finally {
            threads.shutdown(0, 0, TimeUnit.SECONDS);
            resources.shutdown(0, 0, TimeUnit.SECONDS);
        }
    }

    @Test
    void aCloseEndsThoughAConnectionFails() throws Exception {
        Locks locks = new Locks(changed(new JedisConnector(server.uri()), Wire::call, () -> {
            throw new IllegalStateException("on purpose");
        }));
        locks.lock("k").acquire().release();
        CompletableFuture.runAsync(locks::close).get(10, TimeUnit.SECONDS);
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
