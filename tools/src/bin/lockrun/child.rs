// SPDX-License-Identifier: MIT

//! The command and its descendants.
//!
//! The command stays in the process group of this program, as with flock, so terminals, pipelines and scripts treat both as one.
//! This program is a subreaper: it adopts orphans, so all processes that the command starts stay its descendants.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::signal::{kill, pthread_sigmask, SigSet, SigmaskHow, Signal};
use nix::sys::termios::{tcgetattr, tcsetattr, SetArg, Termios};
use nix::unistd::{getpgrp, getpid, tcgetpgrp, Pid};

/// The outcome of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(i32),
    /// Terminated by the signal with this number.
    Killed(i32),
}

impl Ended {
    /// The exit status that a shell reports.
    pub(crate) fn status(self) -> u8 {
        match self {
            Ended::Exited(status) => u8::try_from(status & 0xff).unwrap_or(u8::MAX),
            Ended::Killed(signal) => {
                crate::options::BY_SIGNAL.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX))
            }
        }
    }
}

/// Starts the command with these signals blocked. The calling thread must live as long as this program: the command gets SIGTERM
/// when that thread ends.
///
/// # Errors
///
/// If the command does not exist or cannot be run.
pub(crate) fn start(mut command: Command, blocked: SigSet) -> io::Result<Pid> {
    nix::sys::prctl::set_child_subreaper(true)?;
    let parent = getpid();
    // SAFETY: between fork and exec the closure only makes system calls, and allocates no memory.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            if nix::unistd::getppid() != parent {
                // `lockrun` was killed after the fork.
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?)
        });
    }
    let child = command.spawn()?;
    // `watch` waits for the command by its process ID.
    Ok(Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?))
}

/// Waits for the end of the command and reports it. Then reaps the processes that the command has left behind.
pub(crate) fn watch(command: Pid, report: impl Fn(Ended)) {
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid. (The safe wrapper fails for signals without a name.)
        let found = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if found == command.as_raw() {
            report(if libc::WIFEXITED(status) {
                Ended::Exited(libc::WEXITSTATUS(status))
            } else {
                Ended::Killed(libc::WTERMSIG(status))
            });
        } else if found < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            // No child is left.
            return;
        }
    }
}

/// Forwards a signal to the command. Ignores the error if the command has ended.
pub(crate) fn signal(command: Pid, signal: Signal) {
    let _ = kill(command, signal);
}

/// Sends a signal to the command and its descendants. Returns the number of processes.
pub(crate) fn signal_all(signal: Signal) -> usize {
    let descendants = descendants();
    for pid in &descendants {
        let _ = kill(*pid, signal);
    }
    descendants.len()
}

/// All descendants of this program that have not ended.
pub(crate) fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // The format is: pid (name) state parent … The name may have any bytes.
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, parent) = (fields.next(), fields.next().and_then(|parent| parent.parse().ok()));
        if let (Some(_), Some(parent)) = (state.filter(|state| !["Z", "X"].contains(state)), parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = children.remove(&getpid().as_raw()).unwrap_or_default();
    let mut next = 0;
    while next < found.len() {
        found.extend(children.remove(&found[next]).unwrap_or_default());
        next += 1;
    }
    found.into_iter().map(Pid::from_raw).collect()
}

/// The settings of the terminal before the command started, if there is a terminal.
pub(crate) struct Terminal(Option<Termios>);

impl Terminal {
    pub(crate) fn now() -> Terminal {
        Terminal(tcgetattr(io::stdin()).ok())
    }

    /// Restores the settings. A killed command cannot restore them itself.
    pub(crate) fn restore(&self) {
        if let Some(before) = &self.0 {
            if tcgetpgrp(io::stdin()) == Ok(getpgrp()) {
                let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, before);
            }
        }
    }
}
