# SPDX-License-Identifier: MIT
"""Waits that end before their grant leave neither a waiter nor a hold, and few connections."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest
import redis
import redis.asyncio
from conftest import Call, comes_true, in_asyncio, until

from redis_lock_client import Cancellation, Cancelled, Deadlock, Misuse, TimedOut, Unavailable, aio


def is_idle(server, *keys):
    return not any(server.held(key) or server.waiters(key) for key in keys)


def test_another_thread_ends_a_wait(server, threaded):
    server.take("a")
    cancellation = Cancellation()
    call = Call(lambda: threaded.lock("a").acquire(cancellation=cancellation))
    until(lambda: server.waiters("a") == 1)
    cancellation.cancel()
    with pytest.raises(Cancelled):
        call.end(5)
    assert server.waiters("a") == 0
    # It is final.
    with pytest.raises(Cancelled):
        threaded.lock("b").try_acquire(cancellation=cancellation)
    assert not server.held("b")


def test_a_cancellation_meets_the_grant(server, threaded):
    for number in range(30):
        first, cancellation = threaded.lock("a", owner="first").acquire(), Cancellation()
        call = Call(lambda: threaded.lock("a").acquire(cancellation=cancellation))
        until(lambda: server.waiters("a") == 1)
        release = Call(first.release)
        time.sleep(number % 10 / 10_000)
        cancellation.cancel()
        try:
            call.end().release()
        except Cancelled:
            pass
        release.end()
        until(lambda: is_idle(server, "a"))


def test_a_task_is_cancelled_at_the_grant(server):
    async def body(locks):
        for lock in (locks.lock("a"), locks.lock("b", "a")):
            for number in range(30):
                first = await locks.lock("a", owner="first").acquire()
                task = asyncio.ensure_future(lock.acquire())
                await comes_true(lambda: server.waiters("a") == 1)
                release = asyncio.ensure_future(first.release())
                for _ in range(number % 20):
                    await asyncio.sleep(0)
                task.cancel()
                await release
                try:
                    await (await task).release()
                except asyncio.CancelledError:
                    pass
                await comes_true(lambda: is_idle(server, "a", "b"))

    in_asyncio(server.port, body)


@pytest.mark.parametrize("times", [1, 2])
def test_a_task_is_cancelled_at_any_step(server, times):
    async def body(locks):
        for is_free in (True, False):
            if not is_free:
                server.take("a")
            for steps in range(30):
                task = asyncio.ensure_future(locks.lock("a").acquire())
                for _ in range(steps):
                    await asyncio.sleep(0)
                for _ in range(times):
                    task.cancel()
                    await asyncio.sleep(0)
                [result] = await asyncio.gather(task, return_exceptions=True)
                if not isinstance(result, asyncio.CancelledError):
                    await result.release()
                await comes_true(lambda: server.held("a") != is_free and server.waiters("a") == 0)

    in_asyncio(server.port, body)


def test_a_cancelled_release_continues(server, proxy):
    async def body(locks):
        hold = await locks.lock("a", lease=60).acquire()
        proxy.frozen.set()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(hold.release(), 0.1)
        assert hold.valid_for() == 0 and not hold.lost
        proxy.frozen.clear()
        await comes_true(lambda: not server.held("a"))
        await hold.release()

    in_asyncio(proxy.port, body)


def test_a_cancelled_scope_is_left(server):
    async def body(locks):
        entered = asyncio.Event()

        async def work():
            async with locks.lock("a"):
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.ensure_future(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.held("a")

    in_asyncio(server.port, body)


def test_the_reply_to_a_cancellation_is_lost(server, proxy):
    async def body(locks):
        server.take("a")
        task = asyncio.ensure_future(locks.lock("a").acquire())
        await comes_true(lambda: server.waiters("a") == 1)
        proxy.lose_reply_to = b"LOCK.CANCEL"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await comes_true(lambda: server.waiters("a") == 0)
        server.give("a")
        async with locks.lock("a"):
            assert proxy.lose_reply_to is None

    in_asyncio(proxy.port, body)


def test_a_late_cancellation_ends_no_later_hold(server, proxy):
    async def body(locks):
        server.take("a")
        lock = locks.lock("a", owner="me")
        task = asyncio.ensure_future(lock.acquire())
        await comes_true(lambda: server.waiters("a") == 1)
        proxy.delay = b"LOCK.CANCEL"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await comes_true(lambda: server.waiters("a") == 0)
        server.give("a")
        async with lock as hold:
            proxy.deliver()
            await hold.extend()
            assert server.holder("a")["owner"] == "me" and not hold.lost

    in_asyncio(proxy.port, body, patience=0.5)


def test_a_cancelled_wait_leaves_when_the_server_can_write(server):
    async def body(locks):
        server.take("a")
        task = asyncio.ensure_future(locks.lock("a").acquire())
        await comes_true(lambda: server.waiters("a") == 1)
        server.admin.config_set("min-replicas-to-write", 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.admin.config_set("min-replicas-to-write", 0)
        await comes_true(lambda: server.waiters("a") == 0)

    in_asyncio(server.port, body)


def test_impatient_waiters_leave_nothing(server, locks, flavor):
    server.take("a")
    # In asyncio, at most 20 calls run at the same time.
    connections = server.clients() + (52 if flavor.name == "threads" else 22)

    def impatient(number):
        for turn in range(6):
            assert locks.lock("a").try_acquire((number + turn) % 7 / 1000) is None

    for call in [Call(lambda number=number: impatient(number)) for number in range(50)]:
        call.end(30)
    assert server.waiters("a") == 0 and server.clients() <= connections
    server.give("a")
    calls = [Call(lambda: locks.lock("a").try_acquire(0.004)) for _ in range(50)]
    for hold in [call.end(30) for call in calls]:
        if hold is not None:
            hold.release()
    hold = None
    until(lambda: is_idle(server, "a"))
    assert server.clients() <= connections


def test_impatient_waiters_of_a_silent_server_leave_nothing(server, proxy, flavor):
    locks = flavor.locks(proxy.port, patience=0.5)
    server.take("a")
    locks.lock("b").acquire().release()
    proxy.frozen.set()
    calls = [Call(lambda: locks.lock("a").try_acquire(0.01)) for _ in range(10)]
    for call in calls:
        with pytest.raises((Unavailable, TimedOut)):
            call.end(10)
    proxy.frozen.clear()
    server.give("a")
    until(lambda: is_idle(server, "a"))
    # The session may not have noticed yet that the server answers again.
    until(lambda: is_granted(locks.lock("a")))


def is_granted(lock):
    try:
        lock.acquire().release()
    except Unavailable:
        return False
    return True


def test_a_short_wait_does_not_last_long_without_a_server(server, flavor):
    server.process.send_signal(signal.SIGSTOP)
    try:
        locks = flavor.locks(server.port)
        began = time.monotonic()
        for wait in (0.5, 0):
            with pytest.raises(Unavailable):
                locks.lock("a").acquire(wait)
        assert time.monotonic() - began < 9
        began = time.monotonic()
        locks.close()
        assert time.monotonic() - began < 8
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_an_error_of_one_acquire_does_not_hide_a_deadlock(server, locks):
    # The thread keeps its owner, so the server knows that it holds the lock.
    server.admin.set("text", "x")
    with locks.lock("a"):
        with pytest.raises(Misuse):
            locks.lock("text").try_acquire()
        with pytest.raises(Deadlock):
            locks.lock("a").acquire(2)


INTERRUPTED = '''
import os, signal, sys, redis
from redis_lock_client import Locks
locks = Locks(redis.Redis(port=int(sys.argv[1])))
hold = locks.lock("b").acquire()
try:
    locks.lock("a").acquire()
except KeyboardInterrupt:
    hold.release()
    print("interrupted", flush=True)
    sys.stdin.readline()
'''


def test_an_interrupt_ends_a_wait(server):
    server.take("a")
    words = [sys.executable, "-c", INTERRUPTED, str(server.port)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    until(lambda: server.waiters("a") == 1)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    assert server.waiters("a") == 0 and not server.held("b")
    child.communicate("\n")
    assert child.returncode == 0


INTERRUPTED_TASK = '''
import asyncio, sys, redis.asyncio
from redis_lock_client import aio
async def main():
    locks = aio.Locks(redis.asyncio.Redis(port=int(sys.argv[1])))
    async with locks, locks.lock("b"), locks.lock("a"):
        pass
asyncio.run(main())
'''


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.run handles SIGINT since 3.11")
def test_an_interrupt_ends_a_task(server):
    server.take("a")
    words = [sys.executable, "-c", INTERRUPTED_TASK, str(server.port)]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    until(lambda: server.waiters("a") == 1)
    child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=10)[1]
    assert server.waiters("a") == 0 and not server.held("b")


def test_calls_that_meet_the_close_end(server, flavor):
    for number in range(15):
        locks = flavor.locks(server.port)

        def work(locks=locks):
            while True:
                try:
                    locks.lock("a").acquire().release()
                except (Cancelled, Misuse, redis.exceptions.LockNotOwnedError):
                    if locks.closed:
                        return

        locks.closed = False
        calls = [Call(work) for _ in range(4)]
        time.sleep(number / 1000)
        locks.closed = True
        locks.close()
        for call in calls:
            call.end(10)
        until(lambda: is_idle(server, "a"))


def test_close_works_in_a_cancelled_task(server):
    async def main():
        client = redis.asyncio.Redis(port=server.port)
        locks = aio.Locks(client)

        async def work():
            try:
                async with locks.lock("a"):
                    await asyncio.sleep(60)
            finally:
                await locks.close()
                await client.aclose()
                closed.append(True)

        closed = []
        task = asyncio.ensure_future(work())
        await comes_true(lambda: server.held("a"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed and server.sessions() == []
        await comes_true(lambda: server.clients() == 0)

    asyncio.run(asyncio.wait_for(main(), 60))
