// SPDX-License-Identifier: MIT

// Command load uses the locks of an etcd server for the benchmark `peers`. Its argument is the address of the server. Each
// line of standard input is a request, and gets one line of standard output when it is done:
//
//	connect <clients>                                        connected
//	race <clients> <locks> <warm-up ms> <ms>                 <all grants> <counted grants> <hand-overs> <waits>
//	lock <name>                                              locked
//
// A race is like that of tests/clients/redisson/src/Race.java, and its answer has the same format. Each client has its own
// connection and its own session with the default TTL of 60 seconds. The end of the input ends the program.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// quantiles is the number of steps between the quantiles in an answer.
const quantiles = 1000

// load has the sessions of all clients so far.
type load struct {
	address  string
	sessions []*concurrency.Session
}

func main() {
	load := &load{address: os.Args[1]}
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		answer, err := load.perform(strings.Fields(input.Text()))
		if err != nil {
			log.Fatalf("%s: %v", input.Text(), err)
		}
		fmt.Println(answer)
	}
}

func (l *load) perform(words []string) (string, error) {
	if len(words) == 2 && words[0] == "lock" {
		if err := l.connect(1); err != nil {
			return "", err
		}
		return "locked", concurrency.NewMutex(l.sessions[0], "/"+words[1]).Lock(context.Background())
	}
	var numbers []int
	for _, word := range words[1:] {
		number, err := strconv.Atoi(word)
		if err != nil {
			return "", err
		}
		numbers = append(numbers, number)
	}
	switch {
	case words[0] == "connect" && len(numbers) == 1:
		return "connected", l.connect(numbers[0])
	case words[0] == "race" && len(numbers) == 4:
		milliseconds := func(number int) time.Duration { return time.Duration(number) * time.Millisecond }
		return l.race(numbers[0], numbers[1], milliseconds(numbers[2]), milliseconds(numbers[3]))
	}
	return "", errors.New("unknown request")
}

// connect connects clients until there are this many.
func (l *load) connect(clients int) error {
	for len(l.sessions) < clients {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{l.address}, DialTimeout: 30 * time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			return err
		}
		session, err := concurrency.NewSession(client)
		if err != nil {
			return err
		}
		l.sessions = append(l.sessions, session)
	}
	return nil
}

// release is the begin of the last release in a race.
type release struct {
	client int
	at     time.Time
}

// race has the state that all clients of a race share.
type race struct {
	measuring atomic.Bool
	// end is the end of the measured time, or nil before it.
	end  atomic.Pointer[time.Time]
	last atomic.Pointer[release]
}

// racer has the results of one client.
type racer struct {
	all, counted     int
	handOvers, waits []time.Duration
}

func (l *load) race(clients, locks int, warmUp, measured time.Duration) (string, error) {
	if err := l.connect(clients); err != nil {
		return "", err
	}
	race := &race{}
	racers := make([]racer, clients)
	failures := make(chan error, clients)
	var running sync.WaitGroup
	for number := range racers {
		mutex := concurrency.NewMutex(l.sessions[number], fmt.Sprintf("/race/%d", number%locks))
		running.Add(1)
		go func() {
			defer running.Done()
			for race.end.Load() == nil {
				if err := race.round(mutex, number, &racers[number]); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	time.Sleep(warmUp)
	race.measuring.Store(true)
	time.Sleep(measured)
	end := time.Now()
	race.measuring.Store(false)
	race.end.Store(&end)
	running.Wait()
	select {
	case err := <-failures:
		return "", err
	default:
	}
	var sum racer
	for _, racer := range racers {
		sum.all += racer.all
		sum.counted += racer.counted
		sum.handOvers = append(sum.handOvers, racer.handOvers...)
		sum.waits = append(sum.waits, racer.waits...)
	}
	return fmt.Sprintf("%d %d %s %s", sum.all, sum.counted, steps(sum.handOvers), steps(sum.waits)), nil
}

// round acquires and releases the lock once.
func (r *race) round(mutex *concurrency.Mutex, number int, racer *racer) error {
	asked := time.Now()
	if err := mutex.Lock(context.Background()); err != nil {
		return err
	}
	now := time.Now()
	racer.all++
	if end := r.end.Load(); r.measuring.Load() {
		racer.counted++
		racer.waits = append(racer.waits, now.Sub(asked))
		if last := r.last.Load(); last != nil && last.client != number {
			racer.handOvers = append(racer.handOvers, now.Sub(last.at))
		}
	} else if end != nil && asked.Before(*end) {
		// The wait had this length when the measured time ended.
		racer.waits = append(racer.waits, end.Sub(asked))
	}
	r.last.Store(&release{number, time.Now()})
	return mutex.Unlock(context.Background())
}

// steps returns the quantiles of times in nanoseconds, in ascending order and separated by commas, or "-" without times.
func steps(times []time.Duration) string {
	if len(times) == 0 {
		return "-"
	}
	slices.Sort(times)
	words := make([]string, quantiles+1)
	for step := range words {
		words[step] = strconv.FormatInt(times[(len(times)-1)*step/quantiles].Nanoseconds(), 10)
	}
	return strings.Join(words, ",")
}
