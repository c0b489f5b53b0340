// SPDX-License-Identifier: MIT
package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import io.lettuce.core.cluster.RedisClusterClient;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
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
import redis.clients.jedis.exceptions.JedisException;

/** A cluster of two primaries, and a replica of the first. The slot of {@code k} is 7629, that of {@code a} 15495. */
@Timeout(90)
class ClusterTest {
    private static final int SLOT = 7629;
    private final List<Server> nodes = new ArrayList<>();
    private AutoCloseable client;
    private Locks locks;

    @BeforeEach
    void start() throws Exception {
        for (int number = 0; number < 3; number++) {
            nodes.add(new Server("--cluster-enabled", "yes", "--cluster-node-timeout", "1500"));
        }
        nodes.get(0).call("CLUSTER", "ADDSLOTSRANGE", "0", "8191");
        nodes.get(1).call("CLUSTER", "ADDSLOTSRANGE", "8192", "16383");
        for (Server node : nodes.subList(1, 3)) {
            nodes.get(0).call("CLUSTER", "MEET", "127.0.0.1", "" + node.port);
        }
        Fixture.until("the nodes know each other", () -> {
            try {
                nodes.get(2).call("CLUSTER", "REPLICATE", id(0));
                return true;
            } catch (JedisException notYet) {
                return false;
            }
        });
        Fixture.until(
                "the replica follows",
                () -> nodes.get(2).info("master_link_status").equals("up"));
        for (Server node : nodes) {
            Fixture.until("the cluster is ready", () -> {
                String state = Fixture.text(node.call("CLUSTER", "INFO"));
                String known = Fixture.text(node.call("CLUSTER", "NODES"));
                return state.contains("cluster_state:ok")
                        && state.contains("cluster_known_nodes:3")
                        && known.contains("slave");
            });
        }
    }

    @AfterEach
    void stop() throws Exception {
        if (locks != null) {
            locks.close();
            client.close();
        }
        for (Server node : nodes) {
            node.close();
        }
    }

    private String id(int node) {
        return Fixture.text(nodes.get(node).call("CLUSTER", "MYID"));
    }

    private static Locks locks(Connector connector) {
        return new Locks.Builder(connector).ttl(Duration.ofSeconds(10)).build();
    }

    private void connect(Fixture.Library library) {
        int port = nodes.get(1).port;
        if (library == Fixture.Library.LETTUCE) {
            RedisClusterClient cluster = RedisClusterClient.create("redis://127.0.0.1:" + port);
            client = cluster::shutdown;
            locks = locks(new LettuceConnector(cluster));
        } else if (library == Fixture.Library.REDISSON) {
            Config config = new Config();
            config.useClusterServers().setScanInterval(500).addNodeAddress("redis://127.0.0.1:" + port);
            RedissonClient redisson = Redisson.create(config);
            client = () -> redisson.shutdown(0, 2, TimeUnit.SECONDS);
            locks = locks(new RedissonConnector(redisson));
        } else {
            redis.clients.jedis.RedisClusterClient cluster =
                    redis.clients.jedis.RedisClusterClient.create(new HostAndPort("127.0.0.1", port));
            client = cluster;
            locks = locks(new JedisConnector(cluster));
        }
    }

    private void untilWaiters(int node, int count) throws Exception {
        Fixture.until(
                count + " wait", () -> nodes.get(node).info("lock_waiters").equals("" + count));
    }

    @ParameterizedTest
    @EnumSource
    void holdsAndWaitsFollowAMovedSlot(Fixture.Library library) throws Exception {
        connect(library);
        Hold elsewhere = locks.lock("a").acquire();
        Hold renewed = locks.lock("k").acquire();
        CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
        untilWaiters(0, 1);
        Server from = nodes.get(0);
        Server to = nodes.get(1);
        to.call("CLUSTER", "SETSLOT", "" + SLOT, "IMPORTING", id(0));
        from.call("CLUSTER", "SETSLOT", "" + SLOT, "MIGRATING", id(1));
        assertEquals("OK", Fixture.text(from.call("MIGRATE", "127.0.0.1", "" + to.port, "k", "0", "5000")));
        for (Server node : List.of(to, from)) {
            node.call("CLUSTER", "SETSLOT", "" + SLOT, "NODE", id(1));
        }
        untilWaiters(1, 1);
        Fixture.until("the hold is declared", () -> !renewed.validFor().isZero());
        assertFalse(renewed.isLost());
        renewed.release();
        wait.get(10, TimeUnit.SECONDS).release();
        assertFalse(to.jedis.exists("k"));
        elsewhere.release();
    }

    @ParameterizedTest
    @EnumSource
    void holdsAndWaitsFollowTheReplicaThatTakesOver(Fixture.Library library) throws Exception {
        connect(library);
        Hold renewed = locks.lock("k").acquire();
        Hold leased = locks.lock("b").lease(Duration.ofMinutes(1)).acquire();
        CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
        untilWaiters(0, 1);
        Server replica = nodes.get(2);
        Fixture.until("the holds are replicated", () -> replica.call("DBSIZE").equals(2L));
        nodes.get(0).signal("KILL");
        replica.call("CLUSTER", "FAILOVER", "TAKEOVER");
        untilWaiters(2, 1);
        Fixture.until(
                "the holds are declared",
                () -> !renewed.validFor().isZero() && !leased.validFor().isZero());
        assertFalse(renewed.isLost());
        renewed.release();
        wait.get(10, TimeUnit.SECONDS).release();
        leased.release();
        assertEquals(0L, replica.call("DBSIZE"));
        String reader = "redis-lock-127.0.0.1:" + nodes.get(0).port;
        Fixture.until(
                "the session of the dead node has ended",
                () -> Fixture.threads().stream()
                        .noneMatch(each -> each.getName().equals(reader)));
    }
}
