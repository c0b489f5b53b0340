// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The kinds of errors, for errors.Is. The seventh kind, cancelled, is context.Canceled.
var (
	// ErrBusy means that another owner holds the lock, and the call does not wait.
	ErrBusy = errors.New("busy")
	// ErrTimeout means that the limit of the wait is over. After the context's deadline, context.DeadlineExceeded matches as well.
	ErrTimeout = errors.New("timed out")
	// ErrLost means that the hold ended before its release. Another owner may have worked at the same time.
	ErrLost = errors.New("lost")
	// ErrDeadlock means that waiting could never end. The text names the cycle.
	ErrDeadlock = errors.New("deadlock")
	// ErrMisuse means a wrong call: an option, a key of another type, a missing permission, a server without the module.
	ErrMisuse = errors.New("misuse")
	// ErrUnavailable means that no server answered in time, or that the server grants nothing now.
	ErrUnavailable = errors.New("unavailable")
)

// Error is the type of all errors of this package. errors.Is finds its kind and its cause.
type Error struct {
	// Kind is one of the errors above, or context.Canceled.
	Kind error
	// Key is the key of the lock, or of the first of several locks.
	Key string
	// Code is the first word of the server's reply. It is empty if the server did not reply.
	Code string
	// Text is the server's reply, or describes the failure.
	Text string
	// Cause led to this error. It may be nil.
	Cause error
	// transient: the same call may succeed in a moment.
	transient bool
}

// Error has the key, the kind and the text.
func (e *Error) Error() string {
	parts := []string{"lock", e.Key, e.Kind.Error(), e.Text}
	if e.Cause != nil && e.Cause != e.Kind {
		parts = append(parts, e.Cause.Error())
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// Unwrap has the kind, and the cause if there is one.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// is returns whether the error has one of these codes. Without a reply the code is empty.
func (e *Error) is(codes ...string) bool { return e != nil && slices.Contains(codes, e.Code) }

// withKey names the lock in an error.
func (e *Error) withKey(key string) error {
	if e == nil {
		return nil
	}
	named := *e
	named.Key = key
	return &named
}

// kinds has the kinds of the codes that are not transient. All other codes are unavailable.
var kinds = map[string]error{
	"NOTOWNER": ErrLost, "DEADLOCK": ErrDeadlock, "CANCELLED": context.Canceled,
	"ERR": ErrMisuse, "WRONGTYPE": ErrMisuse, "CROSSSLOT": ErrMisuse,
	"NOPERM": ErrMisuse, "NOAUTH": ErrMisuse, "WRONGPASS": ErrMisuse,
}

var transientCodes = []string{
	"NOSESSION", "LATE", "READONLY", "LOADING", "NOREPLICAS", "MISCONF", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN",
	"QUARANTINE", "UNBLOCKED", "MOVED", "ASK",
}

// classify makes an *Error of an error of go-redis, and nil of a reply.
func classify(err error) *Error {
	var reply redis.Error
	switch {
	case err == nil || err == redis.Nil:
		return nil
	// A Sentinel without the primary causes an error that contains Nil.
	case errors.Is(err, redis.Nil) || !errors.As(err, &reply):
		return noReply(err)
	}
	text := reply.Error()
	code, _, _ := strings.Cut(text, " ")
	e := &Error{Kind: kinds[code], Code: code, Text: text, transient: slices.Contains(transientCodes, code)}
	if e.Kind == nil {
		e.Kind = ErrUnavailable
	}
	if code == "ERR" && strings.Contains(text, "unknown command") {
		e.Text = "the server has no LOCK commands; load the redis-lock module"
	}
	return e
}

func noReply(cause error) *Error {
	return &Error{Kind: ErrUnavailable, Text: "no reply from the server", Cause: cause, transient: true}
}

func misuse(text string) *Error { return &Error{Kind: ErrMisuse, Text: text} }

var errClosed = &Error{Kind: context.Canceled, Text: "the locks are closed; make new ones"}

// contextError is the error of a call whose context has ended.
func contextError(ctx context.Context) *Error {
	if ctx.Err() == context.DeadlineExceeded {
		return &Error{Kind: ErrTimeout, Cause: ctx.Err()}
	}
	return &Error{Kind: context.Canceled, Cause: context.Cause(ctx)}
}

// outcome is the word of an error for the listener.
func outcome(e *Error) string {
	switch {
	case e == nil:
		return "granted"
	case e.Kind == context.Canceled:
		return "cancelled"
	}
	return e.Kind.Error()
}
