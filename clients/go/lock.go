// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"
)

// A Lock is one lock, or several locks, with options.
type Lock struct {
	locks                    *Locks
	keys                     []string
	wait, lease, maxHold     time.Duration
	limit                    *int
	label                    string
	shared, fence, reentrant bool
	// invalid is what is wrong with the options, if anything.
	invalid *Error
	// owner is the name under which it acquires, and isNamed whether the user chose it.
	owner   string
	isNamed bool
	// holds counts the acquires that are held.
	holds int
}

// Lock makes a lock with options. It acquires nothing yet. Fails with ErrMisuse if the options do not fit together.
//
// A Lock is one owner, unless it has WithOwner: a second acquire while it holds the lock is ErrDeadlock. So make a Lock for each
// goroutine; it costs no call.
func (l *Locks) Lock(key string, options ...Option) (*Lock, error) {
	lock := l.newLock(key, options)
	if lock.invalid != nil {
		return nil, lock.invalid.withKey(key)
	}
	return lock, nil
}

func (l *Locks) newLock(key string, options []Option) *Lock {
	lock := &Lock{locks: l, owner: l.newOwner(), keys: []string{key}, wait: forever, lease: forever, maxHold: forever}
	for _, option := range options {
		option(lock)
	}
	lock.invalid = lock.check()
	return lock
}

// Acquire makes a Lock with an owner of its own, and acquires it. See Lock.Acquire.
func (l *Locks) Acquire(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return l.newLock(key, options).Acquire(ctx)
}

// Try makes a Lock with an owner of its own, and tries it. See Lock.Try.
func (l *Locks) Try(ctx context.Context, key string, options ...Option) (hold *Hold, ok bool, err error) {
	return l.newLock(key, options).Try(ctx)
}

// Do makes a Lock with an owner of its own, and runs the body while it holds the lock. See Lock.Do.
func (l *Locks) Do(ctx context.Context, key string, body func(ctx context.Context) error, options ...Option) error {
	return l.newLock(key, options).Do(ctx, body)
}

// Acquire waits for the lock, first come, first served. The context ends the wait, not the hold. An acquire that fails leaves no
// wait and no hold behind.
//
// Its errors are ErrTimeout, ErrBusy with WithWait(0), ErrDeadlock, ErrMisuse, ErrUnavailable and context.Canceled.
func (l *Lock) Acquire(ctx context.Context) (*Hold, error) {
	hold, err := l.acquire(ctx, l.wait, context.WithoutCancel(ctx))
	return hold, err.withKey(l.key())
}

// Try acquires the lock if it is free. Otherwise ok is false, without an error.
func (l *Lock) Try(ctx context.Context) (hold *Hold, ok bool, err error) {
	hold, failure := l.acquire(ctx, 0, context.WithoutCancel(ctx))
	if failure != nil && failure.Kind == ErrBusy {
		return nil, false, nil
	}
	return hold, failure == nil, failure.withKey(l.key())
}

// Do runs the body while it holds the lock. The body's context ends with ctx, or when the lock is lost: then context.Cause is
// ErrLost. The body's error is returned before that of the release. If its context was cancelled by a loss, ErrLost matches as
// well.
func (l *Lock) Do(ctx context.Context, body func(ctx context.Context) error) (err error) {
	hold, failure := l.acquire(ctx, l.wait, ctx)
	if failure != nil {
		return failure.withKey(l.key())
	}
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

// finalEnds of a wait are errors. After all others but a time-out, the wait continues with a new number.
var finalEnds = map[string]*Error{
	"deadlock":   {Kind: ErrDeadlock, Text: "the wait could never end"},
	"noreplicas": {Kind: ErrUnavailable, Text: "too few replicas acknowledged the grant"},
	"refused":    {Kind: ErrMisuse, Text: "the server refused the grant"},
	"cancelled":  errClosed,
}

// acquire asks until the lock is granted or the wait is over: after a restart, or on the node that the lock has moved to. The
// context of the hold has the parent.
func (l *Lock) acquire(ctx context.Context, wait time.Duration, parent context.Context) (hold *Hold, err *Error) {
	if l.invalid != nil {
		return nil, l.invalid
	}
	defer l.locks.lock()()
	began := time.Now()
	defer func() { l.locks.notify(Event{l.label, "waited", outcome(err), time.Since(began)}) }()
	until := limit(ctx, wait)
	for ctx.Err() == nil {
		owner, err := l.nextOwner(ctx)
		if err != nil {
			return nil, err
		}
		a := &acquire{lock: l, owner: owner, isTry: wait == 0, until: until}
		err = a.ask(ctx)
		switch {
		case err != nil:
			return nil, err
		case a.state == held:
			return l.hold(a, parent), nil
		case a.reason == "timeout" && a.isTry:
			return nil, &Error{Kind: ErrBusy, Text: "another owner holds the lock"}
		case a.reason == "timeout":
			err = &Error{Kind: ErrTimeout, Text: "another owner holds the lock"}
			if deadline, _ := ctx.Deadline(); deadline.Equal(until) {
				err.Cause = context.DeadlineExceeded
			}
			return nil, err
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

// nextOwner is the owner of the next acquire. While the server may still have to undo an acquire, its owner is not used again, as
// a call of it may be late.
func (l *Lock) nextOwner(ctx context.Context) (string, *Error) {
	giveUp := limit(ctx, l.locks.patience)
	for a := range l.locks.undos {
		if a.owner == l.owner {
			l.changeOwner()
		}
		if a.owner == l.owner {
			if err := a.wait(ctx, giveUp, func() bool { return a.state == over }); err != nil {
				return "", err
			}
		}
	}
	return l.owner, nil
}

// changeOwner lets the next acquire have another owner, unless this one is named, or holds something and may acquire it again.
func (l *Lock) changeOwner() {
	if !l.isNamed && l.holds == 0 {
		l.owner = l.locks.newOwner()
	}
}

func (l *Lock) key() string { return l.keys[0] }

// hold gives a hold to its user. Its context ends with the parent as well.
func (l *Lock) hold(a *acquire, parent context.Context) *Hold {
	a.ctx, a.endCtx = context.WithCancelCause(parent)
	if l.isLeased() {
		a.expiry = time.AfterFunc(time.Until(a.leaseEnds), func() {
			defer l.locks.lock()()
			// A release that is on its way ends the hold itself.
			if a.state == held && !a.isReleasing && time.Until(a.leaseEnds) <= 0 {
				a.end("expired", true)
			}
		})
	}
	hold := &Hold{a}
	runtime.SetFinalizer(hold, (*Hold).drop)
	return hold
}

// Attach takes over a hold that another process has handed over. Its options are those of this lock. Fails with ErrLost if the
// hold has ended.
func (l *Lock) Attach(ctx context.Context, ticket string) (*Hold, error) {
	var owner string
	var n int64
	if _, err := fmt.Sscanf(ticket, "%x|%d|", &owner, &n); err != nil || l.several() {
		return nil, misuse("a ticket of Hold.HandOver is needed, for one lock").withKey(l.key())
	}
	name := strings.SplitN(ticket, "|", 3)[2]
	defer l.locks.lock()()
	a := &acquire{lock: l, owner: owner, until: limit(ctx, l.wait), source: []any{"FROM", name, n}}
	err := a.ask(ctx)
	if err == nil && a.state != held {
		err = a.lost()
	}
	if err != nil {
		return nil, err.withKey(l.key())
	}
	return l.hold(a, context.WithoutCancel(ctx)), nil
}

// Query has the reply of LOCK.INFO: holders, waiters and more. It is nil if the lock is free.
func (l *Lock) Query(ctx context.Context) (map[string]any, error) {
	reply, err := l.execute(ctx, "LOCK.INFO", l.key())
	if reply == nil {
		return nil, err
	}
	info := asMap(reply)
	holders, _ := info["holders"].([]any)
	for i, holder := range holders {
		holders[i] = asMap(holder)
	}
	return info, nil
}

// ForceRelease takes the lock from its holders, by LOCK.BREAK. It returns whether there was one.
func (l *Lock) ForceRelease(ctx context.Context) (bool, error) {
	reply, err := l.execute(ctx, "LOCK.BREAK", l.key())
	return err == nil && reply != int64(0), err
}

// execute runs a command by the user's own client. It is not repeated without a reply, as the server may have executed it.
func (l *Lock) execute(ctx context.Context, words ...any) (any, error) {
	for pause := retryPause; ; pause *= 2 {
		client, failure := l.locks.clientOf(ctx, l.key())
		if failure != nil {
			return nil, classify(failure).withKey(l.key())
		}
		reply, failure := once(client).Do(ctx, words...).Result()
		if err := classify(failure); !err.is("MOVED") || pause > maxRetryPause || ctx.Err() != nil || !l.locks.reload() {
			return reply, err.withKey(l.key())
		}
		time.Sleep(pause)
	}
}

// asMap has the fields of a map, which is a list in RESP2. It is nil for everything else.
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
type Hold struct{ *acquire }

// Key is the key of the lock, or of the first of several locks.
func (h *Hold) Key() string { return h.lock.key() }

// Owner is the name of the holder on the server.
func (h *Hold) Owner() string { return h.owner }

// Token is greater than those of all earlier holds of the lock, with Fenced. Otherwise it is 0. For several locks it is that of
// the first.
func (h *Hold) Token() int64 {
	if len(h.tokens) == 0 {
		return 0
	}
	return h.tokens[0]
}

// Tokens has the tokens of all locks, in the order of the keys. Without Fenced it is nil.
func (h *Hold) Tokens() []int64 { return h.tokens }

// Context ends with the hold. If the hold is lost, context.Cause is ErrLost. It has the values of the context of Acquire.
func (h *Hold) Context() context.Context { return h.ctx }

// IsLost is whether the hold ended before its release, so that another owner may have the lock.
func (h *Hold) IsLost() bool {
	defer h.lock.locks.lock()()
	return h.isLost()
}

// ValidFor is the time for which no other owner can have the lock, even if the network fails. With 0, nothing is proven. Then the
// hold is in jeopardy, lost or released, or the grace of the session is 0.
func (h *Hold) ValidFor() time.Duration {
	defer h.lock.locks.lock()()
	return h.validFor()
}

// Release releases exactly this hold. It may be called again. Fails with ErrLost if the hold ended before. If no server answers
// within the patience, it fails with ErrUnavailable, and continues in the background. It is sent once even if the context has
// ended.
func (h *Hold) Release(ctx context.Context) error {
	if h == nil {
		return misuse("there is no hold; look at the error of the acquire first")
	}
	defer runtime.KeepAlive(h)
	defer h.lock.locks.lock()()
	return h.release(ctx).withKey(h.Key())
}

// Extend sets the lease, from now. With 0 it repeats the lease of the lock, or checks a renewed hold. Fails with ErrLost,
// ErrUnavailable, or with ErrMisuse if the server renews the hold and a lease is given.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	defer h.lock.locks.lock()()
	own := h.lock.lease
	switch {
	case lease < 0 || lease > 0 && !(isLimited(own) && isLimited(lease)):
		return misuse("only a hold with a lease can be extended, and not by a negative time").withKey(h.Key())
	case lease > 0:
		own = lease
	}
	return h.renew(ctx, own).withKey(h.Key())
}

// Guard runs a Redis command in one step with the check that this owner holds the lock. Fails with ErrLost if it does not. The
// command is sent once: after an error without a reply, nobody knows whether it ran.
func (h *Hold) Guard(ctx context.Context, command ...any) (any, error) {
	if h.lock.several() {
		return nil, misuse("a guarded command works with one lock").withKey(h.Key())
	}
	return h.lock.execute(ctx, append([]any{"LOCK.GUARD", h.Key(), "OWNER", h.Owner()}, command...)...)
}

// HandOver returns a ticket, with which another process takes over this hold by Lock.Attach. Until then the session of this
// process keeps the hold alive. For this process it has ended: its context ends, and Release does nothing. Fails with ErrLost if
// the hold has ended, and with ErrUnavailable while no server has confirmed it, as after a restart.
func (h *Hold) HandOver() (string, error) {
	defer h.lock.locks.lock()()
	a := h.acquire
	switch {
	case h.lock.several():
		return "", misuse("several locks cannot be handed over together").withKey(h.Key())
	case a.state != held || a.isReleasing:
		return "", a.lost().withKey(h.Key())
	case !a.isKnown || !a.session.isUp:
		return "", (&Error{Kind: ErrUnavailable, Text: "no server has confirmed the hold yet"}).withKey(h.Key())
	}
	a.end("taken", false)
	return fmt.Sprintf("%x|%d|%s", a.owner, a.n, h.lock.locks.name), nil
}

// drop is called by the garbage collector.
func (h *Hold) drop() {
	defer h.lock.locks.lock()()
	if a := h.acquire; a.state == held && !h.lock.locks.isClosed {
		a.end("released", true)
		slog.Warn("a hold was never released; use Do, or defer Release", "key", h.Key(), "owner", h.Owner())
	}
}
