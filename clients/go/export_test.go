// SPDX-License-Identifier: MIT

package lock

import "time"

// WithReleaseFor is how long a release keeps its caller waiting at most, in tests.
func WithReleaseFor(limit time.Duration) Setting {
	return func(l *Locks) { l.session.releaseFor = limit }
}
