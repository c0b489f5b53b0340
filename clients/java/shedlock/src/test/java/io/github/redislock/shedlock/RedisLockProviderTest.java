// SPDX-License-Identifier: MIT
package io.github.redislock.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import io.github.redislock.Server;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class RedisLockProviderTest {
    private static final Duration LONG = Duration.ofMinutes(10);

    private static LockConfiguration job(Duration most, Duration least) {
        return new LockConfiguration(Instant.now(), "job", most, least);
    }

    private interface Body {
        void run(RedisLockProvider provider, Server server) throws Exception;
    }

    private static void with(Body body) throws Exception {
        try (Server server = new Server();
                Locks locks = new Locks(new LettuceConnector(server.uri()))) {
            body.run(new RedisLockProvider(locks), server);
            assertFalse(server.jedis.exists("shedlock:job"), () -> "" + server.call("LOCK.INFO", "shedlock:job"));
        }
    }

    @Test
    void oneAtATime() throws Exception {
        with((provider, server) -> {
            SimpleLock lock = provider.lock(job(LONG, Duration.ZERO)).orElseThrow();
            assertTrue(provider.lock(job(LONG, Duration.ZERO)).isEmpty());
            lock.unlock();
            assertThrows(IllegalStateException.class, lock::unlock);
            provider.lock(job(LONG, Duration.ZERO)).orElseThrow().unlock();
        });
    }

    @Test
    void itLastsForAsLongAsItMust() throws Exception {
        with((provider, server) -> {
            // The connections are there before the time runs.
            provider.lock(job(LONG, Duration.ZERO)).orElseThrow().unlock();
            provider.lock(job(LONG, Duration.ofSeconds(3))).orElseThrow().unlock();
            long left = server.jedis.pttl("shedlock:job");
            assertTrue(0 < left && left <= 3000, () -> left + " ms");
            assertTrue(provider.lock(job(LONG, Duration.ZERO)).isEmpty());
            Optional<SimpleLock> next = Optional.empty();
            while (next.isEmpty()) {
                next = provider.lock(job(LONG, Duration.ZERO));
            }
            next.get().unlock();
        });
    }

    @Test
    void itIsExtended() throws Exception {
        with((provider, server) -> {
            SimpleLock lock =
                    provider.lock(job(Duration.ofSeconds(20), Duration.ZERO)).orElseThrow();
            SimpleLock longer = lock.extend(LONG, Duration.ZERO).orElseThrow();
            assertTrue(server.jedis.pttl("shedlock:job") > 500_000);
            assertThrows(IllegalStateException.class, lock::unlock);
            server.jedis.del("shedlock:job");
            assertTrue(longer.extend(LONG, Duration.ZERO).isEmpty());
        });
    }

    @Test
    void aLossHidesNothing() throws Exception {
        with((provider, server) -> {
            DefaultLockingTaskExecutor executor = new DefaultLockingTaskExecutor(provider);
            Throwable error = assertThrows(
                    IllegalArgumentException.class,
                    () -> executor.executeWithLock(
                            (Runnable) () -> {
                                server.jedis.del("shedlock:job");
                                throw new IllegalArgumentException("of the task");
                            },
                            job(LONG, Duration.ZERO)));
            assertEquals("of the task", error.getMessage());
        });
    }
}
