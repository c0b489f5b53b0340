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
type Option func(*Lock)

// WithWait limits the wait. By default there is no limit except the context's. With 0 a busy lock is ErrBusy at once.
func WithWait(wait time.Duration) Option { return func(l *Lock) { l.wait = wait } }

// WithLease ends the hold after this time, unless Hold.Extend sets the lease again. By default the server renews the hold while
// this process lives.
func WithLease(lease time.Duration) Option { return func(l *Lock) { l.lease = lease } }

// WithMaxHold stops the renewals of a hold at this age. The hold then ends with its last lease.
func WithMaxHold(age time.Duration) Option { return func(l *Lock) { l.maxHold = age } }

// And adds locks. All locks are granted together or not at all, without deadlocks in any order.
func And(keys ...string) Option { return func(l *Lock) { l.keys = append(l.keys, keys...) } }

// Shared admits other shared holders: the lock of a reader.
func Shared() Option { return func(l *Lock) { l.shared = true } }

// WithLimit admits at most this number of holders: a permit of a semaphore.
func WithLimit(permits int) Option { return func(l *Lock) { l.limit = &permits } }

// Fenced gives each hold a token that is greater than those of all earlier holds. See Hold.Token.
func Fenced() Option { return func(l *Lock) { l.fence = true } }

// Reentrant lets the owner acquire a lock that it holds. By default it gets ErrDeadlock.
func Reentrant() Option { return func(l *Lock) { l.reentrant = true } }

// WithOwner names the holder. By default each Lock is an owner. Give all locks of one goroutine one owner, and the server detects
// deadlocks between goroutines. Two goroutines must never use the same owner.
func WithOwner(owner string) Option { return func(l *Lock) { l.owner, l.isNamed = owner, true } }

// WithLabel names the lock for the listener. By default the label is empty.
func WithLabel(label string) Option { return func(l *Lock) { l.label = label } }

// check returns what is wrong, if anything.
func (l *Lock) check() *Error {
	switch {
	case slices.Contains(l.keys, ""):
		return misuse("a key must not be empty")
	case l.lease <= 0 || l.maxHold <= 0:
		return misuse("a lease and a maximum age must be positive")
	case l.wait < 0:
		return misuse("a wait must not be negative")
	case l.limit != nil && *l.limit < 1:
		return misuse("a limit must be positive")
	case l.limit != nil && l.several():
		return misuse("a limit is not available for several locks")
	case l.isLeased() && isLimited(l.maxHold):
		return misuse("a maximum age limits renewals, and a hold with a lease has none; use one of them")
	case l.owner == "" || l.owner == "*":
		return misuse("an owner must not be empty or *")
	}
	return nil
}

// flags are the words of an acquire that say which other holders it admits, and whether it needs a token.
func (l *Lock) flags() (words []any) {
	if l.shared || l.limit != nil {
		words = append(words, "SHARED")
	}
	if l.limit != nil {
		words = append(words, "LIMIT", *l.limit)
	}
	if l.fence {
		words = append(words, "FENCE")
	}
	return words
}

func (l *Lock) several() bool { return len(l.keys) > 1 }

// isLeased returns whether the hold ends by itself. Otherwise the server renews it.
func (l *Lock) isLeased() bool { return isLimited(l.lease) }

// millis rounds up, so that the server's time never ends before the client's. It is at least 1.
func millis(d time.Duration) int64 { return max(1, int64((d+time.Millisecond-1)/time.Millisecond)) }
