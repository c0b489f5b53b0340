# SPDX-License-Identifier: MIT
"""A client's presence on one server: its numbers, holds and waits, and the loop that reads events.

Rules R1 to R23 are those of docs/sessions.md. Nothing here knows threads or asyncio: an `Io` blocks the calling thread, or
suspends the calling task. Times are in seconds, by the monotonic clock.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from time import monotonic
from typing import Any, Awaitable, Callable, Dict, List, NamedTuple, Optional, Tuple

from redis.exceptions import RedisError

from ._io import Io, Signal
from ._request import Request, Words, milliseconds
from .errors import Cancelled, Late, LockError, Lost, Misuse, Moved, NoSession, Transient, Unavailable

# The session ends if its client is silent for TTL, or its connection is closed for GRACE.
TTL, GRACE = 30.0, 3.0
# Time that LOCK.EVENTS waits in the server, and at most a third of GRACE.
EVENTS_BLOCK = 1.0
# Maximum number of events in a reply. A full reply confirms nothing (R2).
EVENTS_COUNT = 1000
# Limit for a call without a reply, and for a wait without a server.
PATIENCE = 5.0
# Extra time for the reply to a call that waits in the server.
REPLY_GRACE = 1.0
# The first and the longest pause before a call is repeated.
RETRY_PAUSE, MAX_RETRY_PAUSE = 0.05, 1.0
# Limit for the last call of a session, LOCK.SESSION CLOSE.
CLOSE_TIMEOUT = 1.0

log = logging.getLogger("redis_lock_client")


class Event(NamedTuple):
    """An event for a listener."""

    label: Optional[str]
    """The label of the lock, if it has one."""
    event: str
    """`waited`, `held`, `jeopardy` or `safe`."""
    outcome: str
    """For a wait, `granted` or the kind of its error. For a hold, `released` or `lost`. Otherwise empty."""
    seconds: float
    """Duration of the wait or of the hold so far."""


Listener = Callable[[Event], None]


class Options(NamedTuple):
    name: str
    ttl: float = TTL
    grace: float = GRACE
    patience: float = PATIENCE
    listener: Optional[Listener] = None

    def notify(self, *event: Any) -> None:
        if self.listener is not None:
            try:
                self.listener(Event(*event))
            except Exception:
                log.exception("a listener of locks failed")


class Mutex:
    """Protects the state of a session. Calls the listener after it was released, so a listener may use locks."""

    def __init__(self, options: Options) -> None:
        self._options, self._lock = options, threading.Lock()
        self.events: List[Tuple[Any, ...]] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        events, self.events = self.events, []
        self._lock.release()
        for event in events:
            self._options.notify(*event)


class Owner:
    """The name under which a thread or task acquires locks. A retired owner is not used again: a call of it may be late."""

    def __init__(self, name: bytes) -> None:
        self.name, self.retired = name, False


class Number(NamedTuple):
    """The identity of an acquire on the server."""

    session: "Session"
    id: bytes
    n: int


ASKED, HELD, ENDING, OVER = "asked", "held", "ending", "over"
# The two ways to end an acquire, with the reason that each leaves.
RELEASE, CANCEL = "RELEASE", "CANCEL"
REASONS = {RELEASE: "released", CANCEL: "cancelled"}


class Acquire:
    """One numbered acquire, from its first call to the end of its hold."""

    def __init__(self, request: Request, owner: Owner, wait: Optional[float] = None, source: Words = ()) -> None:
        self.request, self.owner, self.is_try = request, owner, wait == 0
        # The hold of another session that this acquire takes over: FROM, name, number.
        self.source = source
        self.at: Optional[Number] = None
        self.state, self.verb, self.reason = ASKED, "", ""
        # Why the client ends a wait that may continue on the server.
        self.error: Optional[LockError] = None
        self.holds = 0
        self.token: Any = None
        self.began = self.granted = monotonic()
        self.until = math.inf if wait is None else self.began + wait
        self.lease_ends = math.inf
        self.undeclared = self.handed_over = False
        self.changed: Optional[Signal] = None

    def ask_words(self, at: Number) -> Words:
        if self.source:
            return (*self.renew_words(at, self.request.lease, self.request.max_hold), *self.source)
        left = self.until - monotonic()
        queue: Words = () if self.is_try else ("QUEUE", 0 if left == math.inf else milliseconds(left))
        return (*self.request.acquire(self.owner.name), "SESSION", at.id, at.n, *queue)

    def end_words(self, at: Number) -> Words:
        if self.verb == CANCEL:
            return ("LOCK.CANCEL", self.request.keys[0], self.owner.name, "SESSION", at.id, at.n)
        return (*self.request.words(RELEASE, self.owner.name), "SESSION", at.id, at.n)

    def renew_words(self, at: Number, lease: Optional[float], max_hold: Optional[float]) -> Words:
        words = self.request.words("RENEW", self.owner.name)
        return (*words, *self.request.hold(lease, max_hold), "SESSION", at.id, at.n)

    def is_lost(self) -> bool:
        """Whether the hold ended before its release."""
        if self.state is HELD:
            return self.lease_ends <= monotonic()
        return self.state is OVER and self.reason not in REASONS.values() and not self.handed_over

    def lost(self) -> Lost:
        reason = self.reason or "expired"
        return Lost(f"{self.request.name}: the hold ended before its release ({reason}); acquire the lock again")


class Session:
    def __init__(self, io: Io, options: Options, adopt: Callable[[List[Acquire]], Awaitable[List[Acquire]]]) -> None:
        self.io, self.options, self._adopt_elsewhere = io, options, adopt
        self.mutex = Mutex(options)
        self.id: Optional[bytes] = None
        # Every hold of the previous session has been declared in this one (R3).
        self._is_up, self._up = False, io.signal()
        self._error: Optional[LockError] = None
        self._beat = self._seen = self._last_n = 0
        # The acquires by number. The unanswered ones ask, release or cancel (R11). The reader repeats the calls of orphans.
        self.numbers: Dict[int, Acquire] = {}
        self._unanswered: Dict[int, Acquire] = {}
        self._orphans: List[Acquire] = []
        # Holds that no object refers to any longer. Filled by the garbage collector, which must not lock.
        self.dropped: List[Acquire] = []
        # Holds whose slot moves to another node, and the time until which that may take.
        self._moved: List[Acquire] = []
        self._moved_until = 0.0
        self._confirmed = self.safe_until = -math.inf
        self._polled = 0.0
        self._started = self._in_jeopardy = self.closed = False

    # The life of an acquire.

    async def ask(self, asked: Acquire) -> None:
        """Returns when the acquire has been granted or is over. After an error it may still be granted, so end it."""
        give_up = asked.began + self.options.patience if asked.is_try or asked.source else asked.until + REPLY_GRACE
        await self._until_up(give_up, patient=not asked.is_try)
        with self.mutex:
            self._enrol(asked)
        reply, at, sent = await self._repeat(asked, ASKED, asked.ask_words, give_up)
        with self.mutex:
            # R14: an event, or a new session, overrules the reply.
            if asked.state is ASKED and asked.at is at and reply is None:
                self._over(asked, "timeout")
            elif asked.state is ASKED and asked.at is at and reply != 0:
                self._grant(asked, reply, sent)
            asked.changed = self.io.signal() if asked.state is ASKED and asked.error is None else None
        if asked.changed is not None and not await asked.changed.wait(_left(give_up)):
            raise Unavailable(f"{asked.request.name}: the server does not answer; try again")
        if asked.error is not None:
            raise asked.error

    def interrupt(self, asked: Acquire, error: LockError) -> None:
        """Ends a wait from another thread."""
        with self.mutex:
            asked.error = error
            self._signal(asked)

    async def end(self, acquire: Acquire, verb: str, patience: float) -> None:
        """Releases exactly this hold, or cancels an acquire in any state. The reader continues an attempt that fails."""
        with self.mutex:
            if acquire.state in (ENDING, OVER) or acquire.handed_over:
                return
            if acquire.at is None or acquire.state is ASKED and acquire.at.id != self.id:
                return self._over(acquire, REASONS[verb])
            acquire.state, acquire.verb = ENDING, verb
            self._unanswered[acquire.at.n] = acquire
        try:
            reply, _, _ = await self._repeat(acquire, ENDING, acquire.end_words, monotonic() + patience)
        except BaseException as error:
            with self.mutex:
                if isinstance(error, LockError) and not isinstance(error, Transient):
                    self._settle(acquire, error)
                else:
                    acquire.owner.retired = True
                    self._orphans.append(acquire)
            if not _reason_of(error):
                raise
        else:
            with self.mutex:
                self._settle(acquire, reply)

    async def release(self, hold: Acquire) -> None:
        if not hold.is_lost():
            await self.end(hold, RELEASE, self.options.patience)
        elif hold.state is HELD:
            # Expired by the local clock. The server never shortens a lease, so it may still have the hold.
            with self.mutex:
                self._lose(hold, "expired")
        if hold.is_lost():
            raise hold.lost()

    async def cancel(self, asked: Acquire) -> None:
        try:
            await self.end(asked, CANCEL, 0.0)
        except LockError:
            pass

    async def renew(self, hold: Acquire, lease: Optional[float]) -> None:
        """Sets the lease, or checks a hold that the server renews."""
        if hold.is_lost():
            raise hold.lost()
        give_up = monotonic() + self.options.patience
        try:
            _, _, sent = await self._repeat(hold, HELD, lambda at: hold.renew_words(at, lease, None), give_up)
        except (Lost, Misuse) as error:
            reason = _reason_of(error)
            if not reason:
                raise
            with self.mutex:
                self._over(hold, reason)
        if hold.state is not HELD:
            raise hold.lost()
        if lease is not None:
            hold.lease_ends = sent + lease

    async def _repeat(
        self, acquire: Acquire, state: str, words: Callable[[Number], Words], give_up: float
    ) -> Tuple[Any, Optional[Number], float]:
        """The reply to a call that may be sent again, as it has a number; that number; and the time when it was sent."""
        failing, sent = math.inf, 0.0
        # An error ends the wait of an acquire, but not its cancellation.
        while acquire.state is state and (state is not ASKED or acquire.error is None):
            at = acquire.at
            session = self if at is None else at.session
            await session._until_up(give_up, patient=True)
            sent = monotonic()
            try:
                if at is not None and at is acquire.at:
                    reply = await session.io.call(words(at), min(self.options.patience, max(REPLY_GRACE, give_up - sent)))
                    return reply, at, sent
            except NoSession:
                # The reader opens a new session, and declares the acquire there.
                await self.io.sleep(RETRY_PAUSE)
            except Transient as error:
                failing = min(failing, sent)
                # An acquire continues on the other node. ASK means that the slot is still moving.
                if state is ASKED and isinstance(error, Moved) and str(error).startswith("MOVED"):
                    raise
                if monotonic() >= (give_up if give_up < math.inf else failing + self.options.patience):
                    raise
                await self.io.sleep(RETRY_PAUSE)
        return 0, None, sent

    async def _until_up(self, give_up: float, patient: bool) -> None:
        if not self._started:
            with self.mutex:
                start, self._started = not self._started, True
            if start:
                self.io.start(self._read)
        while not self._is_up:
            if self.closed:
                raise Cancelled("the locks are closed; make new ones")
            error = self._error
            if error is not None and not (patient and give_up < math.inf and isinstance(error, Transient)):
                raise error
            if not await self._up.wait(_left(give_up)) and monotonic() >= give_up:
                raise Unavailable("no connection to the server; try again")

    # Transitions, under the mutex.

    def _enrol(self, acquire: Acquire) -> None:
        """Gives the acquire the next number of this session."""
        self._last_n += 1
        acquire.at = Number(self, self.id or b"", self._last_n)
        self.numbers[self._last_n] = acquire
        if acquire.state is not HELD:
            self._unanswered[self._last_n] = acquire

    def _n(self, acquire: Acquire) -> int:
        return acquire.at.n if acquire.at is not None and acquire.at.session is self else 0

    def _grant(self, asked: Acquire, reply: Any, since: float) -> None:
        self._unanswered.pop(self._n(asked), None)
        asked.state, asked.granted = HELD, monotonic()
        replies = reply if asked.request.several else [reply]
        if not isinstance(replies[0], int):
            maps = [each if isinstance(each, dict) else dict(zip(each[::2], each[1::2])) for each in replies]
            tokens, replies = [each[b"token"] for each in maps], [each[b"holds"] for each in maps]
            asked.token = tokens if asked.request.several else tokens[0]
        asked.holds = max(replies)
        if asked.request.lease is not None:
            asked.lease_ends = since + asked.request.lease
        self._signal(asked)

    def _over(self, acquire: Acquire, reason: str) -> None:
        """The acquire neither waits nor holds any longer."""
        was_held = acquire.state is HELD or acquire.verb == RELEASE
        acquire.state, acquire.reason = OVER, reason
        self.numbers.pop(self._n(acquire), None)
        self._unanswered.pop(self._n(acquire), None)
        if was_held and not acquire.handed_over:
            self._notify(acquire, "held", "released" if reason == "released" else "lost")
        self._signal(acquire)

    def _settle(self, ending: Acquire, reply: Any) -> None:
        """Handles the reply to a release or a cancellation. The server gives the same reply to a repeated call."""
        if ending.state is ENDING and (not isinstance(reply, Transient) or isinstance(reply, Moved)):
            self._over(ending, _reason_of(reply) or REASONS[ending.verb])

    def _lose(self, acquire: Acquire, reason: str) -> None:
        """Ends a hold here, and leaves to the reader to cancel by its number what the server may still have of it."""
        at = acquire.at
        self._over(acquire, reason)
        rest = Acquire(acquire.request, acquire.owner)
        rest.at, rest.state, rest.verb = at, ENDING, CANCEL
        self._orphans.append(rest)

    def _signal(self, acquire: Acquire) -> None:
        if acquire.changed is not None:
            acquire.changed.set()

    def _notify(self, acquire: Acquire, event: str, outcome: str) -> None:
        self.mutex.events.append((acquire.request.label, event, outcome, monotonic() - acquire.granted))

    # The reader.

    async def _read(self) -> None:
        """Heartbeat, events and losses: the only loop."""
        failing, pause = math.inf, RETRY_PAUSE
        while not self.closed:
            try:
                if not self._is_up:
                    await self._open()
                if self._moved:
                    await self.io.sleep(RETRY_PAUSE)
                await self._poll()
                await self._repeat_orphans()
                await self._follow_moved()
                failing, pause, self._error = math.inf, RETRY_PAUSE, None
                continue
            except NoSession:
                self._drop()
            except Late:
                # R16: another process uses the id.
                self._drop()
                self._lose_renewed("late")
            except LockError as error:
                failing, self._polled = min(failing, monotonic()), 0.0
                if not isinstance(error, Transient) or monotonic() >= failing + self.options.patience:
                    self._fail(error)
            except Exception as error:
                log.exception("the session failed")
                self._fail(Unavailable(f"the session failed: {error}"))
            self._check_clock()
            if not self.closed:
                await self.io.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_PAUSE)
        await self._end_all()
        await self.io.close()

    async def _open(self) -> None:
        if self.id is None:
            options = self.options
            times = ("TTL", milliseconds(options.ttl), "GRACE", milliseconds(options.grace))
            words = ("LOCK.SESSION", "OPEN", "NEW", self._next_beat(), *times, "NAME", options.name)
            id_ = (await self.io.read(words, REPLY_GRACE))[0]
            with self.mutex:
                self.id, self._seen, self._polled, self.safe_until = id_, 0, 0.0, -math.inf
                acquires, self.numbers, self._unanswered = list(self.numbers.values()), {}, {}
                for acquire in acquires:
                    if acquire.verb == CANCEL:
                        self._over(acquire, "cancelled")
                    else:
                        self._enrol(acquire)
                        acquire.undeclared = True
        await self._declare([acquire for acquire in list(self.numbers.values()) if acquire.undeclared])
        self._is_up = not self.closed
        self._up.set()

    async def _declare(self, acquires: List[Acquire]) -> None:
        """R3, R6, R13: binds holds to this session, and unanswered acquires that were granted."""
        now, calls = monotonic(), []
        for acquire in acquires:
            request, at = acquire.request, acquire.at
            assert at is not None
            lease = None if request.lease is None else max(0.001, min(request.lease, acquire.lease_ends - now))
            max_hold = None if request.max_hold is None else max(0.001, request.max_hold - (now - acquire.granted))
            calls.append(acquire.renew_words(at, lease, max_hold))
        replies = await self.io.batch(calls, REPLY_GRACE + 0.001 * len(calls)) if calls else []
        for reply in replies:
            if isinstance(reply, Transient):
                raise reply
        declared = Counter(_hold_of(each) for each, reply in zip(acquires, replies) if not isinstance(reply, LockError))
        with self.mutex:
            for acquire, reply in zip(acquires, replies):
                acquire.undeclared = False
                if isinstance(reply, LockError):
                    self._over(acquire, "restarted")
                elif min(reply if acquire.request.several else [reply]) < declared[_hold_of(acquire)]:
                    # R3, R22: another hold of this owner has ended, and nobody knows which.
                    self._lose(acquire, "restarted")
                elif acquire.state is ASKED and acquire.request.fence:
                    # The reply to a renewal has no token.
                    self._lose(acquire, "restarted")
                elif acquire.state is ASKED:
                    self._grant(acquire, reply, now)

    async def adopt(self, hold: Acquire) -> bool:
        """Declares a hold whose slot has moved to this node. Returns whether its state is known then."""
        try:
            await self._until_up(monotonic() + REPLY_GRACE, patient=True)
            with self.mutex:
                self._enrol(hold)
            await self._declare([hold])
        except LockError:
            with self.mutex:
                self._forget(hold)
            return False
        return True

    def _forget(self, hold: Acquire) -> None:
        """Removes the number of a hold, which then belongs to no session. Its release waits for another number."""
        self.numbers.pop(self._n(hold), None)
        self._unanswered.pop(self._n(hold), None)
        if hold.at is not None:
            hold.at = hold.at._replace(id=b"")

    async def _follow_moved(self) -> None:
        """The event may come before the other node serves the slot."""
        if not self._moved:
            return
        try:
            self._moved = await self._adopt_elsewhere(self._moved)
        except (LockError, RedisError):
            pass
        if self._moved and monotonic() >= self._moved_until:
            with self.mutex:
                for hold in self._moved:
                    self._over(hold, "moved")
            self._moved = []

    def _next_beat(self) -> int:
        # R16: never taken from a reply.
        self._beat += 1
        return self._beat

    async def _poll(self) -> None:
        """One LOCK.EVENTS: heartbeat, acknowledgement and events. The first one after a failure does not wait."""
        block = min(EVENTS_BLOCK, self.options.grace / 3) if self._polled and not self._moved else 0.0
        with self.mutex:
            done = min(self._unanswered, default=self._last_n + 1)
        sent = monotonic()
        words = ("LOCK.EVENTS", self.id, self._next_beat(), self._seen, done, int(block * 1000), EVENTS_COUNT)
        events = await self.io.read(words, block + REPLY_GRACE)
        with self.mutex:
            for seq, kind, n, *rest in events:
                self._seen, acquire = seq, self.numbers.get(n)
                if acquire is None:
                    continue
                if kind == b"granted" and acquire.state is ASKED:
                    # The lease began after the previous reply, which did not have this event.
                    self._grant(acquire, rest[0], max(acquire.began, self._polled))
                    acquire.token = rest[1] if len(rest) > 1 else None
                elif kind == b"lost" and rest[0] == b"moved" and acquire.state is HELD:
                    self._forget(acquire)
                    self._moved.append(acquire)
                    self._moved_until = monotonic() + self.options.patience
                elif kind == b"lost":
                    # Perhaps only one of several locks was lost.
                    (self._lose if acquire.request.several else self._over)(acquire, rest[0].decode())
            self._polled = sent
            if len(events) < EVENTS_COUNT:
                self._confirmed, self.safe_until = sent, sent + self.options.grace
                self._set_jeopardy(False)

    async def _repeat_orphans(self) -> None:
        with self.mutex:
            while self.dropped:
                hold = self.dropped.pop()
                if hold.state is HELD:
                    hold.state, hold.verb = ENDING, RELEASE
                    self._orphans.append(hold)
            numbered = [(each, each.at) for each in self._orphans if each.state is ENDING and each.at is not None]
            orphans = [(each, at) for each, at in numbered if at.id == self.id]
            self._orphans = [each for each, _ in orphans]
        replies = await self.io.batch([each.end_words(at) for each, at in orphans], REPLY_GRACE) if orphans else []
        with self.mutex:
            for (orphan, _), reply in zip(orphans, replies):
                self._settle(orphan, reply)

    def _set_jeopardy(self, value: bool) -> None:
        if value is not self._in_jeopardy:
            self._in_jeopardy = value
            for hold in self.numbers.values():
                if hold.state is HELD and hold.request.lease is None:
                    self._notify(hold, "jeopardy" if value else "safe", "")

    def _check_clock(self) -> None:
        with self.mutex:
            if monotonic() >= self.safe_until:
                self._set_jeopardy(True)
        if monotonic() >= self._confirmed + self.options.ttl:
            self._lose_renewed("silent")

    def _lose_renewed(self, reason: str) -> None:
        with self.mutex:
            for hold in list(self.numbers.values()):
                if hold.state is HELD and hold.request.lease is None:
                    self._lose(hold, reason)

    def _drop(self) -> None:
        """The session is over on the server."""
        with self.mutex:
            self.id, self._is_up, self.safe_until = None, False, -math.inf
        self._up.clear()

    def _fail(self, error: LockError) -> None:
        """Ends the waits that no limit would end, and those that can never succeed."""
        with self.mutex:
            self._error = error
            for asked in self._unanswered.values():
                if asked.state is ASKED and (asked.until == math.inf or not isinstance(error, Transient)):
                    asked.error = error
                    self._signal(asked)
        if not self._is_up:
            self._up.set()
            self._up.clear()

    def valid_for(self, hold: Acquire) -> float:
        """Seconds for which no other owner can have the lock, even if the network fails."""
        if hold.state is not HELD or hold.at is None or hold.at.id != self.id:
            return 0.0
        end = self.safe_until if hold.request.lease is None else hold.lease_ends
        return max(0.0, end - monotonic())

    async def close(self) -> None:
        """Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends."""
        self.closed = True
        if self._started:
            await self._end_all()
            await self.io.close()

    async def _end_all(self) -> None:
        with self.mutex:
            id_, self.id, self._is_up = self.id, None, False
            for acquire in list(self.numbers.values()):
                if acquire.state is ASKED:
                    acquire.error = Cancelled("the locks are closed")
                    self._signal(acquire)
                elif acquire.request.lease is None:
                    self._over(acquire, "closed")
        self._up.set()
        if id_ is not None:
            try:
                await self.io.call(("LOCK.SESSION", "CLOSE", id_), CLOSE_TIMEOUT)
            except LockError:
                pass


def _hold_of(acquire: Acquire) -> Tuple[Tuple[bytes, ...], bytes]:
    return tuple(acquire.request.keys), acquire.owner.name


def _reason_of(reply: Any) -> str:
    """Why a hold is lost according to a reply; empty if the reply does not say so."""
    if isinstance(reply, Lost):
        return "deleted"
    return "wrongtype" if isinstance(reply, Misuse) and str(reply).startswith("WRONGTYPE") else ""


def _left(until: float) -> Optional[float]:
    return None if until == math.inf else max(0.0, until - monotonic())
