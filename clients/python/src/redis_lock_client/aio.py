# SPDX-License-Identifier: MIT
"""Locks for asyncio. The synchronous ones are these, run in a thread."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
import uuid
from contextlib import suppress
from typing import Any, Coroutine, Dict, List, Optional, Sequence, Set, Tuple, TypeVar, Union

import redis.asyncio

from ._place import Place, place_of
from ._session import SOON, TRY_AGAIN, TRY_RARELY, Link, Listener, Session, say, text, told_within
from .errors import Busy, LockError, Lost, Misuse, Passing, TimedOut, Unavailable

T = TypeVar("T")

Name = Union[str, bytes]
# New for each acquire, unless the caller has one.
Owner = Union[str, bytes]

# A message may be lost. Who waits asks again so often (in seconds), and keeps its place.
ASK_AGAIN = 3.0

# To give a lock back is tried for so long (in seconds) behind the back of who could not. Before his eyes, nothing takes longer
# than the other.
TRY_FOR = 600.0
BLOCKS_FOR = 30.0

# What is kept is renewed so often (in seconds) at least: a connection that is idle for long is ended by many.
RENEW_AGAIN = 10.0


class Hold:
    """A lock that is held: what `with` gives."""

    def __init__(self, lock: "Lock", owner: Owner, named: bool = True) -> None:
        self.key, self.owner = lock.key, owner
        # By the caller, who may have another hold of that name later.
        self._named = named
        self.token: Optional[int] = None
        self.lost = asyncio.Event()
        self._lock, self._session = lock, lock._session
        self._wake = asyncio.Event()
        self._release_id = str(uuid.uuid4())
        self._lease = lock.lease
        self._granted = self._until = 0.0
        # The end of the lease that each call sets, by the time at which it was sent: from the last that was confirmed on. The
        # server has one of these.
        self._ends_at: Dict[float, float] = {}
        # What is kept is bound to this connection.
        self._link: Optional[Link] = None
        # Whether the server may know of it.
        self._said = False
        self._watch: Optional["asyncio.Task[None]"] = None
        self.released = False
        # To give it back has failed: nothing renews it.
        self._left = self._handing = False
        self._releasing = 0
        # Replies to calls that are on their way, whoever still waits for them; and the last, with its connection.
        self._renewals: Set["asyncio.Future[Any]"] = set()
        self._last: Optional[Tuple["asyncio.Future[Any]", Link]] = None

    def valid_for(self) -> float:
        """Seconds for which nobody else can have the lock, whatever the network does. What is kept ends with its connection: as
        soon as that end is known here, by the next renewal at the latest, it is not valid until one was confirmed on the next."""
        unbound = self._lock.ephemeral and not self._is_bound()
        over = self.lost.is_set() or self.released or self._left or self._releasing > 0 or unbound
        return 0.0 if over else max(0.0, self._until - time.monotonic())

    async def extend(self, lease: Optional[float] = None) -> None:
        """Sets the lease anew, in seconds, from now on. `Lost` if there is nothing to extend."""
        lease = self._lease if lease is None else _seconds("lease", lease)
        self._still_held()
        try:
            await self._renew(lease, self._time_left() if self._watch is not None else 0.0)
        except Unavailable:
            self._still_held()
            raise
        if self.lost.is_set():
            # The reply came later than the loss by the own clock.
            raise self._ended()
        self._lease = lease
        self._wake.set()

    async def guard(self, *command: Any) -> Any:
        """Carries out a command of Redis if the lock is still held, in the same step."""
        if isinstance(self._lock, AllOf):
            raise Misuse("what is written under several locks cannot be guarded")
        if self.lost.is_set() or self.released or self._left:
            # Another hold may have its owner's name meanwhile.
            raise Lost(f"{text(self.key)}: it is not held any more")
        try:
            reply = await self._session.ask(say("LOCK.GUARD", self.key, "OWNER", self.owner, *command), foreign=True)
        except Lost:
            await self._look()
            raise
        return self._session.decoded(reply)

    async def _look(self) -> None:
        """That it is lost may be the word of a script of the user's, of another lock. A renewal knows."""
        left = self._until - time.monotonic()
        if self.released or self._releasing or self._left or self._handing or self._watch is None:
            return
        if left <= 0:
            return self._run_out()
        with suppress(LockError):
            await self._renew(self._lease if self._keeps() else left)

    async def release(self) -> None:
        """Gives the lock back. If that fails, it may be called again, and counts once. `Lost` if it was lost before."""
        # What is lost is given back already, if it must be, and another hold may have the same owner by now.
        if not self.released and not (self.lost.is_set() and (self._named or self._left)):
            self._releasing += 1
            over: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
            self._session.gives_back(self._lock.keys, self.owner, over)
            try:
                await self._give_back(0.0 if self.lost.is_set() else min(self._lease, BLOCKS_FOR))
            except asyncio.CancelledError:
                await self._abandon()
                raise
            except LockError as error:
                if not self.lost.is_set() or not isinstance(error, Unavailable):
                    await self._abandon()
                    raise
            finally:
                self._releasing -= 1
                over.set_result(None)
            self._end("released")
        if self.lost.is_set():
            await self._session.given_back(self._lock.keys, self.owner, SOON)
            raise self._ended()

    async def hand_over(self) -> Owner:
        """It is the affair of another process from now on, which calls `attach` with the owner that this returns. What is kept
        is bound to this process until then, and ends with it."""
        self._still_held()
        if self._lock.ephemeral and not self._is_bound():
            # It may have ended with its connection.
            await self.extend()
        self._handing = True
        try:
            if self._renewals:
                # One that is on its way would bind it here again, or set another lease.
                _, late = await asyncio.wait(set(self._renewals), timeout=self._time_left())
                if late and self._until > time.monotonic():
                    raise Unavailable(f"{text(self.key)}: the server does not answer")
                if late and not self.lost.is_set():
                    self._run_out()
        finally:
            self._handing = False
            self._wake.set()
        self._still_held()
        self._end("released")
        return self.owner

    def _still_held(self) -> None:
        if self.lost.is_set() or self.released or self._left or self._releasing:
            raise Lost(f"{text(self.key)}: it is not held any more")
        if self._handing:
            raise Unavailable(f"{text(self.key)}: it is being handed over")

    def _ended(self) -> Lost:
        return Lost(f"{text(self.key)}: the hold ended before it was given back")

    def _time_left(self) -> float:
        """For so long a call may keep its caller waiting."""
        return max(SOON, min(BLOCKS_FOR, self._until - time.monotonic()))

    async def _give_back(self, seconds: float) -> None:
        try:
            words = self._lock._release(self.owner, self._release_id)
            await self._session.insist(seconds, say(*words), through=Unavailable)
        except Lost:
            if self._left:
                await self._give_back_rest()
            if not self.released:
                self._lose()
            return
        self._end("released")

    async def _abandon(self) -> None:
        if not self.lost.is_set() and not self.released:
            self._leave(self._go_on())

    async def _go_on(self) -> None:
        """Gives it back behind the caller's back. Who may not may have it run out; or may again later."""
        end, pause = time.monotonic() + TRY_FOR if self._lock.keep else self._latest(), TRY_AGAIN
        while not self._session.closed:
            try:
                return await self._give_back(0.0)
            except Unavailable:
                pass
            except LockError as error:
                # Something else may be in the lock's place.
                if "WRONGTYPE" in str(error) or (self._lock.keep and await self._ends()):
                    return
            if time.monotonic() >= end:
                return
            await self._session.rest_for(pause)
            pause = min(TRY_RARELY, 2 * pause)

    async def _ends(self) -> bool:
        """Whether a last renewal was confirmed."""
        try:
            await self._session.call(*self._lock._ending(self.owner, self._lease))
        except LockError as error:
            return isinstance(error, Lost)
        return True

    def _leave(self, work: Coroutine[Any, Any, Any]) -> None:
        """Nobody may call `release` again."""

        async def leave() -> None:
            with suppress(LockError):
                await work

        if self._left:
            return work.close()
        self._left = True
        self._wake.set()
        self._session.give_back(self._lock.keys, self.owner, leave())

    def _end(self, outcome: str) -> None:
        self.released = True
        if self._watch is not None:
            self._watch.cancel()
        self._tell(outcome)

    def _was_lost(self) -> None:
        """As the server says; but it may have been given back just before."""
        if not self._releasing and not self.released:
            self._lose()

    def _was_replaced(self, by_shared: bool) -> None:
        """By the next hold of its owner. To give back the rest of several would give back that."""
        if not isinstance(self._lock, AllOf) and not (by_shared and self._lock.shared):
            self._was_lost()

    def _run_out(self) -> None:
        """By the own clock. The server may have it yet, and renew it for ever; or by an extension whose reply was lost."""
        if self._lock.keep or self._latest() > time.monotonic():
            self._leave(self._go_on())
        self._lose()

    def _lose(self) -> None:
        if isinstance(self._lock, AllOf) and not self._session.closed:
            self._leave(self._give_back_rest())
        self.lost.set()
        self._wake.set()
        self._tell("lost")

    async def _give_back_rest(self) -> None:
        """Those of several locks that were not lost."""
        seconds = TRY_FOR if self._lock.keep else max(0.0, self._latest() - time.monotonic())
        calls = self._lock._rest(self.owner, self._release_id)
        # Lost, too; or it ends with its lease.
        await asyncio.gather(
            *(self._session.insist(seconds, say(*words), through=Unavailable) for words in calls), return_exceptions=True
        )

    def _tell(self, outcome: str) -> None:
        """A hold ends once."""
        if self._session.holds.pop(self._wake, None) is not None:
            self._session.tell(self._lock.label, "held", outcome, time.monotonic() - self._granted)

    async def _renew(self, lease: float, seconds: float = 0.0, patience: Optional[float] = None) -> None:
        try:
            await self._confirm(lease, seconds, patience)
        except Lost:
            self._was_lost()
            raise

    async def _confirm(self, lease: float, seconds: float = 0.0, patience: Optional[float] = None) -> float:
        """Sets the lease anew, and binds what is not bound. Returns when that was sent."""
        sent, on = 0.0, self._link

        def send(link: Link) -> "asyncio.Future[Any]":
            nonlocal sent, on
            if self.lost.is_set():
                raise self._ended()
            if self._handing or self.released or self._left:
                raise Unavailable(f"{text(self.key)}: it is not held here any more")
            sent, on = time.monotonic(), link
            # One that comes late, from whatever is between, must not bind it to a connection that has ended.
            age = None if link is self._link else sent - self._granted if self._granted else 0.0
            reply = link.send(*self._lock._renewal(self.owner, lease, age))
            self._asked(reply, link, sent, sent + lease)
            return reply

        await self._session.insist(seconds, send, patience=patience)
        self._link = on
        self._confirmed(sent)
        return sent

    def _asked(self, reply: "asyncio.Future[Any]", link: Link, sent: float, end: float) -> None:
        self._last = reply, link
        self._renewals.add(reply)
        reply.add_done_callback(self._renewals.discard)
        self._ends_at[sent] = min(end, self._ends_at.get(sent, end))
        if end < self._until:
            # The server may set it, and the reply get lost.
            self._until = end
            self._wake.set()

    def _confirmed(self, sent: float) -> None:
        """Each of those that were sent since may have set another end."""
        self._ends_at = {at: end for at, end in self._ends_at.items() if at >= sent}
        self._until = min(self._ends_at.values())

    def _latest(self) -> float:
        """When its lease is over at the server, at the latest."""
        return max(self._ends_at.values(), default=0.0)

    def _disown(self) -> None:
        """What was to take it over may have done so, and nobody takes it: it ends with its lease, unless it is attached again."""
        if self._lock.keep and self._last is not None:
            reply, link = self._last
            if not reply.done() or reply.exception() is None:
                with suppress(LockError):
                    link.send(*self._lock._ending(self.owner, self._lock.lease))

    def _is_bound(self) -> bool:
        return self._link is not None and self._link.open

    def _begin(self, sent: float, taken_over: bool = False) -> None:
        self._granted = sent
        self._ends_at.setdefault(sent, sent + self._lock.lease)
        self._confirmed(sent)
        if self._named and not taken_over:
            self._session.granted(self._lock.keys, self.owner, self._lock.shared)
        self._session.holds[self._wake] = self._lock.keys, self.owner, self._was_replaced
        if not self._is_bound():
            # It may have ended just now.
            self._wake.set()
        self._watch = self._session.later(self._keep_watch())

    def _keeps(self) -> bool:
        lock, age = self._lock, time.monotonic() - self._granted
        return lock.keep and not self._left and not self._handing and (lock.max_hold is None or age < lock.max_hold)

    async def _keep_watch(self) -> None:
        """Renews, if it is to be kept, and tells when the lock is lost: by the server, or by the own clock."""
        while not self.lost.is_set():
            now, pause = time.monotonic(), min(self._lease / 3, RENEW_AGAIN)
            keeps = self._keeps()
            if not keeps and now >= self._until:
                return self._run_out()
            wait = min(pause, self._until - now) if keeps else self._until - now
            await told_within(self._wake, wait)
            self._wake.clear()
            if self._session.closed:
                return self._lose()
            if self.released:
                return
            now, keeps = time.monotonic(), self._keeps()
            # A process that slept through its lease asks once: the server may have renewed, and then nobody else had the lock,
            # as no other ever has this owner's name.
            slept = now >= self._until
            # What is not kept may have ended with its connection.
            asks = keeps or (self._lock.ephemeral and not self._is_bound() and not slept)
            if not asks or self._left or self._handing or self.lost.is_set():
                continue
            try:
                await self._renew(self._lease if keeps else self._until - now, 0.0, pause if slept else self._until - now)
            except Lost:
                if self.lost.is_set() or self.released:
                    return
                # It is being given back.
                await asyncio.sleep(min(TRY_AGAIN, pause))
            except LockError as error:
                if time.monotonic() >= self._until:
                    return self._run_out()
                if isinstance(error, Passing):
                    await asyncio.sleep(min(TRY_AGAIN, pause))
                    self._wake.set()


class Lock:
    """A name and how it is to be held. May be used by many tasks: each hold has an owner of its own."""

    def __init__(
        self,
        session: Session,
        key: Name,
        lease: Optional[float] = None,
        wait: Optional[float] = None,
        keep: Optional[bool] = None,
        ephemeral: Optional[bool] = None,
        max_hold: Optional[float] = None,
        shared: bool = False,
        limit: Optional[int] = None,
        fence: bool = False,
        label: Optional[str] = None,
        own_connection: bool = False,
    ) -> None:
        for name, seconds in (("lease", lease), ("max_hold", max_hold)):
            if seconds is not None:
                _seconds(name, seconds)
        self.wait = _waiting(wait)
        if limit is not None:
            shared = True
        self.key, self.max_hold = key, max_hold
        self.lease = 30.0 if lease is None else lease
        self.keep = lease is None if keep is None else keep
        self.ephemeral = self.keep if ephemeral is None else ephemeral
        self.shared, self.limit, self.fence = shared, limit, fence
        self.label: str = text(key) if label is None else label
        self.own_connection = own_connection
        self._session = session
        self.keys: List[Name] = [key]
        # Of scopes, with the task that entered each.
        self._holds: List[Tuple[Any, Hold]] = []

    def _verb(self, verb: str) -> List[Any]:
        return [f"LOCK.{verb}", self.key]

    def _acquisition(self, owner: Owner, request: str) -> List[Any]:
        words = [*self._verb("ACQUIRE"), owner, "PX", _ms(self.lease), "ONCE", "ID", request]
        words += ["SHARED"] if self.shared else []
        words += ["LIMIT", self.limit] if self.limit is not None else []
        return words + (["FENCE"] if self.fence else [])

    def _renewal(self, owner: Owner, lease: float, age: Optional[float] = 0.0) -> List[Any]:
        """Of a hold of that age, which is to be bound to the connection on which this goes; without, it is bound already."""
        return [*self._verb("RENEW"), owner, "PX", _ms(lease), *([] if age is None else self._bound(age))]

    def _ending(self, owner: Owner, lease: float) -> List[Any]:
        """A last renewal, after which the server does not renew, as the hold is older than that: nothing else ends this."""
        return [*self._verb("RENEW"), owner, "PX", _ms(lease), "WATCHDOG", "MAX", 1, "EPHEMERAL"]

    def _release(self, owner: Owner, request: str) -> List[Any]:
        return [*self._verb("RELEASE"), owner, *(["SHARED"] if self.shared else []), "ID", request]

    def _rest(self, owner: Owner, request: str) -> List[List[Any]]:
        return []

    def _cancellations(self, owner: Owner, request: str) -> List[List[Any]]:
        return [["LOCK.CANCEL", self.key, owner, "ID", request]]

    def _bound(self, age: float = 0.0) -> List[Any]:
        words: List[Any] = ["WATCHDOG"] if self.keep else []
        if self.keep and self.max_hold is not None:
            words += ["MAX", max(1, _ms(self.max_hold - age))]
        return words + (["EPHEMERAL"] if self.ephemeral else [])

    async def try_acquire(self) -> Optional[Hold]:
        """The hold, or None if somebody else has the lock."""
        return await self.acquire(0)

    async def acquire(self, wait: Optional[float] = None, owner: Optional[Owner] = None) -> Optional[Hold]:
        """The hold, or None when `wait` seconds are over; without it, as the lock was made. An `owner` of the caller's own
        must be one that nobody else has."""
        limit = self.wait if wait is None else _waiting(wait)
        if owner is not None:
            _named(owner)
        started = time.monotonic()
        outcome = "cancelled"
        try:
            with self._session.attempt():
                hold = await self._until_granted(owner, limit, None if limit is None else started + limit)
            outcome = "granted" if hold is not None else "busy" if limit == 0 else "timed out"
            return hold
        except LockError as error:
            outcome = getattr(error, "kind", "unavailable")
            raise
        finally:
            self._session.tell(self.label, "waited", outcome, time.monotonic() - started)

    async def holders(self) -> List[Dict[str, Any]]:
        """Who has it, as `LOCK.INFO` says: `owner`, `mode`, `holds` and `ttl` in milliseconds, and more. Empty if it is free."""
        holders = await self._holders(0.0)
        return [{name: self._session.decoded(value) for name, value in holder.items()} for holder in holders]

    async def _holders(self, seconds: float) -> List[Dict[str, Any]]:
        info = _pairs(await self._session.insist(seconds, say("LOCK.INFO", self.key)))
        return [_pairs(holder) for holder in info.get("holders", [])]

    def hold_of(self, owner: Owner) -> Hold:
        """The hold of that owner, to be given back or extended: nothing is asked, and nobody looks after it."""
        return Hold(self, owner)

    async def attach(self, owner: Owner) -> Hold:
        """The hold that this owner has, in another process maybe, is ours from now on. `Lost` if it has none; `Misuse` if it is
        kept there, and would not be here: it would end with the other process all the same."""
        # Once more on another connection.
        hold, seconds = Hold(self, _named(owner)), 2 * self._session.patience
        await self._given_back(hold, None)
        if not (self.keep and self.ephemeral):
            for holder in await self._holders(seconds):
                watched, ephemeral = holder.get("watchdog"), holder.get("ephemeral")
                bound = (watched and not self.keep) or (ephemeral and not self.ephemeral)
                if bound and text(holder["owner"]) == text(owner):
                    raise Misuse(f"{text(self.key)}: the hold is bound to a connection: attach it as one that is kept")
        try:
            sent = await hold._confirm(self.lease, seconds)
        except BaseException:
            hold._disown()
            raise
        hold._begin(sent, taken_over=True)
        return hold

    async def _given_back(self, hold: Hold, deadline: Optional[float]) -> None:
        """A release goes by the owner's name: one that goes on behind somebody's back would give back the next hold, too."""
        if self._session.ending:
            raise Unavailable("closed")
        patience = self._session.patience
        if deadline is not None:
            patience = min(patience, max(SOON, deadline - time.monotonic()))
        if hold._named and not await self._session.given_back(self.keys, hold.owner, patience):
            raise Unavailable(self._not_yet())

    def _is_giving(self, hold: Hold) -> bool:
        return hold._named and len(self._session.giving(self.keys, hold.owner)) > 0

    def _not_yet(self) -> str:
        return f"{text(self.key)}: the last hold of this owner could not be given back yet"

    async def _until_granted(self, name: Optional[Owner], limit: Optional[float], deadline: Optional[float]) -> Optional[Hold]:
        while True:
            owner = new_owner() if name is None else name
            request = str(uuid.uuid4())
            new = Hold(self, owner, name is not None)
            try:
                blocks = self.own_connection and limit != 0
                acquire = self._blocking_acquire(new, request, deadline) if blocks else None
                hold = await (acquire or self._acquire(new, request, deadline, limit != 0))
            except Lost:
                # It was granted to a connection that broke, and ended with it.
                continue
            except BaseException as error:
                # Whatever has become of the call: nothing waits, and nothing is held.
                if new._said:
                    await _finish(self._cancel(new, request, refused=isinstance(error, Misuse)))
                raise
            if hold is None and limit != 0:
                await _finish(self._cancel(new, request))
            return hold

    async def _acquire(self, hold: Hold, request: str, deadline: Optional[float], waits: bool) -> Optional[Hold]:
        words = [*self._acquisition(hold.owner, request), *self._bound(), *(["NOTIFY", self._session.inbox] if waits else [])]
        broken, failing = False, float("inf")
        sent, link = 0.0, hold._link
        told = self._session.waits[request] = asyncio.Event()

        def left() -> float:
            return self._session.patience if deadline is None else max(SOON, deadline - time.monotonic())

        def send(on: Link) -> "asyncio.Future[Any]":
            nonlocal sent, link
            sent, link = time.monotonic(), on
            return self._ask(hold, on, words)

        try:
            while True:
                told.clear()
                try:
                    await self._given_back(hold, deadline)
                    if waits:
                        await self._session.listen(left())
                    reply = await self._session.ask(send, left())
                    if reply is not None and reply != 0:
                        hold.token = _token(reply)
                        if broken or self._is_giving(hold):
                            # The reply may be that of a call whose hold has ended since.
                            await self._given_back(hold, deadline)
                            sent, link = await hold._confirm(self.lease), hold._link
                        hold._link = link
                        hold._begin(sent)
                        return hold
                    failing = float("inf")
                    if reply is None:
                        return None
                except Passing:
                    # A wait without limit ends when there was no server for some time. A try is sent again once.
                    now = time.monotonic()
                    failing = min(failing, now)
                    if broken if not waits else now > (failing + self._session.patience if deadline is None else deadline):
                        raise
                    broken = True
                    await asyncio.sleep(TRY_AGAIN if waits else max(TRY_AGAIN, self._session.pause()))
                    continue
                # A grant that nobody confirms is over with its lease.
                often = min(ASK_AGAIN, max(0.1, self.lease / 2))
                pause = often if deadline is None else min(often, deadline - time.monotonic())
                if pause <= 0:
                    return None
                await told_within(told, pause)
                if not told.is_set():
                    self._session.look()
        finally:
            del self._session.waits[request]

    def _ask(self, hold: Hold, link: Link, words: Sequence[Any]) -> "asyncio.Future[Any]":
        if self._is_giving(hold):
            raise Passing(self._not_yet())
        if self._session.ending:
            raise Unavailable("closed")
        reply = link.send(*words)
        hold._said = True
        return reply

    async def _blocking_acquire(self, hold: Hold, request: str, deadline: Optional[float]) -> Optional[Hold]:
        """Waits by `BLOCK` on a connection of its own. What is kept is bound to that, and then to the session's."""
        words, session = [*self._acquisition(hold.owner, request), *self._bound()], self._session
        away_since: Optional[float] = None
        pause, times = TRY_AGAIN, 0
        while True:
            asked: Optional[float] = None

            def block(on: Link) -> "asyncio.Future[Any]":
                nonlocal asked, times
                asked, times = time.monotonic(), times + 1
                limit = 0 if deadline is None else max(1, _ms(deadline - asked))
                return self._ask(hold, on, [*words, "BLOCK", limit])

            try:
                await self._given_back(hold, deadline)
                reply, link = await session.block(block, deadline)
                try:
                    sent = asked or time.monotonic()
                    late = time.monotonic() - sent > self.lease / 20
                    renews = times > 1 or self.keep or self.ephemeral or late or hold._named
                    if reply is not None and renews:
                        # The lease runs since the grant, which nobody knows the time of.
                        await self._given_back(hold, deadline)
                        sent = await hold._confirm(self.lease)
                except BaseException:
                    link.break_off()
                    raise
                session.rest(link)
                if reply is None:
                    return None
                hold.token = _token(reply)
                hold._begin(sent)
                return hold
            except Passing:
                now = time.monotonic()
                # It waited in a server that was there.
                if away_since is None or (asked is not None and now - asked > min(SOON, session.patience)):
                    away_since, pause = now, TRY_AGAIN
                if now > (away_since + session.patience if deadline is None else deadline):
                    raise
                # With the same ID: what was granted meanwhile is granted still.
                await asyncio.sleep(pause)
                pause = min(TRY_RARELY, 2 * pause)

    async def _cancel(self, hold: Hold, request: str, refused: bool = False) -> None:
        """Takes back whatever the acquire has got. Where there is no connection, it goes on behind the caller's back."""
        tried = asyncio.Event()
        self._session.give_back(self.keys, hold.owner, self._take_back(hold, request, tried, refused))
        await tried.wait()

    async def _take_back(self, hold: Hold, request: str, tried: asyncio.Event, refused: bool) -> None:
        try:
            for words in self._cancellations(hold.owner, request):
                try:
                    await self._session.call(*words, patience=SOON)
                except Unavailable:
                    tried.set()
                    await self._session.insist(TRY_FOR, say(*words), through=Unavailable)
        except Misuse:
            # Not permitted: then the wait ends with its connection. But what is kept may have been granted late, if the acquire
            # was not refused itself. An owner whom the caller has named may have another hold, which must not end.
            tried.set()
            if self.keep and not refused and not self._session.has(self.keys, hold.owner):
                await hold._go_on()
        except LockError:
            pass
        finally:
            tried.set()

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        if hold is None:
            raise (Busy if self.wait == 0 else TimedOut)(f"{text(self.key)}: somebody else has it")
        self._holds.append((asyncio.current_task(), hold))
        return hold

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        hold = last_of(self._holds, asyncio.current_task())
        try:
            await _finish(hold.release())
        except LockError:
            # What the body raised says more.
            if error is None:
                raise


class AllOf(Lock):
    """Several locks, granted all at once or not at all: who waits for them holds none meanwhile."""

    def __init__(self, session: Session, keys: Sequence[Name], **how: Any) -> None:
        if not keys or how.get("fence") or how.get("limit") is not None:
            raise Misuse("several locks are one at least, and have neither tokens nor permits")
        super().__init__(session, ", ".join(text(key) for key in keys), **{**how, "own_connection": True})
        self.keys = list(keys)

    def _verb(self, verb: str) -> List[Any]:
        return [f"LOCK.M{verb}", len(self.keys), *self.keys]

    def _release(self, owner: Owner, request: str) -> List[Any]:
        return [*self._verb("RELEASE"), owner, "ALL", "ID", request]

    def _rest(self, owner: Owner, request: str) -> List[List[Any]]:
        return [["LOCK.RELEASE", key, owner, "ALL", "ID", request] for key in self.keys]

    def _cancellations(self, owner: Owner, request: str) -> List[List[Any]]:
        return [["LOCK.CANCEL", key, owner, "ID", request] for key in self.keys]

    async def _holders(self, seconds: float) -> List[Dict[str, Any]]:
        return [holder for key in self.keys for holder in await Lock(self._session, key)._holders(seconds)]


class Locks:
    """All locks of this process on one server. `listener` hears how each wait and each hold ended: it must be quick."""

    def __init__(
        self, client: Union["redis.asyncio.Redis", Place], patience: float = 5.0, listener: Optional[Listener] = None
    ) -> None:
        self._session = Session(client if isinstance(client, Place) else place_of(client), patience, listener)

    def lock(self, key: Name, **how: Any) -> Lock:
        """See the README for what may be said."""
        return Lock(self._session, key, **how)

    def all_of(self, *keys: Name, **how: Any) -> Lock:
        """Several locks, granted all at once or not at all. Options are those of `lock`, but for `fence` and `limit`."""
        return AllOf(self._session, keys, **how)

    async def close(self) -> None:
        """Ends all waits, and what is held with `keep`."""
        await self._session.close()


async def _finish(work: Coroutine[Any, Any, T]) -> T:
    """What must not be cut off by a cancellation, which comes after it."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
        except LockError:
            break
    if cancelled:
        task.exception()
        raise asyncio.CancelledError
    return task.result()


def last_of(scopes: List[Tuple[Any, T]], who: Any) -> T:
    """The hold that this task or thread has entered last; or of whoever did, if another leaves what it has entered."""
    mine = [at for at, (owner, _) in enumerate(scopes) if owner == who]
    return scopes.pop(mine[-1] if mine else -1)[1]


def new_owner() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4()}"


def _named(owner: Owner) -> Owner:
    if owner in ("*", b"*"):
        raise Misuse("* is no owner: the server takes another in its place")
    return owner


def _seconds(name: str, seconds: float, least: float = 0.001) -> float:
    if not isinstance(seconds, (int, float)) or not least <= seconds < float("inf"):
        raise Misuse(f"{name} is {seconds!r} s, and must be {least} at least")
    return seconds


def _waiting(wait: Optional[float]) -> Optional[float]:
    return None if wait is None or wait == float("inf") else _seconds("wait", wait, 0)


def _ms(seconds: float) -> int:
    # What the server has must not end before what is known here; and a clock is not exact in the last digits.
    return math.ceil(round(seconds * 1000, 3))


def _pairs(reply: Any) -> Dict[str, Any]:
    """A map comes as a list in RESP2."""
    pairs = zip(reply[::2], reply[1::2]) if isinstance(reply, list) else ()
    return {text(name): value for name, value in pairs}


def _token(reply: Any) -> Optional[int]:
    return _pairs(reply).get("token")
