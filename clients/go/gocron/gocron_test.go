// SPDX-License-Identifier: MIT

package gocron_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
	lockgocron "github.com/redis-lock/redis-lock/clients/go/gocron"
)

func start(t *testing.T) *redis.Client {
	t.Helper()
	module := os.Getenv("REDIS_LOCK_MODULE")
	if module == "" {
		module, _ = filepath.Abs("../../../target/release/libredis_lock.so")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	server := exec.Command("redis-server", "--port", fmt.Sprint(port), "--save", "", "--dir", t.TempDir(), "--loadmodule", module)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port)})
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	until(t, func() bool { return client.Ping(context.Background()).Err() == nil })
	return client
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func until(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come about")
		}
	}
}

func TestOneOfTwoSchedulersRunsTheJob(t *testing.T) {
	client := start(t)
	var runs, busy atomic.Int32
	proceed := make(chan struct{})
	var schedulers []gocron.Scheduler
	for number := 0; number < 2; number++ {
		locks := must(lock.New(client))
		defer locks.Close()
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(lockgocron.New(locks)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() {
			runs.Add(1)
			<-proceed
		}), gocron.WithName("report"), gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
			if errors.Is(err, lock.ErrBusy) {
				busy.Add(1)
			}
		})))
		if err != nil {
			t.Fatal(err)
		}
		scheduler.Start()
		schedulers = append(schedulers, scheduler)
	}
	until(t, func() bool { return runs.Load() == 1 && busy.Load() == 1 })
	close(proceed)
	for _, scheduler := range schedulers {
		if err := scheduler.Shutdown(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() bool { return client.Exists(context.Background(), "report").Val() == 0 })
}

func TestUnlockWorksAfterTheContextEnded(t *testing.T) {
	client := start(t)
	locks := must(lock.New(client))
	defer locks.Close()
	held, err := lockgocron.New(locks).Lock(context.Background(), "report")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := held.Unlock(ctx); err != nil || client.Exists(ctx, "report").Val() != 0 {
		t.Fatal(err)
	}
}
