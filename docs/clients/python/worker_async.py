#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Works under a lock, with asyncio and redis-py: waits for it, renews it in the background, gives it back. Start two:

    redis-server --loadmodule target/release/libredis_lock.so
    python3 docs/clients/python/worker_async.py redis://127.0.0.1:6379 example:lock 5

After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what a
round takes, and how long to wait for the lock at most. Then, how many tasks do that; and a time in milliseconds
within which each wait is cancelled, at a random moment.

Needs Python 3.11, and redis-py (pip install redis), 4.3 or later. Take 4.5.5 or later if your tasks are cancelled
while they use a shared client: an older one gives the connection to the next call, with the reply still to come.
"""

import asyncio
import random
import sys
import uuid
from contextlib import asynccontextmanager, suppress

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

RESOURCE = "example:resource"
TOKEN = "example:token"
INSIDE = "example:inside"


class NotGranted(Exception):
    """It was not our turn in time."""


class LockLost(Exception):
    """The lock was lost during the work, whose result must not be trusted."""


class Clients:
    """The connections of a process. Its tasks share them."""

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
        return self._idle.pop() if self._idle else self._connect_waiting()

    def give_back(self, waiting):
        self._idle.append(waiting)

    async def close(self):
        for client in [self.shared, *self._idle]:
            await client.connection_pool.disconnect()


async def to_the_end(coroutine):
    """Awaits what must not be cut short. If this task is cancelled meanwhile, it is so afterwards."""
    task = asyncio.ensure_future(coroutine)
    cancelled = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break
    if cancelled:
        raise cancelled
    return task.result()


async def acquire(clients, key, owner, lease_ms, wait_ms):
    """Waits for the lock. Returns the reply, and when the call was sent that the server has confirmed."""
    now = asyncio.get_running_loop().time
    # New for each call: it tells the calls of an owner apart, for LOCK.CANCEL and if one is repeated.
    request = str(uuid.uuid4())
    waiting = clients.take_waiting()
    try:
        sent = now()
        reply = await waiting.execute_command(
            "LOCK.ACQUIRE", key, owner, "PX", lease_ms, "BLOCK", wait_ms, "FENCE", "ID", request
        )
        # The lease runs from the grant. Of that we know only that it was after the call was sent: long ago, if we
        # had to wait. So it is set anew by a call that takes no time.
        if reply is not None and now() - sent > lease_ms / 3000:
            sent = now()
            await waiting.execute_command("LOCK.RENEW", key, owner, "PX", lease_ms)
    except BaseException as error:
        # This task was cancelled, or the connection broke, or a time-out is over: whether the lock was granted is
        # not known. That it was, and the reply is here but not yet returned to us, is one of the cases.
        await to_the_end(cancel(clients, waiting, key, owner, request))
        if is_not_owner(error):
            raise LockLost(error) from error
        raise
    clients.give_back(waiting)
    if reply is None:
        raise NotGranted
    return reply, sent


async def cancel(clients, waiting, key, owner, request):
    """Undoes a call of LOCK.ACQUIRE, whatever has become of it."""
    # On another connection, as this one is occupied. Closing it would not do: if the lock was granted, and the reply
    # is on its way, nobody gives it back.
    with suppress(redis.RedisError):
        await clients.shared.execute_command("LOCK.CANCEL", key, owner, "ID", request)
    # The reply to the call may still come, and must not be taken for that to the next one. Also, if the server could
    # not be told, it takes a call whose connection is closed out of the queue.
    with suppress(redis.RedisError, OSError):
        await waiting.connection_pool.disconnect()


@asynccontextmanager
async def lock(clients, key, owner, lease_ms, wait_ms):
    """Holds the lock for the block of an `async with` statement, which gets the fencing token.

    The block is cancelled when the lock is lost, as by asyncio.timeout().
    """
    now = asyncio.get_running_loop().time
    reply, sent = await acquire(clients, key, owner, lease_ms, wait_ms)
    done, not_owner = asyncio.Event(), None

    # The server can do this instead: acquire with WATCHDOG, and do not give the connection back.
    async def renew(validity):
        nonlocal not_owner
        while not done.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(done.wait(), lease_ms / 3000)
                return
            sent = now()
            try:
                await clients.shared.execute_command("LOCK.RENEW", key, owner, "PX", lease_ms)
                until = sent + lease_ms / 1000
            except redis.RedisError as error:
                # Anything else, such as a broken connection, may be over the next time.
                if not is_not_owner(error):
                    continue
                not_owner, until = error, now()
            if not done.is_set() and not validity.expired():
                validity.reschedule(until)

    try:
        renewing = None
        try:
            # The server counts the lease from a later moment than `sent`. So nobody else has the lock before this is
            # over, even if the server cannot be reached to ask.
            async with asyncio.timeout_at(sent + lease_ms / 1000) as validity:
                renewing = asyncio.create_task(renew(validity))
                try:
                    yield token_of(reply)
                finally:
                    done.set()
        finally:
            await to_the_end(release(clients, key, owner, renewing))
    except Exception as error:
        # NOTOWNER: the lease ran out, or somebody broke the lock. Others may have worked at the same time.
        if validity.expired() or is_not_owner(error):
            raise LockLost(not_owner or error) from error
        raise


async def release(clients, key, owner, renewing):
    await renewing
    await clients.shared.execute_command("LOCK.RELEASE", key, owner, "ID", str(uuid.uuid4()))


def is_not_owner(error):
    return str(error).startswith("NOTOWNER")


def token_of(reply):
    """With FENCE the reply is a map: a dict, or with the older protocol (RESP2) a flat list."""
    if not isinstance(reply, dict):
        reply = dict(zip(reply[::2], reply[1::2]))
    return reply["token"]


async def work(client, token, work_ms):
    """Reads, and writes what it has read plus one: wrong if anybody else works in between."""
    if await client.incr(INSIDE) != 1:
        print("OVERLAP: somebody else is at work, too", file=sys.stderr)
    try:
        value = int(await client.get(RESOURCE) or 0)
        # The pause stands for the work. It is cancelled if the lock is lost.
        await asyncio.sleep(work_ms / 1000)
        # Let a store that can do so refuse a token that is smaller than the one it has.
        await client.mset({RESOURCE: value + 1, TOKEN: token})
    finally:
        await client.decr(INSIDE)


async def one_round(clients, key, owner, lease_ms, work_ms, wait_ms, cancel_ms):
    cancelling = None
    if cancel_ms:
        # Stands for a request that is given up, or a program that shuts down.
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        cancelling = loop.call_later(random.uniform(0, cancel_ms) / 1000, task.cancel)
    async with lock(clients, key, owner, lease_ms, wait_ms) as token:
        if cancelling:
            cancelling.cancel()
        await work(clients.shared, token, work_ms)


async def run(clients, key, rounds, lease_ms, work_ms, wait_ms, cancel_ms):
    """What each task does. False if it has lost the lock."""
    # Whoever uses the same string is the same owner: so it is random, and one for each task that locks.
    owner = str(uuid.uuid4())
    finished = 0
    while finished < rounds:
        try:
            await asyncio.create_task(one_round(clients, key, owner, lease_ms, work_ms, wait_ms, cancel_ms))
            finished += 1
            print(f"round {finished} of {rounds} is done", flush=True)
        except NotGranted:
            print(f"not granted within {wait_ms} ms, trying again", flush=True)
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                # Not the round alone: the whole program, as by Ctrl-C.
                raise
            finished += 1
            print("cancelled", flush=True)
        except LockLost as error:
            print(f"the lock was lost, the result of this round must not be trusted: {error}", file=sys.stderr)
            return False
    return True


async def main(url, key, rounds, lease_ms=3000, work_ms=5000, wait_ms=30000, tasks=1, cancel_ms=0):
    clients = Clients(url, wait_ms)
    try:
        async with asyncio.TaskGroup() as group:
            workers = [
                group.create_task(run(clients, key, rounds, lease_ms, work_ms, wait_ms, cancel_ms))
                for _ in range(tasks)
            ]
        return 0 if all(worker.result() for worker in workers) else 1
    finally:
        with suppress(redis.RedisError, OSError):
            await clients.close()


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 9:
        sys.exit("usage: worker_async.py URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS [TASKS [CANCEL_MS]]]]]")
    sys.exit(asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:]))))
