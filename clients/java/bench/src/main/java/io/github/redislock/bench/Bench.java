// SPDX-License-Identifier: MIT
package io.github.redislock.bench;

import io.github.redislock.Hold;
import io.github.redislock.JedisConnector;
import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.RedisClient;

/**
 * Locks per second, beside Redisson: one thread, 50 threads on 50 locks, and 50 threads on one lock. The arguments are the port
 * of a server on this machine, and the seconds of each run. Each library runs twice, in turns.
 */
final class Bench {
    private Bench() {}

    /** Acquires and releases a lock. */
    private interface Pair {
        void run(String key) throws InterruptedException;
    }

    private record Load(String name, int threads, int keys) {}

    public static void main(String[] args) throws InterruptedException {
        int port = Integer.parseInt(args[0]);
        double seconds = Double.parseDouble(args[1]);
        String uri = "redis://127.0.0.1:" + port;
        Config config = new Config();
        config.useSingleServer().setAddress(uri);
        RedissonClient redisson = Redisson.create(config);
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setMaxTotal(50);
        pool.setMaxIdle(50);
        try (RedisClient jedis = RedisClient.builder()
                        .hostAndPort("127.0.0.1", port)
                        .poolConfig(pool)
                        .build();
                Locks onLettuce = new Locks(new LettuceConnector(uri));
                Locks onJedis = new Locks(new JedisConnector(jedis))) {
            Map<String, Pair> libraries = new LinkedHashMap<>();
            libraries.put("Lettuce", key -> pair(onLettuce, key));
            libraries.put("Jedis", key -> pair(onJedis, key));
            libraries.put("Redisson", key -> {
                Lock lock = redisson.getLock("theirs:" + key);
                lock.lock();
                lock.unlock();
            });
            Load[] loads = {new Load("one", 1, 1), new Load("50 on 50 locks", 50, 50), new Load("50 on one lock", 50, 1)
            };
            for (Load load : loads) {
                Map<String, Double> best = new LinkedHashMap<>();
                for (int round = 0; round < 3; round++) {
                    // The first round only warms up.
                    double time = round == 0 ? 1 : seconds;
                    boolean counts = round > 0;
                    for (Map.Entry<String, Pair> library : libraries.entrySet()) {
                        double rate = run(load, time, library.getValue());
                        best.merge(library.getKey(), counts ? rate : 0, Math::max);
                    }
                }
                best.forEach((library, rate) -> System.out.printf(
                        "%-15s %-9s %7.0f/s  %.2f%n", load.name(), library, rate, rate / best.get("Redisson")));
            }
        }
        redisson.shutdown();
    }

    private static void pair(Locks locks, String key) throws InterruptedException {
        try (Hold hold = locks.lock(key).acquire()) {
            hold.key();
        }
    }

    private static double run(Load load, double seconds, Pair pair) throws InterruptedException {
        AtomicLong pairs = new AtomicLong();
        CountDownLatch ready = new CountDownLatch(load.threads());
        List<Thread> all = new ArrayList<>();
        long time = (long) (seconds * 1e9);
        for (int number = 0; number < load.threads(); number++) {
            String key = "bench:" + number % load.keys();
            Thread thread = new Thread(() -> {
                try {
                    ready.countDown();
                    ready.await();
                    for (long end = System.nanoTime() + time; System.nanoTime() - end < 0; pairs.incrementAndGet()) {
                        pair.run(key);
                    }
                } catch (InterruptedException interrupted) {
                    throw new IllegalStateException(interrupted);
                }
            });
            all.add(thread);
            thread.start();
        }
        for (Thread thread : all) {
            thread.join();
        }
        return pairs.get() / seconds;
    }
}
