// SPDX-License-Identifier: MIT
package io.github.redislock.driver;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.github.redislock.Hold;
import io.github.redislock.JedisConnector;
import io.github.redislock.LettuceConnector;
import io.github.redislock.LockEvent;
import io.github.redislock.LockException;
import io.github.redislock.Locks;
import io.github.redislock.RedisLock;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.UnifiedJedis;

/** Carries out requests, one a line: see clients/spec/README.md. Its arguments are the server's URL, and {@code --jedis}. */
final class Driver {
    private final Map<String, Hold> holds = new ConcurrentHashMap<>();
    private final Map<String, Thread> acquiring = new ConcurrentHashMap<>();
    private final Map<String, CompletableFuture<Boolean>> leaves = new ConcurrentHashMap<>();
    private final ConcurrentLinkedQueue<LockEvent> events = new ConcurrentLinkedQueue<>();
    private final UnifiedJedis client;
    private final Locks locks;

    private static final class BodyException extends Exception {
        private static final long serialVersionUID = 1;
    }

    private Driver(String url, boolean isJedis) {
        client = RedisClient.create(url);
        Locks.Builder builder = new Locks.Builder(isJedis ? new JedisConnector(client) : new LettuceConnector(url));
        builder.listener(events::add);
        time("REDIS_LOCK_TTL").ifPresent(builder::ttl);
        time("REDIS_LOCK_GRACE").ifPresent(builder::grace);
        locks = builder.build();
    }

    /** Loads the classes of Lettuce. On a busy machine that takes longer than the short waits of some scenarios. */
    private static void warmUp(String url) {
        RedisURI uri = RedisURI.create(url);
        uri.setTimeout(Duration.ofSeconds(1));
        io.lettuce.core.RedisClient lettuce = io.lettuce.core.RedisClient.create(uri);
        try {
            lettuce.connect().sync().ping();
        } catch (RedisException unreachable) {
            // The scenario is about that.
        } finally {
            lettuce.shutdown(0, 0, TimeUnit.SECONDS);
        }
    }

    private static Optional<Duration> time(String variable) {
        return Optional.ofNullable(System.getenv(variable)).map(ms -> Duration.ofMillis(Long.parseLong(ms)));
    }

    public static void main(String[] args) throws IOException {
        boolean isJedis = args.length > 1 && args[1].equals("--jedis");
        if (!isJedis) {
            warmUp(args[0]);
        }
        Driver driver = new Driver(args[0], isJedis);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            // The next line may cancel this request.
            CompletableFuture<Void> begun = new CompletableFuture<>();
            // A thread of its own is an owner of its own.
            Thread thread = new Thread(() -> driver.answer(request, begun));
            thread.setDaemon(true);
            thread.start();
            begun.join();
        }
        System.exit(0);
    }

    private void answer(JsonObject request, CompletableFuture<Void> begun) {
        JsonObject answer;
        if (request.get("do").getAsString().equals("acquire")) {
            acquiring.put(request.get("as").getAsString(), Thread.currentThread());
        }
        begun.complete(null);
        try {
            answer = work(request);
        } catch (LockException error) {
            answer = is(error.kind().words());
            answer.addProperty("text", error.getMessage());
        } catch (InterruptedException cancelled) {
            answer = is("cancelled");
        } catch (BodyException error) {
            answer = is("body");
        } catch (Exception error) {
            error.printStackTrace();
            answer = is("defect: " + error);
        }
        answer.add("n", request.get("n"));
        synchronized (System.out) {
            System.out.println(answer);
        }
    }

    private JsonObject work(JsonObject request) throws Exception {
        String as = request.has("as") ? request.get("as").getAsString() : "";
        switch (request.get("do").getAsString()) {
            case "acquire" -> {
                try {
                    return granted(as, lock(request).acquire());
                } finally {
                    acquiring.remove(as);
                }
            }
            case "try" -> {
                Optional<Hold> hold = lock(request).tryAcquire();
                return hold.isPresent() ? granted(as, hold.get()) : is("busy");
            }
            case "cancel" ->
                acquiring.computeIfPresent(as, (name, thread) -> {
                    thread.interrupt();
                    return thread;
                });
            case "release" -> {
                holds.get(as).release();
                return is("released");
            }
            case "extend" -> {
                holds.get(as).extend(time(request, "lease"));
                return is("extended");
            }
            case "state" -> {
                Hold hold = holds.get(as);
                return is(hold.isLost() ? "lost" : hold.validFor().isZero() ? "jeopardy" : "safe");
            }
            case "until_lost" -> {
                return is(holds.get(as).awaitLost(time(request, "within")) ? "lost" : "held");
            }
            case "owner" -> {
                return owned(holds.get(as).owner());
            }
            case "hand over" -> {
                return owned(holds.get(as).handOver());
            }
            case "attach" -> {
                return granted(as, lock(request).attach(request.get("owner").getAsString()));
            }
            case "with" -> {
                CompletableFuture<Boolean> leave = leaves.computeIfAbsent(as, name -> new CompletableFuture<>());
                try {
                    lock(request).<Void, Exception>with(hold -> {
                        holds.put(as, hold);
                        if (leave.get()) {
                            throw new BodyException();
                        }
                        return null;
                    });
                } finally {
                    leaves.remove(as);
                }
            }
            case "leave" ->
                leaves.computeIfAbsent(as, name -> new CompletableFuture<>())
                        .complete(request.has("fails") && request.get("fails").getAsBoolean());
            case "guard" ->
                holds.get(as)
                        .guard(request.getAsJsonArray("command").asList().stream()
                                .map(JsonElement::getAsString)
                                .toArray(String[]::new));
            case "count" -> {
                String key = request.get("key").getAsString();
                for (int rounds = request.get("rounds").getAsInt(); rounds > 0; rounds--) {
                    lock(request).with(hold -> {
                        String value = client.get(key);
                        return client.set(key, Integer.toString(value == null ? 1 : Integer.parseInt(value) + 1));
                    });
                }
            }
            case "calls" -> {
                for (int count = request.get("count").getAsInt(); count > 0; count--) {
                    client.ping();
                }
            }
            case "spin" -> {
                // Every thread that user code can run in.
                long until = System.nanoTime() + time(request, "for").toNanos();
                for (int threads = Runtime.getRuntime().availableProcessors(); threads > 0; threads--) {
                    CompletableFuture.runAsync(() -> spin(until));
                }
                spin(until);
            }
            case "events" -> {
                JsonObject answer = is("done");
                answer.add(
                        "events",
                        new Gson()
                                .toJsonTree(events.stream()
                                        .map(event -> Arrays.asList(event.label(), event.name(), event.outcome()))
                                        .toList()));
                return answer;
            }
            case "close" -> {
                locks.close();
                client.close();
                return is("closed");
            }
            default -> {
                return is("unknown");
            }
        }
        return is("done");
    }

    private static void spin(long until) {
        while (System.nanoTime() - until < 0) {
            Thread.onSpinWait();
        }
    }

    private JsonObject granted(String as, Hold hold) {
        holds.put(as, hold);
        JsonObject answer = is("granted");
        hold.token().ifPresent(token -> answer.addProperty("token", token));
        return answer;
    }

    private static JsonObject owned(String owner) {
        JsonObject answer = is("done");
        answer.addProperty("owner", owner);
        return answer;
    }

    private static JsonObject is(String what) {
        JsonObject answer = new JsonObject();
        answer.addProperty("is", what);
        return answer;
    }

    private static Duration time(JsonObject request, String word) {
        return Duration.ofMillis(request.get(word).getAsLong());
    }

    private RedisLock lock(JsonObject request) {
        JsonElement key = request.get("lock");
        RedisLock lock = key.isJsonArray()
                ? locks.lockAll(key.getAsJsonArray().asList().stream()
                        .map(JsonElement::getAsString)
                        .toArray(String[]::new))
                : locks.lock(key.getAsString());
        for (Map.Entry<String, JsonElement> option : request.entrySet()) {
            JsonElement value = option.getValue();
            lock = switch (option.getKey()) {
                case "lease" -> lock.lease(Duration.ofMillis(value.getAsLong()));
                case "wait" -> lock.waiting(Duration.ofMillis(value.getAsLong()));
                case "max_hold" -> lock.maxHold(Duration.ofMillis(value.getAsLong()));
                case "reentrant" -> value.getAsBoolean() ? lock.reentrant() : lock;
                case "shared" -> value.getAsBoolean() ? lock.shared() : lock;
                case "limit" -> lock.limit(value.getAsInt());
                case "fence" -> value.getAsBoolean() ? lock.fence() : lock;
                case "owner" ->
                    request.get("do").getAsString().equals("attach") ? lock : lock.owner(value.getAsString());
                case "label" -> lock.label(value.getAsString());
                default -> lock;
            };
        }
        return lock;
    }
}
