// SPDX-License-Identifier: MIT

//! Calls that are answered when so many replicas have acknowledged what they did.
//!
//! A grant with `REPLICAS` is written at once, and excludes others from then on. What waits is the answer: until the replicas
//! have acknowledged it the grant is in flight, like one whose client was not told yet. So it is revoked in the same way if
//! they do not. At the end of each turn of the event loop the stream's offset is taken for all that came in this turn, and the
//! replicas are asked once, whatever the number of those who wait. Their answers wake the event loop up.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::core::{Decision, MonoUs, Owner, RequestId, Schedule, WaiterId};
use crate::driver::events::event_loop_hook::EventLoopHook;
use crate::server::events::event_loop;
use crate::server::replication::replicas::Progress;
use crate::server::Ctx;

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaRequirement {
    /// How many replicas.
    pub(crate) replicas: NonZeroU32,
    /// For how long it is waited for them, in milliseconds.
    pub(crate) within_ms: u32,
}

/// What the replicas are to acknowledge.
pub(crate) enum AwaitedWrite {
    /// A grant that is revoked if they do not: what its client is told.
    Grant(Decision),
    /// A hold that stands whether they do or not.
    Hold(AwaitedHold),
}

/// A hold that may be lost before the replicas have acknowledged it.
#[derive(Clone)]
pub(crate) struct AwaitedHold {
    pub(crate) db: i32,
    pub(crate) key: Vec<u8>,
    pub(crate) whose: HoldRef,
}

/// By what such a hold is known, and what is replied.
#[derive(Clone)]
pub(crate) enum HoldRef {
    /// That of an owner, who has renewed it and holds so much.
    Owner(Owner, i64),
    /// What a request got, which came again.
    Request(RequestId),
    /// The same of one for several locks, of which these are the keys.
    BundleRequest(Vec<Vec<u8>>, RequestId),
}

/// A call that waits for replicas.
struct AwaitingCall {
    written: AwaitedWrite,
    replicas: usize,
    deadline: MonoUs,
    /// Up to where the stream is to be received; `None` until the end of the turn.
    offset: Option<i64>,
}

/// Those calls.
pub(crate) struct ReplicaWaits {
    calls: BTreeMap<WaiterId, AwaitingCall>,
    /// Until when each of them waits.
    deadlines: Schedule<MonoUs, WaiterId>,
    /// The replicas are still to be asked, for calls of this turn or an earlier one.
    must_ask_replicas: bool,
    hook: EventLoopHook,
}

impl Default for ReplicaWaits {
    fn default() -> ReplicaWaits {
        ReplicaWaits {
            calls: BTreeMap::new(),
            deadlines: Schedule::default(),
            must_ask_replicas: false,
            hook: EventLoopHook::new(event_loop::Purpose::Acknowledgements),
        }
    }
}

impl ReplicaWaits {
    /// This is called at the end of turns, as long as a call waits for replicas.
    pub(crate) fn set_callback(&mut self, on_turn_end: fn(Ctx<'_>, ())) {
        self.hook.set_callback(on_turn_end);
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

    /// The call has come to another end. Returns whether a grant was not acknowledged yet.
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

    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty() && !self.hook.is_registered()
    }

    /// The end of turns is listened to, and does not matter any more.
    pub(crate) fn has_stale_hook(&self) -> bool {
        self.hook.is_registered() && self.calls.is_empty()
    }

    /// When the first call has waited for too long.
    pub(crate) fn first_deadline(&self) -> Option<MonoUs> {
        self.deadlines.first()
    }

    /// Listens to the end of turns, if that matters.
    pub(crate) fn register_hook(&mut self, ctx: Ctx<'_>) {
        if !self.calls.is_empty() {
            self.hook.register(ctx);
        }
    }

    /// Ends that, if it does not matter any more. Not to be called from an event.
    pub(crate) fn drop_stale_hook(&mut self, ctx: Ctx<'_>) {
        if self.has_stale_hook() {
            self.hook.unregister(ctx);
        }
    }

    /// The turn ends: those calls that came in it are to be acknowledged up to where the stream is. Returns whether the replicas
    /// are to be asked, if they can be now.
    pub(crate) fn assign_offsets(&mut self, progress: &Progress) {
        let new = self.calls.values_mut().filter(|call| call.offset.is_none());
        self.must_ask_replicas |= new.map(|call| call.offset = Some(progress.sent)).count() > 0;
    }

    /// Whether to ask the replicas for acknowledgements; true once after each turn with new calls.
    pub(crate) fn take_question(&mut self) -> bool {
        std::mem::take(&mut self.must_ask_replicas)
    }

    /// Takes out the calls that end now, with how they do. `None` if this server is not the primary.
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
                // Who was granted the lock after a wait, need not wait for nothing.
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

/// How it ends that a call waits for replicas.
pub(crate) enum ReplicaWaitEnd {
    Acknowledged,
    /// Only so many have acknowledged it in time.
    Missed {
        got: usize,
        of: usize,
    },
    /// This server is not the primary any more.
    Demoted,
}
