// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import io.github.redislock.Locks;
import io.github.redislock.RedissonConnector;
import io.github.redislock.redisson.NativeLock.Kind;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.redisson.Redisson;
import org.redisson.RedissonReactive;
import org.redisson.RedissonRx;
import org.redisson.api.RLock;
import org.redisson.api.RLockReactive;
import org.redisson.api.RLockRx;
import org.redisson.api.RedissonClient;
import org.redisson.api.RedissonReactiveClient;
import org.redisson.api.RedissonRxClient;
import org.redisson.api.options.CommonParams;
import org.redisson.config.MasterSlaveServersConfig;
import org.redisson.connection.ServiceManager;
import org.redisson.reactive.ReactiveProxyBuilder;
import org.redisson.rx.RxProxyBuilder;

/**
 * Native locks behind the interfaces of Redisson: {@code RedissonClient locks = NativeLocks.of(redisson);}. Programs with and
 * without this line share their locks.
 */
public final class NativeLocks {
    /** The methods that return one lock. */
    private static final Map<String, Kind> LOCKS = Map.of(
            "getLock", Kind.PLAIN,
            "getFairLock", Kind.PLAIN,
            "getSpinLock", Kind.PLAIN,
            "getFencedLock", Kind.FENCED,
            "getNonReentrantLock", Kind.NON_REENTRANT,
            "getNonReentrantFairLock", Kind.NON_REENTRANT);

    /** Limits in milliseconds. The longest TTL is the limit of the server. */
    private static final long MIN_GRACE = 100;

    private static final long MAX_GRACE = 3000;
    /** Time in milliseconds between checks whether the client was shut down. */
    private static final long SHUTDOWN_CHECK = 1000;

    private static final long MAX_TTL = 3_600_000;

    private final Redisson redisson;
    private final HeldLocks held;

    private NativeLocks(Redisson redisson, UnaryOperator<Locks.Builder> settings) {
        this.redisson = redisson;
        ServiceManager services = redisson.getCommandExecutor().getServiceManager();
        MasterSlaveServersConfig config = services.getConfig();
        long watchdog = redisson.getConfig().getLockWatchdogTimeout();
        long grace = Math.min(MAX_GRACE, Math.max(MIN_GRACE, watchdog / 3));
        Locks locks = settings.apply(new Locks.Builder(new RedissonConnector(redisson))
                        // The server renews no shorter lease.
                        .renewedLease(Duration.ofMillis(Math.max(3 * grace, watchdog)))
                        .ttl(Duration.ofMillis(Math.min(MAX_TTL, Math.max(grace, watchdog))))
                        .grace(Duration.ofMillis(grace))
                        .patience(Duration.ofMillis((long) config.getTimeout() * (config.getRetryAttempts() + 1))))
                .build();
        held = new HeldLocks(locks, redisson.getId());
        // A client that is shut down directly takes its locks with it. Its threads may outlive it.
        services.getGroup().terminationFuture().addListener(ended -> closeLater());
        services.getGroup().next().schedule(() -> closeAfter(services), SHUTDOWN_CHECK, TimeUnit.MILLISECONDS);
    }

    /**
     * Returns a client whose locks are native. All else is passed on to the client of {@code Redisson.create}, which must stay
     * open. Makes no call. Call it once for each client, and share the result. Its {@code shutdown} releases the locks that have
     * no lease, and shuts the client down.
     */
    public static RedissonClient of(RedissonClient redisson) {
        return of(redisson, UnaryOperator.identity());
    }

    /**
     * Returns a client whose locks are native, with further settings: for example a listener, or another grace. By default the
     * lease and the TTL are the {@code lockWatchdogTimeout} of the configuration. The grace is 3 s, or a third of that time if it
     * is shorter. The patience is the timeout of a command times the number of its attempts.
     *
     * @throws IllegalArgumentException if the client is not one of {@code Redisson.create}
     */
    public static RedissonClient of(RedissonClient redisson, UnaryOperator<Locks.Builder> settings) {
        if (!(redisson instanceof Redisson ours)) {
            throw new IllegalArgumentException("pass the client of Redisson.create(), not " + redisson);
        }
        return new NativeLocks(ours, settings).client();
    }

    private void closeAfter(ServiceManager services) {
        if (services.isShuttingDown()) {
            closeLater();
        } else {
            services.getGroup().next().schedule(() -> closeAfter(services), SHUTDOWN_CHECK, TimeUnit.MILLISECONDS);
        }
    }

    private void closeLater() {
        Thread closing = new Thread(held::close, "redis-lock-close");
        closing.setDaemon(true);
        closing.start();
    }

    private RedissonClient client() {
        return proxy(RedissonClient.class, redisson, (lock, type) -> lock, name -> switch (name) {
            // A program may lack the libraries of the style that it does not use.
            case "reactive" -> {
                RedissonReactive theirs = (RedissonReactive) redisson.reactive();
                yield proxy(
                        RedissonReactiveClient.class,
                        theirs,
                        (lock, type) -> ReactiveProxyBuilder.create(theirs.getCommandExecutor(), lock, type),
                        none -> null);
            }
            case "rxJava" -> {
                RedissonRx theirs = (RedissonRx) redisson.rxJava();
                yield proxy(
                        RedissonRxClient.class,
                        theirs,
                        (lock, type) -> RxProxyBuilder.create(theirs.getCommandExecutor(), lock, type),
                        none -> null);
            }
            default -> null;
        });
    }

    /** A client whose locks have a style, and that passes all other calls on. */
    private <T> T proxy(
            Class<T> type, T theirs, BiFunction<RLock, Class<?>, Object> style, Function<String, Object> more) {
        return proxy(type, theirs, (method, arguments) -> {
            String name = method.getName();
            Kind kind = LOCKS.get(name);
            if (kind != null) {
                return style.apply(lock(name(arguments), kind), method.getReturnType());
            } else if (name.equals("getReadWriteLock")) {
                String key = name(arguments);
                return proxy(
                        method.getReturnType(),
                        key,
                        (view, none) -> style.apply(
                                lock(key, view.getName().equals("readLock") ? Kind.READ : Kind.WRITE),
                                view.getReturnType()));
            } else if (name.equals("getMultiLock") && arguments[0] instanceof RLock[] members) {
                // Null passes the call on.
                return group(members);
            } else if (name.equals("getMultiLock") && arguments[0] instanceof RLockReactive[] members) {
                return style.apply(group(Arrays.stream(members).map(RLockReactive::getName)), method.getReturnType());
            } else if (name.equals("getMultiLock") && arguments[0] instanceof RLockRx[] members) {
                return style.apply(group(Arrays.stream(members).map(RLockRx::getName)), method.getReturnType());
            } else if (name.startsWith("shutdown")) {
                held.close();
            }
            return more.apply(name);
        });
    }

    private static String name(Object[] arguments) {
        return arguments[0] instanceof CommonParams options ? options.getName() : (String) arguments[0];
    }

    private NativeLock lock(String name, Kind kind) {
        return switch (kind) {
            case READ, WRITE -> new NativeModeLock(held, redisson.getCommandExecutor(), name, kind);
            default -> new NativeLock(held, redisson.getCommandExecutor(), name, kind);
        };
    }

    private RLock group(Stream<String> names) {
        return group(names.map(name -> lock(name, Kind.PLAIN)).toArray(RLock[]::new));
    }

    /** Null if a member is no native lock that a thread may hold twice. */
    private static RLock group(RLock... members) {
        boolean isNative =
                Arrays.stream(members).allMatch(member -> member instanceof NativeLock lock && lock.isReentrant());
        return isNative && members.length > 0
                ? new NativeGroup(
                        Arrays.stream(members).map(NativeLock.class::cast).toList())
                : null;
    }

    /** An object that passes a call on if the function returns null for it. */
    private static <T> T proxy(Class<T> type, Object theirs, BiFunction<Method, Object[], Object> own) {
        InvocationHandler handler = (proxy, method, arguments) -> {
            if (method.getDeclaringClass() == Object.class) {
                return switch (method.getName()) {
                    case "equals" -> proxy == arguments[0];
                    case "hashCode" -> System.identityHashCode(proxy);
                    default -> "NativeLocks of " + theirs;
                };
            }
            Object result = own.apply(method, arguments);
            try {
                return result != null ? result : method.invoke(theirs, arguments);
            } catch (InvocationTargetException error) {
                throw error.getCause();
            }
        };
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, handler));
    }
}
