// SPDX-License-Identifier: MIT

package lock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

	lock "redislock.example/lock"
)

var background = context.Background()

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about: %s", what)
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

// server is a real one, with the module.
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
	s := &server{t: t, port: freePort()}
	s.words = append([]string{"--port", fmt.Sprint(s.port), "--save", "", "--dir", t.TempDir(), "--loadmodule", module}, words...)
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

func (s *server) free(key string) bool {
	s.t.Helper()
	return s.ask("LOCK.INFO", key) == nil && s.waiters(key) == 0
}

// connections are all that ever were.
func (s *server) connections() int {
	s.t.Helper()
	_, after, _ := strings.Cut(s.ask("INFO", "stats").(string), "total_connections_received:")
	number, _, _ := strings.Cut(after, "\r\n")
	return must(strconv.Atoi(number))
}

// locks of a client of its own.
func locksAt(t *testing.T, address string, settings ...lock.Setting) *lock.Locks {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: address})
	locks := must(lock.New(client, settings...))
	t.Cleanup(func() {
		locks.Close()
		_ = client.Close()
	})
	return locks
}

// proxy passes bytes on, but for those of replies that are to be lost.
type proxy struct {
	listener net.Listener
	target   string
	frozen   atomic.Bool
	mu       sync.Mutex
	cutReply string
	// meanwhile is done when a reply is there that is to be lost.
	meanwhile func()
	// before is done when a client has said something, and that has not been passed on.
	before func(said []byte)
	pairs  [][2]net.Conn
	dead   []*atomic.Bool
	// said is what came from clients. ends and resets count how they ended connections.
	said         bytes.Buffer
	ends, resets atomic.Int32
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
			var cut, dead, over atomic.Bool
			p.pairs = append(p.pairs, [2]net.Conn{near, far})
			p.dead = append(p.dead, &dead)
			p.mu.Unlock()
			go p.pump(near, far, &cut, &dead, &over, true)
			go p.pump(far, near, &cut, &dead, &over, false)
		}
	}()
	t.Cleanup(func() {
		_ = p.listener.Close()
		p.frozen.Store(false)
		p.vanish(false)
		p.cut()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// end counts how a client ended a connection: once, as only the first who reads or writes there hears of a reset.
func (p *proxy) end(over *atomic.Bool, err error) {
	if !errors.Is(err, syscall.ECONNRESET) && err != io.EOF || !over.CompareAndSwap(false, true) {
		return
	}
	if err == io.EOF {
		p.ends.Add(1)
	} else {
		p.resets.Add(1)
	}
}

func (p *proxy) pump(from, to net.Conn, cut, dead, over *atomic.Bool, calls bool) {
	defer from.Close()
	buffer := make([]byte, 65536)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			if calls {
				p.end(over, err)
			}
			if calls || !cut.Load() {
				_ = to.Close()
			}
			return
		}
		if calls {
			p.mu.Lock()
			p.said.Write(buffer[:n])
			before := p.before
			p.mu.Unlock()
			if before != nil {
				before(buffer[:n])
			}
		}
		for p.frozen.Load() || dead.Load() {
			time.Sleep(time.Millisecond)
		}
		p.mu.Lock()
		if calls && p.cutReply != "" && bytes.Contains(buffer[:n], []byte(p.cutReply)) {
			cut.Store(true)
			p.cutReply = ""
		}
		p.mu.Unlock()
		if !calls && cut.Load() {
			p.mu.Lock()
			meanwhile := p.meanwhile
			p.mu.Unlock()
			if meanwhile != nil {
				meanwhile()
			}
			_ = to.Close()
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			if !calls {
				p.end(over, err)
			}
			return
		}
	}
}

// loseReplyOf breaks the next connection on which that is said, after the server has done it.
func (p *proxy) loseReplyOf(command string, meanwhile func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutReply, p.meanwhile = command, meanwhile
}

// beforeEach has that done when a client says that word.
func (p *proxy) beforeEach(word string, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = func(said []byte) {
		if bytes.Contains(said, []byte(word)) {
			do()
		}
	}
}

// last is the last call of that name.
func (p *proxy) last(command string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := p.said.Bytes()
	return bytes.Clone(said[bytes.LastIndexByte(said[:bytes.LastIndex(said, []byte(command))], '*'):])
}

// count is how often that was said.
func (p *proxy) count(word string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Count(p.said.Bytes(), []byte(word))
}

func (p *proxy) isDone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cutReply == ""
}

// vanish makes the connections of now say nothing any more. New ones work.
func (p *proxy) vanish(dead bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pair := range p.dead {
		pair.Store(dead)
	}
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
