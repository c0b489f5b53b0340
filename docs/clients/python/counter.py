#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts with several workers: first without a lock, so that increments get lost, then with a lock.

    redis-server --loadmodule target/release/libredis_lock.so
    python3 docs/clients/python/counter.py --url redis://127.0.0.1:6379 --workers 10 --increments 100

Needs redis-py (pip install redis), 4.3 or later.
"""

import argparse
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

COUNTER = "example:counter"
LOCK = "example:lock"

# The lease must be longer than the work. If the holder dies, its waiters wait until the lease ends.
LEASE_MS = 10_000


class LockLost(Exception):
    """The lock was lost during the work."""


@contextmanager
def lock(client, owner):
    """Holds the lock for the block of a `with` statement."""
    # BLOCK 0 waits without limit, so the reply is always a grant, with the hold count. With BLOCK 500 the reply can also be
    # None, after 500 ms: then the caller must not work.
    client.execute_command("LOCK.ACQUIRE", LOCK, owner, "PX", LEASE_MS, "BLOCK", 0)
    try:
        yield
    finally:
        # Releases after an error of the work, too. If the process dies, the end of the lease frees the lock.
        try:
            client.execute_command("LOCK.RELEASE", LOCK, owner)
        except redis.ResponseError as error:
            if not str(error).startswith("NOTOWNER"):
                raise
            # The lease ended, or somebody broke the lock: another worker may have worked at the same time.
            raise LockLost(f"the result of the work must not be trusted: {error}") from error


def increment(client):
    """Reads the counter and writes it plus one. A write by another worker in between gets lost.

    A real counter would use INCR. This represents work that no single command can do.
    """
    value = int(client.get(COUNTER))
    time.sleep(0)
    client.set(COUNTER, value + 1)


def increment_without_lock(client, _owner):
    increment(client)


def increment_with_lock(client, owner):
    with lock(client, owner):
        increment(client)


def connect(url):
    """Returns a client for one worker. A call that waits for the lock occupies its connection, so workers share none."""
    client = redis.Redis.from_url(
        url,
        # A socket time-out must be longer than BLOCK. With BLOCK 0 there must be none.
        socket_timeout=None,
        # Newer versions of redis-py repeat a call if its connection breaks. An acquire that runs twice counts twice, so
        # here the call fails, and the application decides.
        retry=Retry(NoBackoff(), 0),
    )
    client.ping()
    return client


def count(clients, increments, work):
    """Runs `work` in one worker for each client, `increments` times each. Returns the counter at the end."""
    clients[0].set(COUNTER, 0)
    start = threading.Barrier(len(clients))

    def worker(client):
        # Two workers with the same string would be one owner, so each has a random string.
        owner = str(uuid.uuid4())
        start.wait()
        for _ in range(increments):
            work(client, owner)

    with ThreadPoolExecutor(max_workers=len(clients)) as pool:
        # list() raises the error of a worker.
        list(pool.map(worker, clients))
    return int(clients[0].getdel(COUNTER))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="redis://127.0.0.1:6379")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--increments", type=int, default=100)
    options = parser.parse_args()
    if options.workers < 1:
        parser.error("at least one worker is needed")

    clients = [connect(options.url) for _ in range(options.workers)]
    expected = options.workers * options.increments

    got = count(clients, options.increments, increment_without_lock)
    print(f"without the lock: expected {expected}, got {got}")

    got = count(clients, options.increments, increment_with_lock)
    print(f"with the lock:    expected {expected}, got {got}")
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
