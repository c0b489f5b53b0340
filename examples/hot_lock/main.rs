// SPDX-License-Identifier: MIT

//! Calculates the waits for a contended lock from the rate of requests, the time of a hold and the round trip. Needs no server.
//!
//! ```text
//! cargo run --release --example hot_lock -- --per-second 150 --hold 5 --round-trip 0.5
//! ```
//!
//! Times are in milliseconds. Holds are exponentially distributed with the given mean; with `--equal`, all take the mean.

mod queue;

use std::process::ExitCode;

use queue::{waits, Load, Spread};

/// With this number of requests, different seeds print the same longest waits.
const REQUESTS: usize = 2_000_000;

const USAGE: &str = "usage: hot_lock --per-second <requests> --hold <ms> [--round-trip <ms>] [--equal]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let load = match load(&args) {
        Ok(load) => load,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let most = 1.0 / (load.hold + load.round_trip);
    println!("the lock is busy for {:.0} % of the time; {most:.1} grants a second are the most", {
        load.utilisation() * 100.0
    });
    if load.utilisation() >= 1.0 {
        println!("more come than can be served: {:.1} more wait after each second", load.per_second - most);
        return ExitCode::FAILURE;
    }
    let mut waits = waits(&load.requests(REQUESTS, 1), load.round_trip);
    // Little's law: the queue's length is the rate times the wait. Network time takes no place in the queue.
    let mean = waits.iter().sum::<f64>() / waits.len() as f64;
    println!("on average {:.1} wait for it", (mean - load.round_trip) * load.per_second);
    waits.sort_unstable_by(f64::total_cmp);
    print!("from the call to the grant: mean {:.1} ms", mean * 1e3);
    for (name, per_mille) in [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)] {
        print!(", {name} {:.1} ms", waits[waits.len() * per_mille / 1000] * 1e3);
    }
    println!();
    ExitCode::SUCCESS
}

fn load(args: &[String]) -> Result<Load, String> {
    let (mut per_second, mut hold, mut round_trip, mut spread) = (None, None, None, Spread::Exponential);
    let mut args = args.iter();
    while let Some(name) = args.next() {
        let number = match name.as_str() {
            "--per-second" => &mut per_second,
            "--hold" => &mut hold,
            "--round-trip" => &mut round_trip,
            "--equal" => {
                spread = Spread::None;
                continue;
            }
            _ => return Err(format!("unknown option '{name}'")),
        };
        let value = args.next().ok_or_else(|| format!("{name} needs a number"))?;
        let parsed: f64 = value.parse().map_err(|_| format!("{name}: '{value}' is not a number"))?;
        if !(parsed.is_finite() && parsed >= 0.0) {
            return Err(format!("{name}: '{value}' is not a number from 0 on"));
        }
        *number = Some(parsed);
    }
    let per_second = per_second.filter(|rate| *rate > 0.0).ok_or("--per-second must be above 0")?;
    let hold = hold.ok_or("--hold is missing")? / 1e3;
    let round_trip = round_trip.unwrap_or(0.0) / 1e3;
    if hold + round_trip == 0.0 {
        return Err("--hold and --round-trip are both 0".to_owned());
    }
    Ok(Load { per_second, hold, spread, round_trip })
}
