// SPDX-License-Identifier: MIT

//! Tests of client-visible behavior on real servers. Each test starts its own servers, see `support`. Numbers in parentheses
//! in the first lines of a file refer to the invariants in `docs/design.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::undocumented_unsafe_blocks, unreachable_pub)]

mod support;

mod basics;
mod becoming_free;
mod cancel;
mod client_servers;
mod client_spec;
mod clients;
mod cluster;
mod connections;
mod counted;
mod deadlocks;
mod demotion;
mod describe;
mod effects;
mod errors;
mod events;
mod examples;
mod failovers;
mod fair_locks;
mod fairness_windows;
mod fencing;
mod fields;
mod floor;
mod followers;
mod guarded;
mod guarded_fuzz;
mod guarded_scripts;
mod histories;
mod limit;
mod loading;
mod lockrun;
mod locktop;
mod messages;
mod migrations;
mod monitoring;
mod moving;
mod notify;
mod notify_many;
mod once;
mod outages;
mod package_examples;
mod packages;
mod partitions;
mod pauses;
mod quarantine;
mod races;
mod readers;
mod redisson;
mod redlock;
mod replicas;
mod retries;
mod revoked;
mod scripts;
mod sessions;
mod setups;
mod several;
mod shared;
mod soak;
mod tables;
mod waiting;
mod who;
mod words;
