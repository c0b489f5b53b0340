// SPDX-License-Identifier: MIT

//! Consistency checks between the manager's parts, run after every step of the property tests.

use std::collections::{BTreeMap, BTreeSet};

use super::clock;
use super::parts::{LockState, Parts, Portion};
use super::LockManager;
use crate::core::queue::wait::{Wait, WaitState};
use crate::core::sessions::NumberedHold;
use crate::core::table::LockIdx;
use crate::core::{Decision, Now, WaiterId};

impl LockManager {
    /// Fails if an index is wrong, a wait is in the wrong place, or an idle lock is still remembered.
    pub(crate) fn verify(&self) {
        let parts = &self.parts;
        parts.waiters.verify();
        parts.bindings.verify(|lock| parts.state(lock).is_some());
        verify_waits(parts);
        verify_sessions(parts);
        for (lock, id, state) in parts.table.iter() {
            assert_eq!(parts.table.find(id.as_ref()), Some(lock), "{id:?} is not found by its name");
            let is_member = |id| parts.waiters.get(id).is_some_and(Wait::is_member);
            state.queue().verify(|id| parts.waiters.crosses(id), is_member);
            for wait in state.queue().iter() {
                let queued = parts.waiters.queued(wait);
                assert!(
                    queued.is_some_and(|queued| queued.lock() == lock),
                    "{wait:?} is in another lock's queue"
                );
            }
            state.unconfirmed().verify();
            let (in_flight, marked) = state.unconfirmed().ids();
            for (ids, of_state) in [(in_flight, WaitState::Granted), (marked, WaitState::Marked)] {
                for id in ids {
                    let wait =
                        parts.waiters.get(id).unwrap_or_else(|| panic!("{id:?} is granted and unknown"));
                    assert!(wait.lock() == lock && wait.state() == of_state, "{id:?} is {:?}", wait.state());
                }
            }
            let (planned, wanted) = state.planned_window();
            assert_eq!(planned, wanted, "the window of {id:?} is not scheduled");
            let watched =
                state.is_waited_for() || state.has_owners_to_notify() || parts.last_handed_over == Some(lock);
            assert!(
                watched || parts.table.is_ready(lock) || state.planned_lease().is_none(),
                "{id:?} is watched without a waiter"
            );
            assert!(
                state.held().is_empty() || parts.table.is_ready(lock) || state.planned_lease().is_some(),
                "the end of a hold of {id:?} is not watched"
            );
            assert!(!parts.is_idle(lock), "{id:?} is idle but still in the table");
        }
        let contended = parts.table.iter().filter(|(.., state)| !state.queue().is_empty()).count();
        assert_eq!(parts.statistics.contended(), contended, "the locks with waiters are miscounted");
        let of_states = |planned: fn(&LockState) -> Option<i128>| {
            let planned = parts.table.iter().filter_map(|(lock, _, state)| Some((planned(state)?, lock)));
            planned.collect::<BTreeSet<_>>()
        };
        let leases = parts.leases.iter().map(|(at, lock)| (i128::from(at), lock));
        assert!(
            leases.eq(of_states(|state| state.planned_lease().map(i128::from))),
            "a lease is scheduled wrongly"
        );
        let windows = parts.windows.iter().map(|(at, lock)| (i128::from(at), lock));
        assert!(
            windows.eq(of_states(|state| state.planned_window().0.map(i128::from))),
            "a window is scheduled wrongly"
        );
        for lock in parts.fragile.iter() {
            let state = parts.state(lock);
            assert!(
                state.is_some_and(|state| state.planned_lease().is_some()),
                "a fragile lock has no scheduled lease"
            );
        }
        let stuck = parts.table.iter().filter(|(lock, ..)| self.is_stuck(*lock));
        let stuck: Vec<_> =
            stuck.map(|(_, id, state)| (id, state.queue().iter().collect::<Vec<_>>())).collect();
        assert!(stuck.is_empty(), "no event will reconcile {stuck:?}");
    }

    /// Whether the lock has waiters, but no scheduled or expected event will reconcile it.
    fn is_stuck(&self, lock: LockIdx) -> bool {
        let parts = &self.parts;
        if parts.quarantined_until.is_some() {
            // The end of the quarantine reconciles every lock.
            return false;
        }
        let Some(state) = parts.state(lock) else { return false };
        let waits_elsewhere = |id| {
            let first_wait = parts.waiters.get(id).and_then(Wait::first_wait);
            first_wait.is_some_and(|first_wait| parts.waiters.bundles.waits_elsewhere(first_wait, lock))
        };
        !state.queue().is_empty()
            && !state.queue().iter().any(waits_elsewhere)
            && !parts.table.is_ready(lock)
            && state.planned_lease().is_none()
            && state.planned_window().0.is_none()
    }

    /// Sets the maximum number of due items per step.
    pub(crate) fn do_at_once(&mut self, portion: usize) {
        self.parts.portion = Portion(portion);
    }

    /// Ends everything that depends on closed connections.
    pub(crate) fn close_all(&mut self, now: Now) {
        while !self.parts.ending_connections.is_empty() {
            self.parts.end_connections(now);
        }
    }

    /// Takes all decisions since the last call, in order.
    pub(crate) fn take_decisions(&mut self) -> Vec<(WaiterId, Decision)> {
        std::iter::from_fn(|| self.next_decision()).collect()
    }

    /// Whether nothing is remembered. Then only an acquire can have an effect.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.table.is_empty()
    }

    /// Whether the only scheduled work is to forget expired entries.
    pub(crate) fn only_forgets(&self) -> bool {
        clock::only_forgets(&self.parts)
    }

    /// The grants in flight.
    pub(crate) fn in_flight(&self) -> BTreeSet<WaiterId> {
        let waits = self.parts.waiters.iter();
        let is_granted = |id, wait: &Wait| wait.state() == WaitState::Granted && !self.parts.has_ended(id);
        waits.filter(|(id, wait)| is_granted(*id, wait)).map(|(id, _)| id).collect()
    }

    /// Whether the key is probably a lock that was granted here.
    pub(crate) fn was_granted(&self, lock: crate::core::LockRef<'_>) -> bool {
        self.parts.granted_keys.contains(lock)
    }

    /// Whether the lock is currently left free for external clients.
    pub(crate) fn is_left_free(&self, lock: crate::core::LockRef<'_>, now: crate::core::Now) -> bool {
        let state = self.parts.table.find(lock).and_then(|lock| self.parts.state(lock));
        state.is_some_and(|state| state.yields(u64::MAX, now))
    }

    /// Fails if anything but decisions is left.
    pub(crate) fn assert_empty_but_decisions(&self) {
        let parts = &self.parts;
        assert!(parts.table.is_empty() && parts.waiters.queued_len() == 0 && parts.leases.is_empty());
        assert!(parts.windows.is_empty() && !parts.table.any_ready());
    }

    /// Fails if anything is left.
    pub(crate) fn assert_empty(&self) {
        for (table, size) in self.tables() {
            // The hints are bounded, and may stay for keys that are gone.
            assert!(size == 0 || table == c"table_granted_key_hints", "{size} entries are left in {table:?}");
        }
        assert!(self.parts.decisions.is_empty());
        assert!(self.parts.losses.is_empty() && !self.parts.bindings.any_losses());
        self.parts.sessions.assert_empty();
    }
}

/// Checks that sessions agree with the waits and the bindings.
fn verify_sessions(parts: &Parts) {
    let of_sessions = parts.sessions.verify();
    let waits =
        parts.waiters.iter().filter_map(|(id, wait)| Some((id, wait, wait.request().number()?.number)));
    let waits: Vec<_> = waits.filter(|(.., number)| parts.sessions.get(number.session).is_some()).collect();
    let in_state = |state| {
        let of_state = waits.iter().filter(move |(_, wait, _)| wait.state() == state);
        of_state.map(|(id, _, number)| (*id, (number.session, number.n))).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(of_sessions.queued, in_state(WaitState::Queued), "sessions and queues disagree");
    assert_eq!(of_sessions.in_flight, in_state(WaitState::Granted), "sessions and grants disagree");
    let bound: BTreeSet<_> = parts.bindings.all_numbers().collect();
    for (session, n, hold) in &of_sessions.holds {
        let number = (hold.lock, hold.owner.clone(), *session, *n, hold.mode());
        assert!(bound.contains(&number), "{number:?} is not bound");
    }
    for number in &bound {
        let (lock, owner, session, n, mode) = number;
        let is_of = |hold: &NumberedHold| (hold.lock, &hold.owner, hold.mode()) == (*lock, owner, *mode);
        let is_held = of_sessions.holds.iter().any(|(of, at, hold)| (of, at) == (session, n) && is_of(hold));
        assert!(is_held || parts.sessions.is_ending(*session), "{number:?} is bound and not held");
    }
}

/// Checks that every wait is in the indexes that match its state, and in no others.
fn verify_waits(parts: &Parts) {
    for (id, wait) in parts.waiters.iter() {
        let state = parts.state(wait.lock()).unwrap_or_else(|| panic!("{id:?} waits for an unknown lock"));
        let stands = state.queue().find(wait.position()) == Some((id, wait.request().wants));
        assert_eq!(stands, wait.state() == WaitState::Queued, "{id:?} is {:?}", wait.state());
        let (in_flight, marked) = state.unconfirmed().ids();
        assert_eq!(in_flight.contains(&id), wait.state() == WaitState::Granted, "{id:?}");
        assert_eq!(marked.contains(&id), wait.state() == WaitState::Marked, "{id:?}");
        let is_timed =
            wait.state() == WaitState::Queued && wait.first_wait().is_none_or(|first_wait| first_wait == id);
        let deadline = wait.deadline().filter(|_| is_timed);
        assert_eq!(parts.deadlines.get(&id), deadline, "the deadline of {id:?} is not scheduled");
    }
    parts.deadlines.iter().for_each(|(_, id)| {
        let waits = parts.waiters.get(*id).is_some_and(|wait| wait.state() == WaitState::Queued);
        assert!(waits, "{id:?} has a deadline but does not wait");
    });
}
