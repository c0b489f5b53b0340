// SPDX-License-Identifier: MIT

//! Finishes a step, and tells the caller what remains to be done after the write.

use super::{counted, Step};
use crate::core::schedule::earlier;
use crate::core::table::LockIdx;
use crate::core::{Decision, Hold, Holders, WallMs};

/// What the caller of a step has to know of the lock when it has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepOutput {
    /// `None` if nothing is remembered about it.
    pub(in crate::core::manager) lock: Option<LockIdx>,
    /// The end of its first lease is waited for.
    pub(crate) watches_lease: bool,
    /// Its hold ended without a call, and that it is free is still to be announced if nobody has it.
    pub(crate) unannounced: bool,
    /// It is free, and somebody may get it in this very moment who waits for several: until that is tried, it is not announced.
    pub(crate) is_reserved: bool,
    /// Until when it will be held, as far as external clients have to know.
    pub(crate) expected_end: ExpectedEnd,
}

/// Until when a lock will be held. External clients sleep until the end that they have seen, so they are told of the end of
/// a lease that is shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExpectedEnd {
    /// Until the end of the lease that is written.
    #[default]
    AsWritten,
    /// Until this time. Who is told of its grant by a message has a short lease, whose end is watched, and the whole one when
    /// it has confirmed the grant.
    Until(WallMs),
    /// Maybe not for as long as they have seen. That end is not stored any more, so nothing can be compared with it.
    MaybeSooner,
}

impl StepOutput {
    /// True if anything is remembered about the lock.
    pub(crate) fn is_known(self) -> bool {
        self.lock.is_some()
    }
}

impl Step<'_> {
    /// Grants what can be granted by now.
    pub(in crate::core::manager) fn finish(mut self) -> StepOutput {
        if let Some(lock) = self.lock {
            self.serve(lock);
        }
        self.forget_if_free();
        self.close()
    }

    /// Ends a step whose call makes way for nobody: brings the schedules up to date, and forgets what needs not be
    /// remembered.
    #[inline(always)]
    pub(in crate::core::manager) fn close(mut self) -> StepOutput {
        match self.lock {
            Some(lock) => self.close_known(lock),
            None => StepOutput {
                lock: None,
                watches_lease: false,
                unannounced: false,
                is_reserved: false,
                expected_end: ExpectedEnd::AsWritten,
            },
        }
    }

    #[inline(always)]
    pub(super) fn close_known(&mut self, lock: LockIdx) -> StepOutput {
        if self.parts.notifies_owners && (self.looks_at_all || self.is_call()) {
            self.settle_held(lock, self.affected);
        }
        self.note_crowd(lock);
        self.parts.end_lost(lock, &Decision::Lost);
        self.settle_fairness(lock);
        let watches_lease = self.watch_lease(lock);
        let alone = self.holders.alone();
        let plain = alone.filter(|(_, token)| token.is_none()).map(|(hold, _)| hold);
        let (is_bound, forgets) = (self.parts.bindings.knows(lock), self.parts.forgets_holds);
        let handed_over = self.handed_over;
        let bundles = &self.parts.waiters.bundles;
        let is_reserved = !bundles.is_empty()
            && self.holders.is_free()
            && bundles.is_reserved(lock, || self.parts.has_members(lock));
        let is_free = self.holders.is_free();
        let expected_end = &mut self.expected_end;
        let unannounced = self.parts.state_mut(lock).is_some_and(|state| {
            if state.unconfirmed_whole_lease && !is_reserved && !state.unconfirmed.any_to_confirm() {
                // That was not confirmed. If the lock is free, external clients are told so.
                state.unconfirmed_whole_lease = false;
                if !is_free {
                    *expected_end = ExpectedEnd::MaybeSooner;
                }
            }
            // What an external client holds, and nobody wants, is not remembered.
            let is_wanted = !state.queue.is_empty() || state.unconfirmed.any_in_flight() || is_bound;
            let mark_kept = is_wanted || state.plain_hold.is_some();
            let plain = plain.filter(|_| if forgets { !state.queue.is_empty() } else { mark_kept });
            if handed_over || state.plain_hold.as_ref() != plain {
                state.plain_hold = plain.map(|hold| Hold { renewed: false, ..hold.clone() });
            }
            if alone.is_none() {
                state.held_since = None;
            }
            !is_reserved && std::mem::take(&mut state.unannounced)
        });
        self.parts.drop_if_idle(lock);
        StepOutput {
            lock: Some(lock),
            watches_lease,
            unannounced,
            is_reserved,
            expected_end: self.expected_end,
        }
    }

    /// Notes how many hold the lock, if more is remembered of them than a step looks through; and that there is more to do.
    #[inline(always)]
    pub(super) fn note_crowd(&mut self, lock: LockIdx) {
        let is_crowded = self.parts.remembered_of(lock) > self.parts.portion.0;
        let holders = if is_crowded { counted(self.holders.len()) } else { 0 };
        if let Some(state) = self.parts.state_mut(lock) {
            state.held_by = holders;
        }
        if (self.is_unfinished || self.is_due_again) && !self.parts.demoted {
            self.parts.table.set_ready(lock);
        }
    }

    pub(super) fn forget_if_free(&mut self) {
        if self.holders.is_free() {
            self.parts.granted_keys.remove(self.name);
        }
    }

    /// Forgets what is not needed any more of external clients, now or after a while.
    #[inline(always)]
    pub(super) fn settle_fairness(&mut self, lock: LockIdx) {
        let (is_free, now) = (self.holders.is_free(), self.now);
        let Some(state) = self.parts.state_mut(lock) else { return };
        let used = state.fairness.settle(is_free, !state.queue.is_empty(), now);
        self.parts.windows_used += usize::from(used);
        self.parts.schedule_window(lock);
    }

    /// Keeps an own deadline for the end of the first lease of every lock that somebody waits for. Returns whether there is
    /// one.
    #[inline(always)]
    pub(super) fn watch_lease(&mut self, lock: LockIdx) -> bool {
        let is_free = self.holders.is_free();
        let Some(state) = self.parts.state(lock) else { return false };
        let is_waited_for = !state.queue.is_empty() || (!is_free && state.fairness.has_subscribers());
        if !is_waited_for && !state.has_owners_to_notify() {
            if self.handed_over && !is_free {
                self.parts.keep_watching(lock);
            } else {
                self.parts.schedule_lease(lock, None);
            }
            return false;
        }
        let ends_unheard = match self.holders {
            // One reader fewer makes way for who wants the lock with fewer others; for all else there is an event.
            Holders::Shared(_) => state.queue.waits_for_fewer(),
            Holders::Free | Holders::Exclusive(_) => is_waited_for,
        };
        let of_holders = self.holders.first_end();
        let end = earlier(of_holders, state.held.first_end());
        self.parts.schedule_lease(lock, end);
        if ends_unheard && self.holders.outlives_its_field() {
            self.parts.fragile.insert(lock);
        } else if !self.parts.fragile.is_empty() {
            self.parts.fragile.remove(lock);
        }
        of_holders.is_some()
    }
}
