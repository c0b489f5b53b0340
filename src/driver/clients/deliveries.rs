// SPDX-License-Identifier: MIT

//! Grants that were answered, until it is known whether their clients got the answer.
//!
//! The server answers a client that it has decided to close, and frees it at the end of the turn without sending that answer. So
//! a grant is final only when the turn is over and the client was not freed so.

use crate::core::WaiterId;
use crate::server::clients::caller;
use crate::server::clients::socket::Socket;
use crate::server::Ctx;

/// A grant that was answered in this turn of the event loop.
struct AnsweredGrant {
    id: WaiterId,
    client: u64,
    socket: Option<Socket>,
}

/// For so many grants in a turn memory is kept.
const KEPT_CAPACITY: usize = 64;

/// Those grants.
#[derive(Default)]
pub(crate) struct Deliveries(Vec<AnsweredGrant>);

/// A grant of this turn whose client has been freed.
pub(crate) struct FreedGrant {
    pub(crate) id: WaiterId,
    /// The client has received the grant.
    pub(crate) has_reached: bool,
}

impl Deliveries {
    pub(crate) fn insert(&mut self, id: WaiterId, client: u64, socket: Option<Socket>) {
        self.0.push(AnsweredGrant { id, client, socket });
    }

    /// True if the last grant that was answered is this one.
    pub(crate) fn ends_with(&self, id: WaiterId) -> bool {
        self.0.last().is_some_and(|answered| answered.id == id)
    }

    /// A client is freed. Returns its grants of this turn, and whether it was told of them.
    ///
    /// It was not if the server had decided to close it (`CLIENT LIST` tells) before it sent anything. But if the client has
    /// closed the connection in order, it had read the answer: its socket was asked in vain before it was answered. And one
    /// that is freed although nothing was decided is killed by a command of the next turn.
    pub(crate) fn client_freed(&mut self, ctx: Ctx<'_>, client: u64) -> Vec<FreedGrant> {
        if !self.0.iter().any(|answered| answered.client == client) {
            return Vec::new();
        }
        let was_closing = caller::is_closing(ctx, client);
        let freed = self.0.extract_if(.., |answered| answered.client == client);
        freed
            .map(|answered| {
                let read_it = answered.socket.is_some_and(Socket::is_closed_cleanly);
                FreedGrant { id: answered.id, has_reached: !was_closing || read_it }
            })
            .collect()
    }

    /// The turn is over: these grants have reached their clients.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = WaiterId> + '_ {
        self.0.drain(..).map(|answered| answered.id)
    }

    /// Frees the memory of a crowd that was answered in one turn.
    pub(crate) fn shrink(&mut self) {
        if self.0.is_empty() && self.0.capacity() > KEPT_CAPACITY {
            self.0 = Vec::new();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
