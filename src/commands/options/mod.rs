// SPDX-License-Identifier: MIT

//! The options of commands, each with its documentation and its parser. One list per command ([`options!`])
//! defines both. This folder makes no calls to the server: checks that need one are in
//! [`checks`](super::checks).

use super::args::Cursor;
use crate::error::Error;
use crate::server::registration::arguments::{Argument, ArgumentKind};

/// An option, or a group of options. Its default value means that the option is not given.
pub(super) trait CommandOption<'a>: Default {
    const ARGUMENT: Argument;

    /// Reads the option if `word` is its first word. Returns whether the option was read.
    fn read(&mut self, word: &'a [u8], args: &mut Cursor<'a>) -> Result<bool, Error>;
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
        pub(in crate::commands) struct $name(Option<()>);

        impl $name {
            #[inline]
            pub(in crate::commands) fn is_given(&self) -> bool {
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

mod hold;
mod listing;
mod reply;

pub(super) use hold::*;
pub(super) use listing::*;
pub(super) use reply::*;

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
