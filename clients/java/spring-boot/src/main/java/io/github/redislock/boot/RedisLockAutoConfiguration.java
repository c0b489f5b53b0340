// SPDX-License-Identifier: MIT
package io.github.redislock.boot;

import io.github.redislock.Connector;
import io.github.redislock.LockEvent;
import io.github.redislock.Locks;
import io.github.redislock.micrometer.RedisLockMetrics;
import io.micrometer.core.instrument.MeterRegistry;
import java.util.function.Consumer;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnSingleCandidate;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.context.properties.PropertyMapper;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.Order;
import org.springframework.data.redis.connection.RedisConnectionFactory;

/**
 * Provides {@link Locks} on the server of the application's factory of Spring Data Redis, with the properties of {@link
 * RedisLockProperties}. A bean of the type {@link Connector} takes the place of that factory. Beans of the type {@code
 * Consumer<LockEvent>} are listeners. With a {@code MeterRegistry}, {@link RedisLockMetrics} is one of them. The locks are closed
 * with the context.
 */
@AutoConfiguration(
        afterName = {
            "org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration",
            "org.springframework.boot.micrometer.metrics.autoconfigure.CompositeMeterRegistryAutoConfiguration"
        })
@EnableConfigurationProperties(RedisLockProperties.class)
public final class RedisLockAutoConfiguration {
    /** Makes the configuration. */
    public RedisLockAutoConfiguration() {}

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(RedisConnectionFactory.class)
    static class ConnectorConfiguration {
        @Bean
        @ConditionalOnMissingBean({Connector.class, Locks.class})
        @ConditionalOnSingleCandidate(RedisConnectionFactory.class)
        FactoryConnector redisLockFactoryConnector(RedisConnectionFactory factory) {
            return FactoryConnector.of(factory);
        }

        @Bean
        @ConditionalOnBean(FactoryConnector.class)
        Connector redisLockConnector(FactoryConnector ours) {
            return ours.connector();
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    static class MetricsConfiguration {
        @Bean
        @Order(Ordered.HIGHEST_PRECEDENCE) // So a listener that fails does not disturb it.
        @ConditionalOnMissingBean
        @ConditionalOnSingleCandidate(MeterRegistry.class)
        RedisLockMetrics redisLockMetrics(MeterRegistry registry) {
            return new RedisLockMetrics(registry);
        }
    }

    @Bean
    @ConditionalOnMissingBean
    @ConditionalOnSingleCandidate(Connector.class)
    Locks redisLocks(
            Connector connector, RedisLockProperties properties, ObjectProvider<Consumer<LockEvent>> listeners) {
        Locks.Builder builder = new Locks.Builder(connector);
        PropertyMapper map = PropertyMapper.get();
        map.from(properties.ttl()).to(builder::ttl);
        map.from(properties.grace()).to(builder::grace);
        map.from(properties.patience()).to(builder::patience);
        map.from(properties.name()).to(builder::name);
        listeners.orderedStream().reduce(Consumer::andThen).ifPresent(builder::listener);
        return builder.build();
    }
}
