// SPDX-License-Identifier: MIT

//! Several workers share one counter: first without a lock, where they overwrite each other, then with one.
//!
//! ```text
//! redis-server --loadmodule target/release/libredis_lock.so
//! cargo run --example raw_counter -- --url redis://127.0.0.1:6379 --workers 10 --increments 100
//! ```

use std::error::Error;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;

use redis::{Commands, Connection, RedisResult};
use uuid::Uuid;

const COUNTER: &str = "example:counter";
const LOCK: &str = "example:lock";

/// For how long the lock is ours. Longer than the work ever takes, and the time for which everybody waits if
/// we die while we hold it.
const LEASE_MS: u64 = 10_000;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<ExitCode> {
    let options = Options::parse()?;
    let client = redis::Client::open(options.url.as_str())?;
    // A connection of its own for each worker, not a shared one: a call that waits for the lock occupies its
    // connection until it is answered.
    let mut connections = Vec::new();
    for _ in 0..options.workers {
        connections.push(client.get_connection()?);
    }

    let expected = options.workers * options.increments;
    let got = count(&mut connections, options.increments, |connection, _owner| Ok(increment(connection)?))?;
    println!("without the lock: expected {expected}, got {got}");

    let got = count(&mut connections, options.increments, |connection, owner| {
        with_lock(connection, owner, increment)
    })?;
    println!("with the lock:    expected {expected}, got {got}");
    Ok(if got == expected { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs `work` while `owner` holds the lock.
fn with_lock<T>(
    connection: &mut Connection,
    owner: &str,
    work: impl FnOnce(&mut Connection) -> RedisResult<T>,
) -> Outcome<T> {
    // BLOCK 0 waits without limit, so the reply is always a grant: our hold count. With BLOCK 500 it could also
    // be nil, after 500 ms without the lock: query for an Option<i64> then, and do not work if it is None.
    // A socket timeout has to be longer than BLOCK; for BLOCK 0 there must be none, which is the default here.
    let _holds: i64 = redis::cmd("LOCK.ACQUIRE")
        .arg(LOCK)
        .arg(owner)
        .arg("PX")
        .arg(LEASE_MS)
        .arg("BLOCK")
        .arg(0)
        .query(connection)?;

    let result = work(connection);

    // Whether the work went well or not. (If the thread panics, or the process dies, the lease frees the lock.)
    let released: RedisResult<i64> = redis::cmd("LOCK.RELEASE").arg(LOCK).arg(owner).query(connection);
    let value = result?;
    match released {
        Ok(_holds_left) => Ok(value),
        // The lease was too short, or somebody broke the lock: others may have worked at the same time.
        Err(error) if error.code() == Some("NOTOWNER") => {
            Err(format!("the lock was lost during the work, its result must not be trusted: {error}").into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads, and writes what it has read plus one: wrong if anybody else writes in between. (A real counter would
/// use INCR; this stands for work that no single command can do.)
fn increment(connection: &mut Connection) -> RedisResult<()> {
    let value: u64 = connection.get(COUNTER)?;
    thread::yield_now();
    connection.set(COUNTER, value + 1)
}

/// Lets every connection's worker do `work` so many times, all at once, and returns what the counter says then.
fn count(
    connections: &mut [Connection],
    increments: u64,
    work: impl Fn(&mut Connection, &str) -> Outcome<()> + Sync,
) -> Outcome<u64> {
    connections[0].set::<_, _, ()>(COUNTER, 0)?;
    let start = Barrier::new(connections.len());
    let worker = |connection: &mut Connection| -> Outcome<()> {
        // Whoever uses the same string is the same owner: so it is random, and one for each worker.
        let owner = Uuid::new_v4().to_string();
        start.wait();
        for _ in 0..increments {
            work(connection, &owner)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            connections.iter_mut().map(|connection| scope.spawn(|| worker(connection))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    Ok(connections[0].get_del(COUNTER)?)
}

struct Options {
    url: String,
    workers: u64,
    increments: u64,
}

impl Options {
    fn parse() -> Outcome<Options> {
        let mut options = Options { url: "redis://127.0.0.1:6379".to_owned(), workers: 10, increments: 100 };
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            let value = args.next().ok_or("usage: counter [--url URL] [--workers N] [--increments N]")?;
            match name.as_str() {
                "--url" => options.url = value,
                "--workers" => options.workers = value.parse()?,
                "--increments" => options.increments = value.parse()?,
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        if options.workers == 0 {
            return Err("at least one worker is needed".into());
        }
        Ok(options)
    }
}
