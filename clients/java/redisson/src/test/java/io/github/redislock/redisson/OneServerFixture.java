// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.redislock.Server;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.redisson.config.Config;

/** A server for each class of tests. No test leaves a waiter, an internal error or a key. */
abstract class OneServerFixture extends Fixture {
    static Server server;

    @BeforeAll
    static void start() throws Exception {
        server = new Server();
    }

    @AfterAll
    static void stop() throws Exception {
        server.close();
    }

    /** Calls of a command since the start of the test. */
    static long calls(String command) {
        String line = server.jedis
                .info("commandstats")
                .lines()
                .filter(each -> each.startsWith("cmdstat_" + command + ":"))
                .findFirst()
                .orElse("calls=0,");
        return Long.parseLong(line.split("calls=", 2)[1].split(",", 2)[0]);
    }

    @AfterEach
    void nothingStays() throws Exception {
        assertEquals("0", server.info("lock_waiters"));
        assertEquals("0", server.info("lock_internal_errors"));
        server.jedis.flushAll();
        until("no hold stays", () -> held.stream().allMatch(HeldLocks::isEmpty));
        server.call("CONFIG", "RESETSTAT");
    }

    @Override
    void configure(Config config) {
        single(config, server.uri());
    }
}
