// SPDX-License-Identifier: MIT
package io.github.redislock.boot;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.redislock.Connector;
import io.github.redislock.Hold;
import io.github.redislock.JedisConnector;
import io.github.redislock.LettuceConnector;
import io.github.redislock.LockEvent;
import io.github.redislock.LockException;
import io.github.redislock.Locks;
import io.github.redislock.Server;
import io.github.redislock.micrometer.RedisLockMetrics;
import io.github.redislock.spring.RedisLockRegistry;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Lock;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.RedisStaticMasterReplicaConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.support.locks.DefaultLockRegistry;
import org.springframework.integration.support.locks.LockRegistry;

class RedisLockAutoConfigurationTest {
    private static Server server;

    @BeforeAll
    static void start() throws Exception {
        server = new Server();
        server.call("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all");
        server.call("SELECT", "3");
    }

    @AfterAll
    static void stop() throws Exception {
        server.close();
    }

    private final ApplicationContextRunner runner = new ApplicationContextRunner()
            .withConfiguration(AutoConfigurations.of(
                    DataRedisAutoConfiguration.class,
                    RedisLockAutoConfiguration.class,
                    RedisLockRegistryAutoConfiguration.class))
            .withPropertyValues("spring.data.redis.url=redis://shop:secret@127.0.0.1:" + server.port + "/3");

    @ParameterizedTest
    @ValueSource(strings = {"lettuce", "jedis"})
    void locksUseTheFactoryOfTheApplication(String library) throws Exception {
        AtomicReference<Hold> kept = new AtomicReference<>();
        runner.withPropertyValues("spring.data.redis.client-type=" + library).run(context -> {
            assertThat(context.getBean(Connector.class))
                    .isInstanceOf(library.equals("jedis") ? JedisConnector.class : LettuceConnector.class);
            Locks locks = context.getBean(Locks.class);
            locks.lock("k").acquire().release();
            kept.set(locks.lock("k").acquire());
            assertThat(server.jedis.exists("k")).isTrue();
        });
        // The context has closed the locks, which released the hold, and all connections.
        assertThat(server.jedis.exists("k")).isFalse();
        assertThat(kept.get().validFor()).isZero();
        waitUntil(
                "connections are closed", () -> server.info("connected_clients").equals("1"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"lettuce", "jedis"})
    void locksUseTheClusterOfTheApplication(String library) throws Exception {
        try (Server node = new Server("--cluster-enabled", "yes")) {
            node.call("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all");
            node.call("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
            waitUntil(
                    "the cluster is up",
                    () -> new String((byte[]) node.call("CLUSTER", "INFO"), StandardCharsets.UTF_8)
                            .contains("cluster_state:ok"));
            new ApplicationContextRunner()
                    .withConfiguration(
                            AutoConfigurations.of(DataRedisAutoConfiguration.class, RedisLockAutoConfiguration.class))
                    .withPropertyValues(
                            "spring.data.redis.client-type=" + library,
                            "spring.data.redis.username=shop",
                            "spring.data.redis.password=secret",
                            "spring.data.redis.cluster.nodes=127.0.0.1:" + node.port)
                    .run(context -> {
                        try (Hold hold = context.getBean(Locks.class).lock("k").acquire()) {
                            assertThat(hold.isLost()).isFalse();
                            assertThat(node.jedis.exists("k")).isTrue();
                        }
                    });
            waitUntil(
                    "connections are closed",
                    () -> node.info("connected_clients").equals("1"));
        }
    }

    private static void waitUntil(String what, BooleanSupplier condition) throws InterruptedException {
        long end = System.nanoTime() + Duration.ofSeconds(20).toNanos();
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime()).as("waited in vain until " + what).isLessThan(end);
            Thread.sleep(5);
        }
    }

    @Test
    void locksOutliveAFactoryThatRestarts() {
        runner.run(context -> {
            Locks locks = context.getBean(Locks.class);
            Hold hold = locks.lock("k").acquire();
            LettuceConnectionFactory factory = context.getBean(LettuceConnectionFactory.class);
            factory.stop();
            hold.release();
            factory.start();
            locks.lock("k").acquire().release();
        });
    }

    @Test
    void propertiesReachTheSession() {
        runner.withPropertyValues(
                        "redis-lock.name=of-the-test",
                        "redis-lock.ttl=20s",
                        "redis-lock.grace=2s",
                        "redis-lock.patience=4s")
                .run(context -> {
                    assertThat(context.getBean(RedisLockProperties.class))
                            .isEqualTo(new RedisLockProperties(
                                    Duration.ofSeconds(20),
                                    Duration.ofSeconds(2),
                                    Duration.ofSeconds(4),
                                    "of-the-test",
                                    null));
                    Hold hold = context.getBean(Locks.class).lock("k").acquire();
                    assertThat(hold.validFor()).isBetween(Duration.ofMillis(1), Duration.ofSeconds(2));
                    hold.release();
                    assertThat(hold.owner()).startsWith("of-the-test:");
                });
    }

    @Test
    void wrongPropertyFailsTheStart() {
        runner.withPropertyValues("redis-lock.ttl=1s", "redis-lock.grace=2s")
                .run(context -> assertThat(context)
                        .getFailure()
                        .rootCause()
                        .isInstanceOf(LockException.class)
                        .hasMessageContaining("grace must be at most the TTL"));
    }

    @Test
    void ownBeansTakePrecedence() {
        runner.withUserConfiguration(OwnLocks.class).run(context -> {
            assertThat(context).hasSingleBean(Locks.class).doesNotHaveBean(Connector.class);
            assertThat(context).hasBean("ownLocks");
        });
        runner.withBean(Connector.class, () -> new LettuceConnector("redis://127.0.0.1:1"))
                .run(context -> assertThat(context)
                        .hasSingleBean(Connector.class)
                        .hasSingleBean(Locks.class)
                        .doesNotHaveBean(FactoryConnector.class));
        runner.withBean(LockRegistry.class, DefaultLockRegistry::new)
                .run(context -> assertThat(context).doesNotHaveBean(RedisLockRegistry.class));
    }

    @Test
    void nothingIsConfiguredWithoutAFactory() {
        new ApplicationContextRunner()
                .withConfiguration(AutoConfigurations.of(
                        RedisLockAutoConfiguration.class, RedisLockRegistryAutoConfiguration.class))
                .run(context -> assertThat(context)
                        .hasNotFailed()
                        .doesNotHaveBean(Locks.class)
                        .doesNotHaveBean(LockRegistry.class));
    }

    @Test
    void optionalLibrariesMayBeMissing() {
        runner.withClassLoader(new FilteredClassLoader(
                        "io.micrometer.core", "org.springframework.integration", "io.lettuce", "reactor"))
                .withPropertyValues("spring.data.redis.client-type=jedis")
                .run(context -> {
                    assertThat(context).hasSingleBean(Locks.class).doesNotHaveBean("redisLockRegistry");
                    context.getBean(Locks.class).lock("k").acquire().release();
                });
        runner.withClassLoader(new FilteredClassLoader("redis.clients"))
                .run(context -> assertThat(context).hasSingleBean(Locks.class));
    }

    @Test
    void staticReplicasAreRefused() {
        RedisStaticMasterReplicaConfiguration replicas = new RedisStaticMasterReplicaConfiguration("127.0.0.1");
        runner.withBean(RedisConnectionFactory.class, () -> new LettuceConnectionFactory(replicas))
                .run(context -> assertThat(context).getFailure().rootCause().hasMessageContaining("static replicas"));
    }

    @Test
    void registryUsesTheNameOfTheApplication() {
        runner.withPropertyValues("spring.application.name=shop").run(context -> {
            Lock lock = context.getBean(LockRegistry.class).obtain("k");
            lock.lock();
            assertThat(server.jedis.exists("shop:k")).isTrue();
            lock.unlock();
        });
        runner.withPropertyValues("redis-lock.registry-key=other").run(context -> {
            Lock lock = context.getBean(LockRegistry.class).obtain("k");
            lock.lock();
            assertThat(server.jedis.exists("other:k")).isTrue();
            lock.unlock();
        });
    }

    @Test
    void listenersAndMetricsGetEvents() {
        runner.withUserConfiguration(Listening.class).run(context -> {
            assertThat(context).hasSingleBean(RedisLockMetrics.class);
            context.getBean(Locks.class).lock("k").label("orders").acquire().release();
            assertThat(context.getBean(Listening.class).events)
                    .extracting(LockEvent::name)
                    .containsExactly("waited", "held");
            assertThat(context.getBean(MeterRegistry.class)
                            .get("redis.lock.hold")
                            .tags("label", "orders", "outcome", "released")
                            .timer()
                            .count())
                    .isEqualTo(1);
        });
    }

    @Configuration(proxyBeanMethods = false)
    static class OwnLocks {
        @Bean
        Locks ownLocks() {
            return new Locks(new LettuceConnector("redis://127.0.0.1:1"));
        }
    }

    @Configuration(proxyBeanMethods = false)
    static class Listening {
        final Queue<LockEvent> events = new ConcurrentLinkedQueue<>();

        @Bean
        Consumer<LockEvent> listener() {
            return events::add;
        }

        @Bean
        MeterRegistry registry() {
            return new SimpleMeterRegistry();
        }
    }
}
