# SPDX-License-Identifier: MIT
"""A listener gets the duration and outcome of waits and holds, and may use locks itself."""

import asyncio

import pytest
from conftest import Call, comes_true, in_asyncio, until

from redis_lock_client import Busy, Deadlock, Lost, Misuse, TimedOut


def test_each_wait_and_hold_is_an_event(server, flavor):
    events = []
    locks = flavor.locks(server.port, listener=events.append)
    server.take("busy")
    hold = locks.lock("a:1", label="a").acquire()
    assert locks.lock("busy", label="a").try_acquire() is None
    for wait, error in ((0, Busy), (0.05, TimedOut)):
        with pytest.raises(error):
            locks.lock("busy", label="b").acquire(wait)
    with pytest.raises(Deadlock):
        locks.lock("a:1", label="c").acquire()
    hold.release()
    server.admin.set("text", "x")
    with pytest.raises(Misuse):
        locks.lock("text").try_acquire()
    hold = locks.lock("d", label="d").acquire()
    server.admin.delete("d")
    assert hold.wait_lost(5)
    until(lambda: len(events) == 9)
    assert [event[:3] for event in events] == [
        ("a", "waited", "granted"),
        ("a", "waited", "busy"),
        ("b", "waited", "busy"),
        ("b", "waited", "timed out"),
        ("c", "waited", "deadlock"),
        ("a", "held", "released"),
        (None, "waited", "misuse"),
        ("d", "waited", "granted"),
        ("d", "held", "lost"),
    ]
    assert 0.04 < events[3].seconds < 5 and events[5].seconds >= events[3].seconds


def test_a_listener_that_raises_does_no_harm(server, flavor, caplog):
    locks = flavor.locks(server.port, listener=lambda event: 1 / 0)
    with pytest.raises(Lost, match="deleted"), locks.lock("a") as hold:
        server.admin.delete("a")
        assert hold.wait_lost(5)
        until(lambda: "ZeroDivisionError" in caplog.text)
        locks.lock("b").acquire().release()
    with locks.lock("a"):
        assert len(server.sessions()) == 1


def test_a_listener_that_exits_does_no_harm(server, flavor):
    exits = []

    def listener(event):
        if event.outcome == "lost":
            exits.append(event)
            raise SystemExit

    locks = flavor.locks(server.port, ttl=20, listener=listener)
    hold, other = locks.lock("a").acquire(), locks.lock("b").acquire()
    server.admin.delete("a")
    until(lambda: exits)
    before = server.calls("lock.events")
    until(lambda: server.calls("lock.events") > before + 2)
    assert hold.lost and other.valid_for() > 0
    other.release()


def test_a_listener_may_release_and_try(server, flavor):
    if flavor.name == "asyncio":
        pytest.skip("a listener of asyncio must not block the event loop")
    done = []

    def listener(event):
        if event.event == "held" and event.label == "a" and event.outcome == "lost":
            other.release()
            with pytest.raises(Misuse):
                locks.lock("c").acquire()
            hold = locks.lock("c").try_acquire()
            done.append(server.held("c"))
            hold.release()

    locks = flavor.locks(server.port, listener=listener)
    hold, other = locks.lock("a", label="a").acquire(), locks.lock("b").acquire()
    server.admin.delete("a")
    until(lambda: done == [True])
    assert hold.lost and not other.lost and not server.held("b") and not server.held("c")


def test_a_listener_of_asyncio_may_start_a_task(server):
    def listener(event):
        if event.outcome == "lost":
            lost.append(asyncio.ensure_future(work()))

    async def work():
        await other.release()
        async with locks.lock("c"):
            return server.held("b"), server.held("c")

    async def body(made):
        nonlocal locks, other
        locks, other = made, await made.lock("b").acquire()
        hold = await locks.lock("a").acquire()
        server.admin.delete("a")
        await comes_true(lambda: lost)
        assert hold.lost and await lost[0] == (False, True)

    locks, other, lost = None, None, []
    in_asyncio(server.port, body, listener=listener)


def test_a_listener_is_not_called_for_its_own_calls(server, flavor):
    if flavor.name == "asyncio":
        pytest.skip("a listener of asyncio must not block the event loop")
    events = []

    def listener(event):
        events.append(event[:3])
        locks.lock("b", label="b").try_acquire().release()

    locks = flavor.locks(server.port, listener=listener)
    locks.lock("a", label="a").acquire().release()
    assert events == [("a", "waited", "granted"), ("a", "held", "released")] and not server.held("b")


def test_a_listener_is_called_in_the_releasing_thread(server, flavor):
    events = []
    locks = flavor.locks(server.port, listener=events.append)
    calls = [Call(lambda number=number: locks.lock(f"l{number}", label=str(number)).acquire().release()) for number in range(5)]
    for call in calls:
        call.end()
    for number in range(5):
        assert [event[1:3] for event in events if event.label == str(number)] == [("waited", "granted"), ("held", "released")]
