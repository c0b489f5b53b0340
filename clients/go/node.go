// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// callTimeout limits one call without a reply. Then it is repeated on another connection.
const callTimeout = 2 * time.Second

// maxFlying limits the calls and batches on their way at the same time, and maxBatch the calls of a batch.
const maxFlying, maxBatch = 4, 64

// A node is a server, reached by the user's client: by its pool, and by one more connection for the reader.
type node struct {
	origin, calls, reader *redis.Client

	mu sync.Mutex
	// flying counts the calls and batches on their way. Further calls are queued, and go out together.
	flying int
	queue  []*queued
}

// A queued call waits until a call on its way has ended. Then the first call of the queue sends all of them in one round trip.
type queued struct {
	words []any
	// turn gets the batch that this call sends, or nil once it has its result.
	turn   chan []*queued
	result result
}

func newNode(origin *redis.Client) *node {
	// The copy shares the pool and the hooks. Its options are its own.
	calls := origin.WithTimeout(callTimeout)
	calls.Options().MaxRetries, calls.Options().ContextTimeoutEnabled = 0, true
	return &node{origin: origin, calls: calls, reader: newReader(origin)}
}

// callContext has a deadline without a timer: go-redis limits reads and writes by it.
type callContext struct {
	context.Context
	deadline time.Time
}

func (c callContext) Deadline() (time.Time, bool) { return c.deadline, true }

// call has the reply to a call, over any connection of the pool.
func (n *node) call(ctx context.Context, timeout time.Duration, words []any) (any, error) {
	n.mu.Lock()
	if n.flying < maxFlying {
		n.flying++
		n.mu.Unlock()
		defer n.land()
		return do(ctx, n.calls, timeout, words)
	}
	call := &queued{words: words, turn: make(chan []*queued, 1)}
	n.queue = append(n.queue, call)
	n.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	select {
	case batch := <-call.turn:
		n.send(batch)
	case <-ctx.Done():
		if n.withdraw(call) {
			return nil, classify(ctx.Err())
		}
		n.send(<-call.turn)
	}
	return call.result.unpack()
}

func (n *node) send(batch []*queued) {
	if batch == nil {
		return
	}
	defer n.land()
	calls := make([][]any, len(batch))
	for i, each := range batch {
		calls[i] = each.words
	}
	for i, r := range n.batch(callTimeout, calls) {
		batch[i].result = r
		if i > 0 {
			batch[i].turn <- nil
		}
	}
}

func (n *node) withdraw(call *queued) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.Index(n.queue, call)
	if i >= 0 {
		n.queue = slices.Delete(n.queue, i, i+1)
	}
	return i >= 0
}

// land ends a call or a batch. The first call of the queue sends the next batch.
func (n *node) land() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		n.flying--
		return
	}
	next := slices.Clone(n.queue[:min(len(n.queue), maxBatch)])
	n.queue = slices.Delete(n.queue, 0, len(next))
	next[0].turn <- next
}

func do(ctx context.Context, client *redis.Client, timeout time.Duration, words []any) (any, error) {
	reply, err := client.Do(callContext{ctx, time.Now().Add(timeout)}, words...).Result()
	if err == nil || errors.Is(err, redis.Nil) {
		return reply, nil
	}
	return nil, classify(err)
}

type result struct {
	reply any
	err   *Error
}

func (r result) unpack() (any, error) {
	if r.err != nil {
		return nil, r.err
	}
	return r.reply, nil
}

// batch has the replies to calls in one round trip.
func (n *node) batch(timeout time.Duration, calls [][]any) []result {
	pipe := n.calls.Pipeline()
	replies, results := make([]*redis.Cmd, len(calls)), make([]result, len(calls))
	ctx := callContext{context.Background(), time.Now().Add(timeout)}
	for i, words := range calls {
		replies[i] = pipe.Do(ctx, words...)
	}
	_, failure := pipe.Exec(ctx)
	for i, reply := range replies {
		switch err := reply.Err(); {
		case err == nil && reply.Val() == nil:
			// Without a connection, go-redis does not set the errors of the commands.
			results[i].err = classify(failure)
		case err == nil:
			results[i].reply = reply.Val()
		case !errors.Is(err, redis.Nil):
			results[i].err = classify(err)
		}
	}
	return results
}

// read has the reply to a call over the reader's connection. After a failure the next call makes another connection.
func (n *node) read(timeout time.Duration, words []any) (any, error) {
	return do(context.Background(), n.reader, timeout, words)
}

// newReader has one connection, as its calls are made one after the other. A small pool would dial less often after failures.
func newReader(origin *redis.Client) *redis.Client {
	options := *origin.Options()
	options.MaxRetries, options.ContextTimeoutEnabled, options.Limiter = -1, true, nil
	options.ReadTimeout, options.WriteTimeout, options.ConnMaxIdleTime = callTimeout, callTimeout, -1
	options.PoolSize, options.MinIdleConns, options.MaxIdleConns, options.MaxActiveConns = 1000, 0, 0, 0
	dial := options.Dialer
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return dial(ctx, network, address)
	}
	return redis.NewClient(&options)
}
