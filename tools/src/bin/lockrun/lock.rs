// SPDX-License-Identifier: MIT

//! The lock as the server knows it: the calls, and the clock by which a hold is over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{clock_gettime, ClockId};
use redis::{Cmd, FromRedisValue, ParsingError, Value};
use uuid::Uuid;

/// A time on a clock that goes on while the machine sleeps, as the server's does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// This moment.
    pub(crate) fn now() -> Moment {
        // Every Linux has this clock. If one has not, the lock counts as lost at once, which is safe.
        Moment(clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from))
    }

    /// Later by a time.
    pub(crate) fn plus(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(time))
    }

    /// How long it is until then; zero if it is past.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_sub(Moment::now().0)
    }
}

/// Until when the hold is ours for sure; the keeper moves it on.
#[derive(Debug)]
pub(crate) struct ValidUntil(AtomicU64);

impl ValidUntil {
    pub(crate) fn new(until: Moment) -> ValidUntil {
        ValidUntil(AtomicU64::new(ValidUntil::packed(until)))
    }

    pub(crate) fn set(&self, until: Moment) {
        self.0.store(ValidUntil::packed(until), Ordering::Release);
    }

    pub(crate) fn get(&self) -> Moment {
        Moment(Duration::from_micros(self.0.load(Ordering::Acquire)))
    }

    fn packed(until: Moment) -> u64 {
        u64::try_from(until.0.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Which lock, for whom, and how.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub key: Vec<u8>,
    pub owner: String,
    pub shared: bool,
    /// How many may hold it, if it is shared with so many only.
    pub limit: Option<u32>,
    pub lease: Duration,
}

/// What the server tells with a grant.
#[derive(Debug)]
pub(crate) struct Granted {
    pub token: i64,
}

impl FromRedisValue for Granted {
    fn from_redis_value(value: Value) -> Result<Granted, ParsingError> {
        let fields = std::collections::HashMap::<String, Value>::from_redis_value(value)?;
        let token =
            fields.get("token").cloned().ok_or_else(|| ParsingError::from("a grant without a token"))?;
        Ok(Granted { token: i64::from_redis_value(token)? })
    }
}

impl Lock {
    /// Takes the lock. The same `request` can be sent again without harm.
    pub(crate) fn acquire(&self, request: &Uuid, wait: Wait) -> Cmd {
        let mut command = self.command("LOCK.ACQUIRE");
        command.arg("PX").arg(ms(self.lease)).arg("FENCE").arg("ID").arg(request.to_string());
        if self.shared {
            command.arg("SHARED");
        }
        if let Some(limit) = self.limit {
            command.arg("LIMIT").arg(limit);
        }
        match wait {
            Wait::Not => {}
            Wait::Until(until) => drop(command.arg("BLOCK").arg(ms(until.left()).max(1))),
            Wait::Always => drop(command.arg("BLOCK").arg(0)),
        }
        command
    }

    /// Undoes the acquire, whatever has become of it.
    pub(crate) fn cancel(&self, request: &Uuid) -> Cmd {
        let mut command = self.command("LOCK.CANCEL");
        command.arg("ID").arg(request.to_string());
        command
    }

    pub(crate) fn renew(&self) -> Cmd {
        let mut command = self.command("LOCK.RENEW");
        command.arg("PX").arg(ms(self.lease));
        command
    }

    /// Gives the lock back. It may be sent again without harm.
    pub(crate) fn release(&self) -> Cmd {
        let mut command = self.command("LOCK.RELEASE");
        command.arg("ID").arg(Uuid::new_v4().to_string());
        if self.shared {
            command.arg("SHARED");
        }
        command
    }

    fn command(&self, name: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(&self.key).arg(&self.owner);
        command
    }
}

/// For how long to wait for the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Not,
    Until(Moment),
    Always,
}

impl Wait {
    /// How long it may still take; `None` if there is no end.
    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Wait::Not => Some(Duration::ZERO),
            Wait::Until(until) => Some(until.left()),
            Wait::Always => None,
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
