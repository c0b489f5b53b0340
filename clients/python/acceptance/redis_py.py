# SPDX-License-Identifier: MIT
"""A pytest plugin that replaces redis-py's locks by those of this package, before redis-py's tests import them."""

import redis.asyncio.lock
import redis.lock

from redis_lock_client import compat


class Lock(compat.Lock):
    prefix = b""  # The tests look at the key, and write to it.


class AsyncLock(compat.AsyncLock):
    prefix = b""


redis.lock.Lock = Lock
redis.asyncio.lock.Lock = AsyncLock
