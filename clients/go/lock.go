// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Lock is one lock, or several locks, with options.
type Lock struct {
	locks   *Locks
	request *request
	owner   *owner
}

// Lock makes a lock with options. It acquires nothing yet. Fails with ErrMisuse if the options do not fit together.
//
// A Lock is one owner, unless it has WithOwner: a second acquire while it holds the lock is ErrDeadlock. So make a Lock for each
// goroutine; it costs no call.
func (l *Locks) Lock(key string, options ...Option) (*Lock, error) {
	r, err := newRequest(key, options)
	if err != nil {
		return nil, err.withKey(key)
	}
	return &Lock{locks: l, request: r}, nil
}

// Acquire makes a Lock with an owner of its own, and acquires it. See Lock.Acquire.
func (l *Locks) Acquire(ctx context.Context, key string, options ...Option) (*Hold, error) {
	lock, err := l.Lock(key, options...)
	if err != nil {
		return nil, err
	}
	return lock.Acquire(ctx)
}

// Try makes a Lock with an owner of its own, and tries it. See Lock.Try.
func (l *Locks) Try(ctx context.Context, key string, options ...Option) (hold *Hold, ok bool, err error) {
	lock, err := l.Lock(key, options...)
	if err != nil {
		return nil, false, err
	}
	return lock.Try(ctx)
}

// Do makes a Lock with an owner of its own, and runs the body while it holds the lock. See Lock.Do.
func (l *Locks) Do(ctx context.Context, key string, body func(ctx context.Context) error, options ...Option) error {
	lock, err := l.Lock(key, options...)
	if err != nil {
		return err
	}
	return lock.Do(ctx, body)
}

// Acquire waits for the lock, first come, first served. The context ends the wait, not the hold. An acquire that fails leaves no
// wait and no hold behind.
//
// Its errors are ErrTimeout, ErrBusy with WithWait(0), ErrDeadlock, ErrMisuse, ErrUnavailable and context.Canceled.
func (l *Lock) Acquire(ctx context.Context) (*Hold, error) {
	hold, err := l.acquire(ctx, l.request.wait)
	return hold, err.withKey(l.key())
}

// Try acquires the lock if it is free. Otherwise ok is false, without an error.
func (l *Lock) Try(ctx context.Context) (hold *Hold, ok bool, err error) {
	hold, failure := l.acquire(ctx, 0)
	if failure != nil && failure.Kind == ErrBusy {
		return nil, false, nil
	}
	return hold, failure == nil, failure.withKey(l.key())
}

// Do runs the body while it holds the lock. The body's context ends with ctx, or when the lock is lost: then context.Cause is
// ErrLost. The body's error is returned before that of the release. If its context was cancelled by a loss, ErrLost matches as
// well.
func (l *Lock) Do(ctx context.Context, body func(ctx context.Context) error) (err error) {
	hold, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	hold.parent = ctx
	defer func() {
		// Also if the body panics.
		released := hold.Release(context.WithoutCancel(ctx))
		switch {
		case err == nil:
			err = released
		case errors.Is(released, ErrLost) && ctx.Err() == nil && errors.Is(err, context.Canceled) && !errors.Is(err, ErrLost):
			err = &Error{Kind: ErrLost, Key: l.key(), Cause: err}
		}
	}()
	return body(hold.Context())
}

// Ends of a wait that are final. After all others but a time-out, the wait continues with a new number.
var finalEnds = map[string]*Error{
	"deadlock":   {Kind: ErrDeadlock, Text: "the wait could never end"},
	"noreplicas": {Kind: ErrUnavailable, Text: "too few replicas acknowledged the grant"},
	"refused":    {Kind: ErrMisuse, Text: "the server refused the grant"},
}

// acquire asks until the lock is granted or the wait is over: after a restart, or on the node that the lock has moved to.
func (l *Lock) acquire(ctx context.Context, wait time.Duration) (hold *Hold, err *Error) {
	if wait != 0 && l.locks.inListener() {
		return nil, misuse("a listener must not wait for a lock; use Try, or another goroutine")
	}
	defer l.locks.lock()()
	began := time.Now()
	defer func() { l.locks.notify(Event{l.request.label, "waited", outcome(err), time.Since(began)}) }()
	until, giveUp := limit(ctx, wait), limit(ctx, max(wait, l.locks.patience))
	for ctx.Err() == nil {
		a := &acquire{owner: l.nextOwner(), isTry: wait == 0, until: until}
		err = l.ask(ctx, a)
		switch {
		case err.is("MOVED") && time.Until(giveUp) > 0:
			// The cluster may need a moment until all nodes agree.
			l.locks.reload()
			a.at.session.sleep(ctx, retryPause)
		case err != nil:
			return nil, err
		case a.state == held:
			return l.hold(ctx, a), nil
		case a.reason == "timeout" && a.isTry:
			return nil, &Error{Kind: ErrBusy, Text: "another owner holds the lock"}
		case a.reason == "timeout":
			err = &Error{Kind: ErrTimeout, Text: "another owner holds the lock"}
			if deadline, _ := ctx.Deadline(); deadline.Equal(until) {
				err.Cause = context.DeadlineExceeded
			}
			return nil, err
		case finalEnds[a.reason] != nil:
			return nil, finalEnds[a.reason]
		}
	}
	return nil, contextError(ctx)
}

// limit is the time after this duration, or the deadline of the context if that is earlier.
func limit(ctx context.Context, span time.Duration) time.Time {
	end := time.Now().Add(span)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		return deadline
	}
	return end
}

func (l *Lock) ask(ctx context.Context, a *acquire) *Error {
	s, err := l.locks.sessionOf(ctx, l.key())
	if err != nil {
		return err
	}
	a.request, a.state, a.at.session, a.granted = l.request, asked, s, time.Now()
	a.leaseEnds = a.granted.Add(forever)
	if err = s.ask(ctx, a); err != nil {
		s.cancel(context.WithoutCancel(ctx), a)
	}
	return err
}

func (l *Lock) nextOwner() *owner {
	if l.request.owner != nil {
		return &owner{name: *l.request.owner}
	}
	if l.owner == nil || l.owner.retired > 0 {
		l.locks.lastOwner++
		l.owner = &owner{name: l.locks.owners + strconv.Itoa(l.locks.lastOwner)}
	}
	return l.owner
}

func (l *Lock) key() string { return l.request.keys[0] }

func (l *Lock) hold(ctx context.Context, a *acquire) *Hold {
	hold := &Hold{lock: l, acquire: a, parent: context.WithoutCancel(ctx)}
	runtime.SetFinalizer(hold, (*Hold).drop)
	return hold
}

// Attach takes over a hold that another process has handed over. Its options are those of this lock. Fails with ErrLost if the
// hold has ended.
func (l *Lock) Attach(ctx context.Context, ticket string) (*Hold, error) {
	parts := append(strings.SplitN(ticket, "|", 3), "", "")
	name, err := hex.DecodeString(parts[0])
	n, wrong := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || wrong != nil || l.request.several() {
		return nil, misuse("a ticket of Hold.HandOver is needed, for one lock").withKey(l.key())
	}
	defer l.locks.lock()()
	a := &acquire{owner: &owner{name: string(name)}, until: limit(ctx, l.request.wait), source: []any{"FROM", parts[2], n}}
	failure := l.ask(ctx, a)
	if failure == nil && a.state != held {
		failure = a.lost()
	}
	if failure != nil {
		return nil, failure.withKey(l.key())
	}
	return l.hold(ctx, a), nil
}

// Query has the reply of LOCK.INFO: holders, waiters and more. It is nil if the lock is free.
func (l *Lock) Query(ctx context.Context) (map[string]any, error) {
	reply, err := l.execute(ctx, "LOCK.INFO", l.key())
	info := asMap(reply)
	if holders, ok := info["holders"].([]any); ok {
		for i, holder := range holders {
			holders[i] = asMap(holder)
		}
	}
	return info, err
}

// ForceRelease takes the lock from its holders, by LOCK.BREAK. It returns whether there was one.
func (l *Lock) ForceRelease(ctx context.Context) (bool, error) {
	reply, err := l.execute(ctx, "LOCK.BREAK", l.key())
	return err == nil && reply != int64(0), err
}

// execute runs a command with the user's own client.
func (l *Lock) execute(ctx context.Context, words ...any) (any, error) {
	reply, err := l.locks.client.Do(ctx, words...).Result()
	if err == nil || errors.Is(err, redis.Nil) {
		return reply, nil
	}
	return nil, classify(err).withKey(l.key())
}

// asMap has the fields of a map, which is a list in RESP2. Otherwise it is nil.
func asMap(reply any) map[string]any {
	fields := map[string]any{}
	switch reply := reply.(type) {
	case map[any]any:
		for name, value := range reply {
			fields[fmt.Sprint(name)] = value
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			fields[fmt.Sprint(reply[i])] = reply[i+1]
		}
	default:
		return nil
	}
	return fields
}

// A Hold is a lock that is held. A Hold that is dropped without Release is released later, with a warning in the log.
type Hold struct {
	lock    *Lock
	acquire *acquire
	parent  context.Context
}

// Key is the key of the lock, or of the first of several locks.
func (h *Hold) Key() string { return h.lock.key() }

// Owner is the name of the holder on the server.
func (h *Hold) Owner() string { return h.acquire.owner.name }

// Token is greater than those of all earlier holds of the lock, with Fenced. Otherwise it is 0. For several locks it is that of
// the first.
func (h *Hold) Token() int64 {
	if len(h.acquire.tokens) == 0 {
		return 0
	}
	return h.acquire.tokens[0]
}

// Tokens has the tokens of all locks, in the order of the keys. Without Fenced it is nil.
func (h *Hold) Tokens() []int64 { return h.acquire.tokens }

// Context ends with the hold. If the hold is lost, context.Cause is ErrLost. It has the values of the context of Acquire.
func (h *Hold) Context() context.Context {
	defer h.lock.locks.lock()()
	return h.acquire.context(h.lock.locks, h.parent)
}

// IsLost is whether the hold ended before its release, so that another owner may have the lock.
func (h *Hold) IsLost() bool {
	defer h.lock.locks.lock()()
	return h.acquire.isLost()
}

// ValidFor is the time for which no other owner can have the lock, even if the network fails. With 0, nothing is proven. Then the
// hold is in jeopardy, lost or released, or the grace of the session is 0.
func (h *Hold) ValidFor() time.Duration {
	defer h.lock.locks.lock()()
	return h.acquire.at.session.validFor(h.acquire)
}

// Release releases exactly this hold. It may be called again. Fails with ErrLost if the hold ended before. If no server answers
// within the patience, it fails with ErrUnavailable, and continues in the background. It is sent once even if the context has
// ended.
func (h *Hold) Release(ctx context.Context) error {
	defer runtime.KeepAlive(h)
	defer h.lock.locks.lock()()
	return h.acquire.at.session.release(ctx, h.acquire).withKey(h.Key())
}

// Extend sets the lease, from now. With 0 it repeats the lease of the lock, or checks a renewed hold. Fails with ErrLost,
// ErrUnavailable, or with ErrMisuse if the server renews the hold and a lease is given.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	defer runtime.KeepAlive(h)
	defer h.lock.locks.lock()()
	own := h.lock.request.lease
	switch {
	case lease < 0 || lease > 0 && !isLimited(own):
		return misuse("only a hold with a lease can be extended, and not by a negative time").withKey(h.Key())
	case lease > 0:
		own = min(lease, longest)
	}
	return h.acquire.at.session.renew(ctx, h.acquire, own).withKey(h.Key())
}

// Guard runs a Redis command in one step with the check that this owner holds the lock. Fails with ErrLost if it does not.
func (h *Hold) Guard(ctx context.Context, command ...any) (any, error) {
	defer runtime.KeepAlive(h)
	if h.lock.request.several() {
		return nil, misuse("a guarded command works with one lock").withKey(h.Key())
	}
	unlock := h.lock.locks.lock()
	isLost, lost := h.acquire.isLost(), h.acquire.lost()
	unlock()
	if isLost {
		return nil, lost.withKey(h.Key())
	}
	return h.lock.execute(ctx, append([]any{"LOCK.GUARD", h.Key(), "OWNER", h.Owner()}, command...)...)
}

// HandOver returns a ticket, with which another process takes over this hold by Lock.Attach. Until then this process keeps the
// hold alive. Release does nothing from now on. Fails with ErrLost if the hold has ended.
func (h *Hold) HandOver() (string, error) {
	defer h.lock.locks.lock()()
	a := h.acquire
	switch {
	case h.lock.request.several():
		return "", misuse("several locks cannot be handed over together").withKey(h.Key())
	case a.state != held || a.isLost():
		return "", a.lost().withKey(h.Key())
	}
	a.isHandedOver = true
	a.owner.retired++
	return fmt.Sprintf("%x|%d|%s", a.owner.name, a.at.n, h.lock.locks.name), nil
}

// drop is called by the garbage collector.
func (h *Hold) drop() {
	defer h.lock.locks.lock()()
	if a := h.acquire; a.state == held && !a.isHandedOver && !h.lock.locks.isClosed {
		a.at.session.abandon(a, "released")
		slog.Warn("a hold was never released; use Do, or defer Release", "key", h.Key(), "owner", h.Owner())
	}
}
