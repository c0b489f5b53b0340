// SPDX-License-Identifier: MIT

package lock

import (
	"context"
	"net"
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

// A call has words, and then a reply or an error. Nil is a reply.
type call struct {
	words   []any
	reply   any
	err     *Error
	replied chan struct{}
}

// readerOf has a client for one connection, as its calls are made one after the other.
func readerOf(origin *redis.Client) *redis.Client {
	options := *origin.Options()
	options.MaxRetries, options.ContextTimeoutEnabled, options.Limiter = -1, true, nil
	options.ReadTimeout, options.WriteTimeout = callTimeout, callTimeout
	// A connection that ends on purpose would end a session without grace.
	options.ConnMaxIdleTime, options.ConnMaxLifetime = -1, 0
	// A small pool would dial less often after failures.
	options.PoolSize, options.MinIdleConns, options.MaxIdleConns, options.MaxActiveConns = 1000, 0, 0, 0
	dial := options.Dialer
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		// With TLS, go-redis ignores the context.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		var conn net.Conn
		var err error
		dialed := make(chan struct{})
		go func() {
			conn, err = dial(ctx, network, address)
			close(dialed)
		}()
		select {
		case <-dialed:
			return conn, err
		case <-ctx.Done():
			go func() {
				if <-dialed; err == nil {
					_ = conn.Close()
				}
			}()
			return nil, ctx.Err()
		}
	}
	return redis.NewClient(&options)
}

// once copies a client, without its repetitions. The copy shares the pool and the hooks. Its options are its own.
func once(client *redis.Client) *redis.Client {
	client = client.WithTimeout(client.Options().ReadTimeout)
	client.Options().MaxRetries, client.Options().ContextTimeoutEnabled = 0, true
	return client
}

// A callContext has a deadline without a timer: go-redis limits reads and writes by it.
type callContext struct {
	context.Context
	deadline time.Time
}

func (c callContext) Deadline() (time.Time, bool) { return c.deadline, true }

func within(span time.Duration) context.Context {
	return callContext{context.Background(), time.Now().Add(span)}
}
