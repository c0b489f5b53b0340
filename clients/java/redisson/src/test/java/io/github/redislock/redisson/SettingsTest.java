// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.Server;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.RedissonShutdownException;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** The configuration of the given client, and the ends of clients and servers. */
@Timeout(60)
class SettingsTest extends OneServerFixture {
    @Test
    void namesDependOnNoCodec() throws Exception {
        RLock one = natives().getLock("Zürich 鍵 \u0000");
        RLock other = natives(config -> config.setCodec(new StringCodec())).getLock("Zürich 鍵 \u0000");
        RLock theirs = redisson(config -> config.setCodec(new StringCodec())).getLock("Zürich 鍵 \u0000");
        one.lock();
        assertTrue(other.isLocked() && theirs.isLocked());
        assertFalse(other.tryLock());
        one.unlock();
        theirs.lock();
        assertFalse(other.tryLock());
        theirs.unlock();
    }

    /** The user has the permissions of the documentation. */
    @Test
    @SuppressWarnings("deprecation")
    void userAndDatabaseAreThoseOfTheClient() throws Exception {
        String rules = "reset on >secret ~* &* -@all +@connection +lock.session|open +lock.session|close +lock.events"
                + " +lock.acquire +lock.release +lock.renew +lock.cancel +exists +hexists +hget +pttl";
        String[] words = ("ACL SETUSER app " + rules).split(" ");
        server.call(words);
        RedissonClient locks = natives(config ->
                config.useSingleServer().setDatabase(3).setUsername("app").setPassword("secret"));
        RLock lock = locks.getLock("k");
        lock.lock();
        assertTrue(lock.isHeldByCurrentThread() && lock.remainTimeToLive() > 0);
        assertFalse(server.jedis.exists("k"));
        server.jedis.select(3);
        assertTrue(server.jedis.exists("k"));
        server.jedis.select(0);
        FutureTask<Boolean> wait = thread(() -> {
            lock.lock();
            lock.unlock();
            return true;
        });
        until("it waits", () -> server.info("lock_waiters").equals("1"));
        lock.unlock();
        assertTrue(wait.get(10, SECONDS));
    }

    @Test
    void pendingWaitsEndWithTheClient() throws Exception {
        RedissonClient locks = natives();
        RLock lock = locks.getLock("k");
        lock.lockAsync(60, SECONDS, 7).get();
        FutureTask<Void> sync = thread(() -> {
            lock.lock();
            return null;
        });
        FutureTask<Boolean> timed = thread(() -> lock.tryLock(50, SECONDS));
        RFuture<Void> async = lock.lockAsync(8);
        until("they wait", () -> server.info("lock_waiters").equals("3"));
        locks.shutdown();
        for (java.util.concurrent.Future<?> each : List.of(sync, timed, async)) {
            ExecutionException error = assertThrows(ExecutionException.class, () -> each.get(10, SECONDS));
            assertEquals(RedissonShutdownException.class, error.getCause().getClass());
        }
        assertThrows(RedissonShutdownException.class, lock::lock);
        assertThrows(RedissonShutdownException.class, lock::tryLock);
    }

    @Test
    void callsFailWithoutAServer() throws Exception {
        try (Server gone = new Server()) {
            Config config = new Config();
            single(config, gone.uri());
            config.useSingleServer().setTimeout(200).setRetryAttempts(1);
            RedissonClient plain = org.redisson.Redisson.create(config);
            try {
                RLock lock = NativeLocks.of(plain).getLock("k");
                lock.lock();
                gone.kill();
                assertThrows(RedisException.class, () -> lock.tryLock(1, SECONDS));
                assertThrows(
                        RedisException.class,
                        () -> elsewhere(() -> {
                            lock.lock();
                            return null;
                        }));
                assertThrows(ExecutionException.class, () -> lock.lockAsync(7).get(30, SECONDS));
            } finally {
                plain.shutdown(0, 2, SECONDS);
            }
        }
    }

    /** The interface of both clients is the same, so the name decides. */
    @Configuration
    static class Application {
        static Config config;

        @Bean(destroyMethod = "shutdown")
        RedissonClient redisson() {
            return org.redisson.Redisson.create(config);
        }

        @Bean(defaultCandidate = false, destroyMethod = "")
        RedissonClient locks(RedissonClient redisson) {
            return NativeLocks.of(redisson);
        }

        record Service(RedissonClient cache, RedissonClient locks) {}

        @Bean
        Service service(RedissonClient cache, @Qualifier("locks") RedissonClient locks) {
            return new Service(cache, locks);
        }
    }

    @Test
    void springHasOneMoreBean() throws Exception {
        Application.config = new Config();
        configure(Application.config);
        try (var context = new AnnotationConfigApplicationContext(Application.class)) {
            Application.Service service = context.getBean(Application.Service.class);
            assertSame(context.getBean("redisson"), service.cache());
            RLock lock = service.locks().getLock("k");
            lock.lock();
            assertEquals(1, calls("lock.acquire"));
            lock.unlock();
            lock.lock();
        }
        // The end of the original ends the session.
        until("the lock is free", () -> !server.jedis.exists("k"));
    }
}
