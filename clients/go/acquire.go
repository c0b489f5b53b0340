// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// An owner is the name under which a Lock acquires. A retired owner is not used again, as a call of it may be late.
type owner struct {
	name string
	// retired counts its acquires that the server may still have to undo.
	retired int
}

// A number identifies an acquire on the server.
type number struct {
	session *session
	id      string
	n       int64
}

type state string

const asked, held, over state = "asked", "held", "over"

// goodEnds of a hold are no loss.
var goodEnds = []string{"released", "cancelled", "taken"}

// An acquire is one acquire, from its first call to the end of its hold. The mutex of the Locks protects it.
type acquire struct {
	request *request
	owner   *owner
	isTry   bool
	// source is the hold of another session that this acquire takes over: FROM, name, number.
	source []any
	// until limits the wait.
	until time.Time

	at    number
	state state
	// reason of the end, if it is over.
	reason string
	// failure is why the client ends a wait that may continue on the server.
	failure *Error
	changed chan struct{}
	holds   int64
	tokens  []int64
	// granted is when the grant was handled. Until then it is when the acquire began.
	granted, leaseEnds time.Time
	// revocableSince: until a LOCK.EVENTS sent after this time confirms, the server may revoke the grant (R1).
	revocableSince time.Time
	// inDoubt: an attempt of the present call has no reply, so it may have succeeded.
	inDoubt                   bool
	isReleasing, isHandedOver bool
	// ctx ends with the hold. It is nil until somebody needs it.
	ctx      context.Context
	endCtx   context.CancelCauseFunc
	leaseEnd *time.Timer
}

func (a *acquire) acquireWords() []any {
	if a.source != nil {
		return append(a.renewWords(a.request.lease), a.source...)
	}
	words := append(a.request.acquireWords(a.owner.name), "SESSION", a.at.id, a.at.n)
	switch left := time.Until(a.until); {
	case a.isTry:
		return words
	case isLimited(left):
		return append(words, "QUEUE", millis(left))
	}
	return append(words, "QUEUE", 0)
}

func (a *acquire) renewWords(lease time.Duration) []any {
	maxHold := a.request.maxHold
	if isLimited(maxHold) {
		maxHold -= time.Since(a.granted)
	}
	return append(hold(a.request.words("RENEW", a.owner.name), lease, maxHold), "SESSION", a.at.id, a.at.n)
}

func (a *acquire) declareWords() []any {
	return a.renewWords(min(a.request.lease, time.Until(a.leaseEnds)))
}

func (a *acquire) releaseWords() []any {
	return append(a.request.words("RELEASE", a.owner.name), "SESSION", a.at.id, a.at.n)
}

func (a *acquire) cancelWords() []any {
	return []any{"LOCK.CANCEL", a.request.keys[0], a.owner.name, "SESSION", a.at.id, a.at.n}
}

// isDeclared returns whether the present session of its server has this hold.
func (a *acquire) isDeclared() bool {
	s := a.at.session
	return a.at.id == s.id && s.held[a.at.n] == a
}

// isLost returns whether the hold ended before its release. A hold that was handed over is not lost.
func (a *acquire) isLost() bool {
	isExpired := a.state == held && time.Until(a.leaseEnds) <= 0
	return !a.isHandedOver && (isExpired || a.state == over && !slices.Contains(goodEnds, a.reason))
}

func (a *acquire) lost() *Error {
	reason := a.reason
	if reason == "" {
		reason = "expired"
	}
	return &Error{Kind: ErrLost, Text: fmt.Sprintf("the hold ended before its release (%s); acquire the lock again", reason)}
}

// await has a channel that is closed at the next change.
func (a *acquire) await() <-chan struct{} {
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.changed
}

func (a *acquire) signal() {
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// setLease sets the end of the lease by the local clock.
func (a *acquire) setLease(end time.Time) {
	a.leaseEnds = end
	if a.leaseEnd != nil {
		a.leaseEnd.Reset(time.Until(end))
	}
}

// context ends with the hold: at the end of the lease by the local clock at the latest.
func (a *acquire) context(l *Locks, parent context.Context) context.Context {
	if a.ctx == nil {
		a.ctx, a.endCtx = context.WithCancelCause(parent)
		a.leaseEnd = time.AfterFunc(time.Until(a.leaseEnds), func() {
			defer l.lock()()
			a.endContext()
		})
		a.endContext()
	}
	return a.ctx
}

// endContext ends the context if the hold has ended.
func (a *acquire) endContext() {
	switch {
	case a.ctx == nil:
		return
	case a.isLost():
		a.endCtx(a.lost().withKey(a.request.keys[0]))
	case a.state == over:
		a.endCtx(nil)
	default:
		return
	}
	a.leaseEnd.Stop()
}

// holdOf names what the owner's count of holds is about.
func (a *acquire) holdOf() string {
	return strings.Join(a.request.keys, "\x00") + "\x00" + a.owner.name
}

// integers has the counts or tokens of a reply: one, or one for each lock.
func integers(value any) []int64 {
	values, isList := value.([]any)
	if !isList || len(values) == 0 {
		values = []any{value}
	}
	result := make([]int64, len(values))
	for i, each := range values {
		result[i], _ = each.(int64)
	}
	return result
}
