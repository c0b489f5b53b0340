#!/usr/bin/env python3
"""Works under a lock, with redis-py: waits for it, renews it in the background, gives it back. Start two:

    redis-server --loadmodule target/release/libredis_lock.so
    python3 examples/clients/python/worker.py redis://127.0.0.1:6379 example:lock 5

After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what a
round takes, and how long to wait for the lock at most.

Needs redis-py (pip install redis), 4.3 or later.
"""

import sys
import threading
import uuid
from contextlib import contextmanager

import redis

RESOURCE = "example:resource"
INSIDE = "example:inside"


class NotGranted(Exception):
    """It was not our turn in time."""


class LockLost(Exception):
    """The lock was lost during the work, whose result must not be trusted."""


@contextmanager
def lock(client, waiting, key, owner, lease_ms, wait_ms):
    """Holds the lock for the block of a `with` statement, which gets an event: set if the lock is lost."""
    # redis-py 6 and later may repeat a call whose connection broke (redis.Redis(...) does unless told otherwise,
    # from_url does not). With an ID that is new for each call, a repetition gets the reply that was lost
    # instead of a second hold.
    granted = waiting.execute_command(
        "LOCK.ACQUIRE", key, owner, "PX", lease_ms, "BLOCK", wait_ms, "ID", str(uuid.uuid4())
    )
    if granted is None:
        raise NotGranted
    lost, done = threading.Event(), threading.Event()

    # The server can do this instead: acquire with WATCHDOG on a connection that stays open and is not given back
    # to the pool, `waiting.client()`.
    def renew():
        while not done.wait(lease_ms / 3000):
            try:
                client.execute_command("LOCK.RENEW", key, owner, "PX", lease_ms)
            except redis.RedisError as error:
                # Anything else, such as a broken connection, may be over the next time.
                if str(error).startswith("NOTOWNER"):
                    lost.set()
                    return

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield lost
    finally:
        done.set()
        renewing.join()
        try:
            client.execute_command("LOCK.RELEASE", key, owner, "ID", str(uuid.uuid4()))
        except redis.ResponseError as error:
            if str(error).startswith("NOTOWNER"):
                # The lease ran out, or somebody broke the lock: others may have worked at the same time.
                raise LockLost(error) from error
            raise


def work(client, lost, work_ms):
    """Reads, and writes what it has read plus one: wrong if anybody else works in between."""
    if client.incr(INSIDE) != 1:
        print("OVERLAP: somebody else is at work, too", file=sys.stderr)
    try:
        value = int(client.get(RESOURCE) or 0)
        # The pause stands for the work. Real work looks at `lost` between its steps.
        if not lost.wait(work_ms / 1000):
            client.set(RESOURCE, value + 1)
    finally:
        client.decr(INSIDE)


def main(url, key, rounds, lease_ms=3000, work_ms=5000, wait_ms=30000):
    # For what is answered at once. A client has a pool, so threads may share it.
    client = redis.Redis.from_url(url, socket_timeout=5)
    # For what waits: its socket timeout must be longer than BLOCK. Each call that waits takes a connection of
    # this client's pool.
    waiting = redis.Redis.from_url(url, socket_timeout=int(wait_ms) / 1000 + 5)
    # Whoever uses the same string is the same owner: so it is random, and one for each thread that locks.
    owner = str(uuid.uuid4())
    finished = 0
    while finished < int(rounds):
        try:
            with lock(client, waiting, key, owner, int(lease_ms), int(wait_ms)) as lost:
                work(client, lost, int(work_ms))
            finished += 1
            print(f"round {finished} of {rounds} is done", flush=True)
        except NotGranted:
            print(f"not granted within {wait_ms} ms, trying again", flush=True)
        except LockLost as error:
            print(f"the lock was lost, the result of this round must not be trusted: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 7:
        sys.exit("usage: worker.py URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS]]]")
    sys.exit(main(*sys.argv[1:]))
