// SPDX-License-Identifier: MIT

package lock_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

var background = context.Background()

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func freePort() int {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// A server is a process with the module.
type server struct {
	t       *testing.T
	port    int
	words   []string
	process *exec.Cmd
	admin   *redis.Client
}

func start(t *testing.T, words ...string) *server {
	t.Helper()
	module := os.Getenv("REDIS_LOCK_MODULE")
	if module == "" {
		module = must(filepath.Abs("../../target/release/libredis_lock.so"))
	}
	return startPlain(t, append([]string{"--loadmodule", module}, words...)...)
}

// startPlain starts a server without the module.
func startPlain(t *testing.T, words ...string) *server {
	t.Helper()
	s := &server{t: t, port: freePort()}
	own := []string{"--port", fmt.Sprint(s.port), "--save", "", "--repl-diskless-sync-delay", "0", "--dir", t.TempDir()}
	s.words = append(own, words...)
	s.admin = redis.NewClient(&redis.Options{Addr: s.address(), MaxRetries: -1})
	s.begin()
	t.Cleanup(func() {
		_ = s.admin.Close()
		s.end()
	})
	return s
}

func (s *server) address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

func (s *server) begin() {
	s.t.Helper()
	s.process = exec.Command("redis-server", s.words...)
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	until(s.t, "a server", func() bool { return s.admin.Ping(background).Err() == nil })
}

func (s *server) end() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

func (s *server) signal(signal syscall.Signal) { _ = s.process.Process.Signal(signal) }

func (s *server) ask(words ...any) any {
	s.t.Helper()
	value, err := s.admin.Do(background, words...).Result()
	if err != nil && err != redis.Nil {
		s.t.Fatalf("%v: %v", words, err)
	}
	return value
}

func (s *server) waiters(key string) int {
	s.t.Helper()
	return len(s.ask("LOCK.WAITERS", key, "COUNT", 5000).([]any))
}

func (s *server) isFree(key string) bool {
	s.t.Helper()
	return s.ask("LOCK.INFO", key) == nil && s.waiters(key) == 0
}

func (s *server) sessions() int {
	s.t.Helper()
	return len(s.ask("LOCK.SESSION", "LIST").([]any))
}

// number has a field of INFO.
func (s *server) number(section, field string) int {
	s.t.Helper()
	_, after, _ := strings.Cut(s.ask("INFO", section).(string), field+":")
	number, _, _ := strings.Cut(after, "\r\n")
	return must(strconv.Atoi(number))
}

// calls has the number of calls of a command so far.
func (s *server) calls(command string) int {
	s.t.Helper()
	_, after, found := strings.Cut(s.ask("INFO", "commandstats").(string), "cmdstat_"+command+":calls=")
	if !found {
		return 0
	}
	number, _, _ := strings.Cut(after, ",")
	return must(strconv.Atoi(number))
}

// locksAt has locks with a client of their own.
func locksAt(t *testing.T, address string, settings ...lock.Setting) *lock.Locks {
	t.Helper()
	return locksOf(t, redis.NewClient(&redis.Options{Addr: address}), settings...)
}

func locksOf(t *testing.T, client redis.UniversalClient, settings ...lock.Setting) *lock.Locks {
	t.Helper()
	locks := must(lock.New(client, settings...))
	t.Cleanup(func() {
		locks.Close()
		_ = client.Close()
	})
	return locks
}

// quick has a session that ends soon.
func quick() []lock.Setting {
	return []lock.Setting{lock.WithTTL(2 * time.Second), lock.WithGrace(600 * time.Millisecond)}
}

func release(t *testing.T, hold *lock.Hold) {
	t.Helper()
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
}

// A proxy is between a client and a server. It can freeze, cut connections, and lose a reply.
type proxy struct {
	listener net.Listener
	target   string
	frozen   atomic.Bool
	mu       sync.Mutex
	loses    string
	freezes  string
	said     bytes.Buffer
	pairs    [][2]net.Conn
}

func through(t *testing.T, target string) *proxy {
	p := &proxy{listener: must(net.Listen("tcp", "127.0.0.1:0")), target: target}
	go func() {
		for {
			near, err := p.listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mu.Lock()
			p.pairs = append(p.pairs, [2]net.Conn{near, far})
			p.mu.Unlock()
			lost := new(atomic.Bool)
			go p.pump(near, far, lost, true)
			go p.pump(far, near, lost, false)
		}
	}()
	t.Cleanup(func() {
		_ = p.listener.Close()
		p.frozen.Store(false)
		p.cut()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) pump(from, to net.Conn, lost *atomic.Bool, isCall bool) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 65536)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if isCall {
			p.mu.Lock()
			p.said.Write(buffer[:n])
			if p.loses != "" && bytes.Contains(buffer[:n], []byte(p.loses)) {
				lost.Store(true)
				p.loses = ""
			}
			if p.freezes != "" && bytes.Contains(buffer[:n], []byte(p.freezes)) {
				p.frozen.Store(true)
				p.freezes = ""
			}
			p.mu.Unlock()
		}
		for p.frozen.Load() {
			time.Sleep(time.Millisecond)
		}
		if !isCall && lost.Load() {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// loseReplyTo breaks the next connection that carries this text, after the server has executed the call.
func (p *proxy) loseReplyTo(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = text
}

// freezeAt freezes before the next call that has this text.
func (p *proxy) freezeAt(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freezes = text
}

func (p *proxy) hasLostReply() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loses == ""
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pair := range p.pairs {
		_ = pair[0].Close()
		_ = pair[1].Close()
	}
	p.pairs = nil
}
