// SPDX-License-Identifier: MIT

//! The options of the command line.

use std::time::Duration;

use clap::Parser;
use redis_lock_tools::place::ServerOptions;
use redis_lock_tools::seconds::seconds;
use redis_lock_tools::texts::Text;

/// Shows locks, their waiters and their blockers
///
/// Lists the locks with waiters, longest wait first. Shows the holders and waiters of the selected lock, and a tree of blockers.
#[derive(Clone, Debug, Parser)]
#[command(name = "locktop", version, max_term_width = 100, after_help = KEYS)]
pub(crate) struct Options {
    /// The interval between updates.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = delay)]
    pub delay: Duration,

    /// The maximum number of locks.
    #[arg(short, long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub most: u16,

    /// Shows only locks whose keys match the pattern, as in KEYS.
    #[arg(long = "match", value_name = "PATTERN", default_value = "*")]
    pub pattern: String,

    /// Prints the screen once and exits.
    #[arg(short, long)]
    pub batch: bool,

    /// Serves a page with the locks, and metrics for Prometheus, instead of the screen.
    #[arg(
        long,
        help = concat!(
            "Serves a page with the locks, and metrics for Prometheus, instead of the screen. ",
            "Paths: /, /state.json, /metrics"
        ),
        value_name = "HOST:PORT",
        conflicts_with = "batch",
        help_heading = "Page"
    )]
    pub serve: Option<String>,

    /// Also serves requests for this host name. By default only those for the address of --serve and for localhost.
    #[arg(
        long = "allow-host",
        value_name = "NAME",
        requires = "serve",
        value_delimiter = ',',
        help_heading = "Page"
    )]
    pub hosts: Vec<String>,

    /// Lets everyone who reaches the page break locks, after a confirmation.
    #[arg(long, requires = "serve", help_heading = "Page")]
    pub allow_break: bool,

    #[command(flatten)]
    pub server: ServerOptions,

    /// Prints the manual page or a completion script for a shell.
    #[arg(long, value_name = "TEXT", hide = true, exclusive = true)]
    pub text: Option<Text>,
}

const KEYS: &str = "\
Keys: The arrows, k, j, PageUp, PageDown, Home and End select a lock. The key b breaks it after a confirmation.
The key / searches keys and owners. Enter keeps the search, Esc ends it.
The keys n, h, e, w and l sort by name, time held, lease, waiters and longest wait. The key r reverses the order.
Space pauses and resumes, q quits.";

/// Sections of the manual page that clap does not generate, in roff.
pub(crate) const MANUAL: &str = include_str!("manual.roff");

fn delay(text: &str) -> Result<Duration, String> {
    seconds(text, 0.1..=3600.0)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
    }
}
