// SPDX-License-Identifier: MIT

//! Sessions in their simplest form: lists that are searched from end to end.
//!
//! A hold has the list of its numbers, so a number and its hold cannot disagree. Waits of suspect sessions
//! stay in the queue and are skipped.

use std::collections::{BTreeMap, BTreeSet};

use super::{Number, Op, Scope, Seen, Want, LOCK_COUNT, SETTINGS, SLOT_COUNT};
use crate::core::LossReason;

/// Age at which an unacknowledged grant is revoked, in milliseconds (R1).
const OVERDUE: i64 = 5_000;

/// Time between the two checks that end a session or revoke a grant, in milliseconds.
const RECHECK: i64 = 100;

/// The position of a session among all that were ever opened.
pub(super) type Serial = u64;

/// A session and a number.
pub(super) type Numbered = (Serial, u64);

/// The caller of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Caller {
    Number(Serial, u64),
    /// A blocked client, by its position among all of them.
    Plain(u64),
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Wait {
    pub(super) caller: Caller,
    pub(super) want: WantedHold,
    pub(super) deadline: Option<i64>,
}

/// An acquire, with what its number adds.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct WantedHold {
    owner: usize,
    shared: bool,
    lease: i64,
    keeps: bool,
    renewed: bool,
    ephemeral: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lease {
    To(i64),
    AtLeast(i64),
}

/// One acquire among an owner's holds.
#[derive(Clone, Debug, Hash)]
struct NumberOfHold {
    number: Numbered,
    shared: bool,
    renewed: bool,
    ephemeral: bool,
    lease: i64,
}

/// All holds of one owner.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Hold {
    pub(super) exclusive: i64,
    pub(super) shared: i64,
    pub(super) expires_at: i64,
    /// Every setting of the lease, in order, with the grant in flight that made it.
    leases: Vec<(Option<Caller>, Lease)>,
    /// Acquires that the client knows of, in order.
    numbers: Vec<NumberOfHold>,
    /// Grants in flight, in order.
    in_flight: Vec<NumberOfHold>,
    /// The longest lease of these holds.
    longest: i64,
    /// The latest end to which the server may have renewed the lease, unseen because of a grant in flight.
    renewed_to: i64,
    /// Whether the lease was over when the first renewed number was acknowledged.
    is_over: bool,
}

impl Hold {
    fn count(&self, shared: bool) -> i64 {
        if shared {
            self.shared
        } else {
            self.exclusive
        }
    }

    fn count_mut(&mut self, shared: bool) -> &mut i64 {
        if shared {
            &mut self.shared
        } else {
            &mut self.exclusive
        }
    }

    fn total(&self) -> i64 {
        self.exclusive + self.shared
    }

    /// Number of acquires of this mode.
    fn numbered(&self, shared: bool) -> i64 {
        self.numbers.iter().chain(&self.in_flight).map(|number| i64::from(number.shared == shared)).sum()
    }

    /// Whether no call of the owner may shorten the lease (R7).
    fn keeps_lease(&self) -> bool {
        !self.numbers.is_empty() || !self.in_flight.is_empty()
    }

    /// Whether the server may have renewed the lease just before it stopped doing so.
    fn may_be_renewed(&self, now: i64) -> bool {
        !self.is_renewed() && self.expires_at < now && now <= self.renewed_to
    }

    fn is_renewed(&self) -> bool {
        self.numbers.iter().any(|number| number.renewed)
    }

    fn set_lease(&mut self, by: Option<Caller>, lease: Lease) {
        self.expires_at = match lease {
            Lease::To(end) if by.is_none() => end,
            // A grant that may be revoked does not shorten a lease.
            Lease::To(end) | Lease::AtLeast(end) => end.max(self.expires_at),
        };
        self.leases.push((by, lease));
        self.settle_lease();
    }

    /// Sets the lease as if no revoked grant had ever been made, once no grant in flight matters.
    fn settle_lease(&mut self) {
        let is_certain =
            |(by, lease): &(Option<Caller>, Lease)| by.is_none() && matches!(lease, Lease::To(_));
        if let Some(last) = self.leases.iter().rposition(is_certain) {
            self.leases.drain(..last);
        }
        if self.leases.iter().any(|(by, _)| by.is_some()) {
            return;
        }
        let end = self.leases.iter().fold(None, |end: Option<i64>, (_, lease)| match lease {
            Lease::To(at) => Some(*at),
            Lease::AtLeast(at) => end.max(Some(*at)),
        });
        if let Some(end) = end {
            self.expires_at = end;
            self.leases = vec![(None, Lease::To(end))];
        }
    }

    /// A grant in flight is certain from now on.
    fn confirm(&mut self, number: Numbered) {
        let at = self.in_flight.iter().position(|of| of.number == number).expect("a grant in flight");
        let of = self.in_flight.remove(at);
        self.numbers.push(of);
        self.deliver(Caller::Number(number.0, number.1));
    }

    /// The effect of a grant in flight on the lease is certain from now on.
    fn deliver(&mut self, caller: Caller) {
        for (by, _) in &mut self.leases {
            *by = by.filter(|by| *by != caller);
        }
        self.settle_lease();
    }

    /// Undoes the effect of a grant in flight on the lease.
    fn forget_grant(&mut self, number: Numbered) {
        self.in_flight.retain(|of| of.number != number);
        self.leases.retain(|(by, _)| *by != Some(Caller::Number(number.0, number.1)));
        self.settle_lease();
    }
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Lock {
    pub(super) holds: BTreeMap<usize, Hold>,
    /// Waits in order of arrival.
    pub(super) queue: Vec<Wait>,
}

impl Lock {
    fn admits(&self, want: WantedHold) -> bool {
        let excludes =
            |(owner, hold): (&usize, &Hold)| *owner != want.owner && (!want.shared || hold.exclusive > 0);
        !self.holds.iter().any(excludes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Waiting,
    InFlight { holds: i64 },
    Held { holds: i64 },
    Busy,
    Cancelled { undone: bool },
    Released { left: i64 },
    Ended,
}

impl State {
    fn is_answer(self) -> bool {
        !matches!(self, State::Waiting | State::InFlight { .. } | State::Held { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Granted(i64),
    Lost(LossReason),
    Contended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) n: u64,
    pub(super) content: Content,
    /// The step of the history. Events of one step may have any order.
    pub(super) step: u64,
    at: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    ttl: i64,
    grace: i64,
    pub(super) deadline: i64,
    heard_at: i64,
    pub(super) reader: Option<u64>,
    pub(super) done: u64,
    pub(super) is_suspect: bool,
    /// Time at which the timer found a deadline passed. It counts when the timer finds it again.
    passed_at: Option<i64>,
    /// The lock, the owner and the state of each acquire.
    pub(super) numbers: BTreeMap<u64, (usize, usize, State)>,
    pub(super) events: Vec<Event>,
    is_polled: bool,
}

impl Session {
    fn overdue_at(&self, grant: &Event) -> i64 {
        (grant.at + OVERDUE).max(self.heard_at + self.grace)
    }

    /// After a pause, the session's deadlines count only after this time.
    fn patience(&self) -> i64 {
        if self.grace == 0 {
            self.ttl
        } else {
            self.grace
        }
    }

    fn grants(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| matches!(event.content, Content::Granted(_)))
    }

    fn next_check(&self) -> i64 {
        self.grants().map(|grant| self.overdue_at(grant)).fold(self.deadline, i64::min)
    }

    /// Records the last word about a number.
    fn answer(&mut self, n: u64, (lock, owner): (usize, usize), state: State) {
        self.events.retain(|event| event.n != n);
        self.set(n, (lock, owner), state);
    }

    fn set(&mut self, n: u64, (lock, owner): (usize, usize), state: State) {
        self.numbers.insert(n, (lock, owner, state));
        self.forget_done();
    }

    fn forget_done(&mut self) {
        let done = self.done;
        self.numbers.retain(|n, (.., state)| *n >= done || !state.is_answer());
    }
}

/// The end of a blocked call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BlockedEnd {
    Granted(i64),
    TimedOut,
    Demoted,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) now: i64,
    pub(super) paused: bool,
    /// Whether the server was paused until now, so that it has renewed no lease.
    resumes: bool,
    /// Time of the end of the last pause.
    resumed_at: Option<i64>,
    step: u64,
    notifies_owners: bool,
    pub(super) locks: [Lock; LOCK_COUNT],
    pub(super) sessions: BTreeMap<Serial, Session>,
    /// The session that each client uses.
    pub(super) slots: [Option<Serial>; SLOT_COUNT],
    opened: u64,
    pub(super) blocked: u64,
    pub(super) blocked_ends: Vec<(u64, BlockedEnd)>,
    /// Polled sessions that got an event, or ended.
    pub(super) woken: BTreeSet<Serial>,
}

impl Model {
    pub(super) fn new(now: i64, notifies_owners: bool) -> Model {
        Model {
            now,
            paused: false,
            resumes: false,
            resumed_at: None,
            step: 0,
            notifies_owners,
            locks: Default::default(),
            sessions: BTreeMap::new(),
            slots: Default::default(),
            opened: 0,
            blocked: 0,
            blocked_ends: Vec::new(),
            woken: BTreeSet::new(),
        }
    }

    /// The number of an operation, in its session.
    pub(super) fn resolve(&self, number: Number) -> Option<Numbered> {
        let serial = self.slots[number.slot]?;
        let session = self.sessions.get(&serial)?;
        Some((serial, (session.done + number.from_done).saturating_sub(1)))
    }

    /// The key and the owner of a call with a number.
    pub(super) fn target(&self, number: Number, lock: usize, owner: usize) -> (usize, usize) {
        let first = self.resolve(number).and_then(|(serial, n)| self.sessions[&serial].numbers.get(&n));
        first.filter(|_| number.same_target).map_or((lock, owner), |(lock, owner, _)| (*lock, *owner))
    }

    fn of(&mut self, serial: Serial) -> &mut Session {
        self.sessions.get_mut(&serial).expect("a live session")
    }

    fn hold(&mut self, lock: usize, owner: usize) -> Option<&mut Hold> {
        self.locks[lock].holds.get_mut(&owner)
    }

    /// Time at which anything may happen by itself.
    pub(super) fn next_time(&self) -> Option<i64> {
        let leases = self.locks.iter().flat_map(|lock| lock.holds.values());
        let leases = leases.filter(|hold| !self.paused && !hold.is_renewed()).map(|hold| hold.expires_at + 1);
        let deadlines = self.locks.iter().flat_map(|lock| &lock.queue).filter_map(|wait| wait.deadline);
        let checks = self
            .sessions
            .values()
            .map(|session| session.passed_at.map_or(self.checked_from(session), |at| at + RECHECK));
        leases.chain(deadlines).chain(checks).filter(|at| *at > self.now).min()
    }

    /// Time of the next check of a session.
    fn checked_from(&self, session: &Session) -> i64 {
        let resumed = self.resumed_at.map_or(0, |at| at + session.patience());
        session.next_check().max(resumed)
    }

    pub(super) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// All blocked clients leave.
    pub(super) fn leave_all(&mut self) {
        for lock in 0..LOCK_COUNT {
            self.locks[lock].queue.retain(|wait| matches!(wait.caller, Caller::Number(..)));
        }
        self.settle();
    }

    pub(super) fn step(&mut self, op: &Op) -> Seen {
        self.begin_step();
        let seen = self.apply(op);
        self.settle();
        seen
    }

    /// Does what is due now.
    pub(super) fn settle(&mut self) {
        self.check_sessions();
        for lock in 0..LOCK_COUNT {
            self.end_waits(lock);
        }
        if self.paused {
            return;
        }
        for lock in 0..LOCK_COUNT {
            let now = self.now;
            let resumes = self.resumes;
            let is_over = |(_, hold): &(&usize, &Hold)| {
                let ends = resumes || hold.is_over || !hold.is_renewed();
                hold.expires_at < now && ends && !hold.may_be_renewed(now)
            };
            let over: Vec<usize> =
                self.locks[lock].holds.iter().filter(is_over).map(|(owner, _)| *owner).collect();
            for owner in over {
                self.lose_hold(lock, owner, LossReason::Expired);
            }
        }
        self.resumes = false;
        for lock in 0..LOCK_COUNT {
            self.serve(lock);
        }
        for lock in &self.locks {
            let excludes = lock.holds.values().any(|hold| hold.exclusive > 0);
            assert!(!excludes || lock.holds.len() == 1, "two owners hold a lock");
            for hold in lock.holds.values() {
                assert!([false, true].into_iter().all(|shared| hold.numbered(shared) <= hold.count(shared)));
            }
        }
    }

    fn check_sessions(&mut self) {
        for serial in self.sessions.keys().copied().collect::<Vec<_>>() {
            let (now, paused, resumed_at) = (self.now, self.paused, self.resumed_at);
            let session = self.of(serial);
            if paused {
                session.passed_at = None;
                continue;
            }
            if resumed_at.is_some_and(|at| at + session.patience() > now) {
                session.passed_at = None;
                continue;
            }
            if session.passed_at.is_some_and(|at| at + RECHECK > now) {
                continue;
            }
            if let Some(found_at) = session.passed_at {
                if session.deadline <= found_at {
                    self.end_session(serial);
                    continue;
                }
                let overdue = session.grants().filter(|grant| session.overdue_at(grant) <= found_at);
                for n in overdue.map(|grant| grant.n).collect::<Vec<_>>() {
                    self.of(serial).is_suspect = true;
                    self.revoke((serial, n));
                    self.lose((serial, n), LossReason::Overdue);
                }
            }
            let session = self.of(serial);
            let is_passed = session.next_check() <= now;
            session.passed_at = is_passed.then_some(now);
        }
    }

    fn end_waits(&mut self, lock: usize) {
        let now = self.now;
        let is_over = |wait: &mut Wait| wait.deadline.is_some_and(|at| at <= now);
        for wait in self.locks[lock].queue.extract_if(.., is_over).collect::<Vec<_>>() {
            match wait.caller {
                Caller::Number(serial, n) => self.lose((serial, n), LossReason::TimedOut),
                Caller::Plain(id) => self.blocked_ends.push((id, BlockedEnd::TimedOut)),
            }
        }
    }

    /// The queue in the order of service, without waits that are passed over.
    pub(super) fn line(&self, lock: usize) -> Vec<Wait> {
        let Lock { holds, queue } = &self.locks[lock];
        let is_served = |wait: &&Wait| match wait.caller {
            Caller::Number(serial, _) => !self.sessions[&serial].is_suspect,
            Caller::Plain(_) => true,
        };
        let served = queue.iter().filter(is_served).cloned();
        let (holders, newcomers): (Vec<_>, Vec<_>) =
            served.partition(|wait: &Wait| holds.contains_key(&wait.want.owner));
        [holders, newcomers].concat()
    }

    fn serve(&mut self, lock: usize) {
        let mut delivered = Vec::new();
        while let Some(Wait { caller, want, .. }) = self.next_to_serve(lock) {
            self.locks[lock].queue.retain(|wait| wait.caller != caller);
            match caller {
                Caller::Number(serial, n) => {
                    let holds = self.grant(lock, want, Some((serial, n)), Some(caller));
                    self.of(serial).set(n, (lock, want.owner), State::InFlight { holds });
                    self.tell((serial, n), Content::Granted(holds));
                }
                Caller::Plain(id) => {
                    let holds = self.grant(lock, want, None, Some(caller));
                    self.blocked_ends.push((id, BlockedEnd::Granted(holds)));
                    delivered.push((want.owner, caller));
                }
            }
        }
        // The replies to blocked clients arrive.
        for (owner, caller) in delivered {
            self.hold(lock, owner).expect("the hold of a grant").deliver(caller);
        }
    }

    fn next_to_serve(&self, lock: usize) -> Option<Wait> {
        let line = self.line(lock);
        let holds = &self.locks[lock].holds;
        let holders = line.iter().take_while(|wait| holds.contains_key(&wait.want.owner)).count();
        // Waits of holders do not block each other, but they block all others.
        let candidates = if holders > 0 { holders } else { line.len().min(1) };
        line[..candidates].iter().find(|wait| self.locks[lock].admits(wait.want)).cloned()
    }

    /// Grants the lock: to a caller in the queue, or at once.
    fn grant(
        &mut self,
        lock: usize,
        want: WantedHold,
        number: Option<Numbered>,
        queued: Option<Caller>,
    ) -> i64 {
        let WantedHold { owner, shared, lease, keeps, renewed, ephemeral } = want;
        let end = self.now + lease;
        let hold = self.locks[lock].holds.entry(owner).or_default();
        let set = if keeps || hold.keeps_lease() { Lease::AtLeast(end) } else { Lease::To(end) };
        *hold.count_mut(shared) += 1;
        hold.longest = hold.longest.max(lease);
        hold.set_lease(queued, set);
        if let Some(number) = number {
            let of = NumberOfHold { number, shared, renewed, ephemeral, lease };
            if queued.is_some() {
                hold.in_flight.push(of)
            } else {
                hold.numbers.push(of)
            }
        }
        hold.total()
    }

    /// Adds an event. It replaces an earlier one about the number.
    fn tell(&mut self, (serial, n): Numbered, content: Content) {
        let (step, at) = (self.step, self.now);
        let session = self.of(serial);
        session.events.retain(|event| event.n != n);
        session.events.push(Event { n, content, step, at });
        if std::mem::take(&mut session.is_polled) {
            self.woken.insert(serial);
        }
    }

    /// The acquire no longer holds anything, or never will.
    fn lose(&mut self, number: Numbered, why: LossReason) {
        let (serial, n) = number;
        let (lock, owner, _) = self.sessions[&serial].numbers[&n];
        let state = if why == LossReason::TimedOut { State::Busy } else { State::Ended };
        self.of(serial).set(n, (lock, owner), state);
        self.tell(number, Content::Lost(why));
    }

    /// All holds of an owner end without its call.
    fn lose_hold(&mut self, lock: usize, owner: usize, why: LossReason) {
        let Some(hold) = self.locks[lock].holds.remove(&owner) else { return };
        for of in hold.numbers.into_iter().chain(hold.in_flight) {
            self.lose(of.number, why);
        }
    }

    /// Loses the newest numbers for which no hold is left.
    fn lose_excess(&mut self, lock: usize, owner: usize) {
        let Some(hold) = self.hold(lock, owner) else { return };
        if hold.total() == 0 {
            return self.lose_hold(lock, owner, LossReason::Deleted);
        }
        let mut lost = Vec::new();
        for shared in [false, true] {
            while hold.numbered(shared) > hold.count(shared) {
                let in_flight = hold.in_flight.iter().rfind(|of| of.shared == shared);
                let number = match in_flight.map(|of| of.number) {
                    Some(number) => {
                        hold.forget_grant(number);
                        number
                    }
                    None => {
                        let at = hold.numbers.iter().rposition(|of| of.shared == shared).unwrap();
                        hold.numbers.remove(at).number
                    }
                };
                lost.push(number);
            }
        }
        lost.into_iter().for_each(|number| self.lose(number, LossReason::Deleted));
    }

    /// Removes one hold of an owner.
    fn drop_one(&mut self, lock: usize, owner: usize, shared: bool) -> i64 {
        let Some(hold) = self.hold(lock, owner) else { panic!("no hold to release") };
        *hold.count_mut(shared) -= 1;
        let left = hold.total();
        if left == 0 {
            self.locks[lock].holds.remove(&owner);
        }
        left
    }

    /// Undoes a grant in flight.
    fn revoke(&mut self, (serial, n): Numbered) {
        let (lock, owner, _) = self.sessions[&serial].numbers[&n];
        let hold = self.hold(lock, owner).expect("the hold of a grant");
        let of = hold.in_flight.iter().find(|of| of.number == (serial, n)).expect("a grant in flight");
        let shared = of.shared;
        hold.forget_grant((serial, n));
        self.drop_one(lock, owner, shared);
    }

    fn end_session(&mut self, serial: Serial) {
        for (n, (lock, owner, state)) in self.sessions[&serial].numbers.clone() {
            match state {
                State::Waiting => {
                    self.locks[lock].queue.retain(|wait| wait.caller != Caller::Number(serial, n))
                }
                State::InFlight { .. } => self.revoke((serial, n)),
                State::Held { .. } => {
                    let hold = self.hold(lock, owner).expect("the hold of a number");
                    let at = hold.numbers.iter().position(|of| of.number == (serial, n)).unwrap();
                    let of = hold.numbers.remove(at);
                    if of.ephemeral {
                        self.drop_one(lock, owner, of.shared);
                    }
                }
                _ => {}
            }
        }
        let session = self.sessions.remove(&serial).unwrap();
        if session.is_polled {
            self.woken.insert(serial);
        }
    }

    fn confirm(&mut self, (serial, n): Numbered) {
        let Some((lock, owner, State::InFlight { holds })) = self.sessions[&serial].numbers.get(&n).copied()
        else {
            return;
        };
        let now = self.now;
        let hold = self.hold(lock, owner).expect("the hold of a grant");
        hold.confirm((serial, n));
        hold.is_over |= hold.expires_at < now;
        let session = self.of(serial);
        session.events.retain(|event| event.n != n);
        session.set(n, (lock, owner), State::Held { holds });
    }

    /// Confirms a grant that a call names. Its own lease may be over, although another grant had extended the
    /// owner's lease. Returns whether the owner still holds the lock.
    fn confirm_call(&mut self, number: Numbered, (lock, owner): (usize, usize)) -> bool {
        self.confirm(number);
        let now = self.now;
        let is_over = self.hold(lock, owner).is_some_and(|hold| hold.expires_at < now);
        if is_over {
            self.lose_hold(lock, owner, LossReason::Expired);
        }
        !is_over
    }

    /// The client has called.
    fn hear(&mut self, serial: Serial, connection: u64) {
        let now = self.now;
        let session = self.of(serial);
        (session.heard_at, session.deadline, session.passed_at) = (now, now + session.ttl, None);
        (session.reader, session.is_suspect) = (Some(connection), false);
    }

    /// The session of a slot, if it lives.
    pub(super) fn serial(&self, slot: usize) -> Option<Serial> {
        self.slots[slot].filter(|serial| self.sessions.contains_key(serial))
    }

    /// An EVENTS that acknowledges these numbers.
    pub(super) fn poll(&mut self, slot: usize, connection: u64, acknowledged: &[u64], done: u64) {
        self.step += 1;
        let serial = self.serial(slot).expect("a live session");
        self.hear(serial, connection);
        for n in acknowledged {
            self.confirm((serial, *n));
            self.of(serial).events.retain(|event| event.n != *n);
        }
        self.revoke_stale_grants(serial);
        let session = self.of(serial);
        session.done += done;
        session.forget_done();
        session.is_polled = session.events.is_empty();
        self.settle();
    }

    /// Revokes renewed grants of which a third of the lease is over, instead of delivering them.
    fn revoke_stale_grants(&mut self, serial: Serial) {
        let session = &self.sessions[&serial];
        let granted = session.grants().map(|grant| (grant.n, grant.at)).collect::<Vec<_>>();
        let now = self.now;
        for (n, at) in granted {
            let (lock, owner, _) = self.sessions[&serial].numbers[&n];
            let hold = self.hold(lock, owner).expect("the hold of a grant");
            let of = hold.in_flight.iter().find(|of| of.number == (serial, n)).expect("a grant in flight");
            if of.renewed && now - at > of.lease / 3 {
                self.revoke((serial, n));
                self.lose((serial, n), LossReason::Overdue);
            }
        }
    }

    fn apply(&mut self, op: &Op) -> Seen {
        match *op {
            Op::Open { slot, connection, settings } => {
                let (ttl, grace) = SETTINGS[settings];
                self.opened += 1;
                self.slots[slot] = Some(self.opened);
                let session = Session {
                    ttl,
                    grace,
                    deadline: self.now + ttl,
                    heard_at: self.now,
                    reader: Some(connection),
                    done: 0,
                    is_suspect: false,
                    passed_at: None,
                    numbers: BTreeMap::new(),
                    events: Vec::new(),
                    is_polled: false,
                };
                self.sessions.insert(self.opened, session);
                Seen::Done
            }
            Op::Close { slot } => {
                let Some(serial) = self.serial(slot) else { return Seen::NoSession };
                let released = self.released_by_end(serial);
                self.end_session(serial);
                Seen::Closed(released)
            }
            Op::Resume { slot, connection, is_late } => {
                let Some(serial) = self.serial(slot) else { return Seen::NoSession };
                if is_late {
                    return Seen::Late;
                }
                self.hear(serial, connection);
                Seen::Done
            }
            Op::Acquire { want, number, queue } => self.acquire(want, number, queue),
            Op::Release { lock, owner, scope, lease } => self.release_plain(lock, owner, scope, lease),
            Op::ReleaseNumber { lock, owner, number, lease } => {
                let target = self.target(number, lock, owner);
                let Some((serial, n)) = self.resolve(number) else { return Seen::NoSession };
                self.release((serial, n), target, lease)
            }
            Op::Cancel { lock, owner, number } => {
                let target = self.target(number, lock, owner);
                let Some((serial, n)) = self.resolve(number) else { return Seen::NoSession };
                self.cancel((serial, n), target)
            }
            Op::Renew { lock, owner, number: None, lease } => {
                let end = self.now + lease;
                let Some(hold) = self.hold(lock, owner) else { return Seen::NotOwner };
                let end = if hold.keeps_lease() { end.max(hold.expires_at) } else { end };
                hold.longest = hold.longest.max(lease);
                hold.set_lease(None, Lease::To(end));
                Seen::Renewed(hold.total())
            }
            Op::Renew { lock, owner, number: Some(number), lease } => {
                let target = self.target(number, lock, owner);
                let Some(at) = self.resolve(number) else { return Seen::NoSession };
                self.renew(at, target, number, lease)
            }
            Op::Break { lock } => {
                let owners: Vec<usize> = self.locks[lock].holds.keys().copied().collect();
                for owner in &owners {
                    self.lose_hold(lock, *owner, LossReason::Broken);
                }
                Seen::Broken(owners.len())
            }
            Op::Delete { lock } => {
                self.delete(lock);
                Seen::Done
            }
            Op::Flush => {
                (0..LOCK_COUNT).for_each(|lock| self.delete(lock));
                Seen::Done
            }
            Op::Reduce { lock, owner, shared } => {
                if self.hold(lock, owner).is_some_and(|hold| hold.count(shared) > 0) {
                    for hold in self.locks[lock].holds.values_mut() {
                        hold.leases = vec![(None, Lease::To(hold.expires_at))];
                    }
                    let hold = self.hold(lock, owner).unwrap();
                    *hold.count_mut(shared) -= 1;
                    self.lose_excess(lock, owner);
                }
                Seen::Done
            }
            Op::Disconnect { connection } => {
                for serial in self.sessions.keys().copied().collect::<Vec<_>>() {
                    let now = self.now;
                    let session = self.of(serial);
                    if session.reader != Some(connection) {
                        continue;
                    }
                    session.reader = None;
                    session.deadline = session.deadline.min(now + session.grace);
                    if session.grace == 0 {
                        self.end_session(serial);
                    }
                }
                Seen::Done
            }
            Op::Pause(paused) => {
                self.resumes = self.paused && !paused;
                if self.resumes && !self.sessions.is_empty() {
                    self.resumed_at = Some(self.now);
                }
                self.paused = paused;
                Seen::Done
            }
            Op::Demote => {
                self.demote();
                Seen::Done
            }
            Op::Poll { .. } | Op::Advance { .. } => unreachable!("handled elsewhere"),
        }
    }

    fn released_by_end(&self, serial: Serial) -> usize {
        let holds = self.locks.iter().flat_map(|lock| lock.holds.values());
        let released = holds.flat_map(|hold| {
            hold.in_flight.iter().chain(hold.numbers.iter().filter(|number| number.ephemeral))
        });
        released.filter(|number| number.number.0 == serial).count()
    }

    fn delete(&mut self, lock: usize) {
        for owner in self.locks[lock].holds.keys().copied().collect::<Vec<_>>() {
            self.lose_hold(lock, owner, LossReason::Deleted);
        }
    }

    fn acquire(&mut self, want: Want, number: Option<Number>, queue: Option<i64>) -> Seen {
        let Want { shared, lease, keeps, mut lock, mut owner } = want;
        let mut call = None;
        if let Some(number) = number {
            (lock, owner) = self.target(number, lock, owner);
            let Some((serial, n)) = self.resolve(number) else { return Seen::NoSession };
            let session = &self.sessions[&serial];
            match session.numbers.get(&n) {
                Some((of_lock, of_owner, _)) if (*of_lock, *of_owner) != (lock, owner) => {
                    return Seen::OtherTarget
                }
                Some((.., State::Waiting)) => return Seen::Waits,
                Some((.., State::InFlight { holds } | State::Held { holds })) => {
                    return Seen::Granted(*holds)
                }
                Some((.., State::Busy)) => return Seen::Busy,
                Some((.., State::Cancelled { .. })) => return Seen::Cancelled,
                Some((.., State::Released { .. } | State::Ended)) => return Seen::Ended,
                None if n < session.done => return Seen::Late,
                None => call = Some((serial, n)),
            }
        }
        let renewed = number.is_some_and(|number| number.renewed);
        let ephemeral = number.is_some_and(|number| number.ephemeral);
        let want = WantedHold { owner, shared, lease, keeps, renewed, ephemeral };
        let is_first = self.line(lock).is_empty() || self.locks[lock].holds.contains_key(&owner);
        if is_first && self.locks[lock].admits(want) {
            let holds = self.grant(lock, want, call, None);
            if let Some((serial, n)) = call {
                self.of(serial).set(n, (lock, owner), State::Held { holds });
            }
            return Seen::Granted(holds);
        }
        let Some(ms) = queue else {
            if let Some((serial, n)) = call {
                self.of(serial).set(n, (lock, owner), State::Busy);
            }
            return Seen::Busy;
        };
        if self.line(lock).is_empty() && self.notifies_owners {
            let holds = self.locks[lock].holds.values().flat_map(|hold| &hold.numbers);
            for of in holds.map(|number| number.number).collect::<Vec<_>>() {
                if self.sessions[&of.0].events.iter().all(|event| event.n != of.1) {
                    self.tell(of, Content::Contended);
                }
            }
        }
        let caller = match call {
            Some((serial, n)) => {
                self.of(serial).set(n, (lock, owner), State::Waiting);
                Caller::Number(serial, n)
            }
            None => {
                self.blocked += 1;
                Caller::Plain(self.blocked)
            }
        };
        let deadline = (ms > 0).then_some(self.now + ms);
        self.locks[lock].queue.push(Wait { caller, want, deadline });
        Seen::Waits
    }

    fn set_lease_on_release(&mut self, lock: usize, owner: usize, lease: Option<i64>, keeps: Option<i64>) {
        let now = self.now;
        if let (Some(hold), Some(ms)) = (self.hold(lock, owner), lease) {
            hold.longest = hold.longest.max(ms);
            hold.set_lease(None, Lease::To(keeps.map_or(now + ms, |end| end.max(now + ms))));
        }
    }

    fn release_plain(&mut self, lock: usize, owner: usize, scope: Scope, lease: Option<i64>) -> Seen {
        let Some(hold) = self.hold(lock, owner) else { return Seen::NotOwner };
        let keeps = hold.keeps_lease().then_some(hold.expires_at);
        let shared = scope == Scope::Shared || hold.exclusive == 0;
        if scope == Scope::All {
            self.lose_hold(lock, owner, LossReason::Deleted);
            return Seen::Left(0);
        }
        if hold.count(shared) == 0 {
            return Seen::NotOwner;
        }
        *hold.count_mut(shared) -= 1;
        let left = hold.total();
        if left > 0 {
            self.set_lease_on_release(lock, owner, lease, keeps);
        }
        self.lose_excess(lock, owner);
        Seen::Left(left)
    }

    fn release(&mut self, (serial, n): Numbered, target: (usize, usize), lease: Option<i64>) -> Seen {
        let session = &self.sessions[&serial];
        let (lock, owner) = target;
        match session.numbers.get(&n).copied() {
            Some((of_lock, of_owner, _)) if (of_lock, of_owner) != target => return Seen::OtherTarget,
            Some((.., State::InFlight { .. } | State::Held { .. })) => {}
            Some((.., State::Released { left })) => return Seen::Left(left),
            Some(_) => return Seen::NotOwner,
            None => {
                if n >= session.done {
                    self.of(serial).set(n, target, State::Ended);
                }
                return Seen::NotOwner;
            }
        }
        if !self.confirm_call((serial, n), target) {
            return Seen::NotOwner;
        }
        let hold = self.hold(lock, owner).expect("the hold of a number");
        let keeps = Some(hold.expires_at);
        let at = hold.numbers.iter().position(|of| of.number == (serial, n)).unwrap();
        let shared = hold.numbers.remove(at).shared;
        let left = self.drop_one(lock, owner, shared);
        if left > 0 {
            self.set_lease_on_release(lock, owner, lease, keeps);
        }
        self.of(serial).answer(n, target, State::Released { left });
        Seen::Left(left)
    }

    fn cancel(&mut self, (serial, n): Numbered, target: (usize, usize)) -> Seen {
        let session = &self.sessions[&serial];
        let undone = match session.numbers.get(&n).copied() {
            Some((lock, owner, _)) if (lock, owner) != target => return Seen::OtherTarget,
            Some((lock, _, State::Waiting)) => {
                self.locks[lock].queue.retain(|wait| wait.caller != Caller::Number(serial, n));
                true
            }
            Some((.., State::InFlight { .. })) => {
                self.revoke((serial, n));
                true
            }
            Some((.., State::Held { .. })) => {
                self.release((serial, n), target, None);
                true
            }
            Some((.., State::Cancelled { undone })) => return Seen::Undone(undone),
            Some(_) => return Seen::Undone(false),
            None if n < session.done => return Seen::Undone(false),
            None => false,
        };
        self.of(serial).answer(n, target, State::Cancelled { undone });
        Seen::Undone(undone)
    }

    fn renew(&mut self, at: Numbered, target: (usize, usize), call: Number, lease: i64) -> Seen {
        let (serial, n) = at;
        let (lock, owner) = target;
        let end = self.now + lease;
        let session = &self.sessions[&serial];
        let is_declaration = match session.numbers.get(&n).copied() {
            Some((of_lock, of_owner, _)) if (of_lock, of_owner) != target => return Seen::OtherTarget,
            Some((.., State::InFlight { .. } | State::Held { .. })) => false,
            Some(_) => return Seen::NotOwner,
            None if n < session.done => return Seen::Late,
            None => true,
        };
        if !self.confirm_call(at, target) {
            return Seen::NotOwner;
        }
        let Some(hold) = self.hold(lock, owner) else { return Seen::NotOwner };
        let free = [false, true].into_iter().find(|shared| hold.numbered(*shared) < hold.count(*shared));
        if is_declaration && free.is_none() {
            return Seen::NotOwner;
        }
        hold.longest = hold.longest.max(lease);
        hold.set_lease(None, Lease::To(end.max(hold.expires_at)));
        let holds = hold.total();
        if is_declaration {
            let Number { renewed, ephemeral, .. } = call;
            hold.numbers.push(NumberOfHold { number: at, shared: free.unwrap(), renewed, ephemeral, lease });
            self.of(serial).set(n, target, State::Held { holds });
        } else {
            let of = hold.numbers.iter_mut().find(|of| of.number == at).unwrap();
            of.lease = if of.renewed { of.lease.max(lease) } else { lease };
            of.renewed |= call.renewed;
        }
        Seen::Renewed(holds)
    }

    fn demote(&mut self) {
        for serial in std::mem::take(&mut self.sessions).into_iter().filter(|(_, of)| of.is_polled) {
            self.woken.insert(serial.0);
        }
        for lock in &mut self.locks {
            for wait in std::mem::take(&mut lock.queue) {
                if let Caller::Plain(id) = wait.caller {
                    self.blocked_ends.push((id, BlockedEnd::Demoted));
                }
            }
            for hold in lock.holds.values_mut() {
                (hold.numbers, hold.in_flight) = (Vec::new(), Vec::new());
                hold.leases = vec![(None, Lease::To(hold.expires_at))];
            }
        }
    }

    /// The holds whose leases the server may have renewed just before it stopped doing so.
    pub(super) fn uncertain(&self) -> Vec<(usize, usize)> {
        let locks = self.locks.iter().enumerate();
        let holds =
            locks.flat_map(|(lock, of)| of.holds.iter().map(move |(owner, hold)| (lock, *owner, hold)));
        let uncertain = holds.filter(|(.., hold)| !self.paused && hold.may_be_renewed(self.now));
        uncertain.map(|(lock, owner, _)| (lock, owner)).collect()
    }

    /// Ends a hold whose lease the server has not renewed.
    pub(super) fn expire(&mut self, lock: usize, owner: usize) {
        self.lose_hold(lock, owner, LossReason::Expired);
        self.settle();
    }

    /// Adopts the end of a lease, which the server may have renewed. Fails if it is outside its limits.
    pub(super) fn adopt_lease(&mut self, lock: usize, owner: usize, end: i64) -> Result<(), String> {
        let (now, paused) = (self.now, self.paused);
        let Some(hold) = self.hold(lock, owner) else { return Err("no such hold".to_string()) };
        let before = hold.expires_at;
        if hold.is_renewed() {
            hold.renewed_to = now + hold.longest;
        }
        let latest = before.max(hold.renewed_to);
        if !(before..=latest).contains(&end) {
            return Err(format!("a lease ends at {end}, and not from {before} to {latest}"));
        }
        if end > before {
            hold.set_lease(None, Lease::AtLeast(end));
        }
        if !hold.is_renewed() && hold.in_flight.is_empty() {
            hold.renewed_to = 0;
        }
        let renewed = hold.numbers.iter().filter(|number| number.renewed).map(|number| number.lease);
        let needed = renewed.max().filter(|_| !paused).map_or(0, |ms| ms * 2 / 3 - 2);
        if end - now < needed {
            return Err(format!("a renewed lease has {} ms left of at least {needed}", end - now));
        }
        Ok(())
    }

    /// Everything that makes a difference to what follows, with times from now on.
    pub(super) fn look(&self) -> String {
        let now = self.now;
        let mut names = BTreeMap::new();
        for serial in self.slots.iter().flatten().chain(self.sessions.keys()) {
            let next = names.len();
            names.entry(*serial).or_insert(next);
        }
        let number = |(serial, n): &Numbered| (names[serial], *n);
        let by = |by: &Caller| match by {
            Caller::Number(serial, n) => number(&(*serial, *n)),
            Caller::Plain(id) => panic!("blocked call {id} is in flight"),
        };
        let resumed = self.resumed_at.map(|at| (now - at).min(60_000));
        let mut look = format!(
            "{} {resumed:?} {:?}",
            self.paused,
            self.slots.map(|serial| serial.map(|serial| names[&serial]))
        );
        for lock in &self.locks {
            for (owner, hold) in &lock.holds {
                let leases: Vec<_> = hold
                    .leases
                    .iter()
                    .map(|(of, lease)| {
                        let lease = match lease {
                            Lease::To(end) => (true, end - now),
                            Lease::AtLeast(end) => (false, end - now),
                        };
                        (of.as_ref().map(by), lease)
                    })
                    .collect();
                let of =
                    |of: &NumberOfHold| (number(&of.number), of.shared, of.renewed, of.ephemeral, of.lease);
                look += &format!(
                    "\nhold {owner} {} {} {} {leases:?} {:?} {:?} {} {}",
                    hold.exclusive,
                    hold.shared,
                    hold.expires_at - now,
                    hold.numbers.iter().map(of).collect::<Vec<_>>(),
                    hold.in_flight.iter().map(of).collect::<Vec<_>>(),
                    hold.longest,
                    (hold.renewed_to - now).max(0),
                );
            }
            for wait in &lock.queue {
                let caller = match wait.caller {
                    Caller::Number(serial, n) => Some((names[&serial], n)),
                    Caller::Plain(_) => None,
                };
                look += &format!("\nwait {caller:?} {:?} {:?}", wait.want, wait.deadline.map(|at| at - now));
            }
            look += "\n-";
        }
        for (serial, session) in &self.sessions {
            let events: Vec<_> =
                session.events.iter().map(|event| (event.n, event.content, event.at - now)).collect();
            look += &format!(
                "\nsession {} {} {} {} {} {:?} {} {} {:?} {:?} {events:?} {}",
                names[serial],
                session.ttl,
                session.grace,
                session.deadline - now,
                (session.heard_at + session.grace - now).max(-OVERDUE),
                session.reader,
                session.done,
                session.is_suspect,
                session.passed_at.map(|at| at - now),
                session.numbers,
                session.is_polled,
            );
        }
        look
    }
}
