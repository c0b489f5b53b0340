# SPDX-License-Identifier: MIT
"""Locks for asyncio.

locks = aio.Locks(redis.asyncio.Redis())
async with locks.lock("order:42") as hold:
    ...
"""

from __future__ import annotations

import functools
from typing import Any, Awaitable, Callable, Dict, Optional, TypeVar, cast

from ._base import BaseHold, BaseLock, BaseLocks
from ._options import Event
from ._tasks import Tasks
from .errors import Busy, LockError, TimedOut

__all__ = ["Event", "Hold", "Lock", "Locks"]

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class Hold(BaseHold):
    """A lock that is held. A hold that is dropped without a release is released later, with a `ResourceWarning`."""

    async def release(self) -> None:
        """Releases exactly this hold. May be called again.

        Raises `Lost` if the hold ended before, and `Unavailable` if no server answered within the patience. Then, or if the task
        is cancelled, the release continues in the background.
        """
        await self._session.release(self._acquire)

    async def extend(self, lease: Optional[float] = None) -> None:
        """Sets the lease, in seconds from now. Without an argument, repeats the lease of the lock or checks a renewed hold.

        Raises `Lost`, `Unavailable`, or `Misuse` if the server renews the hold and a lease is given.
        """
        await self._session.renew(self._acquire, self._lease(lease))

    async def wait_lost(self, timeout: float) -> bool:
        """Waits until the hold is lost or released, for at most `timeout` seconds. Returns whether it is lost."""
        return await self._core.wait_lost(self._acquire, timeout)

    async def guard(self, *command: Any) -> Any:
        """Runs a Redis command in one step with the check that this owner holds the lock. Raises `Lost` if it does not."""
        return await self._core.execute(*self._guarded(command))


class Lock(BaseLock[Hold]):
    async def acquire(self, wait: Optional[float] = None) -> Hold:
        """Waits for the lock: for at most `wait` seconds, or as the lock was made.

        Raises `TimedOut` (after a wait of 0 `Busy`), `Deadlock`, `Misuse` or `Unavailable`. A task that is cancelled leaves
        neither a waiter nor a hold behind.
        """
        return Hold(self, await self._core.acquire(self._request, self._wait(wait)))

    async def try_acquire(self, wait: float = 0) -> Optional[Hold]:
        """As `acquire`, but returns None if the lock is not granted within `wait` seconds."""
        try:
            return await self.acquire(wait)
        except (Busy, TimedOut):
            return None

    async def attach(self, ticket: str) -> Hold:
        """Takes over a hold that another process has handed over. Raises `Lost` if it has ended."""
        return Hold(self, await self._core.attach(self._request, ticket))

    async def query(self) -> Optional[Dict[str, Any]]:
        """The reply of `LOCK.INFO`: holders, waiters and more. None if the lock is free."""
        return await self._core.query(self._request.keys[0])

    async def force_release(self) -> bool:
        """Takes the lock from its holders, by `LOCK.BREAK`. Returns whether there was one."""
        return bool(await self._core.execute("LOCK.BREAK", self._request.keys[0]))

    async def __aenter__(self) -> Hold:
        return self._enter(await self.acquire())

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        hold = self._leave()
        try:
            await hold.release()
        except LockError:
            # The error of the body says more.
            if error is None:
                raise

    def __call__(self, function: F) -> F:
        """Decorator: each call of the coroutine function holds the lock."""

        @functools.wraps(function)
        async def locked(*args: Any, **named: Any) -> Any:
            async with self:
                return await function(*args, **named)

        return cast(F, locked)


class Locks(BaseLocks[Lock]):
    __doc__ = BaseLocks.__doc__
    _lock_class, _io_class = Lock, Tasks

    async def close(self) -> None:
        """Ends all waits and renewed holds, the session and its task. A hold with a lease remains until its lease ends."""
        await self._core.close()

    async def __aenter__(self) -> "Locks":
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()
