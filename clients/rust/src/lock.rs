// SPDX-License-Identifier: MIT

//! A name and how it is to be held, and the way from there to a hold.

use std::cell::Cell;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use uuid::Uuid;

use crate::clock::{after, left, now, Moment};
use crate::error::{Error, Result};
use crate::hold::{renewal, what_gives_back, Held, Hold};
use crate::mailbox::{Canceller, Mailbox};
use crate::session::{closed, Alone, Errand, Fate, Session, A_MOMENT, IN_THE_END, TRY_AGAIN};
use crate::talk::gone;
use crate::{Event, Handle};

/// A wait that is longer has no end, for the server.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// A message may be lost. Who waits asks again so often, and keeps its place.
const ASK_AGAIN: Duration = Duration::from_secs(3);

/// A name and how it is to be held: what [`Locks::lock`](crate::Locks::lock) gives. Each acquire has an owner of its own.
#[derive(Clone)]
#[must_use]
pub struct Lock {
    handle: Arc<Handle>,
    key: Vec<u8>,
    lease: Option<Duration>,
    wait: Option<Duration>,
    keep: Option<bool>,
    max_hold: Option<Duration>,
    shared: bool,
    limit: Option<u32>,
    fence: bool,
    label: String,
    owner: Option<String>,
    blocks: bool,
    canceller: Option<Canceller>,
}

/// What a hold knows of how it was asked for.
#[derive(Clone)]
pub(crate) struct How {
    pub(crate) lease: Duration,
    pub(crate) keep: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) label: String,
}

impl How {
    pub(crate) fn new(
        lease: Option<Duration>,
        keep: Option<bool>,
        max_hold: Option<Duration>,
        label: &str,
    ) -> Result<How> {
        let keep = keep.unwrap_or(lease.is_none());
        if max_hold.is_some() && !keep {
            return Err(Error::Misuse("max_hold is for what is kept".to_owned()));
        }
        let lease = lease.unwrap_or(Duration::from_secs(30));
        Ok(How { lease, keep, max_hold, label: label.to_owned() })
    }

    /// What binds a hold to the connection of the call, whose server renews it for so long.
    pub(crate) fn bind(&self, command: &mut Cmd, max: Option<Duration>) {
        if self.keep {
            command.arg("WATCHDOG");
            if let Some(max) = max {
                command.arg("MAX").arg(ms(max).max(1));
            }
            command.arg("EPHEMERAL");
        }
    }
}

/// An acquire on its way.
struct Attempt<'a> {
    lock: &'a Lock,
    how: How,
    owner: String,
    request: String,
    mailbox: Arc<Mailbox>,
    /// Whether it queues up, and until when it waits.
    waits: bool,
    deadline: Option<Moment>,
    /// Whether there is something to undo.
    sent: Cell<bool>,
    /// Whether it was asked for more than once: the reply may be that to the first call.
    repeated: Cell<bool>,
    fate: Arc<Fate>,
    /// The connection of its own, while it is not to be waited on.
    alone: Cell<Option<Alone>>,
}

impl Lock {
    pub(crate) fn new(handle: Arc<Handle>, key: Vec<u8>) -> Lock {
        Lock {
            handle,
            key,
            lease: None,
            wait: None,
            keep: None,
            max_hold: None,
            shared: false,
            limit: None,
            fence: false,
            label: String::new(),
            owner: None,
            blocks: false,
            canceller: None,
        }
    }

    /// How long a hold lasts unless it is renewed, in milliseconds at the finest. 30 s if nothing is said.
    pub fn lease(mut self, lease: Duration) -> Lock {
        self.lease = Some(lease);
        self
    }

    /// How long an acquire waits. Without limit if nothing is said; zero is not to wait.
    pub fn wait(mut self, wait: Duration) -> Lock {
        self.wait = Some(wait);
        self
    }

    /// Whether client and server renew the lease, and the hold ends with its process. On if no lease is given.
    pub fn keep(mut self, keep: bool) -> Lock {
        self.keep = Some(keep);
        self
    }

    /// When a kept hold is not renewed any more.
    pub fn max_hold(mut self, time: Duration) -> Lock {
        self.max_hold = Some(time);
        self
    }

    /// A reader: it excludes those who are not, and they exclude it.
    pub fn shared(mut self) -> Lock {
        self.shared = true;
        self
    }

    /// One of so many permits: a semaphore.
    pub fn limit(mut self, limit: u32) -> Lock {
        self.limit = Some(limit);
        self
    }

    /// Each grant has a [token](Hold::token) that is greater than all before.
    pub fn fence(mut self) -> Lock {
        self.fence = true;
        self
    }

    /// What the listener hears it called. Nothing, if nothing is said: there may be millions of keys.
    pub fn label(mut self, label: impl Into<String>) -> Lock {
        self.label = label.into();
        self
    }

    /// What the owner's name begins with: a UUID comes behind it. `<host>/<pid>/` if nothing is said.
    pub fn owner(mut self, beginning: impl Into<String>) -> Lock {
        self.owner = Some(beginning.into());
        self
    }

    /// Waits on a connection that each wait has for itself: what a lock wants that goes from hand to hand all the time, as the
    /// server's reply is the grant. Else a message tells of it, and a call confirms it. It needs no permission for messages.
    pub fn blocking(mut self) -> Lock {
        self.blocks = true;
        self
    }

    /// By what its waits can be ended.
    pub fn canceller(mut self, canceller: &Canceller) -> Lock {
        self.canceller = Some(canceller.clone());
        self
    }

    /// Waits for the lock, first come, first served.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if it is not to wait, [`Error::TimedOut`], [`Error::Cancelled`], [`Error::Deadlock`],
    /// [`Error::Misuse`], [`Error::Unavailable`]. Then nothing waits, and nothing is held.
    pub fn acquire(&self) -> Result<Hold> {
        let hold = self.acquire_within(self.wait)?;
        hold.ok_or_else(|| Error::Busy(format!("{}: somebody else has it", self.name())))
    }

    /// The hold, or nothing if somebody else has the lock.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], but never because it is busy.
    pub fn try_acquire(&self) -> Result<Option<Hold>> {
        self.acquire_within(Some(Duration::ZERO))
    }

    /// Does something while the lock is held. An error of the body comes out, whatever becomes of the lock.
    ///
    /// # Errors
    ///
    /// Those of the body, of [`Lock::acquire`], and of [`Hold::release`], as [`Error::Lost`].
    pub fn with<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&Hold) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let hold = self.acquire()?;
        let done = body(&hold);
        let released = hold.release();
        let done = done?;
        released?;
        Ok(done)
    }

    fn name(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.key)
    }

    fn session(&self) -> &Arc<Session> {
        &self.handle.0
    }

    fn acquire_within(&self, wait: Option<Duration>) -> Result<Option<Hold>> {
        let began = now();
        let result = self.attempt(wait, began);
        let outcome = match &result {
            Ok(Some(_)) => "granted",
            Ok(None) => "busy",
            Err(error) => error.kind(),
        };
        let time = now().saturating_sub(began);
        self.session().heard(&Event { label: &self.label, name: "waited", outcome, time });
        result
    }

    fn attempt(&self, wait: Option<Duration>, began: Moment) -> Result<Option<Hold>> {
        let how = How::new(self.lease, self.keep, self.max_hold, &self.label)?;
        let deadline = wait.map(|wait| began.saturating_add(wait));
        loop {
            let attempt = Attempt {
                lock: self,
                how: how.clone(),
                owner: match &self.owner {
                    Some(beginning) => format!("{beginning}{}", Uuid::new_v4()),
                    None => format!("{}/{}/{}", self.handle.1, process::id(), Uuid::new_v4()),
                },
                request: Uuid::new_v4().to_string(),
                mailbox: Arc::default(),
                waits: wait != Some(Duration::ZERO),
                deadline,
                sent: Cell::new(false),
                repeated: Cell::new(false),
                fate: Arc::default(),
                alone: Cell::default(),
            };
            if let Some(canceller) = &self.canceller {
                canceller.concerns(&attempt.mailbox);
            }
            self.session().waits_for(&attempt.request, &attempt.mailbox);
            let result = attempt.run();
            if matches!(&result, Err(error) if !matches!(error, Error::Lost(_))) {
                attempt.undo();
            }
            self.session().waits_no_more(&attempt.request);
            match result {
                // It was granted to a connection that broke, and ended with it.
                Err(Error::Lost(_)) if !attempt.is_late() => {}
                Err(Error::Lost(text)) => return Err(Error::Unavailable(text)),
                Err(Error::Cancelled(_)) if self.session().is_ending() => return Err(closed()),
                result => return result,
            }
        }
    }
}

impl Attempt<'_> {
    fn run(&self) -> Result<Option<Hold>> {
        let session = self.lock.session();
        // Since when there is no answer.
        let mut broken = None;
        let mut choices = session.choices();
        loop {
            self.mailbox.forget();
            let asked = now();
            let reply = self.once();
            if !matches!(&reply, Err(error) if error.is_unsent() || error.is_refusal()) {
                self.sent.set(true);
            }
            match reply {
                Ok(Reply::Granted { token, granted, sent, bond }) => {
                    let (key, how) = (&self.lock.key, self.how.clone());
                    let held = Held::begin(session, key, self.owner.clone(), how, granted, sent, bond);
                    return Ok(Some(Hold::new(held, token, Arc::clone(&self.lock.handle))));
                }
                Ok(Reply::Busy) => return Ok(None),
                Ok(Reply::Queued) => {
                    if self.is_late() {
                        return Err(self.timed_out());
                    }
                    broken = None;
                    // A grant waits for its confirmation for as long as the lease, if that is short.
                    let soon = (self.how.lease / 2).clamp(TRY_AGAIN * 2, ASK_AGAIN);
                    if !self.mailbox.told(self.no_later_than(after(soon)))? {
                        session.look_at_messages(&self.lock.key);
                    }
                }
                Err(error) if session.may_pass(&error) => {
                    self.repeated.set(true);
                    // It was there for so long: a connection counts when the server has answered on it.
                    let long = A_MOMENT.min(session.patience);
                    if self.blocks() && !error.is_unsent() && asked.saturating_add(long) < now() {
                        broken = None;
                    }
                    let since = *broken.get_or_insert_with(now);
                    // Another node may be there: each is asked, whatever the time.
                    choices = choices.saturating_sub(1);
                    if choices > 0 && error.is_unsent() && !session.is_closed() {
                        continue;
                    }
                    if session.is_closed()
                        || left(self.deadline.unwrap_or(since.saturating_add(session.patience))).is_zero()
                    {
                        return Err(error);
                    }
                    session.troubled(&error);
                    // One by one they ask more rarely than all of them together.
                    let pause = if self.blocks() { TRY_AGAIN * 4 } else { TRY_AGAIN };
                    self.mailbox.rest(self.no_later_than(after(pause)))?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn no_later_than(&self, time: Moment) -> Moment {
        self.deadline.map_or(time, |deadline| deadline.min(time))
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| left(deadline).is_zero())
    }

    /// Asks once.
    fn once(&self) -> Result<Reply> {
        let (session, key) = (self.lock.session(), &self.lock.key);
        let began = now();
        let call = session.to(key, &self.command()).with(&self.fate);
        // It is there until the grant is bound to the connection of the session.
        let mut alone = self.alone.take();
        let reply = if self.blocks() {
            let until = self.deadline.map_or(Moment::MAX, |deadline| deadline.saturating_add(A_MOMENT));
            let moves = Cell::new(false);
            let again = || {
                moves.set(true);
                self.repeated.set(true);
                // The first call has been sent, whatever becomes of this one.
                self.sent.set(true);
                self.command()
            };
            match session.call_alone(&self.mailbox, &mut alone, call, until, again) {
                Ok(reply) => reply,
                Err(error) => {
                    self.alone.set(alone);
                    let is_sent = moves.get() && error.is_unsent();
                    return Err(if is_sent { gone(error.text()) } else { error });
                }
            }
        } else if self.waits {
            session.call(&self.mailbox, call.listening(), self.until())?
        } else {
            session.call(&self.mailbox, call, self.until())?
        };
        let reply = match reply {
            Value::Nil if self.blocks() => {
                if let Some(alone) = alone {
                    alone.give_back();
                }
                return Err(self.timed_out());
            }
            Value::Nil => return Ok(Reply::Busy),
            Value::Int(0) => return Ok(Reply::Queued),
            granted => granted,
        };
        // Whatever follows, there is something to undo.
        self.sent.set(true);
        let token = token(&reply);
        if token.is_none() && (self.lock.fence || !matches!(reply, Value::Int(_))) {
            return Err(Error::Unavailable("ERR a grant without a token".to_owned()));
        }
        let (mut granted, mut sent, mut bond) = (began, began, Arc::clone(&self.fate));
        if self.blocks() {
            granted = now();
        }
        // The reply may be that of a call whose hold ended with its connection; or nobody knows how old the grant is; or it is
        // bound to a connection that nobody has.
        let is_old = granted.saturating_sub(sent) > self.how.lease / 20;
        if self.repeated.get() || self.blocks() && (self.how.keep || is_old) {
            sent = now();
            let mut command = renewal(key, &self.owner, self.how.lease);
            self.how.bind(&mut command, self.how.max_hold);
            bond = Arc::default();
            session.call(&self.mailbox, session.to(key, &command).with(&bond), self.until())?;
        }
        if let Some(alone) = alone {
            alone.give_back();
        }
        Ok(Reply::Granted { token, granted, sent, bond })
    }

    /// Until when a call is to be answered. A server that is slow gets a moment more than the time to wait, which is for what
    /// undoes it, too; a try gets more.
    fn until(&self) -> Moment {
        let soon = after(self.lock.session().patience);
        let end = self.deadline.filter(|_| self.waits).map(|deadline| deadline.saturating_add(A_MOMENT));
        end.map_or(soon, |end| end.min(soon))
    }

    fn blocks(&self) -> bool {
        self.waits && self.lock.blocks
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut(format!("{}: somebody else has it", self.lock.name()))
    }

    /// Whatever has become of the call: nothing waits, and nothing is held.
    fn undo(&self) {
        // One that still waits for a connection must not come behind its end.
        self.fate.give_up();
        if !self.sent.get() {
            return;
        }
        let (session, key, owner) = (self.lock.session(), &self.lock.key, &self.owner);
        let cancel = session.to(key, cmd("LOCK.CANCEL").arg(key).arg(owner).arg("ID").arg(&self.request));
        let id = Uuid::new_v4().to_string();
        let mut calls = what_gives_back(session, key, owner, &self.how, self.how.lease, &id);
        calls.insert(0, cancel);
        let mailbox = Arc::new(Mailbox::default());
        // What is not kept runs out.
        let insists = if self.how.keep { IN_THE_END } else { self.how.lease };
        let errand = Errand::new(session.pending(key, owner), calls, IN_THE_END).insisting(insists);
        session.errand(errand, Box::new(mailbox.expect()));
        // If the server is silent, the session goes on with it. Nobody waits for one that has never been there.
        if self.fate.has_reached() {
            mailbox.reply(self.until().min(after(A_MOMENT)));
        }
    }

    fn command(&self) -> Cmd {
        let lock = self.lock;
        let mut command = cmd("LOCK.ACQUIRE");
        command.arg(&lock.key).arg(&self.owner).arg("PX").arg(ms(self.how.lease)).arg("ONCE");
        if lock.shared || lock.limit.is_some() {
            command.arg("SHARED");
        }
        if let Some(limit) = lock.limit {
            command.arg("LIMIT").arg(limit);
        }
        if lock.fence {
            command.arg("FENCE");
        }
        self.how.bind(&mut command, self.how.max_hold);
        if self.blocks() {
            let time = self.deadline.map(left).filter(|time| *time < LONGEST);
            command.arg("BLOCK").arg(time.map_or(0, |time| ms(time).max(1)));
        } else if self.waits {
            command.arg("NOTIFY").arg(&lock.session().inbox);
        }
        command.arg("ID").arg(&self.request);
        command
    }
}

enum Reply {
    /// With when the call was sent that has confirmed it, and what became of that.
    Granted {
        token: Option<u64>,
        granted: Moment,
        sent: Moment,
        bond: Arc<Fate>,
    },
    Queued,
    Busy,
}

fn token(reply: &Value) -> Option<u64> {
    let Value::Int(token) = field(reply, "token")? else { return None };
    u64::try_from(*token).ok()
}

/// Whether that owner's hold ends with a connection, or is renewed as long as that is there, by what `LOCK.INFO` says.
pub(crate) fn is_bound(info: &Value, owner: &str) -> bool {
    let Some(Value::Array(holders)) = field(info, "holders") else { return false };
    let is = |holder, name, value| field(holder, name) == Some(&value);
    let mut theirs =
        holders.iter().filter(|holder| is(holder, "owner", Value::BulkString(owner.as_bytes().to_vec())));
    theirs.any(|holder| ["watchdog", "ephemeral"].iter().any(|name| is(holder, name, Value::Int(1))))
}

/// Of a map, which is flat in RESP2.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Array(words) = map else { return None };
    words.chunks_exact(2).find_map(|pair| match pair {
        [Value::BulkString(other), value] if other == name.as_bytes() => Some(value),
        _ => None,
    })
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock").field("key", &self.name()).finish_non_exhaustive()
    }
}
