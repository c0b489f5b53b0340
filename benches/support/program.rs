// SPDX-License-Identifier: MIT

//! A child process that gets lines and answers with lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::Duration;

use super::Outcome;

/// The longest time until an answer. A killed holder can block a lock for a minute.
const PATIENCE: Duration = Duration::from_secs(120);

/// The process. It is killed when this value is dropped.
pub struct Program {
    name: String,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Program {
    pub fn start(command: &mut Command) -> Outcome<Program> {
        let name = format!("{:?}", command.get_program());
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().map_err(|error| format!("{name}: {error}"))?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Program { name, child, input, lines })
    }

    pub fn send(&mut self, line: &str) -> Outcome<()> {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// Returns the next line of the answer. Fails if the process ends before.
    pub fn line(&mut self) -> Outcome<String> {
        self.lines.recv_timeout(PATIENCE).map_err(|error| format!("{}: no answer: {error}", self.name).into())
    }

    /// Skips empty lines until this line. Fails if another line arrives before.
    pub fn expect(&mut self, expected: &str) -> Outcome<()> {
        loop {
            match self.line()? {
                line if line == expected => return Ok(()),
                line if line.is_empty() => {}
                line => return Err(format!("{} says {line}, not {expected}", self.name).into()),
            }
        }
    }

    /// Returns true if only empty lines have arrived since the last answer.
    pub fn is_silent(&mut self) -> bool {
        self.lines.try_iter().all(|line| line.is_empty())
    }

    pub fn kill(&mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
