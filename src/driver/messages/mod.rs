// SPDX-License-Identifier: MIT

//! Messages that the module publishes: grants for inboxes, and events of holds for their owners.

pub(super) mod inbox_publisher;
pub(super) mod inboxes;
pub(super) mod owner_events;
