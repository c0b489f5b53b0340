// SPDX-License-Identifier: MIT

//! `history run` runs a load on a server, and records and checks its history. `history check` checks a recorded history.

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

/// Uses locks in every way, records the calls and replies of all clients, and decides whether a correct server can have replied
/// so.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a load and checks its history.
    Run(Run),
    /// Checks a history.
    Check {
        /// The history, as lines of JSON.
        file: PathBuf,
        /// Maximum delay of the end of a wait, in milliseconds.
        #[arg(long, default_value_t = 2_000)]
        late: i64,
    },
}

#[derive(Args)]
struct Run {
    /// The server. The load writes to it, and kills connections with --faults.
    #[arg(long, default_value = "127.0.0.1:6379")]
    server: String,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of clients.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// Number of clients with a session.
    #[arg(long, default_value_t = 1)]
    sessions: u32,
    /// Number of scenes that run at a time: a few clients each, in an order that chance rarely produces.
    #[arg(long, default_value_t = 0)]
    scenes: u32,
    /// Number of calls of each client.
    #[arg(long, default_value_t = 1_000)]
    calls: u32,
    /// Number of seconds after which no calls start.
    #[arg(long, default_value_t = 3_600)]
    seconds: u64,
    /// Number of locks in use at a time.
    #[arg(long, default_value_t = 4)]
    keys: u32,
    /// Number of calls after which a client switches to new locks.
    #[arg(long, default_value_t = 100)]
    calls_per_key: u32,
    /// Number of owner names of each client.
    #[arg(long, default_value_t = 3)]
    owners: u32,
    /// Number of calls in a thousand whose connection is broken.
    #[arg(long, default_value_t = 40)]
    broken: u32,
    /// Use exclusive locks only, which Porcupine can check.
    #[arg(long)]
    exclusive: bool,
    /// Use only exclusive and shared locks with limits, which Porcupine can check.
    #[arg(long, conflicts_with = "exclusive")]
    readers: bool,
    /// Kill, unblock and pause clients during the load.
    #[arg(long)]
    faults: bool,
    /// Maximum delay of the end of a wait, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    late: i64,
    /// File for the history.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(run) => run_load(&run),
        Command::Check { file, late } => read(&file).map(|records| (records, late)),
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
        sessions: run.sessions,
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
