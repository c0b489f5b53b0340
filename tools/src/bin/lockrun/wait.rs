// SPDX-License-Identifier: MIT

//! Waits for the lock across connection failures.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, Value};
use redis_lock_client::blocking::{Canceller, Hold, Lock, Locks};
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
    reported: HashMap<String, Instant>,
    /// The error that ended the wait.
    fatal: Option<Error>,
}

/// The time after which a message says what the wait is for. Shorter waits are silent.
pub(crate) const FIRST_REPORT: Duration = Duration::from_secs(5);

/// The time after which a message about a wait is repeated.
pub(crate) const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// Whether a message with this reason is due: the first one, or one a minute after the last. `reported` has the time of the last
/// message of each reason.
fn is_due(reported: &mut HashMap<String, Instant>, reason: &str, now: Instant) -> bool {
    let is_due = reported.get(reason).is_none_or(|last| now >= *last + REMINDER_INTERVAL);
    if is_due {
        reported.insert(reason.to_owned(), now);
    }
    is_due
}

/// The wait for the lock.
pub(crate) struct Wait {
    pub(crate) begun: Instant,
    options: Options,
    owner: String,
    lock: Lock,
    pub(crate) canceller: Canceller,
    errors: Arc<Mutex<ErrorState>>,
    report: Arc<dyn Fn(&Error) + Send + Sync>,
}

impl Wait {
    /// Prepares the wait. Does not use the network yet.
    pub(crate) fn new(server: Server, options: Options) -> Result<Wait, Error> {
        let (begun, canceller) = (Instant::now(), Canceller::new());
        // A wrong address must fail at once. But during a failover no server may be reachable.
        let failover_timeout = if options.server.may_fail_over() { FAILOVER_TIMEOUT } else { Duration::ZERO };
        let connect_timeout = options.retry.unwrap_or(failover_timeout);
        let errors = Arc::new(Mutex::new(ErrorState::default()));
        // Reports errors. Cancels the wait if no server is reached in time.
        let report = {
            let (errors, canceller) = (Arc::clone(&errors), canceller.clone());
            Arc::new(move |error: &Error| {
                let mut state = errors.lock().unwrap_or_else(PoisonError::into_inner);
                state.connected |= !error.is_unsent();
                if !state.connected && (error.is_unknown_primary() || begun.elapsed() >= connect_timeout) {
                    state.fatal = Some(error.clone());
                    canceller.cancel();
                } else if !canceller.is_cancelled() {
                    let text = describe(error);
                    // The texts of some errors contain times.
                    if is_due(&mut state.reported, error.code().unwrap_or(&text), Instant::now()) {
                        messages::print(&format!("{text}; trying again"));
                    }
                }
            })
        };
        let on_error = Arc::clone(&report);
        // A timeout this short leaves time within the lease for a second renewal if the first gets no reply.
        let reply_timeout = (options.lease / 3).clamp(Duration::from_millis(500), REPLY_TIMEOUT);
        let prefix = options.owner.as_deref().unwrap_or_default();
        let settings = Settings::new()
            .name(format!("lockrun:{prefix}"))
            .patience(reply_timeout)
            .on_error(move |error| on_error(error));
        // Leaked, as dropping it would wait for a silent server. It ends with this program.
        let locks = Box::leak(Box::new(Locks::with_settings(server, settings)?));
        // Processes that the command starts may outlive this program, so the hold must not end with the session.
        let owner = format!("{prefix}:{}", Uuid::new_v4());
        let mut lock = locks.lock(options.key.as_bytes()).owner(&*owner).lease(options.lease).fence();
        if options.shared {
            lock = lock.shared();
        }
        if let Some(limit) = options.limit {
            lock = lock.limit(limit);
        }
        Ok(Wait { begun, options, owner, lock, canceller, errors, report })
    }

    /// Waits for the lock. If the connection is lost, the wait continues over a new connection, with the same position in the
    /// queue if it is the same server. A cancellation leaves neither a wait nor a hold. Returns `None` if the wait ended without
    /// the lock: other owners held it, or were ahead in the queue. A second call has the rest of the time.
    pub(crate) fn acquire(&self) -> Result<Option<Hold>, Error> {
        let (mut lock, limit, mut since) = (self.lock.clone(), self.options.wait_limit(), self.begun);
        loop {
            if let Some(limit) = limit {
                lock = lock.wait(limit.saturating_sub(since.elapsed()));
            }
            let error = match lock.acquire_with(&self.canceller) {
                Ok(hold) => match self.confirm(&hold) {
                    Ok(true) => return Ok(Some(hold)),
                    Ok(false) => {
                        self.report_early_loss();
                        thread::sleep(RETRY_INTERVAL);
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => {
                    return Ok(None)
                }
                Err(error) => error,
            };
            let is_retried = self.options.retry.is_some_and(|retry| self.begun.elapsed() < retry);
            let is_over = !is_retried && limit.is_some_and(|limit| since.elapsed() >= limit);
            if !is_temporary(&error) || is_over {
                let fatal = self.errors.lock().unwrap_or_else(PoisonError::into_inner).fatal.take();
                return Err(fatal.unwrap_or(error));
            }
            (self.report)(&error);
            thread::sleep(RETRY_INTERVAL);
            if is_retried {
                since = Instant::now();
            }
        }
    }

    /// One of the present holders, for a message, and the number of others. `None` if the lock is free or already granted, or if
    /// the server does not reply.
    pub(crate) fn holders(&self) -> Option<(String, usize)> {
        let mut info = match self.lock.query() {
            Err(error) if error.code() == Some("NOPERM") => return Some(("another owner".to_owned(), 0)),
            info => info.ok()??,
        };
        let holders = Vec::<HashMap<String, Value>>::from_redis_value(info.remove("holders")?).ok()?;
        let owner = Vec::<u8>::from_redis_value_ref(holders.first()?.get("owner")?).ok()?;
        // Quoted, as the owner may contain any bytes.
        let name = format!("{:?}", String::from_utf8_lossy(&owner));
        (owner != self.owner.as_bytes()).then_some((name, holders.len() - 1))
    }

    /// Asks the server for the hold once more. Returns false if it has been lost since the grant, such as while this program was
    /// stopped.
    fn confirm(&self, hold: &Hold) -> Result<bool, Error> {
        loop {
            let Err(error) = hold.extend(self.options.lease) else { return Ok(true) };
            if hold.is_lost() {
                return Ok(false);
            }
            if !is_temporary(&error) || self.canceller.is_cancelled() {
                drop(hold.release());
                return Err(error);
            }
            (self.report)(&error);
            thread::sleep(RETRY_INTERVAL);
        }
    }

    pub(crate) fn report_early_loss(&self) {
        let key = self.options.key.to_string_lossy();
        messages::print(&format!("{key}: lost before the command started; waiting again"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_reported_once_a_minute() {
        let (mut reported, begun) = (HashMap::new(), Instant::now());
        let mut is_due =
            |reason, seconds| is_due(&mut reported, reason, begun + Duration::from_secs(seconds));
        assert_eq!([0, 59, 60, 61].map(|at| is_due("LOADING", at)), [true, false, true, false]);
        assert!(is_due("READONLY", 61), "the reason has changed");
        assert_eq!([119, 120].map(|at| is_due("LOADING", at)), [false, true]);
    }
}
