# SPDX-License-Identifier: MIT
"""Waits that have a connection of their own, and several locks at once."""

import asyncio
import threading
import time

import pytest
import redis
import redis.asyncio
from conftest import pairs, until

from redis_lock_client import Busy, Cancellation, Cancelled, Locks, Lost, Misuse, TimedOut, Unavailable, aio


@pytest.fixture
def far(proxy):
    """Through the proxy."""
    locks = Locks(redis.Redis(port=proxy.port), patience=2)
    yield locks
    locks.close()


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


def waiting(server, key):
    return [pairs(waiter) for waiter in server.admin.execute_command("LOCK.WAITERS", key)]


def test_a_wait_of_its_own_is_served_and_kept(server, locks):
    first = locks.lock("a").acquire()
    lock = locks.lock("a", lease=0.5, keep=True, own_connection=True)
    thread, ended = in_thread(lock.acquire)
    until(lambda: server.waiters("a") == 1)
    assert waiting(server, "a")[0]["remaining"] == -1
    first.release()
    thread.join(5)
    hold = ended[0]
    holder = server.holder("a")
    assert holder["watchdog"] == 1 and holder["ephemeral"] == 1 and holder["owner"] == hold.owner
    assert not hold.wait_lost(1.2)
    hold.release()
    assert not server.held("a") and len(server.admin.client_list()) <= 4


def test_its_time_to_wait_is_the_servers(server, locks):
    with locks.lock("a"):
        with pytest.raises(TimedOut), locks.lock("a", own_connection=True, wait=0.2):
            pass
        with pytest.raises(Busy), locks.lock("a", own_connection=True, wait=0):
            pass
        thread, ended = in_thread(lambda: locks.lock("a", own_connection=True).acquire(30))
        until(lambda: server.waiters("a") == 1)
        assert 0 < waiting(server, "a")[0]["remaining"] <= 30_000
    thread.join(5)
    ended[0].release()


def test_the_connection_is_used_again_and_no_more_than_one_is_kept(server, locks):
    with locks.lock("a"):
        before = len(server.admin.client_list())
        calls = [in_thread(lambda: locks.lock("a", own_connection=True).acquire(0.3)) for _ in range(5)]
        until(lambda: server.waiters("a") == 5)
        assert len(server.admin.client_list()) == before + 5
        for thread, ended in calls:
            thread.join(5)
            assert ended == [None]
        until(lambda: len(server.admin.client_list()) == before + 1)
        assert locks.lock("a", own_connection=True).acquire(0.05) is None
        assert len(server.admin.client_list()) == before + 1


def test_who_cancels_closes_it(server, locks):
    with locks.lock("a"):
        before = len(server.admin.client_list())
        cancellation = Cancellation()
        thread, ended = in_thread(lambda: locks.lock("a", own_connection=True).acquire(cancellation=cancellation))
        until(lambda: server.waiters("a") == 1)
        cancellation.cancel()
        thread.join(5)
        assert isinstance(ended[0], Cancelled) and server.waiters("a") == 0
        until(lambda: len(server.admin.client_list()) == before)
    assert not server.held("a")


def test_a_cancellation_at_the_grant_leaves_nothing(server):
    async def body():
        client = redis.asyncio.Redis(port=server.port)
        locks = aio.Locks(client)
        for lock in (locks.lock("a", lease=60, own_connection=True), locks.all_of("b", "a", lease=60)):
            for number in range(100):
                first = await locks.lock("a").acquire()
                task = asyncio.ensure_future(lock.acquire())
                while not server.waiters("a"):
                    await asyncio.sleep(0)
                release = asyncio.ensure_future(first.release())
                for _ in range(number % 20):
                    await asyncio.sleep(0)
                task.cancel()
                await release
                try:
                    await (await task).release()
                except asyncio.CancelledError:
                    pass
                assert not server.held("a") and not server.held("b") and server.waiters("a") == 0
        await locks.close()
        await client.aclose()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(body())


def test_it_survives_a_cut(server, proxy, locks, far):
    with locks.lock("a"):
        thread, ended = in_thread(lambda: far.lock("a", lease=60, own_connection=True).acquire())
        until(lambda: server.waiters("a") == 1)
        client = waiting(server, "a")[0]["client"]
        proxy.cut()
        until(lambda: [waiter["client"] != client for waiter in waiting(server, "a")] == [True])
    thread.join(5)
    assert server.admin.hgetall("a") == {ended[0].owner: "1"}
    ended[0].release()


def test_a_grant_whose_reply_is_lost(server, proxy, locks, far):
    # Waits that are over already meet the same.
    for lock in (far.lock("a", lease=60, own_connection=True), far.all_of("b", "a", lease=60)):
        proxy.cut_reply_of = b"BLOCK"
        hold = lock.acquire()
        assert proxy.cut_reply_of is None and server.admin.hgetall("a") == {hold.owner: "1"}
        hold.release()
        assert not server.held("a") and not server.held("b")


def test_a_server_that_is_no_primary_any_more(server, locks):
    hold = locks.lock("a", lease=60).acquire()
    waits = locks.lock("a", lease=60, own_connection=True), locks.all_of("b", "a", lease=60)
    calls = [in_thread(lock.acquire) for lock in waits]
    until(lambda: server.waiters("a") == 2)
    server.admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    until(lambda: server.waiters("a") == 0)
    server.admin.execute_command("REPLICAOF", "NO", "ONE")
    until(lambda: server.waiters("a") == 2)
    hold.release()
    until(lambda: any(ended for _, ended in calls))
    for thread, ended in sorted(calls, key=lambda call: not call[1]):
        thread.join(10)
        ended[0].release()


def test_it_ends_when_there_is_no_server(server):
    locks = Locks(redis.Redis(port=server.port), patience=0.3)
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    thread, ended = in_thread(locks.lock("a", own_connection=True).acquire)
    until(lambda: server.waiters("a") == 1)
    server.stop()
    thread.join(5)
    assert isinstance(ended[0], Unavailable)
    locks.close()


def test_a_close_ends_it(server):
    locks = Locks(redis.Redis(port=server.port))
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    connections = len(server.admin.client_list())
    assert locks.lock("a", own_connection=True).acquire(0.01) is None
    thread, ended = in_thread(locks.lock("a", own_connection=True).acquire)
    until(lambda: server.waiters("a") == 1)
    locks.close()
    thread.join(5)
    assert isinstance(ended[0], Unavailable)
    until(lambda: server.waiters("a") == 0 and len(server.admin.client_list()) == connections)


def test_several_locks_are_granted_at_once(server, locks):
    with locks.all_of("a", "b", "c") as hold:
        assert all(server.admin.hgetall(key) == {hold.owner: "1"} for key in "abc")
        assert server.holder("b")["watchdog"] == 1
        assert locks.all_of("c", "d").try_acquire() is None and not server.held("d")
        assert len(locks.all_of("a", "b", "d").holders()) == 2
        with pytest.raises(Misuse):
            hold.guard("SET", "x", "1")
    assert not any(server.held(key) for key in "abc")


def test_who_waits_for_several_holds_none(server, locks):
    with locks.lock("b"):
        thread, ended = in_thread(lambda: locks.all_of("a", "b", lease=60).acquire(20))
        until(lambda: server.waiters("a") == 1)
        assert not server.held("a")
        with pytest.raises(TimedOut), locks.all_of("a", "b", wait=0.05):
            pass
    thread.join(5)
    ended[0].extend(30)
    assert 0 < server.admin.pttl("a") <= 30_000
    ended[0].release()
    assert not server.held("a") and not server.held("b")


def test_one_of_several_that_is_lost_is_a_loss(server, locks):
    hold = locks.all_of("a", "b", lease=0.4, keep=True).acquire()
    server.admin.execute_command("LOCK.BREAK", "b")
    assert hold.wait_lost(5)
    with pytest.raises(Lost):
        hold.release()
    # The other is given back, though the server would keep it.
    assert not server.held("a")


def test_several_in_any_order_are_no_deadlock(server, locks):
    counter = [0]

    def work(keys):
        for _ in range(20):
            with locks.all_of(*keys):
                before = counter[0]
                time.sleep(0)
                counter[0] = before + 1

    workers = [in_thread(lambda keys=keys: work(keys)) for keys in ("ab", "ba", "bca", "cab")]
    for thread, ended in workers:
        thread.join(20)
        assert ended == [None]
    assert counter == [80] and not any(server.held(key) for key in "abc")


def test_what_several_cannot_be(locks):
    for keys, how in (((), {}), (("a",), {"fence": True}), (("a",), {"limit": 2}), (("a", "a"), {})):
        with pytest.raises(Misuse):
            locks.all_of(*keys, **how).acquire()


def test_silence_ends_a_wait_without_limit(server, proxy):
    locks = Locks(redis.Redis(port=proxy.port), patience=0.3)
    first = Locks(redis.Redis(port=server.port))
    hold = first.lock("a", lease=60).acquire()
    thread, ended = in_thread(locks.lock("a", own_connection=True).acquire)
    until(lambda: server.waiters("a") == 1)
    proxy.frozen.set()
    thread.join(20)
    assert isinstance(ended[0], Unavailable)
    proxy.frozen.clear()
    until(lambda: server.waiters("a") == 0)
    hold.release()
    assert not server.held("a")
    locks.close()
    first.close()
