// SPDX-License-Identifier: MIT

//! Decisions and notices for the driver.

use super::LockManager;
use crate::core::{Decision, HoldEvent, Notice, WaiterId};

impl LockManager {
    /// Takes the next notice to an owner, in order of detection.
    pub(crate) fn next_notice(&mut self) -> Option<Notice> {
        while let Some(notice) = self.parts.notices.pop_front() {
            // Skips the notice that the lock has a waiter, if none is left by now.
            if notice.event != HoldEvent::Contended || self.waiting(notice.lock.as_ref()) > 0 {
                return Some(notice);
            }
        }
        // Frees excess memory.
        self.parts.notices.shrink_to(64);
        None
    }

    /// Whether any decision is pending.
    pub(crate) fn has_decided(&self) -> bool {
        !self.parts.decisions.is_empty()
    }

    /// Takes the next decision, in order.
    pub(crate) fn next_decision(&mut self) -> Option<(WaiterId, Decision)> {
        let next = self.parts.decisions.pop_front();
        if next.is_none() {
            // Frees excess memory.
            self.parts.decisions.shrink_to(64);
        }
        next
    }
}
