// SPDX-License-Identifier: MIT

//! Grants that have been sent as a reply and whose delivery is not certain yet.
//!
//! The server also replies to a client that it has decided to close. At the end of that iteration it frees the client
//! without sending the reply. So a grant is final only when this iteration is over and its client was not freed in that way.

use crate::core::WaiterId;
use crate::server::clients::caller;
use crate::server::clients::socket::Socket;
use crate::server::Ctx;

/// A grant that was sent as a reply in this iteration of the event loop.
struct AnsweredGrant {
    id: WaiterId,
    client: u64,
    socket: Option<Socket>,
}

/// Capacity that is kept for the next iteration, in grants.
const KEPT_CAPACITY: usize = 64;

/// The grants that were sent as replies in this iteration of the event loop.
#[derive(Default)]
pub(crate) struct Deliveries(Vec<AnsweredGrant>);

/// A grant of this iteration whose client has been freed.
pub(crate) struct FreedGrant {
    pub(crate) id: WaiterId,
    /// The client has received the grant.
    pub(crate) has_reached: bool,
}

impl Deliveries {
    pub(crate) fn insert(&mut self, id: WaiterId, client: u64, socket: Option<Socket>) {
        self.0.push(AnsweredGrant { id, client, socket });
    }

    /// Whether this waiter's grant was the last one sent as a reply.
    pub(crate) fn ends_with(&self, id: WaiterId) -> bool {
        self.0.last().is_some_and(|answered| answered.id == id)
    }

    /// Removes the grants of a freed client.
    ///
    /// A grant has not reached its client if the server had decided to close the client before it sent
    /// anything. `CLIENT LIST` shows that decision. There is one exception: a client that has closed the
    /// connection cleanly has read the reply, because its socket was still open just before. A client that is
    /// freed without such a decision has received its grant: a command of the next iteration killed it.
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

    /// Removes all grants at the end of this iteration, because they have reached their clients.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = WaiterId> + '_ {
        self.0.drain(..).map(|answered| answered.id)
    }

    /// Frees the memory of an iteration with unusually many grants.
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
