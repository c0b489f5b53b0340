// SPDX-License-Identifier: MIT

//! Calculates the load of each shard of a cluster by the sessions of many clients. Then a zone with a third of the shards fails,
//! and the example calculates the time until all sessions are resumed. Needs no server.
//!
//! ```text
//! cargo run --release --example fleet -- --shards 1000 --clients 1000000 --shards-per-client 3
//! ```
//!
//! Without options, it uses these values. `--failure` is `zone`, `crash` or `connections`. The other options are numbers, see
//! [`OPTIONS`]. Only the shard with the most sessions is simulated: no other one takes longer.

mod shard;

use std::process::ExitCode;

use rand::rngs::StdRng;
use rand::seq::index::sample;
use rand::SeedableRng;

use shard::{recover, Costs, Failure, Pauses, Recovery, Storm, HEARTBEAT};

/// Each numeric option with its default and its unit. Costs are from `cargo bench --bench scale -- fleet`, and memory is from
/// `cargo bench --bench memory` and `cargo bench --bench sessions -- memory`.
const OPTIONS: [(&str, f64, &str); 19] = [
    ("--shards", 1_000.0, "shards"),
    ("--clients", 1_000_000.0, "clients"),
    ("--shards-per-client", 3.0, "shards"),
    ("--holds", 1.0, "holds of a session"),
    ("--connections", 2.0, "connections of a session"),
    ("--outage", 5.0, "s"),
    ("--spread", 10.0, "ms"),
    ("--round-trip", 0.5, "ms"),
    ("--backlog", 511.0, "connections"),
    ("--ttl", 30.0, "s"),
    ("--grace", 3.0, "s"),
    ("--lease", 30.0, "s"),
    ("--connect", 12.0, "µs"),
    ("--open", 22.0, "µs"),
    ("--declare", 19.0, "µs"),
    ("--heartbeat", 16.0, "µs"),
    ("--session-bytes", 634.0, "bytes"),
    ("--hold-bytes", 2_754.0, "bytes"),
    ("--connection-bytes", 2_256.0, "bytes"),
];

/// The compared pauses: those of the packages, and others.
const PAUSES: [(&str, Pauses); 4] = [
    ("the packages", Pauses { first: 0.5, jitter: 1.0, extra: 0.0 }),
    ("no jitter", Pauses::WITHOUT_JITTER),
    ("from 0.05 s on", Pauses { jitter: 1.0, ..Pauses::WITHOUT_JITTER }),
    ("up to 1 s at first", Pauses { jitter: 0.5, extra: 1.0, ..Pauses::WITHOUT_JITTER }),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match Fleet::parse(&args) {
        Ok(fleet) => fleet.print(),
        Err(error) => {
            let options: Vec<_> =
                OPTIONS.iter().map(|(name, _, unit)| format!("[{name} <{unit}>]")).collect();
            eprintln!("{error}\nusage: fleet [--failure zone|crash|connections] {}", options.join(" "));
            ExitCode::from(2)
        }
    }
}

struct Fleet {
    failure: Failure,
    values: [f64; OPTIONS.len()],
}

impl Fleet {
    fn parse(args: &[String]) -> Result<Fleet, String> {
        let mut fleet = Fleet { failure: Failure::Zone, values: OPTIONS.map(|(_, default, _)| default) };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let option = OPTIONS.iter().position(|(option, ..)| option == name);
            if option.is_none() && name != "--failure" {
                return Err(format!("unknown option '{name}'"));
            }
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            let Some(option) = option else {
                fleet.failure = match value.as_str() {
                    "zone" => Failure::Zone,
                    "crash" => Failure::Crash,
                    "connections" => Failure::Connections,
                    _ => return Err(format!("--failure: '{value}' is not zone, crash or connections")),
                };
                continue;
            };
            let parsed: f64 = value.parse().map_err(|_| format!("{name}: '{value}' is not a number"))?;
            if !(parsed.is_finite() && parsed >= 0.0) {
                return Err(format!("{name}: '{value}' is not a number from 0 on"));
            }
            fleet.values[option] = parsed;
        }
        for name in ["--shards", "--clients", "--shards-per-client", "--backlog"] {
            if fleet.count(name) == 0 {
                return Err(format!("{name} must be at least 1"));
            }
        }
        if fleet.count("--shards-per-client") > fleet.count("--shards") {
            return Err("--shards-per-client is greater than --shards".to_owned());
        }
        Ok(fleet)
    }

    fn get(&self, name: &str) -> f64 {
        OPTIONS.iter().zip(self.values).find(|(option, _)| option.0 == name).map_or(0.0, |(_, value)| value)
    }

    fn count(&self, name: &str) -> usize {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Saturates.
        let count = self.get(name) as usize;
        count
    }

    /// Returns the number of sessions on the shard with the most of them. Each client uses random shards.
    fn most_sessions(&self) -> usize {
        let (shards, used) = (self.count("--shards"), self.count("--shards-per-client"));
        if shards == used {
            return self.count("--clients");
        }
        let mut sessions = vec![0; shards];
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..self.count("--clients") {
            sample(&mut random, shards, used).into_iter().for_each(|shard| sessions[shard] += 1);
        }
        sessions.into_iter().max().unwrap_or(0)
    }

    fn storm(&self, sessions: usize, pauses: Pauses) -> Storm {
        let micros = |name| self.get(name) / 1e6;
        Storm {
            failure: self.failure,
            outage: if self.failure == Failure::Connections { 0.0 } else { self.get("--outage") },
            spread: self.get("--spread") / 1e3,
            stall: 0.0,
            sessions,
            holds: u32::try_from(self.count("--holds")).unwrap_or(u32::MAX),
            round_trip: self.get("--round-trip") / 1e3,
            backlog: self.count("--backlog"),
            costs: Costs {
                connect: micros("--connect"),
                open: micros("--open"),
                declare: micros("--declare"),
                heartbeat: micros("--heartbeat"),
            },
            pauses,
            ttl: self.get("--ttl"),
            grace: self.get("--grace"),
            lease: self.get("--lease"),
        }
    }

    #[allow(clippy::cast_precision_loss)] // Far below 2^53.
    fn print(&self) -> ExitCode {
        let [shards, clients, used] =
            ["--shards", "--clients", "--shards-per-client"].map(|name| self.count(name));
        let sessions = self.most_sessions();
        println!(
            "{} sessions on {shards} shards: {:.0} on a shard, {sessions} on the fullest, which has",
            { clients * used },
            { (clients * used) as f64 / shards as f64 }
        );
        let per_second = sessions as f64 / HEARTBEAT;
        let busy = per_second * self.get("--heartbeat") / 1e6;
        println!("  {per_second:.0} heartbeats a second, {:.1} % of a core", busy * 100.0);
        let connections = self.get("--connections");
        let each = self.get("--session-bytes")
            + self.get("--holds") * self.get("--hold-bytes")
            + connections * self.get("--connection-bytes");
        println!(
            "  {:.0} connections; {:.1} MB of memory for connections, sessions and holds",
            { connections * sessions as f64 },
            { each * sessions as f64 / 1e6 }
        );
        if busy >= 1.0 {
            println!("the heartbeats need more than one core: use more shards");
            return ExitCode::FAILURE;
        }
        println!(
            "pauses                resumed after  longest queue  dropped  given up  in jeopardy     lost"
        );
        for (name, pauses) in PAUSES {
            let recovery = recover(self.storm(sessions, pauses), 1);
            let Recovery { longest_queue, dropped, given_up, in_jeopardy, lost, .. } = recovery;
            println!(
                "{name:20} {:12.2} s {longest_queue:14} {dropped:8} {given_up:9} {in_jeopardy:12} {lost:8}",
                { recovery.total() }
            );
        }
        ExitCode::SUCCESS
    }
}
