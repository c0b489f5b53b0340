// SPDX-License-Identifier: MIT

//! Options about the reply: when it comes, and whether a repeated call gets it again.

use std::num::NonZeroU32;

use super::CommandOption;
use crate::commands::args::{CommandName, Cursor};
use crate::config::MAX_MS;
use crate::driver::ReplicaRequirement;
use crate::error::Error;
use crate::server::registration::arguments::{Argument, ArgumentKind};

/// The default of `WITHIN`, in milliseconds. Redisson uses the same.
const DEFAULT_WITHIN_MS: u32 = 1000;

/// `BLOCK milliseconds | QUEUE milliseconds`
#[derive(Default)]
pub(in crate::commands) struct Wait {
    block: Option<WaitTimeout>,
    queue: Option<WaitTimeout>,
}

/// The maximum time of a wait, in milliseconds. `None` means no limit.
#[derive(Clone, Copy)]
pub(in crate::commands) struct WaitTimeout(pub(in crate::commands) Option<u64>);

/// How a call waits for the lock.
#[derive(Clone, Copy)]
pub(in crate::commands) enum WaitMode {
    /// The call replies nil at once.
    NoWait,
    /// The server blocks the client.
    Block(WaitTimeout),
    /// The call replies 0 at once, and the session gets an event.
    Queue(WaitTimeout),
}

impl Wait {
    #[inline]
    pub(in crate::commands) fn mode(&self, command: CommandName) -> Result<WaitMode, Error> {
        match (self.block, self.queue) {
            (Some(_), Some(_)) => Err(command.exclusive("BLOCK", "QUEUE")),
            (Some(timeout), None) => Ok(WaitMode::Block(timeout)),
            (None, Some(timeout)) => Ok(WaitMode::Queue(timeout)),
            (None, None) => Ok(WaitMode::NoWait),
        }
    }
}

const BLOCK: Argument = Argument::new(
    c"milliseconds",
    ArgumentKind::Integer,
    c"waits in the server for at most this time; 0 means no limit",
)
.after(c"BLOCK");

const QUEUE: Argument = Argument::new(
    c"milliseconds",
    ArgumentKind::Integer,
    c"replies 0, and the session gets an event with the grant, or after this time; 0 means no limit",
)
.after(c"QUEUE");

impl<'a> CommandOption<'a> for Wait {
    const ARGUMENT: Argument = Argument::new(
        c"wait",
        ArgumentKind::OneOf(&[BLOCK, QUEUE]),
        c"waits if a lock is not available. BLOCK waits in the server. QUEUE replies 0, and the session gets an event",
    )
    .optional();

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        let (name, timeout) = if word.eq_ignore_ascii_case(b"BLOCK") {
            ("BLOCK", &mut self.block)
        } else if word.eq_ignore_ascii_case(b"QUEUE") {
            ("QUEUE", &mut self.queue)
        } else {
            return Ok(false);
        };
        let ms = args.integer(name, 0, MAX_MS)?.unsigned_abs();
        args.once(name, timeout, WaitTimeout(Some(ms).filter(|ms| *ms > 0)))?;
        Ok(true)
    }
}

/// `REPLICAS n [WITHIN milliseconds]`
#[derive(Default)]
pub(in crate::commands) struct Replicas {
    replicas: Option<NonZeroU32>,
    within_ms: Option<u32>,
}

impl Replicas {
    #[inline]
    pub(in crate::commands) fn is_given(&self) -> bool {
        self.replicas.is_some()
    }

    /// The acknowledgement that the call requests. Fails if `WITHIN` is given without `REPLICAS`.
    #[inline]
    pub(in crate::commands) fn acknowledgement(
        &self,
        command: CommandName,
    ) -> Result<Option<ReplicaRequirement>, Error> {
        match (self.replicas, self.within_ms) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(command.problem("WITHIN needs REPLICAS")),
            (Some(replicas), within_ms) => {
                let within_ms = within_ms.unwrap_or(DEFAULT_WITHIN_MS);
                Ok(Some(ReplicaRequirement { replicas, within_ms }))
            }
        }
    }
}

impl<'a> CommandOption<'a> for Replicas {
    const ARGUMENT: Argument = {
        const NUMBER: Argument =
            Argument::new(c"n", ArgumentKind::Integer, c"number of replicas that must acknowledge the call")
                .after(c"REPLICAS");
        const WITHIN: Argument = Argument::new(
            c"milliseconds",
            ArgumentKind::Integer,
            c"time limit for the acknowledgements, 1000 by default",
        )
        .after(c"WITHIN")
        .optional();
        let summary =
            c"replies once n replicas have acknowledged the call, or with an error after the time limit";
        Argument::new(c"acknowledged", ArgumentKind::Block(&[NUMBER, WITHIN]), summary).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if word.eq_ignore_ascii_case(b"REPLICAS") {
            let replicas = args.integer("REPLICAS", 1, i64::from(i32::MAX))?;
            let replicas = u32::try_from(replicas).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
            args.once("REPLICAS", &mut self.replicas, replicas)?;
        } else if word.eq_ignore_ascii_case(b"WITHIN") {
            let within = args.integer("WITHIN", 1, MAX_MS)?;
            // Values above 49 days are reduced to 49 days.
            args.once("WITHIN", &mut self.within_ms, u32::try_from(within).unwrap_or(u32::MAX))?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// `ID request`
#[derive(Default)]
pub(in crate::commands) struct Id<'a>(Option<&'a [u8]>);

impl<'a> Id<'a> {
    #[inline]
    pub(in crate::commands) fn get(&self) -> Option<&'a [u8]> {
        self.0
    }
}

impl<'a> CommandOption<'a> for Id<'a> {
    const ARGUMENT: Argument = Argument::new(
        c"request",
        ArgumentKind::Text,
        c"identifies the request: a repeated call changes nothing and gets the first reply",
    )
    .after(c"ID")
    .optional();

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(b"ID") {
            return Ok(false);
        }
        let id = args.request_id()?;
        args.once("ID", &mut self.0, id)?;
        Ok(true)
    }
}

/// `SESSION id n`
pub(in crate::commands) const SESSION_NUMBER: Argument = {
    const SESSION: Argument =
        Argument::new(c"session", ArgumentKind::Text, c"the id of the session").after(c"SESSION");
    const NUMBER: Argument =
        Argument::new(c"n", ArgumentKind::Integer, c"the number of the acquire in its session");
    let summary = c"makes the call part of a session, about the acquire with this number";
    Argument::new(c"numbered", ArgumentKind::Block(&[SESSION, NUMBER]), summary)
};

/// `SESSION id n`, as an option.
#[derive(Default)]
pub(in crate::commands) struct SessionNumber<'a>(Option<(&'a [u8], u64)>);

impl<'a> SessionNumber<'a> {
    /// The id of the session, and the number of the acquire.
    #[inline]
    pub(in crate::commands) fn get(&self) -> Option<(&'a [u8], u64)> {
        self.0
    }

    /// Reads the values after the word `SESSION`.
    pub(in crate::commands) fn values(args: &mut Cursor<'a>) -> Result<(&'a [u8], u64), Error> {
        let id = args.value("SESSION")?;
        let n = args.integer("SESSION", 1, MAX_MS)?.unsigned_abs();
        Ok((id, n))
    }
}

impl<'a> CommandOption<'a> for SessionNumber<'a> {
    const ARGUMENT: Argument = SESSION_NUMBER.optional();

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(b"SESSION") {
            return Ok(false);
        }
        let values = SessionNumber::values(args)?;
        args.once("SESSION", &mut self.0, values)?;
        Ok(true)
    }
}

/// `FROM name m`
#[derive(Default)]
pub(in crate::commands) struct From<'a>(Option<(&'a [u8], u64)>);

impl<'a> From<'a> {
    /// The public name of the session that has the hold, and the number of the hold there.
    #[inline]
    pub(in crate::commands) fn get(&self) -> Option<(&'a [u8], u64)> {
        self.0
    }
}

impl<'a> CommandOption<'a> for From<'a> {
    const ARGUMENT: Argument = {
        const NAME: Argument =
            Argument::new(c"name", ArgumentKind::Text, c"the name of the session that has the hold")
                .after(c"FROM");
        const NUMBER: Argument =
            Argument::new(c"m", ArgumentKind::Integer, c"the number of the hold in that session");
        let summary = c"takes over a hold from another session";
        Argument::new(c"from", ArgumentKind::Block(&[NAME, NUMBER]), summary).optional()
    };

    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(b"FROM") {
            return Ok(false);
        }
        let name = args.value("FROM")?;
        let number = args.integer("FROM", 1, MAX_MS)?.unsigned_abs();
        args.once("FROM", &mut self.0, (name, number))?;
        Ok(true)
    }
}
