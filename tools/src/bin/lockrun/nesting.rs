// SPDX-License-Identifier: MIT

//! Refuses to wait for a lock that an outer `lockrun` holds: the inner one would wait for the end of the outer one. A shared hold
//! could be granted, but not while a writer waits between the two, and a queued writer blocks all later readers.

use std::time::Duration;
use std::{env, fs, process};

use crate::options::Options;

/// The environment variable with the locks of the outer `lockrun`s, one line each: its process and the lock.
pub(crate) const HELD: &str = "LOCKRUN_HELD";

/// The value of [`HELD`] for the command.
pub(crate) fn held(options: &Options) -> String {
    let outer = env::var(HELD).unwrap_or_default();
    format!("{outer}{} {}\n", process::id(), lock(options))
}

/// Whether a `lockrun` that has started this process holds this lock, and this one would wait for it.
pub(crate) fn waits_for_outer(options: &Options) -> bool {
    if options.wait_limit() == Some(Duration::ZERO) {
        return false;
    }
    let (held, lock) = (env::var(HELD).unwrap_or_default(), lock(options));
    held.lines()
        .filter_map(|line| line.split_once(' '))
        .any(|(pid, held)| held == lock && pid.parse().is_ok_and(is_ancestor))
}

/// The server and the key, on one line.
fn lock(options: &Options) -> String {
    format!("{} {:?}", options.server.database(), options.key)
}

/// Whether the process has started this one, directly or not. A daemon that outlives its `lockrun` inherits the variable, but
/// gets another parent.
fn is_ancestor(of: u32) -> bool {
    let parent = |pid: u32| {
        // The name of a process may have any bytes.
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        String::from_utf8_lossy(&stat).rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
    };
    std::iter::successors(Some(process::id()), |pid| parent(*pid)).skip(1).any(|pid| pid == of)
}
