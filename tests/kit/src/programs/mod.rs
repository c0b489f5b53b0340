// SPDX-License-Identifier: MIT

//! Programs of the project and its clients, run as a user would run them: each in its own process.

pub mod cli;
pub mod driver;
pub mod redisson;
pub mod site;
pub mod tmux;

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::{self, sleep, JoinHandle};
use std::time::{Duration, Instant};

use crate::artifacts::{self, root};

pub use crate::artifacts::example as built;

/// Maximum duration of a run. The slowest program takes a few seconds on an idle machine.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

/// A running program. Dropping this value kills it.
pub struct Run {
    child: Child,
    /// Threads that read the output: a full pipe would block the program.
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Run {
    pub fn spawn(mut program: Command) -> Run {
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A test in the background or under nohup ignores these signals, and child processes would inherit that.
        // SAFETY: between fork and exec, the child makes system calls and nothing else.
        unsafe {
            program.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                Ok(())
            });
        }
        let mut child =
            program.spawn().unwrap_or_else(|error| panic!("{program:?} cannot be started: {error}"));
        let stdout = Some(read_all(child.stdout.take().unwrap()));
        let stderr = Some(read_all(child.stderr.take().unwrap()));
        Run { child, stdout, stderr }
    }

    /// Waits for the end of the program.
    pub fn finish(self) -> Output {
        self.finish_within(RUN_PATIENCE)
    }

    /// Waits for the end of the program. Panics if it takes longer than `patience`.
    pub fn finish_within(mut self, patience: Duration) -> Output {
        let deadline = Instant::now() + patience;
        while !self.has_ended() {
            if Instant::now() > deadline {
                let printed = Printed::new(&self.kill());
                panic!("the program does not end within {patience:?}; {printed}");
            }
            sleep(Duration::from_millis(5));
        }
        self.output()
    }

    /// Waits for a condition that the program brings about. Panics if the program ends first or takes too long.
    pub fn until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + RUN_PATIENCE;
        while !condition() {
            if self.has_ended() || Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("waited in vain until {what}; {}", Printed::new(&self.output()));
            }
            sleep(Duration::from_millis(5));
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Interrupts the program as Ctrl-C does, once its main thread sleeps. Python handles a signal that arrives right before a
    /// blocking system call only after that call.
    pub fn interrupt(&self) {
        let stat = format!("/proc/{}/stat", self.child.id());
        crate::until("the main thread sleeps", || fs::read_to_string(&stat).unwrap().contains(") S "));
        self.signal(libc::SIGINT);
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: the process is our child, and is not reaped before `self` is dropped.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Stops the program. Waits until all its threads are stopped, which takes longer than the call on a busy machine.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let threads = format!("/proc/{}/task", self.child.id());
        let is_stopped = |thread: io::Result<fs::DirEntry>| {
            let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat")));
            stat.is_ok_and(|stat| stat.contains(") T "))
        };
        crate::until("all threads are stopped", || fs::read_dir(&threads).unwrap().all(is_stopped));
    }

    /// Ends the program as `kill -9` does.
    pub fn kill(mut self) -> Output {
        let _ = self.child.kill();
        self.output()
    }

    fn output(&mut self) -> Output {
        let status = self.child.wait().unwrap();
        let [stdout, stderr] =
            [&mut self.stdout, &mut self.stderr].map(|reader| reader.take().unwrap().join().unwrap());
        Output { status, stdout, stderr }
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The output of a program.
pub struct Printed {
    pub stdout: String,
    pub stderr: String,
}

impl Printed {
    pub fn new(output: &Output) -> Printed {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Printed { stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl std::fmt::Display for Printed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the program printed\n{}{}", self.stdout, self.stderr)
    }
}

/// Returns the command of an example in Rust.
pub fn rust(example: &str) -> Command {
    Command::new(built(example))
}

/// Returns the command of `lockrun` or `locktop`.
pub fn tool(name: &str) -> Command {
    Command::new(artifacts::tool(name))
}

/// Returns the command of an example in Python. Without a Python that has redis-py, returns `None` and prints a line; panics
/// instead if `REQUIRE_ALL_SERVERS` is set.
pub fn python(path: &str) -> Option<Command> {
    static PYTHON: OnceLock<Option<&'static str>> = OnceLock::new();
    let has_redis = |python: &&str| {
        let mut command = Command::new(python);
        command.args(["-c", "import redis"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let python = *PYTHON.get_or_init(|| ["python3", "/usr/bin/python3"].into_iter().find(has_redis));
    let Some(python) = python else {
        assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "no python3 can import redis");
        eprintln!("SKIPPED: no python3 can import redis, {path} is not tested");
        return None;
    };
    let mut command = Command::new(python);
    command.arg(root().join(path));
    Some(command)
}

/// Returns the file of an example that `tests/scripts/setup-examples.sh` builds, by its path in `target/examples-clients`. If it
/// is missing, returns `None` and prints a line; panics instead if `REQUIRE_ALL_SERVERS` is set.
pub fn set_up(name: &str) -> Option<PathBuf> {
    let path = root().join("target/examples-clients").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "{name} is not built");
    eprintln!("SKIPPED: the example {name} is not built, see tests/scripts/setup-examples.sh");
    None
}
