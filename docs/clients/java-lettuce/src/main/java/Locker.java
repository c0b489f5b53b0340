// SPDX-License-Identifier: MIT

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.GenericMapOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The part to copy: locks for a program with many threads, over connections of their own. */
public final class Locker implements AutoCloseable {
    /** How long a call may take that the server answers at once. */
    private static final Duration CALL = Duration.ofSeconds(5);

    /** Others may have worked at the same time: the result must not be trusted. */
    public static final class LockLostException extends RuntimeException {
        LockLostException(String message) {
            super(message);
        }
    }

    /** What Lettuce has no methods for. */
    private enum Command implements ProtocolKeyword {
        ACQUIRE, RENEW, RELEASE, CANCEL;

        @Override
        public byte[] getBytes() {
            return ("LOCK." + name()).getBytes(StandardCharsets.US_ASCII);
        }

        <T> RedisFuture<T> send(StatefulRedisConnection<String, String> connection,
                CommandOutput<String, String, T> output, String key, String owner, Object... options) {
            CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8).addKey(key).add(owner);
            for (Object option : options) {
                args.add(option.toString());
            }
            return connection.async().dispatch(this, output, args);
        }
    }

    private final RedisClient client;
    private final RedisURI uri;
    /** For what is answered at once; threads share it. */
    private final StatefulRedisConnection<String, String> calls;
    /** A connection answers in order, so a call that waits has one for itself. These are left from earlier calls. */
    private final BlockingQueue<StatefulRedisConnection<String, String>> idle = new ArrayBlockingQueue<>(100);
    /** Waits for no reply, so one thread renews every lock. */
    private final ScheduledExecutorService renewing = Executors.newSingleThreadScheduledExecutor();

    public Locker(RedisClient client, RedisURI uri) {
        this.client = client;
        this.uri = uri;
        calls = client.connect(uri);
    }

    /**
     * Waits for the lock. Null if it was not our turn in time; CancellationException if {@code cancel} was completed
     * first.
     */
    public Hold acquire(String key, Duration lease, Duration wait, CompletableFuture<?> cancel)
            throws InterruptedException {
        // Whoever uses the same string is the same owner. With a new one each time, nothing that was sent for an
        // earlier hold and arrives late, such as a release, can touch this one.
        String owner = UUID.randomUUID().toString();
        // Lettuce sends a call again when its connection broke. With an ID, new for each call, that gets the reply
        // that was lost instead of a second hold; and LOCK.CANCEL knows by it what to undo.
        String id = UUID.randomUUID().toString();
        StatefulRedisConnection<String, String> left = idle.poll();
        StatefulRedisConnection<String, String> waiting = left != null ? left : client.connect(uri);
        // Its own time-out, 60 s unless set, must be longer than BLOCK.
        waiting.setTimeout(wait.plus(CALL));
        // Reads the reply to FENCE in either form: a map in RESP3, which Lettuce speaks unless told otherwise, or a flat
        // list in RESP2; and nil as null, which others do not.
        GenericMapOutput<String, String> grant = new GenericMapOutput<>(StringCodec.UTF8);
        long sent = System.nanoTime();
        RedisFuture<Map<String, Object>> call = Command.ACQUIRE.send(waiting, grant, key, owner,
                "PX", lease.toMillis(), "BLOCK", wait.toMillis(), "FENCE", "ID", id);
        boolean answered = false;
        try {
            // The server ends the wait; the time-out finds a server that has vanished.
            CompletableFuture.anyOf(call.toCompletableFuture(), cancel)
                    .get(wait.plus(CALL).toMillis(), TimeUnit.MILLISECONDS);
            answered = isAnswered(call);
        } catch (ExecutionException | TimeoutException error) {
            answered = isAnswered(call);
        } finally {
            if (!answered) {
                // Cancelled, interrupted, or cut off. On an open connection the call would go on waiting, and be
                // granted a lock that nobody knows of.
                waiting.closeAsync();
                undo(key, owner, id);
            } else if (!idle.offer(waiting)) {
                waiting.closeAsync();
            }
        }
        if (answered) {
            Map<String, Object> reply = await(call, Duration.ZERO);
            return reply == null ? null : held(key, owner, lease, id, sent, (Long) reply.get("token"));
        } else if (cancel.isDone()) {
            throw new CancellationException();
        }
        throw new RedisException("no reply to LOCK.ACQUIRE");
    }

    private Hold held(String key, String owner, Duration lease, String id, long sent, long token) {
        // All that is known of the grant is that it came after the call was sent. If that was long ago, much of the
        // lease may be left, or nothing: only a call that is sent now tells.
        if (System.nanoTime() - sent > lease.toNanos() / 3) {
            sent = System.nanoTime();
            try {
                await(call(Command.RENEW, key, owner, "PX", lease.toMillis()), lease.dividedBy(3));
            } catch (RedisException error) {
                // Nothing has been done under the lock, so nothing is lost but the turn.
                undo(key, owner, id);
                return null;
            }
        }
        return new Hold(key, owner, lease, sent, token);
    }

    /** After this nothing waits and nothing is held. If it fails, a hold may stay until its lease is over. */
    private void undo(String key, String owner, String id) {
        await(call(Command.CANCEL, key, owner, "ID", id), CALL);
    }

    private RedisFuture<Long> call(Command command, String key, String owner, Object... options) {
        return command.send(calls, new IntegerOutput<>(StringCodec.UTF8), key, owner, options);
    }

    /** Cannot be interrupted, as what cleans up must not be cut short. */
    private static <T> T await(RedisFuture<T> call, Duration timeout) {
        try {
            return call.toCompletableFuture().orTimeout(timeout.toMillis(), TimeUnit.MILLISECONDS).join();
        } catch (CompletionException error) {
            throw error.getCause() instanceof RedisException known ? known : new RedisException(error.getCause());
        }
    }

    /** An error is an answer, too, if it is the server's. */
    private static boolean isAnswered(RedisFuture<?> call) {
        return call.isDone()
                && (call.getError() != null || !call.toCompletableFuture().isCompletedExceptionally());
    }

    private static boolean isNotOwner(Throwable error) {
        return error instanceof RedisCommandExecutionException && error.getMessage().startsWith("NOTOWNER");
    }

    /** For the end, when nobody waits and nothing is held. */
    @Override
    public void close() {
        renewing.shutdown();
        idle.forEach(StatefulRedisConnection::close);
        calls.close();
    }

    /** A lock that is held, and renewed, until it is released or lost. */
    public final class Hold {
        /**
         * Grows with each grant of the lock. A store that refuses a smaller one than it has seen is safe from whoever
         * has lost the lock and does not know it yet.
         */
        public final long token;

        private final String key;
        private final String owner;
        private final Duration lease;
        private final Future<?> renewal;
        private final CountDownLatch lost = new CountDownLatch(1);
        /** When the last confirmed call was sent, and a lease after that: nothing is needed of the network to know. */
        private volatile long validUntil;

        private Hold(String key, String owner, Duration lease, long sent, long token) {
            this.key = key;
            this.owner = owner;
            this.lease = lease;
            this.token = token;
            validUntil = sent + lease.toNanos();
            // The server can do this instead: acquire with WATCHDOG, and keep the connection until the release.
            long third = lease.toMillis() / 3;
            renewal = renewing.scheduleAtFixedRate(this::renew, third, third, TimeUnit.MILLISECONDS);
        }

        private void renew() {
            long sent = System.nanoTime();
            call(Command.RENEW, key, owner, "PX", lease.toMillis()).whenComplete((holds, error) -> {
                // Any other error, such as a broken connection, may be over the next time.
                if (isNotOwner(error)) {
                    lost.countDown();
                } else if (error == null && !isLost()) {
                    validUntil = sent + lease.toNanos();
                }
            });
        }

        /** For work to ask between its steps. Once lost, it stays so. */
        public boolean isLost() {
            if (System.nanoTime() - validUntil >= 0) {
                lost.countDown();
            }
            return lost.getCount() == 0;
        }

        /** Waits so long; true, at once, if the lock is lost. */
        public boolean isLostWithin(Duration time) throws InterruptedException {
            long end = System.nanoTime() + time.toNanos();
            while (!isLost()) {
                long now = System.nanoTime();
                if (end - now <= 0) {
                    return false;
                }
                // A renewal moves the end of the validity, and then this waits once more.
                lost.await(Math.min(end - now, validUntil - now), TimeUnit.NANOSECONDS);
            }
            return true;
        }

        /** Gives the lock back, or throws a LockLostException. */
        public void release() {
            renewal.cancel(false);
            boolean wasLost = isLost();
            try {
                await(call(Command.RELEASE, key, owner, "ID", UUID.randomUUID()), CALL);
            } catch (RedisException error) {
                if (isNotOwner(error)) {
                    throw new LockLostException(error.getMessage());
                } else if (!wasLost) {
                    throw error;
                }
            }
            if (wasLost) {
                throw new LockLostException("no renewal was confirmed before the lease was over");
            }
        }
    }
}
