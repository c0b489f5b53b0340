//! The programs of `examples/`, as a reader would run them: each in a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The slowest run takes a few seconds on an idle machine.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

/// An example that runs; killed if its test fails.
pub struct Run(Option<std::process::Child>);

impl Run {
    pub fn spawn(mut program: Command) -> Run {
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run(Some(program.spawn().unwrap_or_else(|error| panic!("{program:?} cannot be started: {error}"))))
    }

    /// Waits for its end. What it prints fits into a pipe's buffer, so it need not be read before.
    pub fn finish(mut self) -> Output {
        let deadline = Instant::now() + RUN_PATIENCE;
        while self.0.as_mut().unwrap().try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the example does not end");
            sleep(Duration::from_millis(5));
        }
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
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

/// An example's file. `cargo test` builds them, but `cargo test --test server` does not, so they are built here: into
/// the folder that this test is in, where that is no work if they are there already.
pub fn built(file: &str) -> PathBuf {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        if let Some(path) = std::env::var_os("REDIS_LOCK_EXAMPLES") {
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
            .args(["build", "--quiet", "--examples", "--profile", profile, "--target-dir"])
            .arg(profile_dir.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the examples do not build");
        profile_dir.join("examples")
    });
    programs.join(file)
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
