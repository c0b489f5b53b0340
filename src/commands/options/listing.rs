// SPDX-License-Identifier: MIT

//! Options of commands that list locks or waiters.

use super::CommandOption;
use crate::commands::args::Cursor;
use crate::config::MAX_MS;
use crate::error::Error;
use crate::server::registration::arguments::{Argument, ArgumentKind};

/// `MATCH pattern`
#[derive(Default)]
pub(in crate::commands) struct Match<'a>(Option<&'a [u8]>);

impl<'a> Match<'a> {
    pub(in crate::commands) fn get(&self) -> Option<&'a [u8]> {
        self.0
    }
}

impl<'a> CommandOption<'a> for Match<'a> {
    const ARGUMENT: Argument = Argument::new(
        c"pattern",
        ArgumentKind::Pattern,
        c"lists only locks whose keys match the pattern, as in KEYS",
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

/// Declares a `COUNT n` option with a default and a maximum.
macro_rules! count {
    ($(#[$about:meta])* $name:ident, $default:literal, $max:expr, $summary:literal) => {
        $(#[$about])*
        #[derive(Default)]
        pub(in crate::commands) struct $name(Option<usize>);

        impl $name {
            pub(in crate::commands) fn get(&self) -> usize {
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
    /// `COUNT n` of `LOCK.TOP`, whose list is short.
    TopCount, 20, usize::MAX, c"maximum number of entries, 20 by default"
);
count!(
    /// `COUNT n` of `LOCK.LOG`, with the default of `SLOWLOG GET`.
    LogCount, 10, usize::MAX, c"maximum number of entries, 10 by default"
);
count!(
    /// `COUNT n` of `LOCK.SCAN`, with the default of `SCAN`. The maximum limits the time for which one call
    /// delays other clients.
    ScanCount, 10, 1_000, c"approximate number of keys to scan per call, 10 by default and 1000 at most"
);
