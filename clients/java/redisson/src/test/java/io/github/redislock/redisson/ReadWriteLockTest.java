// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReadWriteLock;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.api.RLock;
import org.redisson.api.RLockReactive;
import org.redisson.api.RLockRx;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.api.options.CommonOptions;
import org.redisson.client.RedisException;

/** Read-write locks, on one server. */
@Timeout(60)
class ReadWriteLockTest extends OneServerFixture {
    private static void untilWaiters(int count) throws Exception {
        until(count + " wait", () -> server.info("lock_waiters").equals("" + count));
    }

    /** A thread that locks and unlocks. */
    private static FutureTask<Boolean> user(RLock lock) {
        return thread(() -> {
            lock.lock();
            lock.unlock();
            return true;
        });
    }

    @Test
    void readersShareAndWritersExclude() throws Exception {
        RReadWriteLock lock = natives().getReadWriteLock("k");
        lock.readLock().lock();
        assertTrue(elsewhere(() -> {
            boolean isLocked = lock.readLock().tryLock();
            lock.readLock().unlock();
            return isLocked;
        }));
        assertFalse(elsewhere(() -> lock.writeLock().tryLock()));
        assertFalse(elsewhere(() -> lock.writeLock().tryLock(20, MILLISECONDS)));
        FutureTask<Boolean> writer = user(lock.writeLock());
        untilWaiters(1);
        // No reader overtakes a writer, except for a re-entry.
        assertFalse(elsewhere(() -> lock.readLock().tryLock()));
        assertTrue(lock.readLock().tryLock());
        FutureTask<Boolean> reader = user(lock.readLock());
        untilWaiters(2);
        lock.readLock().unlock();
        assertFalse(writer.isDone());
        lock.readLock().unlock();
        assertTrue(writer.get(10, SECONDS));
        assertTrue(reader.get(10, SECONDS));
        assertFalse(lock.readLock().isLocked() || lock.writeLock().isLocked());
    }

    @Test
    void writerMayReadAndDowngrade() throws Exception {
        RReadWriteLock lock = natives().getReadWriteLock(CommonOptions.name("k"));
        RLock read = lock.readLock();
        RLock write = lock.writeLock();
        write.lock();
        assertTrue(write.tryLock());
        read.lock();
        assertEquals(2, write.getHoldCount());
        assertEquals(1, read.getHoldCount());
        read.unlock();
        assertThrows(IllegalMonitorStateException.class, read::unlock);
        assertTrue(read.tryLock(1, SECONDS));
        write.unlock();
        assertFalse(elsewhere(() -> read.tryLock()));
        FutureTask<Boolean> reader = user(read);
        untilWaiters(1);
        write.unlock();
        assertTrue(reader.get(10, SECONDS));
        assertFalse(elsewhere(() -> write.tryLock()));
        assertThrows(IllegalMonitorStateException.class, write::unlock);
        assertTrue(read.isHeldByCurrentThread());
        read.unlock();
        assertFalse(server.jedis.exists("k"));
    }

    @Test
    void onlyReaderMayWrite() throws Exception {
        RReadWriteLock lock = natives().getReadWriteLock("k");
        RLock read = lock.readLock();
        RLock write = lock.writeLock();
        read.lock();
        assertTrue(write.tryLock());
        read.unlock();
        assertFalse(elsewhere(() -> read.tryLock()));
        write.unlock();
        read.lockAsync(1).get();
        read.lockAsync(2).get();
        assertFalse(write.tryLockAsync(1).get());
        CompletableFuture<Void> first = write.lockAsync(1).toCompletableFuture();
        untilWaiters(1);
        ExecutionException error =
                assertThrows(ExecutionException.class, () -> write.lockAsync(2).get());
        assertTrue(
                error.getCause() instanceof RedisException && error.getMessage().contains("DEADLOCK"),
                () -> "" + error);
        assertFalse(write.tryLockAsync(10, -1, SECONDS, 2).get());
        read.unlockAsync(2).get();
        first.get(10, SECONDS);
        write.unlockAsync(1).get();
        read.unlockAsync(1).get();
        assertFalse(server.jedis.exists("k"));
    }

    @Test
    void queriesConcernOneMode() throws Exception {
        RedissonClient locks = natives();
        RReadWriteLock lock = locks.getReadWriteLock("k");
        for (RLock[] pair : new RLock[][] {{lock.readLock(), lock.writeLock()}, {lock.writeLock(), lock.readLock()}}) {
            RLock held = pair[0];
            RLock other = pair[1];
            assertEquals(-2, held.remainTimeToLive());
            assertFalse(held.forceUnlock());
            held.lock(60, SECONDS);
            held.lock();
            assertTrue(held.isLocked() && held.isLockedAsync().get());
            assertTrue(held.isHeldByCurrentThread());
            assertTrue(held.isHeldByThread(Thread.currentThread().getId()));
            assertFalse(elsewhere(held::isHeldByCurrentThread));
            assertEquals(2, held.getHoldCount());
            assertEquals(0, elsewhere(held::getHoldCount));
            long left = held.remainTimeToLive();
            assertTrue(50_000 < left && left <= 60_000, () -> left + " ms");
            assertFalse(other.isLocked() || other.isLockedAsync().get());
            assertFalse(other.isHeldByCurrentThread());
            assertEquals(0, other.getHoldCount());
            assertEquals(-2, other.remainTimeToLive());
            assertFalse(other.forceUnlock());
            IllegalMonitorStateException error = assertThrows(IllegalMonitorStateException.class, other::unlock);
            assertEquals(
                    "attempt to unlock lock, not locked by current thread by node id: " + locks.getId() + " thread-id: "
                            + Thread.currentThread().getId(),
                    error.getMessage());
            assertEquals(2, held.getHoldCount());
            assertThrows(UnsupportedOperationException.class, held::newCondition);
            assertTrue(elsewhere(held::forceUnlock));
            assertFalse(held.isLocked());
            until("the loss is known", () -> {
                try {
                    held.unlock();
                    return false;
                } catch (IllegalMonitorStateException lost) {
                    return true;
                }
            });
        }
        assertEquals("k", lock.readLock().getName());
        ReadWriteLock standard = lock;
        standard.readLock().lock();
        standard.readLock().unlock();
    }

    @Test
    void forceUnlockIsForAllReaders() throws Exception {
        RReadWriteLock lock = natives().getReadWriteLock("k");
        lock.readLock().lockAsync(1).get();
        lock.readLock().lockAsync(2).get();
        FutureTask<Boolean> writer = user(lock.writeLock());
        untilWaiters(1);
        assertFalse(lock.writeLock().forceUnlock());
        assertTrue(lock.readLock().forceUnlock());
        assertTrue(writer.get(10, SECONDS));
        until("the loss is known", () -> !lock.readLock().isLocked());
    }

    @Test
    void leasesOfReadersEndByThemselves() throws Exception {
        RReadWriteLock lock = natives().getReadWriteLock("k");
        lock.readLock().lockAsync(60, SECONDS, 1).get();
        lock.readLock().lock(200, MILLISECONDS);
        assertTrue(lock.readLock().remainTimeToLive() > 50_000);
        until("the lease is over", () -> !lock.readLock().isHeldByCurrentThread());
        assertThrows(IllegalMonitorStateException.class, lock.readLock()::unlock);
        assertTrue(lock.readLock().isHeldByThread(1));
        lock.readLock().unlockAsync(1).get();
        assertTrue(lock.writeLock().tryLock(1, 1, SECONDS));
        assertTrue(elsewhere(() -> lock.readLock().tryLock(10, 1, SECONDS)));
        until("the lease is over", () -> !lock.readLock().isLocked());
    }

    @Test
    void countsOfWritersAreExact() throws Exception {
        List<RedissonClient> clients = List.of(natives(), natives());
        AtomicInteger readers = new AtomicInteger();
        int[] total = new int[1];
        List<FutureTask<Void>> all = new ArrayList<>();
        for (int number = 0; number < 12; number++) {
            RReadWriteLock lock = clients.get(number % 2).getReadWriteLock("k");
            boolean isReader = number % 3 != 0;
            all.add(thread(() -> {
                for (int round = 0; round < 50; round++) {
                    RLock mine = isReader ? lock.readLock() : lock.writeLock();
                    mine.lock();
                    if (isReader) {
                        readers.incrementAndGet();
                        readers.decrementAndGet();
                    } else {
                        assertEquals(0, readers.get());
                        total[0]++;
                    }
                    mine.unlock();
                }
                return null;
            }));
        }
        for (FutureTask<Void> each : all) {
            each.get(40, SECONDS);
        }
        assertEquals(200, total[0]);
    }

    /** A write lock is the plain lock of that name. */
    @Test
    void plainLocksAndGroupsShareTheName() throws Exception {
        RedissonClient locks = natives();
        RReadWriteLock lock = locks.getReadWriteLock("k");
        lock.readLock().lock();
        assertFalse(elsewhere(() -> locks.getLock("k").tryLock()));
        assertFalse(elsewhere(() -> redisson().getLock("k").tryLock()));
        lock.readLock().unlock();
        RLock group =
                locks.getMultiLock(lock.readLock(), locks.getReadWriteLock("l").writeLock());
        group.lock();
        assertTrue(lock.readLock().isHeldByCurrentThread());
        assertTrue(locks.getReadWriteLock("l").writeLock().isHeldByCurrentThread());
        group.unlock();
        assertTrue(group.tryLock(1, 60, SECONDS));
        assertTrue(lock.readLock().remainTimeToLive() > 50_000);
        group.unlock();
        assertFalse(server.jedis.exists("k") || server.jedis.exists("l"));
    }

    @Test
    void locksOfRedissonAreRefused() throws Exception {
        RReadWriteLock ours = natives().getReadWriteLock("k");
        RReadWriteLock theirs = redisson().getReadWriteLock("k");
        for (RLock held : List.of(theirs.readLock(), theirs.writeLock())) {
            held.lock();
            Map<String, String> before = server.jedis.hgetAll("k");
            for (RLock each : List.of(ours.readLock(), ours.writeLock())) {
                RedisException error = assertThrows(RedisException.class, each::lock);
                assertTrue(error.getMessage().contains("WRONGTYPE"), error::getMessage);
                assertTrue(error.getMessage().contains("without NativeLocks"), error::getMessage);
                assertThrows(RedisException.class, each::tryLock);
                assertThrows(RedisException.class, each::isLocked);
                assertThrows(RedisException.class, each::forceUnlock);
                assertThrows(IllegalMonitorStateException.class, each::unlock);
            }
            assertEquals(before, server.jedis.hgetAll("k"));
            held.unlock();
        }
    }

    @Test
    void reactiveAndRxFormsAreNative() throws Exception {
        RedissonClient locks = natives();
        RLockReactive read = locks.reactive().getReadWriteLock("k").readLock();
        RLockRx write = locks.rxJava().getReadWriteLock(CommonOptions.name("k")).writeLock();
        read.lock(1).block();
        assertTrue(read.tryLock(2).block());
        assertTrue(locks.getReadWriteLock("k").readLock().isHeldByThread(1));
        assertFalse(write.tryLock(3).blockingGet());
        read.unlock(1).block();
        assertThrows(IllegalMonitorStateException.class, () -> read.unlock(1).block());
        read.unlock(2).block();
        write.lock(3).blockingAwait();
        assertTrue(write.isLocked().blockingGet());
        assertFalse(locks.rxJava().getReadWriteLock("k").readLock().isLocked().blockingGet());
        assertFalse(locks.reactive().getReadWriteLock("k").readLock().tryLock(4).block());
        write.unlock(3).blockingAwait();
        assertFalse(server.jedis.exists("k"));
    }
}
