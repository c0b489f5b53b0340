// SPDX-License-Identifier: MIT

//! Cache of the sockets and the last waits of clients that have been blocked.

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::WaiterId;
use crate::server::clients::socket::Socket;

/// A client that has been blocked.
#[derive(Clone, Copy, Debug)]
struct KnownClient {
    /// `None` if the server did not report it. A client keeps its socket for its whole lifetime. The socket
    /// is cached because querying it costs more than the rest of a wait.
    socket: Option<Socket>,
    /// The last wait, which may be over. A client has at most one wait at a time.
    last_wait: WaiterId,
}

/// Clients by id. The server never reuses an id. Some callbacks identify a wait only by its client.
#[derive(Default)]
pub(crate) struct KnownClients(HashMap<u64, KnownClient>);

impl KnownClients {
    /// Sets the last wait of a known client and returns its socket. Returns `None` for an unknown client.
    pub(crate) fn begin_wait(&mut self, client: u64, id: WaiterId) -> Option<Option<Socket>> {
        let known = self.0.get_mut(&client)?;
        known.last_wait = id;
        Some(known.socket)
    }

    /// Adds an unknown client with its first wait.
    pub(crate) fn insert(&mut self, client: u64, socket: Option<Socket>, id: WaiterId) {
        self.0.insert(client, KnownClient { socket, last_wait: id });
    }

    /// The last wait of a client, which may be over.
    pub(crate) fn last_wait(&self, client: u64) -> Option<WaiterId> {
        self.0.get(&client).map(|known| known.last_wait)
    }

    /// Removes a freed client.
    pub(crate) fn forget(&mut self, client: u64) {
        if !self.0.is_empty() {
            self.0.remove(&client);
            free_spare(&mut self.0);
        }
    }

    /// Removes all clients. Used when the module stops receiving events about freed clients.
    pub(crate) fn clear(&mut self) {
        self.0 = HashMap::default();
    }

    /// Number of known clients.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
