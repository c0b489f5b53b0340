# SPDX-License-Identifier: MIT
"""Locks of the redis-lock server module.

    locks = Locks(redis.Redis())
    with locks.lock("order:42") as hold:
        ...

All waits and holds of a process share one session on the server, which a thread keeps alive. `redis_lock_client.aio` is for
asyncio.
"""

from __future__ import annotations

import atexit
import functools
import threading
from typing import Any, Callable, Dict, List, Optional, TypeVar, cast

from ._acquire import ASKED, Acquire
from ._base import BaseHold, BaseLock, BaseLocks
from ._core import cores
from ._options import Event
from ._threads import Threads, run
from .errors import Busy, Cancelled, Deadlock, LockError, Lost, Misuse, TimedOut, Unavailable

__all__ = [
    "Busy",
    "Cancellation",
    "Cancelled",
    "Deadlock",
    "Event",
    "Hold",
    "Lock",
    "LockError",
    "Locks",
    "Lost",
    "Misuse",
    "TimedOut",
    "Unavailable",
]

F = TypeVar("F", bound=Callable[..., Any])


class Cancellation:
    """Lets another thread end an acquire. It is final: a later acquire with it ends at once."""

    def __init__(self) -> None:
        # Re-entrant, as a signal handler may cancel.
        self._mutex = threading.RLock()
        self._asked: List[Acquire] = []
        self.cancelled = False

    def cancel(self) -> None:
        """Every acquire with this object that has not returned raises `Cancelled`."""
        with self._mutex:
            self.cancelled, asked, self._asked = True, self._asked, []
        for acquire in asked:
            acquire.session.interrupt(acquire, Cancelled("the acquire was cancelled"))

    def _add(self, acquire: Acquire) -> None:
        with self._mutex:
            if self.cancelled:
                raise Cancelled("the acquire was cancelled")
            self._asked = [each for each in self._asked if each.place is ASKED] + [acquire]


class Hold(BaseHold):
    """A lock that is held. A hold that is dropped without a release is released later, with a `ResourceWarning`."""

    def release(self) -> None:
        """Releases exactly this hold. May be called again.

        Raises `Lost` if the hold ended before, and `Unavailable` if no server answered within the patience. Then the release
        continues in the background.
        """
        run(self._session.release(self._acquire))

    def extend(self, lease: Optional[float] = None) -> None:
        """Sets the lease, in seconds from now. Without an argument, repeats the lease of the lock or checks a renewed hold.

        Raises `Lost`, `Unavailable`, or `Misuse` if the server renews the hold and a lease is given.
        """
        run(self._session.renew(self._acquire, self._lease(lease)))

    def wait_lost(self, timeout: float) -> bool:
        """Waits until the hold is lost or released, for at most `timeout` seconds. Returns whether it is lost."""
        return run(self._core.wait_lost(self._acquire, timeout))

    def guard(self, *command: Any) -> Any:
        """Runs a Redis command in one step with the check that this owner holds the lock. Raises `Lost` if it does not."""
        return run(self._core.execute(*self._guarded(command)))


class Lock(BaseLock[Hold]):
    def acquire(self, wait: Optional[float] = None, *, cancellation: Optional[Cancellation] = None) -> Hold:
        """Waits for the lock: for at most `wait` seconds, or as the lock was made.

        Raises `TimedOut` (after a wait of 0 `Busy`), `Deadlock`, `Cancelled`, `Misuse` or `Unavailable`.
        """
        on_ask = None if cancellation is None else cancellation._add
        return Hold(self, run(self._core.acquire(self._request, self._wait(wait), on_ask)))

    def try_acquire(self, wait: float = 0, *, cancellation: Optional[Cancellation] = None) -> Optional[Hold]:
        """As `acquire`, but returns None if the lock is not granted within `wait` seconds."""
        try:
            return self.acquire(wait, cancellation=cancellation)
        except (Busy, TimedOut):
            return None

    def attach(self, ticket: str) -> Hold:
        """Takes over a hold that another process has handed over. Raises `Lost` if it has ended."""
        return Hold(self, run(self._core.attach(self._request, ticket)))

    def query(self) -> Optional[Dict[str, Any]]:
        """The reply of `LOCK.INFO`: holders, waiters and more. None if the lock is free."""
        return run(self._core.query(self._request.keys[0]))

    def force_release(self) -> bool:
        """Takes the lock from its holders, by `LOCK.BREAK`. Returns whether there was one."""
        return bool(run(self._core.execute("LOCK.BREAK", self._request.keys[0])))

    def __enter__(self) -> Hold:
        return self._enter(self.acquire())

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        hold = self._leave()
        try:
            hold.release()
        except LockError:
            # The error of the body says more.
            if error is None:
                raise

    def __call__(self, function: F) -> F:
        """Decorator: each call of the function holds the lock."""

        @functools.wraps(function)
        def locked(*args: Any, **named: Any) -> Any:
            with self:
                return function(*args, **named)

        return cast(F, locked)


class Locks(BaseLocks[Lock]):
    __doc__ = BaseLocks.__doc__
    _lock_class, _io_class = Lock, Threads

    def close(self) -> None:
        """Ends all waits and renewed holds, the session and its thread. A hold with a lease remains until its lease ends."""
        run(self._core.close())

    def __enter__(self) -> "Locks":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    for core in list(cores):
        if core.io_class is Threads:
            run(core.close())
