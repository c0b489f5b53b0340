# SPDX-License-Identifier: MIT
"""Each call blocks the thread that makes it."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Coroutine, List, Optional, Sequence, TypeVar

from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from . import errors
from ._io import Io, Node
from ._io import Signal as AnySignal
from ._request import Words

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
        self.set, self.clear = self._event.set, self._event.clear

    async def wait(self, timeout: Optional[float]) -> bool:
        return self._event.wait(timeout if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class Threads(Io):
    def __init__(self, node: Node, patience: float) -> None:
        super().__init__(node, patience)
        self._thread: Optional[threading.Thread] = None

    def connection(self) -> Any:
        return self.node.connection(Retry(NoBackoff(), 0), self.patience)

    async def exchange(self, connection: Any, calls: Sequence[Words], timeout: float) -> List[Any]:
        replies: List[Any] = []
        try:
            connection.connect()
            if len(calls) == 1:
                connection.send_command(*calls[0], check_health=False)
            else:
                connection.send_packed_command(connection.pack_commands(calls), check_health=False)
            for _ in calls:
                if timeout != self.patience and not connection.can_read(timeout):
                    raise RedisTimeoutError(f"no reply within {timeout:.3g} s")
                try:
                    replies.append(connection.read_response())
                except ResponseError as error:
                    replies.append(errors.of(error))
            return replies
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise errors.of(error) from error
        except BaseException:
            connection.disconnect()
            raise

    async def disconnect(self, connection: Any) -> None:
        connection.disconnect()

    def signal(self) -> AnySignal:
        return Signal()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        await work

    def start(self, reader: Callable[[], Coroutine[Any, Any, None]]) -> None:
        thread = threading.Thread(target=lambda: run(reader()), name="redis-lock", daemon=True)
        thread.start()
        # Last, because another thread may close the session now, and join this thread.
        self._thread = thread

    async def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
