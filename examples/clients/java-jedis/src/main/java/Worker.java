import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.util.JedisURIHelper;

/**
 * Works under a lock, with Jedis: waits for it, renews it in the background, gives it back. Start two:
 *
 * <pre>
 * redis-server --loadmodule target/release/libredis_lock.so
 * cd examples/clients/java-jedis
 * mvn -q compile exec:java -Dexec.args="redis://127.0.0.1:6379 example:lock 5"
 * </pre>
 *
 * After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what
 * a round takes, and how long to wait for the lock at most.
 */
public final class Worker {
    private static final String RESOURCE = "example:resource";
    private static final String INSIDE = "example:inside";

    /** What Jedis has no methods for. */
    private enum Command implements ProtocolCommand {
        ACQUIRE, RENEW, RELEASE;

        @Override
        public byte[] getRaw() {
            return ("LOCK." + name()).getBytes(StandardCharsets.US_ASCII);
        }

        CommandArguments with(String key, String owner, Object... options) {
            CommandArguments args = new CommandArguments(this).key(key).add(owner);
            for (Object option : options) {
                args.add(option.toString());
            }
            return args;
        }
    }

    /** A lock that is held, and renewed, until it is closed. */
    private static final class Held implements AutoCloseable {
        private final RedisClient redis;
        private final String key;
        private final String owner;
        private final CountDownLatch lost = new CountDownLatch(1);
        private final ScheduledExecutorService renewing = Executors.newSingleThreadScheduledExecutor();

        private Held(RedisClient redis, String key, String owner, long lease) {
            this.redis = redis;
            this.key = key;
            this.owner = owner;
            // The server can do this instead: acquire with WATCHDOG on a connection that
            // stays open and is not given back to the pool, a Jedis.
            renewing.scheduleAtFixedRate(() -> renew(lease), lease / 3, lease / 3, TimeUnit.MILLISECONDS);
        }

        private void renew(long lease) {
            try {
                redis.executeCommand(Command.RENEW.with(key, owner, "PX", lease));
            } catch (RuntimeException error) {
                // Anything else, such as a broken connection, may be over the next time.
                if (isNotOwner(error)) {
                    lost.countDown();
                }
            }
        }

        /** Waits so long; true, at once, if the lock is lost. */
        boolean lostWithin(long milliseconds) throws InterruptedException {
            return lost.await(milliseconds, TimeUnit.MILLISECONDS);
        }

        @Override
        public void close() {
            renewing.shutdown();
            // NOTOWNER if the lease ran out, or somebody broke the lock: others may have worked at the same time.
            redis.executeCommand(Command.RELEASE.with(key, owner, "ID", UUID.randomUUID()));
        }
    }

    /** The lock, or null if it was not our turn in time. */
    private static Held acquire(RedisClient redis, String key, String owner, long lease, long wait) {
        // A call that waits takes a connection of the pool for itself. blocking() says that this is one: then what
        // counts is blockingSocketTimeoutMillis, not the timeout of 2 s that other calls have. Jedis repeats
        // nothing by itself; if you do after an error, with the same ID, you have no second hold.
        Object granted = redis.executeCommand(
                Command.ACQUIRE.with(key, owner, "PX", lease, "BLOCK", wait, "ID", UUID.randomUUID())
                        .blocking());
        return granted == null ? null : new Held(redis, key, owner, lease);
    }

    private static boolean isNotOwner(RuntimeException error) {
        return error instanceof JedisDataException && error.getMessage().startsWith("NOTOWNER");
    }

    /** Reads, and writes what it has read plus one: wrong if anybody else works in between. */
    private static void increment(RedisClient redis, Held lock, long takes) throws InterruptedException {
        if (redis.incr(INSIDE) != 1) {
            System.err.println("OVERLAP: somebody else is at work, too");
        }
        try {
            String value = redis.get(RESOURCE);
            // The pause stands for the work. Real work looks between its steps whether the lock is lost.
            if (!lock.lostWithin(takes)) {
                redis.set(RESOURCE, Long.toString(value == null ? 1 : Long.parseLong(value) + 1));
            }
        } finally {
            redis.decr(INSIDE);
        }
    }

    private static int run(RedisClient redis, String key, int rounds, long lease, long takes, long wait)
            throws InterruptedException {
        // Whoever uses the same string is the same owner: so it is random, and one for each thread that locks.
        String owner = UUID.randomUUID().toString();
        for (int finished = 0; finished < rounds;) {
            // A null is not closed. What close() throws is thrown, or added to what the work has thrown.
            try (Held lock = acquire(redis, key, owner, lease, wait)) {
                if (lock == null) {
                    System.out.println("not granted within " + wait + " ms, trying again");
                    continue;
                }
                increment(redis, lock, takes);
            } catch (JedisDataException error) {
                if (!isNotOwner(error)) {
                    throw error;
                }
                System.err.println(
                        "the lock was lost, the result of this round must not be trusted: " + error.getMessage());
                return 1;
            }
            finished++;
            System.out.println("round " + finished + " of " + rounds + " is done");
        }
        return 0;
    }

    public static void main(String[] args) throws InterruptedException {
        if (args.length < 3 || args.length > 6) {
            System.err.println("usage: Worker URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS]]]");
            System.exit(2);
        }
        long lease = args.length > 3 ? Long.parseLong(args[3]) : 3000;
        long takes = args.length > 4 ? Long.parseLong(args[4]) : 5000;
        long wait = args.length > 5 ? Long.parseLong(args[5]) : 30000;
        int status;
        URI uri = URI.create(args[0]);
        // No limit unless set; it must be longer than BLOCK.
        DefaultJedisClientConfig config =
                DefaultJedisClientConfig.builder(uri).blockingSocketTimeoutMillis((int) wait + 5000).build();
        // It has a pool, of 8 connections unless set, so threads may share it.
        try (RedisClient redis = RedisClient.builder()
                .hostAndPort(JedisURIHelper.getHostAndPort(uri)).clientConfig(config).build()) {
            status = run(redis, args[1], Integer.parseInt(args[2]), lease, takes, wait);
        }
        System.exit(status);
    }
}
