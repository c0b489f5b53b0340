# SPDX-License-Identifier: MIT
"""Base classes of the locks of threads and of asyncio."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Dict, Generic, List, Optional, Type, TypeVar

from ._acquire import HELD, Acquire
from ._core import Core, default_name
from ._io import Io
from ._options import GRACE, PATIENCE, TTL, Listener, Options
from ._request import Name, Request, seconds
from ._session import Session
from .errors import Misuse


class BaseHold:
    """A lock that is held."""

    def __init__(self, lock: BaseLock[Any], acquire: Acquire) -> None:
        # The session ends when its `Locks` is collected, so each hold refers to it by its lock.
        self._lock, self._core, self._acquire = lock, lock._core, acquire

    @property
    def key(self) -> bytes:
        """The key of the lock, or of the first of several locks."""
        return self._acquire.request.keys[0]

    @property
    def owner(self) -> bytes:
        """The name of the holder on the server. By default each thread or task has one."""
        return self._acquire.owner.name

    @property
    def token(self) -> Any:
        """With `fence`, a number greater than those of all earlier grants, or a list for several locks. Otherwise None."""
        return self._acquire.token

    @property
    def lost(self) -> bool:
        """Whether the hold ended before its release, so that another owner may have the lock."""
        return self._acquire.is_lost()

    def valid_for(self) -> float:
        """Seconds for which no other owner can have the lock, even if the network fails.

        0 means that nothing is proven: the hold is in jeopardy, lost or released, or the session has a `grace` of 0.
        """
        return self._session.valid_for(self._acquire)

    def hand_over(self) -> str:
        """Returns a ticket, with which another process takes over this hold by `attach`.

        Until then the server renews the hold while this process lives. For this process the hold is over. Raises `Lost` if it
        has ended, and `Unavailable` if no server has confirmed it since a restart.
        """
        return self._core.ticket(self._acquire)

    @property
    def _session(self) -> Session:
        return self._acquire.session

    def _lease(self, lease: Optional[float]) -> Optional[float]:
        own = self._acquire.request.lease
        if lease is not None and own is None:
            raise Misuse("the server renews this hold; acquire it with a lease to set one")
        return seconds(lease, "lease") or own

    def _guarded(self, command: Any) -> Any:
        if self.lost:
            raise self._acquire.lost()
        if self._acquire.request.several:
            raise Misuse("a guarded command works with one lock")
        return ("LOCK.GUARD", self.key, "OWNER", self.owner, *command)

    def __repr__(self) -> str:
        state = "lost" if self.lost else self._acquire.place
        if state is HELD and not self.valid_for():
            state = "in jeopardy"
        return f"<{type(self).__qualname__} of {self._acquire.request.name}: {state}>"

    def __reduce__(self) -> Any:
        raise TypeError("a hold belongs to its process; move it to another one by hand_over() and attach()")

    def __del__(self) -> None:
        acquire = self._acquire
        if acquire.place is HELD and not self._core.closed:
            self._session.dropped.append(acquire)
            warnings.warn(f"{self!r} was never released; use its lock as a context manager", ResourceWarning, source=self)


H = TypeVar("H", bound=BaseHold)


class BaseLock(Generic[H]):
    """A lock, or several locks, with options. Threads and tasks may share it: each enters and leaves a scope of its own."""

    def __init__(self, core: Core, request: Request, locks: Any) -> None:
        self._core, self._request, self._locks = core, request, locks
        # The holds of the scopes that each thread or task has entered, the innermost last.
        self._scopes: Dict[Any, List[H]] = {}

    def _wait(self, wait: Optional[float]) -> Optional[float]:
        return seconds(self._request.wait if wait is None else wait, "wait", 0)

    def _enter(self, hold: H) -> H:
        self._scopes.setdefault(self._core.io_class.current(), []).append(hold)
        return hold

    def _leave(self) -> H:
        """The hold of the innermost scope of this thread or task."""
        current = self._core.io_class.current()
        holds = self._scopes.get(current)
        if holds is None:
            text = "this thread or task did not enter the scope that it leaves; in a generator, use acquire() and release()"
            raise Misuse(f"{self._request.name}: {text}")
        if len(holds) == 1:
            del self._scopes[current]
        return holds.pop()

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} of {self._request.name}>"

    def __reduce__(self) -> Any:
        raise TypeError("a lock belongs to its process; make a new one in the other process")


L = TypeVar("L", bound=BaseLock[Any])


class BaseLocks(Generic[L]):
    """The locks of this process on the server, the Sentinel primary or the cluster of `client`.

    A forked child has a session of its own, and no hold of its parent. All times are in seconds.

    * `name`: the name of the session for operators; `<host>/<pid>/<random>` by default.
    * `ttl`: the session ends if the process is silent for this time; 30 by default.
    * `grace`: the session ends if its connection stays closed for this time; 3 by default. For this time after each heartbeat,
      its holds are proven to be held. With 0 they end with the connection, and nothing is ever proven.
    * `patience`: limit for a try or a release, and for a wait without a limit, while no server answers; 5 by default.
    * `listener`: is called with each `Event` in the thread that notices it, and must not block.
    """

    _lock_class: Type[L]
    _io_class: Type[Io]

    def __init__(
        self,
        client: Any,
        *,
        name: Optional[str] = None,
        ttl: float = TTL,
        grace: float = GRACE,
        patience: float = PATIENCE,
        listener: Optional[Listener] = None,
    ) -> None:
        options = Options(name or default_name(), ttl, grace, patience, listener)
        self._core = Core(client, type(self)._io_class, options)
        weakref.finalize(self, self._core.leave).atexit = False

    def lock(
        self,
        *keys: Name,
        wait: Optional[float] = None,
        lease: Optional[float] = None,
        max_hold: Optional[float] = None,
        shared: bool = False,
        limit: Optional[int] = None,
        fence: bool = False,
        reentrant: bool = False,
        owner: Optional[Name] = None,
        label: Optional[str] = None,
    ) -> L:
        """A lock with options. Several keys are granted together or not at all, without deadlocks in any order.

        * `wait`: seconds to wait for a grant; without limit by default; 0 does not wait.
        * `lease`: seconds after which the hold ends by itself. By default the server renews the hold while this process lives.
        * `max_hold`: seconds after which the server stops the renewals of a hold.
        * `shared`: admits other shared holders. `limit`: admits at most this number of holders, for a semaphore.
        * `fence`: gives the hold a `token` greater than those of all earlier holds.
        * `reentrant`: the same owner may acquire the lock again. By default it gets `Deadlock`.
        * `owner`: the name of the holder. By default each thread or task has one, so that the server detects deadlocks.
        * `label`: the name of the lock for the listener; None by default.

        Raises `Misuse` if the options do not fit together. Acquires nothing yet.
        """
        request = Request(
            keys, wait=wait, lease=lease, max_hold=max_hold, shared=shared, limit=limit, fence=fence, reentrant=reentrant,
            owner=owner, label=label,
        )  # fmt: skip
        return type(self)._lock_class(self._core, request, self)
