# SPDX-License-Identifier: MIT
"""A real server for each test, and a proxy that cuts and freezes."""

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
import redis

from redis_lock_client import Locks

ROOT = Path(__file__).resolve().parents[3]
MODULE = os.environ.get("REDIS_LOCK_MODULE", str(ROOT / "target/release/libredis_lock.so"))


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.005)


def pairs(reply):
    """A map comes as a list in RESP2."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2]))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, folder, *words):
        self._folder, self._words, self.port = folder, words, 0
        while self.port == 0 or self.process.poll() is not None:
            # Somebody else may have taken the port meanwhile.
            self.port = free_port()
            self.start()

    def start(self):
        words = ["redis-server", "--port", str(self.port), "--save", "", "--dir", str(self._folder), "--loadmodule", MODULE]
        words += self._words
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        self.admin = redis.Redis(port=self.port, decode_responses=True)
        until(lambda: self._answers() or self.process.poll() is not None)

    def _answers(self):
        try:
            return self.admin.info("server")["process_id"] == self.process.pid
        except redis.ConnectionError:
            return False

    def stop(self):
        self.admin.close()
        self.process.kill()
        self.process.wait()

    def waiters(self, key):
        return len(self.admin.execute_command("LOCK.WAITERS", key))

    def holder(self, key):
        """What LOCK.INFO says of the only one."""
        return pairs(pairs(self.admin.execute_command("LOCK.INFO", key))["holders"][0])

    def held(self, key):
        return self.admin.exists(key) == 1


class Proxy:
    """Passes bytes on, but for those of replies that are to be lost."""

    def __init__(self, target):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self._target = self.listener.getsockname()[1], target
        self.frozen, self.cut_reply_of, self.freeze_then, self._pairs = threading.Event(), None, False, []
        # Whether nothing comes any more on the connections of now on which was subscribed.
        self.deaf = set()
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
            pair = {"near": near, "far": far, "cut": False, "hears": False}
            self._pairs.append(pair)
            threading.Thread(target=self._pump, args=(pair, near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(pair, far, near, False), daemon=True).start()

    def _pump(self, pair, source, sink, calls):
        try:
            while data := source.recv(65536):
                while self.frozen.is_set():
                    time.sleep(0.005)
                if calls and self.cut_reply_of and self.cut_reply_of in data:
                    pair["cut"], self.cut_reply_of = True, None
                    if self.freeze_then:
                        sink.sendall(data)
                        self.frozen.set()
                        break
                if not calls and pair["cut"]:
                    break
                pair["hears"] |= calls and b"SUBSCRIBE" in data
                if not calls and id(pair) in self.deaf:
                    continue
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

    def deafen(self):
        self.deaf = {id(pair) for pair in self._pairs if pair["hears"]}

    def cut(self):
        for pair in self._pairs:
            self._end(pair)

    def close(self):
        self.frozen.clear()
        self.listener.close()
        self.cut()


class Call(threading.Thread):
    """A call that takes its time."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self._call, self.result, self.error = call, None, None
        self.start()

    def run(self):
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error

    def end(self, seconds=15):
        self.join(seconds)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


class Mute:
    """A server that says nothing to what concerns locks."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.asked = threading.Event()
        self.port = self.listener.getsockname()[1]

    def end_of_next(self):
        """How its end comes: all that was said, and whether that was a reset."""
        near, _ = self.listener.accept()
        near.settimeout(10)
        said = b""
        with near:
            try:
                while data := near.recv(4096):
                    said += data
                    if b"LOCK." in data:
                        self.asked.set()
                    near.sendall(b"+OK\r\n" * (0 if b"LOCK." in data else data.count(b"*")))
            except ConnectionResetError:
                return said, True
        return said, False


@pytest.fixture
def mute():
    mute = Mute()
    yield mute
    mute.listener.close()


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
def locks(server):
    locks = Locks(redis.Redis(port=server.port))
    yield locks
    locks.close()


@pytest.fixture
def far(proxy):
    """Through the proxy."""
    locks = Locks(redis.Redis(port=proxy.port))
    yield locks
    locks.close()
