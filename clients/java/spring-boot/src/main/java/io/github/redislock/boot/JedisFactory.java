// SPDX-License-Identifier: MIT
package io.github.redislock.boot;

import io.github.redislock.JedisConnector;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import org.springframework.data.redis.connection.RedisClusterConfiguration;
import org.springframework.data.redis.connection.RedisNode;
import org.springframework.data.redis.connection.RedisPassword;
import org.springframework.data.redis.connection.RedisSentinelConfiguration;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.jedis.JedisClientConfiguration;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.providers.SentineledConnectionProvider;

/** Connects as a factory with Jedis does, with its settings, and a pool of its own. */
final class JedisFactory {
    private final JedisConnectionFactory factory;
    private final JedisClientConfiguration settings;

    private JedisFactory(JedisConnectionFactory factory) {
        this.factory = factory;
        settings = factory.getClientConfiguration();
    }

    static FactoryConnector connector(JedisConnectionFactory factory) {
        ConnectionProvider provider = new JedisFactory(factory).provider();
        return new FactoryConnector(new JedisConnector(provider), provider);
    }

    private ConnectionProvider provider() {
        RedisClusterConfiguration nodes = factory.getClusterConfiguration();
        RedisSentinelConfiguration sentinels = factory.getSentinelConfiguration();
        if (nodes != null) {
            JedisClientConfig config =
                    config(nodes.getUsername(), nodes.getPassword()).build();
            return new ClusterConnectionProvider(addresses(nodes.getClusterNodes()), config, pool());
        } else if (sentinels != null) {
            return new SentineledConnectionProvider(
                    sentinels.getMaster().getName(),
                    config(sentinels.getUsername(), sentinels.getPassword())
                            .database(sentinels.getDatabase())
                            .build(),
                    pool(),
                    addresses(sentinels.getSentinels()),
                    config(sentinels.getSentinelUsername(), sentinels.getSentinelPassword())
                            .build());
        }
        RedisStandaloneConfiguration server = factory.getStandaloneConfiguration();
        return new PooledConnectionProvider(
                new HostAndPort(server.getHostName(), server.getPort()),
                config(server.getUsername(), server.getPassword())
                        .database(server.getDatabase())
                        .build(),
                pool());
    }

    private static Set<HostAndPort> addresses(Set<RedisNode> nodes) {
        return nodes.stream()
                .map(node -> new HostAndPort(node.getHost(), node.getPort()))
                .collect(Collectors.toSet());
    }

    private DefaultJedisClientConfig.Builder config(String user, RedisPassword password) {
        DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder()
                .connectionTimeoutMillis(
                        Math.toIntExact(settings.getConnectTimeout().toMillis()))
                .socketTimeoutMillis(Math.toIntExact(settings.getReadTimeout().toMillis()))
                .user(user)
                .password(password.toOptional().map(String::new).orElse(null))
                .ssl(settings.isUseSsl());
        settings.getClientName().ifPresent(config::clientName);
        settings.getSslSocketFactory().ifPresent(config::sslSocketFactory);
        settings.getSslParameters().ifPresent(config::sslParameters);
        settings.getHostnameVerifier().ifPresent(config::hostnameVerifier);
        settings.getCustomizer().ifPresent(customizer -> customizer.customize(config));
        return config;
    }

    private GenericObjectPoolConfig<Connection> pool() {
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        GenericObjectPoolConfig<?> theirs = factory.getPoolConfig();
        if (settings.isUsePooling() && theirs != null) {
            pool.setMaxTotal(theirs.getMaxTotal());
            pool.setMaxIdle(theirs.getMaxIdle());
            pool.setMinIdle(theirs.getMinIdle());
            pool.setMaxWait(theirs.getMaxWaitDuration());
        }
        return pool;
    }
}
