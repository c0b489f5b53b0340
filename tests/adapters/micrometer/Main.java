// SPDX-License-Identifier: MIT
import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import io.github.redislock.micrometer.RedisLockMetrics;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;

public class Main {
    public static void main(String[] arguments) throws Exception {
        SimpleMeterRegistry registry = new SimpleMeterRegistry();
        Locks.Builder builder = new Locks.Builder(new LettuceConnector(arguments[0])).listener(new RedisLockMetrics(registry));
        try (Locks locks = builder.build()) {
            locks.lock("report").acquire().release();
        }
        System.out.println(registry.get("redis.lock.wait").timer().count() + " recorded wait");
    }
}
