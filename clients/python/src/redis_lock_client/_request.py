# SPDX-License-Identifier: MIT
"""Requests of an application, as words of the protocol."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence, Tuple, Union

from .errors import Misuse

Name = Union[str, bytes]
Words = Tuple[Any, ...]

# The greatest time that the server accepts, in seconds.
MAX_SECONDS = 2**53 / 1000


def encode(name: Name, what: str) -> bytes:
    """The bytes of a key or an owner. Raises `Misuse` unless each name has exactly one encoding."""
    if isinstance(name, str):
        try:
            name = name.encode()
        except UnicodeEncodeError as error:
            raise Misuse(f"{what} is not valid Unicode; pass bytes") from error
    if not isinstance(name, bytes) or not name:
        raise Misuse(f"{what} must be a string or bytes, and not empty")
    return name


def seconds(value: Optional[float], what: str, least: float = 0.001) -> Optional[float]:
    """A checked time. Raises `Misuse` if it is no number, not finite, or below the least."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MAX_SECONDS:
        raise Misuse(f"{what} must be a number of seconds, and at least {least:g}")
    return float(value)


def milliseconds(value: float) -> int:
    # Rounded first: 10.493 + 10.5 is a little more than 20.993.
    return max(1, math.ceil(round(value * 1000, 3)))


class Request:
    """One lock, or several locks at once, with options. Raises `Misuse` if they do not fit together."""

    def __init__(
        self,
        keys: Sequence[Name],
        *,
        wait: Optional[float] = None,
        lease: Optional[float] = None,
        max_hold: Optional[float] = None,
        shared: bool = False,
        limit: Optional[int] = None,
        fence: bool = False,
        reentrant: bool = False,
        owner: Optional[Name] = None,
        label: Optional[str] = None,
    ) -> None:
        if not keys:
            raise Misuse("a lock needs a key")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise Misuse("limit must be a positive integer")
        if lease is not None and max_hold is not None:
            raise Misuse("max_hold limits renewals, and a hold with a lease has none; use one of them")
        if limit is not None and len(keys) > 1:
            raise Misuse("limit is not available for several locks")
        self.keys = [encode(key, "key") for key in keys]
        self.name = ", ".join(key.decode(errors="backslashreplace") for key in self.keys)
        self.wait = seconds(wait, "wait", 0)
        self.lease = seconds(lease, "lease")
        self.max_hold = seconds(max_hold, "max_hold")
        self.fence, self.reentrant, self.label = fence, reentrant, label
        self.owner = None if owner is None else encode(owner, "owner")
        self.several = len(keys) > 1
        limits: Words = () if limit is None else ("LIMIT", limit)
        self.flags: Words = (*(("SHARED",) if shared or limits else ()), *limits, *(("FENCE",) if fence else ()))

    def hold(self, lease: Optional[float], max_hold: Optional[float]) -> Words:
        """The lease and the binding of a hold. A hold without a lease of its own is renewed, and ends with its session."""
        if lease is not None:
            return ("PX", milliseconds(lease))
        if max_hold is not None:
            return ("WATCHDOG", "MAX", milliseconds(max_hold), "EPHEMERAL")
        return ("EPHEMERAL",)
