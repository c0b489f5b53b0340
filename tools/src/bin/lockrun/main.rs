// SPDX-License-Identifier: MIT

//! `lockrun`: runs a command while it holds a lock.
//!
//! One thread waits for signals, one for the lock, one for the end of the command, and one renews the lock. All send events to
//! the main thread, which decides.

mod child;
mod messages;
mod nesting;
mod options;
mod renewer;
mod signals;
mod wait;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use clap::{CommandFactory, Parser};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{gethostname, getpid, Pid};
use redis_lock_client::blocking::Hold;
use redis_lock_client::{Error, ErrorKind};
use redis_lock_tools::texts::{self, Text};

use child::{Ended, Terminal};
use options::Options;
use renewer::Renewer;
use signals::{Received, Stage};
use wait::{describe, Wait};

/// An event for the main thread.
enum Event {
    Signal(Received),
    /// The wait has ended with the lock, without it, or with an error.
    WaitEnded(Result<Option<Hold>, Error>),
    /// An owner that holds the lock during the wait, if known, and the number of others.
    Holders(Option<(String, usize)>),
    /// A renewal has failed.
    Trouble(String),
    /// The result of the release.
    Released(redis_lock_client::Result<()>),
    CommandEnded(Ended),
}

/// The interval between searches for descendants while this program terminates the command.
const DESCENDANTS_INTERVAL: Duration = Duration::from_millis(20);

/// The maximum time for processes to end after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum time for the release. Without a release, the end of the lease frees the lock.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum time for the cancellation of a wait. Without a cancellation, the wait ends when its connection closes.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Signals within this time after the end of the command belong to that end, such as the second copy of Ctrl-C.
const SIGNAL_GRACE: Duration = Duration::from_millis(500);

/// How this program exits.
enum End {
    Status(u8),
    /// Dies by the same signal as the command, such as after Ctrl-C, so that the parent of this program sees the signal.
    Signal(Signal),
}

fn main() -> ExitCode {
    if let Some(text) = texts::requested() {
        return match texts::write(text, Options::command(), options::MANUAL) {
            Ok(()) => {
                print!("{}", if matches!(text, Text::Bash) { options::COMPLETION } else { "" });
                ExitCode::SUCCESS
            }
            Err(_) => ExitCode::FAILURE,
        };
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(options::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let end = match Run::begin(options) {
        Ok(run) => run.wait_for_the_lock().map_or_else(End::Status, |hold| run.run(hold)),
        Err(error) => {
            messages::print(&error.to_string());
            End::Status(options::USAGE)
        }
    };
    match end {
        End::Status(status) => {
            messages::flush();
            ExitCode::from(status)
        }
        End::Signal(signal) => signals::die_of(signal),
    }
}

/// One run of this program.
struct Run {
    options: Options,
    /// The signal mask of this program at its start, for the command.
    original_mask: SigSet,
    sender: Sender<Event>,
    events: Receiver<Event>,
    wait: Arc<Wait>,
    stage: Arc<Stage>,
}

impl Run {
    fn begin(mut options: Options) -> Result<Run, Box<dyn std::error::Error>> {
        if options.owner.is_none() {
            options.owner = Some(format!("{}:{}", gethostname()?.to_string_lossy(), getpid()));
        }
        // The URL is parsed before all other steps, so that an invalid one is a usage error.
        let server = options.server.server()?;
        if nesting::waits_for_outer(&options) {
            let key = options.key.to_string_lossy();
            let text =
                "the lockrun that runs this command holds the lock already; remove the inner one, or use -n";
            return Err(format!("{key}: {text}").into());
        }
        let signals = signals::block()?;
        let (sender, events) = mpsc::channel();
        let run = Run {
            wait: Arc::new(Wait::new(server, options.clone())?),
            options,
            original_mask: signals.original_mask,
            sender,
            events,
            stage: Arc::default(),
        };
        let (sender, stage) = (run.sender.clone(), run.stage.clone());
        thread::spawn(move || {
            while let Some(received) = signals::next(&signals.received, &stage) {
                if sender.send(Event::Signal(received)).is_err() {
                    return;
                }
            }
        });
        Ok(run)
    }

    /// Waits for the lock. Returns the exit status if there is no grant.
    fn wait_for_the_lock(&self) -> Result<Hold, u8> {
        self.start_wait();
        let (mut report_at, mut reported) = (self.wait.begun + wait::FIRST_REPORT, None);
        loop {
            match self.events.recv_timeout(report_at.saturating_duration_since(Instant::now())) {
                // This program may have been stopped since the grant. Nothing has run yet, so it waits again.
                Ok(Event::WaitEnded(Ok(Some(hold)))) if hold.is_lost() => {
                    self.wait.report_early_loss();
                    self.start_wait();
                }
                Ok(Event::WaitEnded(Ok(Some(hold)))) => return Ok(hold),
                Ok(Event::WaitEnded(Ok(None))) => {
                    self.log("another owner holds the lock");
                    return Err(self.options.conflict_exit_code);
                }
                Ok(Event::WaitEnded(Err(error))) => {
                    messages::print(&format!("{}: {}", self.options.server.address(), describe(&error)));
                    return Err(options::UNAVAILABLE);
                }
                // The wait continues in the server, and a later event has its outcome.
                Ok(Event::Signal(Received::Stop)) => drop(nix::sys::signal::raise(Signal::SIGSTOP)),
                Ok(Event::Signal(Received::Forward(signal) | Received::FromTerminal(signal))) => {
                    self.cancel();
                    signals::die_of(signal);
                }
                Ok(Event::Holders(holders)) => {
                    let (owner, others) = holders.unzip();
                    if self.options.verbose || owner.is_some() && owner != reported {
                        let mut by = owner.as_ref().map_or_else(String::new, |by| format!("; held by {by}"));
                        if let Some(others @ 1..) = others {
                            by += &format!(" and {others} more");
                        }
                        let time = self.wait.begun.elapsed().as_secs();
                        messages::print(&format!("{}: still waiting after {time} s{by}", self.key()));
                    }
                    reported = owner.or(reported);
                }
                Ok(Event::Trouble(_) | Event::Released(_) | Event::CommandEnded(_)) => {}
                Err(_) => {
                    report_at = Instant::now() + wait::REMINDER_INTERVAL;
                    let (sender, wait) = (self.sender.clone(), Arc::clone(&self.wait));
                    if !self.options.quiet {
                        thread::spawn(move || sender.send(Event::Holders(wait.holders())));
                    }
                }
            }
        }
    }

    fn start_wait(&self) {
        self.log("waiting");
        let (sender, wait) = (self.sender.clone(), Arc::clone(&self.wait));
        thread::spawn(move || drop(sender.send(Event::WaitEnded(wait.acquire()))));
    }

    /// Runs the command, and releases the lock.
    fn run(&self, hold: Hold) -> End {
        let (hold, time) = (Arc::new(hold), self.wait.begun.elapsed().as_secs_f64());
        // Renewals start first, as the following steps may take long.
        let renewer = self.start_renewer(&hold);
        self.log(&format!("acquired after {time:.3} s, token {}", hold.token().unwrap_or_default()));
        self.log(&format!("running {}", self.name()));
        let terminal = Terminal::now();
        self.stage.set_starting();
        let started = child::start(self.command(&hold), self.original_mask);
        self.stage.set_running();
        let command = match started {
            Ok(command) => command,
            Err(error) => {
                messages::print(&format!("{}: {error}", self.name()));
                self.release(renewer);
                let missing = error.kind() == io::ErrorKind::NotFound;
                return End::Status(if missing { options::NOT_FOUND } else { options::NOT_RUN });
            }
        };
        let sender = self.sender.clone();
        thread::spawn(move || child::watch(command, |ended| drop(sender.send(Event::CommandEnded(ended)))));
        match self.wait_until_ended(command, &hold) {
            Ok(ended) => {
                if matches!(ended, Ended::Killed(_)) {
                    terminal.restore();
                }
                self.log(&format!("command ended with status {}", ended.status()));
                let in_time = !hold.is_lost();
                match self.release(renewer) {
                    Some(Err(error)) if error.kind() == ErrorKind::Lost || !in_time => {
                        messages::print(&format!(
                            "lost the lock {} before the command ended: {}",
                            self.key(),
                            renewer::loss_reason(&hold)
                        ));
                        return End::Status(options::LOST);
                    }
                    Some(Err(error)) => {
                        messages::print(&format!(
                            "cannot release the lock, its lease will end it: {}",
                            describe(&error)
                        ));
                    }
                    Some(Ok(())) => self.log("released"),
                    None => messages::print("no reply to the release of the lock; its lease will end it"),
                }
                // A shell loop ends only if this program dies by the signal of the command.
                let mut deadly = [Signal::SIGINT, Signal::SIGQUIT].into_iter();
                let signal = deadly.find(|signal| ended == Ended::Killed(*signal as i32));
                signal.map_or_else(|| End::Status(ended.status()), End::Signal)
            }
            Err(why) => {
                messages::print(&format!("lost the lock {}: {why}", self.key()));
                self.kill_all();
                terminal.restore();
                self.release(renewer);
                End::Status(options::LOST)
            }
        }
    }

    fn start_renewer(&self, hold: &Arc<Hold>) -> Renewer {
        Renewer::start(hold, self.options.lease, self.sender.clone())
    }

    /// Waits for the end of the command. Fails with the reason if the lock is lost.
    fn wait_until_ended(&self, command: Pid, hold: &Hold) -> Result<Ended, String> {
        let mut is_reported = false;
        loop {
            if hold.is_lost() {
                return Err(renewer::loss_reason(hold));
            }
            // Zero while the hold is not confirmed, such as during a failover. That is no loss.
            let left = hold.valid_for().max(Duration::from_millis(10));
            // The clock of the hold runs while the machine is suspended, but this timeout does not. So the timeout is short.
            match self.events.recv_timeout(left.min(Duration::from_secs(1))) {
                Ok(Event::CommandEnded(ended)) => return Ok(ended),
                Ok(Event::Trouble(what)) if !hold.is_lost() && !std::mem::replace(&mut is_reported, true) => {
                    self.log(&format!("{what}; trying again"));
                }
                Ok(Event::Signal(Received::Forward(signal))) => child::signal(command, signal),
                Ok(Event::Signal(Received::Stop)) => {
                    // All processes must stop, as the lease can expire meanwhile.
                    child::signal_all(Signal::SIGSTOP);
                    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
                    if !hold.is_lost() {
                        child::signal_all(Signal::SIGCONT);
                    }
                }
                Ok(
                    Event::Signal(Received::FromTerminal(_))
                    | Event::WaitEnded(_)
                    | Event::Holders(_)
                    | Event::Trouble(_)
                    | Event::Released(_),
                )
                | Err(_) => {}
            }
        }
    }

    /// Ends the command and its descendants: SIGTERM, then SIGKILL after `--kill-after`.
    fn kill_all(&self) {
        let until = Instant::now() + self.options.kill_after;
        child::signal_all(Signal::SIGTERM);
        child::signal_all(Signal::SIGCONT);
        while Instant::now() < until {
            if child::descendants().is_empty() {
                return;
            }
            thread::sleep(DESCENDANTS_INTERVAL);
        }
        if child::signal_all(Signal::SIGKILL) == 0 {
            return;
        }
        messages::print("command did not end after SIGTERM, sending SIGKILL");
        // Repeats the signal, as processes may start others meanwhile. Stops after a time, as a process survives while it waits
        // for a broken disk, or if it belongs to another user.
        let until = Instant::now() + KILL_TIMEOUT;
        while Instant::now() < until && child::signal_all(Signal::SIGKILL) > 0 {
            thread::sleep(DESCENDANTS_INTERVAL);
        }
    }

    /// Releases the lock. Returns `None` if that takes too long or a signal interrupts it.
    fn release(&self, renewer: Renewer) -> Option<redis_lock_client::Result<()>> {
        drop(renewer);
        let since = Instant::now();
        loop {
            match self.events.recv_timeout(RELEASE_TIMEOUT.saturating_sub(since.elapsed())) {
                Ok(Event::Released(released)) => return Some(released),
                // A Ctrl-C that has ended the command may reach this program only after the end of the command.
                Ok(Event::Signal(Received::Forward(_) | Received::FromTerminal(_)))
                    if since.elapsed() > SIGNAL_GRACE =>
                {
                    return None
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// The command with its environment.
    fn command(&self, hold: &Hold) -> Command {
        let mut command = match (&self.options.shell, self.options.command.split_first()) {
            (None, Some((program, arguments))) => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            (shell, _) => {
                let mut command = Command::new("/bin/sh");
                command.arg("-c").arg(shell.as_deref().unwrap_or_default());
                command
            }
        };
        command
            .env("LOCK_KEY", OsStr::from_bytes(hold.key()))
            .env("LOCK_OWNER", OsStr::from_bytes(hold.owner()))
            .env(nesting::HELD, nesting::held(&self.options))
            .env("LOCK_TOKEN", hold.token().unwrap_or_default().to_string());
        command
    }

    fn name(&self) -> String {
        let name = self.options.shell.as_ref().or(self.options.command.first());
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Cancels the wait, and waits until the server has confirmed it.
    fn cancel(&self) {
        self.wait.canceller.cancel();
        let until = Instant::now() + CANCEL_TIMEOUT;
        while let Ok(event) = self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            match event {
                Event::WaitEnded(Ok(Some(hold))) => {
                    // The server granted the lock before it received the cancellation.
                    self.release(self.start_renewer(&Arc::new(hold)));
                    return;
                }
                // A second signal ends the program without waiting.
                Event::WaitEnded(_) | Event::Signal(Received::Forward(_) | Received::FromTerminal(_)) => {
                    return
                }
                _ => {}
            }
        }
        self.log("no reply to the cancellation of the wait");
    }

    fn log(&self, what: &str) {
        if self.options.verbose {
            messages::print(&format!("{}: {what}", self.key()));
        }
    }

    /// The lock's key for a message.
    fn key(&self) -> Cow<'_, str> {
        self.options.key.to_string_lossy()
    }
}
