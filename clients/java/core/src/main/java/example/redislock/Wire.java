// SPDX-License-Identifier: MIT
package example.redislock;

import java.util.List;
import java.util.concurrent.CompletionStage;
import java.util.function.Consumer;

/** One connection of a client library. Nothing is sent twice on it, and nothing on another when it broke. */
public interface Wire {
    /**
     * Sends a command, after those of the calls before. No call blocks.
     *
     * @return its reply: a {@code Long}, a {@code String}, a {@code List} of these, or null; maps as lists of names and values.
     *     What the server refuses ends as a {@link ServerError}, anything else is taken for a broken connection. An error in a list
     *     is a {@link ServerError} in it.
     */
    CompletionStage<Object> call(List<String> words);

    /** Ends the connection without blocking. The server hears of it, also after an outage. May be called twice. */
    void close();

    /**
     * Ends it as one that leads nowhere, without blocking: with a reset ({@code SO_LINGER} of 0 seconds). What was sent must not
     * reach the server after what is said on the next connection. May be called twice, and after the other.
     */
    void giveUp();

    /** An error reply. */
    final class ServerError extends RuntimeException {
        private static final long serialVersionUID = 1;

        /** With the server's text. */
        public ServerError(String text) {
            super(text, null, false, false);
        }
    }

    /** How a client library connects: the one thing that must be written for another library. */
    interface Connector {
        /**
         * Opens a connection without blocking.
         *
         * @param channel what to subscribe to before it is ready; null for a connection that carries commands
         * @param told is called with each message
         * @param ended is called when the connection breaks
         */
        CompletionStage<Wire> open(String channel, Consumer<String> told, Runnable ended);

        /** When all connections are closed: ends what was made for them. */
        void close();
    }
}
