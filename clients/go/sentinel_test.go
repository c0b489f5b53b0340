// SPDX-License-Identifier: MIT

package lock_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

// Newer versions of go-redis make such an error if a Sentinel does not know the primary.
func TestErrorAroundNilIsNoReply(t *testing.T) {
	if !lock.IsReply(redis.Nil) || lock.IsReply(fmt.Errorf("redis: all sentinels are unreachable: %w", redis.Nil)) {
		t.Fatal("only Nil itself is a reply")
	}
}

// A failover client leads to whichever server is the primary.
func TestItFollowsThePrimary(t *testing.T) {
	primary := start(t)
	replica := start(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", primary.port))
	until(t, "a replica", func() bool {
		return strings.Contains(replica.ask("INFO", "replication").(string), "master_link_status:up")
	})
	port := freePort()
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %d\nsentinel monitor main 127.0.0.1 %d 1\nsentinel down-after-milliseconds main 500\n"+
		"sentinel failover-timeout main 5000\n", port, primary.port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	watcher := exec.Command("redis-server", file, "--sentinel")
	watcher.Dir = filepath.Dir(file)
	if err := watcher.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = watcher.Process.Kill()
		_ = watcher.Wait()
	}()
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port)})
	defer sentinel.Close()
	until(t, "the sentinel knows the replica", func() bool {
		replicas, err := sentinel.Replicas(background, "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["role-reported"] == "slave" && replicas[0]["flags"] == "slave"
	})
	watchers := []string{fmt.Sprintf("127.0.0.1:%d", port)}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: watchers})
	defer client.Close()
	locks := must(lock.New(client, lock.WithPatience(9*time.Second)))
	defer locks.Close()
	// It has a lease, and is bound to no connection: it is held at the new primary, too.
	hold := must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
	until(t, "it is held at the replica", func() bool { return replica.ask("LOCK.INFO", "a") != nil })
	waited := make(chan error, 1)
	go func() { waited <- locks.Do(background, "a", func(context.Context) error { return nil }) }()
	until(t, "a waiter", func() bool { return primary.waiters("a") == 1 })
	primary.end()
	until(t, "the replica is the primary", func() bool {
		// It drops its connections on the way.
		return strings.Contains(replica.admin.Info(background, "replication").Val(), "role:master")
	})
	until(t, "it waits there", func() bool {
		select {
		case err := <-waited:
			t.Fatal(err)
		default:
		}
		waiters, err := replica.admin.Do(background, "LOCK.WAITERS", "a").Slice()
		return err == nil && len(waiters) == 1
	})
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil || !replica.isFree("a") {
		t.Fatal(err)
	}
}
