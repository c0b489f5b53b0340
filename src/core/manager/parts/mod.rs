// SPDX-License-Identifier: MIT

//! The state of the lock manager. Only code in this folder sees more than one part of the state.

mod connections;
mod grants;
mod incidents;
mod lock_state;
mod notices;
mod sessions;
mod waits;
mod watch;

pub(in crate::core::manager) use grants::RecordsOfVoided;
pub(in crate::core::manager) use lock_state::LockState;
pub(in crate::core::manager) use sessions::call_until;

use crate::core::bindings::Bindings;
use crate::core::fragile::FragileLocks;
use crate::core::granted_keys::GrantedKeys;
use crate::core::log::Log;
use crate::core::queue::waiters::Waiters;
use crate::core::schedule::{Calendar, Schedule};
use crate::core::sessions::{Loss, Sessions};
use crate::core::table::{LockIdx, LockTable};
use crate::core::waits_for::searches::Searches;
use crate::core::{ConnectionId, Decision, LockId, MonoUs, Notice, Now, Statistics, WaiterId, WallMs};
use std::collections::{BTreeSet, VecDeque};

/// Maximum amount of due work that a step does at one lock: grants made, revoked or voided, and holds ended
/// or renewed. Thousands at once would stall the server, so the rest is left for the next step, which the
/// timer starts soon after.
#[derive(Clone, Copy)]
pub(in crate::core::manager) struct Portion(pub(in crate::core::manager) usize);

impl Default for Portion {
    fn default() -> Portion {
        Portion(64)
    }
}

/// All state in memory. Fields without a comment are described by their types.
#[derive(Default)]
pub(in crate::core::manager) struct Parts {
    pub(in crate::core::manager) table: LockTable<LockState>,
    pub(in crate::core::manager) waiters: Waiters,
    pub(in crate::core::manager) bindings: Bindings,
    pub(in crate::core::manager) sessions: Sessions,
    /// Time of the input that is being handled. Set only by inputs that may have an effect on sessions.
    pub(in crate::core::manager) input_at: Now,
    /// Grants in flight of sessions that have ended without a call.
    pub(in crate::core::manager) losses: Vec<Loss>,
    /// Deadlines of waits.
    pub(in crate::core::manager) deadlines: Schedule<MonoUs, WaiterId>,
    /// End of the first lease of each held lock that has native waiters, known external waiters, or owners to
    /// notify.
    pub(in crate::core::manager) leases: Calendar<WallMs, LockIdx>,
    /// The most recently handed-over lock, if its queue is empty now. It stays in `leases` until the timer
    /// fires or another lock takes its place. A new waiter often arrives at once, and removing and adding the
    /// entry again would cost more.
    pub(in crate::core::manager) last_handed_over: Option<LockIdx>,
    /// Ends of fairness windows, and times at which subscribers are forgotten.
    pub(in crate::core::manager) windows: Calendar<MonoUs, LockIdx>,
    /// Locks in `leases` that a foreign write can free without an event.
    pub(in crate::core::manager) fragile: FragileLocks,
    pub(in crate::core::manager) granted_keys: GrantedKeys,
    /// Whether holds are forgotten for locks without waiters.
    pub(in crate::core::manager) forgets_holds: bool,
    /// Maximum amount of due work per step.
    pub(in crate::core::manager) portion: Portion,
    /// Closed connections whose holds must still be ended.
    pub(in crate::core::manager) ending_connections: BTreeSet<ConnectionId>,
    /// End of the quarantine. Until then, only owners that hold a lock are granted it, because other holds
    /// may have been forgotten.
    pub(in crate::core::manager) quarantined_until: Option<MonoUs>,
    /// Whether this server is not the primary.
    pub(in crate::core::manager) demoted: bool,
    pub(in crate::core::manager) windows_given: usize,
    pub(in crate::core::manager) windows_used: usize,
    pub(in crate::core::manager) decisions: VecDeque<(WaiterId, Decision)>,
    /// Granted bundles whose clients are still waiting although one of their holds has ended.
    pub(in crate::core::manager) lost_bundles: Vec<WaiterId>,
    /// Whether owners get notices about their holds.
    pub(in crate::core::manager) notifies_owners: bool,
    pub(in crate::core::manager) notices: VecDeque<Notice>,
    /// Number of leases known to have expired while held.
    pub(in crate::core::manager) expired_leases: usize,
    pub(in crate::core::manager) statistics: Statistics,
    pub(in crate::core::manager) log: Log,
    /// Waits that may wait for their own owners.
    pub(in crate::core::manager) searches: Searches,
}

/// Maximum number of waits to search per owner, and of owners to search per lock.
pub(in crate::core::manager) const MAX_SEARCHED_WAITS: usize = 16;

impl Parts {
    pub(in crate::core::manager) fn state(&self, lock: LockIdx) -> Option<&LockState> {
        self.table.get(lock)
    }

    pub(in crate::core::manager) fn state_mut(&mut self, lock: LockIdx) -> Option<&mut LockState> {
        self.table.get_mut(lock)
    }

    /// The name of a lock.
    pub(in crate::core::manager) fn name(&self, lock: LockIdx) -> Option<LockId> {
        self.table.id(lock).cloned()
    }

    /// Whether the state of this lock can be forgotten.
    #[inline(always)]
    pub(in crate::core::manager) fn is_idle(&self, lock: LockIdx) -> bool {
        self.table
            .get(lock)
            .is_some_and(|state| state.is_idle() && !self.table.is_ready(lock) && !self.bindings.knows(lock))
    }

    /// Forgets a lock whose state is empty.
    #[inline(always)]
    pub(in crate::core::manager) fn drop_if_idle(&mut self, lock: LockIdx) {
        if self.is_idle(lock) {
            self.table.remove(lock);
        }
    }
}
