// SPDX-License-Identifier: MIT

//! Locks for threads, without an asynchronous runtime of the user.
//!
//! A call blocks the thread that makes it. One more thread reads events.
//!
//! ```no_run
//! use redis_lock_client::blocking::Locks;
//!
//! # fn main() -> redis_lock_client::Result<()> {
//! let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
//! let hold = locks.lock("order:42").acquire()?;
//! hold.release()?;
//! # Ok(()) }
//! ```

use std::future::Future;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::io::Gate;
use crate::lock::{HoldOf, LockOf, LocksOf};

/// The locks of threads.
pub type Locks = LocksOf<true>;
/// A lock of threads.
pub type Lock = LockOf<true>;
/// A lock that a thread holds.
pub type Hold = HoldOf<true>;

/// Lets another thread end an acquire. It is final: a later acquire with it ends at once.
#[derive(Clone, Debug, Default)]
pub struct Canceller(Arc<Gate>);

impl Canceller {
    /// A canceller that has not cancelled anything.
    #[must_use]
    pub fn new() -> Canceller {
        Canceller::default()
    }

    /// Every acquire with this canceller that has not returned fails with [`ErrorKind::Cancelled`].
    pub fn cancel(&self) {
        self.0.open();
    }

    /// Whether `cancel` was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_open()
    }

    pub(crate) async fn limit<T>(&self, acquire: impl Future<Output = Result<T>>) -> Result<T> {
        let cancelled = || Err(Error::new(ErrorKind::Cancelled, "the acquire was cancelled"));
        if self.is_cancelled() {
            cancelled()
        } else {
            self.0.limit(acquire).await.unwrap_or_else(cancelled)
        }
    }
}
