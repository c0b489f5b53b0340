// SPDX-License-Identifier: MIT

//! `history run` makes a load on a server, records and checks it; `history check` checks what was recorded.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use redis_lock_history::check::{check, Limits};
use redis_lock_history::load::{self, Faults, Features, Settings, Shared};
use redis_lock_history::record::{self, Record};

/// Uses locks in every way, records what the clients see, and decides whether a right server can have answered so.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Runs a load, and checks what it saw.
    Run(Run),
    /// Checks a history.
    Check {
        /// Lines of JSON.
        file: PathBuf,
        /// How late a wait may end, in milliseconds.
        #[arg(long, default_value_t = 2_000)]
        late: i64,
    },
}

#[derive(Args)]
struct Run {
    /// The server. The load writes to it, and kills connections with --faults.
    #[arg(long, default_value = "127.0.0.1:6379")]
    server: String,
    /// From which all choices come.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many clients.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// How many clients wait by NOTIFY.
    #[arg(long, default_value_t = 1)]
    listeners: u32,
    /// How many scenes are played at a time: a few clients each, in an order that chance seldom brings about.
    #[arg(long, default_value_t = 0)]
    scenes: u32,
    /// How many calls each client makes.
    #[arg(long, default_value_t = 1_000)]
    calls: u32,
    /// No more calls begin after so many seconds.
    #[arg(long, default_value_t = 3_600)]
    seconds: u64,
    /// How many locks are in use at a time.
    #[arg(long, default_value_t = 4)]
    keys: u32,
    /// After so many calls a client goes on with new locks.
    #[arg(long, default_value_t = 100)]
    calls_per_key: u32,
    /// How many owner names each client has.
    #[arg(long, default_value_t = 3)]
    owners: u32,
    /// Of a thousand calls so many have their connection broken.
    #[arg(long, default_value_t = 40)]
    broken: u32,
    /// Exclusive locks only, as porcupine can check them.
    #[arg(long)]
    exclusive: bool,
    /// Exclusive and shared locks, with limits, only, as porcupine can check them.
    #[arg(long, conflicts_with = "exclusive")]
    readers: bool,
    /// Kills, unblocks and pauses clients meanwhile.
    #[arg(long)]
    faults: bool,
    /// How late a wait may end, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    late: i64,
    /// Where to write the history.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().what {
        What::Run(run) => run_load(&run),
        What::Check { file, late } => read(&file).map(|records| (records, late)),
    };
    match result {
        Ok((records, late)) => {
            let report = check(&records, &Limits { late: late * record::MS, ..Limits::default() });
            println!("{report}");
            if report.violations.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn read(file: &PathBuf) -> Result<Vec<Record>, String> {
    let file = File::open(file).map_err(|error| error.to_string())?;
    record::read(BufReader::new(file)).map_err(|error| error.to_string())
}

fn run_load(run: &Run) -> Result<(Vec<Record>, i64), String> {
    let mut addresses = run.server.to_socket_addrs().map_err(|error| error.to_string())?;
    let server = addresses.next().ok_or("no such server")?;
    let is_plain = run.exclusive || run.readers;
    let features = match (run.exclusive, run.readers) {
        (true, _) => Features::EXCLUSIVE,
        (_, true) => Features::READERS,
        _ => Features::ALL,
    };
    let settings = Settings {
        seed: run.seed,
        clients: run.clients,
        listeners: if is_plain { 0 } else { run.listeners },
        scenes: if is_plain { 0 } else { run.scenes },
        calls: run.calls,
        at_most: Duration::from_secs(run.seconds),
        keys: run.keys,
        calls_per_key: run.calls_per_key,
        owners: run.owners,
        broken: run.broken,
        features,
        faults: Faults { kill: run.faults, unblock: run.faults, pause: run.faults },
        ..Settings::default()
    };
    let shared = Shared::new(settings, server);
    let records = load::run(&shared, |_| ())?;
    if let Some(out) = &run.out {
        let file = File::create(out).map_err(|error| error.to_string())?;
        record::write(&records, BufWriter::new(file)).map_err(|error| error.to_string())?;
    }
    Ok((records, run.late))
}
