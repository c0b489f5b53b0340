// SPDX-License-Identifier: MIT

//! The end of `make bench`: one table of all results in `target/bench`, and a description of the machine.

mod support;

use support::machine::machine;
use support::results::{self, print_table, Results};
use support::{is_requested, Outcome};

const BENCHES: [&str; 14] = [
    "instructions",
    "throughput",
    "handover",
    "sleeping",
    "contention",
    "latency",
    "replicas",
    "stalls",
    "cost",
    "memory",
    "scale",
    "sessions",
    "neighbors",
    "peers",
];

fn main() -> Outcome<()> {
    if !is_requested("report") {
        return Ok(());
    }
    let mut rows = Vec::new();
    let mut servers: Vec<String> = Vec::new();
    for bench in BENCHES {
        match Results::read(bench) {
            Ok((server, results)) => {
                rows.extend(results);
                if !servers.contains(&server) {
                    servers.push(server);
                }
            }
            Err(error) => println!("no results of {bench}: {error}"),
        }
    }
    println!();
    print_table(&rows);
    println!("\nredis-lock {} on {}; {}", env!("CARGO_PKG_VERSION"), servers.join("; "), machine());
    let with = |verdict: &str| rows.iter().filter(|row| row[5] == verdict).count();
    println!(
        "{} targets are met, {} are not; pictures are in {}",
        with("yes"),
        with("NO"),
        results::dir()?.display()
    );
    Ok(())
}
