// SPDX-License-Identifier: MIT
//! Connections. A call or reply takes any time, and is lost with its connection. Each side notices a break independently.

use crate::calls::{Call, Number, Reply, Ticks};

/// The use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Carries OPEN and EVENTS.
    Reader,
    /// Carries one call; a client opens as many as it needs.
    Pool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// Identifies the connection. The order of connections has no meaning.
    pub key: u8,
    /// The index of the client.
    pub client: u8,
    pub purpose: Purpose,
    pub open_at_client: bool,
    pub open_at_server: bool,
    /// The call under way to the server.
    pub call: Option<Call>,
    /// The reply under way to the client.
    pub reply: Option<Reply>,
    /// The time for which EVENTS has blocked at the server.
    pub blocked: Option<Ticks>,
    /// The call whose reply the client awaits, and the time since it was sent.
    pub awaited: Option<Call>,
    pub age: Ticks,
}

impl Connection {
    /// Delivers a reply, unless the client has closed the connection.
    pub fn answer(&mut self, reply: Reply) {
        self.blocked = None;
        if self.open_at_client {
            self.reply = Some(reply);
        }
    }

    pub fn close_at_client(&mut self) {
        self.open_at_client = false;
        self.reply = None;
        self.awaited = None;
        self.age = 0;
    }

    pub fn close_at_server(&mut self) {
        self.open_at_server = false;
        self.call = None;
        self.blocked = None;
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Network {
    pub connections: Vec<Connection>,
}

impl Network {
    /// Sends `call`, on the present reader or on a new connection.
    pub fn send(&mut self, client: u8, purpose: Purpose, call: Call) {
        if purpose == Purpose::Reader {
            if let Some(reader) = self.reader_mut(client) {
                reader.call = Some(call);
                reader.awaited = Some(call);
                reader.age = 0;
                return;
            }
        }
        let is_used = |key: &u8| self.connections.iter().any(|connection| connection.key == *key);
        let key = (0..u8::MAX).find(|key| !is_used(key)).unwrap_or(u8::MAX);
        self.connections.push(Connection {
            key,
            client,
            purpose,
            open_at_client: true,
            open_at_server: true,
            call: Some(call),
            reply: None,
            blocked: None,
            awaited: Some(call),
            age: 0,
        });
    }

    pub fn reader(&self, client: u8) -> Option<&Connection> {
        self.connections.iter().find(|connection| {
            connection.client == client && connection.purpose == Purpose::Reader && connection.open_at_client
        })
    }

    pub fn reader_mut(&mut self, client: u8) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| {
            connection.client == client && connection.purpose == Purpose::Reader && connection.open_at_client
        })
    }

    pub fn close_reader(&mut self, client: u8) {
        if let Some(reader) = self.reader_mut(client) {
            reader.close_at_client();
        }
    }

    pub fn close_all_of(&mut self, client: u8) {
        for connection in self.connections.iter_mut().filter(|connection| connection.client == client) {
            connection.close_at_client();
        }
    }

    /// Answers the EVENTS call blocked on this connection, if any.
    pub fn unblock(&mut self, key: u8, reply: Reply) {
        let blocked = self.connections.iter_mut().find(|connection| connection.key == key);
        if let Some(connection) = blocked.filter(|connection| connection.blocked.is_some()) {
            connection.answer(reply);
        }
    }

    /// Whether the client awaits the reply to a call about acquire `n`.
    pub fn awaits(&self, client: u8, n: Number) -> bool {
        self.connections.iter().any(|connection| {
            connection.client == client && connection.awaited.is_some_and(|call| call.number() == Some(n))
        })
    }

    /// Drops connections that can have no further effect.
    pub fn forget_dead(&mut self) {
        self.connections.retain(|connection| {
            let seen_by_server = connection.call.is_some() || connection.purpose == Purpose::Reader;
            connection.open_at_client || connection.open_at_server && seen_by_server
        });
    }

    pub fn tick(&mut self, oldest: Ticks, counts_blocking: bool) {
        for connection in &mut self.connections {
            if connection.awaited.is_some() {
                connection.age = (connection.age + 1).min(oldest);
            }
            if let (Some(time), true) = (&mut connection.blocked, counts_blocking) {
                *time += 1;
            }
        }
    }
}
