# SPDX-License-Identifier: MIT
"""A client's presence on one server: its numbers, holds and waits, and the loop that reads events.

Rules R1 to R23 are those of docs/sessions.md. Nothing here knows threads or asyncio: an `Io` blocks the calling thread, or
suspends the calling task. Times are in seconds, by the monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter
from time import monotonic
from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple

from ._acquire import ASKED, HELD, OVER, UNEXPLAINED, Acquire, Number
from ._io import CALL_TIMEOUT, Io
from ._options import Mutex, Options, log
from ._request import Words
from .errors import (
    Cancelled,
    Deadlock,
    Late,
    LockError,
    Lost,
    Misuse,
    Moved,
    NoSession,
    Overwritten,
    TimedOut,
    Transient,
    Unavailable,
)

# Time that LOCK.EVENTS waits in the server, and at most a third of GRACE.
EVENTS_BLOCK = 1.0
# Maximum number of events in a reply. A full reply confirms nothing (R2).
EVENTS_COUNT = 1000
# Extra time for the reply to a call that waits in the server.
REPLY_GRACE = 1.0
# The first and the longest pause before a call is repeated.
RETRY_PAUSE, MAX_RETRY_PAUSE = 0.05, 1.0
# Limit for the last call of a session, LOCK.SESSION CLOSE.
CLOSE_TIMEOUT = 1.0


class Session:
    """The session on one server.

    An acquire is in one of three places: `asked` until it is granted, `held`, and `undo` if it is over for its user, but the
    server has not confirmed that. Replies, events and the clock move it.
    """

    def __init__(
        self,
        io: Io,
        options: Options,
        mutex: Mutex,
        session_of: Callable[[bytes], Awaitable["Session"]],
        relocate: Callable[[List[Acquire]], Awaitable[None]],
    ) -> None:
        self.io, self.options, self.mutex, self._session_of, self._relocate = io, options, mutex, session_of, relocate
        self.id: Optional[bytes] = None
        # Whether the session is open, its holds are declared (R3), and LOCK.EVENTS has confirmed them.
        self._is_up, self._up = False, io.signal()
        self._error: Optional[LockError] = None
        self._beat = self._seen = self._last_n = 0
        self.asked: Dict[int, Acquire] = {}
        self.held: Dict[int, Acquire] = {}
        self.undo: Dict[int, Acquire] = {}
        # Acquires of the previous session, or of another node, that the reader declares.
        self.undeclared: Dict[Acquire, None] = {}
        # Holds whose `Hold` was collected. `__del__` appends here, because it must not lock.
        self.dropped: List[Acquire] = []
        self._confirmed = self.safe_until = -math.inf
        self._started = self._in_jeopardy = self._failed = self.closed = False

    # Calls of the user.

    async def ask(self, asked: Acquire) -> None:
        """Waits for the grant or the end of the acquire. If it raises, the caller cancels it: the server may still grant it."""
        if self.io.is_reader() and not asked.is_try:
            raise Misuse("a listener must not wait for a lock; try to acquire it, or use another thread")
        give_up = asked.began + self.options.patience if asked.is_try or asked.source else asked.until + REPLY_GRACE
        await self._until_up(give_up, asked)
        with self.mutex:
            self.asked[self._next_number(asked)] = asked
        try:
            reply, first_sent = await self._call(asked, ASKED, asked.acquire_words, give_up)
        except Lost:
            if asked.source:
                raise
            with self.mutex:
                self._end(asked, "restarted")
            return
        with self.mutex:
            if asked.state is ASKED and reply is None:
                self._end(asked, "timeout")
            elif asked.state is ASKED and reply != 0:
                self._grant(asked, first_sent, reply)
            asked.changed = self.io.signal() if asked.state is ASKED and asked.error is None else None
        if asked.changed is not None and not await asked.changed.wait(_remaining(give_up)):
            raise (Unavailable if self._failed else TimedOut)(f"{asked.request.name}: the server has not answered in time")
        if asked.error is not None:
            raise type(asked.error)(str(asked.error))
        if asked.state is HELD:
            await self._check_grant(asked)

    async def _check_grant(self, hold: Acquire) -> None:
        if hold.holds > 1 and not hold.request.reentrant:
            raise Deadlock(f"{hold.request.name}: this owner has the lock already; release it first, or use reentrant=True")
        lease = hold.request.lease
        if lease is not None and hold.lease_ends <= monotonic():
            # Perhaps: nobody knows when the lease began. The call sets it again.
            hold.lease_ends = math.inf
            try:
                await self.renew(hold, lease)
            except Lost:
                if hold.is_try:
                    raise Unavailable(f"{hold.request.name}: the grant arrived after the end of its lease")

    def interrupt(self, asked: Acquire, error: LockError) -> None:
        """Ends a wait from another thread."""
        with self.mutex:
            asked.error = error
            self._signal(asked)
            if not self._is_up:
                self._wake_waiting()

    async def cancel(self, acquire: Acquire) -> None:
        """Ends an acquire in any state. The reader repeats the call until it is answered (R11)."""
        with self.mutex:
            self._end(acquire, "cancelled", undo=True)
        at = acquire.number
        if at.n in self.undo and self._is_up:
            try:
                await self.io.call(acquire.cancel_words(), REPLY_GRACE)
            except LockError as error:
                if isinstance(error, Transient):
                    return
            with self.mutex:
                self._undone(at.n)

    async def release(self, hold: Acquire) -> None:
        """Releases exactly this hold. After a failure the reader undoes it."""
        with self.mutex:
            is_first, hold.is_releasing = not hold.is_releasing and not hold.is_handed_over, True
            if hold.state is HELD and hold.is_lost():
                # Expired by the local clock. A lease is never shortened, so the server may still have the hold.
                self._end(hold, "expired", undo=True)
        if hold.state is HELD and is_first:
            try:
                patience = 0 if self.io.is_reader() else self.options.patience
                await self._call(hold, HELD, hold.release_words, monotonic() + patience)
                reason = "released"
            except (Lost, Overwritten) as error:
                reason = _reason_of(error)
            except BaseException:
                with self.mutex:
                    self._end(hold, "released", undo=True)
                raise
            with self.mutex:
                self._end(hold, reason, undo=hold.request.several and reason != "released")
        if hold.is_lost():
            raise hold.lost()

    async def renew(self, hold: Acquire, lease: Optional[float]) -> None:
        """Sets the lease, or checks a hold that the server renews."""
        if hold.state is not HELD or hold.is_lost():
            raise hold.lost()
        give_up, first_sent = monotonic() + self.options.patience, 0.0
        try:
            _, first_sent = await self._call(hold, HELD, lambda: hold.renew_words(lease), give_up)
        except (Lost, Overwritten) as error:
            with self.mutex:
                self._end(hold, _reason_of(error), undo=hold.request.several)
        if hold.state is not HELD:
            raise hold.lost()
        hold.in_flight = False
        if lease is not None:
            hold.lease_ends = first_sent + lease

    async def _call(self, acquire: Acquire, state: str, words: Callable[[], Words], give_up: float) -> Tuple[Any, float]:
        """The reply to a call that may be sent again, as it has a number, and the time of the first attempt.

        A lease counts from the first attempt, as that one may have succeeded. A reply counts only if its call carried the
        present number (R14). The reply is 0 if the acquire has changed its state meanwhile.
        """
        failing = first_sent = math.inf
        acquire.in_doubt = False
        while acquire.state is state and (acquire.error is None or state is HELD):
            await acquire.number.session._until_up(give_up, acquire)
            now = monotonic()
            with self.mutex:
                if acquire.state is not state:
                    break
                at, call = acquire.number, words()
                # A release of a number that is not declared yet would be refused, and remembered (R23).
                is_declared = state is ASKED or acquire.is_declared()
            try:
                if not is_declared:
                    raise NoSession(f"{acquire.request.name}: no server has confirmed the hold yet; try again")
                first_sent = min(first_sent, now)
                reply = await at.session.io.call(call, min(CALL_TIMEOUT, max(REPLY_GRACE, give_up - now)))
                if at is acquire.number:
                    return reply, first_sent
                acquire.in_doubt = True
            except Transient as error:
                acquire.in_doubt |= not isinstance(error, (NoSession, Moved))
                failing = min(failing, now)
                # ASK means that the slot is still moving.
                is_moved = isinstance(error, Moved) and state is ASKED and str(error).startswith("MOVED")
                if is_moved or monotonic() >= (give_up if give_up < math.inf else failing + self.options.patience):
                    raise
            except LockError:
                if at is acquire.number:
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
            elif acquire.state is ASKED and self._failed and await self._session_of(acquire.request.keys[0]) is not self:
                raise Moved("another node serves the key now")
            elif give_up < math.inf and not acquire.is_try and isinstance(error, Transient):
                # A call with a limit waits for the server.
                error = None
            if error is not None:
                raise type(error)(str(error))
            if not await self._up.wait(_remaining(give_up)) and monotonic() >= give_up:
                raise Unavailable("no connection to the server; try again")

    def valid_for(self, hold: Acquire) -> float:
        """Seconds for which no other owner can have the lock, even if the network fails."""
        if hold.state is not HELD or not hold.is_declared():
            return 0.0
        until = self.safe_until if hold.request.lease is None else hold.lease_ends
        if hold.in_flight and self._confirmed_here() < hold.granted:
            # The server may still revoke the grant (R1).
            until = min(until, self.safe_until)
        return max(0.0, until - monotonic())

    def _confirmed_here(self) -> float:
        """When the last confirming LOCK.EVENTS of the present session was sent."""
        return self.safe_until - self.options.grace

    # Transitions, under the mutex.

    def _next_number(self, acquire: Acquire) -> int:
        self._last_n += 1
        acquire.number = Number(self, self.id or b"", self._last_n)
        return self._last_n

    def _grant(self, asked: Acquire, since: float, reply: Any, token: Any = None) -> None:
        """`since`: the earliest time at which the lease can have begun."""
        replies = reply if asked.request.several else [reply]
        if not isinstance(replies[0], int):
            maps = [each if isinstance(each, dict) else dict(zip(each[::2], each[1::2])) for each in replies]
            tokens, replies = [each[b"token"] for each in maps], [each[b"holds"] for each in maps]
            token = tokens if asked.request.several else tokens[0]
        self.held[asked.number.n] = self.asked.pop(asked.number.n)
        asked.state, asked.token, asked.holds, asked.granted = HELD, token, max(replies), monotonic()
        asked.lease_ends, asked.in_flight = since + (asked.request.lease or math.inf), asked.in_doubt
        self._signal(asked)

    def _end(self, acquire: Acquire, reason: str, undo: bool = False) -> None:
        """The acquire neither waits nor holds any longer. With `undo`, the server may not know that."""
        if acquire.state is OVER:
            return
        was_held, at = acquire.state is HELD and reason != "cancelled" and not acquire.is_handed_over, acquire.number
        if acquire.is_releasing and acquire.in_doubt and reason in UNEXPLAINED:
            # If the hold had been lost before the release, an event would say so.
            reason = "released"
        acquire.state, acquire.reason = OVER, reason
        at.session.asked.pop(at.n, None)
        at.session.held.pop(at.n, None)
        is_undeclared = acquire in at.session.undeclared
        if undo and (at.n or is_undeclared):
            # A call of this owner may be late. Undeclared acquires are undone after their declaration.
            acquire.owner.retired += 1
            if not is_undeclared:
                at.session.undo[at.n] = acquire
        if was_held:
            self._notify(acquire, "held", "lost" if acquire.is_lost() else "released")
        self._signal(acquire)

    def _undone(self, n: int) -> None:
        acquire = self.undo.pop(n, None)
        if acquire is not None:
            acquire.owner.retired -= 1

    def _end_renewed(self, reason: str) -> None:
        with self.mutex:
            for hold in [*self.held.values(), *self.undeclared]:
                if hold.request.lease is None:
                    self._end(hold, reason, undo=True)

    def _signal(self, acquire: Acquire) -> None:
        if acquire.changed is not None:
            acquire.changed.set()

    def _wake_waiting(self) -> None:
        """Lets all that wait for the session look again."""
        self._up.set()
        self._up.clear()

    def _notify(self, acquire: Acquire, event: str, outcome: str) -> None:
        self.mutex.events.append((acquire.request.label, event, outcome, monotonic() - acquire.granted))

    def _set_jeopardy(self, value: bool) -> None:
        if value is not self._in_jeopardy:
            self._in_jeopardy = value
            for hold in list(self.held.values()):
                if hold.request.lease is None:
                    self._notify(hold, "jeopardy" if value else "safe", "")

    # The reader.

    async def _read(self) -> None:
        """Heartbeat, events and losses: the only loop."""
        failing, pause = math.inf, RETRY_PAUSE
        try:
            while not self.closed:
                try:
                    await self._turn()
                    failing, pause, self._error, self._failed = math.inf, RETRY_PAUSE, None, False
                    continue
                except NoSession:
                    self._forget_id()
                    # The connections for calls may lead to a former primary.
                    await self.io.disconnect()
                except Late:
                    # R16: another process uses the id.
                    self._forget_id()
                    self._end_renewed("late")
                except Exception as error:
                    if not isinstance(error, LockError):
                        log.exception("the session failed")
                        error = Unavailable(f"the session failed: {error}")
                    failing = min(failing, monotonic())
                    if not isinstance(error, Transient) or monotonic() >= failing + self.options.patience:
                        self._fail_waits(error)
                    if str(error).startswith("READONLY"):
                        await self.io.disconnect()
                    if self.io.node.name:
                        # Another node of the cluster may have replaced this one.
                        await self._relocate([*self.asked.values(), *self.held.values(), *self.undeclared])
                        self._wake_waiting()
                self._failed = True
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
        try:
            if self.undeclared:
                await self._declare()
            await self._repeat_undo()
        except Transient:
            # While the session is up, the heartbeat does not wait for them.
            if not self._is_up:
                raise
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
            for asked in list(self.asked.values()):
                self._end(asked, "restarted", undo=True)
            for hold in [*self.held.values(), *self.undeclared]:
                if hold.is_handed_over:
                    # The lease runs out.
                    self._end(hold, "taken")
                    self.undeclared.pop(hold, None)
            self.undeclared.update(dict.fromkeys([*self.held.values(), *self.undo.values()]))
            self.held, self.undo = {}, {}
            self.id, self._seen, self.safe_until = id_, 0, -math.inf

    async def _declare(self) -> None:
        """Declares holds, and what may have been granted, in this session (R3, R6, R13)."""
        with self.mutex:
            # An acquire that is over may have no hold. It must not take that of another one of its owner.
            acquires = sorted(self.undeclared, key=lambda each: each.state is OVER)
            for acquire in acquires:
                if acquire.number.id != self.id:
                    self._next_number(acquire)
            calls = [acquire.declare_words() for acquire in acquires]
        replies = await self.io.batch(calls, REPLY_GRACE + 0.001 * len(calls))
        for reply in replies:
            if isinstance(reply, Transient) and not isinstance(reply, (Late, Moved)):
                raise reply
        moved = [acquire for acquire, reply in zip(acquires, replies) if isinstance(reply, Moved)]
        declared = [(acquire, reply) for acquire, reply in zip(acquires, replies) if not isinstance(reply, Moved)]
        ours = Counter(_hold_of(each) for each, reply in declared if each.state is HELD or not isinstance(reply, LockError))
        with self.mutex:
            for acquire in moved:
                # It gets another number, as the next LOCK.EVENTS may end the use of the present one.
                self._undeclare(acquire)
            for acquire, reply in declared:
                self.undeclared.pop(acquire, None)
                n, is_refused = acquire.number.n, isinstance(reply, LockError)
                if acquire.state is OVER:
                    self.undo[n] = acquire
                    continue
                self.held[n] = acquire
                # R3, R22: if the count is too low, a hold of this owner has ended, and nobody knows which.
                if is_refused or min(reply if acquire.request.several else [reply]) < ours[_hold_of(acquire)]:
                    self._end(acquire, "restarted", undo=not is_refused)
        if moved:
            # The nodes may not agree yet.
            await self._relocate(moved)

    def adopt(self, acquire: Acquire) -> None:
        """Leaves an acquire to the reader of this session, as this node now serves its slot."""
        self._start()
        at = acquire.number
        if at.session is not self:
            with self.mutex:
                self._confirmed = max(self._confirmed, at.session._confirmed)
                at.session.undeclared.pop(acquire, None)
                if acquire.state is ASKED:
                    self._end(acquire, "moved", undo=True)
                self._undeclare(acquire)

    def _undeclare(self, acquire: Acquire) -> None:
        at = acquire.number
        for place in (at.session.held, at.session.undo):
            place.pop(at.n, None)
        acquire.number = Number(self, b"", 0)
        self.undeclared[acquire] = None

    def _next_beat(self) -> int:
        # R16: never taken from a reply.
        self._beat += 1
        return self._beat

    async def _poll(self) -> None:
        """One LOCK.EVENTS: heartbeat, acknowledgement and events."""
        block = min(EVENTS_BLOCK, (self.options.grace or self.options.ttl) / 3)
        if self._failed or not self._is_up:
            # Confirms at once.
            block = 0.0
        elif self.undeclared:
            block = RETRY_PAUSE
        with self.mutex:
            declared = (each.number.n for each in self.undeclared if each.number.id == self.id)
            # Numbers are asked in order.
            done = min(next(iter(self.asked), self._last_n + 1), *self.undo, *declared, self._last_n + 1)
        sent = monotonic()
        words = ("LOCK.EVENTS", self.id, self._next_beat(), self._seen, done, int(block * 1000), EVENTS_COUNT)
        events = await self.io.read(words, block + REPLY_GRACE)
        with self.mutex:
            for seq, kind, n, *fields in events:
                self._seen, acquire = seq, self.asked.get(n) or self.held.get(n)
                if acquire is None:
                    continue
                if kind == b"granted" and acquire.state is ASKED:
                    acquire.in_doubt = True
                    # An earlier grant would be in the last confirming reply.
                    self._grant(acquire, max(acquire.began, self._confirmed_here()), *fields[:2])
                elif kind == b"lost" and fields[0] == b"moved" and acquire.state is HELD:
                    self._undeclare(acquire)
                elif kind == b"lost":
                    # Perhaps only one of several locks was lost.
                    self._end(acquire, fields[0].decode(), undo=acquire.request.several)
            if len(events) < EVENTS_COUNT:
                self._confirmed, self.safe_until = sent, sent + self.options.grace
                self._set_jeopardy(False)

    async def _repeat_undo(self) -> None:
        """Undoes on the server what is over here."""
        with self.mutex:
            while self.dropped:
                self._end(self.dropped.pop(), "released", undo=True)
            undo = list(self.undo.values())
        if undo:
            replies = await self.io.batch([each.cancel_words() for each in undo], REPLY_GRACE)
            with self.mutex:
                for acquire, reply in zip(undo, replies):
                    if isinstance(reply, Moved):
                        self._undeclare(acquire)
                    elif not isinstance(reply, Transient):
                        self._undone(acquire.number.n)

    def _check_clock(self) -> None:
        with self.mutex:
            if monotonic() >= self.safe_until:
                self._set_jeopardy(True)
        if monotonic() >= self._confirmed + self.options.ttl:
            self._end_renewed("silent")

    def _forget_id(self) -> None:
        """The session is over on the server."""
        with self.mutex:
            self.id, self._is_up, self.safe_until = None, False, -math.inf
        self._up.clear()

    def _fail_waits(self, error: LockError) -> None:
        """Fails the waits without a limit. If the error is permanent, fails all waits."""
        with self.mutex:
            self._error = error
            for asked in self.asked.values():
                if asked.until == math.inf or not isinstance(error, Transient):
                    asked.error = error
                    self._signal(asked)
        if not self._is_up:
            self._wake_waiting()

    async def close(self) -> None:
        """Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends."""
        self.closed = True
        if self._started:
            await self._end_all()
            await self.io.close()

    async def _end_all(self) -> None:
        with self.mutex:
            id_, self.id, self._is_up = self.id, None, False
            for asked in self.asked.values():
                asked.error = Cancelled("the locks are closed")
                self._signal(asked)
            for hold in [*self.held.values(), *self.undeclared]:
                if hold.request.lease is None:
                    self._end(hold, "closed")
        self._wake_waiting()
        if id_ is not None:
            try:
                await self.io.call(("LOCK.SESSION", "CLOSE", id_), CLOSE_TIMEOUT)
            except LockError:
                pass


def _hold_of(acquire: Acquire) -> Tuple[Tuple[bytes, ...], bytes]:
    return tuple(acquire.request.keys), acquire.owner.name


def _reason_of(error: Any) -> str:
    return "wrongtype" if isinstance(error, Overwritten) else "not held"


def _remaining(until: float) -> Optional[float]:
    return None if until == math.inf else max(0.0, until - monotonic())
