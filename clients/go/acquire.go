// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// An owner is the name under which a Lock acquires. A retired owner is not used again: a call of it may be late.
type owner struct {
	name    string
	retired bool
}

// A number identifies an acquire on the server. It never changes.
type number struct {
	session *session
	id      string
	n       int64
}

type state string

const asked, held, ending, over state = "asked", "held", "ending", "over"

// The two ways to end an acquire, with the reason that each leaves.
const release, cancel = "released", "cancelled"

// An acquire is one numbered acquire, from its first call to the end of its hold. The mutex protects the fields from at on.
type acquire struct {
	request *request
	owner   *owner
	isTry   bool
	// takes is the hold of another session that this acquire takes over: FROM, name, number.
	takes []any
	began time.Time
	// until limits the wait. It is zero without a limit.
	until time.Time

	at        *number
	state     state
	verb      string
	reason    string
	failure   error // why the client ends a wait that may continue on the server
	holds     int64
	tokens    []int64
	granted   time.Time
	leaseEnds time.Time // zero if the server renews the hold
	// undeclared: the present session of this node does not have it yet. moving: that of another node will have it.
	undeclared, moving, handedOver bool
	changed                        chan struct{}
	bound                          []context.CancelCauseFunc
	expiryTimer                    *time.Timer
}

func newAcquire(r *request, o *owner, began time.Time, wait *time.Duration) *acquire {
	a := &acquire{request: r, owner: o, isTry: wait != nil && *wait == 0, began: began, state: asked}
	if wait != nil {
		a.until = began.Add(*wait)
	}
	return a
}

func (a *acquire) askWords(at *number) []any {
	r := a.request
	if a.takes != nil {
		return append(a.renewWords(at, r.lease, r.maxHold), a.takes...)
	}
	words := hold(append(r.call(r.acquireVerb, a.owner.name), r.flags...), r.lease, r.maxHold)
	words = append(words, "SESSION", at.id, at.n)
	switch {
	case a.isTry:
		return words
	case a.until.IsZero():
		return append(words, "QUEUE", 0)
	}
	return append(words, "QUEUE", millis(time.Until(a.until)))
}

func (a *acquire) endWords(at *number) []any {
	if a.verb == cancel {
		return []any{"LOCK.CANCEL", a.request.keys[0], a.owner.name, "SESSION", at.id, at.n}
	}
	return append(a.request.call(a.request.endVerb, a.owner.name), "SESSION", at.id, at.n)
}

func (a *acquire) renewWords(at *number, lease, maxHold *time.Duration) []any {
	return append(hold(a.request.call(a.request.renewVerb, a.owner.name), lease, maxHold), "SESSION", at.id, at.n)
}

// maxHoldLeft is the rest of the maximum age.
func (a *acquire) maxHoldLeft() *time.Duration {
	if a.request.maxHold == nil || a.granted.IsZero() {
		return a.request.maxHold
	}
	left := *a.request.maxHold - time.Since(a.granted)
	return &left
}

// isLost is whether the hold ended before its release.
func (a *acquire) isLost() bool {
	if a.state == held && !a.handedOver {
		return !a.leaseEnds.IsZero() && time.Until(a.leaseEnds) <= 0
	}
	return a.state == over && a.reason != release && a.reason != cancel && !a.handedOver
}

func (a *acquire) lost() *Error {
	reason := a.reason
	if reason == "" {
		reason = "expired"
	}
	return &Error{Kind: ErrLost, Text: fmt.Sprintf("the hold ended before its release (%s); acquire the lock again", reason)}
}

func (a *acquire) signal() {
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// await has a channel that is closed at the next change.
func (a *acquire) await() <-chan struct{} {
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.changed
}

// endContexts ends the contexts that are bound to the hold.
func (a *acquire) endContexts() {
	var cause error
	if a.isLost() {
		cause = withKey(a.request.keys[0], a.lost())
	}
	for _, end := range a.bound {
		end(cause)
	}
	a.bound = nil
	if a.expiryTimer != nil {
		a.expiryTimer.Stop()
	}
}

// bind ends a context with the hold: at the end of the lease by the local clock at the latest.
func (a *acquire) bind(locks *mutex, end context.CancelCauseFunc) {
	a.bound = append(a.bound, end)
	if a.state != held || a.isLost() {
		a.endContexts()
	} else if !a.leaseEnds.IsZero() && a.expiryTimer == nil {
		a.expiryTimer = time.AfterFunc(time.Until(a.leaseEnds), func() {
			locks.Lock()
			defer locks.Unlock()
			if a.isLost() {
				a.endContexts()
			} else if a.state == held {
				a.expiryTimer.Reset(time.Until(a.leaseEnds))
			}
		})
	}
}

func (a *acquire) leave() {
	if a.at != nil && a.at.session.numbers[a.at.n] == a {
		delete(a.at.session.numbers, a.at.n)
		delete(a.at.session.unanswered, a.at.n)
	}
}

// holdOf names what the owner's count of holds is about.
func (a *acquire) holdOf() string {
	return strings.Join(a.request.keys, "\x00") + "\x00" + a.owner.name
}

// least is the smallest count in the reply to a renewal.
func least(reply any) int64 {
	counts, isList := reply.([]any)
	if !isList {
		counts = []any{reply}
	}
	result := int64(1 << 62)
	for _, each := range counts {
		count, _ := each.(int64)
		result = min(result, count)
	}
	return result
}

func integers(value any) []int64 {
	values, isList := value.([]any)
	if !isList {
		values = []any{value}
	}
	result := make([]int64, len(values))
	for i, each := range values {
		result[i], _ = each.(int64)
	}
	return result
}
