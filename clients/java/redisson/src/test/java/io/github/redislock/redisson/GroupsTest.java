// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Method;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;

/** Multi-locks. */
@Timeout(60)
class GroupsTest extends OneServerFixture {
    @Test
    void leaseOfAGroupIsThatOfItsOwnHolds() throws Exception {
        RedissonClient locks = natives();
        RLock read = locks.getReadWriteLock("k").readLock();
        read.lockAsync(7).get();
        read.lockAsync(60, SECONDS, 8).get();
        RLock group = locks.getMultiLock(read, locks.getLock("l"));
        assertTrue(group.tryLock(1, 6000, SECONDS));
        assertTrue(read.remainTimeToLive() > 5_900_000);
        assertTrue(locks.getLock("l").remainTimeToLive() > 5_900_000);
        // Redisson's own algorithm.
        group.unlock();
        assertTrue(group.tryLockAsync(1, 6000, SECONDS).get());
        assertTrue(read.remainTimeToLive() > 5_900_000);
        group.unlock();
        read.unlockAsync(7).get();
        read.unlockAsync(8).get();
        assertFalse(read.isLocked());
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
        assertFalse(elsewhere(() -> group.tryLock(100, 10_000, java.util.concurrent.TimeUnit.MILLISECONDS)));
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
