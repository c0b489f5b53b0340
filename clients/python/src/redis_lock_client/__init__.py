# SPDX-License-Identifier: MIT
"""Locks of the redis-lock server module.

    locks = Locks(redis.Redis())
    with locks.lock("order:42") as hold:
        ...

All waits and holds of a process share two connections, which a thread looks after. `redis_lock_client.aio` is for asyncio.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Callable, Coroutine, List, Optional, TypeVar

import redis
import redis.asyncio

from . import aio
from .errors import Busy, Deadlock, LockError, Lost, Misuse, TimedOut, Unavailable

__all__ = ["Busy", "Deadlock", "Hold", "Lock", "LockError", "Locks", "Lost", "Misuse", "TimedOut", "Unavailable", "aio"]

T = TypeVar("T")

# What of a connection's settings asyncio has, too. Retries are this package's own affair.
SETTINGS = ("host", "port", "path", "db", "username", "password", "credential_provider", "protocol", "socket_connect_timeout")


class Locks:
    """All locks of this process on the server of `client`. Threads may share it; a forked child has a session of its own."""

    def __init__(self, client: "redis.Redis", patience: float = 5.0) -> None:
        pool = client.connection_pool
        kinds = {
            redis.Connection: redis.asyncio.Connection,
            redis.SSLConnection: redis.asyncio.SSLConnection,
            redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
        }
        if pool.connection_class not in kinds:
            raise Misuse(f"{pool.connection_class.__name__}: connections of this kind are not supported")
        settings = pool.connection_kwargs
        self._settings = {name: settings[name] for name in settings if name in SETTINGS or name.startswith("ssl_")}
        self._kind, self._patience = kinds[pool.connection_class], patience
        self._guard = threading.Lock()
        self._process = 0
        self._start()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        pool: Any = redis.asyncio.ConnectionPool(connection_class=self._kind, **self._settings)
        self.asynchronous = aio.Locks(redis.asyncio.Redis(connection_pool=pool), self._patience)
        self._thread = threading.Thread(target=self._loop.run_forever, name="redis-lock", daemon=True)
        self._thread.start()
        self._process = os.getpid()

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._process != os.getpid():
            self._guard = threading.Lock()
            self._start()
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C: the wait is taken back.
            future.cancel()
            raise

    def lock(self, key: str, **how: Any) -> "Lock":
        """See the README for what may be said."""
        return Lock(self, key, how)

    def close(self) -> None:
        """Ends all waits, what is held with `keep`, and the thread."""
        with self._guard:
            if self._process == os.getpid() and not self._loop.is_closed():
                self._run(self.asynchronous.close)
                self._run(self._loop.shutdown_default_executor)
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()


class Hold:
    """A lock that is held."""

    def __init__(self, locks: Locks, hold: aio.Hold) -> None:
        self._locks, self._hold, self._process = locks, hold, os.getpid()
        self.key, self.owner, self.token = hold.key, hold.owner, hold.token

    @property
    def lost(self) -> bool:
        """Whether it ended before it was given back."""
        return self._hold.lost.is_set() or self._process != os.getpid()

    def wait_lost(self, seconds: float) -> bool:
        """Waits until it is lost, and for so long at most."""

        async def wait() -> bool:
            try:
                await asyncio.wait_for(self._hold.lost.wait(), seconds)
            except asyncio.TimeoutError:
                pass
            return self._hold.lost.is_set()

        return self.lost or self._locks._run(wait)

    def valid_for(self) -> float:
        """Seconds for which nobody else can have the lock."""
        return 0.0 if self.lost else self._hold.valid_for()

    def extend(self, lease: Optional[float] = None) -> None:
        """Sets the lease anew."""
        self._here(lambda: self._hold.extend(lease))

    def guard(self, *command: Any) -> Any:
        """Carries out a command of Redis if the lock is still held, in the same step."""
        return self._here(lambda: self._hold.guard(*command))

    def release(self) -> None:
        """Gives the lock back. If that fails, it may be called again, and counts once."""
        self._here(self._hold.release)

    def _here(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._process != os.getpid():
            raise Lost(f"{self.key}: the process that holds it is another one")
        return self._locks._run(work)


class Lock:
    """A name and how it is to be held. Threads may share it: each hold has an owner of its own."""

    def __init__(self, locks: Locks, key: str, how: Any) -> None:
        self.key = key
        self._locks, self._how = locks, how
        self._mine = threading.local()
        locks.asynchronous.lock(key, **how)

    def try_acquire(self) -> Optional[Hold]:
        """The hold, or None if somebody else has the lock."""
        return self.acquire(0)

    def acquire(self, wait: Optional[float] = None) -> Optional[Hold]:
        """The hold, or None when `wait` seconds are over; without it, as the lock was made."""

        got: List[aio.Hold] = []

        async def acquire() -> None:
            hold = await self._locks.asynchronous.lock(self.key, **self._how).acquire(wait)
            if hold is not None:
                got.append(hold)

        async def undo() -> None:
            for hold in got:
                await hold.release()

        try:
            self._locks._run(acquire)
        except LockError:
            raise
        except BaseException:
            # Ctrl-C, maybe at the very moment of the grant.
            self._locks._run(undo)
            raise
        return Hold(self._locks, got[0]) if got else None

    def _stack(self) -> List[Hold]:
        stack: List[Hold] = self._mine.__dict__.setdefault("holds", [])
        return stack

    def __enter__(self) -> Hold:
        hold = self.acquire()
        if hold is None:
            raise (Busy if self._how.get("wait") == 0 else TimedOut)(f"{self.key}: somebody else has it")
        self._stack().append(hold)
        return hold

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self._stack().pop().release()
        except LockError:
            # What the body raised says more.
            if error is None:
                raise
