// SPDX-License-Identifier: MIT
package io.github.redislock;

import static io.github.redislock.Words.NONE;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The connections of {@link Locks}, made by a client library: Lettuce, Jedis or Redisson. */
public abstract sealed class Connector permits LettuceConnector, JedisConnector, RedissonConnector {
    /** One server: a line for calls, and one for its session. */
    record Node(String name, Line calls, Line reader) {
        /** Closes the connections, as they may lead to a former primary. */
        void reset() {
            calls.close();
            reader.close();
        }
    }

    /** The server that has a key now. */
    abstract Node node(byte[] key);

    /** Asks a cluster which node serves which slot. */
    void refresh() {}

    boolean isCluster() {
        return false;
    }

    /** Whether the failure is an error reply of the server. */
    abstract boolean isReply(Throwable failure);

    void close() {}

    LockException error(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof LockException known) {
                return known;
            } else if (isReply(cause)) {
                return LockException.ofReply(cause.getMessage());
            }
        }
        return LockException.noReply(failure);
    }

    /** Connections to one server, which are made when they are needed. */
    interface Line {
        /**
         * The replies to calls, in one round trip. Blocks, and keeps interrupts for later. A reply is a {@code byte[]}, a {@code
         * Long}, a list, a map, null, or a {@link LockException}.
         *
         * @param timeout in nanoseconds, with the time to connect
         */
        List<Object> send(List<Words> calls, long timeout);

        default Object send(Words call, long timeout) {
            return send(List.of(call), timeout).get(0);
        }

        void close();
    }

    /** One connection, which carries the calls of many threads. */
    abstract class SharedLine<C> implements Line {
        private CompletableFuture<C> opening;
        /** When the first overdue call was sent since the last reply. */
        private volatile long silentSince = NONE;

        abstract CompletableFuture<C> connect();

        abstract boolean isOpen(C connection);

        abstract void close(C connection);

        abstract List<? extends CompletableFuture<Object>> dispatch(C connection, List<Words> calls);

        private synchronized CompletableFuture<C> connection() {
            if (Locks.now() - silentSince >= Session.CALL_TIMEOUT) {
                close();
            }
            if (opening == null
                    || (opening.isDone() && (opening.isCompletedExceptionally() || !isOpen(opening.join())))) {
                CompletableFuture<C> connecting = connect();
                opening = connecting.copy().orTimeout(Session.CALL_TIMEOUT, TimeUnit.NANOSECONDS);
                opening.exceptionally(late -> {
                    connecting.thenAccept(this::close);
                    return null;
                });
            }
            return opening;
        }

        @Override
        public List<Object> send(List<Words> calls, long timeout) {
            long sent = Locks.now();
            List<Object> replies = new ArrayList<>();
            try {
                C connection = await(connection(), sent + timeout);
                for (CompletableFuture<Object> reply : dispatch(connection, calls)) {
                    replies.add(take(reply, sent, timeout));
                }
                return replies;
            } catch (ExecutionException | TimeoutException | RuntimeException error) {
                return Collections.nCopies(calls.size(), error(error));
            }
        }

        /** A late reply does not end the connection, as other calls may still get theirs. Silence does. */
        private Object take(CompletableFuture<Object> reply, long sent, long timeout) {
            try {
                Object value = await(reply, sent + timeout);
                silentSince = NONE;
                return value;
            } catch (ExecutionException error) {
                return error(error);
            } catch (TimeoutException late) {
                reply.cancel(true);
                silentSince = Math.min(silentSince, sent);
                return LockException.noReply(late);
            }
        }

        private static <T> T await(CompletableFuture<T> future, long until)
                throws ExecutionException, TimeoutException {
            boolean isInterrupted = false;
            try {
                while (true) {
                    try {
                        return future.get(Math.max(0, until - Locks.now()), TimeUnit.NANOSECONDS);
                    } catch (InterruptedException later) {
                        isInterrupted = true;
                    }
                }
            } finally {
                if (isInterrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        @Override
        public synchronized void close() {
            if (opening != null) {
                opening.thenAccept(this::close);
                opening = null;
                silentSince = NONE;
            }
        }
    }
}
