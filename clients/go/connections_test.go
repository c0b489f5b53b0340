// SPDX-License-Identifier: MIT

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

// An interceptor stands between a client and its connections. It makes the calls by next.
type interceptor func(words []any, next func() error) error

func (i interceptor) DialHook(next redis.DialHook) redis.DialHook { return next }

func (i interceptor) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		return i(command.Args(), func() error { return next(ctx, command) })
	}
}

func (i interceptor) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		return i(commands[0].Args(), func() error { return next(ctx, commands) })
	}
}

// intercepted has a client with an interceptor.
func intercepted(s *server, i interceptor) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.address()})
	client.AddHook(i)
	return client
}

func TestFullPoolDoesNotExtendLimits(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.address(), PoolSize: 1, PoolTimeout: time.Minute})
	locks := locksOf(t, client, lock.WithPatience(time.Second))
	release(t, must(locks.Acquire(background, "a")))
	go client.BLPop(background, time.Minute, "list")
	until(t, "the pool is full", func() bool { return s.number("clients", "blocked_clients") == 2 })
	began := time.Now()
	if _, _, err := locks.Try(background, "a"); !errors.Is(err, lock.ErrUnavailable) || time.Since(began) > 4*time.Second {
		t.Fatal(err, time.Since(began))
	}
	s.ask("RPUSH", "list", "x")
	until(t, "it is free", func() bool { return s.isFree("a") })
}

// hangingDialer has options with a dialer that ignores its context, as that of go-redis with TLS does. It never makes the
// connection of this number.
func hangingDialer(t *testing.T, s *server, number int32) *redis.Options {
	t.Helper()
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	var dials atomic.Int32
	return &redis.Options{Addr: s.address(), Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) == number {
			<-end
		}
		return net.Dial(network, address)
	}}
}

func TestHangingDialDoesNotStopTheReader(t *testing.T) {
	s := start(t)
	locks := locksOf(t, redis.NewClient(hangingDialer(t, s, 1)))
	release(t, must(locks.Acquire(background, "a", lock.WithWait(10*time.Second))))
}

func TestHangingDialDoesNotExtendLimits(t *testing.T) {
	s := start(t)
	locks := locksOf(t, redis.NewClient(hangingDialer(t, s, 2)), lock.WithPatience(time.Second))
	began := time.Now()
	if _, _, err := locks.Try(background, "a"); !errors.Is(err, lock.ErrUnavailable) || time.Since(began) > 4*time.Second {
		t.Fatal(err, time.Since(began))
	}
	release(t, must(locks.Acquire(background, "a")))
}

func TestAbandonedCallLeavesTheQueue(t *testing.T) {
	s := start(t)
	isBlocked, proceed := new(atomic.Int32), make(chan struct{})
	var sent atomic.Int32
	locks := locksOf(t, intercepted(s, func(words []any, next func() error) error {
		switch key := fmt.Sprint(words[1]); {
		case words[0] == "LOCK.ACQUIRE" && key == "queued":
			sent.Add(1)
		case words[0] == "LOCK.ACQUIRE" && key != "first":
			isBlocked.Add(1)
			<-proceed
		}
		return next()
	}), lock.WithPatience(time.Second))
	release(t, must(locks.Acquire(background, "first")))
	results := make(chan error, 4)
	for number := int32(0); number < 4; number++ {
		go func() { results <- locks.Do(background, "blocked", func(context.Context) error { return nil }) }()
		until(t, "a blocked call", func() bool { return isBlocked.Load() == number+1 })
	}
	if _, _, err := locks.Try(background, "queued"); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatal(err)
	}
	close(proceed)
	for range [4]int{} {
		<-results
	}
	release(t, must(locks.Acquire(background, "last")))
	if sent.Load() != 0 {
		t.Fatal("the call was sent after its end")
	}
}

func TestOnConnectRunsForEachConnection(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.address(), OnConnect: func(ctx context.Context, c *redis.Conn) error {
		return c.ClientSetName(ctx, "named").Err()
	}})
	release(t, must(locksOf(t, client).Acquire(background, "a")))
	connections := strings.Split(strings.TrimSpace(s.ask("CLIENT", "LIST").(string)), "\n")
	named := 0
	for _, connection := range connections {
		if strings.Contains(connection, " name=named ") {
			named++
		}
	}
	// The reader and one for calls, besides that of the test.
	if named < 2 || named != len(connections)-1 {
		t.Fatal(connections)
	}
}

func TestReaderKeepsItsConnection(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{
		Addr: s.address(), ConnMaxLifetime: 50 * time.Millisecond, ConnMaxIdleTime: 50 * time.Millisecond,
	})
	// Without grace, the end of the connection ends the session.
	locks := locksOf(t, client, lock.WithGrace(0))
	hold := must(locks.Acquire(background, "a"))
	beats := s.calls("lock.events")
	until(t, "heartbeats", func() bool { return s.calls("lock.events") >= beats+3 })
	if opened := s.calls("lock.session"); opened != 1 || hold.IsLost() {
		t.Fatal(opened, "sessions")
	}
	release(t, hold)
}
