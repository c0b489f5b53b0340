// SPDX-License-Identifier: MIT

//! Subscriptions to events of the server, and the events that owners get about their holds.

pub(super) mod event_loop_hook;
pub(super) mod owner_events;
pub(super) mod subscriptions;
