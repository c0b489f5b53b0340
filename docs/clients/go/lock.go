// SPDX-License-Identifier: MIT

package main

// The part to copy: locks for a program with many goroutines, over go-redis.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// How long a call may take that the server answers at once, with all its repetitions.
const callTimeout = 5 * time.Second

// ErrNotGranted says that it was not our turn in time.
var ErrNotGranted = errors.New("not granted in time")

// LostError says that others may have worked at the same time: the result must not be trusted.
type LostError struct{ Cause error }

func (e *LostError) Error() string { return e.Cause.Error() }
func (e *LostError) Unwrap() error { return e.Cause }

var errUnconfirmed = errors.New("no renewal was confirmed before the lease was over")

// Locker acquires locks, and has its own connections for that.
type Locker struct {
	// For all that is answered at once. It is no pool that waiting calls or the program's work can take all
	// connections of: a RENEW that waits for one may come too late.
	calls *redis.Client
	// For calls that wait: a client of one connection for each, as go-redis can end such a call only by closing its
	// client. A call that ended otherwise leaves it to the next one.
	waiting redis.Options
	idle    chan *redis.Client
}

// NewLocker takes the address and the like from the options.
func NewLocker(options *redis.Options) *Locker {
	calls, waiting := *options, *options
	// So the deadline of a context is the end of a call, and of its repetitions.
	calls.ContextTimeoutEnabled, waiting.ContextTimeoutEnabled = true, true
	// No time-out but that deadline: with its usual 3 s go-redis would give up, and call again, before BLOCK is over.
	waiting.ReadTimeout, waiting.WriteTimeout = -1, -1
	waiting.PoolSize, waiting.MinIdleConns = 1, 0
	return &Locker{calls: redis.NewClient(&calls), waiting: waiting, idle: make(chan *redis.Client, 100)}
}

// Acquire waits for the lock until wait is over or ctx ends.
func (l *Locker) Acquire(ctx context.Context, key string, lease, wait time.Duration) (*Hold, error) {
	// The server ends the wait; this finds a server that has vanished.
	ctx, cancel := context.WithTimeout(ctx, wait+callTimeout)
	defer cancel()
	// Whoever uses the same string is the same owner. With a new one each time, nothing that was sent for an earlier
	// hold and arrives late, such as a release, can touch this one.
	owner := newID()
	// go-redis calls again when the connection broke. With an ID, new for each call, that gets the reply that was lost
	// instead of a second hold; and LOCK.CANCEL knows by it what to undo.
	id := newID()
	var client *redis.Client
	select {
	case client = <-l.idle:
	default:
		options := l.waiting
		client = redis.NewClient(&options)
	}

	type reply struct {
		value interface{}
		err   error
	}
	replied := make(chan reply, 1)
	sent := time.Now()
	go func() {
		value, err := client.Do(ctx, "LOCK.ACQUIRE", key, owner, "PX", lease.Milliseconds(),
			"BLOCK", wait.Milliseconds(), "FENCE", "ID", id).Result()
		replied <- reply{value, err}
	}()
	var got reply
	select {
	case got = <-replied:
		select {
		case l.idle <- client:
		default:
			client.Close()
		}
	case <-ctx.Done():
		got.err = ctx.Err()
		client.Close()
	}

	var fromServer redis.Error
	switch {
	case got.err == nil:
		return l.hold(key, owner, id, got.value, sent, lease)
	case got.err == redis.Nil:
		return nil, ErrNotGranted
	case errors.As(got.err, &fromServer):
		return nil, got.err
	default:
		// Cancelled, or the connection broke: the call may wait, or be granted, or be on its way.
		if err := l.undo(key, owner, id); err != nil {
			return nil, err
		}
		return nil, got.err
	}
}

// undo sees to it that nothing waits and nothing is held, whatever has become of the call with this ID.
func (l *Locker) undo(key, owner, id string) error {
	if err := l.call(callTimeout, "LOCK.CANCEL", key, owner, "ID", id); err != nil {
		return fmt.Errorf("what was asked for may be held until its lease is over: LOCK.CANCEL: %w", err)
	}
	return nil
}

func (l *Locker) call(timeout time.Duration, args ...interface{}) error {
	if timeout > callTimeout {
		timeout = callTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return l.calls.Do(ctx, args...).Err()
}

// Close is for the end, when nobody waits and nothing is held.
func (l *Locker) Close() {
	for {
		select {
		case client := <-l.idle:
			client.Close()
		default:
			l.calls.Close()
			return
		}
	}
}

// Hold is a lock that is held, and renewed, until it is released or lost.
type Hold struct {
	// Token grows with each grant of the lock: a store that refuses a smaller one than it has seen is safe from
	// whoever has lost the lock and does not know it yet.
	Token int64

	locker     *Locker
	key, owner string
	lease      time.Duration
	ctx        context.Context
	cancel     context.CancelFunc
	ending     sync.Once
	lost       error // why; nil if it has not been
	expiry     *time.Timer
	renewing   chan struct{}
}

func (l *Locker) hold(key, owner, id string, reply interface{}, sent time.Time, lease time.Duration) (*Hold, error) {
	h := &Hold{Token: tokenOf(reply), locker: l, key: key, owner: owner, lease: lease, renewing: make(chan struct{})}
	// All that is known of the grant is that it came after the call was sent. If that was long ago, much of the lease
	// may be left, or nothing: only a call that is sent now tells.
	if time.Since(sent) > lease/3 {
		sent = time.Now()
		if h.renew() != nil {
			// Nothing has been done under the lock, so nothing is lost but the turn.
			if err := l.undo(key, owner, id); err != nil {
				return nil, err
			}
			return nil, ErrNotGranted
		}
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.expiry = time.AfterFunc(time.Until(sent.Add(lease)), func() { h.end(errUnconfirmed) })
	go h.keep()
	return h, nil
}

// Context ends when the lock is lost: at the latest one lease after the last confirmed call was sent, by the monotonic
// clock of this process, which then needs nothing from a network that may be gone.
func (h *Hold) Context() context.Context { return h.ctx }

// The server can do the renewing instead: acquire with WATCHDOG, and keep the connection until the release.
func (h *Hold) keep() {
	defer close(h.renewing)
	ticker := time.NewTicker(h.lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-ticker.C:
			sent := time.Now()
			if err := h.renew(); err == nil {
				h.expiry.Reset(time.Until(sent.Add(h.lease)))
			} else if isNotOwner(err) {
				h.end(err)
			}
			// Any other error, such as a broken connection, may be over the next time.
		}
	}
}

func (h *Hold) renew() error {
	// A call that hangs leaves time for another one.
	return h.locker.call(h.lease/3, "LOCK.RENEW", h.key, h.owner, "PX", h.lease.Milliseconds())
}

func (h *Hold) end(lost error) {
	h.ending.Do(func() {
		h.lost = lost
		h.cancel()
	})
}

// Release gives the lock back. A LostError is more important than whatever else the work has returned.
func (h *Hold) Release() error {
	h.end(nil)
	<-h.renewing
	h.expiry.Stop()
	err := h.locker.call(callTimeout, "LOCK.RELEASE", h.key, h.owner, "ID", newID())
	if h.lost != nil {
		return &LostError{h.lost}
	} else if isNotOwner(err) {
		return &LostError{err}
	}
	return err
}

// tokenOf reads the reply to FENCE: a map in RESP3, which go-redis speaks unless told otherwise; in RESP2 the same as a
// flat list.
func tokenOf(reply interface{}) (token int64) {
	switch reply := reply.(type) {
	case map[interface{}]interface{}:
		token, _ = reply["token"].(int64)
	case []interface{}:
		for i := 0; i+1 < len(reply); i += 2 {
			if reply[i] == "token" {
				token, _ = reply[i+1].(int64)
			}
		}
	}
	return token
}

func isNotOwner(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOTOWNER") }

func newID() string {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err)
	}
	return hex.EncodeToString(id)
}
