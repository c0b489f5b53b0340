// SPDX-License-Identifier: MIT

//! The loop of a session: heartbeat, events, declarations and cancellations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, FromRedisValue, Value};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::acquire::{Acquire, Place};
use crate::clock::{left, now};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::io::{Node, MAX_RETRY_PAUSE, REPLY_GRACE, RETRY_PAUSE};
use crate::request::milliseconds;
use crate::session::numbers;

/// Time that `LOCK.EVENTS` waits in the server, and at most a third of the grace.
const EVENTS_BLOCK: Duration = Duration::from_secs(1);
/// Maximum number of events in a reply. A full reply confirms nothing (R2).
const EVENTS_COUNT: usize = 1000;
/// Limit for the last calls of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit for the first random pause after a failure without a reply.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

impl Core {
    /// Keeps the session on a node alive, until the locks are closed or the node is gone for long.
    pub(crate) async fn read(self: Arc<Self>, node: Arc<Node>, _alive: mpsc::Sender<()>) {
        let (mut pause, mut last) = (Duration::ZERO, Duration::ZERO);
        while !self.closing.is_open() {
            let Err(error) = self.turn(&node).await else {
                last = Duration::ZERO;
                continue;
            };
            if let Some(on_error) = &self.settings.on_error {
                self.call_user(|| on_error(&error));
            }
            let is_ended = error.is("NOSESSION") || error.is("LATE");
            self.update(|state| {
                let Some(session) = state.session(&node) else { return };
                // With `NOSESSION`, the server answers again.
                let earlier = session.failure.as_ref().filter(|_| !error.is("NOSESSION"));
                let since = earlier.map_or_else(now, |(since, _)| *since);
                session.failure = Some((since, error.clone()));
                if is_ended {
                    (session.id, session.is_up) = ("".into(), false);
                }
                let is_in_jeopardy =
                    !session.is_up || left(session.confirmed + self.settings.grace).is_zero();
                if error.is("LATE") {
                    // R16: another process uses the id.
                    state.end_renewed(&node, "late", None);
                }
                state.end_renewed(&node, "silent", Some(self.settings.ttl));
                state.set_jeopardy(&node, is_in_jeopardy);
                state.signal(&node);
            });
            if !is_ended {
                // Another node of the cluster may have replaced this one.
                self.relocate(&node, |_| true).await;
            }
            let is_gone = self.update(|state| {
                let confirmed = state.session(&node)?.confirmed;
                let is_gone = left(confirmed + self.settings.ttl).is_zero()
                    && state.numbers(&node, |_| true).is_empty();
                is_gone.then(|| state.sessions.remove(&node.name))
            });
            if is_gone.is_some() {
                return node.disconnect().await;
            }
            let first = match error.code() {
                Some(_) => RETRY_PAUSE,
                // Other clients may have lost their connections at the same moment.
                None => (self.settings.grace / 3).clamp(RETRY_PAUSE, RECONNECT_PAUSE),
            };
            pause = if first == last { MAX_RETRY_PAUSE.min(2 * pause) } else { first };
            last = first;
            self.closing.limit(sleep(pause * uuid::Uuid::new_v4().as_fields().0 / u32::MAX)).await;
        }
        self.end_all(&node).await;
    }

    /// Declares, cancels and polls, in this order and in one round trip (R3, R6, R13).
    async fn turn(self: &Arc<Self>, node: &Arc<Node>) -> Result<()> {
        let is_open = self.update(|state| state.session(node).is_some_and(|session| !session.id.is_empty()));
        if !is_open {
            self.open(node).await?;
        }
        let (mut declared, mut undone, mut calls, mut block) =
            (Vec::new(), Vec::new(), Vec::new(), Duration::ZERO);
        self.update(|state| {
            let (mut unsettled, done) = state.unsettled(node);
            unsettled.retain(|n| state.acquires[n].place != Place::Asked);
            // An acquire that is over may have no hold. It must not take that of another one of its owner.
            unsettled.sort_by_key(|n| state.acquires[n].place);
            let Some(session) = state.session(node) else { return };
            if session.is_up && session.failure.is_none() {
                let third =
                    if self.settings.grace.is_zero() { self.settings.ttl } else { self.settings.grace } / 3;
                block = third.min(if unsettled.is_empty() { EVENTS_BLOCK } else { RETRY_PAUSE });
            }
            let (id, seen, beat) = (Arc::clone(&session.id), session.seen, session.next_beat());
            declared = unsettled.iter().copied().filter(|n| !state.acquires[n].is_known).collect();
            undone = unsettled.into_iter().filter(|n| state.acquires[n].place == Place::Undo).collect();
            calls.extend(declared.iter().map(|n| state.acquires[n].declaration(&id)));
            calls.extend(undone.iter().map(|n| state.acquires[n].call("CANCEL", &id, None)));
            let mut poll = cmd("LOCK.EVENTS");
            poll.arg(&*id).arg(beat).arg(seen).arg(done).arg(whole_milliseconds(block)).arg(EVENTS_COUNT);
            calls.push(poll);
        });
        let (sent, limit) = (now(), block + REPLY_GRACE + Duration::from_millis(calls.len() as u64));
        // The end of the locks ends a call that waits in the server.
        let Some(replies) = self.closing.limit(node.read(calls, limit)).await else { return Ok(()) };
        let mut replies = replies?;
        let events = replies.pop().unwrap_or_else(|| Err(Error::no_reply()));
        let cancelled = replies.split_off(declared.len().min(replies.len()));
        let (failure, is_moved) = self.update(|state| {
            let (mut failure, mut counts, mut is_moved) = (None, HashMap::new(), false);
            let replies: Vec<_> = declared.into_iter().zip(replies).collect();
            for (n, reply) in &replies {
                let Some(acquire) = state.acquires.get_mut(n) else { continue };
                match reply {
                    Err(error) if self.is_moved(error) => is_moved = true,
                    // The slot is on its way. The next turn tries again.
                    Err(error) if error.is("ASK") || error.is("TRYAGAIN") => {}
                    Err(error) if !is_answer(error) => failure = Some(error.clone()),
                    _ => {
                        acquire.is_known = true;
                        acquire.claim.changed.notify_waiters();
                        if reply.is_ok() || acquire.place == Place::Held {
                            *counts.entry(acquire.counted()).or_insert(0) += 1;
                        }
                    }
                }
            }
            for (n, reply) in replies {
                let Some(acquire) = state.acquires.get(&n).filter(|each| each.is_known) else { continue };
                let ours = counts.get(&acquire.counted()).copied();
                match reply {
                    Err(_) => state.end_missing(n, "restarted"),
                    // R3, R22: another hold of this owner has ended, and nobody knows which.
                    Ok(count) if numbers(&count).into_iter().min() < ours => {
                        state.end(n, "restarted", true);
                    }
                    Ok(_) => {}
                }
            }
            for (n, reply) in undone.into_iter().zip(cancelled) {
                match reply {
                    Err(error) if self.is_moved(&error) => {
                        is_moved = true;
                        state.adopt(n, node, "moved");
                    }
                    Err(error) if !is_answer(&error) => {}
                    _ if state.acquires.get(&n).is_some_and(|each| each.is_known) => state.undone(n),
                    _ => {}
                }
            }
            (failure, is_moved)
        });
        let events = Vec::<Vec<Value>>::from_redis_value(events?).map_err(redis::RedisError::from)?;
        let (is_up, has_moved) = self.update(|state| {
            let has_moved =
                events.iter().filter(|event| state.handle(node, self.server.is_cluster(), event)).count() > 0;
            let Some(session) = state.session(node) else { return (true, false) };
            if !session.is_up || left(session.confirmed + self.settings.ttl).is_zero() {
                // A hold that was lost stays lost.
                state.end_renewed(node, "silent", Some(self.settings.ttl));
            }
            let Some(session) = state.session(node) else { return (true, false) };
            if events.len() < EVENTS_COUNT {
                session.confirmed = sent;
            }
            let was_up = session.is_up;
            session.is_up |= failure.is_none();
            let is_up = session.is_up;
            if is_up {
                session.failure = None;
            }
            if failure.is_none() && events.len() < EVENTS_COUNT {
                state.set_jeopardy(node, false);
            }
            if is_up && !was_up {
                state.signal(node);
            }
            (is_up, has_moved)
        });
        if is_moved || has_moved {
            // The nodes may not agree yet. Then the next turn tries again.
            self.relocate(node, |each| !each.is_known).await;
        }
        failure.filter(|_| !is_up).map_or(Ok(()), Err)
    }

    async fn open(self: &Arc<Self>, node: &Arc<Node>) -> Result<()> {
        let settings = &self.settings;
        let Some(beat) = self.update(|state| state.session(node).map(|session| session.next_beat())) else {
            return Ok(());
        };
        let mut call = cmd("LOCK.SESSION");
        call.arg("OPEN").arg("NEW").arg(beat).arg("TTL").arg(milliseconds(settings.ttl));
        call.arg("GRACE").arg(whole_milliseconds(settings.grace)).arg("NAME").arg(&settings.name);
        // Only for operators, so a missing permission does not matter.
        let mut name = cmd("CLIENT");
        name.arg("SETNAME").arg(&settings.name);
        let reply = node.read(vec![name, call], REPLY_GRACE).await?.pop();
        let reply = reply.unwrap_or_else(|| Err(Error::no_reply()))?;
        let (id, _) = <(String, u64)>::from_redis_value(reply).map_err(redis::RedisError::from)?;
        self.update(|state| {
            if let Some(session) = state.session(node) {
                (session.id, session.seen) = (id.into(), 0);
            }
            for n in state.numbers(node, |each| each.is_known) {
                state.adopt(n, node, "restarted");
            }
        });
        Ok(())
    }

    /// Leaves acquires to the sessions on the nodes that serve their slots now.
    pub(crate) async fn relocate(
        self: &Arc<Self>,
        from: &Arc<Node>,
        which: impl Fn(&Acquire) -> bool + Send,
    ) {
        if !self.server.is_cluster() || self.server.refresh().await.is_err() {
            return;
        }
        self.update(|state| {
            for n in state.numbers(from, which) {
                let name = self.server.known_node_of(&state.acquires[&n].claim.request.keys[0]);
                let Some(name) = name.filter(|name| *name != from.name) else { continue };
                if let Ok(to) = state.node(self, &name, true) {
                    state.adopt(n, &to, "moved");
                }
            }
        });
    }

    /// Ends all waits and renewed holds, and the session. A hold with a lease of its own remains until its lease ends.
    async fn end_all(self: &Arc<Self>, node: &Arc<Node>) {
        let calls: Vec<Cmd> = self.update(|state| {
            let Some(session) = state.sessions.remove(&node.name) else { return Vec::new() };
            for n in state.numbers(node, |_| true) {
                match &state.acquires[&n] {
                    each if each.place == Place::Asked => state.end(n, "cancelled", true),
                    each if each.is_renewed() => {
                        // The end of the session does what the release would have done.
                        let reason = if each.is_releasing { "released" } else { "closed" };
                        state.end(n, reason, false);
                    }
                    _ => {}
                }
            }
            if session.id.is_empty() {
                return Vec::new();
            }
            let undone = state.numbers(node, |each| each.place == Place::Undo && each.is_known);
            let calls = undone.iter().map(|n| state.acquires[n].call("CANCEL", &session.id, None));
            let mut close = cmd("LOCK.SESSION");
            close.arg("CLOSE").arg(&*session.id);
            calls.chain([close]).collect()
        });
        // A call may still wait in the server on the old connection.
        node.disconnect().await;
        if !calls.is_empty() {
            drop(node.read(calls, CLOSE_TIMEOUT).await);
        }
        node.disconnect().await;
    }

    pub(crate) fn is_moved(&self, error: &Error) -> bool {
        self.server.is_cluster() && error.is("MOVED")
    }
}

/// Whether a repetition of a declaration or cancellation would get the same error.
fn is_answer(error: &Error) -> bool {
    error.is("LATE") || error.is("MOVED") || !error.is_transient()
}

fn whole_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
