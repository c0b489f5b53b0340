// SPDX-License-Identifier: MIT
package io.github.redislock;

import static java.util.concurrent.TimeUnit.SECONDS;

import java.lang.ref.ReferenceQueue;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Stream;

/**
 * The locks of this process on a server, the primary of Sentinels, or a cluster. All waits and holds share one session for each
 * server, which a thread keeps alive. A process needs one object of this class, and its threads share it.
 */
public final class Locks implements AutoCloseable {
    /** Maximum number of threads that call for futures at the same time. */
    private static final int CALL_CONNECTIONS = 20;

    private static final long START = System.nanoTime();

    final Builder settings;
    final Connector connector;
    /** Runs the calls of futures. */
    private final Executor calls;
    /** Runs the dependents of futures. They may block until another lock is granted, so they need no thread for calls. */
    private final Executor results;

    final ReferenceQueue<Hold> dropped = new ReferenceQueue<>();

    private final ReentrantLock mutex = new ReentrantLock();
    /** Work for after the mutex: listeners and futures run code of the application. */
    private List<Runnable> afterwards = new ArrayList<>();

    private final Map<String, Session> sessions = new HashMap<>();

    @SuppressWarnings("ThreadLocalUsage") // Each object has owners of its own.
    final ThreadLocal<Owner> owners = ThreadLocal.withInitial(this::newOwner);

    private final AtomicLong lastOwner = new AtomicLong();
    private final String ownerPrefix;
    volatile boolean isClosed;

    /** Locks with the defaults of {@link Builder}. Makes no call. */
    public Locks(Connector connector) {
        this(new Builder(connector));
    }

    private Locks(Builder settings) {
        if (settings.grace > settings.ttl) {
            throw LockException.misuse("grace must be at most the TTL");
        }
        this.settings = settings;
        connector = settings.connector;
        ownerPrefix = settings.name + ":" + UUID.randomUUID().toString().substring(24) + ":";
        if (settings.executor != null) {
            calls = settings.executor;
            results = settings.executor;
        } else {
            ThreadPoolExecutor threads = new ThreadPoolExecutor(
                    CALL_CONNECTIONS, CALL_CONNECTIONS, 1, SECONDS, new LinkedBlockingQueue<>(), Locks::newThread);
            threads.allowCoreThreadTimeOut(true);
            calls = threads;
            results = new ThreadPoolExecutor(
                    0, Integer.MAX_VALUE, 1, SECONDS, new SynchronousQueue<>(), Locks::newThread);
        }
    }

    /** Settings of {@link Locks}. */
    public static final class Builder implements Cloneable {
        final Connector connector;
        String name = defaultName();
        long ttl = SECONDS.toNanos(30);
        long grace = SECONDS.toNanos(3);
        long patience = SECONDS.toNanos(5);
        long renewedLease = Words.NONE;
        Consumer<LockEvent> listener;
        Executor executor;

        /** Settings for the locks on a server, the primary of Sentinels, or a cluster. */
        public Builder(Connector connector) {
            this.connector = connector;
        }

        /** The name of the session for operators. {@code <host>/<process>/<random>} by default. */
        public Builder name(String name) {
            Words.bytes("name", name);
            this.name = name;
            return this;
        }

        /** The session ends if this process is silent for this time. 30 s by default. */
        public Builder ttl(Duration ttl) {
            this.ttl = Words.nanoseconds("ttl", ttl, 1_000_000);
            return this;
        }

        /**
         * The session ends if its connection stays closed for this time: 3 s by default, at least 100 ms. For this time after
         * each heartbeat its holds are proven. With zero they end with the connection, and nothing is ever proven.
         */
        public Builder grace(Duration grace) {
            this.grace = grace.isZero() ? 0 : Words.nanoseconds("grace", grace, 100_000_000);
            return this;
        }

        /** Limits a try or a release, and a wait without a limit, while no server answers. 5 s by default. */
        public Builder patience(Duration patience) {
            this.patience = Words.nanoseconds("patience", patience, 1_000_000);
            return this;
        }

        /**
         * The lease of holds without a lease of their own, which the server renews after each third of it. By default the server
         * chooses it: {@code lock.default-lease}, 30 s. It is at least three times the grace.
         */
        public Builder renewedLease(Duration lease) {
            this.renewedLease = Words.nanoseconds("renewedLease", lease, 1_000_000);
            return this;
        }

        /**
         * Gets the end of each wait and of each hold, and the begin and the end of jeopardy. It runs in the thread that notices
         * the event, so it must not block. It may release a hold and try to acquire a lock. A wait in it is {@code MISUSE}.
         */
        public Builder listener(Consumer<LockEvent> listener) {
            this.listener = listener;
            return this;
        }

        /**
         * Runs calls for futures, and their dependents. By default at most 20 threads call, and further ones run the dependents,
         * which may block. They end when they are idle.
         */
        public Builder executor(Executor executor) {
            this.executor = executor;
            return this;
        }

        /** Makes the locks. Makes no call. */
        public Locks build() {
            try {
                return new Locks((Builder) clone());
            } catch (CloneNotSupportedException impossible) {
                throw new AssertionError(impossible);
            }
        }
    }

    private static String defaultName() {
        String host;
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException unknown) {
            host = "localhost";
        }
        return host + "/" + ProcessHandle.current().pid() + "/"
                + UUID.randomUUID().toString().substring(0, 8);
    }

    /** The lock with this key. Makes no call: {@link RedisLock#acquire} does. */
    @CheckReturnValue
    public RedisLock lock(String key) {
        return lockAll(key);
    }

    /** The lock with this key of bytes. Makes no call. */
    @CheckReturnValue
    public RedisLock lock(byte[] key) {
        return new RedisLock(this, List.of(Words.bytes("key", key)));
    }

    /** Several locks, which are granted together or not at all. Their order does not matter. Makes no call. */
    @CheckReturnValue
    public RedisLock lockAll(String... keys) {
        return new RedisLock(
                this, Stream.of(keys).map(key -> Words.bytes("key", key)).toList());
    }

    /**
     * Ends all waits as {@code CANCELLED}, all renewed holds, the sessions and their threads. A hold with a lease remains until
     * its lease ends. Takes a second if no server answers. The client library stays open.
     */
    @Override
    public void close() {
        isClosed = true;
        locked(() -> List.copyOf(sessions.values())).forEach(Session::close);
        if (settings.executor == null) {
            ((ExecutorService) calls).shutdown();
            ((ExecutorService) results).shutdown();
        }
        connector.close();
    }

    static long now() {
        return System.nanoTime() - START;
    }

    Connector.Node node(byte[] key) {
        try {
            return connector.node(key);
        } catch (RuntimeException error) {
            throw connector.error(error);
        }
    }

    /** The session on a node. Under the mutex. */
    Session session(Connector.Node node) {
        if (isClosed) {
            throw LockException.of(LockException.Kind.CANCELLED, "the locks are closed");
        }
        return sessions.computeIfAbsent(node.name(), each -> new Session(node, this));
    }

    /** The next acquire opens another session on the node. */
    void forget(Session session) {
        sessions.remove(session.node.name(), session);
    }

    Owner newOwner() {
        return new Owner(Words.bytes("owner", ownerPrefix + lastOwner.incrementAndGet()));
    }

    /** The reply to a command that needs no session. */
    Object execute(RedisLock lock, Words words) {
        try {
            Object reply = node(lock.key()).calls().send(words, Session.CALL_TIMEOUT);
            if (LockException.is(reply, "MOVED")) {
                connector.refresh();
                reply = node(lock.key()).calls().send(words, Session.CALL_TIMEOUT);
            }
            if (reply instanceof LockException error) {
                throw error;
            }
            return reply;
        } catch (RuntimeException error) {
            throw connector.error(error).forCaller(lock.name);
        }
    }

    /** Makes calls for futures. */
    void async(Runnable work) {
        execute(calls, work);
    }

    /** Completes a future of the application. */
    void result(Runnable work) {
        execute(results, work);
    }

    /** Work has a thread of its own if the executor refuses it: the calling thread may be needed elsewhere. */
    private static void execute(Executor executor, Runnable work) {
        try {
            executor.execute(work);
        } catch (RejectedExecutionException refused) {
            newThread(work).start();
        }
    }

    private static Thread newThread(Runnable work) {
        Thread thread = new Thread(work, "redis-lock-call");
        thread.setDaemon(true);
        return thread;
    }

    /** Does work under the mutex, and then all that was left for {@link #later}. */
    <T> T locked(Supplier<T> work) {
        mutex.lock();
        List<Runnable> ready = List.of();
        try {
            return work.get();
        } finally {
            if (mutex.getHoldCount() == 1 && !afterwards.isEmpty()) {
                ready = afterwards;
                afterwards = new ArrayList<>();
            }
            mutex.unlock();
            ready.forEach(Runnable::run);
        }
    }

    void update(Runnable work) {
        locked(() -> {
            work.run();
            return null;
        });
    }

    void later(Runnable work) {
        afterwards.add(work);
    }

    void notify(String label, String event, String outcome, long since) {
        if (settings.listener != null) {
            try {
                settings.listener.accept(new LockEvent(label, event, outcome, Duration.ofNanos(now() - since)));
            } catch (RuntimeException | Error error) {
                Session.warn("a listener of locks failed", error);
            }
        }
    }

    /** Leaves to the readers to release holds to which the application has no reference any longer. Under the mutex. */
    void endDropped() {
        for (Object each = dropped.poll(); each != null; each = dropped.poll()) {
            Acquire acquire = ((Hold.Dropped) each).acquire;
            if (acquire.state == Acquire.State.HELD && !acquire.isReleasing) {
                acquire.session.end(acquire, "released", true);
                later(() ->
                        Session.warn(acquire.lock.name + ": a hold was never released; use try-with-resources", null));
            }
        }
    }
}
