//! Works under a lock, with the redis crate: waits for it, renews it in the background, gives it back. Start two:
//!
//! ```text
//! redis-server --loadmodule target/release/libredis_lock.so
//! cargo run --example worker -- redis://127.0.0.1:6379 example:lock 5
//! ```
//!
//! After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what
//! a round takes, and how long to wait for the lock at most.

use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use redis::{Client, Commands, Connection, RedisError, RedisResult};
use uuid::Uuid;

const RESOURCE: &str = "example:resource";
const INSIDE: &str = "example:inside";

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Why the work was not done, or not under the lock.
enum Failure {
    /// It was not our turn in time.
    NotGranted,
    /// The lock was lost during the work, whose result must not be trusted.
    Lost(RedisError),
    Other(RedisError),
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        match error.code() {
            Some("NOTOWNER") => Failure::Lost(error),
            _ => Failure::Other(error),
        }
    }
}

/// The connections of one worker: a call occupies its connection until it is answered.
struct Worker {
    /// For what waits: its read timeout must be longer than BLOCK.
    waiting: Connection,
    renewing: Connection,
    working: Connection,
    owner: String,
}

impl Worker {
    fn connect(client: &Client, wait_ms: u64) -> RedisResult<Worker> {
        let mut connections = [client.get_connection()?, client.get_connection()?, client.get_connection()?];
        for connection in &mut connections {
            // Unless one is set there is none.
            connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        }
        let [waiting, renewing, working] = connections;
        waiting.set_read_timeout(Some(Duration::from_millis(wait_ms + 5000)))?;
        // Whoever uses the same string is the same owner: so it is random, and one for each thread that locks.
        Ok(Worker { waiting, renewing, working, owner: Uuid::new_v4().to_string() })
    }

    /// Runs `work` while this worker holds the lock. It gets a channel that says so if the lock is lost.
    fn with_lock<T>(
        &mut self,
        key: &str,
        lease_ms: u64,
        wait_ms: u64,
        work: impl FnOnce(&mut Connection, &Receiver<()>) -> RedisResult<T>,
    ) -> Result<T, Failure> {
        // A Connection repeats nothing by itself. If you do after an error, pass an ID as well, new for each call
        // and the same for its repetition: then you have no second hold.
        let granted: Option<i64> = redis::cmd("LOCK.ACQUIRE")
            .arg(&[key, &self.owner, "PX", &lease_ms.to_string(), "BLOCK", &wait_ms.to_string()])
            .query(&mut self.waiting)?;
        if granted.is_none() {
            return Err(Failure::NotGranted);
        }
        let Worker { renewing, working, owner, .. } = self;
        let owner = &*owner;
        let (done, until_done) = mpsc::channel::<()>();
        let (tell_lost, lost) = mpsc::channel();
        let result = thread::scope(|scope| {
            scope.spawn(|| renew(renewing, key, owner, lease_ms, until_done, tell_lost));
            let result = work(working, &lost);
            drop(done);
            result
        });
        // Whether the work went well or not. (If it panics, or the process dies, the lease frees the lock.)
        // NOTOWNER if the lease ran out, or somebody broke the lock: others may have worked at the same time. It is
        // what the caller gets then, whatever else the work has returned.
        let released: RedisResult<i64> = redis::cmd("LOCK.RELEASE").arg(key).arg(owner).query(working);
        match released.map_err(Failure::from) {
            Err(failure @ Failure::Lost(_)) => Err(failure),
            released => result.map_err(Failure::from).and_then(|value| released.map(|_holds_left| value)),
        }
    }
}

/// Renews at each third of the lease until the work is done. Without this thread: acquire with WATCHDOG,
/// and the server renews for as long as the connection `waiting` is open.
fn renew(
    connection: &mut Connection,
    key: &str,
    owner: &str,
    lease_ms: u64,
    until_done: Receiver<()>,
    tell_lost: Sender<()>,
) {
    let third = Duration::from_millis(lease_ms / 3);
    while until_done.recv_timeout(third) == Err(RecvTimeoutError::Timeout) {
        let renewed: RedisResult<i64> =
            redis::cmd("LOCK.RENEW").arg(&[key, owner, "PX", &lease_ms.to_string()]).query(connection);
        // After any other error the lease runs out, unless the work is done before. LOCK.RELEASE will tell.
        if renewed.is_err_and(|error| error.code() == Some("NOTOWNER")) {
            // If nobody listens, the work is done already.
            let _ = tell_lost.send(());
            return;
        }
    }
}

/// Reads, and writes what it has read plus one: wrong if anybody else works in between.
fn increment(connection: &mut Connection, lost: &Receiver<()>, takes: Duration) -> RedisResult<()> {
    let count: i64 = connection.incr(INSIDE, 1)?;
    if count != 1 {
        eprintln!("OVERLAP: somebody else is at work, too");
    }
    let value: Option<i64> = connection.get(RESOURCE)?;
    // The pause stands for the work. Real work looks at `lost` between its steps.
    if lost.recv_timeout(takes).is_err() {
        connection.set::<_, _, ()>(RESOURCE, value.unwrap_or(0) + 1)?;
    }
    connection.decr(INSIDE, 1)
}

fn main() -> Outcome<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if !(3..=6).contains(&args.len()) {
        return Err("usage: worker URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS]]]".into());
    }
    let (url, key) = (args[0].as_str(), args[1].as_str());
    let number = |index: usize, default: u64| args.get(index).map_or(Ok(default), |arg| arg.parse());
    let (rounds, lease_ms) = (number(2, 0)?, number(3, 3000)?);
    let (work_ms, wait_ms) = (number(4, 5000)?, number(5, 30_000)?);

    let mut worker = Worker::connect(&Client::open(url)?, wait_ms)?;
    let mut finished = 0;
    while finished < rounds {
        let done = worker.with_lock(key, lease_ms, wait_ms, |connection, lost| {
            increment(connection, lost, Duration::from_millis(work_ms))
        });
        match done {
            Ok(()) => {
                finished += 1;
                println!("round {finished} of {rounds} is done");
            }
            Err(Failure::NotGranted) => println!("not granted within {wait_ms} ms, trying again"),
            Err(Failure::Lost(error)) => {
                eprintln!("the lock was lost, the result of this round must not be trusted: {error}");
                return Ok(ExitCode::FAILURE);
            }
            Err(Failure::Other(error)) => return Err(error.into()),
        }
    }
    Ok(ExitCode::SUCCESS)
}
