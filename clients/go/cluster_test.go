// SPDX-License-Identifier: MIT

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

// Keys in the first and the second half of the slots.
const low, high = "b", "a"

// cluster has two nodes, with one half of the slots each.
func cluster(t *testing.T) (nodes [2]*server, client *redis.ClusterClient) {
	t.Helper()
	addresses := make([]string, 2)
	for i := range nodes {
		nodes[i] = start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
		addresses[i] = nodes[i].address()
		nodes[i].ask("CLUSTER", "ADDSLOTSRANGE", i*8192, i*8192+8191)
	}
	nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
	isUp := func(s *server) bool {
		return strings.Contains(s.ask("CLUSTER", "INFO").(string), "cluster_state:ok") &&
			strings.Count(s.ask("CLUSTER", "NODES").(string), "connected") == 2
	}
	until(t, "a cluster", func() bool { return isUp(nodes[0]) && isUp(nodes[1]) })
	return nodes, redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
}

// move moves the slot of a key from one node to another.
func move(t *testing.T, key string, from, to *server) {
	t.Helper()
	slot := from.ask("CLUSTER", "KEYSLOT", key)
	to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", from.ask("CLUSTER", "MYID"))
	from.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.ask("CLUSTER", "MYID"))
	for _, each := range from.ask("CLUSTER", "GETKEYSINSLOT", slot, 100).([]any) {
		from.ask("MIGRATE", "127.0.0.1", to.port, each, 0, 5000)
	}
	id := to.ask("CLUSTER", "MYID")
	to.ask("CLUSTER", "SETSLOT", slot, "NODE", id)
	from.ask("CLUSTER", "SETSLOT", slot, "NODE", id)
}

func TestClusterHasOneSessionPerNode(t *testing.T) {
	nodes, client := cluster(t)
	locks := locksOf(t, client)
	holds := []*lock.Hold{must(locks.Acquire(background, low)), must(locks.Acquire(background, high))}
	for i := 0; i < 20; i++ {
		release(t, must(locks.Acquire(background, fmt.Sprint("key", i))))
	}
	for i, node := range nodes {
		if node.sessions() != 1 {
			t.Fatal(node.sessions(), "sessions")
		}
		if _, err := holds[i].Guard(background, "SET", "{"+holds[i].Key()+"}", 1); err != nil || holds[i].ValidFor() <= 0 {
			t.Fatal(err)
		}
		release(t, holds[i])
	}
	locks.Close()
	until(t, "no session", func() bool { return nodes[0].sessions() == 0 && nodes[1].sessions() == 0 })
}

func TestMovedSlotKeepsHoldAndWait(t *testing.T) {
	nodes, client := cluster(t)
	locks := locksOf(t, client)
	hold := must(locks.Acquire(background, low))
	leased := must(locks.Acquire(background, "{"+low+"}2", lock.WithLease(time.Minute)))
	ctx := hold.Context()
	waited := make(chan error, 1)
	go func() { waited <- locks.Do(background, low, func(context.Context) error { return nil }) }()
	until(t, "a waiter", func() bool { return nodes[0].waiters(low) == 1 })
	move(t, low, nodes[0], nodes[1])
	until(t, "it waits there", func() bool { return nodes[1].waiters(low) == 1 })
	until(t, "it is safe there", func() bool { return hold.ValidFor() > 0 && nodes[1].sessions() == 1 })
	if ctx.Err() != nil || hold.IsLost() || leased.IsLost() {
		t.Fatal(context.Cause(ctx))
	}
	release(t, hold)
	release(t, leased)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if !nodes[1].isFree(low) || !nodes[1].isFree("{"+low+"}2") {
		t.Fatal("something is left")
	}
}

func TestReleaseDuringAMoveReleases(t *testing.T) {
	nodes, client := cluster(t)
	locks := locksOf(t, client)
	for round := 0; round < 6; round++ {
		hold := must(locks.Acquire(background, low))
		released := make(chan error, 1)
		from, to := nodes[round%2], nodes[1-round%2]
		go func() {
			time.Sleep(time.Duration(round) * time.Millisecond)
			released <- hold.Release(background)
		}()
		move(t, low, from, to)
		if err := <-released; err != nil {
			t.Fatal(round, err)
		}
		until(t, "it is free", func() bool { return to.isFree(low) })
	}
}

// replicaOf has a replica of a node in its cluster.
func replicaOf(t *testing.T, node, other *server) *server {
	t.Helper()
	replica := start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
	replica.ask("CLUSTER", "MEET", "127.0.0.1", node.port)
	id := node.ask("CLUSTER", "MYID")
	until(t, "it knows its primary", func() bool { return replica.admin.Do(background, "CLUSTER", "REPLICATE", id).Err() == nil })
	until(t, "a replica", func() bool {
		return strings.Contains(replica.ask("INFO", "replication").(string), "master_link_status:up")
	})
	until(t, "the replica knows the cluster", func() bool {
		return strings.Contains(replica.ask("CLUSTER", "INFO").(string), "cluster_state:ok")
	})
	until(t, "the other node knows the replica", func() bool {
		return strings.Contains(other.ask("CLUSTER", "NODES").(string), "slave")
	})
	return replica
}

func TestFailoverInAClusterKeepsHolds(t *testing.T) {
	nodes, client := cluster(t)
	replica := replicaOf(t, nodes[0], nodes[1])
	locks := locksOf(t, client)
	hold := must(locks.Acquire(background, low))
	waited := make(chan error, 1)
	go func() { waited <- locks.Do(background, low, func(context.Context) error { return nil }) }()
	until(t, "a waiter", func() bool { return nodes[0].waiters(low) == 1 })
	until(t, "the replica has it", func() bool { return replica.ask("DBSIZE") != int64(0) })
	nodes[0].end()
	replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
	until(t, "it waits at the new primary", func() bool {
		waiters, err := replica.admin.Do(background, "LOCK.WAITERS", low).Slice()
		return err == nil && len(waiters) == 1
	})
	until(t, "it is safe there", func() bool { return hold.ValidFor() > 0 })
	release(t, hold)
	if err := <-waited; err != nil || !replica.isFree(low) {
		t.Fatal(err)
	}
}

func TestWaitFollowsANodeThatWasNeverReached(t *testing.T) {
	nodes, client := cluster(t)
	replica := replicaOf(t, nodes[0], nodes[1])
	// The client learns the nodes. It will first try the one that fails.
	if err := client.Get(background, low).Err(); err != redis.Nil {
		t.Fatal(err)
	}
	nodes[0].end()
	locks := locksOf(t, client, lock.WithPatience(time.Second))
	waited := make(chan error, 1)
	go func() {
		waited <- locks.Do(background, low, func(context.Context) error { return nil }, lock.WithWait(20*time.Second))
	}()
	replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
	if err := <-waited; err != nil || !replica.isFree(low) {
		t.Fatal(err)
	}
}

func TestReplacedClientOfANodeIsUsed(t *testing.T) {
	nodes, client := cluster(t)
	locks := locksOf(t, client, lock.WithPatience(time.Second))
	hold, other := must(locks.Acquire(background, low)), must(locks.Acquire(background, "{"+low+"}2"))
	// A cluster client closes the client of a node that has left, and makes another one when the node returns.
	next := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].address()}})
	defer next.Close()
	locks.UseClient(next)
	_ = client.Close()
	release(t, hold)
	release(t, must(locks.Acquire(background, low)))
	release(t, other)
	if nodes[0].sessions() != 1 || !nodes[0].isFree(low) || !nodes[0].isFree("{"+low+"}2") {
		t.Fatal(nodes[0].sessions(), "sessions")
	}
}

func TestMovedLockEndsWithoutClusterClient(t *testing.T) {
	nodes, client := cluster(t)
	defer client.Close()
	locks := locksAt(t, nodes[0].address(), lock.WithPatience(time.Second))
	var e *lock.Error
	if _, err := locks.Acquire(background, high); !errors.As(err, &e) || e.Kind != lock.ErrUnavailable || e.Code != "MOVED" {
		t.Fatal(err)
	}
	renews, cancels := nodes[0].calls("lock.renew"), nodes[0].calls("lock.cancel")
	if renews+cancels != 0 {
		t.Fatal(renews, "declarations", cancels, "cancellations")
	}
	hold := must(locks.Acquire(background, low))
	move(t, low, nodes[0], nodes[1])
	until(t, "it is lost", hold.IsLost)
}

func TestMigratingSlotDoesNotStopASession(t *testing.T) {
	nodes, client := cluster(t)
	locks := locksOf(t, client)
	hold := must(locks.Acquire(background, low))
	slot := nodes[0].ask("CLUSTER", "KEYSLOT", low)
	nodes[1].ask("CLUSTER", "SETSLOT", slot, "IMPORTING", nodes[0].ask("CLUSTER", "MYID"))
	nodes[0].ask("CLUSTER", "SETSLOT", slot, "MIGRATING", nodes[1].ask("CLUSTER", "MYID"))
	// The node of the slot no longer has the lock. It redirects calls, and forgets its session.
	nodes[0].ask("MIGRATE", "127.0.0.1", nodes[1].port, low, 0, 5000)
	nodes[0].end()
	nodes[0].begin()
	until(t, "a cluster", func() bool {
		return strings.Contains(nodes[0].ask("CLUSTER", "INFO").(string), "cluster_state:ok")
	})
	release(t, must(locks.Acquire(background, "c"+low, lock.WithWait(10*time.Second))))
	if hold.IsLost() {
		t.Fatal("it is lost")
	}
}
