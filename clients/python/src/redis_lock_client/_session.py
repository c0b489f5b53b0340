# SPDX-License-Identifier: MIT
"""Two connections that carry all waits and holds of a process: one for commands, one for messages."""

from __future__ import annotations

import asyncio
import logging
import os
import socket as sockets
import struct
import time
import uuid
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from socket import AF_UNIX, SO_KEEPALIVE, SO_LINGER, SOL_SOCKET
from typing import Any, Callable, Coroutine, Deque, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple, Type

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from ._place import Place
from .errors import Disconnected, LockError, Misuse, Passing, Unavailable, of

BROKEN = (OSError, RedisConnectionError, asyncio.TimeoutError, asyncio.IncompleteReadError)

# A call that has no time to wait has so many seconds for its reply.
SOON = 1.0

SILENT = "no connection: the server does not answer"

# What a server says to one connection too many.
FULL = "max number of clients"

# So often, in seconds at most and in patiences, who waits in the server looks whether it is there, and has so many seconds for
# that at most: a server remembers a call for longer than both.
LOOK_AGAIN = (8.0, 1.6)
LOOKS_FOR = 5.0

# After a broken connection, in seconds; then twice as long, and so on up to this.
TRY_AGAIN = 0.05
TRY_RARELY = 1.0

# So TCP finds in seconds that a server has vanished from a connection that is silent for long, where it can be told so.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

log = logging.getLogger("redis_lock_client")


class Event(NamedTuple):
    """What a listener hears: `waited` when an acquire ends, `held` when a hold does."""

    label: str
    event: str
    """`waited` or `held`."""
    outcome: str
    """Of a wait `granted`, or a kind of error; of a hold `released` or `lost`."""
    seconds: float
    """How long it was."""


Listener = Callable[[Event], None]

_links: "weakref.WeakSet[Link]" = weakref.WeakSet()

# A loop alone keeps no task, and a connection that was given up is nobody's.
_readers: "Set[asyncio.Task[None]]" = set()


def text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _let_go(descriptors: Iterable[int]) -> None:
    """In a forked child: a copy of a socket would keep the holds of a parent that has died. Something harmless takes its number,
    as whoever collects the copy closes that number."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def _after_fork() -> None:
    links = list(_links)
    _let_go(link.descriptor for link in links if link.descriptor is not None)
    for link in links:
        link.descriptor = None


os.register_at_fork(after_in_child=_after_fork)


class Loop(asyncio.SelectorEventLoop):
    """Knows its sockets before they are connected: a child that is forked meanwhile must not keep them open."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: "weakref.WeakSet[sockets.socket]" = weakref.WeakSet()

    async def sock_connect(self, sock: sockets.socket, address: Any) -> None:
        self._sockets.add(sock)
        await super().sock_connect(sock, address)

    def let_go(self) -> None:
        """In a child."""
        _let_go(sock.fileno() for sock in list(self._sockets) if sock.fileno() >= 0)


async def within(future: "asyncio.Future[Any]", seconds: Optional[float]) -> Any:
    """`asyncio.wait_for` swallows a cancellation that comes with the result, before Python 3.12: here it counts."""
    done, _ = await asyncio.wait({future}, timeout=None if seconds is None else max(0.0, seconds))
    if not done:
        raise asyncio.TimeoutError
    return future.result()


async def told_within(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, or for that long."""
    task = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task}, timeout=max(0.0, seconds))
    finally:
        task.cancel()


class Link:
    """A connection on which calls overtake nothing and wait for nothing: replies come in the order of the calls."""

    def __init__(self, connection: Any, on_message: Optional[Callable[[Any], None]]) -> None:
        self._connection, self._on_message = connection, on_message
        self.on_end: Callable[[], None] = lambda: None
        # With the time at which each was asked for.
        self._replies: Deque[Tuple["asyncio.Future[Any]", float]] = deque()
        # For so long it may be silent, if there is a limit.
        self._patience = float("inf")
        self._timer: Optional[asyncio.TimerHandle] = None
        self._suspect: Optional["asyncio.Future[Any]"] = None
        self.made = float("-inf")
        self._socket: Any = None
        self.open = True
        self.descriptor: Optional[int] = None

    async def start(self) -> None:
        # A new task of redis-py would read with this time-out, and a message may be long in coming.
        try:
            await self._connection.connect()
        except BaseException:
            # Half a connection is none.
            self._abort()
            raise
        self._connection.socket_timeout = None
        self._socket = socket = self._connection._writer.get_extra_info("socket")
        self.descriptor = socket.fileno() if socket is not None else None
        if socket is not None and socket.family != AF_UNIX:
            # A wait without limit has no other way to find that its server has vanished.
            socket.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(sockets, name):
                    socket.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)
        _links.add(self)
        self.made = time.monotonic()
        self._reader = asyncio.ensure_future(self._read())
        _readers.add(self._reader)
        self._reader.add_done_callback(_readers.discard)

    def limit(self, patience: float) -> None:
        """It is given up when a call was not answered for so long, whether anybody still waits for the reply or not."""
        self._patience = patience

    @property
    def asked(self) -> bool:
        """Whether something is not answered yet."""
        return len(self._replies) > 0

    def _expect(self) -> None:
        if self._timer is None and self._replies and self._patience < float("inf"):
            again = TRY_AGAIN if self._suspect is self._replies[0][0] else 0.0
            left = self._replies[0][1] + self._patience - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(again, left), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._replies and self._replies[0][1] + self._patience <= time.monotonic():
            if self._suspect is self._replies[0][0]:
                return self.break_off(why="the server does not answer")
            # In a loop that was busy, what has come is read first.
            self._suspect = self._replies[0][0]
        self._expect()

    def send(self, *words: Any) -> "asyncio.Future[Any]":
        """The reply, when it comes. Nothing waits until the socket takes the words: who is silent is given up."""
        try:
            packed = self._connection.pack_command(*words)
        except (RedisError, ValueError) as error:
            raise Misuse(str(error)) from error
        if not self.open:
            raise Disconnected("the connection is lost")
        writer = self._connection._writer
        reply: "asyncio.Future[Any]" = asyncio.get_running_loop().create_future()
        self._replies.append((reply, time.monotonic()))
        # Not by redis-py's own call: that makes a new connection if this one has just been broken off, and nobody would know.
        try:
            if writer.transport.is_closing():
                raise Disconnected("the connection is lost")
            writer.writelines(packed)
        except Exception as error:
            # Event loops say in many ways that a transport has ended.
            self.break_off()
            raise Disconnected("the connection is lost") from error
        self._expect()
        return reply

    async def _read(self) -> None:
        try:
            while True:
                result: Any
                try:
                    result = await self._connection.read_response(disconnect_on_error=False)
                except ResponseError as error:
                    result = error
                if self._on_message is not None and isinstance(result, list) and text(result[0]) == "message":
                    self._on_message(text(result[2]))
                    continue
                reply, _ = self._replies.popleft()
                if reply.done():
                    continue
                if isinstance(result, ResponseError):
                    reply.set_exception(result)
                    reply.exception()  # Nobody may be left to look at it.
                else:
                    reply.set_result(result)
        except (*BROKEN, RedisError, IndexError) as error:
            self.break_off(why=str(error))
        except Exception:
            log.exception("a reply cannot be read")
        finally:
            self.break_off()

    def break_off(self, reset: bool = True, why: str = "the connection is lost") -> None:
        """Nothing of what is not answered will be. What the kernel has yet must not come to the server behind what is said on the
        next connection: so it is forgotten with a reset, unless the server is only to hear of the end."""
        if not self.open:
            return
        self.open = False
        if reset and self._socket is not None:
            with suppress(OSError):
                self._socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.descriptor = None
        _links.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for reply, _ in self._replies:
            if not reply.done():
                reply.set_exception(Disconnected(why))
                reply.exception()  # Nobody may be left to look at it.
        self._abort()
        self.on_end()

    def _abort(self) -> None:
        writer, self._connection._writer = self._connection._writer, None
        if writer is not None:
            writer.transport.abort()

    async def close(self) -> None:
        self.break_off(reset=False)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._connection.disconnect(nowait=True)


# How a call is sent on a connection: made into words only then, as much may change before there is one.
Send = Callable[[Link], "asyncio.Future[Any]"]


def say(*words: Any) -> Send:
    return lambda link: link.send(*words)


def _link_of(made: "asyncio.Task[Link]") -> Optional[Link]:
    """The connection that this has made, if it is there."""
    if not made.done() or made.cancelled() or made.exception() is not None:
        return None
    link = made.result()
    return link if link.open else None


class Session:
    """The connections, made when they are needed, and again when they broke."""

    def __init__(self, place: Place, patience: float, listener: Optional[Listener]) -> None:
        self._place, self._sentinels = place, list(place.sentinels)
        self.patience, self._listener = patience, listener
        self.inbox = f"inbox-{uuid.uuid4()}"
        self.waits: Dict[str, asyncio.Event] = {}
        # Whom it concerns that a connection broke: the holds that are bound to it. And what tells each that it has ended.
        self.holds: Dict[asyncio.Event, Tuple[Iterable[Any], Any, Callable[[bool], None]]] = {}
        self.tasks: Set["asyncio.Task[None]"] = set()
        # Whose hold of what is being given back, or whose wait is taken back.
        self._giving: Dict["asyncio.Future[None]", Tuple[Set[str], str]] = {}
        # Of commands and of messages, each made by a task that all wait for who need it.
        self._made: Dict[str, "asyncio.Task[Link]"] = {}
        # For waits that have a connection of their own: those that wait, and one that is kept for the next.
        self._own: Set[Link] = set()
        self._idle: Optional[Link] = None
        # What has been found since there was a connection, for those who leave before an attempt is over.
        self._why = SILENT
        # How often another server had the locks, since the last good reply; and until when nobody connects for that.
        self._elsewhere, self._not_before = 0, float("-inf")
        # What acquires, and is to end before the connections do.
        self._attempts: Set["asyncio.Future[None]"] = set()
        self.ending, self._closing = False, asyncio.Event()

    async def _shared(self, name: str, make: Callable[[], Coroutine[Any, Any, Link]], patience: float) -> Link:
        """The connection that all share. Who has waited for another's attempt shares its failure, or leaves earlier."""
        if self.closed:
            raise Unavailable("closed")
        task = self._made.get(name)
        if task is None or (task.done() and _link_of(task) is None):
            self._may_connect()
            task = self._made[name] = asyncio.ensure_future(make())
            # Nobody may be left to look at it.
            task.add_done_callback(lambda made: made.cancelled() or made.exception())
        if not task.done():
            await asyncio.wait({task}, timeout=max(0.0, patience))
        if not task.done():
            raise Disconnected(self._why)
        if task.cancelled():
            raise Unavailable("closed")
        return task.result()

    async def _open(
        self, on_message: Optional[Callable[[str], None]], on_end: Callable[[], None], patience: float
    ) -> Link:
        if self._place.name is None:
            return await self._connect(self._place, patience, on_message, on_end)
        failure = Disconnected("no connection: there is no Sentinel")
        for _ in list(self._sentinels):
            sentinel = self._sentinels[0]
            try:
                place = await self._primary(sentinel, self._place.name)
            except LockError as error:
                # What one knows of the name, the others know, too; but a Sentinel may be new, or away: it comes last now.
                failure = Disconnected(str(error))
                self._why = str(error)
                if self._sentinels[0] is sentinel:
                    self._sentinels.append(self._sentinels.pop(0))
                continue
            link = await self._connect(place, patience, on_message, on_end)
            role = await self._ask(link, patience, "ROLE")
            # After a failover they may name the old one for a moment. Who has no permission to ask is told by the first call.
            if isinstance(role, list) and text(role[0]) != "master":
                await link.close()
                raise Disconnected(f"no connection: {place.settings['host']}:{place.settings['port']} is no primary")
            self._why = SILENT
            return link
        raise failure

    async def _primary(self, of: Place, name: str) -> Place:
        """The primary that this Sentinel knows."""
        # Whoever calls does not wait much longer than for one.
        patience = min(SOON, self.patience) if len(self._sentinels) > 1 else self.patience
        sentinel = await self._connect(of, patience, None, lambda: None)
        try:
            found = await self._ask(sentinel, patience, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        finally:
            await sentinel.close()
        if not isinstance(found, list):
            raise Disconnected(f"no connection: a Sentinel knows no primary {name}")
        return self._place.at(text(found[0]), int(found[1]))

    async def _ask(self, link: Link, patience: float, *words: Any) -> Any:
        """The reply, or the error that is one."""
        try:
            return await within(link.send(*words), patience)
        except ResponseError as error:
            return error
        except BaseException as error:
            link.break_off()
            if isinstance(error, (*BROKEN, LockError)):
                raise Disconnected(f"no connection: {error}") from error
            raise

    async def _connect(
        self, place: Place, patience: float, on_message: Optional[Callable[[str], None]], on_end: Callable[[], None]
    ) -> Link:
        # RESP2, in which a message comes as a reply does: redis-py keeps those of RESP3 to itself. When to try again is this
        # package's own affair, and what is no text must not end a connection.
        ours = {"protocol": 2, "retry": Retry(NoBackoff(), 0), "retry_on_error": [], "health_check_interval": 0}
        ours["decode_responses"] = False
        kind: Any = place.kind
        link = Link(kind(**{**place.settings, **ours}), on_message)
        start = asyncio.ensure_future(link.start())
        try:
            await within(start, patience)
        except BaseException as error:
            start.cancel()
            try:
                await asyncio.gather(start, return_exceptions=True)
            finally:
                link.break_off()
            # Also that of whoever gives the password.
            if isinstance(error, Exception):
                raise Disconnected(f"no connection: {error}") from error
            raise
        # One that never was concerns nobody.
        link.on_end = on_end
        return link

    def tell(self, label: str, event: str, outcome: str, seconds: float) -> None:
        if self._listener is not None:
            try:
                self._listener(Event(label, event, outcome, seconds))
            except Exception:
                # Its author's mistake is no reason to lose a lock.
                log.exception("a listener of locks failed")

    def _wake(self) -> None:
        for event in (*self.waits.values(), *self.holds):
            event.set()

    def _told(self, message: str) -> None:
        # "granted <request> <key>" and "lost <request> <key>" both mean: ask again.
        event = self.waits.get(message.split(" ", 2)[1])
        if event is not None:
            event.set()

    async def _commands(self) -> Link:
        link = await self._open(None, self._wake, self.patience)
        link.limit(self.patience)
        return link

    async def _messages(self) -> Link:
        link = await self._open(self._told, self._wake, self.patience)
        link.limit(self.patience)
        try:
            await link.send("SUBSCRIBE", f"lock:inbox:{self.inbox}")
        except BaseException as error:
            await link.close()
            if isinstance(error, ResponseError):
                raise of(error) from error
            raise
        return link

    async def listen(self, patience: float) -> None:
        """Before a wait: a message that nobody hears is taken for a refusal."""
        await self._shared("messages", self._messages, min(patience, self.patience))

    def look(self) -> None:
        """Who waits has heard nothing for long: is anybody there on the connection for messages? It may be idle for hours, and
        whatever is between drops it in silence."""
        made = self._made.get("messages")
        link = _link_of(made) if made is not None else None
        if link is not None and not link.asked:
            with suppress(LockError):
                link.send("PING")

    async def call(self, *words: Any, patience: Optional[float] = None) -> Any:
        return await self.ask(say(*words), patience)

    async def ask(self, send: Send, patience: Optional[float] = None, foreign: bool = False) -> Any:
        """The reply. `Disconnected` if there is none in `patience` seconds: the session's own is the most. A foreign command has
        errors of its own."""
        most = self.patience if patience is None else min(patience, self.patience)
        deadline = time.monotonic() + most
        link = await self._shared("commands", self._commands, most)
        reply = send(link)
        try:
            # Who says nothing of patience hears of the connection's own end.
            result = await within(reply, None if patience is None else deadline - time.monotonic())
            self._elsewhere = 0
            return result
        except asyncio.TimeoutError:
            raise Disconnected("the server does not answer") from None
        except ResponseError as error:
            ours = of(error)
            if isinstance(ours, Disconnected) and not foreign:
                self._was_elsewhere()
                for made in map(_link_of, self._made.values()):
                    if made is not None:
                        made.break_off()
            raise ours from error

    def _was_elsewhere(self) -> None:
        """The next connections may lead to another server, but who asks at once might make thousands of them. Many hear of it at
        the same time."""
        if self.pause() == 0:
            self._elsewhere += 1
            self._not_before = time.monotonic() + min(TRY_RARELY, TRY_AGAIN * 2 ** min(10, self._elsewhere - 1))

    def pause(self) -> float:
        """For how many seconds no connection is made, as another server has the locks."""
        return max(0.0, self._not_before - time.monotonic())

    def _may_connect(self) -> None:
        if self.pause() > 0:
            raise Disconnected("no connection: another server is the primary")

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def decoded(self, reply: Any) -> Any:
        """As the user's own client gives it."""
        settings = self._place.settings
        if isinstance(reply, list):
            return [self.decoded(one) for one in reply]
        if isinstance(reply, bytes) and settings.get("decode_responses"):
            return reply.decode(settings.get("encoding", "utf-8"), settings.get("encoding_errors", "strict"))
        return reply

    async def block(self, send: Send, deadline: Optional[float]) -> Tuple[Any, Link]:
        """The reply to a call that waits in the server, until then or without limit, and the connection that no other call has
        meanwhile: it is to be broken off, or to `rest`."""
        if self.closed:
            raise Unavailable("closed")

        def patience() -> float:
            return self.patience if deadline is None else min(self.patience, max(SOON, deadline - time.monotonic()))

        # First that on which it is looked whether anybody is there: an answer on a younger one would say nothing, and the wait
        # would lose its place.
        await self._shared("commands", self._commands, patience())
        idle, self._idle = self._idle, None
        if idle is not None and self._is_older(idle):
            idle.break_off()
        link = idle if idle is not None and idle.open else await self._open_own(patience())
        reply: "asyncio.Future[Any]"

        async def move() -> None:
            """The wait keeps its place if its connection ends after the same call has come on another, and the server tells the
            old one so."""
            nonlocal link, reply
            old, fresh = link, await self._open_own(patience())
            try:
                reply, link = send(fresh), fresh
            except BaseException:
                fresh.break_off()
                raise
            asyncio.get_running_loop().call_later(TRY_AGAIN, old.break_off)

        probe = asyncio.ensure_future(self._probe(lambda: link, move))
        try:
            if self.closed:
                raise Unavailable("closed")
            reply, heard = send(link), None
            while heard is not reply:
                heard = reply
                await asyncio.wait({heard}, timeout=None if deadline is None else max(0.0, deadline - time.monotonic() + SOON))
            result = await within(reply, 0)
            self._elsewhere = 0
            return result, link
        except ResponseError as error:
            ours = of(error)
            if isinstance(ours, Disconnected):
                self._was_elsewhere()
            if isinstance(ours, Disconnected) or (isinstance(ours, Passing) and self._place.name is not None):
                # Sentinels may know another by now.
                link.break_off()
            else:
                # It got nothing.
                self.rest(link)
            raise ours from error
        except BaseException as error:
            link.break_off()
            if isinstance(error, asyncio.TimeoutError):
                raise Disconnected("the server does not answer") from None
            raise
        finally:
            probe.cancel()

    async def _open_own(self, patience: float) -> Link:
        self._may_connect()
        link = await self._open(None, self._forget, patience)
        self._own.add(link)
        # Redis-py may have said nothing: then nobody may be there who answers. A refusal is an answer, too.
        await self._ask(link, patience, "PING")
        return link

    def rest(self, link: Link) -> None:
        """Nothing is bound to the connection of `block` any more: it may carry the next."""
        if self._idle is None and link.open and not self.closed:
            self._idle = link
        else:
            link.break_off(reset=False)

    def _forget(self) -> None:
        self._own = {link for link in self._own if link.open}

    def _is_older(self, link: Link) -> bool:
        made = self._made.get("commands")
        commands = _link_of(made) if made is not None else None
        return commands is not None and link.made < commands.made

    async def _probe(self, link: Callable[[], Link], move: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """TCP may take long to find that nobody is there. An answer on the other connection tells that somebody is, unless that
        was made later: then it may lead to another server. If nothing tells, the wait moves."""
        while link().open:
            await asyncio.sleep(min(LOOK_AGAIN[0], LOOK_AGAIN[1] * self.patience))
            if self.pause() > 0:
                continue
            try:
                await self.call("PING", patience=min(self.patience, LOOKS_FOR))
                tells = not self._is_older(link())
            except LockError as error:
                # A refusal does, too.
                tells = not isinstance(error, Disconnected) or FULL in str(error)
            if tells:
                continue
            try:
                await move()
            except LockError as error:
                # An owner of whom something is given back says nothing yet.
                if isinstance(error, Disconnected) and FULL not in str(error):
                    link().break_off()

    async def insist(
        self, seconds: float, send: Send, through: Type[Unavailable] = Passing, patience: Optional[float] = None
    ) -> Any:
        """A call that may be sent twice, and is, for so long, when its connection breaks or the server can do nothing now;
        through `Unavailable` whatever it says."""
        deadline, pause = time.monotonic() + seconds, TRY_AGAIN
        while True:
            try:
                return await self.ask(send, max(SOON, deadline - time.monotonic()) if seconds > 0 else patience)
            except through:
                if self.closed or time.monotonic() >= deadline:
                    raise
                await self.rest_for(pause)
                pause = min(TRY_RARELY, 2 * pause)

    async def rest_for(self, pause: float) -> None:
        """So long, or until it is closed."""
        await told_within(self._closing, pause)

    def later(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Behind the caller's back, and until `close` at most."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def give_back(self, keys: Iterable[Any], owner: Any, work: Coroutine[Any, Any, None]) -> None:
        """The same, so that `given_back` knows of it."""
        self.gives_back(keys, owner, self.later(work))

    def gives_back(self, keys: Iterable[Any], owner: Any, over: "asyncio.Future[None]") -> None:
        """Until that is over."""
        self._giving[over] = {text(key) for key in keys}, text(owner)
        over.add_done_callback(self._giving.pop)

    def giving(self, keys: Iterable[Any], owner: Any) -> Set["asyncio.Future[None]"]:
        """What is being given back of that owner."""
        names = {text(key) for key in keys}
        giving = self._giving.items()
        return {over for over, (held, of) in giving if of == text(owner) and held & names and not over.done()}

    def has(self, keys: Iterable[Any], owner: Any) -> bool:
        """Whether that owner has any of them by a call of this session."""
        return len(self._of(keys, owner)) > 0

    def granted(self, keys: Iterable[Any], owner: Any, shared: bool) -> None:
        """What this owner had of them has ended at the server, unless both are shared: it would not have been granted them."""
        for ended in self._of(keys, owner):
            ended(shared)

    def _of(self, keys: Iterable[Any], owner: Any) -> List[Callable[[bool], None]]:
        names, holds = {text(key) for key in keys}, self.holds.values()
        return [ended for held, of, ended in holds if text(of) == text(owner) and names & {text(key) for key in held}]

    async def given_back(self, keys: Iterable[Any], owner: Any, seconds: float) -> bool:
        """Whether nothing of that owner is being given back any more; waits so long for it."""
        giving = self.giving(keys, owner)
        return not giving or not (await asyncio.wait(giving, timeout=seconds))[1]

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What acquires does so in here."""
        over: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self._attempts.add(over)
        try:
            yield
        finally:
            self._attempts.discard(over)
            over.set_result(None)

    async def close(self) -> None:
        """Drops the connections: the server ends the holds that are bound to them. Before, what waits and what is being given
        back has a moment to tell the server."""
        self.ending, end = True, time.monotonic() + SOON
        for own in list(self._own):
            own.break_off()
        for told in self.waits.values():
            told.set()
        try:
            while (pending := {*self._attempts, *self._giving}) and time.monotonic() < end:
                await asyncio.wait(pending, timeout=end - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also for those who do not wait for that.
            await self._drop()

    async def _drop(self) -> None:
        self._closing.set()
        made = list(self._made.values())
        for task in made:
            task.cancel()
        links = await asyncio.gather(*made, return_exceptions=True)
        for link in (*links, self._idle, *self._own):
            if isinstance(link, Link):
                await link.close()
        self._wake()
        await asyncio.gather(*self.tasks, return_exceptions=True)
