# SPDX-License-Identifier: MIT
"""A driver of tooz whose locks are this server's: the scheme `redis-lock://` in place of `redis://`."""

from __future__ import annotations

from typing import Any, List, Optional

import redis.exceptions
from tooz import utils
from tooz.drivers.redis import RedisDriver, RedisLock, _handle_failures

from . import Hold, LockError, Locks
from .compat import Lock, locks_of

__all__ = ["Driver"]


class ToozLock(RedisLock):
    """Readers share it. Who waits, waits its turn."""

    def __init__(self, coord: "Driver", client: Any, name: bytes, timeout: int) -> None:
        super().__init__(coord, client, name, timeout)
        self._key = Lock.prefix + self.name
        self._timeout = timeout
        self._holds: List[Hold] = []

    def _locks(self) -> Locks:
        return locks_of(self._client)

    @_handle_failures()
    def is_still_owner(self) -> bool:
        """Whether the server says so."""
        owners = [holder["owner"] for holder in self._locks().lock(self._key).holders()]
        with self._exclusive_access:
            return any(utils.to_binary(hold.owner) in map(utils.to_binary, owners) for hold in self._holds)

    @_handle_failures()
    def break_(self) -> bool:
        """Ends every hold; whoever waits first has it."""
        return bool(self._client.execute_command("LOCK.BREAK", self._key))

    @_handle_failures()
    def acquire(self, blocking: Any = True, shared: bool = False, timeout: Optional[float] = None) -> bool:
        """Whether it was got."""
        blocking, timeout = utils.convert_blocking(blocking, timeout)
        lock = self._locks().lock(self._key, lease=self._timeout, shared=shared)
        hold = lock.acquire(timeout if blocking else 0)
        if hold is None:
            return False
        with self._exclusive_access:
            self._holds.append(hold)
            self._coord._acquired_locks.add(self)
        return True

    @_handle_failures()
    def release(self) -> bool:
        """Whether there was something to give back."""
        with self._exclusive_access:
            if not self._holds:
                return False
            hold = self._holds.pop()
            if not self._holds:
                self._coord._acquired_locks.discard(self)
            try:
                hold.release()
            except redis.exceptions.ConnectionError:
                self._holds.append(hold)
                self._coord._acquired_locks.add(self)
                raise
            except LockError:
                return False
            return True

    @_handle_failures()
    def heartbeat(self) -> bool:
        """Renews what is held."""
        with self._exclusive_access:
            for hold in self._holds:
                hold.extend(self._timeout)
            return bool(self._holds)


class Driver(RedisDriver):
    """As tooz's driver for Redis, but for the locks."""

    def get_lock(self, name: bytes) -> ToozLock:
        """A lock of that name."""
        assert self._client is not None
        return ToozLock(self, self._client, name, self.lock_timeout)
