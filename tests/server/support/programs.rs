// SPDX-License-Identifier: MIT

//! The programs of `examples/`, as a reader would run them: each in a process of its own.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::{self, sleep, JoinHandle};
use std::time::{Duration, Instant};

/// The slowest run takes a few seconds on an idle machine.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

/// An example that runs; killed if its test fails.
pub struct Run {
    child: Child,
    /// What it prints, read all the time: a pipe that is full would stop it.
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Run {
    pub fn spawn(mut program: Command) -> Run {
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A test that runs in the background or by nohup ignores them, and so would its children.
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

    /// Waits for its end.
    pub fn finish(self) -> Output {
        self.finish_within(RUN_PATIENCE)
    }

    /// Waits for its end, and fails if that takes longer.
    pub fn finish_within(mut self, patience: Duration) -> Output {
        let deadline = Instant::now() + patience;
        while !self.has_ended() {
            if Instant::now() > deadline {
                let printed = Printed::new(&self.kill());
                panic!("the example does not end within {patience:?}; {printed}");
            }
            sleep(Duration::from_millis(5));
        }
        self.output()
    }

    /// Waits for a condition that the program brings about, and fails if it ends before, or takes longer than a run may.
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

    /// What Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal(libc::SIGINT);
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Ends it as `kill -9` would.
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

/// What an example has printed.
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
        write!(f, "the example printed\n{}{}", self.stdout, self.stderr)
    }
}

/// An example in Rust.
pub fn rust(example: &str) -> Command {
    Command::new(built(example))
}

/// `lockrun` or `locktop`.
pub fn tool(name: &str) -> Command {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    Command::new(
        TOOLS.get_or_init(|| built_there("REDIS_LOCK_TOOLS", &["--package", "redis-lock-tools"])).join(name),
    )
}

/// An example's file.
pub fn built(file: &str) -> PathBuf {
    static EXAMPLES: OnceLock<PathBuf> = OnceLock::new();
    EXAMPLES
        .get_or_init(|| built_there("REDIS_LOCK_EXAMPLES", &["--workspace", "--examples"]).join("examples"))
        .join(file)
}

/// The folder that an environment variable names, or else the one that this test is in, in which cargo has built what it is told to.
/// `cargo test` builds the examples, but `cargo test --test server` does not; it is no work if they are there already.
fn built_there(variable: &str, what: &[&str]) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return PathBuf::from(path);
    }
    // target/debug/deps/server-0123456789abcdef
    let test = std::env::current_exe().unwrap();
    let profile_dir = test.ancestors().nth(2).unwrap();
    let profile = match profile_dir.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        profile => profile,
    };
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--profile", profile, "--target-dir"])
        .arg(profile_dir.parent().unwrap())
        .args(what)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "{what:?} does not build");
    profile_dir.to_owned()
}

/// An example in Python; nothing, with a word about it, if there is no Python that has redis-py. With
/// `REQUIRE_ALL_SERVERS` set, that is a failure.
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
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    Some(command)
}

/// An example's file that `tests/setup-examples.sh` makes, by its path in `target/examples-clients`; nothing, with a
/// word about it, if it has not. With `REQUIRE_ALL_SERVERS` set, that is a failure.
pub fn set_up(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/examples-clients").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "{name} is not built");
    eprintln!("SKIPPED: the example {name} is not built, see tests/setup-examples.sh");
    None
}
