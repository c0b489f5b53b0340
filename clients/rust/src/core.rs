// SPDX-License-Identifier: MIT

//! Shared by tokio and threads: a session for each node, and the verbs.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Value};
use uuid::Uuid;

use crate::acquire::{Acquire, Phase, Undo};
use crate::clock::{after, left, now, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{locked, Io, CALL_TIMEOUT, REPLY_GRACE, RETRY_PAUSE};
use crate::request::Request;
use crate::server::Server;
use crate::session::Session;

/// A notification to the listener.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The label of the lock, if it has one.
    pub label: Option<String>,
    /// `waited`, `held`, `jeopardy` or `safe`.
    pub name: &'static str,
    /// For a wait, `granted` or the name of the [kind](ErrorKind) of its error. For a hold, `released` or `lost`. Otherwise
    /// empty.
    pub outcome: &'static str,
    /// Duration of the wait, or of the hold so far.
    pub time: Duration,
}

pub(crate) type Listener = dyn Fn(&Event) + Send + Sync;

pub(crate) type OnError = dyn Fn(&Error) + Send + Sync;

thread_local! {
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct Core<I: Io> {
    pub(crate) server: Arc<Server>,
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) patience: Duration,
    pub(crate) listener: Option<Box<Listener>>,
    pub(crate) on_error: Option<Box<OnError>>,
    /// Makes owners unique, even if sessions have the same name.
    pub(crate) unique: String,
    pub(crate) process: u32,
    pub(crate) sessions: Mutex<HashMap<String, Arc<Session<I>>>>,
    /// The owners that have handed holds over. Their tasks and threads use another one since.
    pub(crate) handed_over: Mutex<HashSet<Vec<u8>>>,
}

/// Reports a wait, even if its future is dropped.
struct Waited<'a, I: Io> {
    core: &'a Core<I>,
    event: Event,
    began: Moment,
}

impl<I: Io> Drop for Waited<'_, I> {
    fn drop(&mut self) {
        self.event.time = now().saturating_sub(self.began);
        self.core.notify(&self.event);
    }
}

impl<I: Io> Core<I> {
    /// Whether this is a forked child of the process that made the locks (R17).
    pub(crate) fn is_forked(&self) -> bool {
        self.process != process::id()
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_forked() {
            return Err(Error::new(
                ErrorKind::Misuse,
                "the locks belong to another process; make new ones after a fork",
            ));
        }
        Ok(())
    }

    pub(crate) fn notify(&self, event: &Event) {
        if let Some(listener) = &self.listener {
            let was_listening = IS_LISTENING.replace(true);
            if catch_unwind(AssertUnwindSafe(|| listener(event))).is_err() {
                log::error!("a listener of locks panicked");
            }
            IS_LISTENING.set(was_listening);
        }
    }

    /// The session on the node that serves this key.
    pub(crate) async fn session_of(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Session<I>>> {
        let node = self.server.node_of::<I>(key).await?;
        let mut sessions = locked(&self.sessions);
        if let Some(session) = sessions.get(&node) {
            return Ok(Arc::clone(session));
        }
        let session = Session::new(Arc::clone(self), node.clone());
        sessions.insert(node, Arc::clone(&session));
        Ok(session)
    }

    fn owner(&self) -> Vec<u8> {
        let (first, handed_over) =
            (format!("{}:{}:{}", self.name, self.unique, I::unit()), locked(&self.handed_over));
        let mut owner = first.clone();
        for generation in 1.. {
            if !handed_over.contains(owner.as_bytes()) {
                break;
            }
            owner = format!("{first}.{generation}");
        }
        owner.into_bytes()
    }

    /// The hold, or None if the limit of the wait is over. `on_ask` gets each acquire that may wait.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
        wait: Option<Duration>,
        on_ask: impl Fn(&Arc<Acquire<I>>) -> Result<()> + Send,
    ) -> Result<Option<Arc<Acquire<I>>>> {
        request.check()?;
        self.check_process()?;
        let label = request.label.clone();
        let event =
            Event { label, name: "waited", outcome: ErrorKind::Cancelled.as_str(), time: Duration::ZERO };
        let mut waited = Waited { core: self, event, began: now() };
        let result = self.ask(request, wait, on_ask).await;
        waited.event.outcome = match &result {
            Ok(Some(_)) => "granted",
            Ok(None) if wait == Some(Duration::ZERO) => ErrorKind::Busy.as_str(),
            Ok(None) => ErrorKind::TimedOut.as_str(),
            Err(error) => error.kind().as_str(),
        };
        result
    }

    async fn ask(
        self: &Arc<Self>,
        request: &Arc<Request>,
        wait: Option<Duration>,
        on_ask: impl Fn(&Arc<Acquire<I>>) -> Result<()> + Send,
    ) -> Result<Option<Arc<Acquire<I>>>> {
        let is_try = wait == Some(Duration::ZERO);
        if !is_try && IS_LISTENING.get() {
            return Err(
                request.error(ErrorKind::Misuse, "a listener must not wait for a lock; try to acquire it")
            );
        }
        let until = wait.map_or(Moment::MAX, after);
        let patient = after(self.patience);
        loop {
            let owner = request.owner.clone().unwrap_or_else(|| self.owner());
            let asked = Acquire::new(Arc::clone(request), owner, until, is_try, None);
            let undo = Undo::new(&asked, "cancelled");
            on_ask(&asked)?;
            let session = self.session_of(&request.keys[0]).await?;
            let mut error = request.error(ErrorKind::Unavailable, "the server has lost the grant; try again");
            match session.ask(&asked).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
                Err(moved) if moved.is("MOVED") && self.server.is_cluster() => {
                    // The cluster may need a moment until all nodes agree.
                    drop(self.server.refresh::<I>().await);
                    I::sleep(RETRY_PAUSE).await;
                    error = moved;
                }
                Err(error) => return Err(error),
            }
            let phase = asked.now().phase.clone();
            match phase {
                Phase::Held if self.secure(&asked).await? => {
                    undo.disarm();
                    return Ok(Some(asked));
                }
                Phase::Over(reason) => match reason.as_str() {
                    "timeout" => return Ok(None),
                    "deadlock" => return Err(request.error(ErrorKind::Deadlock, "the wait could never end")),
                    "noreplicas" => {
                        return Err(request
                            .error(ErrorKind::Unavailable, "too few replicas have acknowledged the grant"))
                    }
                    "refused" => {
                        return Err(request.error(ErrorKind::Misuse, "the server has refused the grant"))
                    }
                    _ => {}
                },
                _ => {}
            }
            // The wait continues with a new number.
            let limit = if is_try || error.is("MOVED") { patient } else { until.saturating_add(REPLY_GRACE) };
            if left(limit).is_zero() {
                return Err(error);
            }
        }
    }

    /// Returns whether the new hold can be used.
    async fn secure(&self, hold: &Arc<Acquire<I>>) -> Result<bool> {
        let (holds, lease_ends) = {
            let state = hold.now();
            (state.holds, state.lease_ends)
        };
        if holds > 1 && !hold.request.reentrant {
            let text = "this owner has the lock already; release it first, or use reentrant()";
            return Err(hold.request.error(ErrorKind::Deadlock, text));
        }
        if hold.request.lease.is_none() || !left(lease_ends).is_zero() {
            return Ok(true);
        }
        // The lease may be over, as it ran while the grant was on its way. The renewal also acknowledges the grant (R1).
        hold.now().lease_ends = Moment::MAX;
        match Session::renew(self, hold, hold.request.lease).await {
            Err(error) if error.kind() == ErrorKind::Lost => Ok(false),
            renewed => renewed.map(|()| !hold.is_lost()),
        }
    }

    pub(crate) async fn attach(
        self: &Arc<Self>,
        request: &Arc<Request>,
        ticket: &str,
    ) -> Result<Arc<Acquire<I>>> {
        request.check()?;
        self.check_process()?;
        let wrong = || request.error(ErrorKind::Misuse, "the ticket was not made by hand_over()");
        let mut parts = ticket.splitn(3, '|');
        let (owner, m, giver) = (parts.next(), parts.next().and_then(|m| m.parse().ok()), parts.next());
        let owner = owner.and_then(from_hex).ok_or_else(wrong)?;
        let source = (giver.ok_or_else(wrong)?.to_owned(), m.ok_or_else(wrong)?);
        let asked = Acquire::new(Arc::clone(request), owner, Moment::MAX, false, Some(source));
        let undo = Undo::new(&asked, "cancelled");
        self.session_of(&request.keys[0]).await?.ask(&asked).await?;
        if asked.now().phase != Phase::Held || !self.secure(&asked).await? {
            return Err(asked.lost());
        }
        undo.disarm();
        Ok(asked)
    }

    /// Lets another process take the hold over.
    pub(crate) async fn ticket(&self, hold: &Arc<Acquire<I>>) -> Result<String> {
        self.check_process()?;
        if hold.request.several() {
            return Err(hold
                .request
                .error(ErrorKind::Misuse, "several locks cannot be handed over together"));
        }
        let n = Session::number(self, hold).await?;
        if hold.is_lost() || hold.now().phase != Phase::Held {
            return Err(hold.lost());
        }
        hold.now().handed_over = true;
        locked(&self.handed_over).insert(hold.owner.clone());
        let owner: String = hold.owner.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{owner}|{n}|{}", self.name))
    }

    /// Sends a call to the node that serves the key, once.
    pub(crate) async fn execute(self: &Arc<Self>, key: &[u8], call: Cmd) -> Result<Value> {
        self.check_process()?;
        self.session_of(key).await?.io.call(call, CALL_TIMEOUT).await
    }

    /// Leaves acquires to the sessions on the nodes that serve their slots now. Those of the same node stay.
    pub(crate) async fn relocate(self: &Arc<Self>, from: &Arc<Session<I>>, acquires: Vec<Arc<Acquire<I>>>) {
        if acquires.is_empty() {
            return;
        }
        let is_known = self.server.refresh::<I>().await.is_ok();
        for acquire in acquires {
            if !self.server.is_cluster() {
                from.update(|table| table.end(&acquire, "moved", false));
                continue;
            }
            let to = self.session_of(&acquire.request.keys[0]).await.ok().filter(|_| is_known);
            let to = to.unwrap_or_else(|| Arc::clone(from));
            let stays = from.update(|table| {
                let stays = Arc::ptr_eq(&to, from) && table.all().any(|other| Arc::ptr_eq(other, &acquire));
                if !stays {
                    table.leave(&acquire);
                }
                stays
            });
            if !stays {
                to.arrive(acquire);
            }
        }
    }

    /// Waits until the hold is lost, or over in another way.
    pub(crate) async fn wait_end(&self, hold: &Acquire<I>, until: Moment) {
        while !self.is_forked()
            && hold.now().phase == Phase::Held
            && !hold.is_lost()
            && !left(until).is_zero()
        {
            let ends = until.min(hold.ends());
            hold.changed(left(ends), |state| state.phase != Phase::Held).await;
        }
    }

    pub(crate) async fn close(&self) {
        if !self.is_forked() {
            let sessions: Vec<_> = locked(&self.sessions).values().cloned().collect();
            for session in sessions {
                session.close().await;
            }
        }
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.is_ascii().then(|| text.as_bytes().chunks(2))?;
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The name of a session: host, process and a random part.
pub(crate) fn default_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}/{}/{}", host.as_deref().unwrap_or("unknown"), process::id(), random())
}

pub(crate) fn random() -> String {
    Uuid::new_v4().simple().to_string()[..12].to_owned()
}
