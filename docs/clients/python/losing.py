#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Stops work within milliseconds of the loss of a lock, by listening to the events of the lock.

The program loses its lock three times: an operator breaks it, somebody deletes its key, and the server stops renewing it
after `MAX`. Each time the program prints the event, and how long the work continued.

    redis-server --loadmodule target/release/libredis_lock.so lock.events yes
    python3 docs/clients/python/losing.py --url redis://127.0.0.1:6379

Needs redis-py (pip install redis), 4.3 or later.
"""

import argparse
import sys
import threading
import time
import uuid

import redis

LOCK = "example:report"

# The channel of the lock's events. A key that contains a brace has the channel `lock:event::` followed by the key.
EVENTS = f"lock:event:{{{LOCK}}}"

# One step of the work. The worker checks for a loss between two steps.
STEP_SECONDS = 0.001

# The server renews the lease, but for 250 ms at most. Without MAX, a worker that hangs would hold the lock for ever.
LEASE_MS = 300
MAX_HOLD_MS = 250


class Events:
    """The events of the holds of one owner."""

    def __init__(self, url, owner):
        self.loss = None
        self._owner = owner
        # Messages may come at any time, so the listener has no time-out.
        self._pubsub = redis.Redis.from_url(url, decode_responses=True, socket_timeout=None).pubsub()
        self._pubsub.subscribe(EVENTS)
        # The server delivers no earlier events. So the subscription is confirmed before the caller acquires the lock.
        self._pubsub.get_message(timeout=5)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        try:
            for message in self._pubsub.listen():
                event, owner = str(message["data"]).split(" ", 1)
                # Events of other owners come on the same channel. `contended` is no loss: somebody waits for the lock.
                if owner == self._owner and event != "contended":
                    self.loss = event
                    return
        except (redis.RedisError, OSError):
            # An event may have been missed.
            self.loss = "the connection is lost"


def work(url, has_begun, stopped):
    """Works until the lock is lost, and appends the reason and the time of its last step to `stopped`."""
    owner = str(uuid.uuid4())
    events = Events(url, owner)
    client = redis.Redis.from_url(url, socket_timeout=None)
    client.execute_command(
        "LOCK.ACQUIRE", LOCK, owner, "PX", LEASE_MS, "BLOCK", 0, "WATCHDOG", "MAX", MAX_HOLD_MS
    )  # fmt: skip
    has_begun.set()
    while events.loss is None:
        time.sleep(STEP_SECONDS)
    # The lock may have another holder by now, so there is nothing to release.
    stopped.append((events.loss, time.monotonic()))
    # The server renews only while the connection of the call is open.
    client.connection_pool.disconnect()


def lease_end(client):
    """Waits until the server no longer renews the lease. Returns the end of the lease by the clock of this process."""
    end = None
    while True:
        now = time.monotonic()
        left = client.pttl(LOCK)
        if left < 0:
            return end
        end = now + left / 1000
        time.sleep(0.005)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="redis://127.0.0.1:6379")
    url = parser.parse_args().url
    operator = redis.Redis.from_url(url)
    for what, command in [
        ("an operator breaks the lock", "LOCK.BREAK"),
        ("somebody deletes the key", "DEL"),
        ("the server stops renewing the lease", None),
    ]:
        has_begun, stopped = threading.Event(), []
        worker = threading.Thread(target=work, args=(url, has_begun, stopped))
        worker.start()
        if not has_begun.wait(10):
            sys.exit("the worker did not get the lock")
        if command:
            time.sleep(0.05)
            lost_at = time.monotonic()
            operator.execute_command(command, LOCK)
        else:
            lost_at = lease_end(operator)
        worker.join()
        event, stopped_at = stopped[0]
        print(f"{what}: '{event}', and the work stops after {max(0, stopped_at - lost_at) * 1000:.1f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
