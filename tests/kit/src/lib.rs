// SPDX-License-Identifier: MIT

//! Servers, clients, faults and client programs for the tests and the benchmarks of redis-lock.
//!
//! # Layout
//!
//! - [`server`]: real servers, with the module or without it; replicas, Sentinel and clusters.
//! - [`client`]: a connection on which a test controls every byte.
//! - [`session`]: a client of one session, with the rules that a package follows.
//! - [`faults`]: a proxy that breaks or freezes connections, and machines whose network can be cut.
//! - [`programs`]: Redisson, the drivers of the packages, the examples, and the tools in a terminal.
//! - [`lua`]: Redisson's scripts.
//! - [`artifacts`]: the module and the other files that cargo builds.
//!
//! A failure of the kit is a failure of the test that uses it. So most functions panic instead of returning an error.

#![allow(
    missing_docs, // Nothing of this crate is published.
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc
)]

pub mod artifacts;
pub mod client;
pub mod faults;
pub mod lua;
pub mod programs;
pub mod server;
pub mod session;

pub use client::{packed, show, Client};
pub use server::process::until;
pub use server::world::World;
pub use server::{Flavor, Server};
pub use session::Session;
