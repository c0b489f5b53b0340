# SPDX-License-Identifier: MIT
"""A hold is nobody's for longer than it must, and one caller's mistake is nobody else's."""

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest
import redis
import redis.asyncio
from conftest import until

from redis_lock_client import Locks, Lost, Misuse, Unavailable, aio, compat, threads


def test_words_that_cannot_be_sent_concern_nobody_else(server, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "busy", "stranger", "PX", 60000)
    hold = locks.lock("mine").acquire()
    for wrong in (lambda: hold.guard("SET", "k", True), lambda: locks.lock("\ud800").try_acquire(), lambda: locks.lock(None)):
        with pytest.raises(Misuse):
            wrong().try_acquire()
    assert locks.lock("busy").try_acquire() is None
    locks.lock("free").try_acquire().release()
    hold.release()


def test_a_reply_that_is_no_text_ends_nothing(server, locks):
    server.admin.set("blob", b"\xff\x00")
    text = Locks(redis.Redis(port=server.port, decode_responses=True))
    hold = text.lock("a").acquire()
    assert hold.guard("SET", "k", "v") == "OK" and hold.guard("MGET", "k", "none") == ["v", None]
    with pytest.raises(UnicodeDecodeError):
        hold.guard("GET", "blob")
    assert hold.valid_for() > 0 and text.lock("a").holders()[0]["owner"] == hold.owner
    hold.release()
    text.close()


def test_what_a_script_says_ends_nothing(server, locks):
    hold = locks.lock("a").acquire()
    client = server.holder("a")["client"]
    for words in ("READONLY x", "MASTERDOWN x", "UNBLOCKED instance state changed", "CLUSTERDOWN x", "no word"):
        with pytest.raises((Unavailable, Misuse)):
            hold.guard("EVAL", f"return redis.error_reply('{words}')", 0)
    hold.extend()
    assert hold.valid_for() > 0 and server.holder("a")["client"] == client
    hold.release()


def test_a_release_waits_until_the_server_can_write(server, locks):
    for name in ("a", "b"):
        hold = locks.lock(name, lease=0.6 if name == "b" else 30, keep=True).acquire()
        server.admin.config_set("min-replicas-to-write", 1)
        if name == "a":
            timer = threading.Timer(0.2, lambda: server.admin.config_set("min-replicas-to-write", 0))
            timer.start()
            hold.release()
            timer.join()
        else:
            # It fails, and nobody calls it again.
            with pytest.raises((Unavailable, Lost)):
                hold.release()
            server.admin.config_set("min-replicas-to-write", 0)
        until(lambda name=name: not server.held(name))


def test_an_owner_that_is_used_again_keeps_what_it_gets(server, locks):
    lock = locks.lock("a")
    old = lock.acquire(owner="me")
    server.admin.config_set("min-replicas-to-write", 1)
    old._hold._lease = 0.1
    with pytest.raises(Unavailable):
        old.release()
    assert old.valid_for() == 0 and not old.lost
    # The server cannot write yet.
    with pytest.raises(Unavailable):
        lock.acquire(0.1, owner="me")
    timer = threading.Timer(0.2, lambda: server.admin.config_set("min-replicas-to-write", 0))
    timer.start()
    new = lock.acquire(owner="me")
    timer.join()
    old.release()
    until(lambda: len(locks.asynchronous._session._giving) == 0)
    assert server.holder("a")["owner"] == "me" and new.guard("PING") == b"PONG"
    for what in (lambda: old.guard("SET", "k", "v"), old.extend, old.hand_over):
        with pytest.raises(Lost):
            what()
    assert new.valid_for() > 0
    new.release()


@pytest.mark.parametrize("keep", [False, True])
def test_who_lost_a_lock_does_not_give_back_the_next_of_its_name(server, proxy, far, keep):
    lock = far.lock("a", lease=0.5, keep=keep)
    old = lock.acquire(owner="me")
    proxy.frozen.set()
    assert old.wait_lost(5)
    proxy.frozen.clear()
    new = far.lock("a").acquire(owner="me")
    with pytest.raises(Lost):
        old.release()
    with pytest.raises(Lost):
        old.guard("SET", "k", "v")
    until(lambda: len(far.asynchronous._session._giving) == 0)
    assert server.holder("a")["owner"] == "me" and new.valid_for() > 0
    new.release()


def test_of_several_locks_of_which_one_is_lost_the_others_are_given_back(server, locks):
    hold = locks.all_of("a", "b").acquire()
    server.admin.delete("a")
    with pytest.raises(Lost):
        hold.release()
    assert not server.held("b")


def test_a_cancelled_wait_leaves_when_the_server_can_write(server):
    async def body():
        client = redis.asyncio.Redis(port=server.port)
        locks = aio.Locks(client)
        server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
        task = asyncio.ensure_future(locks.lock("a").acquire())
        while server.waiters("a") == 0:
            await asyncio.sleep(0.01)
        server.admin.config_set("min-replicas-to-write", 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert server.waiters("a") == 1
        server.admin.config_set("min-replicas-to-write", 0)
        deadline = time.monotonic() + 5
        while server.waiters("a"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await locks.close()
        await client.aclose()

    asyncio.run(body())


def test_what_may_not_be_given_back_runs_out(server):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", "nopass", "+@all", "-lock.release", "~*", "&*")
    locks = Locks(redis.Redis(port=server.port, username="app", password="x"))
    hold = locks.lock("a", lease=0.5, keep=True).acquire()
    with pytest.raises(Misuse, match="NOPERM"):
        hold.release()
    until(lambda: not server.held("a"), 3)
    locks.close()


def test_a_hold_is_not_valid_without_its_connection(server, proxy, far):
    hold = far.lock("a").acquire()
    leased = far.lock("b", lease=30).acquire()
    assert hold.valid_for() > 20
    # Nobody answers on the next.
    proxy.frozen.set()
    proxy.cut()
    until(lambda: not server.held("a"))
    until(lambda: hold.valid_for() == 0, 1)
    assert leased.valid_for() > 20


def test_what_is_lost_by_the_own_clock_is_given_back(server, proxy, far):
    hold = far.lock("a", lease=1, keep=True).acquire()
    proxy.frozen.set()
    assert hold.wait_lost(5) and server.held("a")
    proxy.frozen.clear()
    until(lambda: not server.held("a"), 3)
    with pytest.raises(Lost):
        hold.release()


def test_a_release_whose_reply_is_lost_counts(server, proxy, far):
    hold = far.lock("a").acquire()
    proxy.cut_reply_of = b"LOCK.RELEASE"
    hold.release()
    assert not hold.lost and not server.held("a")
    with pytest.raises(Lost):
        hold.extend(5)
    assert not hold.lost
    hold.release()


def test_a_kept_hold_is_handed_over(server, locks):
    theirs = Locks(redis.Redis(port=server.port))
    hold = locks.lock("a").acquire()
    with pytest.raises(Misuse, match="bound to a connection"):
        theirs.lock("a", lease=20).attach(hold.owner)
    assert server.holder("a")["watchdog"] == 1
    taken = theirs.lock("a").attach(hold.hand_over())
    assert hold.valid_for() == 0 and not hold.lost
    hold.release()
    locks.close()
    assert server.held("a") and taken.valid_for() > 20
    taken.extend(10)
    taken.release()
    assert not server.held("a")
    theirs.close()


def test_a_hand_over_that_is_cancelled_changes_nothing(server, proxy):
    async def body():
        client = redis.asyncio.Redis(port=proxy.port)
        locks = aio.Locks(client)
        hold = await locks.lock("a", lease=3, keep=True).acquire()
        proxy.frozen.set()
        # A third of the lease, and more: a renewal is on its way.
        await asyncio.sleep(1.3)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(hold.hand_over(), 0.1)
        proxy.frozen.clear()
        await asyncio.sleep(0)
        owner = hold.owner
        await hold.extend()
        assert await hold.hand_over() == owner and hold.released and server.held("a")
        with pytest.raises(Lost):
            await hold.hand_over()
        await locks.close()
        await client.aclose()

    asyncio.run(body())


def test_no_owner_is_a_star(locks):
    for star in ("*", b"*"):
        with pytest.raises(Misuse):
            locks.lock("a").acquire(owner=star)
        with pytest.raises(Misuse):
            locks.lock("a").attach(star)


@pytest.mark.parametrize("options", [{"lease": float("nan")}, {"lease": "x"}, {"lease": float("inf")}, {"wait": float("nan")}])
def test_no_time_is_no_number(locks, options):
    with pytest.raises(Misuse):
        locks.lock("a", **options)


def test_what_the_server_refuses_is_misuse(locks):
    for options in ({"limit": 0}, {"limit": "x"}, {"lease": 1e300}):
        with pytest.raises(Misuse, match="^ERR "):
            locks.lock("a", **options).try_acquire()
    with pytest.raises(Misuse):
        locks.lock("a").acquire().extend(-5)


def test_a_scope_may_be_entered_twice_and_left_by_another_task(server):
    async def body():
        client = redis.asyncio.Redis(port=server.port)
        locks = aio.Locks(client)
        lock = locks.lock("a", shared=True)
        async with lock, lock:
            assert len(await lock.holders()) == 2
        await asyncio.ensure_future(lock.__aenter__())
        await lock.__aexit__(None, None, None)
        assert not server.held("a")
        await locks.close()
        await client.aclose()

    asyncio.run(body())


def test_a_lock_of_threads_has_one_hold(locks):
    for options in ({"shared": True}, {"limit": 2}):
        with pytest.raises(Misuse):
            threads.Lock(locks, "a", **options)


def test_the_bodys_error_says_more_than_that_of_a_release(server):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", "nopass", "+@all", "-lock.release", "~*", "&*")
    locks = Locks(redis.Redis(port=server.port, username="app", password="x"))
    with pytest.raises(ZeroDivisionError), threads.Lock(locks, "a"):
        1 / 0
    locks.close()


def test_who_has_little_time_does_not_wait_for_a_connection(server):
    server.process.send_signal(19)
    try:
        locks = Locks(redis.Redis(port=server.port))
        began = time.monotonic()
        with pytest.raises(Unavailable):
            locks.lock("a", wait=0.5).acquire()
        with pytest.raises(Unavailable):
            locks.lock("a").try_acquire()
        # Each waits for a second, a try twice, and as long for what takes it back. It was 25.
        assert time.monotonic() - began < 9
        began = time.monotonic()
        locks.close()
        assert time.monotonic() - began < 4
    finally:
        server.process.send_signal(18)


def test_a_wait_that_is_cancelled_twice_leaves_no_connection(server):
    async def body():
        client = redis.asyncio.Redis(port=server.port)
        locks = aio.Locks(client)
        server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
        for turn in range(60):
            task = asyncio.ensure_future(locks.lock("a", own_connection=True).acquire())
            for _ in range(turn % 20):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await locks.close()
        await client.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(body())


def test_a_time_limit_below_zero_is_none_for_redis_py(server):
    client = compat.Redis(port=server.port)
    assert client.lock("a", blocking_timeout=-1).acquire()
    assert not client.lock("a", blocking_timeout=-1).acquire()
    client.close()


ENDING = """
import os, sys, redis
from redis_lock_client import Locks, compat
port = int(sys.argv[1])
locks = Locks(redis.Redis(port=port))
client = compat.Redis(port=port)
with locks.lock("a"), client.lock("b"):
    pass
if os.fork() == 0:
    locks.lock("c").acquire().release()
    sys.exit(0)
os.wait()
"""


def test_the_end_of_a_process_is_quiet(server):
    for _ in range(3):
        words = [sys.executable, "-W", "ignore", "-c", ENDING, str(server.port)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=20, env=os.environ)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_client_of_another_kind_is_refused():
    with pytest.raises(Misuse):
        Locks(object())
