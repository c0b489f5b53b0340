// SPDX-License-Identifier: MIT

//! Gets the lock, whatever happens to the connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::{Canceller, Error, Hold, Locks, Server, Settings};
use redis_lock_tools::place::{explained, SOON};

/// As long as a failover takes, where it is set up well.
const FAILOVER: Duration = Duration::from_secs(20);

/// From one attempt to the next one.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// Which lock, for whom, how, and for how long it is waited for.
pub(crate) struct Wanted {
    pub key: Vec<u8>,
    /// A UUID comes behind it.
    pub owner: String,
    pub shared: bool,
    /// How many may hold it, if it is shared with so many only.
    pub limit: Option<u32>,
    pub lease: Duration,
    /// Without an end, if nothing is said.
    pub wait: Option<Duration>,
}

/// What came of waiting for it.
pub(crate) enum Outcome {
    Granted(Hold),
    /// Somebody else holds it.
    NotGranted,
    Failed(Error),
}

/// What disturbs the wait.
struct Troubles {
    begun: Instant,
    /// How long nobody may be there when the wait begins.
    patience: Duration,
    canceller: Canceller,
    say: Box<dyn Fn(&str) + Send + Sync>,
    so_far: Mutex<SoFar>,
}

#[derive(Default)]
struct SoFar {
    /// Somebody was there.
    connected: bool,
    told: bool,
    /// Why the wait was given up.
    end: Option<Error>,
}

/// Waits for the lock. If the connection is lost on the way, the wait goes on over a new one, in the same place of the queue if
/// it is the same server. It ends when it is cancelled, and then nothing waits and nothing is held.
pub(crate) fn acquire(
    server: Server,
    wanted: &Wanted,
    canceller: &Canceller,
    say: impl Fn(&str) + Send + Sync + 'static,
) -> Outcome {
    // Whoever has mistyped the address does not want to wait for it. But there may be a failover just now.
    let patience = if server.may_fail_over() { FAILOVER } else { Duration::ZERO };
    let troubles = Arc::new(Troubles {
        begun: Instant::now(),
        patience,
        canceller: canceller.clone(),
        say: Box::new(say),
        so_far: Mutex::default(),
    });
    let heard = Arc::clone(&troubles);
    // A second renewal fits into a lease if the first has no answer.
    let patience = (wanted.lease / 3).clamp(Duration::from_millis(500), SOON);
    let settings = Settings::new().patience(patience).on_trouble(move |error| heard.hear(error));
    // Its end would wait for a server that is silent. The end of this program is its end, too.
    let locks = Box::leak(Box::new(Locks::at(server, settings)));
    // What the command has started may outlive this program, so the hold does not end with the connection.
    let mut lock =
        locks.lock(wanted.key.clone()).owner(&wanted.owner).lease(wanted.lease).keep(false).fence();
    if wanted.shared {
        lock = lock.shared();
    }
    if let Some(limit) = wanted.limit {
        lock = lock.limit(limit);
    }
    // One connection, with one more to look after a long wait, is enough for one lock; and no permission for messages is needed.
    let lock = lock.blocking().canceller(canceller);
    let left = || wanted.wait.map_or(Duration::MAX, |wait| wait.saturating_sub(troubles.begun.elapsed()));
    loop {
        let error = match lock.clone().wait(left()).acquire() {
            Ok(hold) => return Outcome::Granted(hold),
            Err(Error::Busy(_) | Error::TimedOut(_)) => return Outcome::NotGranted,
            Err(error) => error,
        };
        // Without a connection it has been tried for as long as there was time.
        if !passes(&error) || left().is_zero() {
            return Outcome::Failed(troubles.end().unwrap_or(error));
        }
        troubles.hear(&error);
        thread::sleep(PAUSE);
    }
}

impl Troubles {
    /// Says that it is tried again, once; or gives up.
    fn hear(&self, error: &Error) {
        let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        so_far.connected |= !error.is_unsent();
        if !so_far.connected && self.begun.elapsed() >= self.patience {
            so_far.end = Some(error.clone());
            return self.canceller.cancel();
        }
        if so_far.connected && !std::mem::replace(&mut so_far.told, true) {
            (self.say)(&format!("{}; trying again", in_words(error)));
        }
    }

    fn end(&self) -> Option<Error> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner).end.clone()
    }
}

/// Whether a server said something that will not be so in a moment: a failover, a start, a script that runs.
fn passes(error: &Error) -> bool {
    const PASSING: [&str; 11] = [
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "OOM",
        "QUARANTINE",
        "READONLY",
        "TRYAGAIN",
        "UNBLOCKED",
    ];
    matches!(error, Error::Unavailable(_)) && error.code().is_some_and(|code| PASSING.contains(&code))
}

/// An error in words for a terminal.
pub(crate) fn in_words(error: &Error) -> String {
    match error.code() {
        Some("MOVED") => format!("{}: the server is of a cluster, try --cluster", error.text()),
        _ => explained(error.text()),
    }
}
