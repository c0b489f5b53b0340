// SPDX-License-Identifier: MIT

//! Calls that reply once *n* replicas have acknowledged their write.
//!
//! A grant with `REPLICAS` is written at once and excludes other owners from then on; only its reply waits. Until the
//! replicas acknowledge the grant, it is in flight, like a grant whose reply has not been sent. If they do not
//! acknowledge it in time, it is revoked in the same way.
//!
//! At the end of each iteration of the event loop, all calls of that iteration get the current offset of the
//! replication stream. The replicas are asked once for all of these calls. Their answers wake up the event
//! loop.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::core::{CallNumber, Decision, MonoUs, Owner, RequestId, Schedule, WaiterId};
use crate::driver::events::event_loop_hook::EventLoopHook;
use crate::server::replication::replicas::Progress;
use crate::server::Ctx;

/// The acknowledgements that a call requires.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaRequirement {
    /// Number of replicas.
    pub(crate) replicas: NonZeroU32,
    /// Maximum time to wait for the replicas, in milliseconds.
    pub(crate) within_ms: u32,
}

/// The write that the replicas have to acknowledge.
pub(crate) enum AwaitedWrite {
    /// A grant, with the decision for its client. It is revoked if too few replicas acknowledge it.
    Grant(Decision),
    /// A hold that stays even if too few replicas acknowledge it.
    Hold(AwaitedHold),
}

/// A hold that may be lost before the replicas acknowledge it.
#[derive(Clone)]
pub(crate) struct AwaitedHold {
    pub(crate) db: i32,
    pub(crate) key: Vec<u8>,
    pub(crate) hold_ref: HoldRef,
}

/// Identifies a hold and determines the reply.
#[derive(Clone)]
pub(crate) enum HoldRef {
    /// A renewed hold: its owner, and the hold count to reply.
    Owner(Owner, i64),
    /// The grant of a repeated request.
    Request(RequestId),
    /// The grants of a repeated request for several locks, with their keys.
    BundleRequest(Vec<Vec<u8>>, RequestId),
}

/// A call that waits for replicas.
struct AwaitingCall {
    written: AwaitedWrite,
    replicas: usize,
    deadline: MonoUs,
    /// Offset of the stream that the replicas must have received; `None` until this iteration ends.
    offset: Option<i64>,
}

/// All calls that wait for replicas.
#[derive(Default)]
pub(crate) struct ReplicaWaits {
    calls: BTreeMap<WaiterId, AwaitingCall>,
    /// Waits of sessions whose grants replicas must acknowledge. They block no client.
    of_sessions: BTreeMap<WaiterId, (ReplicaRequirement, CallNumber)>,
    /// The deadlines of the calls.
    deadlines: Schedule<MonoUs, WaiterId>,
    /// The replicas have not been asked yet for calls of this iteration or an earlier one.
    must_ask_replicas: bool,
    hook: EventLoopHook,
}

impl ReplicaWaits {
    /// Sets the function that runs at the end of each iteration while a call waits for replicas.
    pub(crate) fn set_callback(&mut self, on_iteration_end: fn(Ctx<'_>, ())) {
        self.hook.set_callback(on_iteration_end);
    }

    pub(crate) fn insert(
        &mut self,
        id: WaiterId,
        requirement: ReplicaRequirement,
        written: AwaitedWrite,
        now: MonoUs,
    ) {
        let deadline = now.saturating_add(MonoUs::from(requirement.within_ms).saturating_mul(1000));
        let replicas = usize::try_from(requirement.replicas.get()).unwrap_or(usize::MAX);
        self.calls.insert(id, AwaitingCall { written, replicas, deadline, offset: None });
        self.deadlines.set(&id, Some(deadline));
    }

    /// Adds a wait of a session.
    pub(crate) fn insert_of_session(
        &mut self,
        id: WaiterId,
        requirement: ReplicaRequirement,
        number: CallNumber,
    ) {
        self.of_sessions.insert(id, (requirement, number));
    }

    /// The requirement of a wait, and its number, if it belongs to a session.
    pub(crate) fn of_session(&self, id: WaiterId) -> Option<(ReplicaRequirement, CallNumber)> {
        // Skips the lookup, as most waits have no requirement.
        if self.of_sessions.is_empty() {
            return None;
        }
        self.of_sessions.get(&id).copied()
    }

    /// Removes the requirement of a wait of a session, which has ended.
    pub(crate) fn remove_of_session(&mut self, id: WaiterId) -> Option<CallNumber> {
        self.of_sessions.remove(&id).map(|(_, number)| number)
    }

    /// Removes a call that has ended for another reason. Returns whether it was an unacknowledged grant.
    pub(crate) fn remove(&mut self, id: WaiterId) -> bool {
        self.take(id).is_some_and(|written| matches!(written, AwaitedWrite::Grant(_)))
    }

    fn take(&mut self, id: WaiterId) -> Option<AwaitedWrite> {
        self.deadlines.set(&id, None);
        self.calls.remove(&id).map(|call| call.written)
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Number of waits of sessions.
    pub(crate) fn of_sessions_len(&self) -> usize {
        self.of_sessions.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty() && !self.hook.is_registered()
    }

    /// Whether the end-of-iteration hook is registered although no call waits.
    pub(crate) fn has_stale_hook(&self) -> bool {
        self.hook.is_registered() && self.calls.is_empty()
    }

    /// The earliest deadline.
    pub(crate) fn first_deadline(&self) -> Option<MonoUs> {
        self.deadlines.first()
    }

    /// Registers the end-of-iteration hook if a call waits.
    pub(crate) fn register_hook(&mut self, ctx: Ctx<'_>) {
        if !self.calls.is_empty() {
            self.hook.register(ctx);
        }
    }

    /// Unregisters the end-of-iteration hook if no call waits. Must not be called from an event.
    pub(crate) fn drop_stale_hook(&mut self, ctx: Ctx<'_>) {
        if self.has_stale_hook() {
            self.hook.unregister(ctx);
        }
    }

    /// Gives the calls of this iteration the offset that the stream has reached at its end.
    pub(crate) fn assign_offsets(&mut self, progress: &Progress) {
        let new = self.calls.values_mut().filter(|call| call.offset.is_none());
        self.must_ask_replicas |= new.map(|call| call.offset = Some(progress.sent)).count() > 0;
    }

    /// Whether the replicas have to be asked for acknowledgements. True once after each iteration with new calls.
    pub(crate) fn take_question(&mut self) -> bool {
        std::mem::take(&mut self.must_ask_replicas)
    }

    /// Removes the calls that end now and returns their results. `progress` is `None` if this server is not the
    /// primary.
    pub(crate) fn end(
        &mut self,
        progress: Option<&Progress>,
        now: MonoUs,
    ) -> Vec<(WaiterId, AwaitedWrite, ReplicaWaitEnd)> {
        let end = |call: &AwaitingCall| {
            let Some(progress) = progress else { return Some(ReplicaWaitEnd::Demoted) };
            let got = call.offset.map_or(0, |offset| progress.count(offset));
            let online = progress.received.len();
            if got >= call.replicas {
                Some(ReplicaWaitEnd::Acknowledged)
            } else if call.offset.is_none() && online < call.replicas {
                // Too few replicas are online, so waiting for the deadline would be pointless. This check
                // also covers grants after a wait.
                Some(ReplicaWaitEnd::Missed { got: online, of: call.replicas })
            } else {
                (now >= call.deadline).then_some(ReplicaWaitEnd::Missed { got, of: call.replicas })
            }
        };
        let ends: Vec<(WaiterId, ReplicaWaitEnd)> =
            self.calls.iter().filter_map(|(id, call)| Some((*id, end(call)?))).collect();
        let ended = |(id, end)| self.take(id).map(|written| (id, written, end));
        ends.into_iter().filter_map(ended).collect()
    }
}

/// The result of waiting for replicas.
pub(crate) enum ReplicaWaitEnd {
    Acknowledged,
    /// Only `got` of the required replicas acknowledged the write in time.
    Missed {
        got: usize,
        of: usize,
    },
    /// This server is no longer the primary.
    Demoted,
}
