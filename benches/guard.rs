// SPDX-License-Identifier: MIT

//! Detects regressions: counts the instructions of the main paths, and of commands that use no lock (invariant 11 of
//! `docs/design.md`), and compares them with `benches/instructions.txt`.
//!
//! Absolute counts depend on the build of the server. They also depend on the processor, for which the C library selects its
//! functions. So each path is compared by its ratio to a baseline in the same run. The baseline is `SET NX PX` + `DEL`. For
//! hand-overs among sleeping clients, it is a hand-over of the "floor", a module that only queues clients and unblocks them. For
//! hand-overs to sessions, it is the hand-over to clients with `BLOCK`.
//!
//! `cargo bench --bench guard` fails if a ratio exceeds the recorded one by more than the tolerance.
//! `cargo bench --bench guard -- --record` writes the counts into the file.

mod support;

use std::fs;
use std::process::ExitCode;

use support::machine::machine;
use support::paths::{self, Path};
use support::server::Setup;
use support::{callgrind, is_requested, thousands, Outcome};
use support::{session_ring, sleeping};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
/// The tolerated increase of a ratio.
const TOLERANCE: f64 = 0.05;
/// The tolerated increase of a ratio for paths with several clients. These depend on the order in which the server reads the
/// calls. Paths with sleeping clients also depend on the speed of the machine, as the module has periodic work.
const TOLERANCE_OF_MANY: f64 = 0.08;
/// The path that all other paths are compared with, except those in [`SLEEPING`].
const BASE: &Path = &paths::SET_DEL;
const GUARDED: [&Path; 18] = [
    &paths::PAIR,
    &paths::PAIR_SHARED,
    &paths::BESIDE_10,
    &paths::BESIDE_10000,
    &paths::PERMIT,
    &paths::SEVERAL,
    &paths::PAIR_FENCE,
    &paths::PAIR_ID,
    &paths::PAIR_WATCHDOG,
    &paths::PAIR_SESSION,
    &paths::PAIR_WITH_EVENTS,
    &paths::GUARD_SET,
    &paths::GUARD_TOKEN_SET,
    &paths::HAND_OVER,
    &paths::HAND_OVER_SHORT,
    &paths::HAND_OVER_LOGGED,
    &paths::PLAIN[1][2],
    &paths::PLAIN[1][3],
];

/// Hand-overs among sleeping clients: the number of clients, the name of the path, and the name of its base.
const SLEEPING: [(usize, &str, &str); 2] = [
    (2, "hand-over, 2 sleep", "hand-over, 2 sleep: floor"),
    (200, "hand-over, 200 sleep", "hand-over, 200 sleep: floor"),
];

/// Hand-overs between two sleeping clients with sessions: the number of grants in each reply, and the name of the
/// path. The base is the hand-over by `BLOCK`.
const SESSIONS: [(u64, &str); 2] =
    [(1, "hand-over, 2 sleep: session"), (4, "hand-over, 2 sleep: session, 4 grants")];

/// Returns the name of the base of a path.
fn base_of(name: &str) -> &str {
    let of_blocked = SLEEPING.into_iter().map(|(_, module, floor)| (module, floor));
    let of_sessions = SESSIONS.into_iter().map(|(_, session)| (session, SLEEPING[0].1));
    of_blocked.chain(of_sessions).find(|(path, _)| *path == name).map_or(BASE.name, |(_, base)| base)
}

fn main() -> Outcome<ExitCode> {
    if !is_requested("guard") {
        return Ok(ExitCode::SUCCESS);
    }
    let version = Setup::new().without_module().start()?.version()?;
    let paths: Vec<&Path> = std::iter::once(BASE).chain(GUARDED).collect();
    let counts = callgrind::measure(&paths)?;
    let mut found: Vec<(&str, f64)> = paths.iter().map(|path| path.name).zip(counts).collect();
    for (clients, name, floor_name) in SLEEPING {
        let (module, floor) = sleeping::count_both(clients)?;
        found.extend([(floor_name, floor.instructions), (name, module.instructions)]);
    }
    for (grants, name) in SESSIONS {
        found.push((name, session_ring::count(2, grants)?.instructions));
    }
    println!("\n{version}; {}", machine());
    if std::env::args().any(|arg| arg == "--record") {
        fs::write(FILE, Record::text(&version, &found))?;
        println!("recorded in {FILE}");
        return Ok(ExitCode::SUCCESS);
    }
    let record = Record::parse(&fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?)?;
    if record.server != version {
        println!(
            "\n*** The recorded counts are those of {}, not of {version}. If a ratio is off,",
            record.server
        );
        println!("*** this may be the reason.");
    }
    Ok(verdict(&record, &found))
}

/// The content of `benches/instructions.txt`: the server, and the instructions of each path.
struct Record {
    server: String,
    counts: Vec<(String, f64)>,
}

impl Record {
    fn text(server: &str, counts: &[(&str, f64)]) -> String {
        let mut text = "# Instructions of the server for one round of each path, and the ratio to the first one, which is\n\
            # what `make guard` compares. A hand-over among clients that sleep is compared with that of the floor,\n\
            # and a hand-over to a session with one by `BLOCK`.\n\
            # Written by `make guard-record`.\n"
            .to_owned();
        text += &format!("server\t{server}\n");
        for (name, count) in counts {
            let ratio = ratio(counts.iter().copied(), name).unwrap_or(f64::NAN);
            text += &format!("{name}\t{count:.0}\t{ratio:.3}\n");
        }
        text
    }

    fn parse(text: &str) -> Outcome<Record> {
        let mut record = Record { server: String::new(), counts: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["server", server] => server.clone_into(&mut record.server),
                [name, count, _] => record.counts.push((name.to_owned(), count.parse()?)),
                _ => return Err(format!("{FILE}: unknown line {line:?}").into()),
            }
        }
        Ok(record)
    }

    fn ratio(&self, name: &str) -> Option<f64> {
        ratio(self.counts.iter().map(|(name, count)| (name.as_str(), *count)), name)
    }
}

/// Returns the ratio of a path to its base, or `None` if the path or its base was not counted.
fn ratio<'a>(counts: impl Iterator<Item = (&'a str, f64)> + Clone, name: &str) -> Option<f64> {
    let count = |name| counts.clone().find(|(other, _)| *other == name).map(|(_, count)| count);
    Some(count(name)? / count(base_of(name))?)
}

/// Prints the comparison. Fails if a path has regressed.
fn verdict(record: &Record, found: &[(&str, f64)]) -> ExitCode {
    let (mut slower, mut faster) = (0, 0);
    println!("\n{:40} {:>12} {:>8} {:>9} {:>8}", "", "instructions", "ratio", "recorded", "change");
    for (name, count) in found {
        // Counts are far below 2^53, so the conversion is exact.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let shown = thousands(count.round() as usize);
        let ratio = ratio(found.iter().copied(), name).unwrap_or(f64::NAN);
        let Some(recorded) = record.ratio(name) else {
            println!("{name:40} {shown:>12} {ratio:>8.3} {:>9} {:>8}  NOT RECORDED", "", "");
            slower += 1;
            continue;
        };
        let change = ratio / recorded - 1.0;
        let tolerance = if name.starts_with("hand-over") { TOLERANCE_OF_MANY } else { TOLERANCE };
        let word = if change > tolerance {
            slower += 1;
            "  SLOWER"
        } else if change < -tolerance {
            faster += 1;
            "  faster"
        } else {
            ""
        };
        println!("{name:40} {shown:>12} {ratio:>8.3} {recorded:>9.3} {:>+7.1} %{word}", change * 100.0);
    }
    println!("\nThe base of each ratio is {}, the floor or BLOCK, counted in the same run.", BASE.name);
    if faster > 0 {
        println!(
            "{faster} paths need fewer instructions than recorded. Record the counts: make guard-record"
        );
    }
    if slower > 0 {
        println!("FAILED: {slower} paths need more instructions than recorded, beyond the tolerance.");
        println!("If the cost is intended, record the counts with make guard-record and give the reason.");
        return ExitCode::FAILURE;
    }
    println!("No path needs more instructions than recorded, beyond the tolerance.");
    ExitCode::SUCCESS
}
