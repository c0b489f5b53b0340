// SPDX-License-Identifier: MIT

// Package lock has the locks of the redis-lock server module.
//
//	locks := lock.New(client)
//	defer locks.Close()
//	err := locks.Do(ctx, "order:42", func(ctx context.Context) error {
//		return work(ctx) // ctx ends if the lock is lost
//	})
//
// All waits and holds of a process share two connections. A Locks may be used by many goroutines at once; so may a Hold.
package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// askAgain is how often a waiter asks: a message may be lost. It is less than the 5 s in which a grant must be confirmed.
	askAgain = 3 * time.Second
	// askSoonest is how often a waiter with a short lease asks at most.
	askSoonest = 100 * time.Millisecond
	// courtesy is how long an acquire that was given up waits for the server to have taken it back. It goes on after that.
	courtesy = time.Second
)

// Locks are all locks of this process on one server.
type Locks struct {
	session  *session
	refused  error
	listener func(Event)
}

// A Setting of New.
type Setting func(*Locks)

// WithListener hears of every acquire and every hold. It is called by the goroutine that it tells of, and must not block.
func WithListener(listener func(Event)) Setting { return func(l *Locks) { l.listener = listener } }

// WithPatience is how long a call may go unanswered before its connection is given up: 5 s if nothing is said.
func WithPatience(patience time.Duration) Setting {
	return func(l *Locks) { l.session.patience = max(patience, time.Millisecond) }
}

// Event is what the listener hears.
type Event struct {
	// Label is that of the lock.
	Label string
	// Name is "waited", when an acquire ended, or "held", when a hold did.
	Name string
	// Outcome of "waited" is "granted", or the kind of the error: "busy", "timed out", "cancelled", "lost", "deadlock", "misuse",
	// "unavailable". Outcome of "held" is "released" or "lost".
	Outcome string
	// Took is how long it waited, or was held.
	Took time.Duration
}

// New makes the locks of the server that client is for, with two connections of their own. They are made as the client's options
// say, when they are needed. A failover client's lead to the primary. Cluster and ring clients are not supported: every call is
// ErrMisuse.
func New(client redis.UniversalClient, settings ...Setting) *Locks {
	l := &Locks{}
	if node, ok := client.(*redis.Client); ok {
		l.session = newSession(node.Options())
	} else {
		l.session = newSession(nil)
		l.refused = &Error{Kind: ErrMisuse, Text: "locks need a client of one server: *redis.Client"}
	}
	for _, setting := range settings {
		setting(l)
	}
	return l
}

// Close ends all waits, and drops the connections: so the server ends what is held and kept. All holds are told that they are
// lost. A hold that is not kept lasts to the end of its lease. What has been released is given back before, also if Release has
// failed: that is waited for, for a second.
func (l *Locks) Close() { l.session.end() }

// Try takes the lock if it is free. Busy is no error: then ok is false. WithWait means nothing here.
func (l *Locks) Try(ctx context.Context, key string, options ...Option) (hold *Hold, ok bool, err error) {
	hold, err = l.Acquire(ctx, key, append(options[:len(options):len(options)], WithWait(0))...)
	if errors.Is(err, ErrBusy) {
		return nil, false, nil
	}
	return hold, err == nil, err
}

// Acquire waits for its turn, first come, first served. If it fails, whatever came at the same moment is given back. The hold
// outlives ctx, which is only for the wait.
func (l *Locks) Acquire(ctx context.Context, key string, options ...Option) (*Hold, error) {
	began := time.Now()
	h, err := read(options)
	var hold *Hold
	if err == nil {
		hold, err = l.acquire(ctx, key, h)
	}
	l.tell(h.label, "waited", outcome(err, "granted"), began)
	return hold, of(key, err)
}

func (l *Locks) acquire(ctx context.Context, key string, h how) (*Hold, error) {
	if l.refused != nil {
		return nil, l.refused
	}
	began := time.Now()
	if err := l.session.enter(); err != nil {
		return nil, err
	}
	defer l.session.acquires.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.session.closing, func() { cancel(verdict{errClosed}) })()
	// That something is given back takes longer than somebody wants to wait is another error than that he waited in vain.
	settling := ctx
	if h.wait > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, began.Add(h.wait), verdict{&Error{Kind: ErrTimeout, Text: "somebody else has it"}})
		defer stop()
	}
	for pause := tryAgain; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		owner, request := h.owner, random()
		if owner == "" {
			owner = newOwner()
		}
		settle := func() error {
			limit := l.session.patience
			if h.wait > 0 || !h.waits {
				limit = min(limit, max(time.Until(began.Add(h.wait)), courtesy))
			}
			return l.session.settle(settling, claim{key, owner}, limit)
		}
		hold, said, err := l.ask(ctx, key, owner, request, h, settle)
		if err == nil || errors.Is(err, ErrBusy) {
			return hold, err
		}
		// Whatever has become of the call: nothing waits, and nothing is held.
		answered := said && l.undo(&Hold{locks: l, key: key, owner: owner, how: h}, request)
		if answered && ctx.Err() != nil && errors.Is(err, errSilent) {
			// The server is there, and only had too little time.
			return nil, ended(ctx)
		}
		// What was granted by a call whose reply was lost has ended since.
		if !errors.Is(err, ErrLost) {
			return nil, err
		}
		// Also if that is so each time: a lease may be shorter than the way to the server.
		_ = sleep(ctx, pause)
	}
	return nil, ended(ctx)
}

// ask sends the acquire, again and again: when a message says so, when a connection broke, and every few seconds. Each time it
// settles before what is given back by the owner's name. If it fails, said is whether the server may know of it.
func (l *Locks) ask(ctx context.Context, key, owner, request string, h how, settle func() error) (_ *Hold, said bool, _ error) {
	s := l.session
	words := []any{"LOCK.ACQUIRE", key, owner, "PX", millis(h.lease), "ID", request, "ONCE"}
	own := h.own && h.waits
	if h.waits && !own {
		words = append(words, "NOTIFY", s.inbox)
	}
	if h.fence {
		words = append(words, "FENCE")
	}
	if h.shared {
		words = append(words, "SHARED")
	}
	if h.limit != nil {
		words = append(words, "LIMIT", *h.limit)
	}
	words = append(words, h.bound(0)...)
	told := s.expect(request)
	defer s.forget(request)
	// Why there is no answer, since the last that came: nil if nothing went wrong since then.
	var failure error = broken(errSilent)
	resent := false
	for giveUp, pause := time.Now().Add(s.patience), tryAgain; ; {
		settling, begun := time.Now(), s.begunBy()
		if err := settle(); err != nil {
			return nil, said, err
		}
		// That was no time without a server.
		giveUp = giveUp.Add(time.Since(settling))
		var got answered
		var err error
		var alone *link
		if h.waits && !own {
			err = s.listen(ctx)
		}
		switch {
		case own:
			got, err = s.block(ctx, words[:len(words):len(words)]...)
			if alone = got.link; !got.sent.IsZero() && time.Since(got.sent) > min(courtesy, s.patience) {
				// It waited in a server that was there. If its time is over, nobody has said so: the next answer says it.
				failure, giveUp, pause = nil, time.Now().Add(s.patience), tryAgain
				if ctx.Err() != nil {
					failure = broken(errSilent)
				}
			}
		case err == nil:
			got, err = s.call(ctx, words...)
		}
		said = said || !got.sent.IsZero()
		value := got.value
		granted := err == nil && value != nil && value != int64(0)
		hold := &Hold{locks: l, key: key, owner: owner, how: h, token: token(value), since: got.sent}
		if own {
			// It was granted now, and not when it was asked for.
			hold.since = time.Now()
		}
		unsure := own && (h.watchdog || time.Since(got.sent) > h.lease/20)
		if granted && (resent || got.again || unsure || h.owner != "" && (own || s.begunBy() != begun)) {
			// The reply may be that of an earlier call, whose hold has ended since. Or what was given back by the owner's name was
			// this, and that has been answered already. If the wait was long, nobody knows how long the lease runs already. And what
			// is bound to a connection is to be bound to the session's.
			if err = settle(); err == nil {
				got, err = s.call(ctx, hold.renewal(h.lease, true)...)
				// The server is there. The end of the connection, which it has granted this to, would be that of the hold.
				for alone != nil && (says(err, busy) || says(err, "NOREPLICAS")) && sleep(ctx, tryAgain) == nil {
					got, err = s.call(ctx, hold.renewal(h.lease, true)...)
				}
			}
		}
		if alone != nil && err == nil {
			s.rest(alone)
		} else if alone != nil {
			alone.breakOff(err)
		}
		switch {
		case err == nil && granted:
			hold.replaces()
			hold.begin(ctx, got)
			return hold, said, nil
		case err == nil && value == nil && own:
			// A moment before the context says so, too, and why.
			if sleep(ctx, tryAgain) != nil {
				return nil, said, ended(ctx)
			}
			return nil, said, &Error{Kind: ErrTimeout, Text: "somebody else has it"}
		case err == nil && value == nil:
			return nil, said, &Error{Kind: ErrBusy, Text: "somebody else has it"}
		case err != nil:
			if passes(err) && (h.wait > 0 || time.Now().Before(giveUp) && (h.waits || !resent)) {
				failure, resent = err, true
				rest := pause
				if !h.waits {
					// Before that there is nobody whom it could be sent to again.
					rest = max(rest, s.calmFor())
				}
				if sleep(ctx, rest) == nil {
					pause = min(2*pause, time.Second)
					continue
				}
				err = ended(ctx)
			}
			if _, waited := context.Cause(ctx).(verdict); waited && failure != nil && errors.Is(err, ErrTimeout) {
				// That somebody else has it, nobody has said.
				return nil, said, failure
			}
			return nil, said, err
		}
		failure, giveUp, pause = nil, time.Now().Add(s.patience), tryAgain
		timer := time.NewTimer(min(askAgain, max(h.lease/2, askSoonest)))
		select {
		case <-told:
		case <-timer.C:
			s.probe()
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, said, ended(ctx)
		}
	}
}

// undo takes back whatever an acquire has got, which the hold is if it is one. It says whether the server has answered by now.
func (l *Locks) undo(hold *Hold, request string) bool {
	s := l.session
	var answered atomic.Bool
	done, given := make(chan struct{}), s.gives(claim{hold.key, hold.owner})
	s.spawn(func() {
		defer close(done)
		defer given()
		_, err := s.insist(s.gone, giveBackFor, "LOCK.CANCEL", hold.key, hold.owner, "ID", request)
		// What the server refuses it has heard of.
		answered.Store(!passes(err))
		if says(err, "NOPERM") && !s.has(claim{hold.key, hold.owner}) {
			hold.releaseID = random()
			_ = hold.letGo(s.gone, time.Now().Add(hold.how.lease), hold.how.lease)
		}
	})
	timer := time.NewTimer(courtesy)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	return answered.Load()
}

// Do carries out the body while it has the lock. The body's context ends when ctx does, or when the lock is lost: then
// context.Cause says ErrLost. The body's own error wins over that of the release. If it is no more than that its context was
// cancelled because of a loss, both are in what comes back.
func (l *Locks) Do(ctx context.Context, key string, body func(ctx context.Context) error, options ...Option) (err error) {
	hold, err := l.Acquire(ctx, key, options...)
	if err != nil {
		return err
	}
	inside, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(hold.ctx, func() { cancel(context.Cause(hold.ctx)) })
	defer func() {
		// Also if the body panics.
		stop()
		cancel(nil)
		released := hold.Release(context.WithoutCancel(ctx))
		switch {
		case err == nil:
			err = released
		case errors.Is(released, ErrLost) && ctx.Err() == nil && errors.Is(err, context.Canceled) && !errors.Is(err, ErrLost):
			err = &Error{Kind: ErrLost, Key: key, Cause: err}
		}
	}()
	return body(inside)
}

// Attach takes over the hold of that owner, whoever has it now: Hold.HandOver told its name. Its lease is set anew. What was kept
// must be kept here, too: else it is ErrMisuse.
func (l *Locks) Attach(ctx context.Context, key, owner string, options ...Option) (*Hold, error) {
	h, err := read(append(options[:len(options):len(options)], WithOwner(owner)))
	if err == nil {
		err = l.refused
	}
	if err == nil {
		err = l.session.enter()
	}
	if err != nil {
		return nil, of(key, err)
	}
	defer l.session.acquires.Done()
	if err := l.session.settle(ctx, claim{key, owner}, l.session.patience); err != nil {
		return nil, of(key, err)
	}
	if !h.watchdog {
		if err := l.unbound(ctx, key, owner); err != nil {
			return nil, of(key, err)
		}
	}
	hold := &Hold{locks: l, key: key, owner: owner, how: h, since: time.Now()}
	got, err := l.session.insist(ctx, l.session.patience, hold.renewal(h.lease, true)...)
	if err != nil {
		if got.link != nil && h.watchdog && !l.session.has(claim{key, owner}) {
			// It may bind the hold yet, for as long as this process lives. So the hold runs out, unless somebody attaches again, or
			// it is looked after here by another call.
			got.link.send(hold.lastRenewal(h.lease))
		}
		return nil, of(key, err)
	}
	hold.begin(ctx, got)
	return hold, nil
}

// unbound fails if the hold of that owner ends with a connection. A renewal that binds it to no other leaves it so.
func (l *Locks) unbound(ctx context.Context, key, owner string) error {
	info, err := l.session.insist(ctx, l.session.patience, "LOCK.INFO", key)
	holders, _ := field(info.value, "holders").([]any)
	for _, holder := range holders {
		if field(holder, "owner") == owner && (field(holder, "watchdog") == int64(1) || field(holder, "ephemeral") == int64(1)) {
			return &Error{Kind: ErrMisuse, Text: "the hold is bound to a connection: attach it as one that is kept"}
		}
	}
	return err
}

func (l *Locks) tell(label, name, outcome string, began time.Time) {
	if l.listener != nil {
		l.listener(Event{Label: label, Name: name, Outcome: outcome, Took: time.Since(began)})
	}
}

func outcome(err error, good string) string {
	var e *Error
	switch {
	case err == nil:
		return good
	case !errors.As(err, &e):
		return err.Error()
	case e.Kind == context.Canceled:
		return "cancelled"
	}
	return e.Kind.Error()
}

// token finds it in the reply to a grant: pairs, if it is fenced.
func token(value any) int64 {
	number, _ := field(value, "token").(int64)
	return number
}

// field finds what has that name in a reply of pairs.
func field(value any, name string) any {
	pairs, _ := value.([]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == name {
			return pairs[i+1]
		}
	}
	return nil
}
