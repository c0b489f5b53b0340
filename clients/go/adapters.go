// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// campaignAgain is the pause of Elect after the server could not be reached.
const campaignAgain = time.Second

// Locker is the lock as a sync.Locker. Lock and Unlock panic with the error if they fail: so it is only for code that wants
// nothing else. Several goroutines may share it, as they do a sync.Mutex.
func (l *Locks) Locker(key string, options ...Option) sync.Locker {
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
		panic(&Error{Kind: ErrMisuse, Key: l.key, Text: "unlocked, but not locked"})
	}
	hold := l.holds[0]
	l.holds = l.holds[1:]
	l.mu.Unlock()
	if err := hold.Release(context.Background()); err != nil {
		panic(err)
	}
}

// Elect carries out lead while this process is the leader: the one that has the lock. If it loses that, lead's context ends, and
// when lead has returned it stands again; also when the server could not be reached. Elect ends when lead returns while it
// is still the leader: with nil, if the lock could be given back, and with an error when ctx ends, or when the call is wrong.
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
			return of(key, ended(ctx))
		case errors.Is(err, ErrLost) && l.session.closing.Err() == nil:
		case errors.Is(err, ErrUnavailable) && l.session.closing.Err() == nil:
			_ = sleep(ctx, campaignAgain)
		default:
			return err
		}
	}
}
