// SPDX-License-Identifier: MIT
package io.github.redislock.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import io.github.redislock.Server;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.integration.support.locks.DistributedLock;

@Timeout(60)
class RedisLockRegistryTest {
    @Test
    void registryBehavesAsThatOfSpring() throws Exception {
        try (Server server = new Server();
                Locks locks = new Locks(new LettuceConnector(server.uri()))) {
            RedisLockRegistry registry =
                    new RedisLockRegistry(locks, "registry", lock -> lock.lease(Duration.ofSeconds(60)));
            DistributedLock lock = registry.obtain("job");
            assertEquals(lock, registry.obtain("job"));
            lock.lock();
            assertTrue(registry.obtain("job").tryLock());
            registry.obtain("job").unlock();
            assertFalse(
                    CompletableFuture.supplyAsync(() -> registry.obtain("job").tryLock())
                            .get());
            registry.renewLock("job", Duration.ofSeconds(90));
            assertTrue(server.jedis.pttl("registry:job") > 60_000);
            registry.renewLock("job");
            CompletableFuture<Boolean> other = CompletableFuture.supplyAsync(() -> {
                assertThrows(
                        TimeoutException.class,
                        () -> registry.executeLocked("job", Duration.ofMillis(20), () -> assertTrue(false)));
                return true;
            });
            assertTrue(other.get());
            lock.unlock();
            assertThrows(IllegalStateException.class, () -> registry.renewLock("job"));
            assertEquals("done", registry.executeLocked("job", () -> "done"));
            assertThrows(IllegalArgumentException.class, () -> registry.obtain(1));
            lock.lock(Duration.ofMillis(50));
            Thread.sleep(60);
            assertFalse(lock.tryLock());
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            assertTrue(lock.tryLock(Duration.ZERO, Duration.ofSeconds(60)));
            server.jedis.del("registry:job");
            assertThrows(IllegalStateException.class, () -> registry.renewLock("job"));
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            assertFalse(server.jedis.exists("registry:job"));
        }
    }
}
