import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Works under a lock, with Lettuce: waits for it, renews it in the background, gives it back. Start two:
 *
 * <pre>
 * redis-server --loadmodule target/release/libredis_lock.so
 * cd examples/clients/java-lettuce
 * mvn -q compile exec:java -Dexec.args="redis://127.0.0.1:6379 example:lock 5"
 * </pre>
 *
 * After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what
 * a round takes, and how long to wait for the lock at most.
 */
public final class Worker {
    private static final String RESOURCE = "example:resource";
    private static final String INSIDE = "example:inside";

    /** What Lettuce has no methods for. */
    private enum Command implements ProtocolKeyword {
        ACQUIRE, RENEW, RELEASE;

        @Override
        public byte[] getBytes() {
            return ("LOCK." + name()).getBytes(StandardCharsets.US_ASCII);
        }

        /** The holds that the owner has then, or null if the lock was not granted. */
        Long call(RedisCommands<String, String> redis, String key, String owner, Object... options) {
            CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8).addKey(key).add(owner);
            for (Object option : options) {
                args.add(option.toString());
            }
            return redis.dispatch(this, new IntegerOutput<>(StringCodec.UTF8), args);
        }
    }

    /** A lock that is held, and renewed, until it is closed. */
    private static final class Held implements AutoCloseable {
        private final RedisCommands<String, String> redis;
        private final String key;
        private final String owner;
        private final CountDownLatch lost = new CountDownLatch(1);
        private final ScheduledExecutorService renewing = Executors.newSingleThreadScheduledExecutor();

        private Held(RedisCommands<String, String> redis, String key, String owner, long lease) {
            this.redis = redis;
            this.key = key;
            this.owner = owner;
            // The server can do this instead: acquire with WATCHDOG, and keep `waiting` open.
            renewing.scheduleAtFixedRate(() -> renew(lease), lease / 3, lease / 3, TimeUnit.MILLISECONDS);
        }

        private void renew(long lease) {
            try {
                Command.RENEW.call(redis, key, owner, "PX", lease);
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
            Command.RELEASE.call(redis, key, owner, "ID", UUID.randomUUID());
        }
    }

    /** The lock, or null if it was not our turn in time. */
    private static Held acquire(
            RedisCommands<String, String> redis, RedisCommands<String, String> waiting,
            String key, String owner, long lease, long wait) {
        // Lettuce sends a call again whose connection broke. With an ID that is new for each call, the repetition
        // gets the reply that was lost instead of a second hold.
        Long granted = Command.ACQUIRE.call(
                waiting, key, owner, "PX", lease, "BLOCK", wait, "ID", UUID.randomUUID());
        return granted == null ? null : new Held(redis, key, owner, lease);
    }

    private static boolean isNotOwner(RuntimeException error) {
        return error instanceof RedisCommandExecutionException && error.getMessage().startsWith("NOTOWNER");
    }

    /** Reads, and writes what it has read plus one: wrong if anybody else works in between. */
    private static void increment(RedisCommands<String, String> redis, Held lock, long takes)
            throws InterruptedException {
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

    private static int run(
            RedisCommands<String, String> redis, RedisCommands<String, String> waiting,
            String key, int rounds, long lease, long takes, long wait) throws InterruptedException {
        // Whoever uses the same string is the same owner: so it is random, and one for each thread that locks.
        String owner = UUID.randomUUID().toString();
        for (int finished = 0; finished < rounds;) {
            // A null is not closed. What close() throws is thrown, or added to what the work has thrown.
            try (Held lock = acquire(redis, waiting, key, owner, lease, wait)) {
                if (lock == null) {
                    System.out.println("not granted within " + wait + " ms, trying again");
                    continue;
                }
                increment(redis, lock, takes);
            } catch (RedisCommandExecutionException error) {
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
        RedisClient client = RedisClient.create(args[0]);
        // All threads may share a connection, in which a call that waits keeps back all that come after it. So it
        // needs another one; and one more for each lock that is waited for at the same time.
        try (StatefulRedisConnection<String, String> shared = client.connect();
                StatefulRedisConnection<String, String> waiting = client.connect()) {
            // 60 s unless set. It must be longer than BLOCK: after a timeout here the call still waits in the
            // server, and is granted a lock that nobody knows of.
            waiting.setTimeout(Duration.ofMillis(wait + 5000));
            status = run(shared.sync(), waiting.sync(), args[1], Integer.parseInt(args[2]), lease, takes, wait);
        } finally {
            client.shutdown();
        }
        System.exit(status);
    }
}
