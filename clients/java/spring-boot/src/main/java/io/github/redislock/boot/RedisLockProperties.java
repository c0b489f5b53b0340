// SPDX-License-Identifier: MIT
package io.github.redislock.boot;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * The properties {@code redis-lock.*}. A property that is not set has the default of {@link io.github.redislock.Locks.Builder}.
 *
 * @param ttl the session ends if this process is silent for this time; 30 s by default
 * @param grace the session ends if its connection stays closed for this time; 3 s by default
 * @param patience limit for a try or a release, and for a wait without a limit, while no server answers; 5 s by default
 * @param name the name of the session for operators
 * @param registryKey keys of the lock registry begin with this and a colon; by default the name of the application, or {@code
 *     application}
 */
@ConfigurationProperties("redis-lock")
public record RedisLockProperties(Duration ttl, Duration grace, Duration patience, String name, String registryKey) {}
