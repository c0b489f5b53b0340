// SPDX-License-Identifier: MIT

//! Read-only views of the state in memory.

use std::cmp::Ordering;
use std::ffi::CStr;

use super::parts::{LockState, Parts};
use crate::core::binding::Binding;
use crate::core::waiters::Wait;
use crate::core::{ConnectionId, LockId, LockLookup, LockRef, Mode, MonoUs, Now, Owner, WaiterId};

/// A waiter of a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaiterInfo<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) mode: Mode,
    pub(crate) waited_us: MonoUs,
    /// Time until the deadline; `None` if the wait has none.
    pub(crate) remaining_us: Option<MonoUs>,
}

/// Facts about a hold that its key does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldInfo {
    /// Time since the grant; `None` if the grant happened elsewhere or before it was recorded.
    pub(crate) held_us: Option<MonoUs>,
    pub(crate) client: Option<ConnectionId>,
    /// Whether the server renews the lease.
    pub(crate) watchdog: bool,
    /// Whether the hold ends with its connection.
    pub(crate) ephemeral: bool,
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
    /// Time that the first waiter has waited.
    pub(crate) longest_us: MonoUs,
    /// Mode that the first waiter wants.
    pub(crate) wanted: Mode,
    /// Whether one owner holds the lock exclusively, as far as is known.
    pub(crate) is_plain: bool,
}

fn state<'a>(parts: &'a Parts, lock: LockRef<'_>) -> Option<&'a LockState> {
    parts.state(parts.table.find(lock)?)
}

pub(super) fn tables(parts: &Parts) -> [(&'static CStr, usize); 24] {
    let (notified, notified_connections) = parts.waiters.notified.lens();
    let (owners, requests) = parts.waiters.index_lens();
    let (connections, ended, sweeps) = parts.bindings.lens();
    let unannounced = parts.table.iter().filter(|(.., state)| state.unannounced).count();
    [
        (c"table_locks", parts.table.len()),
        (c"table_waiters", parts.waiters.queued_len()),
        (c"table_waiting_owners", owners),
        (c"table_waiting_requests", requests),
        (c"table_grants_in_flight", parts.waiters.granted_len()),
        (c"table_bundles", parts.waiters.bundles.len()),
        (c"table_notified_waits", notified),
        (c"table_notified_connections", notified_connections),
        (c"table_messages", parts.messages.len()),
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
        (c"table_closing_connections", parts.ending_connections.len()),
        (c"table_granted_key_hints", parts.granted_keys.len()),
    ]
}

pub(super) fn waiting(parts: &Parts, lock: LockRef<'_>) -> usize {
    state(parts, lock).map_or(0, |state| state.queue.len())
}

pub(super) fn ending(parts: &Parts, lock: LockLookup<'_>) -> usize {
    let Some(lock) = parts.table.handle_of(lock) else { return 0 };
    let unconfirmed = parts.state(lock).map_or(0, |state| state.unconfirmed.may_end());
    // A portion of each kind, and one more for the caller.
    let most = parts.portion.0 + 1;
    unconfirmed.min(2 * most) + parts.bindings.closed_len(lock).min(most)
}

pub(super) fn contended_locks(parts: &Parts) -> impl Iterator<Item = &LockId> {
    let wanted = |state: &LockState| !state.queue.is_empty() || state.unconfirmed.any_in_flight();
    parts.table.iter().filter(move |(.., state)| wanted(state)).map(|(_, id, _)| id)
}

pub(super) fn known_held(parts: &Parts) -> usize {
    let held = |lock, state: &LockState| {
        state.plain_hold.is_some()
            || !state.held.is_empty()
            || !state.queue.is_empty()
            || parts.bindings.knows(lock)
    };
    parts.table.iter().filter(|(lock, _, state)| held(*lock, state)).count()
}

pub(super) fn longest_wait(parts: &Parts, now: Now) -> MonoUs {
    let first = parts.table.iter().filter_map(|(.., state)| parts.waiters.get(state.queue.first()?));
    first.map(|wait| now.mono.saturating_sub(wait.since())).max().unwrap_or_default()
}

pub(super) fn waiters_of(parts: &Parts, lock: LockRef<'_>) -> Vec<WaiterId> {
    state(parts, lock).map(|state| state.queue.iter().collect()).unwrap_or_default()
}

pub(super) fn hold(parts: &Parts, lock: LockRef<'_>, owner: &Owner, now: Now) -> Option<HoldInfo> {
    let idx = parts.table.find(lock)?;
    let binding = parts.bindings.binding_of(idx, owner);
    let noted = parts.state(idx)?.held.get(owner);
    if binding.is_none() && noted.is_none() {
        return None;
    }
    let since = noted.and_then(|hold| hold.since).or_else(|| binding?.held_since());
    Some(HoldInfo {
        held_us: since.map(|since| now.mono.saturating_sub(since)),
        client: binding.and_then(Binding::client).or_else(|| noted?.client),
        watchdog: binding.is_some_and(Binding::is_renewed),
        ephemeral: binding.is_some_and(Binding::is_ephemeral),
    })
}

pub(super) fn waiter(parts: &Parts, id: WaiterId, now: Now) -> Option<WaiterInfo<'_>> {
    let wait = parts.waiters.queued(id)?;
    Some(WaiterInfo {
        owner: &wait.request().owner,
        mode: wait.request().wants.mode,
        waited_us: now.mono.saturating_sub(wait.since()),
        remaining_us: wait.deadline().map(|at| at.saturating_sub(now.mono)),
    })
}

pub(super) fn contended_in(parts: &Parts, db: i32, matches: impl Fn(&[u8]) -> bool) -> Vec<Contended> {
    let all = parts.table.iter().filter(|(_, id, state)| id.db == db && !state.queue.is_empty());
    let all = all.filter(|(_, id, _)| matches(&id.key));
    all.map(|(_, id, state)| Contended { waiters: state.queue.len(), lock: id.clone() }).collect()
}

pub(super) fn queue(parts: &Parts, lock: LockRef<'_>, now: Now) -> Option<QueueInfo> {
    let state = state(parts, lock)?;
    let first = parts.waiters.get(state.queue.first()?)?;
    Some(QueueInfo {
        longest_us: now.mono.saturating_sub(first.since()),
        wanted: first.request().wants.mode,
        is_plain: state.plain_hold.as_ref().is_some_and(|hold| hold.expires_at >= now.wall),
    })
}

pub(super) fn only_holds_matter(parts: &Parts, id: WaiterId, most: usize) -> Option<(Owner, Vec<LockId>)> {
    let owner = &parts.waiters.queued(id)?.request().owner;
    let all = parts.waiters.together(id);
    let is_last = |id: &WaiterId| {
        let lock = parts.waiters.queued(*id).map(Wait::lock);
        lock.and_then(|lock| parts.state(lock)).is_some_and(|state| state.queue.last() == Some(*id))
    };
    let has_others = parts.waiters.of_owner(owner.as_bytes()).count() > all.len();
    if parts.table.len() > most || has_others || !all.iter().all(is_last) {
        return None;
    }
    let contended = parts.table.iter().filter(|(.., state)| !state.queue.is_empty());
    Some((owner.clone(), contended.map(|(_, lock, _)| lock.clone()).collect()))
}
