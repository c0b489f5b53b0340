// SPDX-License-Identifier: MIT
package io.github.redislock.boot;

import io.github.redislock.Connector;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** A connector with the settings of a factory of Spring Data Redis, and the client to close after it. */
record FactoryConnector(Connector connector, AutoCloseable client) implements DisposableBean {
    static FactoryConnector of(RedisConnectionFactory factory) {
        if (factory instanceof LettuceConnectionFactory lettuce) {
            return LettuceFactory.connector(lettuce);
        } else if (factory instanceof JedisConnectionFactory jedis) {
            return JedisFactory.connector(jedis);
        }
        throw new IllegalStateException("redis-lock cannot use a "
                + factory.getClass().getName() + "; define a bean of the type io.github.redislock.Connector");
    }

    @Override
    public void destroy() throws Exception {
        client.close();
    }
}
