// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// callTimeout limits one call without a reply. Then it is repeated on another connection.
	callTimeout = 2 * time.Second
	// callConnections is the maximum number of connections for calls. Further calls are queued, and share a round trip.
	callConnections = 4
	// maxBatch is the maximum number of calls that share a round trip.
	maxBatch = 64
)

// A node is a server, reached by the user's client: by its pool, and by one more connection for the reader.
type node struct {
	reader *redis.Client

	mu sync.Mutex
	// calls is a copy of origin, the user's client.
	origin, calls *redis.Client
	// flying counts the calls and batches on their way.
	flying int
	queue  []queued
}

type queued struct {
	words  []any
	result chan result
}

type result struct {
	reply any
	err   *Error
}

func newNode(origin *redis.Client) *node {
	// The reader has one connection, as its calls are made one after the other. A small pool would dial less often after failures.
	options := *origin.Options()
	options.MaxRetries, options.ContextTimeoutEnabled, options.Limiter = -1, true, nil
	options.ReadTimeout, options.WriteTimeout, options.ConnMaxIdleTime = callTimeout, callTimeout, -1
	options.PoolSize, options.MinIdleConns, options.MaxIdleConns, options.MaxActiveConns = 1000, 0, 0, 0
	n := &node{reader: redis.NewClient(&options)}
	n.use(origin)
	return n
}

// use makes calls by this client of the user. A cluster client replaces the client of a node that was gone for a time.
func (n *node) use(origin *redis.Client) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.origin != origin {
		n.origin, n.calls = origin, once(origin, callTimeout)
		n.calls.Options().ContextTimeoutEnabled = true
	}
}

func (n *node) caller() *redis.Client {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

// once copies a client, without its repetitions. The copy shares the pool and the hooks. Its options are its own.
func once(client *redis.Client, timeout time.Duration) *redis.Client {
	client = client.WithTimeout(timeout)
	client.Options().MaxRetries = 0
	return client
}

// callContext has a deadline without a timer: go-redis limits reads and writes by it.
type callContext struct {
	context.Context
	deadline time.Time
}

func (c callContext) Deadline() (time.Time, bool) { return c.deadline, true }

// send has the reply to a call, over any connection of the pool.
func (n *node) send(ctx context.Context, timeout time.Duration, words []any) (any, *Error) {
	n.mu.Lock()
	if n.flying < callConnections {
		n.flying++
		client := n.calls
		n.mu.Unlock()
		defer n.land()
		return do(ctx, client, timeout, words)
	}
	call := queued{words, make(chan result, 1)}
	n.queue = append(n.queue, call)
	n.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	select {
	case r := <-call.result:
		return r.reply, r.err
	case <-ctx.Done():
		// It may be sent later. That is harmless, because its words name a number.
		return nil, classify(ctx.Err())
	}
}

// land ends a call or a batch. Then the queued calls go out together.
func (n *node) land() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		n.flying--
		return
	}
	client, batch := n.calls, n.queue[:min(len(n.queue), maxBatch)]
	n.queue = n.queue[len(batch):]
	go func() {
		defer n.land()
		calls := make([][]any, len(batch))
		for i, call := range batch {
			calls[i] = call.words
		}
		for i, r := range pipeline(client, callTimeout, calls) {
			batch[i].result <- r
		}
	}()
}

func do(ctx context.Context, client *redis.Client, timeout time.Duration, words []any) (any, *Error) {
	reply, err := client.Do(callContext{ctx, time.Now().Add(timeout)}, words...).Result()
	if err == nil || errors.Is(err, redis.Nil) {
		return reply, nil
	}
	return nil, classify(err)
}

// pipeline has the replies to calls in one round trip.
func pipeline(client *redis.Client, timeout time.Duration, calls [][]any) []result {
	pipe := client.Pipeline()
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
