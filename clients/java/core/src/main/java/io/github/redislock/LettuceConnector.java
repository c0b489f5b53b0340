// SPDX-License-Identifier: MIT
package io.github.redislock;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * Connections of Lettuce, with the threads and the options of the application's client. For each server there are two: one for
 * calls, which are pipelined, and one for the session. Lettuce does not repeat calls on them.
 */
public final class LettuceConnector extends Connector {
    private static final ByteArrayCodec CODEC = ByteArrayCodec.INSTANCE;

    private final RedisClient client;
    private final RedisURI uri;
    private final RedisClusterClient cluster;
    private final Map<String, Node> nodes = new ConcurrentHashMap<>();
    /** Connections on their way to the end. */
    private final Map<CompletableFuture<Void>, Boolean> closing = new ConcurrentHashMap<>();

    /** Connects to {@code redis://}, {@code rediss://} or {@code redis-sentinel://}, with threads of its own. Makes no call. */
    public LettuceConnector(String uri) {
        this(RedisURI.create(uri), null, RedisClient.create(), ClientOptions.create());
    }

    /** Connects to a server, or to the primary of Sentinels. The client stays open. Makes no call. */
    public LettuceConnector(RedisClient client, RedisURI uri) {
        this(uri, null, RedisClient.create(client.getResources()), client.getOptions());
    }

    /** Connects to the nodes of a cluster, as its client does. The client stays open. Makes no call. */
    public LettuceConnector(RedisClusterClient cluster) {
        this(null, cluster, RedisClient.create(cluster.getResources()), cluster.getOptions());
    }

    /**
     * @param ours has either threads of its own or those of the application's client
     * @param options of the application's client
     */
    private LettuceConnector(RedisURI uri, RedisClusterClient cluster, RedisClient ours, ClientOptions options) {
        this.uri = uri;
        this.cluster = cluster;
        client = ours;
        Duration connect = options.getSocketOptions().getConnectTimeout();
        Duration limit = Duration.ofNanos(Session.CALL_TIMEOUT);
        client.setOptions(ClientOptions.copyOf(options)
                .mutate()
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .timeoutOptions(TimeoutOptions.create())
                .protocolVersion(ProtocolVersion.RESP2)
                .pingBeforeActivateConnection(false)
                .socketOptions(options.getSocketOptions()
                        .mutate()
                        .connectTimeout(connect.compareTo(limit) < 0 ? connect : limit)
                        .build())
                .build());
    }

    @Override
    Node node(byte[] key) {
        RedisURI at = uri;
        if (cluster != null) {
            RedisClusterNode node = cluster.getPartitions().getMasterBySlot(SlotHash.getSlot(key));
            if (node == null) {
                throw LockException.ofReply("CLUSTERDOWN no node serves the slot");
            }
            at = node.getUri();
        }
        RedisURI address = at;
        String name = cluster == null ? "" : at.getHost() + ":" + at.getPort();
        return nodes.computeIfAbsent(name, each -> new Node(each, new LettuceLine(address), new LettuceLine(address)));
    }

    @Override
    void refresh() {
        if (cluster != null) {
            cluster.refreshPartitions();
        }
    }

    @Override
    boolean isCluster() {
        return cluster != null;
    }

    @Override
    boolean isReply(Throwable failure) {
        return failure instanceof RedisCommandExecutionException;
    }

    @Override
    void close() {
        nodes.values().forEach(Node::reset);
        // Lettuce complains if a connection that closes is closed again.
        await(CompletableFuture.allOf(closing.keySet().toArray(CompletableFuture[]::new)));
        await(client.shutdownAsync(0, 0, TimeUnit.MILLISECONDS));
    }

    private static void await(CompletableFuture<Void> work) {
        work.orTimeout(1, TimeUnit.SECONDS).exceptionally(late -> null).join();
    }

    private record Name(Words words) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return words.get(0);
        }

        @Override
        public String toString() {
            return Words.text(getBytes());
        }
    }

    /** Any reply. Lettuce's own outputs need to know its shape before. */
    private static final class Output extends CommandOutput<byte[], byte[], Object> {
        /** Lists that are not complete, the innermost first. */
        private final Deque<List<Object>> lists = new ArrayDeque<>();

        Output() {
            super(CODEC, null);
        }

        @Override
        public void set(long integer) {
            add(integer);
        }

        @Override
        public void set(ByteBuffer bytes) {
            add(bytes == null ? null : codec.decodeValue(bytes));
        }

        @Override
        public void setError(ByteBuffer error) {
            if (lists.isEmpty()) {
                super.setError(error);
            } else {
                add(LockException.ofReply(decodeString(error)));
            }
        }

        @Override
        public void multi(int count) {
            List<Object> list = new ArrayList<>();
            add(count < 0 ? null : list);
            lists.push(list);
        }

        @Override
        public void complete(int depth) {
            if (depth < lists.size()) {
                lists.pop();
            }
        }

        private void add(Object value) {
            if (lists.isEmpty()) {
                output = value;
            } else {
                lists.peek().add(value);
            }
        }
    }

    private final class LettuceLine extends SharedLine<StatefulRedisConnection<byte[], byte[]>> {
        private final RedisURI uri;

        LettuceLine(RedisURI uri) {
            this.uri = uri;
        }

        @Override
        CompletableFuture<StatefulRedisConnection<byte[], byte[]>> connect() {
            return client.connectAsync(CODEC, uri).toCompletableFuture();
        }

        @Override
        boolean isOpen(StatefulRedisConnection<byte[], byte[]> connection) {
            return connection.isOpen();
        }

        @Override
        void close(StatefulRedisConnection<byte[], byte[]> connection) {
            CompletableFuture<Void> end = connection.closeAsync().exceptionally(failed -> null);
            closing.put(end, true);
            end.thenRun(() -> closing.remove(end));
        }

        @Override
        List<? extends CompletableFuture<Object>> dispatch(
                StatefulRedisConnection<byte[], byte[]> connection, List<Words> calls) {
            List<AsyncCommand<byte[], byte[], Object>> sent = new ArrayList<>();
            for (Words words : calls) {
                CommandArgs<byte[], byte[]> arguments = new CommandArgs<>(CODEC);
                words.subList(1, words.size()).forEach(arguments::add);
                sent.add(new AsyncCommand<>(new Command<>(new Name(words), new Output(), arguments)));
            }
            connection.dispatch(sent);
            return sent;
        }
    }
}
