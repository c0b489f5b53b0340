// SPDX-License-Identifier: MIT

//! Where a thread sleeps until something concerns it: a reply, a message, or that somebody cancels.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Value;

use crate::clock::{after, left, now, Moment};
use crate::error::{Error, Result};
use crate::session::A_MOMENT;

/// A thread wakes up so late only in a process that was stopped, or a machine that slept.
const OVERSLEPT: Duration = Duration::from_millis(100);

/// Locks a mutex. Whoever panicked with it left a state that is sound between any two steps.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    changed: Condvar,
}

#[derive(Default)]
struct Mail {
    /// Which call is waited for: a reply to an earlier one is stale.
    call: u64,
    reply: Option<Result<Value>>,
    told: bool,
    cancelled: bool,
}

impl Mailbox {
    /// Begins a call, and returns what its reply is to be brought to.
    pub(crate) fn expect(self: &Arc<Self>) -> impl FnOnce(Result<Value>) + Send + 'static {
        let mut mail = locked(&self.mail);
        mail.call += 1;
        mail.reply = None;
        let (call, mailbox) = (mail.call, Arc::clone(self));
        move |reply| {
            let mut mail = locked(&mailbox.mail);
            if mail.call == call {
                mail.reply = Some(reply);
                mailbox.changed.notify_all();
            }
        }
    }

    /// The reply, or nothing if there is none by then. That it is cancelled comes first.
    pub(crate) fn reply(&self, until: Moment) -> Option<Result<Value>> {
        let look = |mail: &mut Mail| match mail.cancelled {
            true => Some(Err(cancelled())),
            false => mail.reply.take(),
        };
        let reply = self.wait(until, look);
        if reply.is_none() && now() > until.saturating_add(OVERSLEPT) {
            // A process that was stopped may not have read yet what there is.
            return self.wait(after(A_MOMENT / 2), look);
        }
        reply
    }

    /// Waits until a message says that something may have changed, or until then. True if one has.
    pub(crate) fn told(&self, until: Moment) -> Result<bool> {
        let told = self.wait(until, |mail| {
            if mail.cancelled {
                return Some(Err(cancelled()));
            }
            mail.told.then_some(Ok(true))
        });
        told.unwrap_or(Ok(false))
    }

    /// Waits until then.
    pub(crate) fn rest(&self, until: Moment) -> Result<()> {
        self.wait(until, |mail| mail.cancelled.then(|| Err(cancelled()))).unwrap_or(Ok(()))
    }

    /// What was told before does not count any more.
    pub(crate) fn forget(&self) {
        locked(&self.mail).told = false;
    }

    pub(crate) fn tell(&self) {
        locked(&self.mail).told = true;
        self.changed.notify_all();
    }

    pub(crate) fn cancel(&self) {
        locked(&self.mail).cancelled = true;
        self.changed.notify_all();
    }

    fn wait<T>(&self, until: Moment, mut ready: impl FnMut(&mut Mail) -> Option<T>) -> Option<T> {
        let mut mail = locked(&self.mail);
        loop {
            let left = left(until);
            match ready(&mut mail) {
                None if left.is_zero() => return None,
                None => {}
                some => return some,
            }
            mail = self.changed.wait_timeout(mail, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn cancelled() -> Error {
    Error::Cancelled("the caller gave up".to_owned())
}

/// Ends waits from another thread: those that have begun, and those that begin later. Clones are the same one.
#[derive(Clone, Default)]
pub struct Canceller(Arc<Mutex<Cancelling>>);

#[derive(Default)]
struct Cancelling {
    cancelled: bool,
    waiting: Vec<Weak<Mailbox>>,
}

impl Canceller {
    /// One that has not cancelled anything.
    #[must_use]
    pub fn new() -> Canceller {
        Canceller::default()
    }

    /// Ends the waits with [`Error::Cancelled`]. What is held already stays.
    pub fn cancel(&self) {
        let mut state = locked(&self.0);
        state.cancelled = true;
        for mailbox in state.waiting.drain(..).filter_map(|waiting| waiting.upgrade()) {
            mailbox.cancel();
        }
    }

    /// Whether it has been cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        locked(&self.0).cancelled
    }

    pub(crate) fn concerns(&self, mailbox: &Arc<Mailbox>) {
        let mut state = locked(&self.0);
        if state.cancelled {
            return mailbox.cancel();
        }
        state.waiting.retain(|waiting| waiting.strong_count() > 0);
        state.waiting.push(Arc::downgrade(mailbox));
    }
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Canceller").field("cancelled", &self.is_cancelled()).finish()
    }
}
