#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lets a thousand tasks wait for locks in one session, so that no wait occupies a connection.

    redis-server --loadmodule target/release/libredis_lock.so
    python3 docs/clients/python/session.py --port 6379 --tasks 1000 --locks 10

Each task adds one to a counter under the lock of that counter. The program needs Python 3.9 or later, and redis-py 4.3 or
later. It ends if the server forgets the session. The Python package opens a new session instead, and declares its holds there.
"""

import argparse
import asyncio
import sys
import time
import uuid
from contextlib import asynccontextmanager

from redis import asyncio as redis
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

TTL, GRACE, EVENTS_BLOCK = 30_000, 3_000, 1_000  # in milliseconds
CALL_TIMEOUT = 2  # in seconds
CONNECTIONS = 20
MAX_EVENTS = 1_000


class Lost(Exception):
    """The wait or the hold has ended."""


class Session:
    """A session: one connection for events, and a few for all other calls."""

    def __init__(self, host, port):
        def connect(connections):
            options = {"host": host, "port": port, "socket_timeout": CALL_TIMEOUT, "decode_responses": True}
            pool = redis.BlockingConnectionPool(max_connections=connections, timeout=None, **options)
            return redis.Redis(connection_pool=pool)

        self.reader, self.pool = connect(1), connect(CONNECTIONS)
        self._name = f"example-{uuid.uuid4()}"
        self._beat = self._number = self._seen = 0
        # The acquires without an answer, in order of their numbers, each with the future of its event.
        self._unanswered = {}
        self._lost = {}
        self._safe_until = 0.0

    async def open(self):
        words = ("LOCK.SESSION", "OPEN", "NEW", self._next_beat(), "TTL", TTL, "GRACE", GRACE, "NAME", self._name)
        self._id, _ = await self.reader.execute_command(*words)
        await self._poll(0)  # The first reply is the first proof that holds are safe.
        self._reading = asyncio.create_task(self._read())

    async def close(self):
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._call("LOCK.SESSION", "CLOSE", self._id)
        await asyncio.gather(self.reader.connection_pool.disconnect(), self.pool.connection_pool.disconnect())

    def is_safe(self, number):
        """Whether no other owner can have the lock of this acquire now."""
        return number not in self._lost and time.monotonic() < self._safe_until

    def _next_beat(self):
        self._beat += 1
        return self._beat

    async def _read(self):
        """Sends heartbeats and handles events. A broken connection changes nothing: the session is resumed on the next."""
        while True:
            try:
                await self._poll(EVENTS_BLOCK)
            except (ConnectionError, TimeoutError):
                await asyncio.sleep(0.05)
            except ResponseError as error:  # NOSESSION
                self._safe_until = 0.0
                for event in self._unanswered.values():
                    if not event.done():
                        event.set_exception(Lost(str(error)))
                return

    async def _poll(self, block):
        sent = time.monotonic()
        done = next(iter(self._unanswered), self._number + 1)
        words = ("LOCK.EVENTS", self._id, self._next_beat(), self._seen, done, block)
        events = await self.reader.execute_command(*words)
        for seq, kind, number, *details in events:
            self._seen = seq
            self._on_event(kind, number, details)
        if len(events) < MAX_EVENTS:
            self._safe_until = sent + GRACE / 1000

    def _on_event(self, kind, number, details):
        event = self._unanswered.get(number)
        if kind == "lost":
            self._lost[number] = details[0]
        if event is None or event.done():
            return
        if kind == "granted":
            event.set_result(None)
        elif kind == "lost":
            event.set_exception(Lost(details[0]))

    async def _call(self, *words):
        """Calls until there is a reply. Repeating a call is harmless, because it names its number."""
        while True:
            try:
                return await self.pool.execute_command(*words)
            except (ConnectionError, TimeoutError):
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def hold(self, key):
        """Waits for the lock and holds it. Yields the number of the acquire."""
        self._number += 1
        number = self._number
        target = (key, f"{self._name}:{number}", "SESSION", self._id, number)
        event = self._unanswered[number] = asyncio.get_running_loop().create_future()
        # A cancelled task must not interrupt a call whose connection another task uses next.
        acquire = asyncio.create_task(self._call("LOCK.ACQUIRE", *target, "EPHEMERAL", "QUEUE", 0))
        try:
            if await asyncio.shield(acquire) == 0:
                await event
        except BaseException:
            # Undoes the acquire in every state: if it waits, if it is granted, and if it has not arrived yet.
            await asyncio.shield(self._call("LOCK.CANCEL", *target))
            raise
        finally:
            del self._unanswered[number]
        try:
            yield number
        finally:
            await asyncio.shield(self._call("LOCK.RELEASE", *target))


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--locks", type=int, default=10)
    options = parser.parse_args()
    session = Session(options.host, options.port)
    await session.open()

    working = set()

    async def add_one(task):
        name = f"example:session:{task % options.locks}"
        async with session.hold(f"{name}:lock") as number:
            working.add(asyncio.current_task())
            # Without the lock, increments would get lost between the read and the write.
            value = int(await session.pool.get(name) or 0)
            if not session.is_safe(number):
                raise Lost("no proof that the lock is held")
            await session.pool.set(name, value + 1)

    tasks = [asyncio.create_task(add_one(task)) for task in range(options.tasks)]
    # Cancels some tasks while they wait.
    await asyncio.sleep(0.5)
    for task in set(tasks[:: max(1, options.tasks // 20)]) - working:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(isinstance(result, asyncio.CancelledError) for result in results)
    for result in results:
        if isinstance(result, Exception):
            raise result
    names = [f"example:session:{number}" for number in range(options.locks)]
    total = sum([int(await session.pool.get(name) or 0) for name in names])
    await session.pool.delete(*names)
    await session.close()
    expected = options.tasks - cancelled
    print(f"{options.tasks} tasks in one session, {cancelled} of them cancelled: expected {expected}, got {total}")
    return 0 if total == expected else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
