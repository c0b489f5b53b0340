// SPDX-License-Identifier: MIT

package lock

import "github.com/redis/go-redis/v9"

// UseClient replaces the cluster client of the user.
func (l *Locks) UseClient(client *redis.ClusterClient) {
	defer l.lock()()
	l.clientOf, l.cluster = client.MasterForKey, client
}

// IsReply returns whether an error of go-redis is a reply, and not an error.
func IsReply(err error) bool { return classify(err) == nil }
