// SPDX-License-Identifier: MIT

//! Receives signals for the command and forwards them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};

/// The signals that are forwarded.
const FORWARDED: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// The signals that stop this program and the command. The terminal sends them to both.
const STOP_SIGNALS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// A received signal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Received {
    /// Stop this program and the command.
    Stop,
    /// The command has not received the signal, so it must be forwarded.
    Forward(Signal),
    /// The terminal has sent the signal to the command, too.
    FromTerminal(Signal),
}

/// The signals that [`next`] receives.
#[derive(Clone, Copy)]
pub(crate) struct Signals {
    pub(crate) received: SigSet,
    /// The signal mask of this program at its start, for the command.
    pub(crate) original_mask: SigSet,
}

/// Blocks the signals, so that [`next`] receives them. Call it before the first thread starts, as threads inherit the mask.
///
/// # Errors
///
/// If a system call fails.
pub(crate) fn block() -> nix::Result<Signals> {
    let mut received = SigSet::empty();
    for signal in FORWARDED.into_iter().chain(STOP_SIGNALS) {
        // A signal that was ignored before, such as with `nohup lockrun`, stays ignored by this program and by the command.
        if !is_ignored(signal)? {
            received.add(signal);
        }
    }
    // If SIGCHLD is ignored, this program cannot wait for the command.
    set_default(Signal::SIGCHLD);
    let original_mask = received.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(Signals { received, original_mask })
}

/// The progress of this program.
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);

/// The values of [`Stage`]; 0 means that there is no command yet.
const STARTING: u8 = 1;
const RUNNING: u8 = 2;

impl Stage {
    /// The command is about to start.
    pub(crate) fn set_starting(&self) {
        self.0.store(STARTING, Ordering::Release);
    }

    /// The command receives the signals of the terminal, or has failed to start.
    pub(crate) fn set_running(&self) {
        self.0.store(RUNNING, Ordering::Release);
    }

    fn is(&self, stage: u8) -> bool {
        self.0.load(Ordering::Acquire) == stage
    }

    /// Waits until the command has started. If the child is stopped between fork and exec, this program blocks. So the
    /// child is sent SIGCONT until the command has started.
    fn wait_until_started(&self) {
        while self.is(STARTING) {
            crate::child::signal_all(Signal::SIGCONT);
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Waits for the next signal.
pub(crate) fn next(signals: &SigSet, stage: &Stage) -> Option<Received> {
    let mut info = std::mem::MaybeUninit::<nix::libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: both pointers are valid, and `info` may be all zeros.
        let number = unsafe { nix::libc::sigwaitinfo(signals.as_ref(), info.as_mut_ptr()) };
        let Ok(signal) = Signal::try_from(number) else {
            match nix::errno::Errno::last() {
                nix::errno::Errno::EINTR => continue,
                _ => return None,
            }
        };
        // SAFETY: the call has filled it in, or it is all zeros.
        let code = unsafe { info.assume_init_ref() }.si_code;
        return Some(match signal {
            signal if STOP_SIGNALS.contains(&signal) => {
                stage.wait_until_started();
                Received::Stop
            }
            // The code is positive only for signals from the kernel, such as those of the terminal.
            signal if code > 0 && stage.is(RUNNING) => Received::FromTerminal(signal),
            signal => Received::Forward(signal),
        });
    }
}

/// Ends this program by the default action of the signal, so that its parent sees the signal.
pub(crate) fn die_of(signal: Signal) -> ! {
    crate::messages::flush();
    set_default(signal);
    let mut set = SigSet::empty();
    set.add(signal);
    let _ = nix::sys::signal::raise(signal);
    let _ = set.thread_unblock();
    std::process::exit(i32::from(crate::options::BY_SIGNAL) + signal as i32)
}

fn set_default(signal: Signal) {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this program.
    let _ = unsafe { sigaction(signal, &default) };
}

/// Whether the signal is ignored. Does not change its disposition.
fn is_ignored(signal: Signal) -> nix::Result<bool> {
    let mut now = std::mem::MaybeUninit::<nix::libc::sigaction>::uninit();
    // SAFETY: the null pointer changes nothing, and the kernel fills in all of `now` if it returns 0.
    let now = unsafe {
        nix::errno::Errno::result(nix::libc::sigaction(signal as i32, std::ptr::null(), now.as_mut_ptr()))?;
        now.assume_init()
    };
    Ok(now.sa_sigaction == nix::libc::SIG_IGN)
}
