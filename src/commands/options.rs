// SPDX-License-Identifier: MIT

//! The options of commands: each with what is told of it, and how it is read. A command lists those that it takes
//! ([`options!`]): that list is what is parsed and what is documented.

use std::num::{NonZeroU32, NonZeroU64};

use super::args::Cursor;
use crate::config::{self, MAX_MS};
use crate::core::{Bind, ConnectionId, Mode, Refusal, ReleaseScope, Wants};
use crate::driver::{self, ReplicaRequirement};
use crate::error::Error;
use crate::server::clients::caller;
use crate::server::registration::arguments::{text, Argument, ArgumentKind};
use crate::server::replication::replicas;
use crate::server::Ctx;

/// For how long replicas are waited for, unless a call says otherwise. As Redisson does.
const WITHIN_MS: u32 = 1000;

/// For how many milliseconds a grant waits to be confirmed of which a message tells, unless a call says otherwise.
const GRACE_MS: i64 = 5000;

/// An option, or several that belong together. The default is what is so if it is not given.
pub(super) trait Opt<'a>: Default {
    const ARGUMENT: Argument;

    /// Reads it, if `word` is what it begins with. Returns whether it is.
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error>;
}

/// Declares which options a command takes: a type with a field for each, the table of them, and how they are read.
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
                &[$(<$kind as $crate::commands::options::Opt<'a>>::ARGUMENT),*];

            /// Reads all arguments that are left.
            #[inline(always)]
            fn read(&mut self, args: &mut Cursor<'a>) -> Result<(), Error> {
                while let Some(word) = args.next() {
                    if !($($crate::commands::options::Opt::read(&mut self.$field, word, args)?)||*) {
                        return Err(args.unknown(word));
                    }
                }
                Ok(())
            }
        }
    };
}
pub(super) use options;

/// Declares an option that is a word alone.
macro_rules! word {
    ($(#[$about:meta])* $name:ident, $token:literal, $arg:literal, $says:literal) => {
        $(#[$about])*
        #[derive(Default)]
        pub(super) struct $name(Option<()>);

        impl $name {
            #[inline]
            pub(super) fn is_given(&self) -> bool {
                self.0.is_some()
            }
        }

        impl<'a> Opt<'a> for $name {
            const ARGUMENT: Argument = Argument::keyword($arg, $token, $says).optional();

            #[inline]
            fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
                const TOKEN: &str = text($token);
                args.word(TOKEN, word, &mut self.0)
            }
        }
    };
}

word!(Once, c"ONCE", c"once", c"is not re-entrant: what the owner holds already is in its way, too");
word!(Fence, c"FENCE", c"fence", c"asks for a token that is greater than all before");
word!(WithOthers, c"SHARED", c"shared", c"lets in other owners that say so too");
word!(All, c"ALL", c"all", c"gives back all holds of each lock");
word!(Ephemeral, c"EPHEMERAL", c"ephemeral", c"releases the lock when this connection closes");

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

impl<'a> Opt<'a> for Lease {
    const ARGUMENT: Argument = {
        const MS: Argument =
            Argument::new(c"milliseconds", ArgumentKind::Integer, c"is the lease in milliseconds")
                .after(c"PX");
        const SECONDS: Argument =
            Argument::new(c"seconds", ArgumentKind::Integer, c"is the lease in seconds").after(c"EX");
        let says = c"sets the lease; lock.default-lease milliseconds unless given";
        Argument::new(c"lease", ArgumentKind::OneOf(&[MS, SECONDS]), says).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        let (name, unit) = match word {
            [b'P' | b'p', b'X' | b'x'] => ("PX", 1),
            [b'E' | b'e', b'X' | b'x'] => ("EX", 1000),
            _ => return Ok(false),
        };
        if self.0.is_some() {
            return Err(args.problem("only one PX or EX is allowed".to_owned()));
        }
        let ms = args.integer(name, 1, MAX_MS / unit)? * unit;
        if let Some(max) = config::max_lease().filter(|max| ms > *max) {
            return Err(args.problem(format!("{name} is out of range, lock.max-lease is {max} ms,")));
        }
        self.0 = Some(ms);
        Ok(true)
    }
}

/// The same for what is left after a release.
#[derive(Default)]
pub(super) struct LeaseOfRest(Lease);

impl LeaseOfRest {
    #[inline]
    pub(super) fn ms(&self) -> Option<i64> {
        self.0.ms()
    }
}

impl<'a> Opt<'a> for LeaseOfRest {
    const ARGUMENT: Argument =
        Lease::ARGUMENT.with_meaning(c"sets the lease of the holds that are left; unless given, it runs on");

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
    /// What a call asks for with these options.
    #[inline]
    pub(super) fn wants(&self, once: &Once, args: &Cursor<'_>) -> Result<Wants, Error> {
        if self.limit.is_some() && self.given.is_none() {
            return Err(args.problem("LIMIT needs SHARED".to_owned()));
        }
        let mode = if self.given.is_some() { Mode::Shared } else { Mode::Exclusive };
        Ok(Wants { mode, once: once.is_given(), limit: self.limit })
    }
}

impl<'a> Opt<'a> for Shared {
    const ARGUMENT: Argument = {
        const WORD: Argument =
            Argument::keyword(c"with-others", c"SHARED", c"lets in other owners that say so too");
        const LIMIT: Argument = Argument::new(
            c"n",
            ArgumentKind::Integer,
            c"is how many owners may hold the lock, the one that calls among them",
        )
        .after(c"LIMIT")
        .optional();
        let says = c"lets in other owners that say so too; with LIMIT it is granted while fewer than n hold the lock";
        Argument::new(c"shared", ArgumentKind::Block(&[WORD, LIMIT]), says).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if args.word("SHARED", word, &mut self.given)? {
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
pub(super) struct Block(Option<Patience>);

/// How long a client is ready to wait: milliseconds; `None` without limit.
#[derive(Clone, Copy)]
pub(super) struct Patience(pub(super) Option<u64>);

impl Block {
    const MILLISECONDS: Argument = Argument::new(
        c"milliseconds",
        ArgumentKind::Integer,
        c"waits in the server for so long, 0 without limit",
    )
    .after(c"BLOCK");

    #[inline]
    pub(super) fn patience(&self) -> Option<Patience> {
        self.0
    }
}

impl<'a> Opt<'a> for Block {
    const ARGUMENT: Argument = Block::MILLISECONDS.optional();

    #[inline(always)]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(b"BLOCK") {
            return Ok(false);
        }
        let ms = args.integer("BLOCK", 0, MAX_MS)?.unsigned_abs();
        args.once("BLOCK", &mut self.0, Patience(Some(ms).filter(|ms| *ms > 0)))?;
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

/// How a call waits.
#[derive(Clone, Copy)]
pub(super) enum How<'a> {
    /// Not at all.
    No,
    Blocked(Patience),
    /// It is told by a message in this inbox, and has so many milliseconds to confirm the grant.
    Notified(&'a [u8], i64),
}

impl<'a> Wait<'a> {
    #[inline]
    pub(super) fn how(&self, args: &Cursor<'_>) -> Result<How<'a>, Error> {
        match self {
            Wait { block, inbox: None, grace_ms: None } => Ok(block.patience().map_or(How::No, How::Blocked)),
            Wait { inbox: None, .. } => Err(args.problem("GRACE needs NOTIFY".to_owned())),
            Wait { block: Block(Some(_)), .. } => Err(args.excluded("BLOCK", "NOTIFY")),
            Wait { inbox: Some(inbox), grace_ms, .. } => {
                Ok(How::Notified(inbox, grace_ms.unwrap_or(GRACE_MS)))
            }
        }
    }
}

impl<'a> Opt<'a> for Wait<'a> {
    const ARGUMENT: Argument = {
        const INBOX: Argument = Argument::new(
            c"inbox",
            ArgumentKind::Text,
            c"tells of the grant by a message on lock:inbox:<inbox>, and replies 0 meanwhile",
        )
        .after(c"NOTIFY");
        const GRACE: Argument = Argument::new(
            c"milliseconds",
            ArgumentKind::Integer,
            c"is how long the grant waits for the same call to confirm it, 5000 unless given",
        )
        .after(c"GRACE")
        .optional();
        const NOTIFY: Argument = Argument::new(
            c"notify",
            ArgumentKind::Block(&[INBOX, GRACE]),
            c"waits without blocking this connection",
        );
        let says = c"waits if somebody else holds the lock: in the server for so long, 0 without limit; or until a message on lock:inbox:<inbox> tells of the grant, which waits for the same call to confirm it, 5000 ms unless GRACE is given";
        Argument::new(c"wait", ArgumentKind::OneOf(&[Block::MILLISECONDS, NOTIFY]), says).optional()
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

impl Watchdog {
    /// What the options that depend on the connection ask for, of the one that calls.
    #[inline(always)]
    pub(super) fn bind(
        &self,
        ephemeral: &Ephemeral,
        ctx: Ctx<'_>,
        args: &Cursor<'_>,
    ) -> Result<Option<Bind>, Error> {
        let (watchdog, ephemeral) = (self.given.is_some(), ephemeral.is_given());
        if self.max_ms.is_some() && !watchdog {
            return Err(args.problem("MAX needs WATCHDOG".to_owned()));
        }
        if !watchdog && !ephemeral {
            return Ok(None);
        }
        let Some(client) = caller::connection_id(ctx) else {
            let option = if watchdog { "WATCHDOG" } else { "EPHEMERAL" };
            return Err(args.problem(format!("{option} needs a connection, which a script does not have,")));
        };
        let max_ms = self.max_ms.or_else(config::max_watchdog);
        Ok(Some(Bind { connection: ConnectionId(client), watchdog, max_ms, ephemeral }))
    }
}

impl<'a> Opt<'a> for Watchdog {
    const ARGUMENT: Argument = {
        const WORD: Argument = Argument::keyword(
            c"renews",
            c"WATCHDOG",
            c"renews the lease as long as this connection is open, and until the hold is MAX old",
        );
        const MAX: Argument =
            Argument::new(c"milliseconds", ArgumentKind::Integer, c"is how old the hold may become")
                .after(c"MAX")
                .optional();
        let says = c"renews the lease as long as this connection is open, and until the hold is MAX old";
        Argument::new(c"watchdog", ArgumentKind::Block(&[WORD, MAX]), says).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if args.word("WATCHDOG", word, &mut self.given)? {
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
    /// True if replicas have to acknowledge the call.
    #[inline]
    pub(super) fn is_given(&self) -> bool {
        self.replicas.is_some()
    }

    /// Which replicas have to acknowledge the call, if any have. Fails if they cannot.
    #[inline]
    pub(super) fn acknowledgement(
        &self,
        ctx: Ctx<'_>,
        args: &Cursor<'_>,
    ) -> Result<Option<ReplicaRequirement>, Error> {
        match self {
            Replicas { replicas: None, within_ms: None } => Ok(None),
            given => given.acknowledgement_of(ctx, args),
        }
    }

    #[cold]
    fn acknowledgement_of(
        &self,
        ctx: Ctx<'_>,
        args: &Cursor<'_>,
    ) -> Result<Option<ReplicaRequirement>, Error> {
        let Some(replicas) = self.replicas else {
            return Err(args.problem("WITHIN needs REPLICAS".to_owned()));
        };
        let flags = ctx.flags();
        if flags.denies_blocking() {
            return Err(args.problem("REPLICAS is not possible in MULTI, a script or a function,".to_owned()));
        }
        if !replicas::can_ask(ctx) {
            return Err(
                args.problem("REPLICAS needs the server's ROLE and REPLCONF, which are renamed,".to_owned())
            );
        }
        if !flags.is_primary() {
            // One that accepts writes: what is granted there is nobody's promise.
            return Err(Error::Refused(Refusal::Replica));
        }
        let online = replicas::online(ctx);
        let of = usize::try_from(replicas.get()).unwrap_or(usize::MAX);
        if online < of {
            driver::with(ctx, |driver| driver.stats.replicas_missed += 1);
            return Err(Error::TooFewReplicas { online, of });
        }
        Ok(Some(ReplicaRequirement { replicas, within_ms: self.within_ms.unwrap_or(WITHIN_MS) }))
    }
}

impl<'a> Opt<'a> for Replicas {
    const ARGUMENT: Argument = {
        const NUMBER: Argument =
            Argument::new(c"n", ArgumentKind::Integer, c"is how many replicas have to acknowledge it")
                .after(c"REPLICAS");
        const WITHIN: Argument = Argument::new(
            c"milliseconds",
            ArgumentKind::Integer,
            c"is for how long they are waited for, 1000 unless given",
        )
        .after(c"WITHIN")
        .optional();
        let says =
            c"answers when so many replicas have acknowledged it, or, if they do not in time, with an error";
        Argument::new(c"acknowledged", ArgumentKind::Block(&[NUMBER, WITHIN]), says).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        if word.eq_ignore_ascii_case(b"REPLICAS") {
            let replicas = args.integer("REPLICAS", 1, i64::from(i32::MAX))?;
            let replicas = u32::try_from(replicas).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
            args.once("REPLICAS", &mut self.replicas, replicas)?;
        } else if word.eq_ignore_ascii_case(b"WITHIN") {
            let within = args.integer("WITHIN", 1, MAX_MS)?;
            // 49 days are enough.
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

impl<'a> Opt<'a> for Id<'a> {
    const ARGUMENT: Argument = Argument::new(
        c"request",
        ArgumentKind::Text,
        c"makes a repeated call do nothing and get the first one's answer",
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
    pub(super) fn get(&self, args: &Cursor<'_>) -> Result<ReleaseScope, Error> {
        match (self.shared, self.all) {
            (None, None) => Ok(ReleaseScope::One),
            (Some(()), None) => Ok(ReleaseScope::OneOf(Mode::Shared)),
            (None, Some(())) => Ok(ReleaseScope::All),
            (Some(()), Some(())) => Err(args.excluded("SHARED", "ALL")),
        }
    }
}

impl<'a> Opt<'a> for Scope {
    const ARGUMENT: Argument = {
        const SHARED: Argument = Argument::keyword(c"shared", c"SHARED", c"gives back a shared hold");
        const ALL: Argument = Argument::keyword(c"all", c"ALL", c"gives back all holds");
        let says = c"gives back a shared hold, or all; unless given, one, an exclusive one if there is any";
        Argument::new(c"scope", ArgumentKind::OneOf(&[SHARED, ALL]), says).optional()
    };

    #[inline]
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error> {
        Ok(args.word("ALL", word, &mut self.all)? || args.word("SHARED", word, &mut self.shared)?)
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

impl<'a> Opt<'a> for Match<'a> {
    const ARGUMENT: Argument = Argument::new(
        c"pattern",
        ArgumentKind::Pattern,
        c"leaves out the locks whose keys do not match, as KEYS does",
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

/// Declares a `COUNT n` with a default.
macro_rules! count {
    ($(#[$about:meta])* $name:ident, $default:literal, $says:literal) => {
        count!($(#[$about])* $name, $default, usize::MAX, $says);
    };
    ($(#[$about:meta])* $name:ident, $default:literal, $most:expr, $says:literal) => {
        $(#[$about])*
        #[derive(Default)]
        pub(super) struct $name(Option<usize>);

        impl $name {
            pub(super) fn get(&self) -> usize {
                self.0.unwrap_or($default).min($most)
            }
        }

        impl<'a> Opt<'a> for $name {
            const ARGUMENT: Argument =
                Argument::new(c"n", ArgumentKind::Integer, $says).after(c"COUNT").optional();

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

count!(Count, 100, c"is how many are listed at most, 100 unless given");
count!(
    /// Of what is known of few anyway.
    Most, 20, c"is how many are listed at most, 20 unless given"
);
count!(
    /// Of a command that goes through keys. The default is that of `SCAN`. More at once would keep others waiting.
    Looks, 10, 1_000, c"is how many keys are looked at, more or less, 10 unless given and 1000 at most"
);

/// The lock of a command.
pub(super) const KEY: Argument = Argument::new(c"key", ArgumentKind::Key, c"is the lock");

/// How many locks a command is for.
pub(super) const NUMKEYS: Argument =
    Argument::new(c"numkeys", ArgumentKind::Integer, c"is how many locks there are, 1 to 64");

/// The locks of a command.
pub(super) const KEYS: Argument = Argument::new(c"key", ArgumentKind::Key, c"is a lock").multiple();

/// Whom a command is about.
pub(super) const OWNER: Argument =
    Argument::new(c"owner", ArgumentKind::Text, c"is who holds it, 1 to 1024 bytes");
