# SPDX-License-Identifier: MIT
"""A pytest plugin that gives redis-py's own tests our locks, before they import theirs."""

import redis.asyncio.lock
import redis.lock

from redis_lock_client import compat


class Lock(compat.Lock):
    prefix = b""  # The tests look at the key, and write to it.


class AsyncLock(compat.AsyncLock):
    prefix = b""


redis.lock.Lock = Lock
redis.asyncio.lock.Lock = AsyncLock
