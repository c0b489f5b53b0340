#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Works under a lock with redis-py: acquires it, renews it in the background, and releases it. Start two:

    redis-server --loadmodule target/release/libredis_lock.so
    python3 docs/clients/python/worker.py redis://127.0.0.1:6379 example:lock 5

The arguments are the address, the lock's name and the number of rounds. Three optional times in milliseconds follow: the
lease, the work of a round, and the limit of a wait. The next argument is the number of threads. The last is a time in
milliseconds: each wait is cancelled at a random moment within it.

Needs redis-py (pip install redis), 4.3 or later. The program worker_async.py does the same with asyncio.
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
    """The lock was not granted in time."""


class Cancelled(Exception):
    """Another thread cancelled the wait."""


class LockLost(Exception):
    """The lock was lost during the work. The result must not be trusted."""


class Clients:
    """The connections of a process, shared by its threads."""

    def __init__(self, url, wait_ms):
        def connect(seconds, connections):
            # By default, redis-py 8 gives up after 5 seconds, repeats the call ten times, and refuses a 101st connection.
            return redis.Redis.from_url(
                url,
                socket_timeout=seconds,
                retry=Retry(NoBackoff(), 0),
                max_connections=connections,
                decode_responses=True,
            )

        # For calls that the server answers at once. The limit is out of reach: a renewal must not wait for a connection,
        # nor fail for lack of one.
        self.shared = connect(5, 2**31)
        # A call that waits has a client with a single connection. So no other call queues behind it, and closing it
        # affects no other call. Its time-out must be longer than BLOCK. BLOCK 0 waits without limit.
        self._connect_waiting = lambda: connect(wait_ms / 1000 + 5 if wait_ms else None, 1)
        self._idle = []

    def take_waiting(self):
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect_waiting()

    def return_idle(self, waiting):
        self._idle.append(waiting)


class Acquire:
    """One call of LOCK.ACQUIRE. Another thread may cancel it."""

    def __init__(self, clients, key, owner, lease_ms, wait_ms):
        self._clients, self._key, self._owner = clients, key, owner
        self._lease_ms, self._wait_ms = lease_ms, wait_ms
        # New for each call: LOCK.CANCEL names the call by it, and a repeated call counts once.
        self._request = str(uuid.uuid4())
        self._waiting = clients.take_waiting()
        # The reply and the cancellation compete for this: only the first takes effect.
        self._decided = threading.Lock()
        self._undone = threading.Event()

    def __call__(self):
        """Waits for the lock. Returns the reply, and the time at which the last confirmed call was sent."""
        try:
            sent = time.monotonic()
            reply = self._waiting.execute_command(
                "LOCK.ACQUIRE", self._key, self._owner, "PX", self._lease_ms, "BLOCK", self._wait_ms,
                "FENCE", "ID", self._request,
            )  # fmt: skip
            # The lease runs from the grant, at an unknown time during the call. After a long wait, it may be nearly over. So
            # a renewal, which does not wait, starts the lease again.
            if reply is not None and time.monotonic() - sent > self._lease_ms / 3000:
                sent = time.monotonic()
                self._waiting.execute_command("LOCK.RENEW", self._key, self._owner, "PX", self._lease_ms)
        except BaseException as error:
            # After a time-out, a broken connection or Ctrl-C, the lock may have been granted. UNBLOCKED ends here, too.
            was_first = self.cancel()
            # The reply may still come, and the next call must not read it. If the cancellation did not reach the server,
            # the end of the connection removes the call from the queue. Only the thread that reads from a connection may
            # close it in redis-py.
            self._waiting.connection_pool.disconnect()
            if not was_first:
                self._undone.wait()
                raise Cancelled from None
            if is_not_owner(error):
                raise LockLost(error) from error
            raise
        if not self._decided.acquire(blocking=False):
            self._waiting.connection_pool.disconnect()
            # Otherwise the process could end before LOCK.CANCEL reaches the server.
            self._undone.wait()
            raise Cancelled
        self._clients.return_idle(self._waiting)
        if reply is None:
            raise NotGranted
        return reply, sent

    def cancel(self):
        """Undoes the call in every state of it. Returns False if the call has ended, which leaves nothing to cancel."""
        if not self._decided.acquire(blocking=False):
            return False
        # The call occupies its connection, so LOCK.CANCEL uses another. A call that waits gets the error UNBLOCKED. Closing
        # the connection is not enough: if the reply to a grant is on its way, the lock would stay held.
        try:
            with suppress(redis.RedisError):
                self._clients.shared.execute_command("LOCK.CANCEL", self._key, self._owner, "ID", self._request)
        finally:
            self._undone.set()
        return True


class Hold:
    """The fencing token of a hold, and whether the hold is lost."""

    def __init__(self, token, valid_until):
        # Each write stores the token, and the store refuses a smaller one.
        self.token = token
        # The server counts the lease from a later moment. So no other owner is granted the lock before this time, even if
        # the server is out of reach.
        self.valid_until = valid_until
        self.not_owner = None
        self._notified = threading.Event()

    def lose(self, error):
        self.not_owner = error
        self._notified.set()

    def is_lost(self):
        return self._notified.is_set() or time.monotonic() >= self.valid_until

    def check(self):
        """Raises LockLost if the hold is lost. Work calls this between its steps."""
        if self.is_lost():
            raise LockLost(self.not_owner or "the lease could not be renewed in time")

    def sleep(self, seconds):
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            # A renewal during the sleep moves the end.
            self._notified.wait(min(left, max(0, self.valid_until - time.monotonic())))
            self.check()


@contextmanager
def lock(clients, acquire, key, owner, lease_ms):
    """Holds the lock for the block of a `with` statement, and passes a Hold to it."""
    reply, sent = acquire()
    hold = Hold(token_of(reply), sent + lease_ms / 1000)
    done = threading.Event()

    # With WATCHDOG the server renews instead. The connection of the acquire must then stay open.
    def renew():
        while not done.wait(lease_ms / 3000):
            sent = time.monotonic()
            try:
                clients.shared.execute_command("LOCK.RENEW", key, owner, "PX", lease_ms)
                hold.valid_until = sent + lease_ms / 1000
            except redis.RedisError as error:
                # After any other error, such as a broken connection, the next renewal may succeed.
                if is_not_owner(error):
                    hold.lose(error)
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
            # NOTOWNER: the lease ended, or somebody broke the lock. Another owner may have worked at the same time.
            if is_not_owner(error) or was_lost:
                raise LockLost(error) from error
            raise


def is_not_owner(error):
    return str(error).startswith("NOTOWNER")


def token_of(reply):
    """Returns the token in a reply to FENCE: a dict in RESP3, a flat list in RESP2."""
    if not isinstance(reply, dict):
        reply = dict(zip(reply[::2], reply[1::2]))
    return reply["token"]


def work(client, hold, work_ms):
    """Reads a number and writes it plus one. An increment by another worker in between would get lost."""
    if client.incr(INSIDE) != 1:
        print("OVERLAP: somebody else is at work, too", file=sys.stderr)
    try:
        value = int(client.get(RESOURCE) or 0)
        # The pause represents the work.
        hold.sleep(work_ms / 1000)
        client.mset({RESOURCE: value + 1, TOKEN: hold.token})
    finally:
        client.decr(INSIDE)


def run(clients, key, rounds, lease_ms, work_ms, wait_ms, cancel_ms):
    """Works for the given number of rounds. Returns False if the lock was lost."""
    # Two threads with the same string would be one owner, so each has a random string.
    owner = str(uuid.uuid4())
    finished = 0
    while finished < rounds:
        acquire = Acquire(clients, key, owner, lease_ms, wait_ms)
        if cancel_ms:
            # Represents a request that is abandoned, or a program that shuts down.
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

    # The main thread works, too, as it is the thread that gets Ctrl-C.
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
