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

	lock "redislock.example/lock"
)

func TestATryIsNoErrorIfItIsBusy(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold, ok, err := locks.Try(background, "a")
	if err != nil || !ok || hold.ValidFor() < 25*time.Second || hold.Token() != 0 || hold.Key() != "a" {
		t.Fatal(hold, ok, err)
	}
	if again, ok, err := locks.Try(background, "a", lock.WithWait(time.Hour)); again != nil || ok || err != nil {
		t.Fatal(again, ok, err)
	}
	if _, err := locks.Acquire(background, "a", lock.WithWait(0)); !errors.Is(err, lock.ErrBusy) {
		t.Fatal(err)
	}
	for range [2]int{} {
		if err := hold.Release(background); err != nil {
			t.Fatal(err)
		}
	}
	if !s.free("a") || lost(hold) || hold.Context().Err() == nil || hold.ValidFor() != 0 {
		t.Fatal("a release")
	}
	if hold, ok, err := locks.Try(background, "a"); !ok || err != nil || hold.Release(background) != nil {
		t.Fatal(ok, err)
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
	if err := first.Release(background); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	defer func() {
		// By messages, and not by asking again.
		if time.Since(began) > 2*time.Second {
			t.Error("slow:", time.Since(began))
		}
	}()
	for number := 0; number < 10; number++ {
		if got := <-order; got != number {
			t.Fatalf("%d came in place of %d", got, number)
		}
	}
}

func TestWhoGaveUpLeavesNothing(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	first := must(locks.Acquire(background, "a"))
	began := time.Now()
	_, err := locks.Acquire(background, "a", lock.WithWait(100*time.Millisecond))
	if !errors.Is(err, lock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) < 100*time.Millisecond {
		t.Fatal(err)
	}
	if s.waiters("a") != 0 {
		t.Fatal("it waits")
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
	if err := first.Release(background); err != nil || !s.free("a") {
		t.Fatal(err)
	}
}

func TestAWaitCancelledAtTheGrantLeavesNothing(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	granted := 0
	for round := 0; round < 200; round++ {
		first := must(locks.Acquire(background, "a"))
		ctx, cancel := context.WithCancel(background)
		result := make(chan error, 1)
		go func() {
			hold, err := locks.Acquire(ctx, "a", lock.WithKeep(round%2 == 0))
			if err == nil {
				granted++
				err = hold.Release(background)
			}
			result <- err
		}()
		until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
		released := make(chan error, 1)
		go func() { released <- first.Release(background) }()
		for end := time.Now().Add(time.Duration(round*3) * time.Microsecond); time.Now().Before(end); {
			runtime.Gosched()
		}
		cancel()
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if !s.free("a") {
			t.Fatalf("round %d: something is left", round)
		}
	}
	t.Logf("granted %d of 200", granted)
}

func TestAThousandWaitsOnTwoConnections(t *testing.T) {
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
	if s.sessions() != 2 {
		t.Fatal(s.sessions(), "connections")
	}
	began := time.Now()
	// Other calls of the session are not delayed.
	if err := must(locks.Acquire(background, "b")).Release(background); err != nil || time.Since(began) > time.Second {
		t.Fatal(err, time.Since(began))
	}
	_ = first.Release(background)
	all.Wait()
	if most != 1 || done != 1000 || !s.free("a") {
		t.Fatal(most, done)
	}
}

func TestManyBeginAtOnceWithTwoConnections(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	var all sync.WaitGroup
	for number := 0; number < 200; number++ {
		all.Add(1)
		go func(key string) {
			defer all.Done()
			if _, err := locks.Acquire(background, key); err != nil {
				t.Error(err)
			}
		}(fmt.Sprint("many", number))
	}
	all.Wait()
	if s.sessions() != 2 {
		t.Fatal(s.sessions(), "connections")
	}
}

func TestKeptForManyLeasesAndNoLongerThanWasSaid(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(300*time.Millisecond), lock.WithKeep(true)))
	most := must(locks.Acquire(background, "b", lock.WithLease(300*time.Millisecond), lock.WithKeep(true),
		lock.WithMaxHold(400*time.Millisecond)))
	select {
	case <-hold.Lost():
		t.Fatal("lost")
	case <-time.After(1200 * time.Millisecond):
	}
	if !lost(most) || !s.free("b") {
		t.Fatal("held for too long")
	}
	if hold.Release(background) != nil || !s.free("a") {
		t.Fatal("not given back")
	}
}

func TestExtendAndTheOwnClock(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(300*time.Millisecond)))
	if err := hold.Extend(background, 10*time.Second); err != nil || hold.ValidFor() < 5*time.Second {
		t.Fatal(err, hold.ValidFor())
	}
	time.Sleep(400 * time.Millisecond)
	if lost(hold) {
		t.Fatal("lost")
	}
	if err := hold.Extend(background, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-hold.Lost()
	if !errors.Is(context.Cause(hold.Context()), lock.ErrLost) {
		t.Fatal(context.Cause(hold.Context()))
	}
	for range [2]int{} {
		if err := hold.Release(background); !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
	}
	if err := hold.Extend(background, time.Second); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	// A kept one is renewed with the lease that was said last.
	kept := must(locks.Acquire(background, "b"))
	if err := kept.Extend(background, 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	time.Sleep(700 * time.Millisecond)
	valid := kept.ValidFor()
	if err := kept.Release(background); err != nil || valid > 300*time.Millisecond {
		t.Fatal("it is not kept:", valid, err)
	}
}

func TestTheBodyIsToldAndItsErrorWins(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	mine := errors.New("mine")
	kept := []lock.Option{lock.WithLease(300 * time.Millisecond), lock.WithKeep(true)}
	breaks := func(ctx context.Context) {
		s.ask("LOCK.BREAK", "a")
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), lock.ErrLost) {
			t.Error(context.Cause(ctx))
		}
	}
	err := locks.Do(background, "a", func(ctx context.Context) error { breaks(ctx); return mine }, kept...)
	if err != mine {
		t.Fatal(err)
	}
	err = locks.Do(background, "a", func(ctx context.Context) error { breaks(ctx); return nil }, kept...)
	if !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	err = locks.Do(background, "a", func(ctx context.Context) error { breaks(ctx); return ctx.Err() }, kept...)
	if !errors.Is(err, lock.ErrLost) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err = locks.Do(background, "a", func(context.Context) error { return mine }); err != mine || !s.free("a") {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() != "panic" || !s.free("a") {
				t.Error("a panic")
			}
		}()
		_ = locks.Do(background, "a", func(context.Context) error { panic("panic") })
	}()
}

func TestCloseLeavesNothing(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.address()})
	defer client.Close()
	before := runtime.NumGoroutine()
	for _, close := range []func(*lock.Locks){(*lock.Locks).Close, func(l *lock.Locks) { l.Close(); l.Close() }} {
		locks := lock.New(client)
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
		close(locks)
		for number, hold := range holds {
			if err := <-errs; !errors.Is(err, lock.ErrUnavailable) {
				t.Fatal(err)
			}
			until(t, "it is free", func() bool { return s.free(fmt.Sprint("l", number)) })
			if !lost(hold) || !errors.Is(hold.Release(background), lock.ErrLost) {
				t.Fatal("not told")
			}
		}
		until(t, "no connection", func() bool { return s.sessions() == 0 })
		until(t, "no goroutine", func() bool { return runtime.NumGoroutine() <= before })
		if _, err := locks.Acquire(background, "a"); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

func TestTokensGrowReadersShareAndPermitsAreCounted(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	var last int64
	for round := 0; round < 3; round++ {
		hold := must(locks.Acquire(background, "a", lock.Fenced()))
		if hold.Token() <= last {
			t.Fatal(hold.Token(), last)
		}
		last = hold.Token()
		_ = hold.Release(background)
	}
	one := must(locks.Acquire(background, "r", lock.Shared()))
	two := must(locks.Acquire(background, "r", lock.Shared()))
	if _, ok, err := locks.Try(background, "r"); ok || err != nil {
		t.Fatal("a writer among readers", err)
	}
	_, _ = one.Release(background), two.Release(background)
	one = must(locks.Acquire(background, "p", lock.WithLimit(2)))
	two = must(locks.Acquire(background, "p", lock.WithLimit(2)))
	if _, ok, err := locks.Try(background, "p", lock.WithLimit(2)); ok || err != nil {
		t.Fatal("a third permit", err)
	}
	_, _ = one.Release(background), two.Release(background)
	if !s.free("r") || !s.free("p") {
		t.Fatal("something is left")
	}
}

func TestEachKindOfErrorOnce(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	kinds := []error{lock.ErrBusy, lock.ErrTimeout, lock.ErrLost, lock.ErrDeadlock, lock.ErrMisuse, lock.ErrUnavailable, context.Canceled}
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
	if !errors.As(err, &e) || e.Key != "text" || e.Text[:9] != "WRONGTYPE" {
		t.Fatal(err)
	}
	for _, wrong := range []lock.Option{lock.WithLease(0), lock.WithWait(-1), lock.WithLimit(0), lock.WithMaxHold(0), lock.WithLease(-1),
		lock.WithOwner("*")} {
		_, err := locks.Acquire(background, "a", wrong)
		is(lock.ErrMisuse, err)
	}
	_, err = locks.Acquire(background, "a", lock.WithMaxHold(time.Second), lock.WithKeep(false))
	is(lock.ErrMisuse, err)
	_, err = locks.Attach(background, "a", "*")
	is(lock.ErrMisuse, err)
	hold := must(locks.Acquire(background, "a", lock.WithOwner("one")))
	is(lock.ErrMisuse, hold.Extend(background, 0))
	for _, owner := range []string{"two", "one"} {
		// Not re-entrant.
		_, err = locks.Acquire(background, "a", lock.WithWait(0), lock.WithOwner(owner))
		is(lock.ErrBusy, err)
	}
	_, err = locks.Acquire(background, "a", lock.WithWait(time.Millisecond))
	is(lock.ErrTimeout, err)
	ended, end := context.WithCancel(background)
	end()
	_, err = locks.Acquire(ended, "a")
	is(context.Canceled, err)

	other := must(locks.Acquire(background, "b", lock.WithOwner("two")))
	waiting, stop := context.WithCancel(background)
	result := make(chan error, 1)
	go func() {
		_, err := locks.Acquire(waiting, "b", lock.WithOwner("one"))
		result <- err
	}()
	until(t, "a waiter", func() bool { return s.waiters("b") == 1 })
	_, err = locks.Acquire(background, "a", lock.WithOwner("two"))
	is(lock.ErrDeadlock, err)
	stop()
	is(context.Canceled, <-result)
	_ = other.Release(background)

	s.ask("LOCK.BREAK", "a")
	_, err = hold.Guard(background, "SET", "x", 1)
	is(lock.ErrLost, err)
	if !lost(hold) || s.ask("EXISTS", "x") != int64(0) {
		t.Fatal("not told")
	}
	hold = must(locks.Acquire(background, "a"))
	if value, err := hold.Guard(background, "SET", "x", 1); value != "OK" || err != nil {
		t.Fatal(value, err)
	}
	if value, err := hold.Guard(background, "GET", "x"); value != "1" || err != nil {
		t.Fatal(value, err)
	}
	_, err = hold.Guard(background, "HGET", "x", "y")
	is(lock.ErrMisuse, err)

	s.ask("CONFIG", "SET", "lock.max-waiters", 1)
	waiting, stop = context.WithCancel(background)
	defer stop()
	go func() { _, _ = locks.Acquire(waiting, "a") }()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	_, err = locks.Acquire(background, "a")
	is(lock.ErrUnavailable, err)
	s.end()
	_, _, err = locks.Try(background, "a")
	is(lock.ErrUnavailable, err)
	_, err = locks.Acquire(background, "a", lock.WithWait(200*time.Millisecond))
	is(lock.ErrUnavailable, err)

	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.address()}})
	defer cluster.Close()
	not := lock.New(cluster)
	defer not.Close()
	_, err = not.Acquire(background, "a")
	is(lock.ErrMisuse, err)
}

func TestAnotherTakesItOver(t *testing.T) {
	s := start(t)
	one, two := locksAt(t, s.address()), locksAt(t, s.address())
	hold := must(one.Acquire(background, "a", lock.WithLease(10*time.Second)))
	taken := must(two.Attach(background, "a", hold.Owner()))
	one.Close()
	if lost(taken) || taken.Owner() != hold.Owner() || taken.Release(background) != nil || !s.free("a") {
		t.Fatal("not taken over")
	}
	if _, err := two.Attach(background, "a", "nobody"); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
}

// A renewal without the words that bind it would leave the old bond, and nobody would keep it for the other.
func TestWhatIsKeptIsNotTakenOverWithALease(t *testing.T) {
	s := start(t)
	one, two := locksAt(t, s.address()), locksAt(t, s.address())
	hold := must(one.Acquire(background, "a"))
	bound := s.boundTo("a")
	if _, err := two.Attach(background, "a", hold.Owner(), lock.WithLease(time.Minute)); !errors.Is(err, lock.ErrMisuse) {
		t.Fatal(err)
	}
	if s.boundTo("a") != bound || s.ask("PTTL", "a").(int64) > 30000 {
		t.Fatal("something has changed")
	}
	one.Close()
	until(t, "it is free", func() bool { return s.free("a") })
	if _, err := two.Attach(background, "a", hold.Owner(), lock.WithLease(time.Minute)); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
}

func TestAHoldThatIsHandedOverIsTheOthers(t *testing.T) {
	s := start(t)
	heard := make(chan string, 5)
	one := locksAt(t, s.address(), lock.WithListener(func(e lock.Event) { heard <- e.Name + " " + e.Outcome }))
	two := locksAt(t, s.address())
	kept := []lock.Option{lock.WithLease(300 * time.Millisecond), lock.WithKeep(true)}
	hold := must(one.Acquire(background, "a", kept...))
	owner := must(hold.HandOver())
	taken := must(two.Attach(background, "a", owner, kept...))
	bound := s.boundTo("a")
	until(t, "two events", func() bool { return len(heard) == 2 })
	if <-heard != "waited granted" || <-heard != "held released" || hold.ValidFor() != 0 || hold.Context().Err() == nil || lost(hold) {
		t.Fatal("it has not ended here")
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
	_, again := hold.HandOver()
	_, guarded := hold.Guard(background, "PING")
	for _, err := range []error{again, guarded, hold.Extend(background, time.Second)} {
		if !errors.Is(err, lock.ErrLost) || lost(hold) {
			t.Fatal(err)
		}
	}
	// It would be renewed here meanwhile.
	time.Sleep(400 * time.Millisecond)
	if s.boundTo("a") != bound {
		t.Fatal("it is bound to the first again")
	}
	one.Close()
	time.Sleep(400 * time.Millisecond)
	if err := taken.Release(background); err != nil || lost(taken) || !s.free("a") {
		t.Fatal(err)
	}
}

// handedOverAfterThaw hands over what waits for an answer that the proxy keeps back, and gives its owner.
func handedOverAfterThaw(t *testing.T, p *proxy, hold *lock.Hold) string {
	t.Helper()
	owner := make(chan string, 1)
	go func() { owner <- must(hold.HandOver()) }()
	time.Sleep(100 * time.Millisecond)
	if len(owner) != 0 {
		t.Fatal("it does not wait")
	}
	p.frozen.Store(false)
	return <-owner
}

func TestARenewalOnItsWayKeepsTheHandOverWaiting(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	kept := []lock.Option{lock.WithLease(3 * time.Second), lock.WithKeep(true)}
	hold := must(locks.Acquire(background, "a", kept...))
	p.frozen.Store(true)
	time.Sleep(1300 * time.Millisecond)
	name := handedOverAfterThaw(t, p, hold)
	if taken, err := locksAt(t, s.address()).Attach(background, "a", name, kept...); err != nil || taken.Release(background) != nil {
		t.Fatal(err)
	}
}

// In milliseconds, as the server counts, it is no shorter than was said.
func TestALeaseIsRoundedUp(t *testing.T) {
	p := through(t, start(t).address())
	locks := locksAt(t, p.address())
	p.loseReplyOf("\r\n21501\r\n", nil)
	hold := must(locks.Acquire(background, "a", lock.WithLease(21500*time.Millisecond+time.Nanosecond)))
	if !p.isDone() {
		t.Fatal("it was asked for less")
	}
	p.loseReplyOf("\r\n22500\r\n", nil)
	if err := hold.Extend(background, 22500*time.Millisecond-time.Nanosecond); err != nil || !p.isDone() {
		t.Fatal(err, "it was extended by less")
	}
}

func TestTheListenerHearsHowEachEnded(t *testing.T) {
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
	hold = must(locks.Acquire(background, "a", label, lock.WithLease(20*time.Millisecond)))
	<-hold.Lost()
	want := map[string]int{"orders waited granted": 2, "orders waited busy": 1, "orders waited timed out": 1,
		"orders held released": 1, "orders held lost": 1}
	until(t, fmt.Sprint(want), func() bool {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(heard) == fmt.Sprint(want)
	})
}

func TestALockerAndALeader(t *testing.T) {
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
	if counter != 20 || !s.free("a") {
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
	s.ask("SET", "text", "x")
	panics(locks.Locker("text").Lock)

	kept := []lock.Option{lock.WithLease(300 * time.Millisecond), lock.WithKeep(true)}
	terms := make(chan int, 10)
	ctx, cancel := context.WithCancel(background)
	result := make(chan error, 1)
	go func() {
		term := 0
		result <- locks.Elect(ctx, "e", func(ctx context.Context) { term++; terms <- term; <-ctx.Done() }, kept...)
	}()
	<-terms
	s.ask("LOCK.BREAK", "e")
	if <-terms != 2 {
		t.Fatal("not elected again")
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) || !s.free("e") {
		t.Fatal(err)
	}
	if err := locks.Elect(background, "e", func(context.Context) {}); err != nil || !s.free("e") {
		t.Fatal(err)
	}
	if err := locks.Elect(background, "text", func(context.Context) {}); !errors.Is(err, lock.ErrMisuse) {
		t.Fatal(err)
	}
}

func TestItConnectsAsTheClientDoesWithFewPermissions(t *testing.T) {
	s := start(t)
	s.ask("ACL", "SETUSER", "few", "on", ">secret", "~*", "&lock:inbox:*", "+lock.acquire", "+lock.release", "+lock.renew",
		"+lock.cancel", "+lock.info", "+subscribe", "+select")
	client := redis.NewClient(&redis.Options{Addr: s.address(), Username: "few", Password: "secret", DB: 3})
	defer client.Close()
	locks := lock.New(client)
	defer locks.Close()
	first := must(locks.Acquire(background, "a"))
	if !s.free("a") || must(s.admin.Do(background, "INFO", "keyspace").Text()) == "" {
		t.Fatal("not in its database")
	}
	if _, err := locks.Acquire(background, "a", lock.WithWait(50*time.Millisecond)); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- locks.Do(background, "a", func(context.Context) error { return nil }) }()
	if err := first.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.ask("ACL", "SETUSER", "few", "-lock.acquire")
	if _, err := locks.Acquire(background, "a"); !errors.Is(err, lock.ErrMisuse) {
		t.Fatal(err)
	}
	wrong := redis.NewClient(&redis.Options{Addr: s.address(), Username: "few", Password: "wrong"})
	defer wrong.Close()
	none := lock.New(wrong)
	defer none.Close()
	began := time.Now()
	if _, err := none.Acquire(background, "a"); !errors.Is(err, lock.ErrUnavailable) || time.Since(began) > 3*time.Second {
		t.Fatal(err, time.Since(began))
	}
}
