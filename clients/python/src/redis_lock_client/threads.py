# SPDX-License-Identifier: MIT
"""In the place of `threading.Lock` and `threading.RLock`, between the threads of all machines.

Options beside the name are those of `Locks.lock`. Who loses the lock hears of it by `Lost` at the latest when giving it back.
"""

from __future__ import annotations

import threading
from typing import Any, Optional, Tuple

from . import Hold, Locks
from . import Lock as OurLock
from .errors import LockError, Lost, Misuse

__all__ = ["Lock", "RLock"]


class _Scope:
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            self.release()
        except LockError:
            # What the body raised says more.
            if error is None:
                raise


class Lock(_Scope):
    """As `threading.Lock`: any thread may give it back."""

    def __init__(self, locks: Locks, key: str, **how: Any) -> None:
        if how.get("shared") or how.get("limit") is not None:
            raise Misuse("a lock of threads has one hold at a time")
        self._lock: OurLock = locks.lock(key, **how)
        self._hold: Optional[Hold] = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Whether it was got; `timeout` is in seconds, and -1 waits without limit."""
        if timeout != -1 and (not blocking or timeout < 0):
            raise ValueError("a time-out must not be negative, and only who blocks has one")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("the time-out is too long")
        hold = self._lock.acquire(0 if not blocking else None if timeout == -1 else timeout)
        if hold is None:
            return False
        self._hold = hold
        return True

    def release(self) -> None:
        """Gives it back. `Lost` if it was lost before, `RuntimeError` if nobody here has it."""
        hold = self._hold
        if hold is None:
            raise RuntimeError("release unlocked lock")
        self._hold = None
        try:
            hold.release()
        except Lost:
            raise
        except BaseException:
            # It may be called again.
            self._hold = hold
            raise

    def locked(self) -> bool:
        """Whether anybody has it, here or elsewhere."""
        return bool(self._lock.holders())

    @property
    def lost(self) -> bool:
        """Whether it ended before it was given back."""
        return self._hold is not None and self._hold.lost

    def __repr__(self) -> str:
        state = "unlocked" if self._hold is None else "locked"
        return f"<{state} {type(self).__module__}.{type(self).__qualname__} object {self._lock.key!r} at {id(self):#x}>"


class RLock(_Scope):
    """As `threading.RLock`: the thread that has this object has it as often as it likes. Another object is another holder."""

    def __init__(self, locks: Locks, key: str, **how: Any) -> None:
        self._mutex = Lock(locks, key, **how)
        self._thread: Optional[int] = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Whether it was got. `Lost` if this thread has it, and lost it meanwhile."""
        if self._is_owned():
            if self._mutex.lost:
                raise Lost("the hold ended before it was given back")
            self._count += 1
            return True
        if not self._mutex.acquire(blocking, timeout):
            return False
        self._thread, self._count = threading.get_ident(), 1
        return True

    def release(self) -> None:
        """Gives it back once. `RuntimeError` if this thread does not have it."""
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if self._count == 0:
            self._release_save()

    def locked(self) -> bool:
        """Whether anybody has it, here or elsewhere."""
        return self._mutex.locked()

    # What `threading.Condition` needs.

    def _is_owned(self) -> bool:
        return self._thread == threading.get_ident()

    def _recursion_count(self) -> int:
        return self._count if self._is_owned() else 0

    def _release_save(self) -> Tuple[int, Optional[int]]:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        # Before it is given back: whoever gets it next writes here, too.
        state = self._count, self._thread
        self._count, self._thread = 0, None
        try:
            self._mutex.release()
        except Lost:
            raise
        except BaseException:
            self._count, self._thread = max(1, state[0]), state[1]
            raise
        return state

    def _acquire_restore(self, state: Tuple[int, Optional[int]]) -> None:
        self._mutex.acquire()
        self._count, self._thread = state

    def __repr__(self) -> str:
        state = "locked" if self._count else "unlocked"
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{state} {name} object owner={self._thread} count={self._count} at {id(self):#x}>"
