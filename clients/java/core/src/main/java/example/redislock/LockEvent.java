// SPDX-License-Identifier: MIT
package example.redislock;

import java.time.Duration;

/**
 * What the listener of {@link Locks} hears.
 *
 * @param label what the lock is called, its key if nothing is said
 * @param name {@code waited} when an acquire ends, {@code held} when a hold does
 * @param outcome of a wait {@code granted} or a kind of error; of a hold {@code released} or {@code lost}
 * @param time how long it was
 */
public record LockEvent(String label, String name, String outcome, Duration time) {}
