// SPDX-License-Identifier: MIT

//! The look of a state of the model: a summary of everything that affects its behavior. Two states with the
//! same look must behave the same from then on.
//!
//! Identifiers that clients never see are left out: waits and holds are numbered by their order, and times
//! are relative to now. Past times and fencing tokens, which grow with the clock, are left out too.

use super::*;

/// The look of a state: a list of numbers. States with different behavior have different looks.
pub(in crate::core::model_tests) struct Look {
    seen: Vec<i64>,
    now: i64,
    waits: BTreeMap<WaiterId, i64>,
    holds: BTreeMap<u64, i64>,
}

impl Model {
    /// The look of this state.
    pub(in crate::core::model_tests) fn look(&self) -> Vec<i64> {
        let queued = self.locks.iter().flat_map(|lock| &lock.queue).map(|waiter| waiter.id);
        let waits: BTreeSet<_> = queued.chain(self.in_flight.iter().map(|grant| grant.id)).collect();
        let holds: BTreeSet<_> =
            self.locks.iter().flat_map(|lock| &lock.holds).map(|hold| hold.number).collect();
        let mut look = Look {
            seen: Vec::new(),
            now: self.now,
            waits: waits.into_iter().zip(0..).collect(),
            holds: holds.into_iter().zip(0..).collect(),
        };
        look.model(self);
        look.seen
    }
}

impl Look {
    // Every structure is destructured completely, so that no field is forgotten.

    fn model(&mut self, model: &Model) {
        let Model {
            locks,
            now: _,
            paused,
            quarantine,
            holds_ever: _,
            waiters_ever: _,
            in_flight,
            closed,
            decisions,
            notices,
        } = model;
        assert!(decisions.is_empty() && notices.is_empty(), "in the middle of a step");
        locks.iter().for_each(|lock| self.lock(lock));
        self.add(*paused);
        self.option(quarantine.filter(|until| *until > self.now), |look, until| look.add(until - look.now));
        self.list(in_flight, |look, grant| {
            let ModelGrant { id, lock, call, number, since, hold_mode, is_answered } = grant;
            look.wait(*id);
            look.index(*lock);
            look.call(call);
            look.hold_number(*number);
            look.option(*hold_mode, |look, mode| look.add(mode == Mode::Shared));
            look.add(*is_answered);
            // Only a binding depends on the time of the grant.
            look.option(Some(*since).filter(|_| call.bind.is_some()), |look, since| {
                look.add(since - look.now)
            });
        });
        self.list(closed, |look, (lock, number)| {
            look.index(*lock);
            look.hold_number(*number);
        });
    }

    fn lock(&mut self, lock: &ModelLock) {
        let ModelLock {
            holds,
            other,
            known,
            queue,
            counter,
            granted,
            released,
            granted_hold,
            last_closed,
            cancelled,
            bindings,
            ended,
        } = lock;
        assert!(counter.is_none(), "tokens have no look");
        self.list(holds, Look::hold);
        self.add(*other);
        self.list(known, |look, owner| look.index(*owner));
        self.list(queue, |look, ModelWaiter { id, call, deadline }| {
            look.wait(*id);
            look.call(call);
            look.option(*deadline, |look, at| look.add(at - look.now));
        });
        let now = self.now;
        let granted = granted.iter().filter(|(_, (_, until))| now <= *until);
        self.list(granted, |look, (name, (reply, until))| {
            let Reply { mode, holds, token, owner: _ } = reply;
            assert!(token.is_none(), "tokens have no look");
            look.name(*name);
            look.add(*mode == Mode::Shared);
            look.add(*holds);
            look.add(*until - look.now);
        });
        self.list(released.iter().filter(|(_, (_, until))| now <= *until), |look, (name, (left, until))| {
            look.name(*name);
            look.add(*left);
            look.add(*until - look.now);
        });
        self.list(granted_hold, |look, (name, (number, bound))| {
            look.name(*name);
            look.hold_number(*number);
            look.add(*bound);
            look.add(last_closed.get(&name.0).is_some_and(|closed| number < closed));
        });
        self.list(
            cancelled.iter().filter(|(_, (_, until))| now <= *until),
            |look, (name, (undone, until))| {
                look.name(*name);
                look.add(*undone);
                look.add(*until - look.now);
            },
        );
        self.list(bindings, |look, (owner, binding)| {
            look.index(*owner);
            look.binding(binding);
        });
        self.list(ended.iter().filter(|(_, until)| now * 1000 <= **until), |look, (name, until)| {
            look.name(*name);
            look.add(*until - look.now * 1000);
        });
    }

    fn hold(&mut self, hold: &ModelHold) {
        let ModelHold { owner, exclusive, shared, expires_at, written, token, number, leases, tokens } = hold;
        assert!(token.is_none(), "tokens have no look");
        self.index(*owner);
        self.add(*exclusive);
        self.add(*shared);
        self.add(*expires_at - self.now);
        self.add(*written - self.now);
        self.hold_number(*number);
        self.list(leases, |look, (by, lease)| {
            look.option(*by, Look::wait);
            let (may_shorten, end) = match lease {
                Lease::To(end) => (true, end),
                Lease::AtLeast(end) => (false, end),
            };
            look.add(may_shorten);
            look.add(*end - look.now);
        });
        assert!(tokens.iter().all(|(_, token, _)| token.is_none()), "tokens have no look");
    }

    fn binding(&mut self, binding: &ModelBinding) {
        let ModelBinding { lease, lease_end, watchdogs, until_us, due_us, ephemeral, requests, plain } =
            binding;
        let now_us = self.now * 1000;
        self.add(*lease);
        self.add(*lease_end - self.now);
        self.list(watchdogs, |look, connection| look.count(*connection));
        self.option(*until_us, |look, until| look.add(until - now_us));
        // A binding without a watchdog has no due time.
        self.option(Some(*due_us).filter(|_| !watchdogs.is_empty()), |look, due| look.add(due - now_us));
        self.list(ephemeral, |look, connection| look.count(*connection));
        self.list(requests, |look, (id, (connection, ephemeral, since, taken_over, until))| {
            look.add(*id);
            look.count(*connection);
            look.add(*ephemeral);
            look.add(*since - look.now);
            look.add(taken_over.0);
            look.add(taken_over.1);
            look.add(*until - now_us);
        });
        self.list(plain, |look, connection| look.count(*connection));
    }

    fn call(&mut self, call: &Call) {
        let Call { owner, shared, once, limit, lease, keeps, fence, id, awaits_replicas, .. } = call;
        let Call { bind, taken_over, max, .. } = call;
        self.index(*owner);
        [shared, once, keeps, fence, awaits_replicas].into_iter().for_each(|is| self.add(*is));
        self.add(*limit);
        self.add(*lease);
        self.option(*id, Look::add);
        self.option(*bind, |look, (connection, watchdog, ephemeral)| {
            look.count(connection);
            look.add(watchdog);
            look.add(ephemeral);
        });
        self.add(taken_over.0);
        self.add(taken_over.1);
        self.option(*max, Look::add);
    }

    fn add(&mut self, number: impl Into<i64>) {
        self.seen.push(number.into());
    }

    fn index(&mut self, index: usize) {
        self.add(i64::try_from(index).unwrap());
    }

    fn count(&mut self, count: u64) {
        self.add(count.cast_signed());
    }

    fn name(&mut self, (owner, id): (usize, u8)) {
        self.index(owner);
        self.add(id);
    }

    /// A wait that has ended adds only that fact.
    fn wait(&mut self, id: WaiterId) {
        self.add(self.waits.get(&id).copied().unwrap_or(-1));
    }

    fn hold_number(&mut self, number: u64) {
        self.add(self.holds.get(&number).copied().unwrap_or(-1));
    }

    fn option<T>(&mut self, option: Option<T>, mut add: impl FnMut(&mut Look, T)) {
        self.add(option.is_some());
        if let Some(value) = option {
            add(self, value);
        }
    }

    fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut add: impl FnMut(&mut Look, T)) {
        let (at, mut len) = (self.seen.len(), 0);
        self.add(0);
        for item in items {
            add(self, item);
            len += 1;
        }
        self.seen[at] = len;
    }
}
