# SPDX-License-Identifier: MIT
"""Servers that refuse: each error has its kind, and its text says what to do."""

import time

import pytest
import redis
import redis.asyncio
from conftest import Call, Server, until

from redis_lock_client import Lost, Misuse, TimedOut, Unavailable, errors


def test_a_server_without_the_module(tmp_path, flavor):
    server = Server(tmp_path, module=None)
    try:
        locks = flavor.locks(server.port)
        began = time.monotonic()
        for wait in (0, 5, None):
            with pytest.raises(Misuse, match="load the redis-lock module"):
                locks.lock("a").acquire(wait)
        assert time.monotonic() - began < 3
    finally:
        server.stop()


def test_a_wrong_password(server, flavor):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", ">right", "+@all", "~*", "&*")
    for options in ({"username": "app", "password": "wrong"}, {"username": "nobody", "password": "x"}):
        locks = flavor.locks(flavor.client(server.port, **options))
        began = time.monotonic()
        for wait in (0, 5, None):
            with pytest.raises(Misuse, match="(?i)WRONGPASS|invalid"):
                locks.lock("a").acquire(wait)
        assert time.monotonic() - began < 3
    with flavor.locks(flavor.client(server.port, username="app", password="right")).lock("a"):
        pass


def test_a_missing_permission(server, flavor):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", ">x", "+@all", "-lock.session", "~a", "~b", "&*")
    locks = flavor.locks(flavor.client(server.port, username="app", password="x"))
    with pytest.raises(Misuse, match="NOPERM"):
        locks.lock("a").acquire(5)
    # A permission that is granted later takes effect.
    server.admin.execute_command("ACL", "SETUSER", "app", "+lock.session", "-lock.acquire")
    time.sleep(1.1)
    with pytest.raises(Misuse, match="NOPERM"):
        locks.lock("a").acquire(5)
    server.admin.execute_command("ACL", "SETUSER", "app", "+lock.acquire")
    with locks.lock("a"):
        with pytest.raises(Misuse, match="NOPERM"):
            locks.lock("forbidden").acquire(5)
    server.admin.execute_command("ACL", "SETUSER", "app", "-lock.release")
    hold = locks.lock("a").acquire()
    with pytest.raises(Misuse, match="NOPERM"):
        hold.release()


def test_a_user_that_may_not_cancel_waits_with_a_limit(server, flavor):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", ">x", "+@all", "-lock.cancel", "~*", "&*")
    locks = flavor.locks(flavor.client(server.port, username="app", password="x"))
    server.take("a")
    with pytest.raises(TimedOut):
        locks.lock("a").acquire(0.1)
    assert server.waiters("a") == 0


def test_the_command_of_a_guard_ends_nothing(server, locks):
    with locks.lock("a") as hold:
        for words in ("READONLY x", "MASTERDOWN x", "CLUSTERDOWN x", "NOSESSION x", "LATE x", "no word"):
            with pytest.raises((Unavailable, Misuse)):
                hold.guard("EVAL", f"return redis.error_reply('{words}')", 0)
        hold.extend()
        assert hold.valid_for() > 0 and len(server.sessions()) == 1


def test_a_full_queue_is_unavailable(server, locks):
    server.take("a")
    server.admin.config_set("lock.max-waiters", 1)
    call = Call(lambda: locks.lock("a").acquire(20))
    until(lambda: server.waiters("a") == 1)
    with pytest.raises(Unavailable, match="LIMIT"):
        locks.lock("a").acquire(20)
    server.give("a")
    call.end().release()


def test_silence_is_unavailable(flavor, server, proxy):
    proxy.frozen.set()
    locks = flavor.locks(proxy.port, patience=0.3)
    for wait in (0, 0.2, None):
        with pytest.raises(Unavailable):
            locks.lock("a").acquire(wait)


def test_tls_without_a_server_of_tls_is_unavailable(flavor, server):
    locks = flavor.locks(flavor.client(server.port, ssl=True), patience=0.3)
    with pytest.raises(Unavailable):
        locks.lock("a").try_acquire()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NOTOWNER lock was released", "Lost"),
        ("DEADLOCK a waits for b", "Deadlock"),
        ("CANCELLED x", "Cancelled"),
        ("ERR syntax error", "Misuse"),
        ("WRONGTYPE x", "Misuse"),
        ("CROSSSLOT x", "Misuse"),
        ("LIMIT x", "Unavailable"),
        ("OOM x", "Unavailable"),
        ("UNBLOCKED x", "Transient"),
        ("QUARANTINE locks may have been lost", "Transient"),
        ("MISCONF x", "Transient"),
        ("NOREPLICAS x", "Transient"),
        ("MOVED 1 h:1", "Moved"),
        ("NOSESSION x", "NoSession"),
        ("LATE x", "Late"),
    ],
)
def test_each_error_has_a_kind(text, kind):
    error = errors.of(redis.ResponseError(text))
    assert kind in [each.__name__ for each in type(error).__mro__] and str(error) == text
    assert isinstance(error, redis.exceptions.LockError)


def test_errors_that_redis_py_knows_have_a_kind():
    from redis import exceptions

    assert type(errors.of(exceptions.ReadOnlyError("a replica"))).__name__ == "Transient"
    assert type(errors.of(exceptions.OutOfMemoryError("no memory"))).__name__ == "Unavailable"
    assert str(errors.of(exceptions.NoPermissionError("no"))) == "NOPERM no"
    assert isinstance(errors.of(exceptions.ConnectionError("x")), exceptions.ConnectionError)
    assert issubclass(TimedOut, TimeoutError) and issubclass(Lost, exceptions.LockNotOwnedError)


def test_a_client_of_the_other_kind_is_refused(flavor, server):
    module = redis.asyncio if flavor.name == "threads" else redis
    with pytest.raises(Misuse, match="aio.Locks"):
        flavor.locks(module.Redis(port=server.port)).lock("a").acquire()


def test_another_client_is_refused(flavor):
    with pytest.raises(Misuse, match="no client"):
        flavor.locks(object()).lock("a").acquire()
