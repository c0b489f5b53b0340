// SPDX-License-Identifier: MIT

//! The loop of a session: heartbeat, events, declarations and cancellations.

use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, FromRedisValue, Value};

use crate::acquire::{Acquire, At, Phase};
use crate::clock::{after, left, now, Moment};
use crate::error::{Error, Result};
use crate::io::{locked, Io, REPLY_GRACE, RETRY_PAUSE};
use crate::request::milliseconds;
use crate::session::{numbers, Session, Table};

/// Time that `LOCK.EVENTS` waits in the server, and at most a third of the grace.
const EVENTS_BLOCK: Duration = Duration::from_secs(1);
/// Maximum number of events in a reply. A full reply confirms nothing (R2).
const EVENTS_COUNT: usize = 1000;
/// The longest pause before a call is repeated.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Marks the session when its reader ends, perhaps with its runtime. The next acquire starts it again.
struct Ended<'a, I: Io>(&'a Session<I>);

impl<I: Io> Drop for Ended<'_, I> {
    fn drop(&mut self) {
        let mut table = locked(&self.0.table);
        (table.is_started, table.is_up) = (false, false);
        drop(table);
        self.0.changed.notify_waiters();
    }
}

impl<I: Io> Session<I> {
    pub(crate) async fn read(self: Arc<Self>) {
        let _ended = Ended(&self);
        let (mut failing_until, mut pause) = (None, RETRY_PAUSE);
        while !locked(&self.table).is_closed {
            let Err(error) = self.turn().await else {
                (failing_until, pause) = (None, RETRY_PAUSE);
                continue;
            };
            if let Some(on_error) = &self.core.on_error {
                on_error(&error);
            }
            let late = error.is("LATE");
            if late || error.is("NOSESSION") {
                self.update(|table| {
                    (table.id, table.is_up) = (None, false);
                    if late {
                        // R16: another process uses the id.
                        table.end_renewed("late", true);
                    }
                });
            } else {
                let failing_until = failing_until.get_or_insert(after(self.core.patience));
                if !error.is_transient() || left(*failing_until).is_zero() {
                    self.fail(&error);
                }
                // Another node of the cluster may have replaced this one.
                if self.core.server.is_cluster() && self.move_away().await && left(*failing_until).is_zero() {
                    return;
                }
            }
            if error.is("NOSESSION") || error.is("READONLY") {
                self.io.disconnect().await;
            }
            self.update(|table| table.check_clock(&self.core));
            I::sleep(pause).await;
            pause = MAX_RETRY_PAUSE.min(2 * pause);
        }
    }

    async fn turn(self: &Arc<Self>) -> Result<()> {
        let turn = async {
            let id = locked(&self.table).id.clone();
            let id = match id {
                Some(id) => id,
                None => self.open().await?,
            };
            self.declare(&id).await?;
            let undo = self.update(|table| table.undo.clone().into_iter().collect());
            self.cancel(&id, undo).await?;
            self.poll(&id).await
        };
        let result = turn.await;
        self.update(|table| {
            table.failure = result.as_ref().err().cloned();
            if result.is_ok() && !table.is_closed && table.id.is_some() {
                (table.is_up, table.error) = (true, None);
            }
        });
        self.changed.notify_waiters();
        result
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<str>> {
        let mut call = cmd("LOCK.SESSION");
        call.arg("OPEN").arg("NEW").arg(self.update(Table::next_beat));
        call.arg("TTL").arg(milliseconds(self.core.ttl));
        call.arg("GRACE").arg(whole_milliseconds(self.core.grace)).arg("NAME").arg(&self.core.name);
        let reply = self.io.read(call, REPLY_GRACE).await?;
        let (id, _) = <(String, u64)>::from_redis_value(reply).map_err(redis::RedisError::from)?;
        let id: Arc<str> = id.into();
        self.update(|table| {
            if table.is_closed {
                return;
            }
            (table.id, table.seen) = (Some(Arc::clone(&id)), 0);
            let present: Vec<_> = table.all().cloned().collect();
            for acquire in &present {
                if acquire.now().handed_over {
                    table.end(acquire, "taken", false);
                } else if acquire.now().phase == Phase::Asked {
                    table.end(acquire, "restarted", true);
                }
            }
            let (held, undo) = (std::mem::take(&mut table.held), std::mem::take(&mut table.undo));
            table.undeclared.extend(held.into_values().chain(undo.into_values()));
        });
        Ok(id)
    }

    /// Declares the acquires that this session does not know yet (R3, R6, R13).
    async fn declare(self: &Arc<Self>, id: &Arc<str>) -> Result<()> {
        let undeclared: Vec<(Arc<Acquire<I>>, At<I>)> = self.update(|table| {
            // Holds first: otherwise the declaration of an acquire that is over could bind the hold of another one.
            table.undeclared.sort_by_key(|acquire| !acquire.is_held());
            let undeclared = table.undeclared.clone().into_iter().map(|acquire| {
                let present = acquire.now().at.clone().filter(|at| at.id == *id);
                let at = present.unwrap_or_else(|| At {
                    session: Arc::clone(self),
                    id: Arc::clone(id),
                    n: table.next_n(),
                });
                acquire.now().at = Some(at.clone());
                (acquire, at)
            });
            undeclared.collect()
        });
        if undeclared.is_empty() {
            return Ok(());
        }
        let calls = undeclared.iter().map(|(acquire, at)| acquire.declare_call(at)).collect();
        let limit = REPLY_GRACE + Duration::from_millis(undeclared.len() as u64);
        let replies = self.io.batch(calls, limit).await?;
        let (mut failed, mut moved) = (None, Vec::new());
        self.update(|table| {
            let mut counts = Vec::new();
            for ((acquire, at), reply) in undeclared.into_iter().zip(replies) {
                match &reply {
                    // The slot moves. The other holds must not wait for that.
                    Err(error) if error.is("ASK") || error.is("TRYAGAIN") => continue,
                    Err(error) if error.is_transient() && !error.is("MOVED") => {
                        failed = Some(error.clone());
                        continue;
                    }
                    _ => table.undeclared.retain(|other| !Arc::ptr_eq(other, &acquire)),
                }
                let is_held = acquire.is_held();
                match reply {
                    Err(error) if error.is("MOVED") => moved.push(acquire),
                    _ if !is_held => drop(table.undo.insert(at.n, acquire)),
                    Ok(count) => {
                        table.held.insert(at.n, Arc::clone(&acquire));
                        counts.push((acquire, numbers(&count).into_iter().min().unwrap_or(0)));
                    }
                    Err(_) => {
                        let released = acquire.is_maybe_released();
                        table.end(&acquire, if released { "released" } else { "restarted" }, false);
                    }
                }
            }
            // R3, R22: if a count is too low, another hold of the owner has ended, and nobody knows which.
            for (acquire, count) in counts {
                let is_same = |other: &&Arc<Acquire<I>>| {
                    other.owner == acquire.owner && other.request.keys == acquire.request.keys
                };
                let same: Vec<_> = table.held.values().filter(is_same).cloned().collect();
                if count < same.len() as u64 {
                    same.iter().for_each(|other| table.end(other, "restarted", true));
                }
            }
        });
        self.core.relocate(self, moved).await;
        failed.map_or(Ok(()), Err)
    }

    /// Cancels acquires. Errors that may pass are no answers.
    pub(crate) async fn cancel(
        self: &Arc<Self>,
        id: &Arc<str>,
        undo: Vec<(u64, Arc<Acquire<I>>)>,
    ) -> Result<()> {
        if undo.is_empty() {
            return Ok(());
        }
        let at = |n| At { session: Arc::clone(self), id: Arc::clone(id), n };
        let calls = undo.iter().map(|(n, acquire)| acquire.cancel_call(&at(*n))).collect();
        let limit = REPLY_GRACE + Duration::from_millis(undo.len() as u64);
        let replies = self.io.batch(calls, limit).await?;
        let mut moved = Vec::new();
        self.update(|table| {
            for ((n, _), reply) in undo.into_iter().zip(replies) {
                let is_moved = reply.as_ref().is_err_and(|error| error.is("MOVED"));
                let is_answer = reply.map_or_else(|error| !error.is_transient(), |_| true);
                if table.id.as_ref() == Some(id) && (is_answer || is_moved) {
                    moved.extend(table.undo.remove(&n).filter(|_| is_moved));
                }
            }
        });
        self.core.relocate(self, moved).await;
        Ok(())
    }

    /// One `LOCK.EVENTS`: heartbeat, acknowledgement and events.
    async fn poll(self: &Arc<Self>, id: &Arc<str>) -> Result<()> {
        let third = if self.core.grace.is_zero() { self.core.ttl } else { self.core.grace } / 3;
        let (block, call) = self.update(|table| {
            // After a failure, the call confirms at once.
            let block =
                if table.is_up && table.failure.is_none() { EVENTS_BLOCK.min(third) } else { Duration::ZERO };
            let mut call = cmd("LOCK.EVENTS");
            call.arg(&**id).arg(table.next_beat()).arg(table.seen).arg(table.done());
            call.arg(whole_milliseconds(block)).arg(EVENTS_COUNT);
            (block, call)
        });
        let sent = now();
        let reply = self.io.read(call, block + REPLY_GRACE).await?;
        let events = Vec::<Vec<Value>>::from_redis_value(reply).map_err(redis::RedisError::from)?;
        let is_full = events.len() >= EVENTS_COUNT;
        let moved = self.update(|table| {
            let moved = events.into_iter().filter_map(|event| table.handle(event)).collect();
            if !is_full {
                // A hold that was lost stays lost.
                table.check_clock(&self.core);
                table.confirmed = Some(sent);
                table.set_jeopardy(false);
            }
            moved
        });
        self.core.relocate(self, moved).await;
        Ok(())
    }

    /// Ends the waits without a limit. If the error is permanent, ends all waits.
    fn fail(&self, error: &Error) {
        self.update(|table| {
            table.error = Some(error.clone());
            for acquire in table.asked.values() {
                if acquire.until == Moment::MAX || !error.is_transient() {
                    acquire.interrupt(error.clone());
                }
            }
        });
        self.changed.notify_waiters();
    }

    /// Leaves all acquires whose slots another node serves now to that node. Returns whether nothing is left.
    async fn move_away(self: &Arc<Self>) -> bool {
        let acquires = self.update(|table| table.all().cloned().collect());
        self.core.relocate(self, acquires).await;
        self.changed.notify_waiters();
        self.update(|table| {
            let is_empty = table.all().next().is_none();
            if is_empty {
                (table.id, table.is_up) = (None, false);
            }
            is_empty
        })
    }
}

impl<I: Io> Table<I> {
    /// Handles an event. Returns an acquire whose slot has moved.
    fn handle(&mut self, event: Vec<Value>) -> Option<Arc<Acquire<I>>> {
        let mut fields = event.into_iter();
        self.seen = fields.next().and_then(|seq| u64::from_redis_value(seq).ok())?;
        let kind = fields.next().and_then(|kind| String::from_redis_value(kind).ok())?;
        let n = fields.next().and_then(|n| u64::from_redis_value(n).ok())?;
        let acquire = self.asked.get(&n).or_else(|| self.held.get(&n)).cloned()?;
        let field = fields.next()?;
        if kind == "granted" && acquire.now().phase == Phase::Asked {
            acquire.now().in_doubt = true;
            // All earlier events were in the reply to the last confirming call.
            self.grant(&acquire, field, fields.next(), self.confirmed.unwrap_or_default());
        } else if kind == "lost" {
            let reason = String::from_redis_value(field).unwrap_or_default();
            if reason == "moved" {
                self.leave(&acquire);
                return Some(acquire);
            }
            // Perhaps only one of several locks was lost.
            self.end(&acquire, &reason, acquire.request.several());
        }
        None
    }
}

fn whole_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
