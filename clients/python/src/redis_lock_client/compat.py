# SPDX-License-Identifier: MIT
"""Drop-in replacements for redis-py's locks and clients.

Use `client.lock("x", timeout=10, lock_class=Lock)`, or replace `redis.Redis` by `Redis` and change nothing else.

Differences from redis-py: waiters are served in order and never poll, so `sleep` has no effect. Without a `timeout`, the lock is
held until its release or the end of the process. Keys have the prefix `redis-lock:`, because redis-py stores a string under its
key, and the server module a hash.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
import weakref
from types import SimpleNamespace
from typing import Any, List, Literal, Optional, Tuple, Union

import redis
import redis.asyncio

from . import LockError, Locks, aio
from ._core import Core
from ._request import Request, milliseconds
from ._threads import run
from .errors import Busy, Deadlock, Lost, Misuse, TimedOut

__all__ = ["AsyncLock", "AsyncRedis", "Lock", "Redis", "locks_of", "locks_of_async"]

log = logging.getLogger("redis_lock_client")

# By pool, or by client of a cluster.
_locks: "weakref.WeakKeyDictionary[Any, Locks]" = weakref.WeakKeyDictionary()
_async_locks: "weakref.WeakKeyDictionary[Any, Tuple[Any, aio.Locks]]" = weakref.WeakKeyDictionary()


def locks_of(client: Any) -> Locks:
    """Returns the `Locks` of this client's pool. The session ends with the pool."""
    pool = _pool_of(client)
    locks = _locks.get(pool)
    # Another thread may have been faster.
    return locks or _locks.setdefault(pool, Locks(_borrow(client, redis.Redis)))


def locks_of_async(client: Any) -> aio.Locks:
    """Returns the `aio.Locks` of this client's pool in the running event loop. The session ends with the pool."""
    pool, loop = _pool_of(client), asyncio.get_running_loop()
    entry = _async_locks.get(pool)
    if entry is None or entry[0]() is not loop:
        entry = _async_locks[pool] = (weakref.ref(loop), aio.Locks(_borrow(client, redis.asyncio.Redis)))
    return entry[1]


def _pool_of(client: Any) -> Any:
    return getattr(client, "connection_pool", client)


def _borrow(client: Any, kind: Any) -> Any:
    """A client that does not keep its pool alive."""
    pool = _pool_of(client)
    return weakref.proxy(client) if pool is client else kind(connection_pool=weakref.proxy(pool))


class _Local(threading.local):
    token: Optional[bytes] = None
    hold: Any = None


class _Lock:
    """The behavior of both locks, as coroutines. With `Locks` of threads, they never suspend."""

    prefix = b"redis-lock:"

    def __init__(
        self,
        redis: Any,
        name: Union[str, bytes, memoryview],
        timeout: Optional[float] = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: Optional[float] = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis, self.name, self.timeout, self.sleep = redis, name, timeout, sleep
        self.blocking, self.blocking_timeout = blocking, blocking_timeout
        self.thread_local, self.raise_on_release_error = bool(thread_local), raise_on_release_error
        self.local: Any = _Local() if self.thread_local else SimpleNamespace(token=None, hold=None)

    @property
    def key(self) -> bytes:
        """The key on the server."""
        return self.prefix + self._encode(self.name)

    def _core(self) -> Core:
        raise NotImplementedError

    def _encode(self, value: Any) -> bytes:
        return bytes(self.redis.get_encoder().encode(value))

    def _error(self, kind: Any, text: str) -> Any:
        return kind(text, lock_name=self._encode(self.name).decode(errors="replace"))

    def _with_token(self, verb: str) -> bytes:
        token = self.local.token
        if token is None:
            raise self._error(LockError, f"Cannot {verb} a lock that's not owned or is already unlocked.")
        return self._encode(token)

    def _with_timeout(self, verb: str) -> float:
        if not self.timeout:
            raise self._error(LockError, f"Cannot {verb} a lock with no timeout")
        return self.timeout

    def _translated(self, error: LockError, verb: str) -> Any:
        """A key of another type means here what a foreign token means to redis-py."""
        if isinstance(error, Lost) or "WRONGTYPE" in str(error):
            return self._error(Lost, f"Cannot {verb} a lock that's no longer owned")
        return error

    async def _acquire(self, blocking: Optional[bool], blocking_timeout: Optional[float], token: Union[str, bytes, None]) -> bool:
        blocking = self.blocking if blocking is None else blocking
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        wait = 0 if not blocking else None if limit is None else max(0.0, limit)
        # Each acquire has an owner of its own, because any thread may release the lock.
        owner = uuid.uuid4().hex.encode() if token is None else self._encode(token)
        try:
            hold = await self._core().acquire(Request([self.key], lease=self.timeout or None, owner=owner), wait)
        except (Busy, TimedOut):
            return False
        except Deadlock:
            # The token holds the lock already.
            if wait is None:
                raise
            return False
        self.local.token, self.local.hold = owner, hold
        return True

    async def _enter(self) -> None:
        if not await self._acquire(None, None, None):
            raise self._error(TimedOut if self.blocking else Busy, "Unable to acquire lock within the time specified")

    async def _owners(self) -> List[Tuple[Optional[bytes], float]]:
        """Each holder with the remaining seconds of its lease."""
        try:
            info = await self._core().query(self.key)
        except Misuse as error:
            if "WRONGTYPE" in str(error):
                return [(None, 0)]
            raise
        return [] if info is None else [(self._encode(holder["owner"]), holder["ttl"] / 1000) for holder in info["holders"]]

    async def _owned(self) -> bool:
        token = self.local.token
        return token is not None and self._encode(token) in [owner for owner, _ in await self._owners()]

    async def _release(self) -> None:
        token, hold = self._with_token("release"), self.local.hold
        try:
            if hold is not None and hold.owner.name == token:
                await hold.session.release(hold)
            else:
                # The user has set the token of another process.
                await self._core().execute("LOCK.RELEASE", self.key, token)
        except LockError as error:
            error = self._translated(error, "release")
            if isinstance(error, Lost):
                self.local.token = self.local.hold = None
            raise error
        self.local.token = self.local.hold = None

    async def _leave(self, error_of_body: Optional[BaseException]) -> None:
        try:
            await self._release()
        except LockError:
            # The error of the body says more.
            if error_of_body is None and self.raise_on_release_error:
                raise
            log.warning("%r: it was unlocked or no longer owned when its scope ended", self.name)

    async def _renew(self, verb: str, lease: float) -> Literal[True]:
        token, hold = self._with_token(verb), self.local.hold
        self._with_timeout(verb)
        try:
            if hold is not None and hold.owner.name == token:
                await hold.session.renew(hold, lease)
            else:
                await self._core().execute("LOCK.RENEW", self.key, token, "PX", milliseconds(lease))
        except LockError as error:
            raise self._translated(error, verb)
        return True

    async def _extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        left = 0.0
        if not replace_ttl:
            token = self._with_token("extend")
            self._with_timeout("extend")
            left = dict(await self._owners()).get(token, -1)
            if left < 0:
                raise self._error(Lost, "Cannot extend a lock that's no longer owned")
        return await self._renew("extend", left + additional_time)

    async def _reacquire(self) -> Literal[True]:
        return await self._renew("reacquire", self.timeout or 0)


class Lock(_Lock):
    """A lock with the interface of `redis.lock.Lock`."""

    def _core(self) -> Core:
        return locks_of(self.redis)._core

    def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Union[str, bytes, None] = None,
    ) -> bool:
        """Returns whether the lock was granted. `token` is the name of the owner, by default new for each acquire."""
        return run(self._acquire(blocking, blocking_timeout, token))

    def locked(self) -> bool:
        """Returns whether any owner holds the lock."""
        return bool(run(self._owners()))

    def owned(self) -> bool:
        """Returns whether the server names the token of this object as the owner."""
        return run(self._owned())

    def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` after a loss. After a failed call, it may be called again."""
        run(self._release())

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the remaining lease, or replaces it."""
        return run(self._extend(additional_time, replace_ttl))

    def reacquire(self) -> Literal[True]:
        """Sets the remaining lease to `timeout`."""
        return run(self._reacquire())

    def __enter__(self) -> "Lock":
        run(self._enter())
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        run(self._leave(error))


class AsyncLock(_Lock):
    """A lock with the interface of `redis.asyncio.lock.Lock`."""

    def _core(self) -> Core:
        return locks_of_async(self.redis)._core

    async def acquire(
        self,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Union[str, bytes, None] = None,
    ) -> bool:
        """Returns whether the lock was granted. `token` is the name of the owner, by default new for each acquire."""
        return await self._acquire(blocking, blocking_timeout, token)

    async def locked(self) -> bool:
        """Returns whether any owner holds the lock."""
        return bool(await self._owners())

    async def owned(self) -> bool:
        """Returns whether the server names the token of this object as the owner."""
        return await self._owned()

    async def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` after a loss. If the task is cancelled, the release continues."""
        await self._release()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the remaining lease, or replaces it."""
        return await self._extend(additional_time, replace_ttl)

    async def reacquire(self) -> Literal[True]:
        """Sets the remaining lease to `timeout`."""
        return await self._reacquire()

    async def __aenter__(self) -> "AsyncLock":
        await self._enter()
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        await self._leave(error)


class _Client:
    """Comes before redis-py's client in the order of the base classes."""

    _lock_kind: Any

    def lock(
        self,
        name: Any,
        timeout: Optional[float] = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: Optional[float] = None,
        lock_class: Any = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> Any:
        """Returns a lock with the arguments of redis-py's `lock`."""
        kind = self._lock_kind if lock_class is None else lock_class
        # redis-py 5 does not know the argument.
        more: Any = {} if raise_on_release_error else {"raise_on_release_error": False}
        client: Any = super()
        return client.lock(name, timeout, sleep, blocking, blocking_timeout, kind, thread_local, **more)


class Redis(_Client, redis.Redis):
    """redis-py's client with locks of the server module. django-redis accepts it as `OPTIONS.REDIS_CLIENT_CLASS`."""

    _lock_kind = Lock

    def close(self) -> None:
        """Closes the client, and ends the session of its locks unless other clients share the pool."""
        locks = _locks.pop(self.connection_pool, None) if self.auto_close_connection_pool else None
        if locks is not None:
            locks.close()
        super().close()

    def __del__(self) -> None:
        # The garbage collector may run in any thread, and must not wait for the session.
        try:
            super().close()
        except Exception:
            pass


# With two bases, mypy reports that those of redis-py disagree.
class AsyncRedis(_Client, redis.asyncio.Redis):  # type: ignore[misc]
    """redis-py's asyncio client with locks of the server module."""

    _lock_kind = AsyncLock

    async def aclose(self, close_connection_pool: Optional[bool] = None) -> None:
        """Closes the client, and ends the session of its locks unless other clients share the pool."""
        if close_connection_pool or (close_connection_pool is None and self.auto_close_connection_pool):
            entry = _async_locks.pop(self.connection_pool, None)
            if entry is not None:
                await entry[1].close()
        await super().aclose(close_connection_pool)
