// SPDX-License-Identifier: MIT

//! The core and the model of sessions, step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proptest::prelude::*;

use super::super::real::Real;
use super::super::{at, visible, LOCKS, OWNERS};
use super::model::{BlockedEnd, Caller, Content, Model, Numbered, Serial};
use super::{
    Acknowledge, Number, Op, Scope, Seen, Want, CONNECTION_COUNT, LOCK_COUNT, OWNER_COUNT, SETTINGS,
};
use crate::core::model_tests::real::Stored;
use crate::core::*;

/// The core and the model after the same history.
pub(super) struct Both {
    real: Real,
    pub(super) model: Model,
    /// The last beat and the last acknowledged event of each session.
    clients: BTreeMap<Serial, Client>,
    blocked: BTreeMap<WaiterId, u64>,
    /// Ends of blocked calls since the last comparison.
    ends: Vec<(u64, BlockedEnd)>,
    woken: BTreeSet<Serial>,
    /// The last time at which a pause began or ended.
    paused_at: i64,
}

#[derive(Clone, Copy, Default)]
struct Client {
    beat: u64,
    acknowledged: u64,
}

fn owner_of(owner: usize) -> Owner {
    Owner::new(OWNERS[owner])
}

fn mode_of(shared: bool) -> Mode {
    if shared {
        Mode::Shared
    } else {
        Mode::Exclusive
    }
}

fn id_of(serial: Serial) -> SessionId {
    let mut id = [b'0'; 32];
    id[..8].copy_from_slice(&serial.to_be_bytes());
    SessionId(id)
}

fn us(ms: i64) -> MonoUs {
    ms.unsigned_abs() * 1000
}

impl Both {
    pub(super) fn new(notifies_owners: bool) -> Both {
        let mut real = Real::new(true);
        real.locks.notify_owners(notifies_owners);
        let model = Model::new(real.now, notifies_owners);
        Both {
            real,
            model,
            clients: BTreeMap::new(),
            blocked: BTreeMap::new(),
            ends: Vec::new(),
            woken: BTreeSet::new(),
            paused_at: 0,
        }
    }

    /// Applies an operation to both. Fails if they differ. Returns false if the operation is impossible now.
    pub(super) fn step(&mut self, op: &Op) -> Result<bool, TestCaseError> {
        // Clients are paused: no command runs.
        if self.model.paused && !matches!(op, Op::Advance { .. } | Op::Pause(false) | Op::Disconnect { .. }) {
            return Ok(false);
        }
        match *op {
            // A pause takes time.
            Op::Pause(paused) if paused == self.model.paused || self.paused_at == self.real.now => {
                return Ok(false)
            }
            Op::Advance { ms } => self.advance(ms)?,
            Op::Poll { slot, connection, is_late, acknowledge, done } => {
                if !self.poll(slot, connection, (is_late, acknowledge, done))? {
                    return Ok(false);
                }
            }
            Op::Resume { slot, connection, is_late } => {
                let Some((serial, key)) = self.session(slot)? else { return Ok(false) };
                let client = self.clients.get_mut(&serial).unwrap();
                client.beat += u64::from(!is_late);
                let (beat, acknowledged) = (client.beat, client.acknowledged);
                let resumed = self.real.locks.resume_session(key, beat, reader(connection), self.real.time());
                self.settle();
                let expected = if is_late { Err(Late) } else { Ok(acknowledged) };
                prop_assert_eq!(resumed, expected, "reply to {:?}", op);
                self.model.step(op);
            }
            _ => {
                let seen = self.apply(op)?;
                self.settle();
                let expected = self.model.step(op);
                prop_assert_eq!(&seen, &expected, "reply to {:?}", op);
                if seen == Seen::NoSession {
                    return Ok(false);
                }
            }
        }
        self.compare(op)?;
        Ok(true)
    }

    /// The session of a client, if it lives. Fails if the core and the model disagree on that.
    fn session(&self, slot: usize) -> Result<Option<(Serial, SessionKey)>, TestCaseError> {
        let Some(serial) = self.model.slots[slot] else { return Ok(None) };
        let key = self.real.locks.find_session(&id_of(serial));
        prop_assert_eq!(self.model.sessions.contains_key(&serial), key.is_some(), "session {}", serial);
        Ok(key.map(|key| (serial, key)))
    }

    fn poll(
        &mut self,
        slot: usize,
        connection: u64,
        (is_late, acknowledge, done): (bool, Acknowledge, u64),
    ) -> Result<bool, TestCaseError> {
        let Some((serial, key)) = self.session(slot)? else { return Ok(false) };
        let session = self.real.locks.session(key).unwrap();
        let last = session.event_range().1;
        let pending: Vec<(u64, u64)> = session.events().map(|event| (event.seq, event.n)).collect();
        let client = self.clients.get_mut(&serial).unwrap();
        let seq = match acknowledge {
            Acknowledge::Nothing => client.acknowledged,
            Acknowledge::First(count) => {
                pending[..count.min(pending.len())].last().map_or(client.acknowledged, |(seq, _)| *seq)
            }
            Acknowledge::All => last,
            Acknowledge::Beyond => last + 5,
        };
        client.beat += u64::from(!is_late);
        let done_at = self.model.sessions[&serial].done + done;
        let poll = Poll { beat: client.beat, seq, done: done_at, reader: reader(connection) };
        let polled = self.real.locks.poll_session(key, poll, self.real.time());
        prop_assert_eq!(polled.is_err(), is_late);
        if is_late {
            return Ok(true);
        }
        client.acknowledged = client.acknowledged.max(seq.min(last));
        let acknowledged: Vec<u64> = pending.iter().filter(|(of, _)| *of <= seq).map(|(_, n)| *n).collect();
        self.real.locks.revoke_stale_grants(key, usize::MAX, self.real.time());
        let is_empty = self.real.locks.session(key).unwrap().pending() == 0;
        self.real.locks.set_polled(key, is_empty);
        self.settle();
        self.model.poll(slot, connection, &acknowledged, done);
        Ok(true)
    }

    fn number(
        &self,
        number: Number,
        (lock, owner): (usize, usize),
    ) -> Result<Option<(NumberedCall, usize, usize)>, TestCaseError> {
        let Some((_, key)) = self.session(number.slot)? else { return Ok(None) };
        let (_, n) = self.model.resolve(number).unwrap();
        let (lock, owner) = self.model.target(number, lock, owner);
        let number = NumberedCall {
            number: CallNumber {
                session: key,
                n,
                target: Target::new((2 * (lock * OWNER_COUNT + owner)) as u64, false),
            },
            renewed: number.renewed,
            ephemeral: number.ephemeral,
            max_ms: None,
        };
        Ok(Some((number, lock, owner)))
    }

    fn apply(&mut self, op: &Op) -> Result<Seen, TestCaseError> {
        let now = self.real.time();
        Ok(match *op {
            Op::Open { connection, settings, .. } => {
                let serial = self.clients.len() as Serial + 1;
                self.clients.insert(serial, Client { beat: 1, acknowledged: 0 });
                let (ttl, grace) = SETTINGS[settings];
                let (id, text) = (id_of(serial), Rc::from(&b"text"[..]));
                let new = NewSession {
                    id,
                    user: Rc::clone(&text),
                    name: text,
                    ttl_us: us(ttl),
                    grace_us: us(grace),
                };
                self.real.locks.open_session(new, 1, reader(connection), now);
                Seen::Done
            }
            Op::Close { slot } => {
                let Some((_, key)) = self.session(slot)? else { return Ok(Seen::NoSession) };
                Seen::Closed(self.real.locks.close_session(key, now))
            }
            Op::Acquire { want, number, queue } => {
                let mut target = (want.lock, want.owner);
                let mut call = None;
                if let Some(number) = number {
                    let Some((of, lock, owner)) = self.number(number, target)? else {
                        return Ok(Seen::NoSession);
                    };
                    (call, target) = (Some(of), (lock, owner));
                }
                self.acquire(want, target, call, queue)
            }
            Op::Release { lock, owner, scope, lease } => {
                let scope = match scope {
                    Scope::One => ReleaseScope::One,
                    Scope::Shared => ReleaseScope::OneOf(Mode::Shared),
                    Scope::All => ReleaseScope::All,
                };
                self.release(
                    lock,
                    Release { owner: owner_of(owner), scope, lease_ms: lease, id: None, number: None },
                )
            }
            Op::ReleaseNumber { lock, owner, number, lease } => {
                let Some((call, lock, owner)) = self.number(number, (lock, owner))? else {
                    return Ok(Seen::NoSession);
                };
                let (owner, scope, number) = (owner_of(owner), ReleaseScope::One, Some(call.number));
                self.release(lock, Release { owner, scope, lease_ms: lease, id: None, number })
            }
            Op::Cancel { lock, owner, number } => {
                let Some((call, lock, owner)) = self.number(number, (lock, owner))? else {
                    return Ok(Seen::NoSession);
                };
                let owner = owner_of(owner);
                let undone = self
                    .real
                    .on(LOCKS[lock], |locks, open| locks.cancel_number(open, &owner, call.number))
                    .unwrap();
                undone.map_or(Seen::OtherTarget, Seen::Undone)
            }
            Op::Renew { mut lock, mut owner, number, lease } => {
                let mut call = None;
                if let Some(number) = number {
                    let Some(of) = self.number(number, (lock, owner))? else { return Ok(Seen::NoSession) };
                    (call, lock, owner) = (Some(of.0), of.1, of.2);
                }
                let renewal = Renewal {
                    owner: owner_of(owner),
                    lease_ms: lease,
                    bind: None,
                    client: None,
                    number: call,
                    from: None,
                };
                match self.real.on(LOCKS[lock], |locks, open| locks.renew(open, &renewal)).unwrap() {
                    Ok(holds) => Seen::Renewed(holds),
                    Err(NotRenewed::NotOwner) => Seen::NotOwner,
                    Err(NotRenewed::Late) => Seen::Late,
                    Err(NotRenewed::OtherTarget) => Seen::OtherTarget,
                }
            }
            Op::Break { lock } => {
                Seen::Broken(self.real.on(LOCKS[lock], |locks, open| locks.break_lock(open)).unwrap())
            }
            Op::Delete { lock } => {
                self.delete(lock);
                Seen::Done
            }
            Op::Flush => {
                for key in LOCKS {
                    self.real.store(key, Holders::Free);
                }
                self.real.locks.database_changed(None);
                Seen::Done
            }
            Op::Reduce { lock, owner, shared } => {
                self.reduce(lock, owner, mode_of(shared));
                Seen::Done
            }
            Op::Disconnect { connection } => {
                self.real.locks.connection_closed(ConnectionId(connection), now);
                Seen::Done
            }
            Op::Pause(paused) => {
                (self.real.paused, self.paused_at) = (paused, self.real.now);
                // The timer fires, and finds that the server is paused, or no longer.
                self.real.tick();
                Seen::Done
            }
            Op::Demote => {
                self.real.locks.demote();
                assert_eq!(self.real.locks.waiting_total(), 0, "a replica has waiters");
                while self.real.locks.is_overdue(now) {
                    self.real.locks.tick(now, false);
                }
                self.real.locks.verify();
                self.real.locks.promote();
                Seen::Done
            }
            Op::Poll { .. } | Op::Resume { .. } | Op::Advance { .. } => unreachable!("handled elsewhere"),
        })
    }

    fn acquire(
        &mut self,
        want: Want,
        (lock, owner): (usize, usize),
        number: Option<NumberedCall>,
        queue: Option<i64>,
    ) -> Seen {
        let now = self.real.time();
        let request = Request {
            owner: owner_of(owner),
            wants: Wants { mode: mode_of(want.shared), once: false, limit: None },
            lease_ms: want.lease,
            keeps_longer: want.keeps,
            fence: false,
            names_owner: false,
            id: None,
            bind: None,
            client: None,
            awaits_replicas: false,
            numbered: number.map(Rc::new),
        };
        let policy = queue.map_or(WaitPolicy::NoWait, |ms| WaitPolicy::Wait {
            deadline: (ms > 0).then_some(now.mono + us(ms)),
            at_most: None,
            on_primary: true,
        });
        let known = self.real.locks.look_up(at(LOCKS[lock]));
        let queued = self.real.locks.queue_fast(known, &request, policy, (false, |_| true), now);
        let outcome = match queued {
            Some(FastQueued { id, .. }) => Outcome::Queued(id),
            None => self.real.on(LOCKS[lock], |locks, open| locks.acquire(open, &request, policy)).unwrap(),
        };
        match outcome {
            Outcome::Granted(reply) => Seen::Granted(reply.holds),
            Outcome::Queued(id) => {
                if number.is_none() {
                    self.blocked.insert(id, self.model.blocked + 1);
                }
                Seen::Waits
            }
            Outcome::Busy | Outcome::Repeated(Known::Busy) => Seen::Busy,
            Outcome::Repeated(Known::Waiting) => Seen::Waits,
            Outcome::Repeated(Known::Granted(replies)) => Seen::Granted(replies[0].holds),
            Outcome::Repeated(Known::Cancelled) => Seen::Cancelled,
            Outcome::Repeated(Known::Ended) => Seen::Ended,
            Outcome::Repeated(Known::Late) => Seen::Late,
            Outcome::Repeated(Known::OtherTarget) => Seen::OtherTarget,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, lock: usize, release: Release) -> Seen {
        match self.real.on(LOCKS[lock], |locks, open| locks.release(open, &release)).unwrap() {
            Ok(left) => Seen::Left(left),
            Err(NotReleased::NotOwner) => Seen::NotOwner,
            Err(NotReleased::OtherTarget) => Seen::OtherTarget,
            Err(NotReleased::Refused(refusal)) => panic!("{refusal:?}"),
        }
    }

    fn delete(&mut self, lock: usize) {
        self.real.store(LOCKS[lock], Holders::Free);
        let now = self.real.time();
        self.real.locks.key_changed(at(LOCKS[lock]), KeyChange::Gone(HoldEvent::Deleted), now);
    }

    /// A foreign client reduces a count.
    fn reduce(&mut self, lock: usize, owner: usize, mode: Mode) {
        let mut holders = self.real.open(LOCKS[lock]).unwrap();
        if holders.get(OWNERS[owner]).is_none_or(|hold| hold.count(mode) == 0) {
            return;
        }
        holders.release(OWNERS[owner], ReleaseScope::OneOf(mode), None).unwrap();
        if holders.is_free() {
            return self.delete(lock);
        }
        self.real.store(LOCKS[lock], holders);
        self.real.locks.key_changed(at(LOCKS[lock]), KeyChange::Changed, self.real.time());
    }

    /// Fires the timer of the core until nothing is due.
    fn settle(&mut self) {
        loop {
            self.forget_searches();
            self.real.fire();
            let mut is_idle = true;
            // The server deletes keys and fields that have expired.
            let is_paused = self.real.paused;
            for key in LOCKS.into_iter().filter(|_| !is_paused) {
                let Stored::Lock(stored) = self.real.keys[key].clone() else { unreachable!() };
                if visible(&self.real, key).is_some_and(|holders| holders.len() != stored.len()) {
                    self.real.on(key, |locks, open| ((), locks.reconcile(open))).unwrap();
                    is_idle = false;
                }
            }
            for (id, decision) in std::mem::take(&mut self.real.decisions) {
                let end = match decision {
                    Decision::Granted(reply) => {
                        self.real.locks.delivered(id, self.real.time());
                        BlockedEnd::Granted(reply.holds)
                    }
                    Decision::TimedOut => BlockedEnd::TimedOut,
                    Decision::Demoted => BlockedEnd::Demoted,
                    other => panic!("{other:?}"),
                };
                self.ends.push((self.blocked.remove(&id).expect("a blocked client"), end));
                is_idle = false;
            }
            self.real.decisions.extend(self.real.locks.take_decisions());
            if is_idle && self.real.decisions.is_empty() {
                break;
            }
        }
        while let Some(key) = self.real.locks.next_woken() {
            assert!(self.woken.insert(key.0), "a session was woken twice");
        }
    }

    /// This test has no deadlocks.
    fn forget_searches(&mut self) {
        while self.real.locks.next_search(true, self.real.time()).is_some() {}
    }

    fn advance(&mut self, ms: i64) -> Result<(), TestCaseError> {
        let end = self.real.now + ms;
        loop {
            let wakeup = self.real.locks.next_wakeup(self.real.time(), !self.real.paused);
            let wakeup = wakeup.map(|ms| self.real.now + i64::try_from(ms).unwrap());
            let leases = self.real.keys.values().filter_map(|stored| match stored {
                Stored::Lock(holders) if !self.real.paused => Some(holders.first_end()? + 1),
                _ => None,
            });
            let next = wakeup.into_iter().chain(leases).chain(self.model.next_time()).min();
            let at = next.filter(|at| *at < end).unwrap_or(end);
            prop_assert!(at > self.real.now || at == end, "the timer is not idle");
            (self.real.now, self.model.now) = (at, at);
            self.settle();
            self.model.begin_step();
            self.model.settle();
            self.compare(&Op::Advance { ms })?;
            if at == end {
                return Ok(());
            }
        }
    }

    fn compare(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let Both { real, model, .. } = self;
        real.locks.verify();
        for (lock, owner) in model.uncertain() {
            let holders = visible(real, LOCKS[lock]).unwrap();
            match holders.get(OWNERS[owner]) {
                Some(hold) => {
                    prop_assert_eq!(model.adopt_lease(lock, owner, hold.expires_at), Ok(()), "after {:?}", op)
                }
                None => model.expire(lock, owner),
            }
        }
        let mut ends = std::mem::take(&mut self.ends);
        ends.sort_unstable();
        model.blocked_ends.sort_unstable();
        prop_assert_eq!(ends, std::mem::take(&mut model.blocked_ends), "blocked clients after {:?}", op);
        let woken = (std::mem::take(&mut self.woken), std::mem::take(&mut model.woken));
        prop_assert_eq!(woken.0, woken.1, "woken after {:?}", op);
        prop_assert_eq!(real.locks.session_count(), model.sessions.len(), "sessions after {:?}", op);
        let now = real.time();
        for (serial, session) in &model.sessions {
            let key = real.locks.find_session(&id_of(*serial));
            let Some(found) = key.and_then(|key| real.locks.session(key)) else {
                return Err(TestCaseError::fail(format!("session {serial} is over after {op:?}")));
            };
            prop_assert_eq!(key, Some(SessionKey(*serial)));
            prop_assert_eq!(found.is_suspect(), session.is_suspect, "session {} after {:?}", serial, op);
            prop_assert_eq!(found.reader().map(|reader| reader.0), session.reader, "reader after {:?}", op);
            prop_assert_eq!(
                found.left(now.mono),
                us((session.deadline - model.now).max(0)),
                "left after {:?}",
                op
            );
            let mut events: Vec<_> =
                found.events().map(|event| (event.n, content_of(&event.content))).collect();
            let step_of = |n: u64| session.events.iter().find(|event| event.n == n).map(|event| event.step);
            let steps: Vec<_> = events.iter().map(|(n, _)| step_of(*n)).collect();
            let mut expected: Vec<_> = session.events.iter().map(|event| (event.n, event.content)).collect();
            events.sort_by_key(|(n, _)| *n);
            expected.sort_by_key(|(n, _)| *n);
            prop_assert_eq!(events, expected, "events of {} after {:?}", serial, op);
            prop_assert!(steps.is_sorted(), "the events of {} are out of order", serial);
        }
        if model.paused {
            return Ok(());
        }
        for (lock, key) in LOCKS.into_iter().enumerate().take(LOCK_COUNT) {
            let waiting: Vec<Option<Numbered>> = real
                .locks
                .waiters_of(at(key))
                .into_iter()
                .map(|id| real.locks.number_of(id))
                .map(|number| number.map(|number| (number.session.0, number.n)))
                .collect();
            let is_trusted = |number: &Option<Numbered>| {
                number.is_none_or(|(serial, _)| {
                    model.sessions.get(&serial).is_some_and(|session| !session.is_suspect)
                })
            };
            let waiting: Vec<_> = waiting.into_iter().filter(is_trusted).collect();
            let expected: Vec<_> = model
                .line(lock)
                .iter()
                .map(|wait| match wait.caller {
                    Caller::Number(serial, n) => Some((serial, n)),
                    Caller::Plain(_) => None,
                })
                .collect();
            prop_assert_eq!(&waiting, &expected, "queue of {} after {:?}", lock, op);
            let holders = visible(real, key).unwrap();
            prop_assert!(!holders.is_free() || waiting.is_empty(), "a free lock has waits after {:?}", op);
            let counts: Vec<_> = holders
                .iter()
                .map(|hold| (hold.owner.as_bytes().to_vec(), hold.exclusive, hold.shared))
                .collect();
            let expected: Vec<_> = model.locks[lock]
                .holds
                .iter()
                .map(|(owner, hold)| (OWNERS[*owner].to_vec(), hold.exclusive, hold.shared))
                .collect();
            prop_assert_eq!(counts, expected, "holds of {} after {:?}", lock, op);
            for owner in model.locks[lock].holds.keys().copied().collect::<Vec<_>>() {
                let end = holders.get(OWNERS[owner]).unwrap().expires_at;
                if let Err(why) = model.adopt_lease(lock, owner, end) {
                    prop_assert!(false, "lock {}, owner {}, after {:?}: {}", lock, owner, op, why);
                }
            }
        }
        Ok(())
    }

    /// Lets all sessions and leases end. Fails if anything is remembered.
    pub(super) fn end(mut self) -> Result<(), TestCaseError> {
        self.advance(1)?;
        self.step(&Op::Pause(false))?;
        self.real.locks.notify_owners(false);
        for id in std::mem::take(&mut self.blocked).into_keys() {
            self.real.locks.leave(id);
        }
        self.model.leave_all();
        self.settle();
        self.advance(60_000)?;
        for connection in 0..CONNECTION_COUNT {
            self.real.locks.connection_closed(ConnectionId(connection), self.real.time());
        }
        prop_assert!(self.model.sessions.is_empty());
        (0..LOCKS.len()).for_each(|lock| self.delete(lock));
        self.settle();
        while let Some(ms) = self.real.locks.next_wakeup(self.real.time(), true) {
            self.real.now += i64::try_from(ms).unwrap().max(1);
            self.real.tick();
        }
        prop_assert!(self.real.locks.has_no_deadline());
        self.real.locks.assert_empty();
        Ok(())
    }
}

fn reader(connection: u64) -> Option<ConnectionId> {
    Some(ConnectionId(connection))
}

fn content_of(content: &EventContent) -> Content {
    match content {
        EventContent::Granted(reply) => Content::Granted(reply.holds),
        EventContent::GrantedAll(_) => panic!("no call has several locks"),
        EventContent::Lost(why) => Content::Lost(*why),
        EventContent::Contended => Content::Contended,
    }
}
