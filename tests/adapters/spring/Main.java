// SPDX-License-Identifier: MIT
import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import io.github.redislock.spring.RedisLockRegistry;

public class Main {
    public static void main(String[] arguments) throws Exception {
        try (Locks locks = new Locks(new LettuceConnector(arguments[0]))) {
            new RedisLockRegistry(locks, "registry").executeLocked("report", () -> System.out.println("the task runs"));
        }
    }
}
