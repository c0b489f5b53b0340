# SPDX-License-Identifier: MIT
"""A forked child has a session of its own, and no hold of its parent."""

import gc
import os
import subprocess
import sys

from conftest import until

from redis_lock_client import Lost


def in_child(body):
    """The result of a function in a forked child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if body() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_has_no_hold_of_its_parent(server, threaded):
    hold, leased = threaded.lock("a").acquire(), threaded.lock("b", lease=60).acquire()

    def child():
        for each in (hold, leased):
            try:
                each.release()
                return False
            except Lost:
                pass
        if not hold.lost or threaded.lock("a").try_acquire() is not None:
            return False
        with threaded.lock("c") as own:
            is_other = own.owner != hold.owner and len(server.sessions()) == 2
        threaded.close()
        return is_other

    assert in_child(child)
    assert not hold.lost and server.held("a") and server.held("b")
    hold.extend()
    hold.release()
    leased.release()


def test_a_hold_survives_the_garbage_of_a_child(server, threaded):
    holds = [threaded.lock("a").acquire()]

    def child():
        holds.clear()
        gc.collect()
        with threaded.lock("b"):
            return True

    assert in_child(child)
    # The session of the child ends after its grace.
    until(lambda: len(server.sessions()) == 1)
    assert server.held("a")
    holds[0].extend()
    holds[0].release()


def test_a_child_leaves_the_scope_of_its_parent(server, threaded):
    lock = threaded.lock("a")

    def child():
        try:
            lock.__exit__(None, None, None)
            return False
        except Lost:
            return True

    with lock as hold:
        assert in_child(child)
        assert server.held("a")
    assert not hold.lost and not server.held("a")


PROGRAM = '''
import os, sys, redis
from redis_lock_client import Locks
locks = Locks(redis.Redis(port=int(sys.argv[1])), grace=0.3)
hold = locks.lock("a").acquire()
if os.fork():
    print("held", flush=True)
sys.stdin.readline()
os._exit(0)
'''


def test_a_child_keeps_nothing_alive(server):
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", PROGRAM, str(server.port)], stdin=pipe, stdout=pipe, text=True)
    try:
        assert parent.stdout.readline() == "held\n" and server.held("a")
        parent.kill()
        until(lambda: not server.held("a"), 5)
    finally:
        # The child ends with its input.
        parent.stdin.close()
        parent.wait()
        parent.stdout.close()


CHILD = '''
import asyncio, sys, redis.asyncio
from redis_lock_client import aio
async def main():
    async with aio.Locks(redis.asyncio.Redis(port=int(sys.argv[1]))) as own:
        assert await own.lock("a").try_acquire() is None
        async with own.lock("b"):
            pass
asyncio.run(main())
'''

ASYNCIO = '''
import asyncio, os, sys, redis, redis.asyncio
from redis_lock_client import Lost, aio
port = int(sys.argv[1])
locks = aio.Locks(redis.asyncio.Redis(port=port))
async def child():
    async with aio.Locks(redis.asyncio.Redis(port=port)) as own:
        assert await own.lock("a").try_acquire() is None
        async with own.lock("b"):
            pass
async def main():
    hold = await locks.lock("a").acquire()
    if (pid := os.fork()) == 0:
        assert hold.lost
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    await hold.extend()
    if (pid := os.fork()) == 0:
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], str(port)])
    assert await asyncio.to_thread(os.waitpid, pid, 0) == (pid, 0)
    await hold.release()
    assert not redis.Redis(port=port).exists("a")
    await locks.close()
asyncio.run(main())
print("done")
'''


def test_a_child_of_asyncio_has_no_hold_of_its_parent(server):
    ended = subprocess.run([sys.executable, "-c", ASYNCIO, str(server.port), CHILD], capture_output=True, text=True, timeout=30)
    assert ended.stdout == "done\n", ended.stderr


ENDING = '''
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
'''


def test_the_end_of_a_process_is_quiet(server):
    for _ in range(3):
        words = [sys.executable, "-W", "ignore", "-c", ENDING, str(server.port)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=20)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert server.sessions() == []
