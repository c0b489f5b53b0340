# SPDX-License-Identifier: MIT
"""A real server for each test, a proxy that cuts and freezes, and one interface for the locks of threads and of asyncio."""

import asyncio
import inspect
import os
import queue
import socket
import subprocess
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import redis
import redis.asyncio

from redis_lock_client import Locks, aio

ROOT = Path(__file__).resolve().parents[3]
MODULE = os.environ.get("REDIS_LOCK_MODULE", str(ROOT / "target/release/libredis_lock.so"))

# Sessions of tests notice silence and broken connections soon.
SHORT = {"ttl": 1.5, "grace": 0.6, "patience": 3}


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition does not come true"
        time.sleep(0.005)
    return value


def pairs(reply):
    """Converts a map of RESP2, which is a list."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2]))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, folder, *words, module=MODULE):
        self._folder, self._words, self._module, self.port = folder, words, module, 0
        while self.port == 0 or self.process.poll() is not None:
            # Another process may have taken the port meanwhile.
            self.port = free_port()
            self.start()

    def start(self):
        words = ["redis-server", "--port", str(self.port), "--save", "", "--repl-diskless-sync-delay", "0"]
        words += ["--dir", str(self._folder), *self._words]
        words += ["--loadmodule", self._module] if self._module else []
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        self.admin = redis.Redis(port=self.port, decode_responses=True)
        until(lambda: self._answers() or self.process.poll() is not None)

    def _answers(self):
        try:
            return self.admin.info("server")["process_id"] == self.process.pid
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False

    def stop(self):
        self.admin.close()
        self.process.kill()
        self.process.wait()

    def restart(self):
        self.stop()
        self.start()

    def waiters(self, key):
        return len(self.admin.execute_command("LOCK.WAITERS", key, "COUNT", 5000))

    def holder(self, key):
        """The only holder in the reply of LOCK.INFO."""
        info = self.admin.execute_command("LOCK.INFO", key)
        holders = [] if info is None else pairs(info)["holders"]
        return pairs(holders[0]) if len(holders) == 1 else None

    def held(self, key):
        return self.admin.exists(key) == 1

    def take(self, key, owner="foreign"):
        """Holds a lock without a session."""
        assert self.admin.execute_command("LOCK.ACQUIRE", key, owner, "PX", 60000) == 1

    def give(self, key, owner="foreign"):
        self.admin.execute_command("LOCK.RELEASE", key, owner)

    def sessions(self):
        return [pairs(session) for session in self.admin.execute_command("LOCK.SESSION", "LIST")]

    def clients(self):
        """Connections other than that of the test."""
        return len(self.admin.client_list()) - 1

    def calls(self, command):
        return self.admin.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


class Proxy:
    """Forwards bytes, except for replies that a test wants to be lost."""

    def __init__(self, target):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self._target = self.listener.getsockname()[1], target
        # While it is frozen, nothing passes in either direction.
        self.frozen, self.lose_reply_to, self._pairs = threading.Event(), None, []
        # Whether the connection is frozen instead of cut when the reply is lost.
        self.freeze_then = False
        # A call with these bytes is kept until `deliver`, and its connection is silent.
        self.delay, self._late = None, None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                # The server is away.
                near.close()
                continue
            pair = {"near": near, "far": far, "cut": False, "replies": 0}
            self._pairs.append(pair)
            threading.Thread(target=self._pump, args=(pair, near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(pair, far, near, False), daemon=True).start()

    def _pump(self, pair, source, sink, calls):
        try:
            while data := source.recv(65536):
                while self.frozen.is_set():
                    time.sleep(0.002)
                pair["replies"] += not calls
                if calls and self.delay and self.delay in data:
                    self.delay, self._late = None, (pair, data)
                    return
                if calls and self.lose_reply_to and self.lose_reply_to in data:
                    pair["cut"], self.lose_reply_to = True, None
                    if self.freeze_then:
                        self.frozen.set()
                elif not calls and pair["cut"]:
                    break
                sink.sendall(data)
        except OSError:
            pass
        self._end(pair)

    def _end(self, pair):
        for end in (pair["near"], pair["far"]):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def is_late(self):
        return self._late is not None

    def deliver(self):
        """Delivers the delayed call, long after the client has closed its connection. Waits for the reply."""
        (pair, data), self._late = self._late, None
        before = pair["replies"]
        pair["far"].sendall(data)
        until(lambda: pair["replies"] > before)

    def cut(self):
        for pair in self._pairs:
            self._end(pair)

    def close(self):
        self.frozen.clear()
        self.listener.close()
        self.cut()


class Call(threading.Thread):
    """A call in a thread of its own, in asyncio in a task of its own."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self._call, self.result, self.error = call, None, None
        self.start()

    def run(self):
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def end(self, seconds=15):
        self.join(seconds)
        assert not self.is_alive(), "the call does not end"
        if self.error is not None:
            raise self.error
        return self.result


class Threads:
    """The locks of threads."""

    name, locks_class = "threads", Locks

    def __init__(self):
        self.made = []

    def client(self, port, **options):
        return redis.Redis(port=port, **options)

    def locks(self, client, **options):
        locks = self.locks_class(self.client(client) if isinstance(client, int) else client, **options)
        self.made.append(locks)
        return locks

    def close(self):
        for locks in self.made:
            locks.close()


class Asyncio(Threads):
    """The locks of asyncio, called from threads: an event loop runs in the background, with one task for each thread."""

    name, locks_class = "asyncio", aio.Locks

    def __init__(self):
        super().__init__()
        self.loop, self._local, self._workers = asyncio.new_event_loop(), threading.local(), []
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def client(self, port, **options):
        return redis.asyncio.Redis(port=port, **options)

    def locks(self, client, **options):
        return self.wrap(super().locks(client, **options))

    def call(self, work):
        """The result of a function or coroutine function in the task of this thread."""
        if not hasattr(self._local, "calls"):
            self._local.calls = calls = queue.SimpleQueue()
            self._local.wake = wake = asyncio.Event()
            self.loop.call_soon_threadsafe(self._start, calls, wake)
        future = Future()
        self._local.calls.put((work, future))
        self.loop.call_soon_threadsafe(self._local.wake.set)
        return future.result()

    def _start(self, calls, wake):
        self._workers.append(self.loop.create_task(self._work(calls, wake)))

    async def _work(self, calls, wake):
        while True:
            await wake.wait()
            wake.clear()
            while not calls.empty():
                work, future = calls.get()
                try:
                    result = work()
                    future.set_result(await result if inspect.isawaitable(result) else result)
                except BaseException as error:
                    future.set_exception(error)
                    # A traceback would keep the objects of a failed call alive.
                    del error
                work = future = result = None

    def wrap(self, value):
        return Wrapped(self, value) if isinstance(value, (aio.Lock, aio.Hold, aio.Locks)) else value

    def close(self):
        for locks in self.made:
            self.call(locks.close)
        asyncio.run_coroutine_threadsafe(self._end_workers(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)

    async def _end_workers(self):
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}


class Wrapped:
    """An object of asyncio with the methods of the object of threads."""

    def __init__(self, flavor, value):
        self._flavor, self._value = flavor, value

    def __getattr__(self, name):
        value = getattr(self._value, name)
        if not callable(value):
            return value
        return lambda *words, **named: self._flavor.wrap(self._flavor.call(lambda: value(*words, **named)))

    def __enter__(self):
        return self._flavor.wrap(self._flavor.call(self._value.__aenter__))

    def __exit__(self, *error):
        self._flavor.call(lambda: self._value.__aexit__(*error))

    def __repr__(self):
        return repr(self._value)


@pytest.fixture(params=[Threads, Asyncio], ids=["threads", "asyncio"])
def flavor(request):
    flavor = request.param()
    yield flavor
    flavor.close()


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def proxy(server):
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def locks(server, flavor):
    return flavor.locks(server.port)


@pytest.fixture
def far(proxy, flavor):
    """Locks through the proxy, with short times."""
    return flavor.locks(proxy.port, **SHORT)


@pytest.fixture
def threaded(server):
    """Locks of threads."""
    with Locks(redis.Redis(port=server.port)) as locks:
        yield locks


def in_asyncio(port, body, **options):
    """Runs a coroutine function with locks of asyncio. Afterwards, no task is left."""

    async def main():
        before = asyncio.all_tasks()
        client = redis.asyncio.Redis(port=port)
        async with aio.Locks(client, **options) as locks:
            await body(locks)
        await client.aclose()
        assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(main(), 60))


async def comes_true(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition does not come true"
        await asyncio.sleep(0.005)
    return value
