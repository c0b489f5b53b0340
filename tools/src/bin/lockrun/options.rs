// SPDX-License-Identifier: MIT

//! The options of the command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Parser, ValueHint};
use redis_lock_tools::place::ServerOptions;
use redis_lock_tools::seconds::seconds;

/// The exit status for a wrong command line.
pub(crate) const USAGE: u8 = 64;
/// The exit status for an unreachable server, or one that refused the request.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The exit status for a lock that was lost while the command ran.
pub(crate) const LOST: u8 = 75;
/// The exit status for a command that exists but cannot be run.
pub(crate) const NOT_RUN: u8 = 126;
/// The exit status for a command that does not exist.
pub(crate) const NOT_FOUND: u8 = 127;
/// The base of the exit status for a command killed by a signal: the number of the signal is added.
pub(crate) const BY_SIGNAL: u8 = 128;

/// Runs a command while it holds a lock in Redis or Valkey
///
/// Waits for the lock, first come, first served, and acquires it. Runs the command, renews the lock as long as the command runs,
/// and releases it.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "lockrun",
    version,
    override_usage = "lockrun [options] <key> <command> [argument]...\n       lockrun [options] <key> -c <command>",
    after_help = AFTER,
    max_term_width = 100
)]
pub(crate) struct Options {
    /// The key of the lock.
    pub key: OsString,

    /// The command to run and its arguments.
    #[arg(
        trailing_var_arg = true,
        value_name = "COMMAND",
        required_unless_present = "shell",
        conflicts_with = "shell",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,

    /// Runs this command with the shell (sh -c).
    #[arg(short = 'c', long = "command", value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub shell: Option<OsString>,

    /// Does not wait: exits if another owner holds the lock.
    #[arg(short, long, alias = "nb", conflicts_with = "wait")]
    pub nonblock: bool,

    /// Waits at most this time; 0.5 is half a second.
    #[arg(short, long, alias = "timeout", value_name = "SECONDS", value_parser = time)]
    pub wait: Option<Duration>,

    /// Keeps trying for this time if the server is unreachable or not ready, such as while machines start; -n and -w apply
    /// afterwards. By default 0, and 20 for an unreachable server with --sentinel or --cluster.
    #[arg(long, value_name = "SECONDS", value_parser = time)]
    pub retry: Option<Duration>,

    /// Holds the lock shared with other shared holders, as a reader.
    #[arg(short, long)]
    pub shared: bool,

    /// Holds the lock shared with at most this many holders, as a semaphore. The maximum includes this command.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub limit: Option<u32>,

    /// Holds the lock exclusively. This is the default.
    #[arg(short = 'x', visible_short_alias = 'e', long, conflicts_with_all = ["shared", "limit"])]
    pub exclusive: bool,

    /// The exit status if -n or -w ends the wait without the lock.
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = 1)]
    pub conflict_exit_code: u8,

    /// The lease: the time for which the lock stays held if this program is killed or cannot reach the server.
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = lease)]
    pub lease: Duration,

    /// The time between SIGTERM and SIGKILL for a command that has lost its lock.
    #[arg(short, long, value_name = "SECONDS", default_value = "5", value_parser = time)]
    pub kill_after: Duration,

    /// The prefix of the owner, host:pid by default. A random UUID follows it, so that each owner is unique.
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,

    /// Does not say what a long wait is for. Errors are still printed.
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Prints events of the lock to the standard error.
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub server: ServerOptions,
}

impl Options {
    /// The limit of the wait; none by default.
    pub(crate) fn wait_limit(&self) -> Option<Duration> {
        if self.nonblock {
            Some(Duration::ZERO)
        } else {
            self.wait
        }
    }
}

const AFTER: &str = concat!(
    "Environment of the command: LOCK_KEY, LOCK_OWNER and LOCK_TOKEN (greater than all earlier tokens).\n",
    "\n",
    "Exit status: that of the command, or 128 plus the number of the signal that ended it; otherwise\n",
    "   1  the lock was not available, with -n or -w (-E sets another status)\n",
    "  64  the options are wrong\n",
    "  69  the server is unreachable or refused the request\n",
    "  75  the lock was lost while the command ran\n",
    " 126  the command cannot be run\n",
    " 127  the command does not exist\n",
    "\n",
    "Examples:\n",
    "  lockrun -n nightly-report ./report.sh\n",
    "  lockrun -w 60 -c 'pg_dump shop | gzip > shop.gz' backup:shop\n",
    "  lockrun -u rediss://cron@redis.internal deploy ansible-playbook site.yml"
);

/// Sections of the manual page that clap does not generate, in roff.
pub(crate) const MANUAL: &str = include_str!("manual.roff");

/// An addition to the completion for bash that clap generates.
pub(crate) const COMPLETION: &str = include_str!("complete.bash");

/// A time in seconds, at most 1e9. In milliseconds, that is below the maximum of `BLOCK`.
fn time(text: &str) -> Result<Duration, String> {
    seconds(text, 0.0..=1e9)
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = time(text)?;
    if lease < Duration::from_secs(1) {
        return Err("must be at least 1".to_owned());
    }
    Ok(lease)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn completion_skips_each_option_with_its_value() {
        let mut command = Options::command();
        command.build();
        let valued = command.get_opts().filter(|option| option.get_action().takes_values());
        for option in valued {
            let is_known = |long| [' ', ')'].iter().any(|end| COMPLETION.contains(&format!("--{long}{end}")));
            assert!(option.get_long().is_none_or(is_known), "{option}");
            let (_, shorts) = COMPLETION.split_once("-[").unwrap();
            let (shorts, _) = shorts.split_once(']').unwrap();
            assert!(option.get_short().is_none_or(|short| shorts.contains(short)), "{option}");
        }
    }

    #[test]
    fn arguments_after_the_command_belong_to_it() {
        let options =
            Options::try_parse_from(["lockrun", "-n", "key", "rsync", "-a", "--wait", "x"]).unwrap();
        assert_eq!((options.nonblock, options.wait), (true, None));
        assert_eq!(options.command, ["rsync", "-a", "--wait", "x"]);
    }

    #[test]
    fn shell_option_may_precede_or_follow_the_key() {
        for line in [["lockrun", "key", "-c", "a; b"], ["lockrun", "-c", "a; b", "key"]] {
            let options = Options::try_parse_from(line).unwrap();
            assert_eq!((options.key, options.shell), ("key".into(), Some("a; b".into())));
        }
    }

    #[test]
    fn contradictory_options_are_refused() {
        for line in [
            &["lockrun"][..],
            &["lockrun", "key"],
            &["lockrun", "key", "-c", "a", "b"],
            &["lockrun", "-n", "-w", "1", "key", "a"],
            &["lockrun", "-s", "-x", "key", "a"],
            &["lockrun", "-q", "-v", "key", "a"],
            &["lockrun", "-w", "-1", "key", "a"],
            &["lockrun", "-w", "nan", "key", "a"],
            &["lockrun", "--lease", "0.5", "key", "a"],
            &["lockrun", "-E", "256", "key", "a"],
        ] {
            assert!(Options::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
