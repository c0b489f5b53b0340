// SPDX-License-Identifier: MIT

//! Works page by page until the lock is lost. Break the lock, or delete its key: the work stops at the next renewal, within a
//! third of the lease.
//!
//! ```text
//! cargo run --example losing -- redis://127.0.0.1:6379
//! redis-cli LOCK.BREAK example:lock
//! ```

use std::time::{Duration, Instant};

use redis_lock_client::{Error, Locks};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: losing URL")?;
    let locks = Locks::new(&redis::Client::open(url)?)?;
    // The server renews the lease for ten minutes at most: otherwise a process that hangs would hold the lock for ever.
    let lock = locks
        .lock("example:lock")
        .lease(Duration::from_secs(3))
        .keep(true)
        .max_hold(Duration::from_secs(600));
    let hold = lock.acquire()?;
    let (start, mut pages) = (Instant::now(), 0);
    while !hold.wait_lost(Duration::from_millis(1)) {
        pages += 1;
    }
    println!("lost after {pages} pages and {:?}", start.elapsed());
    // The release reports the loss, too, for programs that do not check during the work.
    match hold.release() {
        Err(Error::Lost(_)) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
