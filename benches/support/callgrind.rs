// SPDX-License-Identifier: MIT

//! Instructions that the server executes for a call.
//!
//! Two servers run under callgrind: one gets few calls, the other many. The difference of their totals, divided by the difference
//! in calls, is the cost of one call. It excludes the server's startup and shutdown. A server's periodic work can only increase
//! its total. So each total is counted several times, and the minimum is used. Other programs hardly affect the counts, so
//! several paths are counted in parallel.
//!
//! With many clients, only the part of the run after they have connected is counted, see [`Part`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use super::machine::cores;
use super::paths::Path;
use super::{unless_quick, Outcome};

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
    let (few, many) = unless_quick((300, 2300), (200, 700));
    let least = |rounds, repeats| -> Outcome<u64> {
        let totals: Vec<u64> = (0..repeats).map(|_| total(path, rounds)).collect::<Outcome<_>>()?;
        Ok(totals.into_iter().min().unwrap_or(0))
    };
    let (low, high) = (least(few, unless_quick(2, 1))?, least(many, unless_quick(3, 1))?);
    Ok(slope((few, low), (many, high)))
}

fn total(path: &Path, rounds: u32) -> Outcome<u64> {
    let stage = path.stage.prepare()?;
    stage.play(path.calls, rounds)?;
    stage.server.instructions()
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

/// Returns the slope of the line through two points: the cost of each additional call.
pub fn slope((few, low): (u32, u64), (many, high): (u32, u64)) -> f64 {
    (high as f64 - low as f64) / f64::from(many - few)
}
