# SPDX-License-Identifier: MIT
"""Broken and silent connections, late calls, and a server that restarts or refuses: no hold is lost without need."""

import threading
import time

import pytest
from conftest import Call, Proxy, Server, until

from redis_lock_client import Lost, Unavailable


def session_of(server):
    [session] = server.sessions()
    return session


def owns(server, hold):
    holder = server.holder(hold.key.decode())
    return holder is not None and holder["owner"].encode() == hold.owner


def test_a_broken_connection_changes_nothing(server, proxy, flavor):
    events = []
    locks = flavor.locks(proxy.port, ttl=20, grace=5, listener=events.append)
    hold = locks.lock("a").acquire()
    server.take("b")
    wait = Call(lambda: locks.lock("b").acquire())
    until(lambda: server.waiters("b") == 1)
    client = session_of(server)["client"]
    for _ in range(3):
        proxy.cut()
        until(lambda: session_of(server)["client"] not in (client, -1))
        client = session_of(server)["client"]
    server.give("b")
    wait.end().release()
    # If the first cut hits the reply of the wait, that call is repeated.
    assert not hold.lost and owns(server, hold) and server.calls("lock.acquire") in (3, 4)
    hold.release()
    assert {event.event for event in events} == {"waited", "held"} and all(event.outcome != "lost" for event in events)


def test_silence_is_jeopardy_and_ends(server, proxy, flavor):
    events = []
    locks = flavor.locks(proxy.port, ttl=20, grace=0.6, patience=1, listener=events.append)
    hold = locks.lock("a", label="a").acquire()
    leased = locks.lock("b", lease=60).acquire()
    assert hold.valid_for() > 0
    proxy.frozen.set()
    until(lambda: hold.valid_for() == 0)
    until(lambda: events[-1].event == "jeopardy")
    assert not hold.lost and "in jeopardy" in repr(hold) and leased.valid_for() > 50
    proxy.frozen.clear()
    until(lambda: events[-1].event == "safe")
    assert hold.valid_for() > 0 and owns(server, hold) and [event.label for event in events] == ["a", None, "a", "a"]
    hold.release()
    leased.release()


def test_silence_until_the_ttl_is_a_loss(server, proxy, far):
    hold = far.lock("a").acquire()
    leased = far.lock("b", lease=60).acquire()
    proxy.frozen.set()
    assert hold.wait_lost(10) and not leased.lost
    # The server ends the session at about the same time.
    until(lambda: not server.held("a"))
    proxy.frozen.clear()
    with pytest.raises(Lost, match="silent"):
        hold.release()
    # The hold with a lease is declared in the new session.
    leased.release()
    assert not server.held("b")
    with far.lock("a"):
        pass


def test_a_hold_that_is_lost_here_is_released_there(server, proxy, flavor):
    # The session survives on the server, because its heartbeat arrives late.
    locks = flavor.locks(proxy.port, ttl=1.5, grace=0.6, patience=0.5)
    hold = locks.lock("a").acquire()
    server.admin.execute_command("CLIENT", "PAUSE", 4500)
    assert hold.wait_lost(10)
    with pytest.raises(Lost):
        hold.release()
    until(lambda: not server.held("a"), 5)
    with locks.lock("a"):
        pass


def test_the_reply_to_an_acquire_is_lost(server, proxy, far):
    far.lock("warm").acquire().release()
    for options in ({}, {"lease": 60}, {"fence": True}):
        proxy.lose_reply_to = b"LOCK.ACQUIRE"
        with far.lock("a", **options) as hold:
            assert proxy.lose_reply_to is None and server.holder("a")["holds"] == 1 and owns(server, hold)
        assert not server.held("a")


def test_the_reply_to_a_release_is_lost(server, proxy, flavor):
    events = []
    locks = flavor.locks(proxy.port, listener=events.append)
    for options in ({}, {"lease": 60}):
        hold = locks.lock("a", **options).acquire()
        proxy.lose_reply_to = b"LOCK.RELEASE"
        hold.release()
        assert not server.held("a") and not hold.lost and events[-1][1:3] == ("held", "released")


@pytest.mark.parametrize("options", [{}, {"lease": 60}, {"owner": "me"}], ids=str)
def test_a_late_acquire_gets_nothing(server, proxy, flavor, options):
    locks = flavor.locks(proxy.port, patience=0.5)
    locks.lock("warm").acquire().release()
    proxy.delay = b"LOCK.ACQUIRE"
    lock = locks.lock("a", wait=10, **options)
    hold = lock.acquire()
    assert proxy.is_late() and owns(server, hold)
    hold.release()
    proxy.deliver()
    assert not server.held("a") and server.waiters("a") == 0
    with lock:
        pass


@pytest.mark.parametrize("options", [{}, {"owner": "me"}], ids=str)
def test_a_late_release_ends_no_later_hold(server, proxy, flavor, options):
    locks = flavor.locks(proxy.port, patience=0.5)
    lock = locks.lock("a", **options)
    hold = lock.acquire()
    proxy.delay = b"LOCK.RELEASE"
    try:
        hold.release()
    except Unavailable:
        # The reader repeats it.
        until(lambda: not server.held("a"))
    with lock as hold:
        proxy.deliver()
        hold.extend()
        assert owns(server, hold) and server.holder("a")["holds"] == 1 and not hold.lost


def test_a_restart_without_data_is_a_loss(server, locks):
    hold = locks.lock("a").acquire()
    leased = locks.lock("b", lease=60).acquire()
    server.restart()
    assert hold.wait_lost(10) and leased.wait_lost(10)
    for each in (hold, leased):
        with pytest.raises(Lost, match="restarted"):
            each.release()
    with locks.lock("a"):
        pass


@pytest.mark.parametrize("wait", [None, 30])
def test_a_wait_survives_a_restart(server, locks, wait):
    server.take("a")
    call = Call(lambda: locks.lock("a", fence=True).acquire(wait))
    until(lambda: server.waiters("a") == 1)
    server.stop()
    # Calls fail meanwhile.
    time.sleep(0.2)
    server.start()
    hold = call.end()
    assert owns(server, hold) and hold.token > 0
    hold.release()


@pytest.fixture
def durable(tmp_path):
    server = Server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.stop()


def test_holds_survive_a_restart_with_data(durable, flavor):
    events = []
    locks = flavor.locks(durable.port, listener=events.append)
    holds = [locks.lock("a").acquire(), locks.lock("b", lease=60).acquire(), locks.lock("c", "d").acquire()]
    calls = [Call(lambda: locks.lock("a").acquire()) for _ in range(2)]
    until(lambda: durable.waiters("a") == 2)
    durable.restart()
    until(lambda: durable.waiters("a") == 2)
    until(lambda: all(hold.valid_for() > 0 for hold in holds))
    assert all(owns(durable, hold) for hold in holds) and not any(event.event == "held" for event in events)
    for hold in holds:
        hold.release()
    for _ in range(2):
        [ended] = until(lambda: [call for call in calls if call.result is not None])
        calls.remove(ended)
        ended.end().release()
    assert not durable.admin.exists("a", "b", "c", "d")


def test_a_release_in_flight_survives_a_restart_with_data(durable, flavor):
    locks = flavor.locks(durable.port)
    hold = locks.lock("a", lease=60).acquire()
    durable.stop()
    call = Call(hold.release)
    time.sleep(0.1)
    durable.start()
    call.end()
    assert not durable.held("a") and not hold.lost


def test_an_acquire_in_flight_survives_a_restart_with_data(durable, flavor):
    locks = flavor.locks(durable.port)
    locks.lock("warm").acquire().release()
    durable.stop()
    call = Call(lambda: locks.lock("a").acquire())
    time.sleep(0.1)
    durable.start()
    with_hold = call.end()
    assert owns(durable, with_hold) and durable.holder("a")["holds"] == 1
    with_hold.release()


@pytest.fixture
def durable_proxy(durable):
    proxy = Proxy(durable.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("late", [None, b"LOCK.CANCEL"])
def test_a_grant_without_reply_is_undone_after_a_restart(durable, durable_proxy, flavor, late):
    locks = flavor.locks(durable_proxy.port)
    locks.lock("warm").acquire().release()
    durable_proxy.lose_reply_to, durable_proxy.freeze_then = b"LOCK.ACQUIRE", True
    call = Call(lambda: locks.lock("a").acquire())
    until(lambda: durable.held("a"))
    durable.restart()
    durable_proxy.delay = late
    durable_proxy.frozen.clear()
    hold = call.end(20)
    assert owns(durable, hold) and durable.holder("a")["holds"] == 1
    hold.release()
    assert not durable.held("a")


def test_a_hold_keeps_its_place_beside_one_that_is_undone(durable, durable_proxy, flavor):
    locks = flavor.locks(durable_proxy.port, patience=0.5)
    lock = locks.lock("a", owner="me", reentrant=True)
    kept, released = lock.acquire(), lock.acquire()
    durable_proxy.lose_reply_to, durable_proxy.freeze_then = b"LOCK.RELEASE", True
    call = Call(released.release)
    until(lambda: durable.holder("a")["holds"] == 1)
    with pytest.raises(Unavailable):
        call.end()
    durable.restart()
    durable_proxy.frozen.clear()
    # The new session declares the hold.
    until(lambda: durable.calls("lock.renew") > 0 and kept.valid_for() > 0)
    assert durable.holder("a")["holds"] == 1 and not released.lost
    kept.release()
    assert not durable.held("a")


def test_two_holds_of_one_owner_are_lost_if_only_one_is_left(durable, durable_proxy, flavor):
    lock = flavor.locks(durable_proxy.port).lock("a", owner="me", reentrant=True)
    holds = [lock.acquire(), lock.acquire()]
    durable_proxy.frozen.set()
    durable.restart()
    durable.give("a", "me")
    durable_proxy.frozen.clear()
    until(lambda: all(hold.lost for hold in holds))
    # Nobody uses the remaining hold.
    until(lambda: not durable.held("a"))


def test_a_release_waits_for_the_declaration_of_its_hold(durable, durable_proxy, flavor):
    locks = flavor.locks(durable_proxy.port)
    hold = locks.lock("a", lease=60).acquire()
    durable_proxy.delay = b"LOCK.RENEW"
    durable.restart()
    until(durable_proxy.is_late)
    assert hold.valid_for() == 0 and not hold.lost
    hold.release()
    assert not durable.held("a") and not hold.lost


def test_the_server_has_forgotten_a_release(server, proxy, flavor, monkeypatch):
    monkeypatch.setattr("redis_lock_client._session.RETRY_PAUSE", 1.0)
    locks = flavor.locks(proxy.port)
    hold = locks.lock("a").acquire()
    server.take("b")
    wait = Call(lambda: locks.lock("b").acquire())
    until(lambda: server.waiters("b") == 1)
    proxy.lose_reply_to = b"LOCK.RELEASE"
    release = Call(hold.release)
    until(lambda: not server.held("a"))
    # The event makes the client say that it needs the reply no longer.
    server.give("b")
    wait.end().release()
    release.end()
    assert not hold.lost


def test_a_loss_is_found_by_the_release_itself(server, proxy, far):
    hold = far.lock("a").acquire()
    proxy.delay = b"LOCK.EVENTS"
    until(proxy.is_late)
    server.admin.delete("a")
    with pytest.raises(Lost, match="not held"):
        hold.release()


def test_no_server_is_unavailable(server, flavor):
    locks = flavor.locks(server.port, patience=0.3)
    server.take("a")
    calls = [Call(lambda wait=wait: locks.lock("a").acquire(wait)) for wait in (None, 0.5)]
    until(lambda: server.waiters("a") == 2)
    server.stop()
    for call in calls:
        with pytest.raises(Unavailable):
            call.end(5)
    began = time.monotonic()
    with pytest.raises(Unavailable):
        locks.lock("a").try_acquire()
    assert time.monotonic() - began < 2
    server.start()
    # The session pauses between its attempts.
    with locks.lock("a", wait=10):
        pass


def test_a_release_waits_until_the_server_can_write(server, locks):
    hold = locks.lock("a", lease=60).acquire()
    server.admin.config_set("min-replicas-to-write", 1)
    timer = threading.Timer(0.3, lambda: server.admin.config_set("min-replicas-to-write", 0))
    timer.start()
    hold.release()
    timer.join()
    assert not server.held("a") and not hold.lost


def test_a_release_that_failed_is_continued(server, flavor):
    locks = flavor.locks(server.port, patience=0.3)
    leased, renewed = locks.lock("a", lease=60).acquire(), locks.lock("b").acquire()
    server.admin.config_set("min-replicas-to-write", 1)
    for hold in (leased, renewed):
        with pytest.raises(Unavailable):
            hold.release()
        assert not hold.lost and hold.valid_for() == 0
    server.admin.config_set("min-replicas-to-write", 0)
    until(lambda: not server.held("a") and not server.held("b"))
    for hold in (leased, renewed):
        hold.release()
        assert not hold.lost


def test_a_server_that_cannot_write_confirms_nothing(server, flavor):
    events = []
    locks = flavor.locks(server.port, ttl=20, grace=0.6, listener=events.append)
    hold = locks.lock("a").acquire()
    connections = server.admin.info("stats")["total_connections_received"]
    server.admin.config_set("min-replicas-to-write", 1)
    until(lambda: events[-1].event == "jeopardy")
    server.admin.config_set("min-replicas-to-write", 0)
    until(lambda: events[-1].event == "safe")
    assert not hold.lost and server.admin.info("stats")["total_connections_received"] - connections <= 4
    hold.release()


def test_a_demoted_server_gets_no_storm_of_connections(server, locks):
    hold = locks.lock("a", lease=60).acquire()
    calls = [Call(lambda: locks.lock("a").acquire(20)) for _ in range(10)]
    until(lambda: server.waiters("a") == 10)
    connections = server.admin.info("stats")["total_connections_received"]
    server.admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    time.sleep(1)
    assert server.admin.info("stats")["total_connections_received"] - connections < 60
    server.admin.execute_command("REPLICAOF", "NO", "ONE")
    until(lambda: server.waiters("a") == 10)
    hold.release()
    for _ in range(10):
        ended = until(lambda: [call for call in calls if call.result is not None])[0]
        calls.remove(ended)
        ended.end().release()


def test_a_delayed_grant_of_a_lease_is_still_valid(server, flavor):
    locks = flavor.locks(server.port)
    server.take("a")
    call = Call(lambda: locks.lock("a", lease=3).acquire())
    until(lambda: server.waiters("a") == 1)
    # The server stalls after the grant.
    pipe = server.admin.pipeline(transaction=False)
    pipe.execute_command("MULTI")
    pipe.execute_command("LOCK.RELEASE", "a", "foreign")
    pipe.execute_command("EXEC")
    pipe.execute_command("DEBUG", "SLEEP", "1.9")
    Call(lambda: pipe.execute(raise_on_error=False))
    hold = call.end()
    assert hold.valid_for() > 1
    hold.release()


def test_a_grant_by_event_costs_no_other_call(server, flavor):
    locks = flavor.locks(server.port)
    server.take("a")
    call = Call(lambda: locks.lock("a", lease=60).acquire())
    until(lambda: server.waiters("a") == 1)
    server.give("a")
    hold = call.end()
    # The safe time is a limit until the event has been acknowledged.
    until(lambda: 50 < hold.valid_for() <= 60)
    hold.release()
    assert server.calls("lock.renew") == 0


def test_a_late_event_does_not_prolong_its_lease(server, proxy, flavor):
    locks = flavor.locks(proxy.port, ttl=20, grace=6)
    server.take("a")
    call = Call(lambda: locks.lock("a", lease=20).acquire())
    until(lambda: server.waiters("a") == 1)
    proxy.frozen.set()
    server.give("a")
    until(lambda: server.held("a") and server.admin.pttl("a") < 18500)
    proxy.frozen.clear()
    hold = call.end()
    until(lambda: hold.valid_for() > 10)
    # Not before the other one, as both decrease.
    left = server.admin.pttl("a")
    assert hold.valid_for() <= left / 1000
    hold.release()


def test_a_lease_shorter_than_the_delay_never_begins_invalid(server, proxy, flavor):
    locks = flavor.locks(proxy.port, ttl=20, grace=6)
    server.take("a")
    call = Call(lambda: locks.lock("a", lease=0.4).acquire())
    until(lambda: server.waiters("a") == 1)
    proxy.frozen.set()
    server.give("a")
    until(lambda: not server.held("a"))
    proxy.frozen.clear()
    hold = call.end()
    assert hold.valid_for() > 0 and owns(server, hold)
    hold.release()
