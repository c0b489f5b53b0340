# SPDX-License-Identifier: MIT
"""Owners that are handed on, waits that another thread ends, what a listener hears, and what is left afterwards."""

import asyncio
import gc
import threading
import time

import pytest
import redis
import redis.asyncio
from conftest import until

from redis_lock_client import Cancellation, Cancelled, Locks, Lost, Misuse, Unavailable, aio, errors, threads


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("LOCK.RENEW a nobody", "Lost"),
        ("LOCK.ACQUIRE a", "Misuse"),
        ("LOCK.ACQUIRE text x", "Misuse"),
        ("LOCK.ACQUIRE forbidden x", "Misuse"),
        ("LOCK.ACQUIRE a y NOTIFY i ID 1", "Unavailable"),
    ],
)
def test_what_the_server_says_is_one_of_the_kinds(server, command, kind):
    admin = server.admin
    admin.set("text", "x")
    admin.config_set("lock.max-notify", 1)
    admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    admin.execute_command("ACL", "SETUSER", "app", "on", "nopass", "+@all", "~a", "~text", "&*")
    client = redis.Redis(port=server.port, username="app", password="x", single_connection_client=True)
    client.execute_command("LOCK.ACQUIRE", "a", "z", "NOTIFY", "i", "ID", "2")
    with pytest.raises(redis.ResponseError) as caught:
        client.execute_command(*command.split())
    ours = errors.of(caught.value)
    assert type(ours).__name__ == kind and str(ours).split(" ")[0].isupper()
    client.close()


def test_the_kinds_that_a_test_server_does_not_show():
    def kind(text):
        return type(errors.of(redis.ResponseError(text))).__name__

    assert kind("DEADLOCK a waits for b") == "Deadlock"
    assert kind("UNBLOCKED client unblocked via CLIENT UNBLOCK") == "Unavailable"
    assert kind("UNBLOCKED force unblock from blocking operation, instance state changed") == "Disconnected"
    assert kind("QUARANTINE for 5 ms") == kind("MISCONF errors writing") == "Unavailable"
    assert kind("NOREPLICAS 0 of 1") == "Passing"
    assert type(errors.of(redis.exceptions.OutOfMemoryError("command not allowed"))).__name__ == "Unavailable"
    assert type(errors.of(redis.exceptions.ReadOnlyError("a replica"))).__name__ == "Disconnected"
    assert str(errors.of(redis.exceptions.NoPermissionError("no"))) == "NOPERM no"


def in_thread(call):
    ended = []

    def run():
        try:
            ended.append(call())
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def test_a_hold_is_handed_on(server, locks):
    other = Locks(redis.Redis(port=server.port))
    owner = locks.lock("a", lease=60).acquire().owner
    hold = other.lock("a", lease=60).attach(owner)
    assert hold.owner == owner and not hold.lost and hold.valid_for() > 50
    hold.release()
    assert not server.held("a")
    with pytest.raises(Lost):
        other.lock("a").attach(owner)
    other.close()


def test_a_kept_hold_that_is_handed_on_is_kept_by_its_new_holder(server, locks):
    other = Locks(redis.Redis(port=server.port))
    owner = locks.lock("a", lease=60).acquire().owner
    hold = other.lock("a", lease=0.5, keep=True).attach(owner)
    assert not hold.wait_lost(1.2)
    other.close()
    until(lambda: not server.held("a"))


def test_another_thread_ends_a_wait(server, locks):
    with locks.lock("a"):
        cancellation = Cancellation()
        thread, ended = in_thread(lambda: locks.lock("a").acquire(cancellation=cancellation))
        until(lambda: server.waiters("a") == 1)
        cancellation.cancel()
        thread.join(5)
        assert isinstance(ended[0], Cancelled) and server.waiters("a") == 0
        with pytest.raises(Cancelled):
            locks.lock("a").acquire(cancellation=cancellation)
    assert not server.held("a")


def test_a_cancellation_that_meets_the_grant(server, locks):
    for number in range(100):
        first, cancellation = locks.lock("a").acquire(), Cancellation()
        thread, ended = in_thread(lambda: locks.lock("a").acquire(cancellation=cancellation))
        until(lambda: server.waiters("a") == 1)
        other, _ = in_thread(first.release)
        time.sleep(number % 10 / 10_000)
        cancellation.cancel()
        thread.join(5)
        other.join(5)
        if not isinstance(ended[0], Cancelled):
            ended[0].release()
        assert not server.held("a") and server.waiters("a") == 0


def test_a_listener_hears_how_each_ended(server):
    heard = []
    locks = Locks(redis.Redis(port=server.port), listener=heard.append)
    hold = locks.lock("a:1", label="a").acquire()
    assert locks.lock("a:1", label="a").try_acquire() is None
    assert locks.lock("a:1", label="a").acquire(0.05) is None
    hold.release()
    hold = locks.lock("b", keep=True, lease=0.3).acquire()
    server.admin.execute_command("LOCK.BREAK", "b")
    assert hold.wait_lost(5)
    with pytest.raises(Lost):
        hold.release()
    server.admin.set("text", "x")
    with pytest.raises(Misuse):
        locks.lock("text").try_acquire()
    assert [event[:3] for event in heard] == [
        ("a", "waited", "granted"),
        ("a", "waited", "busy"),
        ("a", "waited", "timed out"),
        ("a", "held", "released"),
        ("b", "waited", "granted"),
        ("b", "held", "lost"),
        ("text", "waited", "misuse"),
    ]
    assert 0.04 < heard[2].seconds < 5 and heard[3].seconds >= heard[2].seconds
    locks.close()


def test_a_listener_that_fails_does_no_harm(server, caplog):
    locks = Locks(redis.Redis(port=server.port), listener=lambda event: 1 / 0)
    with locks.lock("a"):
        pass
    assert not server.held("a") and "ZeroDivisionError" in caplog.text
    locks.close()


def test_what_cannot_be_is_refused(server, locks):
    for how in ({"lease": 0}, {"lease": -1}, {"max_hold": 0}, {"wait": -1}):
        with pytest.raises(Misuse):
            locks.lock("a", **how).acquire()
    with pytest.raises(TypeError):
        locks.lock("a", leese=1)
    assert not server.held("a")


def test_a_close_ends_the_waits_of_all_threads(server):
    others = threading.active_count()
    locks = Locks(redis.Redis(port=server.port))
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    calls = [in_thread(lambda: locks.lock("a").acquire()) for _ in range(5)]
    until(lambda: server.waiters("a") == 5)
    locks.close()
    for thread, ended in calls:
        thread.join(5)
        assert isinstance(ended[0], Unavailable)
    until(lambda: server.waiters("a") == 0)
    assert threading.active_count() == others
    with pytest.raises(Unavailable):
        locks.lock("a").acquire()
    locks.close()


def test_calls_that_meet_the_close_end(server):
    for number in range(30):
        locks = Locks(redis.Redis(port=server.port))
        stop = threading.Event()

        def work(locks=locks, stop=stop):
            while not stop.is_set():
                try:
                    locks.lock("a").acquire().release()
                except Lost:
                    pass
                except Unavailable:
                    return

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(number / 1000)
        locks.close()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
        until(lambda: not server.held("a"))


def test_a_session_that_is_forgotten_ends(server):
    others, connections = threading.active_count(), len(server.admin.client_list())
    locks = Locks(redis.Redis(port=server.port))
    with locks.lock("a"):
        assert threading.active_count() > others
    del locks
    gc.collect()
    until(lambda: threading.active_count() == others and len(server.admin.client_list()) == connections)


def test_an_rlock_is_the_threads(server, locks):
    lock = threads.RLock(locks, "a")
    with lock, lock:
        assert server.admin.hlen("a") == 1
        thread, ended = in_thread(lambda: lock.acquire(False))
        thread.join(5)
        assert ended == [False]
        assert not threads.RLock(locks, "a").acquire(blocking=False)
    assert not lock.locked()


def test_an_rlock_that_was_lost_is_not_entered_again(server, locks):
    lock = threads.RLock(locks, "a", lease=0.3, keep=True)
    with pytest.raises(Lost), lock:
        server.admin.execute_command("LOCK.BREAK", "a")
        until(lambda: lock._mutex.lost)
        with pytest.raises(Lost):
            lock.acquire()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_condition_takes_an_rlock(server, locks):
    condition, heard = threading.Condition(threads.RLock(locks, "a")), []

    def wait():
        with condition:
            heard.append(condition.wait(5))

    thread, _ = in_thread(wait)
    until(lambda: server.held("a") or condition._waiters)
    until(lambda: condition._waiters)
    with condition:
        condition.notify()
    thread.join(5)
    assert heard == [True] and not server.held("a")


def test_the_asynchronous_words(server):
    async def body():
        client = redis.asyncio.Redis(port=server.port)
        locks, other = aio.Locks(client), aio.Locks(client)
        hold = await locks.lock("a", lease=60).acquire()
        assert [holder["owner"] for holder in await locks.lock("a").holders()] == [hold.owner.encode()]
        taken = await other.lock("a", lease=60).attach(hold.owner)
        await taken.release()
        assert await locks.lock("a").holders() == []
        await locks.close()
        await other.close()
        assert len(asyncio.all_tasks()) == 1
        await client.aclose()

    asyncio.run(body())
