// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	// replyGrace is the extra time for the reply to a call that waits in the server.
	replyGrace = time.Second
	// retryPause and maxRetryPause are the first and the longest pause before a call is repeated.
	// The reader pauses for a random time. After a failure without a reply, the limit of the first pause is reconnectPause.
	retryPause, reconnectPause, maxRetryPause = 50 * time.Millisecond, 500 * time.Millisecond, time.Second
)

// A state of an acquire. Replies, events and the clock move it forward, and never back.
type state int

const (
	// asked: its call is on its way, or waits in the queue.
	asked state = iota
	// held: it was granted. Perhaps its release is on its way.
	held
	// undo: it is over for its user, but perhaps not on the server.
	undo
	// over: it is over on the server as well.
	over
)

// An acquire is one acquire, from its first call to the end of its hold. All methods run under the mutex of the Locks, and
// release it while they wait or call.
type acquire struct {
	lock  *Lock
	owner string
	isTry bool
	// source is the hold of another session that this acquire takes over: FROM, name, number.
	source []any
	// until limits the wait.
	until time.Time

	// session is that of the node that serves the lock, and n the number of the acquire there.
	session *session
	n       int64
	state   state
	// isKnown: the present session on the server may know this number, as it was sent or declared.
	isKnown bool
	// confirmed is the last confirmation of the hold by an earlier session, while the present one does not know it.
	confirmed time.Time
	// inDoubt: an acquire or a release has no reply, so it may have succeeded.
	inDoubt     bool
	isReleasing bool
	// reason of the end.
	reason string
	// changed is closed at the next change. It is nil unless somebody waits for that.
	changed chan struct{}

	// sent is when the acquire was first sent, and granted when its grant was handled.
	sent, granted time.Time
	holds         int64
	tokens        []int64
	leaseEnds     time.Time
	// revocableSince: until a LOCK.EVENTS sent after this time confirms, the server may revoke the grant (R1).
	revocableSince time.Time
	// ctx ends with the hold, and expiry is the end of its lease. They are nil until the user gets the hold.
	ctx    context.Context
	endCtx context.CancelCauseFunc
	expiry *time.Timer
}

// words are a call about this acquire. The lease is that of ACQUIRE and RENEW.
func (a *acquire) words(verb string, lease time.Duration) []any {
	l, words := a.lock, make([]any, 0, 20+len(a.lock.keys))
	if l.several() && verb != "CANCEL" {
		words = append(words, "LOCK.M"+verb, len(l.keys))
		for _, key := range l.keys {
			words = append(words, key)
		}
	} else {
		words = append(words, "LOCK."+verb, l.key())
	}
	words = append(words, a.owner)
	if verb == "ACQUIRE" {
		words = append(words, l.flags()...)
	}
	switch maxHold := l.maxHold; {
	case verb != "ACQUIRE" && verb != "RENEW":
	case isLimited(lease):
		words = append(words, "PX", millis(lease))
	case isLimited(maxHold):
		if a.state != asked {
			maxHold -= time.Since(a.granted)
		}
		words = append(words, "WATCHDOG", "MAX", millis(maxHold))
		fallthrough
	default:
		words = append(words, "EPHEMERAL")
	}
	words = append(words, "SESSION", a.session.id, a.n)
	switch left := time.Until(a.until); {
	case verb == "RENEW" && a.state == asked:
		words = append(words, a.source...)
	case verb != "ACQUIRE" || a.isTry:
	case isLimited(left):
		words = append(words, "QUEUE", millis(left))
	default:
		words = append(words, "QUEUE", 0)
	}
	return words
}

// ask enters the acquire into a session, and returns when it has been granted or is over.
func (a *acquire) ask(ctx context.Context) (err *Error) {
	s, err := a.lock.locks.sessionOf(ctx, a.lock.key())
	if err != nil {
		return err
	}
	s.enter(a)
	defer func() {
		if err != nil {
			// The server may still grant it.
			a.cancel(context.WithoutCancel(ctx))
		}
	}()
	verb, giveUp := "ACQUIRE", a.until.Add(replyGrace)
	if a.source != nil {
		verb = "RENEW"
	}
	if a.isTry || a.source != nil {
		giveUp = limit(ctx, a.lock.locks.patience)
	}
	reply, first, err := a.call(ctx, verb, a.lock.lease, giveUp)
	switch isLost := err.is("NOTOWNER") && a.source == nil; {
	case err != nil && !isLost:
		return err
	case a.state != asked:
		// An event, or a new session, overrules the reply (R14).
	case isLost:
		// The hold of a repeated acquire has ended (R12), perhaps only one of several.
		a.end("restarted", a.lock.several())
	case reply == nil:
		a.end("timeout", false)
	case reply != int64(0):
		a.grant(first, a.inDoubt, reply, nil)
	}
	switch err := a.wait(ctx, giveUp, func() bool { return a.state != asked }); {
	case err != nil:
		return err
	case a.state != held:
		return finalEnds[a.reason]
	case a.holds > 1 && !a.lock.reentrant:
		return &Error{Kind: ErrDeadlock, Text: "this owner has the lock already; release it first, or use Reentrant"}
	case time.Until(a.leaseEnds) > 0:
		return nil
	}
	// The lease may be over, as the grant is old.
	switch err := a.renew(ctx, a.lock.lease); {
	case a.state == held:
		return err
	case a.isTry:
		return &Error{Kind: ErrUnavailable, Text: "the grant arrived after the end of its lease"}
	}
	// The wait continues with a new number.
	return nil
}

// cancel ends an acquire in any state. It returns after the answer, or soon.
func (a *acquire) cancel(ctx context.Context) {
	if a.end("cancelled", true); a.session.isUp {
		_ = a.wait(ctx, time.Now().Add(replyGrace), func() bool { return a.state == over })
	}
}

// undoOnServer repeats LOCK.CANCEL until it is answered (R11).
func (a *acquire) undoOnServer(locks *Locks) {
	defer locks.lock()()
	for a.state == undo && !a.session.isClosed {
		_, _, err := a.call(context.Background(), "CANCEL", 0, time.Now().Add(locks.patience))
		isAnswer := err == nil || err.Code != "" && !err.transient
		if isAnswer || err.is("MOVED") && locks.cluster == nil {
			a.undone()
		}
	}
}

// release releases exactly this hold. After a failure it continues as an undo.
func (a *acquire) release(ctx context.Context) *Error {
	giveUp := limit(ctx, a.lock.locks.patience)
	switch {
	case a.isReleasing:
		if err := a.wait(ctx, giveUp, func() bool { return a.state != held }); err != nil {
			return err
		}
	case a.state == held:
		a.isReleasing = true
		_, _, err := a.call(ctx, "RELEASE", 0, giveUp)
		switch {
		case err == nil:
			a.end("released", false)
		case err.is("NOTOWNER", "WRONGTYPE"):
			a.end(err.Code, a.lock.several())
		default:
			a.end("released", true)
			return err
		}
	}
	if a.isLost() {
		return a.lost()
	}
	return nil
}

// renew sets the lease, or checks a hold that the server renews.
func (a *acquire) renew(ctx context.Context, lease time.Duration) *Error {
	if a.state != held {
		return a.lost()
	}
	_, first, err := a.call(ctx, "RENEW", lease, limit(ctx, a.lock.locks.patience))
	isGone := err.is("NOTOWNER", "WRONGTYPE")
	if isGone && !a.isReleasing {
		// The reply to a release on its way would say whether the hold was lost.
		a.end(err.Code, a.lock.several())
	}
	switch {
	case isGone || a.state != held:
		return a.lost()
	case err != nil:
		return err
	}
	a.leaseEnds, a.revocableSince = first.Add(lease), time.Time{}
	if a.expiry != nil {
		a.expiry.Reset(time.Until(a.leaseEnds))
	}
	return nil
}

// call sends a call until there is a reply. It may be sent again, as it has a number. Returns the time of the first attempt as
// well: a lease counts from that, as that attempt may have succeeded. A reply counts only if its call carried the present number
// (R14). The reply is 0 if the acquire has left its state.
func (a *acquire) call(
	ctx context.Context, verb string, lease time.Duration, giveUp time.Time,
) (reply any, first time.Time, err *Error) {
	in, sending := a.state, ctx
	if in != asked {
		// The end of the context only ends the repetitions.
		sending = context.WithoutCancel(ctx)
	}
	// The server would refuse a release of a number that is not declared yet, and remember that (R23).
	isReady := func() bool { return a.state != in || a.session.isUp && (in == asked || a.isKnown) }
	for pause := retryPause; ; pause = min(2*pause, maxRetryPause) {
		if err = a.wait(ctx, giveUp, isReady); err != nil || a.state != in {
			return int64(0), first, err
		}
		s, n, now := a.session, a.n, time.Now()
		if first.IsZero() {
			first = now
		}
		if in == asked {
			a.isKnown, a.sent = true, first
		}
		wasInDoubt := a.inDoubt
		a.inDoubt = wasInDoubt || in == asked || verb == "RELEASE"
		reply, err = s.send(sending, now.Add(min(callTimeout, max(replyGrace, giveUp.Sub(now)))), a.words(verb, lease))
		isPresent := s.acquires[n] == a
		if a.state == in && (err == nil && isPresent || err != nil && err.Code != "") {
			// The server has executed it, or has not.
			a.inDoubt = wasInDoubt
		}
		if (err == nil || !err.transient) && isPresent {
			return reply, first, err
		}
		if err != nil && err.transient {
			if !isLimited(time.Until(giveUp)) {
				// A wait without a limit ends when no server has answered for the patience.
				giveUp = now.Add(s.locks.patience)
			}
			switch {
			case ctx.Err() != nil:
				return nil, first, contextError(ctx)
			case time.Until(giveUp) <= 0:
				return nil, first, err
			case err.is("MOVED", ""):
				// Another node may serve the lock, or another client of the user its node.
				a.isKnown = a.isKnown && (in != asked || a.inDoubt)
				s.locks.relocate(a)
			}
		}
		_ = a.wait(ctx, time.Now().Add(pause), func() bool { return a.state != in })
	}
}

// wait waits for a change of the acquire. Fails at the time giveUp, if the context is cancelled, or if the reader of the session
// has failed.
func (a *acquire) wait(ctx context.Context, giveUp time.Time, isDone func() bool) *Error {
	for !isDone() {
		// Nothing but the end of the session ends an undo.
		if err := a.session.failure(giveUp); err != nil && (a.state != undo || a.session.isClosed) {
			return err
		}
		if err := a.lock.locks.wait(ctx, a.await(), giveUp); err != nil {
			if s := a.session; err.Kind == ErrTimeout && (a.state != asked || !s.isUp || s.err != nil) {
				err.Kind = ErrUnavailable
			}
			return err
		}
	}
	return nil
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

// grant: the lease began at the time `since` at the earliest.
func (a *acquire) grant(since time.Time, isRevocable bool, reply, tokens any) {
	replies := []any{reply}
	if a.lock.several() {
		replies, _ = reply.([]any)
	}
	for _, each := range replies {
		if fields := asMap(each); fields != nil {
			a.tokens, each = append(a.tokens, integers(fields["token"])...), fields["holds"]
		}
		a.holds = max(a.holds, integers(each)[0])
	}
	if tokens != nil {
		a.tokens = integers(tokens)
	}
	a.state, a.granted, a.inDoubt = held, time.Now(), false
	a.lock.holds++
	a.leaseEnds = since.Add(a.lock.lease)
	if isRevocable {
		a.revocableSince = a.granted
	}
	a.signal()
}

// end ends the wait or the hold for its user. If something may remain on the server, it is undone there.
func (a *acquire) end(reason string, mayRemain bool) {
	if a.state > held {
		return
	}
	if a.isReleasing && (reason == "closed" || a.inDoubt && (reason == "restarted" || reason == "NOTOWNER")) {
		// The release may have succeeded. If the hold had been lost before, an event would say so.
		reason = "released"
	}
	a.reason = reason
	wasHeld := a.state == held
	if mayRemain && (wasHeld || a.isKnown) {
		a.state = undo
		a.lock.locks.undos[a] = true
		go a.undoOnServer(a.lock.locks)
	} else {
		a.undone()
	}
	if wasHeld {
		a.lock.holds--
	}
	if reason == "max" || reason == "taken" {
		// The hold goes on at the server, without this acquire.
		a.lock.changeOwner()
	}
	if a.endCtx != nil {
		outcome, cause := "released", error(nil)
		if a.isLost() {
			outcome, cause = "lost", a.lost().withKey(a.lock.keys[0])
		}
		if reason != "taken" {
			a.notify("held", outcome)
		}
		a.endCtx(cause)
	}
	if a.expiry != nil {
		a.expiry.Stop()
	}
	a.signal()
}

// undone: nothing of it remains on the server.
func (a *acquire) undone() {
	a.state = over
	delete(a.lock.locks.undos, a)
	delete(a.session.acquires, a.n)
	a.signal()
}

// isLost returns whether the hold ended before its release. A hold that was handed over is not lost.
func (a *acquire) isLost() bool {
	return a.state > held && a.reason != "released" && a.reason != "taken"
}

func (a *acquire) lost() *Error {
	return &Error{Kind: ErrLost, Text: fmt.Sprintf("the hold has ended (%s); acquire the lock again", a.reason)}
}

// validFor is the time for which no other owner can have the lock, even if the network fails.
func (a *acquire) validFor() time.Duration {
	s := a.session
	if a.state != held || !a.isKnown || !s.isUp {
		return 0
	}
	left := time.Until(a.leaseEnds)
	if !a.lock.isLeased() || !a.revocableSince.Before(s.confirmed) {
		left = min(left, s.safeFor())
	}
	return max(0, left)
}

// notify notifies the listener of what happens to a hold that its user has.
func (a *acquire) notify(name, outcome string) {
	if a.ctx != nil {
		a.lock.locks.notify(Event{a.lock.label, name, outcome, time.Since(a.granted)})
	}
}

// holdOf names what the owner's count of holds is about.
func (a *acquire) holdOf() string {
	return strings.Join(a.lock.keys, "\x00") + "\x00" + a.owner
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
