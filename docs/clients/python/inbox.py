#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lets a thousand tasks wait for locks over one connection, without blocking it: NOTIFY.

    redis-server --loadmodule target/release/libredis_lock.so
    python3 docs/clients/python/inbox.py --port 6379 --tasks 1000 --locks 10

Each task adds one to a counter under the lock of that counter. The program needs Python 3.9 or later, and no package. In
RESP3 the server sends messages and replies on the same connection.
"""

import argparse
import asyncio
import sys
import uuid
from contextlib import asynccontextmanager

LEASE_MS = 30_000

# A message may get lost. So a waiter repeats its call every few seconds, which keeps its place in the queue.
ASK_AGAIN_SECONDS = 5


class ServerError(Exception):
    """The server refused a call."""


class Connection:
    """One connection for all tasks. Replies come in the order of the calls, messages at any time."""

    def __init__(self, reader, writer, on_message):
        self._reader, self._writer, self._on_message = reader, writer, on_message
        self._replies = asyncio.Queue()
        self._reading = asyncio.create_task(self._read_all())

    @classmethod
    async def open(cls, host, port, on_message):
        connection = cls(*await asyncio.open_connection(host, port), on_message)
        await connection.call("HELLO", 3)
        return connection

    def send(self, *words):
        """Sends a call and returns the future of its reply."""
        reply = asyncio.get_running_loop().create_future()
        self._replies.put_nowait(reply)
        self._write(words)
        return reply

    def subscribe(self, channel):
        """Subscribes to a channel. The server confirms that by a message, not by a reply."""
        self._write(("SUBSCRIBE", channel))

    async def call(self, *words):
        return await self.send(*words)

    def _write(self, words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self._writer.write(b"".join(parts))

    async def _read_all(self):
        try:
            while True:
                kind, value = await self._read()
                if kind == b">":
                    self._on_message(value)
                    continue
                reply = self._replies.get_nowait()
                if reply.done():
                    continue  # The task was cancelled.
                if kind == b"-":
                    reply.set_exception(ServerError(value))
                else:
                    reply.set_result(value)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            while not self._replies.empty():
                reply = self._replies.get_nowait()
                if not reply.done():
                    reply.set_exception(ConnectionError(f"the connection is lost: {error}"))

    async def _read(self):
        line = (await self._reader.readuntil(b"\r\n"))[:-2]
        kind, rest = line[:1], line[1:]
        if kind in b"+-":
            return kind, rest.decode()
        if kind == b":":
            return kind, int(rest)
        if kind == b"$":
            content = await self._reader.readexactly(int(rest) + 2)
            return kind, content[:-2].decode()
        if kind in b"*>%":
            count = int(rest) * (2 if kind == b"%" else 1)
            return kind, [(await self._read())[1] for _ in range(count)]
        return kind, None  # `_` is nil. The program receives no other kind.

    async def close(self):
        self._writer.close()
        await self._reading


class Locks:
    """Locks that block no connection while a task waits."""

    def __init__(self):
        self._name = f"inbox-{uuid.uuid4()}"
        # The event that wakes a waiter, by the request of its call.
        self._waits = {}

    async def connect(self, host, port):
        self.connection = await Connection.open(host, port, self._on_message)
        subscribed = self._waits["subscribe"] = asyncio.Event()
        # The subscription must exist before the first wait: the server takes back a grant if nobody gets its message.
        self.connection.subscribe(f"lock:inbox:{self._name}")
        await subscribed.wait()

    def _on_message(self, message):
        # ["message", channel, "granted <request> <key>"], or "lost …". After either, the waiter repeats its call.
        word = "subscribe" if message[0] == "subscribe" else message[2].split(" ")[1]
        if word in self._waits:
            self._waits[word].set()

    @asynccontextmanager
    async def hold(self, key):
        owner = request = str(uuid.uuid4())
        await self._acquire(key, owner, request)
        try:
            yield
        finally:
            await self.connection.call("LOCK.RELEASE", key, owner)

    async def _acquire(self, key, owner, request):
        call = ("LOCK.ACQUIRE", key, owner, "PX", LEASE_MS, "NOTIFY", self._name, "ID", request)
        notified = self._waits[request] = asyncio.Event()
        try:
            # The reply 0 means queued. After a message about the grant, the same call confirms the grant.
            while await self.connection.call(*call) == 0:
                try:
                    await asyncio.wait_for(notified.wait(), ASK_AGAIN_SECONDS)
                except asyncio.TimeoutError:
                    pass
                notified.clear()
        except asyncio.CancelledError:
            # Undoes the call in every case: if it waits, if it was granted, and if it has not arrived yet.
            self.connection.send("LOCK.CANCEL", key, owner, "ID", request)
            raise
        finally:
            del self._waits[request]


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--locks", type=int, default=10)
    options = parser.parse_args()
    locks = Locks()
    await locks.connect(options.host, options.port)
    call = locks.connection.call

    working = set()

    async def add_one(number):
        name = f"example:inbox:{number % options.locks}"
        async with locks.hold(f"{name}:lock"):
            working.add(asyncio.current_task())
            # Without the lock, increments would get lost between the read and the write.
            value = await call("GET", name)
            await call("SET", name, int(value or 0) + 1)

    tasks = [asyncio.create_task(add_one(number)) for number in range(options.tasks)]
    # Cancels some tasks while they wait.
    await asyncio.sleep(0.05)
    for task in set(tasks[:: max(1, options.tasks // 20)]) - working:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(isinstance(result, asyncio.CancelledError) for result in results)
    for result in results:
        if isinstance(result, Exception):
            raise result
    names = [f"example:inbox:{number}" for number in range(options.locks)]
    total = sum([int(await call("GET", name) or 0) for name in names])
    await call("DEL", *names)
    expected = options.tasks - cancelled
    await locks.connection.close()
    print(f"{options.tasks} tasks over one connection, {cancelled} of them cancelled: expected {expected}, got {total}")
    return 0 if total == expected else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
