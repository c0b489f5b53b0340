// SPDX-License-Identifier: MIT
package example.redislock.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.redislock.LettuceConnector;
import example.redislock.Locks;
import example.redislock.Server;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class RedisLockRegistryTest {
    @Test
    void theRegistryIsThatOfSpring() throws Exception {
        try (Server server = new Server();
                Locks locks = new Locks(new LettuceConnector(server.uri()))) {
            RedisLockRegistry registry =
                    new RedisLockRegistry(locks, "registry", lock -> lock.lease(Duration.ofSeconds(60)));
            Lock lock = registry.obtain("job");
            lock.lock();
            assertTrue(registry.obtain("job").tryLock());
            registry.obtain("job").unlock();
            assertFalse(
                    CompletableFuture.supplyAsync(() -> registry.obtain("job").tryLock())
                            .get());
            server.jedis.pexpire("registry:job", 30_000);
            registry.renewLock("job");
            assertTrue(server.jedis.pttl("registry:job") > 30_000);
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
            lock.lock();
            server.jedis.del("registry:job");
            assertThrows(IllegalStateException.class, () -> registry.renewLock("job"));
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            assertFalse(server.jedis.exists("registry:job"));
        }
    }
}
