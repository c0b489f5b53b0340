// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"time"
)

const (
	// replyGrace is the extra time for the reply to a call that waits in the server.
	replyGrace = time.Second
	// retryPause and maxRetryPause are the first and the longest pause before a call is repeated.
	retryPause, maxRetryPause = 50 * time.Millisecond, time.Second
)

// A session is a client's presence on one server. Rules R1 to R23 are those of docs/sessions.md.
//
// An acquire is in one of three places of its session. It is asked until it is granted, and then held. It is in undo while it is
// over for its user, but the server has not confirmed that. Replies, events and the clock move it.
//
//   - A lost connection changes nothing: calls are repeated with their numbers, and the next LOCK.EVENTS resumes the session.
//   - A cancelled wait moves to undo. LOCK.CANCEL undoes it, by its caller at once, and then by the reader until it is answered.
//   - A failover or a restart ends the session on the server. The reader opens a new one, and declares the holds there. It undoes
//     all else, and waits ask again.
//
// All methods run under the mutex of the Locks, and release it while they wait.
type session struct {
	locks *Locks
	node  *node
	id    string
	// isUp: the session is open, its holds are declared (R3), and LOCK.EVENTS has confirmed them.
	isUp bool
	// failure of the reader that ends waits. isFailing: its last turn failed.
	failure   *Error
	isFailing bool
	// changed is closed and replaced when waits for the session have to look again.
	changed           chan struct{}
	beat, seen, lastN int64
	asked, held, undo map[int64]*acquire
	// undeclared are acquires of the previous session, or of another node, that the reader declares.
	undeclared           map[*acquire]bool
	confirmed, safeUntil time.Time
	isStarted, isClosed  bool
	inJeopardy           bool
	closing, ended       chan struct{}
}

func newSession(locks *Locks, node *node) *session {
	return &session{
		locks: locks, node: node, changed: make(chan struct{}), closing: make(chan struct{}), ended: make(chan struct{}),
		asked: map[int64]*acquire{}, held: map[int64]*acquire{}, undo: map[int64]*acquire{}, undeclared: map[*acquire]bool{},
	}
}

// Calls of the user.

// ask returns when the acquire has been granted or is over. After an error the caller cancels it: the server may still grant it.
func (s *session) ask(ctx context.Context, a *acquire) *Error {
	giveUp := a.until.Add(replyGrace)
	if a.isTry || a.source != nil {
		giveUp = s.giveUp(ctx)
	}
	if err := s.untilUp(ctx, giveUp, a); err != nil {
		return err
	}
	s.number(a)
	s.asked[a.at.n] = a
	reply, first, err := s.call(ctx, a, asked, giveUp, a.acquireWords)
	switch isOver := err.is("NOTOWNER") && a.source == nil; {
	case err != nil && !isOver:
		return err
	case a.state != asked:
		// An event, or a new session, overrules the reply (R14).
	case isOver:
		// The hold of a repeated acquire has ended (R12).
		s.end(a, "restarted")
	case reply == nil:
		s.end(a, "timeout")
	case reply != int64(0):
		s.grant(a, first, a.inDoubt, reply, nil)
	}
	for a.state == asked && a.failure == nil {
		if err := s.wait(ctx, a.await(), giveUp); err != nil {
			return err
		}
	}
	if a.failure == nil && a.state == held {
		return s.checkGrant(ctx, a)
	}
	return a.failure
}

func (s *session) checkGrant(ctx context.Context, a *acquire) *Error {
	lease := a.request.lease
	switch {
	case a.holds > 1 && !a.request.reentrant:
		return &Error{Kind: ErrDeadlock, Text: "this owner has the lock already; release it first, or use Reentrant"}
	case time.Until(a.leaseEnds) > 0:
		return nil
	}
	// The lease may be over, as the grant is old.
	a.setLease(time.Now().Add(forever))
	err := s.renew(ctx, a, lease)
	switch {
	case err == nil || err.Kind != ErrLost:
		return err
	case a.isTry:
		return &Error{Kind: ErrUnavailable, Text: "the grant arrived after the end of its lease"}
	}
	// The wait continues with a new number.
	return nil
}

// cancel ends an acquire in any state. The reader repeats the call until it is answered (R11).
func (s *session) cancel(ctx context.Context, a *acquire) {
	s.abandon(a, "cancelled")
	if at := a.at; s.isUp && s.undo[at.n] == a {
		if _, err := s.exchange(ctx, replyGrace, a.cancelWords()); err == nil || !err.transient {
			s.undone(at.n)
		}
	}
}

// release releases exactly this hold. After a failure the reader undoes it.
func (s *session) release(ctx context.Context, a *acquire) *Error {
	isFirst := !a.isReleasing && !a.isHandedOver
	a.isReleasing = true
	if a.state == held && a.isLost() {
		// Expired by the local clock. The server may still have the hold.
		s.abandon(a, "expired")
	}
	if a.state == held && isFirst {
		_, _, err := s.call(ctx, a, held, s.giveUp(ctx), a.releaseWords)
		switch {
		case err == nil:
			s.end(a, "released")
		case err.is("NOTOWNER", "WRONGTYPE"):
			s.endPerhaps(a, err.Code)
		default:
			s.abandon(a, "released")
			return err
		}
	}
	if a.isLost() {
		return a.lost()
	}
	return nil
}

// renew sets the lease, or checks a hold that the server renews.
func (s *session) renew(ctx context.Context, a *acquire, lease time.Duration) *Error {
	if a.state != held || a.isLost() {
		return a.lost()
	}
	words := func() []any { return a.renewWords(lease) }
	_, first, err := s.call(ctx, a, held, s.giveUp(ctx), words)
	if err.is("NOTOWNER", "WRONGTYPE") {
		s.endPerhaps(a, err.Code)
	} else if err != nil {
		return err
	}
	if a.state != held {
		return a.lost()
	}
	a.setLease(first.Add(lease))
	a.revocableSince = time.Time{}
	return nil
}

// call sends a call until there is a reply. It may be sent again, as it has a number. Returns the time of the first attempt as
// well: a lease counts from that, as that attempt may have succeeded. A reply counts only if its call carried the present number
// (R14). The reply is 0 if the acquire has left the state.
func (s *session) call(
	ctx context.Context, a *acquire, in state, giveUp time.Time, words func() []any,
) (reply any, first time.Time, err *Error) {
	sending := ctx
	if in == held {
		// The end of the context only ends the repetitions.
		sending = context.WithoutCancel(ctx)
	}
	a.inDoubt = false
	for pause := retryPause; ; pause = min(2*pause, maxRetryPause) {
		if err = s.untilUp(ctx, giveUp, a); err != nil || a.state != in || in == asked && a.failure != nil {
			return int64(0), first, err
		}
		at, now := a.at, time.Now()
		if in == held && !a.isDeclared() {
			// The server would refuse a release of a number that is not declared yet, and remember that (R23).
			err = &Error{Kind: ErrUnavailable, Code: "NOSESSION", Text: "no server has confirmed the hold yet", transient: true}
		} else {
			if first.IsZero() {
				first = now
			}
			reply, err = at.session.exchange(sending, min(callTimeout, max(replyGrace, giveUp.Sub(now))), words())
			if (err == nil || !err.transient) && at == a.at {
				return reply, first, err
			}
			a.inDoubt = a.inDoubt || err == nil || err.Code == ""
		}
		if err != nil && err.transient {
			if !isLimited(time.Until(giveUp)) {
				// A wait without a limit ends when no server has answered for the patience.
				giveUp = now.Add(s.locks.patience)
			}
			switch {
			case ctx.Err() != nil:
				return nil, first, contextError(ctx)
			case time.Until(giveUp) <= 0, in == asked && err.is("MOVED"):
				return nil, first, err
			}
		}
		at.session.sleep(ctx, pause)
	}
}

// giveUp is the time after the patience. A listener does not wait, as it may be called by the reader.
func (s *session) giveUp(ctx context.Context) time.Time {
	if s.locks.inListener() {
		return time.Now()
	}
	return limit(ctx, s.locks.patience)
}

// untilUp starts the reader, and waits until the session of the acquire is up.
func (s *session) untilUp(ctx context.Context, giveUp time.Time, a *acquire) *Error {
	for {
		// The acquire may move to the session of another node.
		s = a.at.session
		s.start()
		err := s.failure
		switch {
		case s.isUp:
			return nil
		case s.isClosed:
			return errClosed
		case a.state == asked && a.failure != nil:
			return a.failure
		case err != nil && !(err.transient && isLimited(time.Until(giveUp))):
			// Only a call with a limit waits for the server.
			return err
		}
		if err := s.wait(ctx, s.changed, giveUp); err != nil {
			return err
		}
	}
}

// wait returns when the channel is closed. It fails at that time, or if the context is cancelled. The time respects the deadline
// of the context. The server may know the deadline, and report the end of the wait.
func (s *session) wait(ctx context.Context, changed <-chan struct{}, giveUp time.Time) (err *Error) {
	s.locks.unlock()
	defer func() {
		s.locks.mutex.Lock()
		if err != nil && err.Kind == ErrTimeout && (!s.isUp || s.isFailing) {
			err.Kind = ErrUnavailable
		}
	}()
	timer := time.NewTimer(time.Until(giveUp))
	defer timer.Stop()
	for done := ctx.Done(); ; done = nil {
		select {
		case <-changed:
			return nil
		case <-done:
			if ctx.Err() == context.Canceled {
				return contextError(ctx)
			}
		case <-timer.C:
			return &Error{Kind: ErrTimeout, Text: "the server has not answered in time", Cause: ctx.Err()}
		}
	}
}

func (s *session) sleep(ctx context.Context, pause time.Duration) {
	_ = s.wait(ctx, s.closing, time.Now().Add(pause))
}

// exchange has the reply to one call, over any connection.
func (s *session) exchange(ctx context.Context, timeout time.Duration, words []any) (any, *Error) {
	s.locks.unlock()
	defer s.locks.mutex.Lock()
	return s.node.call(ctx, timeout, words)
}

// batch has the replies to calls in one round trip.
func (s *session) batch(calls [][]any) []result {
	if len(calls) == 0 {
		return nil
	}
	s.locks.unlock()
	defer s.locks.mutex.Lock()
	return s.node.batch(replyGrace+time.Duration(len(calls))*time.Millisecond, calls)
}

// readReply has the reply to a call over the reader's connection.
func (s *session) readReply(timeout time.Duration, words ...any) (any, *Error) {
	s.locks.unlock()
	defer s.locks.mutex.Lock()
	return do(context.Background(), s.node.reader, timeout, words)
}

// validFor is the time for which no other owner can have the lock, even if the network fails.
func (s *session) validFor(a *acquire) time.Duration {
	if a.state != held || !a.isDeclared() {
		return 0
	}
	left := time.Until(a.leaseEnds)
	isRevocable := !a.revocableSince.IsZero() && a.revocableSince.After(s.lastConfirmed())
	if !a.request.isLeased() || isRevocable {
		left = min(left, time.Until(s.safeUntil))
	}
	return max(0, left)
}

// lastConfirmed is when the last LOCK.EVENTS that confirmed this session was sent.
func (s *session) lastConfirmed() time.Time { return s.safeUntil.Add(-s.locks.grace) }

// Transitions.

// number gives the acquire the next number of this session.
func (s *session) number(a *acquire) {
	s.lastN++
	a.at = number{s, s.id, s.lastN}
}

// grant: the lease began at the time `since` at the earliest.
func (s *session) grant(a *acquire, since time.Time, isRevocable bool, reply, tokens any) {
	replies := []any{reply}
	if a.request.several() {
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
	delete(s.asked, a.at.n)
	s.held[a.at.n] = a
	a.state, a.granted = held, time.Now()
	a.setLease(since.Add(a.request.lease))
	if isRevocable {
		a.revocableSince = a.granted
	}
	a.signal()
}

// end: the acquire neither waits nor holds any longer.
func (s *session) end(a *acquire, reason string) {
	if a.state == over {
		return
	}
	if a.isReleasing && a.inDoubt && (reason == "restarted" || reason == "NOTOWNER") {
		// The release may have succeeded. If the hold had been lost before, an event would say so.
		reason = "released"
	}
	wasHeld := a.state == held && reason != "cancelled" && !a.isHandedOver
	a.state, a.reason = over, reason
	delete(a.at.session.asked, a.at.n)
	delete(a.at.session.held, a.at.n)
	if wasHeld {
		outcome := "released"
		if a.isLost() {
			outcome = "lost"
		}
		s.notify(a, "held", outcome)
	}
	a.endContext()
	a.signal()
}

// abandon ends an acquire that the server may still have. The reader undoes it there.
func (s *session) abandon(a *acquire, reason string) {
	at := a.at
	if isUndeclared := at.session.undeclared[a]; a.state != over && (at.n != 0 || isUndeclared) {
		a.owner.retired++
		if !isUndeclared {
			at.session.undo[at.n] = a
		}
	}
	s.end(a, reason)
}

// endPerhaps ends a hold that the server does not have. It may still have other locks of the same acquire.
func (s *session) endPerhaps(a *acquire, reason string) {
	if a.request.several() {
		s.abandon(a, reason)
	} else {
		s.end(a, reason)
	}
}

func (s *session) undone(n int64) {
	if a := s.undo[n]; a != nil {
		delete(s.undo, n)
		a.owner.retired--
	}
}

// acquires has the acquires of all places, and those that are not declared.
func (s *session) acquires() (acquires []*acquire) {
	for _, place := range []map[int64]*acquire{s.asked, s.held, s.undo} {
		for _, a := range place {
			acquires = append(acquires, a)
		}
	}
	for a := range s.undeclared {
		acquires = append(acquires, a)
	}
	return acquires
}

// endRenewed ends the holds that live as long as the session.
func (s *session) endRenewed(reason string) {
	for _, a := range s.acquires() {
		if a.state == held && !a.request.isLeased() {
			s.abandon(a, reason)
		}
	}
}

// announce lets all that wait for the session look again.
func (s *session) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *session) notify(a *acquire, name, outcome string) {
	s.locks.notify(Event{a.request.label, name, outcome, time.Since(a.granted)})
}

// setJeopardy notifies the listener of the begin or the end of jeopardy.
func (s *session) setJeopardy(value bool, event string) {
	if value == s.inJeopardy {
		return
	}
	s.inJeopardy = value
	for _, a := range s.held {
		if !a.request.isLeased() {
			s.notify(a, event, "")
		}
	}
}
