// SPDX-License-Identifier: MIT

//! Keeps the lock, and gives it back.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redis_lock_client::{Error, Hold, Result};

use crate::wait::{in_words, PAUSE};

/// How often it is looked whether the lock is still ours, so that a broken lock is noticed soon.
const LOOK: Duration = Duration::from_secs(1);

/// How it is said that no renewal was confirmed in time.
pub(crate) const OUT_OF_REACH: &str = "the server could not be reached for the time of a lease";

/// What a keeper tells.
pub(crate) enum Told {
    /// The lock is not ours any more.
    Lost(String),
    /// The server answers with an error, and it is tried again. Told once.
    Trouble(String),
    /// What came of giving it back.
    Released(Result<()>),
}

/// Who keeps a hold, until it is told to give it back.
pub(crate) struct Keeper {
    release: mpsc::Sender<()>,
}

impl Keeper {
    /// Renews the hold. That time runs out while the server is out of reach is for others to see, by [`Hold::valid_for`].
    pub(crate) fn start(hold: Arc<Hold>, lease: Duration, tell: impl Fn(Told) + Send + 'static) -> Keeper {
        let (release, released) = mpsc::channel();
        thread::spawn(move || {
            let every = LOOK.min(lease / 3);
            // It may have taken long to hear of the grant.
            let (mut pause, mut lost, mut told) = (every.min(hold.valid_for() / 2), false, false);
            while released.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = match if lost { Ok(()) } else { hold.extend_once(lease) } {
                    Ok(()) => every,
                    Err(error) if is_loss(&error) => {
                        lost = true;
                        tell(Told::Lost(why(&error)));
                        every
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut told, true) {
                            tell(Told::Trouble(in_words(&error)));
                        }
                        PAUSE
                    }
                };
            }
            tell(Told::Released(hold.release()));
        });
        Keeper { release }
    }

    /// Begins to give the lock back; what comes of it is told.
    pub(crate) fn release(&self) {
        let _ = self.release.send(());
    }
}

/// Whether the hold is over. Of something else in the lock's place nobody is the owner.
pub(crate) fn is_loss(error: &Error) -> bool {
    matches!(error, Error::Lost(_)) || error.code() == Some("WRONGTYPE")
}

/// Why it is over: the server has said so, or has said nothing for too long.
pub(crate) fn why(error: &Error) -> String {
    match error {
        Error::Lost(_) if error.code() != Some("NOTOWNER") => OUT_OF_REACH.to_owned(),
        error => in_words(error),
    }
}
