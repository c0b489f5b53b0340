# SPDX-License-Identifier: MIT
"""Each call blocks the thread that makes it."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Coroutine, Optional, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from ._io import CALL_TIMEOUT, Io, Node
from ._io import Signal as AnySignal

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that blocks instead of suspending itself."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the coroutine is suspended")


class Signal:
    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set

    async def wait(self, timeout: Optional[float]) -> bool:
        return self._event.wait(timeout if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class Threads(Io):
    retry_class = Retry

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._thread: Optional[threading.Thread] = None

    async def result(self, call: Any) -> Any:
        return call

    def limit(self, connection: Any, timeout: Optional[float]) -> None:
        if timeout is not None and timeout < CALL_TIMEOUT and not connection.can_read(timeout):
            raise RedisTimeoutError(f"no reply within {timeout:.3g} s")

    @staticmethod
    def current() -> Any:
        return threading.current_thread()

    def signal(self) -> AnySignal:
        return Signal()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def start(self, reader: Callable[[], Coroutine[Any, Any, None]]) -> None:
        thread = threading.Thread(target=lambda: run(reader()), name="redis-lock", daemon=True)
        thread.start()
        # Last, because another thread may close the session now, and join this thread.
        self._thread = thread

    def is_reader(self) -> bool:
        return self._thread is threading.current_thread()

    async def join(self) -> None:
        if self._thread is not None and not self.is_reader():
            self._thread.join()
