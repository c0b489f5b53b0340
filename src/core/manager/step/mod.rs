// SPDX-License-Identifier: MIT

//! One step on a lock in hand: what ended without a call ([`Step::begin`]), one call, and what that made way for
//! ([`Step::finish`]).

mod begin;
mod bindings;
mod confirm;
mod finish;
mod grant;
mod notices;
mod queue;
mod revoke;
mod serve;

pub(crate) use finish::{ExpectedEnd, StepOutput};

use crate::core::bindings::AffectedOwners;
use crate::core::manager::parts::{LockState, Parts};
use crate::core::table::LockIdx;
use crate::core::{Counted, Holders, LockId, LockRef, Now, Records};

/// A lock in hand: what is remembered about it, looked up once, and what its key holds.
#[must_use = "a step that is not finished hands nothing on"]
pub(super) struct Step<'a> {
    parts: &'a mut Parts,
    name: LockRef<'a>,
    /// Its handle, if anything is remembered about it. Most locks have none.
    lock: Option<LockIdx>,
    /// Whose holds may have ended since the last step, or in this one.
    affected: AffectedOwners<'a>,
    pub(super) holders: &'a mut Holders,
    pub(super) records: &'a mut dyn Records,
    pub(super) now: Now,
    /// The lock was granted to somebody who waited.
    handed_over: bool,
    expected_end: ExpectedEnd,
    /// How much of what is due it does.
    portion: usize,
    /// More grants and bindings are remembered of it than a step looks through.
    is_crowded: bool,
    /// It is looked whose holds have ended, of all whose grants and bindings are remembered.
    looks_at_all: bool,
    /// Holds are left that are to end, or requests that are to be forgotten: the queue is served when none is.
    is_unfinished: bool,
    /// Something is left to do.
    is_due_again: bool,
}

/// Where all readers of a lock have to be read for each step, so many steps do what is due for all of them.
const READS_PER_PORTION: usize = 64;

/// What is counted of each lock takes little memory.
fn counted(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Step<'_> {
    /// True if a call of an owner does this step, and so ends no holds but that owner's.
    fn is_call(&self) -> bool {
        matches!(self.affected, AffectedOwners::Only(_))
    }

    /// The lock's handle; from now on something is remembered about it.
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

    #[inline(always)]
    pub(super) fn count(&mut self, what: impl Into<Option<Counted>>) {
        if let Some(what) = what.into() {
            self.parts.statistics.count(what);
        }
    }

    /// The caller has given back its last hold.
    pub(super) fn count_hold(&mut self) {
        let Some(since) = self.state_mut().and_then(|state| state.held_since.take()) else { return };
        self.parts.statistics.held(self.now.mono.saturating_sub(since));
    }
}
