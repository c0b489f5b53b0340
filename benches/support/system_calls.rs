// SPDX-License-Identifier: MIT

//! System calls of a server's main thread, counted by strace.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::server::Server;
use super::{machine, Outcome};

/// How long strace may take until it traces the server.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often each is made.
pub type Counts = BTreeMap<String, u64>;

/// What the server does for this. `None`, with a word about it, if there is no strace.
pub fn count(server: &Server, play: impl FnOnce() -> Outcome<()>) -> Outcome<Option<Counts>> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: strace is not installed");
        return Ok(None);
    }
    let table = tempfile::NamedTempFile::new()?;
    let process = server.process().to_string();
    let mut strace = Command::new("strace");
    strace.args(["-c", "-U", "calls,name", "-o"]).arg(table.path()).args(["-p", &process]);
    strace.stdin(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        strace.pre_exec(|| {
            machine::die_with_parent();
            Ok(())
        });
    }
    let mut strace = strace.spawn()?;
    let patience = Instant::now() + PATIENCE;
    while !machine::is_traced(server.process()) {
        if strace.try_wait()?.is_some() || Instant::now() > patience {
            let _ = strace.kill();
            strace.wait()?;
            eprintln!("SKIPPED: strace may not trace the server");
            return Ok(None);
        }
        sleep(Duration::from_millis(1));
    }
    let played = play();
    // SAFETY: a signal to our own child, which has not been waited for: it writes its table, and lets go of the server.
    unsafe { libc::kill(libc::pid_t::try_from(strace.id())?, libc::SIGINT) };
    strace.wait()?;
    played?;
    parse(&fs::read_to_string(table.path())?).map(Some)
}

/// Reads the table: a number and a name in each line, between two lines of dashes.
pub fn parse(table: &str) -> Outcome<Counts> {
    let is_rule = |line: &&str| line.starts_with('-');
    let rows = table.lines().skip_while(|line| !is_rule(line)).skip(1).take_while(|line| !is_rule(line));
    rows.map(|row| match row.split_whitespace().collect::<Vec<_>>()[..] {
        [calls, name] => Ok((name.to_owned(), calls.parse()?)),
        _ => Err(format!("strace says {row:?}").into()),
    })
    .collect()
}
