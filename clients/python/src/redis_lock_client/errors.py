# SPDX-License-Identifier: MIT
"""What can go wrong with a lock, in seven kinds. With asyncio, cancelled is `asyncio.CancelledError`."""

from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError, ResponseError

__all__ = ["Busy", "Cancelled", "Deadlock", "LockError", "Lost", "Misuse", "TimedOut", "Unavailable", "of"]


class Busy(LockError):
    """Somebody else holds the lock, and the call was not to wait."""

    kind = "busy"


class TimedOut(LockError):
    """The lock was not granted in the time to wait."""

    kind = "timed out"


class Cancelled(LockError):
    """The wait was cancelled by another thread: see `Cancellation`."""

    kind = "cancelled"


class Lost(LockNotOwnedError):
    """The hold ended before its holder gave it back: others may have worked at the same time."""

    kind = "lost"


class Deadlock(LockError):
    """Waiting could never end. The text has the cycle."""

    kind = "deadlock"


class Misuse(LockError):
    """The server refuses the call: an option out of range, a key of another type, no permission."""

    kind = "misuse"


class Unavailable(LockError, RedisConnectionError):
    """No connection, or a server that grants nothing now. Who expects redis-py's `ConnectionError` gets it."""

    kind = "unavailable"


class Passing(Unavailable):
    """In a moment the same call may go well: a server after a failover has no replicas yet, or carries out a long script."""


class Disconnected(Passing):
    """No reply came, or one of a server that another has replaced: on the next connection the call may be sent again."""


# What redis-py does not take off. Another word in capitals may be that of an option.
PREFIXES = {"NOTOWNER", "DEADLOCK", "UNBLOCKED", "QUARANTINE", "WRONGTYPE", "NOREPLICAS", "MISCONF", "BUSY", "NOPERM", "DENIED"}


MOVED = ("instance state changed", "send the command", "the same request was sent again")


def of(error: ResponseError) -> LockError:
    """The error for what the server said, with the prefix that redis-py takes off those that it knows."""
    text = str(error)
    prefix = text.split(" ", 1)[0]
    if type(error) is not ResponseError or prefix not in PREFIXES:
        known = (code for code, kind in BaseParser.EXCEPTION_CLASSES.items() if kind is type(error))
        prefix = next(known, "ERR")
        text = f"{prefix} {text}"
    # Another server has the lock now, in Redis' words and in the module's. Whom somebody unblocks is told otherwise.
    # And a call that comes late, on a connection that was given up, takes the place of that which was sent after it.
    moved = prefix == "UNBLOCKED" and any(words in text for words in MOVED)
    if moved or prefix in ("READONLY", "MASTERDOWN"):
        return Disconnected(text)
    if prefix in ("ERR", "WRONGTYPE", "NOPERM"):
        return (Unavailable if "too many" in text else Misuse)(text)
    return {"NOTOWNER": Lost, "DEADLOCK": Deadlock, "NOREPLICAS": Passing, "BUSY": Passing}.get(prefix, Unavailable)(text)
