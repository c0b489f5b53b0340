// SPDX-License-Identifier: MIT

//! Options about the reply: when it comes, and whether a repeated call gets it again.

use std::ffi::CStr;
use std::num::NonZeroU32;

use super::CommandOption;
use crate::commands::args::{CommandName, Cursor};
use crate::config::MAX_MS;
use crate::driver::ReplicaRequirement;
use crate::error::Error;
use crate::server::registration::arguments::{Argument, ArgumentKind};

/// The default of `WITHIN`, in milliseconds. Redisson uses the same.
const DEFAULT_WITHIN_MS: u32 = 1000;

/// The default of `GRACE`, in milliseconds.
const DEFAULT_GRACE_MS: i64 = 5000;

/// Converts a text that ends with a NUL to a C string. Used for texts that are too long for one literal.
const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text does not end with a NUL"),
    }
}

/// `BLOCK milliseconds`
#[derive(Default)]
pub(in crate::commands) struct Block(Option<BlockTimeout>);

/// The maximum time in milliseconds that a client waits in the server. `None` means no limit.
#[derive(Clone, Copy)]
pub(in crate::commands) struct BlockTimeout(pub(in crate::commands) Option<u64>);

impl Block {
    const MILLISECONDS: Argument = Argument::new(
        c"milliseconds",
        ArgumentKind::Integer,
        c"waits in the server for at most this time; 0 means no limit",
    )
    .after(c"BLOCK");

    #[inline]
    pub(in crate::commands) fn timeout(&self) -> Option<BlockTimeout> {
        self.0
    }
}

impl<'a> CommandOption<'a> for Block {
    const ARGUMENT: Argument = Block::MILLISECONDS.optional();

    #[inline(always)]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(b"BLOCK") {
            return Ok(false);
        }
        let ms = args.integer("BLOCK", 0, MAX_MS)?.unsigned_abs();
        args.once("BLOCK", &mut self.0, BlockTimeout(Some(ms).filter(|ms| *ms > 0)))?;
        Ok(true)
    }
}

/// `BLOCK milliseconds | QUEUE milliseconds`
#[derive(Default)]
pub(in crate::commands) struct BlockOrQueue {
    block: Block,
    queue: Option<BlockTimeout>,
}

impl BlockOrQueue {
    pub(in crate::commands) fn mode<'a>(&self, command: CommandName) -> Result<WaitMode<'a>, Error> {
        match (self.block.timeout(), self.queue) {
            (Some(_), Some(_)) => Err(command.exclusive("BLOCK", "QUEUE")),
            (Some(timeout), None) => Ok(WaitMode::Block(timeout)),
            (None, Some(timeout)) => Ok(WaitMode::Queue(timeout)),
            (None, None) => Ok(WaitMode::NoWait),
        }
    }

    /// Reads `QUEUE`.
    fn read_queue(
        queue: &mut Option<BlockTimeout>,
        word: &[u8],
        args: &mut Cursor<'_>,
    ) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(b"QUEUE") {
            return Ok(false);
        }
        let ms = args.integer("QUEUE", 0, MAX_MS)?.unsigned_abs();
        args.once("QUEUE", queue, BlockTimeout(Some(ms).filter(|ms| *ms > 0)))?;
        Ok(true)
    }
}

/// `QUEUE milliseconds`
const QUEUE: Argument = Argument::new(
    c"milliseconds",
    ArgumentKind::Integer,
    c"replies 0, and the session gets an event with the grant, or after this time; 0 means no limit",
)
.after(c"QUEUE");

impl<'a> CommandOption<'a> for BlockOrQueue {
    const ARGUMENT: Argument = Argument::new(
        c"wait",
        ArgumentKind::OneOf(&[Block::MILLISECONDS, QUEUE]),
        c"waits if a lock is not available. BLOCK waits in the server. QUEUE replies 0, and the session gets an event",
    )
    .optional();

    #[inline(always)]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        Ok(self.block.read(word, args)? || BlockOrQueue::read_queue(&mut self.queue, word, args)?)
    }
}

/// `BLOCK milliseconds | QUEUE milliseconds | NOTIFY inbox [GRACE milliseconds]`
#[derive(Default)]
pub(in crate::commands) struct Wait<'a> {
    block: Block,
    queue: Option<BlockTimeout>,
    inbox: Option<&'a [u8]>,
    grace_ms: Option<i64>,
}

/// How a call waits for the lock.
#[derive(Clone, Copy)]
pub(in crate::commands) enum WaitMode<'a> {
    /// The call replies nil at once.
    NoWait,
    /// The server blocks the client.
    Block(BlockTimeout),
    /// The call replies 0 at once, and the session gets an event.
    Queue(BlockTimeout),
    /// A message announces the grant.
    Notify(NotifyOptions<'a>),
}

/// `NOTIFY inbox [GRACE milliseconds]`
#[derive(Clone, Copy)]
pub(in crate::commands) struct NotifyOptions<'a> {
    pub(in crate::commands) inbox: &'a [u8],
    /// The time that the client has to confirm the grant, in milliseconds.
    pub(in crate::commands) grace_ms: i64,
}

impl<'a> Wait<'a> {
    #[inline]
    pub(in crate::commands) fn mode(&self, command: CommandName) -> Result<WaitMode<'a>, Error> {
        match self {
            Wait { block, queue: None, inbox: None, grace_ms: None } => {
                Ok(block.timeout().map_or(WaitMode::NoWait, WaitMode::Block))
            }
            Wait { block: Block(Some(_)), queue: Some(_), .. } => Err(command.exclusive("BLOCK", "QUEUE")),
            Wait { queue: Some(_), inbox: Some(_), .. } => Err(command.exclusive("QUEUE", "NOTIFY")),
            Wait { queue: Some(timeout), grace_ms: None, .. } => Ok(WaitMode::Queue(*timeout)),
            Wait { inbox: None, .. } => Err(command.problem("GRACE needs NOTIFY")),
            Wait { block: Block(Some(_)), .. } => Err(command.exclusive("BLOCK", "NOTIFY")),
            Wait { inbox: Some(inbox), grace_ms, .. } => {
                let grace_ms = grace_ms.unwrap_or(DEFAULT_GRACE_MS);
                Ok(WaitMode::Notify(NotifyOptions { inbox, grace_ms }))
            }
        }
    }
}

impl<'a> CommandOption<'a> for Wait<'a> {
    const ARGUMENT: Argument = {
        const INBOX: Argument = Argument::new(
            c"inbox",
            ArgumentKind::Text,
            c"replies 0 and publishes the grant on the channel lock:inbox:<inbox>",
        )
        .after(c"NOTIFY");
        const GRACE: Argument = Argument::new(
            c"milliseconds",
            ArgumentKind::Integer,
            c"time limit for confirming the grant by repeating the call, 5000 by default",
        )
        .after(c"GRACE")
        .optional();
        const NOTIFY: Argument = Argument::new(
            c"notify",
            ArgumentKind::Block(&[INBOX, GRACE]),
            c"waits without blocking this connection",
        );
        let summary = c_str(concat!(
            "waits if another owner holds the lock. BLOCK waits in the server for at most this time; 0 means no limit. ",
            "QUEUE replies 0, and the session gets an event. ",
            "NOTIFY publishes the grant on lock:inbox:<inbox>; repeating the call within GRACE, 5000 ms by default, confirms it",
            "\0"
        ));
        Argument::new(c"wait", ArgumentKind::OneOf(&[Block::MILLISECONDS, QUEUE, NOTIFY]), summary).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if self.block.read(word, args)? {
            return Ok(true);
        }
        if BlockOrQueue::read_queue(&mut self.queue, word, args)? {
            return Ok(true);
        }
        if word.eq_ignore_ascii_case(b"NOTIFY") {
            let inbox = args.name("NOTIFY")?;
            args.once("NOTIFY", &mut self.inbox, inbox)?;
        } else if word.eq_ignore_ascii_case(b"GRACE") {
            let grace_ms = args.integer("GRACE", 1, MAX_MS)?;
            args.once("GRACE", &mut self.grace_ms, grace_ms)?;
        } else {
            return Ok(false);
        }
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
