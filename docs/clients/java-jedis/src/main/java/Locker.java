// SPDX-License-Identifier: MIT

import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.BuilderFactory;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPool;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisURIHelper;

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

    /** What Jedis has no methods for. */
    private enum Command implements ProtocolCommand {
        ACQUIRE, RENEW, RELEASE, CANCEL;

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

    private final ConnectionPool connections;

    public Locker(URI uri) {
        // 8 connections, unless set. Without a limit no call waits for one: a RENEW behind calls that wait might come
        // too late. What nobody uses for a minute is closed.
        ConnectionPoolConfig limits = new ConnectionPoolConfig();
        limits.setMaxTotal(-1);
        limits.setMaxIdle(-1);
        DefaultJedisClientConfig config =
                DefaultJedisClientConfig.builder(uri).timeoutMillis((int) CALL.toMillis()).build();
        connections = new ConnectionPool(JedisURIHelper.getHostAndPort(uri), config, limits);
    }

    /**
     * Waits for the lock. Null if it was not our turn in time; CancellationException if {@code cancel} was completed
     * first.
     */
    public Hold acquire(String key, Duration lease, Duration wait, CompletableFuture<?> cancel) {
        // Whoever uses the same string is the same owner. With a new one each time, nothing that was sent for an
        // earlier hold and arrives late, such as a release, can touch this one.
        String owner = UUID.randomUUID().toString();
        // LOCK.CANCEL knows by it what to undo. Jedis repeats nothing by itself; if you do, with the same ID, you have
        // no second hold.
        String id = UUID.randomUUID().toString();
        Connection connection = connections.getResource();
        CompletableFuture<?> closing = null;
        long sent = System.nanoTime();
        Map<String, Object> grant;
        try {
            // The server ends the wait; this finds a server that has vanished.
            connection.setSoTimeout((int) wait.plus(CALL).toMillis());
            connection.sendCommand(Command.ACQUIRE.with(
                    key, owner, "PX", lease.toMillis(), "BLOCK", wait.toMillis(), "FENCE", "ID", id));
            // Nothing else ends a call of Jedis, not even an interrupt. (From here on: sendCommand would connect again.)
            closing = cancel.whenComplete((value, error) -> disconnect(connection));
            // In RESP2, which Jedis speaks unless told otherwise, the reply to FENCE is a flat list; in RESP3 a map.
            // This reads both.
            grant = BuilderFactory.ENCODED_OBJECT_MAP.build(connection.getOne());
        } catch (JedisConnectionException error) {
            // Cancelled, or cut off: the call may wait, or be granted, or be on its way.
            undo(key, owner, id);
            if (cancel.isDone()) {
                throw new CancellationException();
            }
            throw error;
        } finally {
            // Once it is in the pool, it must not be closed for this call any more. If that has begun, cancel is done.
            if (closing != null) {
                closing.cancel(false);
            }
            if (cancel.isDone()) {
                connection.setBroken();
            }
            connection.close();
        }
        return grant == null ? null : held(key, owner, lease, id, sent, (Long) grant.get("token"));
    }

    private Hold held(String key, String owner, Duration lease, String id, long sent, long token) {
        // All that is known of the grant is that it came after the call was sent. If that was long ago, much of the
        // lease may be left, or nothing: only a call that is sent now tells.
        if (System.nanoTime() - sent > lease.toNanos() / 3) {
            sent = System.nanoTime();
            try {
                call(lease.dividedBy(3), Command.RENEW.with(key, owner, "PX", lease.toMillis()));
            } catch (JedisException error) {
                // Nothing has been done under the lock, so nothing is lost but the turn.
                undo(key, owner, id);
                return null;
            }
        }
        return new Hold(key, owner, lease, sent, token);
    }

    /** After this nothing waits and nothing is held. If it fails, a hold may stay until its lease is over. */
    private void undo(String key, String owner, String id) {
        call(CALL, Command.CANCEL.with(key, owner, "ID", id));
    }

    private void call(Duration timeout, CommandArguments args) {
        try (Connection connection = connections.getResource()) {
            connection.setSoTimeout((int) Math.min(timeout.toMillis(), CALL.toMillis()));
            connection.executeCommand(args);
        }
    }

    private static void disconnect(Connection connection) {
        try {
            connection.forceDisconnect();
        } catch (IOException error) {
            // It is closed.
        }
    }

    private static boolean isNotOwner(JedisException error) {
        return error instanceof JedisDataException && error.getMessage().startsWith("NOTOWNER");
    }

    /** For the end, when nobody waits and nothing is held. */
    @Override
    public void close() {
        connections.close();
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
        /** A thread of its own, as others' renewals may hang. */
        private final ScheduledExecutorService renewing = Executors.newSingleThreadScheduledExecutor();
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
            renewing.scheduleAtFixedRate(this::renew, third, third, TimeUnit.MILLISECONDS);
        }

        private void renew() {
            long sent = System.nanoTime();
            try {
                // A call that hangs leaves time for another one.
                call(lease.dividedBy(3), Command.RENEW.with(key, owner, "PX", lease.toMillis()));
                if (!isLost()) {
                    validUntil = sent + lease.toNanos();
                }
            } catch (JedisException error) {
                // Any other error, such as a broken connection, may be over the next time.
                if (isNotOwner(error)) {
                    lost.countDown();
                }
            }
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
            renewing.shutdown();
            boolean wasLost = isLost();
            try {
                call(CALL, Command.RELEASE.with(key, owner, "ID", UUID.randomUUID()));
            } catch (JedisException error) {
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
