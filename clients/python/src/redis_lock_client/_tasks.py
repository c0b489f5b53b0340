# SPDX-License-Identifier: MIT
"""Each call suspends the task that makes it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Callable, Coroutine, Deque, List, Optional, Sequence, Set

from redis.asyncio.retry import Retry

from ._io import Io, Node
from ._io import Signal as AnySignal
from ._request import Words
from .errors import Misuse, Transient

# Maximum number of connections for calls. Thousands of tasks may call at once, and a wait needs no connection.
CALL_CONNECTIONS = 20


class Signal:
    """An event with a time limit. `asyncio.wait_for` of Python 3.11 and earlier may swallow a cancellation."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: "Set[asyncio.Future[bool]]" = set()

    def set(self) -> None:
        self._is_set = True
        for waiter in self._waiters:
            _resolve(waiter, True)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, timeout: Optional[float]) -> bool:
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        waiter: "asyncio.Future[bool]" = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, _resolve, waiter, False)
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


def _resolve(waiter: "asyncio.Future[bool]", value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)


class Slots:
    """Limits the calls at the same time, in order of arrival."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: "Deque[asyncio.Future[bool]]" = deque()

    async def take(self, timeout: float) -> bool:
        """Returns whether a slot became free in time."""
        if self._free > 0:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        waiter: "asyncio.Future[bool]" = loop.create_future()
        timer = loop.call_later(timeout, _resolve, waiter, False)
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.give()
            raise
        finally:
            timer.cancel()

    def give(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter.set_result(True)
        self._free += 1


class Tasks(Io):
    retry_class = Retry

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._loop = asyncio.get_running_loop()
        self._slots = Slots(CALL_CONNECTIONS)
        self._task: "Optional[asyncio.Task[None]]" = None
        self._finishing: "Set[asyncio.Task[None]]" = set()

    async def batch(self, calls: Sequence[Words], timeout: float) -> List[Any]:
        if asyncio.get_running_loop() is not self._loop:
            raise Misuse("these locks belong to another event loop; make new ones in this one")
        if not await self._slots.take(timeout):
            raise Transient("all connections are in use; try again")
        try:
            return await super().batch(calls, timeout)
        finally:
            self._slots.give()

    async def result(self, call: Any) -> Any:
        # redis-py uses `asyncio.wait_for`, which may swallow a cancellation. Python 3.10 does not count cancellations.
        task: Any = asyncio.current_task()
        count = getattr(task, "cancelling", int)
        before = count()
        value = await call
        if count() > before:
            raise asyncio.CancelledError
        return value

    def limit(self, connection: Any, timeout: Optional[float]) -> None:
        # With a time-out as its argument, read_response would return None, which is a reply, too.
        connection.socket_timeout = timeout

    def signal(self) -> AnySignal:
        return Signal()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        await asyncio.shield(task)

    def start(self, reader: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.ensure_future(reader())

    async def join(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait({self._task, *self._finishing})
