// SPDX-License-Identifier: MIT

package lock

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"
)

// A link is a connection on which calls overtake nothing and wait for nothing: replies come in the order of the calls.
type link struct {
	conn     net.Conn
	patience time.Duration
	// onMessage takes what is published, on a link that is subscribed.
	onMessage func(message string)
	onEnd     func()
	// dead is closed when it is broken.
	dead chan struct{}
	// wake tells the writer that there is something to write.
	wake chan struct{}

	mu sync.Mutex
	// out has not been written yet.
	out []byte
	// unanswered calls, oldest first. There is room for the reply in each.
	unanswered []chan reply
	broken     *Error
}

type reply struct {
	value any
	err   *Error
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
	l.unanswered = append(l.unanswered, answer)
	poke(l.wake)
	return answer
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
			l.breakOff(err)
			return
		}
	}
}

func (l *link) read(in *bufio.Reader) {
	for {
		value, err := readReply(in)
		if err != nil {
			l.breakOff(err)
			return
		}
		if l.onMessage != nil {
			if items, ok := value.([]any); ok && len(items) == 3 && items[0] == "message" {
				if message, ok := items[2].(string); ok {
					l.onMessage(message)
				}
			}
			continue
		}
		l.mu.Lock()
		if len(l.unanswered) == 0 {
			l.mu.Unlock()
			l.breakOff(errors.New("a reply to nothing"))
			return
		}
		answer := l.unanswered[0]
		l.unanswered = l.unanswered[1:]
		l.mu.Unlock()
		if text, ok := value.(serverError); ok {
			answer <- reply{err: text.kind()}
		} else {
			answer <- reply{value: value}
		}
	}
}

// breakOff ends it: nothing of what is not answered will be, and the server hears of it at once.
func (l *link) breakOff(why error) {
	l.mu.Lock()
	if l.broken != nil {
		l.mu.Unlock()
		return
	}
	l.broken = broken(why)
	for _, answer := range l.unanswered {
		answer <- reply{err: l.broken}
	}
	l.unanswered, l.out = nil, nil
	l.mu.Unlock()
	close(l.dead)
	_ = l.conn.Close()
	l.onEnd()
}

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
