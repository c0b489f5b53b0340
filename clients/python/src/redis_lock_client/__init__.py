# SPDX-License-Identifier: MIT
"""Locks of the redis-lock server module.

    locks = Locks(redis.Redis())
    with locks.lock("order:42") as hold:
        ...

All waits and holds of a process share two connections, which a thread looks after. `redis_lock_client.aio` is for asyncio.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Callable, Coroutine, Dict, List, Optional, Set, Tuple, TypeVar

import redis

from . import aio
from ._place import place_of
from ._session import Event, Listener, Loop, text
from .errors import Busy, Cancelled, Deadlock, LockError, Lost, Misuse, TimedOut, Unavailable

__all__ = [
    "Busy",
    "Cancellation",
    "Cancelled",
    "Deadlock",
    "Event",
    "Hold",
    "Lock",
    "LockError",
    "Locks",
    "Lost",
    "Misuse",
    "TimedOut",
    "Unavailable",
    "aio",
]

T = TypeVar("T")

class Cancellation:
    """Given to an acquire, it lets another thread end the wait. It is for good: a later acquire ends at once."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waits: Set[Callable[[], None]] = set()
        self.cancelled = False

    def cancel(self) -> None:
        """Every acquire that has this and is not over raises `Cancelled`."""
        with self._guard:
            self.cancelled = True
            for end in self._waits:
                end()

    def _add(self, end: Callable[[], None]) -> None:
        with self._guard:
            self._waits.add(end)
            if self.cancelled:
                end()

    def _remove(self, end: Callable[[], None]) -> None:
        with self._guard:
            self._waits.discard(end)


class Locks:
    """All locks of this process on the server of `client`, or on the primary that its Sentinels know.

    Threads may share it; a forked child has a session of its own. A call that gets no answer in `patience` seconds is sent again
    on a new connection. `listener` hears, in the session's thread, how each wait and each hold ended: it must be quick.
    """

    def __init__(self, client: "redis.Redis", patience: float = 5.0, listener: Optional[Listener] = None) -> None:
        self._place, self._patience, self._listener = place_of(client), patience, listener
        # Nothing begins after the end: a call that did would never return.
        self._guard = threading.RLock()
        self._closed = False
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self._loop = loop = Loop()
        self.asynchronous = aio.Locks(self._place, self._patience, self._listener)
        self._thread = threading.Thread(target=_serve, args=(loop,), name="redis-lock", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        # Who forgets to close it has no thread left, either.
        weakref.finalize(self, _end, loop, self.asynchronous, self._process, self._patience).atexit = False

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        future = self._begin(work)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C: the wait is taken back.
            future.cancel()
            raise

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        with self._guard:
            if self._closed:
                raise Unavailable("closed")
            if self._process != os.getpid():
                self._start()
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def lock(self, key: aio.Name, **how: Any) -> "Lock":
        """See the README for what may be said."""
        return Lock(self, key, lambda: self.asynchronous.lock(key, **how))

    def all_of(self, *keys: aio.Name, **how: Any) -> "Lock":
        """Several locks, granted all at once or not at all. Options are those of `lock`, but for `fence` and `limit`."""
        return Lock(self, ", ".join(text(key) for key in keys), lambda: self.asynchronous.all_of(*keys, **how))

    def close(self) -> None:
        """Ends all waits, what is held with `keep`, and the thread."""
        with self._guard:
            if not self._closed:
                self._closed = True
                _end(self._loop, self.asynchronous, self._process, self._patience)
        if self._process == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join()


# A lock that is taken in the moment of a fork would never be free in the child.
_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()


def _after_fork() -> None:
    for locks in list(_all):
        locks._guard = threading.RLock()
        locks._loop.let_go()
    _quiet()


def _quiet() -> None:
    """What a session still does when its process ends, or is its parent's when it is forked, ends with it, without a word."""
    for locks in list(_all):
        for task in asyncio.all_tasks(locks._loop):
            quiet: Any = task
            quiet._log_destroy_pending = False


os.register_at_fork(after_in_child=_after_fork)
# The session goes on: what is to be called at the end behind this may give a lock back.
atexit.register(_quiet)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, locks: aio.Locks, process: int, patience: float) -> None:
    """Has the session's thread end itself. Whoever calls it may be that thread."""

    async def end() -> None:
        await locks.close()
        # Calls of other threads: each finds that it is closed, and says so.
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        if calls:
            _, late = await asyncio.wait(calls, timeout=patience)
            for task in late:
                task.cancel()
        await loop.shutdown_default_executor()
        # After what the end of these calls has still to do.
        loop.call_soon(loop.stop)

    if process == os.getpid() and not loop.is_closed():
        ending = end()
        try:
            asyncio.run_coroutine_threadsafe(ending, loop)
        except RuntimeError:
            ending.close()


class Hold:
    """A lock that is held."""

    def __init__(self, locks: Locks, hold: aio.Hold) -> None:
        self._locks, self._hold, self._process = locks, hold, os.getpid()
        self.key, self.owner, self.token = hold.key, hold.owner, hold.token

    @property
    def lost(self) -> bool:
        """Whether it ended before it was given back."""
        return self._hold.lost.is_set() or self._process != os.getpid()

    def wait_lost(self, seconds: float) -> bool:
        """Waits until it is lost, and for so long at most."""

        async def wait() -> bool:
            try:
                await asyncio.wait_for(self._hold.lost.wait(), seconds)
            except asyncio.TimeoutError:
                pass
            return self._hold.lost.is_set()

        return self.lost or self._locks._run(wait)

    def valid_for(self) -> float:
        """Seconds for which nobody else can have the lock."""
        return 0.0 if self.lost else self._hold.valid_for()

    def extend(self, lease: Optional[float] = None) -> None:
        """Sets the lease anew, in seconds, from now on. `Lost` if there is nothing to extend."""
        self._here(lambda: self._hold.extend(lease))

    def guard(self, *command: Any) -> Any:
        """Carries out a command of Redis if the lock is still held, in the same step. `Lost` if it is not."""
        return self._here(lambda: self._hold.guard(*command))

    def release(self) -> None:
        """Gives the lock back. If that fails, it may be called again, and counts once. `Lost` if it was lost before."""
        try:
            self._here(self._hold.release)
        except Unavailable as error:
            if self.lost:
                # The session was closed.
                raise Lost(f"{text(self.key)}: the hold ended before it was given back") from error
            raise
        except LockError:
            raise
        except BaseException:
            # Ctrl-C: it goes on without whoever has asked for it.
            with suppress(LockError):
                self._locks._begin(self._hold._abandon)
            raise

    def hand_over(self) -> aio.Owner:
        """It is the affair of another process from now on, which calls `attach` with the owner that this returns. What is kept
        is bound to this process until then, and ends with it."""
        return self._here(self._hold.hand_over)

    def _here(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._process != os.getpid():
            raise Lost(f"{text(self.key)}: the process that holds it is another one")
        return self._locks._run(work)


class Lock:
    """A name and how it is to be held. Threads may share it: each hold has an owner of its own."""

    def __init__(self, locks: Locks, key: aio.Name, make: Callable[[], aio.Lock]) -> None:
        self.key = key
        # Anew for each call, as the session of a forked child is another.
        self._locks, self._lock = locks, make
        # Of scopes, with the thread that entered each.
        self._scopes: List[Tuple[int, Hold]] = []
        self._wait = make().wait

    def try_acquire(self) -> Optional[Hold]:
        """The hold, or None if somebody else has the lock."""
        return self.acquire(0)

    def acquire(
        self,
        wait: Optional[float] = None,
        cancellation: Optional[Cancellation] = None,
        owner: Optional[aio.Owner] = None,
    ) -> Optional[Hold]:
        """The hold, or None when `wait` seconds are over; without it, as the lock was made. An `owner` of the caller's own
        must be one that nobody else has."""

        begun: List["asyncio.Task[Optional[aio.Hold]]"] = []

        async def acquire() -> Optional[aio.Hold]:
            task = asyncio.ensure_future(self._lock().acquire(wait, owner))
            begun.append(task)
            loop = asyncio.get_running_loop()

            def end() -> None:
                loop.call_soon_threadsafe(task.cancel)

            if cancellation is not None:
                cancellation._add(end)
            try:
                # The task has its own end, whatever becomes of who asked for it.
                await asyncio.wait({task})
            finally:
                if cancellation is not None:
                    cancellation._remove(end)
            if task.cancelled():
                raise Cancelled(f"{text(self.key)}: the wait was cancelled")
            return task.result()

        async def undo() -> None:
            for task in begun:
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled() and task.exception() is None:
                    hold = task.result()
                    if hold is not None:
                        await hold.release()

        try:
            hold = self._locks._run(acquire)
        except LockError:
            raise
        except BaseException:
            # Ctrl-C, maybe at the very moment of the grant.
            self._locks._run(undo)
            raise
        return Hold(self._locks, hold) if hold is not None else None

    def attach(self, owner: aio.Owner) -> Hold:
        """The hold that this owner has, in another process maybe, is ours from now on. `Lost` if it has none."""

        async def attach() -> aio.Hold:
            return await self._lock().attach(owner)

        return Hold(self._locks, self._locks._run(attach))

    def holders(self) -> List[Dict[str, Any]]:
        """Who has it, as `LOCK.INFO` says: `owner`, `mode`, `holds` and `ttl` in milliseconds, and more. Empty if it is free."""

        async def holders() -> List[Dict[str, Any]]:
            return await self._lock().holders()

        return self._locks._run(holders)

    def hold_of(self, owner: aio.Owner) -> Hold:
        """The hold of that owner, to be given back or extended: nothing is asked, and nobody looks after it."""
        return Hold(self._locks, self._lock().hold_of(owner))

    def __enter__(self) -> Hold:
        hold = self.acquire()
        if hold is None:
            raise (Busy if self._wait == 0 else TimedOut)(f"{text(self.key)}: somebody else has it")
        with self._locks._guard:
            self._scopes.append((threading.get_ident(), hold))
        return hold

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._locks._guard:
            hold = aio.last_of(self._scopes, threading.get_ident())
        try:
            hold.release()
        except LockError:
            # What the body raised says more.
            if error is None:
                raise
