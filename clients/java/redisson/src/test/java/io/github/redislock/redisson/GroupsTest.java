// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Method;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.RedissonShutdownException;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;

/** Multi-locks. */
@Timeout(60)
class GroupsTest extends OneServerFixture {
    @Test
    @SuppressWarnings("deprecation")
    void leaseOfARedLockIsThatOfItsOwnHolds() throws Exception {
        RedissonClient locks = natives();
        RLock read = locks.getReadWriteLock("k").readLock();
        read.lockAsync(7).get();
        read.lockAsync(60, SECONDS, 8).get();
        RLock red = locks.getRedLock(read, locks.getLock("l"));
        assertTrue(red.tryLock(1, 6000, SECONDS));
        assertTrue(read.remainTimeToLive() > 5_900_000);
        assertTrue(locks.getLock("l").remainTimeToLive() > 5_900_000);
        red.unlock();
        // It shortens no lease of others.
        assertTrue(red.tryLock(1, 1, SECONDS));
        red.unlock();
        read.unlockAsync(7).get();
        assertTrue(read.remainTimeToLive() > 5_900_000);
        read.unlockAsync(8).get();
        assertFalse(read.isLocked());
    }

    @Test
    void leaseOfAGroupBeginsWithItsLastLock() throws Exception {
        RedissonClient locks = natives();
        RLock held = locks.getLock("b");
        held.lockAsync(7).get();
        RLock group = locks.getMultiLock(locks.getLock("a"), held);
        List<Callable<Boolean>> forms = List.of(
                () -> group.tryLock(60, 10, SECONDS),
                () -> group.tryLockAsync(60, 10, SECONDS).get(),
                () -> {
                    group.lock(10, SECONDS);
                    return true;
                });
        for (Callable<Boolean> form : forms) {
            FutureTask<Boolean> wait = thread(() -> {
                assertTrue(form.call());
                for (String name : List.of("a", "b")) {
                    long left = locks.getLock(name).remainTimeToLive();
                    assertTrue(9_000 < left, () -> name + " " + left);
                    assertEquals(1, locks.getLock(name).getHoldCount());
                }
                group.unlock();
                return true;
            });
            until("it waits", () -> server.info("lock_waiters").equals("1"));
            // The server renews it, for it cannot know when the other is free.
            assertTrue(locks.getLock("a").remainTimeToLive() > 25_000);
            held.unlockAsync(7).get();
            assertTrue(wait.get(10, SECONDS));
            assertFalse(server.jedis.exists("a") || server.jedis.exists("b"));
            held.lockAsync(7).get();
        }
        held.unlockAsync(7).get();
        long began = System.nanoTime();
        assertTrue(group.tryLock(60, 1, SECONDS));
        until("the lease is over", () -> !server.jedis.exists("a") && !server.jedis.exists("b"));
        assertTrue(System.nanoTime() - began > MILLISECONDS.toNanos(990));
        assertThrows(IllegalMonitorStateException.class, group::unlock);
    }

    @Test
    void failedGroupReleasesItsOwnHolds() throws Exception {
        RedissonClient locks = natives();
        RLock a = locks.getLock("a");
        a.lock(20, SECONDS);
        locks.getLock("b").lockAsync(7).get();
        RLock group = locks.getMultiLock(a, locks.getLock("b"));
        assertFalse(group.tryLock(50, 60_000, MILLISECONDS));
        assertEquals(1, a.getHoldCount());
        until("its lease is that of before", () -> a.remainTimeToLive() <= 20_000);
        a.unlock();
        assertFalse(a.isLocked());
        locks.getLock("b").unlockAsync(7).get();
    }

    @Test
    void brokenMemberDoesNotKeepTheOthers() throws Exception {
        RedissonClient locks = natives();
        RLock group = locks.getMultiLock(locks.getLock("a"), locks.getLock("b"));
        group.lock();
        assertTrue(locks.getLock("a").forceUnlock());
        assertThrows(IllegalMonitorStateException.class, group::unlock);
        assertFalse(server.jedis.exists("b"));
    }

    @Test
    void cancelledWaitOfAGroupEnds() throws Exception {
        RedissonClient locks = natives();
        RLock held = locks.getLock("b");
        held.lock();
        RFuture<Void> wait = locks.getMultiLock(locks.getLock("a"), held).lockAsync(7);
        until("it waits", () -> server.info("lock_waiters").equals("1"));
        wait.cancel(true);
        until("it has ended", () -> server.info("lock_waiters").equals("0") && !server.jedis.exists("a"));
        held.unlock();
    }

    @Test
    void groupSaysWhatIsInItsWay() throws Exception {
        RedissonClient locks = natives();
        server.jedis.set("s", "v");
        RLock group = locks.getMultiLock(locks.getLock("a"), locks.getLock("s"));
        for (RedisException error : List.of(
                assertThrows(RedisException.class, group::lock),
                assertThrows(RedisException.class, group::tryLock),
                assertThrows(RedisException.class, () -> group.tryLock(10, 10, SECONDS)))) {
            assertTrue(error.getMessage().contains("WRONGTYPE"), error::getMessage);
        }
        assertFalse(server.jedis.exists("a"));
    }

    @Test
    void interruptsEndWaitsOfGroupsThatSaySo() throws Exception {
        RedissonClient locks = natives();
        RLock held = locks.getLock("b");
        held.lock();
        RLock group = locks.getMultiLock(locks.getLock("a"), held);
        AtomicReference<Thread> waiting = new AtomicReference<>();
        FutureTask<Boolean> ended = thread(() -> {
            waiting.set(Thread.currentThread());
            assertThrows(InterruptedException.class, group::lockInterruptibly);
            return Thread.currentThread().isInterrupted();
        });
        until("it waits", () -> server.info("lock_waiters").equals("1"));
        waiting.get().interrupt();
        assertFalse(ended.get(10, SECONDS));
        assertFalse(server.jedis.exists("a"));
        FutureTask<Boolean> stubborn = thread(() -> {
            waiting.set(Thread.currentThread());
            group.lock();
            group.unlock();
            return Thread.currentThread().isInterrupted();
        });
        until("it waits", () -> server.info("lock_waiters").equals("1"));
        waiting.get().interrupt();
        held.unlock();
        assertTrue(stubborn.get(10, SECONDS));
        assertFalse(server.jedis.exists("a") || server.jedis.exists("b"));
    }

    @Test
    void groupWithoutTimeLeftKeepsNothing() throws Exception {
        RedissonClient locks = natives();
        RLock held = locks.getLock("b");
        held.lock();
        RLock group = locks.getMultiLock(locks.getLock("a"), held);
        assertFalse(elsewhere(() -> group.tryLock()));
        assertFalse(elsewhere(() -> group.tryLock(100, 10_000, MILLISECONDS)));
        assertFalse(server.jedis.exists("a"));
        held.unlock();
    }

    @Test
    void groupsEndWithTheClient() throws Exception {
        RedissonClient locks = natives();
        RLock held = locks.getLock("b");
        held.lockAsync(60, SECONDS, 7).get();
        RLock group = locks.getMultiLock(locks.getLock("a"), held);
        FutureTask<Void> wait = thread(() -> {
            group.lock();
            return null;
        });
        until("it waits", () -> server.info("lock_waiters").equals("1"));
        locks.shutdown();
        assertEquals(
                "RedissonShutdownException",
                assertThrows(ExecutionException.class, () -> wait.get(10, SECONDS))
                        .getCause()
                        .getClass()
                        .getSimpleName());
        assertFalse(server.jedis.exists("a"));
        assertThrows(ExecutionException.class, () -> group.lockAsync().get(10, SECONDS));
        assertThrows(RedissonShutdownException.class, group::unlock);
    }

    /** The form of Redisson 4 that is one key. */
    @Test
    void groupOfValuesIsThatOfRedisson() throws Exception {
        Method method;
        try {
            method = RedissonClient.class.getMethod("getMultiLock", String.class, Collection.class);
        } catch (NoSuchMethodException older) {
            return;
        }
        RLock group = (RLock) method.invoke(natives(), "k", List.of("a", "b"));
        group.lock();
        assertEquals(6, server.jedis.hlen("k"));
        group.unlock();
        assertEquals(0, calls("lock.acquire"));
    }
}
