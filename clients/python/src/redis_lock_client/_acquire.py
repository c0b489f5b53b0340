# SPDX-License-Identifier: MIT
"""One acquire, from its first call to the end of its hold. Times are in seconds, by the monotonic clock."""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Optional

from ._io import Signal
from ._request import Request, Words, milliseconds
from .errors import LockError, Lost

if TYPE_CHECKING:
    from ._session import Session

# The states. An acquire that is over has a reason.
ASKED, HELD, OVER = "asked", "held", "over"
# Ends of a hold that are no loss.
GOOD_ENDS = ("released", "cancelled", "taken")
# Ends that a release without a reply may have caused.
UNEXPLAINED = ("restarted", "not held")


class Owner:
    """The name under which a thread or task acquires locks. A retired owner is not used again: a call of it may be late."""

    def __init__(self, name: bytes) -> None:
        # Number of its acquires that the server may still have to undo.
        self.name, self.retired = name, 0


class Number(NamedTuple):
    """The identity of an acquire on the server."""

    session: "Session"
    id: bytes
    n: int


class Acquire:
    def __init__(
        self, session: "Session", request: Request, owner: Owner, wait: Optional[float] = None, source: Words = ()
    ) -> None:
        self.request, self.owner, self.is_try = request, owner, wait == 0
        # The hold of another session that this acquire takes over: FROM, name, number.
        self.source = source
        self.number = Number(session, b"", 0)
        self.state, self.reason = ASKED, ""
        # The error to raise from the wait.
        self.error: Optional[LockError] = None
        self.changed: Optional[Signal] = None
        self.holds, self.token = 0, None
        self.began = self.granted = monotonic()
        self.until = math.inf if wait is None else self.began + wait
        self.lease_ends = math.inf
        # An attempt of the present call has no reply, so it may have succeeded.
        self.in_doubt = False
        # The server may still revoke the grant, until it has been acknowledged.
        self.in_flight = False
        self.is_releasing = self.is_handed_over = False

    def acquire_words(self) -> Words:
        if self.source:
            return (*self.renew_words(self.request.lease), *self.source)
        left = self.until - monotonic()
        queue: Words = () if self.is_try else ("QUEUE", 0 if left == math.inf else milliseconds(left))
        return (*self.request.acquire(self.owner.name), *self._session_words(), *queue)

    def renew_words(self, lease: Optional[float]) -> Words:
        max_hold = self.request.max_hold
        left = None if max_hold is None else max(0.001, max_hold - (monotonic() - self.granted))
        return (*self.request.words("RENEW", self.owner.name), *self.request.hold(lease, left), *self._session_words())

    def declare_words(self) -> Words:
        lease = self.request.lease
        return self.renew_words(lease if self.lease_ends == math.inf else max(0.001, self.lease_ends - monotonic()))

    def release_words(self) -> Words:
        return (*self.request.words("RELEASE", self.owner.name), *self._session_words())

    def cancel_words(self) -> Words:
        return ("LOCK.CANCEL", self.request.keys[0], self.owner.name, *self._session_words())

    def _session_words(self) -> Words:
        return ("SESSION", self.number.id, self.number.n)

    def is_declared(self) -> bool:
        """Whether the present session of its server has this hold."""
        at = self.number
        return at.id == at.session.id and at.session.held.get(at.n) is self

    def is_lost(self) -> bool:
        """Whether the hold ended before its release."""
        if self.state is HELD:
            return self.lease_ends <= monotonic()
        return self.state is OVER and self.reason not in GOOD_ENDS and not self.is_handed_over

    def lost(self) -> Lost:
        reason = self.reason or "expired"
        return Lost(f"{self.request.name}: the hold ended before its release ({reason}); acquire the lock again")
