# SPDX-License-Identifier: MIT
"""A tooz driver with locks of the server module: the scheme `redis-lock://` instead of `redis://`."""

from __future__ import annotations

import uuid
from typing import Any, List, Optional

import redis.exceptions
from tooz import utils
from tooz.drivers.redis import RedisDriver, RedisLock, _handle_failures

from . import Hold, LockError
from . import Lock as OurLock
from .compat import Lock, locks_of

__all__ = ["Driver"]


class ToozLock(RedisLock):
    """A lock of tooz. Waiters are served in order, and shared holders are admitted."""

    def __init__(self, coord: "Driver", client: Any, name: bytes, timeout: int) -> None:
        super().__init__(coord, client, name, timeout)
        self._timeout = timeout
        self._holds: List[Hold] = []

    def _our_lock(self, lease: Optional[float] = None, shared: bool = False) -> OurLock:
        # Each acquire has an owner of its own, because any thread may release the lock.
        return locks_of(self._client).lock(Lock.prefix + self.name, owner=uuid.uuid4().hex, lease=lease, shared=shared)

    @_handle_failures()
    def is_still_owner(self) -> bool:
        """Returns whether the server names one of these holds as the holder."""
        info = self._our_lock().query()
        owners = [] if info is None else [utils.to_binary(holder["owner"]) for holder in info["holders"]]
        with self._exclusive_access:
            return any(hold.owner in owners for hold in self._holds)

    @_handle_failures()
    def break_(self) -> bool:
        """Takes the lock from its holders. Returns whether there was one."""
        return self._our_lock().force_release()

    @_handle_failures()
    def acquire(self, blocking: Any = True, shared: bool = False, timeout: Optional[float] = None) -> bool:
        """Returns whether the lock was granted. `blocking` may be a number of seconds."""
        blocking, timeout = utils.convert_blocking(blocking, timeout)
        lock = self._our_lock(lease=self._timeout, shared=shared)
        hold = lock.acquire() if blocking and timeout is None else lock.try_acquire(timeout if blocking and timeout else 0)
        if hold is None:
            return False
        with self._exclusive_access:
            self._holds.append(hold)
            self._coord._acquired_locks.add(self)
        return True

    @_handle_failures()
    def release(self) -> bool:
        """Returns whether this object held the lock. After a failed call, it may be called again."""
        with self._exclusive_access:
            if not self._holds:
                return False
            try:
                self._holds[-1].release()
            except redis.exceptions.ConnectionError:
                raise
            except LockError:
                return not self._forget_last()
            return self._forget_last()

    def _forget_last(self) -> bool:
        self._holds.pop()
        if not self._holds:
            self._coord._acquired_locks.discard(self)
        return True

    @_handle_failures()
    def heartbeat(self) -> bool:
        """Sets the lease of each hold again."""
        with self._exclusive_access:
            for hold in self._holds:
                hold.extend(self._timeout)
            return bool(self._holds)


class Driver(RedisDriver):
    """tooz's driver for Redis, with the locks of the server module."""

    def get_lock(self, name: bytes) -> ToozLock:
        """Returns a lock of this name."""
        assert self._client is not None
        return ToozLock(self, self._client, name, self.lock_timeout)
