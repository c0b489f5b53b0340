// SPDX-License-Identifier: MIT

// Works under a lock, with go-redis: waits for it, renews it in the background, gives it back. Start two:
//
//	redis-server --loadmodule target/release/libredis_lock.so
//	cd docs/clients/go
//	go run . redis://127.0.0.1:6379 example:lock 5
//
// After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what a round
// takes, and how long to wait for the lock at most. Then how many goroutines do so many rounds each, and after how many
// milliseconds at most an attempt to get the lock is cancelled (0: never).
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	resource = "example:resource"
	token    = "example:token"
	inside   = "example:inside"
)

// How long a round may take, in parts.
type plan struct{ lease, work, wait, cancel time.Duration }

func task(rdb *redis.Client, locker *Locker, key string, rounds int, plan plan) error {
	for finished := 0; finished < rounds; {
		err := round(rdb, locker, key, plan)
		var lost *LostError
		switch {
		case err == nil:
			finished++
			fmt.Printf("round %d of %d is done\n", finished, rounds)
		case err == context.Canceled:
			finished++
			fmt.Println("cancelled")
		case err == ErrNotGranted:
			fmt.Printf("not granted within %d ms, trying again\n", plan.wait.Milliseconds())
		case errors.As(err, &lost):
			return fmt.Errorf("the lock was lost, the result of this round must not be trusted: %w", lost)
		default:
			return err
		}
	}
	return nil
}

func round(rdb *redis.Client, locker *Locker, key string, plan plan) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if plan.cancel > 0 {
		time.AfterFunc(time.Duration(rand.Int63n(int64(plan.cancel))), cancel)
	}
	hold, err := locker.Acquire(ctx, key, plan.lease, plan.wait)
	if err != nil {
		return err
	}
	defer func() {
		released := hold.Release()
		var lost *LostError
		if err == nil || errors.As(released, &lost) {
			err = released
		}
	}()
	return increment(hold, rdb, plan.work)
}

// increment reads, and writes what it has read plus one: wrong if anybody else works in between.
func increment(hold *Hold, rdb *redis.Client, takes time.Duration) error {
	ctx := hold.Context()
	count, err := rdb.Incr(ctx, inside).Result()
	if err != nil {
		return err
	}
	defer rdb.Decr(context.Background(), inside)
	if count != 1 {
		fmt.Fprintln(os.Stderr, "OVERLAP: somebody else is at work, too")
	}
	value, err := rdb.Get(ctx, resource).Int()
	if err != nil && err != redis.Nil {
		return err
	}
	// The pause stands for the work. Whatever takes a context ends when the lock is lost.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(takes):
	}
	// With the token beside it, whoever reads it knows under which grant it was written.
	return rdb.MSet(ctx, resource, value+1, token, hold.Token).Err()
}

// run gives the exit status.
func run(url, key string, rounds, tasks int, plan plan) int {
	options, err := redis.ParseURL(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	locker := NewLocker(options)
	defer locker.Close()
	// An INCR whose reply was lost must not be repeated: that would look like an overlap.
	options.MaxRetries, options.ReadTimeout = -1, callTimeout
	rdb := redis.NewClient(options)
	defer rdb.Close()

	errs := make(chan error, tasks)
	for i := 0; i < tasks; i++ {
		go func() { errs <- task(rdb, locker, key, rounds, plan) }()
	}
	status := 0
	for i := 0; i < tasks; i++ {
		if err := <-errs; err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	return status
}

func main() {
	args := os.Args[1:]
	// rounds; in milliseconds lease, work, wait; tasks; in milliseconds cancel
	numbers := []int{0, 3000, 5000, 30000, 1, 0}
	wrong := len(args) < 3 || len(args) > 2+len(numbers)
	for i := 2; i < len(args) && !wrong; i++ {
		var err error
		numbers[i-2], err = strconv.Atoi(args[i])
		wrong = err != nil
	}
	if wrong {
		fmt.Fprintln(os.Stderr, "usage: worker URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS [TASKS [CANCEL_MS]]]]]")
		os.Exit(2)
	}
	ms := func(i int) time.Duration { return time.Duration(numbers[i]) * time.Millisecond }
	os.Exit(run(args[0], args[1], numbers[0], numbers[4], plan{ms(1), ms(2), ms(3), ms(5)}))
}
