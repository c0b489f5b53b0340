# SPDX-License-Identifier: MIT
"""Does what it reads from stdin, one JSON object a line: see ../spec/README.md. `driver.py URL [--async]`."""

import asyncio
import json
import os
import sys
import threading
import time

import redis
import redis.asyncio

from redis_lock_client import Cancellation, LockError, Locks, aio

stdout = threading.Lock()


class Body(Exception):
    """The error of a body of `with`."""


def how(request):
    words = {name: request[name] for name in ("shared", "limit", "fence", "label", "owner", "reentrant") if name in request}
    times = {name: request[name] / 1000 for name in ("lease", "wait", "max_hold") if name in request}
    return {**words, **times}


def lock_of(locks, request):
    keys = request["lock"]
    return locks.lock(*([keys] if isinstance(keys, str) else keys), **how(request))


def settings():
    """Reads the times of the session from the environment, in milliseconds."""
    names = {"ttl": "REDIS_LOCK_TTL", "grace": "REDIS_LOCK_GRACE"}
    return {name: int(os.environ[variable]) / 1000 for name, variable in names.items() if variable in os.environ}


def state(hold):
    return {"is": "lost" if hold.lost else "safe" if hold.valid_for() > 0 else "jeopardy"}


def granted(hold):
    return {"is": "granted", **({} if hold.token is None else {"token": hold.token})}


def kind(error):
    return {"is": getattr(error, "kind", "unavailable"), "text": f"{type(error).__name__}: {error}"}


def failed(error):
    """Not of a lock: the driver's own client, or a mistake."""
    return {"is": "failed", "text": f"{type(error).__name__}: {error}"}


def answer(request, reply):
    with stdout:
        print(json.dumps({"n": request["n"], **reply}), flush=True)


def spin(milliseconds):
    end = time.monotonic() + milliseconds / 1000
    while time.monotonic() < end:
        pass


class Driver:
    """Requests as a thread each, or as a task each: what both do alike."""

    def __init__(self):
        self.holds, self.cancels, self.leaves, self.heard = {}, {}, {}, []

    def prepare(self, request):
        """In the order of the requests: a `cancel` or a `leave` that comes next finds what it is for."""
        if request["do"] in ("acquire", "try", "with"):
            self.cancels[request["as"]] = self.new_cancel()
        if request["do"] == "with":
            self.leaves[request["as"]] = (self.new_event(), [False])

    def do_cancel(self, request):
        self.cancels[request["as"]].cancel()
        return {"is": "done"}

    def do_leave(self, request):
        event, fails = self.leaves[request["as"]]
        fails[0] = request.get("fails", False)
        event.set()
        return {"is": "done"}

    def do_owner(self, request):
        return {"is": "done", "owner": self.holds[request["as"]].owner.decode()}

    def do_state(self, request):
        return state(self.holds[request["as"]])

    def do_hand_over(self, request):
        return {"is": "done", "owner": self.holds[request["as"]].hand_over()}

    def do_events(self, request):
        return {"is": "done", "events": [event[:3] for event in self.heard]}

    def do_spin(self, request):
        spin(request["for"])
        return {"is": "done"}


class Threads(Driver):
    new_cancel, new_event = Cancellation, threading.Event

    def __init__(self, url):
        super().__init__()
        self.client = redis.Redis.from_url(url)
        self.locks = Locks(self.client, listener=self.heard.append, **settings())

    def main(self):
        for line in sys.stdin:
            request = json.loads(line)
            self.prepare(request)
            threading.Thread(target=self.serve, args=(request,), daemon=True).start()

    def serve(self, request):
        verb = getattr(self, f"do_{request['do'].replace(' ', '_')}", None)
        try:
            reply = {"is": "unknown"} if verb is None else verb(request)
        except LockError as error:
            reply = kind(error)
        except Exception as error:
            reply = failed(error)
        answer(request, reply)

    def do_acquire(self, request):
        hold = self.holds[request["as"]] = lock_of(self.locks, request).acquire(cancellation=self.cancels[request["as"]])
        return granted(hold)

    def do_try(self, request):
        hold = lock_of(self.locks, request).try_acquire()
        if hold is None:
            return {"is": "busy"}
        self.holds[request["as"]] = hold
        return granted(hold)

    def do_release(self, request):
        self.holds[request["as"]].release()
        return {"is": "released"}

    def do_extend(self, request):
        self.holds[request["as"]].extend(request["lease"] / 1000)
        return {"is": "extended"}

    def do_until_lost(self, request):
        return {"is": "lost" if self.holds[request["as"]].wait_lost(request["within"] / 1000) else "held"}

    def do_attach(self, request):
        hold = self.holds[request["as"]] = lock_of(self.locks, request).attach(request["owner"])
        return granted(hold)

    def do_with(self, request):
        leave, fails = self.leaves[request["as"]]
        try:
            with lock_of(self.locks, request) as self.holds[request["as"]]:
                leave.wait()
                if fails[0]:
                    raise Body
        except Body:
            return {"is": "body"}
        return {"is": "done"}

    def do_guard(self, request):
        self.holds[request["as"]].guard(*request["command"])
        return {"is": "done"}

    def do_count(self, request):
        lock = self.locks.lock(request["lock"])
        for _ in range(request["rounds"]):
            with lock:
                self.client.set(request["key"], int(self.client.get(request["key"]) or 0) + 1)
        return {"is": "done"}

    def do_calls(self, request):
        for _ in range(request["count"]):
            self.client.ping()
        return {"is": "done"}

    def do_close(self, request):
        self.locks.close()
        self.client.close()
        return {"is": "closed"}


class Task:
    """A task that `cancel` may name before it exists."""

    def __init__(self):
        self.task = None

    def cancel(self):
        # After its first step: a task that never began would not answer.
        asyncio.get_running_loop().call_soon(self.task.cancel)


class Tasks(Driver):
    new_cancel, new_event = Task, asyncio.Event

    def __init__(self, url):
        super().__init__()
        self.client = redis.asyncio.Redis.from_url(url)
        self.locks = aio.Locks(self.client, listener=self.heard.append, **settings())

    async def run(self):
        reader, loop = asyncio.StreamReader(limit=1 << 20), asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks = set()
        while line := await reader.readline():
            request = json.loads(line)
            self.prepare(request)
            task = loop.create_task(self.serve(request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if request["do"] in ("acquire", "try", "with"):
                self.cancels[request["as"]].task = task

    def main(self):
        asyncio.run(self.run())

    async def serve(self, request):
        verb = getattr(self, f"do_{request['do'].replace(' ', '_')}", None)
        try:
            reply = {"is": "unknown"} if verb is None else verb(request)
            if asyncio.iscoroutine(reply):
                reply = await reply
        except LockError as error:
            reply = kind(error)
        except asyncio.CancelledError:
            reply = {"is": "cancelled"}
        except Exception as error:
            reply = failed(error)
        answer(request, reply)

    async def do_acquire(self, request):
        hold = self.holds[request["as"]] = await lock_of(self.locks, request).acquire()
        return granted(hold)

    async def do_try(self, request):
        hold = await lock_of(self.locks, request).try_acquire()
        if hold is None:
            return {"is": "busy"}
        self.holds[request["as"]] = hold
        return granted(hold)

    async def do_release(self, request):
        await self.holds[request["as"]].release()
        return {"is": "released"}

    async def do_extend(self, request):
        await self.holds[request["as"]].extend(request["lease"] / 1000)
        return {"is": "extended"}

    async def do_until_lost(self, request):
        return {"is": "lost" if await self.holds[request["as"]].wait_lost(request["within"] / 1000) else "held"}

    async def do_attach(self, request):
        hold = self.holds[request["as"]] = await lock_of(self.locks, request).attach(request["owner"])
        return granted(hold)

    async def do_with(self, request):
        leave, fails = self.leaves[request["as"]]
        try:
            async with lock_of(self.locks, request) as self.holds[request["as"]]:
                await leave.wait()
                if fails[0]:
                    raise Body
        except Body:
            return {"is": "body"}
        return {"is": "done"}

    async def do_guard(self, request):
        await self.holds[request["as"]].guard(*request["command"])
        return {"is": "done"}

    async def do_count(self, request):
        lock = self.locks.lock(request["lock"])
        for _ in range(request["rounds"]):
            async with lock:
                await self.client.set(request["key"], int(await self.client.get(request["key"]) or 0) + 1)
        return {"is": "done"}

    async def do_calls(self, request):
        for _ in range(request["count"]):
            await self.client.ping()
        return {"is": "done"}

    async def do_close(self, request):
        await self.locks.close()
        await self.client.aclose()
        return {"is": "closed"}


if __name__ == "__main__":
    (Tasks if "--async" in sys.argv[2:] else Threads)(sys.argv[1]).main()
