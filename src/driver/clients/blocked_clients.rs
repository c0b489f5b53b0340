// SPDX-License-Identifier: MIT

//! Blocked clients, from the call that has to wait until the server has taken their handles back.

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::waits_for::Edge;
use crate::core::{Decision, WaiterId};
use crate::driver::replicas::acknowledgements::{Acknowledgement, Standing};
use crate::server::clients::blocked::{self, Handle};
use crate::server::clients::socket::Socket;

/// A blocked client.
pub(crate) struct Wait {
    handle: Handle,
    client: u64,
    socket: Option<Socket>,
    /// Who has to acknowledge a grant before the client is told.
    wanted: Option<Acknowledgement>,
    /// `None` as long as it waits. The handle has been given back as soon as there is one.
    ended: Option<Ended>,
}

/// How a wait ended.
#[derive(Clone)]
pub(crate) enum Ended {
    By(Decision),
    /// The client left, or the server has answered it.
    Left,
    /// Replicas have acknowledged this.
    Stands(Standing),
    /// Too few replicas have.
    NotAcknowledged {
        got: usize,
        of: usize,
        /// The grant is revoked.
        revoked: bool,
    },
    /// The hold has ended before they had.
    Lost,
    /// It waits for its own owner, through these.
    Deadlock(Vec<Edge>),
}

/// What a client is answered.
pub(crate) struct Answer {
    pub(crate) ended: Ended,
    /// The client has hung up.
    pub(crate) hung_up: bool,
    /// The client and its socket, if it is told of a grant, and whether replicas have acknowledged that.
    pub(crate) told: Option<(u64, Option<Socket>, bool)>,
}

impl Ended {
    fn is_grant(&self) -> bool {
        matches!(self, Ended::By(Decision::Granted(_) | Decision::GrantedAll(_)))
    }
}

impl Wait {
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
        self.ended.as_ref().is_some_and(Ended::is_grant)
    }
}

/// All blocked clients.
#[derive(Default)]
pub(crate) struct BlockedClients {
    waits: HashMap<WaiterId, Wait>,
    /// How many of them want a grant to be acknowledged.
    wanting: usize,
}

impl BlockedClients {
    /// A client has been blocked.
    #[inline(always)]
    pub(crate) fn insert(
        &mut self,
        id: WaiterId,
        handle: Handle,
        (client, socket): (u64, Option<Socket>),
        wanted: Option<Acknowledgement>,
    ) {
        self.wanting += usize::from(wanted.is_some());
        self.waits.insert(id, Wait { handle, client, socket, wanted, ended: None });
    }

    /// Ends a wait; only the first end counts, so that the handle is given back once. But who has not been told yet of
    /// a grant is told that it was cancelled or lost.
    #[inline(always)]
    pub(crate) fn end(&mut self, id: WaiterId, ended: Ended) {
        let Some(wait) = self.waits.get_mut(&id) else { return };
        match (&wait.ended, &ended) {
            (None, _) => {
                wait.ended = Some(ended);
                blocked::unblock(wait.handle, id.0);
            }
            (Some(before), Ended::By(Decision::Cancelled | Decision::Lost)) if before.is_grant() => {
                wait.ended = Some(ended);
            }
            _ => {}
        }
    }

    /// Who has to acknowledge a grant before this client is told.
    pub(crate) fn wanted(&self, id: WaiterId) -> Option<Acknowledgement> {
        // Mostly nobody does.
        (self.wanting > 0).then(|| self.waits.get(&id)?.wanted).flatten()
    }

    /// The server is about to answer this client. One that is told of a grant is forgotten.
    #[inline(always)]
    pub(crate) fn answer(&mut self, id: WaiterId) -> Option<Answer> {
        let wait = self.waits.get(&id)?;
        let (ended, hung_up) = (wait.ended.as_ref()?, wait.is_hung_up());
        if hung_up || !ended.is_grant() {
            return Some(Answer { ended: ended.clone(), hung_up, told: None });
        }
        let wait = self.remove(id)?;
        Some(Answer {
            ended: wait.ended?,
            hung_up,
            told: Some((wait.client, wait.socket, wait.wanted.is_some())),
        })
    }

    /// The server has taken the handle back.
    #[inline(always)]
    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        self.wanting -= usize::from(wait.wanted.is_some());
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
        self.waits.get(&id).is_some_and(Wait::is_hung_up)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }
}
