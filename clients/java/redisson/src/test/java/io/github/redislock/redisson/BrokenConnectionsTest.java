// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.Server;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** A server that closes connections. */
@Timeout(60)
class BrokenConnectionsTest extends Fixture {
    private Server server;

    @Override
    void configure(Config config) {
        single(config, server.uri());
    }

    @Test
    void brokenConnectionsCountNothingTwice() throws Exception {
        server = new Server();
        RedissonClient locks = natives();
        RLock kept = locks.getLock("kept");
        kept.lock();
        FutureTask<Boolean> wait = thread(() -> {
            kept.lock();
            kept.unlock();
            return true;
        });
        until("it waits", () -> server.info("lock_waiters").equals("1"));
        AtomicInteger inside = new AtomicInteger();
        List<FutureTask<Integer>> all = new ArrayList<>();
        long until = System.nanoTime() + SECONDS.toNanos(3);
        for (int number = 0; number < 8; number++) {
            RLock lock = locks.getLock("k");
            boolean isAsync = number % 2 == 1;
            all.add(thread(() -> {
                int count = 0;
                while (System.nanoTime() - until < 0) {
                    if (isAsync) {
                        lock.lockAsync().get();
                    } else {
                        lock.lock();
                    }
                    assertEquals(1, inside.incrementAndGet());
                    count++;
                    inside.decrementAndGet();
                    if (isAsync) {
                        lock.unlockAsync().get();
                    } else {
                        lock.unlock();
                    }
                }
                return count;
            }));
        }
        while (System.nanoTime() - until < 0) {
            server.call("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes");
            Thread.sleep(250);
        }
        for (FutureTask<Integer> each : all) {
            assertTrue(each.get(20, SECONDS) > 0);
        }
        assertFalse(wait.isDone());
        assertTrue(kept.isHeldByCurrentThread());
        kept.unlock();
        assertTrue(wait.get(20, SECONDS));
        until("the locks are free", () -> !server.jedis.exists("k") && !server.jedis.exists("kept"));
        assertEquals("0", server.info("lock_internal_errors"));
        locks.shutdown();
        server.close();
    }
}
