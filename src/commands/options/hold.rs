// SPDX-License-Identifier: MIT

//! Options about the hold: its mode, lease, token and connection.

use std::num::{NonZeroU32, NonZeroU64};

use super::CommandOption;
use crate::commands::args::{CommandName, Cursor};
use crate::config::{self, MAX_MS};
use crate::core::{Mode, ReleaseScope, Wants};
use crate::error::Error;
use crate::server::registration::arguments::{text, Argument, ArgumentKind};

flag!(Once, c"ONCE", c"once", c"makes the call non-re-entrant: holds of the same owner also block it");
flag!(Fence, c"FENCE", c"fence", c"returns a token greater than all earlier ones");
flag!(SharedFlag, c"SHARED", c"shared", c"shares the locks with other owners that use SHARED");
flag!(All, c"ALL", c"all", c"releases all holds of each lock");
flag!(
    Ephemeral,
    c"EPHEMERAL",
    c"ephemeral",
    c"releases the lock when this connection closes, or when the SESSION ends"
);

/// `PX milliseconds | EX seconds`
#[derive(Default)]
pub(in crate::commands) struct Lease(Option<i64>);

impl Lease {
    /// In milliseconds.
    #[inline]
    pub(in crate::commands) fn ms(&self) -> Option<i64> {
        self.0
    }
}

impl<'a> CommandOption<'a> for Lease {
    const ARGUMENT: Argument = {
        const MS: Argument =
            Argument::new(c"milliseconds", ArgumentKind::Integer, c"the lease in milliseconds").after(c"PX");
        const SECONDS: Argument =
            Argument::new(c"seconds", ArgumentKind::Integer, c"the lease in seconds").after(c"EX");
        let summary = c"sets the lease; lock.default-lease milliseconds by default";
        Argument::new(c"lease", ArgumentKind::OneOf(&[MS, SECONDS]), summary).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        let (name, unit) = match word {
            [b'P' | b'p', b'X' | b'x'] => ("PX", 1),
            [b'E' | b'e', b'X' | b'x'] => ("EX", 1000),
            _ => return Ok(false),
        };
        if self.0.is_some() {
            return Err(args.command().problem("only one PX or EX is allowed"));
        }
        let ms = args.integer(name, 1, MAX_MS / unit)? * unit;
        // Checked with the option's value, so that a call with a second mistake also gets this error.
        if let Some(max) = config::max_lease().filter(|max| ms > *max) {
            return Err(args.command().problem_with_advice(
                format_args!("{name} is out of range"),
                format_args!("lock.max-lease allows {max} ms"),
            ));
        }
        self.0 = Some(ms);
        Ok(true)
    }
}

/// `PX milliseconds | EX seconds` of a release: the lease of the remaining holds.
#[derive(Default)]
pub(in crate::commands) struct RemainingLease(Lease);

impl RemainingLease {
    /// In milliseconds.
    #[inline]
    pub(in crate::commands) fn ms(&self) -> Option<i64> {
        self.0.ms()
    }
}

impl<'a> CommandOption<'a> for RemainingLease {
    const ARGUMENT: Argument =
        Lease::ARGUMENT.with_meaning(c"sets the lease of the remaining holds; unchanged by default");

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        self.0.read(word, args)
    }
}

/// `SHARED [LIMIT n]`
#[derive(Default)]
pub(in crate::commands) struct Shared {
    given: Option<()>,
    limit: Option<NonZeroU32>,
}

impl Shared {
    /// The mode of the requested hold, with `ONCE` and `LIMIT`.
    #[inline]
    pub(in crate::commands) fn wants(&self, once: &Once, command: CommandName) -> Result<Wants, Error> {
        if self.limit.is_some() && self.given.is_none() {
            return Err(command.problem("LIMIT needs SHARED"));
        }
        let mode = if self.given.is_some() { Mode::Shared } else { Mode::Exclusive };
        Ok(Wants { mode, once: once.is_given(), limit: self.limit })
    }
}

impl<'a> CommandOption<'a> for Shared {
    const ARGUMENT: Argument = {
        const WORD: Argument = Argument::keyword(
            c"with-others",
            c"SHARED",
            c"shares the lock with other owners that use SHARED",
        );
        const LIMIT: Argument =
            Argument::new(c"n", ArgumentKind::Integer, c"maximum number of holders, including the caller")
                .after(c"LIMIT")
                .optional();
        let summary = c"shares the lock with other owners that use SHARED; with LIMIT, only while fewer than n owners hold it";
        Argument::new(c"shared", ArgumentKind::Block(&[WORD, LIMIT]), summary).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if args.flag("SHARED", word, &mut self.given)? {
            return Ok(true);
        }
        if !word.eq_ignore_ascii_case(b"LIMIT") {
            return Ok(false);
        }
        let limit = args.integer("LIMIT", 1, i64::from(i32::MAX))?;
        let limit = u32::try_from(limit).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
        args.once("LIMIT", &mut self.limit, limit)?;
        Ok(true)
    }
}

/// `SHARED | ALL`
#[derive(Default)]
pub(in crate::commands) struct Scope {
    shared: Option<()>,
    all: Option<()>,
}

impl Scope {
    pub(in crate::commands) fn get(&self, command: CommandName) -> Result<ReleaseScope, Error> {
        match (self.shared, self.all) {
            (None, None) => Ok(ReleaseScope::One),
            (Some(()), None) => Ok(ReleaseScope::OneOf(Mode::Shared)),
            (None, Some(())) => Ok(ReleaseScope::All),
            (Some(()), Some(())) => Err(command.exclusive("SHARED", "ALL")),
        }
    }
}

impl<'a> CommandOption<'a> for Scope {
    const ARGUMENT: Argument = {
        const SHARED: Argument = Argument::keyword(c"shared", c"SHARED", c"releases a shared hold");
        const ALL: Argument = Argument::keyword(c"all", c"ALL", c"releases all holds");
        let summary = c"releases a shared hold or all holds; by default one hold, exclusive before shared";
        Argument::new(c"scope", ArgumentKind::OneOf(&[SHARED, ALL]), summary).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        Ok(args.flag("ALL", word, &mut self.all)? || args.flag("SHARED", word, &mut self.shared)?)
    }
}

/// `WATCHDOG [MAX milliseconds]`
#[derive(Default)]
pub(in crate::commands) struct Watchdog {
    given: Option<()>,
    max_ms: Option<NonZeroU64>,
}

/// The options that bind a hold to the calling connection.
pub(in crate::commands) struct Binding {
    /// Whether the server renews the lease while the connection is open.
    pub(in crate::commands) watchdog: bool,
    /// The maximum age of a renewed hold, in milliseconds.
    pub(in crate::commands) max_ms: Option<NonZeroU64>,
    /// Whether the hold ends with the connection.
    pub(in crate::commands) ephemeral: bool,
}

impl Watchdog {
    #[inline]
    pub(in crate::commands) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// The binding that `WATCHDOG` and `EPHEMERAL` request, if any.
    pub(in crate::commands) fn binding(
        &self,
        ephemeral: &Ephemeral,
        command: CommandName,
    ) -> Result<Option<Binding>, Error> {
        let (watchdog, ephemeral) = (self.given.is_some(), ephemeral.is_given());
        if self.max_ms.is_some() && !watchdog {
            return Err(command.problem("MAX needs WATCHDOG"));
        }
        Ok((watchdog || ephemeral).then_some(Binding { watchdog, max_ms: self.max_ms, ephemeral }))
    }
}

impl<'a> CommandOption<'a> for Watchdog {
    const ARGUMENT: Argument = {
        const WORD: Argument =
            Argument::keyword(c"renews", c"WATCHDOG", c"renews the lease while this connection is open");
        const MAX: Argument =
            Argument::new(c"milliseconds", ArgumentKind::Integer, c"maximum age of the hold")
                .after(c"MAX")
                .optional();
        let summary =
            c"renews the lease while this connection or the SESSION lives, until the hold is MAX milliseconds old";
        Argument::new(c"watchdog", ArgumentKind::Block(&[WORD, MAX]), summary).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if args.flag("WATCHDOG", word, &mut self.given)? {
            return Ok(true);
        }
        if !word.eq_ignore_ascii_case(b"MAX") {
            return Ok(false);
        }
        let max_ms = NonZeroU64::new(args.integer("MAX", 1, MAX_MS)?.unsigned_abs());
        args.once("MAX", &mut self.max_ms, max_ms.unwrap_or(NonZeroU64::MAX))?;
        Ok(true)
    }
}
