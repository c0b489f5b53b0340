// SPDX-License-Identifier: MIT

// Command porcupine checks histories of exclusive and shared locks with Porcupine, an independent checker for
// linearizability.
//
// Each lock is checked on its own. Each call takes effect at some time between its sending and its reply. A history is right if
// there is an order in which a plain lock gives the same replies. The plain lock has readers, limits, hold counts and tokens.
// The model omits nil replies, which depend on the queue, and waiting times. The holds of a session last at least for its safe
// time, see sessions.go.
//
//	go run . [-timeout 60s] history.jsonl
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// call is a call in the history. Times are in microseconds, leases in milliseconds.
type call struct {
	Record       string          `json:"record"`
	Command      string          `json:"command"`
	Keys         []string        `json:"keys"`
	Key          string          `json:"key"`
	Owner        string          `json:"owner"`
	Claim        claim           `json:"claim"`
	Lease        *int64          `json:"lease"`
	All          bool            `json:"all"`
	Several      bool            `json:"several"`
	Shared       bool            `json:"shared"`
	Limit        *int64          `json:"limit"`
	Once         bool            `json:"once"`
	Fence        bool            `json:"fence"`
	Watchdog     bool            `json:"watchdog"`
	Ephemeral    bool            `json:"ephemeral"`
	ID           *string         `json:"id"`
	Connection   int64           `json:"connection"`
	ServerID     int64           `json:"server_id"`
	Client       int             `json:"client"`
	Number       int64           `json:"number"`
	Sent         int64           `json:"sent"`
	Answered     *int64          `json:"answered"`
	Outcome      string          `json:"outcome"`
	Reply        json.RawMessage `json:"reply"`
	DefaultLease int64           `json:"default_lease"`
	Session      *number         `json:"session"`
	Queue        *int64          `json:"queue"`
	SessionID    *string         `json:"session_id"`
	Grace        *int64          `json:"grace"`
	Count        int64           `json:"count"`
}

type claim struct {
	Owner *string `json:"owner"`
	Token *int64  `json:"token"`
}

// input is an operation. All calls of one request are one operation. The end of a lease is an operation, too.
type input struct {
	what   string
	number int
	owner  string
	all    bool
	fence  bool
	sets   bool
	shared bool
	limit  int64
	token  int64
	// Bounds in microseconds for the end of the lease that the operation sets.
	early, late int64
}

// output is the outcome of an operation.
type output struct {
	unknown  bool
	notOwner bool
	count    int64
	token    int64
}

// hold is an owner's hold of a lock. Its lease is the number of the operation that has set it.
type hold struct {
	owner             string
	exclusive, shared int64
	lease             int
	early, late       int64
	// The token of the hold. If the token is unknown, the negated greatest token before it, minus one.
	token int64
}

func (h hold) total() int64 {
	return h.exclusive + h.shared
}

// state is a lock: its holds, sorted by owner, and the greatest known token. A state is never changed, only copied.
type state struct {
	holds []hold
	last  int64
}

const (
	never = math.MaxInt64
	// Leases are whole milliseconds, and clocks are corrected.
	slack = 5_000
)

func (s state) of(owner string) (hold, bool) {
	for _, one := range s.holds {
		if one.owner == owner {
			return one, true
		}
	}
	return hold{owner: owner}, false
}

// with returns the state with this hold. An empty hold removes its owner.
func (s state) with(changed hold) state {
	holds := make([]hold, 0, len(s.holds)+1)
	for _, one := range s.holds {
		if one.owner != changed.owner {
			holds = append(holds, one)
		}
	}
	if changed.total() > 0 {
		at := sort.Search(len(holds), func(at int) bool { return holds[at].owner > changed.owner })
		holds = append(holds, hold{})
		copy(holds[at+1:], holds[at:])
		holds[at] = changed
	}
	return state{holds: holds, last: s.last}
}

// leased returns the hold with the lease that an operation sets.
func (h hold) leased(in input) hold {
	h.lease, h.early, h.late = in.number, in.early, in.late
	return h
}

func step(s state, in input, out output) []state {
	switch in.what {
	case "expire":
		for _, one := range s.holds {
			if one.lease == in.number {
				return []state{s.with(hold{owner: one.owner})}
			}
		}
		return []state{s}
	case "break":
		if !out.unknown && out.count != int64(len(s.holds)) {
			return nil
		}
		return []state{{last: s.last}}
	case "token":
		if !out.notOwner && !out.unknown && in.token < s.last {
			return nil
		}
		return []state{s}
	case "acquire":
		return acquire(s, in, out)
	}
	// All other operations need a holder.
	held, holds := s.of(in.owner)
	if !holds {
		if out.unknown || out.notOwner {
			return []state{s}
		}
		return nil
	}
	if out.notOwner {
		return nil
	}
	switch in.what {
	case "check":
		if !out.unknown && !in.fence && out.count != held.total() {
			return nil
		}
	case "renew":
		if !out.unknown && out.count != held.total() {
			return nil
		}
		held = held.leased(in)
	case "release":
		switch {
		case in.all:
			held.exclusive, held.shared = 0, 0
		case held.exclusive > 0:
			held.exclusive--
		default:
			held.shared--
		}
		if !out.unknown && out.count != held.total() {
			return nil
		}
		if in.sets {
			held = held.leased(in)
		}
	}
	return []state{s.with(held)}
}

// excludes reports whether other holds exclude the operation.
func (s state) excludes(in input) bool {
	others := int64(0)
	for _, one := range s.holds {
		if one.owner == in.owner {
			continue
		}
		others++
		if one.exclusive > 0 || !in.shared {
			return true
		}
	}
	// An owner with a permit needs no other.
	return in.limit > 0 && others >= in.limit && others == int64(len(s.holds))
}

func acquire(s state, in input, out output) []state {
	if s.excludes(in) {
		// The call timed out, or never ran.
		if out.unknown {
			return []state{s}
		}
		return nil
	}
	held, holds := s.of(in.owner)
	// A reader that upgrades needs a new token, as other owners may have got newer ones.
	if !in.shared && held.exclusive == 0 {
		held.token = 0
	}
	if in.shared {
		held.shared++
	} else {
		held.exclusive++
	}
	if !out.unknown && out.count != held.total() {
		return nil
	}
	next := state{holds: s.holds, last: s.last}
	if in.fence && out.unknown && held.token == 0 {
		held.token = -s.last - 1
	}
	if in.fence && !out.unknown {
		above := s.last
		if held.token < 0 {
			above = -held.token - 1
		}
		if held.token > 0 && out.token != held.token || held.token <= 0 && out.token <= above {
			return nil
		}
		held.token = out.token
		next.last = max(next.last, out.token)
	}
	same, longer := next.with(held), next.with(held.leased(in))
	// A re-entry without a lease never shortens the lease: the longer one applies.
	switch {
	case !holds || in.sets || in.early >= held.late:
		return []state{longer}
	case held.early >= in.late:
		return []state{same}
	}
	return []state{same, longer}
}

func equal(a, b state) bool {
	if a.last != b.last || len(a.holds) != len(b.holds) {
		return false
	}
	for at := range a.holds {
		if a.holds[at] != b.holds[at] {
			return false
		}
	}
	return true
}

func hashed(s state) uint64 {
	hash := uint64(s.last) * 31
	for _, one := range s.holds {
		hash = (hash^uint64(one.lease))*1099511628211 + uint64(one.exclusive)*7 + uint64(one.shared)
	}
	return hash
}

func min(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

func max(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

func model() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init:  func() []interface{} { return []interface{}{state{}} },
		Equal: func(a, b interface{}) bool { return equal(a.(state), b.(state)) },
		Hash:  func(one interface{}) uint64 { return hashed(one.(state)) },
		Step: func(s, in, out interface{}) []interface{} {
			var next []interface{}
			for _, one := range step(s.(state), in.(input), out.(output)) {
				next = append(next, one)
			}
			return next
		},
		DescribeOperation: func(in, out interface{}) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	}
	return nondeterministic.ToModel()
}

func read(name string) (calls []call, opened map[int64]int64, lease int64, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, 0, err
	}
	defer file.Close()
	// The reply to `CLIENT ID` on each connection.
	opened = map[int64]int64{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var one call
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, nil, 0, fmt.Errorf("%w in %s", err, lines.Text())
		}
		switch one.Record {
		case "run":
			lease = one.DefaultLease
		case "opened":
			opened[one.Connection] = one.ServerID
		case "call":
			calls = append(calls, one)
		case "fault":
			return nil, nil, 0, fmt.Errorf("%s has faults, which this model does not know", name)
		}
	}
	return calls, opened, lease, lines.Err()
}

func count(reply json.RawMessage) (output, bool) {
	var number int64
	if json.Unmarshal(reply, &number) == nil && string(reply) != "null" {
		return output{count: number}, true
	}
	var parts []interface{}
	if json.Unmarshal(reply, &parts) != nil || len(parts) == 0 {
		return output{}, false
	}
	var out output
	for at := 0; at+1 < len(parts); at += 2 {
		value, _ := parts[at+1].(float64)
		switch parts[at] {
		case "holds":
			out.count = int64(value)
		case "token":
			out.token = int64(value)
		}
	}
	return out, true
}

func (c call) input(number int) (in input, lock string, known bool) {
	in = input{what: c.Command, number: number, owner: c.Owner, all: c.All, fence: c.Fence, sets: c.Lease != nil}
	if in.shared = c.Shared; c.Limit != nil {
		in.limit = *c.Limit
	}
	lock = c.Key
	switch c.Command {
	case "acquire", "release", "renew":
		lock = c.Keys[0]
	case "check", "guard":
		if in.what = "check"; c.Claim.Token != nil {
			in.what, in.token = "token", *c.Claim.Token
		} else {
			in.owner = *c.Claim.Owner
		}
		// A guarded write gets the reply of its command.
		in.fence = c.Command == "guard"
	case "break":
	default:
		return in, lock, false
	}
	return in, lock, true
}

// waiting returns the last time at which each call was seen waiting; its grant came later.
func waiting(calls []call, opened map[int64]int64) map[int64]int64 {
	type waiter struct {
		lock, owner string
		client      int64
	}
	observations := map[waiter][]call{}
	for _, c := range calls {
		var queue [][]interface{}
		if c.Command != "waiters" || c.Answered == nil || json.Unmarshal(c.Reply, &queue) != nil {
			continue
		}
		for _, entry := range queue {
			who := waiter{lock: c.Key}
			for at := 0; at+1 < len(entry); at += 2 {
				switch value := entry[at+1].(type) {
				case string:
					if entry[at] == "owner" {
						who.owner = value
					}
				case float64:
					if entry[at] == "client" {
						who.client = int64(value)
					}
				}
			}
			observations[who] = append(observations[who], c)
		}
	}
	seen := map[int64]int64{}
	for _, c := range calls {
		if c.Command != "acquire" || c.Answered == nil {
			continue
		}
		for _, observation := range observations[waiter{c.Keys[0], c.Owner, opened[c.Connection]}] {
			if observation.Sent >= c.Sent && *observation.Answered <= *c.Answered {
				seen[c.Number] = max(seen[c.Number], observation.Sent)
			}
		}
	}
	return seen
}

// operations returns the operations of each lock. Calls with the same ID are one operation.
func operations(calls []call, opened map[int64]int64, lease int64) (map[string][]porcupine.Operation, error) {
	sort.SliceStable(calls, func(a, b int) bool { return calls[a].Sent < calls[b].Sent })
	locks := map[string][]porcupine.Operation{}
	// The first call of each request without a reply; nil once a reply has arrived.
	open := map[string]*call{}
	number := 0
	seen := waiting(calls, opened)
	add := func(c call, sent, end int64, out output) {
		number++
		in, lock, _ := c.input(number)
		// The grant came after the call was seen waiting. An earlier call of the request may have been granted.
		if sent == c.Sent {
			sent = max(sent, seen[c.Number])
		}
		length := lease
		if c.Lease != nil {
			length = *c.Lease
		}
		until := int64(never)
		if end != never {
			until = end + length*1000 + slack
		}
		in.early, in.late = sent+length*1000-slack, until
		op := porcupine.Operation{ClientId: number, Input: in, Call: sent, Output: out, Return: end}
		locks[lock] = append(locks[lock], op)
		leases := c.Command == "acquire" || c.Command == "renew" || c.Command == "release" && c.Lease != nil
		if !leases || out.notOwner {
			return
		}
		over := porcupine.Operation{ClientId: -number, Input: input{what: "expire", number: number}, Output: output{}}
		over.Call, over.Return = in.early, in.late
		locks[lock] = append(locks[lock], over)
	}
	for at := range calls {
		c := calls[at]
		if c.isOfSession() {
			continue
		}
		_, _, known := c.input(0)
		releasesShared := c.Shared && c.Command != "acquire"
		if c.Several || c.Once || releasesShared || c.Watchdog || c.Ephemeral || c.Command == "cancel" {
			return nil, fmt.Errorf("the history has %s with options that this model does not know", c.Command)
		}
		if !known || c.Outcome == "unsent" {
			continue
		}
		sent, request := c.Sent, ""
		if c.ID != nil {
			request = strings.Join([]string{c.Command, c.Keys[0], c.Owner, *c.ID}, " ")
			if first, is_open := open[request]; is_open {
				if first == nil {
					// A retry of a request that already has a reply.
					continue
				}
				sent = first.Sent
			}
		}
		switch c.Outcome {
		case "unknown":
			if request == "" {
				add(c, sent, never, output{unknown: true})
			} else if open[request] == nil {
				open[request] = &calls[at]
			}
		case "error":
			if strings.HasPrefix(string(c.Reply), `"NOTOWNER`) && open[request] == nil {
				add(c, c.Sent, *c.Answered, output{notOwner: true})
			}
		case "reply":
			out, is_done := count(c.Reply)
			if !is_done {
				continue
			}
			add(c, sent, *c.Answered, out)
			if request != "" {
				open[request] = nil
			}
		}
	}
	for _, first := range open {
		if first != nil {
			add(*first, first.Sent, never, output{unknown: true})
		}
	}
	newSessions(calls).operations(calls, number, locks)
	return locks, nil
}

func main() {
	timeout := flag.Duration("timeout", 60*time.Second, "for one lock")
	flag.Parse()
	failed := false
	for _, name := range flag.Args() {
		calls, opened, lease, err := read(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		locks, err := operations(calls, opened, lease)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		total, results := 0, map[porcupine.CheckResult]int{}
		began := time.Now()
		for lock, operations := range locks {
			total += len(operations)
			result := porcupine.CheckOperationsTimeout(model(), operations, *timeout)
			results[result]++
			if result != porcupine.Ok {
				failed = true
				fmt.Printf("%s: %s in %s\n", map[bool]string{true: "WRONG", false: "undecided"}[result == porcupine.Illegal], lock, name)
			}
		}
		fmt.Printf("%s: %d operations on %d locks in %.1f s: %d linearizable, %d wrong, %d undecided\n", name, total, len(locks),
			time.Since(began).Seconds(), results[porcupine.Ok], results[porcupine.Illegal], results[porcupine.Unknown])
	}
	if failed {
		os.Exit(1)
	}
}
