# SPDX-License-Identifier: MIT
"""Connections of redis-py, time and concurrency: what differs between threads and asyncio.

Coroutines of this package are written once. For threads they never suspend: each call blocks the thread that makes it.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable, Coroutine, Dict, List, NamedTuple, Optional, Protocol, Sequence

from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from . import errors
from ._request import Words
from .errors import LockError, NoSession, Transient

# Limit for one call without a reply. Then it is repeated on another connection.
CALL_TIMEOUT = 2.0
# Settings of the user's connection pool, which a single connection rejects.
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

    def new_connection(self, retry: Any) -> Any:
        """A new connection of redis-py with the user's settings. Only repetitions and time limits are this package's own."""
        settings = dict(self.settings)
        settings.update(decode_responses=False, health_check_interval=0, retry=retry, retry_on_error=[])
        settings["socket_timeout"] = CALL_TIMEOUT
        if "path" not in settings:
            settings["socket_connect_timeout"] = min(settings.get("socket_connect_timeout") or CALL_TIMEOUT, CALL_TIMEOUT)
        return self.connection_class(**settings)


class Signal(Protocol):
    def set(self) -> None: ...
    async def wait(self, timeout: Optional[float]) -> bool: ...


class Io:
    """The connections of a session: one for the reader, and as many others as calls are made at the same time."""

    def __init__(self, node: Node) -> None:
        self.node = node
        # The connections that carry no call, the last used one last.
        self._idle: List[Any] = []
        self._reader: Any = None
        self._is_closed = False
        self._opened: "weakref.WeakSet[Any]" = weakref.WeakSet()

    def _open(self) -> Any:
        connection = self.node.new_connection(self.retry_class(NoBackoff(), 0))
        self._opened.add(connection)
        return connection

    def forget(self) -> None:
        """Closes the connections of a forked child, which its parent uses. Otherwise they would outlive the parent."""
        for connection in list(self._opened):
            writer = getattr(connection, "_writer", None)
            sock = getattr(connection, "_sock", None) or writer and getattr(writer.get_extra_info("socket"), "_sock", None)
            if sock and sock.fileno() >= 0:
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
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        try:
            replies = await self._exchange(connection, calls, timeout)
        except Transient:
            # The server may have closed the other idle connections, too.
            await self._disconnect_idle()
            raise
        if self._is_closed:
            await self.result(connection.disconnect())
        else:
            self._idle.append(connection)
        return replies

    async def read(self, calls: Sequence[Words], timeout: float) -> List[Any]:
        """The replies to calls in one round trip, over the reader's connection. Errors of the server are elements of the list."""
        self._reader = self._reader or self._open()
        return await self._exchange(self._reader, calls, timeout)

    async def _exchange(self, connection: Any, calls: Sequence[Words], timeout: float) -> List[Any]:
        replies: List[Any] = []
        is_stale = False
        try:
            await self.result(connection.connect())
            self.limit_send(connection, len(calls))
            if len(calls) == 1:
                await self.result(connection.send_command(*calls[0], check_health=False))
            else:
                await self.result(connection.send_packed_command(connection.pack_commands(calls), check_health=False))
            for _ in calls:
                self.limit(connection, timeout)
                try:
                    replies.append(await self.result(connection.read_response()))
                except ResponseError as error:
                    replies.append(errors.of(error))
                    if isinstance(replies[-1], NoSession) or str(replies[-1]).startswith("READONLY"):
                        # A new connection may lead to another primary.
                        is_stale = True
            if is_stale:
                await self.result(connection.disconnect())
            return replies
        except BaseException as error:
            await self.result(connection.disconnect())
            if isinstance(error, (RedisError, OSError)):
                raise errors.of(error) from error
            raise

    async def close(self) -> None:
        """Waits until the reader has ended, and closes all connections."""
        self._is_closed = True
        await self.join()
        await self.disconnect()

    async def disconnect(self) -> None:
        """Closes the connections that carry no call. The next ones may lead to another primary."""
        if self._reader is not None:
            await self.result(self._reader.disconnect())
        await self._disconnect_idle()

    async def _disconnect_idle(self) -> None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            await self.result(connection.disconnect())

    # Threads and asyncio implement these methods.

    retry_class: Any

    @staticmethod
    def current() -> Any:
        """The calling thread or task."""
        raise NotImplementedError

    def is_reader(self) -> bool:
        """Returns whether the caller runs in the reader: a listener."""
        return False

    async def result(self, call: Any) -> Any:
        """The result of a method of redis-py, which blocks or returns a coroutine."""
        raise NotImplementedError

    def limit(self, connection: Any, timeout: Optional[float]) -> None:
        """Limits the time of the next reply."""
        raise NotImplementedError

    def limit_send(self, connection: Any, count: int) -> None:
        """Limits the time in which calls are sent, unless the connection does."""

    def signal(self) -> Signal:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def start(self, reader: Callable[[], Coroutine[Any, Any, None]]) -> None:
        raise NotImplementedError

    async def join(self) -> None:
        """Waits until the reader has ended, unless it is the caller."""
        raise NotImplementedError
