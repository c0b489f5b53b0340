// SPDX-License-Identifier: MIT

//! Decisions, messages and notices for the driver.

use super::LockManager;
use crate::core::{Decision, HoldEvent, InboxEvent, Message, Notice, WaiterId};

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

    /// Whether any decision or message is pending.
    pub(crate) fn has_decided(&self) -> bool {
        !self.parts.decisions.is_empty() || self.has_messages()
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

    /// Takes the next message, in order. Skips messages about grants that were confirmed or revoked since.
    pub(crate) fn next_message(&mut self) -> Option<Message> {
        while let Some(message) = self.parts.messages.pop_front() {
            if message.event == InboxEvent::Lost || self.is_in_flight(message.id) {
                return Some(message);
            }
        }
        // Frees excess memory.
        self.parts.messages.shrink_to(64);
        None
    }

    /// Whether any message may be pending.
    pub(crate) fn has_messages(&self) -> bool {
        !self.parts.messages.is_empty()
    }
}
