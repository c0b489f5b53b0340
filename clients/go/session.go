// SPDX-License-Identifier: MIT

package lock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// eventsBlock is the time that LOCK.EVENTS waits in the server, and at most a third of the grace.
	eventsBlock = time.Second
	// eventsCount is the maximum number of events in a reply. A full reply confirms nothing (R2).
	eventsCount = 1000
	// closeTimeout limits the last calls of a session.
	closeTimeout = time.Second
)

// A session is a client's presence on one server. Rules R1 to R23 are those of docs/sessions.md.
//
//   - A lost connection changes nothing: calls are repeated with their numbers, and the next LOCK.EVENTS resumes the session.
//   - A failover or a restart ends the session on the server. The reader opens a new one, and declares the holds there. It undoes
//     all else, and waits ask again.
//
// All methods run under the mutex of the Locks, and release it while they wait or call.
type session struct {
	locks *Locks
	// name is the address of the node.
	name string
	// reader is for the reader's connection, and calls a copy of origin, the user's client.
	reader, origin, calls *redis.Client
	// flying counts the calls and batches on their way, and queue has the calls that wait for one of them to end.
	flying int
	queue  []*queued
	id     string
	// isUp: the session is open, its holds are declared (R3), and LOCK.EVENTS has confirmed them.
	isUp bool
	// acquires are all that are asked, held or in undo, by their numbers. No number is used twice, not even after a new id.
	acquires map[int64]*acquire
	// isDeclared: the server knows all that is held or in undo.
	isDeclared        bool
	beat, seen, lastN int64
	// confirmed is when the last confirming LOCK.EVENTS was sent, or when the session was made.
	confirmed  time.Time
	inJeopardy bool
	// err is that of the reader's last turn, and failing when the first of the failures in sequence happened.
	err            *Error
	failing        time.Time
	isClosed       bool
	closing, ended chan struct{}
}

func newSession(locks *Locks, name string, client *redis.Client) *session {
	s := &session{
		locks: locks, name: name, reader: readerOf(client), acquires: map[int64]*acquire{}, isDeclared: true, confirmed: time.Now(),
		closing: make(chan struct{}), ended: make(chan struct{}),
	}
	go s.read()
	return s
}

// use makes calls by this client of the user. A cluster client replaces the client of a node that was gone for a time.
func (s *session) use(client *redis.Client) {
	if s.origin != client {
		s.origin, s.calls = client, once(client, callTimeout)
		s.calls.Options().ContextTimeoutEnabled = true
	}
}

// enter gives the acquire the next number of this session. The server does not know it yet.
func (s *session) enter(a *acquire) {
	if from := a.session; from != nil {
		delete(from.acquires, a.n)
		if a.isKnown {
			a.confirmed = from.confirmed
		}
	}
	s.lastN++
	a.session, a.n, a.isKnown = s, s.lastN, false
	s.acquires[a.n] = a
	s.isDeclared = s.isDeclared && a.state == asked
	a.signal()
}

// adopt declares an acquire that was known to another session, or to the one before. A wait asks again. It may still be granted.
func (s *session) adopt(a *acquire, reason string) {
	if a.state == asked && a.isKnown {
		a.end(reason, true)
	}
	s.enter(a)
}

// failure is why a call with this limit ends without a reply.
func (s *session) failure(giveUp time.Time) *Error {
	switch {
	case s.isClosed:
		return errClosed
	case s.err == nil || s.err.transient && (isLimited(time.Until(giveUp)) || time.Since(s.failing) < s.locks.patience):
		return nil
	}
	return s.err
}

// send has the reply to one call, over any connection of the user's pool.
func (s *session) send(ctx context.Context, timeout time.Duration, words []any) (any, *Error) {
	if s.flying < callConnections {
		s.flying++
		defer s.land()
		calls := s.calls
		s.locks.mutex.Unlock()
		defer s.locks.mutex.Lock()
		return do(ctx, calls, timeout, words)
	}
	call := &queued{words: words, replied: make(chan struct{})}
	s.queue = append(s.queue, call)
	if err := s.locks.wait(ctx, call.replied, time.Now().Add(timeout)); err != nil {
		// It may have been sent. That is harmless, because its words name a number.
		if i := slices.Index(s.queue, call); i >= 0 {
			s.queue = slices.Delete(s.queue, i, i+1)
		}
		return nil, classify(err.Cause)
	}
	return call.reply, call.err
}

// land ends a call or a batch. Then the queued calls go out together.
func (s *session) land() {
	calls, batch := s.calls, s.queue[:min(len(s.queue), maxBatch)]
	if s.queue = s.queue[len(batch):]; len(batch) == 0 {
		s.flying--
		return
	}
	go func() {
		all := make([][]any, len(batch))
		for i, call := range batch {
			all[i] = call.words
		}
		results := pipeline(calls, callTimeout, all)
		defer s.locks.lock()()
		for i, call := range batch {
			call.result = results[i]
			close(call.replied)
		}
		s.land()
	}()
}

// sendBeat has the reply to a call over the reader's connection. The next beat follows the first words. It is never taken from a
// reply (R16).
func (s *session) sendBeat(timeout time.Duration, first []any, others ...any) (any, *Error) {
	s.beat++
	words := append(append(first, s.beat), others...)
	s.locks.mutex.Unlock()
	defer s.locks.mutex.Lock()
	return do(context.Background(), s.reader, timeout, words)
}

// read is the only loop: heartbeat, events and losses.
func (s *session) read() {
	defer close(s.ended)
	defer s.locks.lock()()
	for pause := retryPause; !s.isClosed; {
		err := s.turn()
		if err != nil && s.err == nil {
			s.failing = time.Now()
		}
		s.err = err
		switch {
		case err == nil:
			pause = retryPause
		case err.is("NOSESSION"):
			s.id, s.isUp = "", false
		case err.is("LATE"):
			// R16: another process uses the id.
			s.id, s.isUp = "", false
			s.endRenewed("late", 0)
		default:
			// Another node of the cluster may have replaced this one.
			for _, a := range s.acquires {
				s.locks.relocate(a)
			}
		}
		if err != nil || !s.isDeclared {
			s.endRenewed("silent", s.locks.ttl)
		}
		if err == nil {
			continue
		}
		s.setJeopardy(!s.isUp || s.safeFor() <= 0)
		if s.failure(time.Now().Add(forever)) != nil {
			s.signal()
		}
		if len(s.acquires) == 0 && time.Since(s.confirmed) >= s.locks.ttl {
			// Perhaps the node is gone for ever.
			delete(s.locks.sessions, s.name)
			s.close()
		}
		_ = s.locks.wait(context.Background(), s.closing, time.Now().Add(pause))
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
	// A session that is up must not miss a heartbeat.
	if err := s.declare(); err != nil && !s.isUp {
		return err
	}
	if err := s.poll(); err != nil {
		return err
	}
	if !s.isUp {
		s.isUp = true
		s.signal()
	}
	return nil
}

func (s *session) open() *Error {
	l := s.locks
	reply, err := s.sendBeat(
		replyGrace, []any{"LOCK.SESSION", "OPEN", "NEW"}, "TTL", millis(l.ttl), "GRACE", l.grace.Milliseconds(), "NAME", l.name,
	)
	if err != nil {
		return err
	}
	fields, _ := reply.([]any)
	s.id, _ = append(fields, nil)[0].(string)
	s.seen = 0
	for _, a := range s.acquires {
		if a.isKnown {
			s.adopt(a, "restarted")
		}
	}
	return nil
}

// declare binds to this session what it does not know: holds, and what may have been granted (R3, R6, R13).
func (s *session) declare() *Error {
	if s.isDeclared {
		return nil
	}
	var numbers []int64
	for n, a := range s.acquires {
		if !a.isKnown && a.state != asked {
			numbers = append(numbers, n)
		}
	}
	s.isDeclared = len(numbers) == 0
	// Holds come first. An acquire that is over may have no hold. It must not take that of another acquire of its owner.
	slices.SortFunc(numbers, func(n, m int64) int { return cmp.Compare(s.acquires[n].state, s.acquires[m].state) })
	calls := make([][]any, len(numbers))
	for i, n := range numbers {
		a := s.acquires[n]
		calls[i] = a.words("RENEW", time.Until(a.leaseEnds))
	}
	s.locks.mutex.Unlock()
	// Over the reader's connection, as the user's pool may be full.
	results := pipeline(s.reader, replyGrace+time.Duration(len(calls))*time.Millisecond, calls)
	s.locks.mutex.Lock()
	holds := map[string]int64{}
	for i, n := range numbers {
		switch a, err := s.acquires[n], results[i].err; {
		case a == nil || err.is("MOVED", "ASK", "TRYAGAIN"):
		case err != nil && err.transient && !err.is("LATE"):
			return err
		case err == nil || a.state == held:
			holds[a.holdOf()]++
		}
	}
	for i, n := range numbers {
		switch a, err := s.acquires[n], results[i].err; {
		case a == nil:
		case err.is("MOVED"):
			// The nodes may not agree yet. Then the reader tries again.
			if !s.locks.relocate(a) {
				a.end("moved", false)
				a.undone()
			}
		case err.is("ASK", "TRYAGAIN"):
			// The slot is on its way. The next turn tries again.
		case err != nil && a.state == held:
			a.end("restarted", a.lock.several())
		default:
			if a.isKnown = true; err == nil && slices.Min(integers(results[i].reply)) < holds[a.holdOf()] {
				// R3, R22: another hold of this owner has ended, and nobody knows which.
				a.end("restarted", true)
			}
			a.signal()
		}
	}
	return nil
}

// poll calls LOCK.EVENTS once: heartbeat, acknowledgement and events.
func (s *session) poll() *Error {
	block := min(eventsBlock, s.locks.grace/3)
	switch {
	case s.err != nil || !s.isUp:
		// Confirms at once.
		block = 0
	case !s.isDeclared:
		block = min(block, retryPause)
	case s.locks.grace == 0:
		block = min(eventsBlock, s.locks.ttl/3)
	}
	// done is the least number whose acquire, undo or declaration has no answer (R11).
	done := s.lastN + 1
	for n, a := range s.acquires {
		if a.state != held || !a.isKnown {
			done = min(done, n)
		}
	}
	sent := time.Now()
	reply, err := s.sendBeat(
		block+replyGrace, []any{"LOCK.EVENTS", s.id}, s.seen, done, block.Milliseconds(), eventsCount,
	)
	if err != nil {
		return err
	}
	events, _ := reply.([]any)
	for _, each := range events {
		if event, _ := each.([]any); len(event) >= 3 {
			s.handle(event)
		}
	}
	if len(events) < eventsCount {
		s.confirmed = sent
		s.setJeopardy(false)
	}
	return nil
}

// handle handles an event: its number, its name, the number of an acquire, and its fields.
func (s *session) handle(event []any) {
	s.seen = integers(event[0])[0]
	a := s.acquires[integers(event[2])[0]]
	reason, _ := append(event, nil)[3].(string)
	switch {
	case a == nil || a.state > held:
	case event[1] == "granted" && a.state == asked:
		// The last confirming reply would have reported an earlier grant.
		since := a.sent
		if s.confirmed.After(since) {
			since = s.confirmed
		}
		a.grant(since, true, event[3], append(event, nil)[4])
	case event[1] == "lost" && reason == "moved" && a.state == held:
		s.enter(a)
	case event[1] == "lost":
		a.end(reason, a.lock.several())
	}
}

// endRenewed ends the holds that live as long as the session, if nothing has confirmed them for this time.
func (s *session) endRenewed(reason string, silence time.Duration) {
	for _, a := range s.acquires {
		confirmed := s.confirmed
		if !a.isKnown {
			confirmed = a.confirmed
		}
		if a.state == held && !a.lock.isLeased() && time.Since(confirmed) >= silence {
			a.end(reason, true)
		}
	}
}

// safeFor is the time for which the server keeps the session, even if it hears nothing.
func (s *session) safeFor() time.Duration { return time.Until(s.confirmed.Add(s.locks.grace)) }

// setJeopardy notifies the listener of the begin or the end of jeopardy.
func (s *session) setJeopardy(value bool) {
	if value == s.inJeopardy {
		return
	}
	s.inJeopardy = value
	event := map[bool]string{true: "jeopardy", false: "safe"}[value]
	for _, a := range s.acquires {
		if a.state == held && !a.lock.isLeased() {
			a.notify(event, "")
		}
	}
}

// signal lets all that wait for the session look again.
func (s *session) signal() {
	for _, a := range s.acquires {
		a.signal()
	}
}

// close makes the reader end the session. All waits of this process end.
func (s *session) close() {
	if !s.isClosed {
		s.isClosed = true
		close(s.closing)
		_ = s.reader.Close()
		s.signal()
	}
}

// endAll ends waits and renewed holds, and the session. A hold with a lease of its own remains until its lease ends.
func (s *session) endAll() {
	var calls [][]any
	s.isUp = false
	for _, a := range s.acquires {
		switch {
		case a.state == asked:
			a.end("cancelled", true)
		case a.state == held && !a.lock.isLeased():
			a.end("closed", false)
		}
		if a.state == undo {
			calls = append(calls, a.words("CANCEL", 0))
		}
	}
	if client := s.calls; s.id != "" {
		s.locks.mutex.Unlock()
		defer s.locks.mutex.Lock()
		pipeline(client, closeTimeout, append(calls, []any{"LOCK.SESSION", "CLOSE", s.id}))
	}
}
