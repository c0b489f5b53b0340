// SPDX-License-Identifier: MIT

// Counts under a lock: reads a number and writes it plus one. No increment gets lost, even beside the other languages.
//
//	cd examples/go && go run . redis://127.0.0.1:6379 100
package main

import (
	"context"
	"log"
	"os"
	"strconv"

	lock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis/go-redis/v9"
)

func main() {
	options, err := redis.ParseURL(os.Args[1])
	must(err)
	times, err := strconv.Atoi(os.Args[2])
	must(err)
	client := redis.NewClient(options)
	locks, err := lock.New(client)
	must(err)
	defer locks.Close()
	for ; times > 0; times-- {
		// The loss of the lock ends the context, and the program: Do returns ErrLost.
		must(locks.Do(context.Background(), "example:lock", func(ctx context.Context) error {
			value, err := client.Get(ctx, "example:counter").Int()
			if err != nil && err != redis.Nil {
				return err
			}
			return client.Set(ctx, "example:counter", value+1, 0).Err()
		}))
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
