// SPDX-License-Identifier: MIT
package io.github.redislock.boot;

import io.github.redislock.LettuceConnector;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisCredentialsProvider;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.resource.ClientResources;
import java.util.List;
import org.springframework.beans.DirectFieldAccessor;
import org.springframework.data.redis.connection.RedisClusterConfiguration;
import org.springframework.data.redis.connection.RedisConfiguration;
import org.springframework.data.redis.connection.RedisConfiguration.WithAuthentication;
import org.springframework.data.redis.connection.RedisSentinelConfiguration;
import org.springframework.data.redis.connection.RedisSocketConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceClientConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConverters;

/**
 * Connects as a factory with Lettuce does, with its settings and its shared threads. A client of the factory itself ends when the
 * factory stops, before other beans have released their locks.
 */
final class LettuceFactory {
    private final LettuceConnectionFactory factory;
    private final LettuceClientConfiguration settings;

    private LettuceFactory(LettuceConnectionFactory factory) {
        this.factory = factory;
        settings = factory.getClientConfiguration();
    }

    static FactoryConnector connector(LettuceConnectionFactory factory) {
        return new LettuceFactory(factory).connector();
    }

    private FactoryConnector connector() {
        ClientResources resources = settings.getClientResources().orElse(null);
        ClientOptions options = settings.getClientOptions().orElseGet(ClientOptions::create);
        RedisClusterConfiguration nodes = factory.getClusterConfiguration();
        if (nodes != null) {
            List<RedisURI> uris = nodes.getClusterNodes().stream()
                    .map(node -> complete(RedisURI.create(node.getHost(), node.getPort()), nodes))
                    .toList();
            RedisClusterClient client =
                    resources == null ? RedisClusterClient.create(uris) : RedisClusterClient.create(resources, uris);
            client.setOptions(
                    options instanceof ClusterClientOptions ours
                            ? ours
                            : ClusterClientOptions.builder(options).build());
            return new FactoryConnector(new LettuceConnector(client), client::shutdown);
        }
        RedisURI uri = uri();
        RedisClient client = resources == null ? RedisClient.create() : RedisClient.create(resources);
        client.setOptions(options);
        return new FactoryConnector(new LettuceConnector(client, uri), client::shutdown);
    }

    private RedisURI uri() {
        RedisSentinelConfiguration sentinels = factory.getSentinelConfiguration();
        RedisSocketConfiguration socket = factory.getSocketConfiguration();
        if (sentinels != null) {
            return complete(LettuceConverters.sentinelConfigurationToRedisURI(sentinels), sentinels);
        } else if (socket != null) {
            return complete(RedisURI.Builder.socket(socket.getSocket()).build(), socket);
        } else if (RedisConfiguration.isStaticMasterReplicaConfiguration(configuration())) {
            throw new IllegalStateException("redis-lock cannot use a factory with static replicas;"
                    + " define a bean of the type io.github.redislock.Connector for the primary");
        }
        return complete(
                RedisURI.create(factory.getHostName(), factory.getPort()), factory.getStandaloneConfiguration());
    }

    /** The factory has no method that tells static replicas from a single server. */
    private RedisConfiguration configuration() {
        DirectFieldAccessor fields = new DirectFieldAccessor(factory);
        return fields.isReadableProperty("configuration")
                ? (RedisConfiguration) fields.getPropertyValue("configuration")
                : null;
    }

    private RedisURI complete(RedisURI uri, WithAuthentication configuration) {
        secure(uri);
        uri.getSentinels().forEach(this::secure);
        uri.setDatabase(factory.getDatabase());
        settings.getClientName().ifPresent(uri::setClientName);
        RedisCredentialsProvider credentials = settings.getRedisCredentialsProviderFactory()
                .map(ours -> ours.createCredentialsProvider((RedisConfiguration) configuration))
                .orElseGet(() -> credentials(configuration));
        if (credentials != null) {
            uri.setCredentialsProvider(credentials);
        }
        return uri;
    }

    private void secure(RedisURI uri) {
        uri.setSsl(settings.isUseSsl());
        uri.setStartTls(settings.isStartTls());
        uri.setVerifyPeer(settings.getVerifyMode());
    }

    private static RedisCredentialsProvider credentials(WithAuthentication configuration) {
        String user = configuration.getUsername();
        if (user == null && !configuration.getPassword().isPresent()) {
            return null;
        }
        RedisCredentials credentials = RedisCredentials.just(
                user, configuration.getPassword().toOptional().orElse(null));
        return RedisCredentialsProvider.from(() -> credentials);
    }
}
