// SPDX-License-Identifier: MIT

use std::fmt;

use redis::{ServerError, Value};

/// What a call of this crate gives.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a lock. Each has a text, the server's own where it said something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else holds the lock, and the call was not to wait.
    Busy(String),
    /// The time to wait is over.
    TimedOut(String),
    /// The caller gave up, by a [`Canceller`](crate::Canceller).
    Cancelled(String),
    /// The hold ended before it was given back: others may have worked at the same time.
    Lost(String),
    /// Waiting could never end; the text has the cycle.
    Deadlock(String),
    /// What the call says is wrong: an option out of range, a key of another type, no permission.
    Misuse(String),
    /// No connection, or a server that grants nothing now.
    Unavailable(String),
}

/// How the text begins if nothing was sent.
pub(crate) const NO_CONNECTION: &str = "no connection";

/// What a server says to one connection too many. The next may be let in.
pub(crate) const FULL: &str = "max number of clients";

pub(crate) const SILENT: &str = "no answer in time";

/// How the module ends a wait whose call has come again: late, on a connection that was given up.
const SENT_AGAIN: &str = "the same request was sent again";

/// How Redis ends the waits of a server that is no primary any more.
const DEMOTED: &str = "instance state changed";

impl Error {
    /// Which of the seven it is, in the words of the documentation and of metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Busy(_) => "busy",
            Error::TimedOut(_) => "timed out",
            Error::Cancelled(_) => "cancelled",
            Error::Lost(_) => "lost",
            Error::Deadlock(_) => "deadlock",
            Error::Misuse(_) => "misuse",
            Error::Unavailable(_) => "unavailable",
        }
    }

    /// What happened, in the server's words if they are its.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Error::Busy(text)
            | Error::TimedOut(text)
            | Error::Cancelled(text)
            | Error::Lost(text)
            | Error::Deadlock(text)
            | Error::Misuse(text)
            | Error::Unavailable(text) => text,
        }
    }

    /// The word in capitals with which the server's text begins, as `READONLY`; nothing if the server has not said it.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        let word = self.text().split(' ').next()?;
        (!word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase())).then_some(word)
    }

    /// Whether the same call may go well in a moment: there is no connection, the server starts or is no primary, or a cluster
    /// sorts itself out. What else a server says stands; it begins with a word in capitals.
    pub(crate) fn may_pass(&self) -> bool {
        // A new primary has no replicas for a moment, and a script may run for long.
        const PASSING: [&str; 8] =
            ["LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "BUSY"];
        self.is_of_connection()
            || self.is_unblocked_by("send the command")
            || self.is_unblocked_by(DEMOTED)
            || self.is_unblocked_by(SENT_AGAIN)
            || self.begins_with(&PASSING)
    }

    /// Whether another server is the primary now, which new connections may find.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.begins_with(&["READONLY", "MASTERDOWN"])
    }

    /// Whether the server is no primary any more: so it says, or so it ends a wait.
    pub(crate) fn is_of_demotion(&self) -> bool {
        self.is_elsewhere() || self.is_unblocked_by(DEMOTED)
    }

    /// Another server has the lock now, in words of Redis or of the module. Who is unblocked by somebody is told otherwise.
    fn is_unblocked_by(&self, words: &str) -> bool {
        self.begins_with(&["UNBLOCKED"]) && self.text().contains(words)
    }

    /// Whether another server may be the primary: this one has not the replicas that it should have, or cannot write.
    pub(crate) fn may_be_elsewhere(&self) -> bool {
        self.begins_with(&["NOREPLICAS", "MISCONF"])
    }

    /// Whether a server has refused the call, so that it has done nothing.
    pub(crate) fn is_refusal(&self) -> bool {
        !matches!(self, Error::Cancelled(_) | Error::Lost(_)) && !self.is_of_connection()
    }

    fn begins_with(&self, words: &[&str]) -> bool {
        matches!(self, Error::Unavailable(_)) && self.code().is_some_and(|code| words.contains(&code))
    }

    /// Whether it is said of the connection, and not by the server.
    pub(crate) fn is_of_connection(&self) -> bool {
        matches!(self, Error::Unavailable(text) if text.starts_with(char::is_lowercase))
    }

    /// Whether the server is there, and knows of no server that has the locks.
    pub(crate) fn is_of_nobody(&self) -> bool {
        self.begins_with(&["CLUSTERDOWN", "LOADING", "MASTERDOWN"])
    }

    /// `MOVED slot host:port`, and `ASK` with the same words: where else to send the call, and whether for good.
    pub(crate) fn elsewhere(&self) -> Option<(bool, &str)> {
        let Error::Unavailable(text) = self else { return None };
        let mut words = text.split(' ');
        let for_good = match words.next() {
            Some("MOVED") => true,
            Some("ASK") => false,
            _ => return None,
        };
        Some((for_good, words.nth(1)?))
    }

    /// Whether there was no connection, so that the call cannot have come to a server.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        matches!(self, Error::Unavailable(text) if text.starts_with(NO_CONNECTION))
    }

    fn said(error: &ServerError) -> Error {
        let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
        match error.code() {
            "NOTOWNER" => Error::Lost(text),
            "DEADLOCK" => Error::Deadlock(text),
            "ERR" if text.contains("too many") || text.contains(FULL) => Error::Unavailable(text),
            "ERR" | "WRONGTYPE" | "NOPERM" => Error::Misuse(text),
            _ => Error::Unavailable(text),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind(), self.text())
    }
}

impl std::error::Error for Error {}

/// A call has not been answered.
pub(crate) fn silent() -> Error {
    Error::Unavailable(SILENT.to_owned())
}

/// The reply, or the error that the server replied.
pub(crate) fn checked(reply: Value) -> Result<Value> {
    match reply {
        Value::ServerError(error) => Err(Error::said(&error)),
        reply => Ok(reply),
    }
}
