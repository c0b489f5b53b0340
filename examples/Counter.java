// SPDX-License-Identifier: MIT

import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;

/**
 * Counts under a lock: reads a number and writes it plus one. No increment gets lost, even beside the other languages.
 *
 * <p>After {@code sh tests/scripts/client-java.sh build}, with {@code java=target/client-java/redis-lock-driver}:
 *
 * <p>{@code java -cp "$java/dependency/*" examples/Counter.java redis://127.0.0.1:6379 100}
 */
final class Counter {
    public static void main(String[] args) throws Exception {
        RedisClient client = RedisClient.create(args[0]);
        RedisCommands<String, String> redis = client.connect().sync();
        try (Locks locks = new Locks(new LettuceConnector(args[0]))) {
            for (int times = Integer.parseInt(args[1]); times > 0; times--) {
                // The loss of the lock ends the program: `with` throws LockException.Lost.
                locks.lock("example:lock").with(hold -> {
                    String value = redis.get("example:counter");
                    return redis.set("example:counter", Integer.toString(value == null ? 1 : Integer.parseInt(value) + 1));
                });
            }
        } finally {
            client.shutdown();
        }
    }
}
