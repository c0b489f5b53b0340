# SPDX-License-Identifier: MIT
"""Locks with the interface of `threading.Lock` and `threading.RLock`, for the threads of all processes.

Options besides the key are those of `LockOptions`. A loss is reported as `Lost`, at the latest by `release`.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple, TypedDict

from . import Hold, Locks
from . import Lock as OurLock
from ._request import Name
from .errors import LockError, Lost, Misuse

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Lock", "LockOptions", "RLock"]


class LockOptions(TypedDict, total=False):
    """The options of `Locks.lock` that make sense for a lock with one hold and no token. All are optional."""

    wait: Optional[float]
    lease: Optional[float]
    max_hold: Optional[float]
    owner: Name
    label: Optional[str]


class Lock:
    """A lock with the interface of `threading.Lock`: any thread may release it."""

    def __init__(self, locks: Locks, key: str, **options: Unpack[LockOptions]) -> None:
        if {"shared", "limit"} & options.keys():
            raise Misuse("a lock of threads has one hold at a time")
        self._locks, self._key, self._options = locks, key, options
        self._hold: Optional[Hold] = None
        # The hold of each thread's scope. After a loss, another thread may hold this object.
        self._entered: Dict[int, Optional[Hold]] = {}
        # Reports wrong options at once.
        self._lock()

    def _lock(self) -> OurLock:
        # Each acquire has an owner of its own, because any thread may release the lock.
        options: LockOptions = {"owner": uuid.uuid4().hex, **self._options}
        return self._locks.lock(self._key, **options)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Returns whether the lock was granted. `timeout` is in seconds; -1 waits without limit."""
        if timeout != -1 and (not blocking or timeout < 0):
            raise ValueError("a timeout must not be negative, and needs a blocking call")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout is too large")
        lock = self._lock()
        if blocking and timeout == -1:
            hold: Optional[Hold] = lock.acquire()
        else:
            hold = lock.try_acquire(timeout if blocking else 0)
        if hold is None:
            return False
        self._hold = hold
        return True

    def release(self) -> None:
        """Releases the lock. Raises `Lost` after a loss, and `RuntimeError` if this object does not hold the lock."""
        self._release(self._hold)

    def _release(self, hold: Optional[Hold]) -> None:
        if hold is None:
            raise RuntimeError("release unlocked lock")
        if hold is self._hold:
            self._hold = None
        hold.release()

    def locked(self) -> bool:
        """Returns whether any thread of any process holds the lock."""
        return self._lock().query() is not None

    @property
    def lost(self) -> bool:
        """Whether the hold ended before its release."""
        hold = self._hold
        return hold is not None and hold.lost

    def _leave(self) -> None:
        hold = self._entered.pop(threading.get_ident(), None)
        is_released = hold is not None and hold._acquire.reason == "released"
        self._release(None if is_released else hold)

    def __enter__(self) -> bool:
        is_granted = self.acquire()
        self._entered[threading.get_ident()] = self._hold
        return is_granted

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            self._leave()
        except LockError:
            # The error of the body says more.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<{'unlocked' if self._hold is None else 'locked'} {_name(self)} object {self._key!r} at {id(self):#x}>"


class RLock(Lock):
    """A lock with the interface of `threading.RLock`: its thread may acquire it again, by this object or another."""

    def __init__(self, locks: Locks, key: str, **options: Unpack[LockOptions]) -> None:
        super().__init__(locks, key, **options)
        self._thread: Optional[int] = None
        self._count = 0

    def _lock(self) -> OurLock:
        return self._locks.lock(self._key, reentrant=True, **self._options)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Returns whether the lock was granted. Raises `Lost` if this thread held and lost it."""
        if self._is_owned():
            if self.lost:
                raise Lost(f"{self._key}: the hold ended before its release")
            self._count += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._thread, self._count = threading.get_ident(), 1
        return True

    def release(self) -> None:
        """Releases one acquire. Raises `RuntimeError` if this thread does not hold the lock, and `Lost` after a loss."""
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if self._count == 0:
            self._release_save()

    def _leave(self) -> None:
        self.release()

    # `threading.Condition` calls these.

    def _is_owned(self) -> bool:
        return self._thread == threading.get_ident()

    def _recursion_count(self) -> int:
        return self._count if self._is_owned() else 0

    def _release_save(self) -> Tuple[int, Optional[int]]:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        # Before the release, because the next thread writes here as well.
        state, self._count, self._thread = (self._count, self._thread), 0, None
        super().release()
        return state

    def _acquire_restore(self, state: Tuple[int, Optional[int]]) -> None:
        super().acquire()
        self._count, self._thread = state

    def __repr__(self) -> str:
        state = "locked" if self._count else "unlocked"
        return f"<{state} {_name(self)} object owner={self._thread} count={self._count} at {id(self):#x}>"


def _name(of: object) -> str:
    return f"{type(of).__module__}.{type(of).__qualname__}"
