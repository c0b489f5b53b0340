// SPDX-License-Identifier: MIT
//! The server's reply to each call.

use crate::calls::{Call, HandOver, Number, Reply, Request, SessionId};
use crate::lock::HoldTag;
use crate::network::Network;
use crate::properties::Breach;
use crate::rules::Rule;
use crate::scenario::Scenario;
use crate::server::{Server, Session, Status, Wait};

/// The connection of the call that the server has read.
#[derive(Clone, Copy)]
struct Sender {
    key: u8,
    /// Whether somebody awaits the reply.
    is_awaited: bool,
}

impl Server {
    /// Reads the call of connection `index`.
    pub fn read_call(&mut self, scenario: &Scenario, network: &mut Network, index: usize) {
        let connection = &mut network.connections[index];
        let Some(call) = connection.call.take() else { return };
        let sender = Sender { key: connection.key, is_awaited: connection.open_at_client };
        match self.reply_to(scenario, network, sender, call) {
            Some(reply) => network.connections[index].answer(reply),
            None => network.connections[index].blocked = Some(0),
        }
        self.deliver_events(scenario, network);
    }

    /// Returns nothing if the call blocks.
    fn reply_to(
        &mut self,
        scenario: &Scenario,
        network: &mut Network,
        sender: Sender,
        call: Call,
    ) -> Option<Reply> {
        match call {
            Call::OpenNew { client } => return Some(self.open_new(scenario, sender, client)),
            Call::Open { id, beat } => return Some(self.open(scenario, network, sender, id, beat)),
            Call::Events { id, beat, seen, done } => {
                return self.events(scenario, network, sender, id, beat, seen, done);
            }
            Call::Close { id } => {
                self.end_session(scenario, network, id);
                return Some(Reply::Count(0));
            }
            _ => {}
        }
        self.expire_leases();
        self.serve_queue(scenario);
        let id = call.session()?;
        if self.session(id).is_none() {
            return Some(Reply::NoSession);
        }
        if !self.writable {
            return Some(Reply::Error);
        }
        self.confirm_grant(&call);
        let reply = match call {
            Call::Acquire { id, n, request } => self.acquire(scenario, id, n, request),
            Call::Release { id, n } => self.release(scenario, id, n),
            Call::Cancel { id, n } => self.cancel(scenario, id, n),
            Call::Renew { id, n, request } => self.renew(scenario, id, n, request),
            Call::TakeOver { id, n, request, from } => self.take_over(scenario, id, n, request, from),
            _ => return None,
        };
        self.serve_queue(scenario);
        Some(reply)
    }

    fn open_new(&mut self, scenario: &Scenario, sender: Sender, client: u8) -> Reply {
        let life = self.lives[usize::from(client)];
        if life >= scenario.lives {
            return Reply::Limit;
        }
        self.lives[usize::from(client)] += 1;
        let id = SessionId { client, life };
        self.create_session(scenario, sender, id);
        Reply::Opened { id, new: true, beat: 1 }
    }

    fn create_session(&mut self, scenario: &Scenario, sender: Sender, id: SessionId) {
        self.sessions.push(Session {
            id,
            deadline: scenario.ttl,
            silence: 0,
            beat: if scenario.rules.has(Rule::OneCounter) { 1 } else { 0 },
            last_seq: 0,
            done: 0,
            reader: Some(sender.key),
            suspect: false,
            events: Vec::new(),
            acquires: Vec::new(),
        });
        self.sessions.sort_by_key(|session| session.id);
    }

    fn open(
        &mut self,
        scenario: &Scenario,
        network: &mut Network,
        sender: Sender,
        id: SessionId,
        beat: u8,
    ) -> Reply {
        if scenario.rules.has(Rule::RenewBeforeAnswer) {
            self.renew_before_answer(scenario);
        }
        let has_counter = scenario.rules.has(Rule::OneCounter);
        let Some(session) = self.session_mut(id) else {
            if scenario.rules.has(Rule::ServerChoosesId) {
                return Reply::NoSession;
            }
            if self.over.contains(&id) && !sender.is_awaited {
                self.report(Breach::EndedSessionHadEffect);
            }
            self.create_session(scenario, sender, id);
            return Reply::Opened { id, new: true, beat: 0 };
        };
        if has_counter && beat <= session.beat {
            return Reply::Late;
        }
        if has_counter {
            session.beat = beat;
        }
        session.deadline = scenario.ttl;
        let beat = session.beat;
        self.set_reader(network, sender, id);
        Reply::Opened { id, new: false, beat }
    }

    fn set_reader(&mut self, network: &mut Network, sender: Sender, id: SessionId) {
        let Some(session) = self.session_mut(id) else { return };
        let former = session.reader.replace(sender.key);
        if let Some(former) = former.filter(|key| *key != sender.key) {
            network.unblock(former, Reply::Events(Vec::new()));
        }
    }

    fn renew_before_answer(&mut self, scenario: &Scenario) {
        self.expire_leases();
        self.renew_leases(scenario);
        self.serve_queue(scenario);
    }

    #[allow(clippy::too_many_arguments)]
    fn events(
        &mut self,
        scenario: &Scenario,
        network: &mut Network,
        sender: Sender,
        id: SessionId,
        beat: u8,
        seen: u8,
        done: Number,
    ) -> Option<Reply> {
        if scenario.rules.has(Rule::RenewBeforeAnswer) {
            self.renew_before_answer(scenario);
        }
        let Some(session) = self.session_mut(id) else { return Some(Reply::NoSession) };
        if beat <= session.beat {
            return Some(Reply::Late);
        }
        session.beat = beat;
        session.deadline = scenario.ttl;
        session.silence = 0;
        session.done = session.done.max(done);
        let done = session.done;
        session.acquires.retain(|record| record.n >= done);
        let was_suspect = std::mem::take(&mut session.suspect);
        let seen: Vec<Number> =
            session.events.iter().filter(|event| event.seq <= seen).map(|event| event.n).collect();
        session.events.retain(|event| !seen.contains(&event.n));
        for binding in
            self.bindings.iter_mut().filter(|binding| binding.id == id && seen.contains(&binding.n))
        {
            binding.in_flight = None;
        }
        self.set_reader(network, sender, id);
        if scenario.rules.has(Rule::RenewBeforeAnswer) {
            // The acknowledged grants are renewed, and the others are not delivered if they are too old.
            self.renew_leases(scenario);
        }
        self.revoke_stale_grants(scenario);
        if was_suspect && scenario.rules.has(Rule::ServeAfterSuspicion) {
            self.serve_queue(scenario);
        }
        if !self.writable && scenario.rules.has(Rule::ErrorInsteadOfConfirmation) {
            return Some(Reply::Error);
        }
        let session = self.session(id)?;
        (!session.events.is_empty()).then(|| self.pending_events(scenario, session))
    }

    fn acquire(&mut self, scenario: &Scenario, id: SessionId, n: Number, request: Request) -> Reply {
        let Some(session) = self.session(id) else { return Reply::NoSession };
        if n < session.done {
            return Reply::Late;
        }
        if let Some(record) = session.record(n) {
            return match record.status {
                Status::Cancelled => Reply::Cancelled,
                Status::Nil => Reply::Nil,
                _ if !scenario.rules.has(Rule::ReplyOutcome) => Reply::Count(record.first_count),
                Status::Waiting => Reply::Count(0),
                Status::Held => Reply::Count(1),
                Status::Released | Status::Lost => Reply::NotOwner,
            };
        }
        let wait = Wait { id, n, owner: scenario.owner(id.client, n), request };
        let may_overtake = |ahead: &Wait| {
            ahead.owner == wait.owner || self.session(ahead.id).is_some_and(|session| session.suspect)
        };
        let is_next = self.lock.holder(wait.owner).is_some() || self.queue.iter().all(may_overtake);
        let (status, reply) = if self.grants_now() && is_next && self.lock.admits(wait.owner, request.shared)
        {
            self.check_order(&wait, self.queue.len());
            (Status::Held, Reply::Count(self.grant(scenario, &wait, false)))
        } else if request.queued {
            self.queue.push(wait);
            (Status::Waiting, Reply::Count(0))
        } else {
            (Status::Nil, Reply::Nil)
        };
        if status != Status::Nil || scenario.rules.has(Rule::RememberNil) {
            if let Some(session) = self.session_mut(id) {
                session.set_status(n, status);
            }
        }
        reply
    }

    /// Releases the hold of acquire `n`. Returns nothing if it has none.
    fn release_number(&mut self, id: SessionId, n: Number) -> Option<Reply> {
        let position = self.bindings.iter().position(|binding| binding.id == id && binding.n == n)?;
        let binding = self.bindings.remove(position);
        if let Some(session) = self.session_mut(id) {
            session.set_status(n, Status::Released);
        }
        self.remove_hold(id, n, binding.owner);
        Some(Reply::Count(1))
    }

    fn release(&mut self, scenario: &Scenario, id: SessionId, n: Number) -> Reply {
        self.drop_event(id, n);
        if let Some(reply) = self.release_number(id, n) {
            return reply;
        }
        let record = self.session(id).and_then(|session| session.record(n));
        if record.is_some_and(|record| record.status == Status::Released) {
            return Reply::Count(1);
        }
        if let Some(reply) = self.release_by_name(scenario, id, n) {
            return reply;
        }
        if scenario.rules.has(Rule::RememberRelease) {
            self.remember(id, n, Status::Lost);
        }
        Reply::NotOwner
    }

    fn drop_event(&mut self, id: SessionId, n: Number) {
        if let Some(session) = self.session_mut(id) {
            session.events.retain(|event| event.n != n);
        }
    }

    /// Without R5, a call releases a hold of its owner that has no number.
    fn release_by_name(&mut self, scenario: &Scenario, id: SessionId, n: Number) -> Option<Reply> {
        let owner = scenario.owner(id.client, n);
        if scenario.rules.has(Rule::ReleaseByNumber) || !self.has_unnumbered_hold(scenario, id, n) {
            return None;
        }
        self.remove_hold(id, n, owner);
        Some(Reply::Count(1))
    }

    fn has_unnumbered_hold(&self, scenario: &Scenario, id: SessionId, n: Number) -> bool {
        let owner = scenario.owner(id.client, n);
        let numbered = self.bindings.iter().filter(|binding| binding.owner == owner).count();
        usize::from(self.lock.count(owner)) > numbered
    }

    fn cancel(&mut self, scenario: &Scenario, id: SessionId, n: Number) -> Reply {
        self.drop_event(id, n);
        if let Some(reply) = self.release_number(id, n) {
            return reply;
        }
        let queued = self.queue.len();
        self.queue.retain(|wait| wait.id != id || wait.n != n);
        let was_queued = self.queue.len() < queued;
        if !was_queued {
            if let Some(reply) = self.release_by_name(scenario, id, n) {
                return reply;
            }
        }
        if was_queued {
            if let Some(session) = self.session_mut(id) {
                session.set_status(n, Status::Cancelled);
            }
        } else if scenario.rules.has(Rule::RememberCancel) {
            self.remember(id, n, Status::Cancelled);
        }
        Reply::Count(u8::from(was_queued))
    }

    /// Remembers the end of a number that the session has not seen.
    fn remember(&mut self, id: SessionId, n: Number, status: Status) {
        if let Some(session) = self.session_mut(id).filter(|session| n >= session.done) {
            if session.record(n).is_none() {
                session.set_status(n, status);
            }
        }
    }

    fn renew(&mut self, scenario: &Scenario, id: SessionId, n: Number, request: Request) -> Reply {
        let owner = scenario.owner(id.client, n);
        if self.binding(id, n).is_none() {
            let Some(session) = self.session(id) else { return Reply::NoSession };
            if n < session.done {
                return Reply::Late;
            }
            if session.record(n).is_some() || !self.has_unnumbered_hold(scenario, id, n) {
                return Reply::NotOwner;
            }
            self.declare(scenario, id, n, request);
        }
        self.lock.extend(owner, scenario.lease_of(request.kind));
        Reply::Count(self.lock.count(owner))
    }

    /// Binds a hold that has no number. The lock does not tell its holds apart, so this may be any of them.
    fn declare(&mut self, scenario: &Scenario, id: SessionId, n: Number, request: Request) {
        let owner = scenario.owner(id.client, n);
        let tag = HoldTag { client: id.client, n };
        let numbered: Vec<HoldTag> = self
            .bindings
            .iter()
            .filter(|binding| binding.owner == owner)
            .map(|binding| HoldTag { client: binding.id.client, n: binding.n })
            .collect();
        if let Some(holder) = self.lock.holder_mut(owner).filter(|holder| !holder.holds.contains(&tag)) {
            if let Some(hold) = holder.holds.iter_mut().find(|hold| !numbered.contains(hold)) {
                *hold = tag;
            }
            holder.holds.sort_unstable();
        }
        self.bindings.push(scenario.binding(id, n, request, None));
        if let Some(session) = self.session_mut(id) {
            session.set_status(n, Status::Held);
        }
    }

    fn take_over(
        &mut self,
        scenario: &Scenario,
        id: SessionId,
        n: Number,
        request: Request,
        from: HandOver,
    ) -> Reply {
        let Some(session) = self.session(id) else { return Reply::NoSession };
        let hands_over_once = scenario.rules.has(Rule::HandOverOnce);
        if hands_over_once && n < session.done {
            return Reply::Late;
        }
        if let Some(record) = session.record(n).filter(|_| hands_over_once) {
            return match record.status {
                Status::Held => Reply::Count(1),
                _ => Reply::NotOwner,
            };
        }
        if self.binding(id, n).is_some() {
            return Reply::Count(1);
        }
        let gives = |position: &usize| {
            let binding = &self.bindings[*position];
            binding.id.client == from.giver && (binding.n == from.number || !hands_over_once)
        };
        let Some(position) = (0..self.bindings.len()).find(gives) else { return Reply::NotOwner };
        let given = self.bindings.remove(position);
        if given.n != from.number {
            self.report(Breach::ForeignHoldTouched);
        }
        self.take_from_giver(&given, HoldTag { client: id.client, n });
        self.lock.extend(given.owner, scenario.lease_of(request.kind));
        self.bindings.push(scenario.binding(id, n, request, None));
        if let Some(session) = self.session_mut(id) {
            session.set_status(n, Status::Held);
        }
        Reply::Count(self.lock.count(given.owner))
    }
}
