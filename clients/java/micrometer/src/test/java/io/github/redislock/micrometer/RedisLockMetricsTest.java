// SPDX-License-Identifier: MIT
package io.github.redislock.micrometer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.Hold;
import io.github.redislock.LettuceConnector;
import io.github.redislock.LockEvent;
import io.github.redislock.Locks;
import io.github.redislock.RedisLock;
import io.github.redislock.Server;
import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.Tags;
import io.micrometer.core.instrument.Timer;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class RedisLockMetricsTest {
    private final SimpleMeterRegistry registry = new SimpleMeterRegistry();
    private Server server;
    private Locks locks;

    @BeforeEach
    void start() throws Exception {
        server = new Server();
        locks = new Locks.Builder(new LettuceConnector(server.uri()))
                .listener(new RedisLockMetrics(registry, Tags.of("application", "shop")))
                .build();
    }

    @AfterEach
    void stop() throws Exception {
        locks.close();
        server.close();
    }

    private Timer timer(String name, String label, String outcome) {
        return registry.get(name)
                .tags("application", "shop", "label", label, "outcome", outcome)
                .timer();
    }

    private double count(String name, String label) {
        Counter counter = registry.get(name).tags("label", label).counter();
        return counter.count();
    }

    @Test
    void waitsAndHoldsAreTimed() throws Exception {
        RedisLock lock = locks.lock("k").label("orders");
        try (Hold hold = lock.acquire()) {
            assertTrue(lock.owner("other").tryAcquire().isEmpty());
            assertTrue(lock.owner("other").tryAcquire(Duration.ofMillis(50)).isEmpty());
            assertEquals("k", hold.key());
        }
        locks.lock("l").acquire().release();
        assertEquals(1, timer("redis.lock.wait", "orders", "granted").count());
        assertEquals(1, timer("redis.lock.wait", "orders", "busy").count());
        Timer timedOut = timer("redis.lock.wait", "orders", "timed out");
        assertTrue(timedOut.totalTime(TimeUnit.MILLISECONDS) >= 50);
        Timer hold = timer("redis.lock.hold", "orders", "released");
        assertEquals(1, hold.count());
        assertTrue(hold.totalTime(TimeUnit.MILLISECONDS) >= 50);
        assertEquals(1, timer("redis.lock.hold", "none", "released").count());
        assertEquals(0, count("redis.lock.losses", "orders"));
        assertEquals(0, count("redis.lock.jeopardy", "orders"));
    }

    @Test
    void lossesAreCounted() throws Exception {
        RedisLock lock = locks.lock("k").label("orders");
        Hold hold = lock.acquire();
        lock.forceRelease();
        assertTrue(hold.awaitLost(Duration.ofSeconds(10)));
        assertEquals(1, count("redis.lock.losses", "orders"));
        assertEquals(1, timer("redis.lock.hold", "orders", "lost").count());
    }

    @Test
    void jeopardyIsCounted() {
        RedisLockMetrics metrics = new RedisLockMetrics(registry);
        metrics.accept(new LockEvent("orders", "jeopardy", "", Duration.ofSeconds(5)));
        metrics.accept(new LockEvent("orders", "safe", "", Duration.ofSeconds(6)));
        assertEquals(1, count("redis.lock.jeopardy", "orders"));
    }
}
