// SPDX-License-Identifier: MIT

// The program runs a job of gocron under a lock, on the server of its argument.
package main

import (
	"fmt"
	"os"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
	lockgocron "github.com/redis-lock/redis-lock/clients/go/gocron"
)

func main() {
	options, err := redis.ParseURL(os.Args[1])
	check(err)
	locks, err := lock.New(redis.NewClient(options))
	check(err)
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(lockgocron.New(locks)))
	check(err)
	done := make(chan struct{})
	_, err = scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() {
		fmt.Println("the job runs")
		close(done)
	}))
	check(err)
	scheduler.Start()
	<-done
	check(scheduler.Shutdown())
	locks.Close()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
