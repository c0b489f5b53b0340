// SPDX-License-Identifier: MIT
package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisCredentialsProvider;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import java.net.ServerSocket;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.DefaultPooledObject;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.Credentials;
import reactor.core.publisher.Mono;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionFactory;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultRedisCredentials;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** Connections have the settings of the application's client. */
@Timeout(60)
class ConnectionsTest extends Fixture {
    private volatile String password = "first";

    private Locks locks(Connector connector) {
        return closed(new Locks(connector));
    }

    private Connector lettuce(RedisURI uri, ClientOptions options) {
        io.lettuce.core.RedisClient client = io.lettuce.core.RedisClient.create();
        client.setOptions(options);
        closed(() -> client.shutdown(0, 2, TimeUnit.SECONDS));
        return new LettuceConnector(client, uri);
    }

    private Connector jedis(int port, DefaultJedisClientConfig config) {
        RedisClient client = RedisClient.builder()
                .hostAndPort("127.0.0.1", port)
                .clientConfig(config)
                .build();
        return new JedisConnector(closed(client));
    }

    private Connector redisson(Config config, String uri) {
        config.useSingleServer()
                .setAddress(uri)
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1);
        RedissonClient redisson = Redisson.create(config);
        closed(() -> redisson.shutdown(0, 2, TimeUnit.SECONDS));
        return new RedissonConnector(redisson);
    }

    private static void run(String words) throws Exception {
        assertEquals(0, new ProcessBuilder(words.split(" ")).start().waitFor(), words);
    }

    /** Makes the server accept TLS as well. Returns the port. The store has the server's certificate. */
    private int serveTls(Path folder, Path store) throws Exception {
        Path key = folder.resolve("key");
        Path certificate = folder.resolve("certificate");
        run("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
                + " -keyout " + key + " -out " + certificate);
        run(Path.of(System.getProperty("java.home"), "bin", "keytool") + " -importcert -noprompt -file " + certificate
                + " -storepass secret -keystore " + store);
        server.call("CONFIG", "SET", "tls-key-file", key.toString());
        server.call("CONFIG", "SET", "tls-cert-file", certificate.toString());
        server.call("CONFIG", "SET", "tls-ca-cert-file", certificate.toString());
        server.call("CONFIG", "SET", "tls-auth-clients", "no");
        int port;
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        server.call("CONFIG", "SET", "tls-port", "" + port);
        return port;
    }

    @ParameterizedTest
    @EnumSource
    void locksWorkOverTls(Library library, @TempDir Path folder) throws Exception {
        Path store = folder.resolve("store");
        int port = serveTls(folder, store);
        String uri = "rediss://127.0.0.1:" + port;
        Locks locks = locks(
                switch (library) {
                    case LETTUCE -> {
                        SslOptions options = SslOptions.builder()
                                .truststore(store.toFile(), "secret")
                                .build();
                        yield lettuce(
                                RedisURI.create(uri),
                                ClientOptions.builder().sslOptions(options).build());
                    }
                    case JEDIS -> {
                        redis.clients.jedis.SslOptions options = redis.clients.jedis.SslOptions.builder()
                                .truststore(store.toFile(), "secret".toCharArray())
                                .build();
                        yield jedis(
                                port,
                                DefaultJedisClientConfig.builder()
                                        .sslOptions(options)
                                        .build());
                    }
                    case REDISSON ->
                        redisson(
                                new Config()
                                        .setSslTruststore(store.toUri().toURL())
                                        .setSslTruststorePassword("secret"),
                                uri);
                });
        Hold hold = locks.lock("k").acquire();
        CompletableFuture<Hold> wait = locks.lock("k").owner("waiter").acquireAsync();
        untilWaiters(1);
        hold.release();
        Hold next = wait.get(5, TimeUnit.SECONDS);
        assertFalse(next.validFor().isZero());
        next.release();
    }

    @ParameterizedTest
    @EnumSource
    void eachConnectionAsksTheCredentialsProvider(Library library) throws Exception {
        server.call("ACL", "SETUSER", "app", "on", ">first", "+@all", "~*", "&*");
        RedisCredentialsProvider ofLettuce = () -> Mono.fromSupplier(() -> RedisCredentials.just("app", password));
        Locks locks = locks(
                switch (library) {
                    case LETTUCE ->
                        lettuce(
                                RedisURI.builder()
                                        .withHost("127.0.0.1")
                                        .withPort(server.port)
                                        .withAuthentication(ofLettuce)
                                        .build(),
                                ClientOptions.create());
                    case JEDIS ->
                        jedis(
                                server.port,
                                DefaultJedisClientConfig.builder()
                                        .credentialsProvider(() -> new DefaultRedisCredentials("app", password))
                                        .build());
                    case REDISSON ->
                        redisson(
                                new Config()
                                        .setCredentialsResolver(address ->
                                                CompletableFuture.completedFuture(new Credentials("app", password))),
                                server.uri());
                });
        Hold hold = locks.lock("k").acquire();
        List<?> session = (List<?>) ((List<?>) server.call("LOCK.SESSION", "LIST")).get(0);
        assertTrue(session.stream().map(Fixture::text).toList().contains("app"), session::toString);
        password = "second";
        server.call("ACL", "SETUSER", "app", "<first", ">second");
        server.call("CLIENT", "KILL", "USER", "app");
        long before = calls("lock.events");
        until("events are read again", () -> calls("lock.events") > before + 1);
        assertFalse(hold.isLost());
        hold.release();
    }

    @Test
    void callsGoOutOnTheThreadOfTheCaller() throws Exception {
        Map<String, Set<Thread>> callers = new ConcurrentHashMap<>();
        HostAndPort address = new HostAndPort("127.0.0.1", server.port);
        ConnectionFactory factory = new ConnectionFactory(address) {
            @Override
            public PooledObject<Connection> makeObject() {
                return new DefaultPooledObject<>(new Connection(address) {
                    @Override
                    public void sendCommand(CommandArguments words) {
                        String name = text(words.getCommand().getRaw());
                        callers.computeIfAbsent(name, first -> ConcurrentHashMap.newKeySet())
                                .add(Thread.currentThread());
                        super.sendCommand(words);
                    }
                });
            }
        };
        PooledConnectionProvider provider = closed(new PooledConnectionProvider(factory, new ConnectionPoolConfig()));
        Locks locks = locks(new JedisConnector(provider));
        // The reader repeats calls of the time before the session was open.
        locks.lock("l").acquire().release();
        callers.clear();
        Hold hold = locks.lock("k").acquire();
        hold.extend();
        hold.release();
        for (String command : List.of("LOCK.ACQUIRE", "LOCK.RENEW", "LOCK.RELEASE")) {
            assertEquals(Set.of(Thread.currentThread()), callers.get(command), command);
        }
        locks.lock("k").acquireAsync().get(5, TimeUnit.SECONDS).release();
        assertNotEquals(Set.of(Thread.currentThread()), callers.get("LOCK.ACQUIRE"));
    }
}
