// SPDX-License-Identifier: MIT

// Package lock has the locks of the redis-lock server module.
//
//	locks, err := lock.New(client)
//
//	err = locks.Do(ctx, "order:42", func(ctx context.Context) error {
//		return work(ctx) // ctx ends if the lock is lost
//	})
//
// All waits and holds of a process share one session on the server, which a goroutine keeps alive. Locks, Lock and Hold may be
// used by many goroutines at once.
package lock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Locks are the locks of this process on the server, the Sentinel primary or the cluster of a client.
type Locks struct {
	client   redis.UniversalClient
	settings *settings
	mutex    mutex
	sessions map[string]*session
	// owners begins the names of owners. It is unique even if sessions have the same name.
	owners    string
	lastOwner int
	closed    bool
}

// A Setting of New.
type Setting func(*settings)

// WithName names the session for operators. By default its name is <host>/<process>/<random>.
func WithName(name string) Setting { return func(s *settings) { s.name = name } }

// WithTTL ends the session if this process is silent for this time; 30 s by default.
func WithTTL(ttl time.Duration) Setting { return func(s *settings) { s.ttl = ttl } }

// WithGrace ends the session if its connection stays closed for this time; 3 s by default. For this time after each heartbeat,
// the holds are proven to be held. With 0 they end with the connection, and nothing is ever proven.
func WithGrace(grace time.Duration) Setting { return func(s *settings) { s.grace = grace } }

// WithPatience limits a call without a reply, and a wait without a limit while no server answers; 5 s by default.
func WithPatience(patience time.Duration) Setting { return func(s *settings) { s.patience = patience } }

// WithListener gets the end of each wait and of each hold, and the begin and end of jeopardy. The goroutine that notices the
// event calls it, so it must not block. It may release a hold.
func WithListener(listener func(Event)) Setting { return func(s *settings) { s.listener = listener } }

// New makes the locks of a client: *redis.Client, also of Sentinel, or *redis.ClusterClient. Calls use the client's pool and
// hooks. One connection more is made with the client's options when the first lock is acquired. Fails with ErrMisuse if a setting
// is wrong.
func New(client redis.UniversalClient, options ...Setting) (*Locks, error) {
	s := &settings{name: defaultName(), ttl: defaultTTL, grace: defaultGrace, patience: defaultPatience}
	for _, option := range options {
		option(s)
	}
	l := &Locks{client: client, settings: s, mutex: mutex{settings: s}, sessions: map[string]*session{}}
	l.owners = s.name + ":" + random(6) + ":"
	switch client.(type) {
	case *redis.Client, *redis.ClusterClient:
	default:
		return nil, misuse(fmt.Sprintf("%T is not supported; use a client of one server or of a cluster", client))
	}
	switch {
	case s.ttl < time.Millisecond || s.patience <= 0:
		return nil, misuse("the TTL and the patience must be positive")
	case s.grace != 0 && s.grace < minGrace || s.grace > s.ttl:
		return nil, misuse("the grace must be 0, or at least 100 ms and at most the TTL")
	case s.name == "":
		return nil, misuse("the name must not be empty")
	}
	return l, nil
}

func defaultName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), random(4))
}

func random(size int) string {
	bytes := make([]byte, size)
	_, _ = rand.Read(bytes)
	return hex.EncodeToString(bytes)
}

// Close ends all waits and renewed holds, and the session. A hold with a lease remains until its lease ends. Close the client
// after that.
func (l *Locks) Close() {
	l.mutex.Lock()
	l.closed = true
	sessions := l.sessions
	l.mutex.Unlock()
	for _, s := range sessions {
		s.close()
	}
}

// Lock makes a lock with options. It acquires nothing yet. Fails with ErrMisuse if the options do not fit together.
//
// A Lock is one owner, unless it has WithOwner: a second acquire while it holds the lock is ErrDeadlock. So make a Lock for each
// goroutine; it costs no call.
func (l *Locks) Lock(key string, options ...Option) (*Lock, error) {
	r, err := newRequest(key, options)
	if err != nil {
		return nil, err
	}
	return &Lock{locks: l, request: r}, nil
}

// Acquire makes a Lock with an owner of its own, and acquires it. See Lock.Acquire.
func (l *Locks) Acquire(ctx context.Context, key string, options ...Option) (*Hold, error) {
	lock, err := l.Lock(key, options...)
	if err != nil {
		return nil, err
	}
	return lock.Acquire(ctx)
}

// Try makes a Lock with an owner of its own, and tries it. See Lock.Try.
func (l *Locks) Try(ctx context.Context, key string, options ...Option) (hold *Hold, ok bool, err error) {
	lock, err := l.Lock(key, options...)
	if err != nil {
		return nil, false, err
	}
	return lock.Try(ctx)
}

// Do makes a Lock with an owner of its own, and runs the body while it holds the lock. See Lock.Do.
func (l *Locks) Do(ctx context.Context, key string, body func(ctx context.Context) error, options ...Option) error {
	lock, err := l.Lock(key, options...)
	if err != nil {
		return err
	}
	return lock.Do(ctx, body)
}

// sessionOf has the session on the node that serves this key.
func (l *Locks) sessionOf(ctx context.Context, key string) (*session, error) {
	client, name := (*redis.Client)(nil), ""
	switch all := l.client.(type) {
	case *redis.Client:
		client = all
	case *redis.ClusterClient:
		var err error
		if client, err = all.MasterForKey(ctx, key); err != nil {
			return nil, classify(err)
		}
		name = client.Options().Addr
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.closed {
		return nil, misuse("the locks are closed; make new ones")
	}
	s := l.sessions[name]
	if s == nil {
		s = newSession(newNode(client), l.settings, &l.mutex, l.relocate)
		l.sessions[name] = s
	}
	return s, nil
}

// reload asks the cluster which node serves which slot. It returns nil without a cluster.
func (l *Locks) reload() *redis.ClusterClient {
	cluster, _ := l.client.(*redis.ClusterClient)
	if cluster != nil {
		cluster.ReloadState(context.Background())
	}
	return cluster
}

// relocate declares acquires on the nodes that serve their slots now. With nil it looks for those of a node that does not answer.
func (l *Locks) relocate(s *session, acquires []*acquire) {
	cluster := l.reload()
	if cluster == nil {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if acquires == nil {
		for _, a := range s.inOrder() {
			if to, err := cluster.MasterForKey(context.Background(), a.request.keys[0]); err == nil && to.Options().Addr != s.address() {
				acquires = append(acquires, a)
			}
		}
	}
	for _, a := range acquires {
		switch {
		case a.state == asked:
			// The wait continues on the other node.
			s.lose(a, "moved")
		case a.verb == cancel:
			s.end(a, cancel)
		case a.state != over && !a.moving:
			a.leave()
			a.moving = true
			go l.move(s, a)
		}
	}
}

func (l *Locks) move(from *session, a *acquire) {
	ctx := context.Background()
	for end := time.Now().Add(l.settings.patience); ; {
		to, err := l.sessionOf(ctx, a.request.keys[0])
		if err == nil && to != from {
			err = to.adopt(a)
			if err == nil {
				return
			}
		}
		if time.Until(end) <= 0 || err != nil && !isTransient(err) {
			break
		}
		sleep(ctx, from.closing, retryPause)
		l.reload()
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if a.state != over {
		from.end(a, "moved")
	}
}

// A Lock is one lock, or several locks, with options.
type Lock struct {
	locks   *Locks
	request *request
	owner   *owner
}

func (l *Lock) ownerName() *owner {
	if l.request.owner != nil {
		return &owner{name: *l.request.owner}
	}
	l.locks.mutex.Lock()
	defer l.locks.mutex.Unlock()
	if l.owner == nil || l.owner.retired {
		l.locks.lastOwner++
		l.owner = &owner{name: l.locks.owners + strconv.Itoa(l.locks.lastOwner)}
	}
	return l.owner
}

// Acquire waits for the lock, first come, first served. The context ends the wait, not the hold. An acquire that fails leaves no
// wait and no hold behind.
//
// Its errors are ErrTimeout, ErrBusy with WithWait(0), ErrDeadlock, ErrMisuse, ErrUnavailable and context.Canceled.
func (l *Lock) Acquire(ctx context.Context) (*Hold, error) {
	hold, err := l.acquire(ctx, l.request.wait)
	return hold, withKey(l.request.keys[0], err)
}

// Try acquires the lock if it is free. Otherwise ok is false, without an error.
func (l *Lock) Try(ctx context.Context) (hold *Hold, ok bool, err error) {
	hold, err = l.acquire(ctx, new(time.Duration))
	if errors.Is(err, ErrBusy) {
		return nil, false, nil
	}
	return hold, err == nil, withKey(l.request.keys[0], err)
}

// Do runs the body while it holds the lock. The body's context ends with ctx, or when the lock is lost: then context.Cause is
// ErrLost. The body's error is returned before that of the release. If its context was cancelled by a loss, ErrLost matches as
// well.
func (l *Lock) Do(ctx context.Context, body func(ctx context.Context) error) (err error) {
	hold, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	inside, leave := hold.bind(ctx)
	defer func() {
		// Also if the body panics.
		released := hold.Release(context.WithoutCancel(ctx))
		leave(nil)
		switch {
		case err == nil:
			err = released
		case errors.Is(released, ErrLost) && ctx.Err() == nil && errors.Is(err, context.Canceled) && !errors.Is(err, ErrLost):
			err = &Error{Kind: ErrLost, Key: l.request.keys[0], Cause: err}
		}
	}()
	return body(inside)
}

func (l *Lock) acquire(ctx context.Context, wait *time.Duration) (*Hold, error) {
	began := time.Now()
	hold, err := l.insist(ctx, wait, began)
	l.locks.settings.notify(Event{l.request.label, "waited", outcome(err), time.Since(began)})
	return hold, err
}

// insist asks until the lock is granted or the wait is over: after a restart, or on the node that the lock has moved to.
func (l *Lock) insist(ctx context.Context, wait *time.Duration, began time.Time) (*Hold, error) {
	for {
		if ctx.Err() != nil {
			return nil, contextError(ctx)
		}
		a := newAcquire(l.request, l.ownerName(), began, wait)
		var limit error
		if deadline, ok := ctx.Deadline(); ok && !a.isTry && (a.until.IsZero() || deadline.Before(a.until)) {
			a.until, limit = deadline, context.DeadlineExceeded
		}
		err := l.ask(ctx, a)
		var e *Error
		if errors.As(err, &e) && e.isMoved() && (wait == nil || time.Since(began) < max(*wait, l.locks.settings.patience)) {
			sleep(ctx, nil, retryPause)
			continue
		}
		if err != nil {
			return nil, err
		}
		switch s, reason := l.locks.look(a); reason {
		case "":
			if hold, err := l.checked(ctx, s, a); hold != nil || err != nil {
				return hold, err
			} else if a.isTry {
				return nil, &Error{Kind: ErrUnavailable, Text: "the grant arrived after the end of its lease"}
			}
		case "timeout":
			if a.isTry {
				return nil, &Error{Kind: ErrBusy, Text: "another owner holds the lock"}
			}
			return nil, &Error{Kind: ErrTimeout, Text: "another owner holds the lock", Cause: limit}
		case "deadlock":
			return nil, &Error{Kind: ErrDeadlock, Text: "the wait could never end"}
		case "noreplicas":
			return nil, &Error{Kind: ErrUnavailable, Text: "too few replicas acknowledged the grant"}
		case "refused":
			return nil, misuse("the server refused the grant")
		case "moved":
			l.locks.reload()
			sleep(ctx, nil, retryPause)
		}
	}
}

// look has the session of an acquire, and the reason if it is over.
func (l *Locks) look(a *acquire) (*session, string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return a.at.session, a.reason
}

func (l *Lock) ask(ctx context.Context, a *acquire) error {
	s, err := l.locks.sessionOf(ctx, l.request.keys[0])
	if err != nil {
		return err
	}
	if err = s.ask(ctx, a); err == nil {
		return nil
	}
	l.locks.mutex.Lock()
	a.owner.retired = true
	l.locks.mutex.Unlock()
	_ = s.finish(context.WithoutCancel(ctx), a, cancel, 0)
	var e *Error
	if errors.As(err, &e) && e.isMoved() {
		l.locks.reload()
	}
	return err
}

// checked has no hold and no error if the lease ended before the grant arrived.
func (l *Lock) checked(ctx context.Context, s *session, a *acquire) (*Hold, error) {
	if a.holds > 1 && !l.request.reentrant {
		if err := s.finish(ctx, a, cancel, l.locks.settings.patience); err != nil {
			return nil, err
		}
		return nil, &Error{Kind: ErrDeadlock, Text: "this owner has the lock already; release it first, or use Reentrant"}
	}
	l.locks.mutex.Lock()
	lease := l.request.lease
	isLate := lease != nil && time.Until(a.leaseEnds) < *lease/2
	if isLate {
		// The grant was on its way, and its lease was running. The server knows whether it has ended.
		a.leaseEnds = time.Time{}
	}
	l.locks.mutex.Unlock()
	if isLate {
		if err := s.renew(ctx, a, lease); err != nil {
			_ = s.finish(context.WithoutCancel(ctx), a, cancel, 0)
			if errors.Is(err, ErrLost) {
				return nil, nil
			}
			return nil, err
		}
	}
	return l.hold(ctx, a), nil
}

func (l *Lock) hold(ctx context.Context, a *acquire) *Hold {
	hold := &Hold{lock: l, acquire: a, parent: context.WithoutCancel(ctx)}
	runtime.SetFinalizer(hold, (*Hold).drop)
	return hold
}

// Attach takes over a hold that another process has handed over. Its options are those of this lock. Fails with ErrLost if the
// hold has ended.
func (l *Lock) Attach(ctx context.Context, ticket string) (*Hold, error) {
	parts := strings.SplitN(ticket, "|", 3)
	if len(parts) < 3 || l.request.several() {
		return nil, misuse("a ticket of Hold.HandOver is needed, for one lock")
	}
	name, err := hex.DecodeString(parts[0])
	n, wrong := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || wrong != nil {
		return nil, misuse("the ticket was not made by Hold.HandOver")
	}
	a := newAcquire(l.request, &owner{name: string(name)}, time.Now(), nil)
	a.takes = []any{"FROM", parts[2], n}
	if err = l.ask(ctx, a); err != nil {
		return nil, withKey(l.request.keys[0], err)
	}
	if _, reason := l.locks.look(a); reason != "" {
		return nil, withKey(l.request.keys[0], a.lost())
	}
	return l.hold(ctx, a), nil
}

// Query has the reply of LOCK.INFO: holders, waiters and more. It is nil if the lock is free.
func (l *Lock) Query(ctx context.Context) (map[string]any, error) {
	reply, err := l.execute(ctx, "LOCK.INFO", l.request.keys[0])
	info := asMap(reply)
	if holders, ok := info["holders"].([]any); ok {
		for i, holder := range holders {
			holders[i] = asMap(holder)
		}
	}
	return info, err
}

// ForceRelease takes the lock from its holders, by LOCK.BREAK. It returns whether there was one.
func (l *Lock) ForceRelease(ctx context.Context) (bool, error) {
	reply, err := l.execute(ctx, "LOCK.BREAK", l.request.keys[0])
	return err == nil && reply != int64(0), err
}

// execute runs a command with the user's own client.
func (l *Lock) execute(ctx context.Context, words ...any) (any, error) {
	reply, err := l.locks.client.Do(ctx, words...).Result()
	if err == nil || errors.Is(err, redis.Nil) {
		return reply, nil
	}
	return nil, withKey(l.request.keys[0], classify(err))
}

// asMap has the fields of a map, which is a list in RESP2. Otherwise it is nil.
func asMap(reply any) map[string]any {
	fields := map[string]any{}
	switch reply := reply.(type) {
	case map[any]any:
		for name, value := range reply {
			fields[fmt.Sprint(name)] = value
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			fields[fmt.Sprint(reply[i])] = reply[i+1]
		}
	default:
		return nil
	}
	return fields
}

// A Hold is a lock that is held. A Hold that is dropped without Release is released later, with a warning in the log.
type Hold struct {
	lock    *Lock
	acquire *acquire
	parent  context.Context
	ctx     context.Context
}

// Key is the key of the lock, or of the first of several locks.
func (h *Hold) Key() string { return h.lock.request.keys[0] }

// Owner is the name of the holder on the server.
func (h *Hold) Owner() string { return h.acquire.owner.name }

// Token is greater than those of all earlier holds of the lock, with Fenced. Otherwise it is 0. For several locks it is that of
// the first.
func (h *Hold) Token() int64 {
	if len(h.acquire.tokens) == 0 {
		return 0
	}
	return h.acquire.tokens[0]
}

// Tokens has the tokens of all locks, in the order of the keys. Without Fenced it is nil.
func (h *Hold) Tokens() []int64 { return h.acquire.tokens }

// Context ends with the hold. If the hold is lost, context.Cause is ErrLost. It has the values of the context of Acquire.
func (h *Hold) Context() context.Context {
	h.mutex().Lock()
	ctx := h.ctx
	h.mutex().Unlock()
	if ctx == nil {
		ctx, _ = h.bind(h.parent)
		h.mutex().Lock()
		h.ctx = ctx
		h.mutex().Unlock()
	}
	return ctx
}

func (h *Hold) bind(parent context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(parent)
	h.mutex().Lock()
	defer h.mutex().Unlock()
	h.acquire.bind(h.mutex(), end)
	return ctx, end
}

func (h *Hold) mutex() *mutex { return &h.lock.locks.mutex }

func (h *Hold) session() *session {
	h.mutex().Lock()
	defer h.mutex().Unlock()
	return h.acquire.at.session
}

// IsLost is whether the hold ended before its release, so that another owner may have the lock.
func (h *Hold) IsLost() bool {
	h.mutex().Lock()
	defer h.mutex().Unlock()
	return h.acquire.isLost()
}

// ValidFor is the time for which no other owner can have the lock, even if the network fails. With 0, nothing is proven. Then the
// hold is in jeopardy, lost or released, or the grace of the session is 0.
func (h *Hold) ValidFor() time.Duration {
	h.mutex().Lock()
	defer h.mutex().Unlock()
	return h.acquire.at.session.validFor(h.acquire)
}

// Release releases exactly this hold. It may be called again. Fails with ErrLost if the hold ended before. If no server answers
// within the patience, it fails with ErrUnavailable, and continues in the background. It is sent once even if the context has
// ended.
func (h *Hold) Release(ctx context.Context) error {
	defer runtime.KeepAlive(h)
	return withKey(h.Key(), h.session().release(ctx, h.acquire))
}

// Extend sets the lease, from now. With 0 it repeats the lease of the lock, or checks a renewed hold. Fails with ErrLost,
// ErrUnavailable, or with ErrMisuse if the server renews the hold and a lease is given.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	defer runtime.KeepAlive(h)
	own := h.lock.request.lease
	switch {
	case lease < 0 || lease > 0 && own == nil:
		return withKey(h.Key(), misuse("only a hold with a lease can be extended, and not by a negative time"))
	case lease > 0:
		own = &lease
	}
	return withKey(h.Key(), h.session().renew(ctx, h.acquire, own))
}

// Guard runs a Redis command in one step with the check that this owner holds the lock. Fails with ErrLost if it does not.
func (h *Hold) Guard(ctx context.Context, command ...any) (any, error) {
	defer runtime.KeepAlive(h)
	if h.IsLost() {
		return nil, withKey(h.Key(), h.acquire.lost())
	}
	if h.lock.request.several() {
		return nil, withKey(h.Key(), misuse("a guarded command works with one lock"))
	}
	return h.lock.execute(ctx, append([]any{"LOCK.GUARD", h.Key(), "OWNER", h.Owner()}, command...)...)
}

// HandOver returns a ticket, with which another process takes over this hold by Lock.Attach. Until then this process keeps the
// hold alive. Release does nothing from now on. Fails with ErrLost if the hold has ended.
func (h *Hold) HandOver() (string, error) {
	h.mutex().Lock()
	defer h.mutex().Unlock()
	a := h.acquire
	switch {
	case h.lock.request.several():
		return "", withKey(h.Key(), misuse("several locks cannot be handed over together"))
	case a.state != held || a.isLost():
		return "", withKey(h.Key(), a.lost())
	}
	a.handedOver, a.owner.retired = true, true
	return fmt.Sprintf("%x|%d|%s", a.owner.name, a.at.n, h.lock.locks.settings.name), nil
}

// drop is called by the garbage collector.
func (h *Hold) drop() {
	if h.session().drop(h.acquire) {
		slog.Warn("a hold was never released; use Do, or defer Release", "key", h.Key(), "owner", h.Owner())
	}
}
