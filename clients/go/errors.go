// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"strings"
)

// The kinds of errors, for errors.Is. The seventh, cancelled, is context.Canceled.
var (
	// ErrBusy: somebody else has the lock, and the call was not to wait.
	ErrBusy = errors.New("busy")
	// ErrTimeout: the time to wait is over. If it was that of the caller's context, context.DeadlineExceeded matches, too.
	ErrTimeout = errors.New("timed out")
	// ErrLost: the hold ended before it was given back. Others may have worked at the same time.
	ErrLost = errors.New("lost")
	// ErrDeadlock: waiting could never end. The text has the cycle.
	ErrDeadlock = errors.New("deadlock")
	// ErrMisuse: what the call says is wrong: an option out of range, a key of another type, no permission.
	ErrMisuse = errors.New("misuse")
	// ErrUnavailable: no connection, or a server that grants nothing now.
	ErrUnavailable = errors.New("unavailable")
)

// Error is every error of this package. errors.Is finds its kind and its cause.
type Error struct {
	// Kind is one of the Err… of this package, or context.Canceled.
	Kind error
	// Key is the lock's.
	Key string
	// Text is what the server said, or what happened.
	Text string
	// Cause is an error that led to this one. It may be nil.
	Cause error
	// passes: the same call may succeed soon, or on the next connection.
	passes bool
	// elsewhere: another server has the locks now.
	elsewhere bool
}

func (e *Error) Error() string {
	text := "lock: "
	if e.Key != "" {
		text += e.Key + ": "
	}
	text += e.Kind.Error()
	if e.Text != "" {
		text += ": " + e.Text
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// serverError is an error reply.
type serverError string

// full is what who connects is told in place of a reply, if it is one too many. The next connection may be let in.
const full = "max number of clients"

// busy is what all are told while a script runs for long.
const busy = "BUSY"

// kind sorts what the server said. What is not known is a server that grants nothing now.
func (text serverError) kind() *Error {
	e := &Error{Kind: ErrUnavailable, Text: string(text)}
	prefix, _, _ := strings.Cut(string(text), " ")
	switch prefix {
	case "NOTOWNER":
		e.Kind = ErrLost
	case "DEADLOCK":
		e.Kind = ErrDeadlock
	case "WRONGTYPE", "NOPERM":
		e.Kind = ErrMisuse
	case "ERR":
		e.passes = strings.Contains(string(text), full)
		if !e.passes && !strings.Contains(string(text), "too many") {
			e.Kind = ErrMisuse
		}
	case "LOADING", "NOREPLICAS", "TRYAGAIN", busy:
		// NOREPLICAS: after a failover the replicas need some seconds to find the new primary.
		e.passes = true
	case "READONLY":
		e.passes, e.elsewhere = true, true
	case "UNBLOCKED":
		// Another server has the lock now, in Redis' words and in the module's. Whom somebody unblocks is told otherwise.
		e.passes = strings.Contains(string(text), "instance state changed") || strings.Contains(string(text), "send the command")
		e.elsewhere = e.passes
		// A call that came late, on a connection that was given up, has taken the place of that which was sent after it.
		e.passes = e.passes || strings.Contains(string(text), "the same request was sent again")
	}
	return e
}

func broken(why error) *Error {
	return &Error{Kind: ErrUnavailable, Text: "no connection", Cause: why, passes: true}
}

var (
	errClosed = &Error{Kind: ErrUnavailable, Text: "closed"}
	errSilent = errors.New("the server does not answer")
	errOld    = broken(errors.New("it is older than the other connection"))
	errLong   = &Error{Kind: ErrUnavailable, Text: "no answer for long"}
)

func passes(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.passes
}

// says tells whether the server said so.
func says(err error, word string) bool {
	var e *Error
	return errors.As(err, &e) && strings.HasPrefix(e.Text, word)
}

// refused says whether it is the word of a server, which is there: to who is one too many, while a script runs, or some moments
// ago, as it is not the primary.
func refused(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.elsewhere || strings.Contains(e.Text, full)) || says(err, busy)
}

// verdict is what a context of this package's own ends with: the error of whatever was done under it.
type verdict struct{ error }

// ended says why a context ended.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if verdict, ok := cause.(verdict); ok {
		return verdict.error
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(cause, context.DeadlineExceeded):
		if !errors.Is(cause, context.DeadlineExceeded) {
			cause = errors.Join(context.DeadlineExceeded, cause)
		}
		return &Error{Kind: ErrTimeout, Cause: cause}
	case errors.Is(cause, context.Canceled):
		return &Error{Kind: context.Canceled}
	}
	return &Error{Kind: context.Canceled, Cause: cause}
}

// of names the lock in an error.
func of(key string, err error) error {
	var e *Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	named := *e
	named.Key = key
	return &named
}
