// SPDX-License-Identifier: MIT

//! Table of blocked clients. An entry exists from the start of the wait until the server has taken back the client's
//! handle.

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::waits_for::Edge;
use crate::core::{Decision, WaiterId};
use crate::driver::replicas::replica_waits::{AwaitedHold, ReplicaRequirement};
use crate::server::clients::blocked::{self, ClientHandle};
use crate::server::clients::socket::Socket;

/// A blocked client.
pub(crate) struct BlockedWait {
    handle: ClientHandle,
    client: u64,
    socket: Option<Socket>,
    /// Replicas that must acknowledge a grant before the client gets its reply.
    requirement: Option<ReplicaRequirement>,
    /// The outcome; `None` while the client waits. The handle is returned to the server when the outcome is
    /// set.
    outcome: Option<WaitOutcome>,
}

/// The outcome of a wait.
#[derive(Clone)]
pub(crate) enum WaitOutcome {
    Decided(Decision),
    /// The client has left, or the server has replied to it.
    Left,
    /// The required replicas have acknowledged this hold.
    HoldAcknowledged(AwaitedHold),
    /// Too few replicas have acknowledged the grant or the hold.
    NotAcknowledged {
        got: usize,
        of: usize,
        /// The grant is revoked.
        revoked: bool,
    },
    /// The hold ended before the replicas acknowledged it.
    HoldLost,
    /// The owner waits for itself, through these edges.
    Deadlock(Vec<Edge>),
}

/// The reply to a client.
pub(crate) struct Answer {
    pub(crate) outcome: WaitOutcome,
    /// The client has closed its side of the connection.
    pub(crate) hung_up: bool,
    /// Set if the reply is a grant.
    pub(crate) grant: Option<DeliveredGrant>,
}

/// A grant whose reply is about to be sent.
pub(crate) struct DeliveredGrant {
    pub(crate) client: u64,
    pub(crate) socket: Option<Socket>,
    /// The required replicas have acknowledged the grant.
    pub(crate) is_acknowledged: bool,
}

/// A client that has just been blocked.
pub(crate) struct NewBlockedWait {
    pub(crate) handle: ClientHandle,
    pub(crate) client: u64,
    pub(crate) socket: Option<Socket>,
    pub(crate) requirement: Option<ReplicaRequirement>,
}

impl WaitOutcome {
    fn is_grant(&self) -> bool {
        matches!(self, WaitOutcome::Decided(Decision::Granted(_) | Decision::GrantedAll(_)))
    }
}

impl BlockedWait {
    /// Whether the client has closed its side of the connection. Must not be called after the client got its reply.
    fn is_hung_up(&self) -> bool {
        self.socket.is_some_and(Socket::is_hung_up)
    }

    /// The id of the blocked client.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// Whether the client was granted the lock, even if its reply has not been sent.
    pub(crate) fn has_grant(&self) -> bool {
        self.outcome.as_ref().is_some_and(WaitOutcome::is_grant)
    }
}

/// All blocked clients.
#[derive(Default)]
pub(crate) struct BlockedClients {
    waits: HashMap<WaiterId, BlockedWait>,
    /// Number of waits with a replica requirement.
    with_requirement: usize,
    /// Maximum number of blocked clients for which a new wait may begin.
    limit: Option<usize>,
}

impl BlockedClients {
    /// Adds a client that has been blocked.
    #[inline(always)]
    pub(crate) fn insert(&mut self, id: WaiterId, new: NewBlockedWait) {
        let NewBlockedWait { handle, client, socket, requirement } = new;
        self.with_requirement += usize::from(requirement.is_some());
        self.waits.insert(id, BlockedWait { handle, client, socket, requirement, outcome: None });
    }

    /// Ends a wait. Only the first outcome counts, so that the handle is returned only once. Exception:
    /// "cancelled" or "lost" still replaces a grant whose reply has not been sent.
    #[inline(always)]
    pub(crate) fn end(&mut self, id: WaiterId, outcome: WaitOutcome) {
        let Some(wait) = self.waits.get_mut(&id) else { return };
        match (&wait.outcome, &outcome) {
            (None, _) => {
                wait.outcome = Some(outcome);
                blocked::unblock(wait.handle, id.0);
            }
            (Some(before), WaitOutcome::Decided(Decision::Cancelled | Decision::Lost))
                if before.is_grant() =>
            {
                wait.outcome = Some(outcome);
            }
            _ => {}
        }
    }

    /// Replicas that must acknowledge a grant before this client gets its reply.
    pub(crate) fn requirement(&self, id: WaiterId) -> Option<ReplicaRequirement> {
        // Skips the lookup, as most waits have no requirement.
        (self.with_requirement > 0).then(|| self.waits.get(&id)?.requirement).flatten()
    }

    /// The reply that the server is about to send to this client. An entry with a grant is removed.
    pub(crate) fn answer(&mut self, id: WaiterId) -> Option<Answer> {
        let wait = self.waits.get(&id)?;
        let (outcome, hung_up) = (wait.outcome.as_ref()?, wait.is_hung_up());
        if hung_up || !outcome.is_grant() {
            return Some(Answer { outcome: outcome.clone(), hung_up, grant: None });
        }
        let wait = self.remove(id)?;
        Some(Answer {
            outcome: wait.outcome?,
            hung_up,
            grant: Some(DeliveredGrant {
                client: wait.client,
                socket: wait.socket,
                is_acknowledged: wait.requirement.is_some(),
            }),
        })
    }

    /// Removes a wait whose handle the server has taken back.
    #[inline(always)]
    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<BlockedWait> {
        let wait = self.waits.remove(&id)?;
        self.with_requirement -= usize::from(wait.requirement.is_some());
        free_spare(&mut self.waits);
        Some(wait)
    }

    /// Whether this waiter's client is still blocked or still without its reply.
    pub(crate) fn contains(&self, id: WaiterId) -> bool {
        self.waits.contains_key(&id)
    }

    /// Whether `handle` belongs to this waiter's client.
    pub(crate) fn has_handle(&self, id: WaiterId, handle: ClientHandle) -> bool {
        self.waits.get(&id).is_some_and(|wait| wait.handle == handle)
    }

    /// The client that is blocked by this waiter.
    pub(crate) fn client_of(&self, id: WaiterId) -> Option<u64> {
        self.waits.get(&id).map(|wait| wait.client)
    }

    /// Whether this waiter's client has closed its side of the connection, even if the server has not noticed.
    pub(crate) fn is_hung_up(&self, id: WaiterId) -> bool {
        self.waits.get(&id).is_some_and(BlockedWait::is_hung_up)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    pub(crate) fn limit(&self) -> Option<usize> {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    /// Whether no further wait may begin.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.limit.is_some_and(|most| self.waits.len() >= most)
    }

    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }
}
