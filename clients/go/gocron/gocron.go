// SPDX-License-Identifier: MIT

// Package gocron has the locker of gocron's distributed jobs: the first of several processes runs the job.
//
//	gocron.NewScheduler(gocron.WithDistributedLocker(lockgocron.New(locks)))
package gocron

import (
	"context"

	"github.com/go-co-op/gocron/v2"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

// New makes a gocron.Locker. It does not wait: a job that another process runs is skipped, with lock.ErrBusy. The server renews
// the lock while the job runs, unless the options have a lease.
func New(locks *lock.Locks, options ...lock.Option) gocron.Locker {
	return locker{locks, append(options[:len(options):len(options)], lock.WithWait(0))}
}

type locker struct {
	locks   *lock.Locks
	options []lock.Option
}

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	hold, err := l.locks.Acquire(ctx, key, l.options...)
	if err != nil {
		return nil, err
	}
	return held{hold}, nil
}

type held struct{ hold *lock.Hold }

// Unlock releases the lock. The release continues if the scheduler shuts down and has cancelled the context.
func (h held) Unlock(ctx context.Context) error { return h.hold.Release(context.WithoutCancel(ctx)) }
