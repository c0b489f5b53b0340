// SPDX-License-Identifier: MIT

package lock

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A link is a connection on which calls overtake nothing and wait for nothing: replies come in the order of the calls.
type link struct {
	conn     net.Conn
	made     time.Time
	patience time.Duration
	// onMessage takes what is published, on a link that is subscribed.
	onMessage func(message string)
	onEnd     func()
	// dead is closed when it is broken.
	dead chan struct{}
	// wake tells the writer that there is something to write.
	wake chan struct{}
	// probed: it is being looked whether anything comes.
	probed atomic.Bool
	// timer looks at the oldest call, while looking says so. It is nil if the call may wait in the server.
	timer *time.Timer

	mu sync.Mutex
	// out has not been written yet.
	out []byte
	// unanswered calls, oldest first.
	unanswered []unanswered
	looking    bool
	broken     *Error
}

type unanswered struct {
	// answer has room for the reply.
	answer chan reply
	sent   time.Time
}

type reply struct {
	value any
	err   *Error
	// lost: the connection broke, and nobody knows whether the call was carried out.
	lost bool
}

// send puts a call in line. The reply comes on the channel, or the error of the connection.
func (l *link) send(words []any) <-chan reply {
	answer := make(chan reply, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		answer <- reply{err: l.broken}
		return answer
	}
	l.out = appendCommand(l.out, words)
	l.unanswered = append(l.unanswered, unanswered{answer, time.Now()})
	if l.timer != nil && !l.looking {
		l.looking = true
		l.timer.Reset(l.patience)
	}
	poke(l.wake)
	return answer
}

// look gives the link up if its oldest call has had no answer for too long, also if nobody waits for that any more: a call must
// not arrive at any later time.
func (l *link) look() {
	l.mu.Lock()
	silent := false
	if l.looking = len(l.unanswered) != 0; l.looking {
		oldest := &l.unanswered[0]
		rest := l.patience - time.Since(oldest.sent)
		if rest < -courtesy {
			// The process slept. The answer may be there, and not be read yet.
			oldest.sent, rest = time.Now(), l.patience
		}
		if silent = rest <= 0; !silent {
			l.timer.Reset(rest)
		}
	}
	l.mu.Unlock()
	if silent {
		l.giveUp(errSilent)
	}
}

func (l *link) write() {
	for {
		select {
		case <-l.wake:
		case <-l.dead:
			return
		}
		l.mu.Lock()
		out := l.out
		l.out = nil
		l.mu.Unlock()
		_ = l.conn.SetWriteDeadline(time.Now().Add(l.patience))
		if _, err := l.conn.Write(out); err != nil {
			l.giveUp(err)
			return
		}
	}
}

func (l *link) read(in *bufio.Reader) {
	for {
		value, err := readReply(in)
		if err != nil {
			l.giveUp(err)
			return
		}
		if l.onMessage != nil {
			if items, ok := value.([]any); ok && len(items) == 3 && items[0] == "message" {
				if message, ok := items[2].(string); ok {
					l.onMessage(message)
				}
			}
		}
		l.mu.Lock()
		if len(l.unanswered) == 0 {
			l.mu.Unlock()
			if l.onMessage != nil {
				continue
			}
			l.giveUp(errors.New("a reply to nothing"))
			return
		}
		answer := l.unanswered[0].answer
		l.unanswered = l.unanswered[1:]
		l.mu.Unlock()
		if text, ok := value.(serverError); ok {
			answer <- reply{err: text.kind()}
		} else {
			answer <- reply{value: value}
		}
	}
}

// breakOff ends it in good order: the server hears of it, also if that takes long, and of what was said before.
func (l *link) breakOff(why error) { l.end(why, net.Conn.Close) }

// giveUp ends it by a reset. What was said, and has not arrived, is dropped: it must not arrive after what is said on the next.
func (l *link) giveUp(why error) { l.end(why, reset) }

func reset(conn net.Conn) error {
	if tcp := underneath(conn); tcp != nil {
		_ = tcp.SetLinger(0)
		// TLS would say good-bye before, and wait for that.
		_ = tcp.Close()
	}
	return conn.Close()
}

// underneath is the TCP connection below TLS, or nil if there is none.
func underneath(conn net.Conn) *net.TCPConn {
	if outer, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = outer.NetConn()
	}
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}

// end drops it: nothing of what is not answered will be.
func (l *link) end(why error, drop func(net.Conn) error) {
	l.mu.Lock()
	if l.broken != nil {
		l.mu.Unlock()
		return
	}
	l.broken = broken(why)
	for _, call := range l.unanswered {
		call.answer <- reply{err: l.broken, lost: true}
	}
	l.unanswered, l.out = nil, nil
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	close(l.dead)
	_ = drop(l.conn)
	l.onEnd()
}

func (l *link) isOlder(other *link) bool { return l.made.Before(other.made) }

func (l *link) alive() bool {
	select {
	case <-l.dead:
		return false
	default:
		return true
	}
}

// poke wakes whoever waits on the channel, or will.
func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
