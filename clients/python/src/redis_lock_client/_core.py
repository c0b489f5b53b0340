# SPDX-License-Identifier: MIT
"""Shared by threads and asyncio: a session for each node, and the verbs."""

from __future__ import annotations

import inspect
import math
import os
import socket
import uuid
import weakref
from time import monotonic
from typing import Any, Callable, Dict, List, Optional

import redis.asyncio

from . import errors
from ._acquire import HELD, OVER, Acquire, Owner
from ._io import Io, Node
from ._options import Mutex, Options
from ._request import Request
from ._session import RETRY_PAUSE, Session
from ._tasks import Tasks
from .errors import Busy, Cancelled, Deadlock, LockError, Misuse, Moved, TimedOut, Unavailable

# Ends of a wait that are final. After all others, the wait continues with a new number.
FINAL = {"deadlock": Deadlock, "noreplicas": Unavailable, "refused": Misuse}


class Core:
    def __init__(
        self,
        client: Any,
        io_class: Callable[[Node], Io],
        owners: Any,
        owner: Callable[["Core"], Owner],
        options: Options,
    ) -> None:
        if options.grace != 0 and not 0.1 <= options.grace <= options.ttl:
            raise Misuse("grace must be 0, or at least 0.1 and at most ttl")
        self.client, self.io_class, self.options = client, io_class, options
        # The owners of threads or tasks, and the way to find that of the calling one.
        self.owners, self._owner = owners, owner
        self._sessions: Dict[str, Session] = {}
        self._mutex = Mutex(options)
        self.closed = False
        cores.add(self)

    def new_owner(self) -> Owner:
        # Unique even if sessions have the same name.
        return Owner(f"{self.options.name}:{os.urandom(6).hex()}".encode())

    async def session_of(self, key: bytes) -> Session:
        """The session on the node that serves this key."""
        session = self._sessions.get("")
        if session is None:
            try:
                node = await self._node_of(key)
            except errors.FAILURES as error:
                raise errors.of(error) from error
            session = self._sessions.get(node.name)
            if session is None:
                session = Session(self.io_class(node), self.options, self._mutex, self.session_of, self._relocate)
                session = self._sessions.setdefault(node.name, session)
        if self.closed:
            raise Misuse("the locks are closed; make new ones")
        return session

    async def _node_of(self, key: bytes) -> Node:
        pool = getattr(self.client, "connection_pool", None)
        if pool is None and not hasattr(self.client, "get_node_from_key"):
            raise Misuse(f"{type(self.client).__name__} is no client of redis-py")
        is_asyncio = isinstance(self.client, (redis.asyncio.Redis, redis.asyncio.RedisCluster))
        if is_asyncio is not (self.io_class is Tasks):
            raise Misuse("use aio.Locks with a client of redis.asyncio, and Locks with another one")
        if pool is not None:
            return Node.of("", pool)
        if inspect.iscoroutinefunction(getattr(self.client, "initialize", None)):
            await self.client.initialize()
        node = self.client.get_node_from_key(key)
        if hasattr(node, "connection_kwargs"):
            return Node.of(node.name, node)
        return Node.of(node.name, self.client.get_redis_connection(node).connection_pool)

    async def _refresh(self) -> None:
        """Asks the cluster which node serves which slot."""
        try:
            update = self.client.nodes_manager.initialize()
            if inspect.isawaitable(update):
                await update
        except errors.FAILURES as error:
            raise errors.of(error) from error

    async def acquire(
        self, request: Request, wait: Optional[float], on_ask: Optional[Callable[[Session, Acquire], None]] = None
    ) -> Optional[Acquire]:
        """The hold, or None if the limit of the wait is over. `on_ask` gets each acquire that may wait."""
        began, outcome = monotonic(), "granted"
        try:
            hold = await self._acquire(request, wait, on_ask)
            if hold is None:
                outcome = Busy.kind if wait == 0 else TimedOut.kind
            return hold
        except BaseException as error:
            outcome = getattr(error, "kind", Cancelled.kind)
            raise
        finally:
            self.options.notify(request.label, "waited", outcome, monotonic() - began)

    async def _acquire(
        self, request: Request, wait: Optional[float], on_ask: Optional[Callable[[Session, Acquire], None]]
    ) -> Optional[Acquire]:
        until = math.inf if wait is None else monotonic() + wait
        moving = math.inf
        while True:
            owner = self._owner(self) if request.owner is None else Owner(request.owner)
            left = wait if not wait else max(0.001, until - monotonic())
            try:
                asked = Acquire(await self.session_of(request.keys[0]), request, owner, left)
                await self._ask(asked, on_ask)
                if asked.state is HELD:
                    return asked
            except TimedOut:
                return None
            except Moved:
                moving = min(moving, monotonic())
                if monotonic() >= (until if wait else moving + self.options.patience):
                    raise
                # The cluster may need a moment until all nodes agree.
                await self._refresh()
                await (await self.session_of(request.keys[0])).io.sleep(RETRY_PAUSE)
                continue
            moving = math.inf
            if asked.reason == "timeout":
                return None
            if asked.reason in FINAL:
                raise FINAL[asked.reason](f"{request.name}: the wait ended ({asked.reason})")

    async def _ask(self, asked: Acquire, on_ask: Optional[Callable[[Session, Acquire], None]] = None) -> None:
        """Ends the acquire if it fails in any way."""
        session = asked.number.session
        try:
            if on_ask is not None:
                on_ask(session, asked)
            await session.ask(asked)
        except BaseException:
            await session.cancel(asked)
            raise

    async def attach(self, request: Request, ticket: str) -> Acquire:
        owner, _, rest = ticket.partition("|")
        m, _, giver = rest.partition("|")
        try:
            taker, source = Owner(bytes.fromhex(owner)), ("FROM", giver, int(m))
        except ValueError:
            raise Misuse("the ticket was not made by hand_over()")
        asked = Acquire(await self.session_of(request.keys[0]), request, taker, source=source)
        await self._ask(asked)
        if asked.state is not HELD:
            raise asked.lost()
        return asked

    def ticket(self, hold: Acquire) -> str:
        """Lets another process take the hold over. Until then, this process renews it, and does not release it."""
        if hold.is_lost() or hold.state is not HELD:
            raise hold.lost()
        if hold.request.several:
            raise Misuse("several locks cannot be handed over together")
        hold.is_handed_over = True
        hold.owner.retired += 1
        return f"{hold.owner.name.hex()}|{hold.number.n}|{self.options.name}"

    async def _relocate(self, acquires: List[Acquire]) -> None:
        """Leaves acquires to the sessions on the nodes that serve their slots now: after a move, or the failover of a node."""
        try:
            await self._refresh()
            for acquire in acquires:
                (await self.session_of(acquire.request.keys[0])).adopt(acquire)
        except LockError:
            # The reader tries again.
            pass

    async def wait_lost(self, hold: Acquire, timeout: float) -> bool:
        until = monotonic() + timeout
        while hold.state is HELD and not hold.is_lost() and monotonic() < until:
            with self._mutex:
                hold.changed = hold.changed or hold.number.session.io.signal()
            hold.changed.clear()
            if hold.state is HELD:
                await hold.changed.wait(min(until, hold.lease_ends) - monotonic())
        return hold.is_lost()

    async def execute(self, *words: Any) -> Any:
        """A command with the user's own client, so with its encodings and hooks."""
        try:
            reply = self.client.execute_command(*words)
            return await reply if inspect.isawaitable(reply) else reply
        except errors.FAILURES as error:
            raise errors.of(error) from error

    async def query(self, key: bytes) -> Optional[Dict[str, Any]]:
        reply = await self.execute("LOCK.INFO", key)
        if reply is None:
            return None
        info = _as_dict(reply)
        return {**info, "holders": [_as_dict(holder) for holder in info["holders"]]}

    async def close(self) -> None:
        self.closed = True
        for session in list(self._sessions.values()):
            await session.close()

    def leave(self) -> None:
        """Ends the sessions soon. Called by the garbage collector, so it does not lock."""
        self.closed = True
        for session in list(self._sessions.values()):
            session.closed = True

    def forget(self) -> None:
        """R17: a forked child has no hold and no connection of its parent."""
        for session in self._sessions.values():
            session.io.forget()
            session.mutex, session.closed = Mutex(self.options), True
            for acquire in [*session.asked.values(), *session.held.values(), *session.undeclared]:
                acquire.state, acquire.reason = OVER, "forked"
        self._sessions, self.owners, self._mutex = {}, type(self.owners)(), Mutex(self.options)
        self.options = self.options._replace(name=default_name())


cores: "weakref.WeakSet[Core]" = weakref.WeakSet()


def _after_fork() -> None:
    for core in list(cores):
        core.forget()


os.register_at_fork(after_in_child=_after_fork)


def _as_dict(reply: Any) -> Dict[str, Any]:
    """A map is a list in RESP2, and its keys are bytes unless the user's client decodes them."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2])
    return {key.decode() if isinstance(key, bytes) else key: value for key, value in pairs}


def default_name() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
