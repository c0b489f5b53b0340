//! Has a path become dearer? Counts the instructions of the main paths and compares them with `benches/instructions.txt`.
//!
//! Absolute counts depend on how the server was built and on the processor, for which the C library chooses its
//! functions. So what is compared is the ratio to `SET NX PX` + `DEL`, counted in the same run.
//!
//! `cargo bench --bench guard` compares, and fails if a path is dearer than what is recorded by more than the
//! tolerance; `cargo bench --bench guard -- --record` writes what it finds into the file.

mod support;

use std::fs;
use std::process::ExitCode;

use support::machine::machine;
use support::paths::{self, Path};
use support::server::Setup;
use support::{asked, callgrind, thousands, Outcome};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
/// By so much a ratio may differ from what is recorded.
const TOLERANCE: f64 = 0.05;
/// What two clients do depends a little on whose call the server reads first.
const TOLERANCE_OF_TWO: f64 = 0.08;
/// What the others are compared with.
const BASE: &Path = &paths::SET_DEL;
const GUARDED: [&Path; 10] = [
    &paths::PAIR,
    &paths::PAIR_SHARED,
    &paths::BESIDE_10,
    &paths::BESIDE_10000,
    &paths::PAIR_FENCE,
    &paths::PAIR_ID,
    &paths::PAIR_WATCHDOG,
    &paths::HAND_OVER,
    &paths::PLAIN[1][2],
    &paths::PLAIN[1][3],
];

fn main() -> Outcome<ExitCode> {
    if !asked("guard") {
        return Ok(ExitCode::SUCCESS);
    }
    let version = Setup::new().without_module().start()?.version()?;
    let paths: Vec<&Path> = std::iter::once(BASE).chain(GUARDED).collect();
    let counts = callgrind::measure(&paths)?;
    let found: Vec<(&str, f64)> = paths.iter().map(|path| path.name).zip(counts).collect();
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
            # what `make guard` compares. Written by `make guard-record`.\n"
            .to_owned();
        text += &format!("server\t{server}\n");
        for (name, count) in counts {
            text += &format!("{name}\t{count:.0}\t{:.3}\n", count / counts[0].1);
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
        let count = |name| self.counts.iter().find(|(other, _)| other == name).map(|(_, count)| count);
        Some(count(name)? / count(BASE.name)?)
    }
}

/// Prints the comparison.
fn verdict(record: &Record, found: &[(&str, f64)]) -> ExitCode {
    let (mut dearer, mut cheaper) = (0, 0);
    println!("\n{:40} {:>12} {:>8} {:>9} {:>8}", "", "instructions", "ratio", "recorded", "change");
    for (name, count) in found {
        // Far below 2^53.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let shown = thousands(count.round() as usize);
        let ratio = count / found[0].1;
        let Some(recorded) = record.ratio(name) else {
            println!("{name:40} {shown:>12} {ratio:>8.3} {:>9} {:>8}  NOT RECORDED", "", "");
            dearer += 1;
            continue;
        };
        let change = ratio / recorded - 1.0;
        let tolerance = if *name == paths::HAND_OVER.name { TOLERANCE_OF_TWO } else { TOLERANCE };
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
    println!("\nThe ratio is that to {}, counted in the same run.", BASE.name);
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
