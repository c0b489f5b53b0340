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

from ._io import CALL_TIMEOUT, Io, Signal
from ._request import Request, Words, milliseconds
from .errors import Cancelled, Late, LockError, Lost, Misuse, Moved, NoSession, Overwritten, TimedOut, Transient, Unavailable

# The session ends if its client is silent for TTL, or its connection is closed for GRACE.
TTL, GRACE = 30.0, 3.0
# Time that LOCK.EVENTS waits in the server, and at most a third of GRACE.
EVENTS_BLOCK = 1.0
# Maximum number of events in a reply. A full reply confirms nothing (R2).
EVENTS_COUNT = 1000
# Limit for a try or a release, and for a wait without a limit while no server answers.
PATIENCE = 5.0
# Extra time for the reply to a call that waits in the server.
REPLY_GRACE = 1.0
# The first and the longest pause before a call is repeated.
RETRY_PAUSE, MAX_RETRY_PAUSE = 0.05, 1.0
# Limit for the last call of a session, LOCK.SESSION CLOSE.
CLOSE_TIMEOUT = 1.0

log = logging.getLogger("redis_lock_client")


class Event(NamedTuple):
    """A notification to the listener."""

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
    """Protects the state of the sessions of a `Locks`. Calls the listener after releasing the lock, so it may use locks.

    It is re-entrant, as the garbage collector or a signal may run code of the user at any time.
    """

    def __init__(self, options: Options) -> None:
        self._options, self._lock = options, threading.RLock()
        self.events: List[Tuple[Any, ...]] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        try:
            events, self.events = self.events, []
        finally:
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
# Ends of a hold that are no loss.
GOOD_ENDS = ("released", "cancelled", "taken")


class Acquire:
    """One numbered acquire, from its first call to the end of its hold."""

    def __init__(self, request: Request, owner: Owner, wait: Optional[float] = None, source: Words = ()) -> None:
        self.request, self.owner, self.is_try = request, owner, wait == 0
        # The hold of another session that this acquire takes over: FROM, name, number.
        self.source = source
        self.at: Optional[Number] = None
        self.state, self.verb, self.reason = ASKED, "", ""
        # The error to raise from the wait. The server may still keep the wait.
        self.error: Optional[LockError] = None
        self.holds = 0
        self.token: Any = None
        self.began = self.granted = monotonic()
        self.until = math.inf if wait is None else self.began + wait
        self.lease_ends = math.inf
        # A leased grant can be revoked until this number of LOCK.EVENTS was answered (R1).
        self.acknowledged_at = 0
        self.in_doubt = self.undeclared = self.handed_over = False
        self.changed: Optional[Signal] = None

    def is_numbered(self) -> bool:
        """Whether a session has the acquire under its number."""
        return self.at is not None and self.at.session.numbers.get(self.at.n) is self

    def ask_words(self, at: Number) -> Words:
        if self.source:
            return (*self.renew_words(at, self.request.lease), *self.source)
        left = self.until - monotonic()
        queue: Words = () if self.is_try else ("QUEUE", 0 if left == math.inf else milliseconds(left))
        return (*self.request.acquire(self.owner.name), "SESSION", at.id, at.n, *queue)

    def end_words(self, at: Number) -> Words:
        if self.verb == CANCEL:
            return ("LOCK.CANCEL", self.request.keys[0], self.owner.name, "SESSION", at.id, at.n)
        return (*self.request.words(RELEASE, self.owner.name), "SESSION", at.id, at.n)

    def renew_words(self, at: Number, lease: Optional[float]) -> Words:
        max_hold = self.request.max_hold
        left = None if max_hold is None else max(0.001, max_hold - (monotonic() - self.granted))
        return (*self.request.words("RENEW", self.owner.name), *self.request.hold(lease, left), "SESSION", at.id, at.n)

    def is_lost(self) -> bool:
        """Whether the hold ended before its release."""
        if self.state is HELD:
            return self.lease_ends <= monotonic()
        return self.state is OVER and self.reason not in GOOD_ENDS and not self.handed_over

    def lost(self) -> Lost:
        reason = self.reason or "expired"
        return Lost(f"{self.request.name}: the hold ended before its release ({reason}); acquire the lock again")


class Session:
    """The session on one server."""

    def __init__(self, io: Io, options: Options, mutex: Mutex, moved: Callable[[List[Acquire]], Awaitable[None]]) -> None:
        self.io, self.options, self.mutex, self._moved = io, options, mutex, moved
        self.id: Optional[bytes] = None
        # Every hold of the previous session has been declared in this one (R3), and an EVENTS has confirmed them.
        self._is_up, self._up = False, io.signal()
        self._error: Optional[LockError] = None
        self._beat = self._seen = self._last_n = self._polls = 0
        # The acquires by number; those whose last call has no answer (R11), or that are not declared yet.
        self.numbers: Dict[int, Acquire] = {}
        self._unanswered: Dict[int, Acquire] = {}
        # The releases and cancellations that the reader repeats.
        self._orphans: List[Acquire] = []
        # Holds whose `Hold` was collected. `__del__` appends here, because it must not lock.
        self.dropped: List[Acquire] = []
        self._confirmed = self.safe_until = -math.inf
        # When the previous LOCK.EVENTS was sent. 0 after a failure: the next one does not wait in the server.
        self._polled = 0.0
        self._started = self._in_jeopardy = self.closed = False

    # The life of an acquire.

    async def ask(self, asked: Acquire) -> None:
        """Waits for the grant or the end of the acquire. If it raises, the caller cancels it: the server may still grant it."""
        if self.io.is_reader() and not asked.is_try:
            raise Misuse("a listener must not wait for a lock; try to acquire it, or use another thread")
        give_up = asked.began + self.options.patience if asked.is_try or asked.source else asked.until + REPLY_GRACE
        await self._until_up(give_up, asked)
        with self.mutex:
            self._enrol(asked)
        try:
            reply, first_sent = await self._repeat(asked, ASKED, asked.ask_words, give_up)
        except Lost:
            if asked.source:
                raise
            # R12: the hold of a repeated acquire has ended.
            reply, first_sent = 0, 0.0
            with self.mutex:
                self._over(asked, "restarted")
        with self.mutex:
            if asked.state is ASKED and reply is None:
                self._over(asked, "timeout")
            elif asked.state is ASKED and reply != 0:
                self._grant(asked, reply, first_sent)
            asked.changed = self.io.signal() if asked.state is ASKED and asked.error is None else None
        if asked.changed is not None and not await asked.changed.wait(_remaining(give_up)):
            is_there = self._polled > 0
            raise (TimedOut if is_there else Unavailable)(f"{asked.request.name}: the server has not answered in time")
        if asked.error is not None:
            raise type(asked.error)(str(asked.error))

    def interrupt(self, asked: Acquire, error: LockError) -> None:
        """Ends a wait from another thread."""
        with self.mutex:
            asked.error = error
            self._signal(asked)
            if not self._is_up:
                self._wake_waiting()

    async def end(self, acquire: Acquire, verb: str, patience: float) -> None:
        """Releases exactly this hold, or cancels an acquire in any state. The reader continues an attempt that fails."""
        with self.mutex:
            if acquire.state is OVER or acquire.verb == CANCEL or acquire.handed_over:
                return
            if acquire.at is None or acquire.state is ASKED and acquire.at.id != self.id:
                return self._over(acquire, REASONS[verb])
            self._begin_end(acquire, verb)
        try:
            reply, _ = await self._repeat(acquire, ENDING, acquire.end_words, monotonic() + patience)
        except (Lost, Overwritten) as error:
            reply = error
        except BaseException:
            with self.mutex:
                acquire.owner.retired = True
                self._orphan(acquire)
            raise
        with self.mutex:
            self._settle(acquire, reply)

    async def release(self, hold: Acquire) -> None:
        if not hold.is_lost():
            await self.end(hold, RELEASE, 0.0 if self.io.is_reader() else self.options.patience)
        elif hold.state is HELD:
            # Expired by the local clock. A lease is never shortened, so the server may still have the hold.
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
        give_up, first_sent = monotonic() + self.options.patience, 0.0
        try:
            _, first_sent = await self._repeat(hold, HELD, lambda at: hold.renew_words(at, lease), give_up)
        except (Lost, Overwritten) as error:
            with self.mutex:
                if hold.state is HELD:
                    self._over(hold, _reason_of(error))
        if hold.state is not HELD:
            raise hold.lost()
        if lease is not None:
            hold.lease_ends, hold.acknowledged_at = first_sent + lease, 0

    async def _repeat(
        self, acquire: Acquire, state: str, words: Callable[[Number], Words], give_up: float
    ) -> Tuple[Any, float]:
        """The reply to a call that may be sent again, as it has a number, and the time of the first attempt.

        A lease counts from the first attempt, as that one may have succeeded. A reply counts only if its call carried the
        present number (R14).
        """
        failing = first_sent = math.inf
        while acquire.state is state and (acquire.error is None or state is not ASKED):
            at = acquire.at
            session = self if at is None else at.session
            await session._until_up(give_up, acquire)
            now = monotonic()
            try:
                if at is None or acquire.undeclared:
                    # A release of a number that is not declared yet would be refused, and remembered (R23).
                    raise NoSession(f"{acquire.request.name}: no server has confirmed the hold yet; try again")
                first_sent = min(first_sent, now)
                reply = await session.io.call(words(at), min(CALL_TIMEOUT, max(REPLY_GRACE, give_up - now)))
                if at is acquire.at:
                    return reply, first_sent
            except Transient as error:
                # After NOSESSION, the reader opens a new session, and declares the acquire there.
                acquire.in_doubt |= not isinstance(error, (NoSession, Moved))
                failing = min(failing, now)
                # ASK means that the slot is still moving.
                is_moved = isinstance(error, Moved) and state is ASKED and str(error).startswith("MOVED")
                if is_moved or monotonic() >= (give_up if give_up < math.inf else failing + self.options.patience):
                    raise
            except LockError:
                if at is acquire.at:
                    raise
            await self.io.sleep(RETRY_PAUSE)
        return 0, first_sent

    def _start(self) -> None:
        if not self._started and not self.closed:
            with self.mutex:
                start, self._started = not self._started, True
            if start:
                try:
                    self.io.start(self._read)
                except BaseException:
                    self._started = False
                    raise

    async def _until_up(self, give_up: float, acquire: Acquire) -> None:
        self._start()
        while not self._is_up:
            if self.closed:
                raise Cancelled("the locks are closed; make new ones")
            error = self._error
            if acquire.state is ASKED and acquire.error is not None:
                error = acquire.error
            elif acquire.is_try or give_up == math.inf or not isinstance(error, Transient):
                pass
            else:
                # An acquire with a limit waits for the server.
                error = None
            if error is not None:
                raise type(error)(str(error))
            if not await self._up.wait(_remaining(give_up)) and monotonic() >= give_up:
                raise Unavailable("no connection to the server; try again")

    # Transitions, under the mutex.

    def _enrol(self, acquire: Acquire) -> None:
        """Gives the acquire the next number of this session. A hold is not valid before its declaration."""
        self._last_n += 1
        acquire.undeclared = acquire.state is not ASKED
        acquire.at = Number(self, self.id or b"", self._last_n)
        self.numbers[self._last_n] = self._unanswered[self._last_n] = acquire

    def _answered(self, acquire: Acquire) -> None:
        if acquire.at is not None:
            acquire.at.session._unanswered.pop(acquire.at.n, None)

    def _grant(self, asked: Acquire, reply: Any, lease_start: float, token: Any = None) -> None:
        replies = reply if asked.request.several else [reply]
        if not isinstance(replies[0], int):
            maps = [each if isinstance(each, dict) else dict(zip(each[::2], each[1::2])) for each in replies]
            tokens, replies = [each[b"token"] for each in maps], [each[b"holds"] for each in maps]
            token = tokens if asked.request.several else tokens[0]
        self._answered(asked)
        asked.token, asked.holds, asked.granted = token, max(replies), monotonic()
        if asked.request.lease is not None:
            asked.lease_ends = lease_start + asked.request.lease
        if asked.in_doubt:
            asked.in_doubt, asked.acknowledged_at = False, self._polls + 2
        asked.state = HELD
        self._signal(asked)

    def _begin_end(self, acquire: Acquire, verb: str) -> None:
        assert acquire.at is not None
        acquire.state, acquire.verb = ENDING, verb
        acquire.at.session._unanswered[acquire.at.n] = acquire

    def _orphan(self, acquire: Acquire) -> None:
        """Leaves the end of an acquire to the reader."""
        if acquire.at is not None:
            acquire.at.session._orphans.append(acquire)

    def _over(self, acquire: Acquire, reason: str) -> None:
        """The acquire neither waits nor holds any longer."""
        was_held = (acquire.state is HELD or acquire.verb == RELEASE) and not acquire.handed_over
        acquire.reason, acquire.state = reason, OVER
        self._answered(acquire)
        if acquire.at is not None:
            acquire.at.session.numbers.pop(acquire.at.n, None)
        if was_held:
            self._notify(acquire, "held", "lost" if acquire.is_lost() else "released")
        self._signal(acquire)

    def _settle(self, ending: Acquire, reply: Any) -> None:
        """Handles the reply to a release or a cancellation. Most errors are no answer: the call may still be needed."""
        if ending.state is not ENDING or isinstance(reply, LockError) and not isinstance(reply, (Lost, Overwritten, Moved)):
            return
        # NOTOWNER may be the reply to a repeated call, whose first attempt succeeded.
        is_lost = ending.verb == RELEASE and isinstance(reply, (Lost, Overwritten)) and not ending.in_doubt
        self._over(ending, _reason_of(reply) if is_lost else REASONS[ending.verb])

    def _cancel_later(self, at: Number, acquire: Acquire) -> None:
        """Leaves to the reader to cancel a number whose acquire is over, but that the server may still hold."""
        remainder = Acquire(acquire.request, acquire.owner)
        remainder.at = at
        self._begin_end(remainder, CANCEL)
        self._orphan(remainder)

    def _lose(self, hold: Acquire, reason: str) -> None:
        at = hold.at
        self._over(hold, reason)
        if at is not None:
            self._cancel_later(at, hold)

    def _signal(self, acquire: Acquire) -> None:
        if acquire.changed is not None:
            acquire.changed.set()

    def _wake_waiting(self) -> None:
        """Lets all that wait for the session look again."""
        self._up.set()
        self._up.clear()

    def _notify(self, acquire: Acquire, event: str, outcome: str) -> None:
        self.mutex.events.append((acquire.request.label, event, outcome, monotonic() - acquire.granted))

    # The reader.

    async def _read(self) -> None:
        """Heartbeat, events and losses: the only loop."""
        failing, pause = math.inf, RETRY_PAUSE
        try:
            while not self.closed:
                try:
                    await self._turn()
                    failing, pause, self._error = math.inf, RETRY_PAUSE, None
                    await self._repeat_orphans()
                    continue
                except NoSession:
                    self._drop()
                    # The connections for calls may lead to a former primary.
                    await self.io.disconnect()
                except Late:
                    # R16: another process uses the id.
                    self._drop()
                    self._lose_renewed("late")
                except Exception as error:
                    if not isinstance(error, LockError):
                        log.exception("the session failed")
                        error = Unavailable(f"the session failed: {error}")
                    failing, self._polled = min(failing, monotonic()), 0.0
                    if not isinstance(error, Transient) or monotonic() >= failing + self.options.patience:
                        self._fail(error)
                    if str(error).startswith("READONLY"):
                        await self.io.disconnect()
                    if self.io.node.name:
                        # Another node of the cluster may have replaced this one.
                        await self._moved(list(self.numbers.values()))
                self._check_clock()
                if not self.closed:
                    await self.io.sleep(pause)
                    pause = min(2 * pause, MAX_RETRY_PAUSE)
            await self._end_all()
            await self.io.close()
        finally:
            # The event loop may end the task of the reader. The next acquire starts it again.
            self._started = self._is_up = False
            self._wake_waiting()

    async def _turn(self) -> None:
        if self.id is None:
            await self._open()
        undeclared = [acquire for acquire in list(self._unanswered.values()) if acquire.undeclared]
        if undeclared:
            await self._declare(undeclared)
        await self._poll()
        if not self._is_up and not self.closed:
            self._is_up = True
            self._up.set()

    async def _open(self) -> None:
        options = self.options
        times = ("TTL", round(options.ttl * 1000), "GRACE", round(options.grace * 1000))
        words = ("LOCK.SESSION", "OPEN", "NEW", self._next_beat(), *times, "NAME", options.name)
        id_ = (await self.io.read(words, REPLY_GRACE))[0]
        with self.mutex:
            self.id, self._seen, self._polled, self.safe_until = id_, 0, 0.0, -math.inf
            acquires, self.numbers, self._unanswered, self._orphans = list(self.numbers.values()), {}, {}, []
            for acquire in acquires:
                if acquire.verb == CANCEL or acquire.handed_over:
                    # The lease of a hold that was handed over runs out.
                    self._over(acquire, "cancelled")
                else:
                    self._enrol(acquire)
                    acquire.undeclared = True
                    if acquire.state is ENDING:
                        self._orphan(acquire)

    async def _declare(self, acquires: List[Acquire]) -> None:
        """Declares holds, and acquires that may have been granted, in this session (R3, R6, R13)."""
        now, calls = monotonic(), []
        numbers = [acquire.at for acquire in acquires]
        for acquire, at in zip(acquires, numbers):
            lease = acquire.request.lease if acquire.lease_ends == math.inf else max(0.001, acquire.lease_ends - now)
            assert at is not None
            calls.append(acquire.renew_words(at, lease))
        replies = await self.io.batch(calls, REPLY_GRACE + 0.001 * len(calls))
        for reply in replies:
            if isinstance(reply, Transient) and not isinstance(reply, (Late, Moved)):
                raise reply
        # An acquire without an answer, or a release, may have no hold. All others had one.
        ours = Counter(
            _hold_of(acquire)
            for acquire, reply in zip(acquires, replies)
            if acquire.state is HELD or not isinstance(reply, LockError)
        )
        moved: List[Acquire] = []
        with self.mutex:
            for acquire, at, reply in zip(acquires, numbers, replies):
                is_refused = isinstance(reply, LockError)
                acquire.undeclared = isinstance(reply, Moved)
                if isinstance(reply, Moved) and acquire.state is not OVER and at is not None:
                    self.numbers.pop(at.n, None)
                    self._answered(acquire)
                    moved.append(acquire)
                elif acquire.state is OVER:
                    if at is not None and not is_refused:
                        self._cancel_later(at, acquire)
                elif acquire.state is ENDING and is_refused:
                    self._over(acquire, REASONS[acquire.verb] if acquire.in_doubt else "restarted")
                elif acquire.state in (ASKED, HELD) and is_refused:
                    self._over(acquire, "restarted")
                elif acquire.state is ASKED and acquire.request.fence:
                    # The reply to a renewal has no token.
                    self._lose(acquire, "restarted")
                elif min(reply if acquire.request.several else [reply]) < ours[_hold_of(acquire)]:
                    # R3, R22: another hold of this owner has ended, and nobody knows which.
                    self._lose(acquire, "restarted")
                elif acquire.state is ASKED:
                    self._grant(acquire, reply, now)
                elif acquire.state is HELD:
                    self._answered(acquire)
        if moved:
            # The nodes do not agree yet. The lease limits how long this may take.
            await self._moved(moved)

    def adopt(self, hold: Acquire) -> None:
        """Leaves to the reader to declare a hold whose slot has moved to this node. A wait asks again."""
        self._start()
        with self.mutex:
            if hold.state is OVER or hold.at is None or hold.is_numbered() and hold.at.session is self:
                return
            if hold.state is ASKED:
                return self._over(hold, "moved")
            # A release may have begun meanwhile, under the old number.
            self._answered(hold)
            hold.at.session.numbers.pop(hold.at.n, None)
            self._enrol(hold)
            if hold.state is ENDING:
                self._orphan(hold)

    def _next_beat(self) -> int:
        # R16: never taken from a reply.
        self._beat += 1
        return self._beat

    async def _poll(self) -> None:
        """One LOCK.EVENTS: heartbeat, acknowledgement and events."""
        block = min(EVENTS_BLOCK, (self.options.grace or self.options.ttl) / 3) if self._polled else 0.0
        with self.mutex:
            done = min(self._unanswered, default=self._last_n + 1)
        sent = monotonic()
        words = ("LOCK.EVENTS", self.id, self._next_beat(), self._seen, done, int(block * 1000), EVENTS_COUNT)
        events = await self.io.read(words, block + REPLY_GRACE)
        moved: List[Acquire] = []
        with self.mutex:
            self._polls += 1
            for seq, kind, n, *fields in events:
                self._seen, acquire = seq, self.numbers.get(n)
                if acquire is None:
                    continue
                if kind == b"granted" and acquire.state is ASKED:
                    acquire.in_doubt = True
                    # The grant is later than the previous LOCK.EVENTS, whose reply did not report it.
                    self._grant(acquire, fields[0], max(acquire.began, self._polled), *fields[1:2])
                elif kind == b"lost" and fields[0] == b"moved" and acquire.state is not ASKED:
                    moved.append(self.numbers.pop(n))
                    self._answered(acquire)
                elif kind == b"lost":
                    # Perhaps only one of several locks was lost.
                    (self._lose if acquire.request.several else self._over)(acquire, fields[0].decode())
            if len(events) < EVENTS_COUNT:
                self._polled = self._confirmed = sent
                self.safe_until = sent + self.options.grace
                self._set_jeopardy(False)
        if moved:
            await self._moved(moved)

    async def _repeat_orphans(self) -> None:
        with self.mutex:
            while self.dropped:
                hold = self.dropped.pop()
                if hold.state is HELD:
                    self._begin_end(hold, RELEASE)
                    self._orphan(hold)
            numbered = [(each, each.at) for each in self._orphans if each.state is ENDING and each.at is not None]
            orphans = [(each, at) for each, at in numbered if at.id == self.id and not each.undeclared]
            self._orphans = [each for each, _ in orphans]
        if orphans:
            try:
                replies = await self.io.batch([each.end_words(at) for each, at in orphans], REPLY_GRACE)
            except Transient:
                return
            with self.mutex:
                for (orphan, _), reply in zip(orphans, replies):
                    self._settle(orphan, reply)

    def _set_jeopardy(self, value: bool) -> None:
        if value is not self._in_jeopardy:
            self._in_jeopardy = value
            for hold in list(self.numbers.values()):
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
        """Fails the waits without a limit. If the error is permanent, fails all waits."""
        with self.mutex:
            self._error = error
            for asked in list(self._unanswered.values()):
                if asked.state is ASKED and (asked.until == math.inf or not isinstance(error, Transient)):
                    asked.error = error
                    self._signal(asked)
        if not self._is_up:
            self._wake_waiting()

    def valid_for(self, hold: Acquire) -> float:
        """Seconds for which no other owner can have the lock, whatever the network does."""
        if hold.state is not HELD or hold.undeclared or hold.at is None or hold.at.id != self.id:
            return 0.0
        end = hold.lease_ends
        if hold.request.lease is None or self._polls < hold.acknowledged_at:
            end = min(end, self.safe_until)
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
        self._wake_waiting()
        if id_ is not None:
            try:
                await self.io.call(("LOCK.SESSION", "CLOSE", id_), CLOSE_TIMEOUT)
            except LockError:
                pass


def _hold_of(acquire: Acquire) -> Tuple[Tuple[bytes, ...], bytes]:
    return tuple(acquire.request.keys), acquire.owner.name


def _reason_of(error: Any) -> str:
    return "wrongtype" if isinstance(error, Overwritten) else "deleted"


def _remaining(until: float) -> Optional[float]:
    return None if until == math.inf else max(0.0, until - monotonic())
