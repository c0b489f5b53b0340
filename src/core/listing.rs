//! Who waits: for those who look, not for those who decide.

use super::service::Service;
use super::{LockRef, MonoUs, Now, Owner, WaiterId};

/// One entry of [`Service::waiters_of`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaiterInfo<'a> {
    pub(crate) id: WaiterId,
    pub(crate) owner: &'a Owner,
    pub(crate) waited_us: MonoUs,
    /// `None`: waits without limit.
    pub(crate) remaining_us: Option<MonoUs>,
}

impl Service {
    /// How many wait for this lock.
    pub(crate) fn waiting(&self, lock: LockRef<'_>) -> usize {
        self.queues.get(lock).map_or(0, |queue| queue.waiting.len())
    }

    /// How many wait for any lock.
    pub(crate) fn waiting_total(&self) -> usize {
        self.waiters.len()
    }

    /// How many locks are waited for.
    pub(crate) fn contended(&self) -> usize {
        self.queues.iter().filter(|queue| !queue.waiting.is_empty()).count()
    }

    /// Who waits for this lock, first in line first.
    pub(crate) fn waiters_of<'a>(
        &'a self,
        lock: LockRef<'_>,
        now: Now,
    ) -> impl Iterator<Item = WaiterInfo<'a>> {
        let waiting = self.queues.get(lock).map(|queue| queue.waiting.iter()).into_iter().flatten();
        waiting.filter_map(move |id| {
            let waiter = self.waiters.get(id)?;
            Some(WaiterInfo {
                id: *id,
                owner: &waiter.request.owner,
                waited_us: now.mono.saturating_sub(waiter.since),
                remaining_us: waiter.deadline.map(|at| at.saturating_sub(now.mono)),
            })
        })
    }
}
