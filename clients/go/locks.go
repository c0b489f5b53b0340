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
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// ttl: the session ends if its client is silent for this time.
	ttl = 30 * time.Second
	// grace: the session ends if its connection stays closed for this time.
	grace = 3 * time.Second
	// minGrace is the shortest grace except 0. With less, heartbeats would take all of the time.
	minGrace = 100 * time.Millisecond
	// patience limits a try or a release, and a wait without a limit while no server answers.
	patience = 5 * time.Second
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

// A Setting of New.
type Setting func(*Locks)

// WithName names the session for operators. By default its name is <host>/<process>/<random>.
func WithName(name string) Setting { return func(l *Locks) { l.name = name } }

// WithTTL ends the session if this process is silent for this time; 30 s by default.
func WithTTL(ttl time.Duration) Setting { return func(l *Locks) { l.ttl = ttl } }

// WithGrace ends the session if its connection stays closed for this time; 3 s by default. For this time after each heartbeat,
// the holds are proven to be held. With 0 they end with the connection, and nothing is ever proven.
func WithGrace(grace time.Duration) Setting { return func(l *Locks) { l.grace = grace } }

// WithPatience limits a call without a reply, and a wait without a limit while no server answers; 5 s by default.
func WithPatience(patience time.Duration) Setting { return func(l *Locks) { l.patience = patience } }

// WithListener gets the end of each wait and of each hold, and the begin and end of jeopardy. A goroutine of its own calls it,
// for one event after the other. It may use locks, but while it waits it gets no other event.
func WithListener(listener func(Event)) Setting { return func(l *Locks) { l.listener = listener } }

// Locks are the locks of this process on the server, the Sentinel primary or the cluster of a client.
type Locks struct {
	name                 string
	ttl, grace, patience time.Duration
	listener             func(Event)
	// clientOf has the client of the node that serves a key. Without a cluster there is only one, and cluster is nil.
	clientOf func(ctx context.Context, key string) (*redis.Client, error)
	cluster  *redis.ClusterClient

	// mutex protects all below, the sessions and their acquires.
	mutex sync.Mutex
	// events are for the listener. The first one may be on its way to it.
	events []Event
	// sessions of the nodes in use, by their addresses.
	sessions map[string]*session
	// undos has the acquires in undo.
	undos    map[*acquire]bool
	isClosed bool
	// owners begins the names of owners. It is unique even if sessions have the same name.
	owners    string
	lastOwner atomic.Int64
}

// New makes the locks of a client: *redis.Client, also of Sentinel, or *redis.ClusterClient. Calls use the client's pool and
// hooks. One connection more is made with the client's options when the first lock is acquired. Fails with ErrMisuse if a setting
// is wrong.
func New(client redis.UniversalClient, options ...Setting) (*Locks, error) {
	host, _ := os.Hostname()
	l := &Locks{
		sessions: map[string]*session{}, undos: map[*acquire]bool{},
		name: fmt.Sprintf("%s/%d/%08x", host, os.Getpid(), rand.Uint32()), ttl: ttl, grace: grace, patience: patience,
	}
	for _, option := range options {
		option(l)
	}
	l.owners = fmt.Sprintf("%s:%x:", l.name, rand.Uint64())
	switch client := client.(type) {
	case *redis.Client:
		l.clientOf = func(context.Context, string) (*redis.Client, error) { return client, nil }
	case *redis.ClusterClient:
		l.clientOf, l.cluster = client.MasterForKey, client
	default:
		return nil, misuse(fmt.Sprintf("%T is not supported; use a client of one server or of a cluster", client))
	}
	switch {
	case l.ttl < time.Millisecond || l.patience <= 0:
		return nil, misuse("the TTL and the patience must be positive")
	case l.grace != 0 && l.grace < minGrace || l.grace > l.ttl:
		return nil, misuse("the grace must be 0, or at least 100 ms and at most the TTL")
	case l.name == "":
		return nil, misuse("the name must not be empty")
	}
	return l, nil
}

func (l *Locks) newOwner() string { return fmt.Sprint(l.owners, l.lastOwner.Add(1)) }

// Close ends all waits and renewed holds, and the session. A hold with a lease remains until its lease ends. Close the client
// after that.
func (l *Locks) Close() {
	defer l.lock()()
	l.isClosed = true
	for _, s := range l.sessions {
		s.close()
		l.mutex.Unlock()
		<-s.ended
		l.mutex.Lock()
	}
}

// lock locks the mutex until the returned function is called.
func (l *Locks) lock() func() {
	l.mutex.Lock()
	return l.mutex.Unlock
}

func (l *Locks) notify(event Event) {
	if l.listener == nil {
		return
	}
	if l.events = append(l.events, event); len(l.events) == 1 {
		go l.listen()
	}
}

// listen calls the listener for one event after the other, until there is none.
func (l *Locks) listen() {
	defer l.lock()()
	for ; len(l.events) > 0; l.events = l.events[1:] {
		l.callListener(l.events[0])
	}
}

func (l *Locks) callListener(event Event) {
	l.mutex.Unlock()
	defer l.mutex.Lock()
	defer func() {
		if failure := recover(); failure != nil {
			slog.Error("a listener of locks failed", "failure", failure)
		}
	}()
	l.listener(event)
}

// wait returns when the channel is closed. It fails at that time, or if the context is cancelled. The time respects the deadline
// of the context. The server may know the deadline, and report the end of the wait.
func (l *Locks) wait(ctx context.Context, changed <-chan struct{}, giveUp time.Time) *Error {
	l.mutex.Unlock()
	defer l.mutex.Lock()
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

// sessionOf has the session on the node that serves this key.
func (l *Locks) sessionOf(ctx context.Context, key string) (*session, *Error) {
	l.mutex.Unlock()
	client, err := l.clientOf(ctx, key)
	l.mutex.Lock()
	switch {
	case err != nil:
		return nil, classify(err)
	case l.isClosed:
		return nil, misuse("the locks are closed; make new ones")
	}
	name := client.Options().Addr
	s := l.sessions[name]
	if s == nil {
		s = &session{
			locks: l, name: name, reader: readerOf(client), acquires: map[int64]*acquire{}, confirmed: time.Now(),
			closing: make(chan struct{}), ended: make(chan struct{}),
		}
		l.sessions[name] = s
		go s.read()
	}
	if s.origin != client {
		// A cluster client replaces the client of a node that was gone for a time.
		s.origin, s.calls = client, once(client)
	}
	return s, nil
}

// reload asks the cluster which node serves which slot. It returns whether there is a cluster.
func (l *Locks) reload() bool {
	if l.cluster != nil {
		l.cluster.ReloadState(context.Background())
	}
	return l.cluster != nil
}

// relocate puts an acquire into the session of the node that serves its lock now: after a move, or the failover of a node. It
// returns whether there is a cluster.
func (l *Locks) relocate(a *acquire) bool {
	if !l.reload() {
		return false
	}
	s, err := l.sessionOf(context.Background(), a.lock.keys[0])
	if err == nil && s != a.session && a.state != over {
		s.adopt(a, "moved")
	}
	return true
}
