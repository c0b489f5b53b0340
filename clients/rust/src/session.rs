// SPDX-License-Identifier: MIT

//! A client's presence on its servers: the acquires with their numbers, and a session for each node.
//!
//! Rules R1 to R23 are those of `docs/sessions.md`. Three inputs move an acquire from one place to the next: a reply, an event
//! and the clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::watch;

use crate::acquire::{Acquire, Claim, Place};
use crate::clock::{now, Moment};
use crate::core::{Core, Event};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Background, Node};

/// The session on one node.
pub(crate) struct Session {
    pub(crate) node: Arc<Node>,
    pub(crate) is_started: bool,
    /// Empty while the session is not open.
    pub(crate) id: Arc<str>,
    /// Whether everything is declared (R3), and a `LOCK.EVENTS` has confirmed that.
    pub(crate) is_up: bool,
    beat: u64,
    pub(crate) seen: u64,
    /// When the last confirming `LOCK.EVENTS` was sent, or when this session was made.
    pub(crate) confirmed: Moment,
    in_jeopardy: bool,
    /// The error of the reader's last turn, and when the first of the failures in sequence happened.
    pub(crate) failure: Option<(Moment, Error)>,
}

impl Session {
    pub(crate) fn next_beat(&mut self) -> u64 {
        // R16: never taken from a reply.
        self.beat += 1;
        self.beat
    }
}

/// A call, and the session and number that it belongs to.
pub(crate) struct Prepared {
    pub(crate) node: Arc<Node>,
    id: Arc<str>,
    pub(crate) n: u64,
    pub(crate) call: Cmd,
}

/// All that changes. It belongs to one mutex, which is never locked during a call.
#[derive(Default)]
pub(crate) struct State {
    /// All acquires that are not over, on all nodes. No number is used twice.
    pub(crate) acquires: BTreeMap<u64, Acquire>,
    /// The numbers of all that are no declared holds, and perhaps some more. So no call looks at each hold.
    unsettled: BTreeSet<u64>,
    pub(crate) sessions: HashMap<String, Session>,
    pub(crate) background: Option<Background>,
    /// The end of the background, once the locks are closed.
    pub(crate) ended: Option<watch::Receiver<()>>,
    pub(crate) is_closed: bool,
    /// For the listener.
    pub(crate) events: Vec<Event>,
    last_n: u64,
    /// The number of acquires to be undone.
    undos: usize,
}

impl State {
    pub(crate) fn start(&mut self) -> Result<Background> {
        if self.is_closed {
            return Err(Error::new(ErrorKind::Misuse, "the locks are closed; make new ones"));
        }
        let background = self.background.take().map_or_else(Background::start, Ok)?;
        Ok(self.background.insert(background).clone())
    }

    /// The node with this name. With `is_used`, its session is kept alive.
    pub(crate) fn node(&mut self, core: &Arc<Core>, name: &str, is_used: bool) -> Result<Arc<Node>> {
        if let Some(session) = self.sessions.get(name).filter(|session| session.is_started && !self.is_closed)
        {
            return Ok(Arc::clone(&session.node));
        }
        let background = self.start()?;
        let session = self.sessions.entry(name.to_owned()).or_insert_with(|| Session {
            node: Arc::new(Node::new(Arc::clone(&core.server), name.to_owned())),
            is_started: false,
            id: "".into(),
            is_up: false,
            beat: 0,
            seen: 0,
            confirmed: now(),
            in_jeopardy: false,
            failure: None,
        });
        let node = Arc::clone(&session.node);
        if is_used && !std::mem::replace(&mut session.is_started, true) {
            let reader = Arc::clone(core).read(Arc::clone(&node), background.alive);
            background.handle.spawn(reader);
        }
        Ok(node)
    }

    /// The session on a node, unless it has ended.
    pub(crate) fn session(&mut self, node: &Node) -> Option<&mut Session> {
        self.sessions.get_mut(&node.name)
    }

    pub(crate) fn get(&mut self, claim: &Claim, place: Place) -> Option<&mut Acquire> {
        self.acquires.get_mut(&claim.n()).filter(|acquire| acquire.place == place)
    }

    /// An acquire and its session, if that is up.
    pub(crate) fn serving(&self, claim: &Claim) -> Option<(&Acquire, &Session)> {
        let acquire = self.acquires.get(&claim.n())?;
        Some((acquire, self.sessions.get(&acquire.node.name).filter(|session| session.is_up)?))
    }

    /// A call about an acquire, if its session is up. From now on the server may know its number.
    pub(crate) fn prepare(&mut self, claim: &Claim, verb: &str, lease: Option<Duration>) -> Option<Prepared> {
        let (acquire, session) = self.serving(claim)?;
        let (node, id) = (Arc::clone(&acquire.node), Arc::clone(&session.id));
        let prepared = Prepared { call: acquire.call(verb, &id, lease), node, id, n: claim.n() };
        let acquire = self.acquires.get_mut(&prepared.n)?;
        acquire.is_known = true;
        acquire.sent.get_or_insert_with(now);
        Some(prepared)
    }

    /// Whether a call belongs to the present session.
    pub(crate) fn is_present(&self, call: &Prepared) -> bool {
        self.sessions.get(&call.node.name).is_some_and(|session| session.id == call.id)
    }

    /// The numbers of the acquires on a node that have some property.
    pub(crate) fn numbers(&self, node: &Arc<Node>, is: impl Fn(&Acquire) -> bool) -> Vec<u64> {
        self.acquires.iter().filter(|(_, each)| each.is_at(node) && is(each)).map(|(n, _)| *n).collect()
    }

    /// The acquires on a node without an answer, and the least of their numbers (R11).
    pub(crate) fn unsettled(&mut self, node: &Arc<Node>) -> (Vec<u64>, u64) {
        let acquires = &self.acquires;
        let is_pending = |each: &Acquire| each.place != Place::Held || !each.is_known;
        self.unsettled.retain(|n| acquires.get(n).is_some_and(is_pending));
        let of_node: Vec<u64> = self.unsettled.iter().copied().filter(|n| acquires[n].is_at(node)).collect();
        let done = of_node.first().copied().unwrap_or(self.last_n + 1);
        (of_node, done)
    }

    /// Gives an acquire the next number, for the present session of its node. That does not know it yet.
    pub(crate) fn insert(&mut self, mut acquire: Acquire) {
        self.last_n += 1;
        acquire.is_known = false;
        acquire.claim.n.store(self.last_n, Ordering::Relaxed);
        acquire.claim.changed.notify_waiters();
        self.acquires.insert(self.last_n, acquire);
        self.unsettled.insert(self.last_n);
    }

    /// Leaves an acquire to the reader of another session, or node. A wait asks again, as it may still be granted.
    pub(crate) fn adopt(&mut self, n: u64, to: &Arc<Node>, reason: &str) {
        if self.acquires.get(&n).is_some_and(|each| each.place == Place::Asked && each.is_known) {
            self.end(n, reason, true);
        }
        let Some(mut acquire) = self.acquires.remove(&n) else { return };
        if let Some(session) = self.sessions.get(&acquire.node.name).filter(|_| acquire.is_known) {
            acquire.confirmed = acquire.confirmed.max(session.confirmed);
        }
        acquire.node = Arc::clone(to);
        self.insert(acquire);
    }

    /// Handles a grant by a reply, or by an event, perhaps with a token.
    pub(crate) fn grant(&mut self, n: u64, is_event: bool, reply: Value, token: Option<&Value>) {
        let Some(acquire) = self.acquires.get_mut(&n).filter(|each| each.place == Place::Asked) else {
            return;
        };
        let (mut holds, mut tokens) = (numbers(&reply), token.map_or_else(Vec::new, numbers));
        if holds.is_empty() {
            let replies = if acquire.claim.request.several() { reply } else { Value::Array(vec![reply]) };
            for reply in Vec::<HashMap<String, Value>>::from_redis_value(replies).unwrap_or_default() {
                holds.extend(reply.get("holds").into_iter().flat_map(numbers));
                tokens.extend(reply.get("token").into_iter().flat_map(numbers));
            }
        }
        drop(acquire.claim.tokens.set(tokens));
        acquire.holds = holds.into_iter().max().unwrap_or(1);
        (acquire.place, acquire.granted) = (Place::Held, now());
        acquire.revocable_since = (is_event || acquire.in_doubt).then_some(acquire.granted);
        acquire.in_doubt = false;
        let mut since = acquire.sent.unwrap_or_default();
        if let Some(session) = self.sessions.get(&acquire.node.name).filter(|_| is_event) {
            // The last confirming reply would have reported an earlier grant.
            since = since.max(session.confirmed);
        }
        acquire.lease_ends =
            acquire.claim.request.lease.map_or(Moment::MAX, |lease| since.saturating_add(lease));
        acquire.claim.changed.notify_waiters();
    }

    /// The acquire neither waits nor holds any longer for its user. If something may remain on the server, that is undone.
    pub(crate) fn end(&mut self, n: u64, reason: &str, may_remain: bool) {
        let Some(acquire) = self.acquires.get_mut(&n).filter(|each| each.place != Place::Undo) else {
            return;
        };
        drop(acquire.claim.reason.set(reason.to_owned()));
        acquire.claim.changed.notify_waiters();
        if acquire.is_delivered && reason != "taken" {
            let outcome = if is_good_end(reason) { "released" } else { "lost" };
            self.events.push(Event::of(acquire, "held", outcome));
        }
        let may_remain = may_remain && (acquire.place == Place::Held || acquire.is_known);
        if may_remain {
            acquire.place = Place::Undo;
            self.undos += 1;
            self.unsettled.insert(n);
        } else {
            self.acquires.remove(&n);
        }
    }

    /// A reply says that the server does not have the acquire. Perhaps only one of several locks was lost.
    pub(crate) fn end_missing(&mut self, n: u64, reason: &str) {
        let Some(acquire) = self.acquires.get(&n) else { return };
        // If the hold had been lost before a release without a reply, an event would say so.
        let reason = if acquire.is_releasing && acquire.in_doubt { "released" } else { reason };
        self.end(n, reason, acquire.claim.request.several());
    }

    /// Nothing of the acquire is left on the server.
    pub(crate) fn undone(&mut self, n: u64) {
        if self.acquires.get(&n).is_some_and(|each| each.place == Place::Undo) {
            self.acquires.remove(&n);
            self.undos -= 1;
            // Another acquire of this owner may wait for that.
            let waiting = self.unsettled.iter().filter_map(|n| self.acquires.get(n));
            let waiting = waiting.filter(|each| each.place == Place::Asked && !each.is_known);
            waiting.for_each(|each| each.claim.changed.notify_waiters());
        }
    }

    /// Whether an earlier acquire of this owner may still be on the server. Then hold counts would be wrong.
    pub(crate) fn is_owner_late(&self, claim: &Claim) -> bool {
        let is_late = |each: &Acquire| each.place == Place::Undo && each.claim.collides(claim);
        self.undos > 0 && self.unsettled.iter().any(|n| self.acquires.get(n).is_some_and(is_late))
    }

    /// The holds of an owner that has a new one: those that the server knows, and those of this process.
    pub(crate) fn holds(&self, claim: &Claim) -> Option<(u64, u64)> {
        let hold = self.acquires.get(&claim.n()).filter(|hold| hold.place == Place::Held)?;
        let is_ours = |each: &&Acquire| each.place == Place::Held && each.claim.collides(claim);
        // The count takes time, and is nearly always 1.
        let ours = if hold.holds > 1 { self.acquires.values().filter(is_ours).count() as u64 } else { 1 };
        Some((hold.holds, ours))
    }

    /// Lets all that wait for the session look again.
    pub(crate) fn signal(&self, node: &Arc<Node>) {
        let present = self.acquires.values().filter(|each| each.is_at(node));
        present.for_each(|each| each.claim.changed.notify_waiters());
    }

    /// When the hold ends, if no server answers.
    pub(crate) fn ends(&self, hold: &Acquire, ttl: Duration) -> Moment {
        if !hold.is_renewed() {
            return hold.lease_ends;
        }
        let session = self.sessions.get(&hold.node.name).filter(|_| hold.is_known);
        let confirmed = session.map_or(Moment::ZERO, |session| session.confirmed);
        hold.confirmed.max(confirmed) + ttl
    }

    pub(crate) fn end_renewed(&mut self, node: &Arc<Node>, reason: &str, ttl: Option<Duration>) {
        let is_over = |hold: &Acquire| ttl.is_none_or(|ttl| self.ends(hold, ttl) <= now());
        for n in self.numbers(node, |each| each.is_renewed() && is_over(each)) {
            self.end(n, reason, true);
        }
    }

    pub(crate) fn set_jeopardy(&mut self, node: &Arc<Node>, value: bool) {
        let Some(session) = self.sessions.get_mut(&node.name) else { return };
        if value != std::mem::replace(&mut session.in_jeopardy, value) {
            let holds = self
                .acquires
                .values()
                .filter(|each| each.is_at(node) && each.is_renewed() && each.is_delivered);
            self.events
                .extend(holds.map(|hold| Event::of(hold, if value { "jeopardy" } else { "safe" }, "")));
        }
    }

    /// Handles an event: its number, its name, the number of an acquire, and its fields. Returns whether a slot has moved.
    pub(crate) fn handle(&mut self, node: &Arc<Node>, is_cluster: bool, event: &[Value]) -> bool {
        let [seq, kind, n, fields @ ..] = event else { return false };
        let (kind, reason) = (text(Some(kind)), text(fields.first()));
        let (Some(session), [seq], [n]) = (self.session(node), &*numbers(seq), &*numbers(n)) else {
            return false;
        };
        session.seen = *seq;
        let Some(acquire) = self.acquires.get_mut(n).filter(|each| each.is_at(node)) else { return false };
        let (place, several) = (acquire.place, acquire.claim.request.several());
        match (&*kind, fields) {
            ("granted", [holds, rest @ ..]) if place == Place::Asked => {
                self.grant(*n, true, holds.clone(), rest.first());
            }
            // The reply was first. This event is not acknowledged yet.
            ("granted", _) => acquire.revocable_since = acquire.revocable_since.map(|_| now()),
            ("lost", _) if reason == "moved" && place == Place::Held && is_cluster => {
                self.adopt(*n, node, &reason);
                return true;
            }
            // Perhaps only one of several locks was lost.
            ("lost", _) => self.end(*n, &reason, several),
            _ => {}
        }
        false
    }
}

/// Whether an end of a hold with this reason is no loss.
pub(crate) fn is_good_end(reason: &str) -> bool {
    matches!(reason, "released" | "cancelled" | "taken")
}

/// The numbers of a reply: one, or one for each lock. Empty if it has another type.
pub(crate) fn numbers(value: &Value) -> Vec<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).into_iter().collect(),
        Value::Array(values) if values.iter().all(|value| matches!(value, Value::Int(_))) => {
            values.iter().flat_map(numbers).collect()
        }
        _ => Vec::new(),
    }
}

fn text(value: Option<&Value>) -> String {
    value.and_then(|value| String::from_redis_value_ref(value).ok()).unwrap_or_default()
}
