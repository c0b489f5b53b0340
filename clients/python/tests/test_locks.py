# SPDX-License-Identifier: MIT
"""Acquires, options and releases, in threads and in asyncio."""

import asyncio
import pickle
import subprocess
import sys
import threading
import time

import pytest
import redis
from conftest import Call, comes_true, in_asyncio, until

from redis_lock_client import Busy, Deadlock, Locks, Lost, Misuse, TimedOut, aio


def test_a_scope_holds_and_releases(server, locks):
    with locks.lock("a", fence=True) as hold:
        assert server.held("a") and hold.token > 0 and not hold.lost and 0 < hold.valid_for() <= 3
        assert hold.key == b"a" and server.holder("a")["owner"].encode() == hold.owner
    assert not server.held("a") and not hold.lost and hold.valid_for() == 0
    with locks.lock("a", fence=True) as again:
        assert again.token > hold.token


def test_a_release_may_be_repeated(server, locks):
    hold = locks.lock("a").acquire()
    hold.release()
    hold.release()
    with pytest.raises(Lost, match="released"):
        hold.extend()


def test_busy_and_timed_out_differ(server, locks):
    server.take("a")
    assert locks.lock("a").try_acquire() is None and locks.lock("a").try_acquire(0.05) is None
    with pytest.raises(Busy), locks.lock("a", wait=0):
        pass
    with pytest.raises(TimedOut), locks.lock("a", wait=0.1):
        pass
    with pytest.raises(TimeoutError):
        locks.lock("a").acquire(0.1)
    assert server.waiters("a") == 0


@pytest.mark.parametrize("wait", [0.001, 0.03, 0.2])
def test_a_try_never_ends_early(server, locks, wait):
    server.take("a")
    for _ in range(10):
        began = time.monotonic()
        assert locks.lock("a").try_acquire(wait) is None
        assert time.monotonic() - began >= wait
        assert server.waiters("a") == 0


def test_a_try_without_a_wait_is_one_call_and_no_place(server, locks):
    server.take("a")
    call = Call(lambda: locks.lock("a").acquire())
    until(lambda: server.waiters("a") == 1)
    # Another place would be refused.
    server.admin.config_set("lock.max-waiters", 1)
    before = server.calls("lock.acquire")
    assert locks.lock("a").try_acquire() is None
    with pytest.raises(Busy):
        locks.lock("a").acquire(0)
    assert server.calls("lock.acquire") == before + 2 and server.calls("lock.cancel") == 0
    server.give("a")
    call.end().release()


def test_waits_are_served_in_order(server, locks):
    server.take("a")
    order, calls = [], []

    def work(number):
        with locks.lock("a"):
            order.append(number)

    for number in range(5):
        calls.append(Call(lambda number=number: work(number)))
        until(lambda: server.waiters("a") == number + 1)
    server.give("a")
    for call in calls:
        call.end()
    assert order == list(range(5))


def test_a_thousand_waits_need_few_connections(server):
    server.take("a")

    async def body(locks):
        inside = 0

        async def work():
            nonlocal inside
            async with locks.lock("a"):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

        tasks = [asyncio.ensure_future(work()) for _ in range(1000)]
        await comes_true(lambda: server.waiters("a") == 1000)
        # One carries the heartbeat.
        assert server.clients() <= 21
        server.give("a")
        await asyncio.gather(*tasks)

    in_asyncio(server.port, body)


def test_a_renewed_hold_outlives_its_lease(server, flavor):
    # The lease is three times the grace.
    server.admin.config_set("lock.default-lease", 1500)
    locks = flavor.locks(server.port, ttl=5, grace=0.5)
    with locks.lock("a") as hold:
        assert server.admin.pttl("a") <= 1500
        assert not hold.wait_lost(2.5), hold._acquire.reason
        assert server.holder("a")["owner"].encode() == hold.owner


def test_a_lease_ends_by_itself(server, locks):
    hold = locks.lock("a", lease=0.3).acquire()
    assert 0 < hold.valid_for() <= 0.3
    assert hold.wait_lost(5) and hold.lost
    until(lambda: not server.held("a"))
    with pytest.raises(Lost, match="expired"):
        hold.release()


def test_a_lease_is_extended(server, locks):
    lock = locks.lock("a", lease=5)
    with lock as hold:
        hold.extend(50)
        assert 40 < hold.valid_for() <= 50 and 40_000 < server.admin.pttl("a") <= 50_000
        hold.extend()
        # The server never shortens the lease of a hold (R7).
        assert 4 < hold.valid_for() <= 5 and server.admin.pttl("a") > 40_000


def test_a_lease_that_was_shortened_leaves_nothing(server, locks):
    hold = locks.lock("a", lease=60).acquire()
    hold.extend(0.1)
    assert hold.wait_lost(5)
    with pytest.raises(Lost, match="expired"):
        hold.release()
    # The server never shortens the lease.
    until(lambda: not server.held("a"))


def test_a_renewed_hold_has_no_lease_to_extend(server, locks):
    with locks.lock("a") as hold:
        hold.extend()
        with pytest.raises(Misuse, match="renews"):
            hold.extend(5)


def test_max_hold_ends_the_renewals(server, flavor):
    server.admin.config_set("lock.default-lease", 600)
    locks = flavor.locks(server.port, ttl=2, grace=0.2)
    hold = locks.lock("a", max_hold=0.5).acquire()
    assert hold.wait_lost(5)
    with pytest.raises(Lost, match="max"):
        hold.release()
    until(lambda: not server.held("a"))


def test_shared_holds_and_permits(server, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000, "SHARED")
    server.admin.execute_command("LOCK.ACQUIRE", "s", "x", "PX", 60000, "SHARED", "LIMIT", 2)
    with locks.lock("a", shared=True), locks.lock("s", limit=2):
        other = locks.lock("a", owner="other")
        assert other.try_acquire() is None and locks.lock("s", limit=2, owner="other").try_acquire() is None
        with locks.lock("a", shared=True, owner="other"):
            pass


def test_several_locks_are_granted_together(server, locks):
    with locks.lock("a", "b", "c", fence=True) as hold:
        assert all(server.holder(key)["owner"].encode() == hold.owner for key in "abc")
        assert len(hold.token) == 3 and locks.lock("c", "d", owner="x").try_acquire() is None and not server.held("d")
        with pytest.raises(Misuse):
            hold.guard("SET", "x", "1")
        with pytest.raises(Misuse):
            hold.hand_over()
    assert not any(server.held(key) for key in "abc")


def test_a_wait_for_several_holds_none(server, locks):
    server.take("b")
    call = Call(lambda: locks.lock("a", "b", lease=60).acquire(20))
    until(lambda: server.waiters("a") == 1)
    assert not server.held("a")
    with pytest.raises(TimedOut), locks.lock("a", "b", wait=0.05):
        pass
    server.give("b")
    hold = call.end()
    hold.extend(90)
    assert all(60_000 < server.admin.pttl(key) <= 90_000 for key in "ab")
    hold.release()
    assert not server.held("a") and not server.held("b")


def test_several_locks_in_any_order_do_not_deadlock(server, locks):
    counter = [0]

    def work(keys):
        for _ in range(20):
            with locks.lock(*keys):
                before = counter[0]
                server.admin.ping()
                counter[0] = before + 1

    for call in [Call(lambda keys=keys: work(keys)) for keys in ("ab", "ba", "bca", "cab")]:
        call.end(30)
    assert counter == [80]


def test_an_own_lock_is_a_deadlock(server, locks):
    with locks.lock("a"):
        for options in ({}, {"wait": 0}, {"wait": 1}, {"shared": True}):
            with pytest.raises(Deadlock):
                locks.lock("a", **options).acquire()
            assert server.holder("a")["holds"] == 1
        with pytest.raises(Deadlock):
            locks.lock("b", "a").try_acquire()
        assert not server.held("b")
    assert not server.held("a")


def test_crossing_threads_or_tasks_are_a_deadlock(server, locks):
    first = locks.lock("a").acquire()

    def other():
        with locks.lock("b"), locks.lock("a"):
            pass

    call = Call(other)
    until(lambda: server.waiters("a") == 1)
    with pytest.raises(Deadlock, match="(?s)a.*b|b.*a"):
        locks.lock("b").acquire()
    first.release()
    call.end()
    assert not server.held("a") and not server.held("b")


def test_a_reentrant_lock_counts(server, locks):
    lock = locks.lock("a", reentrant=True)
    with lock as outer, lock as inner:
        assert server.holder("a")["holds"] == 2 and outer.owner == inner.owner
        inner.release()
        assert server.holder("a")["holds"] == 1
        call = Call(lock.try_acquire)
        assert call.end() is None
    assert not server.held("a")


def test_a_named_owner_is_one_everywhere(server, locks, flavor):
    other = flavor.locks(server.port)
    with locks.lock("a", owner="me") as hold:
        assert hold.owner == b"me"
        with pytest.raises(Deadlock):
            other.lock("a", owner="me").try_acquire()
        with other.lock("a", owner=b"me", reentrant=True):
            assert server.holder("a")["holds"] == 2
        assert server.holder("a")["holds"] == 1


def test_a_guarded_write_needs_the_lock(server, locks):
    hold = locks.lock("a").acquire()
    assert hold.guard("SET", "x", "1")
    with pytest.raises(Misuse):
        hold.guard("NONSENSE")
    server.admin.execute_command("LOCK.BREAK", "a")
    with pytest.raises(Lost):
        hold.guard("SET", "x", "2")
    assert server.admin.get("x") == "1"
    until(lambda: hold.lost)


def test_query_and_force_release(server, locks):
    lock = locks.lock("a")
    assert lock.query() is None and lock.force_release() is False
    hold = lock.acquire()
    assert lock.query()["holders"][0]["owner"] == hold.owner
    assert lock.force_release() is True and hold.wait_lost(5)


def test_a_decorated_function_holds_the_lock(server, threaded):
    @threaded.lock("a")
    def work(number):
        """Work."""
        assert server.held("a")
        return number + 1

    assert work(1) == 2 and work.__name__ == "work" and work.__doc__ == "Work." and not server.held("a")


def test_a_decorated_coroutine_function_holds_the_lock(server):
    async def body(locks):
        @locks.lock("a")
        async def work(number):
            assert server.held("a")
            return number + 1

        assert await asyncio.gather(work(1), work(2), work(3)) == [2, 3, 4]
        assert asyncio.iscoroutinefunction(work) and not server.held("a")

    in_asyncio(server.port, body)


def test_names_are_text_or_bytes(server, locks):
    with locks.lock("schlüssel", owner="wer") as hold, locks.lock(b"\xff\x00"):
        assert hold.key == "schlüssel".encode() and hold.owner == b"wer"
        assert redis.Redis(port=server.port).exists(b"\xff\x00")
    for wrong in ("\ud800", "", b"", None, 1, "a\udcff"):
        with pytest.raises(Misuse):
            locks.lock(wrong)
        with pytest.raises(Misuse):
            locks.lock("a", wrong)
    with pytest.raises(Misuse):
        locks.lock("a", owner="\ud800")


@pytest.mark.parametrize(
    "options",
    [
        *({"lease": value} for value in (0, -1, float("nan"), float("inf"), 1e300, "x", True)),
        *({"wait": value} for value in (-1, float("nan"), "x")),
        *({"max_hold": value} for value in (0, -1, float("inf"))),
        *({"limit": value} for value in (0, -1, 1.5, "x", True)),
        {"lease": 5, "max_hold": 10},
    ],
    ids=str,
)
def test_wrong_options_are_refused(locks, options):
    with pytest.raises(Misuse):
        locks.lock("a", **options)


def test_wrong_calls_are_refused(server, locks):
    with pytest.raises(Misuse):
        locks.lock()
    for keys, options in ((("a", "b"), {"limit": 2}), (("a", "a"), {}), (("a",), {"owner": "*"})):
        with pytest.raises(Misuse):
            locks.lock(*keys, **options).acquire()
    with pytest.raises(TypeError):
        locks.lock("a", leese=1)
    for wait in (-1, "x", float("nan")):
        with pytest.raises(Misuse):
            locks.lock("a").acquire(wait)
        with pytest.raises(Misuse):
            locks.lock("a").try_acquire(wait)
    server.admin.set("text", "x")
    with pytest.raises(Misuse, match="WRONGTYPE"):
        locks.lock("text").acquire()
    for times in ({"ttl": 1, "grace": 2}, {"grace": -1}):
        with pytest.raises(Misuse):
            Locks(redis.Redis(), **times)
    # The session is unharmed.
    with locks.lock("a"):
        assert len(server.sessions()) == 1


def test_a_reply_that_is_no_text_ends_nothing(server, flavor):
    server.admin.set("blob", b"\xff\x00")
    locks = flavor.locks(flavor.client(server.port, decode_responses=True))
    with locks.lock("a", fence=True) as hold:
        assert hold.guard("SET", "k", "v") == "OK" and hold.guard("MGET", "k", "none") == ["v", None]
        with pytest.raises(UnicodeDecodeError):
            hold.guard("GET", "blob")
        assert hold.valid_for() > 0 and locks.lock("a").query()["holders"][0]["owner"] == hold.owner.decode()


def test_a_client_of_resp3_works(server, flavor):
    locks = flavor.locks(flavor.client(server.port, protocol=3))
    server.take("a")
    call = Call(lambda: locks.lock("a", fence=True).acquire())
    until(lambda: server.waiters("a") == 1)
    server.give("a")
    hold = call.end()
    assert hold.token > 0 and locks.lock("a").query()["holders"][0]["owner"] == hold.owner
    hold.release()
    with locks.lock("a", "b", fence=True) as hold:
        assert len(hold.token) == 2


def test_texts_of_holds_say_what_they_are(server, locks):
    lock = locks.lock("a", "b")
    hold = lock.acquire()
    assert "a, b" in repr(lock) and repr(hold).endswith("a, b: held>")
    hold.release()
    assert repr(hold).endswith("a, b: over>")
    hold = locks.lock("c").acquire()
    server.admin.delete("c")
    until(lambda: repr(hold).endswith("c: lost>"))


def test_pickling_says_what_to_do(server, threaded):
    hold = threaded.lock("a").acquire()
    with pytest.raises(TypeError, match="hand_over"):
        pickle.dumps(hold)
    with pytest.raises(TypeError, match="make a new one"):
        pickle.dumps(threaded.lock("a"))
    hold.release()


def test_another_event_loop_is_refused(server):
    locks = aio.Locks(redis.asyncio.Redis(port=server.port))

    async def use():
        async with locks.lock("a"):
            pass

    async def use_and_leave():
        await use()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use_and_leave())
    with pytest.raises(Misuse, match="another event loop"):
        asyncio.run(asyncio.wait_for(use(), 10))
    loop.run_until_complete(locks.close())
    loop.close()


DROPPED = '''
import redis, sys
from redis_lock_client import Locks
locks = Locks(redis.Redis(port=int(sys.argv[1])))
locks.lock("a").acquire()
sys.stdin.readline()
'''


def test_a_dropped_hold_warns_and_is_released(server, locks):
    with pytest.warns(ResourceWarning, match="never released"):
        locks.lock("a").acquire()
        until(lambda: not server.held("a"))
    words = [sys.executable, "-W", "error::ResourceWarning", "-c", DROPPED, str(server.port)]
    ended = subprocess.run(words, input="\n", capture_output=True, text=True, timeout=20)
    assert "was never released" in ended.stderr


def test_a_lock_is_used_by_many_threads_at_once(server, locks):
    lock, counter, threads = locks.lock("a"), [0], threading.active_count()

    def work():
        for _ in range(20):
            with lock:
                before = counter[0]
                server.admin.ping()
                counter[0] = before + 1

    for call in [Call(work) for _ in range(8)]:
        call.end(30)
    # Connections of asyncio may start a thread for the addresses.
    assert counter == [160] and threading.active_count() < threads + 15


def test_an_owner_is_retired_only_for_the_lock_of_the_hand_over(server, locks):
    lock, given = locks.lock("a", reentrant=True), locks.lock("b").acquire()
    hold = lock.acquire()
    assert given.hand_over()
    again, other = lock.acquire(0), locks.lock("c").acquire()
    assert again.owner == hold.owner == other.owner == given.owner
    # The other process may have the lock under this name.
    assert locks.lock("b", reentrant=True).try_acquire() is None
    for each in (again, hold, other):
        each.release()
