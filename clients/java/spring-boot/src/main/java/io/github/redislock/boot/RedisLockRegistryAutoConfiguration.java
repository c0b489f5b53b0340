// SPDX-License-Identifier: MIT
package io.github.redislock.boot;

import io.github.redislock.Locks;
import io.github.redislock.spring.RedisLockRegistry;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnSingleCandidate;
import org.springframework.context.annotation.Bean;
import org.springframework.core.env.Environment;
import org.springframework.integration.support.locks.LockRegistry;

/** Provides a {@link RedisLockRegistry} if the application has Spring Integration, and no other lock registry. */
@AutoConfiguration(after = RedisLockAutoConfiguration.class)
@ConditionalOnClass(LockRegistry.class)
public final class RedisLockRegistryAutoConfiguration {
    /** Makes the configuration. */
    public RedisLockRegistryAutoConfiguration() {}

    @Bean
    @ConditionalOnMissingBean(LockRegistry.class)
    @ConditionalOnSingleCandidate(Locks.class)
    RedisLockRegistry redisLockRegistry(Locks locks, RedisLockProperties properties, Environment environment) {
        String key = properties.registryKey();
        return new RedisLockRegistry(
                locks, key != null ? key : environment.getProperty("spring.application.name", "application"));
    }
}
