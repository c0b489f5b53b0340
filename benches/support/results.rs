// SPDX-License-Identifier: MIT

//! The rows of the final table of `make bench`. Each benchmark writes its rows to `target/bench/<name>.tsv`; the benchmark
//! `report` reads all files.

use std::fs;
use std::path::PathBuf;

use super::samples::time;
use super::server::Server;
use super::{is_quick, machine, thousands, Outcome};

/// The unit of a number, which decides its format.
#[derive(Clone, Copy)]
pub enum Unit {
    Instructions,
    Micros,
    PerSecond,
    Bytes,
    Percent,
    /// An average number, such as system calls per hand-over.
    Count,
}

impl Unit {
    pub fn show(self, value: f64) -> String {
        // All counts are far below 2^53.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let whole = || thousands(value.round().max(0.0) as usize);
        match self {
            Unit::Instructions => whole(),
            Unit::Micros => time(value),
            Unit::PerSecond => format!("{}/s", whole()),
            Unit::Bytes => format!("{} B", whole()),
            Unit::Percent => format!("{value:.2} %"),
            Unit::Count => format!("{value:.2}"),
        }
    }
}

/// The target for a ratio, or for a value, see [`Results::limit`].
#[derive(Clone, Copy)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// The ratio differs from 1 by at most this value.
    Within(f64),
    /// No target: the value is only reported.
    None,
}

impl Target {
    fn is_met(self, number: f64) -> &'static str {
        let met = match self {
            Target::AtMost(most) => number <= most,
            Target::AtLeast(least) => number >= least,
            Target::Within(tolerance) => (number - 1.0).abs() <= tolerance,
            Target::None => return "",
        };
        // NaN stands for a failed measurement, which never meets its target.
        if met {
            "yes"
        } else {
            "NO"
        }
    }

    fn show(self, show: impl Fn(f64) -> String) -> String {
        match self {
            Target::AtMost(most) => format!("≤ {}", show(most)),
            Target::AtLeast(least) => format!("≥ {}", show(least)),
            Target::Within(tolerance) => format!("1 ± {}", show(tolerance)),
            Target::None => String::new(),
        }
    }
}

/// One measurement: name, value, baseline, ratio, target, and whether the target is met.
pub type Row = [String; 6];

/// The results of one benchmark.
pub struct Results {
    name: &'static str,
    rows: Vec<Row>,
}

/// Measures one part of a benchmark.
pub type Part = fn(&mut Results) -> Outcome<()>;

/// Measures the parts that the command line names, or all of them. Saves only the results of all parts for the report.
pub fn measure_parts(bench: &'static str, parts: &[(&str, Part)]) -> Outcome<()> {
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let mut results = Results::of(bench);
    for (part, measure) in parts {
        if named.is_empty() || named.iter().any(|name| name == part) {
            measure(&mut results)?;
        }
    }
    if named.is_empty() {
        return results.finish(&mut Server::start()?);
    }
    results.print();
    Ok(())
}

impl Results {
    pub fn of(name: &'static str) -> Results {
        Results { name, rows: Vec::new() }
    }

    /// Adds a value, its ratio to a baseline, and a target for the ratio.
    pub fn ratio(&mut self, what: &str, unit: Unit, value: f64, (name, base): (&str, f64), target: Target) {
        let ratio = value / base;
        self.rows.push([
            what.to_owned(),
            unit.show(value),
            format!("{} {name}", unit.show(base)),
            if base == 0.0 { String::new() } else { format!("{ratio:.2}") },
            target.show(|number| number.to_string()),
            target.is_met(ratio).to_owned(),
        ]);
    }

    /// Adds a value and its limit. The baseline is shown for information only.
    pub fn limit(&mut self, what: &str, unit: Unit, value: f64, base: Option<(&str, f64)>, limit: Target) {
        self.rows.push([
            what.to_owned(),
            unit.show(value),
            base.map(|(name, base)| format!("{} {name}", unit.show(base))).unwrap_or_default(),
            base.map(|(_, base)| format!("{:.2}", value / base)).unwrap_or_default(),
            limit.show(|number| unit.show(number)),
            limit.is_met(value).to_owned(),
        ]);
    }

    /// Adds a value without a limit.
    pub fn value(&mut self, what: &str, unit: Unit, value: f64) {
        self.limit(what, unit, value, None, Target::None);
    }

    /// Writes the rows for the report, and prints them.
    pub fn finish(self, server: &mut Server) -> Outcome<()> {
        let mut text = format!("{}{}\n", server.version()?, if is_quick() { ", QUICK" } else { "" });
        for row in &self.rows {
            text += &row.join("\t");
            text += "\n";
        }
        fs::write(dir()?.join(format!("{}.tsv", self.name)), text)?;
        println!(
            "\nredis-lock {} on {}; {}",
            env!("CARGO_PKG_VERSION"),
            server.version()?,
            machine::machine()
        );
        println!("load of the last minute {}\n", machine::load());
        print!("{}", table(&self.rows));
        Ok(())
    }

    /// Prints the rows.
    pub fn print(&self) {
        println!("\nload of the last minute {}\n", machine::load());
        print!("{}", table(&self.rows));
    }

    /// Reads the results of a benchmark: the server it ran on, and the rows.
    pub fn read(name: &str) -> Outcome<(String, Vec<Row>)> {
        let text = fs::read_to_string(dir()?.join(format!("{name}.tsv")))?;
        let mut lines = text.lines();
        let server = lines.next().unwrap_or_default().to_owned();
        let row = |line: &str| -> Outcome<Row> {
            let cells: Vec<String> = line.split('\t').map(str::to_owned).collect();
            cells.try_into().map_err(|cells| format!("{name}.tsv: {cells:?}").into())
        };
        Ok((server, lines.map(row).collect::<Outcome<_>>()?))
    }
}

/// Returns the folder of results and pictures, `target/bench`.
pub fn dir() -> Outcome<PathBuf> {
    // target/release/deps/latency-0123456789abcdef
    let program = std::env::current_exe()?;
    let dir = program.ancestors().nth(3).ok_or("no target folder")?.join("bench");
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// The maximum width of the column of names. It keeps lines within 130 characters.
const NAME_WIDTH: usize = 50;

/// Formats rows as a table, with columns as wide as needed. A long name is broken into several lines, and its
/// numbers are on the last line.
pub fn table(rows: &[Row]) -> String {
    let head = ["", "measured", "baseline", "ratio", "target", "met"].map(str::to_owned);
    let mut lines: Vec<Row> = Vec::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut names = folded(&row[0]);
        let last = names.pop().unwrap_or_default();
        for name in names {
            let mut line = Row::default();
            line[0] = name;
            lines.push(line);
        }
        let mut row = row.clone();
        row[0] = last;
        lines.push(row);
    }
    let width = |column: usize| lines.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &lines {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            line += &match column {
                1 | 3 => format!("{cell:>width$}  "),
                _ => format!("{cell:width$}  "),
            };
        }
        text += line.trim_end();
        text += "\n";
    }
    text
}

/// Breaks a name into lines that fit into its column. All lines but the first are indented.
fn folded(name: &str) -> Vec<String> {
    let words = name.trim_start();
    let indent = " ".repeat(name.len() - words.len());
    let (mut lines, mut line) = (Vec::new(), indent.clone());
    for word in words.split(' ') {
        let begins = line.trim_start().is_empty();
        if !begins && line.chars().count() + 1 + word.chars().count() > NAME_WIDTH {
            lines.push(std::mem::replace(&mut line, format!("{indent}    {word}")));
            continue;
        }
        if !begins {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}
