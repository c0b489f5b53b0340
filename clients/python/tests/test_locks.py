# SPDX-License-Identifier: MIT
"""What the README promises, under faults."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import redis
import redis.asyncio
from conftest import until

from redis_lock_client import Busy, Locks, Lost, Misuse, TimedOut, Unavailable, aio


@pytest.fixture
def far(proxy):
    """Through the proxy."""
    locks = Locks(redis.Redis(port=proxy.port), patience=2)
    yield locks
    locks.close()


def in_asyncio(port, body):
    async def main():
        locks = aio.Locks(redis.asyncio.Redis(port=port))
        try:
            return await body(locks)
        finally:
            await locks.close()

    return asyncio.run(main())


def test_a_scope_holds_and_gives_back(server, locks):
    with locks.lock("a", fence=True) as hold:
        assert server.held("a") and hold.token > 0 and not hold.lost and hold.valid_for() > 20
    assert not server.held("a")
    with locks.lock("a", fence=True) as again:
        assert again.token > hold.token


def test_busy_timed_out_and_misuse_differ(server, locks):
    with locks.lock("a"):
        assert locks.lock("a").try_acquire() is None
        with pytest.raises(Busy), locks.lock("a", wait=0):
            pass
        with pytest.raises(TimedOut), locks.lock("a", wait=0.1):
            pass
        assert server.waiters("a") == 0
    server.admin.set("text", "x")
    with pytest.raises(Misuse):
        locks.lock("text").acquire()


def test_waits_are_served_in_order(server, locks):
    order, threads = [], []

    def work(number):
        with locks.lock("a"):
            order.append(number)

    with locks.lock("a"):
        for number in range(5):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            until(lambda: server.waiters("a") == number + 1)
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_a_thousand_waits_need_two_connections(server):
    before = len(server.admin.client_list())

    async def body(locks):
        inside = 0

        async def work():
            nonlocal inside
            async with locks.lock("a"):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

        first = await locks.lock("a").acquire()
        tasks = [asyncio.ensure_future(work()) for _ in range(1000)]
        while server.waiters_of("a") < 1000:
            await asyncio.sleep(0.01)
        assert len(server.admin.client_list()) == before + 2
        await first.release()
        await asyncio.gather(*tasks)

    server.waiters_of = lambda key: len(server.admin.execute_command("LOCK.WAITERS", key, "COUNT", 2000))
    in_asyncio(server.port, body)


def test_a_wait_cancelled_at_the_grant_leaves_nothing(server):
    async def body(locks):
        for number in range(200):
            first = await locks.lock("a").acquire()
            task = asyncio.ensure_future(locks.lock("a").acquire())
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
            assert not server.held("a") and server.waiters("a") == 0

    in_asyncio(server.port, body)


def test_the_reply_of_an_acquire_is_lost(server, proxy, far):
    proxy.cut_reply_of = b"LOCK.ACQUIRE"
    for ephemeral in (True, False):
        with far.lock("a", keep=True, ephemeral=ephemeral) as hold:
            assert server.admin.hgetall("a") == {hold.owner: "1"}
            assert proxy.cut_reply_of is None
            # The session's new connection keeps it, though it was granted to one that is gone.
            assert server.holder("a")["watchdog"] == 1
        assert not server.held("a")
        proxy.cut_reply_of = b"LOCK.ACQUIRE"


def test_the_reply_of_a_release_is_lost(server, proxy, far):
    hold = far.lock("a", lease=60).acquire()
    proxy.cut_reply_of = b"LOCK.RELEASE"
    hold.release()
    hold.release()
    assert not server.held("a") and not hold.lost


def test_a_wait_survives_a_cut(server, proxy, locks, far):
    got = []
    with locks.lock("a"):
        thread = threading.Thread(target=lambda: got.append(far.lock("a").acquire()))
        thread.start()
        until(lambda: server.waiters("a") == 1)
        proxy.cut()
        until(lambda: server.waiters("a") == 1 and len(proxy._pairs) >= 4)
    thread.join(10)
    assert server.admin.hgetall("a") == {got[0].owner: "1"}


def test_a_kept_hold_outlives_its_lease(server, locks):
    with locks.lock("a", lease=0.3, keep=True) as hold:
        assert not hold.wait_lost(1.2)
        assert server.admin.hgetall("a") == {hold.owner: "1"}


def test_it_is_kept_no_longer_than_max_hold(server, locks):
    hold = locks.lock("a", lease=0.3, keep=True, max_hold=0.5).acquire()
    assert hold.wait_lost(5)
    until(lambda: not server.held("a"))


def test_a_cut_is_a_loss_and_told_at_once(server, proxy, far):
    hold = far.lock("a").acquire()
    proxy.cut()
    assert hold.wait_lost(5) and not server.held("a")
    with pytest.raises(Lost):
        hold.release()


def test_a_kept_hold_that_is_not_ephemeral_survives_a_cut(server, proxy, far):
    with far.lock("a", lease=3, keep=True, ephemeral=False) as hold:
        proxy.cut()
        assert not hold.wait_lost(4)
        assert server.admin.hgetall("a") == {hold.owner: "1"}


def test_a_frozen_network_is_a_loss_by_the_own_clock(proxy, far):
    hold = far.lock("a", lease=0.6, keep=True).acquire()
    started = time.monotonic()
    proxy.frozen.set()
    # Before a call is given up.
    assert hold.wait_lost(5) and time.monotonic() - started < 2.0


def test_a_broken_lock_is_told_and_the_error_of_the_body_wins(server, locks):
    with pytest.raises(ZeroDivisionError), locks.lock("a", lease=0.6, keep=True) as hold:
        server.admin.execute_command("LOCK.BREAK", "a")
        assert hold.wait_lost(5)
        raise ZeroDivisionError


def test_a_restarted_server_has_lost_it(server, locks):
    hold = locks.lock("a").acquire()
    server.stop()
    server.start()
    assert hold.wait_lost(10)
    with locks.lock("a"):
        pass


def test_no_server_is_unavailable(server):
    locks = Locks(redis.Redis(port=server.port), patience=0.3)
    server.stop()
    with pytest.raises(Unavailable):
        locks.lock("a").acquire()
    locks.close()


CHILD = """
import sys, time, redis
from redis_lock_client import Locks
lock = Locks(redis.Redis(port=int(sys.argv[1]))).lock("a", lease=float(sys.argv[2]), keep=True)
hold = lock.acquire()
print("held", flush=True)
sys.stdin.readline()
print("lost" if hold.wait_lost(0.5) else "kept", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def child(server, request):
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", CHILD, str(server.port), str(request.param)]
    child = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.communicate()


@pytest.mark.parametrize("child", [0.6], indirect=True)
def test_a_process_that_was_frozen_for_two_leases_keeps_it(server, child):
    # The server renews meanwhile: nobody else had it.
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(1.3)
    assert server.held("a")
    os.kill(child.pid, signal.SIGCONT)
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "kept\n"


@pytest.mark.parametrize("child", [60.0], indirect=True)
def test_a_killed_process_frees_it_at_once(server, child):
    child.kill()
    until(lambda: not server.held("a"))


def test_readers_and_a_limit(server, locks):
    with locks.lock("a", shared=True), locks.lock("a", shared=True):
        assert locks.lock("a").try_acquire() is None
    with locks.lock("s", limit=2), locks.lock("s", limit=2):
        assert locks.lock("s", limit=2).try_acquire() is None
    assert not server.held("a") and not server.held("s")


def test_a_write_is_guarded(server, locks):
    hold = locks.lock("a").acquire()
    assert hold.guard("SET", "x", "1")
    server.admin.execute_command("LOCK.BREAK", "a")
    with pytest.raises(Lost):
        hold.guard("SET", "x", "2")
    assert server.admin.get("x") == "1" and hold.lost


def test_a_forked_child_keeps_nothing_of_its_parent(server, locks):
    hold = locks.lock("a").acquire()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ok = hold.lost and locks.lock("a").try_acquire() is None
            with locks.lock("b"):
                status = 0 if ok else 1
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    hold.release()


def test_close_leaves_no_thread_and_no_hold(server):
    threads, locks = threading.active_count(), Locks(redis.Redis(port=server.port))
    holds = [locks.lock(f"l{number}").acquire() for number in range(5)]
    locks.close()
    assert threading.active_count() == threads
    until(lambda: not any(server.held(f"l{n}") for n in range(5)))
    assert all(hold.lost for hold in holds)


FORKING = """
import os, sys, redis
from redis_lock_client import Locks
hold = Locks(redis.Redis(port=int(sys.argv[1]))).lock("a").acquire()
if os.fork():
    print("held", flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_a_forked_child_keeps_nothing_alive(server):
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", FORKING, str(server.port)], stdin=pipe, stdout=pipe, text=True)
    try:
        assert parent.stdout.readline() == "held\n" and server.held("a")
        parent.kill()
        until(lambda: not server.held("a"))
    finally:
        # The child ends with its input.
        parent.stdin.close()
        parent.kill()
        parent.wait()
        parent.stdout.close()
