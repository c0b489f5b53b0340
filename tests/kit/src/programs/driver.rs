// SPDX-License-Identifier: MIT

//! The drivers of the packages in `clients/`. A driver is a program that executes requests with its package: see
//! `clients/spec/README.md`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::artifacts::root;

/// Maximum time until an answer. A test fails if the answer takes longer. A request may wait 15 s for the loss of a lock.
const PATIENCE: Duration = Duration::from_secs(40);

/// A package that has a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    Python,
    PythonAsync,
    Rust,
    RustBlocking,
    Go,
    NodeIoredis,
    NodeRedis,
    JavaLettuce,
    JavaJedis,
}

impl Package {
    pub const ALL: [Package; 9] = [
        Package::Python,
        Package::PythonAsync,
        Package::Rust,
        Package::RustBlocking,
        Package::Go,
        Package::NodeIoredis,
        Package::NodeRedis,
        Package::JavaLettuce,
        Package::JavaJedis,
    ];

    /// Returns the words that start the driver, without the server's URL, or `None` if the driver is not built.
    fn program(self) -> Option<Vec<PathBuf>> {
        let at = |path: &str| root().join(path);
        let program = match self {
            Package::Python | Package::PythonAsync => {
                vec![at("target/python-client/bin/python3"), at("clients/python/driver.py")]
            }
            Package::Rust | Package::RustBlocking => {
                vec![super::tool("lock-driver-rust").get_program().into()]
            }
            Package::Go => vec![at("target/client-go/driver")],
            Package::NodeIoredis | Package::NodeRedis => {
                vec!["node".into(), at("target/client-node/driver.mjs")]
            }
            Package::JavaLettuce | Package::JavaJedis => {
                vec!["java".into(), at("target/client-java/redis-lock-driver/classes.jsa")]
            }
        };
        program.iter().filter(|path| path.is_absolute()).all(|path| path.exists()).then_some(program)
    }

    /// Returns false and prints a line if the driver is not built. Panics instead if `REQUIRE_ALL_SERVERS` is set.
    pub fn is_built(self) -> bool {
        let is_built = self.program().is_some();
        if !is_built {
            assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "the driver of {self:?} is not built");
            eprintln!("SKIPPED: the driver of {self:?} is not built, see `make clients`");
        }
        is_built
    }

    /// Returns the next package that is built, or this one if no other is.
    pub fn other(self) -> Package {
        let at = Package::ALL.iter().position(|package| *package == self).unwrap();
        let others = Package::ALL.into_iter().cycle().skip(at + 1).take(Package::ALL.len() - 1);
        others.into_iter().find(|package| package.program().is_some()).unwrap_or(self)
    }

    /// Returns the command of an example in `examples/` that uses the package.
    ///
    /// # Panics
    ///
    /// If the package is not built.
    pub fn example(self, name: &str) -> Command {
        let at = |path: String| root().join(path);
        let mut command = Command::new(&self.program().unwrap()[0]);
        match self {
            Package::Python | Package::PythonAsync => {
                self.environment(&mut command);
                command.arg(at(format!("examples/{name}.py")));
            }
            Package::NodeIoredis | Package::NodeRedis => {
                command.arg(at(format!("target/client-node/examples/{name}.mjs")));
            }
            Package::Go => command = Command::new(at(format!("target/client-go/{name}"))),
            Package::JavaLettuce | Package::JavaJedis => {
                java(&mut command);
                // The file of a Java class has the name of the class.
                let class = name[..1].to_uppercase() + &name[1..];
                command.arg(at(format!("examples/{class}.java")));
            }
            Package::Rust | Package::RustBlocking => command = super::rust(name),
        }
        command
    }

    fn environment(self, command: &mut Command) {
        if matches!(self, Package::Python | Package::PythonAsync) {
            command.env("PYTHONPATH", root().join("clients/python/src"));
            command.env("PYTHONDONTWRITEBYTECODE", "1");
        }
    }

    fn command(self, url: &str) -> Command {
        let program = self.program().unwrap();
        let mut command = Command::new(&program[0]);
        if matches!(self, Package::JavaLettuce | Package::JavaJedis) {
            java(&mut command);
            command.arg("io.github.redislock.driver.Driver");
        } else {
            command.args(&program[1..]);
        }
        command.arg(url);
        self.environment(&mut command);
        match self {
            Package::Python | Package::PythonAsync => {
                command.args((self == Package::PythonAsync).then_some("--async"));
            }
            Package::RustBlocking => {
                command.arg("--blocking");
            }
            Package::NodeRedis => {
                command.args(["--client", "node-redis"]);
            }
            Package::JavaJedis => {
                command.arg("--jedis");
            }
            _ => {}
        }
        command
    }
}

/// Adds the options of Java and the class path. The options make the start faster, because many drivers run at once.
fn java(command: &mut Command) {
    let built = root().join("target/client-java/redis-lock-driver");
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]);
    command.arg(format!("-XX:SharedArchiveFile={}/classes.jsa", built.display()));
    command.args(["-cp", &format!("{0}/*:{0}/dependency/*", built.display())]);
}

/// A running driver. Dropping this value kills it.
pub struct Driver {
    child: Child,
    stdin: Option<ChildStdin>,
    asked: u64,
    answers: Arc<Answers>,
}

#[derive(Default)]
struct Answers {
    by_number: Mutex<HashMap<u64, Value>>,
    came: Condvar,
}

impl Driver {
    pub fn start(package: Package, url: &str) -> Driver {
        Driver::start_with(package, url, [])
    }

    /// Starts a driver with these variables in its environment.
    pub fn start_with(
        package: Package,
        url: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Driver {
        let mut command = package.command(url);
        command.envs(variables).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let answers = Arc::new(Answers::default());
        let heard = answers.clone();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(answer) = serde_json::from_str::<Value>(&line) else {
                    eprintln!("the driver of {package:?} says: {line}");
                    continue;
                };
                let number = answer["n"].as_u64().unwrap_or_else(|| panic!("no number in {line}"));
                heard.by_number.lock().unwrap().insert(number, answer);
                heard.came.notify_all();
            }
        });
        Driver { child, stdin, asked: 0, answers }
    }

    /// Sends a request. Returns its number.
    pub fn ask(&mut self, mut request: Value) -> u64 {
        self.asked += 1;
        request["n"] = self.asked.into();
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{request}").and_then(|()| stdin.flush()).expect("the driver has ended");
        self.asked
    }

    /// Waits for the answer to a request.
    pub fn answer(&self, number: u64) -> Value {
        let answers = self.answers.by_number.lock().unwrap();
        let not_yet = |answers: &mut HashMap<u64, Value>| !answers.contains_key(&number);
        let (mut answers, _) = self.answers.came.wait_timeout_while(answers, PATIENCE, not_yet).unwrap();
        answers.remove(&number).unwrap_or_else(|| panic!("no answer to request {number}"))
    }

    pub fn has_answered(&self, number: u64) -> bool {
        self.answers.by_number.lock().unwrap().contains_key(&number)
    }

    pub fn is_running(&self) -> bool {
        self.stdin.is_some()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.stdin = None;
    }

    /// Closes the input of the driver. Panics unless the driver then ends with success.
    pub fn finish(mut self) {
        if self.stdin.take().is_some() {
            crate::until("the driver ends", || self.child.try_wait().unwrap().is_some());
            assert!(self.child.wait().unwrap().success(), "the driver failed");
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
