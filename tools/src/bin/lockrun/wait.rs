// SPDX-License-Identifier: MIT

//! Waits for the lock across connection failures.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::{Canceller, Error, Hold, Locks, Server, Settings};
use redis_lock_tools::place::{explain, REPLY_TIMEOUT};

/// The maximum duration of a failover with sensible settings.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause between two attempts.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The requested lock.
pub(crate) struct LockRequest {
    pub key: Vec<u8>,
    /// The prefix of the owner; the client appends a UUID.
    pub owner: String,
    pub shared: bool,
    /// The maximum number of holders of a shared lock, if there is a limit.
    pub limit: Option<u32>,
    pub lease: Duration,
    /// The maximum wait; `None` without limit.
    pub wait: Option<Duration>,
}

/// The outcome of the wait.
pub(crate) enum Outcome {
    Granted(Hold),
    /// The wait ended without the lock: other owners held it, or were ahead in the queue.
    NotGranted,
    Failed(Error),
}

/// Reports errors during the wait, and gives up if no server was ever reached.
struct ErrorHandler {
    begun: Instant,
    /// The wait fails after this time if no connection was ever made.
    connect_timeout: Duration,
    canceller: Canceller,
    report: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<ErrorState>,
}

#[derive(Default)]
struct ErrorState {
    /// Whether a server was reached.
    connected: bool,
    /// Whether an error was reported.
    reported: bool,
    /// The error that ended the wait.
    fatal: Option<Error>,
}

/// Waits for the lock. If the connection is lost, the wait continues over a new connection, with the same position in the queue
/// if it is the same server. A cancellation leaves neither a wait nor a hold.
pub(crate) fn acquire(
    server: Server,
    request: &LockRequest,
    canceller: &Canceller,
    report: impl Fn(&str) + Send + Sync + 'static,
) -> Outcome {
    // A wrong address must fail at once. But during a failover no server may be reachable.
    let connect_timeout = if server.may_fail_over() { FAILOVER_TIMEOUT } else { Duration::ZERO };
    let errors = Arc::new(ErrorHandler {
        begun: Instant::now(),
        connect_timeout,
        canceller: canceller.clone(),
        report: Box::new(report),
        state: Mutex::default(),
    });
    let handler = Arc::clone(&errors);
    // A timeout this short leaves time within the lease for a second renewal if the first gets no reply.
    let reply_timeout = (request.lease / 3).clamp(Duration::from_millis(500), REPLY_TIMEOUT);
    let settings = Settings::new().patience(reply_timeout).on_trouble(move |error| handler.handle(error));
    // Leaked, as dropping it would wait for a silent server. It ends with this program.
    let locks = Box::leak(Box::new(Locks::at(server, settings)));
    // Processes that the command starts may outlive this program, so the hold must not end with the connection.
    let mut lock =
        locks.lock(request.key.clone()).owner(&request.owner).lease(request.lease).keep(false).fence();
    if request.shared {
        lock = lock.shared();
    }
    if let Some(limit) = request.limit {
        lock = lock.limit(limit);
    }
    // A blocking wait needs two connections, one of them for probes, and no permission to use pub/sub.
    let lock = lock.blocking().canceller(canceller);
    let left = || request.wait.map_or(Duration::MAX, |wait| wait.saturating_sub(errors.begun.elapsed()));
    loop {
        let error = match lock.clone().wait(left()).acquire() {
            Ok(hold) => return Outcome::Granted(hold),
            Err(Error::Busy(_) | Error::TimedOut(_)) => return Outcome::NotGranted,
            Err(error) => error,
        };
        // If no connection could be made, the client has already retried until the deadline.
        if !is_temporary(&error) || left().is_zero() {
            return Outcome::Failed(errors.fatal().unwrap_or(error));
        }
        errors.handle(&error);
        thread::sleep(RETRY_INTERVAL);
    }
}

impl ErrorHandler {
    /// Reports the first error after a server was reached. Cancels the wait if no server is reached in time.
    fn handle(&self, error: &Error) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.connected |= !error.is_unsent();
        if !state.connected && self.begun.elapsed() >= self.connect_timeout {
            state.fatal = Some(error.clone());
            return self.canceller.cancel();
        }
        if state.connected && !std::mem::replace(&mut state.reported, true) {
            (self.report)(&format!("{}; trying again", describe(error)));
        }
    }

    fn fatal(&self) -> Option<Error> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).fatal.clone()
    }
}

/// Whether the server replied with a temporary error, such as during a failover, a start or a long script.
fn is_temporary(error: &Error) -> bool {
    const TEMPORARY: [&str; 11] = [
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
    matches!(error, Error::Unavailable(_)) && error.code().is_some_and(|code| TEMPORARY.contains(&code))
}

/// The text of an error, with advice for frequent mistakes.
pub(crate) fn describe(error: &Error) -> String {
    match error.code() {
        Some("MOVED") => format!("{}: server is part of a cluster, try --cluster", error.text()),
        _ => explain(error.text()),
    }
}
