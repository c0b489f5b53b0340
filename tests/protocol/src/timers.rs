// SPDX-License-Identifier: MIT
//! The server's timers: renewals, revocation of grants without acknowledgement, ends of sessions, and the passing of time.

use crate::calls::{HoldKind, Number, Outcome, SessionId};
use crate::network::Network;
use crate::rules::Rule;
use crate::scenario::{Replication, Scenario};
use crate::server::{Binding, Renewal, Server, Session};

impl Server {
    /// Makes the renewals that are due, and announces the end of renewals.
    pub fn renew_leases(&mut self, scenario: &Scenario) {
        if !self.writable {
            return;
        }
        let mut announced = Vec::new();
        for binding in self.bindings.iter_mut().filter(|binding| binding.kind == HoldKind::SessionBound) {
            if self.lock.holder(binding.owner).is_none_or(|holder| holder.lease_left == 0) {
                continue;
            }
            if binding.max_left == Some(0) {
                if scenario.rules.has(Rule::AnnounceMax) && binding.renewal != Renewal::Announced {
                    binding.renewal = Renewal::Announced;
                    announced.push((binding.id, binding.n));
                }
            } else if binding.is_due() {
                binding.renewal = Renewal::DueIn(scenario.renewal_interval());
                self.lock.extend(binding.owner, scenario.lease());
            }
        }
        for (id, n) in announced {
            if let Some(session) = self.session_mut(id) {
                session.add_event(n, Outcome::Lost);
            }
        }
    }

    fn is_overdue(&self, scenario: &Scenario, binding: &Binding) -> bool {
        let is_silent =
            self.session(binding.id).is_none_or(|session| session.silence >= scenario.proven_for());
        let is_old = binding.in_flight.is_some_and(|age| age >= scenario.in_flight_limit);
        is_old && (is_silent || !scenario.rules.has(Rule::RevokeAfterSilence))
    }

    /// Whether a timer has work.
    pub fn has_due_timers(&self, scenario: &Scenario) -> bool {
        let is_due = |binding: &Binding| {
            binding.kind == HoldKind::SessionBound && binding.is_due() && binding.max_left != Some(0)
        };
        self.lock.has_expired()
            || self.writable
                && (self.bindings.iter().any(|binding| is_due(binding) || self.is_overdue(scenario, binding))
                    || self.sessions.iter().any(|session| session.deadline == 0))
    }

    pub fn run_timers(&mut self, scenario: &Scenario, network: &mut Network) {
        self.expire_leases();
        self.renew_leases(scenario);
        if self.writable {
            self.revoke_overdue_grants(scenario);
            let is_over = |session: &&Session| session.deadline == 0;
            let over: Vec<SessionId> =
                self.sessions.iter().filter(is_over).map(|session| session.id).collect();
            for id in over {
                self.end_session(scenario, network, id);
            }
        }
        self.serve_queue(scenario);
        self.deliver_events(scenario, network);
    }

    fn revoke_overdue_grants(&mut self, scenario: &Scenario) {
        let overdue = self.bindings.iter().filter(|binding| self.is_overdue(scenario, binding));
        let overdue: Vec<_> = overdue.map(|binding| (binding.id, binding.n)).collect();
        for (id, n) in overdue {
            self.revoke(id, n);
            if let Some(session) = self.session_mut(id) {
                session.suspect = true;
            }
        }
    }

    /// Revokes the grants that are too old to be delivered. Nobody renews a grant in flight.
    pub fn revoke_stale_grants(&mut self, scenario: &Scenario) {
        if !self.writable || !scenario.rules.has(Rule::RevokeStaleGrants) {
            return;
        }
        let is_stale = |binding: &&Binding| {
            binding.kind == HoldKind::SessionBound
                && binding.in_flight.is_some()
                && binding.renewal == Renewal::DueIn(0)
        };
        let stale: Vec<_> = self.bindings.iter().filter(is_stale).map(|each| (each.id, each.n)).collect();
        for (id, n) in stale {
            self.revoke(id, n);
        }
    }

    fn revoke(&mut self, id: SessionId, n: Number) {
        for binding in self.take_bindings(|binding| binding.id == id && binding.n == n) {
            self.lose(&binding);
            self.remove_hold(id, n, binding.owner);
        }
    }

    pub fn tick(&mut self, scenario: &Scenario) {
        if let Replication::LagsAtMost(limit) = scenario.replication {
            if self.replica_age >= limit {
                self.copy_to_replica();
            } else {
                self.replica_age += 1;
            }
        }
        self.lock.tick();
        self.replica.tick();
        if self.quarantine_left > 0 {
            self.quarantine_left -= 1;
            self.serve_queue(scenario);
        }
        for session in &mut self.sessions {
            session.deadline = session.deadline.saturating_sub(1);
            session.silence = (session.silence + 1).min(scenario.grace + 1);
        }
        for binding in &mut self.bindings {
            if let Renewal::DueIn(time) = &mut binding.renewal {
                *time = time.saturating_sub(1);
            }
            binding.in_flight = binding.in_flight.map(|age| (age + 1).min(scenario.in_flight_limit));
            binding.max_left = binding.max_left.map(|left| left.saturating_sub(1));
        }
    }
}
