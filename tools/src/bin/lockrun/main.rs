// SPDX-License-Identifier: MIT

//! `lockrun`: runs a command while it holds a lock.
//!
//! One thread waits for signals, one for the lock and then for the command, one renews the lock. All tell the main thread,
//! which decides.

mod child;
mod keeper;
mod options;
mod signals;
mod voice;
mod wait;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use clap::{CommandFactory, Parser};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{gethostname, getpid, Pid};
use redis_lock_client::{Canceller, Error, Hold, Server};
use redis_lock_tools::texts;

use child::{Ended, Terminal};
use keeper::{Keeper, Told, OUT_OF_REACH};
use options::Options;
use signals::{Came, Stage};
use wait::{in_words, Outcome, Wanted};

/// What the main thread is told.
enum Event {
    Signal(Came),
    Waited(Outcome),
    Keeper(Told),
    Ended(Ended),
}

/// How often it is looked for what a command has left behind that has lost its lock.
const LEFT_BEHIND: Duration = Duration::from_millis(20);

/// How long a process may take to end by SIGKILL.
const UNTIL_KILLED: Duration = Duration::from_secs(2);

/// How long the end waits for a server that does not take the lock back. The lease frees it.
const UNTIL_RELEASED: Duration = Duration::from_secs(5);

/// How long the end waits for a server that does not take a wait back. The connection's end ends it, too.
const UNTIL_CANCELLED: Duration = Duration::from_secs(2);

/// What comes so soon behind something belongs to it.
const AT_ONCE: Duration = Duration::from_millis(500);

/// How the command, or the attempt to run it, has ended.
enum End {
    Status(u8),
    /// By the signal by which the command has ended, as after Ctrl-C: whoever has started this program wants to know.
    Signal(Signal),
}

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(options::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    if let Some(text) = options.text {
        return match texts::write(text, Options::command(), options::MANUAL) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let end = match Run::begin(options) {
        Ok((run, server)) => run.finish(server),
        Err(error) => {
            voice::say(&error.to_string());
            End::Status(options::USAGE)
        }
    };
    match end {
        End::Status(status) => {
            voice::finish();
            ExitCode::from(status)
        }
        End::Signal(signal) => signals::die_of(signal),
    }
}

/// One run of this program.
struct Run {
    options: Options,
    wanted: Arc<Wanted>,
    begun: Instant,
    /// What was blocked when this program was started, and is to be for the command.
    blocked: SigSet,
    tell: Sender<Event>,
    told: Receiver<Event>,
    /// By what the wait is ended.
    canceller: Canceller,
    stage: Arc<Stage>,
}

impl Run {
    fn begin(options: Options) -> Result<(Run, Server), Box<dyn std::error::Error>> {
        let name = match &options.owner {
            Some(name) => name.clone(),
            None => format!("{}:{}", gethostname()?.to_string_lossy(), getpid()),
        };
        let wanted = Wanted {
            key: options.key.clone().unwrap_or_default().into_vec(),
            owner: format!("{name}:"),
            shared: options.shared || options.limit.is_some(),
            limit: options.limit,
            lease: options.lease,
            wait: if options.nonblock { Some(Duration::ZERO) } else { options.wait },
        };
        // Before anything else, so that a URL that makes no sense is told as such.
        let server = options.place.server()?;
        let signals = signals::take()?;
        let (tell, told) = mpsc::channel();
        let run = Run {
            options,
            wanted: Arc::new(wanted),
            begun: Instant::now(),
            blocked: signals.before,
            tell,
            told,
            canceller: Canceller::new(),
            stage: Arc::default(),
        };
        let (tell, stage) = (run.tell.clone(), run.stage.clone());
        thread::spawn(move || {
            while let Some(came) = signals::next(&signals.signals, &stage) {
                if tell.send(Event::Signal(came)).is_err() {
                    return;
                }
            }
        });
        Ok((run, server))
    }

    fn finish(self, server: Server) -> End {
        match self.wait_for_the_lock(server) {
            Ok(hold) => {
                self.say(&format!(
                    "acquired after {:.3} s, token {}",
                    self.begun.elapsed().as_secs_f64(),
                    hold.token().unwrap_or_default()
                ));
                self.run(hold)
            }
            Err(status) => End::Status(status),
        }
    }

    /// Waits until the lock is ours, or says with what status to end.
    fn wait_for_the_lock(&self, server: Server) -> Result<Hold, u8> {
        self.say("waiting");
        let (tell, wanted, canceller) = (self.tell.clone(), Arc::clone(&self.wanted), self.canceller.clone());
        thread::spawn(move || {
            let leaving = canceller.clone();
            let say = move |what: &str| {
                if !leaving.is_cancelled() {
                    voice::say(what);
                }
            };
            let outcome = wait::acquire(server, &wanted, &canceller, say);
            let _ = tell.send(Event::Waited(outcome));
        });
        loop {
            match self.told.recv() {
                Ok(Event::Waited(Outcome::Granted(hold))) => return Ok(hold),
                Ok(Event::Waited(Outcome::NotGranted)) => {
                    self.say("somebody else holds the lock");
                    return Err(self.options.conflict_exit_code);
                }
                Ok(Event::Waited(Outcome::Failed(error))) => {
                    return Err(self.unavailable(&error));
                }
                // The wait goes on in the server. What it has come to is looked at behind this.
                Ok(Event::Signal(Came::Stop)) => drop(nix::sys::signal::raise(Signal::SIGSTOP)),
                Ok(Event::Signal(Came::PassOn(signal) | Came::Both(signal) | Came::Early(signal))) => {
                    self.cancel();
                    signals::die_of(signal);
                }
                Ok(Event::Keeper(_) | Event::Ended(_)) => {}
                Err(_) => return Err(options::UNAVAILABLE),
            }
        }
    }

    /// Runs the command, and gives the lock back.
    fn run(&self, hold: Hold) -> End {
        let hold = Arc::new(hold);
        // From the first moment on, whatever takes long in what follows.
        let keeper = self.keep(&hold);
        // It may have been stopped since the grant.
        if hold.valid_for().is_zero() {
            self.say_lost("before the command began");
            keeper.release();
            self.until_released();
            return End::Status(options::LOST);
        }
        self.say(&format!("running {}", self.name()));
        let terminal = Terminal::now();
        self.stage.starting();
        let started = child::start(self.command(&hold), self.blocked);
        self.stage.running();
        let command = match started {
            Ok(command) => command,
            Err(error) => {
                keeper.release();
                voice::say(&format!("{}: {error}", self.name()));
                self.until_released();
                let missing = error.kind() == io::ErrorKind::NotFound;
                return End::Status(if missing { options::NOT_FOUND } else { options::NOT_RUN });
            }
        };
        let tell = self.tell.clone();
        thread::spawn(move || child::watch(command, |ended| drop(tell.send(Event::Ended(ended)))));
        match self.until_ended(command, &hold) {
            Ok(ended) => {
                if matches!(ended, Ended::Killed(_)) {
                    terminal.restore();
                }
                self.say(&format!("the command has ended with {}", ended.status()));
                let in_time = !hold.valid_for().is_zero();
                keeper.release();
                match self.until_released() {
                    Some(Err(error)) if keeper::is_loss(&error) || !in_time => {
                        self.say_lost(&format!("before the command ended: {}", keeper::why(&error)));
                        return End::Status(options::LOST);
                    }
                    Some(Err(error)) => {
                        voice::say(&format!(
                            "the lock is not given back, its lease ends it: {}",
                            in_words(&error)
                        ));
                    }
                    Some(Ok(())) => self.say("released"),
                    None => voice::say("the server does not take the lock back; its lease ends it"),
                }
                // As if this program had not been there: a loop in a shell ends by that.
                match [Signal::SIGINT, Signal::SIGQUIT]
                    .into_iter()
                    .find(|signal| ended == Ended::Killed(*signal as i32))
                {
                    Some(signal) => End::Signal(signal),
                    None => End::Status(ended.status()),
                }
            }
            Err(why) => {
                self.say_lost(&why);
                self.end();
                terminal.restore();
                keeper.release();
                self.until_released();
                End::Status(options::LOST)
            }
        }
    }

    fn keep(&self, hold: &Arc<Hold>) -> Keeper {
        let tell = self.tell.clone();
        Keeper::start(Arc::clone(hold), self.wanted.lease, move |told| drop(tell.send(Event::Keeper(told))))
    }

    /// Waits for the end of the command; or tells why the lock is lost.
    fn until_ended(&self, command: Pid, hold: &Hold) -> Result<Ended, String> {
        loop {
            hold.check().map_err(|error| keeper::why(&error))?;
            let left = hold.valid_for();
            if left.is_zero() {
                return Err(OUT_OF_REACH.to_owned());
            }
            // The clock goes on while the machine sleeps, and this does not; so it is looked at again soon.
            match self.told.recv_timeout(left.min(Duration::from_secs(1))) {
                Ok(Event::Ended(ended)) => return Ok(ended),
                Ok(Event::Keeper(Told::Lost(why))) => return Err(why),
                Ok(Event::Keeper(Told::Trouble(what))) => self.say(&format!("{what}; trying again")),
                Ok(Event::Signal(Came::PassOn(signal) | Came::Early(signal))) => {
                    child::signal(command, signal)
                }
                Ok(Event::Signal(Came::Stop)) => {
                    // All of it, or it would go on when the lock has run out.
                    child::signal_all(Signal::SIGSTOP);
                    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
                    if !hold.valid_for().is_zero() {
                        child::signal_all(Signal::SIGCONT);
                    }
                }
                Ok(Event::Signal(Came::Both(_)) | Event::Waited(_) | Event::Keeper(Told::Released(_)))
                | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("a thread has ended".to_owned()),
            }
        }
    }

    /// Ends all that the command has started: SIGTERM, and SIGKILL when the time is over.
    fn end(&self) {
        let until = Instant::now() + self.options.kill_after;
        child::signal_all(Signal::SIGTERM);
        child::signal_all(Signal::SIGCONT);
        while Instant::now() < until {
            if child::descendants().is_empty() {
                return;
            }
            thread::sleep(LEFT_BEHIND);
        }
        if child::signal_all(Signal::SIGKILL) == 0 {
            return;
        }
        voice::say("it does not end: SIGKILL");
        // Again for those that were started meanwhile. Not for ever: one that waits for a broken disk, or belongs to another user, does
        // not end.
        let until = Instant::now() + UNTIL_KILLED;
        while Instant::now() < until && child::signal_all(Signal::SIGKILL) > 0 {
            thread::sleep(LEFT_BEHIND);
        }
    }

    /// What came of giving the lock back; nothing if that takes too long, or a signal says that it does.
    fn until_released(&self) -> Option<redis_lock_client::Result<()>> {
        let since = Instant::now();
        loop {
            match self.told.recv_timeout(UNTIL_RELEASED.saturating_sub(since.elapsed())) {
                Ok(Event::Keeper(Told::Released(released))) => return Some(released),
                // That of Ctrl-C which has ended the command may come behind its end.
                Ok(Event::Signal(Came::PassOn(_) | Came::Both(_) | Came::Early(_)))
                    if since.elapsed() > AT_ONCE =>
                {
                    return None
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// The command, with what it finds in its environment.
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
            .env("LOCK_OWNER", hold.owner())
            .env("LOCK_TOKEN", hold.token().unwrap_or_default().to_string());
        command
    }

    fn name(&self) -> String {
        let name = self.options.shell.as_ref().or(self.options.command.first());
        name.map(|name: &OsString| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Ends the wait, and waits until the server knows.
    fn cancel(&self) {
        self.canceller.cancel();
        let until = Instant::now() + UNTIL_CANCELLED;
        while let Ok(event) = self.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            match event {
                Event::Waited(Outcome::Granted(hold)) => {
                    // In the very moment in which we leave.
                    self.keep(&Arc::new(hold)).release();
                    self.until_released();
                    return;
                }
                // Who asks twice does not want to wait.
                Event::Waited(_) | Event::Signal(Came::PassOn(_) | Came::Both(_) | Came::Early(_)) => return,
                _ => {}
            }
        }
        self.say("the server does not take the wait back");
    }

    fn unavailable(&self, error: &Error) -> u8 {
        let words = in_words(error);
        // Which server it is, is said where there is none.
        voice::say(&if error.is_unsent() {
            words
        } else {
            format!("{}: {words}", self.options.place.shown())
        });
        options::UNAVAILABLE
    }

    fn say(&self, what: &str) {
        if self.options.verbose {
            voice::say(&format!("{}: {what}", String::from_utf8_lossy(&self.wanted.key)));
        }
    }

    fn say_lost(&self, why: &str) {
        voice::say(&format!("lost the lock {}: {why}", String::from_utf8_lossy(&self.wanted.key)));
    }
}
