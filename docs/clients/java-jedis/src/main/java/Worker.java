// SPDX-License-Identifier: MIT

import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.util.JedisURIHelper;

/**
 * Works under a lock, with Jedis: waits for it, renews it in the background, gives it back. Start two:
 *
 * <pre>
 * redis-server --loadmodule target/release/libredis_lock.so
 * cd docs/clients/java-jedis
 * mvn -q compile exec:java -Dexec.args="redis://127.0.0.1:6379 example:lock 5"
 * </pre>
 *
 * After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what a round
 * takes, and how long to wait for the lock at most. Then how many threads do so many rounds each, and within how many
 * milliseconds each attempt to get the lock is cancelled (0: never).
 */
public final class Worker {
    private static final String RESOURCE = "example:resource";
    private static final String TOKEN = "example:token";
    private static final String INSIDE = "example:inside";

    /** How long a round may take, in parts. */
    private record Plan(Duration lease, Duration work, Duration maxWait, long cancelMillis) {}

    private final RedisClient redis;
    private final Locker locker;
    private final String key;
    private final Plan plan;

    private Worker(RedisClient redis, Locker locker, String key, Plan plan) {
        this.redis = redis;
        this.locker = locker;
        this.key = key;
        this.plan = plan;
    }

    /** What one thread does; false if it lost the lock. */
    private boolean work(int rounds) throws InterruptedException {
        for (int finished = 0; finished < rounds;) {
            try {
                if (round()) {
                    finished++;
                    System.out.println("round " + finished + " of " + rounds + " is done");
                } else {
                    System.out.println("not granted within " + plan.maxWait.toMillis() + " ms, trying again");
                }
            } catch (CancellationException error) {
                finished++;
                System.out.println("cancelled");
            } catch (Locker.LockLostException error) {
                System.err.println(
                        "the lock was lost, the result of this round must not be trusted: " + error.getMessage());
                return false;
            }
        }
        return true;
    }

    /** False if the lock was not granted in time. */
    private boolean round() throws InterruptedException {
        CompletableFuture<Void> cancel = new CompletableFuture<>();
        if (plan.cancelMillis > 0) {
            long millis = ThreadLocalRandom.current().nextLong(plan.cancelMillis);
            cancel.completeOnTimeout(null, millis, TimeUnit.MILLISECONDS);
        }
        Locker.Hold hold = locker.acquire(key, plan.lease, plan.maxWait, cancel);
        if (hold == null) {
            return false;
        }
        try {
            increment(hold);
        } finally {
            // That the lock was lost is more important than whatever else the work has thrown.
            hold.release();
        }
        return true;
    }

    /** Reads, and writes what it has read plus one: wrong if anybody else works in between. */
    private void increment(Locker.Hold hold) throws InterruptedException {
        if (redis.incr(INSIDE) != 1) {
            System.err.println("OVERLAP: somebody else is at work, too");
        }
        try {
            String value = redis.get(RESOURCE);
            // The pause stands for the work. Real work asks between its steps whether the lock is lost.
            if (!hold.isLostWithin(plan.work)) {
                long next = value == null ? 1 : Long.parseLong(value) + 1;
                // With the token beside it, whoever reads it knows under which grant it was written.
                redis.mset(RESOURCE, Long.toString(next), TOKEN, Long.toString(hold.token));
            }
        } finally {
            redis.decr(INSIDE);
        }
    }

    /** Whether all went well. */
    private static boolean run(URI uri, String key, int rounds, Plan plan, int tasks)
            throws InterruptedException {
        ExecutorService threads = Executors.newFixedThreadPool(tasks);
        boolean ok = true;
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder(uri).timeoutMillis(5000).build();
        try (RedisClient redis = RedisClient.builder()
                        .hostAndPort(JedisURIHelper.getHostAndPort(uri)).clientConfig(config).build();
                Locker locker = new Locker(uri)) {
            Worker worker = new Worker(redis, locker, key, plan);
            List<Future<Boolean>> results = new ArrayList<>();
            for (int i = 0; i < tasks; i++) {
                results.add(threads.submit(() -> worker.work(rounds)));
            }
            for (Future<Boolean> result : results) {
                try {
                    ok &= result.get();
                } catch (ExecutionException error) {
                    System.err.println(error.getCause());
                    ok = false;
                }
            }
        } finally {
            threads.shutdown();
        }
        return ok;
    }

    public static void main(String[] args) throws InterruptedException {
        // Rounds; in milliseconds lease, work and wait; tasks; in milliseconds cancel.
        int[] numbers = {0, 3000, 5000, 30000, 1, 0};
        if (args.length < 3 || args.length > 2 + numbers.length) {
            System.err.println(
                    "usage: Worker URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS [TASKS [CANCEL_MS]]]]]");
            System.exit(2);
        }
        for (int i = 2; i < args.length; i++) {
            numbers[i - 2] = Integer.parseInt(args[i]);
        }
        Plan plan = new Plan(Duration.ofMillis(numbers[1]), Duration.ofMillis(numbers[2]),
                Duration.ofMillis(numbers[3]), numbers[5]);
        System.exit(run(URI.create(args[0]), args[1], numbers[0], plan, numbers[4]) ? 0 : 1);
    }
}
