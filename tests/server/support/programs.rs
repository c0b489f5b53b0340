// SPDX-License-Identifier: MIT

//! Runs the programs of `examples/` and `docs/clients/` as a reader would: each in a separate process.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::{self, sleep, JoinHandle};
use std::time::{Duration, Instant};

/// Limit for one run. The slowest takes a few seconds on an idle machine.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

/// A running example. Dropping it kills the process.
pub struct Run {
    child: Child,
    /// Reads the output all the time: a full pipe would stop the process.
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Run {
    pub fn spawn(mut program: Command) -> Run {
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A test that runs in the background or under nohup ignores these signals. Its children would inherit that.
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

    /// Waits until the process ends, for at most [`RUN_PATIENCE`].
    pub fn finish(self) -> Output {
        self.finish_within(RUN_PATIENCE)
    }

    /// Waits until the process ends. Panics if that takes longer than `patience`.
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

    /// Waits for a condition. Panics if the process ends first, or after [`RUN_PATIENCE`].
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

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal(libc::SIGINT);
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Sends SIGKILL and returns the output up to then.
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

/// The output of an example.
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

/// The command for an example in Rust, by its name in `Cargo.toml`.
pub fn rust(example: &str) -> Command {
    Command::new(built(example))
}

/// The command for `lockrun` or `locktop`.
pub fn tool(name: &str) -> Command {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    Command::new(
        TOOLS.get_or_init(|| built_there("REDIS_LOCK_TOOLS", &["--package", "redis-lock-tools"])).join(name),
    )
}

/// The path of a file in the folder of built examples.
pub fn built(file: &str) -> PathBuf {
    static EXAMPLES: OnceLock<PathBuf> = OnceLock::new();
    EXAMPLES
        .get_or_init(|| built_there("REDIS_LOCK_EXAMPLES", &["--workspace", "--examples"]).join("examples"))
        .join(file)
}

/// Builds with cargo and returns the profile's folder. If the environment variable is set, returns its value and builds
/// nothing. The build is needed as `cargo test --test server` builds no examples; it takes no time if they exist.
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

/// The command for a Python program. Without a Python that has redis-py, prints SKIPPED and returns `None`; with
/// `REQUIRE_ALL_SERVERS` set, panics.
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

/// A file that `tests/setup-examples.sh` creates, by its path in `target/examples-clients`. If it does not exist, prints
/// SKIPPED and returns `None`; with `REQUIRE_ALL_SERVERS` set, panics.
pub fn set_up(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/examples-clients").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "{name} is not built");
    eprintln!("SKIPPED: the example {name} is not built, see tests/setup-examples.sh");
    None
}
