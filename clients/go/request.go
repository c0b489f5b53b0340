// SPDX-License-Identifier: MIT

package lock

import "time"

// An Option of a lock.
type Option func(*request)

// WithWait limits the wait. By default there is no limit except the context's. With 0 a busy lock is ErrBusy at once.
func WithWait(wait time.Duration) Option { return func(r *request) { r.wait = &wait } }

// WithLease ends the hold after this time, unless Hold.Extend sets the lease again. By default the server renews the hold while
// this process lives.
func WithLease(lease time.Duration) Option { return func(r *request) { r.lease = &lease } }

// WithMaxHold stops the renewals of a hold at this age. The hold then ends with its last lease.
func WithMaxHold(age time.Duration) Option { return func(r *request) { r.maxHold = &age } }

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
	keys                            []string
	wait, lease, maxHold            *time.Duration
	limit                           *int
	owner                           *string
	label                           string
	shared, fence, reentrant        bool
	acquireVerb, renewVerb, endVerb string
	// The words of a call before the owner, and the options after it.
	words, flags []any
}

func newRequest(key string, options []Option) (*request, error) {
	r := &request{keys: []string{key}}
	for _, option := range options {
		option(r)
	}
	for _, key := range r.keys {
		if key == "" {
			return nil, misuse("a key must not be empty")
		}
	}
	for _, time := range []*time.Duration{r.lease, r.maxHold} {
		if time != nil && *time <= 0 {
			return nil, r.misuse("a lease and a maximum age must be positive")
		}
	}
	switch {
	case r.wait != nil && *r.wait < 0:
		return nil, r.misuse("a wait must not be negative")
	case r.limit != nil && *r.limit < 1:
		return nil, r.misuse("a limit must be positive")
	case r.limit != nil && len(r.keys) > 1:
		return nil, r.misuse("a limit is not available for several locks")
	case r.lease != nil && r.maxHold != nil:
		return nil, r.misuse("a maximum age limits renewals, and a hold with a lease has none; use one of them")
	case r.owner != nil && (*r.owner == "" || *r.owner == "*"):
		return nil, r.misuse("an owner must not be empty or *")
	}
	prefix := "LOCK."
	if r.several() {
		prefix, r.words = "LOCK.M", append(r.words, len(r.keys))
	}
	r.acquireVerb, r.renewVerb, r.endVerb = prefix+"ACQUIRE", prefix+"RENEW", prefix+"RELEASE"
	for _, key := range r.keys {
		r.words = append(r.words, key)
	}
	if r.shared || r.limit != nil {
		r.flags = append(r.flags, "SHARED")
	}
	if r.limit != nil {
		r.flags = append(r.flags, "LIMIT", *r.limit)
	}
	if r.fence {
		r.flags = append(r.flags, "FENCE")
	}
	return r, nil
}

func (r *request) misuse(text string) error { return withKey(r.keys[0], misuse(text)) }

func (r *request) several() bool { return len(r.keys) > 1 }

// call has the first words of a call, and room for the others.
func (r *request) call(verb, owner string) []any {
	words := append(make([]any, 0, 16+len(r.words)), verb)
	return append(append(words, r.words...), owner)
}

// hold adds the lease and the binding. A hold without a lease of its own is renewed, and ends with its session.
func hold(words []any, lease, maxHold *time.Duration) []any {
	if lease != nil {
		return append(words, "PX", millis(*lease))
	}
	if maxHold != nil {
		words = append(words, "WATCHDOG", "MAX", millis(*maxHold))
	}
	return append(words, "EPHEMERAL")
}

// millis rounds up, so that the server's time never ends before the client's. It is at least 1.
func millis(d time.Duration) int64 { return max(1, int64((d+time.Millisecond-1)/time.Millisecond)) }
