// SPDX-License-Identifier: MIT
package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.LockException.Kind;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.function.Executable;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.RedisClient;

/** A server for each test, which must leave nothing on it, and no thread. */
abstract class Fixture {
    enum Library {
        LETTUCE,
        JEDIS,
        REDISSON
    }

    private final Set<Thread> before = threads();
    private final List<AutoCloseable> closing = new ArrayList<>();
    Server server;

    @BeforeEach
    void start() throws Exception {
        server = new Server();
    }

    @AfterEach
    void nothingStays() throws Exception {
        for (AutoCloseable each : closing) {
            each.close();
        }
        until(
                "the connections are closed",
                () -> server.info("connected_clients").equals("1"));
        assertEquals("0", server.info("lock_waiters"));
        assertEquals("0", server.info("lock_internal_errors"));
        assertEquals(0, server.jedis.exists("k", "l", "other"));
        server.close();
        until("the threads have ended", () -> before.containsAll(threads()));
    }

    <T extends AutoCloseable> T closed(T later) {
        closing.add(later);
        return later;
    }

    Connector connector(Library library, String uri) {
        return switch (library) {
            case LETTUCE -> new LettuceConnector(uri);
            case JEDIS -> {
                ConnectionPoolConfig config = new ConnectionPoolConfig();
                config.setMaxTotal(50);
                config.setMaxIdle(50);
                yield new JedisConnector(closed(RedisClient.builder()
                        .hostAndPort("127.0.0.1", URI.create(uri).getPort())
                        .poolConfig(config)
                        .build()));
            }
            case REDISSON -> {
                Config config = new Config();
                config.useSingleServer()
                        .setAddress(uri)
                        .setConnectionMinimumIdleSize(1)
                        .setSubscriptionConnectionMinimumIdleSize(1);
                RedissonClient redisson = Redisson.create(config);
                closing.add(() -> redisson.shutdown(0, 2, TimeUnit.SECONDS));
                yield new RedissonConnector(redisson);
            }
        };
    }

    Locks locks(Library library, String uri, UnaryOperator<Locks.Builder> settings) {
        Locks locks = settings.apply(new Locks.Builder(connector(library, uri))).build();
        closing.add(0, locks);
        return locks;
    }

    Locks locks(Library library) {
        return locks(library, server.uri(), builder -> builder);
    }

    static Set<Thread> threads() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().startsWith("redis-lock")
                        || thread.getName().startsWith("lettuce-nio"))
                .collect(Collectors.toSet());
    }

    static void until(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (!condition.call()) {
            assertTrue(System.nanoTime() - deadline < 0, () -> "waited in vain until " + what + ": " + threads());
            Thread.sleep(5);
        }
    }

    void untilWaiters(int count) throws Exception {
        until(count + " wait", () -> server.info("lock_waiters").equals("" + count));
    }

    long calls(String command) {
        String before = "cmdstat_" + command + ":calls=";
        return server.jedis
                .info("commandstats")
                .lines()
                .filter(line -> line.startsWith(before))
                .mapToLong(
                        line -> Long.parseLong(line.substring(before.length()).split(",", 2)[0]))
                .sum();
    }

    static <T> FutureTask<T> thread(Callable<T> work) {
        FutureTask<T> task = new FutureTask<>(work);
        Thread thread = new Thread(task, "of the test");
        thread.setDaemon(true);
        thread.start();
        return task;
    }

    static String text(Object reply) {
        return Replies.text(reply);
    }

    static void assertKind(Kind kind, Executable work) {
        LockException error = assertThrows(LockException.class, work);
        assertEquals(kind, error.kind(), error::toString);
    }
}
