// SPDX-License-Identifier: MIT

//! A worker that stops within milliseconds of losing its lock: it hears what happens to its hold.
//!
//! Three times it loses the lock in the middle of its work: somebody breaks it, somebody deletes the key, and the server stops
//! renewing it as the hold is too old. Each time it says how long it went on.
//!
//! ```text
//! redis-server --loadmodule target/release/libredis_lock.so lock.events yes
//! cargo run --example raw_losing -- --url redis://127.0.0.1:6379
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection};
use uuid::Uuid;

const LOCK: &str = "example:report";

/// The channel on which the server tells the lock's owner. (For a key with a brace it is `lock:event::` and the key.)
const EVENTS: &str = "lock:event:{example:report}";

/// What the worker does before it looks again whether it may go on: a page of a report, say.
const STEP: Duration = Duration::from_millis(1);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<ExitCode> {
    let client = Client::open(url()?.as_str())?;
    let mut operator = client.get_connection()?;
    let mut in_time = true;
    for (what, after) in [
        ("somebody breaks the lock", Some("LOCK.BREAK")),
        ("somebody deletes the key", Some("DEL")),
        ("the hold is as old as it may become", None),
    ] {
        let (begun, has_begun) = mpsc::channel();
        let worker = {
            let client = client.clone();
            thread::spawn(move || work(&client, || begun.send(()).unwrap_or_default()))
        };
        has_begun.recv()?;
        let lost_at = match after {
            Some(command) => {
                thread::sleep(Duration::from_millis(50));
                let at = Instant::now();
                redis::cmd(command).arg(LOCK).query::<i64>(&mut operator)?;
                at
            }
            None => lease_end(&mut operator)?,
        };
        let stopped = worker.join().map_err(|_| "the worker panicked")??;
        let late = stopped.at.saturating_duration_since(lost_at);
        println!("{what}: '{}', and the worker stops after {:.1} ms", stopped.why, late.as_secs_f64() * 1e3);
        in_time &= late < Duration::from_millis(10);
    }
    println!("always within 10 ms: {}", if in_time { "yes" } else { "no" });
    Ok(ExitCode::SUCCESS)
}

/// When and why the worker stopped.
struct Stopped {
    at: Instant,
    why: String,
}

/// Works without end, as long as the lock is ours.
fn work(client: &Client, has_begun: impl FnOnce()) -> Outcome<Stopped> {
    let owner = Uuid::new_v4().to_string();
    let hold = Hold::listen(client, &owner)?;
    let mut connection = client.get_connection()?;
    // The server renews the lease, but not for ever: a process that hangs shall not hold the lock until somebody sees it.
    let _holds: i64 = redis::cmd("LOCK.ACQUIRE")
        .arg(LOCK)
        .arg(&owner)
        .arg(&["PX", "300", "BLOCK", "0", "WATCHDOG", "MAX", "250"])
        .query(&mut connection)?;
    has_begun();
    let why = loop {
        if let Some(why) = hold.is_lost() {
            break why;
        }
        // Whatever is done here was begun under the lock.
        thread::sleep(STEP);
    };
    let at = Instant::now();
    // The lock is lost, and maybe somebody else's: there is nothing to give back.
    Ok(Stopped { at, why })
}

/// Hears what happens to the hold.
struct Hold(mpsc::Receiver<String>);

impl Hold {
    /// Begins before the lock is taken: what happens before anybody listens is heard by nobody.
    fn listen(client: &Client, owner: &str) -> Outcome<Hold> {
        let mut connection = client.get_connection()?;
        let (owner, (tell, events)) = (owner.to_owned(), mpsc::channel());
        let (subscribed, is_subscribed) = mpsc::channel();
        thread::spawn(move || {
            let mut listener = connection.as_pubsub();
            if listener.subscribe(EVENTS).is_err() || subscribed.send(()).is_err() {
                return;
            }
            // When the connection breaks, or nobody wants to know any more, this ends, and with it the channel.
            while let Ok(message) = listener.get_message() {
                let Ok(text) = message.get_payload::<String>() else { continue };
                // There may be others who hold it shared, or who held it before.
                let of_ours = text.strip_suffix(&owner).map(|what| what.trim_end().to_owned());
                if of_ours.is_some_and(|what| tell.send(what).is_err()) {
                    return;
                }
            }
        });
        is_subscribed.recv()?;
        Ok(Hold(events))
    }

    /// Why the lock is not ours any more, if that is so. Whoever hears nothing any more has to believe that it is.
    fn is_lost(&self) -> Option<String> {
        loop {
            match self.0.try_recv() {
                // Somebody waits: a worker that can pause would give the lock back soon.
                Ok(what) if what == "contended" => {}
                Ok(what) => return Some(what),
                Err(mpsc::TryRecvError::Empty) => return None,
                Err(mpsc::TryRecvError::Disconnected) => return Some("the connection is lost".to_owned()),
            }
        }
    }
}

/// When the lease is over that the server does not renew any more, on our clock.
fn lease_end(connection: &mut Connection) -> Outcome<Instant> {
    let mut end = None;
    loop {
        let (now, left) = (Instant::now(), redis::cmd("PTTL").arg(LOCK).query::<i64>(connection)?);
        match (u64::try_from(left), end) {
            (Ok(left), _) => end = Some(now + Duration::from_millis(left)),
            (Err(_), Some(end)) => return Ok(end),
            (Err(_), None) => return Err("the lock is not held".into()),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn url() -> Outcome<String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok("redis://127.0.0.1:6379".to_owned()),
        ["--url", url] => Ok(url.to_owned()),
        _ => Err("usage: losing [--url <url>]".into()),
    }
}
