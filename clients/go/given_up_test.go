// SPDX-License-Identifier: MIT

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "redislock.example/lock"
)

// What was said on a connection that is given up must not arrive late.
func TestWhatIsGivenUpIsReset(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(500*time.Millisecond))
	hold := must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
	p.vanish(true)
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
	p.vanish(false)
	until(t, "a reset", func() bool { return p.resets.Load() == 1 })

	first := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	waited := make(chan error, 1)
	ctx, cancel := context.WithCancel(background)
	wait := func(ctx context.Context) {
		hold, err := locks.Acquire(ctx, "a", lock.WithOwnConnection(), lock.WithLease(time.Minute))
		if err == nil {
			err = hold.Release(background)
		}
		waited <- err
	}
	go wait(ctx)
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	until(t, "the end of a wait", func() bool { return p.resets.Load() == 2 })

	go wait(background)
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	p.vanish(true)
	// Also the wait's own connection: nobody answers.
	until(t, "another wait", func() bool { return p.count("BLOCK") == 3 })
	p.vanish(false)
	until(t, "two more", func() bool { return p.resets.Load() == 4 })
	if err := first.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	before := p.ends.Load()
	locks.Close()
	until(t, "three ends", func() bool { return p.ends.Load() == before+3 })
	if p.resets.Load() != 4 {
		t.Fatal("Close resets")
	}
}

// A renewal that is late, on a connection that was given up, moves no bond: the hold would end with that connection.
func TestALateRenewalBindsNothing(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(350*time.Millisecond))
	kept := []lock.Option{lock.WithLease(1500 * time.Millisecond), lock.WithKeep(true), lock.WithMaxHold(time.Hour)}
	hold := must(locks.Acquire(background, "a", kept...))
	bound := s.boundTo("a")
	if err := hold.Extend(background, 1200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	until(t, "renewals", func() bool { return p.count("LOCK.RENEW") == 3 })
	if p.count("WATCHDOG") != 1 {
		t.Fatal("it was bound again")
	}
	// Its reply has come, so that it is the next renewal that gets stuck.
	time.Sleep(50 * time.Millisecond)
	p.vanish(true)
	until(t, "another bond", func() bool { return s.boundTo("a") != bound })
	bound = s.boundTo("a")
	until(t, "it is valid", func() bool { return hold.ValidFor() != 0 })
	p.vanish(false)
	until(t, "it is kept", func() bool { return p.count("LOCK.RENEW") > 6 })
	if s.boundTo("a") != bound || lost(hold) || p.count("WATCHDOG") != 2 {
		t.Fatal("the bond has moved", p.count("WATCHDOG"))
	}
	if err := hold.Release(background); err != nil || !s.free("a") {
		t.Fatal(err)
	}
}

// The server may have set a shorter lease, and nobody hears of it.
func TestAShorterLeaseCountsBeforeItIsConfirmed(t *testing.T) {
	p := through(t, start(t).address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	p.frozen.Store(true)
	extended := make(chan error, 1)
	go func() { extended <- hold.Extend(background, 300*time.Millisecond) }()
	select {
	case <-hold.Lost():
	case <-time.After(2 * time.Second):
		t.Fatal("not told")
	}
	if err := <-extended; !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	p.frozen.Store(false)
}

func TestWhatMayNotBeGivenBackIsWhenItMay(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	for _, keep := range []bool{true, false} {
		lease := 20 * time.Second
		if keep {
			lease = 300 * time.Millisecond
		}
		hold := must(locks.Acquire(background, "a", lock.WithLease(lease), lock.WithKeep(keep)))
		s.ask("ACL", "SETUSER", "default", "-lock.release", "-lock.renew")
		if err := hold.Release(background); !errors.Is(err, lock.ErrMisuse) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if s.free("a") {
			t.Fatal("the server does not keep it")
		}
		s.ask("ACL", "SETUSER", "default", "+lock.release", "+lock.renew")
		until(t, "it is free", func() bool { return s.free("a") })
	}
}

func TestAWaitIsTakenBackAfterLong(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	must(locks.Acquire(background, "a"))
	ctx, cancel := context.WithCancel(background)
	waited := make(chan error, 1)
	go func() {
		_, err := locks.Acquire(ctx, "a", lock.WithLease(300*time.Millisecond))
		waited <- err
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	s.ask("CONFIG", "SET", "min-replicas-to-write", "1")
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	s.ask("CONFIG", "SET", "min-replicas-to-write", "0")
	until(t, "nobody there", func() bool { return s.waiters("a") == 0 })
}

func TestAReleaseKeepsNobodyWaitingForLong(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address(), lock.WithReleaseFor(300*time.Millisecond))
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Hour)))
	s.ask("CONFIG", "SET", "min-replicas-to-write", "1")
	began := time.Now()
	timer := time.AfterFunc(3*time.Second, func() { s.ask("CONFIG", "SET", "min-replicas-to-write", "0") })
	defer timer.Stop()
	if err := hold.Release(background); !errors.Is(err, lock.ErrUnavailable) || time.Since(began) > 2*time.Second {
		t.Fatal(err, time.Since(began))
	}
	s.ask("CONFIG", "SET", "min-replicas-to-write", "0")
	until(t, "it is free", func() bool { return s.free("a") })
}

// After a failover the new primary has too few replicas for a moment.
func TestAWaitOutlivesNoReplicas(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address(), lock.WithPatience(300*time.Millisecond))
	few := func(number int) { s.ask("CONFIG", "SET", "min-replicas-to-write", fmt.Sprint(number)) }
	for _, own := range [][]lock.Option{nil, {lock.WithOwnConnection()}} {
		if err := locks.Do(background, "a", func(context.Context) error { return nil }, own...); err != nil {
			t.Fatal(err)
		}
		received := s.connections()
		few(1)
		began := time.Now()
		_, err := locks.Acquire(background, "a", own...)
		if took := time.Since(began); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "NOREPLICAS") ||
			took < 300*time.Millisecond || took > 3*time.Second {
			t.Fatal(err, took)
		}
		_, err = locks.Acquire(background, "a", append(own, lock.WithWait(time.Second))...)
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "NOREPLICAS") {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() {
			_, err := locks.Acquire(background, "a", append(own, lock.WithWait(time.Minute), lock.WithLease(100*time.Millisecond))...)
			waited <- err
		}()
		time.Sleep(700 * time.Millisecond)
		few(0)
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
		if now := s.connections(); now != received {
			t.Fatal(now-received, "connections")
		}
	}
	until(t, "it is free", func() bool { return s.free("a") })
	// A try is sent again, and may be late here.
	until(t, "a try that goes well", func() bool {
		few(1)
		timer := time.AfterFunc(20*time.Millisecond, func() { few(0) })
		defer timer.Stop()
		hold, ok, err := locks.Try(background, "a")
		return ok && err == nil && hold.Release(background) == nil
	})
}

// Who was the primary is not asked by everybody at once.
func TestNoStormOfConnectionsAfterADemotion(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	for number := 0; number < 20; number++ {
		must(locks.Acquire(background, fmt.Sprint("kept", number)))
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(background)
	for number := 0; number < 20; number++ {
		all.Add(1)
		go func() {
			defer all.Done()
			_, _ = locks.Acquire(ctx, "a", lock.WithWait(time.Minute))
		}()
	}
	until(t, "waiters", func() bool { return s.waiters("a") == 20 })
	received := s.connections()
	s.ask("REPLICAOF", "127.0.0.1", "1")
	// That is how it is found out.
	_, _, err := locks.Try(background, "b")
	if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "READONLY") {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if many := s.connections() - received; many < 4 || many > 20 {
		t.Fatal(many, "connections")
	}
	s.ask("REPLICAOF", "NO", "ONE")
	until(t, "they wait again", func() bool { return s.waiters("a") == 20 })
	if _, ok, err := locks.Try(background, "b"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	cancel()
	all.Wait()
}

// Somebody on the way has forgotten the connection for messages.
func TestASilentConnectionForMessagesIsReplaced(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(300*time.Millisecond))
	first := must(locksAt(t, s.address()).Acquire(background, "a", lock.WithLease(time.Minute)))
	waited := make(chan error, 1)
	go func() {
		_, err := locks.Acquire(background, "a", lock.WithLease(600*time.Millisecond), lock.WithWait(time.Minute))
		waited <- err
	}()
	// Who waits with a short lease asks more often.
	until(t, "it asks", func() bool { return p.count("LOCK.ACQUIRE") >= 5 })
	if p.count("SUBSCRIBE") != 1 || p.count("PING") < 3 {
		t.Fatal("one that answers is given up, or was not asked")
	}
	p.vanish(true)
	until(t, "another", func() bool { return p.count("SUBSCRIBE") == 2 })
	// Its message comes on that.
	time.Sleep(50 * time.Millisecond)
	asked := p.count("LOCK.ACQUIRE")
	if err := first.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil || p.count("LOCK.ACQUIRE") > asked+2 {
		t.Fatal(err)
	}
}

func TestWhatAScriptSaysIsNoLoss(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	kept, leased := must(locks.Acquire(background, "a")), must(locks.Acquire(background, "b", lock.WithLease(20*time.Second)))
	time.Sleep(200 * time.Millisecond)
	for _, hold := range []*lock.Hold{kept, leased} {
		_, err := hold.Guard(background, "EVAL", "return redis.error_reply('NOTOWNER of another')", 0)
		if !errors.Is(err, lock.ErrLost) || lost(hold) {
			t.Fatal(err, lost(hold))
		}
	}
	// Only what is kept has its whole lease again.
	if kept.ValidFor() < 29900*time.Millisecond || leased.ValidFor() > 19900*time.Millisecond || s.ask("PTTL", "b").(int64) > 19900 {
		t.Fatal(kept.ValidFor(), leased.ValidFor())
	}
	for _, hold := range []*lock.Hold{kept, leased} {
		s.ask("LOCK.BREAK", hold.Key())
		if _, err := hold.Guard(background, "PING"); !errors.Is(err, lock.ErrLost) || !lost(hold) {
			t.Fatal(err, lost(hold))
		}
	}
}

func TestARenewalThatIsNotPermittedIsNotRepeatedAllTheTime(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(900*time.Millisecond), lock.WithKeep(true)))
	s.ask("ACL", "SETUSER", "default", "-lock.renew")
	<-hold.Lost()
	if many := p.count("LOCK.RENEW"); many < 2 || many > 4 {
		t.Fatal(many, "renewals")
	}
	until(t, "it is free", func() bool { return s.free("a") })
}

func TestTCPLooksWhetherTheServerIsThere(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the numbers are those of Linux")
	}
	s := start(t)
	conns := make(chan *net.TCPConn, 5)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, address)
		if err == nil {
			conns <- conn.(*net.TCPConn)
		}
		return conn, err
	}
	client := redis.NewClient(&redis.Options{Addr: s.address(), Dialer: dial})
	defer client.Close()
	locks := lock.New(client)
	defer locks.Close()
	must(locks.Acquire(background, "a", lock.WithOwnConnection()))
	must(locks.Acquire(background, "b"))
	if len(conns) != 3 {
		t.Fatal(len(conns), "connections")
	}
	for len(conns) > 0 {
		raw := must((<-conns).SyscallConn())
		_ = raw.Control(func(fd uintptr) {
			if on := must(syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)); on != 1 {
				t.Error("it does not look")
			}
			for option, want := range map[int]int{4: 10, 5: 5, 6: 3} {
				if got := must(syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, option)); got != want {
					t.Error(option, got, want)
				}
			}
		})
	}
}

// It is bound to the connection of the wait, which must not end before the other has it.
func TestAGrantIsKeptUntilItCanBeConfirmed(t *testing.T) {
	s := start(t)
	s.ask("LOCK.ACQUIRE", "a", "me", "PX", 60_000)
	granted := make(chan string, 2)
	for number, name := range []string{"first", "second"} {
		locks, name := locksAt(t, s.address()), name
		go func() {
			if hold, err := locks.Acquire(background, "a", lock.WithOwnConnection(), lock.WithKeep(true)); err == nil {
				granted <- name
				_ = hold.Release(background)
			}
		}()
		until(t, name, func() bool { return s.waiters("a") == number+1 })
	}
	must(s.admin.TxPipelined(background, func(both redis.Pipeliner) error {
		both.Do(background, "LOCK.RELEASE", "a", "me")
		both.ConfigSet(background, "min-replicas-to-write", "1")
		return nil
	}))
	time.Sleep(200 * time.Millisecond)
	s.ask("CONFIG", "SET", "min-replicas-to-write", "0")
	if name := <-granted; name != "first" {
		t.Fatal("the place is lost")
	}
	<-granted
}
