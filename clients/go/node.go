// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"errors"
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

type result struct {
	reply any
	err   *Error
}

type queued struct {
	words []any
	result
	replied chan struct{}
}

// readerOf has a client with one connection, as its calls are made one after the other.
func readerOf(origin *redis.Client) *redis.Client {
	options := *origin.Options()
	options.MaxRetries, options.ContextTimeoutEnabled, options.Limiter = -1, true, nil
	options.ReadTimeout, options.WriteTimeout = callTimeout, callTimeout
	// A connection that ends on purpose would end a session without grace.
	options.ConnMaxIdleTime, options.ConnMaxLifetime = -1, 0
	// A small pool would dial less often after failures.
	options.PoolSize, options.MinIdleConns, options.MaxIdleConns, options.MaxActiveConns = 1000, 0, 0, 0
	return redis.NewClient(&options)
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
