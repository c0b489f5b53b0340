// SPDX-License-Identifier: MIT

//! Works page by page for as long as the lock is held. Break it, or delete its key: the work stops at the next renewal, which comes
//! within a third of the lease.
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
    // The server renews the lease, but not for ever: a process that hangs must not hold the lock until somebody sees it.
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
    // It says so, too: whoever does not look meanwhile learns of it here.
    match hold.release() {
        Err(Error::Lost(_)) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
