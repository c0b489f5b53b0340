# SPDX-License-Identifier: MIT
"""Locks follow the primary that Sentinels name."""

import contextlib
import socket
import subprocess
import time

import pytest
import redis
import redis.asyncio
from conftest import Call, Server, free_port, until

from redis_lock_client import Unavailable


class Watched:
    """A primary, a replica, and a Sentinel listed after one that is silent."""

    def __init__(self, folder):
        self.primary = Server(folder / "primary")
        self.replica = Server(folder / "replica", "--replicaof", f"127.0.0.1 {self.primary.port}")
        until(lambda: self.replica.admin.info("replication")["master_link_status"] == "up")
        self._silent = socket.create_server(("127.0.0.1", 0))
        port, file = free_port(), folder / "sentinel.conf"
        file.write_text(
            f"port {port}\nsentinel monitor shop 127.0.0.1 {self.primary.port} 1\n"
            "sentinel down-after-milliseconds shop 500\nsentinel failover-timeout shop 5000\n"
        )
        self._sentinel = subprocess.Popen(["redis-server", str(file), "--sentinel"], stdout=subprocess.DEVNULL, cwd=folder)
        self.addresses = [self._silent.getsockname(), ("127.0.0.1", port)]
        self._asked = redis.Redis(port=port, decode_responses=True)
        until(self._knows_the_replica)

    def _knows_the_replica(self):
        with contextlib.suppress(redis.ConnectionError, redis.ResponseError):
            replicas = self._asked.sentinel_slaves("shop")
            return len(replicas) == 1 and replicas[0]["is_slave"] and not replicas[0]["is_sdown"]
        return False

    def fail_over(self):
        self.primary.stop()
        until(lambda: self.role() == "master", 20)

    def role(self):
        try:
            return self.replica.admin.role()[0]
        except redis.ConnectionError:
            return None

    def end(self):
        self._asked.close()
        self._silent.close()
        for process in (self._sentinel, self.primary.process, self.replica.process):
            process.kill()
            process.wait()


@pytest.fixture
def watched(tmp_path):
    for folder in ("primary", "replica"):
        (tmp_path / folder).mkdir()
    watched = Watched(tmp_path)
    yield watched
    watched.end()


def sentinel_of(flavor, addresses, **options):
    module = redis.sentinel if flavor.name == "threads" else redis.asyncio.sentinel
    return module.Sentinel(addresses, **options)


def waiters(watched):
    with contextlib.suppress(redis.ConnectionError):
        return watched.replica.waiters("k")
    return 0


def test_holds_and_waits_follow_the_primary(watched, flavor):
    locks = flavor.locks(sentinel_of(flavor, watched.addresses, socket_timeout=0.5).master_for("shop"))
    leased, renewed = locks.lock("k", lease=60).acquire(), locks.lock("r").acquire()
    call = Call(lambda: locks.lock("k").acquire(60))
    until(lambda: watched.primary.waiters("k") == 1)
    watched.primary.admin.wait(1, 5000)
    watched.fail_over()
    until(lambda: waiters(watched) == 1, 20)
    assert watched.replica.holder("k")["owner"].encode() == leased.owner
    until(lambda: renewed.valid_for() > 0, 20)
    assert not renewed.lost and watched.replica.holder("r")["owner"].encode() == renewed.owner
    for hold in (leased, renewed, call):
        (hold.end() if hold is call else hold).release()
    assert not watched.replica.admin.exists("k", "r")


def test_an_unknown_primary_is_unavailable(watched, flavor):
    locks = flavor.locks(sentinel_of(flavor, watched.addresses[1:]).master_for("unknown"), patience=0.5)
    began = time.monotonic()
    for wait in (0, 1):
        with pytest.raises(Unavailable):
            locks.lock("k").acquire(wait)
    assert time.monotonic() - began < 10
