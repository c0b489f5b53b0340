// SPDX-License-Identifier: MIT

package lock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

const stop, proceed = syscall.SIGSTOP, syscall.SIGCONT

// countingHook counts commands.
type countingHook struct{ calls atomic.Int64 }

func (h *countingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *countingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		h.count(command)
		return next(ctx, command)
	}
}

func (h *countingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		h.count(commands...)
		return next(ctx, commands)
	}
}

func (h *countingHook) count(commands ...redis.Cmder) {
	for _, command := range commands {
		if strings.HasPrefix(strings.ToLower(command.Name()), "lock.") {
			h.calls.Add(1)
		}
	}
}

// A log is what the default logger of slog writes.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *log) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func logged(t *testing.T) *log {
	before, l := slog.Default(), &log{}
	slog.SetDefault(slog.New(slog.NewTextHandler(l, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return l
}

// TestMain is also the program of TestKilledProcess.
func TestMain(m *testing.M) {
	if address := os.Getenv("HOLD_AT"); address != "" {
		locks := must(lock.New(redis.NewClient(&redis.Options{Addr: address}), quick()...))
		hold := must(locks.Acquire(background, "a"))
		defer func() { _ = hold.Release(background) }()
		select {}
	}
	os.Exit(m.Run())
}

func TestKilledProcessFreesItsLock(t *testing.T) {
	s := start(t)
	process := exec.Command(must(os.Executable()))
	process.Env = append(os.Environ(), "HOLD_AT="+s.address())
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "it holds", func() bool { return s.ask("LOCK.INFO", "a") != nil })
	_ = process.Process.Kill()
	_ = process.Wait()
	release(t, must(locksAt(t, s.address()).Acquire(background, "a", lock.WithWait(10*time.Second))))
}

func TestBrokenConnectionsLoseNothing(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a"))
	other := must(locksAt(t, s.address()).Acquire(background, "b"))
	waited := make(chan *lock.Hold, 1)
	go func() { waited <- must(locks.Acquire(background, "b")) }()
	until(t, "a waiter", func() bool { return s.waiters("b") == 1 })
	for round := 0; round < 3; round++ {
		p.cut()
		events := s.calls("lock.events")
		until(t, "the reader is back", func() bool { return s.calls("lock.events") > events+1 })
	}
	until(t, "it is safe", func() bool { return hold.ValidFor() > 0 })
	release(t, other)
	release(t, <-waited)
	release(t, hold)
	if s.calls("lock.session") > 2 || s.calls("lock.renew") != 0 {
		t.Fatal("the session was opened again")
	}
}

func TestLeaseCountsFromTheFirstAttempt(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	p.loseReplyTo("LOCK.RENEW")
	s.signal(stop)
	extended := make(chan error, 1)
	go func() { extended <- hold.Extend(background, time.Minute) }()
	until(t, "the first attempt", p.hasLostReply)
	const apart = time.Second
	time.Sleep(apart)
	s.signal(proceed)
	if err := <-extended; err != nil {
		t.Fatal(err)
	}
	if left := hold.ValidFor(); left > time.Minute-apart || s.calls("lock.renew") != 2 {
		t.Fatal(left, "of the lease,", s.calls("lock.renew"), "calls")
	}
	release(t, hold)
}

func TestGrantsByEventNeedNoRenewal(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	waited := make(chan *lock.Hold, 1)
	go func() { waited <- must(locks.Acquire(background, "a", lock.WithLease(time.Minute))) }()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	release(t, hold)
	granted := <-waited
	// Until the next confirmation, the server may revoke it.
	if left := granted.ValidFor(); left <= 0 || left > 3*time.Second {
		t.Fatal(left, "are proven")
	}
	until(t, "the confirmation", func() bool { return granted.ValidFor() > 50*time.Second })
	if left := granted.ValidFor(); left >= time.Minute {
		t.Fatal(left, "of the lease")
	}
	release(t, granted)
	if calls := s.calls("lock.renew"); calls != 0 {
		t.Fatal(calls, "renewals")
	}
}

func TestExpiredGrantsByEventAreNotUsed(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	events := make(chan lock.Event, 20)
	locks := locksAt(t, p.address(), lock.WithListener(func(e lock.Event) { events <- e }))
	hold := must(locks.Acquire(background, "a"))
	waited := make(chan *lock.Hold, 1)
	go func() {
		waited <- must(locks.Acquire(background, "a", lock.WithLease(time.Second), lock.WithLabel("waited")))
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	p.frozen.Store(true)
	s.ask("LOCK.BREAK", "a")
	until(t, "the end of the lease", func() bool { return s.isFree("a") })
	p.frozen.Store(false)
	granted := <-waited
	if calls := s.calls("lock.renew"); granted.IsLost() || calls > 1 {
		t.Fatal("it is lost, after", calls, "renewals")
	}
	release(t, granted)
	// The user never had the hold that expired.
	until(t, "the end of the hold", func() bool {
		e := <-events
		if e.Label == "waited" && e.Outcome == "lost" {
			t.Fatal("a loss")
		}
		return e.Label == "waited" && e.Name == "held"
	})
	if err := hold.Release(background); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
}

func TestLostRepliesCountOnce(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	client, hook := redis.NewClient(&redis.Options{Addr: p.address()}), &countingHook{}
	client.AddHook(hook)
	locks := locksOf(t, client)
	release(t, must(locks.Acquire(background, "a")))
	for _, command := range []string{"LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.MACQUIRE", "LOCK.MRELEASE", "LOCK.EVENTS"} {
		p.loseReplyTo(command)
		hold := must(locks.Acquire(background, "a"))
		several := must(locks.Acquire(background, "b", lock.And("c")))
		release(t, several)
		release(t, hold)
		until(t, "the reply to "+command+" is lost", p.hasLostReply)
		if !s.isFree("a") || !s.isFree("b") {
			t.Fatal(command)
		}
	}
	// go-redis repeats nothing: each lost reply is one more call of this package.
	calls := 0
	for _, command := range []string{"lock.acquire", "lock.release", "lock.macquire", "lock.mrelease"} {
		calls += s.calls(command)
	}
	if calls != 26 || hook.calls.Load() != 26 {
		t.Fatal(calls, "calls of", hook.calls.Load())
	}
}

func TestJeopardyEndsWithTheOutage(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	var mu sync.Mutex
	var heard []string
	listener := func(e lock.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Name != "waited" {
			heard = append(heard, e.Label+" "+e.Name)
		}
	}
	locks := locksAt(t, p.address(), lock.WithTTL(20*time.Second), lock.WithGrace(time.Second), lock.WithListener(listener))
	hears := func(events ...string) {
		t.Helper()
		until(t, strings.Join(events, ", "), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(heard, ", ") == strings.Join(events, ", ")
		})
	}
	hold := must(locks.Acquire(background, "a", lock.WithLabel("orders")))
	ctx := hold.Context()
	p.frozen.Store(true)
	hears("orders jeopardy")
	if hold.ValidFor() != 0 || hold.IsLost() || ctx.Err() != nil {
		t.Fatal("not in jeopardy")
	}
	p.frozen.Store(false)
	hears("orders jeopardy", "orders safe")
	if hold.ValidFor() <= 0 || ctx.Err() != nil {
		t.Fatal("not safe")
	}
	release(t, hold)
}

func TestSilenceBeyondTheTTLIsALoss(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), quick()...)
	hold := must(locks.Acquire(background, "a"))
	p.frozen.Store(true)
	<-hold.Context().Done()
	if !errors.Is(context.Cause(hold.Context()), lock.ErrLost) {
		t.Fatal(context.Cause(hold.Context()))
	}
	p.frozen.Store(false)
	if err := hold.Release(background); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	until(t, "it is free", func() bool { return s.isFree("a") })
	release(t, must(locks.Acquire(background, "a")))
}

func TestRestartKeepsHoldsThatSurvive(t *testing.T) {
	s := start(t, "--appendonly", "yes", "--appendfsync", "always")
	locks := locksAt(t, s.address())
	renewed := must(locks.Acquire(background, "a"))
	leased := must(locks.Acquire(background, "b", lock.WithLease(time.Minute)))
	several := must(locks.Acquire(background, "c", lock.And("d")))
	gone := must(locks.Acquire(background, "e"))
	waited := make(chan error, 1)
	go func() { waited <- locks.Do(background, "a", func(context.Context) error { return nil }) }()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	s.end()
	s.begin()
	until(t, "it waits again", func() bool { return s.waiters("a") == 1 })
	until(t, "it is safe", func() bool { return renewed.ValidFor() > 0 })
	s.ask("LOCK.BREAK", "e")
	<-gone.Context().Done()
	release(t, renewed)
	release(t, leased)
	release(t, several)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		if !s.isFree(key) {
			t.Fatal(key)
		}
	}
}

func TestRestartKeepsHandedOverHold(t *testing.T) {
	s := start(t, "--appendonly", "yes", "--appendfsync", "always")
	locks := locksAt(t, s.address())
	given, kept := must(locks.Acquire(background, "a")), must(locks.Acquire(background, "b"))
	must(given.HandOver())
	s.end()
	s.begin()
	until(t, "the session is up", func() bool { return kept.ValidFor() > 0 })
	// The giver neither releases it nor reports a loss. Its lease runs out.
	release(t, given)
	release(t, kept)
	release(t, must(locks.Acquire(background, "c")))
	if s.isFree("a") || given.IsLost() {
		t.Fatal("the giver released it")
	}
}

func TestRestartWithoutDataLosesHolds(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	s.end()
	s.begin()
	<-hold.Context().Done()
	if err := hold.Release(background); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	release(t, must(locks.Acquire(background, "a")))
}

func TestOverwrittenKeyIsLostAtTheRenewal(t *testing.T) {
	s := start(t, "lock.default-lease", "600")
	locks := locksAt(t, s.address(), lock.WithTTL(2*time.Second), lock.WithGrace(200*time.Millisecond))
	hold := must(locks.Acquire(background, "a"))
	s.ask("SET", "a", "x")
	<-hold.Context().Done()
	err := hold.Release(background)
	if !errors.Is(err, lock.ErrLost) || !strings.Contains(err.Error(), "wrongtype") || s.ask("GET", "a") != "x" {
		t.Fatal(err, s.ask("GET", "a"))
	}
}

func TestCallForAnOverwrittenKeyIsALoss(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	for _, call := range []func(*lock.Hold) error{
		func(hold *lock.Hold) error { return hold.Release(background) },
		func(hold *lock.Hold) error { return hold.Extend(background, time.Minute) },
	} {
		s.ask("DEL", "a")
		hold := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
		s.ask("SET", "a", "x")
		if err := call(hold); !errors.Is(err, lock.ErrLost) || !hold.IsLost() || s.ask("GET", "a") != "x" {
			t.Fatal(err, hold.IsLost(), s.ask("GET", "a"))
		}
	}
}

func TestReleaseWithEndedContextCounts(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	ended, end := context.WithCancel(background)
	end()
	hold := must(locks.Acquire(background, "a"))
	if err := hold.Release(ended); err != nil || !s.isFree("a") {
		t.Fatal(err)
	}
	hold = must(locks.Acquire(background, "a"))
	s.signal(stop)
	began := time.Now()
	err := hold.Release(ended)
	s.signal(proceed)
	if !errors.Is(err, context.Canceled) || time.Since(began) > 4*time.Second {
		t.Fatal(err, time.Since(began))
	}
	until(t, "it is free", func() bool { return s.isFree("a") })
	release(t, hold)
}

func TestFailedReleaseContinuesInTheBackground(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(time.Second))
	hold := must(locks.Acquire(background, "a"))
	p.frozen.Store(true)
	err := hold.Release(background)
	// The calls never arrive.
	p.cut()
	p.frozen.Store(false)
	if !errors.Is(err, lock.ErrUnavailable) {
		t.Fatal(err)
	}
	until(t, "it is free", func() bool { return s.isFree("a") })
	release(t, hold)
}

func TestCancelDuringAnOutageLeavesNothing(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	first := must(locks.Acquire(background, "a"))
	ctx, cancel := context.WithCancel(background)
	waited := make(chan error, 50)
	for number := 0; number < 50; number++ {
		go func() {
			_, err := locks.Acquire(ctx, "a")
			waited <- err
		}()
	}
	until(t, "50 waiters", func() bool { return s.waiters("a") == 50 })
	s.signal(stop)
	defer s.signal(proceed)
	cancel()
	began := time.Now()
	for number := 0; number < 50; number++ {
		if err := <-waited; !errors.Is(err, context.Canceled) || time.Since(began) > 4*time.Second {
			t.Fatal(err, time.Since(began))
		}
	}
	s.signal(proceed)
	until(t, "no waiter", func() bool { return s.waiters("a") == 0 })
	release(t, first)
}

func TestLateSessionLosesItsHolds(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), quick()...)
	hold := must(locks.Acquire(background, "a"))
	// Another process uses the id, with a greater beat.
	p.mu.Lock()
	_, after, _ := strings.Cut(p.said.String(), "LOCK.EVENTS\r\n$32\r\n")
	p.mu.Unlock()
	s.ask("LOCK.SESSION", "OPEN", after[:32], 1000000)
	<-hold.Context().Done()
	if !hold.IsLost() {
		t.Fatal("not lost")
	}
	until(t, "it is free", func() bool { return s.isFree("a") })
	release(t, must(locks.Acquire(background, "a")))
}

func TestZeroGraceNeitherProvesNorPolls(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address(), lock.WithGrace(0))
	hold := must(locks.Acquire(background, "a"))
	before := s.calls("lock.events")
	time.Sleep(500 * time.Millisecond)
	if calls := s.calls("lock.events") - before; calls > 3 || hold.ValidFor() != 0 || hold.IsLost() {
		t.Fatal(calls, hold.ValidFor())
	}
	release(t, hold)
}

func TestEndedLeaseIsLostForEver(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(300*time.Millisecond)))
	s.signal(stop)
	defer s.signal(proceed)
	extended := make(chan error, 1)
	go func() { extended <- hold.Extend(background, time.Minute) }()
	<-hold.Context().Done()
	s.signal(proceed)
	if err := <-extended; !errors.Is(err, lock.ErrLost) || !hold.IsLost() || hold.ValidFor() != 0 {
		t.Fatal(err, hold.ValidFor())
	}
	until(t, "it is free", func() bool { return s.isFree("a") })
}

func TestExtendDuringAReleaseIsNoLoss(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	for round := 0; round < 500; round++ {
		hold := must(locks.Acquire(background, "a"))
		extended := make(chan error, 1)
		go func() { extended <- hold.Extend(background, 0) }()
		if err := hold.Release(background); err != nil || hold.IsLost() {
			t.Fatal(round, err)
		}
		if err := <-extended; err != nil && !errors.Is(err, lock.ErrLost) {
			t.Fatal(round, err)
		}
	}
}

func TestUnconfirmedHoldIsNotHandedOver(t *testing.T) {
	s := start(t, "--appendonly", "yes", "--appendfsync", "always")
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a"))
	p.freezeAt("LOCK.RENEW")
	s.end()
	s.begin()
	until(t, "a declaration", p.frozen.Load)
	if ticket, err := hold.HandOver(); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatal(ticket, err)
	}
	p.frozen.Store(false)
	until(t, "it is safe", func() bool { return hold.ValidFor() > 0 })
	must(hold.HandOver())
}

func TestFullPoolDelaysNoHeartbeat(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.address(), PoolSize: 1})
	var isInJeopardy atomic.Bool
	locks := locksOf(t, client, lock.WithGrace(time.Second), lock.WithListener(func(e lock.Event) {
		if e.Name == "jeopardy" {
			isInJeopardy.Store(true)
		}
	}))
	hold := must(locks.Acquire(background, "a"))
	ctx, cancel := context.WithCancel(background)
	waited := make(chan error, 1)
	go func() {
		_, err := locks.Acquire(ctx, "a")
		waited <- err
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	go client.BLPop(background, time.Minute, "list")
	until(t, "the pool is full", func() bool { return s.number("clients", "blocked_clients") == 2 })
	cancel()
	beats := s.calls("lock.events")
	until(t, "15 heartbeats", func() bool { return s.calls("lock.events") >= beats+15 })
	if isInJeopardy.Load() {
		t.Fatal("in jeopardy")
	}
	s.ask("RPUSH", "list", "x")
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	release(t, hold)
	until(t, "it is free", func() bool { return s.isFree("a") })
}

// failedRelease has locks whose release of "a" has failed without reaching the server.
func failedRelease(t *testing.T, s *server, options ...lock.Option) *lock.Locks {
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(time.Second))
	hold := must(locks.Acquire(background, "a", options...))
	p.frozen.Store(true)
	err := hold.Release(background)
	p.cut()
	p.frozen.Store(false)
	if !errors.Is(err, lock.ErrUnavailable) {
		t.Fatal(err)
	}
	return locks
}

func TestOwnerIsUsedAgainAfterAFailedRelease(t *testing.T) {
	s := start(t)
	locks := failedRelease(t, s, lock.WithOwner("me"))
	release(t, must(locks.Acquire(background, "a", lock.WithOwner("me"))))
}

func TestCloseUndoesAFailedRelease(t *testing.T) {
	s := start(t)
	failedRelease(t, s, lock.WithLease(time.Minute)).Close()
	if !s.isFree("a") {
		t.Fatal("not free")
	}
}

func TestCommandsOfTheUserAreSentOnce(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	a := must(locks.Lock("a"))
	hold := must(a.Acquire(background))
	p.loseReplyTo("LOCK.GUARD")
	if _, err := hold.Guard(background, "INCR", "n"); !errors.Is(err, lock.ErrUnavailable) || s.calls("lock.guard") != 1 {
		t.Fatal(err, s.calls("lock.guard"))
	}
	p.loseReplyTo("LOCK.BREAK")
	if _, err := a.ForceRelease(background); !errors.Is(err, lock.ErrUnavailable) || s.calls("lock.break") != 1 {
		t.Fatal(err, s.calls("lock.break"))
	}
}

func TestIdleSessionEndsWithItsServer(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.address()})
	defer client.Close()
	before := runtime.NumGoroutine()
	locks := must(lock.New(client, quick()...))
	defer locks.Close()
	release(t, must(locks.Acquire(background, "a")))
	s.end()
	until(t, "no goroutine", func() bool { return runtime.NumGoroutine() <= before })
	s.begin()
	release(t, must(locks.Acquire(background, "a")))
}

func TestHolderWaitsForTheUndoOfItsOwner(t *testing.T) {
	s := start(t)
	var fails atomic.Bool
	locks := locksOf(t, intercepted(s, func(words []any, next func() error) error {
		if fails.Load() && (words[0] == "LOCK.RELEASE" || words[0] == "LOCK.CANCEL") {
			return io.EOF
		}
		return next()
	}), lock.WithPatience(time.Second))
	a := must(locks.Lock("a", lock.Reentrant(), lock.WithWait(4*time.Second)))
	outer, inner := must(a.Acquire(background)), must(a.Acquire(background))
	fails.Store(true)
	if err := inner.Release(background); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { fails.Store(false) })
	release(t, must(a.Acquire(background)))
	release(t, outer)
	until(t, "it is free", func() bool { return s.isFree("a") })
}

func TestSecondReleaseWaitsForTheFirst(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	hold := must(locksAt(t, p.address()).Acquire(background, "a"))
	p.freezeAt("LOCK.RELEASE")
	first := make(chan error, 1)
	go func() { first <- hold.Release(background) }()
	until(t, "the first release", p.frozen.Load)
	time.AfterFunc(100*time.Millisecond, func() { p.frozen.Store(false) })
	if err := hold.Release(background); err != nil || !s.isFree("a") {
		t.Fatal("not released", err)
	}
	if err := <-first; err != nil {
		t.Fatal(err)
	}
}

func TestReleaseBeforeARestartIsNoLoss(t *testing.T) {
	s := start(t, "--appendonly", "yes", "--appendfsync", "always")
	var isFirst atomic.Bool
	isFirst.Store(true)
	locks := locksOf(t, intercepted(s, func(words []any, next func() error) error {
		err := next()
		if words[0] == "LOCK.RELEASE" && isFirst.Swap(false) {
			// Its reply is lost, and the server restarts before it comes again.
			s.end()
			s.begin()
			until(t, "a session and its declarations", func() bool { return s.calls("lock.events") >= 2 })
			return io.EOF
		}
		return err
	}))
	hold := must(locks.Acquire(background, "a"))
	if err := hold.Release(background); err != nil || hold.IsLost() || !s.isFree("a") {
		t.Fatal(err)
	}
}

func TestContendedEventsAreAcknowledged(t *testing.T) {
	s := start(t, "lock.events", "yes")
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	waited := make(chan error, 1)
	go func() { waited <- locks.Do(background, "a", func(context.Context) error { return nil }) }()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	before := s.calls("lock.events")
	time.Sleep(300 * time.Millisecond)
	if calls := s.calls("lock.events") - before; calls > 5 {
		t.Fatal(calls, "calls for one event")
	}
	release(t, hold)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}

func TestLossOfOneLockReleasesTheOthers(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	var dials atomic.Int32
	locks := locksOf(t, redis.NewClient(&redis.Options{Dialer: func(_ context.Context, network, _ string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			// The reader's connection.
			return net.Dial(network, p.address())
		}
		return net.Dial(network, s.address())
	}}))
	hold := must(locks.Acquire(background, "a", lock.And("b", "c")))
	p.frozen.Store(true)
	s.ask("LOCK.BREAK", "b")
	if err := hold.Extend(background, 0); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	until(t, "the others are free", func() bool { return s.isFree("a") && s.isFree("c") })
}

func TestDeclaredLeaseIsTheRestOfIt(t *testing.T) {
	s := start(t, "--appendonly", "yes", "--appendfsync", "always")
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(10*time.Second)))
	s.end()
	s.begin()
	until(t, "a declaration", func() bool { return s.calls("lock.renew") == 1 && hold.ValidFor() > 0 })
	left := time.Duration(s.ask("PTTL", "a").(int64)) * time.Millisecond
	if ours := hold.ValidFor(); left > 10*time.Second || left < 5*time.Second || ours > left+time.Millisecond {
		t.Fatal(left, "at the server,", ours, "here")
	}
	release(t, hold)
}

func TestOwnerIsFreeAfterTheMaximumAge(t *testing.T) {
	s := start(t, "lock.default-lease", "2000")
	locks := locksAt(t, s.address(), quick()...)
	a := must(locks.Lock("a", lock.WithMaxHold(200*time.Millisecond)))
	hold := must(a.Acquire(background))
	<-hold.Context().Done()
	if s.isFree("a") {
		t.Fatal("the last lease has ended")
	}
	release(t, must(a.Acquire(background)))
}
