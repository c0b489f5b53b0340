//! Calls that are answered when so many replicas have acknowledged what they did.
//!
//! A grant with `REPLICAS` is written at once, and excludes others from then on. What waits is the answer: until the replicas
//! have acknowledged it the grant is in flight, like one whose client was not told yet. So it is revoked in the same way if
//! they do not. At the end of each turn of the event loop the stream's offset is taken for all that came in this turn, and the
//! replicas are asked once, whatever the number of those who wait. Their answers wake the event loop up.

use std::collections::BTreeMap;

use super::blocked::Ended;
use super::state::{with, Driver};
use crate::core::{Decision, MonoUs, Owner, Reply, WaiterId};
use crate::server::replication::{self, Progress};
use crate::server::{event_loop, Ctx};

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledgement {
    /// How many replicas.
    pub(crate) replicas: usize,
    /// For how long it is waited for them, in milliseconds.
    pub(crate) within_ms: u64,
}

/// What the replicas are to acknowledge.
#[derive(Clone, Debug)]
pub(super) enum Written {
    /// A grant that is revoked if they do not.
    Grant(Reply),
    /// A hold that stands whether they do or not.
    Hold(Standing),
}

/// A hold of which it was replied what it is, and whose lock may be lost meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) db: i32,
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Owner,
    pub(crate) reply: Reply,
}

/// A call that waits for replicas.
struct Call {
    written: Written,
    replicas: usize,
    deadline: MonoUs,
    /// Up to where the stream is to be received; `None` until the end of the turn.
    offset: Option<i64>,
}

/// Those calls.
#[derive(Default)]
pub(super) struct Acknowledgements {
    calls: BTreeMap<WaiterId, Call>,
    /// The end of turns is listened to; ends in the timer.
    hears_turns: bool,
}

impl Acknowledgements {
    pub(super) fn insert(&mut self, id: WaiterId, wanted: Acknowledgement, written: Written, now: MonoUs) {
        let deadline = now.saturating_add(wanted.within_ms.saturating_mul(1000));
        self.calls.insert(id, Call { written, replicas: wanted.replicas, deadline, offset: None });
    }

    /// The call has come to another end. Returns whether a grant was not acknowledged yet.
    pub(super) fn remove(&mut self, id: WaiterId) -> bool {
        self.calls.remove(&id).is_some_and(|call| matches!(call.written, Written::Grant(_)))
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls.is_empty() && !self.hears_turns
    }

    /// The end of turns is listened to, and does not matter any more.
    pub(super) fn listens_in_vain(&self) -> bool {
        self.hears_turns && self.calls.is_empty()
    }

    /// When the first call has waited for too long.
    pub(super) fn first_deadline(&self) -> Option<MonoUs> {
        self.calls.values().map(|call| call.deadline).min()
    }

    /// Listens to the end of turns, if that matters.
    pub(super) fn listen(&mut self, ctx: Ctx<'_>) {
        if !self.calls.is_empty() && !std::mem::replace(&mut self.hears_turns, true) {
            event_loop::listen_to_turns(ctx, event_loop::For::Acknowledgements, turn_ends);
        }
    }

    /// Ends that, if it does not matter any more. Not to be called from an event.
    pub(super) fn ignore(&mut self, ctx: Ctx<'_>) {
        if self.listens_in_vain() {
            self.hears_turns = false;
            event_loop::ignore_turns(ctx, event_loop::For::Acknowledgements);
        }
    }

    /// How the calls end that end now. Those that are new are to be acknowledged up to where the stream is. Returns true
    /// with them if the replicas are to be asked.
    fn end(&mut self, progress: Option<&Progress>, now: MonoUs) -> (Vec<(WaiterId, Written, End)>, bool) {
        let mut ask = false;
        let mut end = |call: &mut Call| {
            let Some(progress) = progress else { return Some(End::Demoted) };
            let Some(offset) = call.offset else {
                if progress.received.len() < call.replicas {
                    return Some(End::Missed { got: progress.received.len(), of: call.replicas });
                }
                ask = true;
                call.offset = Some(progress.sent);
                return None;
            };
            let got = progress.count(offset);
            if got >= call.replicas {
                return Some(End::Acknowledged);
            }
            (now >= call.deadline).then_some(End::Missed { got, of: call.replicas })
        };
        let ends: Vec<(WaiterId, End)> =
            self.calls.iter_mut().filter_map(|(id, call)| Some((*id, end(call)?))).collect();
        let ended = |(id, end)| self.calls.remove(&id).map(|call| (id, call.written, end));
        (ends.into_iter().filter_map(ended).collect(), ask)
    }
}

/// How it ends that a call waits for replicas.
enum End {
    Acknowledged,
    /// Only so many have acknowledged it in time.
    Missed {
        got: usize,
        of: usize,
    },
    /// This server is not the primary any more.
    Demoted,
}

/// The event loop has carried out what it has read, and has not written to clients and replicas yet.
fn turn_ends(ctx: Ctx<'_>, (): ()) {
    if with(ctx, |driver| driver.acknowledgements.calls.is_empty()) {
        return;
    }
    let ask = look(ctx);
    // While clients are paused nothing may be sent. Replicas then report by themselves, once a second.
    if ask && !ctx.is_paused() {
        replication::ask_replicas(ctx);
    }
}

/// The calls that have waited for too long, end. To be called from the timer.
pub(super) fn end_overdue(ctx: Ctx<'_>) {
    let now = ctx.now().mono;
    if with(ctx, |driver| driver.acknowledgements.first_deadline()).is_some_and(|at| at <= now) {
        look(ctx);
    }
}

/// Ends the calls that can end. Returns whether the replicas are to be asked.
fn look(ctx: Ctx<'_>) -> bool {
    let progress = Progress::of(ctx);
    with(ctx, |driver| {
        let (ended, ask) = driver.acknowledgements.end(progress.as_ref(), ctx.now().mono);
        let mut revoked = false;
        for (id, written, end) in &ended {
            revoked |= driver.end_acknowledged(*id, written, end);
        }
        if revoked {
            driver.plan_soon(ctx);
        }
        ask
    })
}

impl Driver {
    /// Ends a call that has waited for replicas. Returns whether its grant is revoked.
    fn end_acknowledged(&mut self, id: WaiterId, written: &Written, end: &End) -> bool {
        let mut revoked = false;
        let ended = match (written, end) {
            (_, End::Demoted) => Ended::By(Decision::Demoted),
            (Written::Grant(_), _) if !self.locks.is_in_flight(id) => Ended::Lost,
            (Written::Grant(reply), End::Acknowledged) => Ended::By(Decision::Granted(reply.clone())),
            (Written::Grant(_), End::Missed { got, of }) => {
                self.revoke(id);
                revoked = true;
                Ended::NotAcknowledged { got: *got, of: *of, revoked: true }
            }
            (Written::Hold(standing), End::Acknowledged) => Ended::Stands(standing.clone()),
            (Written::Hold(_), End::Missed { got, of }) => {
                Ended::NotAcknowledged { got: *got, of: *of, revoked: false }
            }
        };
        self.blocked.end(id, ended);
        revoked
    }
}
