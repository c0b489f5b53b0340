//! What is to be done when, and what time brings about.

use super::{Decision, LockId, MonoUs, Now, Service};

/// How many locks one [`Service::tick`] asks its caller to look at, so that thousands of leases that end in
/// the same millisecond do not stall the server: the rest follows in the next tick.
const TICK_BATCH: usize = 64;

/// How long to wait before looking again while nothing may be written, in milliseconds.
const PAUSE_RETRY_MS: u64 = 2;

impl Service {
    /// Time has passed, or something was touched. Ends the waits whose time is over; then, if it is allowed
    /// to write now, returns the locks that the caller must open and [`serve`](Service::serve).
    pub(crate) fn tick(&mut self, now: Now, may_write: bool) -> Vec<LockId> {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now.mono {
                break;
            }
            if let Some(waiter) = self.decide(id, Decision::TimedOut) {
                self.left_behind(&waiter);
            }
        }
        self.sweep(now.mono);
        if !may_write {
            return Vec::new();
        }
        while let Some((end, lock)) = self.leases.first() {
            // A key is expired only when its time has passed, not when it has come.
            if *end >= now.wall {
                break;
            }
            let lock = lock.clone();
            let planned = (*end, lock.clone());
            self.set_lease_end(lock.as_ref(), None);
            // Were it planned for no entry, it would be planned for ever.
            self.leases.remove(&planned);
            self.dirty.insert(lock);
        }
        self.end_turns(now);
        // They stay planned until the lock is looked at.
        let due = self.renewals.iter().take_while(|(at, ..)| *at <= now.mono);
        let due: Vec<LockId> = due.take(TICK_BATCH).map(|(_, lock, _)| lock.clone()).collect();
        self.dirty.extend(due);
        let batch: Vec<LockId> = self.dirty.iter().take(TICK_BATCH).cloned().collect();
        for lock in &batch {
            self.dirty.remove(lock);
        }
        batch
    }

    /// True if [`next_wakeup`](Service::next_wakeup) is `None`.
    pub(crate) fn plans_nothing(&self) -> bool {
        self.only_forgets() && self.sweeps.is_empty() && self.ended.is_empty()
    }

    /// True if nothing is planned but to forget what is over.
    pub(crate) fn only_forgets(&self) -> bool {
        self.dirty.is_empty()
            && self.deadlines.is_empty()
            && self.leases.is_empty()
            && self.renewals.is_empty()
            && self.turns.is_empty()
    }

    /// In how many milliseconds [`tick`](Service::tick) is due; `None` if nothing is planned.
    pub(crate) fn next_wakeup(&self, now: Now, may_write: bool) -> Option<u64> {
        let until = |at: MonoUs| at.saturating_sub(now.mono).div_ceil(1000);
        let deadline = self.next_deadline(now);
        let renewal = self.renewals.first().map(|(at, ..)| until(*at));
        let dirty = (!self.dirty.is_empty()).then_some(0);
        // At least 1: a key may outlive its lease by the age of the clock that the server decides by.
        let lease = self
            .leases
            .first()
            .map(|(end, _)| end.saturating_sub(now.wall).saturating_add(1).max(1).unsigned_abs());
        let turn = self.turns.first().map(|(at, _)| until(*at));
        let work = [renewal, dirty, lease, turn].into_iter().flatten().min();
        let work = if may_write { work } else { work.map(|ms| ms.max(PAUSE_RETRY_MS)) };
        let sweep = self.sweeps.first().map(|(at, ..)| *at).into_iter().chain(self.ended.due()).min();
        deadline.into_iter().chain(work).chain(sweep.map(until)).min()
    }

    /// In how many milliseconds the first wait is over, for which nothing needs to be written.
    pub(crate) fn next_deadline(&self, now: Now) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| at.saturating_sub(now.mono).div_ceil(1000))
    }
}
