// SPDX-License-Identifier: MIT

//! Renews the hold in a thread, and releases it.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redis_lock_client::blocking::Hold;
use redis_lock_client::ErrorKind;

use crate::wait::{describe, RETRY_INTERVAL};
use crate::Event;

/// The maximum interval between renewals. It bounds how late a broken lock is noticed.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// A thread that renews a hold. Dropping this value starts the release; its result is an [`Event::Released`].
pub(crate) struct Renewer(#[expect(dead_code, reason = "its end is the signal")] Sender<()>);

impl Renewer {
    /// Renews the hold, and sends each error as an [`Event::Trouble`]. The lease may also expire while the server is unreachable:
    /// see [`Hold::is_lost`].
    pub(crate) fn start(hold: &Arc<Hold>, lease: Duration, events: Sender<Event>) -> Renewer {
        let (release, released) = mpsc::channel::<()>();
        let hold = Arc::clone(hold);
        thread::spawn(move || {
            let interval = RENEW_INTERVAL.min(lease / 3);
            let mut pause = interval.min(hold.valid_for() / 2);
            while released.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = interval;
                if let Err(error) = hold.extend(lease) {
                    let _ = events.send(Event::Trouble(describe(&error)));
                    if error.kind() != ErrorKind::Lost {
                        pause = RETRY_INTERVAL;
                    }
                }
            }
            let _ = events.send(Event::Released(hold.release()));
        });
        Renewer(release)
    }
}

/// The reason for a loss that the server has reported.
pub(crate) fn loss_reason(hold: &Hold) -> String {
    match hold.end_reason().as_deref() {
        None | Some("expired") => "server was unreachable for a whole lease".to_owned(),
        Some(reason) => format!("it was {reason}"),
    }
}
