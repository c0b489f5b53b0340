// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.JRE;
import org.junit.jupiter.api.function.Executable;
import org.redisson.Redisson;
import org.redisson.api.LockOptions;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RFencedLockReactive;
import org.redisson.api.RFencedLockRx;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RLockReactive;
import org.redisson.api.RLockRx;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.api.RedissonReactiveClient;
import org.redisson.api.RedissonRxClient;
import org.redisson.api.options.CommonOptions;
import org.redisson.client.RedisException;
import org.redisson.config.Config;
import reactor.core.Disposable;

/** Each method of the interfaces, on one server. */
@Timeout(60)
class NativeLocksTest extends OneServerFixture {
    private static void untilWaiters(int count) throws Exception {
        until(count + " wait", () -> server.info("lock_waiters").equals("" + count));
    }

    @Test
    void versionIsTheOneUnderTest() {
        String expected = System.getProperty("redisson.version");
        String jar = Redisson.class
                .getProtectionDomain()
                .getCodeSource()
                .getLocation()
                .getPath();
        assertTrue(expected == null || jar.contains("redisson-" + expected), jar);
    }

    @Test
    void lockIsReentrantAndCounts() throws Exception {
        RedissonClient locks = natives();
        RLock lock = locks.getLock("k");
        long acquires = calls("lock.acquire");
        assertFalse(lock.isLocked());
        lock.lock();
        assertTrue(locks.getLock("k").tryLock());
        assertEquals(acquires + 2, calls("lock.acquire"));
        assertEquals(2, lock.getHoldCount());
        assertTrue(lock.isLocked());
        assertTrue(lock.isHeldByCurrentThread());
        assertTrue(lock.isHeldByThread(Thread.currentThread().getId()));
        assertFalse(elsewhere(lock::isHeldByCurrentThread));
        assertEquals(0, elsewhere(lock::getHoldCount));
        assertEquals("k", lock.getName());
        assertEquals(Map.of(locks.getId() + ":" + Thread.currentThread().getId(), "2"), server.jedis.hgetAll("k"));
        lock.unlock();
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
        assertFalse(lock.isLocked());
        assertThrows(UnsupportedOperationException.class, lock::newCondition);
    }

    @Test
    void unlockOfAnotherThreadIsRefusedInTheWordsOfRedisson() throws Exception {
        RedissonClient locks = natives();
        RLock lock = locks.getLock("k");
        lock.lock();
        FutureTask<Long> other = thread(() -> {
            IllegalMonitorStateException error = assertThrows(IllegalMonitorStateException.class, lock::unlock);
            long id = Thread.currentThread().getId();
            assertEquals(
                    "attempt to unlock lock, not locked by current thread by node id: " + locks.getId() + " thread-id: "
                            + id,
                    error.getMessage());
            return id;
        });
        other.get(10, SECONDS);
        assertTrue(lock.isHeldByCurrentThread());
        ExecutionException error = assertThrows(
                ExecutionException.class, () -> lock.unlockAsync(-5).get());
        assertEquals(IllegalMonitorStateException.class, error.getCause().getClass());
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void leaseWithoutALimitIsThatOfTheWatchdog() throws Exception {
        RedissonClient locks = natives(config -> config.setLockWatchdogTimeout(900));
        RLock lock = locks.getLock("k");
        lock.lock(-1, SECONDS);
        long left = lock.remainTimeToLive();
        assertTrue(0 < left && left <= 900, () -> left + " ms");
        long until = System.nanoTime() + SECONDS.toNanos(2);
        while (System.nanoTime() - until < 0) {
            assertTrue(lock.isHeldByCurrentThread());
            Thread.sleep(20);
        }
        lock.unlock();
        assertEquals(-2, lock.remainTimeToLive());
        RLock usual = natives().getLock("k");
        usual.lock();
        assertTrue(usual.remainTimeToLive() > 29_000);
        usual.unlock();
    }

    @Test
    void leaseEndsByItself() throws Exception {
        RLock lock = natives().getLock("k");
        lock.lock(300, MILLISECONDS);
        assertTrue(lock.remainTimeToLive() <= 300);
        long before = System.nanoTime();
        assertTrue(elsewhere(() -> {
            boolean isLocked = lock.tryLock(5, SECONDS);
            lock.unlock();
            return isLocked;
        }));
        assertTrue(System.nanoTime() - before < SECONDS.toNanos(2));
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertTrue(lock.tryLock(0, 10, SECONDS));
        assertTrue(lock.remainTimeToLive() > 9000);
        lock.lock(20, SECONDS);
        assertTrue(lock.remainTimeToLive() > 19_000);
        lock.unlock();
        lock.unlock();
        lock.lockInterruptibly(50, MILLISECONDS);
        until("the lease is over", () -> !lock.isLocked());
    }

    @Test
    void endOfAnInnerLeaseKeepsTheOuterLock() throws Exception {
        RLock lock = natives().getLock("k");
        lock.lock();
        lock.lock(50, MILLISECONDS);
        until("the inner lease is over", () -> lock.getHoldCount() == 1);
        lock.unlock();
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
        assertFalse(lock.isLocked());
    }

    @Test
    void innerUnlockKeepsTheLockWithTheLongerLease() throws Exception {
        RLock lock = natives().getLock("k");
        lock.lock(300, MILLISECONDS);
        lock.lock(HOURS, SECONDS);
        until("the first hold has ended", () -> server.jedis.hvals("k").equals(List.of("1")));
        lock.unlock();
        assertTrue(lock.isHeldByCurrentThread());
        assertFalse(elsewhere(() -> lock.tryLock()));
        lock.unlock();
        assertFalse(lock.isLocked());
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void callbacksThatBlockDelayNoGrant() throws Exception {
        RedissonClient locks = natives();
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            RLock lock = locks.getLock("k" + number);
            long id = number;
            all.add(lock.lockAsync(id).toCompletableFuture().thenRun(() -> {
                lock.unlockAsync(id).toCompletableFuture().join();
                lock.lock();
                lock.unlock();
            }));
        }
        CompletableFuture.allOf(all.toArray(CompletableFuture[]::new)).get(20, SECONDS);
    }

    @Test
    void timedWaitInACycleIsNotGranted() throws Exception {
        RedissonClient locks = natives();
        RLock a = locks.getLock("a");
        RLock b = locks.getLock("b");
        a.lockAsync(1).toCompletableFuture().get(20, SECONDS);
        b.lockAsync(2).toCompletableFuture().get(20, SECONDS);
        CompletableFuture<Boolean> wait = a.tryLockAsync(20, -1, SECONDS, 2).toCompletableFuture();
        untilWaiters(1);
        assertFalse(b.tryLockAsync(20, -1, SECONDS, 1).toCompletableFuture().get(20, SECONDS));
        a.unlockAsync(1).toCompletableFuture().get(20, SECONDS);
        assertTrue(wait.get(20, SECONDS));
        a.unlockAsync(2).toCompletableFuture().get(20, SECONDS);
        b.unlockAsync(2).toCompletableFuture().get(20, SECONDS);
    }

    @Test
    void groupWithoutATimeLimitMayHaveALease() throws Exception {
        RedissonClient locks = natives();
        RLock group = locks.getMultiLock(locks.getLock("a"), locks.getLock("b"));
        assertTrue(group.tryLock(Long.MAX_VALUE, HOURS, SECONDS));
        group.unlock();
        assertFalse(locks.getLock("a").isLocked() || locks.getLock("b").isLocked());
    }

    @Test
    void shortWatchdogTimesWork() throws Exception {
        RLock lock = natives(config -> config.setLockWatchdogTimeout(50)).getLock("k");
        lock.lock();
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
    }

    @Test
    void waitsAreLimited() throws Exception {
        RLock lock = natives().getLock("k");
        lock.lock();
        assertFalse(elsewhere(() -> lock.tryLock()));
        assertFalse(elsewhere(() -> lock.tryLock(0, SECONDS)));
        assertFalse(elsewhere(() -> lock.tryLock(-1, SECONDS)));
        assertFalse(elsewhere(() -> lock.tryLock(Long.MIN_VALUE, 1, SECONDS)));
        long before = System.nanoTime();
        assertFalse(elsewhere(() -> lock.tryLock(300, MILLISECONDS)));
        long taken = (System.nanoTime() - before) / 1_000_000;
        assertTrue(290 <= taken && taken < 1300, () -> taken + " ms");
        FutureTask<Boolean> longest = thread(() -> {
            boolean isLocked = lock.tryLock(Long.MAX_VALUE, SECONDS);
            lock.unlock();
            return isLocked;
        });
        untilWaiters(1);
        lock.unlock();
        assertTrue(longest.get(5, SECONDS));
    }

    @Test
    void interruptEndsTheWaitsThatSaySo() throws Exception {
        RLock lock = natives().getLock("k");
        lock.lock();
        for (boolean isLimited : new boolean[] {false, true}) {
            AtomicReference<Thread> waiting = new AtomicReference<>();
            FutureTask<Boolean> wait = thread(() -> {
                waiting.set(Thread.currentThread());
                assertThrows(InterruptedException.class, () -> {
                    if (isLimited) {
                        lock.tryLock(HOURS, 1, SECONDS);
                    } else {
                        lock.lockInterruptibly();
                    }
                });
                return Thread.currentThread().isInterrupted();
            });
            untilWaiters(1);
            waiting.get().interrupt();
            assertFalse(wait.get(5, SECONDS));
            untilWaiters(0);
        }
        AtomicReference<Thread> waiting = new AtomicReference<>();
        FutureTask<Boolean> stubborn = thread(() -> {
            waiting.set(Thread.currentThread());
            lock.lock();
            lock.unlock();
            return Thread.currentThread().isInterrupted();
        });
        untilWaiters(1);
        waiting.get().interrupt();
        assertThrows(java.util.concurrent.TimeoutException.class, () -> stubborn.get(100, MILLISECONDS));
        lock.unlock();
        assertTrue(stubborn.get(5, SECONDS));
    }

    private static final long HOURS = 3600;

    @Test
    void forceUnlockIsForAllThreads() throws Exception {
        RLock lock = natives().getLock("k");
        assertFalse(lock.forceUnlock());
        lock.lock();
        lock.lock();
        FutureTask<Boolean> next = thread(() -> {
            lock.lock();
            lock.unlock();
            return true;
        });
        untilWaiters(1);
        assertTrue(elsewhere(lock::forceUnlock));
        assertTrue(next.get(5, SECONDS));
        until("the loss is known", () -> !lock.isHeldByCurrentThread());
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        lock.lock();
        assertTrue(lock.forceUnlockAsync().get());
        lock.lock();
        assertEquals(1, lock.getHoldCount());
        lock.unlock();
        assertFalse(lock.isLocked());
    }

    @Test
    void asynchronousCallsNameTheirThread() throws Exception {
        RLock lock = natives().getLock("k");
        lock.lockAsync(7).get();
        assertTrue(lock.isHeldByThread(7));
        assertTrue(lock.isHeldByThreadAsync(7).get());
        assertFalse(lock.tryLockAsync(8).get());
        assertFalse(lock.tryLockAsync(50, 1000, MILLISECONDS, 8).get());
        assertFalse(lock.tryLockAsync(-1, 1000, MILLISECONDS, 8).get());
        assertTrue(lock.tryLockAsync(7).get());
        assertEquals(1, server.jedis.hlen("k"));
        RFuture<Boolean> wait = lock.tryLockAsync(5000, -1, MILLISECONDS, 9);
        untilWaiters(1);
        RFuture<Void> second = lock.lockAsync(20, SECONDS, 10);
        RFuture<Void> cancelled = lock.lockAsync(11);
        untilWaiters(3);
        cancelled.cancel(true);
        untilWaiters(2);
        lock.unlockAsync(7).get();
        assertFalse(wait.isDone());
        lock.unlockAsync(7).get();
        assertTrue(wait.get());
        assertTrue(lock.isLockedAsync().get());
        lock.unlockAsync(9).get();
        second.get();
        assertTrue(lock.remainTimeToLiveAsync().get() <= 20_000);
        lock.unlockAsync(10).get();
        lock.lockAsync().get();
        assertTrue(lock.tryLockAsync().get());
        assertTrue(lock.tryLockAsync(1, SECONDS).get());
        assertTrue(lock.tryLockAsync(1, 60, SECONDS).get());
        lock.lockAsync(60, SECONDS).get();
        assertEquals(5, lock.getHoldCountAsync().get());
        assertEquals(5, lock.getHoldCount());
        for (int count = 0; count < 5; count++) {
            assertTrue(lock.isHeldByCurrentThread());
            lock.unlockAsync().get();
        }
        assertFalse(lock.isLocked());
    }

    @Test
    void eachKindIsNative() throws Exception {
        RedissonClient locks = natives();
        RLock[] all = {
            locks.getLock("k"),
            locks.getLock(CommonOptions.name("k")),
            locks.getFairLock("k"),
            locks.getFairLock(CommonOptions.name("k")),
            locks.getSpinLock("k"),
            locks.getSpinLock("k", new LockOptions.ConstantBackOff()),
            locks.getFencedLock("k"),
            locks.getFencedLock(CommonOptions.name("k"))
        };
        for (RLock each : all) {
            long acquires = calls("lock.acquire");
            each.lock();
            assertTrue(all[0].isHeldByCurrentThread());
            assertEquals(acquires + 1, calls("lock.acquire"));
            each.unlock();
        }
        locks.getBucket("b").set("v");
        assertEquals("v", locks.getBucket("b").get());
        assertEquals(locks, locks);
        assertTrue(locks.toString().contains("NativeLocks"));
    }

    @Test
    void tokensGrow() throws Exception {
        RFencedLock lock = natives().getFencedLock("k");
        RFencedLock theirs = redisson().getFencedLock("k");
        long first = lock.lockAndGetToken();
        assertEquals(first, lock.getToken());
        assertNull(elsewhere(lock::tryLockAndGetToken));
        assertNull(elsewhere(() -> lock.tryLockAndGetToken(10, MILLISECONDS)));
        lock.unlock();
        long second = theirs.lockAndGetToken();
        assertTrue(second > first);
        theirs.unlock();
        long third = lock.lockAndGetToken(60, SECONDS);
        assertTrue(third > second);
        assertTrue(lock.remainTimeToLive() > 30_000);
        lock.unlock();
        long fourth = lock.tryLockAndGetTokenAsync(1, 60, SECONDS).get();
        assertTrue(fourth > third);
        lock.unlock();
        lock.lock();
        assertTrue(lock.getToken() > fourth);
        lock.unlock();
        assertTrue(lock.lockAndGetTokenAsync().get() > fourth);
        lock.unlock();
    }

    @Test
    void nonReentrantLockRefusesItsOwner() throws Exception {
        RedissonClient locks = natives();
        Method method;
        try {
            method = RedissonClient.class.getMethod("getNonReentrantLock", String.class);
        } catch (NoSuchMethodException older) {
            return;
        }
        RLock lock = (RLock) method.invoke(locks, "k");
        RLock theirs = (RLock) method.invoke(redisson(), "k");
        for (RLock each : new RLock[] {theirs, lock}) {
            each.lock();
            for (RLock other : new RLock[] {lock, theirs}) {
                assertFalse(elsewhere(() -> other.tryLock()));
            }
            IllegalMonitorStateException error = assertThrows(IllegalMonitorStateException.class, each::lock);
            // Redisson names the thread that got the reply.
            String text = "Lock 'k' is non-reentrant and is already held by thread ";
            assertTrue(error.getMessage().startsWith(text), error::getMessage);
            assertThrows(IllegalMonitorStateException.class, each::tryLock);
            assertThrows(ExecutionException.class, () -> each.lockAsync().get());
            assertEquals(1, each.getHoldCount());
            each.unlock();
        }
        for (int round = 0; round < 20; round++) {
            lock.lock();
            assertTrue(lock.forceUnlock());
            lock.lock();
            lock.unlock();
            assertFalse(lock.isLocked());
        }
    }

    @Test
    void namesAreMapped() throws Exception {
        RedissonClient locks = natives(NativeLocksTest::mapNames);
        RLock lock = locks.getLock("k");
        lock.lock();
        assertEquals("k", lock.getName());
        assertTrue(server.jedis.exists("shop:k"));
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
    }

    /** The interface of a mapper has another package in each version. */
    private static void mapNames(Config config) {
        Object settings = config.useSingleServer();
        Method setter = Arrays.stream(settings.getClass().getMethods())
                .filter(each -> each.getName().equals("setNameMapper"))
                .findFirst()
                .orElseThrow();
        Class<?> type = setter.getParameterTypes()[0];
        Object mapper = Proxy.newProxyInstance(
                type.getClassLoader(),
                new Class<?>[] {type},
                (self, method, names) ->
                        method.getName().equals("map") ? "shop:" + names[0] : ((String) names[0]).substring(5));
        try {
            setter.invoke(settings, mapper);
        } catch (ReflectiveOperationException error) {
            throw new LinkageError("the setter of the name mapper", error);
        }
    }

    @Test
    void otherLocksUnderTheNameAreRefused() throws Exception {
        RedissonClient locks = natives();
        RedissonClient theirs = redisson();
        theirs.getReadWriteLock("k").readLock().lock();
        RedisException error =
                assertThrows(RedisException.class, () -> locks.getLock("k").lock());
        assertTrue(error.getMessage().contains("WRONGTYPE"), error::getMessage);
        theirs.getReadWriteLock("k").readLock().unlock();
        theirs.getFairLock("f").lock();
        FutureTask<Boolean> wait = thread(() -> {
            theirs.getFairLock("f").lock();
            theirs.getFairLock("f").unlock();
            return true;
        });
        until("it waits", () -> server.jedis.exists("redisson_lock_queue:{f}"));
        assertThrows(RedisException.class, () -> locks.getFairLock("f").tryLock());
        theirs.getFairLock("f").unlock();
        assertTrue(wait.get(10, SECONDS));
        server.jedis.set("s", "v");
        ExecutionException failed = assertThrows(
                ExecutionException.class,
                () -> locks.getLock("s").tryLockAsync().get());
        assertEquals(RedisException.class, failed.getCause().getClass());
    }

    private static void assertWrongType(Executable call) {
        RedisException error = assertThrows(RedisException.class, call);
        assertTrue(error.getMessage().contains("WRONGTYPE"), error::getMessage);
    }

    @Test
    void locksAndOtherObjectsRefuseEachOther() throws Exception {
        RedissonClient locks = natives();
        RSemaphore semaphore = locks.getSemaphore("k");
        RPermitExpirableSemaphore expirable = locks.getPermitExpirableSemaphore("k");
        RCountDownLatch latch = locks.getCountDownLatch("k");
        List<RLock> all = List.of(
                locks.getLock("k"),
                locks.getFencedLock("k"),
                locks.getReadWriteLock("k").readLock(),
                locks.getReadWriteLock("k").writeLock());
        // Other methods that change a semaphore do not return in Redisson 3.27.2.
        List<Executable> objects = List.of(
                semaphore::tryAcquire, semaphore::release, expirable::availablePermits, latch::countDown, latch::await);
        for (RLock lock : all) {
            lock.lock();
            Map<String, String> before = server.jedis.hgetAll("k");
            Set<String> keys = server.jedis.keys("*");
            for (Executable each : objects) {
                // Some methods of Redisson 3.27.2 have another text.
                assertThrows(RedisException.class, each);
            }
            assertWrongType(semaphore::availablePermits);
            assertWrongType(latch::getCount);
            assertFalse(latch.trySetCount(1));
            assertEquals(before, server.jedis.hgetAll("k"));
            assertEquals(keys, server.jedis.keys("*"));
            lock.unlock();
        }
        List<Callable<Boolean>> makers =
                List.of(() -> semaphore.trySetPermits(2), () -> expirable.trySetPermits(2), () -> latch.trySetCount(2));
        for (Callable<Boolean> make : makers) {
            assertTrue(make.call());
            String before = server.jedis.get("k");
            Set<String> keys = server.jedis.keys("*");
            for (RLock lock : all) {
                assertWrongType(lock::lock);
                assertWrongType(lock::tryLock);
                assertWrongType(() -> lock.tryLock(1, 1, SECONDS));
                assertThrows(Exception.class, lock::unlock);
            }
            assertEquals(before, server.jedis.get("k"));
            assertEquals(keys, server.jedis.keys("*"));
            server.jedis.del("k");
        }
    }

    @Test
    void shutdownReleasesWhatHasNoLease() throws Exception {
        RedissonClient locks = natives();
        locks.getLock("k").lock();
        locks.getLock("l").lock(60, SECONDS);
        locks.shutdown();
        assertFalse(server.jedis.exists("k"));
        assertTrue(server.jedis.exists("l"));
        RedissonClient direct = redisson();
        NativeLocks.of(direct).getLock("k").lock();
        direct.shutdown();
        until("the lock is free", () -> !server.jedis.exists("k"));
    }

    @Test
    @SuppressWarnings("deprecation")
    void shutdownOfOtherStylesReleases() throws Exception {
        RedissonClient reactive = natives();
        reactive.getLock("k").lock();
        reactive.reactive().shutdown();
        assertFalse(server.jedis.exists("k"));
        RedissonClient rx = natives();
        rx.getLock("k").lock();
        rx.rxJava().shutdown();
        assertFalse(server.jedis.exists("k"));
    }

    /** Redisson does not end threads of the application. */
    @Test
    @SuppressWarnings("deprecation")
    void shutdownOfAClientWithSharedThreadsEndsItsSession() throws Exception {
        EventLoopGroup threads = new NioEventLoopGroup(2);
        RedissonClient direct = redisson(config -> config.setEventLoopGroup(threads));
        NativeLocks.of(direct).getLock("k").lock();
        shutDown();
        assertFalse(threads.isShuttingDown());
        until("the lock is free", () -> !server.jedis.exists("k"));
        threads.shutdownGracefully(0, 2, SECONDS).sync();
    }

    /** The id of the connection that reads events. */
    private static long reader() throws Exception {
        AtomicReference<String> reader = new AtomicReference<>();
        until("a session reads", () -> {
            reader.set(server.jedis
                    .clientList()
                    .lines()
                    .filter(each -> each.contains(" cmd=lock.events "))
                    .findFirst()
                    .orElse(null));
            return reader.get() != null;
        });
        return Long.parseLong(reader.get().substring(3, reader.get().indexOf(' ')));
    }

    @Test
    void pingsOfRedissonCloseNoConnection() throws Exception {
        RedissonClient locks = natives(config -> config.useSingleServer().setPingConnectionInterval(100));
        locks.getLock("k").lock();
        long first = reader();
        long events = calls("lock.events");
        until("the session has called", () -> calls("lock.events") > events + 3);
        assertEquals(first, reader());
        locks.getLock("k").unlock();
    }

    @Test
    void interruptKeepsTheTimeLimit() throws Exception {
        RFencedLock lock = natives().getFencedLock("k");
        lock.lock();
        AtomicReference<Thread> waiting = new AtomicReference<>();
        long before = System.nanoTime();
        FutureTask<Long> wait = thread(() -> {
            waiting.set(Thread.currentThread());
            return lock.tryLockAndGetToken(1, SECONDS);
        });
        untilWaiters(1);
        while (!wait.isDone()) {
            waiting.get().interrupt();
            Thread.sleep(300);
            assertTrue(System.nanoTime() - before < SECONDS.toNanos(10));
        }
        assertNull(wait.get());
        assertTrue(System.nanoTime() - before < SECONDS.toNanos(2));
        lock.unlock();
    }

    @Test
    @SuppressWarnings("deprecation")
    void groupsAreNative() throws Exception {
        RedissonClient locks = natives();
        RLock group = locks.getMultiLock(locks.getLock("a"), locks.getLock("b"));
        RLock crossed = locks.getMultiLock(locks.getLock("b"), locks.getLock("a"));
        long acquires = calls("lock.acquire");
        group.lock();
        assertEquals(acquires + 2, calls("lock.acquire"));
        assertFalse(elsewhere(() -> crossed.tryLock()));
        assertFalse(elsewhere(() -> locks.getLock("a").tryLock()));
        group.unlock();
        assertTrue(group.tryLock(1, 60, SECONDS));
        assertTrue(locks.getLock("a").remainTimeToLive() > 50_000);
        group.unlock();
        assertTrue(group.tryLockAsync(10, 1, SECONDS).get());
        until(
                "the lease is over",
                () -> !locks.getLock("a").isLocked() && !locks.getLock("b").isLocked());
        AtomicInteger rounds = new AtomicInteger();
        FutureTask<Void> one = thread(() -> repeat(group, rounds));
        FutureTask<Void> other = thread(() -> repeat(crossed, rounds));
        one.get(20, SECONDS);
        other.get(20, SECONDS);
        assertEquals(20, rounds.get());
        RLock red = locks.getRedLock(locks.getLock("a"), locks.getLock("b"), locks.getLock("c"));
        red.lock();
        assertTrue(locks.getLock("c").isHeldByCurrentThread());
        red.unlock();
        assertFalse(locks.getLock("c").isLocked());
    }

    private static Void repeat(RLock lock, AtomicInteger rounds) {
        for (int round = 0; round < 10; round++) {
            lock.lock();
            rounds.incrementAndGet();
            lock.unlock();
        }
        return null;
    }

    @Test
    void reactiveFormsAreNative() throws Exception {
        RedissonReactiveClient locks = natives().reactive();
        RLockReactive lock = locks.getLock("k");
        long acquires = calls("lock.acquire");
        lock.lock(1).block();
        assertFalse(lock.tryLock(2).block());
        assertTrue(lock.isHeldByThread(1).block());
        assertTrue(lock.tryLock(1).block());
        Disposable cancelled = lock.lock(3).subscribe();
        untilWaiters(1);
        cancelled.dispose();
        untilWaiters(0);
        lock.unlock(1).block();
        lock.unlock(1).block();
        assertEquals(acquires + 4, calls("lock.acquire"));
        assertThrows(IllegalMonitorStateException.class, () -> lock.unlock(1).block());
        RFencedLockReactive fenced = locks.getFencedLock("k");
        assertTrue(fenced.lockAndGetToken().block() > 0);
        assertTrue(fenced.forceUnlock().block());
        RLockReactive group = locks.getMultiLock(locks.getLock("a"), locks.getLock("b"));
        assertTrue(group.tryLock(1).block());
        assertTrue(locks.getLock("a").isHeldByThread(1).block());
        group.unlock(1).block();
        assertEquals(acquires + 7, calls("lock.acquire"));
        locks.getBucket("b").set("v").block();
    }

    @Test
    void rxFormsAreNative() throws Exception {
        RedissonRxClient locks = natives().rxJava();
        RLockRx lock = locks.getLock(CommonOptions.name("k"));
        long acquires = calls("lock.acquire");
        lock.lock(1).blockingAwait();
        assertFalse(lock.tryLock(50, -1, MILLISECONDS, 2).blockingGet());
        assertTrue(lock.isLocked().blockingGet());
        lock.unlock(1).blockingAwait();
        assertThrows(IllegalMonitorStateException.class, () -> lock.unlock(1).blockingAwait());
        RFencedLockRx fenced = locks.getFencedLock("k");
        assertTrue(fenced.tryLockAndGetToken().blockingGet() > 0);
        assertTrue(fenced.forceUnlock().blockingGet());
        RLockRx group = locks.getMultiLock(locks.getLock("a"), locks.getLock("b"));
        assertTrue(group.tryLock(1).blockingGet());
        group.unlock(1).blockingAwait();
        assertEquals(acquires + 5, calls("lock.acquire"));
    }

    @Test
    @EnabledForJreRange(min = JRE.JAVA_21)
    void virtualThreadsWait() throws Exception {
        RLock lock = natives().getLock("k");
        ExecutorService threads = (ExecutorService)
                Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        int[] total = new int[1];
        List<Future<?>> all = new ArrayList<>();
        for (int number = 0; number < 500; number++) {
            all.add(threads.submit(() -> {
                lock.lock();
                total[0]++;
                lock.unlock();
            }));
        }
        for (Future<?> each : all) {
            each.get(20, SECONDS);
        }
        assertEquals(500, total[0]);
    }

    @Test
    void clientOfNobodyIsRefused() {
        assertThrows(IllegalArgumentException.class, () -> NativeLocks.of(natives()));
        assertThrows(IllegalArgumentException.class, () -> NativeLocks.of(null));
    }
}
