// SPDX-License-Identifier: MIT
import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import io.github.redislock.shedlock.RedisLockProvider;
import java.time.Duration;
import java.time.Instant;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;

public class Main {
    public static void main(String[] arguments) {
        try (Locks locks = new Locks(new LettuceConnector(arguments[0]))) {
            Runnable task = () -> System.out.println("the task runs");
            new DefaultLockingTaskExecutor(new RedisLockProvider(locks))
                    .executeWithLock(
                            task, new LockConfiguration(Instant.now(), "report", Duration.ofSeconds(30), Duration.ZERO));
        }
    }
}
