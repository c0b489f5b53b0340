// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** The connections of {@link Locks}, made by a client library: Lettuce, Jedis or Redisson. */
public abstract sealed class Connector permits LettuceConnector, JedisConnector, RedissonConnector {
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

    /** The reply to a call, or a {@link LockException}. */
    Object answer(Node node, Words words, long timeout) {
        try {
            CompletableFuture<Object> reply = node.call(words, timeout);
            new Work.Pause(reply, Locks.now() + timeout).awaitUninterrupted();
            if (!reply.isDone()) {
                reply.cancel(true);
            }
            return reply.join();
        } catch (RuntimeException failure) {
            return error(failure);
        }
    }

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

    /** One server. */
    interface Node {
        String name();

        /**
         * Sends a call. Its reply is complete on return, or arrives later. If it is overdue, cancel it. A reply is a {@code
         * byte[]}, a {@code Long}, a list, a map or null.
         *
         * @param timeout in nanoseconds
         */
        CompletableFuture<Object> call(Words words, long timeout);

        /** The replies to calls over a connection of their own, in one round trip. Error replies are elements of the list. */
        List<Object> read(List<Words> calls, long timeout);

        /** Closes the connections for calls, as they may lead to a former primary. */
        void reset();

        /** Closes the connection of {@link #read}, which fails if it is on its way. */
        void closeReader();
    }
}
