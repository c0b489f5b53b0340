// SPDX-License-Identifier: MIT

//! What stands on the command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgGroup, Parser, ValueHint};
use redis_lock_tools::place::Place;
use redis_lock_tools::seconds::seconds;
use redis_lock_tools::texts::Text;

/// The command line was wrong.
pub(crate) const USAGE: u8 = 64;
/// No server, or one that refused.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 75;
/// The command was found and could not be run.
pub(crate) const NOT_RUN: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;
/// A command that ended by a signal: this, and the signal's number.
pub(crate) const BY_SIGNAL: u8 = 128;

/// Runs a command while it holds a lock in Redis or Valkey
///
/// Waits until the lock is free, first come, first served; takes it, runs the command, keeps the lock as long as the command runs,
/// and gives it back.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "lockrun",
    version,
    override_usage = "lockrun [options] <key> <command> [argument]...\n       lockrun [options] <key> -c <command>",
    after_help = AFTER,
    max_term_width = 100,
    group = ArgGroup::new("what").required(true).args(["command", "shell", "text"])
)]
pub(crate) struct Options {
    /// The lock's key.
    #[arg(required_unless_present = "text")]
    pub key: Option<OsString>,

    /// The command to run, and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,

    /// Runs this by the shell (sh -c).
    #[arg(short = 'c', long = "command", value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub shell: Option<OsString>,

    /// Does not wait: if somebody else holds the lock, that is all.
    #[arg(short, long, alias = "nb", conflicts_with = "wait")]
    pub nonblock: bool,

    /// Waits no longer than that; 0.5 is half a second.
    #[arg(short, long, alias = "timeout", value_name = "SECONDS", value_parser = time)]
    pub wait: Option<Duration>,

    /// Holds the lock beside others that hold it so, as a reader does.
    #[arg(short, long)]
    pub shared: bool,

    /// Runs at most so many at a time, this one among them: holds the lock shared, as a semaphore.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub limit: Option<u32>,

    /// Holds the lock alone, as is the default.
    #[arg(short = 'x', visible_short_alias = 'e', long, conflicts_with_all = ["shared", "limit"])]
    pub exclusive: bool,

    /// The exit status if the lock was not to be had, with -n or -w.
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = 1)]
    pub conflict_exit_code: u8,

    /// For how long the lock outlives this program if it is killed, or cannot reach the server.
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = lease)]
    pub lease: Duration,

    /// How much time a command has that lost its lock, from SIGTERM to SIGKILL.
    #[arg(short, long, value_name = "SECONDS", default_value = "5", value_parser = time)]
    pub kill_after: Duration,

    /// Under what name the lock is held, host:pid unless given. A UUID is put behind it, as no two may be the same.
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,

    /// Tells on the standard error what happens to the lock.
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub place: Place,

    /// Prints a manual page, or what makes a shell complete the options.
    #[arg(long, value_name = "TEXT", hide = true, exclusive = true)]
    pub text: Option<Text>,
}

const AFTER: &str = "\
The command finds in its environment: LOCK_KEY, LOCK_OWNER, and LOCK_TOKEN, a number that is greater than that of all who held \
the lock before.

Exit status: that of the command, or 128 and the signal's number; else
   1  the lock was not to be had, with -n or -w (-E chooses another)
  64  wrong options
  69  no server, or it refused
  75  the lock was lost while the command ran
 126  the command cannot be run
 127  there is no such command

Examples:
  lockrun -n nightly-report ./report.sh
  lockrun -w 60 -c 'pg_dump shop | gzip > shop.gz' backup:shop
  lockrun -u rediss://cron:secret@redis.internal deploy ansible-playbook site.yml";

/// What only the manual page has, in roff.
pub(crate) const MANUAL: &str = r#".SH SIGNALS
SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 are passed on to the command, unless they come from the terminal, which sends
them to the command itself.
While
.B lockrun
still waits for the lock, they end it as they end any program, and the wait is cancelled.
.PP
Ctrl-Z stops the command and
.B lockrun
together, and the lock runs out. If it was lost when both go on, the command is ended at once.
.SH "A LOST LOCK"
The lock is renewed each second, or three times a lease, if that is more often.
It is lost if somebody breaks it, if the server forgets it, or if the server cannot be reached for as long as a lease, counted from
when the last renewal that it confirmed was sent.
Then the command and all processes that it has started get SIGTERM, after
.B --kill-after
SIGKILL, and
.B lockrun
exits with 75, whatever the command's status.
.PP
If
.B lockrun
itself is killed by SIGKILL, the command gets SIGTERM at once, but not what it has started; and the lock stays held for what is left
of the lease.
.SH ENVIRONMENT
.TP
.B REDIS_URL
the server, if there is no
.B --url
.TP
.B REDISCLI_AUTH
the password, if the URL has none
.TP
.B SENTINEL_PASSWORD
the password of the Sentinels
.SH "SEE ALSO"
.BR locktop (1),
.BR flock (1),
.BR redis-cli (1)
"#;

/// Up to as much as BLOCK takes in any version.
fn time(text: &str) -> Result<Duration, String> {
    seconds(text, 0.0..=1e9)
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = time(text)?;
    if lease < Duration::from_secs(1) {
        return Err("must be 1 at least".to_owned());
    }
    Ok(lease)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_table_of_options_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn what_follows_the_command_is_the_commands_own() {
        let options =
            Options::try_parse_from(["lockrun", "-n", "key", "rsync", "-a", "--wait", "x"]).unwrap();
        assert_eq!((options.nonblock, options.wait), (true, None));
        assert_eq!(options.command, ["rsync", "-a", "--wait", "x"]);
    }

    #[test]
    fn the_shell_may_stand_before_and_behind_the_key() {
        for line in [["lockrun", "key", "-c", "a; b"], ["lockrun", "-c", "a; b", "key"]] {
            let options = Options::try_parse_from(line).unwrap();
            assert_eq!((options.key, options.shell), (Some("key".into()), Some("a; b".into())));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            &["lockrun"][..],
            &["lockrun", "key"],
            &["lockrun", "key", "-c", "a", "b"],
            &["lockrun", "-n", "-w", "1", "key", "a"],
            &["lockrun", "-s", "-x", "key", "a"],
            &["lockrun", "-w", "-1", "key", "a"],
            &["lockrun", "-w", "nan", "key", "a"],
            &["lockrun", "--lease", "0.5", "key", "a"],
            &["lockrun", "-E", "256", "key", "a"],
        ] {
            assert!(Options::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
