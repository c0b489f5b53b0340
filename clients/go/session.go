// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// defaultTTL: the session ends if its client is silent for this time.
	defaultTTL = 30 * time.Second
	// defaultGrace: the session ends if its connection is closed for this time.
	defaultGrace = 3 * time.Second
	// minGrace is the shortest grace except 0. With less, heartbeats would take all of the time.
	minGrace = 100 * time.Millisecond
	// defaultPatience limits a try or a release, and a wait without a limit while no server answers.
	defaultPatience = 5 * time.Second
	// eventsBlock is the time that LOCK.EVENTS waits in the server, and at most a third of the grace.
	eventsBlock = time.Second
	// eventsCount is the maximum number of events in a reply. A full reply confirms nothing (R2).
	eventsCount = 1000
	// replyGrace is the extra time for the reply to a call that waits in the server.
	replyGrace = time.Second
	// retryPause and maxRetryPause are the first and the longest pause before a call is repeated.
	retryPause, maxRetryPause = 50 * time.Millisecond, time.Second
	// closeTimeout limits the last call of a session, LOCK.SESSION CLOSE.
	closeTimeout = time.Second
)

// Event is what a listener gets.
type Event struct {
	// Label is the label of the lock. It is empty unless the lock has one.
	Label string
	// Name is "waited", "held", "jeopardy" or "safe".
	Name string
	// Outcome of "waited" is "granted", or the kind of the error. Outcome of "held" is "released" or "lost". Otherwise it is empty.
	Outcome string
	// Took is the duration of the wait, or of the hold so far.
	Took time.Duration
}

type settings struct {
	name                 string
	ttl, grace, patience time.Duration
	listener             func(Event)
}

func (s *settings) notify(events ...Event) {
	if s.listener == nil {
		return
	}
	for _, event := range events {
		func() {
			defer func() {
				if failure := recover(); failure != nil {
					slog.Error("a listener of locks failed", "failure", failure)
				}
			}()
			s.listener(event)
		}()
	}
}

// A mutex protects the sessions of a Locks and their acquires. It calls the listener after it was released.
type mutex struct {
	sync.Mutex
	settings *settings
	events   []Event
}

func (m *mutex) Unlock() {
	events := m.events
	m.events = nil
	m.Mutex.Unlock()
	if events != nil {
		m.settings.notify(events...)
	}
}

type session struct {
	*node
	settings *settings
	locks    *mutex
	// relocate takes acquires whose slot another node of the cluster serves. With nil it looks for them.
	relocate func(*session, []*acquire)
	closing  chan struct{}
	ended    chan struct{}

	id string
	// isUp: every hold of the previous session has been declared in this one (R3), and an EVENTS has confirmed them.
	isUp    bool
	failure error
	// changed is closed and replaced when one of the two above changes.
	changed           chan struct{}
	beat, seen, lastN int64
	// numbers has the acquires by number, and unanswered those that ask, release or cancel (R11).
	numbers, unanswered map[int64]*acquire
	// The reader repeats the calls of orphans.
	orphans             []*acquire
	confirmed           time.Time
	safeUntil           time.Time
	polled              time.Time
	started, inJeopardy bool
	closed              bool
}

func newSession(n *node, settings *settings, locks *mutex, relocate func(*session, []*acquire)) *session {
	return &session{
		node: n, settings: settings, locks: locks, relocate: relocate,
		closing: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}),
		numbers: map[int64]*acquire{}, unanswered: map[int64]*acquire{},
	}
}

// The life of an acquire.

// ask returns when the acquire has been granted or is over. After an error it may still be granted, so end it.
func (s *session) ask(ctx context.Context, a *acquire) error {
	giveUp := time.Time{}
	if a.isTry || a.takes != nil {
		giveUp = a.began.Add(s.settings.patience)
	} else if !a.until.IsZero() {
		giveUp = a.until.Add(replyGrace)
	}
	s.locks.Lock()
	err := s.untilUp(ctx, giveUp, !a.isTry)
	if err == nil {
		s.enrol(a)
	}
	s.locks.Unlock()
	if err != nil {
		return err
	}
	reply, at, sent, err := s.repeat(ctx, a, asked, giveUp, a.askWords)
	isOver := errors.Is(err, ErrLost) && a.takes == nil
	if err != nil && !isOver {
		return err
	}
	s.locks.Lock()
	defer s.locks.Unlock()
	if isOver && a.state == asked && a.at == at {
		// R12: the hold of a repeated acquire has ended.
		s.end(a, "restarted")
	}
	// R14: an event, or a new session, overrules the reply.
	if at != nil && !isOver && a.state == asked && a.at == at {
		if reply == nil {
			s.end(a, "timeout")
		} else if reply != int64(0) {
			s.grant(a, reply, sent)
		}
	}
	for a.state == asked && a.failure == nil {
		if err := s.pause(ctx, a.await(), giveUp, "the server does not answer; try again", !giveUp.IsZero()); err != nil {
			return err
		}
	}
	return a.failure
}

// pause releases the mutex until the channel is closed. It fails at that time, or at the end of the context. A patient call
// ignores the context's deadline: the server knows it, and reports the end of the wait.
func (s *session) pause(ctx context.Context, changed <-chan struct{}, until time.Time, text string, patient bool) error {
	s.locks.Unlock()
	defer s.locks.Lock()
	var expired <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		expired = timer.C
	}
	for done := ctx.Done(); ; done = nil {
		select {
		case <-changed:
			return nil
		case <-done:
			if patient && ctx.Err() == context.DeadlineExceeded {
				continue
			}
			if ctx.Err() == context.Canceled {
				return contextError(ctx)
			}
		case <-expired:
		}
		return &Error{Kind: ErrUnavailable, Text: text, Cause: ctx.Err()}
	}
}

// finish releases exactly this hold, or cancels an acquire in any state. The reader continues an attempt that fails.
func (s *session) finish(ctx context.Context, a *acquire, verb string, patience time.Duration) error {
	s.locks.Lock()
	at := a.at
	switch {
	case a.state == ending || a.state == over || a.handedOver:
		s.locks.Unlock()
		return nil
	case at == nil, a.state == asked && at.id != at.session.id:
		s.end(a, verb)
		s.locks.Unlock()
		return nil
	}
	a.state, a.verb = ending, verb
	at.session.unanswered[at.n] = a
	a.endContexts()
	s.locks.Unlock()
	reply, _, _, err := s.repeat(ctx, a, ending, time.Now().Add(patience), a.endWords)
	s.locks.Lock()
	defer s.locks.Unlock()
	var e *Error
	switch {
	case err == nil:
		s.settle(a, result{reply: reply})
	case errors.As(err, &e) && e.isEnd():
		s.settle(a, result{err: e})
		return nil
	default:
		a.owner.retired = true
		a.at.session.orphans = append(a.at.session.orphans, a)
	}
	return err
}

func (s *session) release(ctx context.Context, a *acquire) error {
	s.locks.Lock()
	lost := a.isLost()
	s.locks.Unlock()
	if !lost {
		if err := s.finish(ctx, a, release, s.settings.patience); err != nil {
			return err
		}
		s.locks.Lock()
		lost = a.isLost()
		s.locks.Unlock()
	}
	if !lost {
		return nil
	}
	s.locks.Lock()
	defer s.locks.Unlock()
	if a.state == held {
		// The local clock has ended it. The server may still have the hold.
		s.lose(a, "expired")
	}
	return a.lost()
}

// renew sets the lease, or checks a hold that the server renews.
func (s *session) renew(ctx context.Context, a *acquire, lease *time.Duration) error {
	words := func(at *number) []any { return a.renewWords(at, lease, a.maxHoldLeft()) }
	s.locks.Lock()
	lost := a.isLost()
	s.locks.Unlock()
	var err error
	var sent time.Time
	if !lost {
		_, _, sent, err = s.repeat(ctx, a, held, time.Now().Add(s.settings.patience), words)
	}
	s.locks.Lock()
	defer s.locks.Unlock()
	switch {
	case errors.Is(err, ErrLost) && a.state == held:
		s.end(a, "deleted")
	case err == nil && a.state == held && a.isLost():
		// It was reported as lost while the call was on its way.
		s.lose(a, "expired")
	case err != nil && !errors.Is(err, ErrLost):
		return err
	}
	if a.state != held {
		return a.lost()
	}
	if lease != nil {
		a.leaseEnds = sent.Add(*lease)
	}
	return nil
}

// repeat sends a call until there is a reply. It may be sent again, as it has a number. Returns that number and the time of the
// first attempt. The number is nil if the acquire has left the state.
func (s *session) repeat(
	ctx context.Context, a *acquire, in state, giveUp time.Time, words func(*number) []any,
) (reply any, at *number, sent time.Time, err error) {
	var failing, first time.Time
	sending := ctx
	if in == ending {
		// The end of the context only ends the repetitions.
		sending = context.WithoutCancel(ctx)
	}
	for pause := retryPause; ; pause = min(2*pause, maxRetryPause) {
		s.locks.Lock()
		for err = nil; err == nil && a.state == in && (in != asked || a.failure == nil); {
			at = a.at
			if err = at.session.untilUp(ctx, giveUp, true); err != nil || a.at == at && !a.undeclared && !a.moving {
				break
			}
			if a.at == at {
				err = s.pause(ctx, a.await(), giveUp, "the hold moves to another node; try again", false)
			}
		}
		left := a.state != in || in == asked && a.failure != nil
		s.locks.Unlock()
		if err != nil || left {
			return nil, nil, sent, err
		}
		sent = time.Now()
		if first.IsZero() {
			// A lease counts from the first attempt, which may have succeeded.
			first = sent
		}
		timeout := callTimeout
		if !giveUp.IsZero() {
			timeout = min(timeout, max(replyGrace, giveUp.Sub(sent)))
		}
		if reply, err = at.session.call(sending, timeout, words(at)); err == nil {
			return reply, at, first, nil
		}
		if !isTransient(err) {
			return nil, at, sent, err
		}
		if failing.IsZero() {
			failing = sent
		}
		end := giveUp
		if end.IsZero() {
			end = failing.Add(s.settings.patience)
		}
		switch {
		case ctx.Err() != nil:
			return nil, at, sent, contextError(ctx)
		case err.(*Error).Code == "NOSESSION":
			// The reader opens a new session, and declares the acquire there.
		case time.Until(end) <= 0, err.(*Error).isMoved() && in == asked:
			return nil, at, sent, err
		}
		sleep(ctx, at.session.closing, pause)
	}
}

func sleep(ctx context.Context, closing <-chan struct{}, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-closing:
	case <-ctx.Done():
	}
}

// untilUp starts the reader and waits for it, under the mutex.
func (s *session) untilUp(ctx context.Context, giveUp time.Time, patient bool) error {
	if !s.started && !s.closed {
		s.started = true
		go s.read()
	}
	for !s.isUp {
		if s.closed {
			return errClosed
		}
		if s.failure != nil && !(patient && !giveUp.IsZero() && isTransient(s.failure)) {
			return s.failure
		}
		if err := s.pause(ctx, s.changed, giveUp, "no connection to the server; try again", false); err != nil {
			return err
		}
	}
	return nil
}

// Transitions, under the mutex.

func (s *session) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// enrol gives the acquire the next number of this session.
func (s *session) enrol(a *acquire) {
	s.lastN++
	a.at = &number{s, s.id, s.lastN}
	s.numbers[s.lastN] = a
	if a.state != held {
		s.unanswered[s.lastN] = a
	}
}

func (s *session) grant(a *acquire, reply any, since time.Time) {
	delete(a.at.session.unanswered, a.at.n)
	a.state, a.granted = held, time.Now()
	replies := []any{reply}
	if a.request.several() {
		replies, _ = reply.([]any)
	}
	for _, each := range replies {
		if fields := asMap(each); fields != nil {
			token, _ := fields["token"].(int64)
			a.tokens, each = append(a.tokens, token), fields["holds"]
		}
		count, _ := each.(int64)
		a.holds = max(a.holds, count)
	}
	if a.request.lease != nil {
		a.leaseEnds = since.Add(*a.request.lease)
	}
	a.signal()
}

// end: the acquire neither waits nor holds any longer.
func (s *session) end(a *acquire, reason string) {
	wasHeld := a.state == held || a.verb == release
	a.state, a.reason, a.undeclared, a.moving = over, reason, false, false
	a.leave()
	if wasHeld && !a.handedOver {
		word := "lost"
		if reason == release {
			word = "released"
		}
		s.notify(a, "held", word)
	}
	a.endContexts()
	a.signal()
}

// settle handles the reply to a release or a cancellation. The server gives the same reply to a repeated call.
func (s *session) settle(a *acquire, r result) {
	switch {
	case a.state != ending, r.err != nil && r.err.transient && !r.err.isMoved():
	case r.err != nil && r.err.isEnd():
		s.end(a, "deleted")
	default:
		s.end(a, a.verb)
	}
}

// lose ends a hold here, and leaves to the reader to cancel by its number what the server may still have of it.
func (s *session) lose(a *acquire, reason string) {
	s.end(a, reason)
	rest := &acquire{request: a.request, owner: a.owner, at: a.at, state: ending, verb: cancel}
	a.at.session.orphans = append(a.at.session.orphans, rest)
}

// drop releases a hold to which nothing refers any longer. It returns whether there was one.
func (s *session) drop(a *acquire) bool {
	s.locks.Lock()
	defer s.locks.Unlock()
	if a.state != held || a.handedOver || a.at.session.closed {
		return false
	}
	a.state, a.verb = ending, release
	a.at.session.unanswered[a.at.n] = a
	a.at.session.orphans = append(a.at.session.orphans, a)
	return true
}

func (s *session) notify(a *acquire, name, outcome string) {
	s.locks.events = append(s.locks.events, Event{a.request.label, name, outcome, time.Since(a.granted)})
}

// renewed has the holds that end with the session.
func (s *session) renewed() (holds []*acquire) {
	for _, a := range s.numbers {
		if a.state == held && a.request.lease == nil {
			holds = append(holds, a)
		}
	}
	return holds
}

// The reader.

// read is the only loop: heartbeat, events and losses.
func (s *session) read() {
	defer close(s.ended)
	var failing time.Time
	pause := retryPause
	for !s.isClosed() {
		err := s.round()
		if err == nil {
			failing, pause = time.Time{}, retryPause
			continue
		}
		var e *Error
		errors.As(err, &e)
		s.locks.Lock()
		switch e.Code {
		case "NOSESSION":
			s.forgetID()
		case "LATE":
			// R16: another process uses the id.
			s.forgetID()
			s.loseRenewed("late")
		default:
			if s.polled = (time.Time{}); failing.IsZero() {
				failing = time.Now()
			}
			if !e.transient || time.Since(failing) >= s.settings.patience {
				s.fail(e)
			}
		}
		s.checkClock()
		s.locks.Unlock()
		s.relocate(s, nil)
		sleep(context.Background(), s.closing, pause)
		pause = min(2*pause, maxRetryPause)
	}
	s.endAll()
}

func (s *session) address() string { return s.origin.Options().Addr }

func (s *session) isClosed() bool {
	s.locks.Lock()
	defer s.locks.Unlock()
	return s.closed
}

// round opens the session if necessary, and calls LOCK.EVENTS once.
func (s *session) round() error {
	s.locks.Lock()
	isUp := s.isUp
	s.locks.Unlock()
	if !isUp {
		if err := s.open(); err != nil {
			return err
		}
	}
	if err := s.poll(); err != nil {
		return err
	}
	s.locks.Lock()
	s.failure = nil
	if !s.isUp && !s.closed {
		s.isUp = true
		s.announce()
	}
	s.locks.Unlock()
	s.repeatOrphans()
	return nil
}

func (s *session) open() error {
	s.locks.Lock()
	isNew := s.id == ""
	s.locks.Unlock()
	if isNew {
		reply, err := s.node.read(replyGrace, []any{
			"LOCK.SESSION", "OPEN", "NEW", s.nextBeat(), "TTL", millis(s.settings.ttl),
			"GRACE", s.settings.grace.Milliseconds(), "NAME", s.settings.name,
		})
		if err != nil {
			return err
		}
		fields, _ := reply.([]any)
		if len(fields) == 0 {
			return &Error{Kind: ErrUnavailable, Text: "not a reply to LOCK.SESSION"}
		}
		s.locks.Lock()
		s.id, _ = fields[0].(string)
		s.seen, s.polled, s.safeUntil = 0, time.Time{}, time.Time{}
		acquires := s.inOrder()
		s.numbers, s.unanswered = map[int64]*acquire{}, map[int64]*acquire{}
		for _, a := range acquires {
			if a.verb == cancel {
				s.end(a, cancel)
			} else {
				s.enrol(a)
				a.undeclared = true
			}
		}
		s.locks.Unlock()
	}
	s.locks.Lock()
	undeclared := slices.DeleteFunc(s.inOrder(), func(a *acquire) bool { return !a.undeclared })
	s.locks.Unlock()
	return s.declare(undeclared)
}

func (s *session) inOrder() []*acquire {
	acquires := make([]*acquire, 0, len(s.numbers))
	for _, a := range s.numbers {
		acquires = append(acquires, a)
	}
	slices.SortFunc(acquires, func(a, b *acquire) int { return int(a.at.n - b.at.n) })
	return acquires
}

// declare binds holds to this session, and unanswered acquires that were granted (R3, R6, R13).
func (s *session) declare(acquires []*acquire) error {
	if len(acquires) == 0 {
		return nil
	}
	s.locks.Lock()
	now, calls := time.Now(), make([][]any, len(acquires))
	for i, a := range acquires {
		lease := a.request.lease
		if lease != nil && !a.leaseEnds.IsZero() {
			left := min(*lease, a.leaseEnds.Sub(now))
			lease = &left
		}
		calls[i] = a.renewWords(a.at, lease, a.maxHoldLeft())
	}
	s.locks.Unlock()
	results := s.batch(replyGrace+time.Duration(len(calls))*time.Millisecond, calls)
	s.locks.Lock()
	declared := map[string]int64{}
	for i, a := range acquires {
		switch err := results[i].err; {
		case err == nil:
			declared[a.holdOf()]++
		case err.transient && !err.isMoved():
			s.locks.Unlock()
			return err
		}
	}
	var moved []*acquire
	for i, a := range acquires {
		err := results[i].err
		if err != nil && err.isMoved() && a.state != over {
			moved = append(moved, a)
			continue
		}
		a.undeclared = false
		switch {
		case a.state == over:
		case err != nil:
			s.end(a, "restarted")
		case least(results[i].reply) < declared[a.holdOf()]:
			// R3, R22: another hold of this owner has ended, and nobody knows which.
			s.lose(a, "restarted")
		case a.state == asked && a.request.fence:
			// The reply to a renewal has no token.
			s.lose(a, "restarted")
		case a.state == asked:
			s.grant(a, results[i].reply, now)
		default:
			a.signal()
		}
	}
	s.locks.Unlock()
	s.moved(moved)
	return nil
}

// nextBeat is never taken from a reply (R16).
func (s *session) nextBeat() int64 {
	s.beat++
	return s.beat
}

// poll calls LOCK.EVENTS once: heartbeat, acknowledgement and events. The first one after a failure does not wait.
func (s *session) poll() error {
	s.locks.Lock()
	block := time.Duration(0)
	if !s.polled.IsZero() {
		block = min(eventsBlock, s.settings.ttl/3)
		if s.settings.grace > 0 {
			block = min(block, s.settings.grace/3)
		}
	}
	done := s.lastN + 1
	for n := range s.unanswered {
		done = min(done, n)
	}
	sent := time.Now()
	words := []any{"LOCK.EVENTS", s.id, s.nextBeat(), s.seen, done, block.Milliseconds(), eventsCount}
	s.locks.Unlock()
	reply, err := s.node.read(block+replyGrace, words)
	if err != nil {
		return err
	}
	events, _ := reply.([]any)
	s.locks.Lock()
	var moved []*acquire
	for _, each := range events {
		fields, _ := each.([]any)
		if len(fields) < 4 {
			continue
		}
		s.seen, _ = fields[0].(int64)
		n, _ := fields[2].(int64)
		a := s.numbers[n]
		if a == nil {
			continue
		}
		reason, _ := fields[3].(string)
		switch {
		case fields[1] == "granted" && a.state == asked:
			since := a.began
			if s.polled.After(since) {
				// The lease began after the previous reply, which did not have this event.
				since = s.polled
			}
			s.grant(a, fields[3], since)
			if len(fields) > 4 {
				a.tokens = integers(fields[4])
			}
		case fields[1] == "lost" && reason == "moved" && (a.state == held || a.verb == release):
			moved = append(moved, a)
		case fields[1] == "lost" && a.request.several():
			// Perhaps only one of the locks was lost.
			s.lose(a, reason)
		case fields[1] == "lost":
			s.end(a, reason)
		}
	}
	s.polled = sent
	if len(events) < eventsCount {
		s.confirmed, s.safeUntil = sent, sent.Add(s.settings.grace)
		s.setJeopardy(false)
	}
	s.locks.Unlock()
	s.moved(moved)
	return nil
}

func (s *session) moved(acquires []*acquire) {
	if acquires != nil {
		s.relocate(s, acquires)
	}
}

func (s *session) repeatOrphans() {
	s.locks.Lock()
	s.orphans = slices.DeleteFunc(s.orphans, func(a *acquire) bool { return a.state != ending || a.at.id != s.id })
	orphans, calls := slices.Clone(s.orphans), make([][]any, len(s.orphans))
	for i, a := range orphans {
		calls[i] = a.endWords(a.at)
	}
	s.locks.Unlock()
	if len(orphans) == 0 {
		return
	}
	results := s.batch(replyGrace, calls)
	var moved []*acquire
	s.locks.Lock()
	for i, a := range orphans {
		if err := results[i].err; err != nil && err.isMoved() && a.verb == release {
			moved = append(moved, a)
		} else {
			s.settle(a, results[i])
		}
	}
	s.locks.Unlock()
	s.moved(moved)
}

func (s *session) setJeopardy(value bool) {
	if value != s.inJeopardy {
		name := "safe"
		if s.inJeopardy = value; value {
			name = "jeopardy"
		}
		for _, a := range s.renewed() {
			s.notify(a, name, "")
		}
	}
}

func (s *session) checkClock() {
	if time.Until(s.safeUntil) <= 0 {
		s.setJeopardy(true)
	}
	if time.Since(s.confirmed) >= s.settings.ttl {
		s.loseRenewed("silent")
	}
}

func (s *session) loseRenewed(reason string) {
	for _, a := range s.renewed() {
		s.lose(a, reason)
	}
}

// forgetID: the session is over on the server.
func (s *session) forgetID() {
	s.id, s.isUp, s.safeUntil = "", false, time.Time{}
	s.announce()
}

// fail ends the waits that no limit would end, and those that can never succeed.
func (s *session) fail(e *Error) {
	s.failure = e
	for _, a := range s.unanswered {
		if a.state == asked && (a.until.IsZero() || !e.transient) {
			a.failure = e
			a.signal()
		}
	}
	s.announce()
}

// validFor is the time for which no other owner can have the lock, under the mutex.
func (s *session) validFor(a *acquire) time.Duration {
	if a.state != held || a.undeclared || a.moving || a.at.id != s.id {
		return 0
	}
	end := s.safeUntil
	if a.request.lease != nil {
		end = a.leaseEnds
	}
	return max(0, time.Until(end))
}

// adopt declares an acquire whose slot has moved to this node.
func (s *session) adopt(a *acquire) error {
	s.locks.Lock()
	err := s.untilUp(context.Background(), time.Now().Add(s.settings.patience), true)
	if err != nil || a.state == over {
		s.locks.Unlock()
		return err
	}
	s.enrol(a)
	a.undeclared, a.moving = true, false
	s.locks.Unlock()
	return s.declare([]*acquire{a})
}

// close ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends.
func (s *session) close() {
	s.locks.Lock()
	wasClosed, wasStarted := s.closed, s.started
	s.closed = true
	s.locks.Unlock()
	if !wasClosed {
		close(s.closing)
	}
	if wasStarted {
		s.endAll()
		_ = s.reader.Close()
		<-s.ended
	}
}

func (s *session) endAll() {
	s.locks.Lock()
	id := s.id
	s.id, s.isUp = "", false
	for _, a := range s.numbers {
		if a.state == asked {
			a.failure = errClosed
			a.signal()
		} else if a.request.lease == nil {
			s.end(a, "closed")
		}
	}
	s.announce()
	s.locks.Unlock()
	if id != "" {
		_, _ = s.call(context.Background(), closeTimeout, []any{"LOCK.SESSION", "CLOSE", id})
	}
}
