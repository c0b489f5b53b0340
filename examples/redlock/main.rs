// SPDX-License-Identifier: MIT

//! One lock over several independent servers: the algorithm Redlock. Workers write to a store under the lock, and the store
//! compares tokens. Any minority of the servers may be down. `docs/redlock.md` says when to use this.
//!
//! ```text
//! cargo run --example redlock -- redis://127.0.0.1:7001 redis://127.0.0.1:7002 redis://127.0.0.1:7003
//! ```

mod redlock;
mod server;

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redlock::Redlock;

const LOCK: &str = "example:redlock";
const LEASE: Duration = Duration::from_secs(10);
/// Time limit for a reply of a server.
const LIMIT: Duration = Duration::from_millis(50);

const USAGE: &str = "usage: redlock [--workers <n>] [--writes <n>] [--patience <s>] <url> [<url> ...]";

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The protected resource: a row with a counter, which is not on the lock's servers.
#[derive(Default)]
struct Store {
    count: u64,
    token: i64,
}

impl Store {
    /// Does the same as `UPDATE … SET count = $count, token = $token WHERE token <= $token`
    fn write(&mut self, count: u64, token: i64) -> bool {
        let is_newest = token >= self.token;
        if is_newest {
            *self = Store { count, token };
        }
        is_newest
    }
}

fn run(arguments: &Arguments) -> Outcome<()> {
    let store = Mutex::new(Store::default());
    let patience = Duration::from_secs(arguments.patience);
    let work = || -> Outcome<Vec<[Duration; 3]>> {
        let mut redlock = Redlock::new(arguments.urls.iter().map(String::as_str), LIMIT)?;
        (0..arguments.writes).map(|_| write(&mut redlock, &store, patience)).collect()
    };
    let times = thread::scope(|scope| -> Outcome<Vec<[Duration; 3]>> {
        let workers: Vec<_> = (0..arguments.workers).map(|_| scope.spawn(work)).collect();
        let mut times = Vec::new();
        for worker in workers {
            times.extend(worker.join().map_err(|_| "a worker panicked")??);
        }
        Ok(times)
    })?;
    let expected = arguments.workers * arguments.writes;
    println!("expected {expected}, got {}", store.into_inner().unwrap_or_else(PoisonError::into_inner).count);
    for (number, what) in ["acquire", "renew", "release"].into_iter().enumerate() {
        let mut times: Vec<Duration> = times.iter().map(|times| times[number]).collect();
        times.sort_unstable();
        if let Some(median) = times.get(times.len() / 2) {
            println!("{what}: {:.2} ms, half of the times", median.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

/// Adds one to the count under the lock. Returns the times of the acquire, the renewal and the release.
fn write(redlock: &mut Redlock, store: &Mutex<Store>, patience: Duration) -> Outcome<[Duration; 3]> {
    let begun = Instant::now();
    let mut hold = redlock.acquire(LOCK, LEASE, patience)?;
    let acquired = begun.elapsed();
    let lock = || store.lock().unwrap_or_else(PoisonError::into_inner);
    let count = lock().count;
    thread::sleep(Duration::from_millis(1));
    // Work that may take longer than the lease renews it regularly. A failed renewal leaves the validity as it was.
    let begun = Instant::now();
    redlock.renew(&mut hold);
    let renewed = begun.elapsed();
    if Instant::now() >= hold.valid_until || !lock().write(count + 1, hold.token) {
        return Err("the lock was lost before the write".into());
    }
    let begun = Instant::now();
    redlock.release(hold);
    Ok([acquired, renewed, begun.elapsed()])
}

struct Arguments {
    workers: u64,
    writes: u64,
    /// Limit of an acquire, in seconds.
    patience: u64,
    urls: Vec<String>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Arguments> {
        let mut arguments = Arguments { workers: 4, writes: 25, patience: 10, urls: Vec::new() };
        while let Some(word) = words.next() {
            let number = match word.as_str() {
                "--workers" => &mut arguments.workers,
                "--writes" => &mut arguments.writes,
                "--patience" => &mut arguments.patience,
                option if option.starts_with('-') => return Err(USAGE.into()),
                _ => {
                    arguments.urls.push(word);
                    continue;
                }
            };
            *number = words.next().and_then(|word| word.parse().ok()).ok_or(USAGE)?;
        }
        if arguments.urls.is_empty() {
            return Err(USAGE.into());
        }
        Ok(arguments)
    }
}
