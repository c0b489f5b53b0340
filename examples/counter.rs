// SPDX-License-Identifier: MIT

//! Counts under a lock: reads a number and writes it plus one. No increment gets lost, even beside the other languages.
//!
//! ```text
//! cargo run --example counter -- redis://127.0.0.1:6379 100
//! ```

use redis::Commands;
use redis_lock_client::Locks;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, url, times] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: counter URL TIMES".into());
    };
    let client = redis::Client::open(url.as_str())?;
    let (locks, mut connection) = (Locks::new(&client)?, client.get_connection()?);
    for _ in 0..times.parse()? {
        // The loss of the lock ends the program: `with` returns `Error::Lost`.
        locks.lock("example:lock").with(|_| -> Result<(), Box<dyn std::error::Error>> {
            let value: Option<u64> = connection.get("example:counter")?;
            Ok(connection.set("example:counter", value.unwrap_or(0) + 1)?)
        })?;
    }
    Ok(())
}
