// SPDX-License-Identifier: MIT

//! Reads requests from stdin, one JSON object a line, executes them, and answers on stdout: see `clients/spec/README.md`.
//!
//! ```text
//! lock-driver-rust URL [--blocking]
//! ```

use std::collections::HashMap;
use std::future::Future;
use std::io::{stdin, BufRead};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use redis_lock_client::{blocking, Error, ErrorKind, Hold, Lock, Locks, Result as LockResult, Settings};
use serde_json::{json, Value};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, Notify};

type Answer = Result<Value, Failure>;

enum Failure {
    Lock(Error),
    /// The error of a body.
    Body,
    Other(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Lock(error)
    }
}

impl From<redis::RedisError> for Failure {
    fn from(error: redis::RedisError) -> Failure {
        Failure::Other(error.to_string())
    }
}

fn other(text: &str) -> Failure {
    Failure::Other(text.to_owned())
}

/// The locks of one of the two interfaces. A blocking call blocks the thread of its request.
enum AnyLocks {
    Tasks(Locks),
    Threads(blocking::Locks),
}

enum AnyLock {
    Task(Lock),
    Thread(blocking::Lock),
}

enum AnyHold {
    Task(Hold),
    Thread(blocking::Hold),
}

/// Calls a method of either interface.
macro_rules! either {
    ($value:expr, $kind:ident, $method:ident($($argument:expr),*)) => {
        match $value {
            $kind::Task(value) => value.$method($($argument),*).await,
            $kind::Thread(value) => value.$method($($argument),*),
        }
    };
}

/// Calls a method of either interface that never waits.
macro_rules! both {
    ($value:expr, $kind:ident, $method:ident($($argument:expr),*)) => {
        match $value {
            $kind::Task(value) => value.$method($($argument),*),
            $kind::Thread(value) => value.$method($($argument),*),
        }
    };
    ($value:expr, $kind:ident => $method:ident($($argument:expr),*)) => {
        match $value {
            $kind::Task(value) => $kind::Task(value.$method($($argument),*)),
            $kind::Thread(value) => $kind::Thread(value.$method($($argument),*)),
        }
    };
}

/// Ends an acquire.
#[derive(Clone, Default)]
struct Cancel {
    task: Arc<Notify>,
    thread: blocking::Canceller,
}

impl Cancel {
    fn cancel(&self) {
        self.task.notify_one();
        self.thread.cancel();
    }

    /// Drops the future of a task when it is cancelled.
    async fn limit<T, E: From<Failure>>(&self, future: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        tokio::select! {
            biased;
            result = future => result,
            () = self.task.notified() => Err(Failure::Other("cancelled".to_owned()).into()),
        }
    }
}

impl AnyLock {
    async fn acquire(&self, cancel: &Cancel) -> Result<AnyHold, Failure> {
        match self {
            AnyLock::Task(lock) => cancel.limit(async { Ok(AnyHold::Task(lock.acquire().await?)) }).await,
            AnyLock::Thread(lock) => Ok(AnyHold::Thread(lock.acquire_with(&cancel.thread)?)),
        }
    }

    async fn try_acquire(&self) -> LockResult<Option<AnyHold>> {
        Ok(match self {
            AnyLock::Task(lock) => lock.try_acquire().await?.map(AnyHold::Task),
            AnyLock::Thread(lock) => lock.try_acquire()?.map(AnyHold::Thread),
        })
    }

    async fn attach(&self, ticket: &str) -> LockResult<AnyHold> {
        Ok(match self {
            AnyLock::Task(lock) => AnyHold::Task(lock.attach(ticket).await?),
            AnyLock::Thread(lock) => AnyHold::Thread(lock.attach(ticket)?),
        })
    }
}

impl AnyHold {
    async fn wait_lost(&self, limit: Duration) -> bool {
        match self {
            AnyHold::Task(hold) => tokio::time::timeout(limit, hold.lost()).await.is_ok(),
            AnyHold::Thread(hold) => hold.wait_lost(limit),
        }
    }
}

fn state_of(is_lost: bool, valid_for: Duration) -> &'static str {
    match (is_lost, valid_for.is_zero()) {
        (true, _) => "lost",
        (false, true) => "jeopardy",
        (false, false) => "safe",
    }
}

/// The body of a scope, until it leaves.
struct Body {
    states: mpsc::UnboundedSender<oneshot::Sender<&'static str>>,
    leave: oneshot::Sender<bool>,
}

struct Inside {
    asked: mpsc::UnboundedReceiver<oneshot::Sender<&'static str>>,
    left: oneshot::Receiver<bool>,
}

impl Inside {
    /// Answers questions about the state until the body leaves. Returns whether it fails.
    async fn stay(mut self, state: impl Fn() -> &'static str) -> bool {
        loop {
            tokio::select! {
                fails = &mut self.left => return fails.unwrap_or(true),
                Some(answer) = self.asked.recv() => drop(answer.send(state())),
            }
        }
    }
}

struct Driver {
    client: Client,
    locks: AnyLocks,
    holds: Mutex<HashMap<String, Arc<AnyHold>>>,
    bodies: Mutex<HashMap<String, Body>>,
    cancels: Mutex<HashMap<String, Cancel>>,
    events: Arc<Mutex<Vec<Value>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn from_environment(name: &str) -> Option<Duration> {
    std::env::var(name).ok()?.parse().ok().map(Duration::from_millis)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: lock-driver-rust URL [--blocking]")?;
    let is_blocking = std::env::args().any(|argument| argument == "--blocking");
    let client = Client::open(url)?;
    let events = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&events);
    let mut settings = Settings::new().listener(move |event| {
        locked(&received).push(json!([event.label, event.name, event.outcome]));
    });
    if let Some(ttl) = from_environment("REDIS_LOCK_TTL") {
        settings = settings.ttl(ttl);
    }
    if let Some(grace) = from_environment("REDIS_LOCK_GRACE") {
        settings = settings.grace(grace);
    }
    let locks = if is_blocking {
        AnyLocks::Threads(blocking::Locks::with_settings(client.clone(), settings)?)
    } else {
        AnyLocks::Tasks(Locks::with_settings(client.clone(), settings)?)
    };
    let (holds, bodies, cancels) = Default::default();
    let driver = Arc::new(Driver { client, locks, holds, bodies, cancels, events });
    let runtime = Handle::current();
    let reads = thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            let Ok(request) = serde_json::from_str(&line).map(Request) else { continue };
            // A later request to cancel must find it.
            let cancel = Cancel::default();
            if matches!(request.text("do").as_deref(), Ok("acquire" | "try" | "with")) {
                locked(&driver.cancels).insert(request.text("as").unwrap_or_default(), cancel.clone());
            }
            let work = Arc::clone(&driver).handle(request, cancel);
            if is_blocking {
                let runtime = runtime.clone();
                thread::spawn(move || runtime.block_on(work));
            } else {
                runtime.spawn(work);
            }
        }
    });
    drop(tokio::task::spawn_blocking(move || reads.join()).await);
    // A program that ends without `close` is like one that was killed.
    std::process::exit(0)
}

struct Request(Value);

impl Request {
    fn text(&self, name: &str) -> Result<String, Failure> {
        self.0[name].as_str().map(str::to_owned).ok_or_else(|| Failure::Other(format!("no {name}")))
    }

    fn number(&self, name: &str) -> Result<u64, Failure> {
        self.0[name].as_u64().ok_or_else(|| Failure::Other(format!("no {name}")))
    }

    fn time(&self, name: &str) -> Option<Duration> {
        self.0[name].as_u64().map(Duration::from_millis)
    }
}

impl Driver {
    async fn handle(self: Arc<Self>, request: Request, cancel: Cancel) {
        let mut answer = match self.answer(&request, &cancel).await {
            Ok(answer) => answer,
            Err(Failure::Lock(error)) => json!({"is": error.kind().as_str(), "text": error.to_string()}),
            Err(Failure::Body) => json!({"is": "body"}),
            Err(Failure::Other(text)) if text == "cancelled" => json!({"is": ErrorKind::Cancelled.as_str()}),
            Err(Failure::Other(text)) => json!({"is": "failed", "text": text}),
        };
        answer["n"] = request.0["n"].clone();
        println!("{answer}");
    }

    fn lock(&self, request: &Request) -> Result<AnyLock, Failure> {
        let keys = match &request.0["lock"] {
            Value::Array(keys) => keys.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => vec![request.text("lock")?],
        };
        let mut lock = match &self.locks {
            AnyLocks::Tasks(locks) => AnyLock::Task(locks.lock_all(keys)),
            AnyLocks::Threads(locks) => AnyLock::Thread(locks.lock_all(keys)),
        };
        if let Some(time) = request.time("lease") {
            lock = both!(lock, AnyLock => lease(time));
        }
        if let Some(time) = request.time("wait") {
            lock = both!(lock, AnyLock => wait(time));
        }
        if let Some(time) = request.time("max_hold") {
            lock = both!(lock, AnyLock => max_hold(time));
        }
        if request.0["shared"] == true {
            lock = both!(lock, AnyLock => shared());
        }
        if let Some(limit) = request.0["limit"].as_u64() {
            lock = both!(lock, AnyLock => limit(u32::try_from(limit).unwrap_or(u32::MAX)));
        }
        if request.0["fence"] == true {
            lock = both!(lock, AnyLock => fence());
        }
        if request.0["reentrant"] == true {
            lock = both!(lock, AnyLock => reentrant());
        }
        // The field `owner` of `attach` is a ticket.
        if let (Ok(owner), false) = (request.text("owner"), request.0["do"] == "attach") {
            lock = both!(lock, AnyLock => owner(owner));
        }
        if let Ok(label) = request.text("label") {
            lock = both!(lock, AnyLock => label(label));
        }
        Ok(lock)
    }

    fn hold(&self, request: &Request) -> Result<Arc<AnyHold>, Failure> {
        locked(&self.holds).get(&request.text("as")?).cloned().ok_or_else(|| other("no such hold"))
    }

    async fn answer(&self, request: &Request, cancel: &Cancel) -> Answer {
        let Ok(name) = request.text("do") else { return Ok(json!({"is": "unknown"})) };
        let is = |word: &str| Ok(json!({"is": word}));
        match name.as_str() {
            "acquire" => {
                let hold = self.lock(request)?.acquire(cancel).await?;
                self.granted(request, hold)
            }
            "try" => match self.lock(request)?.try_acquire().await? {
                Some(hold) => self.granted(request, hold),
                None => is("busy"),
            },
            "attach" => {
                let hold = self.lock(request)?.attach(&request.text("owner")?).await?;
                self.granted(request, hold)
            }
            "cancel" => {
                let cancel = locked(&self.cancels).get(&request.text("as")?).cloned();
                cancel.ok_or_else(|| other("no such acquire"))?.cancel();
                is("done")
            }
            "release" => {
                either!(&*self.hold(request)?, AnyHold, release())?;
                is("released")
            }
            "extend" => {
                let lease = Duration::from_millis(request.number("lease")?);
                either!(&*self.hold(request)?, AnyHold, extend(lease))?;
                is("extended")
            }
            "state" => is(self.state(request).await?),
            "until_lost" => {
                let within = Duration::from_millis(request.number("within")?);
                is(if self.hold(request)?.wait_lost(within).await { "lost" } else { "held" })
            }
            "owner" => {
                let hold = self.hold(request)?;
                let owner = both!(&*hold, AnyHold, owner());
                Ok(json!({"is": "done", "owner": String::from_utf8_lossy(owner)}))
            }
            "hand over" => {
                let ticket = either!(&*self.hold(request)?, AnyHold, hand_over())?;
                Ok(json!({"is": "done", "owner": ticket}))
            }
            "with" => self.with(request, cancel).await,
            "leave" => {
                let name = request.text("as")?;
                let until = Instant::now() + Duration::from_secs(5);
                loop {
                    // The server may have granted the lock before this program knows.
                    if let Some(body) = locked(&self.bodies).remove(&name) {
                        let _ = body.leave.send(request.0["fails"] == true);
                        return is("done");
                    }
                    if Instant::now() > until {
                        return Err(other("no such body"));
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            "guard" => {
                let words = request.0["command"].as_array().cloned().unwrap_or_default();
                let mut command = redis::Cmd::new();
                for word in words {
                    command.arg(word.as_str().map_or_else(|| word.to_string(), str::to_owned));
                }
                let _: redis::Value = either!(&*self.hold(request)?, AnyHold, guard(&command))?;
                is("done")
            }
            "count" => self.count(request).await,
            "calls" => {
                let mut connection = self.client.get_connection()?;
                for _ in 0..request.number("count")? {
                    redis::cmd("PING").exec(&mut connection)?;
                }
                is("done")
            }
            "spin" => {
                // Code of the user can keep one worker of the runtime busy. The others serve the locks.
                let end = Instant::now() + Duration::from_millis(request.number("for")?);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                is("done")
            }
            "events" => Ok(json!({"is": "done", "events": *locked(&self.events)})),
            "close" => {
                match &self.locks {
                    AnyLocks::Tasks(locks) => locks.close().await,
                    AnyLocks::Threads(locks) => locks.close(),
                }
                is("closed")
            }
            _ => is("unknown"),
        }
    }

    fn granted(&self, request: &Request, hold: AnyHold) -> Answer {
        let mut answer = json!({"is": "granted"});
        if let Some(token) = both!(&hold, AnyHold, token()) {
            answer["token"] = json!(token);
        }
        locked(&self.holds).insert(request.text("as")?, Arc::new(hold));
        Ok(answer)
    }

    async fn state(&self, request: &Request) -> Result<&'static str, Failure> {
        let states = locked(&self.bodies).get(&request.text("as")?).map(|body| body.states.clone());
        if let Some(states) = states {
            let (send, receive) = oneshot::channel();
            drop(states.send(send));
            return receive.await.map_err(|_| other("the body has left"));
        }
        let hold = self.hold(request)?;
        Ok(state_of(both!(&*hold, AnyHold, is_lost()), both!(&*hold, AnyHold, valid_for())))
    }

    /// Waits in a scope until `leave`.
    async fn with(&self, request: &Request, cancel: &Cancel) -> Answer {
        let name = request.text("as")?;
        let (states, asked) = mpsc::unbounded_channel();
        let (leave, left) = oneshot::channel();
        let inside = Inside { asked, left };
        let enter = || locked(&self.bodies).insert(name, Body { states, leave });
        let fails = match self.lock(request)? {
            AnyLock::Task(lock) => {
                let scope = lock.with(async |hold: &Hold| {
                    enter();
                    let fails = inside.stay(|| state_of(hold.is_lost(), hold.valid_for())).await;
                    if fails {
                        Err(Failure::Body)
                    } else {
                        Ok(())
                    }
                });
                cancel.limit(scope).await
            }
            AnyLock::Thread(lock) => lock.with(|hold| {
                enter();
                let stay = inside.stay(|| state_of(hold.is_lost(), hold.valid_for()));
                // The thread of the request drives this future already.
                let fails = thread::scope(|scope| {
                    let runtime = Handle::current();
                    scope.spawn(move || runtime.block_on(stay)).join().unwrap_or(true)
                });
                if fails {
                    Err(Failure::Body)
                } else {
                    Ok(())
                }
            }),
        };
        fails.map(|()| json!({"is": "done"}))
    }

    async fn count(&self, request: &Request) -> Answer {
        let (lock, key) = (self.lock(request)?, request.text("key")?);
        let mut connection = self.client.get_connection()?;
        for _ in 0..request.number("rounds")? {
            let hold = lock.acquire(&Cancel::default()).await?;
            let value: Option<i64> = redis::cmd("GET").arg(&key).query(&mut connection)?;
            redis::cmd("SET").arg(&key).arg(value.unwrap_or(0) + 1).exec(&mut connection)?;
            either!(&hold, AnyHold, release())?;
        }
        Ok(json!({"is": "done"}))
    }
}
