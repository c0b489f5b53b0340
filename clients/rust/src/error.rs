// SPDX-License-Identifier: MIT

use std::borrow::Cow;
use std::fmt;

use redis::RedisError;

/// The result of a call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another owner holds the lock, and the call does not wait.
    Busy,
    /// The wait reached its limit without a grant.
    TimedOut,
    /// The acquire was cancelled, or its `Locks` was closed.
    Cancelled,
    /// The hold ended before its release: another owner may have worked at the same time.
    Lost,
    /// The wait could never end.
    Deadlock,
    /// The call is wrong: an option, a key of another type, a missing permission, a server without the module.
    Misuse,
    /// No server answered in time, or the server grants nothing now.
    Unavailable,
}

impl ErrorKind {
    /// The name of the kind, for metrics: `busy`, `timed out`, `cancelled`, `lost`, `deadlock`, `misuse` or `unavailable`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Busy => "busy",
            ErrorKind::TimedOut => "timed out",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Lost => "lost",
            ErrorKind::Deadlock => "deadlock",
            ErrorKind::Misuse => "misuse",
            ErrorKind::Unavailable => "unavailable",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error of a lock. Its [`kind`](Error::kind) tells what to do.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    text: Cow<'static, str>,
    source: Option<RedisError>,
    is_unsent: bool,
    is_unknown_primary: bool,
}

/// The codes of errors after which the same call may succeed in a moment.
const TRANSIENT: &str =
    "NOSESSION LATE READONLY LOADING NOREPLICAS MISCONF BUSY TRYAGAIN MASTERDOWN CLUSTERDOWN QUARANTINE \
    UNBLOCKED MOVED ASK";

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Error {
        Error { kind, text: text.into(), source: None, is_unsent: false, is_unknown_primary: false }
    }

    pub(crate) fn unknown_primary(name: &str) -> Error {
        let text = format!("no Sentinel knows {name}");
        Error { is_unknown_primary: true, ..Error::new(ErrorKind::Unavailable, text) }
    }

    pub(crate) fn no_reply() -> Error {
        Error::new(ErrorKind::Unavailable, "no answer in time")
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The code of the server's reply, such as `READONLY`. None if the error is no reply of a server.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.source.as_ref().and_then(RedisError::code)
    }

    /// Whether no connection to a server could be made, so that nothing was sent.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        self.is_unsent
    }

    /// Whether all Sentinels have replied that they know no primary by this name. False if any of them did not reply.
    #[must_use]
    pub fn is_unknown_primary(&self) -> bool {
        self.is_unknown_primary
    }

    /// Marks the error of an attempt to connect.
    pub(crate) fn unsent(mut self) -> Error {
        self.is_unsent = true;
        self
    }

    pub(crate) fn is(&self, code: &str) -> bool {
        self.code() == Some(code)
    }

    /// Whether a repetition of the call may succeed soon.
    pub(crate) fn is_transient(&self) -> bool {
        self.kind == ErrorKind::Unavailable
            && self.code().is_none_or(|code| TRANSIENT.split(' ').any(|each| each == code))
    }

    /// Whether the server may have executed the call.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.kind == ErrorKind::Unavailable && self.code().is_none() && !self.is_unsent
    }

    /// Whether a new connection may lead to another primary, which knows the session.
    pub(crate) fn is_of_former_primary(&self) -> bool {
        self.is("READONLY") || self.is("NOSESSION")
    }

    /// Whether the reply says that the server has no such hold.
    pub(crate) fn ends_hold(&self) -> bool {
        self.kind == ErrorKind::Lost || self.is("WRONGTYPE")
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        let kind = match error.code() {
            Some("NOTOWNER") => ErrorKind::Lost,
            Some("DEADLOCK") => ErrorKind::Deadlock,
            Some("CANCELLED") => ErrorKind::Cancelled,
            Some("ERR" | "WRONGTYPE" | "NOPERM" | "NOAUTH" | "WRONGPASS" | "CROSSSLOT") => ErrorKind::Misuse,
            Some(_) => ErrorKind::Unavailable,
            None => match error.kind() {
                redis::ErrorKind::AuthenticationFailed | redis::ErrorKind::InvalidClientConfig => {
                    ErrorKind::Misuse
                }
                _ => ErrorKind::Unavailable,
            },
        };
        let text = match (error.code(), error.detail()) {
            (Some(code), detail) => format!("{code} {}", detail.unwrap_or_default()).trim_end().to_owned(),
            _ if error.is_timeout() => return Error { source: Some(error), ..Error::no_reply() },
            _ => error.to_string(),
        };
        Error { source: Some(error), ..Error::new(kind, text) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}
