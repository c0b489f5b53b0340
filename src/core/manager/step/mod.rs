// SPDX-License-Identifier: MIT

//! One step on an opened lock: [`Step::begin`] applies changes that happened without a call, then one call
//! runs, and [`Step::finish`] serves the queue.

mod begin;
mod bindings;
mod confirm;
mod finish;
mod grant;
mod notices;
mod output;
mod queue;
mod revoke;
mod serve;
mod sessions;

pub(crate) use grant::GrantTime;
pub(crate) use output::StepOutput;
pub(in crate::core::manager) use sessions::NumberIs;

use crate::core::manager::parts::{LockState, Parts};
use crate::core::owner::AffectedOwners;
use crate::core::table::LockIdx;
use crate::core::{Counted, Holders, LockId, LockRef, LossReason, Now, Records};

/// A step: the state of an opened lock, looked up once, and the content of its keys.
#[must_use = "a step that is not finished hands nothing on"]
pub(super) struct Step<'a> {
    parts: &'a mut Parts,
    name: LockRef<'a>,
    /// The lock's handle, if it has state. Most locks have none.
    lock: Option<LockIdx>,
    /// The owners whose holds may have ended since the last step, or in this one.
    affected: AffectedOwners<'a>,
    pub(super) holders: &'a mut Holders,
    pub(super) records: &'a mut dyn Records,
    pub(super) now: Now,
    /// Whether the lock was granted to a waiter.
    handed_over: bool,
    /// Whether the call has released a hold.
    released: bool,
    /// Maximum amount of due work.
    portion: usize,
    /// Whether the lock has more grants and bindings than a step examines.
    is_crowded: bool,
    /// Whether this step examines all grants and bindings for ended holds.
    examines_all: bool,
    /// Whether holds are left to end, or records to delete. The queue is not served until both are done.
    is_unfinished: bool,
    /// Whether any work is left.
    is_due_again: bool,
    /// The reason for the end of holds in this step, if the call gives one.
    pub(super) cause: Option<LossReason>,
}

/// Ratio of readers that a step reads to due work that it does. Used where every step has to read all
/// readers.
const READS_PER_PORTION: usize = 64;

/// Reduces a count to the size that is stored per lock.
fn counted(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Step<'_> {
    /// Whether an owner's call runs this step. If so, only its own holds end.
    fn is_call(&self) -> bool {
        matches!(self.affected, AffectedOwners::Only(_))
    }

    /// The lock's handle. A lock without state gets an empty one.
    fn known(&mut self) -> LockIdx {
        *self.lock.get_or_insert_with(|| self.parts.table.insert(self.name))
    }

    fn state(&self) -> Option<&LockState> {
        self.parts.state(self.lock?)
    }

    fn state_mut(&mut self) -> Option<&mut LockState> {
        self.parts.state_mut(self.lock?)
    }

    fn id(&self) -> LockId {
        self.lock.and_then(|lock| self.parts.name(lock)).unwrap_or_else(|| self.name.to_id())
    }

    /// Records that the call has released a hold.
    pub(super) fn count_release(&mut self) {
        self.released = true;
        self.count(Counted::Released);
    }

    pub(super) fn count(&mut self, what: impl Into<Option<Counted>>) {
        if let Some(what) = what.into() {
            self.parts.statistics.count(what);
        }
    }

    /// Records the duration of the caller's last hold.
    pub(super) fn count_hold(&mut self) {
        let Some(since) = self.state_mut().and_then(|state| state.take_held_since()) else { return };
        self.parts.statistics.held(self.now.mono.saturating_sub(since));
    }
}
