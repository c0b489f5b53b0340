// SPDX-License-Identifier: MIT

//! An API of somebody else that allows ten calls at a time, and fifty workers that want it: `SHARED LIMIT 10`.
//!
//! First they call it as they like, and it refuses most. Then each takes a permit before its call, and it refuses none.
//!
//! ```text
//! redis-server --loadmodule target/release/libredis_lock.so
//! cargo run --example permits -- --url redis://127.0.0.1:6379
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use redis::{Client, Connection};

const LOCK: &str = "example:api";
const WORKERS: usize = 50;
const CALLS: usize = 10;
/// What the API allows.
const AT_A_TIME: u32 = 10;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The API.
#[derive(Default)]
struct Api {
    running: AtomicU32,
    most: AtomicU32,
    refused: AtomicU32,
}

impl Api {
    fn call(&self) {
        let running = 1 + self.running.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(running, Ordering::SeqCst);
        if running > AT_A_TIME {
            self.refused.fetch_add(1, Ordering::SeqCst);
        } else {
            thread::sleep(Duration::from_millis(2));
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn main() -> Outcome<ExitCode> {
    let client = Client::open(url()?.as_str())?;
    let freely = everybody_calls(&client, |api, _, _| {
        api.call();
        Ok(())
    })?;
    println!("without permits: {} of {} calls were refused", freely, WORKERS * CALLS);
    let with_permits = everybody_calls(&client, |api, owner, connection| {
        take_permit(connection, owner)?;
        api.call();
        give_back(connection, owner)
    })?;
    println!("with {AT_A_TIME} permits: {with_permits} of {} calls were refused", WORKERS * CALLS);
    Ok(if with_permits == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits for a permit. If this worker dies, its permit comes back when its connection closes; if it hangs, after ten seconds.
fn take_permit(connection: &mut Connection, owner: &str) -> Outcome<()> {
    let options = ["SHARED", "LIMIT", &AT_A_TIME.to_string(), "PX", "10000", "EPHEMERAL", "BLOCK", "0"];
    redis::cmd("LOCK.ACQUIRE").arg(LOCK).arg(owner).arg(&options).query::<i64>(connection)?;
    Ok(())
}

fn give_back(connection: &mut Connection, owner: &str) -> Outcome<()> {
    redis::cmd("LOCK.RELEASE").arg(LOCK).arg(owner).query::<i64>(connection)?;
    Ok(())
}

/// Every worker makes its calls. Returns how many the API refused.
fn everybody_calls(
    client: &Client,
    call: impl Fn(&Api, &str, &mut Connection) -> Outcome<()> + Sync,
) -> Outcome<u32> {
    let api = Api::default();
    let work = &|number: usize| -> Outcome<()> {
        let (owner, mut connection) = (format!("worker-{number}"), client.get_connection()?);
        (0..CALLS).try_for_each(|_| call(&api, &owner, &mut connection))
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|number| scope.spawn(move || work(number))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
    })?;
    println!("{} calls at a time at most", api.most.into_inner());
    Ok(api.refused.into_inner())
}

fn url() -> Outcome<String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok("redis://127.0.0.1:6379".to_owned()),
        ["--url", url] => Ok(url.to_owned()),
        _ => Err("usage: permits [--url <url>]".into()),
    }
}
