# SPDX-License-Identifier: MIT
"""In the place of redis-py's locks: `client.lock("x", timeout=10, lock_class=Lock)`, or `Redis` for `redis.Redis`.

Who is not to change a line takes `Redis` (or `AsyncRedis`), whose `lock()` gives ours. What is different: waiting is first come,
first served, and nothing is polled, so `sleep` means nothing; without `timeout` the hold ends with its process, as nobody else
could end it; keys have a prefix, as redis-py keeps a string under the key, and this a hash.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from types import SimpleNamespace
from typing import Any, Dict, Literal, Optional, Tuple, Union

import redis
import redis.asyncio

from . import Hold, LockError, Locks, aio
from . import Lock as OurLock
from .errors import Busy, Lost, Misuse, TimedOut

__all__ = ["AsyncLock", "AsyncRedis", "Lock", "Redis", "locks_of", "locks_of_async"]

log = logging.getLogger("redis_lock_client")

# Re-entrant: garbage that is collected meanwhile may come here, too.
_guard = threading.RLock()
_sessions: "weakref.WeakKeyDictionary[Any, Locks]" = weakref.WeakKeyDictionary()
_async_sessions: "weakref.WeakKeyDictionary[Any, Tuple[Any, aio.Locks]]" = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    global _guard
    _guard = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def locks_of(client: "redis.Redis") -> Locks:
    """The session that all locks of this client's pool share. It ends with the pool."""
    with _guard:
        locks = _sessions.get(client.connection_pool)
        if locks is None:
            locks = _sessions[client.connection_pool] = Locks(client)
        return locks


def locks_of_async(client: "redis.asyncio.Redis") -> aio.Locks:
    """The same for asyncio: one session for each pool in the event loop that runs."""
    pool, loop = client.connection_pool, asyncio.get_running_loop()
    entry = _async_sessions.get(pool)
    if entry is None or entry[0]() is not loop:
        entry = _async_sessions[pool] = (weakref.ref(loop), aio.Locks(client))
        weakref.finalize(pool, _end, *entry).atexit = False
    return entry[1]


def _end(of_loop: Any, locks: aio.Locks) -> None:
    loop = of_loop()
    if loop is not None and not loop.is_closed():
        loop.call_soon_threadsafe(lambda: asyncio.ensure_future(locks.close(), loop=loop))


class _Local(threading.local):
    token: Optional[bytes] = None
    hold: Any = None


class _Shape:
    """What both have of redis-py's interface."""

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
        """Under which the server has it."""
        return self.prefix + bytes(self._encode(self.name))

    def _encode(self, value: Any) -> bytes:
        encoded: bytes = self.redis.connection_pool.get_encoder().encode(value)
        return encoded

    def _how(self) -> Dict[str, Any]:
        label = bytes(self._encode(self.name)).decode(errors="replace")
        return {"label": label, **({"lease": self.timeout} if self.timeout else {})}

    def _wait(self, blocking: Optional[bool], blocking_timeout: Optional[float]) -> Optional[float]:
        blocking = self.blocking if blocking is None else blocking
        return (self.blocking_timeout if blocking_timeout is None else blocking_timeout) if blocking else 0

    def _owner(self, token: Union[str, bytes, None]) -> bytes:
        return aio.new_owner().encode() if token is None else bytes(self._encode(token))

    def _hold(self, lock: Any, verb: str) -> Any:
        """That of this thread's last acquire; if somebody has set another token, that of its owner."""
        token = self.local.token
        if token is None:
            raise LockError(f"Cannot {verb} a lock that's not owned or is already unlocked.", lock_name=self._name())
        hold = self.local.hold
        return hold if hold is not None and hold.owner == token else lock.hold_of(token)

    def _with_timeout(self, verb: str) -> float:
        if not self.timeout:
            raise LockError(f"Cannot {verb} a lock with no timeout", lock_name=self._name())
        return self.timeout

    def _name(self) -> str:
        return str(self._how()["label"])

    def _not_owned(self, verb: str) -> Lost:
        return Lost(f"Cannot {verb} a lock that's no longer owned", lock_name=self._name())

    def _translated(self, error: LockError, verb: str) -> LockError:
        """A key of another type means here what another token means to redis-py."""
        return self._not_owned(verb) if isinstance(error, Lost) or "WRONGTYPE" in str(error) else error

    def _forget(self) -> None:
        self.local.token = self.local.hold = None

    def _not_acquired(self) -> LockError:
        kind = TimedOut if self.blocking else Busy
        return kind("Unable to acquire lock within the time specified", lock_name=self._name())

    def _leave(self, error: LockError, of_body: Optional[BaseException]) -> None:
        """The body's own error comes out."""
        if of_body is None and self.raise_on_release_error:
            raise error
        log.warning("%s: it was unlocked or no longer owned when its scope ended", self._name())


class Lock(_Shape):
    """`redis.lock.Lock` by this server's locks."""

    def _lock(self) -> OurLock:
        return locks_of(self.redis).lock(self.key, **self._how())

    def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Union[str, bytes, None] = None,
    ) -> bool:
        """Whether it was got. `token` is the name of the owner, new for each acquire if none is given."""
        owner = self._owner(token)
        hold = self._lock().acquire(self._wait(blocking, blocking_timeout), owner=owner)
        if hold is None:
            return False
        self.local.token, self.local.hold = owner, hold
        return True

    def locked(self) -> bool:
        """Whether anybody has it."""
        return bool(self._owners())

    def owned(self) -> bool:
        """Whether this has it."""
        return self.local.token is not None and bool(self.local.token in self._owners())

    def _owners(self) -> Any:
        try:
            return [self._encode(holder["owner"]) for holder in self._lock().holders()]
        except Misuse as error:
            if "WRONGTYPE" in str(error):
                return [None]
            raise

    def release(self) -> None:
        """Gives it back. `LockNotOwnedError` if it was lost. If there is no connection, it may be called again."""
        hold: Hold = self._hold(self._lock(), "release")
        try:
            hold.release()
        except LockError as error:
            error = self._translated(error, "release")
            if isinstance(error, Lost):
                self._forget()
            raise error
        self._forget()

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds so many seconds to what is left, or leaves so many."""
        lock = self._lock()
        hold: Hold = self._hold(lock, "extend")
        self._with_timeout("extend")
        try:
            left = 0.0
            if not replace_ttl:
                ttls = [holder["ttl"] for holder in lock.holders() if self._encode(holder["owner"]) == self.local.token]
                if not ttls:
                    raise self._not_owned("extend")
                left = ttls[0] / 1000
            hold.extend(left + additional_time)
        except LockError as error:
            raise self._translated(error, "extend")
        return True

    def reacquire(self) -> Literal[True]:
        """The whole `timeout` again."""
        hold: Hold = self._hold(self._lock(), "reacquire")
        try:
            hold.extend(self._with_timeout("reacquire"))
        except LockError as error:
            raise self._translated(error, "reacquire")
        return True

    def __enter__(self) -> "Lock":
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            self.release()
        except LockError as failure:
            self._leave(failure, error)


class AsyncLock(_Shape):
    """`redis.asyncio.lock.Lock` by this server's locks."""

    def _lock(self) -> aio.Lock:
        return locks_of_async(self.redis).lock(self.key, **self._how())

    async def acquire(
        self,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Union[str, bytes, None] = None,
    ) -> bool:
        """Whether it was got. `token` is the name of the owner, new for each acquire if none is given."""
        owner = self._owner(token)
        hold = await self._lock().acquire(self._wait(blocking, blocking_timeout), owner)
        if hold is None:
            return False
        self.local.token, self.local.hold = owner, hold
        return True

    async def locked(self) -> bool:
        """Whether anybody has it."""
        return bool(await self._owners())

    async def owned(self) -> bool:
        """Whether this has it."""
        return self.local.token is not None and bool(self.local.token in await self._owners())

    async def _owners(self) -> Any:
        try:
            return [self._encode(holder["owner"]) for holder in await self._lock().holders()]
        except Misuse as error:
            if "WRONGTYPE" in str(error):
                return [None]
            raise

    async def release(self) -> None:
        """Gives it back. `LockNotOwnedError` if it was lost. If it failed or was cancelled, it may be called again."""
        hold: aio.Hold = self._hold(self._lock(), "release")
        # Of a cancelled release nothing is forgotten.
        try:
            await hold.release()
        except LockError as error:
            error = self._translated(error, "release")
            if isinstance(error, Lost):
                self._forget()
            raise error
        self._forget()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds so many seconds to what is left, or leaves so many."""
        lock = self._lock()
        hold: aio.Hold = self._hold(lock, "extend")
        self._with_timeout("extend")
        try:
            left = 0.0
            if not replace_ttl:
                ttls = [holder["ttl"] for holder in await lock.holders() if self._encode(holder["owner"]) == self.local.token]
                if not ttls:
                    raise self._not_owned("extend")
                left = ttls[0] / 1000
            await hold.extend(left + additional_time)
        except LockError as error:
            raise self._translated(error, "extend")
        return True

    async def reacquire(self) -> Literal[True]:
        """The whole `timeout` again."""
        hold: aio.Hold = self._hold(self._lock(), "reacquire")
        try:
            await hold.extend(self._with_timeout("reacquire"))
        except LockError as error:
            raise self._translated(error, "reacquire")
        return True

    async def __aenter__(self) -> "AsyncLock":
        if not await self.acquire():
            raise self._not_acquired()
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            await aio._finish(self.release())
        except LockError as failure:
            self._leave(failure, error)


class Redis(redis.Redis):
    """redis-py's client, with locks of ours: for `OPTIONS.REDIS_CLIENT_CLASS` of django-redis, too."""

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
        """As redis-py's."""
        kind: Any = Lock if lock_class is None else lock_class
        # Older ones do not know it.
        more: Any = {} if raise_on_release_error else {"raise_on_release_error": False}
        return super().lock(name, timeout, sleep, blocking, blocking_timeout, kind, thread_local, **more)

    def close(self) -> None:
        """Ends the session of its locks, too, if the pool is its own."""
        with _guard:
            locks = _sessions.pop(self.connection_pool, None) if self.auto_close_connection_pool else None
        if locks is not None:
            locks.close()
        super().close()

    def __del__(self) -> None:
        # Any thread may collect it, the session's own, too. The session ends with the pool.
        try:
            super().close()
        except Exception:
            pass


class AsyncRedis(redis.asyncio.Redis):
    """The same for asyncio."""

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
        """As redis-py's."""
        kind: Any = AsyncLock if lock_class is None else lock_class
        # Older ones do not know it.
        more: Any = {} if raise_on_release_error else {"raise_on_release_error": False}
        return super().lock(name, timeout, sleep, blocking, blocking_timeout, kind, thread_local, **more)

    async def aclose(self, close_connection_pool: Optional[bool] = None) -> None:
        """Ends the session of its locks, too, if the pool is its own."""
        if close_connection_pool or (close_connection_pool is None and self.auto_close_connection_pool):
            entry = _async_sessions.pop(self.connection_pool, None)
            if entry is not None:
                await entry[1].close()
        await super().aclose(close_connection_pool)
