// SPDX-License-Identifier: MIT

//! Does what it reads from stdin, one JSON object a line, and answers on stdout: see `clients/spec/README.md`.

use std::collections::HashMap;
use std::io::{stdin, BufRead};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use redis_lock_client::{Canceller, Error, Hold, Lock, Locks, Settings};
use serde_json::{json, Value};

/// What becomes of a request: the fields of its answer.
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

/// What is done with a hold, wherever it lives.
type Job = Box<dyn FnOnce(&Hold) + Send>;

/// Where a hold lives.
enum Place {
    Here(Arc<Hold>),
    /// In a body of `with`, which does the jobs until it is told to leave, and whether with an error.
    Body(Sender<Job>, Sender<bool>),
}

struct Driver {
    client: Client,
    locks: Locks,
    holds: Mutex<HashMap<String, Place>>,
    cancellers: Mutex<HashMap<String, Canceller>>,
    events: Arc<Mutex<Vec<Value>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("which server?")?;
    let client = Client::open(url)?;
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let settings = Settings::new().listener(move |event| {
        locked(&heard).push(json!([event.label, event.name, event.outcome]));
    });
    let locks = Locks::with_settings(&client, settings)?;
    let (holds, cancellers) = (Mutex::default(), Mutex::default());
    let driver = Arc::new(Driver { client, locks, holds, cancellers, events });
    for line in stdin().lock().lines() {
        let request = Request(serde_json::from_str(&line?)?);
        // A cancel that comes after it must find it.
        let canceller = Canceller::new();
        if matches!(request.text("do").as_deref(), Ok("acquire" | "try" | "with")) {
            locked(&driver.cancellers).insert(request.text("as").unwrap_or_default(), canceller.clone());
        }
        let driver = Arc::clone(&driver);
        thread::spawn(move || {
            let mut answer = match driver.answer(&request, &canceller) {
                Ok(answer) => answer,
                Err(Failure::Lock(error)) => json!({"is": error.kind(), "text": error.text()}),
                Err(Failure::Body) => json!({"is": "body"}),
                Err(Failure::Other(text)) => json!({"is": "failed", "text": text}),
            };
            if let Some(fields) = answer.as_object_mut() {
                fields.insert("n".to_owned(), request.0["n"].clone());
            }
            println!("{answer}");
        });
    }
    // Who ends without `close` is as one who was killed.
    std::process::exit(0)
}

struct Request(Value);

impl Request {
    fn text(&self, name: &str) -> Result<String, Failure> {
        self.0[name].as_str().map(str::to_owned).ok_or_else(|| Failure::Other(format!("which {name}?")))
    }

    fn number(&self, name: &str) -> Result<u64, Failure> {
        self.0[name].as_u64().ok_or_else(|| Failure::Other(format!("which {name}?")))
    }

    fn time(&self, name: &str) -> Option<Duration> {
        self.0[name].as_u64().map(Duration::from_millis)
    }
}

impl Driver {
    fn lock(&self, request: &Request, canceller: &Canceller) -> Result<Lock, Failure> {
        let mut lock = self.locks.lock(request.text("lock")?).canceller(canceller);
        if let Some(time) = request.time("lease") {
            lock = lock.lease(time);
        }
        if let Some(time) = request.time("wait") {
            lock = lock.wait(time);
        }
        if let Some(keep) = request.0["keep"].as_bool() {
            lock = lock.keep(keep);
        }
        if let Some(time) = request.time("max_hold") {
            lock = lock.max_hold(time);
        }
        if request.0["own"] == true {
            lock = lock.blocking();
        }
        if request.0["shared"] == true {
            lock = lock.shared();
        }
        if let Some(limit) = request.0["limit"].as_u64() {
            lock = lock.limit(u32::try_from(limit).unwrap_or(u32::MAX));
        }
        if request.0["fence"] == true {
            lock = lock.fence();
        }
        if let Ok(label) = request.text("label") {
            lock = lock.label(label);
        }
        Ok(lock)
    }

    fn answer(&self, request: &Request, canceller: &Canceller) -> Answer {
        let Ok(name) = request.text("do") else { return Ok(json!({"is": "unknown"})) };
        match name.as_str() {
            "acquire" => {
                let hold = self.lock(request, canceller)?.acquire()?;
                self.granted(request, hold)
            }
            "try" => match self.lock(request, canceller)?.try_acquire()? {
                Some(hold) => self.granted(request, hold),
                None => Ok(json!({"is": "busy"})),
            },
            "attach" => {
                let (key, owner) = (request.text("lock")?, request.text("owner")?);
                self.granted(request, self.locks.attach(key, &owner, request.time("lease"))?)
            }
            "cancel" => {
                let canceller = locked(&self.cancellers).get(&request.text("as")?).cloned();
                canceller.ok_or_else(|| Failure::Other("no such acquire".to_owned()))?.cancel();
                Ok(json!({"is": "done"}))
            }
            "release" => {
                self.at(request, Hold::release)??;
                Ok(json!({"is": "released"}))
            }
            "extend" => {
                let lease = Duration::from_millis(request.number("lease")?);
                self.at(request, move |hold| hold.extend(lease))??;
                Ok(json!({"is": "extended"}))
            }
            "state" => Ok(said_of(self.at(request, Hold::is_lost)?)),
            "until_lost" => {
                let within = Duration::from_millis(request.number("within")?);
                Ok(said_of(self.at(request, move |hold| hold.wait_lost(within))?))
            }
            "owner" => {
                let owner = self.at(request, |hold| hold.owner().to_owned())?;
                Ok(json!({"is": "done", "owner": owner}))
            }
            "hand over" => {
                let owner = self.at(request, Hold::hand_over)??;
                Ok(json!({"is": "done", "owner": owner}))
            }
            "with" => self.with(request, canceller),
            "leave" => {
                let name = request.text("as")?;
                let until = Instant::now() + Duration::from_secs(5);
                // The server may know of the grant before this program does.
                while !matches!(locked(&self.holds).get(&name), Some(Place::Body(..))) {
                    if Instant::now() > until {
                        return Err(Failure::Other("no such body".to_owned()));
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                if let Some(Place::Body(_, leave)) = locked(&self.holds).remove(&name) {
                    let _ = leave.send(request.0["fails"] == true);
                }
                Ok(json!({"is": "done"}))
            }
            "guard" => {
                let words = request.0["command"].as_array().cloned().unwrap_or_default();
                let word = |word: Value| word.as_str().map_or_else(|| word.to_string(), str::to_owned);
                let words: Vec<String> = words.into_iter().map(word).collect();
                self.at(request, move |hold| hold.guard(&words))??;
                Ok(json!({"is": "done"}))
            }
            "count" => self.count(request),
            "calls" => {
                let mut connection = self.client.get_connection()?;
                for _ in 0..request.number("count")? {
                    redis::cmd("PING").exec(&mut connection)?;
                }
                Ok(json!({"is": "done"}))
            }
            "spin" => {
                // The session's threads are its own: this is all that user code can do to them.
                let end = Instant::now() + Duration::from_millis(request.number("for")?);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                Ok(json!({"is": "done"}))
            }
            "events" => Ok(json!({"is": "done", "events": *locked(&self.events)})),
            "close" => {
                self.locks.close();
                Ok(json!({"is": "closed"}))
            }
            _ => Ok(json!({"is": "unknown"})),
        }
    }

    fn granted(&self, request: &Request, hold: Hold) -> Answer {
        let mut answer = json!({"is": "granted"});
        if let Some(token) = hold.token() {
            answer["token"] = json!(token);
        }
        locked(&self.holds).insert(request.text("as")?, Place::Here(Arc::new(hold)));
        Ok(answer)
    }

    /// Does something with a hold.
    fn at<T: Send + 'static>(
        &self,
        request: &Request,
        job: impl FnOnce(&Hold) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let none = || Failure::Other("no such hold".to_owned());
        let jobs = match locked(&self.holds).get(&request.text("as")?) {
            Some(Place::Here(hold)) => Err(Arc::clone(hold)),
            Some(Place::Body(jobs, _)) => Ok(jobs.clone()),
            None => return Err(none()),
        };
        match jobs {
            Err(hold) => Ok(job(&hold)),
            Ok(jobs) => {
                let (send, receive) = mpsc::channel();
                jobs.send(Box::new(move |hold| drop(send.send(job(hold))))).map_err(|_| none())?;
                receive.recv().map_err(|_| none())
            }
        }
    }

    fn with(&self, request: &Request, canceller: &Canceller) -> Answer {
        let name = request.text("as")?;
        let (jobs, todo) = mpsc::channel::<Job>();
        let (leave, left) = mpsc::channel();
        self.lock(request, canceller)?.with(|hold| {
            locked(&self.holds).insert(name, Place::Body(jobs, leave));
            if body(hold, &todo, &left) {
                return Err(Failure::Body);
            }
            Ok(json!({"is": "done"}))
        })
    }

    fn count(&self, request: &Request) -> Answer {
        let (lock, key) = (self.locks.lock(request.text("lock")?), request.text("key")?);
        let mut connection = self.client.get_connection()?;
        for _ in 0..request.number("rounds")? {
            let hold = lock.acquire()?;
            let value: Option<i64> = redis::cmd("GET").arg(&key).query(&mut connection)?;
            redis::cmd("SET").arg(&key).arg(value.unwrap_or(0) + 1).exec(&mut connection)?;
            hold.release()?;
        }
        Ok(json!({"is": "done"}))
    }
}

/// Does jobs until it is to leave; true if with an error.
fn body(hold: &Hold, todo: &Receiver<Job>, left: &Receiver<bool>) -> bool {
    thread::scope(|scope| {
        // It ends when `leave` has taken the sender of the jobs away.
        for job in todo {
            scope.spawn(|| job(hold));
        }
    });
    left.recv().unwrap_or(false)
}

fn said_of(lost: bool) -> Value {
    json!({"is": if lost { "lost" } else { "held" }})
}
