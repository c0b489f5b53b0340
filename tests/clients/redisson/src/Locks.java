// SPDX-License-Identifier: MIT

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RScript;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * The operations on a lock. Its first argument is the kind: {@code plain}, {@code fair}, {@code fenced},
 * {@code read} or {@code write}; its second the name. Times are milliseconds; a lease of -1 is Redisson's watchdog.
 */
final class Locks {
    private final RedissonClient client;
    private final String kind;
    private final String name;
    private final BooleanSupplier stopped;

    Locks(RedissonClient client, String kind, String name, BooleanSupplier stopped) {
        this.client = client;
        this.kind = kind;
        this.name = name;
        this.stopped = stopped;
    }

    String perform(String operation, List<String> arguments) throws Exception {
        switch (operation) {
            case "owner":
                return client.getId() + ":" + Thread.currentThread().getId();
            case "lock":
                if (arguments.isEmpty()) {
                    lock().lock();
                } else {
                    lock().lock(number(arguments, 0), TimeUnit.MILLISECONDS);
                }
                return "OK";
            case "try":
                return String.valueOf(arguments.isEmpty() ? lock().tryLock()
                        : lock().tryLock(number(arguments, 0), number(arguments, 1), TimeUnit.MILLISECONDS));
            case "unlock":
                lock().unlock();
                return "OK";
            case "force-unlock":
                return String.valueOf(lock().forceUnlock());
            case "is-locked":
                return String.valueOf(lock().isLocked());
            case "is-held":
                return String.valueOf(lock().isHeldByCurrentThread());
            case "is-held-by":
                return String.valueOf(lock().isHeldByThread(number(arguments, 0)));
            case "holds":
                return String.valueOf(lock().getHoldCount());
            case "remaining":
                return String.valueOf(lock().remainTimeToLive());
            case "lock-token":
                return fenced("lockAndGetToken", arguments);
            case "try-token":
                return fenced("tryLockAndGetToken", arguments);
            case "token":
                return fenced("getToken", arguments);
            case "count":
                return count(arguments.get(0), number(arguments, 1));
            case "contend":
                return contend();
            default:
                throw new IllegalArgumentException("no operation " + operation);
        }
    }

    private RLock lock() throws ReflectiveOperationException {
        switch (kind) {
            case "plain":
                return client.getLock(name);
            case "fair":
                return client.getFairLock(name);
            case "read":
                return client.getReadWriteLock(name).readLock();
            case "write":
                return client.getReadWriteLock(name).writeLock();
            case "fenced":
                // Older versions do not have it.
                return (RLock) RedissonClient.class.getMethod("getFencedLock", String.class).invoke(client, name);
            default:
                throw new IllegalArgumentException("no kind of lock " + kind);
        }
    }

    private static long number(List<String> arguments, int at) {
        return Long.parseLong(arguments.get(at));
    }

    /** Calls a method that only fenced locks have, with a lease, or a time to wait and a lease, or nothing. */
    private String fenced(String method, List<String> arguments) throws Exception {
        Class<?> type = Class.forName("org.redisson.api.RFencedLock");
        int count = arguments.size();
        Class<?>[] types = new Class<?>[count == 0 ? 0 : count + 1];
        Object[] values = new Object[types.length];
        for (int i = 0; i < count; i++) {
            types[i] = long.class;
            values[i] = number(arguments, i);
        }
        if (count > 0) {
            types[count] = TimeUnit.class;
            values[count] = TimeUnit.MILLISECONDS;
        }
        Method found = type.getMethod(method, types);
        try {
            return String.valueOf(found.invoke(lock(), values));
        } catch (InvocationTargetException error) {
            throw error.getCause() instanceof Exception cause ? cause : error;
        }
    }

    /**
     * So many times: locks, adds one to a counter in two steps, checks that nobody else is inside, unlocks. Answers
     * {@code <rounds> <violations>}.
     */
    private String count(String counter, long rounds) throws ReflectiveOperationException {
        RLock lock = lock();
        RBucket<String> inside = client.getBucket(counter + ":inside", StringCodec.INSTANCE);
        String me = client.getId() + ":" + Thread.currentThread().getId();
        long violations = 0;
        for (long round = 0; round < rounds; round++) {
            lockThough(lock);
            try {
                boolean alone = inside.getAndSet(me) == null;
                long before = read(counter);
                client.<String>getBucket(counter, StringCodec.INSTANCE).set(String.valueOf(before + 1));
                alone &= me.equals(inside.getAndDelete());
                violations += alone ? 0 : 1;
            } finally {
                lock.unlock();
            }
        }
        return rounds + " " + violations;
    }

    /** Locks as an application does, and retries: Redisson gives up if no replica acknowledges within a second. */
    private static void lockThough(RLock lock) {
        while (true) {
            try {
                lock.lock();
                return;
            } catch (RuntimeException error) {
                if (!String.valueOf(error.getCause()).contains("None of slaves were synced")) {
                    throw error;
                }
            }
        }
    }

    /** Reads a counter at the primary, as Redisson reads from replicas if there are any. */
    private long read(String counter) {
        String value = client.getScript(StringCodec.INSTANCE).eval(RScript.Mode.READ_WRITE,
                "return redis.call('get', KEYS[1])", RScript.ReturnType.VALUE, List.of(counter));
        return value == null ? 0 : Long.parseLong(value);
    }

    /** Locks and unlocks until {@code stop}. Returns the number of grants. */
    private String contend() throws ReflectiveOperationException {
        RLock lock = lock();
        long grants = 0;
        while (!stopped.getAsBoolean()) {
            lock.lock();
            grants++;
            lock.unlock();
        }
        return String.valueOf(grants);
    }
}
