// SPDX-License-Identifier: MIT
//! Searches scenarios, and prints how far.
//!
//! ```text
//! redis-lock-protocol [--steps N] [--seconds N] [--without RULE] [--start START] [WORD …]
//! ```
//!
//! A WORD selects the scenarios with it in their names. RULE is a name in `rules.rs`. START is `up`, `held`, `held2`, `wait`,
//! `wait2` or `handed-over`.

use std::process::ExitCode;
use std::time::Duration;

use redis_lock_protocol::rules::{Rule, Rules};
use redis_lock_protocol::scenario::{Scenario, Start};
use redis_lock_protocol::scenarios;
use redis_lock_protocol::search::{search, Limits};

fn main() -> ExitCode {
    let mut limits = Limits { steps: 3_000_000, time: Duration::from_secs(60) };
    let mut words = Vec::new();
    let mut rules = Rules::all();
    let mut start = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        let is_read = match argument.as_str() {
            "--steps" => value().parse().ok().map(|steps| limits.steps = steps),
            "--seconds" => value().parse().ok().map(|seconds| limits.time = Duration::from_secs(seconds)),
            "--without" => find_rule(&value()).map(|rule| rules = rules.without(rule)),
            "--start" => find_start(&value()).map(|found| start = Some(found)),
            _ => {
                words.push(argument.clone());
                Some(())
            }
        };
        if is_read.is_none() {
            eprintln!("{argument} has no valid value");
            return ExitCode::FAILURE;
        }
    }
    println!(
        "| scenario | start | states | steps | depth | complete | seconds |\n|---|---|---|---|---|---|---|"
    );
    let mut all_hold = true;
    let chosen = match start {
        Some(start) => scenarios::all().into_iter().map(|scenario| scenario.from(start)).collect(),
        None => [scenarios::all(), scenarios::from_later_starts()].concat(),
    };
    for scenario in chosen {
        let scenario = Scenario { rules, ..scenario };
        if !words.is_empty() && !words.iter().any(|word| scenario.name.contains(word.as_str())) {
            continue;
        }
        let outcome = search(&scenario, limits);
        let complete = if outcome.is_complete { "yes" } else { "no" };
        println!(
            "| {} | {:?} | {} | {} | {} | {complete} | {:.1} |",
            scenario.name,
            scenario.start,
            outcome.states,
            outcome.steps,
            outcome.depth,
            outcome.time.as_secs_f32()
        );
        if let Some((breach, trace)) = outcome.violation {
            println!("{}: \"{}\" is violated:\n{trace}", scenario.name, breach.name());
            all_hold = false;
        }
    }
    if all_hold {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn find_rule(name: &str) -> Option<Rule> {
    Rule::ALL.into_iter().find(|rule| format!("{rule:?}") == name)
}

fn find_start(name: &str) -> Option<Start> {
    match name {
        "up" => Some(Start::Up),
        "held" => Some(Start::Held(1)),
        "held2" => Some(Start::Held(2)),
        "wait" => Some(Start::Waiting(1)),
        "wait2" => Some(Start::Waiting(2)),
        "handed-over" => Some(Start::HandedOver),
        _ => None,
    }
}
