# SPDX-License-Identifier: MIT
"""The replacements for `threading.Lock` and `threading.RLock`, beyond CPython's own tests in `acceptance`."""

import threading

import pytest
import redis
from conftest import Call, until

from redis_lock_client import Deadlock, Locks, Lost, Misuse, threads


def test_any_thread_may_release_a_lock(server, threaded):
    lock = threads.Lock(threaded, "a")
    assert lock.acquire() and lock.locked()
    assert not threads.Lock(threaded, "a").acquire(blocking=False)
    Call(lock.release).end()
    assert not lock.locked() and not server.held("a")
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_lost_lock_is_reported_by_its_release(server, threaded):
    lock = threads.Lock(threaded, "a", lease=60)
    with pytest.raises(Lost), lock:
        server.admin.delete("a")
        until(lambda: lock.lost)
    with pytest.raises(ZeroDivisionError), lock:
        server.admin.delete("a")
        1 / 0


def test_a_scope_does_not_release_the_hold_of_another_thread(server, threaded):
    lock = threads.Lock(threaded, "a")
    with pytest.raises(Lost), lock:
        server.admin.delete("a")
        Call(lock.acquire).end()
    assert server.held("a") and not lock.lost
    lock.release()


def test_a_lock_of_threads_has_one_hold(threaded):
    for options in ({"shared": True}, {"limit": 2}, {"lease": -1}):
        with pytest.raises(Misuse):
            threads.Lock(threaded, "a", **options)


def test_an_rlock_belongs_to_its_thread(server, threaded):
    lock, twin = threads.RLock(threaded, "a"), threads.RLock(threaded, "a")
    with lock, lock, twin:
        assert Call(lambda: lock.acquire(False)).end() is False and Call(lambda: twin.acquire(timeout=0.05)).end() is False
    assert not lock.locked() and not server.held("a")


def test_crossing_rlocks_are_a_deadlock(server, threaded):
    first, second = threads.RLock(threaded, "a"), threads.RLock(threaded, "b")

    def other():
        with second, first:
            pass

    with first:
        call = Call(other)
        until(lambda: server.waiters("a") == 1)
        with pytest.raises(Deadlock):
            second.acquire()
    call.end()


def test_a_lost_rlock_is_not_entered_again(server, threaded):
    lock = threads.RLock(threaded, "a")
    with pytest.raises(Lost), lock:
        server.admin.execute_command("LOCK.BREAK", "a")
        until(lambda: lock.lost)
        with pytest.raises(Lost):
            lock.acquire()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_condition_uses_an_rlock(server, threaded):
    condition, results = threading.Condition(threads.RLock(threaded, "a")), []

    def wait():
        with condition:
            results.append(condition.wait(5))

    call = Call(wait)
    until(lambda: condition._waiters)
    with condition:
        condition.notify()
    call.end()
    assert results == [True] and not server.held("a")


def test_the_error_of_the_body_wins_over_a_failed_release(server):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", ">x", "+@all", "-lock.release", "~*", "&*")
    with Locks(redis.Redis(port=server.port, username="app", password="x")) as locks:
        with pytest.raises(ZeroDivisionError), threads.Lock(locks, "a"):
            1 / 0
