// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Hold is a lock that is held.
type Hold struct {
	locks      *Locks
	key, owner string
	token      int64
	how        how
	// ctx ends with the hold. Its cause is ErrLost if it was lost.
	ctx    context.Context
	cancel context.CancelCauseFunc
	lost   chan struct{}
	// wake: a connection broke, and what was bound to it is to be renewed at once. changed: the lease did.
	wake, changed chan struct{}
	releaseID     string
	// since is when the acquire that was granted was sent.
	since time.Time
	// renewing has room for one, until its reply has come: so the lease that was set last is the one that is known.
	renewing chan struct{}

	mu    sync.Mutex
	state state
	loss  error
	// left: Release has failed, or its caller has gone, and it goes on behind their backs.
	left  bool
	lease time.Duration
	// until is when the last confirmed call was sent, plus the lease. Before it nobody else has the lock, whatever the network does.
	until time.Time
	// latest is when the lease may end in the server: a longer one may have been set by a call whose reply was lost.
	latest time.Time
	// given is called when it is over with what left says.
	given func()
	// bound is the connection to which the server has bound what is kept. It ends with that.
	bound *link
}

type state int

const (
	held state = iota
	// Somebody has begun to give it back. It is not renewed any more.
	releasing
	released
	lost
)

// Key is the lock's.
func (h *Hold) Key() string { return h.key }

// Owner is the name under which the server knows this hold. See HandOver, if another process is to have it.
func (h *Hold) Owner() string { return h.owner }

// Token is greater than that of every grant before, if the lock was asked for Fenced; else 0.
func (h *Hold) Token() int64 { return h.token }

// Context ends with the hold, and not with the context of Acquire, whose values it has. Its cause is ErrLost if it was lost.
func (h *Hold) Context() context.Context { return h.ctx }

// Lost is closed if the hold ends before it is given back. It is not closed by Release.
func (h *Hold) Lost() <-chan struct{} { return h.lost }

// ValidFor is for how long nobody else can have the lock, whatever the network does. What is kept ends with its connection: then this
// is 0, until a renewal has been confirmed on the next.
func (h *Hold) ValidFor() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != held || h.how.watchdog && !h.bound.alive() {
		return 0
	}
	return max(0, time.Until(h.until))
}

// Guard carries out a command of Redis if the lock is still held, in the same step. If not, nothing happens: ErrLost. The reply
// is nil, an int64, a string, or a []any of these. ErrUnavailable does not say whether the command was carried out.
// ErrLost may also be the word of a script of the caller's own, which asks for another lock: the hold is lost if Lost says so.
func (h *Hold) Guard(ctx context.Context, command ...any) (any, error) {
	if err := h.over(); err != nil {
		return nil, err
	}
	got, err := h.locks.session.call(ctx, append([]any{"LOCK.GUARD", h.key, "OWNER", h.owner}, command...)...)
	if errors.Is(err, ErrLost) {
		if over := h.over(); over != nil {
			// It has just been given back.
			return nil, over
		}
		// A script may say so of another lock. A renewal says it of this one.
		_ = h.renew(ctx, 0)
	}
	return got.value, of(h.key, err)
}

// Extend sets the lease anew, for longer or shorter. It is also that with which a kept hold is renewed from now on. It is tried
// for as long as the hold is valid, and 30 s at most. If ctx ends before, the call may be carried out yet, and then counts.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	if lease < time.Millisecond {
		return &Error{Kind: ErrMisuse, Key: h.key, Text: "a lease must be at least 1ms"}
	}
	ctx, cancel := h.briefly(ctx)
	defer cancel()
	for why := error(errLong); ; {
		err := h.renew(ctx, lease)
		if err == error(errLong) {
			err = why
		} else if passes(err) {
			why = err
			_ = sleep(ctx, tryAgain)
			continue
		}
		return of(h.key, err)
	}
}

// Release gives the lock back. It is tried for as long as the lease, and 30 s at most. If it fails or ctx ends before, it goes on
// without the caller. It may be called again, and counts once. The hold is not renewed any more. ErrLost, if it ended before.
func (h *Hold) Release(ctx context.Context) error {
	h.mu.Lock()
	state, loss, lease := h.state, h.loss, h.lease
	if state == held {
		h.state = releasing
	}
	h.mu.Unlock()
	switch state {
	case released:
		return nil
	case lost:
		return loss
	}
	s := h.locks.session
	given := s.gives(claim{h.key, h.owner})
	inner, cancel := h.under(ctx)
	defer cancel()
	got, err := s.insist(inner, min(lease, s.releaseFor), h.release()...)
	if err == nil {
		got.link = nil
	}
	err = h.gaveBack(err)
	if err != nil && !errors.Is(err, ErrLost) {
		// Nobody may call it again.
		h.leave()
	}
	// Whoever has gone: what may be on its way must not free the next hold of that name.
	s.whenAnswered(got.link, given)
	return err
}

// HandOver leaves the hold to another process, and tells its owner, for Locks.Attach there. Nothing here renews it, watches it or
// gives it back any more: for this process it has ended as by Release. If it is kept, it is bound to this process's connection until
// the other has attached: so this process should live until then. ErrLost, if there is nothing to hand over. It waits for an
// Extend or a renewal that is on its way, also if its caller has gone: for as long as the hold is valid, and 30 s at most. Then
// it is ErrUnavailable, and the hold is still this process's. So it is if the connection of what is kept has ended, and no other
// could be had.
func (h *Hold) HandOver() (string, error) {
	if h.locks.session.closing.Err() != nil {
		// The connection of what is kept is about to end. The watch says that it is lost.
		<-h.ctx.Done()
	}
	if err := h.over(); err != nil {
		return "", err
	}
	ctx, cancel := h.briefly(context.Background())
	defer cancel()
	// A renewal that is on its way would take it back from the other, or set another lease.
	select {
	case h.renewing <- struct{}{}:
	case <-ctx.Done():
		return "", of(h.key, ended(ctx))
	}
	h.mu.Lock()
	adrift := h.how.watchdog && !h.bound.alive()
	h.mu.Unlock()
	if adrift {
		// It has ended with its connection, unless the server says otherwise.
		if err := h.renewAlone(ctx, 0); err != nil {
			<-h.renewing
			return "", of(h.key, err)
		}
	}
	h.mu.Lock()
	state := h.state
	if state == held {
		h.state = released
	}
	h.mu.Unlock()
	<-h.renewing
	if state != held {
		return "", h.over()
	}
	h.ended(released, nil)
	return h.owner, nil
}

// over is the error of whatever needs the hold, if it has ended, or is about to.
func (h *Hold) over() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.state {
	case held:
		return nil
	case lost:
		return h.loss
	}
	return &Error{Kind: ErrLost, Key: h.key, Text: "it is not held any more"}
}

func (h *Hold) release() []any { return []any{"LOCK.RELEASE", h.key, h.owner, "ID", h.releaseID} }

// gaveBack takes what the server said to that.
func (h *Hold) gaveBack(err error) error {
	if err != nil {
		return h.heed(err)
	}
	h.finish(released, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	// Not nil if the lease ran out meanwhile.
	return h.loss
}

// leave has the watch give it back. Until that has come to an end nobody here gets it by the same owner's name.
func (h *Hold) leave() {
	s := h.locks.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, watched := s.watched[h]; !watched {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if isThere := h.state == held || h.state == releasing; isThere && !h.left {
		h.left, h.given = true, s.note(claim{h.key, h.owner})
		poke(h.changed)
	}
}

// letGo gives back behind everybody's back what is held, until then, and for long if it is kept: the server would renew that for
// as long as the connection is there. Who may not give it back may have it run out.
func (h *Hold) letGo(ctx context.Context, until time.Time, lease time.Duration) (released error) {
	s := h.locks.session
	if long := time.Now().Add(giveBackFor); h.how.watchdog && until.Before(long) {
		until = long
	}
	released = errLong
	for pause := tryAgain; time.Now().Before(until); pause = min(2*pause, time.Second) {
		_, released = s.call(ctx, h.release()...)
		err := released
		if errors.Is(err, ErrMisuse) && !says(err, "WRONGTYPE") && h.how.watchdog {
			_, err = s.call(ctx, h.lastRenewal(lease)...)
		}
		// A permission may come back, too. With WRONGTYPE something else is in the lock's place.
		if err == nil || errors.Is(err, ErrLost) || says(err, "WRONGTYPE") || sleep(ctx, pause) != nil {
			break
		}
	}
	return released
}

// giveBackLater does so with a hold that has begun.
func (h *Hold) giveBackLater(until time.Time, lease time.Duration) {
	defer h.given()
	_ = h.gaveBack(h.letGo(h.locks.session.gone, until, lease))
}

// isLeft says whether it is to be given back behind everybody's back, and until when the server may have it, with which lease.
func (h *Hold) isLeft() (time.Time, time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.latest, h.lease, h.left
}

// under is a context that a loss ends, too.
func (h *Hold) under(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.ctx, func() {
		if cause := context.Cause(h.ctx); errors.Is(cause, ErrLost) {
			cancel(verdict{cause})
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}

// briefly is such a context that does not keep the caller waiting for longer than a release would.
func (h *Hold) briefly(ctx context.Context) (context.Context, func()) {
	ctx, done := h.under(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, h.locks.session.releaseFor, verdict{errLong})
	return ctx, func() { cancel(); done() }
}

// heed tells of a loss that an answer is.
func (h *Hold) heed(err error) error {
	err = of(h.key, err)
	if errors.Is(err, ErrLost) {
		h.finish(lost, err)
	}
	return err
}

// finish says whether it is this that ended the hold.
func (h *Hold) finish(end state, loss error) bool {
	h.mu.Lock()
	if h.state == released || h.state == lost {
		h.mu.Unlock()
		return false
	}
	h.state, h.loss = end, loss
	h.mu.Unlock()
	h.ended(end, loss)
	return true
}

func (h *Hold) ended(end state, loss error) {
	h.cancel(loss)
	name := "released"
	if end == lost {
		name = "lost"
		// Whoever hears of it finds the cause.
		close(h.lost)
	}
	h.locks.tell(h.how.label, "held", name, h.since)
}

// replaces tells of the loss of others here of the same key and owner. They have ended in the server, which grants nothing to an owner
// that has it, unless both are shared. Nothing of them may be given back: that would end this.
func (h *Hold) replaces() {
	if h.how.owner == "" {
		// Nobody else ever had that name.
		return
	}
	s := h.locks.session
	var others []*Hold
	s.mu.Lock()
	for other := range s.watched {
		if other.key == h.key && other.owner == h.owner && !(other.how.shared && h.how.shared) {
			others = append(others, other)
		}
	}
	s.mu.Unlock()
	for _, other := range others {
		other.finish(lost, &Error{Kind: ErrLost, Key: h.key, Text: "its owner has got the lock anew"})
	}
}

// begin is called in an acquire, when the lock is granted.
func (h *Hold) begin(ctx context.Context, got answered) {
	h.ctx, h.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	h.lost, h.renewing = make(chan struct{}), make(chan struct{}, 1)
	h.wake, h.changed = make(chan struct{}, 1), make(chan struct{}, 1)
	h.releaseID, h.lease, h.until, h.bound = random(), h.how.lease, got.sent.Add(h.how.lease), got.link
	h.latest = h.until
	s := h.locks.session
	s.mu.Lock()
	s.watched[h] = struct{}{}
	s.mu.Unlock()
	s.spawn(h.watch)
}

// renewal binds what is kept to the connection of the call, or leaves it bound as it is.
func (h *Hold) renewal(lease time.Duration, binds bool) []any {
	words := []any{"LOCK.RENEW", h.key, h.owner, "PX", millis(lease)}
	if binds {
		words = append(words, h.how.bound(time.Since(h.since))...)
	}
	return words
}

// lastRenewal has what is kept run out: it is older than MAX, so the server renews it no more.
func (h *Hold) lastRenewal(lease time.Duration) []any {
	return []any{"LOCK.RENEW", h.key, h.owner, "PX", millis(lease), "WATCHDOG", "MAX", 1, "EPHEMERAL"}
}

// renew sets the lease anew. If none is given, what is kept has it as it was, and all else what is left of it. If the context
// ends first, the call goes on, and counts when its reply comes: until then there is no other.
func (h *Hold) renew(ctx context.Context, lease time.Duration) error {
	select {
	case h.renewing <- struct{}{}:
	case <-ctx.Done():
		return ended(ctx)
	}
	done := make(chan error, 1)
	if !h.locks.session.follow(func() {
		done <- h.renewAlone(ctx, lease)
		<-h.renewing
	}) {
		<-h.renewing
		return errClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	default:
		return ended(ctx)
	}
}

// renewAlone ends when the reply has come, or its connection has ended. Only what is not bound to the connection of now is bound
// by this: a call that is late on its way must not move a bond.
func (h *Hold) renewAlone(ctx context.Context, lease time.Duration) error {
	if err := h.over(); err != nil {
		return err
	}
	l, err := h.locks.session.connect(ctx, commands)
	if err != nil {
		return err
	}
	_, _, keeps, _ := h.plan()
	h.mu.Lock()
	switch end := time.Now().Add(lease); {
	case lease == 0 && keeps:
		lease = h.lease
	case lease == 0:
		lease = max(time.Until(h.until), time.Millisecond)
	case h.state == held && end.Before(h.until):
		// The server may set a shorter lease, and the answer get lost.
		h.lease, h.until = lease, end
		poke(h.changed)
	}
	if end := time.Now().Add(lease); end.After(h.latest) {
		h.latest = end
	}
	binds := h.bound != l
	h.mu.Unlock()
	if err := h.over(); err != nil {
		return err
	}
	got, err := h.locks.session.callOn(context.Background(), l, h.renewal(lease, binds)...)
	if over := h.over(); over != nil {
		// It may have come after the release: that is no loss.
		return over
	}
	if err != nil {
		return h.heed(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease, h.until, h.bound = lease, got.sent.Add(lease), l
	h.latest = h.until
	poke(h.changed)
	return nil
}

// plan says until when the hold is valid, and whether it is to be renewed before. It is urgent if what it was bound to has ended.
func (h *Hold) plan() (until time.Time, lease time.Duration, keeps, urgent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keeps = h.state == held && h.how.watchdog && !(h.how.hasMaxHold && time.Since(h.since) >= h.how.maxHold)
	return h.until, h.lease, keeps, keeps && !h.bound.alive()
}

// watch renews what is to be kept, and tells of a loss: when the server does, or the own clock.
func (h *Hold) watch() {
	s := h.locks.session
	begun := false
	giveBack := func() {
		if until, lease, left := h.isLeft(); left && !begun {
			begun = true
			s.spawn(func() { h.giveBackLater(until, lease) })
		}
	}
	defer func() {
		s.mu.Lock()
		delete(s.watched, h)
		s.mu.Unlock()
		// From now on nobody has it given back.
		giveBack()
	}()
	// failed is why it could not be renewed, and again the pause after that.
	again := tryAgain
	for failed := error(nil); ; {
		until, lease, keeps, urgent := h.plan()
		pause, beat := time.Until(until), min(lease/3, s.beat)
		switch {
		case keeps && errors.Is(failed, ErrMisuse):
			pause = min(pause, beat)
		case keeps && failed != nil:
			pause = min(pause, beat, again)
			again = max(tryAgain, min(2*again, lease/10, time.Second))
		case urgent:
			pause = 0
		case keeps:
			// At once, if it is late already.
			pause, again = min(pause-lease/3, beat), tryAgain
		}
		wake := h.wake
		if passes(failed) {
			// The next connections may end at once, too.
			wake = nil
		}
		timer := time.NewTimer(pause)
		replan := false
		select {
		case <-timer.C:
		case <-wake:
		case <-h.changed:
			replan = true
		case <-h.ctx.Done():
		case <-s.closing.Done():
			h.finish(lost, &Error{Kind: ErrLost, Key: h.key, Text: "closed"})
		}
		timer.Stop()
		if h.ctx.Err() != nil {
			return
		}
		until, lease, keeps, _ = h.plan()
		giveBack()
		over := !time.Now().Before(until)
		if over && (!keeps || failed != nil) {
			h.runOut()
			return
		}
		if !keeps || replan {
			continue
		}
		deadline := until
		if over {
			// The process slept through its lease. It asks once: the server may have renewed, and then nobody else had the
			// lock, as no other ever has this owner's name.
			deadline = time.Now().Add(lease / 3)
		}
		ctx, cancel := context.WithDeadline(s.closing, deadline)
		failed = h.renew(ctx, 0)
		cancel()
		switch late := time.Since(deadline); {
		case failed == nil || late < 0:
		case !over && late > lease/4:
			// It slept while it asked.
			failed = nil
		default:
			h.runOut()
			return
		}
	}
}

// runOut ends a hold that the server may have for longer than the own clock: it would keep it for nobody.
func (h *Hold) runOut() {
	h.mu.Lock()
	may := h.how.watchdog || time.Now().Before(h.latest)
	h.mu.Unlock()
	if may {
		// Before anybody hears of it.
		h.leave()
	}
	h.finish(lost, &Error{Kind: ErrLost, Key: h.key, Text: "its lease is over by the own clock"})
}
