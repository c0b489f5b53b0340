// SPDX-License-Identifier: MIT

//! Waits for the lock across connection failures.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::blocking::{Canceller, Hold, Locks};
use redis_lock_client::{Error, ErrorKind, Server, Settings};
use redis_lock_tools::place::{explain, REPLY_TIMEOUT};
use uuid::Uuid;

/// The maximum duration of a failover with sensible settings.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause between two attempts.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The requested lock.
pub(crate) struct LockRequest {
    pub key: Vec<u8>,
    /// The prefix of the owner, before a UUID.
    pub owner: String,
    /// Whether another server may take over.
    pub may_fail_over: bool,
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
    let connect_timeout = if request.may_fail_over { FAILOVER_TIMEOUT } else { Duration::ZERO };
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
    let settings = Settings::new().patience(reply_timeout).on_error(move |error| handler.handle(error));
    let locks = match Locks::with_settings(server, settings) {
        // Leaked, as dropping it would wait for a silent server. It ends with this program.
        Ok(locks) => Box::leak(Box::new(locks)),
        Err(error) => return Outcome::Failed(error),
    };
    // Processes that the command starts may outlive this program, so the hold must not end with the session.
    let owner = format!("{}{}", request.owner, Uuid::new_v4());
    let mut lock = locks.lock(request.key.clone()).owner(owner).lease(request.lease).fence();
    if request.shared {
        lock = lock.shared();
    }
    if let Some(limit) = request.limit {
        lock = lock.limit(limit);
    }
    loop {
        if let Some(wait) = request.wait {
            lock = lock.wait(wait.saturating_sub(errors.begun.elapsed()));
        }
        let error = match lock.acquire_with(canceller) {
            Ok(hold) => return Outcome::Granted(hold),
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => {
                return Outcome::NotGranted;
            }
            Err(error) => error,
        };
        let is_over = request.wait.is_some_and(|wait| errors.begun.elapsed() >= wait);
        if !is_temporary(&error) || is_over {
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

/// Whether the server replied with a temporary error, or with nothing, such as during a failover, a start or a long script.
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
    error.kind() == ErrorKind::Unavailable && error.code().is_none_or(|code| TEMPORARY.contains(&code))
}

/// The text of an error, with advice for frequent mistakes.
pub(crate) fn describe(error: &Error) -> String {
    match error.code() {
        Some("MOVED") => format!("{error}: server is part of a cluster, try --cluster"),
        _ => explain(&error.to_string()),
    }
}
