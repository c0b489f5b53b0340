// SPDX-License-Identifier: MIT

//! `lockrun`: runs a command while it holds a lock.
//!
//! One thread waits for signals, one for the lock and then for the command, one renews the lock. All tell the main thread,
//! which decides.

mod child;
mod keeper;
mod lock;
mod options;
mod signals;

use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use clap::{CommandFactory, Parser};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{gethostname, getpid};
use redis::RedisError;
use redis_lock_tools::server::{in_words, Server};
use redis_lock_tools::texts;
use uuid::Uuid;

use child::{Change, Group};
use keeper::{Hold, Keeper, Outcome};
use lock::{Lock, Moment, Wait};
use options::Options;

/// What the main thread is told.
enum Event {
    Signal(Signal),
    Waited(Outcome),
    Lost(String),
    Child(Change),
}

/// How often it is looked for what a command has left behind that has lost its lock.
const LEFT_BEHIND: Duration = Duration::from_millis(20);

/// How long a process may take to end by SIGKILL.
const UNTIL_KILLED: Duration = Duration::from_secs(2);

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
    match Run::begin(options) {
        Ok(run) => ExitCode::from(run.finish()),
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(options::USAGE)
        }
    }
}

/// One run of this program.
struct Run {
    options: Options,
    lock: Lock,
    wait: Wait,
    begun: Instant,
    /// What was blocked when this program was started, and is to be for the command.
    blocked: SigSet,
    tell: Sender<Event>,
    told: Receiver<Event>,
    /// The id of the call that waits, so that it can be undone.
    request: Arc<Mutex<Uuid>>,
}

impl Run {
    fn begin(options: Options) -> Result<Run, Box<dyn std::error::Error>> {
        let name = match &options.owner {
            Some(name) => name.clone(),
            None => format!("{}:{}", gethostname()?.to_string_lossy(), getpid()),
        };
        let lock = Lock {
            key: options.key.clone().unwrap_or_default(),
            owner: format!("{name}:{}", Uuid::new_v4()),
            shared: options.shared,
            lease: options.lease,
        };
        let wait = match options.wait {
            _ if options.nonblock => Wait::Not,
            Some(wait) if wait.is_zero() => Wait::Not,
            Some(wait) => Wait::Until(Moment::now().plus(wait)),
            None => Wait::Always,
        };
        // Asked for once before anything else, so that a URL that makes no sense is told as such.
        options.place.server()?;
        let signals = signals::take()?;
        let (tell, told) = mpsc::channel();
        let run = Run {
            options,
            lock,
            wait,
            begun: Instant::now(),
            blocked: signals.before,
            tell,
            told,
            request: Arc::new(Mutex::new(Uuid::nil())),
        };
        run.listen(signals.signals);
        Ok(run)
    }

    fn finish(self) -> u8 {
        match self.wait_for_the_lock() {
            Ok(hold) => {
                self.say(&format!(
                    "acquired after {:.3} s, token {}",
                    self.begun.elapsed().as_secs_f64(),
                    hold.token
                ));
                self.run(hold)
            }
            Err(status) => status,
        }
    }

    /// Waits until the lock is ours, or says with what status to end.
    fn wait_for_the_lock(&self) -> Result<Hold, u8> {
        let server = self.server().map_err(|error| self.unavailable(&error))?;
        self.say("waiting");
        let (tell, lock, wait, request) =
            (self.tell.clone(), self.lock.clone(), self.wait, self.request.clone());
        thread::spawn(move || {
            let note = |id| *request.lock().unwrap_or_else(PoisonError::into_inner) = id;
            let outcome = keeper::acquire(server, lock, wait, note, &complain);
            let _ = tell.send(Event::Waited(outcome));
        });
        loop {
            match self.told.recv() {
                Ok(Event::Waited(Outcome::Granted(hold))) => return Ok(*hold),
                Ok(Event::Waited(Outcome::NotGranted)) => {
                    self.say("somebody else holds the lock");
                    return Err(self.options.conflict_exit_code);
                }
                Ok(Event::Waited(Outcome::Failed(error))) => {
                    // It may have been granted, and the reply got lost.
                    self.cancel();
                    return Err(self.unavailable(&error));
                }
                Ok(Event::Signal(Signal::SIGCONT)) => {}
                Ok(Event::Signal(signal)) => {
                    self.cancel();
                    signals::die_of(signal);
                }
                Ok(Event::Lost(_) | Event::Child(_)) => {}
                Err(_) => return Err(options::UNAVAILABLE),
            }
        }
    }

    /// Runs the command, and says with what status to end.
    fn run(&self, hold: Hold) -> u8 {
        // It may have been stopped since the grant.
        if hold.valid_until.get().left().is_zero() {
            complain(&format!("lost the lock {} before the command began", self.lock.key));
            let _ = Keeper::start(hold, |_| {}).release();
            return options::LOST;
        }
        self.say(&format!("running {}", self.name()));
        let group = match Group::start(self.command(&hold), self.blocked) {
            Ok(group) => group,
            Err(error) => {
                let _ = Keeper::start(hold, |_| {}).release();
                complain(&format!("{}: {error}", self.name()));
                let missing = error.kind() == io::ErrorKind::NotFound;
                return if missing { options::NOT_FOUND } else { options::NOT_RUN };
            }
        };
        let valid_until = hold.valid_until.clone();
        let lost = self.tell.clone();
        let keeper = Keeper::start(hold, move |why| drop(lost.send(Event::Lost(why))));
        self.watch(&group);
        let ended = loop {
            let left = valid_until.get().left();
            if left.is_zero() {
                break Err("the server could not be reached for the time of a lease".to_owned());
            }
            // The clock goes on while the machine sleeps, and this does not; so it is looked at again soon.
            match self.told.recv_timeout(left.min(Duration::from_secs(1))) {
                Ok(Event::Signal(Signal::SIGCONT)) => group.go_on(),
                Ok(Event::Signal(signal)) => group.signal(signal),
                Ok(Event::Lost(why)) => break Err(why),
                Ok(Event::Child(Change::Stopped)) => {
                    // Behind it, the lock is looked at before the command goes on.
                    if group.stop_with_it() && !valid_until.get().left().is_zero() {
                        group.go_on();
                    }
                }
                Ok(Event::Child(ended)) => break Ok(ended),
                Ok(Event::Waited(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Err("a thread has ended".to_owned()),
            }
        };
        let status = match ended {
            Ok(change) => {
                group.take_terminal_back();
                self.say(&format!("the command has ended with {}", child::status_of(change)));
                child::status_of(change)
            }
            Err(why) => {
                complain(&format!("lost the lock {}: {why}", self.lock.key));
                self.end(&group);
                group.take_terminal_back();
                options::LOST
            }
        };
        match keeper.release() {
            Ok(_) => {
                self.say("released");
                status
            }
            Err(error) if status == options::LOST => {
                self.say(&in_words(&error));
                status
            }
            Err(error) => {
                complain(&format!(
                    "the command has ended, and the lock {} was lost before: {}",
                    self.lock.key,
                    in_words(&error)
                ));
                options::LOST
            }
        }
    }

    /// Ends all processes of the command: SIGTERM, and SIGKILL when the time is over.
    fn end(&self, group: &Group) {
        let until = Moment::now().plus(self.options.kill_after);
        group.signal(Signal::SIGTERM);
        group.signal(Signal::SIGCONT);
        while group.is_there() && !until.left().is_zero() {
            thread::sleep(LEFT_BEHIND);
        }
        if !group.is_there() {
            return;
        }
        complain("it does not end: SIGKILL");
        group.signal(Signal::SIGKILL);
        // Not for ever: a process that waits for a broken disk does not end by that either.
        let until = Moment::now().plus(UNTIL_KILLED);
        while group.is_there() && !until.left().is_zero() {
            thread::sleep(LEFT_BEHIND);
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
            .env("LOCK_KEY", &self.lock.key)
            .env("LOCK_OWNER", &self.lock.owner)
            .env("LOCK_TOKEN", hold.token.to_string());
        command
    }

    fn name(&self) -> &str {
        self.options.shell.as_deref().or(self.options.command.first().map(String::as_str)).unwrap_or_default()
    }

    /// Undoes the wait, in case it is granted in the very moment in which we leave.
    fn cancel(&self) {
        let request = *self.request.lock().unwrap_or_else(PoisonError::into_inner);
        if request.is_nil() {
            return;
        }
        if let Err(error) = self.server().and_then(|server| keeper::cancel(server, &self.lock, &request)) {
            self.say(&format!("the wait could not be cancelled: {}", in_words(&error)));
        }
    }

    fn unavailable(&self, error: &RedisError) -> u8 {
        complain(&format!("{}: {}", self.options.place.shown(), in_words(error)));
        options::UNAVAILABLE
    }

    fn server(&self) -> Result<Server, RedisError> {
        self.options.place.server()
    }

    fn listen(&self, signals: SigSet) {
        let tell = self.tell.clone();
        thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                if tell.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        });
    }

    fn watch(&self, group: &Group) {
        let (tell, leader) = (self.tell.clone(), group.leader());
        thread::spawn(move || child::watch(leader, |change| tell.send(Event::Child(change)).is_ok()));
    }

    fn say(&self, what: &str) {
        if self.options.verbose {
            complain(&format!("{}: {what}", self.lock.key));
        }
    }
}

fn complain(what: &str) {
    eprintln!("lockrun: {what}");
}
