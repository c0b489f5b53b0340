// SPDX-License-Identifier: MIT

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

func TestTryOfBusyLockIsNoError(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold, ok, err := locks.Try(background, "a")
	if err != nil || !ok || hold.ValidFor() <= 0 || hold.Token() != 0 || hold.Key() != "a" || hold.IsLost() {
		t.Fatal(hold, ok, err)
	}
	if again, ok, err := locks.Try(background, "a", lock.WithWait(time.Hour)); again != nil || ok || err != nil {
		t.Fatal(again, ok, err)
	}
	if _, err := locks.Acquire(background, "a", lock.WithWait(0)); !errors.Is(err, lock.ErrBusy) {
		t.Fatal(err)
	}
	ctx := hold.Context()
	release(t, hold)
	release(t, hold)
	if !s.isFree("a") || hold.IsLost() || ctx.Err() == nil || hold.ValidFor() != 0 || context.Cause(ctx) != context.Canceled {
		t.Fatal("not released", context.Cause(ctx))
	}
}

func TestTryNeverEndsEarly(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	for _, wait := range []time.Duration{time.Millisecond, 30 * time.Millisecond, 200 * time.Millisecond} {
		for range [10]int{} {
			began := time.Now()
			_, err := locks.Acquire(background, "a", lock.WithWait(wait))
			if took := time.Since(began); !errors.Is(err, lock.ErrTimeout) || took < wait || s.waiters("a") != 0 {
				t.Fatal(err, took, s.waiters("a"))
			}
		}
	}
	release(t, hold)
}

func TestTryIsOneCallAndTakesNoPlace(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	waited := make(chan error, 1)
	go func() { waited <- locks.Do(background, "a", func(context.Context) error { return nil }) }()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	// Another place would be refused.
	s.ask("CONFIG", "SET", "lock.max-waiters", 1)
	before := s.calls("lock.acquire")
	if _, ok, err := locks.Try(background, "a"); ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := locks.Acquire(background, "a", lock.WithWait(0)); !errors.Is(err, lock.ErrBusy) {
		t.Fatal(err)
	}
	if calls := s.calls("lock.acquire") - before; calls != 2 {
		t.Fatal(calls, "calls")
	}
	release(t, hold)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}

func TestKeysAreBytes(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	key := "\xff\x00\x80 \xc3\x28"
	hold := must(locks.Acquire(background, key))
	if hold.Key() != key || s.ask("EXISTS", key) != int64(1) || s.ask("DBSIZE") != int64(1) {
		t.Fatalf("%q, %v", hold.Key(), s.ask("KEYS", "*"))
	}
	if _, ok, err := locks.Try(background, key); ok || err != nil {
		t.Fatal(ok, err)
	}
	next := make(chan *lock.Hold, 1)
	go func() { next <- must(locks.Acquire(background, key)) }()
	until(t, "a waiter", func() bool { return s.waiters(key) == 1 })
	release(t, hold)
	hold = <-next
	s.ask("DEL", key)
	<-hold.Context().Done()
	var e *lock.Error
	if err := hold.Release(background); !errors.Is(err, lock.ErrLost) || !errors.As(err, &e) || e.Key != key {
		t.Fatal(err)
	}
	release(t, must(locks.Acquire(background, key, lock.And("\xfe"))))
	if !s.isFree(key) || !s.isFree("\xfe") {
		t.Fatal("not free")
	}
}

func TestFirstComeFirstServed(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	first := must(locks.Acquire(background, "a"))
	order := make(chan int, 10)
	for number := 0; number < 10; number++ {
		go func(number int) {
			_ = locks.Do(background, "a", func(context.Context) error { order <- number; return nil })
		}(number)
		until(t, "a waiter", func() bool { return s.waiters("a") == number+1 })
	}
	release(t, first)
	for number := 0; number < 10; number++ {
		if got := <-order; got != number {
			t.Fatalf("%d came in place of %d", got, number)
		}
	}
}

func TestAbandonedWaitLeavesNothing(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	first := must(locks.Acquire(background, "a"))
	began := time.Now()
	_, err := locks.Acquire(background, "a", lock.WithWait(100*time.Millisecond))
	if !errors.Is(err, lock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) < 100*time.Millisecond {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	_, err = locks.Acquire(ctx, "a")
	if !errors.Is(err, lock.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || s.waiters("a") != 0 {
		t.Fatal(err, s.waiters("a"))
	}
	why := errors.New("why")
	ended, end := context.WithCancelCause(background)
	time.AfterFunc(50*time.Millisecond, func() { end(why) })
	_, err = locks.Acquire(ended, "a")
	if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, lock.ErrTimeout) || s.waiters("a") != 0 {
		t.Fatal(err, s.waiters("a"))
	}
	release(t, first)
	if !s.isFree("a") {
		t.Fatal("not free")
	}
}

func TestCancelAtTheGrantLeavesNothing(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	granted := 0
	for round := 0; round < 200; round++ {
		first := must(locks.Acquire(background, "a"))
		ctx, cancel := context.WithCancel(background)
		result := make(chan error, 1)
		go func() {
			hold, err := locks.Acquire(ctx, "a")
			if err == nil {
				granted++
				err = hold.Release(background)
			}
			result <- err
		}()
		until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
		released := make(chan error, 1)
		go func() { released <- first.Release(background) }()
		for end := time.Now().Add(time.Duration(round*4) * time.Microsecond); time.Now().Before(end); {
			runtime.Gosched()
		}
		cancel()
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if !s.isFree("a") {
			t.Fatalf("round %d: something is left", round)
		}
	}
	t.Logf("granted %d of 200", granted)
}

func TestThousandWaitsNeedNoConnection(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	first := must(locks.Acquire(background, "a"))
	var all sync.WaitGroup
	var inside, most, done int32
	for number := 0; number < 1000; number++ {
		all.Add(1)
		go func() {
			defer all.Done()
			err := locks.Do(background, "a", func(context.Context) error {
				if now := atomic.AddInt32(&inside, 1); now > atomic.LoadInt32(&most) {
					atomic.StoreInt32(&most, now)
				}
				done++
				atomic.AddInt32(&inside, -1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
	}
	until(t, "a thousand waiters", func() bool { return s.waiters("a") == 1000 })
	// The reader, at most four for calls and four for batches, and that of the test.
	if made := s.number("clients", "connected_clients"); made > 10 {
		t.Fatal(made, "connections")
	}
	release(t, must(locks.Acquire(background, "b")))
	release(t, first)
	all.Wait()
	if most != 1 || done != 1000 || !s.isFree("a") {
		t.Fatal(most, done)
	}
}

func TestImpatientWaitersMakeNoConnections(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	before := s.number("stats", "total_connections_received")
	for round := 0; round < 20; round++ {
		var all sync.WaitGroup
		for number := 0; number < 20; number++ {
			all.Add(1)
			go func() {
				defer all.Done()
				ctx, cancel := context.WithTimeout(background, 5*time.Millisecond)
				defer cancel()
				if _, err := locks.Acquire(ctx, "a"); !errors.Is(err, lock.ErrTimeout) {
					t.Error(err)
				}
			}()
		}
		all.Wait()
	}
	if made := s.number("stats", "total_connections_received") - before; made > 6 || s.waiters("a") != 0 {
		t.Fatal(made, "connections", s.waiters("a"), "waiters")
	}
	release(t, hold)
}

func TestMaxHoldEndsRenewals(t *testing.T) {
	s := start(t, "lock.default-lease", "2000")
	locks := locksAt(t, s.address(), quick()...)
	hold := must(locks.Acquire(background, "a", lock.WithMaxHold(300*time.Millisecond)))
	<-hold.Context().Done()
	if cause := context.Cause(hold.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Fatal(cause)
	}
	until(t, "it is free", func() bool { return s.isFree("a") })
}

func TestExtendKeepsTheMaximumAge(t *testing.T) {
	s := start(t, "lock.default-lease", "2000")
	locks := locksAt(t, s.address(), quick()...)
	hold := must(locks.Acquire(background, "a", lock.WithMaxHold(2*time.Second)))
	began := time.Now()
	for hold.Context().Err() == nil {
		if err := hold.Extend(background, 0); err != nil && !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("the maximum age begins again")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestLeaseEndsByTheLocalClock(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(300*time.Millisecond)))
	ctx := hold.Context()
	if err := hold.Extend(background, 10*time.Second); err != nil || hold.ValidFor() < 5*time.Second {
		t.Fatal(err, hold.ValidFor())
	}
	time.Sleep(400 * time.Millisecond)
	if hold.IsLost() || ctx.Err() != nil {
		t.Fatal("lost after Extend")
	}
	s.signal(stop)
	defer s.signal(proceed)
	short := make(chan error, 1)
	go func() { short <- hold.Extend(background, 100*time.Millisecond) }()
	s.signal(proceed)
	if err := <-short; err != nil {
		t.Fatal(err)
	}
	s.signal(stop)
	// The server says nothing.
	until(t, "the context ends", func() bool { return ctx.Err() != nil })
	if !errors.Is(context.Cause(ctx), lock.ErrLost) || !hold.IsLost() || hold.ValidFor() != 0 {
		t.Fatal(context.Cause(ctx))
	}
	s.signal(proceed)
	for range [2]int{} {
		if err := hold.Release(background); !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
	}
	if err := hold.Extend(background, time.Second); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	renewed := must(locks.Acquire(background, "b"))
	if err := renewed.Extend(background, 0); err != nil {
		t.Fatal(err)
	}
	if err := (*lock.Hold)(nil).Release(background); !errors.Is(err, lock.ErrMisuse) {
		t.Fatal(err)
	}
	if err := renewed.Extend(background, time.Second); !errors.Is(err, lock.ErrMisuse) {
		t.Fatal(err)
	}
}

func TestLossEndsTheBodysContext(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	mine := errors.New("mine")
	breaks := func(ctx context.Context) {
		s.ask("LOCK.BREAK", "a")
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), lock.ErrLost) {
			t.Error(context.Cause(ctx))
		}
	}
	err := locks.Do(background, "a", func(ctx context.Context) error { breaks(ctx); return mine })
	if err != mine {
		t.Fatal(err)
	}
	err = locks.Do(background, "a", func(ctx context.Context) error { breaks(ctx); return nil })
	if !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	err = locks.Do(background, "a", func(ctx context.Context) error { breaks(ctx); return ctx.Err() })
	if !errors.Is(err, lock.ErrLost) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err = locks.Do(background, "a", func(context.Context) error { return mine }); err != mine || !s.isFree("a") {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() != "panic" || !s.isFree("a") {
				t.Error("a panic")
			}
		}()
		_ = locks.Do(background, "a", func(context.Context) error { panic("panic") })
	}()
}

func TestCloseLeavesNothing(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.address()})
	before := runtime.NumGoroutine()
	for _, close := range []func(*lock.Locks){(*lock.Locks).Close, func(l *lock.Locks) { l.Close(); l.Close() }} {
		locks := must(lock.New(client))
		var holds []*lock.Hold
		errs := make(chan error, 5)
		for number := 0; number < 5; number++ {
			key := fmt.Sprint("l", number)
			holds = append(holds, must(locks.Acquire(background, key)))
			go func() {
				_, err := locks.Acquire(background, key)
				errs <- err
			}()
			until(t, "a waiter", func() bool { return s.waiters(key) == 1 })
		}
		leased := must(locks.Acquire(background, "leased", lock.WithLease(time.Minute)))
		close(locks)
		for number, hold := range holds {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			until(t, "it is free", func() bool { return s.isFree(fmt.Sprint("l", number)) })
			cause := context.Cause(hold.Context())
			if !hold.IsLost() || !errors.Is(cause, lock.ErrLost) || !errors.Is(hold.Release(background), lock.ErrLost) {
				t.Fatal("not reported")
			}
		}
		if s.isFree("leased") || leased.IsLost() {
			t.Fatal("a lease ended")
		}
		s.ask("LOCK.BREAK", "leased")
		if s.sessions() != 0 {
			t.Fatal("the session was not closed")
		}
		if _, err := locks.Acquire(background, "a"); !errors.Is(err, lock.ErrMisuse) {
			t.Fatal(err)
		}
	}
	_ = client.Close()
	until(t, "no connection", func() bool { return s.number("clients", "connected_clients") == 1 })
	until(t, "no goroutine", func() bool { return runtime.NumGoroutine() <= before })
}

func TestTokensGrowReadersShareAndPermitsCount(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	var last int64
	for round := 0; round < 3; round++ {
		hold := must(locks.Acquire(background, "a", lock.Fenced()))
		if hold.Token() <= last {
			t.Fatal(hold.Token(), last)
		}
		last = hold.Token()
		release(t, hold)
	}
	one := must(locks.Acquire(background, "r", lock.Shared()))
	two := must(locks.Acquire(background, "r", lock.Shared()))
	if _, ok, err := locks.Try(background, "r"); ok || err != nil {
		t.Fatal("a writer among readers", err)
	}
	release(t, one)
	release(t, two)
	one = must(locks.Acquire(background, "p", lock.WithLimit(2)))
	two = must(locks.Acquire(background, "p", lock.WithLimit(2)))
	if _, ok, err := locks.Try(background, "p", lock.WithLimit(2)); ok || err != nil {
		t.Fatal("a third permit", err)
	}
	release(t, one)
	release(t, two)
}

func TestSeveralLocksAreGrantedTogether(t *testing.T) {
	s := start(t)
	for _, protocol := range []int{2, 3} {
		locks := locksOf(t, redis.NewClient(&redis.Options{Addr: s.address(), Protocol: protocol}))
		first := must(locks.Acquire(background, "b"))
		got := make(chan *lock.Hold, 1)
		go func() { got <- must(locks.Acquire(background, "a", lock.And("b", "c"), lock.Fenced())) }()
		until(t, "a waiter", func() bool { return s.waiters("b") == 1 })
		if s.ask("LOCK.INFO", "a") != nil {
			t.Fatal("granted in part")
		}
		release(t, first)
		hold := <-got
		if tokens := hold.Tokens(); len(tokens) != 3 || tokens[0] == 0 || tokens[2] == 0 || hold.Token() != tokens[0] {
			t.Fatal(tokens)
		}
		s.ask("LOCK.BREAK", "b")
		<-hold.Context().Done()
		if !hold.IsLost() {
			t.Fatal("not lost")
		}
		until(t, "the others are free", func() bool { return s.isFree("a") && s.isFree("c") })
		direct := must(locks.Acquire(background, "a", lock.And("b"), lock.Fenced()))
		if tokens := direct.Tokens(); len(tokens) != 2 || tokens[1] == 0 {
			t.Fatal(tokens)
		}
		release(t, direct)
		if !s.isFree("a") || !s.isFree("b") {
			t.Fatal("not released")
		}
	}
}

func TestEachKindOfErrorOnce(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address(), lock.WithPatience(time.Second))
	kinds := []error{
		lock.ErrBusy, lock.ErrTimeout, lock.ErrLost, lock.ErrDeadlock, lock.ErrMisuse, lock.ErrUnavailable, context.Canceled,
	}
	is := func(want, err error) {
		t.Helper()
		for _, kind := range kinds {
			if errors.Is(err, kind) != (kind == want) {
				t.Fatalf("%v: %v, and not %v", err, kind, want)
			}
		}
	}
	s.ask("SET", "text", "x")
	_, err := locks.Acquire(background, "text")
	is(lock.ErrMisuse, err)
	var e *lock.Error
	if !errors.As(err, &e) || e.Key != "text" || e.Code != "WRONGTYPE" {
		t.Fatal(err)
	}
	for _, wrong := range []lock.Option{
		lock.WithLease(0), lock.WithWait(-1), lock.WithLimit(0), lock.WithMaxHold(0), lock.WithLease(-1),
		lock.WithOwner("*"), lock.WithOwner(""), lock.And(""),
	} {
		_, err := locks.Lock("a", wrong)
		is(lock.ErrMisuse, err)
	}
	_, err = locks.Lock("a", lock.WithMaxHold(time.Second), lock.WithLease(time.Second))
	is(lock.ErrMisuse, err)
	_, err = locks.Lock("a", lock.And("b"), lock.WithLimit(2))
	is(lock.ErrMisuse, err)
	_, err = locks.Lock("")
	is(lock.ErrMisuse, err)
	_, err = must(locks.Lock("a")).Attach(background, "no ticket")
	is(lock.ErrMisuse, err)
	for _, wrong := range []lock.Setting{
		lock.WithGrace(time.Hour), lock.WithGrace(-1), lock.WithTTL(0), lock.WithPatience(0), lock.WithName(""),
	} {
		_, err := lock.New(s.admin, wrong)
		is(lock.ErrMisuse, err)
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": s.address()}})
	defer ring.Close()
	_, err = lock.New(ring)
	is(lock.ErrMisuse, err)

	hold := must(locks.Acquire(background, "a"))
	_, err = locks.Acquire(background, "a", lock.WithWait(0))
	is(lock.ErrBusy, err)
	_, err = locks.Acquire(background, "a", lock.WithWait(time.Millisecond))
	is(lock.ErrTimeout, err)
	ended, end := context.WithCancel(background)
	end()
	_, err = locks.Acquire(ended, "a")
	is(context.Canceled, err)
	s.ask("LOCK.BREAK", "a")
	_, err = hold.Guard(background, "SET", "x", 1)
	is(lock.ErrLost, err)
	hold = must(locks.Acquire(background, "a"))
	if value, err := hold.Guard(background, "SET", "x", 1); value != "OK" || err != nil {
		t.Fatal(value, err)
	}
	_, err = hold.Guard(background, "HGET", "x", "y")
	is(lock.ErrMisuse, err)

	s.ask("CONFIG", "SET", "lock.max-waiters", 1)
	waiting, stop := context.WithCancel(background)
	waited := make(chan error, 1)
	go func() { _, err := locks.Acquire(waiting, "a"); waited <- err }()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	_, err = locks.Acquire(background, "a")
	is(lock.ErrUnavailable, err)
	stop()
	is(context.Canceled, <-waited)
	s.end()
	_, _, err = locks.Try(background, "a")
	is(lock.ErrUnavailable, err)
	_, err = locks.Acquire(background, "a", lock.WithWait(200*time.Millisecond))
	is(lock.ErrUnavailable, err)
	_, err = locks.Acquire(background, "a")
	is(lock.ErrUnavailable, err)
}

func TestForbiddenReleaseIsMisuseAndUndone(t *testing.T) {
	s := start(t)
	s.ask("ACL", "SETUSER", "few", "on", ">secret", "~*", "+@all")
	locks := locksOf(t, redis.NewClient(&redis.Options{Addr: s.address(), Username: "few", Password: "secret"}))
	hold := must(locks.Acquire(background, "a"))
	s.ask("ACL", "SETUSER", "few", "-lock.release")
	err := hold.Release(background)
	var e *lock.Error
	if !errors.As(err, &e) || e.Kind != lock.ErrMisuse || e.Code != "NOPERM" {
		t.Fatal(err)
	}
	until(t, "it is free", func() bool { return s.isFree("a") })
	release(t, hold)
}

func TestServerWithoutTheModule(t *testing.T) {
	s := startPlain(t)
	locks := locksAt(t, s.address())
	began := time.Now()
	_, err := locks.Acquire(background, "a")
	var e *lock.Error
	if !errors.As(err, &e) || e.Kind != lock.ErrMisuse || e.Code != "ERR" || time.Since(began) > 2*time.Second {
		t.Fatal(err)
	}
}

func TestOwnersThatBlockThemselvesGetDeadlock(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	a := must(locks.Lock("a"))
	hold := must(a.Acquire(background))
	if _, err := a.Acquire(background); !errors.Is(err, lock.ErrDeadlock) {
		t.Fatal(err)
	}
	if _, _, err := a.Try(background); !errors.Is(err, lock.ErrDeadlock) || s.ask("LOCK.INFO", "a") == nil {
		t.Fatal(err)
	}
	again := must(locks.Acquire(background, "a", lock.WithOwner(hold.Owner()), lock.Reentrant()))
	release(t, again)
	if s.isFree("a") {
		t.Fatal("released by the inner scope")
	}
	other := must(locks.Acquire(background, "b", lock.WithOwner("two")))
	waited := make(chan error, 1)
	go func() {
		waited <- locks.Do(background, "b", func(context.Context) error { return nil }, lock.WithOwner(hold.Owner()))
	}()
	until(t, "a waiter", func() bool { return s.waiters("b") == 1 })
	if _, err := locks.Acquire(background, "a", lock.WithOwner("two")); !errors.Is(err, lock.ErrDeadlock) {
		t.Fatal(err)
	}
	release(t, other)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	release(t, hold)
}

func TestEqualNamesAreDifferentOwners(t *testing.T) {
	s := start(t)
	one, two := locksAt(t, s.address(), lock.WithName("web")), locksAt(t, s.address(), lock.WithName("web"))
	hold := must(one.Acquire(background, "a"))
	if _, ok, err := two.Try(background, "a"); ok || err != nil {
		t.Fatal(ok, err)
	}
	release(t, hold)
}

func TestScopeReleasesOnlyItsOwnHold(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	err := locks.Do(background, "a", func(context.Context) error {
		s.ask("LOCK.BREAK", "a")
		// This owner acquires the lock again, while the scope still exists.
		must(locks.Acquire(background, "a", lock.WithOwner("me")))
		return nil
	}, lock.WithOwner("me"))
	if !errors.Is(err, lock.ErrLost) || s.ask("LOCK.INFO", "a") == nil {
		t.Fatal(err)
	}
}

func TestHandOverToAnotherSession(t *testing.T) {
	s := start(t)
	heard := make(chan string, 5)
	one := locksAt(t, s.address(), lock.WithListener(func(e lock.Event) { heard <- e.Name + " " + e.Outcome }))
	two := locksAt(t, s.address())
	hold := must(one.Acquire(background, "a"))
	ticket := must(hold.HandOver())
	release(t, hold)
	if s.isFree("a") {
		t.Fatal("the giver released it")
	}
	taken := must(must(two.Lock("a")).Attach(background, ticket))
	until(t, "the giver's context ends", func() bool { return hold.Context().Err() != nil })
	if hold.IsLost() || taken.IsLost() || taken.Owner() != hold.Owner() {
		t.Fatal("lost")
	}
	if _, err := hold.HandOver(); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	if _, err := must(two.Lock("a")).Attach(background, ticket); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	one.Close()
	if len(heard) != 1 || <-heard != "waited granted" {
		t.Fatal("the giver reported an end")
	}
	release(t, taken)
	if !s.isFree("a") {
		t.Fatal("not released")
	}
}

func TestListenerGetsWaitsAndHolds(t *testing.T) {
	s := start(t)
	var mu sync.Mutex
	heard := map[string]int{}
	locks := locksAt(t, s.address(), lock.WithListener(func(e lock.Event) {
		mu.Lock()
		defer mu.Unlock()
		heard[e.Label+" "+e.Name+" "+e.Outcome]++
	}))
	label := lock.WithLabel("orders")
	hold := must(locks.Acquire(background, "a", label))
	_, _, _ = locks.Try(background, "a", label)
	_, _ = locks.Acquire(background, "a", label, lock.WithWait(time.Millisecond))
	_, _ = hold.Release(background), hold.Release(background)
	must(locks.Acquire(background, "a", lock.WithLease(20*time.Millisecond)))
	want := map[string]int{"orders waited granted": 1, "orders waited busy": 1, "orders waited timed out": 1,
		"orders held released": 1, " held lost": 1, " waited granted": 1}
	until(t, fmt.Sprint(want), func() bool {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(heard) == fmt.Sprint(want)
	})
}

func TestFailingListenerDisturbsNothing(t *testing.T) {
	s := start(t)
	var releases atomic.Pointer[lock.Hold]
	locks := locksAt(t, s.address(), lock.WithListener(func(e lock.Event) {
		if hold := releases.Swap(nil); hold != nil {
			_ = hold.Release(background)
		}
		panic("a listener")
	}))
	other := must(locks.Acquire(background, "b"))
	hold := must(locks.Acquire(background, "a"))
	releases.Store(other)
	release(t, hold)
	until(t, "the listener releases the other hold", func() bool { return s.isFree("a") && s.isFree("b") })
	lost := must(locks.Acquire(background, "a"))
	s.ask("LOCK.BREAK", "a")
	<-lost.Context().Done()
	release(t, must(locks.Acquire(background, "a")))
}

func TestListenerMayUseLocks(t *testing.T) {
	s := start(t)
	var locks *lock.Locks
	errs := make(chan error, 2)
	locks = locksAt(t, s.address(), lock.WithListener(func(e lock.Event) {
		if e.Label == "a" && e.Name == "held" {
			errs <- locks.Do(background, "b", func(context.Context) error { return nil })
		}
	}))
	release(t, must(locks.Acquire(background, "a", lock.WithLabel("a"))))
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	// Now the reader notices the end of the hold.
	must(locks.Acquire(background, "a", lock.WithLabel("a")))
	s.ask("LOCK.BREAK", "a")
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
}

func TestCallbacksOfALossMayUseLocks(t *testing.T) {
	s := start(t)
	var locks *lock.Locks
	var other *lock.Hold
	errs := make(chan error, 4)
	locks = locksAt(t, s.address(), lock.WithListener(func(e lock.Event) {
		if e.Outcome == "lost" {
			errs <- other.Release(background)
		}
	}))
	other = must(locks.Acquire(background, "b"))
	hold := must(locks.Acquire(background, "a"))
	context.AfterFunc(hold.Context(), func() {
		if err := hold.Release(background); !errors.Is(err, lock.ErrLost) {
			errs <- err
		}
		errs <- locks.Do(background, "a", func(context.Context) error { return nil })
	})
	s.ask("DEL", "a")
	for range [2]int{} {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if !s.isFree("a") || !s.isFree("b") {
		t.Fatal("not free")
	}
}

func TestDroppedHoldIsReleasedWithWarning(t *testing.T) {
	s := start(t)
	warnings := logged(t)
	locks := locksAt(t, s.address())
	func() { must(locks.Acquire(background, "a")) }()
	until(t, "it is free", func() bool {
		runtime.GC()
		return s.isFree("a")
	})
	if !warnings.contains("never released") {
		t.Fatal("no warning")
	}
	release(t, must(locks.Acquire(background, "b")))
	runtime.GC()
	if warnings.contains("key=b") {
		t.Fatal("a warning for a hold that was released")
	}
}

func TestQueryAndForceRelease(t *testing.T) {
	s := start(t)
	for _, protocol := range []int{2, 3} {
		locks := locksOf(t, redis.NewClient(&redis.Options{Addr: s.address(), Protocol: protocol}), lock.WithName("web"))
		a := must(locks.Lock("a"))
		if info, err := a.Query(background); info != nil || err != nil {
			t.Fatal(info, err)
		}
		hold := must(a.Acquire(background))
		info := must(a.Query(background))
		holders := info["holders"].([]any)
		if holder := holders[0].(map[string]any); holder["owner"] != hold.Owner() || holder["session"] != "web" {
			t.Fatal(info)
		}
		if broke, err := a.ForceRelease(background); !broke || err != nil {
			t.Fatal(broke, err)
		}
		if broke, err := a.ForceRelease(background); broke || err != nil {
			t.Fatal(broke, err)
		}
		<-hold.Context().Done()
	}
}

func TestLockerAndElection(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	locker := locks.Locker("a")
	counter := 0
	var all sync.WaitGroup
	for number := 0; number < 20; number++ {
		all.Add(1)
		go func() {
			defer all.Done()
			locker.Lock()
			defer locker.Unlock()
			counter++
		}()
	}
	all.Wait()
	if counter != 20 || !s.isFree("a") {
		t.Fatal(counter)
	}
	panics := func(what func()) {
		t.Helper()
		defer func() {
			if err, ok := recover().(error); !ok || !errors.Is(err, lock.ErrMisuse) {
				t.Error("no panic")
			}
		}()
		what()
	}
	panics(locker.Unlock)
	panics(func() { locks.Locker("") })
	s.ask("SET", "text", "x")
	panics(locks.Locker("text").Lock)

	terms := make(chan int, 10)
	ctx, cancel := context.WithCancel(background)
	result := make(chan error, 1)
	go func() {
		term := 0
		result <- locks.Elect(ctx, "e", func(ctx context.Context) { term++; terms <- term; <-ctx.Done() })
	}()
	<-terms
	s.ask("LOCK.BREAK", "e")
	if <-terms != 2 {
		t.Fatal("not elected again")
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) || !s.isFree("e") {
		t.Fatal(err)
	}
	if err := locks.Elect(background, "e", func(context.Context) {}); err != nil || !s.isFree("e") {
		t.Fatal(err)
	}
	if err := locks.Elect(background, "text", func(context.Context) {}); !errors.Is(err, lock.ErrMisuse) {
		t.Fatal(err)
	}
}

func TestClientsOptionsAndHooksCount(t *testing.T) {
	s := start(t)
	s.ask("ACL", "SETUSER", "few", "on", ">secret", "~*", "resetchannels", "-@all", "+lock.acquire", "+lock.release", "+lock.renew",
		"+lock.cancel", "+lock.session|open", "+lock.session|close", "+lock.events", "+select")
	client := redis.NewClient(&redis.Options{Addr: s.address(), Username: "few", Password: "secret", DB: 3})
	hook := &countingHook{}
	client.AddHook(hook)
	locks := locksOf(t, client)
	first := must(locks.Acquire(background, "a"))
	if !s.isFree("a") {
		t.Fatal("not in its database")
	}
	if hook.calls.Load() != 1 {
		t.Fatal(hook.calls.Load(), "calls")
	}
	if _, err := locks.Acquire(background, "a", lock.WithWait(50*time.Millisecond)); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	release(t, first)
	s.ask("ACL", "SETUSER", "few", "-lock.acquire")
	if _, err := locks.Acquire(background, "a"); !errors.Is(err, lock.ErrMisuse) {
		t.Fatal(err)
	}
	wrong := locksOf(t, redis.NewClient(&redis.Options{Addr: s.address(), Username: "few", Password: "wrong"}))
	began := time.Now()
	if _, err := wrong.Acquire(background, "a"); !errors.Is(err, lock.ErrMisuse) || time.Since(began) > 3*time.Second {
		t.Fatal(err, time.Since(began))
	}
}
