// SPDX-License-Identifier: MIT
package io.github.redislock.bench;

import io.github.redislock.Hold;
import io.github.redislock.JedisConnector;
import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.RedisClient;

/**
 * Locks per second, beside Redisson: one thread, 50 threads on 50 locks, and 50 threads on one lock. Impatient threads hold the
 * lock for 1 ms, and wait for it for at most 5 ms. In the last load, the packages hold and renew 1,000 other locks meanwhile. The
 * arguments are the port of a server on this machine, and the seconds of each run. Each library runs twice, in turns.
 */
final class Bench {
    private Bench() {}

    private static final long PATIENCE = 5;
    private static final long HOLD = 1;

    /** Acquires and releases a lock. Returns false if an impatient thread did not get it. */
    private interface Pair {
        boolean run(String key, boolean isImpatient) throws InterruptedException;
    }

    private record Load(String name, int threads, int keys, boolean isImpatient, int others) {
        Load(String name, int threads, int keys) {
            this(name, threads, keys, false, 0);
        }
    }

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
            libraries.put("Lettuce", (key, isImpatient) -> pair(onLettuce, key, isImpatient));
            libraries.put("Jedis", (key, isImpatient) -> pair(onJedis, key, isImpatient));
            libraries.put("Redisson", (key, isImpatient) -> {
                Lock lock = redisson.getLock("theirs:" + key);
                if (!isImpatient) {
                    lock.lock();
                } else if (lock.tryLock(PATIENCE, TimeUnit.MILLISECONDS)) {
                    TimeUnit.MILLISECONDS.sleep(HOLD);
                } else {
                    return false;
                }
                lock.unlock();
                return true;
            });
            Load[] loads = {
                new Load("one", 1, 1),
                new Load("50 on 50 locks", 50, 50),
                new Load("50 on one lock", 50, 1),
                new Load("50, impatient", 50, 1, true, 0),
                new Load("one, 1,000 held", 1, 1, false, 1000)
            };
            List<Hold> held = new ArrayList<>();
            for (Load load : loads) {
                for (int other = 0; other < load.others(); other++) {
                    held.add(onLettuce.lock("other:" + other).acquire());
                    held.add(onJedis.lock("another:" + other).acquire());
                    redisson.getLock("third:" + other).lock();
                }
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

    private static boolean pair(Locks locks, String key, boolean isImpatient) throws InterruptedException {
        if (!isImpatient) {
            locks.lock(key).acquire().release();
            return true;
        }
        Optional<Hold> hold = locks.lock(key).tryAcquire(Duration.ofMillis(PATIENCE));
        if (hold.isPresent()) {
            TimeUnit.MILLISECONDS.sleep(HOLD);
            hold.get().release();
        }
        return hold.isPresent();
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
                    for (long end = System.nanoTime() + time; System.nanoTime() - end < 0; ) {
                        if (pair.run(key, load.isImpatient())) {
                            pairs.incrementAndGet();
                        }
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
