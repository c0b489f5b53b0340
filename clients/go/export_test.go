// SPDX-License-Identifier: MIT

package lock

import "github.com/redis/go-redis/v9"

// UseClient replaces the client of the user.
func (l *Locks) UseClient(client redis.UniversalClient) {
	defer l.lock()()
	l.client = client
}
