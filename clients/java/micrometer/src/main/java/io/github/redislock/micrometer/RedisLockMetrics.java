// SPDX-License-Identifier: MIT
package io.github.redislock.micrometer;

import io.github.redislock.LockEvent;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tags;
import java.util.function.Consumer;

/**
 * Records the events of {@link io.github.redislock.Locks} in a registry of Micrometer. Pass it to {@link
 * io.github.redislock.Locks.Builder#listener}.
 *
 * <ul>
 *   <li>{@code redis.lock.wait}: timer of waits and tries. Its {@code outcome} is {@code granted} or the kind of the failure.
 *   <li>{@code redis.lock.hold}: timer of holds, recorded at their end. Its {@code outcome} is {@code released} or {@code lost}.
 *   <li>{@code redis.lock.jeopardy}: counter of the holds that came into jeopardy
 *   <li>{@code redis.lock.losses}: counter of the holds that were lost
 * </ul>
 *
 * <p>All have the tag {@code label}: {@link io.github.redislock.RedisLock#label}, or {@code none}. Each value of it makes meters
 * of its own, so give labels to kinds of locks, not to single keys. The counters of a label exist from its first wait on.
 */
public final class RedisLockMetrics implements Consumer<LockEvent> {
    private final MeterRegistry registry;
    private final Tags tags;

    /** Records in this registry. */
    public RedisLockMetrics(MeterRegistry registry) {
        this(registry, Tags.empty());
    }

    /** Records in this registry, with further tags on each meter. */
    public RedisLockMetrics(MeterRegistry registry, Tags tags) {
        this.registry = registry;
        this.tags = tags;
    }

    @Override
    public void accept(LockEvent event) {
        Tags labelled = tags.and("label", event.label() == null ? "none" : event.label());
        Tags outcome = labelled.and("outcome", event.outcome());
        switch (event.name()) {
            case "waited" -> {
                registry.timer("redis.lock.wait", outcome).record(event.time());
                count("jeopardy", labelled, 0);
                count("losses", labelled, 0);
            }
            case "held" -> {
                registry.timer("redis.lock.hold", outcome).record(event.time());
                count("losses", labelled, event.outcome().equals("lost") ? 1 : 0);
            }
            case "jeopardy" -> count("jeopardy", labelled, 1);
            default -> {
                // The end of jeopardy.
            }
        }
    }

    private void count(String what, Tags labelled, int more) {
        registry.counter("redis.lock." + what, labelled).increment(more);
    }
}
