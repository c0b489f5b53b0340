# SPDX-License-Identifier: MIT
"""One acquire, from its first call to the end of its hold. Times are in seconds, by the monotonic clock."""

from __future__ import annotations

import math
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Optional, Set

from ._io import Signal
from ._request import Request, Words, milliseconds
from .errors import LockError, Lost

if TYPE_CHECKING:
    from ._session import Session

# The places. An acquire in UNDO is over for its user, but perhaps not on the server.
ASKED, HELD, UNDO, OVER = "asked", "held", "undo", "over"
# Ends of a hold that are no loss.
GOOD_ENDS = ("released", "cancelled", "taken")
# Ends that a release without a reply may have caused.
UNEXPLAINED = ("restarted", "not held")


class Owner:
    """The name under which a thread or task acquires locks."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        # Keys for which the name is not used: the server may still grant a lock to it, or another process holds it.
        self.retired: Counter[bytes] = Counter()


class Acquire:
    def __init__(
        self, session: Session, request: Request, owner: Owner, wait: Optional[float] = None, source: Words = ()
    ) -> None:
        self.request, self.owner, self.is_try = request, owner, wait == 0
        # The hold of another session that this acquire takes over: FROM, name, number.
        self.source = source
        self.place, self.reason = ASKED, ""
        # Its number, and the session that this number belongs to. The server may know it under `id` of that session: until
        # the first call, and before the declaration in a new session, it does not.
        self.session, self.n, self.id = session, 0, b""
        # The error to raise from the wait, and the signal for the next change.
        self.error: Optional[LockError] = None
        self.changed: Optional[Signal] = None
        self.holds, self.token = 0, None
        self.began = self.granted = monotonic()
        self.until = math.inf if wait is None else self.began + wait
        self.lease_ends = math.inf
        # The verbs of calls that the server may have executed without a reply.
        self.in_doubt: Set[str] = set()
        # Whether the server may revoke the grant until it is acknowledged, and whether the user has the hold.
        self.in_flight = self.is_delivered = self.is_releasing = False

    def words(self, verb: str, lease: Optional[float] = None) -> Words:
        """A call of ACQUIRE, RENEW, RELEASE or CANCEL. `lease` is that of a renewal."""
        request, session = self.request, ("SESSION", self.session.id, self.n)
        words: Words = (f"LOCK.{verb}", request.keys[0], self.owner.name)
        if request.several and verb != "CANCEL":
            words = (f"LOCK.M{verb}", len(request.keys), *request.keys, self.owner.name)
        if verb == "ACQUIRE":
            left = self.until - monotonic()
            queue: Words = () if self.is_try else ("QUEUE", 0 if left == math.inf else milliseconds(left))
            return (*words, *request.flags, *request.hold(request.lease, request.max_hold), *session, *queue)
        if verb == "RENEW":
            age = monotonic() - self.granted
            max_hold = None if request.max_hold is None else max(0.001, request.max_hold - age)
            return (*words, *request.hold(lease, max_hold), *session, *self.source)
        return (*words, *session)

    def declaration(self) -> Words:
        """Tells a new session, or another node, about a hold."""
        lease = self.request.lease
        return self.words("RENEW", lease if self.lease_ends == math.inf else max(0.001, self.lease_ends - monotonic()))

    def is_declared(self) -> bool:
        """Whether the present session of its server knows its number."""
        return self.id == self.session.id and self.id != b""

    def is_lost(self) -> bool:
        """Whether the hold ended before its release."""
        if self.place is HELD:
            return self.lease_ends <= monotonic()
        return self.place is not ASKED and self.reason not in GOOD_ENDS

    def lost(self) -> Lost:
        reason = self.reason or "expired"
        return Lost(f"{self.request.name}: the hold ended before its release ({reason}); acquire the lock again")
