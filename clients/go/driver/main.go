// SPDX-License-Identifier: MIT

// Driver does what it reads from stdin, as clients/spec/README.md says.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

type request struct {
	N       any             `json:"n"`
	Do      string          `json:"do"`
	As      string          `json:"as"`
	Lock    json.RawMessage `json:"lock"`
	Lease   *float64        `json:"lease"`
	Wait    *float64        `json:"wait"`
	MaxHold *float64        `json:"max_hold"`
	Shared  bool            `json:"shared"`
	Again   bool            `json:"reentrant"`
	Limit   *int            `json:"limit"`
	Fence   bool            `json:"fence"`
	Label   string          `json:"label"`
	Owner   string          `json:"owner"`
	Within  float64         `json:"within"`
	Fails   bool            `json:"fails"`
	Command json.RawMessage `json:"command"`
	Key     string          `json:"key"`
	Rounds  int             `json:"rounds"`
	Count   int             `json:"count"`
	For     float64         `json:"for"`
}

type answer map[string]any

// named is what `as` names: an acquire on its way, a hold, or a scope.
type named struct {
	cancel context.CancelFunc
	hold   *lock.Hold
	// inside is the context of the hold, or of the scope's body.
	inside context.Context
	leave  chan bool
}

type driver struct {
	client *redis.Client
	locks  *lock.Locks
	mu     sync.Mutex
	names  map[string]*named
	events [][3]string
}

var (
	background = context.Background()
	errBody    = errors.New("the body's own error")
)

func main() {
	options, err := redis.ParseURL(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	d := &driver{client: redis.NewClient(options), names: map[string]*named{}, events: [][3]string{}}
	settings := []lock.Setting{lock.WithListener(func(event lock.Event) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.events = append(d.events, [3]string{event.Label, event.Name, event.Outcome})
	})}
	for variable, setting := range map[string]func(time.Duration) lock.Setting{
		"REDIS_LOCK_TTL": lock.WithTTL, "REDIS_LOCK_GRACE": lock.WithGrace,
	} {
		if ms, err := strconv.ParseFloat(os.Getenv(variable), 64); err == nil {
			settings = append(settings, setting(millis(ms)))
		}
	}
	if d.locks, err = lock.New(d.client, settings...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var out sync.Mutex
	encoder := json.NewEncoder(os.Stdout)
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			var r request
			var work func() answer
			if wrong := json.Unmarshal(line, &r); wrong != nil {
				work = func() answer { return answer{"is": "misuse", "text": wrong.Error()} }
			} else {
				work = d.prepare(r)
			}
			go func() {
				a := work()
				a["n"] = r.N
				out.Lock()
				defer out.Unlock()
				_ = encoder.Encode(a)
			}()
		}
		if err != nil {
			return
		}
	}
}

// prepare does at once what the next line may rely on: names.
func (d *driver) prepare(r request) func() answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch r.Do {
	case "acquire", "try", "with":
		ctx, cancel := context.WithCancel(background)
		it := &named{cancel: cancel, leave: make(chan bool, 1)}
		d.names[r.As] = it
		switch r.Do {
		case "with":
			return func() answer { return d.with(ctx, it, r) }
		case "try":
			return func() answer { return d.try(ctx, it, r) }
		}
		return func() answer {
			hold, err := d.locks.Acquire(ctx, key(r), options(r)...)
			return d.got(it, hold, err)
		}
	case "attach":
		it := &named{}
		d.names[r.As] = it
		return func() answer {
			l, err := d.locks.Lock(key(r), withoutOwner(r)...)
			if err != nil {
				return failed(err)
			}
			hold, err := l.Attach(background, r.Owner)
			return d.got(it, hold, err)
		}
	}
	if r.As == "" {
		return func() answer { return d.plain(r) }
	}
	it := d.names[r.As]
	if it == nil {
		return func() answer { return answer{"is": "misuse", "text": "nothing has the name " + r.As} }
	}
	hold, inside := it.hold, it.inside
	switch r.Do {
	case "cancel":
		if it.cancel != nil {
			it.cancel()
		}
		return func() answer { return answer{"is": "done"} }
	case "leave":
		if it.leave == nil {
			return func() answer { return answer{"is": "misuse", "text": r.As + " is no scope"} }
		}
		select {
		case it.leave <- r.Fails:
		default:
		}
		return func() answer { return answer{"is": "done"} }
	case "state", "until_lost":
		return func() answer {
			if inside == nil {
				return answer{"is": "misuse", "text": r.As + " holds nothing"}
			}
			if r.Do == "state" && hold != nil {
				return answer{"is": stateOf(hold)}
			}
			// The body of Do has only a context.
			if r.Do == "state" && heldOrLost(inside) == "held" {
				return answer{"is": "safe"}
			}
			select {
			case <-inside.Done():
			case <-time.After(millis(r.Within)):
			}
			return answer{"is": heldOrLost(inside)}
		}
	case "release", "extend", "owner", "hand over", "guard":
		return func() answer {
			if hold == nil {
				return answer{"is": "misuse", "text": r.As + " holds nothing"}
			}
			return d.withHold(hold, r)
		}
	}
	return func() answer { return answer{"is": "unknown"} }
}

func (d *driver) got(it *named, hold *lock.Hold, err error) answer {
	if err != nil {
		return failed(err)
	}
	d.mu.Lock()
	it.hold, it.inside = hold, hold.Context()
	d.mu.Unlock()
	a := answer{"is": "granted"}
	if hold.Token() != 0 {
		a["token"] = hold.Token()
	}
	return a
}

func (d *driver) try(ctx context.Context, it *named, r request) answer {
	hold, ok, err := d.locks.Try(ctx, key(r), options(r)...)
	if err == nil && !ok {
		return answer{"is": "busy"}
	}
	return d.got(it, hold, err)
}

func (d *driver) with(ctx context.Context, it *named, r request) answer {
	err := d.locks.Do(ctx, key(r), func(inside context.Context) error {
		d.mu.Lock()
		it.inside = inside
		d.mu.Unlock()
		if <-it.leave {
			return errBody
		}
		return nil
	}, options(r)...)
	switch {
	case err == nil:
		return answer{"is": "done"}
	case errors.Is(err, errBody):
		return answer{"is": "body"}
	}
	return failed(err)
}

func (d *driver) withHold(hold *lock.Hold, r request) answer {
	var err error
	switch r.Do {
	case "release":
		if err = hold.Release(background); err == nil {
			return answer{"is": "released"}
		}
	case "extend":
		if r.Lease == nil {
			return answer{"is": "misuse", "text": "extend needs a lease"}
		}
		if err = hold.Extend(background, millis(*r.Lease)); err == nil {
			return answer{"is": "extended"}
		}
	case "owner":
		return answer{"is": "done", "owner": hold.Owner()}
	case "hand over":
		var owner string
		if owner, err = hold.HandOver(); err == nil {
			return answer{"is": "done", "owner": owner}
		}
	case "guard":
		if _, err = hold.Guard(background, command(r.Command)...); err == nil {
			return answer{"is": "done"}
		}
	}
	return failed(err)
}

func (d *driver) plain(r request) answer {
	var err error
	switch r.Do {
	case "count":
		for round := 0; round < r.Rounds && err == nil; round++ {
			err = d.locks.Do(background, key(r), func(ctx context.Context) error {
				number, err := d.client.Get(ctx, r.Key).Int()
				if err != nil && !errors.Is(err, redis.Nil) {
					return err
				}
				return d.client.Set(ctx, r.Key, number+1, 0).Err()
			}, options(r)...)
		}
	case "calls":
		for call := 0; call < r.Count && err == nil; call++ {
			err = d.client.Ping(background).Err()
		}
	case "spin":
		spin(millis(r.For))
	case "events":
		d.mu.Lock()
		defer d.mu.Unlock()
		return answer{"is": "done", "events": append([][3]string{}, d.events...)}
	case "close":
		d.locks.Close()
		_ = d.client.Close()
		return answer{"is": "closed"}
	default:
		return answer{"is": "unknown"}
	}
	if err != nil {
		return failed(err)
	}
	return answer{"is": "done"}
}

// spin takes every processor that Go may use, several times.
func spin(span time.Duration) {
	var all sync.WaitGroup
	for end, n := time.Now().Add(span), 4*runtime.GOMAXPROCS(0); n > 0; n-- {
		all.Add(1)
		go func() {
			defer all.Done()
			for time.Now().Before(end) {
			}
		}()
	}
	all.Wait()
}

func heldOrLost(inside context.Context) string {
	if errors.Is(context.Cause(inside), lock.ErrLost) {
		return "lost"
	}
	return "held"
}

func options(r request) []lock.Option {
	var options []lock.Option
	if r.Lease != nil {
		options = append(options, lock.WithLease(millis(*r.Lease)))
	}
	if r.Wait != nil {
		options = append(options, lock.WithWait(millis(*r.Wait)))
	}
	if r.MaxHold != nil {
		options = append(options, lock.WithMaxHold(millis(*r.MaxHold)))
	}
	if r.Again {
		options = append(options, lock.Reentrant())
	}
	if r.Shared {
		options = append(options, lock.Shared())
	}
	if r.Limit != nil {
		options = append(options, lock.WithLimit(*r.Limit))
	}
	if r.Fence {
		options = append(options, lock.Fenced())
	}
	if r.Owner != "" {
		options = append(options, lock.WithOwner(r.Owner))
	}
	if keys := keys(r); len(keys) > 1 {
		options = append(options, lock.And(keys[1:]...))
	}
	return append(options, lock.WithLabel(r.Label))
}

// withoutOwner has the options of an attach, whose owner is a ticket.
func withoutOwner(r request) []lock.Option {
	r.Owner = ""
	return options(r)
}

// keys are one key, or a list of them.
func keys(r request) (keys []string) {
	if json.Unmarshal(r.Lock, &keys) != nil {
		keys = make([]string, 1)
		_ = json.Unmarshal(r.Lock, &keys[0])
	}
	return keys
}

func key(r request) string { return append(keys(r), "")[0] }

func stateOf(hold *lock.Hold) string {
	switch {
	case hold.IsLost():
		return "lost"
	case hold.ValidFor() > 0:
		return "safe"
	}
	return "jeopardy"
}

// command is a list of words, or a text of words between spaces.
func command(raw json.RawMessage) []any {
	var words []any
	if json.Unmarshal(raw, &words) != nil {
		var text string
		_ = json.Unmarshal(raw, &text)
		for _, word := range strings.Fields(text) {
			words = append(words, word)
		}
	}
	return words
}

func failed(err error) answer {
	kinds := map[error]string{lock.ErrBusy: "busy", lock.ErrTimeout: "timed out", lock.ErrLost: "lost", lock.ErrDeadlock: "deadlock",
		lock.ErrMisuse: "misuse", lock.ErrUnavailable: "unavailable", context.Canceled: "cancelled"}
	is := "unavailable"
	var e *lock.Error
	if errors.As(err, &e) {
		is = kinds[e.Kind]
	}
	return answer{"is": is, "text": err.Error()}
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
