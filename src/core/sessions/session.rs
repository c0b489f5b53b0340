// SPDX-License-Identifier: MIT

//! One session.

use std::collections::BTreeMap;
use std::rc::Rc;

use smallvec::SmallVec;

use super::events::{Event, EventContent, EventLog, LossReason};
use super::number::{Answer, CallNumber, Entry, Held, Known, NumberState, NumberedHold, Target};
use super::SessionId;
use crate::core::queue::wait::NewWait;
use crate::core::table::LockIdx;
use crate::core::{ConnectionId, MonoUs, Owner, WaiterId};

/// A grant is revoked if the client has not acknowledged it for this time, in microseconds, and was not heard
/// of for the session's grace either (R1).
const OVERDUE_US: MonoUs = 5_000_000;

/// An event that the client has acknowledged.
pub(in crate::core) enum Acknowledged {
    /// The grant of this wait, which is thereby confirmed.
    Grant(WaiterId, EventContent),
    Other,
}

/// The properties of a new session. They never change.
#[derive(Clone)]
pub(crate) struct NewSession {
    pub(crate) id: SessionId,
    /// The user to whom the session belongs.
    pub(crate) user: Rc<[u8]>,
    /// A public name, for operators.
    pub(crate) name: Rc<[u8]>,
    /// Time without a call of the client after which the session ends.
    pub(crate) ttl_us: MonoUs,
    /// Time after the end of the reader's connection after which the session ends. At most the TTL.
    pub(crate) grace_us: MonoUs,
}

/// One session.
pub(crate) struct Session {
    pub(super) new: NewSession,
    pub(super) opened_at: MonoUs,
    /// The number of the last OPEN or EVENTS (R16).
    pub(super) beat: u64,
    /// Arrival of the last OPEN or EVENTS.
    pub(super) heard_at: MonoUs,
    /// Time at which the session ends, unless its client is heard of.
    pub(super) deadline: MonoUs,
    /// The connection of the last OPEN or EVENTS, while it is open.
    pub(super) reader: Option<ConnectionId>,
    /// The round of the timer that found the deadline passed. See `Sessions::check`.
    pub(super) passed_in_round: Option<u64>,
    /// The client has the answers of all acquires with smaller numbers (R11).
    done: u64,
    numbers: BTreeMap<u64, Entry>,
    events: EventLog,
    /// Whether a grant was revoked because the client did not acknowledge it. Its waits are then passed over.
    pub(super) is_suspect: bool,
    /// Waits that were passed over.
    pub(super) parked: Vec<(WaiterId, NewWait)>,
    /// Whether a call of the client is blocked until an event.
    pub(super) is_polled: bool,
}

impl Session {
    pub(super) fn new(new: NewSession, beat: u64, now: MonoUs) -> Session {
        Session {
            opened_at: now,
            beat,
            heard_at: now,
            deadline: now.saturating_add(new.ttl_us),
            new,
            reader: None,
            passed_in_round: None,
            done: 0,
            numbers: BTreeMap::new(),
            events: EventLog::default(),
            is_suspect: false,
            parked: Vec::new(),
            is_polled: false,
        }
    }

    /// Time of the next check by the timer: the deadline, or an earlier time at which a grant is overdue.
    pub(super) fn next_check(&self) -> MonoUs {
        self.overdue_at().map_or(self.deadline, |at| at.min(self.deadline))
    }

    /// Time at which the oldest grant in flight is overdue.
    pub(super) fn overdue_at(&self) -> Option<MonoUs> {
        let (_, at) = self.events.first_grant()?;
        Some(at.saturating_add(OVERDUE_US).max(self.heard_at.saturating_add(self.new.grace_us)))
    }

    /// The wait of a grant in flight.
    pub(in crate::core) fn in_flight(&self, n: u64) -> Option<WaiterId> {
        match self.numbers.get(&n)?.state {
            NumberState::InFlight(id) => Some(id),
            _ => None,
        }
    }

    /// The number of the oldest grant in flight.
    pub(super) fn first_grant(&self) -> Option<u64> {
        self.events.first_grant().map(|(n, _)| n)
    }

    /// What is known about a number, for a repeated acquire (R12).
    pub(in crate::core) fn known(&self, CallNumber { n, target, .. }: CallNumber) -> Known {
        let Some(entry) = self.numbers.get(&n) else {
            return if n < self.done { Known::Late } else { Known::New };
        };
        if entry.target != target {
            return Known::OtherTarget;
        }
        match &entry.state {
            NumberState::Waiting(_) => Known::Waiting,
            NumberState::InFlight(_) => match entry.event.and_then(|seq| self.events.get(seq)) {
                Some(Event { content: EventContent::Granted(reply), .. }) => {
                    Known::Granted(std::iter::once(reply.clone()).collect())
                }
                Some(Event { content: EventContent::GrantedAll(replies), .. }) => {
                    Known::Granted(replies.iter().cloned().collect())
                }
                // Replicas have not acknowledged the grant yet.
                _ => Known::Waiting,
            },
            NumberState::Held(held) if held.is_lost => Known::Ended,
            NumberState::Held(held) => {
                Known::Granted(held.holds.iter().map(|hold| hold.reply.clone()).collect())
            }
            NumberState::Answered(Answer::Busy) => Known::Busy,
            NumberState::Answered(Answer::Cancelled { .. }) => Known::Cancelled,
            NumberState::Answered(Answer::Released(_) | Answer::Ended) => Known::Ended,
        }
    }

    /// Whether the client has declared that it has the answer of the acquire with this number.
    pub(in crate::core) fn is_done(&self, n: u64) -> bool {
        n < self.done
    }

    /// The state of a number, unless it was used with another target.
    pub(in crate::core) fn state(
        &self,
        number: CallNumber,
    ) -> Result<Option<&NumberState>, super::OtherTarget> {
        match self.numbers.get(&number.n) {
            Some(entry) if entry.target != number.target => Err(super::OtherTarget),
            entry => Ok(entry.map(|entry| &entry.state)),
        }
    }

    /// Records a state that is not the last one.
    fn set(&mut self, n: u64, target: Target, state: NumberState) {
        match self.numbers.get_mut(&n) {
            Some(entry) => entry.state = state,
            None => {
                self.numbers.insert(n, Entry { target, state, event: None });
            }
        }
    }

    /// Records that an acquire waits.
    pub(in crate::core) fn waits(&mut self, number: CallNumber, id: WaiterId) {
        self.set(number.n, number.target, NumberState::Waiting(id));
    }

    /// Records that a waiting acquire was granted, and that its event is not acknowledged.
    pub(super) fn granted(&mut self, n: u64, id: WaiterId, content: EventContent, now: MonoUs) {
        let Some(entry) = self.numbers.get_mut(&n) else { return };
        entry.state = NumberState::InFlight(id);
        self.replace_event(n, content, now);
    }

    /// Forgets a number that still waits, as if its acquire had never arrived.
    pub(in crate::core) fn forget(&mut self, n: u64) {
        let waits = |entry: &Entry| matches!(entry.state, NumberState::Waiting(_));
        if !self.numbers.get(&n).is_some_and(waits) {
            return;
        }
        if let Some(seq) = self.numbers.remove(&n).and_then(|entry| entry.event) {
            self.events.remove(seq);
        }
    }

    /// The target with which a number of a call for several locks was used.
    pub(in crate::core) fn several_target(&self, n: u64) -> Option<Target> {
        self.numbers.get(&n).map(|entry| entry.target).filter(|target| target.is_several())
    }

    /// Whether a number has any hold.
    pub(in crate::core) fn has_hold(&self, n: u64) -> bool {
        matches!(self.numbers.get(&n), Some(Entry { state: NumberState::Held(_), .. }))
    }

    /// Records one hold of a number.
    pub(in crate::core) fn holds(&mut self, number: CallNumber, hold: NumberedHold) {
        match self.numbers.get_mut(&number.n) {
            Some(Entry { state: NumberState::Held(held), .. }) => held.holds.push(hold),
            _ => {
                let held = Held { holds: std::iter::once(hold).collect(), is_lost: false };
                self.set(number.n, number.target, NumberState::Held(held));
            }
        }
    }

    /// Whether the hold of a number on this lock is released when the session is over.
    pub(in crate::core) fn is_ephemeral(&self, n: u64, lock: LockIdx) -> bool {
        match self.numbers.get(&n).map(|entry| &entry.state) {
            Some(NumberState::Held(held)) => {
                held.holds.iter().any(|hold| hold.lock == lock && hold.ephemeral)
            }
            _ => false,
        }
    }

    /// Records the last word about a number, and drops the event about it.
    pub(in crate::core) fn answer(&mut self, number: CallNumber, answer: Answer) {
        if let Some(seq) = self.numbers.get_mut(&number.n).and_then(|entry| entry.event.take()) {
            self.events.remove(seq);
        }
        if self.is_done(number.n) {
            self.numbers.remove(&number.n);
        } else {
            self.set(number.n, number.target, NumberState::Answered(answer));
        }
    }

    /// Removes one hold of a number. Returns whether it was the last one.
    pub(in crate::core) fn remove_hold(&mut self, n: u64, lock: LockIdx, owner: &Owner) -> bool {
        let Some(Entry { state: NumberState::Held(held), .. }) = self.numbers.get_mut(&n) else {
            return true;
        };
        held.holds.retain(|hold| hold.lock != lock || hold.owner != *owner);
        held.holds.is_empty()
    }

    /// Records that a number has lost its hold on one lock, or its wait. `lock` is `None` if nothing is left.
    /// Returns whether the client gets an event.
    pub(super) fn lose(
        &mut self,
        n: u64,
        at: Option<(LockIdx, &Owner)>,
        why: LossReason,
        now: MonoUs,
    ) -> bool {
        let is_last = at.is_none_or(|(lock, owner)| self.remove_hold(n, lock, owner));
        let is_done = self.is_done(n);
        let Some(entry) = self.numbers.get_mut(&n) else { return false };
        let was_lost = match &mut entry.state {
            NumberState::Held(held) => std::mem::replace(&mut held.is_lost, true),
            NumberState::Waiting(_) | NumberState::InFlight(_) => false,
            NumberState::Answered(_) => return false,
        };
        if is_last {
            let answer = if why == LossReason::TimedOut { Answer::Busy } else { Answer::Ended };
            entry.state = NumberState::Answered(answer);
        }
        if !was_lost {
            self.replace_event(n, EventContent::Lost(why), now);
        }
        // The event stays. It is about a number that the client still knows.
        if is_last && is_done {
            self.numbers.remove(&n);
        }
        !was_lost
    }

    /// Records that another owner waits for the lock of a held number. Returns whether the client gets an
    /// event.
    pub(super) fn contended(&mut self, n: u64, now: MonoUs) -> bool {
        let is_held = |entry: &Entry| {
            entry.event.is_none() && matches!(&entry.state, NumberState::Held(held) if !held.is_lost)
        };
        let tells = self.numbers.get(&n).is_some_and(is_held);
        if tells {
            self.replace_event(n, EventContent::Contended, now);
        }
        tells
    }

    fn replace_event(&mut self, n: u64, content: EventContent, now: MonoUs) {
        let seq = self.events.push(n, content, now);
        let before = self.numbers.get_mut(&n).and_then(|entry| entry.event.replace(seq));
        if let Some(before) = before {
            self.events.remove(before);
        }
    }

    /// Records that the client knows all answers below `done`.
    pub(in crate::core) fn forget_below(&mut self, done: u64) {
        if done <= self.done {
            return;
        }
        let before = std::mem::replace(&mut self.done, done);
        let is_over = |entry: &Entry| matches!(entry.state, NumberState::Answered(_));
        let over: SmallVec<[u64; 16]> =
            self.numbers.range(before..done).filter(|(_, entry)| is_over(entry)).map(|(n, _)| *n).collect();
        for n in over {
            self.numbers.remove(&n);
        }
    }

    /// Removes the next event that the client has acknowledged by `seq`.
    pub(super) fn acknowledge(&mut self, seq: u64) -> Option<Acknowledged> {
        let event = self.events.acknowledge(seq)?;
        let Some(entry) = self.numbers.get_mut(&event.n) else { return Some(Acknowledged::Other) };
        entry.event = None;
        Some(match entry.state {
            NumberState::InFlight(id) => Acknowledged::Grant(id, event.content),
            _ => Acknowledged::Other,
        })
    }

    /// Removes the event of a grant in flight, which its client has proved to know.
    pub(in crate::core) fn take_grant(&mut self, n: u64) -> Option<(WaiterId, EventContent)> {
        let entry = self.numbers.get_mut(&n)?;
        let NumberState::InFlight(id) = entry.state else { return None };
        let event = self.events.remove(entry.event.take()?)?;
        Some((id, event.content))
    }

    /// Removes and returns any number, at the end of the session.
    pub(super) fn take_number(&mut self) -> Option<(u64, NumberState)> {
        self.numbers.pop_last().map(|(n, entry)| (n, entry.state))
    }

    /// Iterates over the numbers and their states.
    pub(super) fn states(&self) -> impl Iterator<Item = (u64, &NumberState)> {
        self.numbers.iter().map(|(n, entry)| (*n, &entry.state))
    }

    /// The secret id. Only its client may see it.
    pub(crate) fn id(&self) -> SessionId {
        self.new.id
    }

    /// The user to whom the session belongs.
    pub(crate) fn user(&self) -> &[u8] {
        &self.new.user
    }

    /// The public name.
    pub(crate) fn name(&self) -> &Rc<[u8]> {
        &self.new.name
    }

    /// The connection of the last OPEN or EVENTS, while it is open.
    pub(crate) fn reader(&self) -> Option<ConnectionId> {
        self.reader
    }

    /// Time since the session was opened.
    pub(crate) fn age(&self, now: MonoUs) -> MonoUs {
        now.saturating_sub(self.opened_at)
    }

    /// Time until the session ends, unless its client is heard of.
    pub(crate) fn left(&self, now: MonoUs) -> MonoUs {
        self.deadline.saturating_sub(now)
    }

    /// Number of holds, and number of waits.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.states().fold((0, 0), |(holds, waits), (_, state)| match state {
            NumberState::Waiting(_) => (holds, waits + 1),
            NumberState::InFlight(_) => (holds + 1, waits),
            NumberState::Held(held) => (holds + held.holds.len(), waits),
            NumberState::Answered(_) => (holds, waits),
        })
    }

    /// The longest time for which EVENTS may block, in microseconds (R19).
    pub(crate) fn max_poll_us(&self) -> MonoUs {
        let shortest = if self.new.grace_us == 0 { self.new.ttl_us } else { self.new.grace_us };
        shortest / 3
    }

    /// The time for which a client may trust its holds after a confirmed EVENTS, in microseconds.
    pub(crate) fn grace_us(&self) -> MonoUs {
        self.new.grace_us
    }

    /// The last acknowledged event, and the last event.
    pub(crate) fn event_range(&self) -> (u64, u64) {
        (self.events.acknowledged(), self.events.last())
    }

    /// The events that are not acknowledged, in order.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// Number of events that are not acknowledged.
    pub(crate) fn pending(&self) -> usize {
        self.events.len()
    }
}
