// SPDX-License-Identifier: MIT

//! Redisson in two forms: scripts that make the same calls as Redisson's own scripts, and the real client. The real
//! client is a JVM that runs the agent of `tests/clients/redisson`.

use std::process::Command;
use std::time::Duration;

use redis_lock_test_kit::lua;
use redis_lock_test_kit::programs::redisson::{Redisson, Version};

use super::caller::Caller;
use super::machine::{self, Cores};
use super::race_result::{Load, RaceAnswer};
use super::server::Server;
use super::{Outcome, OWNER};

const SCRIPTS: [(&str, &str); 4] = [
    ("acquire", lua::ACQUIRE),
    ("release", lua::RELEASE),
    ("release_latched", lua::RELEASE_LATCHED),
    ("compare_and_delete", lua::COMPARE_AND_DELETE),
];

/// Scripts that the server has loaded, by name, with their hashes.
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

    /// Expands a placeholder in the calls of a [`Path`](super::paths::Path).
    pub fn expand_word(&self, word: &str, round: u32) -> String {
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

/// Removes the comment above a script, which the real client does not send.
fn without_comments(script: &str) -> &str {
    script.find("\nlocal").map_or(script, |begin| &script[begin + 1..])
}

/// A JVM with clients of Redisson. It ends when this value is dropped.
pub struct Jvm(Redisson);

/// Number of clients that share only the JVM, as if each ran in its own process.
const PROCESSES: usize = 200;

impl Jvm {
    /// Returns false and prints a line if Redisson is not installed.
    pub fn is_installed() -> bool {
        Version::V4_7_0.is_installed()
    }

    /// Connects one client with default pools, for many threads, and many clients for one thread each.
    pub fn connect(server: &Server, cores: &Cores) -> Jvm {
        let mut java = Command::new("java");
        java.args(["-Xmx512m", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]);
        machine::tie(&mut java, &cores.loaders);
        let jvm = Redisson::start_with(Version::V4_7_0, java);
        // On a slow machine, 200 clients exceed the default time limit of a call, 3 s.
        let single = format!("single {} timeout=30000", server.url());
        jvm.connect("shared", &single);
        for number in 0..PROCESSES {
            let settings = "threads=2 nettyThreads=1 connectionMinimumIdleSize=1 connectionPoolSize=2 \
                subscriptionConnectionMinimumIdleSize=1 subscriptionConnectionPoolSize=1";
            jvm.connect(&format!("client-{number}"), &format!("{single} {settings}"));
        }
        Jvm(jvm)
    }

    /// Lets threads race for locks, each of them in a closed loop.
    pub fn race(&self, apart: bool, load: Load, warm_up: Duration, time: Duration) -> Outcome<RaceAnswer> {
        let names = |count: usize, name: &dyn Fn(usize) -> String| -> String {
            (0..count).map(name).collect::<Vec<_>>().join(",")
        };
        let Load { clients: threads, locks } = load;
        let clients = match apart {
            true => names(threads, &|number| format!("client-{number}")),
            false => "shared".to_owned(),
        };
        let locks = names(locks, &|number| format!("race:{threads}:{number}"));
        let (warm_up_ms, ms) = (warm_up.as_millis(), time.as_millis());
        let race = format!("race {locks} {clients} {threads} {warm_up_ms} {ms}");
        let thread = self.0.thread_of("shared", "main");
        // At the end, each thread still gets its lock once.
        let rest = warm_up + time + Duration::from_millis(500) * u32::try_from(threads)?;
        RaceAnswer::parse(&thread.start(&race).with_more_time(rest).wait())
    }
}
