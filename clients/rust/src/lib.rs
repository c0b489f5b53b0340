// SPDX-License-Identifier: MIT

//! Locks of the redis-lock server module, for tokio. [`blocking`] is for threads.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use redis_lock_client::{Error, Locks};
//!
//! # async fn work(token: Option<u64>) {}
//! # async fn example() -> Result<(), Error> {
//! let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
//!
//! // Waits for the lock. The server renews the hold while this process lives.
//! let hold = locks.lock("order:42").acquire().await?;
//! hold.release().await?;
//!
//! let orders = locks.lock("order:42").wait(Duration::from_secs(2)).fence();
//! orders.with(async |hold| {
//!     work(hold.token()).await;
//!     Ok(())
//! }).await
//! # }
//! ```
//!
//! All waits and holds of a process share one session on the server, which one thread keeps alive.

#[cfg(not(unix))]
compile_error!("redis-lock-client needs Unix");

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod acquire;
pub mod blocking;
mod clock;
mod core;
mod error;
mod io;
mod lock;
mod reader;
mod request;
mod server;
mod session;

pub use crate::core::Event;
pub use error::{Error, ErrorKind, Result};
pub use lock::{HoldOf, LockOf, LocksOf, Settings};
pub use server::Server;

/// The locks of tokio tasks.
pub type Locks = LocksOf<false>;
/// A lock of tokio tasks.
pub type Lock = LockOf<false>;
/// A lock that a tokio task holds.
pub type Hold = HoldOf<false>;
