// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// electionPause is the pause of Elect after the server could not be reached.
const electionPause = time.Second

// Locker is the lock as a sync.Locker, which goroutines share like a sync.Mutex. It panics if the options are wrong, and its
// methods panic if they fail. So use it only for code that needs a sync.Locker.
func (l *Locks) Locker(key string, options ...Option) sync.Locker {
	if _, err := l.Lock(key, options...); err != nil {
		panic(err)
	}
	return &locker{locks: l, key: key, options: options}
}

type locker struct {
	locks   *Locks
	key     string
	options []Option
	mu      sync.Mutex
	holds   []*Hold
}

func (l *locker) Lock() {
	hold, err := l.locks.Acquire(context.Background(), l.key, l.options...)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = append(l.holds, hold)
}

func (l *locker) Unlock() {
	l.mu.Lock()
	if len(l.holds) == 0 {
		l.mu.Unlock()
		panic(misuse("it is not locked").withKey(l.key))
	}
	hold := l.holds[0]
	l.holds = l.holds[1:]
	l.mu.Unlock()
	if err := hold.Release(context.Background()); err != nil {
		panic(err)
	}
}

// Elect runs lead while this process is the leader: the holder of the lock. The context of lead ends if the lock is lost. When
// lead has returned after a loss, the process stands for election again, also if no server could be reached.
//
// Elect returns when lead returns while it is the leader, when ctx ends, or if the call is wrong.
func (l *Locks) Elect(ctx context.Context, key string, lead func(ctx context.Context), options ...Option) error {
	for {
		resigned := false
		err := l.Do(ctx, key, func(ctx context.Context) error {
			lead(ctx)
			resigned = ctx.Err() == nil
			return nil
		}, options...)
		switch {
		case resigned:
			return err
		case ctx.Err() != nil:
			return contextError(ctx).withKey(key)
		case errors.Is(err, ErrLost):
		case errors.Is(err, ErrUnavailable):
			select {
			case <-time.After(electionPause):
			case <-ctx.Done():
			}
		default:
			return err
		}
	}
}
