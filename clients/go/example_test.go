// SPDX-License-Identifier: MIT

package lock_test

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	lock "redislock.example/lock"
)

// What the README shows compiles.
func Example() {
	var ctx context.Context
	work := func(context.Context) error { return nil }
	write := func(int64) {}
	_ = func() error {
		locks, err := lock.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
		if err != nil {
			return err
		}
		defer locks.Close()
		if err := locks.Do(ctx, "order:42", func(ctx context.Context) error {
			return work(ctx)
		}); err != nil {
			return err
		}
		hold, err := locks.Acquire(ctx, "order:42", lock.WithWait(2*time.Second), lock.WithLease(10*time.Second), lock.Fenced())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, hold.Release(ctx)) }()
		write(hold.Token())
		if hold, ok, err := locks.Try(ctx, "report"); ok && err == nil {
			defer func() { _ = hold.Release(ctx) }()
		}
		if err := locks.Do(ctx, "catalogue", work, lock.Shared()); err != nil {
			return err
		}
		_, err = hold.Guard(ctx, "SET", "result", "42")
		return err
	}
}
