// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.time.Duration;

/**
 * A notification to the listener of {@link Locks}.
 *
 * @param label the label of the lock, or null if it has none
 * @param name {@code waited}, {@code held}, {@code jeopardy} or {@code safe}
 * @param outcome for a wait, {@code granted} or the kind of its failure; for a hold, {@code released} or {@code lost}; or empty
 * @param time duration of the wait, or of the hold so far
 */
public record LockEvent(String label, String name, String outcome, Duration time) {}
