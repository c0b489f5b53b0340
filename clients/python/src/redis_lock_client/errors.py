# SPDX-License-Identifier: MIT
"""The errors of locks, in seven kinds. In asyncio, a cancelled acquire raises `asyncio.CancelledError`, the seventh."""

from typing import Optional

from redis.exceptions import AuthenticationError, LockError, LockNotOwnedError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import BusyLoadingError as ServerLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError

__all__ = ["Busy", "Cancelled", "Deadlock", "LockError", "Lost", "Misuse", "TimedOut", "Unavailable"]


class Busy(LockError):
    """Another owner holds the lock, and the call does not wait."""

    kind = "busy"


class TimedOut(LockError, TimeoutError):
    """The wait reached its limit without a grant."""

    kind = "timed out"


class Cancelled(LockError):
    """Another thread cancelled the acquire with a `Cancellation`, or closed its `Locks`."""

    kind = "cancelled"


class Lost(LockNotOwnedError):
    """The hold ended before its release: another owner may have worked at the same time."""

    kind = "lost"


class Deadlock(LockError):
    """Waiting could never end. The text names the cycle."""

    kind = "deadlock"


class Misuse(LockError):
    """The call is wrong: an option, a key of another type, a missing permission, a server without the module."""

    kind = "misuse"


class Overwritten(Misuse):
    """The key holds other data, so it is no lock."""


class Unavailable(LockError, RedisConnectionError):
    """No server answered in time, or the server grants nothing now. Also a `redis.ConnectionError`."""

    kind = "unavailable"


class Transient(Unavailable):
    """A repetition of the call may succeed soon: no connection, a failover, a slow script."""


class NoReply(Transient):
    """The server may or may not have executed the call."""


class NoSession(Transient):
    """The server does not know the session: it has ended."""


class Late(Transient):
    """A later call of the session came first."""


class Moved(Transient):
    """Another node of the cluster serves the key."""


KINDS = {
    "NOTOWNER": Lost,
    "DEADLOCK": Deadlock,
    "CANCELLED": Cancelled,
    "NOSESSION": NoSession,
    "LATE": Late,
    "MOVED": Moved,
    "ASK": Moved,
    "OOM": Unavailable,
    "LIMIT": Unavailable,
    "WRONGTYPE": Overwritten,
    **dict.fromkeys(("ERR", "NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT"), Misuse),
}
TRANSIENT = "READONLY LOADING NOREPLICAS MISCONF BUSY TRYAGAIN MASTERDOWN CLUSTERDOWN QUARANTINE UNBLOCKED".split()
KINDS.update(dict.fromkeys(TRANSIENT, Transient))


# The errors that redis-py raises.
FAILURES = (RedisError, RedisClusterException, OSError)


def code_of(error: ResponseError) -> str:
    """The error code of a reply. redis-py removes those that it knows from the text, and has a class for each."""
    code: Optional[str] = getattr(error, "status_code", None)
    if code is None:
        code = next((code for code, kind in _CLASSES.items() if kind is type(error)), None)
    return code or str(error).partition(" ")[0]


def of(error: BaseException) -> LockError:
    """The error of a lock for an error of redis-py or of a socket."""
    if isinstance(error, LockError):
        return error
    if isinstance(error, AuthenticationError):
        return Misuse(str(error))
    if isinstance(error, ServerLoadingError):
        return Transient(f"LOADING {error}")
    if not isinstance(error, ResponseError):
        return NoReply(f"no reply from the server: {error}")
    code = code_of(error)
    text = str(error) if str(error).startswith(code) else f"{code} {error}"
    if code == "ERR" and "unknown command" in text:
        text = "the server has no LOCK commands; load the redis-lock module"
    return KINDS.get(code, Unavailable)(text)


def _classes() -> "dict[str, type[RedisError]]":
    from redis._parsers.base import BaseParser

    return {code: kind for code, kind in BaseParser.EXCEPTION_CLASSES.items() if isinstance(kind, type)}


_CLASSES = _classes()
