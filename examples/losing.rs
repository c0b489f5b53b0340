// SPDX-License-Identifier: MIT

//! Works page by page until the lock is lost. Break the lock, or delete its key: the work stops at once.
//!
//! ```text
//! cargo run --example losing -- redis://127.0.0.1:6379
//! redis-cli LOCK.BREAK example:lock
//! ```

use std::time::{Duration, Instant};

use redis_lock_client::blocking::Locks;
use redis_lock_client::ErrorKind;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: losing URL")?;
    let locks = Locks::new(redis::Client::open(url)?);
    // The server renews the hold for ten minutes at most. Otherwise a process that hangs would hold the lock for ever.
    let hold = locks.lock("example:lock").max_hold(Duration::from_secs(600)).acquire()?;
    let (start, mut pages) = (Instant::now(), 0);
    while !hold.wait_lost(Duration::from_millis(1)) {
        pages += 1;
    }
    println!("lost after {pages} pages and {:?}", start.elapsed());
    // The release reports the loss, too, for programs that do not check during the work.
    match hold.release() {
        Err(error) if error.kind() == ErrorKind::Lost => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
