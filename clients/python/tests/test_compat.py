# SPDX-License-Identifier: MIT
"""The drop-in replacements for redis-py's locks, beyond its own tests in `acceptance`."""

import asyncio
import gc
import os
import threading
import time

import pytest
import redis
import redis.asyncio
from conftest import comes_true, until
from redis.exceptions import LockError, LockNotOwnedError

from redis_lock_client import compat


def sessions():
    """The number of threads that belong to sessions."""
    return sum(thread.name == "redis-lock" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def nothing_is_left(server):
    yield
    until(lambda: gc.collect() is not None and sessions() == 0)


@pytest.fixture
def client(server):
    client = compat.Redis(port=server.port)
    yield client
    client.close()


def test_a_lock_class_is_the_only_change(server):
    client = redis.Redis(port=server.port)
    lock = client.lock("x", timeout=10, lock_class=compat.Lock)
    with lock:
        assert server.admin.type("redis-lock:x") == "hash" and not server.held("x")
        assert lock.locked() and lock.owned() and not client.lock("x", lock_class=compat.Lock).acquire(blocking=False)
    assert not lock.locked() and not lock.owned()
    compat.locks_of(client).close()
    client.close()


def test_a_compat_client_needs_no_lock_class(client):
    assert isinstance(client.lock("x"), compat.Lock)
    assert isinstance(client.lock("x", 10, 0.1, True, None, redis.lock.Lock), redis.lock.Lock)
    lock = client.lock("x", 10, 0.2, False, 3, None, False)
    given = lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout, lock.thread_local, lock.raise_on_release_error
    assert given == (10, 0.2, False, 3, False, True)


def test_without_a_timeout_the_hold_ends_with_the_client(server):
    client = compat.Redis(port=server.port)
    client.lock("x").acquire()
    gc.collect()
    # As in redis-py, the lock object may be dropped.
    assert server.held("redis-lock:x")
    client.close()
    until(lambda: not server.held("redis-lock:x"))


def test_a_timeout_ends_it(server, client):
    lock = client.lock("x", timeout=0.2)
    assert lock.acquire()
    until(lambda: not server.held("redis-lock:x"))
    with pytest.raises(LockNotOwnedError):
        lock.release()
    with pytest.raises(LockError, match="not owned"):
        lock.release()


def test_a_token_that_holds_already_is_refused(client):
    lock, other = client.lock("x", timeout=60), client.lock("x", timeout=60)
    assert lock.acquire(token="mine")
    assert not other.acquire(token="mine", blocking=False) and not other.acquire(token="mine", blocking_timeout=0.1)
    with pytest.raises(LockError, match="already"):
        other.acquire(token="mine")
    lock.release()


def test_a_negative_blocking_timeout_does_not_wait(client):
    assert client.lock("a", blocking_timeout=-1).acquire()
    assert not client.lock("a", blocking_timeout=-1).acquire()


def test_a_thread_sees_only_its_own_token(client):
    lock, seen = client.lock("x"), []
    assert lock.acquire()
    thread = threading.Thread(target=lambda: seen.append((lock.local.token, lock.owned(), lock.acquire(blocking=False))))
    thread.start()
    thread.join()
    assert seen == [(None, False, False)]
    lock.release()


def test_a_token_is_enough_to_release(server, client):
    lock = client.lock("x", timeout=60)
    lock.acquire(token="mine")
    other = compat.Redis(port=server.port).lock("x", timeout=60)
    other.local.token = b"mine"
    assert other.owned() and other.reacquire() and other.extend(5)
    assert 64_000 < server.admin.pttl("redis-lock:x") <= 65_000
    other.release()
    assert not server.held("redis-lock:x")
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_the_error_of_the_body_wins(server, client):
    with pytest.raises(ZeroDivisionError), client.lock("x"):
        server.admin.execute_command("LOCK.BREAK", "redis-lock:x")
        raise ZeroDivisionError
    with pytest.raises(LockNotOwnedError), client.lock("x"):
        server.admin.execute_command("LOCK.BREAK", "redis-lock:x")


def test_a_wait_is_queued_and_limited(server, client):
    with client.lock("x"):
        started = time.monotonic()
        assert not client.lock("x", blocking_timeout=0.3).acquire()
        assert 0.25 < time.monotonic() - started < 5
        assert not client.lock("x").acquire(blocking_timeout=0)
        with pytest.raises(LockError) as caught, client.lock("x", blocking_timeout=0.05):
            pass
        assert caught.value.lock_name == "x" and server.waiters("redis-lock:x") == 0


def test_a_pool_has_one_session_that_ends_with_it(server):
    before, connections = sessions(), len(server.admin.client_list())
    pool = redis.ConnectionPool(port=server.port)
    for number in range(10):
        with redis.Redis(connection_pool=pool).lock(f"x{number}", timeout=10, lock_class=compat.Lock):
            pass
    assert sessions() == before + 1
    assert compat.locks_of(redis.Redis(connection_pool=pool)) is compat.locks_of(compat.Redis(connection_pool=pool))
    pool.disconnect()
    del pool
    gc.collect()
    until(lambda: sessions() == before and len(server.admin.client_list()) == connections)


def test_clients_are_collected_with_their_sessions(server):
    for _ in range(3):
        clients = [compat.Redis(port=server.port) for _ in range(3)]
        for client in clients:
            client.me = client  # Only the garbage collector ends the cycle.
            with client.lock("x", timeout=10):
                pass
        del client, clients
        gc.collect()
    until(lambda: gc.collect() is not None and sessions() == 0)


def test_a_forked_child_has_a_session_of_its_own(server, client):
    lock = client.lock("x")
    assert lock.acquire()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            try:
                lock.release()
            except LockNotOwnedError:
                with client.lock("y", timeout=10):
                    status = int(client.lock("x").acquire(blocking=False))
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    lock.release()


def test_asyncio(server):
    async def body():
        client = compat.AsyncRedis(port=server.port)
        async with client.lock("x", timeout=10) as lock:
            assert server.held("redis-lock:x") and await lock.owned() and await lock.locked()
            assert not await client.lock("x").acquire(blocking=False)
        assert not await lock.locked()
        plain = redis.asyncio.Redis(port=server.port)
        async with plain.lock("x", timeout=10, lock_class=compat.AsyncLock):
            pass
        await compat.locks_of_async(plain).close()
        await plain.aclose()
        await client.aclose()
        assert len(asyncio.all_tasks()) == 1

    # Each loop has a session of its own.
    asyncio.run(body())
    asyncio.run(body())
    assert not server.held("redis-lock:x")


def test_each_event_loop_has_a_session_of_its_own(server):
    client = redis.asyncio.Redis(port=server.port)

    async def body():
        async def work():
            async with client.lock("x", timeout=10, lock_class=compat.AsyncLock):
                await asyncio.sleep(0.01)

        await asyncio.gather(*(work() for _ in range(5)))
        return compat.locks_of_async(client)

    assert asyncio.run(body()) is not asyncio.run(body())


def test_an_asyncio_session_ends_with_its_pool(server):
    async def body():
        connections = len(server.admin.client_list())
        client = redis.asyncio.Redis(port=server.port)
        async with client.lock("x", timeout=10, lock_class=compat.AsyncLock):
            pass
        await client.aclose()
        del client
        gc.collect()
        deadline = time.monotonic() + 5
        while len(asyncio.all_tasks()) > 1 or len(server.admin.client_list()) > connections:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    asyncio.run(body())


def test_a_cancelled_release_may_be_called_again(server):
    async def body():
        client = compat.AsyncRedis(port=server.port)
        lock = client.lock("x", timeout=60)
        await lock.acquire()
        task = asyncio.ensure_future(lock.release())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await lock.release()
        await comes_true(lambda: not server.held("redis-lock:x"))
        assert lock.local.token is None
        await client.aclose()

    asyncio.run(body())


def test_django_redis_takes_it_in_one_setting(server):
    django = pytest.importorskip("django")
    pytest.importorskip("django_redis")
    from django.conf import settings

    options = {"REDIS_CLIENT_CLASS": "redis_lock_client.compat.Redis"}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://127.0.0.1:{server.port}/0", "OPTIONS": options}
    settings.configure(CACHES={"default": cache})
    django.setup()
    from django.core.cache import caches

    before = sessions()
    with caches["default"].lock("x", timeout=10) as lock:
        assert isinstance(lock, compat.Lock)
        key = server.admin.keys("redis-lock:*")[0]
        assert server.admin.type(key) == "hash"
        assert not caches["default"].lock("x", timeout=10, blocking_timeout=0).acquire()
        with caches["default"].lock("y"):
            assert sessions() == before + 1
    assert server.admin.keys("redis-lock:*") == []
    caches["default"].set("a", 1)
    assert caches["default"].get("a") == 1
    compat.locks_of(lock.redis).close()
