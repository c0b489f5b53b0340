# SPDX-License-Identifier: MIT
"""The oldest redis-py that works, in `REDIS_PY_5`: a folder with its package."""

import os
import subprocess
import sys

import pytest

PROGRAM = '''
import asyncio, sys, redis, redis.asyncio
from redis_lock_client import Locks, aio, compat
assert redis.__version__.startswith("5."), redis.__version__
port = int(sys.argv[1])
with Locks(redis.Redis(port=port)) as locks:
    with locks.lock("a", fence=True) as hold:
        assert hold.token > 0 and locks.lock("a", owner="x").try_acquire(0.05) is None
        hold.guard("SET", "x", "1")
with compat.Redis(port=port) as client, client.lock("x", timeout=10) as lock:
    assert lock.owned()

async def main():
    async with aio.Locks(redis.asyncio.Redis(port=port)) as locks:
        async with locks.lock("a") as hold:
            assert await locks.lock("a", owner="x").try_acquire(0.05) is None
            await hold.extend()
    client = compat.AsyncRedis(port=port)
    async with client.lock("x", timeout=10):
        pass
    await client.aclose()

asyncio.run(main())
print("done")
'''


@pytest.mark.skipif("REDIS_PY_5" not in os.environ, reason="REDIS_PY_5 names no folder")
def test_locks_work_with_redis_py_5(server):
    path = os.pathsep.join([os.environ["REDIS_PY_5"], *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    words = [sys.executable, "-c", PROGRAM, str(server.port)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.stdout == "done\n", ended.stderr
