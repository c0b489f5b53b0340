// SPDX-License-Identifier: MIT

//! Blocked clients, from the call that has to wait until the server has taken their handles back.

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::waits_for::Edge;
use crate::core::{Decision, WaiterId};
use crate::driver::replicas::replica_waits::{AwaitedHold, ReplicaRequirement};
use crate::server::clients::blocked::{self, Handle};
use crate::server::clients::socket::Socket;

/// A blocked client.
pub(crate) struct BlockedWait {
    handle: Handle,
    client: u64,
    socket: Option<Socket>,
    /// Who has to acknowledge a grant before the client is told.
    requirement: Option<ReplicaRequirement>,
    /// `None` as long as it waits. The handle has been given back as soon as there is one.
    outcome: Option<WaitOutcome>,
}

/// How a wait ended.
#[derive(Clone)]
pub(crate) enum WaitOutcome {
    Decided(Decision),
    /// The client left, or the server has answered it.
    Left,
    /// Replicas have acknowledged this.
    HoldAcknowledged(AwaitedHold),
    /// Too few replicas have.
    NotAcknowledged {
        got: usize,
        of: usize,
        /// The grant is revoked.
        revoked: bool,
    },
    /// The hold has ended before they had.
    HoldLost,
    /// It waits for its own owner, through these.
    Deadlock(Vec<Edge>),
}

/// What a client is answered.
pub(crate) struct Answer {
    pub(crate) outcome: WaitOutcome,
    /// The client has hung up.
    pub(crate) hung_up: bool,
    /// The client and its socket, if it is told of a grant, and whether replicas have acknowledged that.
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
    pub(crate) handle: Handle,
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
    /// True if the client has closed its side of the connection. Not to be asked when it has been answered.
    fn is_hung_up(&self) -> bool {
        self.socket.is_some_and(Socket::is_hung_up)
    }

    /// The client that it blocks, by its id.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// True if it was granted the lock, told or not.
    pub(crate) fn has_grant(&self) -> bool {
        self.outcome.as_ref().is_some_and(WaitOutcome::is_grant)
    }
}

/// All blocked clients.
#[derive(Default)]
pub(crate) struct BlockedClients {
    waits: HashMap<WaiterId, BlockedWait>,
    /// How many of them want a grant to be acknowledged.
    with_requirement: usize,
}

impl BlockedClients {
    /// A client has been blocked.
    #[inline(always)]
    pub(crate) fn insert(&mut self, id: WaiterId, new: NewBlockedWait) {
        let NewBlockedWait { handle, client, socket, requirement } = new;
        self.with_requirement += usize::from(requirement.is_some());
        self.waits.insert(id, BlockedWait { handle, client, socket, requirement, outcome: None });
    }

    /// Ends a wait; only the first end counts, so that the handle is given back once. But who has not been told yet of
    /// a grant is told that it was cancelled or lost.
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

    /// Who has to acknowledge a grant before this client is told.
    pub(crate) fn requirement(&self, id: WaiterId) -> Option<ReplicaRequirement> {
        // Mostly nobody does.
        (self.with_requirement > 0).then(|| self.waits.get(&id)?.requirement).flatten()
    }

    /// The server is about to answer this client. One that is told of a grant is forgotten.
    #[inline(always)]
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

    /// The server has taken the handle back.
    #[inline(always)]
    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<BlockedWait> {
        let wait = self.waits.remove(&id)?;
        self.with_requirement -= usize::from(wait.requirement.is_some());
        free_spare(&mut self.waits);
        Some(wait)
    }

    /// True if this waiter's client is blocked, or has not been answered.
    pub(crate) fn contains(&self, id: WaiterId) -> bool {
        self.waits.contains_key(&id)
    }

    /// True if this is the handle of that waiter's client.
    pub(crate) fn has_handle(&self, id: WaiterId, handle: Handle) -> bool {
        self.waits.get(&id).is_some_and(|wait| wait.handle == handle)
    }

    /// The client that this waiter blocks.
    pub(crate) fn client_of(&self, id: WaiterId) -> Option<u64> {
        self.waits.get(&id).map(|wait| wait.client)
    }

    /// True if the client of this waiter has closed its side of the connection, even where the server has not read so yet.
    pub(crate) fn is_hung_up(&self, id: WaiterId) -> bool {
        self.waits.get(&id).is_some_and(BlockedWait::is_hung_up)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }
}
