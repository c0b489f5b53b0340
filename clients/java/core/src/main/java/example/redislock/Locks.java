// SPDX-License-Identifier: MIT
package example.redislock;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.Consumer;

/**
 * All locks of this process on one server. They have two connections of their own, whatever their number, and one thread. Threads
 * share it; a process needs one.
 */
public final class Locks implements AutoCloseable {
    /** A thread that holds a lock by {@link java.util.concurrent.locks.Lock}. */
    record Holder(Thread thread, String key, boolean shared) {}

    /** How often it does. Only that thread uses it. */
    static final class Entry {
        final Hold hold;
        int count = 1;

        Entry(Hold hold) {
            this.hold = hold;
        }
    }

    final Session session;
    final Map<Holder, Entry> entries = new ConcurrentHashMap<>();

    /** Over connections of any client library. They are made when they are needed. */
    public Locks(Wire.Connector connector) {
        this(connector, Duration.ofSeconds(5), null);
    }

    /**
     * As the other.
     *
     * @param patience a call without an answer in so long is sent again on a new connection
     * @param listener hears how long each waited and was held; in the thread that serves locks, so it must be quick, and
     *     not use them itself. May be null
     */
    public Locks(Wire.Connector connector, Duration patience, Consumer<LockEvent> listener) {
        How.time("patience", patience, false);
        session = new Session(connector, patience, listener);
    }

    /** A lock that is renewed as long as it is held, and waits without limit, unless its methods say something else. */
    public RedisLock lock(String key) {
        return new RedisLock(this, How.of(key));
    }

    /**
     * Readers share the lock; a writer has it alone. Both are as {@link #lock}. There is neither downgrade nor upgrade: a thread that
     * has one of the two and would wait for the other gets an {@link IllegalMonitorStateException}.
     */
    public ReadWriteLock readWriteLock(String key) {
        RedisLock write = lock(key);
        RedisLock read = write.shared();
        return new ReadWriteLock() {
            @Override
            public RedisLock readLock() {
                return read;
            }

            @Override
            public RedisLock writeLock() {
                return write;
            }
        };
    }

    /** Ends all waits and all that is renewed, both connections, and the thread. Takes a second if the server does not answer. */
    @Override
    public void close() {
        session.close();
    }
}
