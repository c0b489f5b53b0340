// SPDX-License-Identifier: MIT

package lock

import "time"

// WithReleaseFor is how long a release keeps its caller waiting at most, in tests.
func WithReleaseFor(limit time.Duration) Setting {
	return func(l *Locks) { l.session.releaseFor = limit }
}

// WithBeat is how often what is kept is renewed at least, in tests.
func WithBeat(beat time.Duration) Setting { return func(l *Locks) { l.session.beat = beat } }
