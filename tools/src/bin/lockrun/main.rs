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
mod voice;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use clap::{CommandFactory, Parser};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{gethostname, getpid, Pid};
use redis::RedisError;
use redis_lock_tools::server::{in_words, trouble, Server, Trouble};
use redis_lock_tools::texts;
use uuid::Uuid;

use child::{Ended, Terminal};
use keeper::{Hold, Keeper, Outcome, Told};
use lock::{Lock, Moment, Wait};
use options::Options;
use signals::{Came, Stage};

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
    lock: Lock,
    wait: Wait,
    begun: Instant,
    /// What was blocked when this program was started, and is to be for the command.
    blocked: SigSet,
    tell: Sender<Event>,
    told: Receiver<Event>,
    /// The id of the call that waits, so that it can be undone.
    request: Arc<Mutex<Uuid>>,
    /// The wait is about to be undone, so nobody needs to hear that it has ended.
    leaving: Arc<AtomicBool>,
    stage: Arc<Stage>,
}

impl Run {
    fn begin(options: Options) -> Result<(Run, Server), Box<dyn std::error::Error>> {
        let name = match &options.owner {
            Some(name) => name.clone(),
            None => format!("{}:{}", gethostname()?.to_string_lossy(), getpid()),
        };
        let lock = Lock {
            key: options.key.clone().unwrap_or_default().into_vec(),
            owner: format!("{name}:{}", Uuid::new_v4()),
            shared: options.shared || options.limit.is_some(),
            limit: options.limit,
            lease: options.lease,
        };
        let wait = match options.wait {
            _ if options.nonblock => Wait::Not,
            Some(wait) if wait.is_zero() => Wait::Not,
            Some(wait) => Wait::Until(Moment::now().plus(wait)),
            None => Wait::Always,
        };
        // Before anything else, so that a URL that makes no sense is told as such.
        let server = options.place.server().map_err(|error| in_words(&error))?;
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
            leaving: Arc::new(AtomicBool::new(false)),
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
                    hold.token
                ));
                self.run(hold)
            }
            Err(status) => End::Status(status),
        }
    }

    /// Waits until the lock is ours, or says with what status to end.
    fn wait_for_the_lock(&self, server: Server) -> Result<Hold, u8> {
        self.say("waiting");
        let (tell, lock, wait) = (self.tell.clone(), self.lock.clone(), self.wait);
        let (request, leaving) = (self.request.clone(), self.leaving.clone());
        thread::spawn(move || {
            let note = |id| *request.lock().unwrap_or_else(PoisonError::into_inner) = id;
            let say = |what: &str| {
                if !leaving.load(Ordering::Acquire) {
                    voice::say(what);
                }
            };
            let outcome = keeper::acquire(server, lock, wait, note, &say);
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
        let (valid_until, token) = (hold.valid_until.clone(), hold.token);
        let tell = self.tell.clone();
        // From the first moment on, whatever takes long in what follows.
        let keeper = Keeper::start(hold, move |told| drop(tell.send(Event::Keeper(told))));
        // It may have been stopped since the grant.
        if valid_until.get().left().is_zero() {
            self.say_lost("before the command began");
            keeper.release();
            self.until_released();
            return End::Status(options::LOST);
        }
        self.say(&format!("running {}", self.name()));
        let terminal = Terminal::now();
        self.stage.starting();
        let started = child::start(self.command(token), self.blocked);
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
        match self.until_ended(command, &valid_until) {
            Ok(ended) => {
                if matches!(ended, Ended::Killed(_)) {
                    terminal.restore();
                }
                self.say(&format!("the command has ended with {}", ended.status()));
                let in_time = !valid_until.get().left().is_zero();
                keeper.release();
                match self.until_released() {
                    Some(Err(error)) if trouble(&error) == Trouble::NotOwner || !in_time => {
                        self.say_lost(&format!("before the command ended: {}", in_words(&error)));
                        return End::Status(options::LOST);
                    }
                    Some(Err(error)) => {
                        voice::say(&format!(
                            "the lock is not given back, its lease ends it: {}",
                            in_words(&error)
                        ));
                    }
                    Some(Ok(_)) => self.say("released"),
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

    /// Waits for the end of the command; or tells why the lock is lost.
    fn until_ended(&self, command: Pid, valid_until: &lock::ValidUntil) -> Result<Ended, String> {
        loop {
            let left = valid_until.get().left();
            if left.is_zero() {
                return Err("the server could not be reached for the time of a lease".to_owned());
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
                    if !valid_until.get().left().is_zero() {
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
        let until = Moment::now().plus(self.options.kill_after);
        child::signal_all(Signal::SIGTERM);
        child::signal_all(Signal::SIGCONT);
        while !until.left().is_zero() {
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
        let until = Moment::now().plus(UNTIL_KILLED);
        while !until.left().is_zero() && child::signal_all(Signal::SIGKILL) > 0 {
            thread::sleep(LEFT_BEHIND);
        }
    }

    /// What came of giving the lock back; nothing if that takes too long, or a signal says that it does.
    fn until_released(&self) -> Option<redis::RedisResult<i64>> {
        let (since, until) = (Instant::now(), Moment::now().plus(UNTIL_RELEASED));
        loop {
            match self.told.recv_timeout(until.left()) {
                Ok(Event::Keeper(Told::Released(released))) => return Some(released),
                // That of Ctrl-C which has ended the command may come behind its end.
                Ok(Event::Signal(Came::PassOn(_) | Came::Both(_))) if since.elapsed() > AT_ONCE => {
                    return None
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// The command, with what it finds in its environment.
    fn command(&self, token: i64) -> Command {
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
            .env("LOCK_KEY", OsStr::from_bytes(&self.lock.key))
            .env("LOCK_OWNER", &self.lock.owner)
            .env("LOCK_TOKEN", token.to_string());
        command
    }

    fn name(&self) -> String {
        let name = self.options.shell.as_ref().or(self.options.command.first());
        name.map(|name: &OsString| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Undoes the wait, in case it is granted in the very moment in which we leave.
    fn cancel(&self) {
        self.leaving.store(true, Ordering::Release);
        let request = *self.request.lock().unwrap_or_else(PoisonError::into_inner);
        if request.is_nil() {
            return;
        }
        if let Err(error) =
            self.options.place.server().and_then(|server| keeper::cancel(server, &self.lock, &request))
        {
            self.say(&format!("the wait could not be cancelled: {}", in_words(&error)));
        }
    }

    fn unavailable(&self, error: &RedisError) -> u8 {
        voice::say(&format!("{}: {}", self.options.place.shown(), in_words(error)));
        options::UNAVAILABLE
    }

    fn say(&self, what: &str) {
        if self.options.verbose {
            voice::say(&format!("{}: {what}", String::from_utf8_lossy(&self.lock.key)));
        }
    }

    fn say_lost(&self, why: &str) {
        voice::say(&format!("lost the lock {}: {why}", String::from_utf8_lossy(&self.lock.key)));
    }
}
