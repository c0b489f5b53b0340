# SPDX-License-Identifier: MIT
"""Each call suspends the task that makes it."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Coroutine, List, Optional, Sequence, Set, Tuple

from redis.asyncio.retry import Retry

from ._io import CALL_TIMEOUT, Io, Node
from ._io import Signal as AnySignal
from ._request import Words
from .errors import LockError, Misuse, NoReply, Unavailable


async def _result(future: "asyncio.Future[Any]", timeout: Optional[float], default: Any) -> Any:
    """The result of a future. `asyncio.wait_for` of Python 3.11 and earlier may swallow a cancellation."""
    timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, _resolve, future, default)
    try:
        return await future
    finally:
        if timer is not None:
            timer.cancel()


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


class Signal:
    """An event with a time limit."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: "Set[asyncio.Future[bool]]" = set()

    def set(self) -> None:
        self._is_set = True
        for waiter in self._waiters:
            _resolve(waiter, True)

    async def wait(self, timeout: Optional[float]) -> bool:
        if self._is_set:
            return True
        waiter: "asyncio.Future[bool]" = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            return bool(await _result(waiter, timeout, False))
        finally:
            self._waiters.discard(waiter)


class Tasks(Io):
    """All calls of one moment share a round trip, on one connection. A task that is cancelled leaves the connection intact."""

    retry_class = Retry

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._loop = asyncio.get_running_loop()
        self._calls: "List[Tuple[Words, asyncio.Future[Any]]]" = []
        self._reading: "Optional[asyncio.Task[None]]" = None
        self._sending: "Optional[asyncio.Task[None]]" = None

    async def batch(self, calls: Sequence[Words], timeout: float) -> List[Any]:
        if asyncio.get_running_loop() is not self._loop:
            raise Misuse("these locks belong to another event loop; make new ones in this one")
        replies = [self._loop.create_future() for _ in calls]
        self._calls += zip(calls, replies)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())
        late = NoReply(f"no reply within {timeout:.3g} s")
        return [await _result(reply, timeout, late) for reply in replies]

    async def _send(self) -> None:
        while self._calls:
            # Also those of tasks that were cancelled: a call may be the cancellation itself.
            calls, self._calls = self._calls, []
            results: List[Any]
            try:
                results = await super().batch([words for words, _ in calls], CALL_TIMEOUT)
            except Exception as error:
                kind = type(error) if isinstance(error, LockError) else Unavailable
                results = [kind(str(error)) for _ in calls]
            for (_, reply), result in zip(calls, results):
                _resolve(reply, result)

    async def result(self, call: Any) -> Any:
        value = await call
        # `asyncio.wait_for` in redis-py may swallow the end of the event loop. Python 3.10 does not count cancellations.
        task = asyncio.current_task()
        if task in (self._reading, self._sending) and getattr(task, "cancelling", int)():
            raise asyncio.CancelledError
        return value

    def limit(self, connection: Any, timeout: Optional[float]) -> None:
        # With a time-out as its argument, read_response would return None, which is a reply, too.
        connection.socket_timeout = timeout

    @staticmethod
    def current() -> Any:
        return asyncio.current_task()

    def limit_send(self, connection: Any, count: int) -> None:
        # A limit costs time. A large batch may fill the buffers of a connection that is dead.
        connection.socket_timeout = CALL_TIMEOUT if count > 100 else None

    def signal(self) -> AnySignal:
        return Signal()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def start(self, reader: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._reading = asyncio.ensure_future(reader())

    async def join(self) -> None:
        tasks = {task for task in (self._reading, self._sending) if task is not None and task is not asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks)
