// SPDX-License-Identifier: MIT

//! Two connections that carry all waits and holds: one for commands, one for messages.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};
use uuid::Uuid;

use crate::clock::{after, left, now, Moment};
use crate::error::{Error, Result};
use crate::hold::Held;
use crate::link::{Link, OnMessage, Then};
use crate::mailbox::{locked, Mailbox};
use crate::timer::Timer;
use crate::{Event, Listener};

/// After a broken connection.
pub(crate) const TRY_AGAIN: Duration = Duration::from_millis(50);

/// For what is to be done yet when a thread has no more time, and goes on without it.
pub(crate) const A_MOMENT: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    pub(crate) inbox: String,
    pub(crate) patience: Duration,
    pub(crate) timer: Timer,
    info: ConnectionInfo,
    listener: Option<Box<Listener>>,
    links: Mutex<Links>,
    /// By request: who is to hear of messages.
    waits: Mutex<HashMap<String, Arc<Mailbox>>>,
    /// By owner: who is to hear of a broken connection, and of the end.
    holds: Mutex<HashMap<String, Arc<Held>>>,
    /// How many errands are under way.
    errands: Mutex<usize>,
    done: Condvar,
}

#[derive(Default)]
struct Links {
    commands: Option<Arc<Link>>,
    messages: Option<Arc<Link>>,
    threads: Vec<JoinHandle<()>>,
    has_timer: bool,
    closed: bool,
}

/// A call that goes on while its caller does something else: it is sent again until it has an answer, or has no more time.
struct Errand {
    packed: Vec<u8>,
    until: Moment,
}

impl Session {
    pub(crate) fn new(info: ConnectionInfo, patience: Duration, listener: Option<Box<Listener>>) -> Self {
        Session {
            inbox: format!("inbox-{}", Uuid::new_v4()),
            patience,
            timer: Timer::default(),
            info,
            listener,
            links: Mutex::default(),
            waits: Mutex::default(),
            holds: Mutex::default(),
            errands: Mutex::default(),
            done: Condvar::new(),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        locked(&self.links).closed
    }

    /// The connection for commands, made if there is none.
    fn commands(self: &Arc<Self>) -> Result<Arc<Link>> {
        let mut links = self.links()?;
        if let Some(link) = &links.commands {
            if let Some(usable) = link.usable() {
                return usable.map(|()| Arc::clone(link));
            }
        }
        let session = Arc::clone(self);
        let on_end = move || session.broke();
        let (link, thread) = Link::open(self.info.clone(), self.patience, None, on_end)?;
        links.threads.push(thread);
        links.commands = Some(Arc::clone(&link));
        Ok(link)
    }

    /// The connection for messages, made if there is none.
    fn messages(self: &Arc<Self>) -> Result<Arc<Link>> {
        let mut links = self.links()?;
        if let Some(link) = &links.messages {
            if let Some(usable) = link.usable() {
                return usable.map(|()| Arc::clone(link));
            }
        }
        let (session, other) = (Arc::clone(self), Arc::clone(self));
        let hear: OnMessage = Box::new(move |message| session.told(message));
        let inbox = (self.inbox.clone(), hear);
        let on_end = move || other.wake_waits();
        let (link, thread) = Link::open(self.info.clone(), self.patience, Some(inbox), on_end)?;
        links.threads.push(thread);
        links.messages = Some(Arc::clone(&link));
        Ok(link)
    }

    fn links(self: &Arc<Self>) -> Result<std::sync::MutexGuard<'_, Links>> {
        let mut links = locked(&self.links);
        if links.closed {
            return Err(closed());
        }
        links.threads.retain(|thread| !thread.is_finished());
        if !links.has_timer {
            let session = Arc::clone(self);
            let timer = thread::Builder::new().name("redis-lock-timer".to_owned());
            let thread = timer.spawn(move || session.timer.run());
            links.threads.push(thread.map_err(|error| Error::Unavailable(format!("no thread: {error}")))?);
            links.has_timer = true;
        }
        Ok(links)
    }

    /// Before a wait: a message that nobody hears is taken for a refusal.
    pub(crate) fn listen(self: &Arc<Self>, mailbox: &Arc<Mailbox>, until: Moment) -> Result<()> {
        let link = self.messages()?;
        link.when_up(Box::new(mailbox.expect()));
        mailbox.reply(until).unwrap_or_else(|| Err(silent())).map(drop)
    }

    /// Calls, and waits for the reply.
    pub(crate) fn call(
        self: &Arc<Self>,
        mailbox: &Arc<Mailbox>,
        packed: &[u8],
        until: Moment,
    ) -> Result<Value> {
        self.send(packed, Box::new(mailbox.expect()));
        mailbox.reply(until).unwrap_or_else(|| Err(silent()))
    }

    /// Calls without waiting. A connection on which there is no answer in time is given up.
    pub(crate) fn send(self: &Arc<Self>, packed: &[u8], then: Then) {
        let link = match self.commands() {
            Ok(link) => link,
            Err(error) => return then(Err(error)),
        };
        let session = Arc::clone(self);
        let then = move |result: Result<Value>| {
            if result.as_ref().is_err_and(Error::is_elsewhere) {
                session.leave();
            }
            then(result);
        };
        if link.send(packed, Box::new(then)) {
            self.push(&link);
        }
        if link.watch() {
            self.check(link, after(self.patience));
        }
    }

    fn check(self: &Arc<Self>, link: Arc<Link>, at: Moment) {
        let session = Arc::clone(self);
        let check = move |late| {
            // A process that slept may not have read yet what there is.
            let slept = (late > Duration::from_millis(100)).then(|| after(A_MOMENT));
            if let Some(at) = slept.or_else(|| link.expire(session.patience)) {
                session.check(link, at);
            }
        };
        let _ = self.timer.at(at, Box::new(check));
    }

    /// Sends by and by what the socket does not take.
    fn push(self: &Arc<Self>, link: &Arc<Link>) {
        let (session, link) = (Arc::clone(self), Arc::clone(link));
        let push = move |_| {
            if link.flush() {
                session.push(&link);
            }
        };
        let _ = self.timer.at(after(Duration::from_millis(5)), Box::new(push));
    }

    /// Calls until there is an answer, for so long at most. Who wants to know looks into the mailbox.
    pub(crate) fn errand(self: &Arc<Self>, command: &Cmd, time: Duration, then: Then) {
        *locked(&self.errands) += 1;
        self.run(Errand { packed: command.get_packed_command(), until: after(time) }, then);
    }

    fn run(self: &Arc<Self>, errand: Errand, then: Then) {
        let session = Arc::clone(self);
        let packed = errand.packed.clone();
        self.send(
            &packed,
            Box::new(move |result| {
                let again = matches!(result, Err(Error::Unavailable(_))) && now() < errand.until;
                if again && !session.is_closed() {
                    let other = Arc::clone(&session);
                    let again = Box::new(move |_| other.run(errand, then));
                    if let Err(now) = session.timer.at(after(TRY_AGAIN), again) {
                        now(Duration::ZERO);
                    }
                } else {
                    then(result);
                    *locked(&session.errands) -= 1;
                    session.done.notify_all();
                }
            }),
        );
    }

    /// Gives the connections up: those that are made next may lead to another server.
    fn leave(&self) {
        let links = locked(&self.links);
        let both = [links.commands.clone(), links.messages.clone()];
        drop(links);
        for link in both.into_iter().flatten() {
            link.break_off(Error::Unavailable("the server is no primary any more".to_owned()));
        }
    }

    pub(crate) fn waits_for(&self, request: &str, mailbox: &Arc<Mailbox>) {
        locked(&self.waits).insert(request.to_owned(), Arc::clone(mailbox));
    }

    pub(crate) fn waits_no_more(&self, request: &str) {
        locked(&self.waits).remove(request);
    }

    pub(crate) fn holds(&self, hold: &Arc<Held>) {
        locked(&self.holds).insert(hold.owner.clone(), Arc::clone(hold));
    }

    pub(crate) fn holds_no_more(&self, hold: &Held) {
        locked(&self.holds).remove(&hold.owner);
    }

    pub(crate) fn heard(&self, event: &Event<'_>) {
        if let Some(listener) = &self.listener {
            // It may be called by a thread on which others depend.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listener(event)));
        }
    }

    /// `granted <request> <key>` and `lost <request> <key>` both mean: ask again.
    fn told(&self, message: &[u8]) {
        let request =
            message.split(|byte| *byte == b' ').nth(1).and_then(|word| std::str::from_utf8(word).ok());
        if let Some(mailbox) = request.and_then(|request| locked(&self.waits).get(request).cloned()) {
            mailbox.tell();
        }
    }

    fn wake_waits(&self) {
        for mailbox in locked(&self.waits).values() {
            mailbox.tell();
        }
    }

    /// The connection for commands is gone, and with it the waits. Those who hold look whether they still do.
    fn broke(self: &Arc<Self>) {
        self.wake_waits();
        let holds: Vec<Arc<Held>> = locked(&self.holds).values().cloned().collect();
        for hold in holds {
            hold.renew_at(now());
        }
    }

    /// Ends everything, and waits until it has ended. What was dropped a moment ago is given back before.
    pub(crate) fn close(&self) {
        let until = after(A_MOMENT);
        let mut errands = locked(&self.errands);
        while *errands > 0 && !left(until).is_zero() && !self.is_closed() {
            errands = self.done.wait_timeout(errands, left(until)).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(errands);
        let mut links = locked(&self.links);
        links.closed = true;
        let (commands, messages) = (links.commands.take(), links.messages.take());
        let threads = std::mem::take(&mut links.threads);
        drop(links);
        for link in commands.into_iter().chain(messages) {
            link.break_off(closed());
        }
        self.wake_waits();
        let holds: Vec<Arc<Held>> = locked(&self.holds).values().cloned().collect();
        holds.iter().for_each(|hold| hold.lose());
        self.timer.close();
        for thread in threads {
            // A listener may close, too.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn closed() -> Error {
    Error::Unavailable("closed".to_owned())
}

fn silent() -> Error {
    Error::Unavailable("the server does not answer".to_owned())
}
