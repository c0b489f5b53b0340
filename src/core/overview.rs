//! Who waits: for those who look, not for those who decide.

use std::ffi::CStr;

use super::entries::Entry;
use super::service::{asked, Service};
use super::{LockRef, Mode, MonoUs, Now, Owner, Request, WaiterId};

/// One entry of [`Service::waiters_of`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaiterInfo<'a> {
    pub(crate) id: WaiterId,
    pub(crate) owner: &'a Owner,
    pub(crate) mode: Mode,
    pub(crate) waited_us: MonoUs,
    /// `None`: waits without limit.
    pub(crate) remaining_us: Option<MonoUs>,
}

/// One entry of [`Service::contended_in`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contended {
    pub(crate) key: Vec<u8>,
    pub(crate) waiters: usize,
    /// How long the first in line has waited.
    pub(crate) longest_us: MonoUs,
    /// What the first in line waits for.
    pub(crate) wanted: Mode,
}

impl Service {
    /// How many things each table has, by its name in `INFO`.
    pub(crate) fn tables(&self) -> [(&'static CStr, usize); 17] {
        [
            (c"table_locks", self.entries.iter().count()),
            (c"table_waiters", self.waiters.len()),
            (c"table_waiting_owners", self.waits_of.len()),
            (c"table_waiting_requests", self.asked.len()),
            (c"table_grants_in_flight", self.in_flight.len()),
            (c"table_deadlines", self.deadlines.len()),
            (c"table_leases", self.leases.len()),
            (c"table_fragile_locks", self.fragile.len()),
            (c"table_renewals", self.renewals.len()),
            (c"table_connections", self.by_connection.len()),
            (c"table_ended_requests", self.ended.len()),
            (c"table_sweeps", self.sweeps.len()),
            (c"table_turns", self.turns.len()),
            (c"table_unannounced_locks", self.owed.len()),
            (c"table_ready_locks", self.dirty.len()),
            (c"table_decisions", self.decisions.len()),
            (c"table_granted_key_hints", self.held.len()),
        ]
    }

    /// How many wait for this lock.
    pub(crate) fn waiting(&self, lock: LockRef<'_>) -> usize {
        self.entries.get(lock).map_or(0, |entry| entry.waiting.len())
    }

    /// True if this request waits for the lock, on another connection.
    pub(crate) fn waits_already(&self, lock: LockRef<'_>, request: &Request) -> bool {
        asked(&lock.to_id(), request).is_some_and(|asked| self.asked.contains_key(&asked))
    }

    /// The locks, of any database, that somebody here waits for or was granted just now.
    pub(crate) fn wanted_here(&self) -> impl Iterator<Item = &[u8]> {
        let wanted = |entry: &Entry| !entry.waiting.is_empty() || !entry.in_flight.is_empty();
        self.entries.iter_keys().filter(move |(_, entry)| wanted(entry)).map(|(key, _)| key)
    }

    /// How many wait for any lock.
    pub(crate) fn waiting_total(&self) -> usize {
        self.waiters.len()
    }

    /// How many locks are waited for.
    pub(crate) fn contended(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.waiting.is_empty()).count()
    }

    /// How many holds are renewed, and how many end with a connection.
    pub(crate) fn bound(&self) -> (usize, usize) {
        let mut ephemeral = 0;
        for entry in self.entries.iter() {
            ephemeral += entry.ephemeral();
        }
        (self.renewals.len(), ephemeral)
    }

    /// Who waits for this lock, first in line first.
    pub(crate) fn waiters_of<'a>(
        &'a self,
        lock: LockRef<'_>,
        now: Now,
    ) -> impl Iterator<Item = WaiterInfo<'a>> {
        let waiting = self.entries.get(lock).map(|entry| entry.waiting.values()).into_iter().flatten();
        waiting.filter_map(move |id| {
            let waiter = self.waiters.get(id)?;
            Some(WaiterInfo {
                id: *id,
                owner: &waiter.request.owner,
                mode: waiter.request.mode,
                waited_us: now.mono.saturating_sub(waiter.since),
                remaining_us: waiter.deadline.map(|at| at.saturating_sub(now.mono)),
            })
        })
    }

    /// The locks of a database that somebody waits for and whose names pass `matches`, longest queue first.
    pub(crate) fn contended_in(&self, db: i32, now: Now, matches: impl Fn(&[u8]) -> bool) -> Vec<Contended> {
        let mut found: Vec<Contended> = self
            .entries
            .in_db(db)
            .filter(|(key, _)| matches(key))
            .filter_map(|(key, entry)| {
                let first = self.waiters.get(entry.waiting.values().next()?)?;
                Some(Contended {
                    key: key.to_vec(),
                    waiters: entry.waiting.len(),
                    longest_us: now.mono.saturating_sub(first.since),
                    wanted: first.request.mode,
                })
            })
            .collect();
        found.sort_by(|a, b| b.waiters.cmp(&a.waiters).then_with(|| a.key.cmp(&b.key)));
        found
    }
}
