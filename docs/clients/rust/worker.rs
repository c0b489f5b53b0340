// SPDX-License-Identifier: MIT

//! Works under a lock, with the redis crate: waits for it, renews it in the background, gives it back. Start two:
//!
//! ```text
//! redis-server --loadmodule target/release/libredis_lock.so
//! cargo run --example worker -- redis://127.0.0.1:6379 example:lock 5
//! ```
//!
//! After the address, the lock's name and how many rounds, it takes three times in milliseconds: the lease, what
//! a round takes, and how long to wait for the lock at most. Then, how many threads do that; and a time in milliseconds
//! within which each wait is cancelled, at a random moment.

use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Commands, Connection, ConnectionLike, RedisError, RedisResult, Value};
use uuid::Uuid;

const RESOURCE: &str = "example:resource";
const TOKEN: &str = "example:token";
const INSIDE: &str = "example:inside";

/// For what is answered at once.
const SOON: Duration = Duration::from_secs(5);

/// Why the work was not done, or not under the lock.
enum Failure {
    /// It was not our turn in time.
    NotGranted,
    /// The wait was given up.
    Cancelled,
    /// The lock was lost during the work, whose result must not be trusted.
    Lost(String),
    Other(RedisError),
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        if is_not_owner(&error) {
            return Failure::Lost(error.to_string());
        }
        Failure::Other(error)
    }
}

fn is_not_owner(error: &RedisError) -> bool {
    error.code() == Some("NOTOWNER")
}

/// What all rounds have in common.
#[derive(Clone, Copy)]
struct Plan<'a> {
    key: &'a str,
    rounds: u64,
    lease: Duration,
    work: Duration,
    wait: Duration,
    /// A wait is cancelled within this time; zero for never.
    cancel: Duration,
}

/// One of the threads that want the lock. A call occupies its connection until it is answered, so each has two.
struct Worker<'a> {
    client: &'a Client,
    plan: Plan<'a>,
    /// Whoever uses the same string is the same owner: so it is random, and one for each thread that locks.
    owner: String,
    working: Connection,
    /// Waits for the lock, and renews it while it is held. None after a call whose reply may still come.
    waiting: Option<Connection>,
}

impl<'a> Worker<'a> {
    fn connect(client: &'a Client, plan: Plan<'a>) -> RedisResult<Worker<'a>> {
        let owner = Uuid::new_v4().to_string();
        Ok(Worker { client, plan, owner, working: connect(client)?, waiting: None })
    }

    /// Waits for the lock. Returns its fencing token, and when the call was sent that the server has confirmed. After
    /// the time `cancel` the wait is given up.
    fn acquire(&mut self, cancel: Option<Duration>) -> Result<(i64, Instant), Failure> {
        let Plan { key, lease, wait, .. } = self.plan;
        // New for each call: it tells the calls of an owner apart, for LOCK.CANCEL. A Connection repeats nothing by
        // itself; if you do after an error, with the same ID you have no second hold.
        let request = Uuid::new_v4().to_string();
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        acquire.arg(&[key, &self.owner, "PX", &ms(lease), "BLOCK", &ms(wait), "FENCE", "ID", &request]);
        let renew = renewal(key, &self.owner, lease);
        let mut waiting = match self.waiting.take() {
            Some(waiting) => waiting,
            None => connect(self.client)?,
        };
        // A thread of its own waits, so that this one can give up.
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let granted = granted(&mut waiting, &acquire, wait, &renew, lease);
            // The connection comes back with the reply. If nobody is there any more, it is closed here.
            let _ = tell.send((waiting, granted));
        });
        let told = match cancel {
            Some(cancel) => told.recv_timeout(cancel).ok(),
            None => told.recv().ok(),
        };
        let failure = match told {
            Some((waiting, Ok(granted))) => {
                self.waiting = Some(waiting);
                return granted.ok_or(Failure::NotGranted);
            }
            Some((_closed, Err(error))) => error.into(),
            None => Failure::Cancelled,
        };
        // Whether the lock was granted is not known. LOCK.CANCEL undoes the call, whatever has become of it. On another
        // connection, as that one is occupied; closing it would not do: if the lock was granted, and the reply is on its
        // way, nobody gives it back. The call gets the error UNBLOCKED, its thread ends and closes its connection. If
        // this call fails, too, its time-out closes it, and the lease ends the hold.
        let _: RedisResult<i64> =
            redis::cmd("LOCK.CANCEL").arg(&[key, &self.owner, "ID", &request]).query(&mut self.working);
        Err(failure)
    }

    /// Runs `work` while this worker holds the lock.
    fn with_lock<T>(
        &mut self,
        cancel: Option<Duration>,
        work: impl FnOnce(&mut Connection, &Hold) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (token, sent) = self.acquire(cancel)?;
        let Worker { client, plan: Plan { key, lease, .. }, owner, working, waiting } = self;
        let hold = Hold::new(token, sent + *lease);
        let (done, until_done) = mpsc::channel::<()>();
        let result = thread::scope(|scope| {
            let renew = renewal(key, owner, *lease);
            scope.spawn(|| renew_until(until_done, client, waiting, renew, *lease, &hold));
            let result = work(working, &hold);
            drop(done);
            hold.check().and(result)
        });
        // Whether the work went well or not. (If it panics, or the process dies, the lease frees the lock.)
        // NOTOWNER if the lease ran out, or somebody broke the lock: others may have worked at the same time. It is
        // what the caller gets then, whatever else the work has returned.
        let request = Uuid::new_v4().to_string();
        let released: RedisResult<i64> =
            redis::cmd("LOCK.RELEASE").arg(&[key, owner.as_str(), "ID", &request]).query(working);
        match (result, released.map_err(Failure::from)) {
            (Err(lost @ Failure::Lost(_)), _) | (_, Err(lost @ Failure::Lost(_))) => Err(lost),
            (Ok(_), Err(failure)) => Err(failure),
            (result, _) => result,
        }
    }
}

fn connect(client: &Client) -> RedisResult<Connection> {
    let connection = client.get_connection_with_timeout(SOON)?;
    // Unless they are set there are none.
    connection.set_read_timeout(Some(SOON))?;
    connection.set_write_timeout(Some(SOON))?;
    Ok(connection)
}

fn renewal(key: &str, owner: &str, lease: Duration) -> Cmd {
    let mut command = redis::cmd("LOCK.RENEW");
    command.arg(&[key, owner, "PX", &ms(lease)]);
    command
}

fn ms(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// The token, and the time from which on the lease certainly runs; None if it was not our turn in time.
fn granted(
    connection: &mut Connection,
    acquire: &Cmd,
    wait: Duration,
    renew: &Cmd,
    lease: Duration,
) -> RedisResult<Option<(i64, Instant)>> {
    // The time-out must be longer than BLOCK; BLOCK 0 waits without limit.
    connection.set_read_timeout((!wait.is_zero()).then_some(wait + SOON))?;
    let mut sent = Instant::now();
    let reply: Option<HashMap<String, Value>> = acquire.query(connection)?;
    let Some(reply) = reply else { return Ok(None) };
    connection.set_read_timeout(Some(SOON))?;
    // The lease runs from the grant. Of that we know only that it was after the call was sent: long ago, if we had to
    // wait. So it is set anew by a call that takes no time.
    if sent.elapsed() > lease / 3 {
        sent = Instant::now();
        renew.query::<i64>(connection)?;
    }
    Ok(Some((token_of(&reply)?, sent)))
}

/// With FENCE the reply is a map, or with the older protocol (RESP2) a flat array: the crate takes both for a HashMap.
fn token_of(reply: &HashMap<String, Value>) -> RedisResult<i64> {
    Ok(redis::from_redis_value_ref(reply.get("token").unwrap_or(&Value::Nil))?)
}

/// Renews at each third of the lease until the work is done. Without this thread: acquire with WATCHDOG, and the server
/// renews for as long as that connection is open.
fn renew_until(
    done: Receiver<()>,
    client: &Client,
    connection: &mut Option<Connection>,
    renew: Cmd,
    lease: Duration,
    hold: &Hold,
) {
    while done.recv_timeout(lease / 3) == Err(RecvTimeoutError::Timeout) {
        let sent = Instant::now();
        if connection.as_ref().is_none_or(|connection| !connection.is_open()) {
            *connection = connect(client).ok();
        }
        match connection.as_mut().map(|connection| renew.query::<i64>(connection)) {
            Some(Ok(_)) => hold.extend(sent + lease),
            Some(Err(error)) if is_not_owner(&error) => return hold.lose(error.to_string()),
            // Anything else, such as a broken connection, may be over the next time.
            _ => {}
        }
    }
}

/// What the work gets: the fencing token, and word of whether the lock is lost.
struct Hold {
    /// Store it with all that is written, and let the store refuse a smaller one.
    token: i64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The server counts the lease from a later moment than this. So nobody else has the lock before it is over, even if
    /// the server cannot be reached to ask.
    valid_until: Instant,
    lost: Option<String>,
}

impl Hold {
    fn new(token: i64, valid_until: Instant) -> Hold {
        Hold { token, state: Mutex::new(State { valid_until, lost: None }), changed: Condvar::new() }
    }

    /// Call it between the steps of the work.
    fn check(&self) -> Result<(), Failure> {
        self.sleep(Duration::ZERO)
    }

    /// Sleeps for as long as the lock is held.
    fn sleep(&self, duration: Duration) -> Result<(), Failure> {
        let until = Instant::now() + duration;
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            if now >= state.valid_until {
                state.lost.get_or_insert_with(|| "the lease could not be renewed in time".to_owned());
            }
            if let Some(why) = &state.lost {
                return Err(Failure::Lost(why.clone()));
            }
            if now >= until {
                return Ok(());
            }
            // A renewal may move the end meanwhile.
            let longest = until.min(state.valid_until) - now;
            state = self.changed.wait_timeout(state, longest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn extend(&self, valid_until: Instant) {
        self.lock().valid_until = valid_until;
        self.changed.notify_all();
    }

    fn lose(&self, why: String) {
        self.lock().lost = Some(why);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads, and writes what it has read plus one: wrong if anybody else works in between.
fn increment(connection: &mut Connection, hold: &Hold, takes: Duration) -> Result<(), Failure> {
    let count: i64 = connection.incr(INSIDE, 1)?;
    if count != 1 {
        eprintln!("OVERLAP: somebody else is at work, too");
    }
    let value: Option<i64> = connection.get(RESOURCE)?;
    // The pause stands for the work.
    let worked = hold.sleep(takes);
    if worked.is_ok() {
        connection.mset::<_, _, ()>(&[(RESOURCE, value.unwrap_or(0) + 1), (TOKEN, hold.token)])?;
    }
    connection.decr::<_, _, ()>(INSIDE, 1)?;
    worked
}

/// What each thread does.
fn run(client: &Client, plan: Plan) -> Result<(), Failure> {
    let mut worker = Worker::connect(client, plan)?;
    let Plan { rounds, work, wait, cancel, .. } = plan;
    let mut finished = 0;
    while finished < rounds {
        // Stands for a request that is given up, or a program that shuts down.
        let random = f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        let cancel = (!cancel.is_zero()).then(|| cancel.mul_f64(random));
        match worker.with_lock(cancel, |connection, hold| increment(connection, hold, work)) {
            Ok(()) => {
                finished += 1;
                println!("round {finished} of {rounds} is done");
            }
            Err(Failure::NotGranted) => println!("not granted within {} ms, trying again", wait.as_millis()),
            Err(Failure::Cancelled) => {
                finished += 1;
                println!("cancelled");
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if !(3..=8).contains(&args.len()) {
        return Err("usage: worker URL LOCK ROUNDS [LEASE_MS [WORK_MS [WAIT_MS [TASKS [CANCEL_MS]]]]]".into());
    }
    let number = |index: usize, default: u64| args.get(index).map_or(Ok(default), |arg| arg.parse());
    let time = |index: usize, default: u64| number(index, default).map(Duration::from_millis);
    let plan = Plan {
        key: &args[1],
        rounds: number(2, 0)?,
        lease: time(3, 3000)?,
        work: time(4, 5000)?,
        wait: time(5, 30_000)?,
        cancel: time(7, 0)?,
    };
    let client = Client::open(args[0].as_str())?;
    let outcomes: Vec<_> = thread::scope(|scope| {
        let tasks: Vec<_> =
            (0..number(6, 1).unwrap_or(1)).map(|_| scope.spawn(|| run(&client, plan))).collect();
        tasks.into_iter().map(|task| task.join()).collect()
    });
    let mut code = ExitCode::SUCCESS;
    for outcome in outcomes {
        code = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(Failure::Lost(why))) => {
                eprintln!("the lock was lost, the result of this round must not be trusted: {why}");
                ExitCode::FAILURE
            }
            Ok(Err(Failure::Other(error))) => return Err(error.into()),
            Ok(Err(_)) | Err(_) => ExitCode::FAILURE,
        };
    }
    Ok(code)
}
