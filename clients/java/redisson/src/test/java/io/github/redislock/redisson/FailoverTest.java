// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.Server;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.exceptions.JedisException;

/** Sentinels and a cluster whose primary fails. */
@Timeout(90)
class FailoverTest extends Fixture {
    private final List<Server> servers = new ArrayList<>();
    private final List<AutoCloseable> closing = new ArrayList<>();
    private Consumer<Config> settings;
    private int sentinel;

    @Override
    void configure(Config config) {
        settings.accept(config);
        // There is no replica after a failover.
        config.setCheckLockSyncedSlaves(false);
    }

    @AfterEach
    void stop() throws Exception {
        shutDown();
        for (AutoCloseable each : closing) {
            each.close();
        }
        for (Server each : servers) {
            each.close();
        }
    }

    private Server server(String... more) throws Exception {
        Server server = new Server(more);
        servers.add(server);
        return server;
    }

    private static void untilFollows(Server replica) throws Exception {
        until("the replica follows", () -> replica.info("master_link_status").equals("up"));
    }

    private static void untilReplicated(Server primary, Server replica) throws Exception {
        until(
                "the holds are replicated",
                () -> info(primary, "master_repl_offset").equals(info(replica, "slave_repl_offset")));
    }

    private void startSentinel() throws Exception {
        Server primary = server();
        untilFollows(server("--replicaof", "127.0.0.1 " + primary.port));
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        sentinel = port;
        Path folder = Files.createTempDirectory("redis-lock-sentinel");
        Path file = folder.resolve("sentinel.conf");
        Files.writeString(file, """
                port %d
                sentinel monitor shop 127.0.0.1 %d 1
                sentinel down-after-milliseconds shop 500
                sentinel failover-timeout shop 5000
                """.formatted(port, primary.port));
        Process process = new ProcessBuilder("redis-server", file.toString(), "--sentinel")
                .directory(folder.toFile())
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        closing.add(() -> {
            process.destroyForcibly().onExit().join();
            Files.delete(file);
            Files.delete(folder);
        });
        until("the Sentinel knows the replica", () -> {
            try (Jedis asked = new Jedis("127.0.0.1", port)) {
                return asked.sentinelReplicas("shop").stream()
                        .anyMatch(each -> "slave".equals(each.get("role-reported")));
            } catch (JedisException notYet) {
                return false;
            }
        });
        settings = config -> config.useSentinelServers()
                .setMasterName("shop")
                .setCheckSentinelsList(false)
                .setScanInterval(500)
                .setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1)
                .addSentinelAddress("redis://127.0.0.1:" + port);
    }

    /** Two primaries, and a replica of the first, which serves the key k. */
    private void startCluster() throws Exception {
        for (int number = 0; number < 3; number++) {
            server("--cluster-enabled", "yes", "--cluster-node-timeout", "1500");
        }
        servers.get(0).call("CLUSTER", "ADDSLOTSRANGE", "0", "8191");
        servers.get(1).call("CLUSTER", "ADDSLOTSRANGE", "8192", "16383");
        for (Server node : servers.subList(1, 3)) {
            servers.get(0).call("CLUSTER", "MEET", "127.0.0.1", "" + node.port);
        }
        String first = text(servers.get(0).call("CLUSTER", "MYID"));
        until("the nodes know each other", () -> {
            try {
                servers.get(2).call("CLUSTER", "REPLICATE", first);
                return true;
            } catch (JedisException notYet) {
                return false;
            }
        });
        untilFollows(servers.get(2));
        for (Server node : servers) {
            until("the cluster is ready", () -> {
                String state = text(node.call("CLUSTER", "INFO"));
                String known = text(node.call("CLUSTER", "NODES"));
                return state.contains("cluster_state:ok")
                        && state.contains("cluster_known_nodes:3")
                        && known.contains("slave");
            });
        }
        settings = config -> config.useClusterServers()
                .setScanInterval(500)
                .setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1)
                .addNodeAddress("redis://127.0.0.1:" + servers.get(1).port);
    }

    private static String text(Object reply) {
        return new String((byte[]) reply, java.nio.charset.StandardCharsets.UTF_8);
    }

    private static String info(Server server, String field) {
        // A server that becomes a primary drops its connections.
        try (Jedis jedis = new Jedis("127.0.0.1", server.port)) {
            return jedis.info("everything")
                    .lines()
                    .filter(line -> line.startsWith(field + ":"))
                    .findFirst()
                    .orElse(":")
                    .split(":", 2)[1];
        } catch (JedisException away) {
            return "";
        }
    }

    /** The methods, on servers of any kind. */
    private void useAll(RedissonClient locks) throws Exception {
        for (String name : List.of("k", "a", "b")) {
            RFencedLock lock = locks.getFencedLock(name);
            long token = lock.lockAndGetToken();
            assertTrue(lock.isHeldByCurrentThread());
            assertTrue(lock.tryLock(0, 60, SECONDS));
            assertEquals(2, lock.getHoldCount());
            assertFalse(elsewhere(() -> lock.tryLock(10, java.util.concurrent.TimeUnit.MILLISECONDS)));
            lock.unlock();
            lock.unlockAsync().get();
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            assertTrue(lock.tryLockAndGetTokenAsync().get() > token);
            assertTrue(lock.forceUnlock());
            assertTrue(locks.reactive().getLock(name).tryLock(7).block());
            locks.rxJava().getLock(name).unlock(7).blockingAwait();
            assertFalse(lock.isLocked());
        }
        RReadWriteLock both = locks.getReadWriteLock("k");
        both.readLock().lock();
        assertFalse(elsewhere(() -> both.writeLock().tryLock()));
        assertTrue(both.readLock().forceUnlock());
        RLock group = locks.getMultiLock(locks.getLock("k"), locks.getLock("a"));
        group.lock();
        assertTrue(locks.getLock("a").isHeldByCurrentThread());
        group.unlock();
        @SuppressWarnings("deprecation")
        RLock red = locks.getRedLock(locks.getLock("k"), locks.getLock("a"), locks.getLock("b"));
        assertTrue(red.tryLock(1, 60, SECONDS));
        red.unlock();
        RLock leased = locks.getSpinLock("a");
        leased.lock(60, SECONDS);
        assertTrue(leased.remainTimeToLive() > 50_000);
        Callable<Boolean> interrupted = () -> {
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, () -> leased.tryLock(60, SECONDS));
            return true;
        };
        assertTrue(elsewhere(interrupted));
        leased.unlock();
        RSemaphore semaphore = locks.getSemaphore("semaphore");
        semaphore.trySetPermits(1);
        assertTrue(semaphore.tryAcquire());
        semaphore.release();
    }

    private void failOver(int failing, int next, Consumer<Server> promote) throws Exception {
        RedissonClient locks = natives();
        useAll(locks);
        // A replica may be late.
        for (String query : List.of("exists", "pttl", "lock.info")) {
            assertFalse(servers.get(next).jedis.info("commandstats").contains("cmdstat_" + query + ":"), query);
        }
        RLock renewed = locks.getLock("k");
        renewed.lock();
        // Its number is greater than that of the reader.
        RReadWriteLock both = locks.getReadWriteLock("a");
        both.readLock().lock();
        both.writeLock().lock();
        RLock leased = locks.getLock("b");
        leased.lock(60, SECONDS);
        FutureTask<Boolean> wait = thread(() -> {
            renewed.lock();
            renewed.unlock();
            return true;
        });
        Server old = servers.get(failing);
        Server replica = servers.get(next);
        until("it waits", () -> info(old, "lock_waiters").equals("1"));
        untilReplicated(old, replica);
        old.kill();
        promote.accept(replica);
        until("it waits at the new primary", () -> info(replica, "lock_waiters").equals("1"));
        until("the lock is still held", () -> holds(renewed));
        renewed.unlock();
        assertTrue(wait.get(40, SECONDS));
        leased.unlock();
        both.readLock().unlock();
        assertTrue(both.writeLock().isHeldByCurrentThread());
        assertFalse(both.readLock().isLocked());
        both.writeLock().unlock();
        useAll(locks);
    }

    /** A primary that hands over goes on as a replica, so its connections stay open. */
    private void handOver(int failing, int next, Callable<Boolean> begin) throws Exception {
        RedissonClient locks = natives();
        RLock renewed = locks.getLock("k");
        renewed.lock();
        RLock leased = locks.getLock("b");
        leased.lock(60, SECONDS);
        FutureTask<Boolean> wait = thread(() -> {
            renewed.lock();
            renewed.unlock();
            return true;
        });
        Server old = servers.get(failing);
        Server replica = servers.get(next);
        until("it waits", () -> info(old, "lock_waiters").equals("1"));
        untilReplicated(old, replica);
        until("the hand-over begins", begin);
        until("the primary follows", () -> info(old, "role").equals("slave"));
        until("it waits at the new primary", () -> info(replica, "lock_waiters").equals("1"));
        until("the lock is still held", () -> holds(renewed));
        renewed.unlock();
        assertTrue(wait.get(40, SECONDS));
        leased.unlock();
        useAll(locks);
    }

    private static boolean holds(RLock lock) {
        try {
            return lock.isHeldByCurrentThread();
        } catch (org.redisson.client.RedisException notYet) {
            return false;
        }
    }

    @Test
    void locksFollowThePrimaryOfSentinels() throws Exception {
        startSentinel();
        failOver(0, 1, replica -> {});
    }

    @Test
    void locksFollowTheReplicaOfACluster() throws Exception {
        startCluster();
        failOver(0, 2, replica -> {
            try (Jedis jedis = new Jedis("127.0.0.1", replica.port)) {
                jedis.sendCommand(Protocol.Command.CLUSTER, "FAILOVER", "TAKEOVER");
            }
        });
    }

    @Test
    void locksFollowAHandOverOfSentinels() throws Exception {
        startSentinel();
        try (Jedis asked = new Jedis("127.0.0.1", sentinel)) {
            handOver(0, 1, () -> {
                try {
                    return asked.sentinelFailover("shop").equals("OK");
                } catch (JedisException notYet) {
                    return false;
                }
            });
        }
    }

    @Test
    void locksFollowAHandOverOfACluster() throws Exception {
        startCluster();
        handOver(0, 2, () -> {
            servers.get(2).call("CLUSTER", "FAILOVER");
            return true;
        });
    }

    /** The slot of k is 7629. */
    @Test
    void locksFollowAMovedSlot() throws Exception {
        startCluster();
        RedissonClient locks = natives(config -> config.useClusterServers().setScanInterval(60_000));
        RLock lock = locks.getLock("k");
        lock.lock();
        FutureTask<Boolean> wait = thread(() -> {
            lock.lock();
            lock.unlock();
            return true;
        });
        Server from = servers.get(0);
        Server to = servers.get(1);
        until("it waits", () -> from.info("lock_waiters").equals("1"));
        String[] ids = {text(from.call("CLUSTER", "MYID")), text(to.call("CLUSTER", "MYID"))};
        to.call("CLUSTER", "SETSLOT", "7629", "IMPORTING", ids[0]);
        from.call("CLUSTER", "SETSLOT", "7629", "MIGRATING", ids[1]);
        from.call("MIGRATE", "127.0.0.1", "" + to.port, "k", "0", "5000");
        FutureTask<Boolean> other = thread(() -> {
            locks.getLock("{k}:new").lock();
            return locks.getLock("{k}:new").tryLock();
        });
        until("it is asked to go elsewhere", () -> from.jedis.info("errorstats").contains("errorstat_ASK:"));
        FutureTask<Boolean> inner = thread(() -> {
            lock.lockAsync(7).get();
            lock.unlockAsync(7).get();
            return true;
        });
        for (Server node : List.of(to, from)) {
            node.call("CLUSTER", "SETSLOT", "7629", "NODE", ids[1]);
        }
        until("they wait at the new node", () -> to.info("lock_waiters").equals("2"));
        assertTrue(other.get(20, SECONDS));
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
        assertTrue(wait.get(20, SECONDS));
        assertTrue(inner.get(20, SECONDS));
        lock.lock();
        lock.unlock();
        assertFalse(lock.isLocked());
    }
}
