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
from typing import Any, Callable, Dict, List, Optional, Type

import redis.asyncio

from . import errors
from ._acquire import HELD, OVER, Acquire, Owner
from ._io import Io, Node
from ._options import Mutex, Options
from ._request import Request, Words
from ._session import RETRY_PAUSE, Session
from ._tasks import Tasks
from .errors import Busy, Cancelled, Deadlock, LockError, Misuse, Moved, TimedOut, Unavailable

# Ends of a wait that are final. After all others, the wait continues with a new number.
FINAL = {
    "deadlock": (Deadlock, "waiting could never end"),
    "noreplicas": (Unavailable, "too few replicas have confirmed the grant"),
    "refused": (Misuse, "the server refused the grant"),
    "closed": (Cancelled, "the locks are closed"),
}
OnAsk = Optional[Callable[[Acquire], None]]


class Core:
    def __init__(self, client: Any, io_class: Type[Io], options: Options) -> None:
        if options.grace != 0 and not 0.1 <= options.grace <= options.ttl:
            raise Misuse("grace must be 0, or at least 0.1 and at most ttl")
        self.client, self.io_class, self.options, self.mutex = client, io_class, options, Mutex(options)
        self.sessions: Dict[str, Session] = {}
        # The owner of each thread or task, and those with a name of the user.
        self.owners: "weakref.WeakKeyDictionary[Any, Owner]" = weakref.WeakKeyDictionary()
        self.named: "weakref.WeakValueDictionary[bytes, Owner]" = weakref.WeakValueDictionary()
        self.closed = False
        cores.add(self)

    def new_owner(self) -> Owner:
        # Unique even if sessions have the same name.
        return Owner(f"{self.options.name}:{os.urandom(6).hex()}".encode())

    async def _owner_of(self, session: Session, request: Request, until: float) -> Owner:
        """An owner that is not retired for these keys."""
        if request.owner is None:
            current = self.io_class.current()
            owner = self.owners.get(current)
            if owner is None:
                owner = self.owners[current] = self.new_owner()
            return self.new_owner() if any(owner.retired[key] for key in request.keys) else owner
        owner = self.named.setdefault(request.owner, Owner(request.owner))
        while any(owner.retired[key] for key in request.keys):
            if monotonic() >= until:
                raise Unavailable(f"{request.name}: an earlier call of this owner has no answer yet")
            await session.io.sleep(RETRY_PAUSE)
        return owner

    async def session_of(self, key: bytes) -> Session:
        """The session on the node that serves this key."""
        session = self.sessions.get("")
        if session is None:
            try:
                node = await self._node_of(key)
            except errors.FAILURES as error:
                raise errors.of(error) from error
            session = self.sessions.get(node.name)
            if session is None:
                session = Session(self, self.io_class(node))
                session = self.sessions.setdefault(node.name, session)
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
            update = self.client.nodes_manager.initialize() if hasattr(self.client, "nodes_manager") else None
            if inspect.isawaitable(update):
                await update
        except errors.FAILURES as error:
            raise errors.of(error) from error

    async def acquire(self, request: Request, wait: Optional[float], on_ask: OnAsk = None) -> Acquire:
        """The hold. `on_ask` gets each acquire that may wait."""
        began, outcome = monotonic(), "granted"
        try:
            return await self._acquire(request, wait, on_ask)
        except BaseException as error:
            outcome = getattr(error, "kind", Cancelled.kind)
            raise
        finally:
            self.options.notify(request.label, "waited", outcome, monotonic() - began)

    async def _acquire(
        self, request: Request, wait: Optional[float], on_ask: OnAsk = None, taker: Optional[Owner] = None, source: Words = ()
    ) -> Acquire:
        """With a source, takes over that hold, under the name that it has."""
        until, moving = math.inf if wait is None else monotonic() + wait, math.inf
        while True:
            session = await self.session_of(request.keys[0])
            owner = taker or await self._owner_of(session, request, until if wait else monotonic() + self.options.patience)
            left = max(0.001, until - monotonic()) if wait else wait
            asked = Acquire(session, request, owner, left, source)
            try:
                await self._ask(asked, on_ask)
            except Moved:
                moving = min(moving, monotonic())
                if monotonic() >= (until if wait else moving + self.options.patience):
                    raise
                # The cluster may need a moment until all nodes agree.
                await self._refresh()
                await session.io.sleep(RETRY_PAUSE)
                continue
            moving = math.inf
            if asked.place is HELD:
                return asked
            if source:
                raise asked.lost()
            if asked.reason == "timeout":
                raise (Busy if wait == 0 else TimedOut)(f"{request.name}: another owner holds the lock")
            if asked.reason in FINAL:
                kind, text = FINAL[asked.reason]
                raise kind(f"{request.name}: {text}")

    async def _ask(self, asked: Acquire, on_ask: OnAsk) -> None:
        """Ends the acquire if it fails in any way."""
        try:
            if on_ask is not None:
                on_ask(asked)
            await asked.session.ask(asked)
        except BaseException:
            await asked.session.cancel(asked)
            raise

    async def attach(self, request: Request, ticket: str) -> Acquire:
        owner, _, rest = ticket.partition("|")
        m, _, giver = rest.partition("|")
        try:
            taker, source = Owner(bytes.fromhex(owner)), ("FROM", giver, int(m))
        except ValueError:
            raise Misuse("the ticket was not made by hand_over()")
        return await self._acquire(request, None, taker=taker, source=source)

    def ticket(self, hold: Acquire) -> str:
        """Lets another process take the hold over. Until then, the server renews it while this session lives."""
        if hold.request.several:
            raise Misuse("several locks cannot be handed over together")
        with self.mutex:
            if hold.is_lost() or hold.place is not HELD:
                raise hold.lost()
            if not hold.is_declared():
                raise Unavailable(f"{hold.request.name}: no server has confirmed the hold yet; try again")
            hold.session.give(hold)
        return f"{hold.owner.name.hex()}|{hold.n}|{self.options.name}"

    async def relocate(self, acquires: List[Acquire]) -> None:
        """Leaves acquires to the sessions on the nodes that serve their slots now: after a move, or the failover of a node."""
        try:
            await self._refresh()
            for acquire in acquires:
                session = await self.session_of(acquire.request.keys[0])
                if session is not acquire.session:
                    session.adopt(acquire)
        except LockError:
            # The reader tries again.
            pass

    async def wait_lost(self, hold: Acquire, timeout: float) -> bool:
        until = monotonic() + timeout
        while monotonic() < until:
            with self.mutex:
                if hold.place is not HELD or hold.is_lost():
                    break
                changed = hold.changed = hold.changed or hold.session.io.signal()
            await changed.wait(max(0.0, min(until, hold.lease_ends) - monotonic()))
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
        for session in list(self.sessions.values()):
            await session.close()

    def leave(self) -> None:
        """Ends the sessions soon. Called by the garbage collector, so it does not lock."""
        self.closed = True
        for session in list(self.sessions.values()):
            session.closed = True

    def forget(self) -> None:
        """R17: a forked child has no hold and no connection of its parent."""
        sessions, self.sessions = list(self.sessions.values()), {}
        self.options = self.options._replace(name=default_name())
        self.owners, self.named, self.mutex = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary(), Mutex(self.options)
        for session in sessions:
            session.mutex, session.closed = self.mutex, True
            for acquire in [*session.asked.values(), *session.held.values(), *session.unsettled.values()]:
                acquire.place, acquire.reason = OVER, "forked"
        for session in sessions:
            session.io.forget()


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
