// SPDX-License-Identifier: MIT
package io.github.redislock.bench;

import com.sun.management.OperatingSystemMXBean;
import io.github.redislock.redisson.NativeLocks;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.Jedis;

/**
 * {@code RLock} before and after {@code NativeLocks.of}: threads of one process or of four lock and unlock the same name. The
 * arguments are the port of a server on this machine, and the seconds of each run. Each row compares the pairs per second, the
 * longest wait, and the CPU time for each pair, without and with the line. The processes of a run are new, and warm up for two
 * seconds.
 */
final class OneLine {
    /** Time in ms until all processes of a run have started. */
    private static final long START_TIME = 10_000;

    private OneLine() {}

    private record Load(int threads, int processes) {}

    private record Result(long pairs, long longest, double clientTime, double serverTime) {}

    public static void main(String[] args) throws IOException, InterruptedException {
        if (args.length > 2) {
            run(args);
            return;
        }
        double seconds = Double.parseDouble(args[1]);
        Load[] loads = {
            new Load(1, 1),
            new Load(10, 1),
            new Load(50, 1),
            new Load(200, 1),
            new Load(12, 4),
            new Load(48, 4),
            new Load(200, 4)
        };
        System.out.println("threads processes           pairs/s longest wait, ms  CPU of clients, µs   CPU of server, µs");
        for (Load load : loads) {
            Result before = measure(args, load, "before");
            Result after = measure(args, load, "after");
            System.out.printf(
                    "%7d %9d %8.0f %8.0f %7d %9d %9.0f %9.0f %9.0f %9.0f%n",
                    load.threads,
                    load.processes,
                    before.pairs / seconds,
                    after.pairs / seconds,
                    before.longest,
                    after.longest,
                    before.clientTime / before.pairs,
                    after.clientTime / after.pairs,
                    before.serverTime / before.pairs,
                    after.serverTime / after.pairs);
        }
    }

    /** CPU time in microseconds. */
    private static double serverTime(String port) {
        try (Jedis jedis = new Jedis("127.0.0.1", Integer.parseInt(port))) {
            return jedis.info("cpu").lines()
                    .filter(line -> line.startsWith("used_cpu_sys:") || line.startsWith("used_cpu_user:"))
                    .mapToDouble(line -> Double.parseDouble(line.split(":", 2)[1]) * 1e6)
                    .sum();
        }
    }

    private static double ownTime() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e3;
    }

    private static Result measure(String[] args, Load load, String mode) throws IOException, InterruptedException {
        long start = System.currentTimeMillis() + START_TIME;
        List<Process> all = new ArrayList<>();
        for (int number = 0; number < load.processes; number++) {
            all.add(new ProcessBuilder(
                            System.getProperty("java.home") + "/bin/java",
                            "-cp",
                            System.getProperty("java.class.path"),
                            OneLine.class.getName(),
                            args[0],
                            args[1],
                            mode,
                            "" + load.threads / load.processes,
                            "" + start)
                    .redirectError(ProcessBuilder.Redirect.DISCARD)
                    .start());
        }
        long pairs = 0;
        long longest = 0;
        double clientTime = 0;
        TimeUnit.MILLISECONDS.sleep(start - System.currentTimeMillis());
        double before = serverTime(args[0]);
        for (Process each : all) {
            String[] last = new String(each.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8)
                    .strip()
                    .split("\\s+");
            pairs += Long.parseLong(last[last.length - 3]);
            longest = Math.max(longest, Long.parseLong(last[last.length - 2]));
            clientTime += Double.parseDouble(last[last.length - 1]);
            each.waitFor();
        }
        return new Result(pairs, longest, clientTime, serverTime(args[0]) - before);
    }

    private static void run(String[] args) throws InterruptedException {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0]);
        RedissonClient redisson = Redisson.create(config);
        RedissonClient client = args[2].equals("after") ? NativeLocks.of(redisson) : redisson;
        long start = Long.parseLong(args[4]);
        long end = start + (long) (Double.parseDouble(args[1]) * 1000);
        AtomicLong pairs = new AtomicLong();
        AtomicLong longest = new AtomicLong();
        List<Thread> all = new ArrayList<>();
        TimeUnit.MILLISECONDS.sleep(start - 2000 - System.currentTimeMillis());
        for (int number = 0; number < Integer.parseInt(args[3]); number++) {
            Thread thread = new Thread(() -> {
                RLock lock = client.getLock("bench");
                for (long now = 0; now < end; ) {
                    long asked = System.nanoTime();
                    lock.lock();
                    long waited = System.nanoTime() - asked;
                    lock.unlock();
                    now = System.currentTimeMillis();
                    if (now >= start && now < end) {
                        pairs.incrementAndGet();
                        longest.accumulateAndGet(waited / 1_000_000, Math::max);
                    }
                }
            });
            thread.start();
            all.add(thread);
        }
        TimeUnit.MILLISECONDS.sleep(start - System.currentTimeMillis());
        double before = ownTime();
        for (Thread thread : all) {
            thread.join();
        }
        System.out.println(pairs + " " + longest + " " + (ownTime() - before));
        client.shutdown();
        System.exit(0);
    }
}
