// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Clients with and without native locks, which leave no thread of this package. */
abstract class Fixture {
    private final List<RedissonClient> clients = new ArrayList<>();
    /** The holds of each client with native locks. */
    final List<HeldLocks> held = new ArrayList<>();

    /** The configuration of the servers. */
    abstract void configure(Config config);

    /** One server, and few connections. */
    static void single(Config config, String uri) {
        config.useSingleServer()
                .setAddress(uri)
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1);
    }

    /** A client without native locks. */
    RedissonClient redisson(Consumer<Config> more) {
        Config config = new Config();
        configure(config);
        more.accept(config);
        RedissonClient client = Redisson.create(config);
        clients.add(client);
        return client;
    }

    RedissonClient redisson() {
        return redisson(config -> {});
    }

    RedissonClient natives(Consumer<Config> more) {
        RedissonClient client = NativeLocks.of(redisson(more));
        clients.set(clients.size() - 1, client);
        held.add(((NativeLock) client.getLock("none")).held);
        return client;
    }

    RedissonClient natives() {
        return natives(config -> {});
    }

    @AfterEach
    void shutDown() throws Exception {
        Collections.reverse(clients);
        clients.forEach(client -> client.shutdown(0, 2, TimeUnit.SECONDS));
        until(
                "the threads have ended",
                () -> Thread.getAllStackTraces().keySet().stream()
                        .noneMatch(thread -> thread.getName().startsWith("redis-lock")));
    }

    static void until(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (!condition.call()) {
            assertTrue(System.nanoTime() - deadline < 0, "waited in vain until " + what);
            Thread.sleep(5);
        }
    }

    static <T> FutureTask<T> thread(Callable<T> work) {
        FutureTask<T> task = new FutureTask<>(work);
        Thread thread = new Thread(task, "of the test");
        thread.setDaemon(true);
        thread.start();
        return task;
    }

    /** The result of work in another thread. */
    static <T> T elsewhere(Callable<T> work) throws Exception {
        try {
            return thread(work).get(20, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception known ? known : error;
        }
    }
}
