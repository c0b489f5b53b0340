# SPDX-License-Identifier: MIT
"""Scopes of one lock object: in threads, tasks and generators, nested, and left elsewhere."""

import asyncio
import contextlib

import pytest
from conftest import Call, in_asyncio, until

from redis_lock_client import Deadlock, Lost, Misuse


def test_each_thread_or_task_has_a_scope_of_its_own(server, locks):
    lock, log = locks.lock("a"), []

    def work(name):
        with lock as hold:
            log.append((name, "in"))
            assert server.holder("a")["owner"].encode() == hold.owner
            log.append((name, "out"))

    for call in [Call(lambda number=number: work(number)) for number in range(8)]:
        call.end()
    assert all(log[index][0] == log[index + 1][0] for index in range(0, 16, 2)) and not server.held("a")


def test_shared_scopes_overlap(server, locks):
    lock = locks.lock("a", shared=True)
    with lock:
        other = Call(lambda: enter_and_leave(lock, server))
        other.end()
        assert server.holder("a")["holds"] == 1
    assert not server.held("a")


def enter_and_leave(lock, server):
    with lock:
        assert len(lock.query()["holders"]) == 2


def test_nested_scopes_are_left_in_order(server, locks):
    lock = locks.lock("a", reentrant=True)
    with lock:
        with lock:
            assert server.holder("a")["holds"] == 2
        assert server.holder("a")["holds"] == 1
    assert not server.held("a")


def test_a_nested_scope_without_reentrancy_is_a_deadlock(server, locks):
    lock = locks.lock("a")
    with lock:
        with pytest.raises(Deadlock), lock:
            pass
        assert server.held("a")
    assert not server.held("a")


def test_a_scope_is_left_where_it_was_entered(server, locks):
    lock = locks.lock("a")
    hold = lock.__enter__()
    with pytest.raises(Misuse, match="did not enter"):
        Call(lambda: lock.__exit__(None, None, None)).end()
    assert server.held("a") and not hold.lost
    lock.__exit__(None, None, None)
    assert not server.held("a")
    with pytest.raises(Misuse):
        lock.__exit__(None, None, None)


def test_generators_hold_until_they_end(server, threaded):
    lock = threaded.lock("a")

    @contextlib.contextmanager
    def scope():
        with lock as hold:
            yield hold

    def numbers():
        with lock:
            yield from range(3)

    with scope() as hold:
        assert server.holder("a")["owner"].encode() == hold.owner
    generator = numbers()
    assert next(generator) == 0 and server.held("a")
    generator.close()
    assert not server.held("a")
    assert list(numbers()) == [0, 1, 2] and not server.held("a")


def test_generators_of_one_thread_may_interleave(server, threaded):
    def numbers(key):
        with threaded.lock(key):
            yield from range(3)

    pairs = zip(numbers("a"), numbers("b"))
    assert next(pairs) == (0, 0) and server.held("a") and server.held("b")
    pairs = None
    until(lambda: not server.held("a") and not server.held("b"))


def test_asynchronous_generators_hold_until_they_end(server):
    async def body(locks):
        async def numbers():
            async with locks.lock("a"):
                for number in range(3):
                    yield number

        assert [number async for number in numbers()] == [0, 1, 2] and not server.held("a")
        generator = numbers()
        assert await generator.__anext__() == 0 and server.held("a")
        await generator.aclose()
        assert not server.held("a")

    in_asyncio(server.port, body)


def test_a_child_task_is_another_owner(server):
    async def body(locks):
        async with locks.lock("a") as hold:
            child = asyncio.ensure_future(locks.lock("b").acquire())
            other = await child
            assert other.owner != hold.owner
            await other.release()
            assert await asyncio.gather(locks.lock("a").try_acquire(), locks.lock("a").try_acquire()) == [None, None]

    in_asyncio(server.port, body)


def test_the_error_of_the_body_wins(server, locks):
    with pytest.raises(ZeroDivisionError), locks.lock("a") as hold:
        server.admin.execute_command("LOCK.BREAK", "a")
        until(lambda: hold.lost)
        raise ZeroDivisionError
    with pytest.raises(Lost, match="broken"), locks.lock("a"):
        server.admin.execute_command("LOCK.BREAK", "a")
