// SPDX-License-Identifier: MIT

//! Instructions that the server executes for a call.
//!
//! Only a part of a run is counted: the clients have connected and made some calls before. The server's cron is not counted, as
//! it grows with the number of clients. Other periodic work can only increase a count, so several parts are counted, and the
//! minimum is used. Other programs hardly affect the counts, so several paths are counted in parallel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use super::machine::cores;
use super::paths::Path;
use super::server::Server;
use super::{unless_quick, Outcome};

/// Number of rounds before counting begins, so that the first allocations are not counted.
const WARM_UP: u32 = 100;

/// The number of parts of equal length that are counted.
const PARTS: u32 = 4;

/// Returns the instructions of each path.
pub fn measure(paths: &[&Path]) -> Outcome<Vec<f64>> {
    let next = AtomicUsize::new(0);
    let counts = Mutex::new(vec![f64::NAN; paths.len()]);
    std::thread::scope(|scope| {
        let work = || -> Outcome<()> {
            while let Some((at, path)) = paths.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                let count = per_round(path).map_err(|error| format!("{}: {error}", path.name))?;
                eprintln!("{:>10.0}  {}", count, path.name);
                counts.lock().map_err(|_| "a thread has panicked")?[at] = count;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..cores()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread has panicked")?)
    })?;
    Ok(counts.into_inner().map_err(|_| "a thread has panicked")?)
}

fn per_round(path: &Path) -> Outcome<f64> {
    let mut stage = path.stage.prepare()?;
    let mut play = stage.player(path.calls)?;
    let mut played = 0;
    let (part, rounds) = least_part(&mut stage.server, unless_quick(2000, 400), |rounds| {
        let first = played;
        played += rounds;
        play(first..played)
    })?;
    Ok(part.instructions as f64 / f64::from(rounds))
}

/// Lets `play` some rounds for warming up, and then this number of rounds in parts. Returns the part with the fewest
/// instructions, and the number of its rounds.
pub fn least_part(
    server: &mut Server,
    rounds: u32,
    mut play: impl FnMut(u32) -> Outcome<()>,
) -> Outcome<(Part, u32)> {
    play(WARM_UP)?;
    let rounds = rounds / PARTS;
    let mut least: Option<Part> = None;
    for _ in 0..PARTS {
        let part = server.count(|| play(rounds))?;
        least = least.into_iter().chain([part]).min_by_key(|part| part.instructions);
    }
    Ok((least.ok_or("no part was counted")?, rounds))
}

/// The instructions and function calls of a part of a run, from a profile of callgrind.
pub struct Part {
    pub instructions: u64,
    calls: HashMap<String, u64>,
}

impl Part {
    /// Parses a profile. A profile has the name of a function only where the function first occurs, and later only its number.
    pub fn parse(profile: &str) -> Outcome<Part> {
        let mut names = HashMap::new();
        let mut part = Part { instructions: 0, calls: HashMap::new() };
        let mut called = String::new();
        for line in profile.lines() {
            if let Some(function) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
                let (number, name) = function.split_once(' ').unwrap_or((function, ""));
                let name = match name {
                    "" => names.get(number).copied().ok_or_else(|| format!("{number} has no name"))?,
                    _ => name,
                };
                names.insert(number, name);
                name.clone_into(&mut called);
            } else if let Some(calls) = line.strip_prefix("calls=") {
                let times: u64 = calls.split(' ').next().unwrap_or_default().parse()?;
                *part.calls.entry(called.clone()).or_default() += times;
            } else if let Some(total) = line.strip_prefix("totals: ") {
                part.instructions = total.trim().parse()?;
            }
        }
        match part.instructions {
            0 => Err("callgrind has counted nothing".into()),
            _ => Ok(part),
        }
    }

    /// Returns the number of calls of a function.
    pub fn calls_of(&self, function: &str) -> u64 {
        self.calls.get(function).copied().unwrap_or(0)
    }
}
