// SPDX-License-Identifier: MIT
package example.redislock;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.event.DefaultEventPublisherOptions;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.CommandHandler;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.NettyCustomizer;
import io.netty.bootstrap.Bootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelException;
import io.netty.channel.ChannelOption;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/** Connections of Lettuce, 6.5 or later. A URI for Sentinel leads to the primary, also after a failover. */
public final class LettuceConnector implements Wire.Connector {
    private static final Duration SOON = Duration.ofMillis(1500);
    /** What begins in a silence is given up after that, and not after Lettuce's minute, unless the URI names a time. */
    private static final Duration TO_CONNECT = Duration.ofSeconds(5);

    private final ClientResources resources;
    private final RedisClient client;
    /** Whose threads it has, if they are to end with it. */
    private final RedisClient ours;

    private final RedisURI uri;
    /** Lettuce shows no connection's channel, but who writes to it. */
    private final Map<Object, Channel> channels = new ConcurrentHashMap<>();
    /** Connections that open or close. */
    private final Set<CompletableFuture<?>> pending = ConcurrentHashMap.newKeySet();

    private volatile boolean isClosed;

    /** With threads of its own. */
    public LettuceConnector(String uri) {
        this(RedisClient.create(), parsed(uri), true);
    }

    /**
     * With the threads and the settings of a client that is there, such as its TLS. It is not closed. The URI's time-out is for
     * connecting only: one of some seconds is better than Lettuce's own of a minute.
     */
    public LettuceConnector(RedisClient client, RedisURI uri) {
        this(client, uri, false);
    }

    private LettuceConnector(RedisClient theirs, RedisURI uri, boolean isOurs) {
        this.uri = uri;
        SocketOptions sockets = theirs.getOptions().getSocketOptions();
        if (isOurs && !uri.getSentinels().isEmpty()) {
            // One that is away must not use up the patience with all, as they are asked one after another.
            uri.getSentinels().forEach(sentinel -> sentinel.setTimeout(SOON));
            sockets = sockets.mutate().connectTimeout(SOON).build();
        }
        ours = isOurs ? theirs : null;
        resources = watched(theirs.getResources());
        client = RedisClient.create(resources);
        // Lettuce would send calls again behind our back, on a connection to which nothing is bound.
        client.setOptions(theirs.getOptions()
                .mutate()
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .timeoutOptions(TimeoutOptions.create())
                .protocolVersion(ProtocolVersion.RESP2)
                .pingBeforeActivateConnection(false)
                .socketOptions(sockets)
                .build());
    }

    private static RedisURI parsed(String text) {
        RedisURI uri = RedisURI.create(text);
        if (uri.getTimeout().equals(RedisURI.DEFAULT_TIMEOUT_DURATION)) {
            uri.setTimeout(TO_CONNECT);
        }
        return uri;
    }

    /** The same, which tells of its channels. What is said to be shared does not end with it. */
    private ClientResources watched(ClientResources theirs) {
        return theirs.mutate()
                .eventLoopGroupProvider(theirs.eventLoopGroupProvider())
                .eventExecutorGroup(theirs.eventExecutorGroup())
                .timer(theirs.timer())
                .commandLatencyRecorder(theirs.commandLatencyRecorder())
                .commandLatencyPublisherOptions(DefaultEventPublisherOptions.disabled())
                .nettyCustomizer(new NettyCustomizer() {
                    @Override
                    public void afterBootstrapInitialized(Bootstrap bootstrap) {
                        theirs.nettyCustomizer().afterBootstrapInitialized(bootstrap);
                    }

                    @Override
                    public void afterChannelInitialized(Channel channel) {
                        theirs.nettyCustomizer().afterChannelInitialized(channel);
                        remember(channel);
                    }
                })
                .build();
    }

    private void remember(Channel channel) {
        CommandHandler handler = channel.pipeline().get(CommandHandler.class);
        if (handler != null) {
            channels.put(handler.getEndpoint(), channel);
            channel.closeFuture().addListener(closed -> channels.remove(handler.getEndpoint()));
        }
    }

    /** So that closing it drops what the kernel has not sent yet. */
    private void resetOnClose(StatefulRedisConnection<String, String> connection) {
        Channel channel = connection instanceof RedisChannelHandler<?, ?> handler
                ? channels.get(handler.getChannelWriter())
                : null;
        try {
            if (channel != null) {
                channel.config().setOption(ChannelOption.SO_LINGER, 0);
            }
        } catch (ChannelException closed) {
            // Then nothing is left to drop.
        }
    }

    @Override
    public CompletionStage<Wire> open(String channel, Consumer<String> told, Runnable ended) {
        CompletableFuture<Wire> opening = connect(channel, told, ended)
                .thenApply(wire -> {
                    if (isClosed) {
                        wire.close();
                    }
                    return wire;
                })
                .toCompletableFuture();
        begun(opening);
        return opening;
    }

    private CompletionStage<Wire> connect(String channel, Consumer<String> told, Runnable ended) {
        if (channel == null) {
            return client.connectAsync(StringCodec.UTF8, uri).handle((connection, error) -> {
                check(error);
                return wire(connection, ended);
            });
        }
        return client.connectPubSubAsync(StringCodec.UTF8, uri)
                .handle((connection, error) -> {
                    check(error);
                    connection.addListener(new RedisPubSubAdapter<>() {
                        @Override
                        public void message(String from, String message) {
                            told.accept(message);
                        }
                    });
                    Wire wire = wire(connection, ended);
                    return connection.async().subscribe(channel).handle((done, refused) -> {
                        if (refused != null) {
                            wire.close();
                        }
                        check(refused);
                        return wire;
                    });
                })
                .thenCompose(wire -> wire);
    }

    @Override
    public void close() {
        isClosed = true;
        // What opens is closed then. What is about to close the client would close again, and complain of it.
        for (int rounds = 0; rounds < 2; rounds++) {
            await(CompletableFuture.allOf(pending.toArray(CompletableFuture[]::new)));
        }
        // Without a limit of ours, as in `shutdown`, this would at times never end:
        // https://github.com/redis/lettuce/issues/2278.
        await(client.shutdownAsync(0, 0, TimeUnit.MILLISECONDS));
        resources.shutdown(0, 0, TimeUnit.MILLISECONDS);
        if (ours != null) {
            await(ours.shutdownAsync(0, 0, TimeUnit.MILLISECONDS));
        }
    }

    /** For a second at most. What ends later ends behind our back. */
    private static void await(CompletableFuture<?> work) {
        work.orTimeout(1, TimeUnit.SECONDS).exceptionally(late -> null).join();
    }

    private void begun(CompletableFuture<?> work) {
        pending.add(work);
        work.whenComplete((done, error) -> pending.remove(work));
    }

    /** What the server said, or else that it could not be reached. */
    private static void check(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof RedisCommandExecutionException) {
                throw new Wire.ServerError(cause.getMessage());
            }
        }
        if (error != null) {
            throw new CompletionException(error);
        }
    }

    private Wire wire(StatefulRedisConnection<String, String> connection, Runnable ended) {
        connection.addListener(new RedisConnectionStateListener() {
            @Override
            @Deprecated
            public void onRedisDisconnected(RedisChannelHandler<?, ?> handler) {
                ended.run();
            }
        });
        if (!connection.isOpen()) {
            ended.run();
        }
        AtomicBoolean closed = new AtomicBoolean();
        return new Wire() {
            @Override
            public CompletionStage<Object> call(List<String> words) {
                CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
                words.subList(1, words.size()).forEach(args::add);
                Word name = new Word(words.get(0));
                AsyncCommand<String, String, Object> command =
                        new AsyncCommand<>(new Command<>(name, new Reply(), args));
                connection.dispatch(command);
                return command.handle((reply, error) -> {
                    check(error);
                    return reply;
                });
            }

            @Override
            public void close() {
                if (!closed.getAndSet(true) && connection.isOpen()) {
                    begun(connection.closeAsync());
                }
            }

            @Override
            public void giveUp() {
                if (!closed.get()) {
                    resetOnClose(connection);
                }
                close();
            }
        };
    }

    private record Word(String word) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return word.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return word;
        }
    }

    /** Any reply. Lettuce's own outputs know the shape before it comes. */
    private static final class Reply extends CommandOutput<String, String, Object> {
        /** Lists that are not complete, the innermost last, with how many elements each lacks. */
        private final Deque<List<Object>> lists = new ArrayDeque<>();

        private final Deque<Integer> lacking = new ArrayDeque<>();

        Reply() {
            super(StringCodec.UTF8, null);
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
                // The call was carried out.
                add(new Wire.ServerError(decodeString(error)));
            }
        }

        @Override
        public void multi(int count) {
            if (count < 0) {
                add(null);
            } else if (count == 0) {
                add(List.of());
            } else {
                lists.addLast(new ArrayList<>(count));
                lacking.addLast(count);
            }
        }

        private void add(Object value) {
            Object element = value;
            while (!lists.isEmpty()) {
                lists.getLast().add(element);
                int left = lacking.removeLast() - 1;
                if (left > 0) {
                    lacking.addLast(left);
                    return;
                }
                element = lists.removeLast();
            }
            output = element;
        }
    }
}
