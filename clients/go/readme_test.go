// SPDX-License-Identifier: MIT

package lock_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

var (
	counted        int
	stored         []int64
	count          = func(context.Context) error { counted++; return nil }
	read, transfer = count, count
	store          = func(token int64) { stored = append(stored, token) }
)

func readmeAcquire(ctx context.Context, locks *lock.Locks) error {
	hold, err := locks.Acquire(ctx, "order:42", lock.WithWait(2*time.Second), lock.WithLease(10*time.Second), lock.Fenced())
	if errors.Is(err, lock.ErrTimeout) {
		return nil
	}
	if err != nil {
		return err
	}
	defer hold.Release(ctx)
	store(hold.Token())
	_, err = hold.Guard(ctx, "SET", "result", "42") // ErrLost, and no write, if the lock is lost
	return err
}

func readmeTry(ctx context.Context, locks *lock.Locks) error {
	hold, ok, err := locks.Try(ctx, "report")
	if err != nil || !ok {
		return err
	}
	defer hold.Release(ctx)
	return nil
}

func readmeKinds(ctx context.Context, locks *lock.Locks) error {
	var err error
	err = locks.Do(ctx, "catalogue", read, lock.Shared())
	if err != nil {
		return err
	}
	err = locks.Do(ctx, "downloads", read, lock.WithLimit(5))
	if err != nil {
		return err
	}
	err = locks.Do(ctx, "account:1", transfer, lock.And("account:2"))
	return err
}

func readmeHandOver(hold *lock.Hold) (string, error) {
	ticket, err := hold.HandOver()
	return ticket, err
}

func readmeAttach(ctx context.Context, locks *lock.Locks, ticket string) error {
	job, err := locks.Lock("order:42", lock.WithLease(10*time.Second)) // in the other process
	if err != nil {
		return err
	}
	hold, err := job.Attach(ctx, ticket)
	if err != nil {
		return err
	}
	return hold.Release(ctx)
}

func TestReadmeRunsAsWritten(t *testing.T) {
	compiled := unindented(string(must(os.ReadFile("readme_test.go"))))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(must(os.ReadFile("README.md"))), -1)
	if len(blocks) != 6 {
		t.Fatal(len(blocks), "blocks")
	}
	// tests/scripts/first_use.py compiles and runs the first one.
	for _, block := range blocks[1:] {
		for _, line := range strings.Split(unindented(block[1]), "\n") {
			if !strings.Contains(compiled, line) {
				t.Error("not compiled:", line)
			}
		}
	}
	s := start(t)
	locks := locksAt(t, s.address())
	lease := lock.WithLease(10 * time.Second)
	ticket, err := readmeHandOver(must(locks.Acquire(background, "order:42", lease)))
	errs := []error{
		err, readmeAttach(background, locksAt(t, s.address()), ticket), readmeAcquire(background, locks),
		readmeTry(background, locks), readmeKinds(background, locks),
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if counted != 3 || stored[0] == 0 || s.ask("GET", "result") != "42" || !s.isFree("order:42") {
		t.Fatal(counted, stored)
	}
}

func unindented(code string) string { return strings.ReplaceAll(code, "\t", "") }

func TestReadmeHasEveryOption(t *testing.T) {
	text := string(must(os.ReadFile("README.md")))
	for _, file := range []string{"options.go", "locks.go"} {
		source := string(must(os.ReadFile(file)))
		for _, option := range regexp.MustCompile(`(?m)^func (\w+)\(.*\) (?:Option|Setting) `).FindAllStringSubmatch(source, -1) {
			if !strings.Contains(text, "| `"+option[1]+"(") {
				t.Error(option[1])
			}
		}
	}
}
