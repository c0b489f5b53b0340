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
from typing import Any, Awaitable, Coroutine, Dict, List, Literal, Optional, Tuple, TypeVar, Union

import redis
import redis.asyncio

from . import Lock as OurLock
from . import LockError, Locks, aio
from .errors import Busy, Lost, Misuse, TimedOut

__all__ = ["AsyncLock", "AsyncRedis", "Lock", "Redis", "locks_of", "locks_of_async"]

log = logging.getLogger("redis_lock_client")

T = TypeVar("T")

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


async def _given(value: Any) -> Any:
    return await value if isinstance(value, Awaitable) else value


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that waits for nothing but threads."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("it waits")


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
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return 0 if not blocking else None if limit is None else max(0.0, limit)

    def _hold(self, lock: Any, verb: str) -> Any:
        """That of this thread's last acquire; if somebody has set another token, that of its owner."""
        token = self.local.token
        if token is None:
            raise LockError(f"Cannot {verb} a lock that's not owned or is already unlocked.", lock_name=self._name())
        hold = self.local.hold
        return hold if hold is not None and self._encode(hold.owner) == token else lock.hold_of(token)

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

    # What both do alike. What the lock of a thread gives is there at once, what that of a task gives is awaited.

    def _lock(self) -> Any:
        raise NotImplementedError

    async def _acquire(
        self, blocking: Optional[bool], blocking_timeout: Optional[float], token: Union[str, bytes, None]
    ) -> bool:
        owner = None if token is None else bytes(self._encode(token))
        hold = await _given(self._lock().acquire(self._wait(blocking, blocking_timeout), owner=owner))
        if hold is None:
            return False
        self.local.token, self.local.hold = self._encode(hold.owner), hold
        return True

    async def _owners(self) -> List[Optional[bytes]]:
        try:
            return [self._encode(holder["owner"]) for holder in await _given(self._lock().holders())]
        except Misuse as error:
            if "WRONGTYPE" in str(error):
                return [None]
            raise

    async def _owned(self) -> bool:
        return self.local.token is not None and self.local.token in await self._owners()

    async def _release(self) -> None:
        hold = self._hold(self._lock(), "release")
        # Of a cancelled release nothing is forgotten.
        try:
            await _given(hold.release())
        except LockError as error:
            error = self._translated(error, "release")
            if isinstance(error, Lost):
                self._forget()
            raise error
        self._forget()

    async def _extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        lock = self._lock()
        hold = self._hold(lock, "extend")
        self._with_timeout("extend")
        try:
            left = 0.0
            if not replace_ttl:
                holders = await _given(lock.holders())
                ttls = [holder["ttl"] for holder in holders if self._encode(holder["owner"]) == self.local.token]
                if not ttls:
                    raise self._not_owned("extend")
                left = ttls[0] / 1000
            await _given(hold.extend(left + additional_time))
        except LockError as error:
            raise self._translated(error, "extend")
        return True

    async def _reacquire(self) -> Literal[True]:
        hold = self._hold(self._lock(), "reacquire")
        try:
            await _given(hold.extend(self._with_timeout("reacquire")))
        except LockError as error:
            raise self._translated(error, "reacquire")
        return True


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
        return _at_once(self._acquire(blocking, blocking_timeout, token))

    def locked(self) -> bool:
        """Whether anybody has it."""
        return bool(_at_once(self._owners()))

    def owned(self) -> bool:
        """Whether this has it."""
        return _at_once(self._owned())

    def release(self) -> None:
        """Gives it back. `LockNotOwnedError` if it was lost. If there is no connection, it may be called again."""
        _at_once(self._release())

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds so many seconds to what is left, or leaves so many."""
        return _at_once(self._extend(additional_time, replace_ttl))

    def reacquire(self) -> Literal[True]:
        """The whole `timeout` again."""
        return _at_once(self._reacquire())

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
        return await self._acquire(blocking, blocking_timeout, token)

    async def locked(self) -> bool:
        """Whether anybody has it."""
        return bool(await self._owners())

    async def owned(self) -> bool:
        """Whether this has it."""
        return await self._owned()

    async def release(self) -> None:
        """Gives it back. `LockNotOwnedError` if it was lost. If it failed or was cancelled, it may be called again."""
        await self._release()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds so many seconds to what is left, or leaves so many."""
        return await self._extend(additional_time, replace_ttl)

    async def reacquire(self) -> Literal[True]:
        """The whole `timeout` again."""
        return await self._reacquire()

    async def __aenter__(self) -> "AsyncLock":
        if not await self.acquire():
            raise self._not_acquired()
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            await aio._finish(self.release())
        except LockError as failure:
            self._leave(failure, error)


class _Client:
    """What both clients do alike: it stands before redis-py's."""

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
        """As redis-py's."""
        kind = self._lock_kind if lock_class is None else lock_class
        # Older ones do not know it.
        more: Any = {} if raise_on_release_error else {"raise_on_release_error": False}
        client: Any = super()
        return client.lock(name, timeout, sleep, blocking, blocking_timeout, kind, thread_local, **more)


class Redis(_Client, redis.Redis):
    """redis-py's client, with locks of ours: for `OPTIONS.REDIS_CLIENT_CLASS` of django-redis, too."""

    _lock_kind = Lock

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


# Of two bases mypy looks again at redis-py's own, which do not agree.
class AsyncRedis(_Client, redis.asyncio.Redis):  # type: ignore[misc]
    """The same for asyncio."""

    _lock_kind = AsyncLock

    async def aclose(self, close_connection_pool: Optional[bool] = None) -> None:
        """Ends the session of its locks, too, if the pool is its own."""
        if close_connection_pool or (close_connection_pool is None and self.auto_close_connection_pool):
            entry = _async_sessions.pop(self.connection_pool, None)
            if entry is not None:
                await entry[1].close()
        await super().aclose(close_connection_pool)
