// SPDX-License-Identifier: MIT
package example.redislock.bench;

import example.redislock.LettuceConnector;
import example.redislock.Locks;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.Jedis;

/**
 * Threads that contend for one lock, and do nothing under it: locks per second, the longest wait, and the server's time for a lock.
 * Its arguments are the port of a server on this machine, and how many seconds each run takes.
 */
final class Bench {
    private Bench() {}

    public static void main(String[] args) throws InterruptedException {
        int port = Integer.parseInt(args[0]);
        double seconds = Double.parseDouble(args[1]);
        String uri = "redis://127.0.0.1:" + port;
        Config config = new Config();
        config.useSingleServer().setAddress(uri);
        RedissonClient redisson = Redisson.create(config);
        try (Locks locks = new Locks(new LettuceConnector(uri));
                Jedis server = new Jedis("127.0.0.1", port)) {
            System.out.println("threads  library    locks/s  longest wait  server's time");
            // What is not compiled yet is slow.
            run(server, 10, 1, () -> locks.lock("bench:ours"));
            run(server, 10, 1, () -> redisson.getLock("bench:theirs"));
            for (int threads : new int[] {2, 50, 200}) {
                System.out.println(threads + " ours " + run(server, threads, seconds, () -> locks.lock("bench:ours")));
                System.out.println(threads + " ours, own connection "
                        + run(
                                server,
                                threads,
                                seconds,
                                () -> locks.lock("bench:own")
                                        .lease(Duration.ofMinutes(1))
                                        .ownConnection()));
                System.out.println(
                        threads + " Redisson " + run(server, threads, seconds, () -> redisson.getLock("bench:theirs")));
            }
        }
        redisson.shutdown();
    }

    private static String run(Jedis server, int threads, double seconds, Supplier<Lock> lock)
            throws InterruptedException {
        AtomicLong locked = new AtomicLong();
        AtomicLong longest = new AtomicLong();
        CountDownLatch ready = new CountDownLatch(threads);
        CountDownLatch start = new CountDownLatch(1);
        List<Thread> all = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            Thread thread = new Thread(() -> {
                ready.countDown();
                awaitQuietly(start);
                long end = System.nanoTime() + (long) (seconds * 1e9);
                Lock mine = lock.get();
                while (System.nanoTime() - end < 0) {
                    long began = System.nanoTime();
                    mine.lock();
                    long waited = System.nanoTime() - began;
                    mine.unlock();
                    locked.incrementAndGet();
                    longest.accumulateAndGet(waited, Math::max);
                }
            });
            all.add(thread);
            thread.start();
        }
        ready.await();
        double before = serverSeconds(server);
        start.countDown();
        for (Thread thread : all) {
            thread.join();
        }
        double used = serverSeconds(server) - before;
        return "%.0f/s  %.1f ms  %.1f µs"
                .formatted(locked.get() / seconds, longest.get() / 1e6, used * 1e6 / Math.max(1, locked.get()));
    }

    private static void awaitQuietly(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    private static double serverSeconds(Jedis server) {
        return server.info("cpu")
                .lines()
                .filter(line -> line.startsWith("used_cpu_user:") || line.startsWith("used_cpu_sys:"))
                .mapToDouble(line -> Double.parseDouble(line.split(":")[1].trim()))
                .sum();
    }
}
