// SPDX-License-Identifier: MIT

//! What is asked for, what becomes of it, and what is stored beside a lock.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::rc::Rc;

use smallvec::SmallVec;

use super::lease::{Lease, SetLease};
use super::{ConnectionId, LockId, Mode, MonoUs, Now, Owner, ReleaseScope, Token, WaiterId, WallMs, Wants};

/// What an acquire asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) owner: Owner,
    pub(crate) wants: Wants,
    /// Milliseconds that the lease runs from the grant.
    pub(crate) lease_ms: i64,
    /// The call gives no lease: what the owner has already is not shortened.
    pub(crate) keeps_longer: bool,
    /// A fencing token is wanted.
    pub(crate) fence: bool,
    /// The reply says who the owner is.
    pub(crate) names_owner: bool,
    /// What makes a second call the same as the first.
    pub(crate) id: Option<RequestId>,
    /// What is to happen when the connection closes.
    pub(crate) bind: Option<Bind>,
    /// The connection that it comes from, for those who ask who holds the lock. Not known of all.
    pub(crate) client: Option<ConnectionId>,
    /// More than its delivery is needed to confirm the grant: it is in flight even if it was granted at once.
    pub(crate) confirmed_later: bool,
    /// If it has to wait, no client is blocked: a message tells of the grant.
    pub(crate) notify: Option<Rc<Notify>>,
}

/// How somebody is told that it is its turn whom the server does not block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notify {
    /// Where the message goes.
    pub(crate) inbox: Rc<[u8]>,
    /// Whose wait it is: it ends with it.
    pub(crate) connection: ConnectionId,
    /// For how many milliseconds the grant waits to be confirmed. No longer than the lease.
    pub(crate) grace_ms: i64,
    /// How many such waits a connection may have, if there is a limit.
    pub(crate) at_most: Option<usize>,
}

/// A message to somebody who waits, or was granted a lock and has not confirmed that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) id: WaiterId,
    pub(crate) inbox: Rc<[u8]>,
    pub(crate) lock: LockId,
    pub(crate) request: RequestId,
    pub(crate) news: News,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It has the lock until its grace is over, and then if it confirms that.
    Granted,
    /// It waits no more, and holds nothing by that request.
    Lost,
}

impl Request {
    /// What a grant now does to the lease.
    pub(super) fn set_lease(&self, now: Now) -> SetLease {
        let end = now.wall.saturating_add(self.lease_ms);
        if self.keeps_longer {
            SetLease::AtLeast(end)
        } else {
            SetLease::To(end)
        }
    }

    /// The lease that ends then, and is renewed as long as it was found if the call gives none.
    pub(super) fn lease(&self, end: WallMs, now: Now) -> Lease {
        let left = end.saturating_sub(now.wall);
        let ms = if self.keeps_longer { self.lease_ms.max(left) } else { self.lease_ms };
        Lease { ms, keeps_longer: self.keeps_longer, end }
    }

    /// What a grant now does to the lease, if it is one after a wait.
    pub(super) fn set_lease_after_wait(&self, now: Now) -> SetLease {
        match &self.notify {
            Some(notify) => SetLease::AtLeast(now.wall.saturating_add(notify.grace_ms)),
            None => self.set_lease(now),
        }
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

/// Names a call: one that has the same was made before. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RequestId {
    /// The owner as the call has it, and behind that the id.
    name: Rc<[u8]>,
    /// How long the owner's name is.
    asked: usize,
    /// How many milliseconds its reply is remembered; not a part of the name.
    pub(crate) ttl_ms: i64,
}

impl RequestId {
    pub(crate) fn new(asked: &[u8], id: &[u8], ttl_ms: i64) -> RequestId {
        let mut name: SmallVec<[u8; 128]> = SmallVec::from_slice(asked);
        name.extend_from_slice(id);
        RequestId { name: Rc::from(&name[..]), asked: asked.len(), ttl_ms }
    }

    /// The owner as the call has it, which need not be the one that it gets.
    pub(crate) fn asked(&self) -> &[u8] {
        &self.name[..self.asked]
    }

    pub(crate) fn id(&self) -> &[u8] {
        &self.name[self.asked..]
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({} of {})", self.id().escape_ascii(), self.asked().escape_ascii())
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &RequestId) -> bool {
        self.asked == other.asked && self.name == other.name
    }
}

impl Eq for RequestId {}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.asked, &self.name).hash(state);
    }
}

/// How a hold depends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) connection: ConnectionId,
    /// As long as it is open, the lease is renewed.
    pub(crate) watchdog: bool,
    /// For how many milliseconds from the grant, or from the renewal that asks for it, if there is a limit.
    pub(crate) max_ms: Option<NonZeroU64>,
    /// When it closes, the hold ends.
    pub(crate) ephemeral: bool,
}

/// What is to become of a request that cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It is not queued.
    Leaves,
    /// It is queued.
    Waits {
        /// Until when; `None`: without limit.
        deadline: Option<MonoUs>,
        /// How many may wait for one lock, if there is a limit.
        at_most: Option<usize>,
        /// This server is the primary. On another one nobody can wait.
        on_primary: bool,
    },
}

impl Patience {
    /// Until when the caller is ready to wait.
    pub(super) fn ready_until(self, now: Now) -> MonoUs {
        match self {
            Patience::Leaves => now.mono,
            Patience::Waits { deadline, .. } => deadline.unwrap_or(MonoUs::MAX),
        }
    }
}

/// The reply to a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// In which mode it was granted. The reply does not say so.
    pub(crate) mode: Mode,
    /// How often the owner holds the lock.
    pub(crate) holds: i64,
    /// Its fencing token, if that was asked for.
    pub(crate) token: Option<Token>,
    /// Who the owner is, if the reply says so.
    // Behind a pointer, as most replies do not say so, and are passed on from hand to hand.
    pub(crate) owner: Option<Box<Owner>>,
}

/// What became of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted(Reply),
    /// It is granted, and the grant in flight until it is confirmed, see [`Request::confirmed_later`].
    InFlight(WaiterId),
    /// It would have to wait.
    Busy,
    /// It would have to wait, though nobody is known to hold the lock: see
    /// [`LockManager::quarantine`](super::LockManager::quarantine).
    Quarantined,
    /// It waits.
    Queued(WaiterId),
    Refused(Refusal),
}

/// How a wait ended. Each waiter gets exactly one, unless it left by itself
/// ([`LockManager::leave`](super::LockManager::leave)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It has the lock.
    Granted(Reply),
    /// It has all the locks that it waited for, in the order in which it named them.
    GrantedAll(Rc<[Reply]>),
    /// Its time to wait is over.
    TimedOut,
    /// The key holds something that is no lock.
    WrongType,
    /// The lock's slot is served by another node of the cluster now.
    Moved,
    /// The request came again, and that call waits at its position.
    Superseded,
    /// The request was cancelled.
    Cancelled,
    /// This server is not the primary any more.
    Demoted,
    /// It was granted the lock, and the hold has ended before the grant was confirmed. Or its connection confirms nothing.
    Lost,
    Refused(Refusal),
}

/// What a release asks for.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) owner: Owner,
    pub(crate) scope: ReleaseScope,
    /// How long the lease of what is left shall be, in milliseconds.
    pub(crate) lease_ms: Option<i64>,
    pub(crate) id: Option<RequestId>,
}

/// Why a release was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReleased {
    NotOwner,
    Refused(Refusal),
}

/// What a renewal asks for.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) owner: Owner,
    pub(crate) lease_ms: i64,
    pub(crate) bind: Option<Bind>,
    /// As with [`Request::client`].
    pub(crate) client: Option<ConnectionId>,
}

/// Why a request that nobody's hold excludes is refused all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The hold count cannot grow any more.
    Overflow,
    /// As many wait as may.
    TooManyWaiters,
    /// As many waits that are told by messages belong to this connection as may.
    TooManyNotified,
    /// This server is a replica.
    Replica,
    /// The key of the fencing counter holds something else.
    NoCounter,
    /// The fencing counter cannot grow any more.
    CounterFull,
    /// The fencing counter is at another node already, or will be, as the lock's slot moves key by key.
    CounterMoved,
    /// The key in which the reply is remembered holds something else.
    NoRecord,
    /// The request was cancelled before.
    Cancelled,
    /// The server's memory is full, and nothing may be remembered that is not known yet.
    NoMemory,
    /// That key belongs to a request of another owner whose name and id, put together, look the same.
    OthersRecord,
}

/// What is stored beside the holders of one lock. Changes are written together with them.
pub(crate) trait Records {
    /// A token that is greater than all that were taken before, and than `above`.
    fn next_token(&mut self, above: Option<Token>) -> Result<Token, Refusal>;
    /// Whether there is one. Changes nothing.
    fn has_next_token(&mut self, above: Option<Token>) -> Result<(), Refusal>;
    /// The reply to this acquire, if it was made before; [`Refusal::Cancelled`] if it was cancelled.
    fn granted(&mut self, id: &RequestId) -> Result<Option<Reply>, Refusal>;
    /// The reply to this release, if it was made before.
    fn released(&mut self, id: &RequestId) -> Result<Option<i64>, Refusal>;
    /// If this acquire was cancelled before, whether there was anything to undo.
    fn cancelled(&mut self, id: &RequestId) -> Result<Option<bool>, Refusal>;
    /// How many milliseconds the reply to a call that comes now is remembered.
    fn request_ttl_ms(&self) -> i64;
    /// The acquire is cancelled, whether it was made before or will be.
    fn remember_cancel(&mut self, id: &RequestId, undone: bool, now: Now);
    /// False if the server's memory is full.
    fn may_grow(&mut self) -> bool;
    fn remember_grant(&mut self, id: &RequestId, reply: &Reply, now: Now);
    /// The same of a grant that is still to be confirmed, for as long as it waits for that.
    fn remember_unconfirmed(&mut self, id: &RequestId, reply: &Reply, grace_ms: i64, now: Now);
    /// True if what is remembered of a grant is that it is still to be confirmed.
    fn is_unconfirmed(&mut self, id: &RequestId) -> bool;
    fn remember_release(&mut self, id: &RequestId, left: i64, now: Now);
    /// The grant was revoked: the next call with this id is a new one.
    fn forget_grant(&mut self, id: &RequestId);
    /// True if the lock's channel has subscribers, so that external clients may wait for it.
    fn has_listeners(&mut self) -> bool;
    /// It is to be announced that the lock is free, when what has changed is written.
    fn announce(&mut self);
}
