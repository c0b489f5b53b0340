// SPDX-License-Identifier: MIT

// Bench compares this package with redsync and bsm/redislock: acquire and release by one goroutine, by 50 on 50 locks, and by 50
// on one lock. Impatient goroutines hold the lock for 1 ms, and wait for it for at most 5 ms. In the last row, this package holds
// and renews 1,000 other locks meanwhile.
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

// A pair acquires the lock of that key, keeps it for a while, and releases it.
type pair func(ctx context.Context, key string, hold time.Duration) error

type load struct {
	name             string
	goroutines, keys int
	// pause is the time that a goroutine spends on something else after each release, so that the lock changes hands.
	pause time.Duration
	// patience is the longest wait, or 0 without a limit. A goroutine with a limit holds the lock for 1 ms.
	patience time.Duration
	// others are held meanwhile.
	others int
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
		{name: "one goroutine", goroutines: 1, keys: 1},
		{name: "50 on 50 locks", goroutines: 50, keys: 50},
		{name: "50 on one lock", goroutines: 50, keys: 1},
		{name: "50 on one lock, 1 ms apart", goroutines: 50, keys: 1, pause: time.Millisecond},
		{name: "50 on one lock, impatient", goroutines: 50, keys: 1, patience: 5 * time.Millisecond},
		{name: "one goroutine, 1,000 held", goroutines: 1, keys: 1, others: 1000},
	} {
		held := make([]*lock.Hold, load.others)
		for n := range held {
			held[n] = must(locks.Acquire(context.Background(), fmt.Sprintf("other:%d", n)))
		}
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
		for _, hold := range held {
			if err := hold.Release(context.Background()); err != nil {
				panic(err)
			}
		}
	}
}

func libraries(client *redis.Client, locks *lock.Locks) ([]string, []pair) {
	rs, bsm := redsync.New(goredis.NewPool(client)), redislock.New(client)
	polling := func(options ...redsync.Option) pair {
		options = append(options, redsync.WithTries(1<<30), redsync.WithExpiry(30*time.Second))
		return func(ctx context.Context, key string, hold time.Duration) error {
			mutex := rs.NewMutex(key, options...)
			if err := mutex.LockContext(ctx); err != nil {
				return err
			}
			time.Sleep(hold)
			_, err := mutex.Unlock()
			return err
		}
	}
	retrying := func(pause time.Duration) pair {
		return func(ctx context.Context, key string, hold time.Duration) error {
			strategy := &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)}
			held, err := bsm.Obtain(ctx, key, 30*time.Second, strategy)
			if err != nil {
				return err
			}
			time.Sleep(hold)
			return held.Release(context.Background())
		}
	}
	return []string{"this package", "redsync", "redsync, 5 ms", "redislock, 100 ms", "redislock, 5 ms", "redislock, 1 ms"}, []pair{
		func(ctx context.Context, key string, hold time.Duration) error {
			held, err := locks.Acquire(ctx, key)
			if err != nil {
				return err
			}
			time.Sleep(hold)
			return held.Release(context.Background())
		},
		polling(), polling(redsync.WithRetryDelay(5 * time.Millisecond)),
		retrying(100 * time.Millisecond), retrying(5 * time.Millisecond), retrying(time.Millisecond),
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
				asked, hold, cancel := ctx, time.Duration(0), func() {}
				if load.patience > 0 {
					hold = time.Millisecond
					asked, cancel = context.WithTimeout(ctx, load.patience)
				}
				if pair(asked, key, hold) == nil {
					count.Add(1)
				}
				cancel()
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
