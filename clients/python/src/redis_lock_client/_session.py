# SPDX-License-Identifier: MIT
"""A client's presence on one server: its numbers, holds and waits, and the loop that reads events.

Rules R1 to R23 are those of docs/sessions.md. Nothing here knows threads or asyncio: an `Io` blocks the calling thread, or
suspends the calling task. Times are in seconds, by the monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter
from random import uniform
from time import monotonic
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from . import errors
from ._acquire import ASKED, HELD, OVER, UNDO, UNEXPLAINED, Acquire
from ._io import CALL_TIMEOUT, Io
from ._options import log
from .errors import LockError, Lost, Moved, NoReply, NoSession, Transient, Unavailable

if TYPE_CHECKING:
    from ._core import Core

# Time that LOCK.EVENTS waits in the server, and at most a third of GRACE.
EVENTS_BLOCK = 1.0
# Maximum number of events in a reply. A full reply confirms nothing (R2).
EVENTS_COUNT = 1000
# Extra time for the reply to a call that waits in the server.
REPLY_GRACE = 1.0
# The first pause before a call is repeated, that of a reader without a reply, and the longest one. A reader's are random.
RETRY_PAUSE, RECONNECT_PAUSE, MAX_RETRY_PAUSE = 0.05, 0.5, 1.0
# Limit for the last calls of a session.
CLOSE_TIMEOUT = 1.0


class Session:
    """The session on one server.

    Replies, events and the clock move an acquire from one place to the next: asked, held, undo, over.
    """

    def __init__(self, core: Core, io: Io) -> None:
        self.core, self.io, self.options, self.mutex = core, io, core.options, core.mutex
        # Ends the pauses of the reader.
        self._closing = io.signal()
        # Empty while the session is not open.
        self.id = b""
        # Whether the holds of the session are declared (R3), and LOCK.EVENTS has confirmed them.
        self._is_up = False
        # The error of the reader, if it is permanent, or has lasted for the patience.
        self._error: Optional[LockError] = None
        self._beat = self._seen = self._last_n = 0
        # Each acquire is in one of these, by its number. The last one has acquires to undo, and holds to declare.
        self.asked: Dict[int, Acquire] = {}
        self.held: Dict[int, Acquire] = {}
        self.unsettled: Dict[int, Acquire] = {}
        # Holds whose `Hold` was collected. `__del__` appends here, because it must not lock.
        self.dropped: List[Acquire] = []
        # When the last confirming LOCK.EVENTS was sent: in this session, and in any one that had its holds before.
        self._confirmed = self._last_confirmed = -math.inf
        self._started = self._in_jeopardy = self._failed = self.closed = False
        # Whether a hold of the session may wait for the process that takes it over.
        self._has_given = False

    # Calls of the user.

    async def ask(self, asked: Acquire) -> None:
        """Waits for the grant or the end of the acquire. If it raises, the caller cancels it: the server may still grant it."""
        if self.io.is_reader() and not asked.is_try:
            raise errors.Misuse("a listener must not wait for a lock; try to acquire it, or use another thread")
        give_up = asked.began + self.options.patience if asked.is_try or asked.source else asked.until + REPLY_GRACE
        with self.mutex:
            if self.closed:
                raise Moved("this session has ended")
            self.asked[self._number(asked)] = asked
        self._start()
        try:
            verb = "RENEW" if asked.source else "ACQUIRE"
            reply, first_sent = await self._call(asked, ASKED, verb, give_up, asked.request.lease)
        except Lost as error:
            with self.mutex:
                # Perhaps only one of several locks was lost.
                self._end(asked, "not held" if asked.source else "restarted", undo=asked.request.several)
            if asked.source:
                raise error
            return
        with self.mutex:
            if asked.place is ASKED and asked.error is not None:
                raise asked.error
            if asked.place is ASKED and reply is None:
                self._end(asked, "timeout")
            elif asked.place is ASKED and reply != 0:
                self._grant(asked, first_sent, reply)
        await self._wait(asked, ASKED, give_up, lambda: False)
        if asked.place is HELD:
            await self._check_grant(asked)

    async def _check_grant(self, hold: Acquire) -> None:
        if hold.holds > 1 and not hold.request.reentrant:
            text = "this owner has the lock already; release it first, or use reentrant=True"
            raise errors.Deadlock(f"{hold.request.name}: {text}")
        if hold.lease_ends <= monotonic():
            # Perhaps: nobody knows when the lease began. The renewal sets it again.
            hold.lease_ends = math.inf
            try:
                await self.renew(hold, hold.request.lease)
            except Lost:
                if hold.is_try:
                    raise Unavailable(f"{hold.request.name}: the grant arrived after the end of its lease")
        with self.mutex:
            hold.is_delivered = hold.place is HELD

    def interrupt(self, asked: Acquire, error: LockError) -> None:
        """Ends a wait from another thread."""
        with self.mutex:
            asked.error = error
            self._signal(asked)

    async def cancel(self, acquire: Acquire) -> None:
        """Ends an acquire in any place. The reader repeats the call until it is answered (R11)."""
        with self.mutex:
            self._end(acquire, "cancelled", undo=True)
            at = acquire.session
            if acquire.place is not UNDO or not acquire.is_declared() or not at._is_up:
                return
            sent_as, words = (acquire.id, acquire.n), acquire.words("CANCEL")
        try:
            await at.io.call(words, REPLY_GRACE)
        except LockError as error:
            if isinstance(error, Transient):
                return
        with self.mutex:
            if acquire.session is at and (acquire.id, acquire.n) == sent_as:
                self._undone(acquire)

    async def release(self, hold: Acquire) -> None:
        """Releases exactly this hold. After a failure the reader undoes it."""
        with self.mutex:
            if hold.place is HELD and hold.is_lost():
                # Expired by the local clock. A lease is never shortened, so the server may still have the hold.
                self._end(hold, "expired", undo=True)
            is_first, hold.is_releasing = hold.place is HELD and not hold.is_releasing, True
        if is_first:
            try:
                patience = 0 if self.io.is_reader() else self.options.patience
                await self._call(hold, HELD, "RELEASE", monotonic() + patience)
                reason = "released"
            except (Lost, errors.Overwritten) as error:
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
        if hold.place is not HELD or hold.is_lost():
            raise hold.lost()
        first_sent = 0.0
        try:
            _, first_sent = await self._call(hold, HELD, "RENEW", monotonic() + self.options.patience, lease)
        except (Lost, errors.Overwritten) as error:
            with self.mutex:
                # A release that is on its way knows more.
                if not hold.is_releasing:
                    self._end(hold, _reason_of(error), undo=hold.request.several)
            raise hold.lost()
        with self.mutex:
            if hold.is_lost():
                self._end(hold, "expired", undo=True)
            if hold.place is not HELD:
                raise hold.lost()
            hold.in_flight = False
            if lease is not None:
                hold.lease_ends = first_sent + lease

    async def _call(
        self, acquire: Acquire, place: str, verb: str, give_up: float, lease: Optional[float] = None
    ) -> Tuple[Any, float]:
        """The reply to a call that may be sent again, as it has a number, and the time of the first attempt.

        A lease counts from the first attempt, as that one may have succeeded. A reply counts only if its call carried the
        present id and number (R14). The reply is 0 if the acquire has left its place meanwhile.
        """
        failing = first_sent = math.inf
        while True:
            acquire.session._start()
            await self._wait(acquire, place, give_up, lambda: acquire.session._serves(acquire))
            with self.mutex:
                if acquire.place is not place:
                    return 0, first_sent
                at = acquire.session
                if not at._serves(acquire):
                    continue
                acquire.id, was_in_doubt = at.id, verb in acquire.in_doubt
                sent_as, words = (at, acquire.n, acquire.id), acquire.words(verb, lease)
                acquire.in_doubt.add(verb)
            now = monotonic()
            first_sent = min(first_sent, now)
            reply, error = None, None
            try:
                reply = await at.io.call(words, min(CALL_TIMEOUT, max(REPLY_GRACE, give_up - now)))
            except LockError as failure:
                error = failure
            with self.mutex:
                is_present = sent_as == (acquire.session, acquire.n, at.id)
                if error is not None and not isinstance(error, NoReply) and not was_in_doubt:
                    # The server has not executed it.
                    acquire.in_doubt.discard(verb)
                    if is_present and acquire.place is ASKED:
                        acquire.id = b""
                elif error is None and is_present and not was_in_doubt:
                    acquire.in_doubt.discard(verb)
                if acquire.place is not place:
                    # An event overrules the reply.
                    return 0, first_sent
            if error is None and is_present:
                return reply, first_sent
            if error is not None and not isinstance(error, Transient):
                if is_present:
                    raise error
            elif error is not None:
                failing = min(failing, now)
                # ASK means that the slot is still moving.
                is_moved = isinstance(error, Moved) and place is ASKED and str(error).startswith("MOVED")
                if is_moved or monotonic() >= (give_up if give_up < math.inf else failing + self.options.patience):
                    raise error
            await self.io.sleep(RETRY_PAUSE)

    def _serves(self, acquire: Acquire) -> bool:
        """Whether a call about this acquire can be sent. A RELEASE before the declaration would be refused (R23)."""
        return self._is_up and (acquire.place is ASKED or acquire.is_declared())

    async def _wait(self, acquire: Acquire, place: str, give_up: float, is_ready: Callable[[], bool]) -> None:
        """Waits until the acquire is ready, or has left this place."""
        while True:
            with self.mutex:
                at = acquire.session
                error = acquire.error if place is ASKED else None
                if acquire.place is not place or error is None and is_ready():
                    return
                if error is None and at.closed:
                    error = errors.Cancelled("the locks are closed; make new ones")
                is_limited = place is HELD or acquire.until < math.inf and not acquire.is_try
                if error is None and not (is_limited and isinstance(at._error, Transient)):
                    # A call with a limit of its own waits for the server.
                    error = at._error
                if error is not None:
                    raise type(error)(str(error))
                changed = acquire.changed = acquire.changed or self.io.signal()
            remaining = None if give_up == math.inf else max(0.0, give_up - monotonic())
            if not await changed.wait(remaining) and monotonic() >= give_up:
                has_answered = at._is_up and not at._failed and place is ASKED
                raise (errors.TimedOut if has_answered else Unavailable)(f"{acquire.request.name}: no answer in time; try again")

    def _start(self) -> None:
        with self.mutex:
            start, self._started = not self._started and not self.closed, self._started or not self.closed
        if start:
            try:
                self.io.start(self._read)
            except BaseException:
                self._started = False
                raise

    def valid_for(self, hold: Acquire) -> float:
        """Seconds for which no other owner can have the lock, even if the network fails."""
        if hold.place is not HELD or not hold.is_declared():
            return 0.0
        until = hold.lease_ends
        # Until the grant is acknowledged, the server may still revoke it (R1).
        if hold.request.lease is None or hold.in_flight and self._confirmed < hold.granted:
            until = min(until, self._confirmed + self.options.grace)
        return max(0.0, until - monotonic())

    # Transitions, under the mutex.

    def _number(self, acquire: Acquire) -> int:
        self._last_n += 1
        acquire.session, acquire.n, acquire.id = self, self._last_n, b""
        return self._last_n

    def _grant(self, asked: Acquire, since: float, reply: Any, token: Any = None) -> None:
        """`since`: the earliest time at which the lease can have begun."""
        replies = reply if asked.request.several else [reply]
        if not isinstance(replies[0], int):
            maps = [each if isinstance(each, dict) else dict(zip(each[::2], each[1::2])) for each in replies]
            tokens, replies = [each[b"token"] for each in maps], [each[b"holds"] for each in maps]
            token = tokens if asked.request.several else tokens[0]
        self.held[asked.n] = self.asked.pop(asked.n)
        asked.place, asked.token, asked.holds, asked.granted, asked.source = HELD, token, max(replies), monotonic(), ()
        asked.lease_ends, asked.in_flight = since + (asked.request.lease or math.inf), bool(asked.in_doubt)
        self._signal(asked)

    def _end(self, acquire: Acquire, reason: str, undo: bool = False) -> None:
        """The acquire neither waits nor holds any longer. With `undo`, the server may not know that."""
        if acquire.place not in (ASKED, HELD):
            return
        at, was_held, was_known = acquire.session, acquire.place is HELD, acquire.place is HELD or acquire.id != b""
        if "RELEASE" in acquire.in_doubt and reason in UNEXPLAINED:
            # If the hold had been lost before the release, an event would say so.
            reason = "released"
        for place in (at.asked, at.held, at.unsettled):
            place.pop(acquire.n, None)
        acquire.place, acquire.reason = OVER, reason
        if undo and was_known:
            acquire.place, at.unsettled[acquire.n] = UNDO, acquire
            # A call of this owner may be late.
            acquire.owner.retired.update(acquire.request.keys)
        if was_held and acquire.is_delivered and reason != "taken":
            self._notify(acquire, "held", "lost" if acquire.is_lost() else "released")
        self._signal(acquire)

    def give(self, hold: Acquire) -> None:
        """Another process may take the hold. Its owner is no longer used for this lock, unless the user named it."""
        self._end(hold, "taken")
        self._has_given = True
        if hold.request.owner is None:
            hold.owner.retired.update(hold.request.keys)

    def _undone(self, acquire: Acquire) -> None:
        if acquire.place is UNDO:
            del acquire.session.unsettled[acquire.n]
            acquire.place = OVER
            acquire.owner.retired -= Counter(acquire.request.keys)

    def _end_renewed(self, reason: str) -> None:
        for hold in [*self.held.values(), *self.unsettled.values()]:
            if hold.request.lease is None:
                self._end(hold, reason, undo=True)

    def _signal(self, acquire: Acquire) -> None:
        if acquire.changed is not None:
            acquire.changed.set()
            acquire.changed = None

    def _signal_all(self) -> None:
        for acquire in [*self.asked.values(), *self.held.values(), *self.unsettled.values()]:
            self._signal(acquire)

    def _notify(self, acquire: Acquire, event: str, outcome: str) -> None:
        self.mutex.events.append((acquire.request.label, event, outcome, monotonic() - acquire.granted))

    def _set_jeopardy(self, value: bool) -> None:
        if value is not self._in_jeopardy:
            self._in_jeopardy = value
            for hold in self.held.values():
                if hold.request.lease is None:
                    self._notify(hold, "jeopardy" if value else "safe", "")

    def adopt(self, acquire: Acquire) -> None:
        """Leaves an acquire to the reader of this session, as this node may now serve its slot."""
        with self.mutex:
            old = acquire.session
            if self.closed:
                # The reader of the other session tries again.
                return
            if acquire.place is ASKED:
                self._end(acquire, "moved", undo=True)
            if acquire.place is not OVER:
                for place in (old.held, old.unsettled):
                    place.pop(acquire.n, None)
                self._last_confirmed = max(self._last_confirmed, old._last_confirmed)
                # A new number, as the node of the old one has ended that.
                self.unsettled[self._number(acquire)] = acquire
        self._start()

    # The reader.

    async def _read(self) -> None:
        """Heartbeat, events and losses: the only loop."""
        reconnect_pause = max(RETRY_PAUSE, min(RECONNECT_PAUSE, self.options.grace / 3))
        failing, pause, first = math.inf, 0.0, 0.0
        try:
            while not self.closed:
                last, first = first, RETRY_PAUSE
                try:
                    await self._turn()
                    failing, first, self._error, self._failed = math.inf, 0.0, None, False
                    continue
                except NoSession:
                    # The server answers again.
                    failing, self._error = math.inf, None
                    self._forget_id()
                    # The connections for calls may lead to a former primary.
                    await self.io.disconnect()
                except errors.Late:
                    # R16: another process uses the id.
                    self._forget_id()
                    with self.mutex:
                        self._end_renewed("late")
                except Exception as failure:
                    error = failure
                    if isinstance(error, NoReply):
                        # Other clients may have lost their connections at the same moment.
                        first = reconnect_pause
                    if not isinstance(error, LockError):
                        log.exception("the session failed")
                        error = Unavailable(f"the session failed: {error}")
                    failing = min(failing, monotonic())
                    if not isinstance(error, Transient) or monotonic() >= failing + self.options.patience:
                        with self.mutex:
                            self._error = error
                            self._signal_all()
                self._failed = True
                self._check_clock()
                if self.io.node.name:
                    await self._leave_node()
                if not self.closed:
                    pause = min(2 * pause, MAX_RETRY_PAUSE) if first == last else first
                    await self._closing.wait(uniform(0, pause))
            await self._end_all()
            await self.io.close()
        finally:
            # The event loop may end the task of the reader. The next call starts it again.
            with self.mutex:
                self._started = self._is_up = False
                if self.core.sessions.get(self.io.node.name) is self and self.closed:
                    del self.core.sessions[self.io.node.name]
                self._signal_all()

    async def _leave_node(self) -> None:
        """Another node of the cluster may have replaced this one. Without it, its session ends."""
        await self.core.relocate([*self.asked.values(), *self.held.values(), *self.unsettled.values()])
        with self.mutex:
            if not (self.asked or self.held or self.unsettled or self._has_given):
                self.closed = True

    async def _turn(self) -> None:
        """Declares, undoes and polls, in this order and in one round trip (R3, R6, R13)."""
        if not self.id:
            await self._open()
        block = min(EVENTS_BLOCK, (self.options.grace or self.options.ttl) / 3)
        with self.mutex:
            while self.dropped:
                self._end(self.dropped.pop(), "released", undo=True)
            # An acquire that is over may have no hold. It must not take that of another one of its owner.
            unsettled = sorted(self.unsettled.values(), key=lambda each: each.place is UNDO)
            declared = [each for each in unsettled if each.id != self.id]
            undone = [each for each in unsettled if each.place is UNDO]
            calls = [each.declaration() for each in declared] + [each.words("CANCEL") for each in undone]
            if self._failed or not self._is_up:
                # Confirms at once.
                block = 0.0
            elif unsettled:
                block = RETRY_PAUSE
            # Numbers are asked in order.
            done = min(next(iter(self.asked), self._last_n + 1), self._last_n + 1, *self.unsettled)
        sent = monotonic()
        poll = ("LOCK.EVENTS", self.id, self._next_beat(), self._seen, done, int(block * 1000), EVENTS_COUNT)
        *replies, events = await self.io.read([*calls, poll], block + REPLY_GRACE + 0.001 * len(calls))
        moved = self._declare(declared, replies[: len(declared)])
        with self.mutex:
            for acquire, reply in zip(undone, replies[len(declared) :]):
                if self._is_answer(reply) and acquire.is_declared():
                    self._undone(acquire)
                elif isinstance(reply, Moved) and acquire not in moved:
                    moved.append(acquire)
        if isinstance(events, LockError):
            raise events
        not_declared = (each for each in replies[: len(declared)] if not self._is_answer(each) and not isinstance(each, Moved))
        failure = next(not_declared, None)
        with self.mutex:
            moved += self._handle(events)
            if len(events) < EVENTS_COUNT:
                self._confirmed = self._last_confirmed = sent
                if failure is None:
                    self._set_jeopardy(False)
            if not self._is_up and failure is None and not self.closed:
                self._is_up = True
                self._signal_all()
        if moved:
            for acquire in moved:
                self.adopt(acquire)
            # The nodes may not agree yet.
            await self.core.relocate(moved)
        if failure is not None and not self._is_up:
            raise failure

    def _is_answer(self, reply: Any) -> bool:
        """Whether a repetition would get the same reply. Without a cluster, no other node has the key."""
        is_final = isinstance(reply, errors.Late) or isinstance(reply, Moved) and not self.io.node.name
        return is_final or not isinstance(reply, Transient)

    async def _open(self) -> None:
        options = self.options
        times = ("TTL", round(options.ttl * 1000), "GRACE", round(options.grace * 1000))
        words = ("LOCK.SESSION", "OPEN", "NEW", self._next_beat(), *times, "NAME", options.name)
        [reply] = await self.io.read([words], REPLY_GRACE)
        if isinstance(reply, LockError):
            raise reply
        with self.mutex:
            for asked in list(self.asked.values()):
                if asked.id:
                    self._end(asked, "restarted", undo=True)
            self.unsettled = dict(sorted({**self.held, **self.unsettled}.items()))
            self.held = {}
            self.id, self._seen, self._confirmed, self._has_given = reply[0], 0, -math.inf, False

    def _declare(self, acquires: List[Acquire], replies: List[Any]) -> List[Acquire]:
        """Handles the replies to declarations. Returns the acquires that another node serves now."""
        answered = [(each, reply) for each, reply in zip(acquires, replies) if self._is_answer(reply)]
        ours = Counter(_hold_of(each) for each, reply in answered if each.place is HELD or not isinstance(reply, LockError))
        with self.mutex:
            for acquire, reply in answered:
                acquire.id, is_refused = self.id, isinstance(reply, LockError)
                if acquire.place is HELD:
                    self.held[acquire.n] = self.unsettled.pop(acquire.n)
                    self._signal(acquire)
                # R3, R22: if the count is too low, a hold of this owner has ended, and nobody knows which.
                if is_refused or min(reply if acquire.request.several else [reply]) < ours[_hold_of(acquire)]:
                    self._end(acquire, "restarted", undo=not is_refused or acquire.request.several)
        return [each for each, reply in zip(acquires, replies) if isinstance(reply, Moved) and not self._is_answer(reply)]

    def _handle(self, events: List[Any]) -> List[Acquire]:
        """Moves the acquires of events. Returns the holds that have moved to another node."""
        moved = []
        for seq, kind, n, *fields in events:
            self._seen, acquire = seq, self.asked.get(n) or self.held.get(n)
            if acquire is None:
                continue
            if kind == b"granted" and acquire.place is ASKED:
                acquire.in_doubt.add("ACQUIRE")
                # An earlier grant would be in the last confirming reply.
                self._grant(acquire, max(acquire.began, self._confirmed), *fields[:2])
            elif kind == b"lost" and fields[0] == b"moved" and acquire.place is HELD and self.io.node.name:
                moved.append(acquire)
            elif kind == b"lost":
                # Perhaps only one of several locks was lost.
                self._end(acquire, fields[0].decode(), undo=acquire.request.several)
        return moved

    def _next_beat(self) -> int:
        # R16: never taken from a reply.
        self._beat += 1
        return self._beat

    def _check_clock(self) -> None:
        with self.mutex:
            if monotonic() >= self._confirmed + self.options.grace:
                self._set_jeopardy(True)
            if monotonic() >= self._last_confirmed + self.options.ttl:
                self._end_renewed("silent")

    def _forget_id(self) -> None:
        """The session is over on the server."""
        with self.mutex:
            self.id, self._is_up, self._confirmed = b"", False, -math.inf

    async def close(self) -> None:
        """Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends."""
        self.closed = True
        self._closing.set()
        if self._started or self.id:
            await self._end_all()
            await self.io.close()

    async def _end_all(self) -> None:
        with self.mutex:
            id_, self._is_up = self.id, False
            for asked in list(self.asked.values()):
                self._end(asked, "closed", undo=True)
            for hold in [*self.held.values(), *self.unsettled.values()]:
                if hold.request.lease is None:
                    self._end(hold, "closed")
            # The end of the session releases the other ones.
            undo = [each for each in self.unsettled.values() if each.place is UNDO and each.request.lease is not None]
            calls = [each.words("CANCEL") for each in undo if each.is_declared()]
            self.id = b""
            self._signal_all()
        if id_:
            try:
                await self.io.batch([*calls, ("LOCK.SESSION", "CLOSE", id_)], CLOSE_TIMEOUT)
            except LockError:
                pass


def _hold_of(acquire: Acquire) -> Tuple[Tuple[bytes, ...], bytes]:
    return tuple(acquire.request.keys), acquire.owner.name


def _reason_of(error: Any) -> str:
    return "wrongtype" if isinstance(error, errors.Overwritten) else "not held"
