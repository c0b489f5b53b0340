// SPDX-License-Identifier: MIT

package lock

import (
	"cmp"
	"context"
	"math/rand"
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
	// queue has the calls that no sender has taken yet.
	queue   []*call
	senders int
	id      string
	// isUp: the session is open, its holds are declared (R3), and LOCK.EVENTS has confirmed them.
	isUp bool
	// acquires are all that are asked, held or in undo, by their numbers. No number is used twice, not even after a new id.
	acquires map[int64]*acquire
	// beat counts the calls of the reader, and is never taken from a reply (R16).
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
	a.signal()
}

// adopt declares an acquire that was known to another session, or to the one before. A wait asks again. It may still be granted.
func (s *session) adopt(a *acquire, reason string) {
	if a.state == asked {
		a.end(reason, true)
	}
	if a.state != over {
		s.enter(a)
	}
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
func (s *session) send(ctx context.Context, giveUp time.Time, words []any) (any, *Error) {
	sent := &call{words: words}
	if s.senders < callConnections && s.err == nil && s.calls.PoolStats().IdleConns > 0 {
		s.senders++
		s.exchange(callContext{ctx, giveUp}, s.calls, sent)
		s.nextBatch()
		return sent.reply, sent.err
	}
	// While go-redis makes a connection or waits for one, it may ignore the limit. So only a goroutine waits for it.
	sent.replied = make(chan struct{})
	if s.queue = append(s.queue, sent); s.senders < callConnections {
		s.senders++
		s.nextBatch()
	}
	if err := s.locks.wait(ctx, sent.replied, giveUp); err != nil {
		// It may have been sent. That is harmless, because its words name a number.
		s.queue = slices.DeleteFunc(s.queue, func(queued *call) bool { return queued == sent })
		return nil, noReply(err.Cause)
	}
	return sent.reply, sent.err
}

// nextBatch lets a sender continue with calls of the queue, in one round trip.
func (s *session) nextBatch() {
	batch := slices.Clone(s.queue[:min(len(s.queue), maxBatch)])
	if s.queue = slices.Delete(s.queue, 0, len(batch)); len(batch) == 0 {
		s.senders--
		return
	}
	go func() {
		defer s.locks.lock()()
		s.exchange(within(callTimeout), s.calls, batch...)
		for _, sent := range batch {
			close(sent.replied)
		}
		s.nextBatch()
	}()
}

// exchange sends calls in one round trip. Then they have their replies.
func (s *session) exchange(ctx context.Context, client *redis.Client, calls ...*call) {
	s.locks.mutex.Unlock()
	defer s.locks.mutex.Lock()
	pipe, commands := client.Pipeline(), make([]*redis.Cmd, len(calls))
	for i, call := range calls {
		commands[i] = pipe.Do(ctx, call.words...)
	}
	_, failure := pipe.Exec(ctx)
	for i, call := range calls {
		reply, err := commands[i].Result()
		if reply == nil && err == nil {
			// Without a connection, go-redis does not set the errors of the commands.
			err = failure
		}
		call.reply, call.err = reply, classify(err)
	}
}

// read is the only loop: heartbeat, events and losses.
func (s *session) read() {
	defer close(s.ended)
	defer s.locks.lock()()
	var pause, last time.Duration
	for !s.isClosed {
		err := s.turn()
		// With NOSESSION, the server answers again.
		if err != nil && (s.err == nil || err.is("NOSESSION")) {
			s.failing = time.Now()
		}
		if s.err = err; err == nil {
			last = 0
			continue
		}
		if err.is("NOSESSION", "LATE") {
			s.id, s.isUp = "", false
		}
		if err.is("LATE") {
			// R16: another process uses the id.
			s.endRenewed("late", 0)
		}
		s.endRenewed("silent", s.locks.ttl)
		s.setJeopardy(!s.isUp || s.safeFor() <= 0)
		for _, a := range s.acquires {
			// Another node of the cluster may have replaced this one.
			s.locks.relocate(a)
		}
		if s.failure(time.Now().Add(forever)) != nil {
			s.signal()
		}
		if len(s.acquires) == 0 && time.Since(s.confirmed) >= s.locks.ttl {
			// Perhaps the node is gone for ever.
			delete(s.locks.sessions, s.name)
			s.close()
		}
		first := retryPause
		if err.is("") {
			// Other clients may have lost their connections at the same moment.
			first = max(first, min(reconnectPause, s.locks.grace/3))
		}
		pause = min(2*pause, maxRetryPause)
		if first != last {
			pause, last = first, first
		}
		_ = s.locks.wait(context.Background(), s.closing, time.Now().Add(time.Duration(rand.Int63n(int64(pause)))))
	}
	s.endAll()
}

// turn declares what this session on the server does not know, and calls LOCK.EVENTS: heartbeat, acknowledgement and events.
func (s *session) turn() *Error {
	if s.id == "" {
		if err := s.open(); err != nil {
			return err
		}
	}
	// done is the least number whose acquire, undo or declaration has no answer (R11).
	done, unknown := s.lastN+1, []int64(nil)
	for n, a := range s.acquires {
		if a.state != held || !a.isKnown {
			done = min(done, n)
		}
		if a.state != asked && !a.isKnown {
			unknown = append(unknown, n)
		}
	}
	// Holds come first. An acquire that is over may have no hold. It must not take that of another acquire of its owner.
	slices.SortFunc(unknown, func(n, m int64) int { return cmp.Compare(s.acquires[n].state, s.acquires[m].state) })
	calls := make([]*call, len(unknown), len(unknown)+1)
	for i, n := range unknown {
		a := s.acquires[n]
		calls[i] = &call{words: a.words("RENEW", time.Until(a.leaseEnds))}
	}
	block := min(eventsBlock, s.locks.grace/3)
	switch {
	case s.err != nil || !s.isUp:
		// Confirms at once.
		block = 0
	case len(unknown) > 0:
		block = min(block, retryPause)
	case s.locks.grace == 0:
		block = min(eventsBlock, s.locks.ttl/3)
	}
	sent, timeout := time.Now(), block+replyGrace+time.Duration(len(calls))*time.Millisecond
	s.beat++
	poll := &call{words: []any{"LOCK.EVENTS", s.id, s.beat, s.seen, done, block.Milliseconds(), eventsCount}}
	s.exchange(within(timeout), s.reader, append(calls, poll)...)
	// A session that is up must not miss a heartbeat.
	if err := s.declare(unknown, calls); err != nil && !s.isUp {
		return err
	}
	if poll.err != nil {
		return poll.err
	}
	events, _ := poll.reply.([]any)
	for _, each := range events {
		if event, _ := each.([]any); len(event) >= 3 {
			s.handle(event)
		}
	}
	if len(events) < eventsCount {
		s.confirmed = sent
		s.setJeopardy(false)
	}
	if !s.isUp {
		s.isUp = true
		s.signal()
	}
	return nil
}

func (s *session) open() *Error {
	l := s.locks
	s.beat++
	open := &call{words: []any{
		"LOCK.SESSION", "OPEN", "NEW", s.beat, "TTL", millis(l.ttl), "GRACE", l.grace.Milliseconds(), "NAME", l.name,
	}}
	if s.exchange(within(replyGrace), s.reader, open); open.err != nil {
		return open.err
	}
	fields, _ := open.reply.([]any)
	s.id, _ = append(fields, nil)[0].(string)
	s.seen = 0
	for _, a := range s.acquires {
		if a.isKnown {
			s.adopt(a, "restarted")
		}
	}
	return nil
}

// declare handles the replies to declarations: of holds, and of what may have been granted (R3, R6, R13).
func (s *session) declare(numbers []int64, calls []*call) (failure *Error) {
	if len(numbers) == 0 {
		return nil
	}
	holds := map[string]int64{}
	for i, n := range numbers {
		if a := s.acquires[n]; a != nil && (calls[i].err == nil || a.state == held) {
			holds[a.holdOf()]++
		}
	}
	for i, n := range numbers {
		switch a, err := s.acquires[n], calls[i].err; {
		case a == nil:
		case err.is("MOVED"):
			// The nodes may not agree yet. Then the reader tries again.
			if !s.locks.relocate(a) {
				a.end("moved", false)
				a.undone()
			}
		case err.is("ASK", "TRYAGAIN"):
			// The slot is on its way. The next turn tries again.
		case err != nil && err.transient && !err.is("LATE"):
			failure = err
		case err != nil && a.state == held:
			a.end("restarted", a.lock.several())
		default:
			if a.isKnown = true; err == nil && slices.Min(integers(calls[i].reply)) < holds[a.holdOf()] {
				// R3, R22: another hold of this owner has ended, and nobody knows which.
				a.end("restarted", true)
			}
			a.signal()
		}
	}
	s.endRenewed("silent", s.locks.ttl)
	return failure
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
	var calls []*call
	s.isUp = false
	for _, a := range s.acquires {
		switch {
		case a.state == asked:
			a.end("cancelled", true)
		case a.state == held && !a.lock.isLeased():
			a.end("closed", false)
		}
		if a.state == undo {
			calls = append(calls, &call{words: a.words("CANCEL", 0)})
		}
	}
	if s.id != "" {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		s.exchange(ctx, s.calls, append(calls, &call{words: []any{"LOCK.SESSION", "CLOSE", s.id}})...)
	}
}
