// SPDX-License-Identifier: MIT

//! Subscriptions to events of the server.

pub(super) mod event_loop_hook;
pub(super) mod subscriptions;
