# SPDX-License-Identifier: MIT
"""What can go wrong with a lock. The seventh kind, cancelled, is `asyncio.CancelledError`, or Ctrl-C."""

from redis.exceptions import LockError, LockNotOwnedError, ResponseError

__all__ = ["Busy", "Deadlock", "LockError", "Lost", "Misuse", "TimedOut", "Unavailable", "of"]


class Busy(LockError):
    """Somebody else holds the lock, and the call was not to wait."""


class TimedOut(LockError):
    """The lock was not granted in the time to wait."""


class Lost(LockNotOwnedError):
    """The hold ended before its holder gave it back: others may have worked at the same time."""


class Deadlock(LockError):
    """Waiting could never end. The text has the cycle."""


class Misuse(LockError):
    """The server refuses the call: an option out of range, a key of another type, no permission."""


class Unavailable(LockError):
    """No connection, or a server that grants nothing now."""


def of(error: ResponseError) -> LockError:
    """The error for what the server said. redis-py takes the prefix off errors that it knows."""
    text = str(error)
    kinds = {"NOTOWNER": Lost, "DEADLOCK": Deadlock}
    prefix = text.split(" ", 1)[0]
    if prefix in kinds:
        return kinds[prefix](text)
    unavailable = ("UNBLOCKED", "QUARANTINE", "NOREPLICAS", "OOM", "MISCONF", "READONLY")
    if prefix in unavailable or type(error).__name__ in ("ReadOnlyError", "OutOfMemoryError") or "too many waiters" in text:
        return Unavailable(text)
    return Misuse(text)
