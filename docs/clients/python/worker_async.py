#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Works under a lock with asyncio and redis-py: acquires it, renews it in the background, and releases it. Start two:

    redis-server --loadmodule target/release/libredis_lock.so
    python3 docs/clients/python/worker_async.py redis://127.0.0.1:6379 example:lock 5

The arguments are the address, the lock's name and the number of rounds. Three optional times in milliseconds follow: the
lease, the work of a round, and the limit of a wait. The next argument is the number of tasks. The last is a time in
milliseconds: each wait is cancelled at a random moment within it.

Needs Python 3.11, and redis-py (pip install redis), 4.3 or later. Use 4.5.5 or later if tasks are cancelled while they use
a shared client. With an older version, the next call on that connection reads the reply to the cancelled call.
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
    """The lock was not granted in time."""


class LockLost(Exception):
    """The lock was lost during the work. The result must not be trusted."""


class Clients:
    """The connections of a process, shared by its tasks."""

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
        return self._idle.pop() if self._idle else self._connect_waiting()

    def return_idle(self, waiting):
        self._idle.append(waiting)

    async def close(self):
        for client in [self.shared, *self._idle]:
            await client.connection_pool.disconnect()


async def to_the_end(coroutine):
    """Awaits a coroutine to its end. A cancellation of this task takes effect after that."""
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
    """Waits for the lock. Returns the reply, and the time at which the last confirmed call was sent."""
    now = asyncio.get_running_loop().time
    # New for each call: LOCK.CANCEL names the call by it, and a repeated call counts once.
    request = str(uuid.uuid4())
    waiting = clients.take_waiting()
    try:
        sent = now()
        reply = await waiting.execute_command(
            "LOCK.ACQUIRE", key, owner, "PX", lease_ms, "BLOCK", wait_ms, "FENCE", "ID", request
        )
        # The lease runs from the grant, at an unknown time during the call. After a long wait, it may be nearly over. So a
        # renewal, which does not wait, starts the lease again.
        if reply is not None and now() - sent > lease_ms / 3000:
            sent = now()
            await waiting.execute_command("LOCK.RENEW", key, owner, "PX", lease_ms)
    except BaseException as error:
        # After a cancellation, a broken connection or a time-out, the lock may have been granted. The reply may even have
        # arrived already.
        await to_the_end(cancel(clients, waiting, key, owner, request))
        if is_not_owner(error):
            raise LockLost(error) from error
        raise
    clients.return_idle(waiting)
    if reply is None:
        raise NotGranted
    return reply, sent


async def cancel(clients, waiting, key, owner, request):
    """Undoes a call of LOCK.ACQUIRE in every state of it."""
    # The call occupies its connection, so LOCK.CANCEL uses another. Closing the connection is not enough: if the reply to
    # a grant is on its way, the lock would stay held.
    with suppress(redis.RedisError):
        await clients.shared.execute_command("LOCK.CANCEL", key, owner, "ID", request)
    # The reply may still come, and the next call must not read it. If the cancellation did not reach the server, the end
    # of the connection removes the call from the queue.
    with suppress(redis.RedisError, OSError):
        await waiting.connection_pool.disconnect()


@asynccontextmanager
async def lock(clients, key, owner, lease_ms, wait_ms):
    """Holds the lock for the block of an `async with` statement, and passes the fencing token to it.

    The loss of the lock cancels the block, as asyncio.timeout() does.
    """
    now = asyncio.get_running_loop().time
    reply, sent = await acquire(clients, key, owner, lease_ms, wait_ms)
    done, not_owner = asyncio.Event(), None

    # With WATCHDOG the server renews instead. The connection of the acquire must then stay open.
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
                # After any other error, such as a broken connection, the next renewal may succeed.
                if not is_not_owner(error):
                    continue
                not_owner, until = error, now()
            if not done.is_set() and not validity.expired():
                validity.reschedule(until)

    try:
        renewing = None
        try:
            # The server counts the lease from a later moment than `sent`. So no other owner is granted the lock before this
            # time, even if the server is out of reach.
            async with asyncio.timeout_at(sent + lease_ms / 1000) as validity:
                renewing = asyncio.create_task(renew(validity))
                try:
                    yield token_of(reply)
                finally:
                    done.set()
        finally:
            await to_the_end(release(clients, key, owner, renewing))
    except Exception as error:
        # NOTOWNER: the lease ended, or somebody broke the lock. Another owner may have worked at the same time.
        if validity.expired() or is_not_owner(error):
            raise LockLost(not_owner or error) from error
        raise


async def release(clients, key, owner, renewing):
    await renewing
    await clients.shared.execute_command("LOCK.RELEASE", key, owner, "ID", str(uuid.uuid4()))


def is_not_owner(error):
    return str(error).startswith("NOTOWNER")


def token_of(reply):
    """Returns the token in a reply to FENCE: a dict in RESP3, a flat list in RESP2."""
    if not isinstance(reply, dict):
        reply = dict(zip(reply[::2], reply[1::2]))
    return reply["token"]


async def work(client, token, work_ms):
    """Reads a number and writes it plus one. An increment by another worker in between would get lost."""
    if await client.incr(INSIDE) != 1:
        print("OVERLAP: somebody else is at work, too", file=sys.stderr)
    try:
        value = int(await client.get(RESOURCE) or 0)
        # The pause represents the work. The loss of the lock cancels it.
        await asyncio.sleep(work_ms / 1000)
        # A store that can do so refuses a smaller token.
        await client.mset({RESOURCE: value + 1, TOKEN: token})
    finally:
        await client.decr(INSIDE)


async def one_round(clients, key, owner, lease_ms, work_ms, wait_ms, cancel_ms):
    cancelling = None
    if cancel_ms:
        # Represents a request that is abandoned, or a program that shuts down.
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        cancelling = loop.call_later(random.uniform(0, cancel_ms) / 1000, task.cancel)
    async with lock(clients, key, owner, lease_ms, wait_ms) as token:
        if cancelling:
            cancelling.cancel()
        await work(clients.shared, token, work_ms)


async def run(clients, key, rounds, lease_ms, work_ms, wait_ms, cancel_ms):
    """Works for the given number of rounds. Returns False if the lock was lost."""
    # Two tasks with the same string would be one owner, so each has a random string.
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
                # The cancellation ends the program, not only the round: Ctrl-C.
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
