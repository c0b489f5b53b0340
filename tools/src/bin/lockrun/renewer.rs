// SPDX-License-Identifier: MIT

//! Renews the hold in a thread, and releases it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redis_lock_client::blocking::Hold;
use redis_lock_client::{Error, ErrorKind, Result};

use crate::wait::{describe, RETRY_INTERVAL};

/// The maximum interval between renewals. It bounds how late a broken lock is noticed.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// The reason for a loss without a confirmed renewal.
const UNREACHABLE: &str = "server was unreachable for a whole lease";

/// An event of the renewer.
pub(crate) enum RenewerEvent {
    /// The hold is over, for this reason.
    Lost(String),
    /// The server replied with an error, and the renewer tries again. Sent once.
    Trouble(String),
    /// The result of the release.
    Released(Result<()>),
}

/// A thread that renews a hold until it is asked to release it.
pub(crate) struct Renewer {
    release: mpsc::Sender<()>,
}

impl Renewer {
    /// Renews the hold. It does not report that the lease expires while the server is unreachable: see [`Hold::valid_for`].
    pub(crate) fn start(
        hold: Arc<Hold>,
        lease: Duration,
        notify: impl Fn(RenewerEvent) + Send + 'static,
    ) -> Renewer {
        let (release, released) = mpsc::channel();
        thread::spawn(move || {
            let interval = RENEW_INTERVAL.min(lease / 3);
            // The reply with the grant may have been late, so the first renewal may be due earlier.
            let (mut pause, mut lost, mut reported) = (interval.min(hold.valid_for() / 2), false, false);
            while released.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = match if lost { Ok(()) } else { hold.extend(lease) } {
                    Ok(()) => interval,
                    Err(error) if is_loss(&error) => {
                        lost = true;
                        notify(RenewerEvent::Lost(loss_reason(&hold)));
                        interval
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut reported, true) {
                            notify(RenewerEvent::Trouble(describe(&error)));
                        }
                        RETRY_INTERVAL
                    }
                };
            }
            notify(RenewerEvent::Released(hold.release()));
        });
        Renewer { release }
    }

    /// Starts the release. Its result is a [`RenewerEvent::Released`].
    pub(crate) fn release(&self) {
        let _ = self.release.send(());
    }
}

/// Whether the error means that the hold is over. A key that no longer holds a lock is a loss, too.
pub(crate) fn is_loss(error: &Error) -> bool {
    error.kind() == ErrorKind::Lost
}

/// The reason for a loss: that of the server, or [`UNREACHABLE`] if the server did not report the loss.
pub(crate) fn loss_reason(hold: &Hold) -> String {
    match hold.end_reason().as_deref() {
        None | Some("expired") => UNREACHABLE.to_owned(),
        Some(reason) => format!("it was {reason}"),
    }
}
