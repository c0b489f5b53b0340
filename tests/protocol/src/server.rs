// SPDX-License-Identifier: MIT
//! The server's state: sessions, holds with numbers, the queue, and their changes.

use crate::calls::{Call, Event, HoldKind, Number, Outcome, Reply, Request, SessionId, Ticks};
use crate::lock::{HoldTag, Lock, Owner};
use crate::network::Network;
use crate::properties::Breach;
use crate::rules::Rule;
use crate::scenario::Scenario;

/// The outcome of an acquire so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    Waiting,
    Held,
    Nil,
    Released,
    Lost,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcquireRecord {
    pub n: Number,
    pub status: Status,
    /// The count in the first reply, which a server without R12 repeats.
    pub first_count: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    pub id: SessionId,
    pub deadline: Ticks,
    /// The time since the last EVENTS arrived.
    pub silence: Ticks,
    pub beat: u8,
    pub last_seq: u8,
    pub done: Number,
    /// The key of the connection of the last OPEN or EVENTS.
    pub reader: Option<u8>,
    /// A grant of the session was revoked: its waits are skipped until its next EVENTS.
    pub suspect: bool,
    pub events: Vec<Event>,
    pub acquires: Vec<AcquireRecord>,
}

impl Session {
    pub fn record(&self, n: Number) -> Option<AcquireRecord> {
        self.acquires.iter().find(|record| record.n == n).copied()
    }

    pub fn set_status(&mut self, n: Number, status: Status) {
        match self.acquires.iter_mut().find(|record| record.n == n) {
            Some(record) => record.status = status,
            None => {
                let first_count = u8::from(status == Status::Held);
                self.acquires.push(AcquireRecord { n, status, first_count });
                self.acquires.sort_unstable_by_key(|record| record.n);
            }
        }
    }

    pub(crate) fn add_event(&mut self, n: Number, outcome: Outcome) {
        self.last_seq += 1;
        self.events.retain(|event| event.n != n);
        self.events.push(Event { seq: self.last_seq, n, outcome });
    }
}

/// Renewals of a session-bound hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    DueIn(Ticks),
    /// `MAX` is over, and the session was notified.
    Announced,
}

/// A hold that has a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    pub id: SessionId,
    pub n: Number,
    pub owner: Owner,
    pub kind: HoldKind,
    pub renewal: Renewal,
    /// The age of a grant that the client has not acknowledged.
    pub in_flight: Option<Ticks>,
    /// The remaining time of `WATCHDOG MAX`.
    pub max_left: Option<Ticks>,
}

impl Binding {
    /// Whether the lease is renewed now. A grant in flight has to be acknowledged first.
    pub fn is_due(&self) -> bool {
        self.in_flight.is_none() && self.renewal == Renewal::DueIn(0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    pub id: SessionId,
    pub n: Number,
    pub owner: Owner,
    pub request: Request,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub lock: Lock,
    /// The lock as the replica has it, and the age of that copy.
    pub replica: Lock,
    pub replica_age: Ticks,
    pub sessions: Vec<Session>,
    pub bindings: Vec<Binding>,
    pub queue: Vec<Wait>,
    pub stalled: bool,
    pub writable: bool,
    /// Time without grants after a restart that may have lost locks.
    pub quarantine_left: Ticks,
    /// Sessions that are over. Only the properties use this list; a real server does not keep it.
    pub over: Vec<SessionId>,
    /// How many sessions each client has opened. A real server draws ids at random.
    pub lives: Vec<u8>,
    pub breach: Option<Breach>,
}

impl Server {
    pub fn new(clients: u8) -> Self {
        Server {
            lock: Lock::default(),
            replica: Lock::default(),
            replica_age: 0,
            sessions: Vec::new(),
            bindings: Vec::new(),
            queue: Vec::new(),
            stalled: false,
            writable: true,
            quarantine_left: 0,
            over: Vec::new(),
            lives: vec![0; usize::from(clients)],
            breach: None,
        }
    }

    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    pub fn session_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.id == id)
    }

    pub fn binding(&self, id: SessionId, n: Number) -> Option<&Binding> {
        self.bindings.iter().find(|binding| binding.id == id && binding.n == n)
    }

    pub fn report(&mut self, breach: Breach) {
        self.breach.get_or_insert(breach);
    }

    /// Ends holds whose lease is over.
    pub fn expire_leases(&mut self) {
        let expired: Vec<Owner> = self
            .lock
            .holders
            .iter()
            .filter(|holder| holder.lease_left == 0)
            .map(|holder| holder.owner)
            .collect();
        if expired.is_empty() {
            return;
        }
        for binding in self.take_bindings(|binding| expired.contains(&binding.owner)) {
            self.lose(&binding);
        }
        self.lock.holders.retain(|holder| holder.lease_left > 0);
    }

    pub(crate) fn take_bindings(&mut self, selects: impl Fn(&Binding) -> bool) -> Vec<Binding> {
        let (taken, kept) = std::mem::take(&mut self.bindings).into_iter().partition(selects);
        self.bindings = kept;
        taken
    }

    /// Moves the handed-over hold from `given` to `tag`, the new client and its number. The giver gets `lost … taken`.
    pub fn take_from_giver(&mut self, given: &Binding, tag: HoldTag) {
        self.lose(given);
        let former = HoldTag { client: given.id.client, n: given.n };
        if let Some(holder) = self.lock.holder_mut(given.owner) {
            if let Some(hold) = holder.holds.iter_mut().find(|hold| **hold == former) {
                *hold = tag;
            }
            holder.holds.sort_unstable();
        }
    }

    pub(crate) fn lose(&mut self, binding: &Binding) {
        if let Some(session) = self.session_mut(binding.id) {
            session.set_status(binding.n, Status::Lost);
            session.add_event(binding.n, Outcome::Lost);
        }
    }

    /// Gives a hold to acquire `n`. A grant by event is in flight until it is acknowledged. Returns the owner's count.
    pub fn grant(&mut self, scenario: &Scenario, wait: &Wait, by_event: bool) -> u8 {
        let Wait { id, n, owner, request } = *wait;
        let is_plain = request.kind == HoldKind::Plain;
        let lease = scenario.lease_of(request.kind);
        let keep_longer = !is_plain || scenario.rules.has(Rule::NeverShortenLease);
        self.lock.add(owner, HoldTag { client: id.client, n }, request.shared, lease, keep_longer);
        self.bindings.push(scenario.binding(id, n, request, by_event.then_some(0)));
        self.lock.count(owner)
    }

    /// Grants the lock to waits, in order. Waits of suspect sessions are skipped.
    pub fn serve_queue(&mut self, scenario: &Scenario) {
        while self.grants_now() {
            let is_served = |wait: &Wait| self.session(wait.id).is_some_and(|session| !session.suspect);
            let Some(position) = self.queue.iter().position(is_served) else { return };
            let first = &self.queue[position];
            if !self.lock.admits(first.owner, first.request.shared) {
                return;
            }
            let wait = self.queue.remove(position);
            self.check_order(&wait, position);
            self.grant(scenario, &wait, true);
            if let Some(session) = self.session_mut(wait.id) {
                session.set_status(wait.n, Status::Held);
                session.add_event(wait.n, Outcome::Granted);
            }
        }
    }

    /// Reports a grant to `wait` if one of the first `ahead` waits in the queue could have been served.
    pub fn check_order(&mut self, wait: &Wait, ahead: usize) {
        let is_passed = |other: &Wait| {
            let is_suspect = self.session(other.id).is_none_or(|session| session.suspect);
            other.owner != wait.owner && !is_suspect
        };
        let is_reentry = self.lock.holder(wait.owner).is_some();
        if !is_reentry && self.queue[..ahead].iter().any(is_passed) {
            self.report(Breach::WaitOvertaken);
        }
    }

    pub fn grants_now(&self) -> bool {
        self.writable && self.quarantine_left == 0
    }

    /// Answers blocked readers that have events.
    pub fn deliver_events(&self, scenario: &Scenario, network: &mut Network) {
        for session in self.sessions.iter().filter(|session| !session.events.is_empty()) {
            if let Some(reader) = session.reader {
                network.unblock(reader, self.pending_events(scenario, session));
            }
        }
    }

    pub fn pending_events(&self, scenario: &Scenario, session: &Session) -> Reply {
        Reply::Events(session.events.iter().take(scenario.event_count()).copied().collect())
    }

    /// Removes a hold of acquire `n` from the lock, which stores only how many there are.
    pub fn remove_hold(&mut self, id: SessionId, n: Number, owner: Owner) {
        let others = self.lock.count(owner);
        if !self.lock.remove(owner, HoldTag { client: id.client, n }) && others > 0 {
            self.report(Breach::ForeignHoldTouched);
        }
        let lock = &self.lock;
        self.bindings.retain(|binding| lock.holder(binding.owner).is_some());
    }

    pub fn end_session(&mut self, scenario: &Scenario, network: &mut Network, id: SessionId) {
        let Some(position) = self.sessions.iter().position(|session| session.id == id) else { return };
        let session = self.sessions.remove(position);
        if let Some(reader) = session.reader {
            network.unblock(reader, Reply::NoSession);
        }
        self.queue.retain(|wait| wait.id != id);
        let ended = self.take_bindings(|binding| binding.id == id);
        let takes_all = !scenario.rules.has(Rule::ReleaseOnlyEphemeral)
            && ended.iter().any(|binding| binding.kind == HoldKind::SessionBound);
        for binding in &ended {
            if takes_all || binding.kind == HoldKind::SessionBound {
                self.lock.remove(binding.owner, HoldTag { client: id.client, n: binding.n });
            }
        }
        self.mark_over(id);
        self.serve_queue(scenario);
    }

    pub fn mark_over(&mut self, id: SessionId) {
        self.over.push(id);
        self.over.sort_unstable();
        self.over.dedup();
    }

    /// The server sees the end of a connection.
    pub fn lose_connection(&mut self, scenario: &Scenario, key: u8) {
        for session in self.sessions.iter_mut().filter(|session| session.reader == Some(key)) {
            session.reader = None;
            session.deadline = session.deadline.min(scenario.grace);
        }
    }

    /// Starts again with `lock`, and without sessions and queue.
    pub fn restart(&mut self, lock: Lock, quarantine: Ticks) {
        let lives = std::mem::take(&mut self.lives);
        let mut over = std::mem::take(&mut self.over);
        over.extend(self.sessions.iter().map(|session| session.id));
        over.sort_unstable();
        let breach = self.breach;
        *self = Server::new(0);
        self.replica = lock.clone();
        self.lock = lock;
        self.quarantine_left = quarantine;
        self.over = over;
        self.lives = lives;
        self.breach = breach;
    }

    pub fn copy_to_replica(&mut self) {
        self.replica = self.lock.clone();
        self.replica_age = 0;
    }

    /// A RENEW, RELEASE or CANCEL of a number proves that its client knows of the grant.
    pub fn confirm_grant(&mut self, call: &Call) {
        if let (Some(id), Some(n)) = (call.session(), call.number()) {
            for binding in self.bindings.iter_mut().filter(|binding| binding.id == id && binding.n == n) {
                binding.in_flight = None;
            }
        }
    }
}
