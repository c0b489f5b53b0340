# SPDX-License-Identifier: MIT
"""A backend of dogpile.cache with locks of the server module: `redis_lock` instead of `dogpile.cache.redis`."""

from __future__ import annotations

from typing import Any

from dogpile.cache.api import CacheMutex
from dogpile.cache.backends.redis import RedisBackend

from .compat import Lock

__all__ = ["Backend"]


class Mutex(CacheMutex):
    """A mutex with one hold at a time, in any thread."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def acquire(self, wait: bool = True) -> bool:
        """Returns whether the lock was granted."""
        return self._lock.acquire(blocking=wait)

    def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` after a loss."""
        self._lock.release()

    def locked(self) -> bool:
        """Returns whether any owner holds the lock."""
        return self._lock.locked()


class Backend(RedisBackend):
    """dogpile's Redis backend. `distributed_lock` is on by default. `lock_timeout` of None holds until release or process end."""

    def __init__(self, arguments: Any) -> None:
        arguments = {"distributed_lock": True, "thread_local_lock": False, **arguments}
        super().__init__(arguments)

    def get_mutex(self, key: str) -> Any:
        """Returns a mutex for this key of the cache."""
        if not self.distributed_lock:
            return None
        # A background refresh of dogpile releases in another thread.
        lock = Lock(
            self.writer_client,
            self.lock_template.format(key),
            timeout=self.lock_timeout,
            blocking=self.lock_blocking,
            blocking_timeout=self.lock_blocking_timeout,
            thread_local=False,
        )
        return Mutex(lock)
