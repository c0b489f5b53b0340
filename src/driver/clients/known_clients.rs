// SPDX-License-Identifier: MIT

//! What is known of the clients that have been blocked.

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::WaiterId;
use crate::server::clients::socket::Socket;

/// A client that has been blocked.
#[derive(Clone, Copy, Debug)]
struct KnownClient {
    /// To ask for it costs more than all else that a wait does. A client keeps it as long as it lives. `None` if the server did
    /// not say.
    socket: Option<Socket>,
    /// Its last wait, which may be over: a client waits once at a time.
    last_wait: WaiterId,
}

/// Clients by their ids, which are never another's. A callback of the server that says nothing else of a wait names its client.
#[derive(Default)]
pub(crate) struct KnownClients(HashMap<u64, KnownClient>);

impl KnownClients {
    /// A client that is known waits once more. Returns its socket; `None` if it is not known.
    pub(crate) fn begin_wait(&mut self, client: u64, id: WaiterId) -> Option<Option<Socket>> {
        let known = self.0.get_mut(&client)?;
        known.last_wait = id;
        Some(known.socket)
    }

    /// A client waits that is not known.
    pub(crate) fn insert(&mut self, client: u64, socket: Option<Socket>, id: WaiterId) {
        self.0.insert(client, KnownClient { socket, last_wait: id });
    }

    /// The last wait of a client, which may be over.
    pub(crate) fn last_wait(&self, client: u64) -> Option<WaiterId> {
        self.0.get(&client).map(|known| known.last_wait)
    }

    /// The client is freed.
    pub(crate) fn forget(&mut self, client: u64) {
        if !self.0.is_empty() {
            self.0.remove(&client);
            free_spare(&mut self.0);
        }
    }

    /// Forgets all: the module does not get events of freed clients any more.
    pub(crate) fn clear(&mut self) {
        self.0 = HashMap::default();
    }

    /// How many are known.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
