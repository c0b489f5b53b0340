// SPDX-License-Identifier: MIT

//! Locks for threads, without an asynchronous runtime.
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

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};

use crate::acquire::{Acquire, Phase};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{locked, run, Threads};
use crate::lock::{deadline, HoldOf, LockOf, LocksOf};

/// The locks of threads.
pub type Locks = LocksOf<Threads>;
/// A lock of threads.
pub type Lock = LockOf<Threads>;
/// A lock that a thread holds.
pub type Hold = HoldOf<Threads>;

/// Lets another thread end an acquire. It is final: a later acquire with it ends at once.
#[derive(Clone, Default)]
pub struct Canceller(Arc<Mutex<Asked>>);

#[derive(Default)]
struct Asked {
    is_cancelled: bool,
    acquires: Vec<Arc<Acquire<Threads>>>,
}

impl Canceller {
    /// A canceller that has not cancelled anything.
    #[must_use]
    pub fn new() -> Canceller {
        Canceller::default()
    }

    /// Every acquire with this canceller that has not returned fails with [`ErrorKind::Cancelled`].
    pub fn cancel(&self) {
        let acquires = {
            let mut asked = locked(&self.0);
            asked.is_cancelled = true;
            std::mem::take(&mut asked.acquires)
        };
        for acquire in acquires {
            acquire.interrupt(cancelled());
        }
    }

    /// Whether `cancel` was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        locked(&self.0).is_cancelled
    }

    fn add(&self, acquire: &Arc<Acquire<Threads>>) -> Result<()> {
        let mut asked = locked(&self.0);
        if asked.is_cancelled {
            return Err(cancelled());
        }
        asked.acquires.retain(|acquire| acquire.now().phase == Phase::Asked);
        asked.acquires.push(Arc::clone(acquire));
        Ok(())
    }
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Canceller")
            .field("is_cancelled", &locked(&self.0).is_cancelled)
            .finish_non_exhaustive()
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the acquire was cancelled")
}

impl LocksOf<Threads> {
    /// Ends all waits and renewed holds, the session and its thread. A hold with a lease remains until its lease ends.
    pub fn close(&self) {
        run(self.0 .0.close());
    }
}

impl LockOf<Threads> {
    /// Waits for the lock, first come, first served.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] after the limit of the wait, or [`ErrorKind::Busy`] if that is zero; [`ErrorKind::Deadlock`],
    /// [`ErrorKind::Cancelled`] if the locks are closed, [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub fn acquire(&self) -> Result<Hold> {
        run(self.demand(|_| Ok(())))
    }

    /// Waits for the lock, first come, first served. Another thread can end the wait by the canceller.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`ErrorKind::Cancelled`].
    pub fn acquire_with(&self, canceller: &Canceller) -> Result<Hold> {
        run(self.demand(|acquire| canceller.add(acquire)))
    }

    /// The hold, or None if another owner has the lock. Does not wait.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Deadlock`], [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub fn try_acquire(&self) -> Result<Option<Hold>> {
        run(self.ask(Some(Duration::ZERO), |_| Ok(())))
    }

    /// Runs a body while the lock is held. An error of the body is returned, even if the lock is lost.
    ///
    /// # Errors
    ///
    /// Those of the body, of [`acquire`](Self::acquire), and of [`release`](HoldOf::release), as [`ErrorKind::Lost`].
    pub fn with<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&Hold) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut hold = self.acquire()?;
        hold.is_scoped = true;
        let result = body(&hold);
        let released = hold.release();
        let result = result?;
        released?;
        Ok(result)
    }

    /// Takes over a hold that another process has [handed over](HoldOf::hand_over).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the hold has ended; [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub fn attach(&self, ticket: &str) -> Result<Hold> {
        run(self.attach_to(ticket))
    }

    /// The reply of `LOCK.INFO`: holders, waiters and more. None if the lock is free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub fn query(&self) -> Result<Option<HashMap<String, Value>>> {
        run(self.info())
    }

    /// Takes the lock from its holders. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub fn force_release(&self) -> Result<bool> {
        run(self.break_all())
    }
}

impl HoldOf<Threads> {
    /// Releases exactly this hold. May be called again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the hold ended before. [`ErrorKind::Unavailable`] if no server answered within the patience: then
    /// the release continues in the background.
    pub fn release(&self) -> Result<()> {
        run(self.end())
    }

    /// Sets the lease, from now. Without an argument, repeats the lease of the lock, or checks a renewed hold.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`], [`ErrorKind::Unavailable`], or [`ErrorKind::Misuse`] if a lease is given for a renewed hold.
    pub fn extend(&self, lease: impl Into<Option<Duration>>) -> Result<()> {
        run(self.renew(lease.into()))
    }

    /// Waits until the hold is lost or released, for at most this time. Returns whether it is lost.
    pub fn wait_lost(&self, limit: Duration) -> bool {
        run(self.wait_end(deadline(limit)))
    }

    /// Returns a ticket, with which another process takes over this hold by [`attach`](LockOf::attach).
    ///
    /// Until then this process keeps the hold alive. `release` does nothing any longer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the hold has ended, [`ErrorKind::Misuse`] for several locks, and [`ErrorKind::Unavailable`].
    pub fn hand_over(&self) -> Result<String> {
        run(self.ticket())
    }

    /// Runs a Redis command in one step with the check that this owner holds the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the owner does not hold the lock, and errors of the command.
    pub fn guard<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        run(self.guarded(command))
    }
}
