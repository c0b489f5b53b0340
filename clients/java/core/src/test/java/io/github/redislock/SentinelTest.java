// SPDX-License-Identifier: MIT
package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertFalse;

import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.exceptions.JedisException;

/** A primary, a replica, and a Sentinel that makes the replica the primary. */
@Timeout(90)
class SentinelTest {
    private Server primary;
    private Server replica;
    private AutoCloseable client;
    private int port;
    private Path folder;
    private Process sentinel;

    @BeforeEach
    void start() throws Exception {
        primary = new Server();
        replica = new Server("--replicaof", "127.0.0.1 " + primary.port);
        Fixture.until(
                "the replica follows", () -> replica.info("master_link_status").equals("up"));
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        folder = Files.createTempDirectory("redis-lock-sentinel");
        Path file = folder.resolve("sentinel.conf");
        Files.writeString(file, """
                port %d
                sentinel monitor shop 127.0.0.1 %d 1
                sentinel down-after-milliseconds shop 500
                sentinel failover-timeout shop 5000
                """.formatted(port, primary.port));
        sentinel = new ProcessBuilder("redis-server", file.toString(), "--sentinel")
                .directory(folder.toFile())
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        Fixture.until("the Sentinel knows the replica", this::knowsTheReplica);
    }

    private boolean knowsTheReplica() {
        try (Jedis asked = new Jedis("127.0.0.1", port)) {
            List<Map<String, String>> replicas = asked.sentinelReplicas("shop");
            return replicas.size() == 1
                    && replicas.get(0).get("flags").equals("slave")
                    && "slave".equals(replicas.get(0).get("role-reported"));
        } catch (JedisException notYet) {
            return false;
        }
    }

    @AfterEach
    void stop() throws Exception {
        if (client != null) {
            client.close();
        }
        sentinel.destroyForcibly().onExit().join();
        Files.delete(folder.resolve("sentinel.conf"));
        Files.delete(folder);
        replica.close();
        primary.close();
    }

    private Locks locks(Fixture.Library library) {
        if (library == Fixture.Library.LETTUCE) {
            return new Locks(new LettuceConnector("redis-sentinel://127.0.0.1:" + port + "#shop"));
        }
        if (library == Fixture.Library.REDISSON) {
            Config config = new Config();
            config.useSentinelServers()
                    .setMasterName("shop")
                    .setCheckSentinelsList(false)
                    .setScanInterval(500)
                    .addSentinelAddress("redis://127.0.0.1:" + port);
            RedissonClient redisson = Redisson.create(config);
            client = () -> redisson.shutdown(0, 2, TimeUnit.SECONDS);
            return new Locks(new RedissonConnector(redisson));
        }
        RedisSentinelClient jedis = RedisSentinelClient.builder()
                .masterName("shop")
                .sentinels(Set.of(new HostAndPort("127.0.0.1", port)))
                .build();
        client = jedis;
        return new Locks(new JedisConnector(jedis));
    }

    @ParameterizedTest
    @EnumSource
    void holdsAndWaitsFollowThePrimary(Fixture.Library library) throws Exception {
        try (Locks locks = locks(library)) {
            Hold renewed = locks.lock("k").acquire();
            Hold leased = locks.lock("l").lease(Duration.ofSeconds(60)).acquire();
            CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
            Fixture.until("it waits", () -> waiting(primary) == 1);
            Fixture.until(
                    "the holds are replicated", () -> replica.call("DBSIZE").equals(2L));
            primary.signal("KILL");
            Fixture.until("it waits at the new primary", () -> waiting(replica) == 1);
            assertFalse(renewed.isLost());
            renewed.release();
            wait.get(10, TimeUnit.SECONDS).release();
            leased.release();
            try (Jedis jedis = new Jedis("127.0.0.1", replica.port)) {
                assertFalse(jedis.exists("k"));
            }
        }
    }

    private static int waiting(Server server) {
        // A server that becomes a primary drops its connections.
        try (Jedis jedis = new Jedis("127.0.0.1", server.port)) {
            return jedis.sendCommand(() -> "LOCK.WAITERS".getBytes(StandardCharsets.UTF_8), "k")
                            instanceof List<?> waiters
                    ? waiters.size()
                    : 0;
        } catch (JedisException away) {
            return 0;
        }
    }
}
