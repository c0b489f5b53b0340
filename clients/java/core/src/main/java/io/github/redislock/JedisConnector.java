// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.io.IOException;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
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
    Node node(byte[] key) {
        if (cluster == null) {
            return nodes.computeIfAbsent("", name -> new JedisNode("", this::onlyPool));
        }
        HostAndPort node = cluster.getNode(JedisClusterCRC16.getSlot(key));
        if (node == null) {
            throw LockException.ofReply("CLUSTERDOWN no node serves the slot");
        }
        String name = node.toString();
        return nodes.computeIfAbsent(
                name, same -> new JedisNode(name, () -> cluster.getNodes().get(name)));
    }

    /** After a failover, Sentinels lead to another pool. */
    @SuppressWarnings("unchecked")
    private Pool<Connection> onlyPool() {
        return (Pool<Connection>)
                provider.getConnectionMap().values().iterator().next();
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

    private static CommandArguments arguments(Words words) {
        byte[] name = words.get(0);
        CommandArguments arguments = new CommandArguments((ProtocolCommand) () -> name);
        for (byte[] word : words.subList(1, words.size())) {
            arguments.add(word);
        }
        return arguments;
    }

    private static final class JedisNode implements Node {
        private final String name;
        private final Supplier<? extends Pool<Connection>> pool;
        private volatile Connection reader;

        JedisNode(String name, Supplier<? extends Pool<Connection>> pool) {
            this.name = name;
            this.pool = pool;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public CompletableFuture<Object> call(Words words, long timeout) {
            try (Connection connection = pool().getResource()) {
                int usual = connection.getSoTimeout();
                connection.setSoTimeout(milliseconds(timeout));
                try {
                    return CompletableFuture.completedFuture(connection.executeCommand(arguments(words)));
                } finally {
                    if (!connection.isBroken()) {
                        connection.setSoTimeout(usual);
                    }
                }
            } catch (RuntimeException error) {
                return CompletableFuture.failedFuture(error);
            }
        }

        private Pool<Connection> pool() {
            Pool<Connection> present = pool.get();
            if (present == null) {
                throw new JedisException("the node " + name + " has left the cluster");
            }
            return present;
        }

        @Override
        public List<Object> read(List<Words> calls, long timeout) {
            try {
                if (reader == null) {
                    reader = pool().getFactory().makeObject().getObject();
                }
                Connection connection = reader;
                connection.setSoTimeout(milliseconds(timeout));
                calls.forEach(words -> connection.sendCommand(arguments(words)));
                List<Object> replies = new ArrayList<>();
                for (Object reply : connection.getMany(calls.size())) {
                    replies.add(
                            reply instanceof JedisDataException error
                                    ? LockException.ofReply(error.getMessage())
                                    : reply);
                }
                return replies;
            } catch (Exception error) {
                closeReader();
                throw error instanceof RuntimeException known ? known : new JedisException(error);
            }
        }

        private static int milliseconds(long time) {
            return (int) Math.max(1, TimeUnit.NANOSECONDS.toMillis(time));
        }

        @Override
        public void reset() {
            closeReader();
            try {
                pool().clear();
            } catch (RuntimeException gone) {
                // Then there is nothing to close.
            }
        }

        @Override
        public void closeReader() {
            Connection old = reader;
            reader = null;
            if (old != null) {
                try {
                    old.forceDisconnect();
                } catch (IOException | RuntimeException broken) {
                    // It is closed all the same.
                }
            }
        }
    }
}
