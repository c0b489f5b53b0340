// SPDX-License-Identifier: MIT

//! A cursor over the arguments of a command.

use crate::config::{self, MAX_MS};
use crate::core::{RequestId, Token};
use crate::decimal::decimal;
use crate::error::{printable, Error};
use crate::keyspace::names;
use crate::server::load::Args;
use crate::server::{ask, Ctx, Str};

/// The longest owner, in bytes.
const MAX_OWNER: usize = 1024;

/// How many keys a command takes at most.
const MAX_KEYS: i64 = 64;

/// The longest request id or inbox, in bytes.
const LONGEST_NAME: usize = 128;

/// No number that is accepted anywhere has more digits, and every one that has no more fits.
const LONGEST_NUMBER: usize = 18;

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

    /// How many keys there are, and those: 1 to [`MAX_KEYS`], each once, and in a cluster in one slot that is served here.
    pub(super) fn keys(&mut self, ctx: Ctx<'_>) -> Result<Vec<Str<'a>>, Error> {
        let number = self.integer("numkeys", 1, MAX_KEYS)?;
        let mut keys = Vec::with_capacity(usize::try_from(number).unwrap_or_default());
        for _ in 0..number {
            // The owner follows.
            if self.args.len() < self.next + 2 {
                return Err(self
                    .problem(format!("numkeys is {number}, but so many keys and an owner do not follow,")));
            }
            keys.push(self.key()?);
        }
        for (at, key) in keys.iter().enumerate() {
            let key = key.as_bytes();
            for other in &keys[..at] {
                let other = other.as_bytes();
                if key == other {
                    return Err(self.problem(format!("key '{}' is given twice", printable(key))));
                }
                if !names::are_apart(key, other) {
                    return Err(self.problem(format!(
                        "keys '{}' and '{}' cannot be locked together, as what is stored beside one is in the way of the \
                         other,",
                        printable(key),
                        printable(other)
                    )));
                }
            }
        }
        if ctx.is_cluster() && keys.len() > 1 {
            are_in_one_slot(ctx, &keys)?;
        }
        Ok(keys)
    }

    /// An owner: any bytes, but not too many of them, and not a name that is kept for other fields.
    #[inline(always)]
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

    /// The value of the option `name`.
    pub(super) fn value(&mut self, name: &str) -> Result<&'a [u8], Error> {
        self.next().ok_or_else(|| self.problem(format!("{name} needs a value")))
    }

    /// Sets `option` if `word` is `token`. Returns whether it is.
    #[inline]
    pub(super) fn word(&self, token: &str, word: &[u8], option: &mut Option<()>) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(token.as_bytes()) {
            return Ok(false);
        }
        self.once(token, option, ())?;
        Ok(true)
    }

    /// The value of the option `name`: an integer from `min` to `max`.
    pub(super) fn integer(&mut self, name: &str, min: i64, max: i64) -> Result<i64, Error> {
        let text = self.value(name)?;
        // Nearly every wait is without limit.
        if text == b"0" && min <= 0 {
            return Ok(0);
        }
        // As Redis reads integers: no sign but a minus, no space, no leading zero.
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let starts_well = matches!(digits, [b'1'..=b'9', ..]) || text == b"0";
        let Some(number) = decimal(digits).filter(|_| starts_well) else {
            return Err(self.problem(format!("{name} is not an integer, but '{}',", printable(text))));
        };
        // One that is too long for this wraps, and is out of range anyway.
        let number = number.cast_signed();
        let number = if negative { number.wrapping_neg() } else { number };
        if digits.len() > LONGEST_NUMBER || !(min..=max).contains(&number) {
            return Err(self.problem(format!("{name} is out of range, must be {min} to {max},")));
        }
        Ok(number)
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
        self.name("ID")
    }

    /// The value of an option that names something: any bytes, but not too many of them.
    pub(super) fn name(&mut self, option: &str) -> Result<&'a [u8], Error> {
        let name = self.value(option)?;
        if name.is_empty() || name.len() > LONGEST_NAME {
            let len = name.len();
            return Err(self.problem(format!("{option} must be 1 to {LONGEST_NAME} bytes, not {len},")));
        }
        Ok(name)
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
                printable(key.as_bytes()),
                printable(&derived)
            )));
        }
        // While the slot migrates, what belongs to a lock may be here or there: a retry must not miss it.
        if !ask::serves_slot_of(ctx, &[key, &Str::new(&derived)]) {
            return Err(Error::TryAgain);
        }
        Ok(())
    }

    /// The error for two options that exclude each other.
    pub(super) fn excluded(&self, one: &str, other: &str) -> Error {
        self.problem(format!("only one of {one} and {other} is allowed"))
    }

    /// The error for a word that is neither of two.
    pub(super) fn neither(&self, word: &[u8], one: &str, other: &str) -> Error {
        self.problem(format!("syntax error, expected {one} or {other}, not '{}',", printable(word)))
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
        self.problem(format!("syntax error, unknown option '{}'", printable(option)))
    }

    pub(super) fn problem(&self, problem: String) -> Error {
        Error::Argument { command: self.command, problem }
    }
}

/// Fails if these keys are not in one slot, or not all here while that is on its way to another node. The server itself has looked
/// at the first one only.
fn are_in_one_slot(ctx: Ctx<'_>, keys: &[Str<'_>]) -> Result<(), Error> {
    let (first, others) = (&keys[0], &keys[1..]);
    let is_elsewhere = |key: &Str<'_>| {
        !names::share_slot(first.as_bytes(), key.as_bytes())
            && ask::slot_of(ctx, first) != ask::slot_of(ctx, key)
    };
    if others.iter().any(is_elsewhere) {
        return Err(Error::CrossSlot);
    }
    if !ask::serves_slot_of(ctx, &keys.iter().collect::<Vec<_>>()) {
        return Err(Error::TryAgain);
    }
    Ok(())
}
