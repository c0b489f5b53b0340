// SPDX-License-Identifier: MIT

//! Two connections that carry all waits and holds, with each server that has locks: one for commands, one for messages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use uuid::Uuid;

use crate::clock::{after, left, now, Moment};
use crate::error::{silent, Error, Result, NO_CONNECTION, SILENT};
use crate::hold::Held;
use crate::link::{Link, OnMessage, Then};
use crate::mailbox::{locked, Mailbox};
use crate::server::{told_of, Map, Node, Server};
use crate::talk::{gone, Breaker, USELESS};
use crate::timer::Timer;
use crate::{Event, Listener, OnTrouble};

/// After a broken connection.
pub(crate) const TRY_AGAIN: Duration = Duration::from_millis(50);

/// For what is to be done yet when a thread has no more time, and goes on without it.
pub(crate) const A_MOMENT: Duration = Duration::from_secs(1);

/// To give back, or to take back, is tried for so long behind the back of who could not: without that it would stay for good.
pub(crate) const IN_THE_END: Duration = Duration::from_secs(600);

/// Between two connections, after a server has said that another has the locks.
const ONE_BY_ONE: Duration = Duration::from_millis(20);

/// How often it is looked whether the own connection of a wait leads to somebody. A server remembers the request for longer than
/// that and the patience.
const LOOK: Duration = Duration::from_secs(8);

/// How long that may take, though other calls have less time, or more: a server that stalls knows who waits, and in what order; but
/// what it has granted it knows for 20 s only.
const STALL: Duration = Duration::from_secs(5);

/// How often a call goes on to where it is sent: to the owner of the slot, and to where that moves.
const HOPS: u8 = 5;

pub(crate) struct Session {
    pub(crate) inbox: String,
    pub(crate) patience: Duration,
    pub(crate) timer: Timer,
    server: Server,
    listener: Option<Box<Listener>>,
    on_trouble: Option<Box<OnTrouble>>,
    links: Mutex<Links>,
    brake: Mutex<Brake>,
    /// By request: who is to hear of messages.
    waits: Mutex<HashMap<String, Arc<Mailbox>>>,
    /// Nothing is waited for any more: it closes.
    ending: AtomicBool,
    /// Who is to hear of a broken connection, and of the end. By address, as two may have one owner.
    holds: Mutex<HashMap<usize, Arc<Held>>>,
    /// What is being given back or taken back, by key and owner, and how often.
    pending: Mutex<HashMap<Claim, usize>>,
    done: Condvar,
}

/// A key, and an owner.
type Claim = (Vec<u8>, String);

/// What an owner has of a lock is being given back as long as this is there. That goes by the owner's name, and would end the
/// next hold of that name.
pub(crate) struct Pending {
    session: Arc<Session>,
    claim: Claim,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut pending = locked(&self.session.pending);
        if let Some(count) = pending.get_mut(&self.claim) {
            *count -= 1;
            if *count == 0 {
                pending.remove(&self.claim);
            }
        }
        drop(pending);
        self.session.done.notify_all();
    }
}

struct Links {
    map: Map,
    ways: HashMap<Node, Way>,
    /// Each carries one call, until it is answered.
    own: Vec<Arc<Link>>,
    threads: Vec<JoinHandle<()>>,
    has_timer: bool,
    closed: bool,
}

/// Makes connections rare while a server says that another has the locks: all who wait would make them at once.
#[derive(Default)]
struct Brake {
    pause: Duration,
    /// When the pause began.
    since: Moment,
    /// No connection is made before.
    until: Moment,
    /// What the server said.
    why: String,
}

/// The connections with a server.
#[derive(Default)]
struct Way {
    commands: Option<Arc<Link>>,
    messages: Option<Arc<Link>>,
    /// Waits for the next call that has a connection for itself.
    idle: Option<Arc<Link>>,
}

/// What is to be sent to whoever has the slot.
#[derive(Clone)]
pub(crate) struct Call {
    slot: Option<u16>,
    packed: Vec<u8>,
    /// Whether messages are listened to before: one that nobody hears is taken for a refusal.
    listens: bool,
    /// Whether it has a command of the user's, whose errors say nothing of the server.
    of_user: bool,
    fate: Arc<Fate>,
    hops: u8,
}

/// What has become of a call, and of those before it with the same request.
#[derive(Default)]
pub(crate) struct Fate {
    /// Who asked for it wants it no more. Held while a call is sent, so that what undoes it comes behind it.
    given_up: Mutex<bool>,
    /// A server may have got it.
    reached: AtomicBool,
    /// The connection on which it went last.
    link: Mutex<Weak<Link>>,
}

impl Fate {
    pub(crate) fn give_up(&self) {
        *locked(&self.given_up) = true;
    }

    fn reached(&self) {
        self.reached.store(true, Ordering::Release);
    }

    fn is_of(&self, link: &Arc<Link>) -> bool {
        std::ptr::eq(locked(&self.link).as_ptr(), Arc::as_ptr(link))
    }

    /// Whether both went on the same connection.
    pub(crate) fn is_with(&self, other: &Fate) -> bool {
        let link = locked(&self.link).upgrade();
        link.is_some_and(|link| other.is_of(&link))
    }

    /// Whether what it has bound to its connection is still bound.
    pub(crate) fn is_connected(&self) -> bool {
        locked(&self.link).upgrade().is_some_and(|link| link.is_up())
    }

    pub(crate) fn has_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }
}

impl Call {
    pub(crate) fn listening(mut self) -> Call {
        self.listens = true;
        self
    }

    pub(crate) fn of_user(mut self) -> Call {
        self.of_user = true;
        self
    }

    pub(crate) fn with(mut self, fate: &Arc<Fate>) -> Call {
        self.fate = Arc::clone(fate);
        self
    }
}

/// A call that goes on while its caller does something else: it is sent again until it has an answer, or has no more time.
pub(crate) struct Errand {
    /// Each does if the one before is refused. What comes out of any but the first is nil.
    calls: Vec<Call>,
    until: Moment,
    /// Until when it goes on after a refusal: a permission may come back.
    insists: Moment,
    pause: Duration,
    _pending: Pending,
}

impl Errand {
    pub(crate) fn new(pending: Pending, calls: Vec<Call>, time: Duration) -> Errand {
        Errand { calls, until: after(time), insists: Moment::ZERO, pause: TRY_AGAIN, _pending: pending }
    }

    pub(crate) fn insisting(mut self, time: Duration) -> Errand {
        self.insists = after(time);
        self
    }

    fn is_done(&self, result: &Result<Value>) -> bool {
        match result {
            Ok(_) | Err(Error::Lost(_)) => true,
            Err(Error::Unavailable(_)) => now() >= self.until,
            // There is something else in the lock's place.
            Err(error) if error.code() == Some("WRONGTYPE") => true,
            Err(_) => now() >= self.insists,
        }
    }
}

impl Brake {
    /// What many are told at the same time counts once.
    fn pull(&mut self, why: &Error) {
        if self.since.saturating_add(self.pause) <= now() {
            self.pause = (self.pause * 2).clamp(TRY_AGAIN, A_MOMENT);
            self.since = now();
        }
        self.until = self.until.max(self.since + self.pause);
        why.text().clone_into(&mut self.why);
    }

    fn release(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// Whether a connection may be made. What is said on it tells whether more may.
    fn check(&mut self) -> Result<()> {
        if self.pause.is_zero() {
            return Ok(());
        }
        if now() < self.until {
            return Err(Error::Unavailable(format!("{NO_CONNECTION} before a pause: {}", self.why)));
        }
        if self.since.saturating_add(self.pause + A_MOMENT) < now() {
            // Nobody has said it again.
            self.release();
        }
        self.until = after(ONE_BY_ONE);
        Ok(())
    }
}

impl Session {
    pub(crate) fn new(
        server: Server,
        patience: Duration,
        listener: Option<Box<Listener>>,
        on_trouble: Option<Box<OnTrouble>>,
    ) -> Self {
        let links = Links {
            map: Map::new(&server),
            ways: HashMap::new(),
            own: Vec::new(),
            threads: Vec::new(),
            has_timer: false,
            closed: false,
        };
        Session {
            inbox: format!("inbox-{}", Uuid::new_v4()),
            patience,
            timer: Timer::default(),
            server,
            listener,
            on_trouble,
            links: Mutex::new(links),
            brake: Mutex::default(),
            waits: Mutex::default(),
            ending: AtomicBool::default(),
            holds: Mutex::default(),
            pending: Mutex::default(),
            done: Condvar::new(),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        locked(&self.links).closed
    }

    /// The connection for commands, or that for messages, made if there is none.
    fn link(self: &Arc<Self>, node: &Node, commands: bool) -> Result<Arc<Link>> {
        let mut links = self.links()?;
        if let Some(link) = links.ways.entry(node.clone()).or_default().link(commands) {
            if let Some(usable) = link.usable() {
                return usable.map(|()| Arc::clone(link));
            }
        }
        let link = self.open(&mut links, node, commands)?;
        *links.ways.entry(node.clone()).or_default().link(commands) = Some(Arc::clone(&link));
        Ok(link)
    }

    fn open(self: &Arc<Self>, links: &mut Links, node: &Node, commands: bool) -> Result<Arc<Link>> {
        locked(&self.brake).check()?;
        let (server, to, patience) = (self.server.clone(), node.clone(), self.patience);
        let connect = move |breaker: &Breaker| server.connect(&to, patience, breaker);
        let (session, other, node) = (Arc::clone(self), Arc::clone(self), node.clone());
        let inbox = (!commands).then(|| {
            let hear: OnMessage = Box::new(move |message| other.told(message));
            (self.inbox.clone(), hear)
        });
        let on_end = move |link: &Link| {
            if link.is_alone() {
                // It concerns nobody but the wait that has it.
                return;
            }
            let mut links = locked(&session.links);
            links.map.forget(&node);
            // What is heard of a server that is gone is nothing; a new connection may lead to another.
            let messages = links.ways.get_mut(&node).filter(|_| commands).and_then(|way| way.messages.take());
            drop(links);
            if let Some(messages) = messages {
                messages.discard();
            }
            session.wake_waits();
            if commands {
                session.look_at_holds();
            }
        };
        let (link, thread) = Link::open(connect, inbox, on_end)?;
        links.threads.push(thread);
        // Servers come and go in a cluster.
        links.ways.retain(|_, way| way.links().any(|link| link.usable().is_some()));
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

    /// How many servers may be asked for one call: each that was named may know who has the lock.
    pub(crate) fn choices(&self) -> usize {
        locked(&self.links).map.named().max(1)
    }

    /// Whether the same call may go well in a moment.
    pub(crate) fn may_pass(&self, error: &Error) -> bool {
        let somewhere = error.elsewhere().is_none() || locked(&self.links).map.is_of_cluster();
        error.may_pass() && somewhere
    }

    /// What a call is to whoever has the key.
    pub(crate) fn to(&self, key: &[u8], command: &Cmd) -> Call {
        let slot = locked(&self.links).map.slot(key);
        let packed = command.get_packed_command();
        Call { slot, packed, listens: false, of_user: false, fate: Arc::default(), hops: 0 }
    }

    /// Calls, and waits for the reply.
    pub(crate) fn call(self: &Arc<Self>, mailbox: &Arc<Mailbox>, call: Call, until: Moment) -> Result<Value> {
        self.send(call, Box::new(mailbox.expect()));
        mailbox.reply(until).unwrap_or_else(|| Err(silent()))
    }

    /// Calls on a connection that nobody else has meanwhile, and waits for the reply without an end. It is given up if nobody waits
    /// any more. With the reply it is in `kept`: what is bound to it stays until that is given back or dropped, or for good if it
    /// serves for other calls. One that is there already is used, and stays there if the same call may go on it again.
    /// `again` gives the call for the next connection.
    pub(crate) fn call_alone(
        self: &Arc<Self>,
        mailbox: &Arc<Mailbox>,
        kept: &mut Option<Alone>,
        mut call: Call,
        until: Moment,
        again: impl Fn() -> Cmd,
    ) -> Result<Value> {
        let (mut node, mut asking) = (locked(&self.links).map.node(call.slot), false);
        let mut old = None;
        loop {
            let kept_one = kept.take().filter(|alone| alone.node == node && alone.link.is_up());
            let mut alone = kept_one.map_or_else(|| self.alone(&node), Ok)?;
            self.put(&alone.link, &call.packed, asking, until, Box::new(mailbox.expect()));
            let result = self.reply_alone(mailbox, &alone, until);
            if alone.link.was_up() {
                call.fate.reached();
            }
            if matches!(&result, Err(error) if error.text() == OUTDATED) {
                call.packed = again().get_packed_command();
                // Others may know who has taken the place of a node that is gone.
                (node, asking) = (locked(&self.links).map.node(call.slot), false);
                // Until the server has the call again, the wait has its place by the first.
                old.replace(alone);
                continue;
            }
            self.heed(&node, &result);
            match (self.goes_on(&node, &mut call, &result), result) {
                (Some(next), _) => (node, asking) = next,
                (None, Ok(value)) => {
                    alone.serve();
                    *kept = Some(alone);
                    return Ok(value);
                }
                (None, Err(error)) => {
                    // Sentinels may know another by now.
                    let stays = error.code() == Some("BUSY")
                        || error.code() == Some("NOREPLICAS") && !self.server.is_watched();
                    *kept = Some(alone).filter(|_| stays);
                    return Err(error);
                }
            }
        }
    }

    /// Waits for the reply, and looks now and then whether the connection leads to somebody.
    fn reply_alone(self: &Arc<Self>, mailbox: &Mailbox, alone: &Alone, until: Moment) -> Result<Value> {
        loop {
            let look = after(LOOK.min(self.patience.saturating_mul(8) / 5)).min(until);
            if let Some(reply) = mailbox.reply(look) {
                return reply;
            }
            if left(until).is_zero() {
                return Err(silent());
            }
            if alone.link.is_up() {
                self.look_at(&alone.node, &alone.link);
            }
        }
    }

    /// TCP may never find that nobody is there, or that it is no primary any more. So the connection for commands is asked. If
    /// that is older and says nothing, this one would not, either. If it is not older, its answer says nothing of this one. Then
    /// the wait goes on over another, which is the younger one.
    fn look_at(self: &Arc<Self>, node: &Node, own: &Arc<Link>) {
        let Ok(commands) = self.link(node, true) else { return };
        let (asked, own) = (Arc::clone(&commands), Arc::clone(own));
        let is_over = Arc::new(AtomicBool::default());
        let (late, stalled) = (Arc::clone(&own), Arc::clone(&is_over));
        let then = move |result: Result<Value>| {
            if is_over.swap(true, Ordering::SeqCst) {
                return;
            }
            let is_older = asked.was_up_before(&own);
            let moves = match result.err().filter(Error::is_of_connection) {
                Some(error) => is_older && error.text().ends_with(SILENT),
                None => !is_older,
            };
            if moves {
                own.answer(given_up(OUTDATED));
            }
        };
        // Others may wait for longer on that connection.
        let until = after(self.patience.max(STALL));
        self.put(&commands, &cmd("PING").get_packed_command(), false, until, Box::new(then));
        if self.patience > STALL {
            let stalls = move |_| {
                if !stalled.swap(true, Ordering::SeqCst) {
                    late.answer(given_up(OUTDATED));
                }
            };
            let _ = self.timer.at(after(STALL), Box::new(stalls));
        }
    }

    /// The idle connection, or a new one.
    fn alone(self: &Arc<Self>, node: &Node) -> Result<Alone> {
        let mut links = self.links()?;
        let way = links.ways.entry(node.clone()).or_default();
        let (idle, commands) = (way.idle.take(), way.commands.clone());
        // What is older than that for commands may be dead, or lead to another server.
        let is_newer = |link| commands.is_none_or(|commands| commands.was_up_before(link));
        let link = match idle {
            Some(idle) if idle.is_up() && is_newer(&idle) => idle,
            outdated => {
                if let Some(link) = outdated {
                    link.discard();
                }
                let link = self.open(&mut links, node, true)?;
                link.set_alone(true);
                link
            }
        };
        links.own.push(Arc::clone(&link));
        drop(links);
        Ok(Alone { session: Arc::clone(self), node: node.clone(), link, stays: false })
    }

    /// Calls without waiting. A connection on which there is no answer in time is given up.
    pub(crate) fn send(self: &Arc<Self>, call: Call, then: Then) {
        let node = locked(&self.links).map.node(call.slot);
        self.send_to(node, false, call, then);
    }

    fn send_to(self: &Arc<Self>, node: Node, asking: bool, call: Call, then: Then) {
        if !call.listens {
            return self.send_now(node, asking, call, then);
        }
        match self.link(&node, false) {
            Ok(messages) => {
                let session = Arc::clone(self);
                messages.when_up(Box::new(move |up| match up {
                    Ok(_) => session.send_now(node, asking, call, then),
                    Err(_) => session.answered(node, call, up, then),
                }));
            }
            Err(error) => self.answered(node, call, Err(error), then),
        }
    }

    fn send_now(self: &Arc<Self>, node: Node, asking: bool, mut call: Call, then: Then) {
        let link = match self.link(&node, true) {
            Ok(link) => link,
            Err(error) => return self.answered(node, call, Err(error), then),
        };
        let fate = Arc::clone(&call.fate);
        let given_up = locked(&fate.given_up);
        if *given_up {
            return;
        }
        *locked(&fate.link) = Arc::downgrade(&link);
        // Else what undoes it is behind it, and is not sent without it.
        if link.was_up() {
            fate.reached();
        }
        // What can be sent on is kept for that; where there are no slots, nothing is.
        let packed = if call.slot.is_some() { call.packed.clone() } else { std::mem::take(&mut call.packed) };
        let session = Arc::clone(self);
        let then = move |result| session.answered(node, call, result, then);
        self.put(&link, &packed, asking, after(self.patience), Box::new(then));
    }

    fn put(self: &Arc<Self>, link: &Arc<Link>, packed: &[u8], asking: bool, until: Moment, then: Then) {
        if link.send(packed, asking, until, then) {
            self.push(link);
        }
        if link.watch() {
            self.check(Arc::clone(link), after(self.patience));
        }
    }

    /// Sends the call on, if the answer is that another server has the key.
    fn answered(self: &Arc<Self>, node: Node, mut call: Call, result: Result<Value>, then: Then) {
        if !matches!(&result, Err(error) if error.is_of_connection()) {
            call.fate.reached();
        }
        if !call.of_user {
            self.heed(&node, &result);
        }
        match self.goes_on(&node, &mut call, &result) {
            Some((node, asking)) => self.send_to(node, asking, call, then),
            None => then(result),
        }
    }

    /// Gives up the connections if another server has the locks, or those with this one if that may be.
    fn heed(&self, node: &Node, result: &Result<Value>) {
        let Err(error) = result else { return locked(&self.brake).release() };
        if error.is_of_demotion() {
            locked(&self.brake).pull(error);
        }
        // What is bound to a connection would end with it.
        let keeps = || locked(&self.holds).values().any(|hold| hold.is_kept());
        if error.is_elsewhere() {
            let all: Vec<Arc<Link>> = locked(&self.links).all().cloned().collect();
            all.iter().for_each(|link| link.break_off(given_up("the server is no primary any more")));
        } else if error.may_be_elsewhere() && self.server.is_watched() && !keeps() {
            if error.may_pass() {
                // Who waits asks again.
                locked(&self.brake).pull(error);
            }
            let links = locked(&self.links).ways.get(node).map(|way| way.shared().cloned().collect());
            let links: Vec<Arc<Link>> = links.unwrap_or_default();
            links.iter().for_each(|link| link.break_off(given_up("the server may be no primary any more")));
        }
    }

    /// Learns from an answer who has the slot. Returns whether the call goes on, and to whom.
    fn goes_on(&self, node: &Node, call: &mut Call, result: &Result<Value>) -> Option<(Node, bool)> {
        let Err(error) = result else { return None };
        if error.is_of_connection() || error.is_of_nobody() {
            locked(&self.links).map.forget(node);
        }
        call.slot?;
        let (for_good, place) = error.elsewhere()?;
        let to = told_of(place, node)?;
        if for_good {
            locked(&self.links).map.learn(call.slot, to.clone());
        }
        call.hops += 1;
        (call.hops <= HOPS).then_some((to, !for_good))
    }

    fn check(self: &Arc<Self>, link: Arc<Link>, at: Moment) {
        let session = Arc::clone(self);
        let check = move |late| {
            // A process that slept may not have read yet what there is.
            let slept = (late > Duration::from_millis(100)).then(|| after(A_MOMENT));
            if let Some(at) = slept.or_else(|| link.expire()) {
                // What may take its time is looked at now and then, and no more when it is answered.
                session.check(link, at.min(after(session.patience)));
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

    /// Calls until there is an answer. Who wants to know looks into the mailbox.
    pub(crate) fn errand(self: &Arc<Self>, errand: Errand, then: Then) {
        self.run(errand, 0, then);
    }

    fn run(self: &Arc<Self>, errand: Errand, number: usize, then: Then) {
        let Some(call) = errand.calls.get(number).cloned() else { return };
        let session = Arc::clone(self);
        let next = move |result: Result<Value>| match result {
            Err(Error::Misuse(_)) if number + 1 < errand.calls.len() => session.run(errand, number + 1, then),
            Ok(_) if number > 0 => session.ran(errand, Ok(Value::Nil), then),
            result => session.ran(errand, result, then),
        };
        self.send(call, Box::new(next));
    }

    /// Ends an errand, or goes on with it in a moment.
    fn ran(self: &Arc<Self>, mut errand: Errand, result: Result<Value>, then: Then) {
        if errand.is_done(&result) || self.is_closed() {
            return then(result);
        }
        let (session, pause) = (Arc::clone(self), errand.pause.min(left(errand.until)));
        errand.pause = A_MOMENT.min(errand.pause * 2);
        let again = Box::new(move |_| session.run(errand, 0, then));
        if let Err(now) = self.timer.at(after(pause), again) {
            now(Duration::ZERO);
        }
    }

    /// What that owner has of that lock is given back from now on.
    pub(crate) fn pending(self: &Arc<Self>, key: &[u8], owner: &str) -> Pending {
        let claim = (key.to_vec(), owner.to_owned());
        *locked(&self.pending).entry(claim.clone()).or_default() += 1;
        Pending { session: Arc::clone(self), claim }
    }

    /// Waits until nothing of that owner is given back any more. False if something is by then.
    pub(crate) fn settles(&self, key: &[u8], owner: &str, until: Moment) -> bool {
        let claim = (key.to_vec(), owner.to_owned());
        self.wait_for(until, |pending| !pending.contains_key(&claim))
    }

    fn wait_for(&self, until: Moment, is_so: impl Fn(&HashMap<Claim, usize>) -> bool) -> bool {
        let mut pending = locked(&self.pending);
        while !is_so(&pending) && !left(until).is_zero() {
            let waited = self.done.wait_timeout(pending, left(until));
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        is_so(&pending)
    }

    /// Calls behind another call, on the same connection or not at all.
    pub(crate) fn follow(self: &Arc<Self>, fate: &Fate, call: &Call) {
        // It goes nowhere else any more.
        fate.give_up();
        let link = locked(&fate.link).upgrade();
        if let Some(link) = link {
            self.put(&link, &call.packed, false, after(self.patience), Box::new(|_| ()));
        }
    }

    /// Asks the connection for messages whether it is there, if nobody does yet: it may have been idle for long. It is given up
    /// if nothing comes.
    pub(crate) fn look_at_messages(self: &Arc<Self>, key: &[u8]) {
        let mut links = locked(&self.links);
        let node = links.map.node(links.map.slot(key));
        let messages = links.ways.get_mut(&node).and_then(|way| way.messages.clone());
        drop(links);
        if let Some(messages) = messages.filter(|messages| messages.is_up() && !messages.is_asked()) {
            let ping = cmd("PING").get_packed_command();
            self.put(&messages, &ping, false, after(self.patience), Box::new(|_| ()));
        }
    }

    /// Whether what is bound to the connection of that call is bound to the one for commands.
    pub(crate) fn is_bound(&self, key: &[u8], bond: &Fate) -> bool {
        let links = locked(&self.links);
        let way = links.ways.get(&links.map.node(links.map.slot(key)));
        let commands = way.and_then(|way| way.commands.as_ref());
        commands.is_some_and(|link| link.is_up() && bond.is_of(link))
    }

    pub(crate) fn waits_for(&self, request: &str, mailbox: &Arc<Mailbox>) {
        let mut waits = locked(&self.waits);
        waits.insert(request.to_owned(), Arc::clone(mailbox));
        if self.is_ending() {
            mailbox.cancel();
        }
    }

    pub(crate) fn waits_no_more(&self, request: &str) {
        locked(&self.waits).remove(request);
        // Whoever closes does not look at that moment.
        drop(locked(&self.pending));
        self.done.notify_all();
    }

    /// Whether waits end because it closes.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub(crate) fn holds(&self, hold: &Arc<Held>) {
        locked(&self.holds).insert(Arc::as_ptr(hold).addr(), Arc::clone(hold));
    }

    pub(crate) fn holds_no_more(&self, hold: &Held) {
        locked(&self.holds).remove(&std::ptr::from_ref(hold).addr());
    }

    pub(crate) fn has(&self, key: &[u8], owner: &str) -> bool {
        locked(&self.holds).values().any(|hold| hold.is_of(key, owner))
    }

    pub(crate) fn heard(&self, event: &Event<'_>) {
        if let Some(listener) = &self.listener {
            // It may be called by a thread on which others depend.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listener(event)));
        }
    }

    /// A wait is disturbed, and goes on.
    pub(crate) fn troubled(&self, error: &Error) {
        if let Some(on_trouble) = &self.on_trouble {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_trouble(error)));
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

    /// A connection for commands is gone. Those who hold look whether they still do.
    fn look_at_holds(&self) {
        let holds: Vec<Arc<Held>> = locked(&self.holds).values().cloned().collect();
        for hold in holds {
            hold.look_now();
        }
    }

    /// Ends everything, and waits until it has ended. What was dropped a moment ago is given back before.
    pub(crate) fn close(&self) {
        let waits = locked(&self.waits);
        self.ending.store(true, Ordering::SeqCst);
        waits.values().for_each(|mailbox| mailbox.cancel());
        drop(waits);
        let is_over = |pending: &HashMap<_, _>| pending.is_empty() && locked(&self.waits).is_empty();
        self.wait_for(after(A_MOMENT), |pending| is_over(pending) || self.is_closed());
        let mut links = locked(&self.links);
        links.closed = true;
        let all: Vec<Arc<Link>> = links.all().cloned().collect();
        links.ways.clear();
        let threads = std::mem::take(&mut links.threads);
        drop(links);
        for link in all {
            link.close(closed());
        }
        self.wake_waits();
        let holds: Vec<Arc<Held>> = locked(&self.holds).values().cloned().collect();
        for hold in holds {
            hold.lose(hold.ended_by("its session is closed"));
        }
        self.timer.close();
        for thread in threads {
            // A listener may close, too.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// A connection for one call, which serves for others then, if there is none.
pub(crate) struct Alone {
    session: Arc<Session>,
    node: Node,
    link: Arc<Link>,
    /// For other calls.
    stays: bool,
}

impl Alone {
    fn serve(&mut self) {
        let mut links = locked(&self.session.links);
        let closed = links.closed;
        let way = links.ways.entry(self.node.clone()).or_default();
        let has_another = way.commands.as_ref().is_some_and(|link| matches!(link.usable(), Some(Ok(()))));
        self.stays = !has_another && !closed;
        if self.stays {
            self.link.set_alone(false);
            way.commands = Some(Arc::clone(&self.link));
        }
    }

    /// Nothing is bound to it any more.
    pub(crate) fn give_back(mut self) {
        let mut links = locked(&self.session.links);
        if self.stays || links.closed {
            return;
        }
        let idle = &mut links.ways.entry(self.node.clone()).or_default().idle;
        self.stays = idle.is_none();
        idle.get_or_insert(Arc::clone(&self.link));
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let mut links = locked(&self.session.links);
        links.own.retain(|own| !Arc::ptr_eq(own, &self.link));
        let closed = links.closed;
        drop(links);
        if closed && !self.stays {
            self.link.discard();
        } else if !self.stays {
            // A call that has not come to the server must not come there behind what takes it back.
            self.link.break_off(gone(USELESS));
        }
    }
}

impl Way {
    fn link(&mut self, commands: bool) -> &mut Option<Arc<Link>> {
        if commands {
            &mut self.commands
        } else {
            &mut self.messages
        }
    }

    fn shared(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.commands.iter().chain(&self.messages)
    }

    fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.shared().chain(&self.idle)
    }
}

impl Links {
    fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.ways.values().flat_map(Way::links).chain(&self.own)
    }
}

/// A wait is to go on over another connection.
const OUTDATED: &str = "another connection tells more";

fn given_up(why: &str) -> Error {
    Error::Unavailable(why.to_owned())
}

pub(crate) fn closed() -> Error {
    Error::Unavailable("closed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_made_one_by_one_until_a_good_reply() {
        let mut brake = Brake::default();
        let demoted = Error::Unavailable("READONLY x".to_owned());
        assert!(brake.check().is_ok() && brake.check().is_ok());
        for pause in [TRY_AGAIN, TRY_AGAIN * 2] {
            // Many hear it.
            brake.pull(&demoted);
            brake.pull(&demoted);
            assert_eq!(brake.pause, pause);
            let error = brake.check().unwrap_err();
            assert!(error.is_unsent() && error.may_pass() && error.text().contains("READONLY"), "{error}");
            thread::sleep(pause);
            assert!(brake.check().is_ok() && brake.check().is_err());
        }
        brake.release();
        assert!(brake.check().is_ok() && brake.check().is_ok());
    }
}
