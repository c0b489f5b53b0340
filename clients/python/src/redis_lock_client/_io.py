# SPDX-License-Identifier: MIT
"""Connections of redis-py, time and concurrency: what differs between threads and asyncio.

Coroutines of this package are written once. For threads they never suspend: each call blocks the thread that makes it.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable, Coroutine, Dict, List, NamedTuple, Optional, Protocol, Sequence

from redis.exceptions import TimeoutError as RedisTimeoutError

from ._request import Words
from .errors import LockError, Transient

# Settings that belong to the pool of the user's connections.
UNUSED = ("maint_notifications", "orig_", "event_dispatcher", "response_callbacks")

class Node(NamedTuple):
    """How to connect to a server: what the user's client does."""

    name: str
    connection_class: Any
    settings: Dict[str, Any]

    @staticmethod
    def of(name: str, pool: Any) -> "Node":
        # Some settings refer to the pool, which must not live as long as the session.
        settings = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(UNUSED)}
        return Node(name, pool.connection_class, settings)

    def connection(self, retry: Any, timeout: float) -> Any:
        """A new connection of redis-py with the user's settings. Repetitions and time limits are this package's own affair."""
        settings = dict(self.settings)
        settings.update(decode_responses=False, health_check_interval=0, retry=retry, retry_on_error=[], socket_timeout=timeout)
        if "path" not in settings:
            settings["socket_connect_timeout"] = min(settings.get("socket_connect_timeout") or timeout, timeout)
        return self.connection_class(**settings)


class Signal(Protocol):
    def set(self) -> None: ...
    def clear(self) -> None: ...
    async def wait(self, timeout: Optional[float]) -> bool: ...


class Io:
    """The connections of a session: one for the reader, and as many others as calls are made at the same time."""

    def __init__(self, node: Node, patience: float) -> None:
        self.node, self.patience = node, patience
        # The connections that carry no call, the last used one last.
        self._idle: List[Any] = []
        self._reader: Any = None
        self._opened: "weakref.WeakSet[Any]" = weakref.WeakSet()

    def _open(self) -> Any:
        connection = self.connection()
        self._opened.add(connection)
        return connection

    def forget(self) -> None:
        """Closes the connections of a forked child, which its parent uses. Otherwise they would outlive the parent."""
        for connection in list(self._opened):
            writer = getattr(connection, "_writer", None)
            sock = getattr(connection, "_sock", None) or writer and writer.get_extra_info("socket")._sock
            if sock:
                # A shutdown, or a change of the event loop, would concern the parent as well.
                os.close(sock.detach())
        self._idle, self._reader = [], None

    async def call(self, words: Words, timeout: float) -> Any:
        """The reply to a call, over any connection. Raises errors of `errors`."""
        [reply] = await self.batch([words], timeout)
        if isinstance(reply, LockError):
            raise reply
        return reply

    async def batch(self, calls: Sequence[Words], timeout: float) -> List[Any]:
        """The replies to calls in one round trip, over any connection. Errors of the server are elements of the list."""
        while True:
            is_new = not self._idle
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._open()
            try:
                replies = await self.exchange(connection, calls, timeout)
            except Transient as error:
                if is_new or isinstance(error.__cause__, RedisTimeoutError):
                    raise
                # The server may have closed an idle connection. The calls have numbers, so they are sent again.
                continue
            self._idle.append(connection)
            if any(is_demoted(reply) for reply in replies):
                await self.disconnect_idle()
            return replies

    async def read(self, words: Words, timeout: float) -> Any:
        """The reply to a call over the reader's connection. Raises errors of `errors`."""
        self._reader = self._reader or self._open()
        [reply] = await self.exchange(self._reader, [words], timeout)
        if is_demoted(reply):
            await self.disconnect(self._reader)
        if isinstance(reply, LockError):
            raise reply
        return reply

    async def close(self) -> None:
        """Waits until the reader has ended, and closes all connections."""
        await self.join()
        if self._reader is not None:
            await self.disconnect(self._reader)
        await self.disconnect_idle()

    async def disconnect_idle(self) -> None:
        while self._idle:
            await self.disconnect(self._idle.pop())

    # Threads and asyncio implement these methods.

    def connection(self) -> Any:
        raise NotImplementedError

    async def exchange(self, connection: Any, calls: Sequence[Words], timeout: float) -> List[Any]:
        raise NotImplementedError

    async def disconnect(self, connection: Any) -> None:
        raise NotImplementedError

    def signal(self) -> Signal:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Completes the work even if the calling task is cancelled again."""
        raise NotImplementedError

    def start(self, reader: Callable[[], Coroutine[Any, Any, None]]) -> None:
        raise NotImplementedError

    async def join(self) -> None:
        """Waits until the reader has ended, unless it is the caller."""
        raise NotImplementedError


def is_demoted(reply: Any) -> bool:
    """Whether the connection leads to a former primary. The next one leads to its successor."""
    return isinstance(reply, Transient) and str(reply).startswith("READONLY")
