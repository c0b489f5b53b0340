# SPDX-License-Identifier: MIT
"""Each call suspends the task that makes it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Callable, Coroutine, List, Optional, Sequence, Set

from redis.asyncio.retry import Retry

from ._io import Io, Node
from ._io import Signal as AnySignal
from ._request import Words
from .errors import Misuse, Transient

# Maximum number of connections for calls. Thousands of tasks may call at once, and a wait needs no connection.
CALL_CONNECTIONS = 32


class Signal:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set, self.clear = self._event.set, self._event.clear

    async def wait(self, timeout: Optional[float]) -> bool:
        try:
            await asyncio.wait_for(self._event.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True


class Tasks(Io):
    retry_class = Retry

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(CALL_CONNECTIONS)
        self._task: "Optional[asyncio.Task[None]]" = None
        self._finishing: "Set[asyncio.Task[None]]" = set()

    async def batch(self, calls: Sequence[Words], timeout: float) -> List[Any]:
        if asyncio.get_running_loop() is not self._loop:
            raise Misuse("these locks belong to another event loop; make new ones in this one")
        try:
            await asyncio.wait_for(self._slots.acquire(), timeout if self._slots.locked() else None)
        except asyncio.TimeoutError as error:
            raise Transient("all connections wait for replies") from error
        try:
            return await super().batch(calls, timeout)
        finally:
            self._slots.release()

    async def result(self, call: Any) -> Any:
        return await call

    def await_reply(self, connection: Any, timeout: float) -> None:
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
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)

    def start(self, reader: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.ensure_future(reader())

    async def join(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait({self._task, *self._finishing})
