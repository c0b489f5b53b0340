// SPDX-License-Identifier: MIT

//! The end of `make bench`: prints one table of all results in `target/bench`, with a description of the machine, and writes it
//! to `target/bench/results.txt`.

mod support;

use support::machine::machine;
use support::results::{self, table, Results};
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
    let with = |verdict: &str| rows.iter().filter(|row| row[5] == verdict).count();
    let text = format!(
        "redis-lock {} on {}; {}\n{} targets are met, {} are not\n\n{}",
        env!("CARGO_PKG_VERSION"),
        servers.join("; "),
        machine(),
        with("yes"),
        with("NO"),
        table(&rows)
    );
    print!("\n{text}");
    let dir = results::dir()?;
    std::fs::write(dir.join("results.txt"), text)?;
    println!("\nthis table and pictures are in {}", dir.display());
    Ok(())
}
