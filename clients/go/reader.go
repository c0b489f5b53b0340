// SPDX-License-Identifier: MIT

package lock

import (
	"cmp"
	"context"
	"slices"
	"time"
)

const (
	// eventsBlock is the time that LOCK.EVENTS waits in the server, and at most a third of the grace.
	eventsBlock = time.Second
	// eventsCount is the maximum number of events in a reply. A full reply confirms nothing (R2).
	eventsCount = 1000
	// closeTimeout limits the last call of a session, LOCK.SESSION CLOSE.
	closeTimeout = time.Second
)

// The reader of a session is the only loop. Like all of the session, it runs under the mutex of the Locks.

func (s *session) start() {
	if !s.isStarted && !s.isClosed {
		s.isStarted = true
		go s.read()
	}
}

// read is the only loop: heartbeat, events and losses.
func (s *session) read() {
	defer close(s.ended)
	defer s.locks.lock()()
	var failing time.Time
	for pause := retryPause; !s.isClosed; {
		err := s.turn()
		if err == nil {
			failing, pause, s.failure, s.isFailing = time.Time{}, retryPause, nil, false
			continue
		}
		switch s.isFailing = true; {
		case err.is("NOSESSION"):
			s.forgetID()
		case err.is("LATE"):
			// R16: another process uses the id.
			s.forgetID()
			s.endRenewed("late")
		default:
			if failing.IsZero() {
				failing = time.Now()
			}
			if !err.transient || time.Since(failing) >= s.locks.patience {
				s.failWaits(err)
			}
			// Another node of the cluster may have replaced this one.
			s.locks.relocate(s.acquires())
		}
		if time.Until(s.safeUntil) <= 0 {
			s.setJeopardy(true, "jeopardy")
		}
		if time.Since(s.confirmed) >= s.locks.ttl {
			s.endRenewed("silent")
		}
		s.sleep(context.Background(), pause)
		pause = min(2*pause, maxRetryPause)
	}
	s.endAll()
}

func (s *session) turn() *Error {
	if s.id == "" {
		if err := s.open(); err != nil {
			return err
		}
	}
	for _, step := range []func() *Error{s.declare, s.repeatUndo} {
		// A session that is up must not miss a heartbeat.
		if err := step(); err != nil && !s.isUp {
			return err
		}
	}
	if err := s.poll(); err != nil {
		return err
	}
	if !s.isUp && !s.isClosed {
		s.isUp = true
		s.announce()
	}
	return nil
}

func (s *session) open() *Error {
	reply, err := s.readReply(
		replyGrace, "LOCK.SESSION", "OPEN", "NEW", s.nextBeat(),
		"TTL", millis(s.locks.ttl), "GRACE", s.locks.grace.Milliseconds(), "NAME", s.locks.name,
	)
	if err != nil {
		return err
	}
	for _, a := range s.acquires() {
		s.undeclared[a] = true
		if a.state == asked {
			s.abandon(a, "restarted")
		} else if a.isHandedOver {
			// Perhaps its new session declares it. Otherwise the lease runs out.
			s.end(a, "taken")
			delete(s.undeclared, a)
		}
	}
	clear(s.asked)
	clear(s.held)
	clear(s.undo)
	fields, _ := reply.([]any)
	s.id, _ = append(fields, nil)[0].(string)
	s.seen, s.safeUntil = 0, time.Time{}
	return nil
}

// declare binds holds to this session, and what may have been granted (R3, R6, R13).
func (s *session) declare() *Error {
	var acquires []*acquire
	for a := range s.undeclared {
		acquires = append(acquires, a)
	}
	// "held" comes first. An acquire that is over may have no hold. It must not take that of another acquire of its owner.
	slices.SortFunc(acquires, func(a, b *acquire) int { return cmp.Compare(a.state, b.state) })
	calls := make([][]any, len(acquires))
	for i, a := range acquires {
		if a.at.id != s.id {
			s.number(a)
		}
		calls[i] = a.declareWords()
	}
	results := s.batch(calls)
	holds := map[string]int64{}
	for i, a := range acquires {
		switch err := results[i].err; {
		case err.is("MOVED"):
		case err != nil && err.transient && !err.is("LATE"):
			return err
		case err == nil || a.state == held:
			holds[a.holdOf()]++
		}
	}
	var moved []*acquire
	for i, a := range acquires {
		err := results[i].err
		if err.is("MOVED") {
			s.undeclare(a)
			moved = append(moved, a)
			continue
		}
		delete(s.undeclared, a)
		if a.state == over {
			s.undo[a.at.n] = a
			continue
		}
		s.held[a.at.n] = a
		if err != nil {
			s.end(a, "restarted")
		} else if slices.Min(integers(results[i].reply)) < holds[a.holdOf()] {
			// R3, R22: another hold of this owner has ended, and nobody knows which.
			s.abandon(a, "restarted")
		}
	}
	// The nodes may not agree yet. Then the reader tries again.
	s.locks.relocate(moved)
	return nil
}

// undeclare leaves an acquire to the next turn of this session, with a new number.
func (s *session) undeclare(a *acquire) {
	from := a.at.session
	delete(from.held, a.at.n)
	delete(from.undo, a.at.n)
	delete(from.undeclared, a)
	a.at = number{session: s}
	s.undeclared[a] = true
}

// adopt takes an acquire from the session of another node, as this node serves its slot now.
func (s *session) adopt(a *acquire) {
	from, n := a.at.session, a.at.n
	isThere := from.asked[n] == a || from.held[n] == a || from.undo[n] == a || from.undeclared[a]
	if from != s && isThere {
		if a.state == asked {
			s.abandon(a, "moved")
		}
		s.undeclare(a)
		if from.confirmed.After(s.confirmed) {
			s.confirmed = from.confirmed
		}
		s.start()
		from.announce()
	}
}

// nextBeat is never taken from a reply (R16).
func (s *session) nextBeat() int64 {
	s.beat++
	return s.beat
}

// poll calls LOCK.EVENTS once: heartbeat, acknowledgement and events.
func (s *session) poll() *Error {
	block := min(eventsBlock, s.locks.grace/3)
	switch {
	case s.isFailing || !s.isUp:
		// Confirms at once.
		block = 0
	case len(s.undeclared) > 0:
		block = min(block, retryPause)
	case s.locks.grace == 0:
		block = min(eventsBlock, s.locks.ttl/3)
	}
	sent := time.Now()
	reply, err := s.readReply(
		block+replyGrace, "LOCK.EVENTS", s.id, s.nextBeat(), s.seen, s.done(), block.Milliseconds(), eventsCount,
	)
	if err != nil {
		return err
	}
	events, _ := reply.([]any)
	for _, each := range events {
		if event, _ := each.([]any); len(event) >= 4 {
			s.handle(event)
		}
	}
	if len(events) < eventsCount {
		s.confirmed, s.safeUntil = sent, sent.Add(s.locks.grace)
		s.setJeopardy(false, "safe")
	}
	return nil
}

// handle handles an event: its number, its name, the number of an acquire, and its fields.
func (s *session) handle(event []any) {
	s.seen = integers(event[0])[0]
	n := integers(event[2])[0]
	a := s.asked[n]
	if a == nil {
		a = s.held[n]
	}
	reason, _ := event[3].(string)
	switch {
	case a == nil:
	case event[1] == "granted" && a.state == asked:
		// The last confirming reply would have reported an earlier grant.
		since := a.granted
		if last := s.lastConfirmed(); last.After(since) {
			since = last
		}
		s.grant(a, since, true, event[3], append(event, nil)[4])
	case event[1] == "lost" && reason == "moved" && a.state == held:
		s.undeclare(a)
	case event[1] == "lost":
		s.endPerhaps(a, reason)
	}
}

// done is the least number whose acquire, undo or declaration has no answer (R11).
func (s *session) done() int64 {
	done := s.lastN + 1
	for _, place := range []map[int64]*acquire{s.asked, s.undo} {
		for n := range place {
			done = min(done, n)
		}
	}
	for a := range s.undeclared {
		if a.at.id == s.id {
			done = min(done, a.at.n)
		}
	}
	return done
}

// repeatUndo undoes on the server what is over here.
func (s *session) repeatUndo() (err *Error) {
	var acquires []*acquire
	var calls [][]any
	for _, a := range s.undo {
		acquires, calls = append(acquires, a), append(calls, a.cancelWords())
	}
	for i, r := range s.batch(calls) {
		switch a := acquires[i]; {
		case s.undo[a.at.n] != a:
			// Its caller has undone it.
		case r.err.is("MOVED"):
			s.undeclare(a)
		case r.err != nil && r.err.transient:
			err = r.err
		default:
			s.undone(a.at.n)
		}
	}
	return err
}

// forgetID: the session is over on the server.
func (s *session) forgetID() { s.id, s.isUp, s.safeUntil = "", false, time.Time{} }

// failWaits ends the waits that no limit would end, and those that can never succeed.
func (s *session) failWaits(err *Error) {
	s.failure = err
	for _, a := range s.asked {
		if !err.transient || !isLimited(time.Until(a.until)) {
			a.failure = err
			a.signal()
		}
	}
	s.announce()
}

// close ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends.
func (s *session) close() {
	if !s.isClosed {
		s.isClosed = true
		close(s.closing)
	}
	if s.isStarted {
		s.endAll()
		_ = s.node.reader.Close()
		if !s.locks.inListener() {
			s.locks.unlock()
			defer s.locks.mutex.Lock()
			<-s.ended
		}
	}
}

func (s *session) endAll() {
	id := s.id
	s.id, s.isUp = "", false
	for _, a := range s.asked {
		a.failure = errClosed
		a.signal()
	}
	s.endRenewed("closed")
	s.announce()
	if id != "" {
		_, _ = s.exchange(context.Background(), closeTimeout, []any{"LOCK.SESSION", "CLOSE", id})
	}
}
