// SPDX-License-Identifier: MIT

//! The core and its model, step by step. After each step, both have shown the same to clients and their
//! keyspaces are equal.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::model::Model;
use super::real::Real;
use super::*;

/// A portion larger than the work that can be due at one lock.
pub(super) const MANY: usize = 1_000;

/// The core and the model after the same history.
pub(super) struct SideBySide {
    pub(super) real: Real,
    pub(super) model: Model,
    notifies_owners: bool,
}

impl SideBySide {
    pub(super) fn new(notifies_owners: bool) -> SideBySide {
        SideBySide::in_portions(notifies_owners, MANY)
    }

    /// The core does one portion of the work that is due at a lock, and the rest when its timer fires again.
    pub(super) fn in_portions(notifies_owners: bool, portion: usize) -> SideBySide {
        let mut real = Real::new(true);
        real.locks.do_at_once(portion);
        real.locks.notify_owners(notifies_owners);
        let model = Model::at(real.now);
        SideBySide { real, model, notifies_owners }
    }

    /// Applies an operation to both. Fails if they differ. Returns false if the operation is impossible now.
    pub(super) fn step(&mut self, op: &Op) -> Result<bool, TestCaseError> {
        let SideBySide { real, model, notifies_owners } = self;
        let notifies_owners = *notifies_owners;
        let was_paused = model.paused;
        if model.paused && !runs_while_paused(op) {
            return Ok(false);
        }
        if matches!(op, Op::External { .. }) && model.is_quarantined() {
            // The lock is free and has waiters: the owner that takes it may be one of them.
            return Ok(false);
        }
        if matches!(*op, Op::Cancel { lock, owner, id } if model.is_of_an_earlier_hold(lock, owner, id)) {
            return Ok(false);
        }
        if let Op::Acquire { lock, call: Call { owner, id: Some(id), .. }, .. }
        | Op::Cancel { lock, owner, id } = *op
        {
            if model.is_of_an_earlier_hold_than_one_closed(lock, owner, id) {
                return Ok(false);
            }
        }
        real.messages.clear();
        let held_before = LOCKS.map(|key| {
            // After a foreign delete, only the granted-keys hint shows that the key was a lock.
            visible(real, key).is_some_and(|holders| !holders.is_free())
                && (!matches!(op, Op::Delete { .. }) || real.locks.was_granted(at(key)))
        });
        match *op {
            Op::Advance { ms } => {
                real.advance(ms);
                for _ in 0..ms {
                    model.now += 1;
                    model.settle();
                }
            }
            Op::Leave { which } => {
                let waiting: Vec<_> =
                    model.locks.iter().flat_map(|lock| &lock.queue).map(|waiter| waiter.id).collect();
                if let Some(id) = waiting.get(which % waiting.len().max(1)) {
                    prop_assert!(real.locks.leave(*id));
                    model.leave(*id);
                    real.fire();
                }
            }
            Op::Close { connection } => {
                real.locks.connection_closed(ConnectionId(connection), real.time());
                model.close(connection);
                real.fire();
            }
            Op::CloseInTurn { connection, lock, owner, shared } => {
                real.locks.connection_closed(ConnectionId(connection), real.time());
                model.close(connection);
                let call = Call { owner, shared, lease: 10, ..Call::default() };
                let acquire = Op::Acquire { lock, call, block: None };
                prop_assert_eq!(real.step(&acquire), model.step(&acquire), "reply after {:?}", op);
            }
            Op::Away { foreign_write } => {
                real.demote_and_promote(foreign_write);
                model.demote_and_promote(foreign_write);
            }
            Op::Deliver { which, arrives } => {
                let len = model.in_flight.len();
                // The delivery of a grant whose lease has ended depends on when the end is noticed, so this
                // case is skipped.
                if len > 0 && (!arrives || model.has_hold(which % len)) {
                    let id = model.in_flight[which % len].id;
                    model.deliver(which % len, arrives);
                    if arrives {
                        real.locks.delivered(id, real.time());
                    } else {
                        real.locks.undelivered(id);
                    }
                    real.fire();
                }
            }
            Op::Answer { which } => {
                if let Some(id) = model.answer(which) {
                    real.locks.acknowledged(id);
                }
            }
            _ => prop_assert_eq!(real.step(op), model.step(op), "reply to {:?}", op),
        }
        // Every lock that is released and not granted again is announced as free once.
        if let Op::Release { lock, .. } | Op::Break { lock } | Op::Delete { lock } = *op {
            let free = model.locks[lock].holds.is_empty() && !model.locks[lock].other;
            let announced = real.messages.iter().filter(|key| **key == LOCKS[lock]).count();
            // If the lock was free before, this step may be the first to notice an expired lease.
            let expected = usize::from(free && held_before[lock])..=usize::from(free);
            prop_assert!(expected.contains(&announced), "{} messages after {:?}", announced, op);
        }
        real.locks.verify();
        // The core may serve two locks in either order. The decisions are compared by waiter.
        let by_id = |decisions: &mut Vec<(WaiterId, Decision)>| {
            let mut taken = std::mem::take(decisions);
            taken.sort_by_key(|(id, _)| *id);
            taken
        };
        prop_assert_eq!(by_id(&mut real.decisions), by_id(&mut model.decisions), "after {:?}", op);
        let mut told = std::mem::take(&mut real.notices);
        let expected = model.take_notices().into_iter().map(|(lock, owner, event)| {
            let lock = at(LOCKS[lock]).to_id();
            Notice { lock, owner: Owner::new(OWNERS[owner]), event }
        });
        let mut expected: Vec<_> = expected.filter(|_| notifies_owners).collect();
        told.sort();
        expected.sort();
        // A hold may end twice during a pause, by its lease and for another reason. Either reason may be
        // reported.
        if !was_paused && !model.paused {
            prop_assert_eq!(told, expected, "told after {:?}", op);
        }
        for (lock, key) in LOCKS.into_iter().enumerate() {
            // A paused server may still show grants that will be revoked, and waits of former holders at
            // their old positions.
            if !model.paused {
                let expected: Vec<_> = model.locks[lock].line().iter().map(|waiter| waiter.id).collect();
                prop_assert_eq!(real.waiting(key), expected, "queue of {} after {:?}", lock, op);
                prop_assert_eq!(visible(real, key), model.holders(lock), "hold of {} after {:?}", lock, op);
            }
        }
        for (owner, name) in OWNERS.iter().enumerate().filter(|_| !model.paused) {
            let found = real.blockers(name);
            let expected: Vec<_> =
                model.blockers_of(owner).iter().map(|at| Owner::new(OWNERS[*at])).collect();
            let each_once: BTreeSet<_> = found.iter().cloned().collect();
            prop_assert_eq!(found.len(), each_once.len(), "{:?} twice", found);
            prop_assert!(each_once.iter().eq(&expected), "{:?} and not {:?} after {:?}", found, expected, op);
        }
        Ok(true)
    }

    /// Lets all clients leave. Fails if anything is remembered.
    pub(super) fn end(mut self) {
        let in_flight: Vec<_> = self.model.in_flight.iter().map(|grant| grant.id).collect();
        assert_drained(&mut self.real, in_flight);
    }
}
