// SPDX-License-Identifier: MIT

//! Read-only views of the state in memory.

use super::{KeyChange, LockManager};
use crate::core::bindings::binding::Binding;
use crate::core::log::Log;
use crate::core::manager::parts::{LockState, Parts};
use crate::core::queue::wait::{Wait, WaitState};
use crate::core::table::LockLookup;
use crate::core::{
    ConnectionId, Hold, LockId, LockRef, Mode, MonoUs, Now, Owner, RequestId, Statistics, WaiterId,
};
use std::cmp::Ordering;
use std::ffi::CStr;
use std::rc::Rc;

/// A waiter of a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaiterInfo<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) mode: Mode,
    pub(crate) waited_us: MonoUs,
    /// Time until the deadline; `None` if the wait has none.
    pub(crate) remaining_us: Option<MonoUs>,
}

/// Facts about a hold that its key does not store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldInfo {
    /// Time since the grant; `None` if the grant happened elsewhere or before it was recorded.
    pub(crate) held_us: Option<MonoUs>,
    pub(crate) client: Option<ConnectionId>,
    /// Whether the server renews the lease.
    pub(crate) watchdog: bool,
    /// Whether the hold ends with its connection or its session.
    pub(crate) ephemeral: bool,
    /// The name of the session to which the hold belongs.
    pub(crate) session: Option<Rc<[u8]>>,
}

/// A lock with waiters. Ordered by the length of the queue, the longest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contended {
    pub(crate) waiters: usize,
    pub(crate) lock: LockId,
}

impl Ord for Contended {
    fn cmp(&self, other: &Contended) -> Ordering {
        other.waiters.cmp(&self.waiters).then_with(|| self.lock.cmp(&other.lock))
    }
}

impl PartialOrd for Contended {
    fn partial_cmp(&self, other: &Contended) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Facts about a queue, available without opening the lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueInfo {
    /// Time that the first waiter has been waiting.
    pub(crate) longest_us: MonoUs,
    /// Mode that the first waiter requests.
    pub(crate) wanted: Mode,
    /// Whether the lock is known to have a single, exclusive holder.
    pub(crate) is_plain: bool,
}

impl LockManager {
    /// The other locks of a granted, unanswered call for several locks. A cancel of its request releases them
    /// too, so the caller must [reconcile](LockManager::reconcile) each of them in the same command.
    pub(crate) fn sibling_locks(&self, lock: LockLookup<'_>, id: &RequestId) -> Vec<LockId> {
        let parts = &self.parts;
        let wait = parts.table.handle_of(lock).and_then(|lock| parts.waiters.of_request(lock, id));
        let is_granted =
            |(id, wait): &(WaiterId, &Wait)| wait.state() == WaitState::Granted && !parts.has_ended(*id);
        let Some((id, _)) = wait.filter(is_granted) else { return Vec::new() };
        if parts.waiters.bundles.is_answered(parts.waiters.first_wait_of(id)) {
            return Vec::new();
        }
        let others = parts.waiters.together(id).into_iter().filter(|other| *other != id);
        others.filter_map(|other| parts.name(parts.waiters.get(other)?.lock())).collect()
    }

    /// The wait that identifies the call to its client: the first wait of a bundle, or the wait itself.
    pub(crate) fn first_wait_of(&self, id: WaiterId) -> WaiterId {
        self.parts.waiters.first_wait_of(id)
    }

    /// The lock of a wait.
    pub(crate) fn lock_of(&self, id: WaiterId) -> Option<LockId> {
        let parts = &self.parts;
        parts.name(parts.waiters.get(id)?.lock())
    }

    /// Whether any call waits for several locks.
    pub(crate) fn has_bundles(&self) -> bool {
        !self.parts.waiters.bundles.is_empty()
    }

    /// Whether this grant is in flight and its hold has not ended.
    pub(crate) fn is_in_flight(&self, id: WaiterId) -> bool {
        let is_granted = |id: &WaiterId| {
            self.parts.waiters.get(*id).is_some_and(|wait| wait.state() == WaitState::Granted)
                && !self.parts.has_ended(*id)
        };
        self.parts.waiters.together(id).iter().any(is_granted)
    }

    /// Number of leases known to have expired while held. Complete for locks granted here while owners get
    /// notices.
    pub(crate) fn expired_leases(&self) -> usize {
        self.parts.expired_leases
    }

    /// Whether any hold depends on a connection.
    pub(crate) fn has_bindings(&self) -> bool {
        self.parts.bindings.any_bound()
    }

    /// Whether [`key_changed`](LockManager::key_changed) would ignore every key.
    pub(crate) fn ignores_change(&self, change: KeyChange) -> bool {
        self.parts.table.is_empty() && (change == KeyChange::Changed || self.parts.granted_keys.is_empty())
    }

    /// Whether a session may have a hold of this lock.
    pub(crate) fn may_have_session(&self, lock: LockRef<'_>) -> bool {
        !self.parts.sessions.is_empty() && self.parts.table.find(lock).is_some()
    }

    /// Number of fairness windows given to external clients, and of those in which they took the lock.
    pub(crate) fn fairness_windows(&self) -> (usize, usize) {
        (self.parts.windows_given, self.parts.windows_used)
    }

    /// The sole, plain, exclusive hold of a lock at the end of its last step. `None` if the key may have
    /// changed since.
    pub(crate) fn plain_hold(&self, lock: LockLookup<'_>) -> Option<&Hold> {
        self.parts.state(self.parts.table.handle_of(lock)?)?.plain_hold()
    }

    /// Number of waiters for all locks.
    pub(crate) fn waiting_total(&self) -> usize {
        self.parts.waiters.queued_len()
    }

    pub(crate) fn statistics(&self) -> &Statistics {
        &self.parts.statistics
    }

    /// The last incidents.
    pub(crate) fn log(&self) -> &Log {
        &self.parts.log
    }

    /// Sets the number of incidents to keep, and the duration from which waits are logged; 0 for none.
    pub(crate) fn set_log_limits(&mut self, max_len: usize, waits_over_us: MonoUs) {
        self.parts.log.set_limits(max_len, waits_over_us);
    }

    /// Approximate peak of the number of locks in the table.
    pub(crate) fn most_locks(&self) -> usize {
        self.parts.table.most()
    }

    /// Number of renewed holds, and of holds that end with a connection.
    pub(crate) fn bound(&self) -> (usize, usize) {
        self.parts.bindings.count()
    }

    /// Whether this server was last known to be a replica.
    pub(crate) fn is_demoted(&self) -> bool {
        self.parts.demoted
    }

    /// Whether a quarantine is in force.
    pub(crate) fn is_quarantined(&self) -> bool {
        self.parts.quarantined_until.is_some()
    }

    /// Size of each table, by its name in `INFO`.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (&'static CStr, usize)> {
        let parts = &self.parts;
        let (owners, requests) = parts.waiters.index_lens();
        let (connections, ended, sweeps) = parts.bindings.lens();
        let unannounced = parts.table.iter().filter(|(.., state)| state.is_unannounced()).count();
        [
            (c"table_locks", parts.table.len()),
            (c"table_waiters", parts.waiters.queued_len()),
            (c"table_waiting_owners", owners),
            (c"table_waiting_requests", requests),
            (c"table_grants_in_flight", parts.waiters.granted_len()),
            (c"table_bundles", parts.waiters.bundles.len()),
            (c"table_deadlines", parts.deadlines.len()),
            (c"table_leases", parts.leases.len()),
            (c"table_fragile_locks", parts.fragile.len()),
            (c"table_renewals", parts.bindings.count().0),
            (c"table_connections", connections),
            (c"table_ended_requests", ended),
            (c"table_sweeps", sweeps),
            (c"table_fairness_windows", parts.windows.len()),
            (c"table_unannounced_locks", unannounced),
            (c"table_ready_locks", parts.table.ready_len()),
            (c"table_decisions", parts.decisions.len()),
            (c"table_notices", parts.notices.len()),
            (c"table_searches", parts.searches.len()),
            (c"table_sessions", parts.sessions.table_len()),
            (c"table_closing_connections", parts.ending_connections.len()),
            (c"table_granted_key_hints", parts.granted_keys.len()),
        ]
        .into_iter()
    }

    /// Number of waiters for this lock.
    pub(crate) fn waiting(&self, lock: LockRef<'_>) -> usize {
        state(&self.parts, lock).map_or(0, |state| state.queue().len())
    }

    /// Maximum number of holds that the lock's next step ends, apart from the caller's release.
    pub(crate) fn ending(&self, lock: LockLookup<'_>) -> usize {
        let parts = &self.parts;
        let Some(lock) = parts.table.handle_of(lock) else { return 0 };
        let unconfirmed = parts.state(lock).map_or(0, |state| state.unconfirmed().may_end());
        // Per kind of work: a portion of holds, and the caller's hold.
        let most = parts.portion.0 + 1;
        unconfirmed.min(2 * most) + parts.bindings.closed_len(lock).min(most)
    }

    /// The locks of all databases with waiters or grants in flight.
    pub(crate) fn contended_locks(&self) -> impl Iterator<Item = &LockId> {
        let wanted = |state: &LockState| !state.queue().is_empty() || state.unconfirmed().any_in_flight();
        self.parts.table.iter().filter(move |(.., state)| wanted(state)).map(|(_, id, _)| id)
    }

    /// Number of locks that are known to be held.
    pub(crate) fn known_held(&self) -> usize {
        let parts = &self.parts;
        let held = |lock, state: &LockState| {
            state.plain_hold().is_some()
                || !state.held().is_empty()
                || !state.queue().is_empty()
                || parts.bindings.knows(lock)
        };
        parts.table.iter().filter(|(lock, _, state)| held(*lock, state)).count()
    }

    /// Time that the longest waiter has been waiting.
    pub(crate) fn longest_wait(&self, now: Now) -> MonoUs {
        let parts = &self.parts;
        let first = parts.table.iter().filter_map(|(.., state)| parts.waiters.get(state.queue().first()?));
        first.map(|wait| now.mono.saturating_sub(wait.since())).max().unwrap_or_default()
    }

    /// The waiters of this lock, in order.
    pub(crate) fn waiters_of(&self, lock: LockRef<'_>) -> Vec<WaiterId> {
        state(&self.parts, lock).map(|state| state.queue().iter().collect()).unwrap_or_default()
    }

    /// Facts about an owner's hold that its key does not store.
    pub(crate) fn hold(&self, lock: LockRef<'_>, owner: &Owner, now: Now) -> Option<HoldInfo> {
        let parts = &self.parts;
        let idx = parts.table.find(lock)?;
        let binding = parts.bindings.binding_of(idx, owner);
        let noted = parts.state(idx)?.held().get(owner);
        if binding.is_none() && noted.is_none() {
            return None;
        }
        let session = binding.and_then(Binding::session).and_then(|session| parts.sessions.get(session));
        let since = noted.and_then(|hold| hold.since).or_else(|| binding?.held_since());
        Some(HoldInfo {
            held_us: since.map(|since| now.mono.saturating_sub(since)),
            client: binding.and_then(Binding::client).or_else(|| session?.reader()).or_else(|| noted?.client),
            watchdog: binding.is_some_and(Binding::is_renewed),
            ephemeral: binding.is_some_and(Binding::is_ephemeral) || parts.ends_with_session(idx, owner),
            session: session.map(|session| session.name().clone()),
        })
    }

    /// Facts about a waiter; `None` if it no longer waits.
    pub(crate) fn waiter(&self, id: WaiterId, now: Now) -> Option<WaiterInfo<'_>> {
        let wait = self.parts.waiters.queued(id)?;
        Some(WaiterInfo {
            owner: &wait.request().owner,
            mode: wait.request().wants.mode,
            waited_us: now.mono.saturating_sub(wait.since()),
            remaining_us: wait.deadline().map(|at| at.saturating_sub(now.mono)),
        })
    }

    /// The locks of a database with waiters whose names match, in no particular order.
    pub(crate) fn contended_in(&self, db: i32, matches: impl Fn(&[u8]) -> bool) -> Vec<Contended> {
        let all = self.parts.table.iter().filter(|(_, id, state)| id.db == db && !state.queue().is_empty());
        let all = all.filter(|(_, id, _)| matches(&id.key));
        all.map(|(_, id, state)| Contended { waiters: state.queue().len(), lock: id.clone() }).collect()
    }

    /// This lock, if it has waiters.
    pub(crate) fn contended(&self, lock: LockRef<'_>) -> Option<Contended> {
        let waiters = state(&self.parts, lock)?.queue().len();
        (waiters > 0).then(|| Contended { waiters, lock: lock.to_id() })
    }

    /// Facts about the queue of this lock; `None` if it has no waiters.
    pub(crate) fn queue(&self, lock: LockRef<'_>, now: Now) -> Option<QueueInfo> {
        let parts = &self.parts;
        let state = state(parts, lock)?;
        let first = parts.waiters.get(state.queue().first()?)?;
        Some(QueueInfo {
            longest_us: now.mono.saturating_sub(first.since()),
            wanted: first.request().wants.mode,
            is_plain: state.plain_hold().is_some_and(|hold| hold.expires_at >= now.wall),
        })
    }

    /// The owner of a wait, and all locks with waiters. `None` if the owner also blocks others as a waiter,
    /// or if the table has more than `most` locks.
    pub(crate) fn only_holds_matter(&self, id: WaiterId, most: usize) -> Option<(Owner, Vec<LockId>)> {
        let parts = &self.parts;
        let owner = &parts.waiters.queued(id)?.request().owner;
        let all = parts.waiters.together(id);
        let is_last = |id: &WaiterId| {
            let lock = parts.waiters.queued(*id).map(Wait::lock);
            lock.and_then(|lock| parts.state(lock)).is_some_and(|state| state.queue().last() == Some(*id))
        };
        let has_others = parts.waiters.of_owner(owner.as_bytes()).count() > all.len();
        if parts.table.len() > most || has_others || !all.iter().all(is_last) {
            return None;
        }
        let contended = parts.table.iter().filter(|(.., state)| !state.queue().is_empty());
        Some((owner.clone(), contended.map(|(_, lock, _)| lock.clone()).collect()))
    }
}

fn state<'a>(parts: &'a Parts, lock: LockRef<'_>) -> Option<&'a LockState> {
    parts.state(parts.table.find(lock)?)
}
