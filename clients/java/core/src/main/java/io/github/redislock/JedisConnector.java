// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.io.IOException;
import java.lang.reflect.Field;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.util.JedisClusterCRC16;
import redis.clients.jedis.util.Pool;

/**
 * The connections of a client of Jedis: {@code RedisClient}, {@code JedisPooled}, and those of Sentinel and cluster. Calls go out
 * on the calling thread, over the client's pool. Each session has one connection more, with the client's settings.
 */
public final class JedisConnector extends Connector {
    private final ConnectionProvider provider;
    private final ClusterConnectionProvider cluster;
    private final Map<String, Node> nodes = new ConcurrentHashMap<>();

    /** Uses the connections of a client, which stays open. Makes no call. */
    public JedisConnector(UnifiedJedis client) {
        this(providerOf(client));
    }

    /** Uses the connections of a provider, which stays open. Makes no call. */
    public JedisConnector(ConnectionProvider provider) {
        this.provider = provider;
        cluster = provider instanceof ClusterConnectionProvider ours ? ours : null;
    }

    private static ConnectionProvider providerOf(UnifiedJedis client) {
        try {
            // Jedis has no method for it.
            Field field = UnifiedJedis.class.getDeclaredField("provider");
            field.setAccessible(true);
            return (ConnectionProvider) field.get(client);
        } catch (ReflectiveOperationException | RuntimeException error) {
            throw LockException.misuse("this client shows no connections (" + error + "); pass its ConnectionProvider");
        }
    }

    @Override
    @SuppressWarnings("unchecked")
    Node node(byte[] key) {
        if (cluster == null) {
            // After a failover, Sentinels lead to another pool.
            return node("", () -> (Pool<Connection>)
                    provider.getConnectionMap().values().iterator().next());
        }
        HostAndPort node = cluster.getNode(JedisClusterCRC16.getSlot(key));
        if (node == null) {
            throw LockException.ofReply("CLUSTERDOWN no node serves the slot");
        }
        String name = node.toString();
        return node(name, () -> {
            Pool<Connection> pool = cluster.getNodes().get(name);
            if (pool == null) {
                throw new JedisException("the node " + name + " has left the cluster");
            }
            return pool;
        });
    }

    private Node node(String name, Supplier<Pool<Connection>> pool) {
        return nodes.computeIfAbsent(
                name, each -> new Node(each, new JedisLine(pool, false), new JedisLine(pool, true)));
    }

    @Override
    void refresh() {
        if (cluster != null) {
            cluster.renewSlotCache();
        }
    }

    @Override
    boolean isCluster() {
        return cluster != null;
    }

    @Override
    boolean isReply(Throwable failure) {
        return failure instanceof JedisDataException;
    }

    /** The connections of the client's pool, or for a reader one beside them. */
    private final class JedisLine implements Line {
        private final Supplier<Pool<Connection>> pool;
        private final boolean isReader;
        private volatile Connection reader;

        JedisLine(Supplier<Pool<Connection>> pool, boolean isReader) {
            this.pool = pool;
            this.isReader = isReader;
        }

        @Override
        public List<Object> send(List<Words> calls, long timeout) {
            // An interrupted virtual thread cannot read from a socket.
            boolean isInterrupted = Thread.interrupted();
            try {
                Pool<Connection> from = pool.get();
                if (!isReader) {
                    Connection connection = from.borrowObject(Duration.ofNanos(timeout));
                    try {
                        return exchange(connection, calls, timeout);
                    } finally {
                        if (connection.isBroken()) {
                            from.returnBrokenResource(connection);
                        } else {
                            from.returnResource(connection);
                        }
                    }
                }
                if (reader == null) {
                    reader = from.getFactory().makeObject().getObject();
                }
                return exchange(reader, calls, timeout);
            } catch (Exception failure) {
                isInterrupted |= failure instanceof InterruptedException;
                return Collections.nCopies(calls.size(), error(failure));
            } finally {
                if (isInterrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        private List<Object> exchange(Connection connection, List<Words> calls, long timeout) {
            int usual = connection.getSoTimeout();
            connection.setSoTimeout((int) Math.max(1, TimeUnit.NANOSECONDS.toMillis(timeout)));
            for (Words words : calls) {
                byte[] name = words.get(0);
                CommandArguments arguments = new CommandArguments((ProtocolCommand) () -> name);
                words.subList(1, words.size()).forEach(arguments::add);
                connection.sendCommand(arguments);
            }
            List<Object> replies = new ArrayList<>(connection.getMany(calls.size()));
            replies.replaceAll(reply -> reply instanceof JedisDataException failure ? error(failure) : reply);
            connection.setSoTimeout(usual);
            return replies;
        }

        @Override
        public void close() {
            Connection old = reader;
            reader = null;
            try {
                if (!isReader) {
                    pool.get().clear();
                } else if (old != null) {
                    old.forceDisconnect();
                }
            } catch (IOException | RuntimeException broken) {
                // It is closed all the same.
            }
        }
    }
}
