// SPDX-License-Identifier: MIT
import io.github.redislock.redisson.NativeLocks;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public class Main {
    public static void main(String[] arguments) {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]);
        RedissonClient redisson = Redisson.create(config);
        RLock lock = NativeLocks.of(redisson).getLock("report");
        lock.lock();
        System.out.println("held: " + lock.isHeldByCurrentThread());
        lock.unlock();
        redisson.shutdown();
    }
}
