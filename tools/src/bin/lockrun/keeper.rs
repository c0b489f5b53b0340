// SPDX-License-Identifier: MIT

//! Gets the lock and keeps it, whatever happens to the connection.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redis::{RedisError, RedisResult};
use redis_lock_tools::server::{in_words, trouble, Link, Server, Trouble};
use uuid::Uuid;

use crate::lock::{Granted, Lock, Moment, ValidUntil, Wait};

/// How long a server may take to answer what it answers at once.
const SOON: Duration = Duration::from_secs(5);

/// As long as a failover takes, where it is set up well.
const FAILOVER: Duration = Duration::from_secs(20);

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
    lock: Lock,
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
    let mut told = false;
    loop {
        let sent = Moment::now();
        let tried = connected(&mut server, link.take(), SOON).and_then(|mut link| {
            let patience = wait.left().map(|left| left + SOON);
            let granted = link.call_within::<Option<Granted>>(patience, &lock.acquire(&id, wait))?;
            Ok((link, granted))
        });
        let error = match tried {
            Ok((link, Some(granted))) => {
                let mut hold = Hold {
                    token: granted.token,
                    valid_until: Arc::new(ValidUntil::new(sent.plus(lock.lease))),
                    server,
                    link: Some(link),
                    lock,
                };
                // The lease runs from the grant. Who has waited does not know when that was.
                if hold.valid_until.get().left() > hold.lock.lease / 2 {
                    return Outcome::Granted(Box::new(hold));
                }
                return match hold.renew() {
                    Ok(()) => Outcome::Granted(Box::new(hold)),
                    Err(error) => Outcome::Failed(error),
                };
            }
            Ok((_, None)) => return Outcome::NotGranted,
            Err(error) => error,
        };
        if trouble(&error) != Trouble::ForNow || matches!(wait, Wait::Not) {
            return Outcome::Failed(error);
        }
        if wait.left().is_some_and(|left| left.is_zero()) {
            return Outcome::Failed(error);
        }
        if error.code() == Some("UNBLOCKED") {
            // The wait has ended, and nothing is held. Its id may have been cancelled for good.
            id = Uuid::new_v4();
            request(id);
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

/// Who keeps a hold. It gives the lock back when it is told to.
pub(crate) struct Keeper {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<Hold>,
}

impl Keeper {
    /// Renews the hold, until [`Keeper::release`]. `lost` is called if it turns out that it is not ours any more. That time
    /// runs out while the server is out of reach is for others to see: [`Hold::valid_until`].
    pub(crate) fn start(mut hold: Hold, lost: impl FnOnce(String) + Send + 'static) -> Keeper {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let every = LOOK.min(hold.lock.lease / 3);
            let mut pause = every;
            loop {
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return hold,
                }
                pause = match hold.renew() {
                    Ok(()) => every,
                    Err(error) if trouble(&error) == Trouble::NotOwner => {
                        lost(in_words(&error));
                        return hold;
                    }
                    Err(_) => PAUSE,
                };
            }
        });
        Keeper { stop, thread }
    }

    /// Gives the lock back, and tells what came of it. It takes no longer than the lease, as then the lock is free anyway.
    pub(crate) fn release(self) -> RedisResult<i64> {
        drop(self.stop);
        let Ok(mut hold) = self.thread.join() else {
            return Err((redis::ErrorKind::Client, "the keeper of the lock has ended").into());
        };
        let release = hold.lock.release();
        let until = hold.valid_until.get();
        loop {
            let patience = until.left().clamp(PAUSE, SOON);
            let released = connected(&mut hold.server, hold.link.take(), patience)
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
}

fn connected(server: &mut Server, link: Option<Link>, patience: Duration) -> RedisResult<Link> {
    link.map_or_else(|| server.connect(patience), Ok)
}
