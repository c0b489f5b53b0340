// SPDX-License-Identifier: MIT

//! Gets the lock and keeps it, whatever happens to the connection.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redis::{RedisError, RedisResult};
use redis_lock_tools::server::{in_words, trouble, Link, Server, Trouble, SOON};
use uuid::Uuid;

use crate::lock::{Granted, Lock, Moment, ValidUntil, Wait};

/// As long as a failover takes, where it is set up well.
const FAILOVER: Duration = Duration::from_secs(20);

/// How much later than promised an answer may come.
const MARGIN: Duration = Duration::from_secs(2);

/// From one attempt to the next one.
const PAUSE: Duration = Duration::from_millis(200);

/// How often it is looked whether the lock is still ours, so that a broken lock is noticed soon.
const LOOK: Duration = Duration::from_secs(1);

/// A lock that is ours.
pub(crate) struct Hold {
    pub token: i64,
    pub valid_until: Arc<ValidUntil>,
    server: Server,
    link: Option<Link>,
    lock: Lock,
}

/// What came of waiting for it.
pub(crate) enum Outcome {
    Granted(Box<Hold>),
    /// Somebody else holds it.
    NotGranted,
    Failed(RedisError),
}

/// Waits for the lock. If the connection is lost on the way, the wait goes on over a new one, in the same place of the queue if
/// it is the same server. `request` is told of each id that a call is sent with, before it is sent.
pub(crate) fn acquire(
    mut server: Server,
    mut lock: Lock,
    wait: Wait,
    request: impl Fn(Uuid),
    say: &dyn Fn(&str),
) -> Outcome {
    let mut link = match connect_first(&mut server, wait) {
        Ok(link) => Some(link),
        Err(error) => return Outcome::Failed(error),
    };
    let mut id = Uuid::new_v4();
    request(id);
    // Of a call that is repeated nobody knows when it was granted, and whether the hold has ended since.
    let mut repeated = false;
    let mut told = false;
    loop {
        let sent = Moment::now();
        let tried = connected(&mut server, link.take(), SOON.min(wait.left().unwrap_or(SOON) + MARGIN))
            .and_then(|mut link| {
                let patience = wait.left().map(|left| left + if left.is_zero() { SOON } else { MARGIN });
                let granted = link.call_within::<Option<Granted>>(patience, &lock.acquire(&id, wait))?;
                Ok((link, granted))
            });
        let error = match tried {
            Ok((_, None)) => return Outcome::NotGranted,
            Ok((open, Some(granted))) => {
                let mut hold = Hold {
                    token: granted.token,
                    valid_until: Arc::new(ValidUntil::new(sent.plus(lock.lease))),
                    server,
                    link: Some(open),
                    lock,
                };
                if !repeated && hold.valid_until.get().left() > hold.lock.lease / 2 {
                    return Outcome::Granted(Box::new(hold));
                }
                let error = match hold.renew() {
                    Ok(()) => return Outcome::Granted(Box::new(hold)),
                    Err(error) => error,
                };
                Hold { server, link, lock, .. } = hold;
                error
            }
            Err(error) => error,
        };
        repeated = true;
        if trouble(&error) == Trouble::ForGood || matches!(wait, Wait::Not) {
            return Outcome::Failed(error);
        }
        if wait.left().is_some_and(|left| left.is_zero()) {
            return Outcome::Failed(error);
        }
        if matches!(error.code(), Some("UNBLOCKED" | "NOTOWNER")) {
            // Nothing is held. The id may have been cancelled for good.
            id = Uuid::new_v4();
            request(id);
            repeated = false;
        }
        if !told {
            say(&format!("{}; trying again", in_words(&error)));
            told = true;
        }
        thread::sleep(PAUSE);
    }
}

/// Connects for the first time. Whoever has mistyped the address does not want to wait for it. But there may be a failover just now.
fn connect_first(server: &mut Server, wait: Wait) -> RedisResult<Link> {
    let until = Moment::now().plus(FAILOVER.min(wait.left().unwrap_or(FAILOVER)));
    loop {
        match server.connect(SOON) {
            Err(error)
                if server.may_fail_over()
                    && trouble(&error) == Trouble::ForNow
                    && !until.left().is_zero() =>
            {
                thread::sleep(PAUSE);
            }
            connected => return connected,
        }
    }
}

/// Undoes the wait. It is tried for a moment only: whoever wants to end wants to end now.
pub(crate) fn cancel(mut server: Server, lock: &Lock, request: &Uuid) -> RedisResult<i64> {
    let patience = Duration::from_secs(1);
    server.connect(patience)?.call_within(Some(patience), &lock.cancel(request))
}

/// What a keeper tells.
pub(crate) enum Told {
    /// The lock is not ours any more.
    Lost(String),
    /// The server answers with an error, and it is tried again. Told once.
    Trouble(String),
    /// What came of giving it back.
    Released(RedisResult<i64>),
}

/// Who keeps a hold, until it is told to give it back.
pub(crate) struct Keeper {
    release: mpsc::Sender<()>,
}

impl Keeper {
    /// Renews the hold. That time runs out while the server is out of reach is for others to see: [`Hold::valid_until`].
    pub(crate) fn start(mut hold: Hold, tell: impl Fn(Told) + Send + 'static) -> Keeper {
        let (release, released) = mpsc::channel();
        thread::spawn(move || {
            let every = LOOK.min(hold.lock.lease / 3);
            let (mut pause, mut lost, mut told) = (every, false, false);
            while released.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = match if lost { Ok(()) } else { hold.renew() } {
                    Ok(()) => every,
                    // Of something else in the lock's place nobody is the owner.
                    Err(error)
                        if trouble(&error) == Trouble::NotOwner || error.code() == Some("WRONGTYPE") =>
                    {
                        lost = true;
                        tell(Told::Lost(in_words(&error)));
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

impl Hold {
    /// Sets the lease anew, and moves on until when the hold is valid: from when this was sent, not from when it was answered.
    fn renew(&mut self) -> RedisResult<()> {
        let patience = (self.lock.lease / 3).min(SOON);
        let mut link = connected(&mut self.server, self.link.take(), patience)?;
        let sent = Moment::now();
        let renewed = link.call_within::<i64>(Some(patience), &self.lock.renew());
        if let Err(error) = &renewed {
            // What the server has answered leaves the connection as good as it was.
            if error.code().is_some() && trouble(error) == Trouble::NotOwner {
                self.link = Some(link);
            }
        } else {
            self.valid_until.set(sent.plus(self.lock.lease));
            self.link = Some(link);
        }
        renewed.map(|_| ())
    }

    /// Gives the lock back. It is tried as long as the lease runs, as then the lock is free anyway.
    fn release(&mut self) -> RedisResult<i64> {
        let release = self.lock.release();
        let until = self.valid_until.get();
        loop {
            let patience = until.left().clamp(PAUSE, SOON);
            let released = connected(&mut self.server, self.link.take(), patience)
                .and_then(|mut link| link.call_within(Some(patience), &release));
            match released {
                Err(error) if trouble(&error) == Trouble::ForNow && !until.left().is_zero() => {
                    thread::sleep(PAUSE)
                }
                released => return released,
            }
        }
    }
}

fn connected(server: &mut Server, link: Option<Link>, patience: Duration) -> RedisResult<Link> {
    link.map_or_else(|| server.connect(patience), Ok)
}
