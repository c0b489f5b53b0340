// SPDX-License-Identifier: MIT
package io.github.redislock.bench;

import com.sun.management.OperatingSystemMXBean;
import io.github.redislock.redisson.NativeLocks;
import java.lang.management.ManagementFactory;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.Jedis;

/**
 * An {@code RLock} without waits, before and after {@code NativeLocks.of}. One thread uses both in turn, for 200 ms each, so that
 * other load of the machine affects both alike. The arguments are the port of a server on this machine, and the number of turns.
 */
final class OneThread {
    private static final int WARM_UP = 10;
    private static final long TURN = TimeUnit.MILLISECONDS.toNanos(200);

    private OneThread() {}

    public static void main(String[] args) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0]);
        RedissonClient before = Redisson.create(config);
        RedissonClient after = NativeLocks.of(Redisson.create(new Config(config)));
        RLock[] locks = {before.getLock("before"), after.getLock("after")};
        int[] pairs = new int[2];
        double[] clientTime = new double[2];
        double[] serverTime = new double[2];
        int turns = Integer.parseInt(args[1]);
        try (Jedis server = new Jedis("127.0.0.1", Integer.parseInt(args[0]))) {
            for (int turn = -WARM_UP; turn < turns; turn++) {
                for (int which = 0; which < 2; which++) {
                    double client = clientTime();
                    double other = serverTime(server);
                    int count = 0;
                    for (long end = System.nanoTime() + TURN; System.nanoTime() - end < 0; count++) {
                        locks[which].lock();
                        locks[which].unlock();
                    }
                    if (turn >= 0) {
                        pairs[which] += count;
                        clientTime[which] += clientTime() - client;
                        serverTime[which] += serverTime(server) - other;
                    }
                }
            }
        }
        System.out.println("         pairs/s  CPU of client, µs  CPU of server, µs");
        for (int which = 0; which < 2; which++) {
            System.out.printf(
                    "%-6s %9.0f %18.0f %18.0f%n",
                    which == 0 ? "before" : "after",
                    pairs[which] * 1e9 / TURN / turns,
                    clientTime[which] / pairs[which],
                    serverTime[which] / pairs[which]);
        }
        after.shutdown();
        before.shutdown();
    }

    /** CPU time in microseconds. */
    private static double clientTime() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e3;
    }

    /** CPU time in microseconds. */
    private static double serverTime(Jedis server) {
        return server.info("cpu")
                .lines()
                .filter(line -> line.startsWith("used_cpu_sys:") || line.startsWith("used_cpu_user:"))
                .mapToDouble(line -> Double.parseDouble(line.split(":", 2)[1]) * 1e6)
                .sum();
    }
}
