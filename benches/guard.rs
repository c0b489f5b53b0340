// SPDX-License-Identifier: MIT

//! Has a path become dearer? Counts the instructions of the main paths, and of a command that uses no lock (11), and compares
//! them with `benches/instructions.txt`.
//!
//! Absolute counts depend on how the server was built and on the processor, for which the C library chooses its
//! functions. So what is compared is the ratio to `SET NX PX` + `DEL`, counted in the same run. A hand-over among clients that
//! sleep is compared with the same of the floor, a module that only queues clients and unblocks them.
//!
//! `cargo bench --bench guard` compares, and fails if a path is dearer than what is recorded by more than the
//! tolerance; `cargo bench --bench guard -- --record` writes what it finds into the file.

mod support;

use std::fs;
use std::process::ExitCode;

use support::machine::machine;
use support::paths::{self, Path};
use support::server::Setup;
use support::sleeping;
use support::{asked, callgrind, thousands, Outcome};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
/// By so much a ratio may differ from what is recorded.
const TOLERANCE: f64 = 0.05;
/// What several clients do depends a little on whose call the server reads first. Where the server waits for each of them, it
/// depends on how fast the machine is: the module looks at some things every so many milliseconds.
const TOLERANCE_OF_MANY: f64 = 0.08;
/// What the others are compared with.
const BASE: &Path = &paths::SET_DEL;
const GUARDED: [&Path; 16] = [
    &paths::PAIR,
    &paths::PAIR_SHARED,
    &paths::BESIDE_10,
    &paths::BESIDE_10000,
    &paths::PERMIT,
    &paths::SEVERAL,
    &paths::PAIR_FENCE,
    &paths::PAIR_ID,
    &paths::PAIR_WATCHDOG,
    &paths::PAIR_TELLING,
    &paths::GUARD_SET,
    &paths::GUARD_TOKEN_SET,
    &paths::HAND_OVER,
    &paths::HAND_OVER_BY_MESSAGE,
    &paths::PLAIN[1][2],
    &paths::PLAIN[1][3],
];

/// Among how many clients that sleep a hand-over is counted: its name, and that of the floor's, which it is compared with.
const SLEEPING: [(usize, &str, &str); 2] = [
    (2, "hand-over, 2 sleep", "hand-over, 2 sleep: floor"),
    (200, "hand-over, 200 sleep", "hand-over, 200 sleep: floor"),
];

/// What this one is compared with.
fn base_of(name: &str) -> &str {
    let floor = SLEEPING.into_iter().find(|(_, module, _)| *module == name);
    floor.map_or(BASE.name, |(_, _, floor)| floor)
}

fn main() -> Outcome<ExitCode> {
    if !asked("guard") {
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
    println!("\n{version}; {}", machine());
    if std::env::args().any(|arg| arg == "--record") {
        fs::write(FILE, Record::text(&version, &found))?;
        println!("recorded in {FILE}");
        return Ok(ExitCode::SUCCESS);
    }
    let record = Record::parse(&fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?)?;
    if record.server != version {
        println!(
            "\n*** What is recorded was counted on {}, not on {version}. The ratios are compared",
            record.server
        );
        println!("*** all the same; if one of them is off, this may be the reason.");
    }
    Ok(verdict(&record, &found))
}

/// What `benches/instructions.txt` says: the server, and the instructions of each path.
struct Record {
    server: String,
    counts: Vec<(String, f64)>,
}

impl Record {
    fn text(server: &str, counts: &[(&str, f64)]) -> String {
        let mut text = "# Instructions of the server for one round of each path, and the ratio to the first one, which is\n\
            # what `make guard` compares. A hand-over among clients that sleep is compared with that of the floor.\n\
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
                _ => return Err(format!("{FILE}: what is {line:?}?").into()),
            }
        }
        Ok(record)
    }

    fn ratio(&self, name: &str) -> Option<f64> {
        ratio(self.counts.iter().map(|(name, count)| (name.as_str(), *count)), name)
    }
}

/// The ratio of this one to what it is compared with; `None` if one of the two is not among the counts.
fn ratio<'a>(counts: impl Iterator<Item = (&'a str, f64)> + Clone, name: &str) -> Option<f64> {
    let count = |name| counts.clone().find(|(other, _)| *other == name).map(|(_, count)| count);
    Some(count(name)? / count(base_of(name))?)
}

/// Prints the comparison.
fn verdict(record: &Record, found: &[(&str, f64)]) -> ExitCode {
    let (mut dearer, mut cheaper) = (0, 0);
    println!("\n{:40} {:>12} {:>8} {:>9} {:>8}", "", "instructions", "ratio", "recorded", "change");
    for (name, count) in found {
        // Far below 2^53.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let shown = thousands(count.round() as usize);
        let ratio = ratio(found.iter().copied(), name).unwrap_or(f64::NAN);
        let Some(recorded) = record.ratio(name) else {
            println!("{name:40} {shown:>12} {ratio:>8.3} {:>9} {:>8}  NOT RECORDED", "", "");
            dearer += 1;
            continue;
        };
        let change = ratio / recorded - 1.0;
        let tolerance = if name.starts_with("hand-over") { TOLERANCE_OF_MANY } else { TOLERANCE };
        let word = if change > tolerance {
            dearer += 1;
            "  DEARER"
        } else if change < -tolerance {
            cheaper += 1;
            "  cheaper"
        } else {
            ""
        };
        println!("{name:40} {shown:>12} {ratio:>8.3} {recorded:>9.3} {:>+7.1} %{word}", change * 100.0);
    }
    println!("\nThe ratio is that to {}, or to the floor, counted in the same run.", BASE.name);
    if cheaper > 0 {
        println!("{cheaper} of the paths are cheaper than what is recorded. Record it: make guard-record");
    }
    if dearer > 0 {
        println!(
            "FAILED: {dearer} of the paths are dearer than what is recorded, by more than the tolerance."
        );
        println!("If that is the price of something that is wanted: make guard-record, and say why.");
        return ExitCode::FAILURE;
    }
    println!("No path is dearer than what is recorded, by more than the tolerance.");
    ExitCode::SUCCESS
}
