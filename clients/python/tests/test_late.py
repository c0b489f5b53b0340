# SPDX-License-Identifier: MIT
"""What comes late, or never: to the server, from it, and behind the caller's back."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import redis
import redis.asyncio
from conftest import Call, until

from redis_lock_client import Locks, Lost, Misuse, Unavailable, aio


def test_what_is_given_up_is_reset(mute):
    locks = Locks(redis.Redis(port=mute.port), patience=0.5)
    trying = Call(locks.lock("a").try_acquire)
    said, reset = mute.end_of_next()
    assert b"LOCK.ACQUIRE" in said and reset
    mute.listener.close()
    with pytest.raises(Unavailable):
        trying.end()
    locks.close()


def test_what_is_closed_is_not_reset(mute):
    locks = Locks(redis.Redis(port=mute.port), patience=60)
    trying = Call(locks.lock("a").try_acquire)
    closing = Call(lambda: (mute.asked.wait(10), locks.close()))
    said, reset = mute.end_of_next()
    assert b"LOCK.ACQUIRE" in said and not reset
    with pytest.raises(Unavailable):
        trying.end()
    closing.end()


def test_only_what_must_bind_binds(server, locks, far):
    """A renewal that comes late must not bind a hold to a connection that has ended."""
    said = []
    with server.admin.monitor() as monitor:
        hold = far.lock("a", lease=0.6, keep=True).acquire()
        time.sleep(0.7)
        hold.extend(0.6)
        assert hold.valid_for() > 0
        taken = locks.lock("a", lease=0.6, keep=True).attach(hold.hand_over())
        time.sleep(0.7)
        taken.release()
        server.admin.get("the end")
        while not (command := monitor.next_command()["command"]).startswith("GET"):
            if command.startswith("LOCK.RENEW"):
                said.append("WATCHDOG EPHEMERAL" in command)
    # Only that by which another process has taken it over.
    assert said.count(True) == 1 and len(said) >= 5


def test_what_is_extended_to_less_is_no_longer_valid_than_that(server, proxy, far):
    hold = far.lock("a", lease=60).acquire()
    proxy.cut_reply_of, proxy.freeze_then = b"LOCK.RENEW", True
    extending = Call(lambda: hold.extend(0.3))
    until(lambda: proxy.frozen.is_set())
    assert hold.valid_for() <= 0.3
    until(lambda: not server.held("a"))
    assert hold.wait_lost(1)
    proxy.frozen.clear()
    with pytest.raises((Lost, Unavailable)):
        extending.end()


def test_a_permission_that_comes_back_frees_what_was_lost_without(server):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", "nopass", "+@all", "~*", "&*")
    locks = Locks(redis.Redis(port=server.port, username="app", password="x"))
    lost = locks.lock("a", lease=0.5, keep=True).acquire()
    refused = locks.lock("b", lease=0.5, keep=True).acquire()
    server.admin.execute_command("ACL", "SETUSER", "app", "-@all", "+ping")
    with pytest.raises((Misuse, Lost)):
        refused.release()
    assert lost.wait_lost(5)
    # The server renews them for as long as the connection is there.
    time.sleep(0.6)
    assert server.held("a") and server.held("b")
    server.admin.execute_command("ACL", "SETUSER", "app", "+@all")
    until(lambda: not server.held("a") and not server.held("b"), 5)
    locks.close()


def test_a_wait_goes_on_through_a_server_without_replicas(server, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    waiting = Call(lambda: locks.lock("a").acquire(20))
    until(lambda: server.waiters("a") == 1)
    server.admin.config_set("min-replicas-to-write", 1)
    late = Call(lambda: locks.lock("b").acquire(20))
    # It asks again, and is refused.
    time.sleep(3.5)
    assert waiting.is_alive() and late.is_alive()
    server.admin.config_set("min-replicas-to-write", 0)
    server.admin.execute_command("LOCK.RELEASE", "a", "x")
    for begun in (waiting, late):
        begun.end().release()


def test_a_server_that_is_no_primary_gets_no_storm_of_connections(server, locks):
    hold = locks.lock("a").acquire()
    waiting = Call(lambda: locks.lock("a").acquire(3))
    until(lambda: server.waiters("a") == 1)
    server.admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    before = server.admin.info("stats")["total_connections_received"]
    time.sleep(2)
    made = server.admin.info("stats")["total_connections_received"] - before
    assert 2 <= made < 40, made
    server.admin.execute_command("REPLICAOF", "NO", "ONE")
    with suppress(Unavailable):
        waiting.end()
    with suppress(Lost):
        hold.release()


def test_a_dead_connection_for_messages_is_found(server, proxy):
    locks = Locks(redis.Redis(port=proxy.port), patience=0.5)
    locks.lock("other").acquire().release()

    def heard():
        return [client["id"] for client in server.admin.client_list(_type="pubsub")]

    for lease in (None, 1.0):
        server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
        waiting = Call(lambda: locks.lock("a", lease=lease).acquire(20))
        until(lambda: server.waiters("a") == 1)
        proxy.deafen()
        deaf = heard()
        until(lambda: heard() not in (deaf, []))
        server.admin.execute_command("LOCK.RELEASE", "a", "x")
        waiting.end().release()
    locks.close()


def test_the_word_of_a_script_is_no_loss(server, locks):
    for how in ({}, {"lease": 60}):
        hold = locks.lock("a", **how).acquire()
        with pytest.raises(Lost):
            hold.guard("EVAL", "return redis.error_reply('NOTOWNER of mine')", 0)
        assert not hold.lost and hold.valid_for() > 20
        server.admin.delete("a")
        with pytest.raises(Lost):
            hold.guard("PING")
        assert hold.lost


def test_waits_are_taken_back_however_long_the_server_cannot_write(server, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    waiting = Call(lambda: locks.lock("a", lease=0.3).acquire(1))
    until(lambda: server.waiters("a") == 1)
    server.admin.config_set("min-replicas-to-write", 1)
    with suppress(Unavailable):
        assert waiting.end() is None
    time.sleep(1)
    server.admin.config_set("min-replicas-to-write", 0)
    until(lambda: server.waiters("a") == 0, 5)


def test_a_pool_for_threads_with_tls(mute):
    locks = Locks(redis.Redis(port=mute.port, ssl=True), patience=0.2)
    with pytest.raises(Unavailable):
        locks.lock("a").try_acquire()
    locks.close()


FORKS = """
import os, sys, threading, time, redis
from redis_lock_client import Locks
locks = Locks(redis.Redis(port=int(sys.argv[1]), password="x"))
threading.Thread(target=locks.lock("a").try_acquire, daemon=True).start()
sys.stdin.readline()
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(20)
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_a_child_that_is_forked_while_there_is_half_a_connection_keeps_none(mute):
    words = [sys.executable, "-c", FORKS, str(mute.port)]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    near, _ = mute.listener.accept()
    near.settimeout(5)
    assert near.recv(4096)
    program.stdin.write("fork\n")
    program.stdin.flush()
    child = int(program.stdout.readline())
    program.kill()
    with near, suppress(ConnectionResetError):
        assert near.recv(4096) == b""
    os.kill(child, 9)
    program.communicate()


def test_nothing_is_taken_back_that_was_never_said(mute):
    locks = Locks(redis.Redis(port=mute.port, password="x"), patience=0.1)
    mute.listener.close()
    for _ in range(5):
        with pytest.raises(Unavailable):
            locks.lock("a").try_acquire()
        with pytest.raises(Unavailable):
            locks.lock("a", own_connection=True).acquire(0.1)
    until(lambda: len(locks.asynchronous._session.tasks) == 0, 2)
    locks.close()


def test_waits_with_connections_of_their_own_make_no_storm(server, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    waiting = [Call(lambda: locks.lock("a", own_connection=True).acquire(4)) for _ in range(10)]
    until(lambda: server.waiters("a") == 10)
    before = server.admin.info("stats")["total_connections_received"]
    server.admin.config_set("min-replicas-to-write", 1)
    server.admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    time.sleep(2)
    made = server.admin.info("stats")["total_connections_received"] - before
    assert made < 100, made
    server.admin.config_set("min-replicas-to-write", 0)
    server.admin.execute_command("REPLICAOF", "NO", "ONE")
    for begun in waiting:
        with suppress(Unavailable):
            assert begun.end() is None


def test_what_was_asked_before_a_shorter_lease_makes_it_no_longer(server, proxy, far):
    hold = far.lock("a", lease=60).acquire()
    proxy.frozen.set()
    first = Call(lambda: hold.extend(60))
    time.sleep(0.2)
    second = Call(lambda: hold.extend(2))
    until(lambda: hold.valid_for() <= 2, 1)
    proxy.frozen.clear()
    first.end()
    second.end()
    assert hold.valid_for() <= 2
    hold.release()


def test_a_cancelled_release_goes_on(server, proxy):
    async def body():
        client = redis.asyncio.Redis(port=proxy.port)
        locks = aio.Locks(client)
        hold = await locks.lock("a").acquire()
        proxy.frozen.set()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(hold.release(), 0.1)
        assert hold.valid_for() == 0
        proxy.frozen.clear()
        while server.held("a"):
            await asyncio.sleep(0.02)
        await hold.release()
        await locks.close()
        await client.aclose()

    asyncio.run(asyncio.wait_for(body(), 10))


def test_the_rest_of_several_locks_is_given_back_when_the_server_can_write(server, locks):
    hold = locks.all_of("a", "b", lease=0.6, keep=True).acquire()
    server.admin.delete("a")
    server.admin.config_set("min-replicas-to-write", 1)
    with pytest.raises(Lost):
        hold.release()
    time.sleep(1)
    server.admin.config_set("min-replicas-to-write", 0)
    until(lambda: not server.held("b"), 5)
