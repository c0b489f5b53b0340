// SPDX-License-Identifier: MIT

package main

import (
	"encoding/json"
	"strings"

	"github.com/anishathalye/porcupine"
)

// number is an acquire in a session.
type number struct {
	ID string `json:"id"`
	N  int64  `json:"n"`
}

// session is what its client knows of a session.
type session struct {
	grace int64
	// Calls of LOCK.EVENTS that confirm: without an error, and with fewer events than they permit.
	confirming []call
	closed     int64
}

// event is an event about a number, at the time when its client first read it.
type event struct {
	at     int64
	reason string
	out    output
}

// sessions has the sessions of a history, and the events about their numbers.
type sessions struct {
	byID          map[string]*session
	granted, lost map[number]event
	refused       map[number][]call
}

func newSessions(calls []call) sessions {
	s := sessions{map[string]*session{}, map[number]event{}, map[number]event{}, map[number][]call{}}
	for _, c := range calls {
		var opened []json.RawMessage
		var id string
		if c.Command == "open_session" && c.Outcome == "reply" && c.SessionID == nil &&
			json.Unmarshal(c.Reply, &opened) == nil && json.Unmarshal(opened[0], &id) == nil {
			s.byID[id] = &session{grace: *c.Grace * 1000, closed: never}
		}
	}
	for _, c := range calls {
		if c.Session != nil && c.Outcome == "error" && (c.Command == "release" || c.Command == "renew") {
			s.refused[*c.Session] = append(s.refused[*c.Session], c)
		}
		if c.SessionID == nil || s.byID[*c.SessionID] == nil {
			continue
		}
		if c.Command == "close_session" && c.Outcome != "unsent" {
			s.byID[*c.SessionID].closed = min(s.byID[*c.SessionID].closed, c.Sent)
		}
		if c.Command == "events" && c.Outcome == "reply" {
			s.read(c)
		}
	}
	return s
}

// read adds the events in the reply to a call.
func (s sessions) read(c call) {
	var events [][]interface{}
	if json.Unmarshal(c.Reply, &events) != nil {
		return
	}
	if int64(len(events)) < c.Count {
		one := s.byID[*c.SessionID]
		one.confirming = append(one.confirming, c)
	}
	for _, parts := range events {
		n, _ := parts[2].(float64)
		about, one := number{*c.SessionID, int64(n)}, event{at: *c.Answered}
		told := s.lost
		switch parts[1] {
		case "granted":
			told = s.granted
			holds, _ := parts[3].(float64)
			one.out.count = int64(holds)
			if len(parts) > 4 {
				token, _ := parts[4].(float64)
				one.out.token = int64(token)
			}
		case "lost":
			one.reason, _ = parts[3].(string)
		default:
			continue
		}
		if before, is_known := told[about]; !is_known || one.at < before.at {
			told[about] = one
		}
	}
}

// safeUntil returns the end of the safe time of a hold that was known at a time. No other owner has the lock until then.
func (s sessions) safeUntil(of number, known int64) int64 {
	one := s.byID[of.ID]
	if one == nil {
		return 0
	}
	by := int64(never)
	if lost, is_lost := s.lost[of]; is_lost {
		by = lost.at
	}
	for _, c := range s.refused[of] {
		if *c.Answered > known {
			by = min(by, c.Sent)
		}
	}
	until := int64(0)
	for _, c := range one.confirming {
		if *c.Answered < by {
			until = max(until, c.Sent+one.grace)
		}
	}
	return min(min(until, one.closed), by)
}

// outcome is the joint outcome of all calls of one kind with a number.
type outcome struct {
	first call
	// The first reply that is final, and its time.
	out      output
	answered int64
	is_nil   bool
	// Whether the calls may have had an effect without a final reply.
	is_open bool
}

func outcomeOf(calls []call) outcome {
	all := outcome{first: calls[0], answered: never}
	for _, c := range calls {
		if c.Outcome == "unknown" {
			all.is_open = true
		}
		if c.Outcome != "reply" {
			continue
		}
		out, has_count := count(c.Reply)
		switch {
		case !has_count:
			all.is_nil = true
		case c.Command == "acquire" && c.Queue != nil && out.count == 0:
			all.is_open = true
		case *c.Answered < all.answered:
			all.out, all.answered = out, *c.Answered
		}
	}
	return all
}

// operations adds the operations of the calls with numbers to those of each lock. A hold ends at any time after its safe time.
func (s sessions) operations(calls []call, first int, locks map[string][]porcupine.Operation) {
	type kind struct {
		of      number
		command string
	}
	groups, order := map[kind][]call{}, []kind{}
	for _, c := range calls {
		if c.Session == nil || c.Outcome == "unsent" {
			continue
		}
		of := kind{*c.Session, c.Command}
		if groups[of] == nil {
			order = append(order, of)
		}
		groups[of] = append(groups[of], c)
	}
	id := first
	add := func(c call, what string, end int64, out output, until int64, over int64) {
		id++
		in, lock, _ := c.input(id)
		if in.what = what; lock == "" {
			lock = c.Key
		}
		in.early, in.late = until, over
		locks[lock] = append(locks[lock], porcupine.Operation{ClientId: id, Input: in, Call: c.Sent, Output: out, Return: end})
		if what == "release" || until >= over {
			return
		}
		end_of_lease := porcupine.Operation{ClientId: -id, Input: input{what: "expire", number: id}, Output: output{}}
		end_of_lease.Call, end_of_lease.Return = until, over
		locks[lock] = append(locks[lock], end_of_lease)
	}
	for _, of := range order {
		all := outcomeOf(groups[of])
		// From then on, the number holds nothing.
		over := int64(never)
		for _, command := range []string{"release", "cancel"} {
			if ends := groups[kind{of.of, command}]; ends != nil {
				over = min(over, outcomeOf(ends).answered)
			}
		}
		lost, is_lost := s.lost[of.of]
		if is_lost {
			over = min(over, lost.at)
		}
		granted, is_granted := s.granted[of.of]
		switch of.command {
		case "acquire":
			if is_granted && granted.at < all.answered {
				all.out, all.answered = granted.out, granted.at
			}
			if all.answered != never {
				add(all.first, "acquire", all.answered, all.out, s.heldUntil(all.first, all.answered), over)
				continue
			}
			never_granted := all.is_nil || is_lost && (lost.reason == "timeout" || lost.reason == "deadlock")
			if all.is_open && !never_granted {
				add(all.first, "acquire", over, output{unknown: true}, all.first.Sent, over)
			}
		case "renew":
			for _, c := range groups[of] {
				if out, has_count := count(c.Reply); c.Outcome == "reply" && has_count {
					add(c, "renew", *c.Answered, out, s.heldUntil(c, *c.Answered), over)
				}
			}
		case "release":
			switch {
			case all.answered != never:
				add(all.first, "release", all.answered, all.out, 0, 0)
			case all.is_open:
				add(all.first, "release", never, output{unknown: true}, 0, 0)
			}
		case "cancel":
			acquires := groups[kind{of.of, "acquire"}]
			was_held := is_granted || acquires != nil && outcomeOf(acquires).answered != never
			if was_held && (all.answered != never && all.out.count > 0 || all.is_open) {
				add(all.first, "release", all.answered, output{unknown: true}, 0, 0)
			}
		}
	}
}

// heldUntil returns the time until which an acquire or a renewal with a number certainly holds the lock.
func (s sessions) heldUntil(c call, known int64) int64 {
	until := s.safeUntil(*c.Session, known)
	if c.Lease != nil && !c.Watchdog {
		until = min(until, c.Sent+*c.Lease*1000-slack)
	}
	return max(until, c.Sent)
}

// isOfSession reports whether a call belongs to a session.
func (c call) isOfSession() bool {
	return c.Session != nil || strings.HasSuffix(c.Command, "_session") || c.Command == "events"
}
