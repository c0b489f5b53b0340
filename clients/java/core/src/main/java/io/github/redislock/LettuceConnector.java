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
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Connections of Lettuce, with the threads and the options of the application's client. For each server there are two: one for
 * calls, which are pipelined, and one for the session. Lettuce does not repeat calls on them.
 */
public final class LettuceConnector extends Connector {
    private static final ByteArrayCodec CODEC = ByteArrayCodec.INSTANCE;

    private final RedisClient client;
    private final RedisURI uri;
    private final RedisClusterClient cluster;
    private final Map<String, LettuceNode> nodes = new ConcurrentHashMap<>();

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
        if (cluster == null) {
            return nodes.computeIfAbsent("", name -> new LettuceNode(name, uri));
        }
        RedisClusterNode node = cluster.getPartitions().getMasterBySlot(SlotHash.getSlot(key));
        if (node == null) {
            throw LockException.ofReply("CLUSTERDOWN no node serves the slot");
        }
        RedisURI at = node.getUri();
        return nodes.computeIfAbsent(at.getHost() + ":" + at.getPort(), name -> new LettuceNode(name, at));
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
        // Lettuce complains if a connection that closes is closed again.
        for (LettuceNode node : nodes.values()) {
            await(node.calls.close());
            await(node.reader.close());
        }
        await(client.shutdownAsync(0, 0, TimeUnit.MILLISECONDS));
    }

    private static void await(CompletableFuture<Void> work) {
        work.orTimeout(1, TimeUnit.SECONDS).exceptionally(late -> null).join();
    }

    private static final class Word implements ProtocolKeyword {
        private final byte[] bytes;

        Word(byte[] bytes) {
            this.bytes = bytes;
        }

        @Override
        public byte[] getBytes() {
            return bytes;
        }

        @Override
        public String toString() {
            return Request.text(bytes);
        }
    }

    /** Any reply. Lettuce's own outputs need to know its shape before. */
    private static final class Output extends CommandOutput<byte[], byte[], Object> {
        /** Lists that are not complete, the innermost last, and how many elements each lacks. */
        private final Deque<List<Object>> lists = new ArrayDeque<>();

        private final Deque<Integer> missing = new ArrayDeque<>();

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
            if (count > 0) {
                lists.addLast(new ArrayList<>(count));
                missing.addLast(count);
            } else {
                add(count < 0 ? null : List.of());
            }
        }

        private void add(Object value) {
            Object element = value;
            while (!lists.isEmpty()) {
                lists.getLast().add(element);
                int left = missing.removeLast() - 1;
                if (left > 0) {
                    missing.addLast(left);
                    return;
                }
                element = lists.removeLast();
            }
            output = element;
        }
    }

    /** A command. If its reply is overdue, other calls may still get theirs: only a connection that is silent is closed. */
    private static final class Reply extends AsyncCommand<byte[], byte[], Object> {
        private final Line line;
        private final StatefulRedisConnection<byte[], byte[]> connection;
        private final long sent = Locks.now();

        Reply(Line line, StatefulRedisConnection<byte[], byte[]> connection, Words words) {
            super(new Command<>(new Word(words.get(0)), new Output(), arguments(words)));
            this.line = line;
            this.connection = connection;
        }

        private static CommandArgs<byte[], byte[]> arguments(Words words) {
            CommandArgs<byte[], byte[]> arguments = new CommandArgs<>(CODEC);
            words.subList(1, words.size()).forEach(arguments::add);
            return arguments;
        }

        @Override
        public void complete() {
            line.silentSince = Request.NONE;
            super.complete();
        }

        @Override
        public boolean cancel(boolean mayInterrupt) {
            line.silentSince = Math.min(line.silentSince, sent);
            if (Locks.now() - line.silentSince >= Session.CALL_TIMEOUT) {
                connection.closeAsync();
            }
            return super.cancel(mayInterrupt);
        }
    }

    /** A connection, which is made again when it is needed and was closed. */
    private final class Line {
        private final RedisURI uri;
        private CompletableFuture<StatefulRedisConnection<byte[], byte[]>> opening;
        private CompletableFuture<Void> closing = CompletableFuture.completedFuture(null);
        /** When the first overdue call was sent since the last reply. */
        volatile long silentSince = Request.NONE;

        Line(RedisURI uri) {
            this.uri = uri;
        }

        synchronized CompletableFuture<StatefulRedisConnection<byte[], byte[]>> connection() {
            if (opening == null
                    || (opening.isDone()
                            && (opening.isCompletedExceptionally()
                                    || !opening.join().isOpen()))) {
                CompletableFuture<StatefulRedisConnection<byte[], byte[]>> connecting =
                        client.connectAsync(CODEC, uri).toCompletableFuture();
                silentSince = Request.NONE;
                opening = connecting.copy().orTimeout(Session.CALL_TIMEOUT, TimeUnit.NANOSECONDS);
                opening.exceptionally(late -> {
                    connecting.thenAccept(StatefulRedisConnection::closeAsync);
                    return null;
                });
            }
            return opening;
        }

        /** Closes the connection. The future includes earlier ones, and never fails. */
        synchronized CompletableFuture<Void> close() {
            if (opening != null) {
                CompletableFuture<Void> next = opening.thenCompose(StatefulRedisConnection::closeAsync);
                closing = CompletableFuture.allOf(closing, next).exceptionally(failed -> null);
                opening = null;
                silentSince = Request.NONE;
            }
            return closing;
        }
    }

    private final class LettuceNode implements Node {
        private final String name;
        private final Line calls;
        private final Line reader;

        LettuceNode(String name, RedisURI uri) {
            this.name = name;
            calls = new Line(uri);
            reader = new Line(uri);
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public CompletableFuture<Object> call(Words words, long timeout) {
            CompletableFuture<StatefulRedisConnection<byte[], byte[]>> connection = calls.connection();
            return connection.isDone() && !connection.isCompletedExceptionally()
                    ? send(connection.join(), words)
                    : connection.thenCompose(opened -> send(opened, words));
        }

        private Reply send(StatefulRedisConnection<byte[], byte[]> connection, Words words) {
            Reply reply = new Reply(calls, connection, words);
            connection.dispatch(reply);
            return reply;
        }

        @Override
        public List<Object> read(List<Words> words, long timeout) {
            try {
                // The first call finds its connection ready.
                calls.connection();
                StatefulRedisConnection<byte[], byte[]> connection =
                        reader.connection().get(Session.CALL_TIMEOUT, TimeUnit.NANOSECONDS);
                long begin = Locks.now();
                long until = begin + timeout;
                List<Reply> sent = words.stream()
                        .map(each -> new Reply(reader, connection, each))
                        .toList();
                connection.dispatch(sent);
                List<Object> replies = new ArrayList<>();
                for (Reply reply : sent) {
                    replies.add(take(reply, until));
                }
                if (calls.silentSince < begin) {
                    // The server answers, but not there.
                    calls.close();
                }
                return replies;
            } catch (InterruptedException | TimeoutException | ExecutionException error) {
                reader.close();
                throw LockException.noReply(error);
            }
        }

        private Object take(Reply reply, long until) throws InterruptedException, TimeoutException, ExecutionException {
            try {
                return reply.get(Math.max(1, until - Locks.now()), TimeUnit.NANOSECONDS);
            } catch (ExecutionException error) {
                if (isReply(error.getCause())) {
                    return LockException.ofReply(error.getCause().getMessage());
                }
                throw error;
            }
        }

        @Override
        public void reset() {
            calls.close();
            reader.close();
        }

        @Override
        public void closeReader() {
            reader.close();
        }
    }
}
