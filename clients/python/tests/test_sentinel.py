# SPDX-License-Identifier: MIT
"""The primary that Sentinels know, whoever that is."""

import asyncio
import contextlib
import socket
import subprocess
import threading
import time

import pytest
import redis
import redis.asyncio
from conftest import Server, free_port, until

from redis_lock_client import Locks, Misuse, Unavailable, aio


class Watched:
    """A primary, a replica, and a Sentinel behind one that says nothing."""

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


def waits_there(watched):
    with contextlib.suppress(redis.ConnectionError):
        return watched.replica.waiters("k") == 1
    return False


def test_a_hold_and_a_wait_follow_the_primary(watched):
    sentinel = redis.sentinel.Sentinel(watched.addresses, socket_timeout=0.5)
    locks = Locks(sentinel.master_for("shop"))
    hold = locks.lock("k", lease=60).acquire()
    ended = []
    wait = threading.Thread(target=lambda: ended.append(locks.lock("k", wait=60).acquire()), daemon=True)
    wait.start()
    until(lambda: watched.primary.waiters("k") == 1)
    watched.fail_over()
    until(lambda: waits_there(watched))
    assert watched.replica.holder("k")["owner"] == hold.owner
    hold.release()
    wait.join(10)
    assert watched.replica.holder("k")["owner"] == ended[0].owner
    ended[0].release()
    assert not watched.replica.held("k")
    locks.close()


def test_so_they_do_in_asyncio_on_connections_of_their_own(watched):
    async def run():
        sentinel = redis.asyncio.sentinel.Sentinel(watched.addresses, socket_timeout=0.5)
        locks = aio.Locks(sentinel.master_for("shop"))
        hold = await locks.lock("k", lease=60).acquire()
        wait = asyncio.ensure_future(locks.lock("k", wait=60, own_connection=True).acquire())
        while watched.primary.waiters("k") == 0:
            await asyncio.sleep(0.01)
        watched.fail_over()
        deadline = time.monotonic() + 20
        while not waits_there(watched):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await hold.release()
        await (await wait).release()
        assert not watched.replica.held("k")
        await locks.close()

    asyncio.run(run())


def test_what_is_no_primary_is_refused(watched):
    sentinel = redis.sentinel.Sentinel(watched.addresses)
    with pytest.raises(Misuse):
        Locks(sentinel.slave_for("shop"))
    locks = Locks(sentinel.master_for("unknown"), patience=1)
    with pytest.raises(Unavailable, match="knows no primary unknown"):
        locks.lock("k").try_acquire()
    locks.close()
