// SPDX-License-Identifier: MIT

//! A session: its clock, its numbers and its events.

use std::collections::{hash_map, BTreeMap};
use std::rc::Rc;

use smallvec::smallvec;

use super::events::{Event, EventContent, EventLog, LossReason};
use super::ids::{CallNumber, OtherTarget, SessionId, Target};
use super::number::{Answer, Entry, Held, NumberState, NumberedHold};
use super::numbers::{EndingNumbers, Numbers};
use crate::core::queue::wait::NewWait;
use crate::core::table::LockIdx;
use crate::core::{ConnectionId, Known, LockId, MonoUs, Owner, WaiterId};

/// Time after which an unacknowledged grant may be revoked, in microseconds. The client must have been silent
/// for the session's grace as well (R1).
const OVERDUE_US: MonoUs = 5_000_000;

/// An event that the client has acknowledged.
pub(in crate::core) enum Acknowledged {
    /// The grant of this wait. The acknowledgement confirms it.
    Grant(WaiterId, EventContent),
    Other,
}

/// The properties of a new session. They never change.
#[derive(Clone)]
pub(crate) struct NewSession {
    pub(crate) id: SessionId,
    /// The user to whom the session belongs.
    pub(crate) user: Rc<[u8]>,
    /// The public name, shown to operators.
    pub(crate) name: Rc<[u8]>,
    /// Time after the last OPEN or EVENTS at which the session ends.
    pub(crate) ttl_us: MonoUs,
    /// Time after the end of the reader's connection at which the session ends. At most the TTL.
    pub(crate) grace_us: MonoUs,
}

/// A wait that was passed over. The table may forget its lock, so it has the lock's name.
pub(in crate::core) struct ParkedWait {
    pub(in crate::core) name: LockId,
    pub(in crate::core) wait: NewWait,
}

/// One session.
pub(crate) struct Session {
    pub(super) new: NewSession,
    pub(super) opened_at: MonoUs,
    /// Beat of the last OPEN or EVENTS (R16).
    pub(super) beat: u64,
    /// Arrival time of the last OPEN or EVENTS.
    pub(super) heard_at: MonoUs,
    /// Time at which the session ends unless another OPEN or EVENTS arrives.
    pub(super) deadline: MonoUs,
    /// The connection of the last OPEN or EVENTS, while it is open.
    pub(super) reader: Option<ConnectionId>,
    /// The session's time in the calendar of checks.
    pub(super) check_at: Option<MonoUs>,
    /// Time at which the timer found a deadline passed. See `Sessions::check`.
    pub(super) passed: Option<MonoUs>,
    /// The client has the answers of all acquires with smaller numbers (R11).
    done: u64,
    numbers: Numbers,
    events: EventLog,
    /// Whether the client has left a grant unacknowledged for too long. The session's waits are then passed
    /// over.
    pub(super) is_suspect: bool,
    /// Waits that were passed over.
    pub(super) parked: BTreeMap<WaiterId, ParkedWait>,
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
            check_at: None,
            passed: None,
            done: 0,
            numbers: Numbers::default(),
            events: EventLog::default(),
            is_suspect: false,
            parked: BTreeMap::new(),
            is_polled: false,
        }
    }

    /// Returns the time of the next check by the timer: the deadline, or when a grant is overdue if earlier.
    pub(super) fn next_check(&self) -> MonoUs {
        self.overdue_at().map_or(self.deadline, |at| at.min(self.deadline))
    }

    /// Returns the time at which the oldest grant in flight is overdue.
    pub(super) fn overdue_at(&self) -> Option<MonoUs> {
        let (_, at) = self.events.first_grant()?;
        Some(at.saturating_add(OVERDUE_US).max(self.heard_at.saturating_add(self.new.grace_us)))
    }

    /// Returns the wait of this number's grant in flight.
    pub(in crate::core) fn in_flight(&self, n: u64) -> Option<WaiterId> {
        match self.numbers.get(n)?.state {
            NumberState::InFlight(id) => Some(id),
            _ => None,
        }
    }

    /// The number of the oldest grant in flight, if it is overdue at this time.
    pub(super) fn overdue_by(&self, time: MonoUs) -> Option<u64> {
        self.overdue_at().filter(|at| *at <= time)?;
        self.events.first_grant().map(|(n, _)| n)
    }

    /// Returns the state of a number for an acquire with it (R12).
    pub(in crate::core) fn known(&self, CallNumber { n, target, .. }: CallNumber) -> Known {
        let Some(entry) = self.numbers.get(n) else {
            return if n < self.done { Known::Late } else { Known::New };
        };
        if !entry.is_of(target) {
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

    /// Whether the number is below `done`: the client knows the acquire's answer.
    pub(in crate::core) fn is_done(&self, n: u64) -> bool {
        n < self.done
    }

    /// Returns the state of a number. Fails if it was used with another target.
    pub(in crate::core) fn state(&self, number: CallNumber) -> Result<Option<&NumberState>, OtherTarget> {
        match self.numbers.get(number.n) {
            Some(entry) if !entry.is_of(number.target) => Err(OtherTarget),
            entry => Ok(entry.map(|entry| &entry.state)),
        }
    }

    /// Records that an acquire waits.
    pub(in crate::core) fn note_wait(&mut self, number: CallNumber, id: WaiterId) {
        match self.numbers.entry(number.n) {
            hash_map::Entry::Occupied(mut entry) => entry.get_mut().state = NumberState::Waiting(id),
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Entry { target: number.target, state: NumberState::Waiting(id), event: None });
            }
        }
    }

    /// Records the grant of a waiting acquire, with an event.
    pub(super) fn granted(&mut self, n: u64, id: WaiterId, content: EventContent, now: MonoUs) {
        let Some(entry) = self.numbers.get_mut(n) else { return };
        entry.state = NumberState::InFlight(id);
        let before = entry.event.replace(self.events.push(n, content, now));
        if let Some(before) = before {
            self.events.remove(before);
        }
    }

    /// Forgets a number that still waits, as if its acquire had never arrived.
    pub(in crate::core) fn forget(&mut self, n: u64) {
        let waits = |entry: &Entry| matches!(entry.state, NumberState::Waiting(_));
        if !self.numbers.get(n).is_some_and(waits) {
            return;
        }
        if let Some(seq) = self.numbers.remove(n).and_then(|entry| entry.event) {
            self.events.remove(seq);
        }
    }

    /// Returns the target and the state of a number that was used for several locks.
    pub(in crate::core) fn several(&self, n: u64) -> Option<(Target, &NumberState)> {
        let entry = self.numbers.get(n).filter(|entry| entry.target.is_several())?;
        Some((entry.target, &entry.state))
    }

    /// Whether a number has any hold.
    pub(in crate::core) fn has_hold(&self, n: u64) -> bool {
        matches!(self.numbers.get(n), Some(Entry { state: NumberState::Held(_), .. }))
    }

    /// Records one hold of a number.
    #[inline]
    pub(in crate::core) fn holds(&mut self, number: CallNumber, hold: NumberedHold) {
        match self.numbers.entry(number.n) {
            hash_map::Entry::Vacant(entry) => {
                let held = Held { holds: smallvec![hold], is_lost: false };
                entry.insert(Entry { target: number.target, state: NumberState::Held(held), event: None });
            }
            hash_map::Entry::Occupied(mut entry) => match &mut entry.get_mut().state {
                NumberState::Held(held) => held.holds.push(hold),
                state => *state = NumberState::Held(Held { holds: smallvec![hold], is_lost: false }),
            },
        }
    }

    /// Whether the hold of a number on this lock is released when the session ends.
    pub(in crate::core) fn is_ephemeral(&self, n: u64, lock: LockIdx) -> bool {
        match self.numbers.get(n).map(|entry| &entry.state) {
            Some(NumberState::Held(held)) => {
                held.holds.iter().any(|hold| hold.lock == lock && hold.ephemeral)
            }
            _ => false,
        }
    }

    /// Records the final answer about a number and drops its event.
    pub(in crate::core) fn answer(&mut self, CallNumber { n, target, .. }: CallNumber, answer: Answer) {
        let is_done = self.is_done(n);
        let state = NumberState::Answered(answer);
        match self.numbers.entry(n) {
            hash_map::Entry::Occupied(mut entry) => {
                if let Some(seq) = entry.get_mut().event.take() {
                    self.events.remove(seq);
                }
                if is_done {
                    self.numbers.remove(n);
                    return;
                }
                entry.into_mut().state = state;
            }
            hash_map::Entry::Vacant(_) if is_done => return,
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Entry { target, state, event: None });
            }
        }
        self.numbers.note_answered(n);
    }

    /// Whether any hold of a number was lost, although others are left.
    pub(in crate::core) fn is_partly_lost(&self, n: u64) -> bool {
        let state = self.numbers.get(n).map(|entry| &entry.state);
        matches!(state, Some(NumberState::Held(held)) if held.is_lost)
    }

    /// Records the release of a number's hold, which left this number of holds to the owner. After the last
    /// hold of the number, this is the answer.
    pub(in crate::core) fn released(&mut self, number: CallNumber, at: (LockIdx, &Owner), left: i64) {
        let mut answer = Answer::Released(smallvec![left]);
        if let Some(Entry { state: NumberState::Held(held), .. }) = self.numbers.get_mut(number.n) {
            if !held.remove(at.0, at.1) {
                return;
            }
            if held.is_lost {
                answer = Answer::Ended;
            }
        }
        self.answer(number, answer);
    }

    /// Records the loss of a number's hold on the lock `at`, or of its wait or grant in flight if `at` is
    /// `None`. Returns whether the client gets an event.
    pub(super) fn lose(
        &mut self,
        n: u64,
        at: Option<(LockIdx, &Owner)>,
        why: LossReason,
        now: MonoUs,
    ) -> bool {
        let is_done = self.is_done(n);
        let Some(entry) = self.numbers.get_mut(n) else { return false };
        let is_last = match (&mut entry.state, at) {
            (NumberState::Held(held), Some((lock, owner))) => held.remove(lock, owner),
            // One of several locks was lost before the client confirmed the grant.
            (NumberState::Held(held), None) => held.holds.is_empty(),
            _ => true,
        };
        let was_lost = match &mut entry.state {
            NumberState::Held(held) => std::mem::replace(&mut held.is_lost, true),
            NumberState::Waiting(_) | NumberState::InFlight(_) => false,
            NumberState::Answered(_) => return false,
        };
        if is_last {
            let answer = if why == LossReason::TimedOut { Answer::Busy } else { Answer::Ended };
            entry.state = NumberState::Answered(answer);
            self.numbers.note_answered(n);
        }
        if !was_lost {
            self.replace_event(n, EventContent::Lost(why), now);
        }
        // The event stays: the client still has this number.
        if is_last && is_done {
            self.numbers.remove(n);
        }
        !was_lost
    }

    /// Records that another owner waits for the lock that a number holds. Returns whether the client gets an
    /// event.
    pub(super) fn contended(&mut self, n: u64, now: MonoUs) -> bool {
        let is_held = |entry: &Entry| {
            entry.event.is_none() && matches!(&entry.state, NumberState::Held(held) if !held.is_lost)
        };
        let tells = self.numbers.get(n).is_some_and(is_held);
        if tells {
            self.replace_event(n, EventContent::Contended, now);
        }
        tells
    }

    fn replace_event(&mut self, n: u64, content: EventContent, now: MonoUs) {
        let seq = self.events.push(n, content, now);
        let before = self.numbers.get_mut(n).and_then(|entry| entry.event.replace(seq));
        if let Some(before) = before {
            self.events.remove(before);
        }
    }

    /// Forgets the answers below `done`, because the client knows them (R11).
    pub(in crate::core) fn forget_below(&mut self, done: u64) {
        if done <= self.done {
            return;
        }
        self.done = done;
        self.numbers.forget_answered_below(done);
    }

    /// Acknowledges the events up to `seq`. Removes and returns the first of them; call it until `None`.
    pub(super) fn acknowledge(&mut self, seq: u64) -> Option<Acknowledged> {
        let event = self.events.acknowledge(seq)?;
        let Some(entry) = self.numbers.get_mut(event.n) else { return Some(Acknowledged::Other) };
        entry.event = None;
        Some(match entry.state {
            NumberState::InFlight(id) => Acknowledged::Grant(id, event.content),
            _ => Acknowledged::Other,
        })
    }

    /// Removes the event of a grant in flight whose client has named the number in a call.
    pub(in crate::core) fn take_grant(&mut self, n: u64) -> Option<(WaiterId, EventContent)> {
        let entry = self.numbers.get_mut(n)?;
        let NumberState::InFlight(id) = entry.state else { return None };
        let event = self.events.remove(entry.event.take()?)?;
        Some((id, event.content))
    }

    /// Returns the numbers that have to end with the session.
    pub(super) fn into_ending(self) -> EndingNumbers {
        EndingNumbers::new(self.numbers)
    }

    /// Iterates over the numbers and their states, in no particular order.
    pub(super) fn states(&self) -> impl Iterator<Item = (u64, &NumberState)> {
        self.numbers.iter().map(|(n, entry)| (n, &entry.state))
    }

    /// The queued waits.
    pub(in crate::core) fn waits(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.states().filter_map(|(_, state)| match state {
            NumberState::Waiting(id) => Some(*id),
            _ => None,
        })
    }

    /// Returns the secret id. Only the session's client may see it.
    pub(crate) fn id(&self) -> SessionId {
        self.new.id
    }

    /// The event about a number that the client has not acknowledged.
    #[cfg(test)]
    pub(super) fn event_of(&self, n: u64) -> Option<u64> {
        self.numbers.get(n)?.event
    }

    /// Whether waits of the session are passed over.
    #[cfg(test)]
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect
    }

    /// The user to whom the session belongs.
    pub(crate) fn user(&self) -> &[u8] {
        &self.new.user
    }

    /// Returns the public name.
    pub(crate) fn name(&self) -> &Rc<[u8]> {
        &self.new.name
    }

    /// Returns the connection of the last OPEN or EVENTS, while it is open.
    pub(crate) fn reader(&self) -> Option<ConnectionId> {
        self.reader
    }

    /// Returns the time since the session was opened, in microseconds.
    pub(crate) fn age(&self, now: MonoUs) -> MonoUs {
        now.saturating_sub(self.opened_at)
    }

    /// Returns the time until the deadline, in microseconds.
    pub(crate) fn left(&self, now: MonoUs) -> MonoUs {
        self.deadline.saturating_sub(now)
    }

    /// Returns the number of holds and the number of waits. A grant in flight counts as a hold.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.states().fold((0, 0), |(holds, waits), (n, state)| match state {
            NumberState::Waiting(_) => (holds, waits + 1),
            NumberState::InFlight(_) => (holds + self.in_flight_len(n), waits),
            NumberState::Held(held) => (holds + held.holds.len(), waits),
            NumberState::Answered(_) => (holds, waits),
        })
    }

    /// Number of holds that are released if the session ends now (R8).
    pub(in crate::core) fn released_by_end(&self) -> usize {
        let of = |(n, state): (u64, &NumberState)| match state {
            NumberState::InFlight(_) => self.in_flight_len(n),
            NumberState::Held(held) => held.holds.iter().filter(|hold| hold.ephemeral).count(),
            NumberState::Waiting(_) | NumberState::Answered(_) => 0,
        };
        self.states().map(of).sum()
    }

    /// Number of holds of a grant in flight.
    fn in_flight_len(&self, n: u64) -> usize {
        let event = self.numbers.get(n).and_then(|entry| self.events.get(entry.event?));
        match event.map(|event| &event.content) {
            Some(EventContent::GrantedAll(replies)) => replies.len(),
            _ => 1,
        }
    }

    /// Returns the time in which a connected client calls EVENTS several times, in microseconds.
    pub(super) fn patience_us(&self) -> MonoUs {
        if self.new.grace_us == 0 {
            self.new.ttl_us
        } else {
            self.new.grace_us
        }
    }

    /// The longest time for which EVENTS may block, in microseconds (R19).
    pub(crate) fn max_poll_us(&self) -> MonoUs {
        self.patience_us() / 3
    }

    /// Returns the time for which a client may trust its holds after a confirming EVENTS, in microseconds.
    pub(crate) fn grace_us(&self) -> MonoUs {
        self.new.grace_us
    }

    /// Returns the sequence numbers of the last acknowledged event and of the newest event.
    pub(crate) fn event_range(&self) -> (u64, u64) {
        (self.events.acknowledged(), self.events.last())
    }

    /// Iterates over the unacknowledged events, oldest first.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// Returns the number of unacknowledged events.
    pub(crate) fn pending(&self) -> usize {
        self.events.len()
    }
}
