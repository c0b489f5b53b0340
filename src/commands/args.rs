//! A cursor over the arguments of a command.

use std::num::{NonZeroU32, NonZeroU64};

use crate::config::{self, MAX_MS};
use crate::core::{Bind, ConnectionId, Refusal, RequestId, Token};
use crate::driver::Acknowledgement;
use crate::error::{shown, Error};
use crate::keyspace::names;
use crate::server::load::Args;
use crate::server::string::decimal;
use crate::server::{ask, replication, Ctx, Str};

/// The longest owner, in bytes.
const MAX_OWNER: usize = 1024;

/// The longest request id, in bytes.
const MAX_REQUEST: usize = 128;

/// No number that is accepted anywhere has more digits, and every one that has no more fits.
const LONGEST_NUMBER: usize = 18;

/// Which options of those that depend on the connection were given.
#[derive(Default)]
pub(super) struct ByConnection {
    watchdog: Option<()>,
    max_ms: Option<NonZeroU64>,
    ephemeral: Option<()>,
}

/// What a call says about replicas.
#[derive(Default)]
pub(super) struct Replicas {
    replicas: Option<NonZeroU32>,
    within_ms: Option<u32>,
}

impl Replicas {
    /// True if replicas have to acknowledge the call.
    pub(super) fn is_given(&self) -> bool {
        self.replicas.is_some()
    }
}

/// For how long replicas are waited for, unless a call says otherwise. As Redisson does.
const WITHIN_MS: u32 = 1000;

/// The arguments that are still to be read, and the command's name for error texts.
pub(super) struct Cursor<'a> {
    args: Args<'a>,
    next: usize,
    command: &'static str,
}

impl<'a> Cursor<'a> {
    /// Begins after the command's name.
    pub(super) fn new(command: &'static str, args: Args<'a>) -> Cursor<'a> {
        Cursor { args, next: 1, command }
    }

    /// The key of the lock, which the server has checked to be there.
    pub(super) fn key(&mut self) -> Result<Str<'a>, Error> {
        let key = self.args.string(self.next).ok_or_else(|| self.problem("key is missing".to_owned()))?;
        self.next += 1;
        Ok(key)
    }

    /// An owner: any bytes, but not too many of them, and not a name that is kept for other fields.
    pub(super) fn owner(&mut self) -> Result<Str<'a>, Error> {
        let name = self.args.string(self.next).ok_or_else(|| self.problem("owner is missing".to_owned()))?;
        self.next += 1;
        let owner = name.as_bytes();
        if owner.is_empty() || owner.len() > MAX_OWNER {
            let len = owner.len();
            return Err(self.problem(format!("owner must be 1 to {MAX_OWNER} bytes, not {len},")));
        }
        if owner[0] == b'#' {
            return Err(self.problem("owner must not begin with '#'".to_owned()));
        }
        Ok(name)
    }

    /// The next argument.
    pub(super) fn next(&mut self) -> Option<&'a [u8]> {
        let argument = self.args.bytes(self.next)?;
        self.next += 1;
        Some(argument)
    }

    /// The value of the option `name`: an integer from `min` to `max`.
    fn integer(&mut self, name: &str, min: i64, max: i64) -> Result<i64, Error> {
        let text = self.next().ok_or_else(|| self.problem(format!("{name} needs a value")))?;
        // As Redis reads integers: no sign but a minus, no space, no leading zero.
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let starts_well = matches!(digits, [b'1'..=b'9', ..]) || text == b"0";
        let Some(number) = decimal(digits).filter(|_| starts_well) else {
            return Err(self.problem(format!("{name} is not an integer, but '{}',", shown(text))));
        };
        // One that is too long for this wraps, and is out of range anyway.
        let number = number.cast_signed();
        let number = if negative { number.wrapping_neg() } else { number };
        if digits.len() > LONGEST_NUMBER || !(min..=max).contains(&number) {
            return Err(self.problem(format!("{name} is out of range, must be {min} to {max},")));
        }
        Ok(number)
    }

    /// The value of `BLOCK`: milliseconds to wait, `None` for no limit.
    pub(super) fn block(&mut self) -> Result<Option<u64>, Error> {
        Ok(Some(self.integer("BLOCK", 0, MAX_MS)?.unsigned_abs()).filter(|ms| *ms > 0))
    }

    /// The value of `COUNT`.
    pub(super) fn count(&mut self) -> Result<usize, Error> {
        let count = self.integer("COUNT", 1, MAX_MS)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Reads `PX milliseconds` or `EX seconds` into `lease`, if `option` is one of them. Returns whether it
    /// is.
    pub(super) fn lease(&mut self, option: &[u8], lease: &mut Option<i64>) -> Result<bool, Error> {
        let (name, unit) = match option {
            [b'P' | b'p', b'X' | b'x'] => ("PX", 1),
            [b'E' | b'e', b'X' | b'x'] => ("EX", 1000),
            _ => return Ok(false),
        };
        if lease.is_some() {
            return Err(self.problem("only one PX or EX is allowed".to_owned()));
        }
        let ms = self.integer(name, 1, MAX_MS / unit)? * unit;
        if let Some(max) = config::max_lease().filter(|max| ms > *max) {
            return Err(self.problem(format!("{name} is out of range, lock.max-lease is {max} ms,")));
        }
        *lease = Some(ms);
        Ok(true)
    }

    /// Reads `REPLICAS n` or `WITHIN milliseconds`, if `option` is one of them. Returns whether it is.
    pub(super) fn replicas(&mut self, option: &[u8], given: &mut Replicas) -> Result<bool, Error> {
        if option.eq_ignore_ascii_case(b"REPLICAS") {
            let replicas = self.integer("REPLICAS", 1, i64::from(i32::MAX))?;
            let replicas = u32::try_from(replicas).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
            self.once("REPLICAS", &mut given.replicas, replicas)?;
        } else if option.eq_ignore_ascii_case(b"WITHIN") {
            let within = self.integer("WITHIN", 1, MAX_MS)?;
            // 49 days are enough.
            self.once("WITHIN", &mut given.within_ms, u32::try_from(within).unwrap_or(u32::MAX))?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Which replicas have to acknowledge the call, if any have. Fails if they cannot.
    #[inline]
    pub(super) fn acknowledgement(
        &self,
        ctx: Ctx<'_>,
        given: &Replicas,
    ) -> Result<Option<Acknowledgement>, Error> {
        match given {
            Replicas { replicas: None, within_ms: None } => Ok(None),
            given => self.acknowledgement_of(ctx, given),
        }
    }

    fn acknowledgement_of(&self, ctx: Ctx<'_>, given: &Replicas) -> Result<Option<Acknowledgement>, Error> {
        let Some(replicas) = given.replicas else {
            return Err(self.problem("WITHIN needs REPLICAS".to_owned()));
        };
        let flags = ctx.flags();
        if flags.denies_blocking() {
            return Err(self.problem("REPLICAS is not possible in MULTI, a script or a function,".to_owned()));
        }
        if !replication::can_ask(ctx) {
            return Err(
                self.problem("REPLICAS needs the server's ROLE and REPLCONF, which are renamed,".to_owned())
            );
        }
        if !flags.is_primary() {
            // One that accepts writes: what is granted there is nobody's promise.
            return Err(Error::Refused(Refusal::Replica));
        }
        let online = replication::online(ctx);
        let of = usize::try_from(replicas.get()).unwrap_or(usize::MAX);
        if online < of {
            return Err(Error::TooFewReplicas { online, of });
        }
        Ok(Some(Acknowledgement { replicas, within_ms: given.within_ms.unwrap_or(WITHIN_MS) }))
    }

    /// The value of `TOKEN`.
    pub(super) fn token(&mut self) -> Result<Token, Error> {
        self.integer("TOKEN", 1, MAX_MS)
    }

    /// The arguments that are left.
    pub(super) fn rest(self) -> Args<'a> {
        self.args.from(self.next)
    }

    /// The value of `ID`.
    pub(super) fn request_id(&mut self) -> Result<&'a [u8], Error> {
        let id = self.next().ok_or_else(|| self.problem("ID needs a value".to_owned()))?;
        if id.is_empty() || id.len() > MAX_REQUEST {
            return Err(self.problem(format!("ID must be 1 to {MAX_REQUEST} bytes, not {},", id.len())));
        }
        Ok(id)
    }

    /// What names a request with this id.
    pub(super) fn request(
        &self,
        ctx: Ctx<'_>,
        key: &Str<'_>,
        asked: &[u8],
        id: &[u8],
    ) -> Result<RequestId, Error> {
        self.is_here(ctx, "ID", key, || names::request(key.as_bytes(), asked, id))?;
        Ok(RequestId::new(asked, id, config::request_ttl()))
    }

    /// Fails in a cluster if the fencing counter, which this option needs, is not where its lock is.
    pub(super) fn has_counter_here(&self, ctx: Ctx<'_>, option: &str, key: &Str<'_>) -> Result<(), Error> {
        self.is_here(ctx, option, key, || names::counter(key.as_bytes()))
    }

    fn is_here(
        &self,
        ctx: Ctx<'_>,
        option: &str,
        key: &Str<'_>,
        derived: impl FnOnce() -> names::Name,
    ) -> Result<(), Error> {
        if !ctx.is_cluster() {
            return Ok(());
        }
        let derived = derived();
        if !names::share_slot(key.as_bytes(), &derived) {
            return Err(self.problem(format!(
                "{option} is not possible for key '{}' in a cluster, as its braces would put '{}' into another \
                 slot,",
                shown(key.as_bytes()),
                shown(&derived)
            )));
        }
        // While the slot migrates, what belongs to a lock may be here or there: a retry must not miss it.
        if !ask::serves_slot_of(ctx, &[key, &Str::new(&derived)]) {
            return Err(Error::TryAgain);
        }
        Ok(())
    }

    /// Reads `WATCHDOG`, `MAX milliseconds` or `EPHEMERAL`, if `option` is one of them. Returns whether it is.
    pub(super) fn by_connection(&mut self, option: &[u8], given: &mut ByConnection) -> Result<bool, Error> {
        if option.eq_ignore_ascii_case(b"WATCHDOG") {
            self.once("WATCHDOG", &mut given.watchdog, ())?;
        } else if option.eq_ignore_ascii_case(b"MAX") {
            let max_ms = NonZeroU64::new(self.integer("MAX", 1, MAX_MS)?.unsigned_abs());
            self.once("MAX", &mut given.max_ms, max_ms.unwrap_or(NonZeroU64::MAX))?;
        } else if option.eq_ignore_ascii_case(b"EPHEMERAL") {
            self.once("EPHEMERAL", &mut given.ephemeral, ())?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// What the options that depend on the connection ask for, of the one that calls.
    pub(super) fn bind(&self, ctx: Ctx<'_>, given: ByConnection) -> Result<Option<Bind>, Error> {
        let (watchdog, ephemeral) = (given.watchdog.is_some(), given.ephemeral.is_some());
        if given.max_ms.is_some() && !watchdog {
            return Err(self.problem("MAX needs WATCHDOG".to_owned()));
        }
        if !watchdog && !ephemeral {
            return Ok(None);
        }
        let client = ctx.client_id();
        if ctx.is_script() || !ctx.client_exists(client) {
            let option = if watchdog { "WATCHDOG" } else { "EPHEMERAL" };
            return Err(self.problem(format!("{option} needs a connection, which a script does not have,")));
        }
        let max_ms = given.max_ms.or_else(config::max_watchdog);
        Ok(Some(Bind { connection: ConnectionId(client), watchdog, max_ms, ephemeral }))
    }

    /// The error for two options that exclude each other.
    pub(super) fn excluded(&self, one: &str, other: &str) -> Error {
        self.problem(format!("only one of {one} and {other} is allowed"))
    }

    /// The error for a word that is neither of two.
    pub(super) fn neither(&self, word: &[u8], one: &str, other: &str) -> Error {
        self.problem(format!("syntax error, expected {one} or {other}, not '{}',", shown(word)))
    }

    /// The value of `MATCH`.
    pub(super) fn pattern(&mut self) -> Result<&'a [u8], Error> {
        self.next().ok_or_else(|| self.problem("MATCH needs a value".to_owned()))
    }

    /// Fails if there are more arguments.
    pub(super) fn end(mut self) -> Result<(), Error> {
        self.next().map_or(Ok(()), |option| Err(self.unknown(option)))
    }

    /// Sets `option`, or says that it is there already.
    pub(super) fn once<T>(&self, name: &str, option: &mut Option<T>, value: T) -> Result<(), Error> {
        if option.replace(value).is_some() {
            return Err(self.problem(format!("{name} is given twice")));
        }
        Ok(())
    }

    /// The error for an option that the command does not have.
    pub(super) fn unknown(&self, option: &[u8]) -> Error {
        self.problem(format!("syntax error, unknown option '{}'", shown(option)))
    }

    fn problem(&self, problem: String) -> Error {
        Error::Argument { command: self.command, problem }
    }
}
