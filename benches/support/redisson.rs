// SPDX-License-Identifier: MIT

//! Redisson: scripts that make the calls which its scripts make, and the real client, a JVM that runs the agent of
//! `tests/clients/redisson`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::caller::Caller;
use super::machine::{self, Cores};
use super::server::Server;
use super::{Outcome, OWNER};

const SCRIPTS: [(&str, &str); 4] = [
    ("acquire", include_str!("scripts/acquire.lua")),
    ("release", include_str!("scripts/release.lua")),
    ("release_latched", include_str!("scripts/release_latched.lua")),
    ("compare_and_delete", include_str!("scripts/compare_and_delete.lua")),
];

/// The hashes of the scripts, which the server knows.
pub struct Scripts([(&'static str, String); 4]);

impl Scripts {
    pub fn load(caller: &mut Caller) -> Outcome<Scripts> {
        let mut hashes = SCRIPTS.map(|(name, _)| (name, String::new()));
        for (hash, (_, text)) in hashes.iter_mut().zip(SCRIPTS) {
            caller.send(&redis::cmd("SCRIPT").arg("LOAD").arg(text).get_packed_command())?;
            let reply = String::from_utf8(caller.reply()?)?;
            reply.lines().nth(1).ok_or("no hash")?.clone_into(&mut hash.1);
        }
        Ok(Scripts(hashes))
    }

    pub fn sha(&self, name: &str) -> &str {
        self.0.iter().find(|script| script.0 == name).map_or("unknown-script", |script| &script.1)
    }

    /// What a word of a [`Path`](super::paths::Path) stands for.
    pub fn meant_by(&self, word: &str, round: u32) -> String {
        if let Some(name) = word.strip_prefix("sha:") {
            self.sha(name).to_owned()
        } else if let Some(name) = word.strip_prefix("text:") {
            SCRIPTS
                .iter()
                .find(|script| script.0 == name)
                .map_or("", |script| without_comments(script.1))
                .to_owned()
        } else if word == "$owner" {
            OWNER.to_owned()
        } else {
            word.replace('#', &round.to_string())
        }
    }
}

/// The real client sends no comments.
fn without_comments(script: &str) -> &str {
    script.find("\nlocal").map_or(script, |begin| &script[begin + 1..])
}

/// The JVM; gone with this value.
pub struct Jvm {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What its threads say of a race for one lock.
pub struct Finish {
    /// Grants in all, and in the time that was measured.
    pub all_grants: f64,
    pub grants: f64,
    /// Hand-overs from one thread to another: so many of a thousand did not take longer, in microseconds.
    pub hand_overs: Vec<f64>,
}

/// Clients that share nothing, as in so many processes.
const PROCESSES: usize = 200;

impl Jvm {
    /// False, with a word about it, if Redisson is not installed.
    pub fn is_installed() -> bool {
        let installed = Path::new(&dir()).join("classes/Race.class").exists();
        if !installed {
            eprintln!("SKIPPED: Redisson 4.7.0 is not installed, see `make clients`");
        }
        installed
    }

    /// With one client as it is by default, for many threads; and with many clients, for one thread each, that share
    /// nothing but the JVM.
    pub fn connect(server: &Server, cores: &Cores) -> Outcome<Jvm> {
        let mut command = Command::new("java");
        command.args(["-Xmx512m", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp"]);
        command.args([&format!("{0}/classes:{0}/lib/*", dir()), "Agent"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let places = cores.loaders.clone();
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(move || {
                machine::die_with_parent();
                machine::pin(&places);
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|error| format!("java: {error}"))?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut jvm = Jvm { child, input, output };
        jvm.call("shared", &format!("connect single redis://{}", server.address()))?;
        for number in 0..PROCESSES {
            let settings = "threads=2 nettyThreads=1 connectionMinimumIdleSize=1 connectionPoolSize=2 \
                subscriptionConnectionMinimumIdleSize=1 subscriptionConnectionPoolSize=1";
            let connect = format!("connect single redis://{} {settings}", server.address());
            jvm.call(&format!("client-{number}"), &connect)?;
        }
        Ok(jvm)
    }

    /// Lets threads race for a lock, each of them in a closed loop.
    pub fn race(
        &mut self,
        apart: bool,
        threads: usize,
        warm_up: Duration,
        time: Duration,
    ) -> Outcome<Finish> {
        let (warm_up, time) = (warm_up.as_millis(), time.as_millis());
        let clients = match apart {
            true => (0..threads).map(|number| format!("client-{number}")).collect::<Vec<_>>().join(","),
            false => "shared".to_owned(),
        };
        let answer =
            self.call("shared", &format!("race race:{threads} {clients} {threads} {warm_up} {time}"))?;
        let numbers: Vec<f64> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        match numbers.as_slice() {
            [all_grants, grants, nanos @ ..] => Ok(Finish {
                all_grants: *all_grants,
                grants: *grants,
                hand_overs: nanos.iter().map(|nanos| nanos / 1000.0).collect(),
            }),
            _ => Err(format!("the agent says {answer}").into()),
        }
    }

    fn call(&mut self, client: &str, operation: &str) -> Outcome<String> {
        writeln!(self.input, "1 main {client} {operation}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let value = line.trim_end().strip_prefix("1 ok ");
        Ok(value.ok_or_else(|| format!("{operation}: the agent says {line:?}"))?.to_owned())
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where `tests/setup-redisson.sh` puts it.
fn dir() -> String {
    format!("{}/target/clients/redisson-4.7.0", env!("CARGO_MANIFEST_DIR"))
}
