// SPDX-License-Identifier: MIT

package lock

import (
	"fmt"
	"time"
)

// An Option says how a lock is to be held.
type Option func(*how)

type how struct {
	lease, wait, maxHold time.Duration
	hasLease, hasMaxHold bool
	// waits: for so long as wait says, or without limit if that is 0.
	waits bool
	// own: the wait has a connection for itself.
	own           bool
	keep          *bool
	watchdog      bool
	shared, fence bool
	limit         *int
	owner, label  string
}

// WithLease is how long the hold lasts unless it is renewed: 30 s if nothing is said. With a lease, nothing is renewed but by
// Extend, unless WithKeep(true) is said, too.
func WithLease(lease time.Duration) Option {
	return func(h *how) { h.lease, h.hasLease = lease, true }
}

// WithWait is how long Acquire waits: without limit if nothing is said. With 0 a lock that is not free is ErrBusy.
func WithWait(wait time.Duration) Option {
	return func(h *how) { h.wait, h.waits = wait, wait != 0 }
}

// WithOwnConnection has Acquire wait on a connection that no other wait has meanwhile: the server's reply is the grant, and nobody
// needs to subscribe. It is for a lock that goes from hand to hand all the time. The connection is kept for the next such wait.
func WithOwnConnection() Option { return func(h *how) { h.own = true } }

// WithKeep says whether client and server renew the lease. Then the hold ends at once with its process. It is on if no lease is
// given.
func WithKeep(keep bool) Option { return func(h *how) { h.keep = &keep } }

// WithMaxHold is when a kept hold is not renewed any more, counted from its grant.
func WithMaxHold(most time.Duration) Option {
	return func(h *how) { h.maxHold, h.hasMaxHold = most, true }
}

// Shared asks for a reader's hold: many may have it at once, and no other.
func Shared() Option { return func(h *how) { h.shared = true } }

// WithLimit makes the lock a semaphore: one of so many permits.
func WithLimit(permits int) Option { return func(h *how) { h.shared, h.limit = true, &permits } }

// Fenced asks for a token: each grant of the lock has a greater one than all before. See Hold.Token.
func Fenced() Option { return func(h *how) { h.fence = true } }

// WithLabel is what the listener hears in place of the key.
func WithLabel(label string) Option { return func(h *how) { h.label = label } }

// WithOwner names who holds, in place of a new name for each hold. Say it only to give all locks of one task one owner: then the
// server finds deadlocks between tasks. Two tasks must never have the same.
func WithOwner(owner string) Option { return func(h *how) { h.owner = owner } }

func read(options []Option) (how, error) {
	h := how{lease: 30 * time.Second, waits: true}
	for _, option := range options {
		option(&h)
	}
	h.watchdog = !h.hasLease
	if h.keep != nil {
		h.watchdog = *h.keep
	}
	text := ""
	switch {
	case h.lease < time.Millisecond:
		text = fmt.Sprintf("a lease of %v: it must be at least 1ms", h.lease)
	case h.wait < 0:
		text = fmt.Sprintf("a wait of %v: it must not be negative", h.wait)
	case h.hasMaxHold && h.maxHold < time.Millisecond:
		text = fmt.Sprintf("held for %v at most: it must be at least 1ms", h.maxHold)
	case h.hasMaxHold && !h.watchdog:
		text = "WithMaxHold is for holds that are kept"
	case h.limit != nil && *h.limit < 1:
		text = fmt.Sprintf("a limit of %d: it must be at least 1", *h.limit)
	case h.owner == "*":
		text = "the owner * is nobody's name: the server makes up one for it"
	default:
		return h, nil
	}
	return h, &Error{Kind: ErrMisuse, Text: text}
}

// bound is what ties a hold of that age to the connection of the call.
func (h *how) bound(age time.Duration) []any {
	if !h.watchdog {
		return nil
	}
	if h.hasMaxHold {
		return []any{"WATCHDOG", "MAX", millis(max(h.maxHold-age, time.Millisecond)), "EPHEMERAL"}
	}
	return []any{"WATCHDOG", "EPHEMERAL"}
}

// millis rounds up: what the server has must not end before what is known here.
func millis(d time.Duration) int64 { return int64((d-1)/time.Millisecond + 1) }
