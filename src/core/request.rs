// SPDX-License-Identifier: MIT

//! Requests and their outcomes, and the records stored with a lock.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::rc::Rc;

use smallvec::SmallVec;

use super::lease::{Lease, SetLease};
use super::sessions::CallNumber;
use super::{ConnectionId, Mode, MonoUs, Now, Owner, ReleaseScope, Token, WaiterId, WallMs, Wants};

/// An acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) owner: Owner,
    pub(crate) wants: Wants,
    /// Length of the lease from the grant, in milliseconds.
    pub(crate) lease_ms: i64,
    /// Whether the call gives no lease. Such a call does not shorten the owner's current lease.
    pub(crate) keeps_longer: bool,
    /// Whether the caller wants a fencing token.
    pub(crate) fence: bool,
    /// Whether the reply names the owner.
    pub(crate) names_owner: bool,
    /// The identity of the call, if it can be repeated.
    pub(crate) id: Option<RequestId>,
    /// The hold's dependency on the connection, if any.
    pub(crate) bind: Option<Bind>,
    /// The caller's connection, for queries about holders. Unknown for some calls.
    pub(crate) client: Option<ConnectionId>,
    /// Whether the grant must be acknowledged by replicas in addition to its delivery. Such a grant is in
    /// flight even if it was made without a wait.
    pub(crate) awaits_replicas: bool,
    /// The number of the acquire, if it belongs to a session. Shared because most requests have none, and a
    /// request is cloned when it waits and when it is granted.
    pub(crate) numbered: Option<Rc<NumberedCall>>,
}

/// A call that binds its hold to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberedCall {
    pub(crate) number: CallNumber,
    /// Whether the lease is renewed as long as the session lives.
    pub(crate) renewed: bool,
    /// Whether the hold is released when the session ends.
    pub(crate) ephemeral: bool,
    /// Maximum age of a renewed hold, in milliseconds.
    pub(crate) max_ms: Option<NonZeroU64>,
}

impl Request {
    /// The number of the acquire, if it belongs to a session.
    #[inline]
    pub(crate) fn number(&self) -> Option<NumberedCall> {
        self.numbered.as_deref().copied()
    }

    /// Returns the effect of a grant at this time on the lease.
    pub(super) fn set_lease(&self, now: Now) -> SetLease {
        let end = now.wall.saturating_add(self.lease_ms);
        if self.keeps_longer {
            SetLease::AtLeast(end)
        } else {
            SetLease::To(end)
        }
    }

    /// Returns the lease that ends at `end`. If the call gave no lease, later renewals use the remaining length,
    /// but at least the default. In a session, they use the default: the end may come from a grant in flight,
    /// which may be revoked.
    pub(super) fn lease(&self, end: WallMs, now: Now) -> Lease {
        let left = end.saturating_sub(now.wall);
        let uses_rest = self.keeps_longer && self.number().is_none();
        let ms = if uses_rest { self.lease_ms.max(left) } else { self.lease_ms };
        Lease { ms, keeps_longer: self.keeps_longer, end }
    }

    pub(super) fn reply(&self, holds: i64, token: Option<Token>) -> Reply {
        Reply {
            mode: self.wants.mode,
            holds,
            token,
            owner: self.names_owner.then(|| self.owner.clone().into()),
        }
    }
}

/// Identity of a call: a second call with the same id repeats the first. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RequestId {
    /// The owner argument of the call, followed by the id.
    name: Rc<[u8]>,
    /// Length of the owner argument.
    owner_len: usize,
    /// Time for which the reply is remembered, in milliseconds. Not part of the identity.
    pub(crate) ttl_ms: i64,
}

impl RequestId {
    pub(crate) fn new(owner_argument: &[u8], id: &[u8], ttl_ms: i64) -> RequestId {
        let mut name: SmallVec<[u8; 128]> = SmallVec::from_slice(owner_argument);
        name.extend_from_slice(id);
        RequestId { name: Rc::from(&name[..]), owner_len: owner_argument.len(), ttl_ms }
    }

    /// The owner argument of the call. The effective owner may differ.
    pub(crate) fn owner_argument(&self) -> &[u8] {
        &self.name[..self.owner_len]
    }

    pub(crate) fn id(&self) -> &[u8] {
        &self.name[self.owner_len..]
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({} of {})", self.id().escape_ascii(), self.owner_argument().escape_ascii())
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &RequestId) -> bool {
        self.owner_len == other.owner_len && self.name == other.name
    }
}

impl Eq for RequestId {}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.owner_len, &self.name).hash(state);
    }
}

/// How a hold depends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) connection: ConnectionId,
    /// Whether the lease is renewed while the connection is open.
    pub(crate) watchdog: bool,
    /// Maximum total duration of the renewals in milliseconds, counted from the grant, or from the renewal
    /// call that sets the limit.
    pub(crate) max_ms: Option<NonZeroU64>,
    /// Whether the hold ends when the connection closes.
    pub(crate) ephemeral: bool,
}

/// Whether a request that cannot be granted at once may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// The request is not queued.
    NoWait,
    /// The request is queued.
    Wait {
        /// Deadline of the wait; `None` if it has none.
        deadline: Option<MonoUs>,
        /// Maximum number of waiters per lock, if it is limited.
        at_most: Option<usize>,
        /// Whether this server is the primary. No request can wait on a replica.
        on_primary: bool,
    },
}

impl WaitPolicy {
    /// Deadline of the wait, or the current time if the caller does not wait.
    pub(super) fn ready_until(self, now: Now) -> MonoUs {
        match self {
            WaitPolicy::NoWait => now.mono,
            WaitPolicy::Wait { deadline, .. } => deadline.unwrap_or(MonoUs::MAX),
        }
    }
}

/// The reply to a granted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Granted mode. It is not part of the client's reply.
    pub(crate) mode: Mode,
    /// Number of holds that the owner has.
    pub(crate) holds: i64,
    /// The fencing token, if the caller requested one.
    pub(crate) token: Option<Token>,
    /// The owner, if the reply names it.
    // Boxed because most replies do not name the owner, and replies are moved often.
    pub(crate) owner: Option<Box<Owner>>,
}

/// The state of a number when an acquire with it arrives (R12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The session has not seen the number.
    New,
    /// The number is below `done`: the client has said that it knows the answer (R11).
    Late,
    /// The number was used with other keys or another owner.
    OtherTarget,
    /// The acquire waits.
    Waiting,
    /// The acquire was granted. Holds one reply per key.
    Granted(SmallVec<[Reply; 1]>),
    /// The lock was busy, or the wait timed out.
    Busy,
    /// `LOCK.CANCEL` came first.
    Cancelled,
    /// The hold was released or lost.
    Ended,
}

/// The outcome of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted(Reply),
    /// The request is granted, and the grant is in flight until it is confirmed: see
    /// [`Request::awaits_replicas`].
    InFlight(WaiterId),
    /// The request cannot be granted now.
    Busy,
    /// The request cannot be granted now although no holder is known: see
    /// [`LockManager::quarantine`](super::LockManager::quarantine).
    Quarantined,
    /// The request is queued.
    Queued(WaiterId),
    /// The session has seen the number of the call, which gets the outcome so far.
    Repeated(Known),
    Refused(Refusal),
}

/// The end of a wait. Each waiter gets exactly one decision, unless it left by itself
/// ([`LockManager::leave`](super::LockManager::leave)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The lock is granted.
    Granted(Reply),
    /// All locks are granted. The replies are in the order of the call's keys.
    GrantedAll(Rc<[Reply]>),
    /// The deadline has passed.
    TimedOut,
    /// The key does not hold a lock.
    WrongType,
    /// Another node of the cluster now serves the lock's slot.
    Moved,
    /// The request was repeated, and the repeated call took over its position.
    Superseded,
    /// The request was cancelled.
    Cancelled,
    /// This server is no longer the primary.
    Demoted,
    /// The hold ended before its grant was confirmed.
    Lost,
    Refused(Refusal),
}

/// A release.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) owner: Owner,
    pub(crate) scope: ReleaseScope,
    /// New lease of the remaining holds, in milliseconds.
    pub(crate) lease_ms: Option<i64>,
    pub(crate) id: Option<RequestId>,
    /// The number of the acquire whose hold is released, if it belongs to a session.
    pub(crate) number: Option<CallNumber>,
}

/// The reason for refusing a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReleased {
    NotOwner,
    /// The number was used with other keys or another owner.
    OtherTarget,
    Refused(Refusal),
}

/// A renewal.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) owner: Owner,
    pub(crate) lease_ms: i64,
    pub(crate) bind: Option<Bind>,
    /// The caller's connection, for queries about holders. Unknown for some calls.
    pub(crate) client: Option<ConnectionId>,
    /// The number of the acquire whose hold is renewed, if it belongs to a session.
    pub(crate) number: Option<NumberedCall>,
    /// The hold of another session to take over.
    pub(crate) from: Option<HandOver>,
}

/// A hold that a session takes over from another one.
#[derive(Clone, Debug)]
pub(crate) struct HandOver {
    /// The public name of the session that has the hold.
    pub(crate) name: Rc<[u8]>,
    /// The number of the hold there.
    pub(crate) n: u64,
}

/// The reason for refusing a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRenewed {
    NotOwner,
    /// The number is below the session's `done`, so the call is late.
    Late,
    /// The number was used with other keys or another owner.
    OtherTarget,
}

/// The reason for refusing a request that no hold excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The hold count is at its maximum.
    Overflow,
    /// The lock has the maximum number of waiters.
    TooManyWaiters,
    /// This server is a replica.
    Replica,
    /// The key of the fencing counter does not hold a counter.
    NoCounter,
    /// The fencing counter is at its maximum.
    CounterFull,
    /// The fencing counter is on another node, or soon will be: the lock's slot is being migrated key by key.
    CounterMoved,
    /// The key of the request's record does not hold a record.
    NoRecord,
    /// The request was cancelled earlier.
    Cancelled,
    /// The server's memory is full, and this call would need more.
    NoMemory,
    /// The key of the record belongs to another owner's request: its name and id concatenate to the same
    /// string.
    OthersRecord,
}

/// The records stored with the holders of one lock. Changes are written together with the holders.
pub(crate) trait Records {
    /// Takes a token greater than all earlier tokens and than `above`.
    fn next_token(&mut self, above: Option<Token>) -> Result<Token, Refusal>;
    /// Checks that a next token exists, without taking it.
    fn has_next_token(&mut self, above: Option<Token>) -> Result<(), Refusal>;
    /// The reply to this acquire, if it was made before; [`Refusal::Cancelled`] if it was cancelled.
    fn granted(&mut self, id: &RequestId) -> Result<Option<Reply>, Refusal>;
    /// The reply to this release, if it was made before.
    fn released(&mut self, id: &RequestId) -> Result<Option<i64>, Refusal>;
    /// Whether the cancel of this acquire undid anything; `None` if there was no such cancel.
    fn cancelled(&mut self, id: &RequestId) -> Result<Option<bool>, Refusal>;
    /// Time for which the reply to a call is remembered, in milliseconds.
    fn request_ttl_ms(&self) -> i64;
    /// Records that the acquire is cancelled, even if it has not arrived yet.
    fn remember_cancel(&mut self, id: &RequestId, undone: bool, now: Now);
    /// Whether the server has memory for a new record.
    fn may_grow(&mut self) -> bool;
    fn remember_grant(&mut self, id: &RequestId, reply: &Reply, now: Now);
    fn remember_release(&mut self, id: &RequestId, left: i64, now: Now);
    /// Deletes the record of a revoked grant. The next call with this id then counts as new.
    fn forget_grant(&mut self, id: &RequestId);
    /// Whether the lock's channel has subscribers, so that external clients may wait for the lock.
    fn has_listeners(&mut self) -> bool;
    /// Announces that the lock is free, once the changes have been written.
    fn announce(&mut self);
}
