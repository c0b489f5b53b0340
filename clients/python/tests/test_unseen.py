# SPDX-License-Identifier: MIT
"""What is on its way when nobody waits for it any more, and what ends unseen."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import pytest
import redis
import redis.asyncio
from conftest import Call, pairs, until

from redis_lock_client import Cancellation, Cancelled, LockError, Locks, Lost, Misuse, Unavailable, _session, aio


@pytest.fixture
def hasty(proxy):
    """Through the proxy, with little patience."""
    locks = Locks(redis.Redis(port=proxy.port), patience=0.5)
    yield locks
    locks.close()


@asynccontextmanager
async def asynchronous(port, patience=5.0):
    async with redis.asyncio.Redis(port=port) as client:
        locks = aio.Locks(client, patience)
        yield locks
        await locks.close()


async def comes_about(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def silence(proxy):
    """No reply comes on the connections that there are, as if a firewall had forgotten them."""
    proxy.deaf = {id(pair) for pair in proxy._pairs}


def kill_commands(server):
    """Those for messages, and those on which a wait is, are of another kind."""
    for client in server.admin.client_list():
        if client["flags"] == "N" and not client["cmd"].startswith("client"):
            server.admin.client_kill_filter(client["id"])


def calls(server, command):
    return server.admin.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)


def nothing_is_given_back(locks):
    return len(locks.asynchronous._session._giving) == 0


def test_what_takes_back_a_wait_is_waited_for_by_the_same_owner(server, proxy, far):
    lock = far.lock("a", lease=60)
    far.lock("other").acquire().release()
    proxy.frozen.set()
    with pytest.raises(Unavailable):
        lock.acquire(0.1, owner="me")
    for call in (lambda: lock.acquire(0.1, owner="me"), lambda: lock.attach("me")):
        with pytest.raises(Unavailable, match="could not be given back yet"):
            call()
    proxy.frozen.clear()
    new = lock.acquire(owner="me")
    until(lambda: nothing_is_given_back(far))
    assert server.holder("a")["owner"] == "me"
    new.release()


@pytest.mark.parametrize("own", [False, True])
def test_who_waits_by_the_name_of_a_hold_that_is_given_back_keeps_what_it_gets(server, locks, own):
    old = locks.lock("a", lease=1, keep=True).acquire(owner="me")
    waiting = Call(lambda: locks.lock("a", lease=60, own_connection=own).acquire(20, owner="me"))
    until(lambda: server.waiters("a") == 1)
    server.admin.config_set("min-replicas-to-write", 1)
    releasing = Call(old.release)
    assert old.wait_lost(5)
    assert not nothing_is_given_back(locks)
    server.admin.config_set("min-replicas-to-write", 0)
    new = waiting.end()
    with pytest.raises(Lost):
        releasing.end()
    until(lambda: nothing_is_given_back(locks))
    # What was sent before that is over, too.
    assert locks.lock("a").try_acquire() is None
    assert server.holder("a")["owner"] == "me" and new.valid_for() > 0
    new.release()


def test_a_connection_without_answers_is_given_up_though_nobody_waits(proxy):
    async def body():
        async with asynchronous(proxy.port, patience=1) as locks:
            hold = await locks.lock("a", lease=60).acquire()
            proxy.frozen.set()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(hold.extend(60), 0.1)
            assert hold._link.open
            await comes_about(lambda: not hold._link.open)
            proxy.frozen.clear()

    asyncio.run(body())


def test_a_busy_loop_does_not_give_up_what_was_answered_meanwhile(server):
    async def body():
        async with asynchronous(server.port, patience=0.5) as locks:
            hold = await locks.lock("a").acquire()
            extending = asyncio.ensure_future(hold.extend())
            while not hold._renewals:
                await asyncio.sleep(0)
            time.sleep(1)
            await extending
            assert hold._link.open and hold.valid_for() > 20

    asyncio.run(body())


def test_who_hands_over_waits_for_an_extension_whose_caller_has_gone(server, proxy):
    async def body():
        async with asynchronous(proxy.port) as locks:
            hold = await locks.lock("a", lease=60).acquire()
            proxy.frozen.set()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(hold.extend(60), 0.1)
            handing = asyncio.ensure_future(hold.hand_over())
            await asyncio.sleep(0.3)
            assert not handing.done()
            with pytest.raises(LockError):
                await hold.extend(5)
            proxy.frozen.clear()
            assert await handing == hold.owner
            assert server.admin.pttl("a") > 50_000

    asyncio.run(body())


def test_what_is_lost_while_it_is_handed_over_is_given_back(server, proxy, far):
    hold = far.lock("a", lease=1.5, keep=True).acquire()
    proxy.frozen.set()
    # A renewal is on its way.
    until(lambda: hold._hold._renewals)
    handing = Call(hold.hand_over)
    assert hold.wait_lost(5)
    proxy.frozen.clear()
    with pytest.raises(Lost):
        handing.end()
    until(lambda: not server.held("a"), 5)


def test_what_was_lost_in_a_busy_process_is_given_back_whatever_a_script_says(server):
    async def body():
        async with asynchronous(server.port) as locks:
            hold = await locks.lock("a", lease=1, keep=True).acquire(owner="me")
            words = ("EVAL", "return redis.error_reply('NOTOWNER of mine')", 0)
            guarding = asyncio.ensure_future(hold.guard(*words))
            await asyncio.sleep(0)
            time.sleep(1.2)
            with pytest.raises(Lost):
                await guarding
            await comes_about(lambda: not server.held("a"))

    asyncio.run(body())


def test_an_attach_whose_caller_has_gone_keeps_nothing(server, proxy, locks):
    owner = locks.lock("a").acquire().hand_over()

    async def body():
        async with asynchronous(proxy.port) as others:
            await (await others.lock("other").acquire()).release()
            proxy.frozen.set()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(others.lock("a", lease=1, keep=True).attach(owner), 0.1)
            proxy.frozen.clear()
            await comes_about(lambda: not server.held("a"))

    asyncio.run(body())


def test_an_attach_is_sent_again(server, proxy, locks, hasty):
    hasty.lock("other").acquire().release()
    owner = locks.lock("a", lease=60).acquire().hand_over()
    silence(proxy)
    hold = hasty.lock("a", lease=60).attach(owner)
    assert server.holder("a")["owner"] == owner and hold.valid_for() > 0
    hold.release()


@pytest.mark.parametrize(("owner", "lease"), [(None, 60), ("me", 2)])
def test_a_late_grant_is_given_back_by_who_may_not_cancel(server, proxy, owner, lease):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", "nopass", "+@all", "-lock.cancel", "~*", "&*")
    locks = Locks(redis.Redis(port=proxy.port, username="app", password="x"))
    locks.lock("other").acquire().release()
    proxy.frozen.set()
    with pytest.raises(Unavailable):
        locks.lock("a", keep=True, lease=lease).acquire(0.1, owner=owner)
    proxy.frozen.clear()
    until(lambda: calls(server, "lock.acquire") == 2)
    until(lambda: not server.held("a"))
    locks.close()


def test_who_may_not_acquire_leaves_nothing_to_give_back(server):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", "nopass", "+@all", "~allowed", "&*")
    locks = Locks(redis.Redis(port=server.port, username="app", password="x"))
    for owner in (None, "me"):
        with pytest.raises(Misuse):
            locks.lock("forbidden", keep=True).acquire(1, owner=owner)
    until(lambda: nothing_is_given_back(locks))
    assert calls(server, "lock.release") == 0
    locks.close()


def test_who_may_not_cancel_gives_back_nothing_that_its_owner_has_by_another_call(server):
    server.admin.execute_command("ACL", "SETUSER", "app", "on", "nopass", "+@all", "-lock.cancel", "~*", "&*")
    locks = Locks(redis.Redis(port=server.port, username="app", password="x"))
    hold = locks.lock("a", lease=600).acquire(owner="me")
    assert locks.lock("a", keep=True).acquire(0.1, owner="me") is None
    until(lambda: nothing_is_given_back(locks))
    assert server.admin.pttl("a") > 500000 and calls(server, "lock.release") == 0
    hold.release()
    locks.close()


def test_a_command_that_says_notowner_ends_no_hold_that_nobody_looks_after(server, locks):
    hold = locks.lock("a", lease=60).acquire(owner="me")
    script = "return redis.error_reply('NOTOWNER of another lock')"
    with pytest.raises(Lost):
        locks.lock("a").hold_of("me").guard("EVAL", script, 0)
    hold.extend(60)
    assert calls(server, "lock.release") == 0
    hold.release()


def test_an_extension_whose_reply_is_lost_does_not_outlive_the_hold(server, proxy, far):
    hold = far.lock("a", lease=1).acquire()
    proxy.cut_reply_of, proxy.freeze_then = b"LOCK.RENEW", True
    extending = Call(lambda: hold.extend(60))
    assert hold.wait_lost(5)
    proxy.frozen.clear()
    with pytest.raises((Lost, Unavailable)):
        extending.end()
    until(lambda: not server.held("a"), 5)


def test_a_shorter_lease_counts_from_when_it_was_sent(proxy):
    async def body():
        async with asynchronous(proxy.port) as locks:
            hold = await locks.lock("a", lease=60).acquire()
            ask, late = locks._session.ask, asyncio.Event()

            async def asks_late(*words):
                locks._session.ask = ask
                await late.wait()
                return await ask(*words)

            locks._session.ask = asks_late
            shorter = asyncio.ensure_future(hold.extend(2))
            await asyncio.sleep(0.01)
            await hold.extend(90)
            assert hold.valid_for() > 80
            proxy.frozen.set()
            late.set()
            await comes_about(lambda: hold.valid_for() <= 2)
            proxy.frozen.clear()
            await shorter

    asyncio.run(body())


def test_waits_do_not_hang_on_connections_as_old_as_one_that_is_silent(server, proxy, hasty):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    hasty.lock("other").acquire().release()
    waiting = Call(lambda: hasty.lock("a", lease=60, own_connection=True).acquire(60))
    until(lambda: server.waiters("a") == 1)
    silence(proxy)
    # So the session has another connection before the wait looks whether anybody answers there.
    hasty.lock("other").acquire(5).release()
    server.admin.execute_command("LOCK.RELEASE", "a", "x")
    waiting.end().release()


def test_an_answer_on_a_younger_connection_says_nothing_of_a_waits_own(server, proxy, hasty):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    waiting = Call(lambda: hasty.lock("a", lease=60, own_connection=True).acquire(60))
    until(lambda: server.waiters("a") == 1)
    # So the wait's next question makes the connection for commands anew.
    kill_commands(server)
    silence(proxy)
    server.admin.execute_command("LOCK.RELEASE", "a", "x")
    waiting.end().release()


def test_a_wait_keeps_its_place_when_the_connection_for_commands_is_made_anew(server, hasty, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    waiting = Call(lambda: hasty.lock("a", lease=60, own_connection=True).acquire(60))
    until(lambda: server.waiters("a") == 1)
    behind = Call(lambda: locks.lock("a", lease=60).acquire(60))
    until(lambda: server.waiters("a") == 2)

    def queue():
        waiters = [pairs(waiter) for waiter in server.admin.execute_command("LOCK.WAITERS", "a")]
        return [waiter["owner"] for waiter in waiters], waiters[0]["client"]

    owners, own = queue()
    kill_commands(server)
    until(lambda: queue()[1] != own)
    until(lambda: str(own) not in [client["id"] for client in server.admin.client_list()])
    assert queue()[0] == owners
    server.admin.execute_command("LOCK.RELEASE", "a", "x")
    for call in (waiting, behind):
        call.end().release()


def test_a_wait_keeps_its_place_when_only_the_connection_for_commands_falls_silent(server, proxy, hasty, locks):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    hasty.lock("other").acquire().release()
    of_commands = {id(pair) for pair in proxy._pairs}
    waiting = Call(lambda: hasty.lock("a", lease=60, own_connection=True).acquire(60))
    until(lambda: server.waiters("a") == 1)
    behind = Call(lambda: locks.lock("a", lease=60).acquire(60))
    until(lambda: server.waiters("a") == 2)
    ids = lambda: [pairs(waiter)["client"] for waiter in server.admin.execute_command("LOCK.WAITERS", "a")]  # noqa: E731
    own, next_one = ids()
    proxy.deaf = of_commands
    until(lambda: own not in ids())
    assert ids()[1] == next_one
    server.admin.execute_command("LOCK.RELEASE", "a", "x")
    for call in (waiting, behind):
        call.end().release()


def test_a_wait_whose_call_comes_again_late_goes_on(server, locks, monkeypatch):
    server.admin.execute_command("LOCK.ACQUIRE", "a", "x", "PX", 60000)
    said, send = [], _session.Link.send
    monkeypatch.setattr(_session.Link, "send", lambda link, *words: said.append(words) or send(link, *words))
    waiting = Call(lambda: locks.lock("a", lease=60, own_connection=True).acquire(60))
    until(lambda: server.waiters("a") == 1)
    # As if a proxy had it yet.
    call = next(words for words in said if "BLOCK" in words)
    late = Call(lambda: redis.Redis(port=server.port).execute_command(*call))
    late.join(10)
    assert "was sent again" in str(late.error)
    server.admin.execute_command("LOCK.RELEASE", "a", "x")
    waiting.end().release()


def test_whoever_gives_the_password_may_fail(server, locks):
    class Provider(redis.CredentialProvider):
        away = False

        def get_credentials(self):
            if self.away:
                raise RuntimeError("no token today")
            return "default", "any"

    provider = Provider()
    locks = Locks(redis.Redis(port=server.port, credential_provider=provider))
    hold = locks.lock("a", lease=1, keep=True).acquire()
    provider.away = True
    kill_commands(server)
    until(lambda: hold.lost)
    with pytest.raises(Unavailable, match="no token today"):
        locks.lock("b").acquire(0)
    provider.away = False
    locks.lock("b").acquire().release()
    locks.close()


def test_the_time_for_a_connection_is_a_part_of_a_calls_time(server, proxy):
    async def body():
        async with asynchronous(proxy.port, 1.0) as locks:
            session = locks._session
            await session.call("PING")
            shared = session._shared

            async def slowly(*how):
                await asyncio.sleep(0.8)
                return await shared(*how)

            session._shared = slowly
            proxy.frozen.set()
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await session.call("PING", patience=1.0)
            assert time.monotonic() - began < 1.5
            proxy.frozen.clear()

    asyncio.run(body())


def test_a_wait_without_limit_is_sent_again_after_silence(server, proxy, hasty):
    hasty.lock("other").acquire().release()
    server.admin.execute_command("LOCK.ACQUIRE", "b", "x", "PX", 60000)
    silence(proxy)
    hasty.lock("a").acquire().release()
    waiting = Call(hasty.lock("b").acquire)
    until(lambda: server.waiters("b") == 1)
    silence(proxy)
    time.sleep(1)
    server.admin.execute_command("LOCK.RELEASE", "b", "x")
    waiting.end().release()


def test_a_connection_that_ends_behind_the_grant_is_noticed(server):
    async def body():
        async with asynchronous(server.port) as locks:
            await (await locks.lock("other").acquire()).release()
            acquiring = asyncio.ensure_future(locks.lock("a").acquire())
            while not server.held("a"):
                await asyncio.sleep(0)
            server.admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.2)
            hold = await acquiring
            await asyncio.wait_for(hold.lost.wait(), 5)

    asyncio.run(body())


@pytest.mark.parametrize("how", [{"keep": False, "ephemeral": True}, {"keep": True, "max_hold": 0.3}])
def test_what_ends_with_its_connection_is_told_though_nothing_renews_it(server, locks, how):
    hold = locks.lock("a", lease=60, **how).acquire()
    time.sleep(0.4)
    server.admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert hold.wait_lost(10)


def test_what_is_not_kept_survives_the_end_of_its_connection(server, locks):
    hold = locks.lock("a", lease=60).acquire()
    server.admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert not hold.wait_lost(0.3)
    hold.release()


def test_a_wait_of_its_own_that_is_cancelled_is_reset(mute):
    locks, cancellation = Locks(redis.Redis(port=mute.port), patience=60), Cancellation()
    waiting = Call(lambda: locks.lock("a", own_connection=True).acquire(cancellation=cancellation))
    threading.Thread(target=lambda: (mute.asked.wait(10), cancellation.cancel()), daemon=True).start()
    # One of them is the connection for commands.
    ends = [Call(mute.end_of_next), Call(mute.end_of_next)]
    with pytest.raises(Cancelled):
        waiting.end()
    locks.close()
    assert [reset for said, reset in (end.end() for end in ends) if b"BLOCK" in said] == [True]


def test_no_call_keeps_its_caller_longer_than_the_lease(server, proxy):
    locks = Locks(redis.Redis(port=proxy.port), patience=60)
    for last in (lambda hold: hold.extend(60), lambda hold: hold.hand_over()):
        hold = locks.lock("a", lease=1.5, keep=True).acquire()
        proxy.frozen.set()
        until(lambda hold=hold: hold._hold._renewals)
        with pytest.raises((Lost, Unavailable)):
            Call(lambda hold=hold, last=last: last(hold)).end(15)
        proxy.frozen.clear()
        until(lambda: not server.held("a"))
    locks.close()


def test_what_is_kept_is_renewed_often_though_its_lease_is_long(server, locks, monkeypatch):
    monkeypatch.setattr(aio, "RENEW_AGAIN", 0.1)
    hold = locks.lock("a", lease=60, keep=True).acquire()
    until(lambda: calls(server, "lock.renew") > 2)
    hold.release()


def test_close_leaves_nothing_of_what_was_being_acquired_or_given_back(server):
    async def body():
        async with redis.asyncio.Redis(port=server.port) as client:
            for turn in range(40):
                locks = aio.Locks(client)
                await (await locks.lock("other").acquire()).release()
                lock = locks.lock(f"a{turn}", lease=600, own_connection=turn % 4 == 1)
                work = (await lock.acquire()).release() if turn % 4 == 0 else lock.acquire()
                work = asyncio.ensure_future(work)
                await asyncio.sleep(turn * 5e-5)
                if turn % 4 > 1:
                    work.cancel()
                    await asyncio.sleep(0)
                await locks.close()
                await asyncio.gather(work, return_exceptions=True)
                if turn % 4 == 0 or work.cancelled() or work.exception() is not None:
                    await comes_about(lambda turn=turn: not server.admin.exists(f"a{turn}"))

    asyncio.run(body())


def test_a_grant_ends_what_its_owner_had_before(server, locks):
    old = locks.lock("a", lease=60).acquire(owner="me")
    server.admin.execute_command("LOCK.BREAK", "a")
    new = locks.lock("a", lease=60).acquire(owner="me")
    assert old.lost and not new.lost
    with pytest.raises(Lost):
        old.release()
    assert new.guard("PING")
    new.release()
    # Of readers, each counts.
    one, other = (locks.lock("b", shared=True, lease=60).acquire(owner="me") for _ in range(2))
    assert not one.lost
    one.release()
    other.release()
    assert not server.admin.exists("b")


def test_what_may_have_ended_with_its_connection_is_not_handed_over(proxy, hasty):
    hold = hasty.lock("a", lease=2, keep=True).acquire()
    proxy.close()
    until(lambda: hold.valid_for() == 0)
    with pytest.raises(LockError):
        hold.hand_over()
