// SPDX-License-Identifier: MIT

//! The signals that are not ours but the command's.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};

/// What is passed on.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// What stops this program, with the command: the terminal sends them to both.
const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// A signal that has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Came {
    /// Stop, the command with us.
    Stop,
    /// For the command, which has not got it.
    PassOn(Signal),
    /// Of the terminal, which has sent it to the command, too.
    Both(Signal),
    /// Of the terminal, before there was a command that could get it.
    Early(Signal),
}

/// The signals that are taken.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) signals: SigSet,
    /// What was blocked before, and is so for the command.
    pub(crate) before: SigSet,
}

/// Takes the signals from now on. To be called before there are threads, as each inherits what is blocked.
///
/// # Errors
///
/// What the system says.
pub(crate) fn take() -> nix::Result<Taken> {
    let mut taken = SigSet::empty();
    for signal in PASSED_ON.into_iter().chain(STOPS) {
        // What is ignored stays ignored, by the command too: nohup lockrun ….
        if !is_ignored(signal)? {
            taken.add(signal);
        }
    }
    // If it is ignored, nobody can be waited for.
    set_default(Signal::SIGCHLD);
    let before = taken.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(Taken { signals: taken, before })
}

/// How far this program has come.
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);

/// There is no command yet, unless it is one of these.
const STARTING: u8 = 1;
const RUNNING: u8 = 2;

impl Stage {
    pub(crate) fn starting(&self) {
        self.0.store(STARTING, Ordering::Release);
    }

    /// The command gets what the terminal sends; or there will be none.
    pub(crate) fn running(&self) {
        self.0.store(RUNNING, Ordering::Release);
    }

    fn is(&self, stage: u8) -> bool {
        self.0.load(Ordering::Acquire) == stage
    }

    /// A process that is stopped on its way to become the command keeps whom has started it waiting for it. So it goes on, and is
    /// stopped behind that.
    fn until_started(&self) {
        while self.is(STARTING) {
            crate::child::signal_all(Signal::SIGCONT);
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Waits for the next of them.
pub(crate) fn next(signals: &SigSet, stage: &Stage) -> Option<Came> {
    let mut info = std::mem::MaybeUninit::<nix::libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: both are there, and `info` may be all zeros.
        let number = unsafe { nix::libc::sigwaitinfo(signals.as_ref(), info.as_mut_ptr()) };
        let Ok(signal) = Signal::try_from(number) else {
            match nix::errno::Errno::last() {
                nix::errno::Errno::EINTR => continue,
                _ => return None,
            }
        };
        // SAFETY: it was filled in, or is all zeros.
        let code = unsafe { info.assume_init_ref() }.si_code;
        return Some(match signal {
            signal if STOPS.contains(&signal) => {
                stage.until_started();
                Came::Stop
            }
            // What a process sends has 0 or less.
            signal if code > 0 && stage.is(RUNNING) => Came::Both(signal),
            signal if code > 0 => Came::Early(signal),
            signal => Came::PassOn(signal),
        });
    }
}

/// Ends this program as if the signal had never been taken, so that whoever waits for it sees that.
pub(crate) fn die_of(signal: Signal) -> ! {
    crate::voice::finish();
    set_default(signal);
    let mut it = SigSet::empty();
    it.add(signal);
    let _ = nix::sys::signal::raise(signal);
    let _ = it.thread_unblock();
    std::process::exit(i32::from(crate::options::BY_SIGNAL) + signal as i32)
}

fn set_default(signal: Signal) {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of ours.
    let _ = unsafe { sigaction(signal, &default) };
}

/// Asks for the disposition, and leaves it as it is.
fn is_ignored(signal: Signal) -> nix::Result<bool> {
    let mut now = std::mem::MaybeUninit::<nix::libc::sigaction>::uninit();
    // SAFETY: nothing is set, and the kernel fills in all of `now` if it returns 0.
    let now = unsafe {
        nix::errno::Errno::result(nix::libc::sigaction(signal as i32, std::ptr::null(), now.as_mut_ptr()))?;
        now.assume_init()
    };
    Ok(now.sa_sigaction == nix::libc::SIG_IGN)
}
