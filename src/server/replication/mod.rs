// SPDX-License-Identifier: MIT

//! Output besides replies: commands for replicas and the AOF, keyspace events, messages, and the progress of replicas.

pub(crate) mod keyspace_events;
pub(crate) mod propagation;
pub(crate) mod replica_messages;
pub(crate) mod replicas;
