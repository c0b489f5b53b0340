// SPDX-License-Identifier: MIT

// Bench compares this package with redsync: one lock, many who want it, a millisecond of work.
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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	lock "redislock.example/lock"
)

const work = time.Millisecond

// way is to hold the lock once, for the work. It says whether it had the lock.
type way struct {
	name string
	hold func(ctx context.Context) bool
}

func main() {
	module, seconds := "../../../target/release/libredis_lock.so", 5
	if len(os.Args) > 1 {
		module = os.Args[1]
	}
	if len(os.Args) > 2 {
		seconds = must(strconv.Atoi(os.Args[2]))
	}
	fmt.Printf("%-28s %8s %10s %14s %16s %14s\n", "", "who want", "locks/s", "longest wait", "never had it", "CPU µs/lock")
	for _, many := range []int{2, 50, 200} {
		for number := 0; number < 4; number++ {
			measure(must(filepath.Abs(module)), number, many, time.Duration(seconds)*time.Second)
		}
	}
}

func ways(client *redis.Client, locks *lock.Locks) []way {
	rs := redsync.New(goredis.NewPool(client))
	polling := func(options ...redsync.Option) func(context.Context) bool {
		// It would give up after 32 times.
		options = append(options, redsync.WithTries(1<<30))
		return func(ctx context.Context) bool {
			mutex := rs.NewMutex("redsync", options...)
			if mutex.LockContext(ctx) != nil {
				return false
			}
			time.Sleep(work)
			_, _ = mutex.Unlock()
			return true
		}
	}
	return []way{
		{"this package", func(ctx context.Context) bool {
			return locks.Do(ctx, "lock", func(context.Context) error { time.Sleep(work); return nil }) == nil
		}},
		{"this package, own connection", func(ctx context.Context) bool {
			body := func(context.Context) error { time.Sleep(work); return nil }
			return locks.Do(ctx, "lock", body, lock.WithOwnConnection(), lock.WithLease(time.Minute)) == nil
		}},
		{"redsync, its own delays", polling()},
		{"redsync, asks every 5 ms", polling(redsync.WithRetryDelay(5 * time.Millisecond))},
	}
}

// measure has a server of its own, so that its CPU time is that of this.
func measure(module string, number, many int, span time.Duration) {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	folder := must(os.MkdirTemp("", "bench"))
	defer os.RemoveAll(folder)
	server := exec.Command("redis-server", "--port", fmt.Sprint(port), "--save", "", "--dir", folder, "--loadmodule", module)
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port)})
	defer client.Close()
	for deadline := time.Now().Add(10 * time.Second); client.Ping(context.Background()).Err() != nil; {
		if time.Now().After(deadline) {
			panic("there is no server")
		}
		time.Sleep(5 * time.Millisecond)
	}
	locks := must(lock.New(client))
	defer locks.Close()
	how := ways(client, locks)[number]
	before := cpu(client)
	ctx, cancel := context.WithTimeout(context.Background(), span)
	defer cancel()
	var mu sync.Mutex
	var longest time.Duration
	var all sync.WaitGroup
	held, never := 0, 0
	for n := 0; n < many; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			mine := 0
			var worst time.Duration
			for ctx.Err() == nil {
				began := time.Now()
				got := how.hold(ctx)
				wait := time.Since(began)
				if got {
					mine++
					wait -= work
				}
				worst = max(worst, wait)
			}
			mu.Lock()
			defer mu.Unlock()
			held += mine
			longest = max(longest, worst)
			if mine == 0 {
				never++
			}
		}()
	}
	all.Wait()
	used := cpu(client) - before
	fmt.Printf("%-28s %8d %10.0f %14v %16d %14.0f\n", how.name, many, float64(held)/span.Seconds(), longest.Round(time.Millisecond),
		never, used*1e6/float64(max(held, 1)))
}

// cpu is what the server has used, in seconds.
func cpu(client *redis.Client) (sum float64) {
	for _, line := range strings.Split(client.Info(context.Background(), "cpu").Val(), "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			sum += must(strconv.ParseFloat(value, 64))
		}
	}
	return sum
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
