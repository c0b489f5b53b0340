// SPDX-License-Identifier: MIT

//! The signals that are not ours but the command's.

use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};

/// What is passed on.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

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
    for signal in PASSED_ON {
        // What is ignored stays ignored, by the command too: nohup lockrun ….
        if !is_ignored(signal)? {
            taken.add(signal);
        }
    }
    taken.add(Signal::SIGCONT);
    let mut blocked = taken;
    blocked.add(Signal::SIGTTOU);
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(Taken { signals: taken, before })
}

/// Ends this program as if the signal had never been taken, so that whoever waits for it sees that.
pub(crate) fn die_of(signal: Signal) -> ! {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of ours.
    let _ = unsafe { sigaction(signal, &default) };
    let mut it = SigSet::empty();
    it.add(signal);
    let _ = nix::sys::signal::raise(signal);
    let _ = it.thread_unblock();
    std::process::exit(i32::from(crate::options::BY_SIGNAL) + signal as i32)
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
