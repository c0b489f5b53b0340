# SPDX-License-Identifier: MIT
"""Hand-over to another process, close, and the end of objects and processes."""

import gc
import os
import signal
import subprocess
import sys
import threading

import pytest
import redis
from conftest import Call, until

from redis_lock_client import Cancelled, Locks, Lost, Misuse


def test_a_hold_is_handed_over(server, locks, flavor):
    theirs = flavor.locks(server.port)
    for options in ({}, {"lease": 60}):
        hold = locks.lock("a", **options).acquire()
        ticket = hold.hand_over()
        assert isinstance(ticket, str) and not hold.lost and server.held("a")
        hold.release()
        assert server.held("a")
        taken = theirs.lock("a", **options).attach(ticket)
        assert taken.owner == hold.owner and not taken.lost and server.holder("a")["holds"] == 1
        until(lambda: taken.valid_for() > 0)
        until(lambda: hold.valid_for() == 0)
        assert not hold.lost
        with pytest.raises(Lost):
            theirs.lock("a").attach(ticket)
        taken.release()
        assert not server.held("a")


def test_a_renewed_hold_outlives_its_first_process(server, flavor):
    locks, theirs = flavor.locks(server.port), flavor.locks(server.port)
    taken = theirs.lock("a").attach(locks.lock("a").acquire().hand_over())
    locks.close()
    taken.extend()
    assert server.holder("a")["owner"].encode() == taken.owner
    taken.release()


def test_a_ticket_of_a_lost_hold_is_worthless(server, locks, flavor):
    hold = locks.lock("a").acquire()
    ticket = hold.hand_over()
    server.admin.delete("a")
    with pytest.raises(Lost):
        flavor.locks(server.port).lock("a").attach(ticket)
    with pytest.raises(Lost):
        locks.lock("b").attach(ticket)
    for wrong in ("", "x", "x|y", "zz|1|a", "|"):
        with pytest.raises(Misuse):
            locks.lock("a").attach(wrong)


def test_a_thread_may_acquire_again_after_a_hand_over(server, locks):
    hold = locks.lock("a").acquire()
    hold.hand_over()
    # The thread has another owner now, so this is no deadlock.
    assert locks.lock("a").try_acquire() is None
    server.admin.delete("a")
    locks.lock("a").acquire().release()


def test_close_ends_waits_and_renewed_holds(server, flavor):
    threads, connections = threading.active_count(), server.clients()
    locks = flavor.locks(server.port)
    server.take("busy")
    holds = [locks.lock(f"l{number}").acquire() for number in range(5)]
    leased = locks.lock("leased", lease=60).acquire()
    calls = [Call(lambda: locks.lock("busy").acquire()) for _ in range(3)]
    until(lambda: server.waiters("busy") == 3)
    locks.close()
    for call in calls:
        with pytest.raises(Cancelled):
            call.end(5)
    assert all(hold.lost for hold in holds) and not any(server.held(f"l{number}") for number in range(5))
    assert server.held("leased") and server.waiters("busy") == 0 and server.sessions() == []
    for hold in (*holds, leased):
        with pytest.raises((Lost, Cancelled)):
            hold.release()
    with pytest.raises(Misuse, match="closed"):
        locks.lock("a").acquire()
    locks.close()
    until(lambda: server.clients() == connections)
    if flavor.name == "threads":
        until(lambda: threading.active_count() <= threads)


def test_close_before_use_does_nothing(server, flavor):
    locks = flavor.locks(server.port)
    locks.close()
    assert server.clients() == 0


def test_locks_that_are_collected_end_their_session(server):
    threads, connections = threading.active_count(), server.clients()
    locks = Locks(redis.Redis(port=server.port))
    with locks.lock("a"):
        assert threading.active_count() > threads
    locks = None
    gc.collect()
    until(lambda: threading.active_count() <= threads and server.sessions() == [])
    gc.collect()
    until(lambda: server.clients() == connections)


def test_a_hold_keeps_its_session(server):
    hold = Locks(redis.Redis(port=server.port)).lock("a").acquire()
    gc.collect()
    assert not hold.wait_lost(1.5) and server.held("a")
    hold.release()


PROGRAM = '''
import os, sys, redis
from redis_lock_client import Locks
locks = Locks(redis.Redis(port=int(sys.argv[1])), grace=0.3)
hold = locks.lock("a").acquire()
print("held", flush=True)
sys.stdin.readline()
print("lost" if hold.lost else "held", flush=True)
'''


@pytest.fixture
def child(server):
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(server.port)], stdin=pipe, stdout=pipe, text=True)
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def test_a_killed_process_frees_its_locks(server, child):
    child.kill()
    until(lambda: not server.held("a"), 5)


def test_an_ended_process_frees_its_locks_at_once(server, child):
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "held\n"
    child.wait()
    assert not server.held("a") and server.sessions() == []


def test_a_suspended_process_keeps_its_locks_for_the_ttl(server, child):
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(AssertionError):
        until(lambda: not server.held("a"), 1)
    os.kill(child.pid, signal.SIGCONT)
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "held\n"
