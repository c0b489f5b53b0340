// SPDX-License-Identifier: MIT

//! Counts under a lock: reads a number and writes it plus one. No increment is lost, even beside other languages.
//!
//! ```text
//! cargo run --example counter -- redis://127.0.0.1:6379 100
//! ```

use redis::AsyncCommands;
use redis_lock_client::Locks;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let [_, url, times] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: counter URL TIMES".into());
    };
    let client = redis::Client::open(url.as_str())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let locks = Locks::new(client);
    for _ in 0..times.parse()? {
        // The loss of the lock ends the program: `with` fails.
        let count = async |_: &_| -> Result<(), Failure> {
            let value: Option<u64> = connection.get("example:counter").await?;
            Ok(connection.set("example:counter", value.unwrap_or(0) + 1).await?)
        };
        locks.lock("example:lock").with(count).await?;
    }
    locks.close().await;
    Ok(())
}
