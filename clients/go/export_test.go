// SPDX-License-Identifier: MIT

package lock

import "github.com/redis/go-redis/v9"

// UseClient replaces the cluster client of the user.
func (l *Locks) UseClient(client *redis.ClusterClient) {
	defer l.lock()()
	l.clientOf, l.cluster = client.MasterForKey, client
}
