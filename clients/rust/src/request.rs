// SPDX-License-Identifier: MIT

use std::time::Duration;

use redis::Cmd;

use crate::error::{Error, ErrorKind, Result};

/// The greatest time that the server accepts.
const MAX_TIME: Duration = Duration::from_millis(1 << 53);

/// One lock, or several locks at once, with options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) wait: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) shared: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) fence: bool,
    pub(crate) reentrant: bool,
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) label: Option<String>,
}

/// A time in milliseconds, rounded up, and at least 1.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

impl Request {
    /// Fails if the options do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        let times = [self.lease, self.max_hold].into_iter().flatten();
        let wrong = if self.keys.is_empty() || self.keys.iter().any(Vec::is_empty) {
            "a lock needs a key that is not empty"
        } else if self.owner.as_ref().is_some_and(Vec::is_empty) {
            "owner must not be empty"
        } else if self.lease.is_some() && self.max_hold.is_some() {
            "max_hold limits renewals, and a hold with a lease has none; use one of them"
        } else if self.limit == Some(0) {
            "limit must be positive"
        } else if self.limit.is_some() && self.several() {
            "limit is not available for several locks"
        } else if { times }.any(|time| time < Duration::from_millis(1) || time > MAX_TIME) {
            "lease and max_hold must be at least 1 ms, and less than 2^53 ms"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Misuse, wrong))
    }

    pub(crate) fn several(&self) -> bool {
        self.keys.len() > 1
    }

    /// An error about these locks.
    pub(crate) fn error(&self, kind: ErrorKind, text: &str) -> Error {
        let keys: Vec<_> = self.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        Error::new(kind, format!("{}: {text}", keys.join(", ")))
    }

    /// The first words of a call: `ACQUIRE`, `RENEW`, `RELEASE` or `CANCEL`. A hold without a lease is renewed, and ends with its
    /// session.
    pub(crate) fn call(
        &self,
        verb: &str,
        owner: &[u8],
        lease: Option<Duration>,
        max_hold: Option<Duration>,
    ) -> Cmd {
        let mut call = Cmd::new();
        if self.several() && verb != "CANCEL" {
            call.arg(format!("LOCK.M{verb}")).arg(self.keys.len()).arg(&self.keys).arg(owner);
        } else {
            call.arg(format!("LOCK.{verb}")).arg(&self.keys[0]).arg(owner);
        }
        if verb == "ACQUIRE" {
            if self.shared || self.limit.is_some() {
                call.arg("SHARED");
            }
            if let Some(limit) = self.limit {
                call.arg("LIMIT").arg(limit);
            }
            if self.fence {
                call.arg("FENCE");
            }
        }
        match (lease, max_hold) {
            _ if !matches!(verb, "ACQUIRE" | "RENEW") => &mut call,
            (Some(lease), _) => call.arg("PX").arg(milliseconds(lease)),
            (None, Some(max)) => call.arg("WATCHDOG").arg("MAX").arg(milliseconds(max)).arg("EPHEMERAL"),
            (None, None) => call.arg("EPHEMERAL"),
        };
        call
    }
}
