// SPDX-License-Identifier: MIT

// Bench compares this package with redsync and bsm/redislock: acquire and release by one goroutine, by 50 on 50 locks, and by 50
// on one lock.
//
//	go run . [module] [seconds]
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

const rounds = 15

// A pair acquires and releases the lock of that key once.
type pair func(ctx context.Context, key string) error

type load struct {
	name             string
	goroutines, keys int
	// pause is the time that a goroutine spends on something else after each release, so that the lock changes hands.
	pause time.Duration
}

func main() {
	module, span := "../../../target/release/libredis_lock.so", time.Second
	if len(os.Args) > 1 {
		module = os.Args[1]
	}
	if len(os.Args) > 2 {
		span = time.Duration(must(strconv.ParseFloat(os.Args[2], 64)) * float64(time.Second))
	}
	client, stop := start(must(filepath.Abs(module)))
	defer stop()
	locks := must(lock.New(client))
	defer locks.Close()
	names, pairs := libraries(client, locks)
	fmt.Printf("%-28s", "pairs/s, median of 15")
	for _, name := range names {
		fmt.Printf(" %22s", name)
	}
	fmt.Println(" against the best other")
	for _, load := range []load{
		{"one goroutine", 1, 1, 0}, {"50 on 50 locks", 50, 50, 0},
		{"50 on one lock", 50, 1, 0}, {"50 on one lock, 1 ms apart", 50, 1, time.Millisecond},
	} {
		rates := make([][]float64, len(pairs))
		for round := 0; round < rounds; round++ {
			for i, pair := range pairs {
				rates[i] = append(rates[i], measure(load, names[i], pair, span))
			}
		}
		fmt.Printf("%-28s", load.name)
		for i := range rates {
			slices.Sort(rates[i])
			fmt.Printf(" %22.0f", rates[i][rounds/2])
		}
		best := 0.0
		for _, others := range rates[1:] {
			best = max(best, others[rounds/2])
		}
		fmt.Printf(" %.2f\n", rates[0][rounds/2]/best)
	}
}

func libraries(client *redis.Client, locks *lock.Locks) ([]string, []pair) {
	rs, bsm := redsync.New(goredis.NewPool(client)), redislock.New(client)
	polling := func(options ...redsync.Option) pair {
		options = append(options, redsync.WithTries(1<<30), redsync.WithExpiry(30*time.Second))
		return func(ctx context.Context, key string) error {
			mutex := rs.NewMutex(key, options...)
			if err := mutex.LockContext(ctx); err != nil {
				return err
			}
			_, err := mutex.Unlock()
			return err
		}
	}
	retrying := func(pause time.Duration) pair {
		return func(ctx context.Context, key string) error {
			strategy := &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)}
			held, err := bsm.Obtain(ctx, key, 30*time.Second, strategy)
			if err != nil {
				return err
			}
			return held.Release(context.Background())
		}
	}
	return []string{"this package", "redsync", "redsync, 5 ms", "redislock, 100 ms", "redislock, 5 ms"}, []pair{
		func(ctx context.Context, key string) error {
			hold, err := locks.Acquire(ctx, key)
			if err != nil {
				return err
			}
			return hold.Release(context.Background())
		},
		polling(), polling(redsync.WithRetryDelay(5 * time.Millisecond)),
		retrying(100 * time.Millisecond), retrying(5 * time.Millisecond),
	}
}

// measure has the pairs per second.
func measure(load load, name string, pair pair, span time.Duration) float64 {
	ctx, cancel := context.WithTimeout(context.Background(), span)
	defer cancel()
	var all sync.WaitGroup
	var count atomic.Int64
	for n := 0; n < load.goroutines; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			key := fmt.Sprintf("%s:%s:%d", name, load.name, n%load.keys)
			for ctx.Err() == nil {
				if pair(ctx, key) == nil {
					count.Add(1)
				}
				if load.pause > 0 {
					time.Sleep(load.pause)
				}
			}
		}()
	}
	all.Wait()
	return float64(count.Load()) / span.Seconds()
}

func start(module string) (client *redis.Client, stop func()) {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	folder := must(os.MkdirTemp("", "bench"))
	server := exec.Command("redis-server", "--port", fmt.Sprint(port), "--save", "", "--dir", folder, "--loadmodule", module)
	if err := server.Start(); err != nil {
		panic(err)
	}
	client = redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port)})
	for deadline := time.Now().Add(10 * time.Second); client.Ping(context.Background()).Err() != nil; {
		if time.Now().After(deadline) {
			panic("there is no server")
		}
		time.Sleep(5 * time.Millisecond)
	}
	return client, func() {
		_ = client.Close()
		_ = server.Process.Kill()
		_ = server.Wait()
		_ = os.RemoveAll(folder)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
