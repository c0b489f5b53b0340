// SPDX-License-Identifier: MIT

//! The delivery of grants to their clients.

use super::LockManager;
use crate::core::bindings::binding::{BindMode, NewBind};
use crate::core::{Now, WaiterId};

impl LockManager {
    /// Confirms a grant that has reached its client, and starts its bindings. Returns whether work is due
    /// soon.
    pub(crate) fn delivered(&mut self, id: WaiterId, now: Now) -> bool {
        if let Some(follows) = self.delivered_plain(id) {
            return follows;
        }
        // Confirms all members of a bundle.
        self.parts.waiters.together(id).into_iter().fold(false, |any, id| self.delivered_alone(id, now) | any)
    }

    /// Records that the client was answered. The client may read the answer before
    /// [`delivered`](Self::delivered) is called.
    #[inline]
    pub(crate) fn answered(&mut self, id: WaiterId) {
        if !self.parts.waiters.bundles.is_empty() {
            self.parts.waiters.bundles.answered(id);
        }
    }

    /// Records that replicas have acknowledged the grant and its client is answered. From now on, the
    /// delivery confirms the grant.
    pub(crate) fn acknowledged(&mut self, id: WaiterId) {
        for id in self.parts.waiters.together(id) {
            self.parts.void_if_ended(id);
            let Some(wait) = self.parts.waiters.get(id) else { continue };
            let lock = wait.lock();
            if let Some(state) = self.parts.table.get_mut(lock) {
                state.unconfirmed_mut().acknowledged(id, &wait.request().owner);
            }
            self.parts.unwatch_lease(lock);
        }
    }

    /// Confirms a delivered grant without consequences, as most are. Returns whether work is due soon.
    /// Returns `None`, with nothing changed, if the grant may have consequences.
    pub(crate) fn delivered_plain(&mut self, id: WaiterId) -> Option<bool> {
        self.parts.confirm_plain(id).then(|| self.parts.table.any_ready())
    }

    fn delivered_alone(&mut self, id: WaiterId, now: Now) -> bool {
        let Some((wait, lease)) = self.parts.confirm(id, now) else { return false };
        let (lock, request) = (wait.lock(), wait.request());
        if let Some(bind) = request.bind {
            let (since, begins, taken_over) = (wait.since(), wait.begins(), wait.taken_over());
            let bind = NewBind { bind, mode: BindMode::Add, since, begins, taken_over };
            self.parts.bindings.bind(lock, &request.owner, bind, request.id.as_ref(), lease, now);
            self.parts.statistics.has_bound(self.parts.bindings.count());
        }
        if request.awaits_replicas {
            self.parts.unwatch_lease(lock);
        }
        self.parts.drop_if_idle(lock);
        request.bind.is_some() || self.parts.table.any_ready()
    }

    /// Logs that a grant is revoked for this reason.
    pub(crate) fn log_revoked(&mut self, id: WaiterId, reason: &'static str) {
        self.parts.log_revoked(id, reason);
    }

    /// Marks a grant for revocation: its client went away before the answer.
    pub(crate) fn undelivered(&mut self, id: WaiterId) {
        self.parts.mark_for_revocation(id);
    }
}
