// SPDX-License-Identifier: MIT

package lock

import (
	"slices"
	"time"
)

// forever is the limit of a wait, a lease or an age that has none.
const forever = 100 * 365 * 24 * time.Hour

func isLimited(span time.Duration) bool { return span < forever/2 }

// An Option of a lock.
type Option func(*request)

// WithWait limits the wait. By default there is no limit except the context's. With 0 a busy lock is ErrBusy at once.
func WithWait(wait time.Duration) Option { return func(r *request) { r.wait = wait } }

// WithLease ends the hold after this time, unless Hold.Extend sets the lease again. By default the server renews the hold while
// this process lives.
func WithLease(lease time.Duration) Option { return func(r *request) { r.lease = lease } }

// WithMaxHold stops the renewals of a hold at this age. The hold then ends with its last lease.
func WithMaxHold(age time.Duration) Option { return func(r *request) { r.maxHold = age } }

// And adds locks. All locks are granted together or not at all, without deadlocks in any order.
func And(keys ...string) Option { return func(r *request) { r.keys = append(r.keys, keys...) } }

// Shared admits other shared holders: the lock of a reader.
func Shared() Option { return func(r *request) { r.shared = true } }

// WithLimit admits at most this number of holders: a permit of a semaphore.
func WithLimit(permits int) Option { return func(r *request) { r.limit = &permits } }

// Fenced gives each hold a token that is greater than those of all earlier holds. See Hold.Token.
func Fenced() Option { return func(r *request) { r.fence = true } }

// Reentrant lets the owner acquire a lock that it holds. By default it gets ErrDeadlock.
func Reentrant() Option { return func(r *request) { r.reentrant = true } }

// WithOwner names the holder. By default each Lock is an owner. Give all locks of one goroutine one owner, and the server detects
// deadlocks between goroutines. Two goroutines must never use the same owner.
func WithOwner(owner string) Option { return func(r *request) { r.owner = &owner } }

// WithLabel names the lock for the listener. By default the label is empty.
func WithLabel(label string) Option { return func(r *request) { r.label = label } }

// A request is one lock, or several locks, with options.
type request struct {
	keys                     []string
	wait, lease, maxHold     time.Duration
	limit                    *int
	owner                    *string
	label                    string
	shared, fence, reentrant bool
}

func newRequest(key string, options []Option) *request {
	r := &request{keys: []string{key}, wait: forever, lease: forever, maxHold: forever}
	for _, option := range options {
		option(r)
	}
	return r
}

// check returns what is wrong, if anything.
func (r *request) check() *Error {
	switch {
	case slices.Contains(r.keys, ""):
		return misuse("a key must not be empty")
	case r.lease <= 0 || r.maxHold <= 0:
		return misuse("a lease and a maximum age must be positive")
	case r.wait < 0:
		return misuse("a wait must not be negative")
	case r.limit != nil && *r.limit < 1:
		return misuse("a limit must be positive")
	case r.limit != nil && r.several():
		return misuse("a limit is not available for several locks")
	case r.isLeased() && isLimited(r.maxHold):
		return misuse("a maximum age limits renewals, and a hold with a lease has none; use one of them")
	case r.owner != nil && (*r.owner == "" || *r.owner == "*"):
		return misuse("an owner must not be empty or *")
	}
	return nil
}

func (r *request) several() bool { return len(r.keys) > 1 }

// isLeased returns whether the hold ends by itself. Otherwise the server renews it.
func (r *request) isLeased() bool { return isLimited(r.lease) }

// millis rounds up, so that the server's time never ends before the client's. It is at least 1.
func millis(d time.Duration) int64 { return max(1, int64((d+time.Millisecond-1)/time.Millisecond)) }
