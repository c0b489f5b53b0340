// SPDX-License-Identifier: MIT

//! Waits for the lock across connection failures.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::blocking::{Canceller, Hold, Locks};
use redis_lock_client::{Error, ErrorKind, Server, Settings};
use redis_lock_tools::place::{explain, REPLY_TIMEOUT};
use uuid::Uuid;

use crate::messages;
use crate::options::Options;

/// The maximum duration of a failover with sensible settings.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause between two attempts.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

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
/// if it is the same server. A cancellation leaves neither a wait nor a hold. Returns `None` if the wait ended without the lock:
/// other owners held it, or were ahead in the queue.
pub(crate) fn acquire(
    server: Server,
    options: &Options,
    canceller: &Canceller,
) -> Result<Option<Hold>, Error> {
    let begun = Instant::now();
    // A wrong address must fail at once. But during a failover no server may be reachable.
    let connect_timeout = if options.server.may_fail_over() { FAILOVER_TIMEOUT } else { Duration::ZERO };
    let errors = Arc::new(Mutex::new(ErrorState::default()));
    // Reports the first error after a server was reached. Cancels the wait if no server is reached in time.
    let handle = {
        let (errors, canceller) = (Arc::clone(&errors), canceller.clone());
        Arc::new(move |error: &Error| {
            let mut state = errors.lock().unwrap_or_else(PoisonError::into_inner);
            state.connected |= !error.is_unsent();
            if !state.connected && begun.elapsed() >= connect_timeout {
                state.fatal = Some(error.clone());
                canceller.cancel();
            } else if state.connected
                && !canceller.is_cancelled()
                && !std::mem::replace(&mut state.reported, true)
            {
                messages::print(&format!("{}; trying again", describe(error)));
            }
        })
    };
    let on_error = Arc::clone(&handle);
    // A timeout this short leaves time within the lease for a second renewal if the first gets no reply.
    let reply_timeout = (options.lease / 3).clamp(Duration::from_millis(500), REPLY_TIMEOUT);
    let settings = Settings::new().patience(reply_timeout).on_error(move |error| on_error(error));
    // Leaked, as dropping it would wait for a silent server. It ends with this program.
    let locks = Box::leak(Box::new(Locks::with_settings(server, settings)?));
    // Processes that the command starts may outlive this program, so the hold must not end with the session.
    let owner = format!("{}:{}", options.owner.as_deref().unwrap_or_default(), Uuid::new_v4());
    let mut lock = locks.lock(options.key().as_bytes()).owner(owner).lease(options.lease).fence();
    if options.shared {
        lock = lock.shared();
    }
    if let Some(limit) = options.limit {
        lock = lock.limit(limit);
    }
    let wait = if options.nonblock { Some(Duration::ZERO) } else { options.wait };
    loop {
        if let Some(wait) = wait {
            lock = lock.wait(wait.saturating_sub(begun.elapsed()));
        }
        let error = match lock.acquire_with(canceller) {
            Ok(hold) => return Ok(Some(hold)),
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => return Ok(None),
            Err(error) => error,
        };
        let is_over = wait.is_some_and(|wait| begun.elapsed() >= wait);
        if !is_temporary(&error) || is_over {
            let fatal = errors.lock().unwrap_or_else(PoisonError::into_inner).fatal.take();
            return Err(fatal.unwrap_or(error));
        }
        handle(&error);
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Whether the server replied with a temporary error, or with nothing, such as during a failover, a start or a long script.
fn is_temporary(error: &Error) -> bool {
    let temporary =
        "BUSY CLUSTERDOWN LOADING MASTERDOWN MISCONF NOREPLICAS OOM QUARANTINE READONLY TRYAGAIN UNBLOCKED";
    error.kind() == ErrorKind::Unavailable
        && error.code().is_none_or(|code| temporary.split(' ').any(|each| each == code))
}

/// The text of an error, with advice for frequent mistakes.
pub(crate) fn describe(error: &Error) -> String {
    match error.code() {
        Some("MOVED") => format!("{error}: server is part of a cluster, try --cluster"),
        _ => explain(&error.to_string()),
    }
}
