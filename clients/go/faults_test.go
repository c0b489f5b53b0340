// SPDX-License-Identifier: MIT

package lock_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "redislock.example/lock"
)

// The child of a test is this program again.
const childPort = "LOCK_TEST_CHILD"

func TestMain(m *testing.M) {
	if address := os.Getenv(childPort); address != "" {
		child(address)
		return
	}
	os.Exit(m.Run())
}

func child(address string) {
	locks := lock.New(redis.NewClient(&redis.Options{Addr: address}))
	hold := must(locks.Acquire(background, "a", lock.WithLease(600*time.Millisecond), lock.WithKeep(true)))
	fmt.Println("held")
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadString('\n')
	select {
	case <-hold.Lost():
		fmt.Println("lost")
	case <-time.After(400 * time.Millisecond):
		fmt.Println("kept")
	}
	_, _ = in.ReadString('\n')
}

type process struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func aChild(t *testing.T, s *server) *process {
	t.Helper()
	command := exec.Command(must(os.Executable()))
	command.Env = append(os.Environ(), childPort+"="+s.address())
	p := &process{command: command, in: must(command.StdinPipe()), out: bufio.NewReader(must(command.StdoutPipe()))}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	if line := must(p.out.ReadString('\n')); line != "held\n" {
		t.Fatal(line)
	}
	return p
}

func TestAProcessThatSleptForTwoLeasesKeepsItAndADeadOneDoesNot(t *testing.T) {
	s := start(t)
	p := aChild(t, s)
	_ = p.command.Process.Signal(syscall.SIGSTOP)
	time.Sleep(1300 * time.Millisecond)
	if s.free("a") {
		t.Fatal("the server does not keep it")
	}
	_ = p.command.Process.Signal(syscall.SIGCONT)
	_, _ = io.WriteString(p.in, "\n")
	if line := must(p.out.ReadString('\n')); line != "kept\n" {
		t.Fatal(line)
	}
	_ = p.command.Process.Kill()
	until(t, "it is free", func() bool { return s.free("a") })
}

// A session's connections are killed by the server.
func TestAKilledSession(t *testing.T) {
	s := start(t)
	for _, kind := range []string{"normal", "pubsub"} {
		locks, other := locksAt(t, s.address()), locksAt(t, s.address())
		leased := must(locks.Acquire(background, "leased", lock.WithLease(20*time.Second)))
		first := must(other.Acquire(background, "a", lock.WithLease(20*time.Second)))
		granted := make(chan error, 1)
		go func() { granted <- locks.Do(background, "a", func(context.Context) error { return nil }) }()
		until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
		s.ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
		until(t, "all are back", func() bool { return s.sessions() >= 2 && s.waiters("a") == 1 })
		if err := first.Release(background); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
		if err := leased.Release(background); err != nil || lost(leased) {
			t.Fatal(err)
		}
		locks.Close()
		other.Close()
	}
}

// The server ends what is bound to a connection at once: the loss is told as soon as the next connection is there.
func TestAKilledConnectionIsALossOfWhatIsKept(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	s.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	select {
	case <-hold.Lost():
	case <-time.After(3 * time.Second):
		t.Fatal("not told")
	}
	if err := hold.Release(background); !errors.Is(err, lock.ErrLost) || !s.free("a") {
		t.Fatal(err)
	}
}

// If the client notices first, the next connection takes over what is kept, and nothing is lost.
func TestBackInTime(t *testing.T) {
	s := start(t)
	dialer := &half{}
	client := redis.NewClient(&redis.Options{Addr: s.address(), Dialer: dialer.dial})
	locks := lock.New(client)
	hold := must(locks.Acquire(background, "a", lock.WithLease(600*time.Millisecond), lock.WithKeep(true)))
	bound := s.boundTo("a")
	dialer.breakAll()
	until(t, "another connection", func() bool { return s.sessions() == 3 })
	until(t, "it is bound to that", func() bool { return s.boundTo("a") != bound })
	dialer.end(2)
	until(t, "one connection", func() bool { return s.sessions() == 1 })
	select {
	case <-hold.Lost():
		t.Fatal(context.Cause(hold.Context()))
	case <-time.After(1500 * time.Millisecond):
	}
	if err := hold.Release(background); err != nil || !s.free("a") {
		t.Fatal(err)
	}
	locks.Close()
	dialer.end(3)
	_ = client.Close()
}

func TestAFrozenServerIsALossByTheOwnClock(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	lease := 600 * time.Millisecond
	for _, asked := range []bool{false, true} {
		hold := must(locks.Acquire(background, "a", lock.WithLease(lease), lock.WithKeep(true)))
		s.signal(syscall.SIGSTOP)
		began := time.Now()
		if asked {
			// Its connection is broken, and none can be had.
			go func() { _, _ = hold.Guard(background, "PING") }()
		}
		<-hold.Context().Done()
		if took := time.Since(began); took > lease+200*time.Millisecond || !errors.Is(context.Cause(hold.Context()), lock.ErrLost) {
			t.Fatal(took, context.Cause(hold.Context()))
		}
		if err := hold.Release(background); !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
		// Who waits for a server that says nothing waits no longer than it wanted.
		began = time.Now()
		_, err := locks.Acquire(background, "b", lock.WithWait(100*time.Millisecond))
		if !errors.Is(err, lock.ErrUnavailable) || time.Since(began) > 3*time.Second {
			t.Fatal(err, time.Since(began))
		}
		s.signal(syscall.SIGCONT)
		// Nobody has it: so it must not be kept by the server, though the connection is there.
		until(t, "it is free", func() bool { return s.free("a") && s.free("b") })
	}
}

// The server is well, and would go on to keep it for a holder who has given up.
func TestAFrozenNetworkIsALossByTheOwnClock(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(300*time.Millisecond), lock.WithKeep(true)))
	most := must(locks.Acquire(background, "b", lock.WithLease(200*time.Millisecond), lock.WithKeep(true),
		lock.WithMaxHold(400*time.Millisecond)))
	p.frozen.Store(true)
	<-hold.Lost()
	<-most.Lost()
	// The server keeps what has no limit.
	until(t, "the other one is over", func() bool { return s.free("b") })
	if s.free("a") {
		t.Fatal("the server does not keep it")
	}
	p.frozen.Store(false)
	until(t, "it is free", func() bool { return s.free("a") })
}

func TestAReleaseThatWasCancelledHasCounted(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Second), lock.WithKeep(true)))
	p.frozen.Store(true)
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	if err := hold.Release(ctx); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	p.frozen.Store(false)
	until(t, "it is free", func() bool { return s.free("a") })
	// No renewal takes that for a loss.
	time.Sleep(400 * time.Millisecond)
	if err := hold.Release(background); err != nil || lost(hold) {
		t.Fatal(err)
	}
}

func TestAConnectionThatSaysNothingIsGivenUp(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(200*time.Millisecond))
	hold := must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
	p.vanish(true)
	if err := hold.Release(background); err != nil || !s.free("a") {
		t.Fatal(err)
	}
}

func TestAWaitOnItsOwnConnectionOutlivesSilence(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(200*time.Millisecond))
	// There is a connection for commands.
	if err := locks.Do(background, "b", func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	first := must(locksAt(t, s.address()).Acquire(background, "a", lock.WithLease(time.Minute)))
	waited := make(chan error, 1)
	go func() {
		waited <- locks.Do(background, "a", func(context.Context) error { return nil }, lock.WithOwnConnection())
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	p.vanish(true)
	if err := first.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	until(t, "it is free", func() bool { return s.free("a") })
}

func TestAHoldIsAsOldAsItsGrant(t *testing.T) {
	s := start(t)
	var mu sync.Mutex
	took := map[string]time.Duration{}
	locks := locksAt(t, s.address(), lock.WithListener(func(event lock.Event) {
		mu.Lock()
		defer mu.Unlock()
		took[event.Name] = event.Took
	}))
	first := must(locksAt(t, s.address()).Acquire(background, "a", lock.WithLease(time.Minute)))
	waited := make(chan *lock.Hold, 1)
	go func() {
		waited <- must(locks.Acquire(background, "a", lock.WithOwnConnection(), lock.WithMaxHold(500*time.Millisecond)))
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	time.Sleep(600 * time.Millisecond)
	_ = first.Release(background)
	if err := (<-waited).Release(background); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if took["held"] >= took["waited"] {
		t.Fatal(took)
	}
}

func TestMaxHoldIsCountedFromTheGrant(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	first := must(locksAt(t, s.address()).Acquire(background, "a", lock.WithLease(time.Minute)))
	time.AfterFunc(1500*time.Millisecond, func() { _ = first.Release(background) })
	must(locksAt(t, p.address()).Acquire(background, "a", lock.WithOwnConnection(), lock.WithMaxHold(time.Minute)))
	if p.count("LOCK.RENEW") != 1 || p.count("\r\nMAX\r\n$5\r\n58") != 0 {
		t.Fatalf("the wait counts, too: %q", p.last("LOCK.RENEW"))
	}
}

func TestAServerThatSaysNothingIsUnavailable(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(200*time.Millisecond))
	hold := must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
	p.frozen.Store(true)
	if _, _, err := locks.Try(background, "b"); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	if err := hold.Release(ctx); !errors.Is(err, lock.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	p.frozen.Store(false)
	// A release that failed may be called again.
	if err := hold.Release(background); err != nil || lost(hold) {
		t.Fatal(err)
	}
	until(t, "nothing is left", func() bool { return s.free("a") && s.free("b") })
}

func TestAWaitWithALimitOutlivesTheServersAbsence(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address(), lock.WithPatience(200*time.Millisecond))
	for _, own := range [][]lock.Option{nil, {lock.WithOwnConnection()}} {
		s.end()
		waited := make(chan error, 2)
		for _, limit := range [][]lock.Option{nil, {lock.WithWait(time.Minute)}} {
			go func(options []lock.Option) {
				waited <- locks.Do(background, "a", func(context.Context) error { return nil }, options...)
			}(append(limit, own...))
		}
		if err := <-waited; !errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		s.begin()
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
	}
}

// Who connects hears of it in place of the first reply.
func TestAServerWithTooManyClientsIsUnavailable(t *testing.T) {
	s := start(t)
	for _, user := range []string{"", "default"} {
		p := through(t, s.address())
		client := redis.NewClient(&redis.Options{Addr: p.address(), Username: user, Password: user})
		locks := lock.New(client)
		hold := must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
		s.ask("CONFIG", "SET", "maxclients", 1)
		p.cut()
		_, _, err := locks.Try(background, "b")
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "max number of clients") {
			t.Fatal(user, err)
		}
		released := make(chan error, 1)
		go func() { released <- hold.Release(background) }()
		time.Sleep(100 * time.Millisecond)
		s.ask("CONFIG", "SET", "maxclients", 100)
		if err := <-released; err != nil || !s.free("a") {
			t.Fatal(user, err)
		}
		locks.Close()
		_ = client.Close()
	}
}

// silent accepts connections, and never says anything.
func silent(t *testing.T) string {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func TestThatSomebodyElseHasItNobodyHasSaid(t *testing.T) {
	locks := locksAt(t, silent(t))
	for _, own := range [][]lock.Option{nil, {lock.WithOwnConnection()}} {
		began := time.Now()
		_, err := locks.Acquire(background, "a", append(own, lock.WithWait(300*time.Millisecond))...)
		if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrTimeout) || time.Since(began) > 2*time.Second {
			t.Fatal(err, time.Since(began))
		}
	}
	p := through(t, start(t).address())
	locks = locksAt(t, p.address())
	// Its connection is there, and nothing comes on it, for longer than a server that is there needs.
	must(locks.Acquire(background, "a"))
	must(locks.Acquire(background, "b", lock.WithOwnConnection()))
	p.frozen.Store(true)
	_, err := locks.Acquire(background, "c", lock.WithOwnConnection(), lock.WithWait(1500*time.Millisecond))
	if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	p.frozen.Store(false)
	_, err = locks.Acquire(background, "a", lock.WithOwnConnection(), lock.WithWait(1500*time.Millisecond))
	if !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
	// A server that is only slow is there.
	p.frozen.Store(true)
	time.AfterFunc(300*time.Millisecond, func() { p.frozen.Store(false) })
	if _, err := locks.Acquire(background, "a", lock.WithWait(100*time.Millisecond)); !errors.Is(err, lock.ErrTimeout) {
		t.Fatal(err)
	}
}

// go-redis' own dialer is one, with TLS.
func TestADialerThatHeedsNoContext(t *testing.T) {
	address, late := silent(t), make(chan struct{})
	closed := make(chan error, 10)
	options := []*redis.Options{{Addr: address, TLSConfig: &tls.Config{}}, {Addr: address, Dialer: func(context.Context, string, string) (net.Conn, error) {
		<-late
		near, far := net.Pipe()
		go func() {
			_, err := far.Read(make([]byte, 1))
			closed <- err
		}()
		return near, nil
	}}}
	for _, options := range options {
		client := redis.NewClient(options)
		locks := lock.New(client)
		ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := locks.Acquire(ctx, "a", lock.WithOwnConnection()); !errors.Is(err, lock.ErrTimeout) || time.Since(began) > 2*time.Second {
			t.Fatal(err, time.Since(began))
		}
		began = time.Now()
		locks.Close()
		if took := time.Since(began); took > time.Second {
			t.Fatal("Close took", took)
		}
		_ = client.Close()
	}
	close(late)
	until(t, "what comes late is closed", func() bool { return len(closed) != 0 })
	if err := <-closed; err != io.EOF {
		t.Fatal("what comes late is used:", err)
	}
}

func TestTheReplyOfAnAcquireIsLost(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	for _, keep := range []bool{true, false} {
		p.loseReplyOf("LOCK.ACQUIRE", nil)
		hold := must(locks.Acquire(background, "a", lock.WithKeep(keep)))
		if fields := must(s.admin.HGetAll(background, "a").Result()); len(fields) != 1 || fields[hold.Owner()] != "1" || !p.isDone() {
			t.Fatal(fields)
		}
		// It is bound to a connection that is there.
		time.Sleep(50 * time.Millisecond)
		if err := hold.Release(background); err != nil || lost(hold) || !s.free("a") {
			t.Fatal(err)
		}
	}
	// It ends before the call is sent again, which gets the first one's reply.
	for _, keep := range []bool{true, false} {
		p.loseReplyOf("LOCK.ACQUIRE", func() { s.ask("LOCK.BREAK", "a") })
		hold := must(locks.Acquire(background, "a", lock.WithKeep(keep)))
		if fields := must(s.admin.HGetAll(background, "a").Result()); len(fields) != 1 || fields[hold.Owner()] != "1" || !p.isDone() {
			t.Fatal(keep, fields)
		}
		if err := hold.Release(background); err != nil {
			t.Fatal(err)
		}
	}
	p.loseReplyOf("LOCK.ACQUIRE", nil)
	hold, ok, err := locks.Try(background, "a", lock.WithLease(10*time.Second))
	if !ok || err != nil || hold.Release(background) != nil || !s.free("a") {
		t.Fatal(ok, err)
	}
	// A wait that is given up meanwhile.
	first := must(locks.Acquire(background, "a", lock.WithLease(10*time.Second)))
	p.loseReplyOf("LOCK.CANCEL", nil)
	if _, err := locks.Acquire(background, "a", lock.WithWait(50*time.Millisecond)); !errors.Is(err, lock.ErrTimeout) || !p.isDone() {
		t.Fatal(err)
	}
	if err := first.Release(background); err != nil || !s.free("a") {
		t.Fatal(err)
	}
}

func TestTheReplyOfAReleaseIsLost(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
	p.loseReplyOf("LOCK.RELEASE", nil)
	for range [2]int{} {
		if err := hold.Release(background); err != nil || lost(hold) || !p.isDone() || !s.free("a") {
			t.Fatal(err)
		}
	}
	// One that was cancelled may be called again.
	hold = must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
	ctx, cancel := context.WithCancel(background)
	cancel()
	if err := hold.Release(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := hold.Release(background); err != nil || !s.free("a") {
		t.Fatal(err)
	}
	// Or left alone: a deferred release whose context has ended gives it back all the same.
	hold = must(locks.Acquire(background, "a", lock.WithLease(20*time.Second)))
	if err := hold.Release(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	until(t, "it is free", func() bool { return s.free("a") })
	<-hold.Context().Done()
	if lost(hold) || hold.Release(background) != nil {
		t.Fatal("lost")
	}
}

// As after a signal, which has ended ctx: first `defer locks.Close()` was said, then `defer hold.Release(ctx)`.
func TestWhatIsReleasedBeforeTheEndIsFree(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithCancel(background)
	cancel()
	for round := 0; round < 20; round++ {
		locks := locksAt(t, s.address())
		hold := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
		if err := hold.Release(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if locks.Close(); !s.free("a") {
			t.Fatal("it is held yet")
		}
	}
	// Who gives no answer is not waited for.
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(time.Minute)))
	p.frozen.Store(true)
	_ = hold.Release(ctx)
	began := time.Now()
	if locks.Close(); time.Since(began) > 3*time.Second {
		t.Fatal(time.Since(began))
	}
}

func TestARestartedServerHasLostIt(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	s.end()
	s.begin()
	<-hold.Lost()
	if err := locks.Do(background, "a", func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsLeftAfterAThousandRounds(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	for round := 0; round < 1000; round++ {
		hold := must(locks.Acquire(background, "a", lock.WithLease(3*time.Millisecond+time.Duration(round%7)*time.Second), lock.WithKeep(true)))
		err := hold.Release(background)
		if lost(hold) != errors.Is(err, lock.ErrLost) || err != nil && !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
	}
	until(t, "it is free", func() bool { return s.free("a") })
}

func TestAReleaseAndACancelWaitUntilTheServerCanWrite(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	ctx, cancel := context.WithCancel(background)
	waited := make(chan error, 1)
	go func() {
		_, err := locks.Acquire(ctx, "a")
		waited <- err
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	s.ask("CONFIG", "SET", "min-replicas-to-write", "1")
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- hold.Release(background) }()
	time.Sleep(200 * time.Millisecond)
	if len(gone) != 0 || s.waiters("a") != 1 {
		t.Fatal("it was not refused")
	}
	s.ask("CONFIG", "SET", "min-replicas-to-write", "0")
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	until(t, "nobody there", func() bool { return s.waiters("a") == 0 && s.free("a") })
}

func TestWhatMayNotBeGivenBackRunsOut(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a", lock.WithLease(600*time.Millisecond), lock.WithKeep(true)))
	s.ask("ACL", "SETUSER", "default", "-lock.release")
	if err := hold.Release(background); !errors.Is(err, lock.ErrMisuse) {
		t.Fatal(err)
	}
	until(t, "its end", func() bool { return s.free("a") })
}

func TestAKeptHoldIsNotValidWithoutItsConnection(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	hold, leased := must(locks.Acquire(background, "a")), must(locks.Acquire(background, "b", lock.WithLease(time.Minute)))
	if hold.ValidFor() < 20*time.Second {
		t.Fatal(hold.ValidFor())
	}
	// Nobody answers on the next.
	p.frozen.Store(true)
	p.cut()
	until(t, "its end", func() bool { return hold.ValidFor() == 0 })
	if lost(hold) || leased.ValidFor() < 20*time.Second {
		t.Fatal("a lease outlives a connection")
	}
	p.frozen.Store(false)
}

func TestWhatAScriptSaysEndsNoConnection(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	hold := must(locks.Acquire(background, "a"))
	bound := s.boundTo("a")
	for _, words := range []string{"READONLY x", "LOADING x", "MASTERDOWN x", "UNBLOCKED instance state changed", "no word"} {
		if _, err := hold.Guard(background, "EVAL", "return redis.error_reply('"+words+"')", 0); err == nil || errors.Is(err, lock.ErrLost) {
			t.Fatal(words, err)
		}
	}
	if err := hold.Extend(background, time.Minute); err != nil || s.boundTo("a") != bound {
		t.Fatal(err)
	}
}

// A release goes by the owner's name.
func TestAnOwnerThatIsUsedAgainKeepsWhatItGets(t *testing.T) {
	s := start(t)
	locks := locksAt(t, s.address())
	me := lock.WithOwner("me")
	old := must(locks.Acquire(background, "a", me))
	s.ask("CONFIG", "SET", "min-replicas-to-write", "1")
	soon, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	if err := old.Release(soon); !errors.Is(err, lock.ErrTimeout) || old.ValidFor() != 0 {
		t.Fatal(err)
	}
	// The server cannot write yet.
	if _, err := locks.Acquire(background, "a", me, lock.WithWait(100*time.Millisecond)); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatal(err)
	}
	timer := time.AfterFunc(200*time.Millisecond, func() { s.ask("CONFIG", "SET", "min-replicas-to-write", "0") })
	defer timer.Stop()
	hold := must(locks.Acquire(background, "a", me))
	if err := old.Release(background); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Guard(background, "SET", "k", "v"); !errors.Is(err, lock.ErrLost) {
		t.Fatal(err)
	}
	// Longer than until the next attempt.
	time.Sleep(1200 * time.Millisecond)
	if _, err := hold.Guard(background, "PING"); err != nil || hold.ValidFor() == 0 || lost(hold) {
		t.Fatal("it was given back", err)
	}
	if err := hold.Release(background); err != nil || !s.free("a") {
		t.Fatal(err)
	}
}

func TestWhoLostALockDoesNotGiveBackTheNextOfItsName(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address())
	for _, keep := range []bool{false, true} {
		how := []lock.Option{lock.WithOwner("me"), lock.WithLease(300 * time.Millisecond), lock.WithKeep(keep)}
		old := must(locks.Acquire(background, "a", how...))
		p.frozen.Store(true)
		<-old.Lost()
		p.frozen.Store(false)
		hold := must(locks.Acquire(background, "a", lock.WithOwner("me")))
		if err := old.Release(background); !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
		if _, err := old.Guard(background, "SET", "k", "v"); !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		if err := hold.Release(background); err != nil || !s.free("a") {
			t.Fatal(err)
		}
	}
}

// The server grants nothing to who has it.
func TestWhatIsGrantedAnewIsTheOnlyOneOfItsName(t *testing.T) {
	s := start(t)
	locks, me := locksAt(t, s.address()), lock.WithOwner("me")
	for _, keep := range []bool{false, true} {
		how := []lock.Option{me, lock.WithLease(20 * time.Second), lock.WithKeep(keep)}
		old, elsewhere := must(locks.Acquire(background, "a", how...)), must(locks.Acquire(background, "b", how...))
		s.ask("LOCK.BREAK", "a")
		hold := must(locks.Acquire(background, "a", how...))
		if !lost(old) || old.ValidFor() != 0 || lost(elsewhere) || lost(hold) {
			t.Fatal("both are held")
		}
		if err := old.Release(background); !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
		if _, err := hold.Guard(background, "PING"); err != nil {
			t.Fatal("it was given back", err)
		}
		for _, one := range []*lock.Hold{hold, elsewhere} {
			if err := one.Release(background); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Of readers, each counts.
	one, other := must(locks.Acquire(background, "c", me, lock.Shared())), must(locks.Acquire(background, "c", me, lock.Shared()))
	if lost(one) || one.Release(background) != nil || other.Release(background) != nil || !s.free("c") {
		t.Fatal("a reader has ended another")
	}
}

// To take it over is tried twice: it is bound to the second connection.
func TestWhatIsTakenOverAtTheSecondTryIsValid(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	owner := must(must(locksAt(t, s.address()).Acquire(background, "a")).HandOver())
	locks := locksAt(t, p.address())
	if _, _, err := locks.Try(background, "b"); err != nil {
		t.Fatal(err)
	}
	p.vanish(true)
	began := time.Now()
	time.AfterFunc(100*time.Millisecond, p.cut)
	hold := must(locks.Attach(background, "a", owner))
	if hold.ValidFor() < 20*time.Second || time.Since(began) < 100*time.Millisecond {
		t.Fatal(hold.ValidFor(), time.Since(began))
	}
}

// A firewall has forgotten what was there. The session's connection was made since, and says nothing of the wait's own.
func TestAWaitOnItsOwnConnectionDoesNotTrustALaterOne(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks := locksAt(t, p.address(), lock.WithPatience(time.Second))
	own, nothing := lock.WithOwnConnection(), func(context.Context) error { return nil }
	anew := func() {
		t.Helper()
		kept := must(locks.Acquire(background, "kept"))
		p.vanish(true)
		s.ask("CLIENT", "KILL", "ID", s.boundTo("kept"))
		<-kept.Lost()
	}
	first := must(locksAt(t, s.address()).Acquire(background, "a", lock.WithLease(time.Minute)))
	waited := make(chan error, 1)
	go func() { waited <- locks.Do(background, "a", nothing, own) }()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	anew()
	if err := first.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	// Nor does the next get its connection, if that is older.
	anew()
	asked := p.count("BLOCK")
	if err := locks.Do(background, "a", nothing, own); err != nil || p.count("BLOCK") != asked+1 {
		t.Fatal(err, p.count("BLOCK")-asked)
	}
	// It is used again if it is not.
	received := s.connections()
	if err := locks.Do(background, "a", nothing, own); err != nil || s.connections() != received {
		t.Fatal(err, s.connections()-received, "more connections")
	}
}

// inLine has two wait for a lock that is held: one on a connection of its own, for an hour, and another behind it.
func inLine(t *testing.T, s *server, locks, others *lock.Locks) (first *lock.Hold, granted chan *lock.Hold) {
	first = must(others.Acquire(background, "a", lock.WithLease(time.Minute)))
	granted = make(chan *lock.Hold, 2)
	wait := func(locks *lock.Locks, options ...lock.Option) {
		// When the test has failed, its sessions are closed.
		if hold, err := locks.Acquire(background, "a", options...); err == nil {
			granted <- hold
		}
	}
	go wait(locks, lock.WithOwnConnection(), lock.WithLease(time.Hour))
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	go wait(others, lock.WithLease(time.Minute))
	until(t, "another", func() bool { return s.waiters("a") == 2 })
	return first, granted
}

// The server drops who waits when the connection ends, unless the same call has come on another.
func TestWhoMovesToAYoungerConnectionKeepsThePlace(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks, others := locksAt(t, p.address(), lock.WithPatience(500*time.Millisecond)), locksAt(t, s.address())
	first, granted := inLine(t, s, locks, others)
	for round := int32(1); round <= 2; round++ {
		kept := must(locks.Acquire(background, "kept"))
		commands := s.boundTo("kept")
		_ = kept.Release(background)
		s.ask("CLIENT", "KILL", "ID", commands)
		until(t, "the end of the old connection", func() bool { return p.resets.Load() == round })
		until(t, "the call", func() bool { return p.count("BLOCK") == int(round)+1 && s.waiters("a") == 2 })
	}
	renewed := p.count("LOCK.RENEW")
	_ = first.Release(background)
	// It is confirmed: it may be as old as the first call.
	if hold := <-granted; hold.ValidFor() < 30*time.Minute || p.count("LOCK.RENEW") != renewed+1 || hold.Release(background) != nil {
		t.Fatal("the place is lost", hold.ValidFor(), p.count("LOCK.RENEW")-renewed)
	}
	_ = (<-granted).Release(background)
}

// No answer says as little as that of a later connection. The server remembers a call for 20 s, whatever the patience is.
func TestWhoIsInDoubtKeepsThePlace(t *testing.T) {
	for _, patience := range []time.Duration{500 * time.Millisecond, time.Minute} {
		patience := patience
		t.Run(fmt.Sprint(patience), func(t *testing.T) {
			t.Parallel()
			s := start(t)
			p := through(t, s.address())
			locks, others := locksAt(t, p.address(), lock.WithPatience(patience)), locksAt(t, s.address())
			first, granted := inLine(t, s, locks, others)
			p.vanish(true)
			time.Sleep(min(8*time.Second, patience))
			until(t, "the call on the next", func() bool { return p.count("BLOCK") == 2 && p.resets.Load() > 0 })
			_ = first.Release(background)
			// To confirm it.
			p.vanish(false)
			if hold := <-granted; hold.ValidFor() < 30*time.Minute || hold.Release(background) != nil {
				t.Fatal("the place is lost", hold.ValidFor())
			}
			_ = (<-granted).Release(background)
		})
	}
}

// What it was granted on the old connection would end with that.
func TestAGrantThatCrossesAMoveIsKept(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	locks, others := locksAt(t, p.address(), lock.WithPatience(500*time.Millisecond)), locksAt(t, s.address())
	first := must(others.Acquire(background, "a", lock.WithLease(time.Minute)))
	granted := make(chan string, 2)
	wait := func(name string, locks *lock.Locks, options ...lock.Option) {
		hold := must(locks.Acquire(background, "a", options...))
		granted <- name
		_ = hold.Release(background)
	}
	go wait("first", locks, lock.WithOwnConnection())
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	go wait("second", others)
	until(t, "another", func() bool { return s.waiters("a") == 2 })
	p.beforeEach("BLOCK", func() {
		_ = first.Release(background)
		time.Sleep(200 * time.Millisecond)
	})
	kept := must(locks.Acquire(background, "kept"))
	s.ask("CLIENT", "KILL", "ID", s.boundTo("kept"))
	<-kept.Lost()
	if name := <-granted; name != "first" || p.count("BLOCK") != 2 {
		t.Fatal("the place is lost", p.count("BLOCK"))
	}
	<-granted
}

// On a connection that was given up, by a proxy.
func TestACallThatComesLateEndsNoWait(t *testing.T) {
	s := start(t)
	p := through(t, s.address())
	first := must(locksAt(t, s.address()).Acquire(background, "a", lock.WithLease(time.Minute)))
	locks, waited := locksAt(t, p.address()), make(chan error, 1)
	go func() {
		_, err := locks.Acquire(background, "a", lock.WithOwnConnection())
		waited <- err
	}()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	late := must(net.Dial("tcp", s.address()))
	defer late.Close()
	must(late.Write(p.last("LOCK.ACQUIRE")))
	until(t, "it is sent again", func() bool { return len(waited) != 0 || p.count("BLOCK") == 2 })
	_ = first.Release(background)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}

func TestALeaseThatIsTooShortIsNotAskedForAllTheTime(t *testing.T) {
	p := through(t, start(t).address())
	locks := locksAt(t, p.address())
	p.beforeEach("LOCK.RENEW", func() { time.Sleep(10 * time.Millisecond) })
	_, err := locks.Acquire(background, "a", lock.WithOwnConnection(), lock.WithLease(time.Millisecond), lock.WithWait(time.Second))
	if many := p.count("LOCK.ACQUIRE"); err == nil || many < 2 || many > 8 {
		t.Fatal(err, many, "attempts")
	}
}
