// SPDX-License-Identifier: MIT

//! Blocked clients: from the call that waits to the confirmed delivery of its grant.

pub(super) mod blocked_clients;
pub(super) mod blocking;
pub(super) mod deliveries;
pub(super) mod known_clients;
pub(super) mod polls;
pub(super) mod sessions;
