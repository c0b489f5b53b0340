// SPDX-License-Identifier: MIT
package example.redislock;

import java.io.IOException;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;
import javax.net.ssl.SSLSocket;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultJedisSocketFactory;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisURIHelper;

/** Connections of Jedis 5 or later. It blocks, so each has two threads: one sends, one reads. */
public final class JedisConnector implements Wire.Connector {
    /** Asked anew for each connection. */
    private final Supplier<HostAndPort> server;

    /** Whether another server may be the primary than is named. */
    private final boolean mayFailOver;

    private final JedisClientConfig config;

    /** {@code redis://[user:password@]host:port[/database]}, or {@code rediss} for TLS. */
    public JedisConnector(String uri) {
        this(URI.create(uri));
    }

    @SuppressWarnings("deprecation") // What is to be used instead is not in Jedis 5.
    private JedisConnector(URI uri) {
        this(
                JedisURIHelper.getHostAndPort(uri),
                DefaultJedisClientConfig.builder()
                        .user(JedisURIHelper.getUser(uri))
                        .password(JedisURIHelper.getPassword(uri))
                        .database(JedisURIHelper.getDBIndex(uri))
                        .ssl(JedisURIHelper.isRedisSSLScheme(uri))
                        .build());
    }

    /** With the settings of a client: its user, database and TLS. Its time-out is for connecting only; without one that is 5 s. */
    public JedisConnector(HostAndPort server, JedisClientConfig config) {
        this(() -> server, false, config);
    }

    /** To the primary that Sentinels without a password know by this name. The settings are for the primary. */
    public JedisConnector(String name, List<HostAndPort> sentinels, JedisClientConfig config) {
        this(name, sentinels, config, DefaultJedisClientConfig.builder().build());
    }

    /** The same, with the settings for the Sentinels: their user, password and TLS. */
    public JedisConnector(
            String name, List<HostAndPort> sentinels, JedisClientConfig config, JedisClientConfig forSentinels) {
        this(() -> primary(name, sentinels, forSentinels), true, config);
    }

    private JedisConnector(Supplier<HostAndPort> server, boolean mayFailOver, JedisClientConfig config) {
        this.server = server;
        this.mayFailOver = mayFailOver;
        // Who connects to a server that hangs does not wait for ever.
        int timeout = config.getConnectionTimeoutMillis() == 0 ? 5000 : config.getConnectionTimeoutMillis();
        this.config = DefaultJedisClientConfig.builder()
                .from(config)
                .connectionTimeoutMillis(timeout)
                .socketTimeoutMillis(timeout)
                .protocol(RedisProtocol.RESP2)
                .build();
    }

    @Override
    public CompletionStage<Wire> open(String channel, Consumer<String> told, Runnable ended) {
        CompletableFuture<Wire> opened = new CompletableFuture<>();
        start("connect", () -> {
            Sockets sockets = new Sockets();
            try {
                Open connection = sockets.connect(server.get(), config);
                if (mayFailOver && isReplica(connection)) {
                    throw new JedisConnectionException("the Sentinels name a server that is not the primary yet");
                }
                if (channel != null) {
                    connection.send(List.of("SUBSCRIBE", channel));
                    connection.flush();
                    connection.getUnflushedObject();
                }
                // A reader waits for as long as nothing is to be read.
                connection.setSoTimeout(0);
                JedisWire wire = new JedisWire(connection, sockets, channel == null ? null : told, ended);
                start("read", wire::read);
                start("send", wire::write);
                opened.complete(wire);
            } catch (RuntimeException error) {
                sockets.close(false);
                opened.completeExceptionally(errorOf(error));
            }
        });
        return opened;
    }

    private static HostAndPort primary(String name, List<HostAndPort> sentinels, JedisClientConfig config) {
        JedisException failure = new JedisConnectionException("there is no Sentinel");
        JedisClientConfig soon = DefaultJedisClientConfig.builder()
                .from(config)
                .connectionTimeoutMillis(1000)
                .socketTimeoutMillis(1000)
                .build();
        for (HostAndPort address : sentinels) {
            try (Jedis sentinel = new Jedis(address, soon)) {
                List<String> found = sentinel.sentinelGetMasterAddrByName(name);
                if (found != null) {
                    return new HostAndPort(found.get(0), Integer.parseInt(found.get(1)));
                }
                failure = new JedisConnectionException(address + " knows no primary " + name);
            } catch (JedisException error) {
                // Whatever it says, another may know.
                failure = new JedisConnectionException(address + ": " + error.getMessage(), error);
            }
        }
        throw failure;
    }

    private static boolean isReplica(Open connection) {
        connection.send(List.of("ROLE"));
        connection.flush();
        try {
            return JedisWire.text(connection.getUnflushedObject()) instanceof List<?> role
                    && !"master".equals(role.get(0));
        } catch (JedisDataException refused) {
            // Who has no permission to ask is told by the first call.
            return false;
        }
    }

    @Override
    public void close() {
        // Each connection's threads end with it.
    }

    private static void start(String what, Runnable work) {
        Thread thread = new Thread(work, "redis-lock-" + what);
        thread.setDaemon(true);
        thread.start();
    }

    private static RuntimeException errorOf(RuntimeException error) {
        return error instanceof JedisDataException ? new Wire.ServerError(error.getMessage()) : error;
    }

    /** The socket of a connection. Jedis would flush before it closes it: that may block, and fails if it is broken. */
    private static final class Sockets {
        private volatile Socket socket;

        Open connect(HostAndPort server, JedisClientConfig config) {
            JedisSocketFactory factory = new DefaultJedisSocketFactory(server, config);
            Open connection = new Open(
                    () -> {
                        // Jedis would connect again behind our back.
                        if (socket != null) {
                            throw new JedisConnectionException("it has ended");
                        }
                        return socket = factory.createSocket();
                    },
                    config);
            connection.connect();
            return connection;
        }

        void close(boolean orderly) {
            Socket open = socket;
            if (open instanceof SSLSocket) {
                // It says goodbye, and blocks if nobody reads.
                start("close", () -> close(open, orderly));
            } else if (open != null) {
                close(open, orderly);
            }
        }

        private static void close(Socket open, boolean orderly) {
            // What is closed already has no options.
            try {
                open.setSoLinger(!orderly, 0);
            } catch (IOException closed) {
                // Nothing is left to do.
            }
            try {
                open.close();
            } catch (IOException broken) {
                // It is closed all the same.
            }
        }
    }

    /** A connection whose callers say when what they have sent is to leave. */
    private static final class Open extends Connection {
        Open(JedisSocketFactory sockets, JedisClientConfig config) {
            super(sockets, config);
        }

        void send(List<String> words) {
            byte[] name = words.get(0).getBytes(StandardCharsets.UTF_8);
            CommandArguments args = new CommandArguments((ProtocolCommand) () -> name);
            words.subList(1, words.size()).forEach(args::add);
            sendCommand(args);
        }

        @Override
        protected void flush() {
            super.flush();
        }
    }

    private static final class JedisWire implements Wire {
        private static final List<String> END = new ArrayList<>();
        private final Open connection;
        private final Sockets sockets;
        private final Consumer<String> told;
        private final Runnable ended;
        private final LinkedBlockingQueue<List<String>> toSend = new LinkedBlockingQueue<>();
        private final Queue<CompletableFuture<Object>> answers = new ConcurrentLinkedQueue<>();
        /** All that was to be sent before the end. */
        private final CompletableFuture<Void> written = new CompletableFuture<>();

        private volatile boolean closed;

        JedisWire(Open connection, Sockets sockets, Consumer<String> told, Runnable ended) {
            this.connection = connection;
            this.sockets = sockets;
            this.told = told;
            this.ended = ended;
        }

        @Override
        public CompletionStage<Object> call(List<String> words) {
            CompletableFuture<Object> answer = new CompletableFuture<>();
            answers.add(answer);
            toSend.add(words);
            return answer;
        }

        @Override
        public void close() {
            end(true);
        }

        @Override
        public void giveUp() {
            end(false);
        }

        /** The first says how. */
        private synchronized void end(boolean orderly) {
            if (!closed) {
                closed = true;
                toSend.add(END);
                if (orderly) {
                    written.orTimeout(1, TimeUnit.SECONDS).whenComplete((done, late) -> sockets.close(true));
                } else {
                    sockets.close(false);
                }
            }
        }

        void write() {
            try {
                for (List<String> words = toSend.take(); words != END; words = toSend.take()) {
                    connection.send(words);
                    if (toSend.isEmpty()) {
                        connection.flush();
                    }
                }
                connection.flush();
            } catch (RuntimeException | InterruptedException error) {
                giveUp();
            } finally {
                written.complete(null);
            }
        }

        void read() {
            try {
                while (!closed) {
                    readOne();
                }
            } catch (RuntimeException broken) {
                // So the session is told.
            } finally {
                giveUp();
                ended.run();
            }
        }

        private void readOne() {
            try {
                Object reply = text(connection.getUnflushedObject());
                if (told != null && reply instanceof List<?> message && "message".equals(message.get(0))) {
                    told.accept(String.valueOf(message.get(2)));
                } else {
                    answers.remove().complete(reply);
                }
            } catch (JedisDataException refused) {
                answers.remove().completeExceptionally(errorOf(refused));
            }
        }

        private static Object text(Object reply) {
            if (reply instanceof byte[] bytes) {
                return new String(bytes, StandardCharsets.UTF_8);
            }
            if (reply instanceof JedisDataException error) {
                return errorOf(error);
            }
            return reply instanceof List<?> list
                    ? list.stream().map(JedisWire::text).toList()
                    : reply;
        }
    }
}
