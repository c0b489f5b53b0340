// SPDX-License-Identifier: MIT

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "redislock.example/lock"
)

// shortly is a context that ends soon.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func few(s *server, number int) { s.ask("CONFIG", "SET", "min-replicas-to-write", fmt.Sprint(number)) }

// givenBack fails if nothing of that owner is given back.
func givenBack(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "given back") {
		t.Fatal("nobody waits for what is given back:", err)
	}
}

// To take back a wait goes by the owner's name: it would end the next hold of that name.
func TestAnOwnerThatIsUsedAgainWaitsForWhatIsTakenBack(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address(), lock.WithPatience(time.Second))
	me := lock.WithOwner("me")
	first := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	ctx, cancel := context.WithCancel(background)
	waited := make(chan error, 1)
	go func() {
		_, err := locks.Acquire(ctx, "a", me)
		waited <- err
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	few(s, 1)
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	_, err := locks.Acquire(background, "a", me, lock.WithWait(100*time.Millisecond))
	givenBack(t, err)
	_, err = locks.Attach(background, "a", "me")
	givenBack(t, err)
	few(s, 0)
	if err := first.Release(background); err != nil {
		t.Fatal(err)
	}
	hold := must(locks.Acquire(background, "a", me))
	if err := hold.Release(background); err != nil || !s.free("a") {
		t.Fatal(err)
	}
}

func TestACallThatNobodyWaitsForEndsItsConnection(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(300*time.Millisecond))
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	must(locks.Acquire(background, "kept"))
	bound := s.boundTo("kept")
	p.vanish(true)
	if err := hold.Extend(shortly(t), time.Second); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	// Long before the next heartbeat.
	until(t, "another connection", func() bool { return s.boundTo("kept") != bound })
	p.vanish(false)
	until(t, "a reset", func() bool { return p.resets.Load() == 1 })
}

// It would set the other's lease.
func TestAnExtendWhoseCallerHasGoneKeepsTheHandOverWaiting(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	p.frozen.Store(true)
	if err := hold.Extend(shortly(t), 20*time.Second); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	if err := hold.Extend(shortly(t), 10*time.Second); !errors.Is(err, lock.ErrTimeout) || p.count("LOCK.RENEW") != 1 {
		t.Fatal("another one is sent beside it", err)
	}
	name := handedOverAfterThaw(t, p, hold)
	if ttl := s.ask("PTTL", "a").(int64); ttl > 20000 {
		t.Fatal("the extend has not arrived", ttl)
	}
	if taken, err := locksAt(t, s.address()).Attach(background, "a", name); err != nil || taken.Release(background) != nil {
		t.Fatal(err)
	}
}

// What nobody hears of in time, nobody hands over: the server gets it back.
func TestWhatIsLostMeanwhileIsNotHandedOver(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(600*time.Millisecond), lock.WithKeep(true)))
	p.frozen.Store(true)
	until(t, "a renewal", func() bool { return p.count("LOCK.RENEW") == 1 })
	if _, err := hold.HandOver(); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	until(t, "it is told of", func() bool { return lost(hold) })
	p.frozen.Store(false)
	until(t, "it is free", func() bool { return s.free("a") })
}

// The answer to a renewal that is on its way says so.
func TestWhatHasEndedIsNotHandedOver(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	p.frozen.Store(true)
	if err := hold.Extend(shortly(t), time.Minute); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	s.ask("LOCK.BREAK", "a")
	time.AfterFunc(100*time.Millisecond, func() { p.frozen.Store(false) })
	if _, err := hold.HandOver(); !errors.Is(err, lock.ErrLost) || !lost(hold) {
		t.Fatal(err)
	}
}

// It is free, or somebody else's.
func TestWhatHasNoConnectionIsNotHandedOver(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(500*time.Millisecond))
	hold := must(locks.Acquire(background, "a"))
	// Nobody answers on the next.
	p.frozen.Store(true)
	p.cut()
	until(t, "its end", func() bool { return hold.ValidFor() == 0 })
	if _, err := hold.HandOver(); !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	p.frozen.Store(false)
	if _, err := hold.HandOver(); !errors.Is(err, lock.ErrLost) || !lost(hold) {
		t.Fatal(err)
	}
	hold = must(locks.Acquire(background, "a"))
	locks.Close()
	if _, err := hold.HandOver(); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
}

// A late reply counts.
func TestAnExtendWhoseCallerHasGoneExtends(t *testing.T) {
	p := through(t, start(t).address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
	p.frozen.Store(true)
	if err := hold.Extend(shortly(t), time.Hour); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	p.frozen.Store(false)
	until(t, "it is valid for long", func() bool { return hold.ValidFor() > time.Minute })
}

// The server would renew it for as long as this process lives.
func TestWhatWasNotTakenOverRunsOut(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	one, two := locksAt(t, s.address()), locksAt(t, p.address())
	kept := []lock.Option{lock.WithLease(600 * time.Millisecond), lock.WithKeep(true)}
	hold := must(one.Acquire(background, "a", kept...))
	if _, _, err := two.Try(background, "b"); err != nil {
		t.Fatal(err)
	}
	owner, bound := must(hold.HandOver()), s.boundTo("a")
	p.frozen.Store(true)
	if _, err := two.Attach(shortly(t), "a", owner, kept...); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	p.frozen.Store(false)
	until(t, "it is not the first's any more", func() bool { return s.free("a") || s.boundTo("a") != bound })
	until(t, "its end", func() bool { return s.free("a") })
}

func TestWhoMayNotCancelGivesBackWhatComesLate(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	s.ask("ACL", "SETUSER", "default", "-lock.cancel")
	kept := []lock.Option{lock.WithLease(400 * time.Millisecond), lock.WithKeep(true)}
	if _, _, err := locks.Try(background, "b"); err != nil {
		t.Fatal(err)
	}
	for _, may := range []string{"+lock.release", "-lock.release"} {
		s.ask("ACL", "SETUSER", "default", may)
		p.frozen.Store(true)
		if _, _, err := locks.Try(shortly(t), "a", kept...); !errors.Is(err, lock.ErrTimeout) {
			t.Fatal(err)
		}
		p.frozen.Store(false)
		// The answer comes after that to the acquire.
		if _, _, err := locks.Try(background, "b"); err != nil {
			t.Fatal(err)
		}
		until(t, "it is free", func() bool { return s.free("a") })
	}
	// A name that has it already keeps it.
	s.ask("ACL", "SETUSER", "default", "+lock.release")
	me := lock.WithOwner("me")
	hold, said := must(locks.Acquire(background, "a", me)), p.count("LOCK.RELEASE")
	_, err := locks.Acquire(background, "a", me, lock.WithWait(50*time.Millisecond))
	if !errors.Is(err, lock.ErrTimeout) || p.count("LOCK.RELEASE") != said {
		t.Fatal(err)
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
}

// The server has heard of it: that somebody else has the lock is known.
func TestATimeoutIsOneAlsoIfTheWaitMayNotBeTakenBack(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	s.ask("LOCK.ACQUIRE", "a", "somebody")
	s.ask("ACL", "SETUSER", "default", "-lock.cancel", "-lock.release")
	waited := make(chan error, 1)
	go func() {
		_, err := locks.Acquire(background, "a", lock.WithOwnConnection(), lock.WithWait(400*time.Millisecond), lock.WithLease(time.Minute))
		waited <- err
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	// What the server says of the wait comes too late.
	p.frozen.Store(true)
	time.AfterFunc(500*time.Millisecond, func() { p.frozen.Store(false) })
	if err := <-waited; !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
}

func TestALongerLeaseThatNobodyHeardOfIsGivenBack(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	me := lock.WithOwner("me")
	hold := must(locks.Acquire(background, "a", me, lock.WithLease(600*time.Millisecond)))
	p.loseReplyOf("LOCK.RENEW", func() { p.frozen.Store(true) })
	if err := hold.Extend(background, time.Hour); !errors.Is(err, lock.ErrLost) || !p.isDone() {
		t.Fatal(err)
	}
	_, err := locks.Acquire(background, "a", me, lock.WithWait(100*time.Millisecond))
	givenBack(t, err)
	if s.ask("PTTL", "a").(int64) < 60000 {
		t.Fatal("it was not extended")
	}
	p.frozen.Store(false)
	until(t, "it is free", func() bool { return s.free("a") })
	must(locks.Acquire(background, "a", me))
}

func TestNothingKeepsItsCallerWaitingForLong(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithReleaseFor(300*time.Millisecond))
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Hour)))
	few(s, 1)
	timer := time.AfterFunc(4*time.Second, func() { few(s, 0) })
	defer timer.Stop()
	err := hold.Extend(background, time.Hour)
	if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "NOREPLICAS") {
		t.Fatal(err)
	}
	p.frozen.Store(true)
	if err := hold.Extend(shortly(t), time.Hour); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	if _, err := hold.HandOver(); !errors.Is(err, lock.ErrUnavailable) || hold.ValidFor() == 0 {
		t.Fatal(err)
	}
	p.frozen.Store(false)
}

// A connection that is idle may be ended.
func TestWhatIsKeptIsRenewedOften(t *testing.T) {
	p := through(t, start(t).address())
	locks := locksAt(t, p.address(), lock.WithBeat(200*time.Millisecond))
	must(locks.Acquire(background, "a", lock.WithLease(time.Hour), lock.WithKeep(true)))
	until(t, "renewals", func() bool { return p.count("LOCK.RENEW") >= 3 })
}

func TestWhatIsKeptDoesNotTryAllTheTime(t *testing.T) {
	s := start(t)
	var dialed atomic.Int32
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed.Add(1)
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, address)
	}
	client := redis.NewClient(&redis.Options{Addr: s.address(), Dialer: dial})
	defer client.Close()
	locks := lock.New(client)
	defer locks.Close()
	must(locks.Acquire(background, "a"))
	before := dialed.Load()
	s.end()
	time.Sleep(2 * time.Second)
	if many := dialed.Load() - before; many < 2 || many > 12 {
		t.Fatal(many, "attempts")
	}
}

// As at a proxy behind which nobody is.
func TestConnectionsThatEndAtOnceAreNotMadeAllTheTime(t *testing.T) {
	p := through(t, start(t).address())
	locks := locksAt(t, p.address())
	must(locks.Acquire(background, "a"))
	p.beforeEach("LOCK.RENEW", p.cut)
	p.cut()
	time.Sleep(2 * time.Second)
	if many := p.count("SETNAME"); many < 3 || many > 12 {
		t.Fatal(many, "connections")
	}
}

// A release goes by the owner's name. If it is refused for longer than the lease, it must not free what the next of that name
// gets, who may wait already.
func TestAReleaseThatIsLateFreesNothingNew(t *testing.T) {
	for _, own := range [][]lock.Option{nil, {lock.WithOwnConnection()}} {
		for _, waits := range []string{"before the release", "beside the release", "before the loss"} {
			own, waits := own, waits
			t.Run(fmt.Sprint(waits, own != nil), func(t *testing.T) {
				t.Parallel()
				s := start(t)
				locks, me := locksAt(t, s.address()), lock.WithOwner("me")
				old := must(locks.Acquire(background, "a", me, lock.WithLease(600*time.Millisecond), lock.WithKeep(true)))
				waited := make(chan *lock.Hold, 1)
				wait := func() {
					waited <- must(locks.Acquire(background, "a", append(own, me, lock.WithWait(time.Minute))...))
				}
				if waits != "beside the release" {
					go wait()
					until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
				}
				few(s, 1)
				if waits == "before the loss" {
					<-old.Lost()
				}
				released := make(chan error, 1)
				go func() { released <- old.Release(background) }()
				if waits == "beside the release" {
					until(t, "it is given back", func() bool { return old.ValidFor() == 0 })
					go wait()
				}
				// Its pauses are long by then.
				time.Sleep(1500 * time.Millisecond)
				few(s, 0)
				hold := <-waited
				<-released
				time.Sleep(time.Second)
				if _, err := hold.Guard(background, "PING"); err != nil || lost(hold) {
					t.Fatal("it was given back", err)
				}
				if err := hold.Release(background); err != nil || !s.free("a") {
					t.Fatal(err)
				}
			})
		}
	}
}

// It may arrive when its lease is over, and nobody waits for it any more.
func TestAReleaseThatIsOnItsWayCounts(t *testing.T) {
	p := through(t, start(t).address())
	locks := locksAt(t, p.address())
	me := lock.WithOwner("me")
	next := []lock.Option{me, lock.WithOwnConnection(), lock.WithLease(time.Minute), lock.WithWait(100 * time.Millisecond)}
	old := must(locks.Acquire(background, "a", me, lock.WithLease(300*time.Millisecond)))
	p.vanish(true)
	if err := old.Release(background); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	_, err := locks.Acquire(background, "a", next...)
	givenBack(t, err)
	p.vanish(false)
	hold := must(locks.Acquire(background, "a", next...))
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
}

// It may have come behind the call that was granted, and be answered before anybody has looked at that.
func TestAReleaseAtTheMomentOfAGrantCounts(t *testing.T) {
	// The last of two that are woken is the first that runs.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	me := lock.WithOwner("me")
	old := must(locks.Acquire(background, "a", me, lock.WithLease(time.Minute)))
	waited := make(chan *lock.Hold, 1)
	go func() { waited <- must(locks.Acquire(background, "a", me, lock.WithLease(time.Second))) }()
	until(t, "it asks again", func() bool { return p.count("LOCK.ACQUIRE") == 3 })
	// And is answered.
	time.Sleep(100 * time.Millisecond)
	s.signal(syscall.SIGSTOP)
	broken := make(chan error, 1)
	go func() { broken <- s.admin.Do(background, "LOCK.BREAK", "a").Err() }()
	until(t, "it asks again", func() bool { return p.count("LOCK.ACQUIRE") == 4 })
	released := make(chan error, 1)
	go func() { released <- old.Release(background) }()
	until(t, "a release", func() bool { return p.count("LOCK.RELEASE") == 1 })
	time.Sleep(50 * time.Millisecond)
	s.signal(syscall.SIGCONT)
	<-broken
	<-released
	hold := <-waited
	if _, err := hold.Guard(background, "PING"); err != nil {
		t.Fatal("it has been given back", err)
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
}
