// SPDX-License-Identifier: MIT

//! Clients: the caller and its permissions, blocked clients, their sockets, and commands that outlast their callback.

pub(crate) mod blocked;
pub(crate) mod caller;
pub(crate) mod deferred;
pub(crate) mod guarded_command;
pub(crate) mod long_reply;
pub(crate) mod peer;
pub(crate) mod socket;
