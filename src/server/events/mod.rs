// SPDX-License-Identifier: MIT

//! Events of the server: keys, databases, connections, roles, and its event loop.

pub(crate) mod event_loop;
pub(crate) mod iteration_end;
pub(crate) mod muted;
pub(crate) mod selected_database;
pub(crate) mod server_events;
pub(super) mod subscription;
