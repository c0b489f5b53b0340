// SPDX-License-Identifier: MIT
package example.redislock;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;

/** Sentinels know the primary: one that says nothing, and one that does. */
@Timeout(90)
class SentinelTest {
    private Server primary;
    private Server replica;
    private ServerSocket silent;
    private int port;
    private Path folder;
    private Process sentinel;

    @BeforeEach
    void start() throws Exception {
        primary = new Server();
        replica = new Server("--replicaof", "127.0.0.1 " + primary.port);
        LocksTest.until(
                "the replica follows", () -> replica.info("master_link_status").equals("up"));
        silent = new ServerSocket(0, 10, InetAddress.getLoopbackAddress());
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
        LocksTest.until("the Sentinel knows the replica", this::knowsTheReplica);
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
        sentinel.destroyForcibly().onExit().join();
        Files.delete(folder.resolve("sentinel.conf"));
        Files.delete(folder);
        silent.close();
        replica.close();
        primary.close();
    }

    private Locks locks(LocksTest.Library library, String name) {
        return switch (library) {
            case LETTUCE -> {
                String sentinels = "127.0.0.1:%d,127.0.0.1:%d".formatted(silent.getLocalPort(), port);
                yield new Locks(new LettuceConnector("redis-sentinel://" + sentinels + "#" + name));
            }
            case JEDIS ->
                new Locks(new JedisConnector(
                        name,
                        List.of(
                                new HostAndPort("127.0.0.1", silent.getLocalPort()),
                                new HostAndPort("127.0.0.1", port)),
                        DefaultJedisClientConfig.builder().build()));
        };
    }

    @ParameterizedTest
    @EnumSource
    void aHoldAndWaitsFollowThePrimary(LocksTest.Library library) throws Exception {
        try (Locks locks = locks(library, "unknown")) {
            LockException error =
                    assertThrows(LockException.class, () -> locks.lock("k").tryAcquire());
            assertTrue(error.is(LockException.Kind.UNAVAILABLE), error::toString);
        }
        try (Locks locks = locks(library, "shop")) {
            RedisLock lock = locks.lock("k").lease(Duration.ofSeconds(60)).waiting(Duration.ofSeconds(60));
            Hold hold = lock.acquire();
            CompletableFuture<?> served = CompletableFuture.allOf(
                    lock.acquireAsync().thenCompose(Hold::releaseAsync),
                    lock.ownConnection().acquireAsync().thenCompose(Hold::releaseAsync));
            LocksTest.until("they wait", () -> waiting(primary) == 2);
            primary.signal("KILL");
            LocksTest.until("they wait at the new primary", () -> waiting(replica) == 2);
            hold.release();
            served.get(10, TimeUnit.SECONDS);
            try (Jedis jedis = new Jedis("127.0.0.1", replica.port)) {
                assertFalse(jedis.exists("k"));
            }
        }
    }

    private static int waiting(Server server) {
        // Whoever becomes a primary drops its connections on the way.
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
