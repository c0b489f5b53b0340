# SPDX-License-Identifier: MIT
"""Each call suspends the task that makes it."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Coroutine, Deque, List, Optional, Sequence, Set

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from . import errors
from ._io import Io, Node
from ._io import Signal as AnySignal
from ._request import Words
from .errors import Misuse, Transient

# Calls at the same time, each with a connection. Thousands of tasks may start to wait at once.
MAX_CALLS = 20


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


def _cancellations() -> int:
    """The number of cancellations of this task. Python 3.10 does not count them."""
    task: Any = asyncio.current_task()
    return int(task.cancelling()) if hasattr(task, "cancelling") else 0


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
    def __init__(self, node: Node, patience: float) -> None:
        super().__init__(node, patience)
        self._slots = Slots(MAX_CALLS)
        self._loop = asyncio.get_running_loop()
        self._task: "Optional[asyncio.Task[None]]" = None
        self._finishing: "Set[asyncio.Task[None]]" = set()

    def connection(self) -> Any:
        return self.node.connection(Retry(NoBackoff(), 0), self.patience)

    async def batch(self, calls: Sequence[Words], timeout: float) -> List[Any]:
        if not await self._slots.take(timeout):
            raise Transient("too many calls wait for a connection")
        try:
            return await super().batch(calls, timeout)
        finally:
            self._slots.give()

    async def exchange(self, connection: Any, calls: Sequence[Words], timeout: float) -> List[Any]:
        if asyncio.get_running_loop() is not self._loop:
            raise Misuse("these locks belong to another event loop; make new ones in this one")
        replies: List[Any] = []
        before = _cancellations()
        try:
            await connection.connect()
            if len(calls) == 1:
                # With a time limit, redis-py sends by `asyncio.wait_for`, which may swallow a cancellation.
                connection.socket_timeout = None
                await connection.send_command(*calls[0], check_health=False)
            else:
                await connection.send_packed_command(connection.pack_commands(calls), check_health=False)
            if _cancellations() > before:
                raise asyncio.CancelledError
            # With the argument `timeout`, a reply that is missing would be None, as a reply that is nil.
            connection.socket_timeout = timeout
            for _ in calls:
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(errors.of(error))
            return replies
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise errors.of(error) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    async def disconnect(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)

    def signal(self) -> AnySignal:
        return Signal()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)

    def start(self, reader: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.ensure_future(reader())

    async def join(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait({self._task, *self._finishing})
