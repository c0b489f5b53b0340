# SPDX-License-Identifier: MIT
"""Each loss is noticed at once, with its reason. A release is no loss."""

import threading
import time

import pytest
from conftest import Call, until

from redis_lock_client import Lost

CAUSES = {
    "broken": lambda server: server.admin.execute_command("LOCK.BREAK", "a"),
    "deleted": lambda server: server.admin.delete("a"),
    "FLUSHALL": lambda server: server.admin.flushall(),
    "RENAME": lambda server: server.admin.rename("a", "b"),
    "a release without the number": lambda server: server.give("a", server.holder("a")["owner"]),
}


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("options", [{}, {"lease": 60}], ids=str)
def test_a_loss_is_noticed_at_once(server, flavor, cause, options):
    events = []
    locks = flavor.locks(server.port, listener=events.append)
    hold = locks.lock("a", label="orders", **options).acquire()
    assert not hold.wait_lost(0.01)
    waiting = Call(lambda: hold.wait_lost(10))
    until(lambda: hold._acquire.changed is not None)
    began = time.monotonic()
    CAUSES[cause](server)
    assert waiting.end() is True and hold.lost and hold.valid_for() == 0
    assert time.monotonic() - began < 0.5
    with pytest.raises(Lost, match=cause if cause == "broken" else "deleted"):
        hold.release()
    for call in (hold.release, hold.extend, hold.hand_over, lambda: hold.guard("PING")):
        with pytest.raises(Lost):
            call()
    assert [event[:3] for event in events] == [("orders", "waited", "granted"), ("orders", "held", "lost")]


def test_an_overwritten_key_is_noticed_at_the_renewal(server, flavor):
    server.admin.config_set("lock.default-lease", 600)
    hold = flavor.locks(server.port, ttl=2, grace=0.2).lock("a").acquire()
    server.admin.set("a", "x")
    assert hold.wait_lost(5)
    with pytest.raises(Lost, match="wrongtype"):
        hold.release()


@pytest.mark.parametrize("verb", ["release", "extend"])
def test_a_call_for_an_overwritten_key_is_a_loss(server, locks, verb):
    hold = locks.lock("a", lease=60).acquire()
    server.admin.set("a", "x")
    with pytest.raises(Lost, match="wrongtype"):
        getattr(hold, verb)()
    assert hold.lost and server.admin.get("a") == "x"


def test_one_of_several_is_a_loss_of_all(server, locks):
    hold = locks.lock("a", "b").acquire()
    server.admin.delete("b")
    assert hold.wait_lost(5)
    with pytest.raises(Lost):
        hold.release()
    # The server would renew the other one.
    until(lambda: not server.held("a"))


def test_a_release_is_no_loss(server, flavor):
    events, stop = [], threading.Event()
    locks = flavor.locks(server.port, listener=events.append)

    def look(hold):
        while not stop.is_set():
            assert not hold.lost

    for options in ({}, {"lease": 60}, {"reentrant": True}, {"fence": True}):
        for _ in range(10):
            hold = locks.lock("a", **options).acquire()
            waiting = Call(lambda hold=hold: hold.wait_lost(10))
            looking = Call(lambda hold=hold: look(hold))
            hold.release()
            assert waiting.end() is False and not hold.lost
            stop.set()
            looking.end()
            stop.clear()
    assert {event.outcome for event in events if event.event == "held"} == {"released"}


def test_waiting_for_a_loss_ends_at_the_lease(server, locks):
    hold = locks.lock("a", lease=0.2).acquire()
    began = time.monotonic()
    assert hold.wait_lost(10) and time.monotonic() - began < 2
    assert hold.lost


def test_a_waiter_follows_a_loss(server, locks):
    hold = locks.lock("a").acquire()
    call = Call(lambda: locks.lock("a").acquire())
    until(lambda: server.waiters("a") == 1)
    server.admin.delete("a")
    call.end().release()
    assert hold.wait_lost(5)


def test_a_key_that_changes_its_type_ends_waits(server, locks):
    server.take("a")
    call = Call(lambda: locks.lock("a").acquire(1))
    until(lambda: server.waiters("a") == 1)
    server.admin.set("a", "x")
    with pytest.raises(Exception) as caught:
        call.end()
    assert type(caught.value).__name__ in ("Misuse", "TimedOut")
    server.admin.delete("a")
    with locks.lock("a"):
        pass
