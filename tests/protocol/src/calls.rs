// SPDX-License-Identifier: MIT
//! Calls, replies and events, as they travel between clients and the server.

/// The number of an acquire within its session.
pub type Number = u8;
/// A duration in ticks.
pub type Ticks = u8;

/// The id of a session. A real id is random; this one names its creator, so that the model can check properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    /// The client that opened the session.
    pub client: u8,
    /// Counts the sessions of that client.
    pub life: u8,
}

/// How long a hold lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HoldKind {
    /// `WATCHDOG` and `EPHEMERAL`: the hold lasts as long as the session.
    SessionBound,
    /// The hold lasts as long as its lease.
    Plain,
}

/// The options of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    pub kind: HoldKind,
    pub shared: bool,
    /// `QUEUE`: the acquire waits for a busy lock. Otherwise the reply is nil.
    pub queued: bool,
}

/// The hold that a hand-over takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandOver {
    /// The client whose session gives the hold away.
    pub giver: u8,
    pub number: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    OpenNew { client: u8 },
    Open { id: SessionId, beat: u8 },
    Events { id: SessionId, beat: u8, seen: u8, done: Number },
    Close { id: SessionId },
    Acquire { id: SessionId, n: Number, request: Request },
    Release { id: SessionId, n: Number },
    Cancel { id: SessionId, n: Number },
    Renew { id: SessionId, n: Number, request: Request },
    TakeOver { id: SessionId, n: Number, request: Request, from: HandOver },
}

impl Call {
    /// The acquire that the call is about.
    pub fn number(&self) -> Option<Number> {
        match *self {
            Call::Acquire { n, .. }
            | Call::Release { n, .. }
            | Call::Cancel { n, .. }
            | Call::Renew { n, .. }
            | Call::TakeOver { n, .. } => Some(n),
            _ => None,
        }
    }

    /// The session that the call names.
    pub fn session(&self) -> Option<SessionId> {
        match *self {
            Call::OpenNew { .. } => None,
            Call::Open { id, .. }
            | Call::Events { id, .. }
            | Call::Close { id }
            | Call::Acquire { id, .. }
            | Call::Release { id, .. }
            | Call::Cancel { id, .. }
            | Call::Renew { id, .. }
            | Call::TakeOver { id, .. } => Some(id),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    Granted,
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event {
    pub seq: u8,
    pub n: Number,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    Opened {
        id: SessionId,
        new: bool,
        beat: u8,
    },
    Events(Vec<Event>),
    Count(u8),
    Nil,
    NotOwner,
    Cancelled,
    NoSession,
    Late,
    /// `LIMIT`: the client has opened as many sessions as the scenario allows.
    Limit,
    /// `MISCONF` or a similar error: the server cannot write.
    Error,
}
