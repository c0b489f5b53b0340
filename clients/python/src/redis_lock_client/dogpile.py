# SPDX-License-Identifier: MIT
"""A backend of dogpile.cache whose mutexes are this server's locks: `redis_lock` in place of `dogpile.cache.redis`."""

from __future__ import annotations

from typing import Any

from dogpile.cache.api import CacheMutex
from dogpile.cache.backends.redis import RedisBackend

from .compat import Lock

__all__ = ["Backend"]


class Mutex(CacheMutex):
    """One hold at a time, whichever thread has it."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def acquire(self, wait: bool = True) -> bool:
        """Whether it was got."""
        return self._lock.acquire(blocking=wait)

    def release(self) -> None:
        """Gives it back. `LockNotOwnedError` if it was lost."""
        self._lock.release()

    def locked(self) -> bool:
        """Whether anybody has it."""
        return self._lock.locked()


class Backend(RedisBackend):
    """With `distributed_lock`, which is on unless said otherwise; `lock_timeout` of None keeps a lock while its process lives."""

    def __init__(self, arguments: Any) -> None:
        arguments = {"distributed_lock": True, "thread_local_lock": False, **arguments}
        super().__init__(arguments)

    def get_mutex(self, key: str) -> Any:
        """A lock for this key of the cache."""
        if not self.distributed_lock:
            return None
        name = self.lock_template.format(key)
        # Of no thread: dogpile gives back what another thread has got, when it refreshes behind its user's back.
        lock = Lock(
            self.writer_client,
            name,
            timeout=self.lock_timeout,
            blocking=self.lock_blocking,
            blocking_timeout=self.lock_blocking_timeout,
            thread_local=False,
        )
        return Mutex(lock)
