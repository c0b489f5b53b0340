// SPDX-License-Identifier: MIT

//! The options of commands: the documentation and the parser of each. The list of a command's options ([`options!`]) is both its
//! parser and its documentation. Nothing here asks the server: such checks are in [`checks`](super::checks).

use std::ffi::CStr;
use std::num::{NonZeroU32, NonZeroU64};

use super::args::{CommandName, Cursor};
use crate::config::{self, MAX_MS};
use crate::core::{Mode, ReleaseScope, Wants};
use crate::driver::ReplicaRequirement;
use crate::error::Error;
use crate::server::registration::arguments::{text, Argument, ArgumentKind};

/// The default of `WITHIN`, in milliseconds. Redisson has the same.
const DEFAULT_WITHIN_MS: u32 = 1000;

/// The default of `GRACE`, in milliseconds.
const DEFAULT_GRACE_MS: i64 = 5000;

/// An option, or a group of options. Its default value means that the option is not given.
pub(super) trait CommandOption<'a>: Default {
    const ARGUMENT: Argument;

    /// Reads the option if `word` is its first word. Returns whether it is.
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error>;
}

/// A C string from a text that ends with a NUL, for texts that are too long for one literal.
const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text does not end with a NUL"),
    }
}

/// Declares the options of a command: a type with a field for each option, their documentation and their parser.
macro_rules! options {
    ($(#[$about:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$about])*
        #[derive(Default)]
        struct $name<'a> {
            $($field: $kind,)*
            _words: std::marker::PhantomData<&'a ()>,
        }

        impl<'a> $name<'a> {
            const ARGUMENTS: &'static [$crate::server::registration::arguments::Argument] =
                &[$(<$kind as $crate::commands::options::CommandOption<'a>>::ARGUMENT),*];

            /// Reads all remaining arguments.
            #[inline(always)]
            fn read(&mut self, args: &mut Cursor<'a>) -> Result<(), Error> {
                while let Some(word) = args.next() {
                    if !($($crate::commands::options::CommandOption::read(&mut self.$field, word, args)?)||*) {
                        return Err(args.unknown(word));
                    }
                }
                Ok(())
            }
        }
    };
}
pub(super) use options;

/// Declares an option without a value.
macro_rules! flag {
    ($name:ident, $token:literal, $arg:literal, $summary:literal) => {
        #[derive(Default)]
        pub(super) struct $name(Option<()>);

        impl $name {
            #[inline]
            pub(super) fn is_given(&self) -> bool {
                self.0.is_some()
            }
        }

        impl<'a> CommandOption<'a> for $name {
            const ARGUMENT: Argument = Argument::keyword($arg, $token, $summary).optional();

            #[inline]
            fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
                const TOKEN: &str = text($token);
                args.flag(TOKEN, word, &mut self.0)
            }
        }
    };
}

flag!(Once, c"ONCE", c"once", c"makes the call non-re-entrant: holds of the same owner block it too");
flag!(Fence, c"FENCE", c"fence", c"returns a token greater than all earlier ones");
flag!(SharedFlag, c"SHARED", c"shared", c"shares the locks with other owners that use SHARED");
flag!(All, c"ALL", c"all", c"releases all holds of each lock");
flag!(Ephemeral, c"EPHEMERAL", c"ephemeral", c"releases the lock when this connection closes");

/// `PX milliseconds | EX seconds`
#[derive(Default)]
pub(super) struct Lease(Option<i64>);

impl Lease {
    /// In milliseconds.
    #[inline]
    pub(super) fn ms(&self) -> Option<i64> {
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
        // The setting is an upper bound of the value, so a call with a second mistake gets this error, too.
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
pub(super) struct RemainingLease(Lease);

impl RemainingLease {
    /// In milliseconds.
    #[inline]
    pub(super) fn ms(&self) -> Option<i64> {
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
pub(super) struct Shared {
    given: Option<()>,
    limit: Option<NonZeroU32>,
}

impl Shared {
    /// The mode of the requested hold, with `ONCE` and `LIMIT`.
    #[inline]
    pub(super) fn wants(&self, once: &Once, command: CommandName) -> Result<Wants, Error> {
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

/// `BLOCK milliseconds`
#[derive(Default)]
pub(super) struct Block(Option<BlockTimeout>);

/// The maximum time in milliseconds that a client waits in the server; `None` without limit.
#[derive(Clone, Copy)]
pub(super) struct BlockTimeout(pub(super) Option<u64>);

impl Block {
    const MILLISECONDS: Argument = Argument::new(
        c"milliseconds",
        ArgumentKind::Integer,
        c"waits in the server for at most this time, 0 without limit",
    )
    .after(c"BLOCK");

    #[inline]
    pub(super) fn timeout(&self) -> Option<BlockTimeout> {
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

/// `BLOCK milliseconds | NOTIFY inbox [GRACE milliseconds]`
#[derive(Default)]
pub(super) struct Wait<'a> {
    block: Block,
    inbox: Option<&'a [u8]>,
    grace_ms: Option<i64>,
}

/// How a call waits for the lock.
#[derive(Clone, Copy)]
pub(super) enum WaitMode<'a> {
    /// The call replies nil at once.
    NoWait,
    /// The server blocks the client.
    Block(BlockTimeout),
    /// A message tells of the grant.
    Notify(NotifyOptions<'a>),
}

/// `NOTIFY inbox [GRACE milliseconds]`
#[derive(Clone, Copy)]
pub(super) struct NotifyOptions<'a> {
    pub(super) inbox: &'a [u8],
    /// The time that the client has to confirm the grant, in milliseconds.
    pub(super) grace_ms: i64,
}

impl<'a> Wait<'a> {
    #[inline]
    pub(super) fn mode(&self, command: CommandName) -> Result<WaitMode<'a>, Error> {
        match self {
            Wait { block, inbox: None, grace_ms: None } => {
                Ok(block.timeout().map_or(WaitMode::NoWait, WaitMode::Block))
            }
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
            "waits if another owner holds the lock. BLOCK waits in the server for at most this time, 0 without limit. ",
            "NOTIFY publishes the grant on lock:inbox:<inbox>; repeating the call within GRACE, 5000 ms by default, confirms it",
            "\0"
        ));
        Argument::new(c"wait", ArgumentKind::OneOf(&[Block::MILLISECONDS, NOTIFY]), summary).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if self.block.read(word, args)? {
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

/// `WATCHDOG [MAX milliseconds]`
#[derive(Default)]
pub(super) struct Watchdog {
    given: Option<()>,
    max_ms: Option<NonZeroU64>,
}

/// The options that bind a hold to the calling connection.
pub(super) struct Binding {
    /// Whether the server renews the lease while the connection is open.
    pub(super) watchdog: bool,
    /// The maximum age of a renewed hold, in milliseconds.
    pub(super) max_ms: Option<NonZeroU64>,
    /// Whether the hold ends with the connection.
    pub(super) ephemeral: bool,
}

impl Watchdog {
    /// The binding that `WATCHDOG` and `EPHEMERAL` ask for, if one of them is given.
    #[inline(always)]
    pub(super) fn binding(
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
            c"renews the lease while this connection is open, until the hold is MAX milliseconds old";
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

/// `REPLICAS n [WITHIN milliseconds]`
#[derive(Default)]
pub(super) struct Replicas {
    replicas: Option<NonZeroU32>,
    within_ms: Option<u32>,
}

impl Replicas {
    #[inline]
    pub(super) fn is_given(&self) -> bool {
        self.replicas.is_some()
    }

    /// The acknowledgement that the call asks for. Fails if `WITHIN` is given without `REPLICAS`.
    #[inline]
    pub(super) fn acknowledgement(&self, command: CommandName) -> Result<Option<ReplicaRequirement>, Error> {
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
            c"replies once n replicas have acknowledged the call, or with an error if they do not in time";
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
            // Values above 49 days are cut to 49 days.
            args.once("WITHIN", &mut self.within_ms, u32::try_from(within).unwrap_or(u32::MAX))?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// `ID request`
#[derive(Default)]
pub(super) struct Id<'a>(Option<&'a [u8]>);

impl<'a> Id<'a> {
    #[inline]
    pub(super) fn get(&self) -> Option<&'a [u8]> {
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

/// `SHARED | ALL`
#[derive(Default)]
pub(super) struct Scope {
    shared: Option<()>,
    all: Option<()>,
}

impl Scope {
    pub(super) fn get(&self, command: CommandName) -> Result<ReleaseScope, Error> {
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

/// `MATCH pattern`
#[derive(Default)]
pub(super) struct Match<'a>(Option<&'a [u8]>);

impl<'a> Match<'a> {
    pub(super) fn get(&self) -> Option<&'a [u8]> {
        self.0
    }
}

impl<'a> CommandOption<'a> for Match<'a> {
    const ARGUMENT: Argument = Argument::new(
        c"pattern",
        ArgumentKind::Pattern,
        c"lists only locks whose keys match; patterns are those of KEYS",
    )
    .after(c"MATCH")
    .optional();

    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(b"MATCH") {
            return Ok(false);
        }
        let pattern = args.value("MATCH")?;
        args.once("MATCH", &mut self.0, pattern)?;
        Ok(true)
    }
}

/// Declares a `COUNT n` with a default and a maximum.
macro_rules! count {
    ($(#[$about:meta])* $name:ident, $default:literal, $max:expr, $summary:literal) => {
        $(#[$about])*
        #[derive(Default)]
        pub(super) struct $name(Option<usize>);

        impl $name {
            pub(super) fn get(&self) -> usize {
                self.0.unwrap_or($default).min($max)
            }
        }

        impl<'a> CommandOption<'a> for $name {
            const ARGUMENT: Argument =
                Argument::new(c"n", ArgumentKind::Integer, $summary).after(c"COUNT").optional();

            fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
                if !word.eq_ignore_ascii_case(b"COUNT") {
                    return Ok(false);
                }
                let n = args.integer("COUNT", 1, MAX_MS)?;
                args.once("COUNT", &mut self.0, usize::try_from(n).unwrap_or(usize::MAX))?;
                Ok(true)
            }
        }
    };
}

count!(
    /// `COUNT n` of the commands that list locks or waiters.
    ListCount, 100, usize::MAX, c"maximum number of entries, 100 by default"
);
count!(
    /// `COUNT n` of `LOCK.TOP`, which knows few locks.
    TopCount, 20, usize::MAX, c"maximum number of entries, 20 by default"
);
count!(
    /// `COUNT n` of `LOCK.SCAN`, with the default of `SCAN`. The maximum bounds how long other clients wait for one call.
    ScanCount, 10, 1_000, c"approximate number of keys to scan per call, 10 by default and 1000 at most"
);

/// The key of a command for one lock.
pub(super) const KEY: Argument = Argument::new(c"key", ArgumentKind::Key, c"the key of the lock");

/// The number of keys of a command for several locks.
pub(super) const NUMKEYS: Argument =
    Argument::new(c"numkeys", ArgumentKind::Integer, c"the number of keys, 1 to 64");

/// The keys of a command for several locks.
pub(super) const KEYS: Argument = Argument::new(c"key", ArgumentKind::Key, c"the key of a lock").multiple();

/// The owner that a command is about.
pub(super) const OWNER: Argument = Argument::new(c"owner", ArgumentKind::Text, c"the owner, 1 to 1024 bytes");

/// The owner of a command that acquires locks.
pub(super) const NEW_OWNER: Argument =
    Argument::new(c"owner", ArgumentKind::Text, c"the owner, 1 to 1024 bytes; * generates a random one");
