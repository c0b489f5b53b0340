// SPDX-License-Identifier: MIT

//! What stands on the command line.

use std::time::Duration;

use clap::Parser;
use redis_lock_tools::place::Place;
use redis_lock_tools::seconds::seconds;
use redis_lock_tools::texts::Text;

/// Shows who waits for which lock, and who is in the way
///
/// The locks that somebody waits for, the longest wait first; who holds the chosen one and who waits for it; and who blocks whom.
#[derive(Clone, Debug, Parser)]
#[command(name = "locktop", version, max_term_width = 100, after_help = KEYS)]
pub(crate) struct Options {
    /// How often it is looked.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = delay)]
    pub delay: Duration,

    /// How many locks are shown at most.
    #[arg(short, long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub most: u16,

    /// Only locks whose keys match, as KEYS does.
    #[arg(long = "match", value_name = "PATTERN", default_value = "*")]
    pub pattern: String,

    /// Prints it once, and ends.
    #[arg(short, long)]
    pub batch: bool,

    #[command(flatten)]
    pub place: Place,

    /// Prints a manual page, or what makes a shell complete the options.
    #[arg(long, value_name = "TEXT", hide = true, exclusive = true)]
    pub text: Option<Text>,
}

const KEYS: &str = "\
Keys: up and down (k and j) choose a lock, b breaks it after a question, space stops and goes on, q ends.";

/// What only the manual page has, in roff.
pub(crate) const MANUAL: &str = r#".SH "WHAT IT SHOWS"
The table has the locks that somebody waits for; the one whose first waiter has waited longest is the first.
.B WAITERS
and
.B LONGEST
are how many wait, and how long the first one has.
.B HELD
and
.B LEASE
are how long the holder has had the lock, and for how long it has it at least, as far as the server knows.
.PP
The tree has at its roots who is in the way of others and waits for nobody that is shown: the ones to look at.
Below an owner are the locks that it holds, below a lock those who wait for it.
.PP
It asks the server for LOCK.LIST, LOCK.INFO and LOCK.WAITERS, and for LOCK.BREAK after b and y.
.SH ENVIRONMENT
As
.BR lockrun (1).
.SH "SEE ALSO"
.BR lockrun (1),
.BR redis-cli (1)
"#;

fn delay(text: &str) -> Result<Duration, String> {
    seconds(text, 0.1..=3600.0)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_table_of_options_is_sound() {
        Options::command().debug_assert();
    }
}
