# SPDX-License-Identifier: MIT
"""What a call meets that is sent again, and a wait in which a call fails."""

import time

import pytest
import redis
from conftest import Call, until

from redis_lock_client import Locks, Lost, Misuse, Unavailable


def freeze_after_the_acquire(proxy, call):
    """The server carries out the acquire. The client hears nothing, and reaches nobody until the proxy thaws."""
    proxy.freeze_then, proxy.cut_reply_of = True, b"LOCK.ACQUIRE"
    call = Call(call)
    until(proxy.frozen.is_set)
    return call


def test_an_acquire_that_is_sent_again_after_its_hold_ended_is_no_hold(server, proxy, locks, far):
    call = freeze_after_the_acquire(proxy, lambda: far.lock("a", lease=0.3).acquire())
    until(lambda: server.held("a"))
    with locks.lock("a"):
        # The server still knows the first reply, and says it again.
        proxy.frozen.clear()
        until(lambda: server.waiters("a") == 1)
        assert call.is_alive()
    hold = call.end()
    assert server.admin.hgetall("a") == {hold.owner: "1"}
    hold.release()


def test_an_acquire_that_is_sent_again_is_held_no_longer_than_the_server_holds_it(server, proxy, far):
    call = freeze_after_the_acquire(proxy, lambda: far.lock("a", lease=60).acquire())
    until(lambda: server.held("a"))
    until(lambda: server.admin.pttl("a") < 59_500)
    proxy.frozen.clear()
    hold = call.end()
    left = server.admin.pttl("a")
    assert hold.valid_for() * 1000 <= left + 1
    hold.release()


def test_a_wait_goes_on_while_the_server_is_away(server, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    for wait in (None, 20):
        call = Call(lambda: locks.lock("a", lease=60).acquire(wait))
        until(lambda: server.waiters("a") == 1)
        server.stop()
        # Calls fail meanwhile.
        time.sleep(0.3)
        server.start()
        hold = call.end()
        assert server.admin.hgetall("a") == {hold.owner: "1"}


def test_a_wait_ends_when_its_server_does_not_come_back(server):
    locks = Locks(redis.Redis(port=server.port), patience=0.3)
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    calls = [Call(lambda: locks.lock("a").acquire(wait)) for wait in (None, 0.5)]
    until(lambda: server.waiters("a") == 2)
    server.stop()
    for call in calls:
        with pytest.raises(Unavailable):
            call.end(5)
    with pytest.raises(redis.ConnectionError):
        locks.lock("a").try_acquire()
    locks.close()


def test_a_wait_for_what_becomes_no_lock(server, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    call = Call(locks.lock("a").acquire)
    until(lambda: server.waiters("a") == 1)
    server.admin.set("a", "text")
    with pytest.raises(Misuse, match="WRONGTYPE"):
        call.end()


def test_a_frozen_network_does_not_prolong_a_wait(server, proxy, far):
    with far.lock("b", lease=60):
        pass
    started = time.monotonic()
    proxy.frozen.set()
    with pytest.raises(Unavailable):
        far.lock("a").acquire(0.1)
    assert time.monotonic() - started < 4
    proxy.frozen.clear()
    # What came through nevertheless is taken back, behind the caller's back.
    until(lambda: not server.held("a"))


def test_a_server_that_is_no_primary_any_more(server, locks):
    hold = locks.lock("a", lease=60).acquire()
    call = Call(lambda: locks.lock("a", lease=60).acquire())
    until(lambda: server.waiters("a") == 1)
    server.admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    time.sleep(0.2)
    server.admin.execute_command("REPLICAOF", "NO", "ONE")
    hold.release()
    call.end().release()


def test_a_release_after_the_own_clock_said_lost_says_lost(server, locks):
    hold = locks.lock("a", lease=0.2).acquire()
    # As if the server's clock went slower.
    server.admin.pexpire("a", 60000)
    assert hold.wait_lost(5)
    for _ in range(2):
        with pytest.raises(Lost):
            hold.release()
    assert not server.held("a")


def test_an_extension_counts_for_the_own_clock(server, locks):
    hold = locks.lock("a", lease=60).acquire()
    hold.extend(0.3)
    assert hold.wait_lost(5)
    hold = locks.lock("b", lease=0.3).acquire()
    hold.extend(60)
    assert not hold.wait_lost(0.6) and hold.valid_for() > 50
    hold.release()


def test_an_extension_survives_a_cut(server, proxy, far):
    hold = far.lock("a", lease=60).acquire()
    proxy.cut()
    hold.extend(30)
    assert server.admin.pttl("a") <= 30_000
    hold.release()


def test_what_could_not_be_taken_back_at_once_is_taken_back_later(server, proxy, far):
    call = freeze_after_the_acquire(proxy, lambda: far.lock("a", lease=60).acquire(0.3))
    with pytest.raises(Unavailable):
        call.end()
    assert server.held("a")
    # What the proxy has not passed on is lost, too.
    proxy.cut()
    proxy.frozen.clear()
    until(lambda: not server.held("a"))
