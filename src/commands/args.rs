// SPDX-License-Identifier: MIT

//! Reads the arguments of a command. This file makes no calls to the server: checks that need one are in
//! [`checks`](super::checks).

use crate::config::MAX_MS;
use crate::core::Token;
use crate::decimal::decimal;
use crate::error::{printable, Error};
use crate::keyspace::names;
use crate::server::registration::command::Args;
use crate::server::Str;

/// The maximum length of an owner, in bytes.
const MAX_OWNER_LEN: usize = 1024;

/// The maximum number of keys of a command.
const MAX_KEYS: i64 = 64;

/// The maximum length of a request ID, in bytes.
const MAX_NAME_LEN: usize = 128;

/// The maximum number of digits of an accepted number. Any number with this many digits fits an `i64`.
const MAX_DIGITS: usize = 18;

/// The name of a command, which creates the errors about the command's arguments.
#[derive(Clone, Copy)]
pub(super) struct CommandName(&'static str);

impl CommandName {
    /// The error for a wrong argument, without advice.
    pub(super) fn problem(self, problem: impl std::fmt::Display) -> Error {
        Error::Argument(format!("{problem} in '{}' command", self.0))
    }

    /// The error for a wrong argument, with advice.
    pub(super) fn problem_with_advice(
        self,
        problem: impl std::fmt::Display,
        advice: impl std::fmt::Display,
    ) -> Error {
        Error::Argument(format!("{problem} in '{}' command; {advice}", self.0))
    }

    /// The error for two options that exclude each other.
    pub(super) fn exclusive(self, one: &str, other: &str) -> Error {
        self.problem(format_args!("only one of {one} and {other} is allowed"))
    }
}

/// The arguments that are not read yet, and the command's name for errors.
pub(super) struct Cursor<'a> {
    args: Args<'a>,
    next: usize,
    command: CommandName,
}

impl<'a> Cursor<'a> {
    /// A cursor at the first argument after the command's name.
    pub(super) fn new(command: &'static str, args: Args<'a>) -> Cursor<'a> {
        Cursor { args, next: 1, command: CommandName(command) }
    }

    pub(super) fn command(&self) -> CommandName {
        self.command
    }

    /// The key of the lock. The arity check of the server guarantees that it exists.
    pub(super) fn key(&mut self) -> Result<Str<'a>, Error> {
        let key = self.args.string(self.next).ok_or_else(|| self.command.problem("key is missing"))?;
        self.next += 1;
        Ok(key)
    }

    /// The number of keys and then the keys: 1 to [`MAX_KEYS`] distinct keys that can be locked together.
    pub(super) fn keys(&mut self) -> Result<Vec<Str<'a>>, Error> {
        let number = self.integer("numkeys", 1, MAX_KEYS)?;
        let mut keys = Vec::with_capacity(usize::try_from(number).unwrap_or_default());
        for _ in 0..number {
            // The owner follows the keys.
            if self.args.len() < self.next + 2 {
                return Err(self.command.problem_with_advice(
                    format_args!("numkeys is {number} but too few arguments follow"),
                    format_args!("pass {number} keys and an owner"),
                ));
            }
            keys.push(self.key()?);
        }
        for (at, key) in keys.iter().enumerate() {
            let key = key.as_bytes();
            for other in &keys[..at] {
                let other = other.as_bytes();
                if key == other {
                    return Err(self
                        .command
                        .problem(format_args!("key '{}' is given twice", printable(key))));
                }
                if !names::are_disjoint(key, other) {
                    return Err(self.command.problem_with_advice(
                        format_args!(
                            "keys '{}' and '{}' cannot be locked together",
                            printable(key),
                            printable(other)
                        ),
                        "the data stored for one would collide with the other, use other keys",
                    ));
                }
            }
        }
        Ok(keys)
    }

    /// The owner: 1 to [`MAX_OWNER_LEN`] bytes. Names that begin with `#` are reserved for other fields.
    #[inline(always)]
    pub(super) fn owner(&mut self) -> Result<Str<'a>, Error> {
        let name = self.args.string(self.next).ok_or_else(|| self.command.problem("owner is missing"))?;
        self.next += 1;
        let owner = name.as_bytes();
        if owner.is_empty() || owner.len() > MAX_OWNER_LEN {
            return Err(self.command.problem_with_advice(
                format_args!("owner is {} bytes long", owner.len()),
                format_args!("use 1 to {MAX_OWNER_LEN} bytes"),
            ));
        }
        if owner[0] == b'#' {
            return Err(self.command.problem_with_advice("owner begins with '#'", "use another owner"));
        }
        Ok(name)
    }

    /// The next argument.
    pub(super) fn next(&mut self) -> Option<&'a [u8]> {
        let argument = self.args.bytes(self.next)?;
        self.next += 1;
        Some(argument)
    }

    /// Whether any argument is left.
    pub(super) fn has_next(&self) -> bool {
        self.next < self.args.len()
    }

    /// The value of the option `name`.
    pub(super) fn value(&mut self, name: &str) -> Result<&'a [u8], Error> {
        self.next().ok_or_else(|| self.command.problem(format_args!("{name} needs a value")))
    }

    /// Sets `option` if `word` is `token`. Returns whether `word` is `token`.
    #[inline]
    pub(super) fn flag(&self, token: &str, word: &[u8], option: &mut Option<()>) -> Result<bool, Error> {
        if !word.eq_ignore_ascii_case(token.as_bytes()) {
            return Ok(false);
        }
        self.once(token, option, ())?;
        Ok(true)
    }

    /// The value of the option `name`: an integer from `min` to `max`.
    pub(super) fn integer(&mut self, name: &str, min: i64, max: i64) -> Result<i64, Error> {
        let text = self.value(name)?;
        // The syntax of Redis: an optional minus, no spaces, no leading zeros.
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let number = match digits {
            [b'0'] if !negative => Some(0),
            [b'1'..=b'9', ..] => decimal(digits),
            _ => None,
        };
        let Some(number) = number else {
            return Err(self.command.problem(format_args!("{name} '{}' is not an integer", printable(text))));
        };
        // A number with too many digits wraps here, and the length check below rejects it.
        let number = number.cast_signed();
        let number = if negative { number.wrapping_neg() } else { number };
        if digits.len() > MAX_DIGITS || !(min..=max).contains(&number) {
            return Err(self.command.problem_with_advice(
                format_args!("{name} is out of range"),
                format_args!("use {min} to {max}"),
            ));
        }
        Ok(number)
    }

    /// The value of `TOKEN`.
    pub(super) fn token(&mut self) -> Result<Token, Error> {
        self.integer("TOKEN", 1, MAX_MS)
    }

    /// The arguments that are not read yet.
    pub(super) fn rest(self) -> Args<'a> {
        self.args.from(self.next)
    }

    /// The value of `ID`.
    pub(super) fn request_id(&mut self) -> Result<&'a [u8], Error> {
        self.name("ID")
    }

    /// The value of an option that is a name: 1 to [`MAX_NAME_LEN`] bytes.
    pub(super) fn name(&mut self, option: &str) -> Result<&'a [u8], Error> {
        let name = self.value(option)?;
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(self.command.problem_with_advice(
                format_args!("{option} is {} bytes long", name.len()),
                format_args!("use 1 to {MAX_NAME_LEN} bytes"),
            ));
        }
        Ok(name)
    }

    /// The error for a word that is neither `one` nor `other`.
    pub(super) fn neither(&self, word: &[u8], one: &str, other: &str) -> Error {
        self.command
            .problem(format_args!("syntax error, expected {one} or {other} but got '{}'", printable(word)))
    }

    /// Fails if an argument is left.
    pub(super) fn end(mut self) -> Result<(), Error> {
        self.next().map_or(Ok(()), |option| Err(self.unknown(option)))
    }

    /// Sets `option`. Fails if it is already set.
    pub(super) fn once<T>(&self, name: &str, option: &mut Option<T>, value: T) -> Result<(), Error> {
        if option.replace(value).is_some() {
            return Err(self.command.problem(format_args!("{name} is given twice")));
        }
        Ok(())
    }

    /// The error for an unknown option.
    pub(super) fn unknown(&self, option: &[u8]) -> Error {
        self.command.problem(format_args!("syntax error, unknown option '{}'", printable(option)))
    }
}
