// SPDX-License-Identifier: MIT

//! Tests of client-visible behavior on real servers. Each test starts its own servers, see `support`. The numbers of
//! invariants in the first lines of a file are those of `docs/design.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::undocumented_unsafe_blocks, unreachable_pub)]

mod support;

mod basics;
mod cancel;
mod client_spec;
mod client_topologies;
mod clients;
mod cluster;
mod command_docs;
mod connections;
mod deadlocks;
mod demotion;
mod doc_examples;
mod effects;
mod errors;
mod event_loop_races;
mod examples;
mod failovers;
mod fair_locks;
mod fairness_windows;
mod fencing;
mod floor;
mod foreign_fields;
mod guarded;
mod guarded_fuzz;
mod guarded_scripts;
mod handover;
mod histories;
mod incidents;
mod limit;
mod loading;
mod lock_events;
mod lock_inspection;
mod lockrun;
mod locktop;
mod many_readers;
mod migration_histories;
mod monitoring;
mod multiple_locks;
mod new_replicas;
mod once_option;
mod outages;
mod package_examples;
mod packages;
mod partitions;
mod pauses;
mod procedures;
mod quarantine;
mod random_calls;
mod redisson;
mod redlock;
mod release_messages;
mod replicas;
mod retries;
mod revoked_grants;
mod scripts;
mod session_faults;
mod session_lifetime;
mod session_many;
mod session_nodes;
mod session_options;
mod session_several;
mod session_waits;
mod sessions;
mod setups;
mod shared;
mod slot_migrations;
mod soak;
mod statistics;
mod tables;
mod waiting;
