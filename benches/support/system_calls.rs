// SPDX-License-Identifier: MIT

//! System calls of a server's main thread, counted by strace.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::server::Server;
use super::{machine, Outcome};

/// The maximum time until strace has attached to the server.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often each system call was made, by its name.
pub type Counts = BTreeMap<String, u64>;

/// Counts the system calls of the server while `play` runs. Returns `None` and prints a line if strace is missing or is not
/// permitted to trace.
pub fn count(server: &Server, play: impl FnOnce() -> Outcome<()>) -> Outcome<Option<Counts>> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: strace is not installed");
        return Ok(None);
    }
    let table = tempfile::NamedTempFile::new()?;
    let process = server.id().to_string();
    let mut strace = Command::new("strace");
    strace.args(["-c", "-U", "calls,name", "-o"]).arg(table.path()).args(["-p", &process]);
    strace.stdin(Stdio::null()).stderr(Stdio::null());
    machine::tie(&mut strace, &[]);
    let mut strace = strace.spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while !machine::is_traced(server.id()) {
        if strace.try_wait()?.is_some() || Instant::now() > deadline {
            let _ = strace.kill();
            strace.wait()?;
            eprintln!("SKIPPED: strace may not trace the server");
            return Ok(None);
        }
        sleep(Duration::from_millis(1));
    }
    let played = play();
    // Makes strace detach from the server and write its table.
    // SAFETY: a signal to our own child, which has not been waited for.
    unsafe { libc::kill(libc::pid_t::try_from(strace.id())?, libc::SIGINT) };
    strace.wait()?;
    played?;
    parse(&fs::read_to_string(table.path())?).map(Some)
}

/// Parses the table of strace: a number and a name in each line, between two lines of dashes.
pub fn parse(table: &str) -> Outcome<Counts> {
    let is_rule = |line: &&str| line.starts_with('-');
    let rows = table.lines().skip_while(|line| !is_rule(line)).skip(1).take_while(|line| !is_rule(line));
    rows.map(|row| match row.split_whitespace().collect::<Vec<_>>()[..] {
        [calls, name] => Ok((name.to_owned(), calls.parse()?)),
        _ => Err(format!("strace says {row:?}").into()),
    })
    .collect()
}
