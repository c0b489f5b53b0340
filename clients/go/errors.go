// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
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
	parts := []string{"lock"}
	for _, part := range []string{e.Key, e.Kind.Error(), e.Text} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if e.Cause != nil {
		parts = append(parts, e.Cause.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap has the kind, and the cause if there is one.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

var codes = map[string]error{
	"NOTOWNER": ErrLost, "DEADLOCK": ErrDeadlock, "CANCELLED": context.Canceled, "OOM": ErrUnavailable, "LIMIT": ErrUnavailable,
	"ERR": ErrMisuse, "WRONGTYPE": ErrMisuse, "NOPERM": ErrMisuse, "NOAUTH": ErrMisuse, "WRONGPASS": ErrMisuse,
	"CROSSSLOT": ErrMisuse,
}

var transientCodes = map[string]bool{
	"NOSESSION": true, "LATE": true, "READONLY": true, "LOADING": true, "NOREPLICAS": true, "MISCONF": true, "BUSY": true,
	"TRYAGAIN": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "QUARANTINE": true, "UNBLOCKED": true, "MOVED": true, "ASK": true,
}

// classify makes an *Error of an error of go-redis.
func classify(err error) *Error {
	var own *Error
	var reply redis.Error
	switch {
	case errors.As(err, &own):
		return own
	case !errors.As(err, &reply):
		return &Error{Kind: ErrUnavailable, Text: "no reply from the server", Cause: err, transient: true}
	}
	text := reply.Error()
	code, _, _ := strings.Cut(text, " ")
	e := &Error{Kind: codes[code], Code: code, Text: text, transient: transientCodes[code]}
	if e.Kind == nil {
		e.Kind = ErrUnavailable
	}
	if code == "ERR" && strings.Contains(text, "unknown command") {
		e.Text = "the server has no LOCK commands; load the redis-lock module"
	}
	return e
}

func (e *Error) isMoved() bool { return e.Code == "MOVED" || e.Code == "ASK" }

// isEnd is whether the reply means that the hold has ended. WRONGTYPE: the key was overwritten.
func (e *Error) isEnd() bool { return e.Code == "NOTOWNER" || e.Code == "WRONGTYPE" }

func isTransient(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.transient
}

func misuse(text string) *Error { return &Error{Kind: ErrMisuse, Text: text} }

var errClosed = &Error{Kind: context.Canceled, Text: "the locks are closed; make new ones"}

// contextError is the error of a call whose context has ended.
func contextError(ctx context.Context) *Error {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		if !errors.Is(cause, context.DeadlineExceeded) {
			cause = errors.Join(context.DeadlineExceeded, cause)
		}
		return &Error{Kind: ErrTimeout, Cause: cause}
	case cause == context.Canceled:
		cause = nil
	}
	return &Error{Kind: context.Canceled, Cause: cause}
}

// withKey names the lock in an error.
func withKey(key string, err error) error {
	var e *Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	named := *e
	named.Key = key
	return &named
}

// outcome is the word of an error for the listener.
func outcome(err error) string {
	var e *Error
	switch {
	case err == nil:
		return "granted"
	case !errors.As(err, &e):
		return ErrUnavailable.Error()
	case e.Kind == context.Canceled:
		return "cancelled"
	}
	return e.Kind.Error()
}
