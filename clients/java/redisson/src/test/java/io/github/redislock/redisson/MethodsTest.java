// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.api.DeletedObjectListener;
import org.redisson.api.ExpiredObjectListener;
import org.redisson.api.LockOptions;
import org.redisson.api.ObjectListener;
import org.redisson.api.RFencedLock;
import org.redisson.api.RFencedLockReactive;
import org.redisson.api.RLock;
import org.redisson.api.RLockReactive;
import org.redisson.api.RLockRx;
import org.redisson.api.RedissonClient;
import org.redisson.api.RedissonReactiveClient;
import org.redisson.api.RedissonRxClient;
import org.redisson.api.options.CommonOptions;

/** All getters of all styles, and all forms of their methods. */
@Timeout(60)
class MethodsTest extends OneServerFixture {
    /** The results of all getters of single locks. */
    private static List<Object> locks(Class<?> type, Object client) throws ReflectiveOperationException {
        List<Object> all = new ArrayList<>();
        for (Method getter : type.getMethods()) {
            String name = getter.getName();
            List<Class<?>> takes = Arrays.asList(getter.getParameterTypes());
            boolean isGroup = name.equals("getMultiLock") || name.equals("getRedLock");
            if (!name.endsWith("Lock") || name.equals("getReadWriteLock") || isGroup) {
                continue;
            }
            Object[] arguments = takes.stream()
                    .map(each -> each == String.class
                            ? "k"
                            : each == CommonOptions.class ? CommonOptions.name("k") : LockOptions.defaults())
                    .toArray();
            all.add(getter.invoke(client, arguments));
        }
        return all;
    }

    @Test
    void everyGetterIsNative() throws Exception {
        RedissonClient locks = natives();
        List<Object> all = new ArrayList<>(locks(RedissonClient.class, locks));
        all.addAll(locks(RedissonReactiveClient.class, locks.reactive()));
        all.addAll(locks(RedissonRxClient.class, locks.rxJava()));
        assertTrue(all.size() >= 20, all::toString);
        for (Object lock : all) {
            long acquires = calls("lock.acquire");
            if (lock instanceof RLock each) {
                assertTrue(each.tryLock());
                each.unlock();
            } else if (lock instanceof RLockReactive each) {
                assertTrue(each.tryLock(7).block());
                each.unlock(7).block();
            } else {
                RLockRx each = (RLockRx) lock;
                assertTrue(each.tryLock(7).blockingGet());
                each.unlock(7).blockingAwait();
            }
            assertEquals(acquires + 1, calls("lock.acquire"));
        }
    }

    @Test
    void everyFormWithATokenHasOne() throws Exception {
        RFencedLock lock = natives().getFencedLock("k");
        RFencedLockReactive reactive = natives().reactive().getFencedLock("k");
        List<Callable<Long>> forms = List.of(
                lock::lockAndGetToken,
                () -> lock.lockAndGetToken(60, SECONDS),
                lock::tryLockAndGetToken,
                () -> lock.tryLockAndGetToken(1, SECONDS),
                () -> lock.tryLockAndGetToken(1, 60, SECONDS),
                () -> lock.lockAndGetTokenAsync().get(),
                () -> lock.lockAndGetTokenAsync(60, SECONDS).get(),
                () -> lock.tryLockAndGetTokenAsync().get(),
                () -> lock.tryLockAndGetTokenAsync(1, SECONDS).get(),
                () -> lock.tryLockAndGetTokenAsync(1, 60, SECONDS).get());
        long before = 0;
        for (Callable<Long> form : forms) {
            long token = form.call();
            assertTrue(token > before);
            assertEquals(token, lock.getToken());
            assertEquals(token, lock.getTokenAsync().get());
            assertEquals(token, reactive.getToken().block());
            before = token;
            assertTrue(lock.remainTimeToLive() <= 60_000);
            lock.unlock();
        }
    }

    @Test
    void formsOfOtherStylesAreComplete() throws Exception {
        RedissonClient locks = natives();
        RLockReactive reactive = locks.reactive().getLock("k");
        reactive.lock(60, SECONDS, 7).block();
        assertTrue(reactive.isLocked().block());
        assertTrue(reactive.remainTimeToLive().block() > 59_000);
        assertTrue(reactive.tryLock(1, 60, SECONDS, 7).block());
        assertTrue(reactive.isHeldByThread(7).block());
        reactive.unlock(7).block();
        RLockRx rx = locks.rxJava().getLock("k");
        assertTrue(rx.isHeldByThread(7).blockingGet());
        assertTrue(rx.remainTimeToLive().blockingGet() > 0);
        assertTrue(rx.forceUnlock().blockingGet());
        assertFalse(rx.isLocked().blockingGet());
        rx.lock(60, SECONDS, 8).blockingAwait();
        rx.unlock(8).blockingAwait();
        assertEquals(-2, reactive.remainTimeToLive().block());
        assertFalse(reactive.forceUnlock().block());
    }

    @Test
    void earlierInterruptsCount() throws Exception {
        RLock lock = natives().getLock("k");
        Callable<Boolean> ends = () -> {
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, lock::lockInterruptibly);
            assertFalse(Thread.currentThread().isInterrupted());
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, () -> lock.tryLock(1, SECONDS));
            return Thread.currentThread().isInterrupted();
        };
        assertFalse(elsewhere(ends));
        assertFalse(lock.isLocked());
        Callable<Boolean> goesOn = () -> {
            Thread.currentThread().interrupt();
            lock.lock();
            assertTrue(Thread.interrupted());
            lock.unlock();
            Thread.currentThread().interrupt();
            assertTrue(lock.tryLock());
            assertTrue(Thread.interrupted());
            lock.unlock();
            return true;
        };
        assertTrue(elsewhere(goesOn));
    }

    /** The interface of 3.27.2 has no listeners. */
    @Test
    void listenersHearOfTheEnd() throws Exception {
        Method add;
        try {
            add = RLock.class.getMethod("addListener", ObjectListener.class);
        } catch (NoSuchMethodException older) {
            return;
        }
        server.call("CONFIG", "SET", "notify-keyspace-events", "Egx");
        RLock lock = natives().getLock("k");
        CountDownLatch deleted = new CountDownLatch(1);
        CountDownLatch expired = new CountDownLatch(1);
        try {
            add.invoke(lock, (DeletedObjectListener) name -> deleted.countDown());
            add.invoke(lock, (ExpiredObjectListener) name -> expired.countDown());
        } catch (InvocationTargetException refused) {
            throw new AssertionError(refused.getCause());
        }
        lock.lock();
        lock.unlock();
        assertTrue(deleted.await(10, SECONDS));
        lock.lock(50, MILLISECONDS);
        assertTrue(expired.await(10, SECONDS));
    }

    @Test
    void resultsOfAsynchronousCallsCountInAnyOrder() throws Exception {
        RLock lock = natives().getLock("k");
        for (int round = 0; round < 50; round++) {
            var one = lock.lockAsync(7);
            var other = lock.lockAsync(7);
            one.get();
            other.get();
            System.gc();
            lock.unlockAsync(7).get();
            assertTrue(lock.isHeldByThread(7));
            lock.unlockAsync(7).get();
            assertFalse(lock.isLocked());
        }
    }

    @Test
    void holdOfAResultThatFailsIsReleased() throws Exception {
        NativeLock lock = (NativeLock) natives().getLock("k");
        HeldLocks held = lock.held;
        HeldLocks.Holder holder = new HeldLocks.Holder("k", false, 7);
        HeldLocks.Request request = new HeldLocks.Request(held.locks.lock("k"), holder, HeldLocks.FOREVER, 0, false);
        ExecutionException error = assertThrows(
                ExecutionException.class,
                () -> held.acquireAsync(request, hold -> {
                            throw new IllegalStateException("of the test");
                        })
                        .get(10, SECONDS));
        assertEquals(IllegalStateException.class, error.getCause().getClass());
        until("it is free", () -> !lock.isLocked());
    }

    @Test
    void timedWaitForANonReentrantLockInACycleIsNotGranted() throws Exception {
        RedissonClient locks = natives();
        Method getter;
        try {
            getter = RedissonClient.class.getMethod("getNonReentrantLock", String.class);
        } catch (NoSuchMethodException older) {
            return;
        }
        RLock a = (RLock) getter.invoke(locks, "a");
        RLock b = (RLock) getter.invoke(locks, "b");
        a.lockAsync(1).get();
        b.lockAsync(2).get();
        var wait = a.tryLockAsync(20, -1, SECONDS, 2);
        until("it waits", () -> server.info("lock_waiters").equals("1"));
        assertFalse(b.tryLockAsync(20, -1, SECONDS, 1).get(10, SECONDS));
        a.unlockAsync(1).get();
        assertTrue(wait.get());
        a.unlockAsync(2).get();
        b.unlockAsync(2).get();
    }
}
