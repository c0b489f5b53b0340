// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisClient;
import org.redisson.client.RedisConnection;
import org.redisson.client.RedisMovedException;
import org.redisson.client.RedisOutOfMemoryException;
import org.redisson.client.RedisRedirectException;
import org.redisson.client.codec.ByteArrayCodec;
import org.redisson.client.handler.PingConnectionHandler;
import org.redisson.client.protocol.CommandData;
import org.redisson.client.protocol.RedisCommand;
import org.redisson.connection.ClientConnectionsEntry;
import org.redisson.connection.ConnectionManager;
import org.redisson.connection.MasterSlaveEntry;
import org.redisson.misc.RedisURI;

/**
 * Connections of Redisson, with the threads, the options and the topology of the application's client. For each server there are
 * two: one for calls, which are pipelined, and one for the session. Redisson does not repeat calls on them.
 */
public final class RedissonConnector extends Connector {
    /** A redirection that the topology of Redisson does not show yet. It is void when that topology changes. */
    private record Moved(RedisURI to, RedisClient from) {}

    private final ConnectionManager manager;
    private final boolean isCluster;
    private final Map<Integer, Moved> moved = new ConcurrentHashMap<>();
    private final Map<String, Node> nodes = new ConcurrentHashMap<>();

    /** Uses the connections of a client that {@code Redisson.create} has made. It stays open. Makes no call. */
    public RedissonConnector(RedissonClient client) {
        if (!(client instanceof Redisson redisson)) {
            throw LockException.misuse("the client is not one of Redisson.create(): " + client);
        }
        manager = redisson.getCommandExecutor().getConnectionManager();
        isCluster = redisson.getConfig().isClusterConfig();
    }

    @Override
    Node node(byte[] key) {
        int slot = isCluster ? manager.calcSlot(key) : 0;
        MasterSlaveEntry entry = manager.getWriteEntry(slot);
        if (entry == null) {
            throw LockException.ofReply("CLUSTERDOWN no node serves the slot");
        }
        RedisClient client = entry.getClient();
        Moved redirection = moved.get(slot);
        if (redirection != null && redirection.from != client) {
            moved.remove(slot, redirection);
        } else if (redirection != null) {
            client = clientAt(redirection.to, client);
        }
        String name = isCluster
                ? client.getAddr().getHostString() + ":" + client.getAddr().getPort()
                : "";
        Node node = nodes.computeIfAbsent(name, each -> new Node(each, new RedissonLine(), new RedissonLine()));
        ((RedissonLine) node.calls()).client = client;
        ((RedissonLine) node.reader()).client = client;
        return node;
    }

    private RedisClient clientAt(RedisURI address, RedisClient otherwise) {
        MasterSlaveEntry entry = manager.getEntry(address);
        if (entry == null) {
            return otherwise;
        }
        ClientConnectionsEntry replica = entry.getEntry(address);
        return replica == null ? entry.getClient() : replica.getClient();
    }

    @Override
    boolean isCluster() {
        return isCluster;
    }

    @Override
    boolean isReply(Throwable failure) {
        // The lines make a LockException of each failure.
        return false;
    }

    @Override
    void close() {
        nodes.values().forEach(Node::reset);
    }

    /** The failure that Redisson reports for a reply. Its text must not show the arguments, as a session's id is secret. */
    private static LockException failure(Throwable cause) {
        if (cause instanceof LockException known) {
            return known;
        } else if (cause instanceof RedisMovedException) {
            return LockException.ofReply("MOVED another node serves the slot");
        } else if (cause instanceof RedisRedirectException) {
            return LockException.ofReply("ASK the slot is on its way to another node");
        }
        String text = String.valueOf(cause.getMessage()).split("\\. channel: ", 2)[0];
        if (cause instanceof RedisOutOfMemoryException) {
            return LockException.ofReply("OOM " + text);
        }
        return text.matches("(?s)[A-Z]+( .*)?") ? LockException.ofReply(text) : LockException.noReply(cause);
    }

    private void redirect(byte[] key, RedisURI to) {
        int slot = manager.calcSlot(key);
        MasterSlaveEntry entry = manager.getWriteEntry(slot);
        RedisClient from = entry == null ? null : entry.getClient();
        manager.getServiceManager().resolveIP(to).thenAccept(address -> moved.put(slot, new Moved(address, from)));
    }

    /** A command on its way. */
    private final class Call extends CommandData<Object, Object> {
        Call(CompletableFuture<Object> reply, Words words) {
            super(
                    reply,
                    ByteArrayCodec.INSTANCE,
                    new RedisCommand<>(new String(words.get(0), StandardCharsets.US_ASCII)),
                    words.subList(1, words.size()).toArray());
        }

        @Override
        public boolean tryFailure(Throwable cause) {
            if (cause instanceof RedisMovedException redirection) {
                // The number of keys is before the keys.
                boolean isSeveral = getCommand().getName().startsWith("LOCK.M");
                redirect((byte[]) getParams()[isSeveral ? 1 : 0], redirection.getUrl());
            }
            return super.tryFailure(failure(cause));
        }
    }

    /** A connection, whose calls fail when it ends. */
    private final class Channel {
        private final RedisConnection connection;
        private final Set<Call> pending = ConcurrentHashMap.newKeySet();
        /** Netty closes the channel later, if other code blocks its thread. */
        private volatile boolean isClosed;

        Channel(RedisConnection connection) {
            this.connection = connection;
            io.netty.channel.Channel channel = connection.getChannel();
            if (channel.pipeline().get(PingConnectionHandler.class) != null) {
                // A ping would wait for LOCK.EVENTS, and then close the connection.
                channel.pipeline().remove(PingConnectionHandler.class);
            }
            channel.closeFuture().addListener(closed -> {
                // So Redisson does not connect it again. It may be writing just now, which does not allow another
                // write.
                channel.eventLoop().execute(connection::closeAsync);
                pending.forEach(this::fail);
            });
        }

        void close() {
            isClosed = true;
            connection.getChannel().close();
        }

        private void fail(Call call) {
            call.tryFailure(LockException.noReply(new java.io.IOException("the connection is closed")));
        }

        boolean isOpen() {
            return !isClosed && connection.getChannel().isOpen();
        }

        CompletableFuture<Object> send(Words words) {
            CompletableFuture<Object> reply = new CompletableFuture<>();
            Call call = new Call(reply, words);
            pending.add(call);
            reply.whenComplete((value, error) -> pending.remove(call));
            connection.send(call).addListener(sent -> {
                if (!sent.isSuccess()) {
                    fail(call);
                }
            });
            return reply;
        }
    }

    private final class RedissonLine extends SharedLine<Channel> {
        /** The client of the present primary. */
        private volatile RedisClient client;

        @Override
        CompletableFuture<Channel> connect() {
            if (manager.getServiceManager().isShuttingDown()) {
                return CompletableFuture.failedFuture(new java.io.IOException("Redisson is shut down"));
            }
            // Sentinels may have another primary.
            RedisClient present = isCluster ? client : manager.getWriteEntry(0).getClient();
            return present.connectAsync().toCompletableFuture().thenApply(Channel::new);
        }

        @Override
        boolean isOpen(Channel channel) {
            return channel.isOpen();
        }

        @Override
        void close(Channel channel) {
            channel.close();
        }

        @Override
        List<CompletableFuture<Object>> dispatch(Channel channel, List<Words> calls) {
            return calls.stream().map(channel::send).toList();
        }
    }
}
