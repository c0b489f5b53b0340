# SPDX-License-Identifier: MIT
"""The options of a `Locks`, and its listener."""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

# The session ends if its client is silent for TTL, or its connection is closed for GRACE.
TTL, GRACE = 30.0, 3.0
# Limit for a try or a release, and for a wait without a limit while no server answers.
PATIENCE = 5.0

log = logging.getLogger("redis_lock_client")
# Whether a listener runs in this thread.
_calling = threading.local()


class Event(NamedTuple):
    """A notification to the listener."""

    label: Optional[str]
    """The label of the lock, if it has one."""
    event: str
    """`waited`, `held`, `jeopardy` or `safe`."""
    outcome: str
    """For a wait, `granted` or the kind of its error. For a hold, `released` or `lost`. Otherwise empty."""
    seconds: float
    """Duration of the wait or of the hold so far."""


Listener = Callable[[Event], None]


class Options(NamedTuple):
    name: str
    ttl: float = TTL
    grace: float = GRACE
    patience: float = PATIENCE
    listener: Optional[Listener] = None

    def notify(self, *event: Any) -> None:
        """Calls the listener, unless a listener of this thread caused the event. Otherwise it would call itself for ever."""
        if self.listener is not None and not getattr(_calling, "listener", False):
            _calling.listener = True
            try:
                self.listener(Event(*event))
            except (Exception, SystemExit):
                # The end of a thread is not the end of the program.
                log.exception("a listener of locks failed")
            finally:
                _calling.listener = False


class Mutex:
    """Protects the state of the sessions of a `Locks`. Calls the listener after releasing the lock, so it may use locks.

    It is re-entrant, as the garbage collector or a signal may run code of the user at any time.
    """

    def __init__(self, options: Options) -> None:
        self._options, self._lock = options, threading.RLock()
        self.events: List[Tuple[Any, ...]] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        try:
            events, self.events = self.events, []
        finally:
            self._lock.release()
        for event in events:
            self._options.notify(*event)
