// Works under a lock, with go-redis: waits for it, renews it in the background, gives it back. Start two:
//
//	redis-server --loadmodule target/release/libredis_lock.so
//	cd examples/clients/go
//	go run . redis://127.0.0.1:6379 example:lock 5
//
// After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what
// a round takes, and how long to wait for the lock at most.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	resource = "example:resource"
	inside   = "example:inside"
)

var errNotGranted = errors.New("not granted in time")

func isNotOwner(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "NOTOWNER")
}

// withLock runs work while owner holds the lock. The context that work gets is cancelled if the lock is lost.
func withLock(
	ctx context.Context, rdb *redis.Client, key, owner string, lease, wait time.Duration,
	work func(context.Context) error,
) (err error) {
	// A call that waits takes a connection of the pool for itself. Its read timeout, 3 s unless set, must be longer
	// than BLOCK: otherwise go-redis gives up and sends the call again. It does so after a broken connection, too.
	// With an ID that is new for each call, a repetition gets the reply that was lost instead of a second hold.
	waiting := rdb.WithTimeout(wait + 5*time.Second)
	err = waiting.Do(ctx, "LOCK.ACQUIRE", key, owner, "PX", lease.Milliseconds(), "BLOCK", wait.Milliseconds(),
		"ID", newID()).Err()
	if err == redis.Nil {
		return errNotGranted
	} else if err != nil {
		return err
	}

	// The server can do the renewing instead: acquire with WATCHDOG on a connection that stays open and is not given
	// back to the pool, waiting.Conn().Process(ctx, redis.NewCmd(ctx, "LOCK.ACQUIRE", …)).
	working, stop := context.WithCancel(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		ticker := time.NewTicker(lease / 3)
		defer ticker.Stop()
		for {
			select {
			case <-working.Done():
				return
			case <-ticker.C:
				// Any other error, such as a broken connection, may be over the next time.
				if isNotOwner(rdb.Do(working, "LOCK.RENEW", key, owner, "PX", lease.Milliseconds()).Err()) {
					stop()
				}
			}
		}
	}()
	defer func() {
		stop()
		<-renewed
		// NOTOWNER if the lease ran out, or somebody broke the lock: others may have worked at the same time. It is
		// what the caller gets then, whatever else the work has returned.
		released := rdb.Do(context.Background(), "LOCK.RELEASE", key, owner, "ID", newID()).Err()
		if err == nil || isNotOwner(released) {
			err = released
		}
	}()
	return work(working)
}

// increment reads, and writes what it has read plus one: wrong if anybody else works in between.
func increment(ctx context.Context, rdb *redis.Client, takes time.Duration) error {
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
	return rdb.Set(ctx, resource, value+1, 0).Err()
}

func newID() string {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err)
	}
	return hex.EncodeToString(id)
}

func run(url, key string, rounds int, lease, takes, wait time.Duration) error {
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	// Whoever uses the same string is the same owner: so it is random, and one for each goroutine that locks.
	owner := newID()
	for finished := 0; finished < rounds; {
		err := withLock(context.Background(), rdb, key, owner, lease, wait, func(ctx context.Context) error {
			return increment(ctx, rdb, takes)
		})
		switch {
		case err == nil:
			finished++
			fmt.Printf("round %d of %d is done\n", finished, rounds)
		case err == errNotGranted:
			fmt.Printf("not granted within %d ms, trying again\n", wait.Milliseconds())
		case isNotOwner(err):
			return fmt.Errorf("the lock was lost, the result of this round must not be trusted: %w", err)
		default:
			return err
		}
	}
	return nil
}

func main() {
	args := os.Args[1:]
	// rounds, and in milliseconds: lease, work, wait
	numbers := []int{0, 3000, 5000, 30000}
	for i := 2; i < len(args) && i < 6; i++ {
		var err error
		if numbers[i-2], err = strconv.Atoi(args[i]); err != nil {
			args = nil
		}
	}
	if len(args) < 3 || len(args) > 6 {
		fmt.Fprintln(os.Stderr, "usage: worker URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS]]]")
		os.Exit(2)
	}
	ms := func(i int) time.Duration { return time.Duration(numbers[i]) * time.Millisecond }
	if err := run(args[0], args[1], numbers[0], ms(1), ms(2), ms(3)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
