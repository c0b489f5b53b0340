#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Works under a lock, with redis-py: waits for it, renews it in the background, gives it back. Start two:

    redis-server --loadmodule target/release/libredis_lock.so
    python3 docs/clients/python/worker.py redis://127.0.0.1:6379 example:lock 5

After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what a
round takes, and how long to wait for the lock at most. Then, how many threads do that; and a time in milliseconds
within which each wait is cancelled, at a random moment.

Needs redis-py (pip install redis), 4.3 or later. For asyncio see worker_async.py.
"""

import random
import sys
import threading
import time
import uuid
from contextlib import contextmanager, suppress

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

RESOURCE = "example:resource"
TOKEN = "example:token"
INSIDE = "example:inside"


class NotGranted(Exception):
    """It was not our turn in time."""


class Cancelled(Exception):
    """Another thread has cancelled the wait."""


class LockLost(Exception):
    """The lock was lost during the work, whose result must not be trusted."""


class Clients:
    """The connections of a process. Its threads share them."""

    def __init__(self, url, wait_ms):
        def connect(seconds, connections):
            # redis-py 8 would give up after 5 seconds, repeat the call ten times, and refuse a 101st connection.
            return redis.Redis.from_url(
                url,
                socket_timeout=seconds,
                retry=Retry(NoBackoff(), 0),
                max_connections=connections,
                decode_responses=True,
            )

        # For what is answered at once. No limit that could be reached: a renewal must not wait for a connection,
        # nor fail because there is none.
        self.shared = connect(5, 2**31)
        # A call that waits has a client with a connection of its own, so that nothing queues behind it and it can
        # be closed alone. Its time-out must be longer than BLOCK; BLOCK 0 waits without limit.
        self._connect_waiting = lambda: connect(wait_ms / 1000 + 5 if wait_ms else None, 1)
        self._idle = []

    def take_waiting(self):
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect_waiting()

    def give_back(self, waiting):
        self._idle.append(waiting)


class Acquire:
    """One call of LOCK.ACQUIRE, which another thread may cancel."""

    def __init__(self, clients, key, owner, lease_ms, wait_ms):
        self._clients, self._key, self._owner = clients, key, owner
        self._lease_ms, self._wait_ms = lease_ms, wait_ms
        # New for each call: it tells the calls of an owner apart, for LOCK.CANCEL and if one is repeated.
        self._request = str(uuid.uuid4())
        self._waiting = clients.take_waiting()
        # Taken by whoever comes first: the reply, or who cancels.
        self._decided = threading.Lock()
        self._undone = threading.Event()

    def __call__(self):
        """Waits for the lock. Returns the reply, and when the call was sent that the server has confirmed."""
        try:
            sent = time.monotonic()
            reply = self._waiting.execute_command(
                "LOCK.ACQUIRE", self._key, self._owner, "PX", self._lease_ms, "BLOCK", self._wait_ms,
                "FENCE", "ID", self._request,
            )  # fmt: skip
            # The lease runs from the grant. Of that we know only that it was after the call was sent: long ago, if
            # we had to wait. So it is set anew by a call that takes no time.
            if reply is not None and time.monotonic() - sent > self._lease_ms / 3000:
                sent = time.monotonic()
                self._waiting.execute_command("LOCK.RENEW", self._key, self._owner, "PX", self._lease_ms)
        except BaseException as error:
            # A time-out, a broken connection, Ctrl-C: whether the lock was granted is not known. Or UNBLOCKED.
            was_first = self.cancel()
            # The reply may still come, and must not be taken for that to the next call. Also, if the server could not
            # be told, it takes a call whose connection is closed out of the queue. This is done here, as redis-py does
            # not let one thread close what another one reads.
            self._waiting.connection_pool.disconnect()
            if not was_first:
                self._undone.wait()
                raise Cancelled from None
            if is_not_owner(error):
                raise LockLost(error) from error
            raise
        if not self._decided.acquire(blocking=False):
            self._waiting.connection_pool.disconnect()
            # Else the process could end before the server is told.
            self._undone.wait()
            raise Cancelled
        self._clients.give_back(self._waiting)
        if reply is None:
            raise NotGranted
        return reply, sent

    def cancel(self):
        """Undoes the call, whatever has become of it. False if it is over: then there is nothing to cancel."""
        if not self._decided.acquire(blocking=False):
            return False
        # On another connection, as that one is occupied. If the call waits, it gets the error UNBLOCKED. Closing its
        # connection would not do: if the lock was granted, and the reply is on its way, nobody gives it back.
        try:
            with suppress(redis.RedisError):
                self._clients.shared.execute_command("LOCK.CANCEL", self._key, self._owner, "ID", self._request)
        finally:
            self._undone.set()
        return True


class Hold:
    """What the work gets: the fencing token, and word of whether the lock is lost."""

    def __init__(self, token, valid_until):
        # Store it with all that is written, and let the store refuse a smaller one.
        self.token = token
        # The server counts the lease from a later moment than this. So nobody else has the lock before it is over,
        # even if the server cannot be reached to ask.
        self.valid_until = valid_until
        self.not_owner = None
        self._told = threading.Event()

    def tell(self, error):
        self.not_owner = error
        self._told.set()

    def is_lost(self):
        return self._told.is_set() or time.monotonic() >= self.valid_until

    def check(self):
        """Call it between the steps of the work."""
        if self.is_lost():
            raise LockLost(self.not_owner or "the lease could not be renewed in time")

    def sleep(self, seconds):
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            # A renewal may move the end meanwhile.
            self._told.wait(min(left, max(0, self.valid_until - time.monotonic())))
            self.check()


@contextmanager
def lock(clients, acquire, key, owner, lease_ms):
    """Holds the lock for the block of a `with` statement, which gets a Hold."""
    reply, sent = acquire()
    hold = Hold(token_of(reply), sent + lease_ms / 1000)
    done = threading.Event()

    # The server can do this instead: acquire with WATCHDOG, and do not give the connection back.
    def renew():
        while not done.wait(lease_ms / 3000):
            sent = time.monotonic()
            try:
                clients.shared.execute_command("LOCK.RENEW", key, owner, "PX", lease_ms)
                hold.valid_until = sent + lease_ms / 1000
            except redis.RedisError as error:
                # Anything else, such as a broken connection, may be over the next time.
                if is_not_owner(error):
                    hold.tell(error)
                    return

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield hold
    finally:
        done.set()
        was_lost = hold.is_lost()
        renewing.join()
        try:
            clients.shared.execute_command("LOCK.RELEASE", key, owner, "ID", str(uuid.uuid4()))
        except redis.RedisError as error:
            # NOTOWNER: the lease ran out, or somebody broke the lock. Others may have worked at the same time.
            if is_not_owner(error) or was_lost:
                raise LockLost(error) from error
            raise


def is_not_owner(error):
    return str(error).startswith("NOTOWNER")


def token_of(reply):
    """With FENCE the reply is a map: a dict, or with the older protocol (RESP2) a flat list."""
    if not isinstance(reply, dict):
        reply = dict(zip(reply[::2], reply[1::2]))
    return reply["token"]


def work(client, hold, work_ms):
    """Reads, and writes what it has read plus one: wrong if anybody else works in between."""
    if client.incr(INSIDE) != 1:
        print("OVERLAP: somebody else is at work, too", file=sys.stderr)
    try:
        value = int(client.get(RESOURCE) or 0)
        # The pause stands for the work.
        hold.sleep(work_ms / 1000)
        client.mset({RESOURCE: value + 1, TOKEN: hold.token})
    finally:
        client.decr(INSIDE)


def run(clients, key, rounds, lease_ms, work_ms, wait_ms, cancel_ms):
    """What each thread does. False if it has lost the lock."""
    # Whoever uses the same string is the same owner: so it is random, and one for each thread that locks.
    owner = str(uuid.uuid4())
    finished = 0
    while finished < rounds:
        acquire = Acquire(clients, key, owner, lease_ms, wait_ms)
        if cancel_ms:
            # Stands for a request that is given up, or a program that shuts down.
            threading.Timer(random.uniform(0, cancel_ms) / 1000, acquire.cancel).start()
        try:
            with lock(clients, acquire, key, owner, lease_ms) as hold:
                work(clients.shared, hold, work_ms)
            finished += 1
            print(f"round {finished} of {rounds} is done", flush=True)
        except NotGranted:
            print(f"not granted within {wait_ms} ms, trying again", flush=True)
        except Cancelled:
            finished += 1
            print("cancelled", flush=True)
        except LockLost as error:
            print(f"the lock was lost, the result of this round must not be trusted: {error}", file=sys.stderr)
            return False
    return True


def main(url, key, rounds, lease_ms=3000, work_ms=5000, wait_ms=30000, tasks=1, cancel_ms=0):
    clients = Clients(url, wait_ms)
    went_well = []

    def task():
        if run(clients, key, rounds, lease_ms, work_ms, wait_ms, cancel_ms):
            went_well.append(True)

    # The main thread is one of them: it is the one that gets Ctrl-C.
    others = [threading.Thread(target=task, daemon=True) for _ in range(tasks - 1)]
    for other in others:
        other.start()
    task()
    for other in others:
        other.join()
    return 0 if len(went_well) == tasks else 1


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 9:
        sys.exit("usage: worker.py URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS [TASKS [CANCEL_MS]]]]]")
    sys.exit(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
