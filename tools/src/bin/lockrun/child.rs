// SPDX-License-Identifier: MIT

//! The command: a process group of its own, in the foreground of the terminal if this program was.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{killpg, pthread_sigmask, SigSet, SigmaskHow, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::{getpgrp, tcgetpgrp, tcsetpgrp, Pid};

/// A running command.
pub(crate) struct Group {
    leader: Pid,
    terminal: Terminal,
}

/// What has become of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Exited(i32),
    Killed(Signal),
    Stopped,
}

impl Group {
    /// Starts it, with these signals blocked. To be called by a thread that lasts as long as this program: the command gets SIGTERM
    /// when that thread ends.
    ///
    /// # Errors
    ///
    /// If there is no such command, or it cannot be run.
    pub(crate) fn start(mut command: Command, blocked: SigSet) -> io::Result<Group> {
        let terminal = Terminal::open();
        nix::sys::prctl::set_child_subreaper(true)?;
        // It must not read of the terminal before it is its own, so it takes it itself.
        let hand_over = terminal.is_ours().then(|| terminal.0.as_ref().map(File::as_raw_fd)).flatten();
        let parent = nix::unistd::getpid();
        command.process_group(0);
        // SAFETY: only system calls are made, and no memory is allocated.
        unsafe {
            command.pre_exec(move || {
                nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
                if nix::unistd::getppid() != parent {
                    return Err(io::Error::other("lockrun was killed"));
                }
                // SIGTTOU is blocked still, so this may be done from the background. A terminal that has gone is no reason not to run.
                if let Some(terminal) = hand_over {
                    libc::tcsetpgrp(terminal, libc::getpid());
                }
                Ok(pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?)
            });
        }
        let child = command.spawn()?;
        // It is waited for by its number, see `next_change`.
        let leader = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        Ok(Group { leader, terminal })
    }

    /// Who is to be waited for.
    pub(crate) fn leader(&self) -> Pid {
        self.leader
    }

    /// Passes a signal on to all of them. That none is left is no matter.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = killpg(self.leader, signal);
    }

    /// Whether any process of it is left, the leader or what it has started.
    pub(crate) fn is_there(&self) -> bool {
        killpg(self.leader, None) != Err(Errno::ESRCH)
    }

    /// The command was stopped (Ctrl-Z). If it has the terminal, this program takes it back and stops, too, as the shell expects;
    /// true if so. It goes on behind this when the shell says so, before the command does.
    pub(crate) fn stop_with_it(&self) -> bool {
        if !self.terminal.belongs_to(self.leader) {
            return false;
        }
        self.terminal.give_to(getpgrp());
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        true
    }

    /// Lets a command that was stopped go on, in the foreground if this program is there now.
    pub(crate) fn go_on(&self) {
        if self.terminal.is_ours() {
            self.terminal.give_to(self.leader);
        }
        self.signal(Signal::SIGCONT);
    }

    /// The terminal is this program's again, if it was the command's.
    pub(crate) fn take_terminal_back(&self) {
        if self.terminal.belongs_to(self.leader) {
            self.terminal.give_to(getpgrp());
        }
    }
}

/// Tells what becomes of a command, until it has ended and `tell` says so by false. Everything that it leaves behind is reaped, too:
/// this program is the parent of orphans, as nobody may be there who reaps them.
pub(crate) fn watch(leader: Pid, tell: impl Fn(Change) -> bool) {
    loop {
        let change = match waitpid(None, Some(WaitPidFlag::WUNTRACED)) {
            Ok(status) if status.pid() != Some(leader) => continue,
            Ok(WaitStatus::Exited(_, status)) => Change::Exited(status),
            Ok(WaitStatus::Signaled(_, signal, _)) => Change::Killed(signal),
            Ok(WaitStatus::Stopped(..)) => Change::Stopped,
            Ok(_) | Err(Errno::EINTR) => continue,
            // All have ended. (Or the leader by a signal without a name, of which is known no more than that.)
            Err(_) => {
                tell(Change::Killed(Signal::SIGKILL));
                return;
            }
        };
        if !tell(change) {
            return;
        }
    }
}

/// The terminal that this program was started in, if any.
struct Terminal(Option<File>);

impl Terminal {
    fn open() -> Terminal {
        Terminal(File::options().read(true).write(true).open("/dev/tty").ok())
    }

    fn is_ours(&self) -> bool {
        self.belongs_to(getpgrp())
    }

    fn belongs_to(&self, group: Pid) -> bool {
        self.0.as_ref().is_some_and(|terminal| tcgetpgrp(terminal) == Ok(group))
    }

    /// SIGTTOU is blocked in this program, so it may do so from the background.
    fn give_to(&self, group: Pid) {
        if let Some(terminal) = &self.0 {
            let _ = tcsetpgrp(terminal.as_fd(), group);
        }
    }
}

/// As a shell would say it.
pub(crate) fn status_of(change: Change) -> u8 {
    match change {
        Change::Exited(status) => u8::try_from(status & 0xff).unwrap_or(u8::MAX),
        Change::Killed(signal) => crate::options::BY_SIGNAL.saturating_add(signal as u8),
        Change::Stopped => 0,
    }
}
