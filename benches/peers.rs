// SPDX-License-Identifier: MIT

//! This module beside the systems that people would use instead, on one machine: a polling client, Redisson, PostgreSQL's
//! advisory locks, etcd, and ZooKeeper with Curator.
//!
//! In each race, clients acquire and release locks in a closed loop, without work in between. The races run in rounds; each round
//! measures every contender once. Then the time for which a killed process keeps its lock is measured.
//!
//! `cargo bench --bench peers -- races` measures one part, and prints the results without saving them for the report. The parts
//! are `races` and `killed`.

mod support;

use std::time::Duration;

use support::killed;
use support::machine::{load, Cores};
use support::postgres::Postgres;
use support::race::{self, Load, Race};
use support::redisson::Jvm;
use support::results::{measure_parts, Results, Target, Unit};
use support::samples::{time, Samples};
use support::server::Setup;
use support::service::{Disk, Kind, Service};
use support::{is_requested, unless_quick, Outcome};

const MODULE: &str = "this module";

/// One lock with 2 to 200 clients, and 50 clients with a lock each.
const LOADS: [Load; 5] = [
    Load { clients: 2, locks: 1 },
    Load { clients: 10, locks: 1 },
    Load { clients: 50, locks: 1 },
    Load { clients: 200, locks: 1 },
    Load { clients: 50, locks: 50 },
];

/// A system, with its server and its clients.
struct Contender {
    name: &'static str,
    race: Box<dyn FnMut(Load) -> Outcome<Race>>,
}

/// Returns a result of a cell.
type Measure = fn(&Cell) -> f64;

/// Results of one contender and one load, over all rounds.
struct Cell {
    name: &'static str,
    load: Load,
    grants: Samples,
    cpu: Samples,
    hand_overs: Samples,
    waits: Samples,
}

fn main() -> Outcome<()> {
    if !is_requested("peers") {
        return Ok(());
    }
    println!("clients and servers on the same machine, load {}\n", load());
    measure_parts("peers", &[("races", races), ("killed", killed_holders)])
}

fn killed_holders(results: &mut Results) -> Outcome<()> {
    for (name, time) in killed::measure()? {
        let what = format!("peers: killed holder to next grant, {name}");
        results.value(&what, Unit::Micros, time.as_secs_f64() * 1e6);
    }
    Ok(())
}

fn races(results: &mut Results) -> Outcome<()> {
    let mut contenders = contenders()?;
    let mut cells: Vec<Cell> = Vec::new();
    for load in LOADS {
        for Contender { name, .. } in &contenders {
            let [grants, cpu, hand_overs, waits] = [const { Samples(Vec::new()) }; 4];
            cells.push(Cell { name, load, grants, cpu, hand_overs, waits });
        }
    }
    for round in 0..unless_quick(5, 1) {
        for load in LOADS {
            eprintln!("round {}, {}", round + 1, describe(load));
            for Contender { name, race } in &mut contenders {
                let race = race(load).map_err(|error| format!("{name}: {error}"))?;
                for cell in cells.iter_mut().filter(|cell| (cell.name, cell.load) == (*name, load)) {
                    cell.grants.0.push(race.grants_per_second);
                    cell.cpu.0.push(race.cpu_per_grant);
                    cell.hand_overs.0.extend(&race.hand_overs.0);
                    cell.waits.0.extend(&race.waits.0);
                }
            }
        }
    }
    print(&cells);
    report(results, &cells);
    Ok(())
}

/// Starts all contenders that are installed, this module first.
fn contenders() -> Outcome<Vec<Contender>> {
    let always = || Setup::new().option("appendonly", "yes").option("appendfsync", "always");
    let mut contenders = vec![
        on_redis(MODULE, Setup::new(), race::Kind::Native)?,
        on_redis("this module, fsync", always(), race::Kind::Native)?,
        on_redis("polling", Setup::new().without_module(), race::Kind::Polling)?,
    ];
    if Jvm::is_installed() {
        let cores = Cores::share(1);
        let server = Setup::new().without_module().on_cores(&cores.server).start()?;
        let jvm = Jvm::connect(&server, &cores);
        let race = move |load| race::with_redisson(&server, &jvm, true, load, race_time());
        contenders.push(Contender { name: "Redisson 4.7", race: Box::new(race) });
    }
    if let Some(postgres) = Postgres::start()? {
        let race = move |load| race::on_postgres(&postgres, load, race_time());
        contenders.push(Contender { name: "PostgreSQL", race: Box::new(race) });
    }
    for (name, kind, disk) in [
        ("etcd 3.7", Kind::Etcd, Disk::Synced),
        ("etcd 3.7, no fsync", Kind::Etcd, Disk::Unsynced),
        ("ZooKeeper 3.9", Kind::ZooKeeper, Disk::Synced),
        ("ZooKeeper 3.9, no fsync", Kind::ZooKeeper, Disk::Unsynced),
    ] {
        if let Some(service) = Service::start(kind, disk)? {
            let mut program = service.start_clients()?;
            let race = move |load| service.race(&mut program, load, race_time());
            contenders.push(Contender { name, race: Box::new(race) });
        }
    }
    Ok(contenders)
}

fn on_redis(name: &'static str, setup: Setup, kind: race::Kind) -> Outcome<Contender> {
    let cores = Cores::share(1);
    let mut server = setup.on_cores(&cores.server).start()?;
    let race = move |load| race::on_redis(&mut server, &cores, kind, load, race_time());
    Ok(Contender { name, race: Box::new(race) })
}

/// Also the limit of the longest wait that a race can show.
fn race_time() -> Duration {
    Duration::from_millis(unless_quick(2000, 500))
}

fn describe(load: Load) -> String {
    match load.locks {
        1 => format!("1 lock, {} clients", load.clients),
        locks => format!("{locks} locks, {} clients", load.clients),
    }
}

impl Cell {
    /// Returns the hand-overs of one lock. If each client has its own lock, returns the waits.
    fn delays(&self) -> &Samples {
        match self.load.locks {
            1 => &self.hand_overs,
            _ => &self.waits,
        }
    }
}

fn print(cells: &[Cell]) {
    for load in LOADS {
        let kind = if load.locks == 1 { "hand-over" } else { "wait" };
        println!("\n{}", describe(load));
        println!(
            "{:26} {:>10} {:>10} {:>10} {:>10} {:>12}",
            "",
            "grants/s",
            "server",
            format!("{kind} p50"),
            "p99",
            "longest wait"
        );
        for cell in cells.iter().filter(|cell| cell.load == load) {
            let (grants, cpu) = (cell.grants.median(), time(cell.cpu.median()));
            let [p50, p99, longest] =
                [cell.delays().median(), cell.delays().p99(), cell.waits.max()].map(time);
            println!("{:26} {grants:>10.0} {cpu:>10} {p50:>10} {p99:>10} {longest:>12}", cell.name);
        }
    }
    println!("server: processor time of all its processes for a grant");
}

fn report(results: &mut Results, cells: &[Cell]) {
    let measures: [(&str, Unit, Measure); 5] = [
        ("grants", Unit::PerSecond, |cell| cell.grants.median()),
        ("server's time for a grant", Unit::Micros, |cell| cell.cpu.median()),
        ("hand-over, p50", Unit::Micros, |cell| cell.delays().median()),
        ("hand-over, p99", Unit::Micros, |cell| cell.delays().p99()),
        ("longest wait", Unit::Micros, |cell| cell.waits.max()),
    ];
    for load in LOADS {
        let Some(ours) = cells.iter().find(|cell| (cell.name, cell.load) == (MODULE, load)) else { continue };
        // Only the loads with 50 clients have all rows, as the table would be too long.
        let reported = if load.clients == 50 { measures.len() } else { 1 };
        for (measure, unit, of) in &measures[..reported] {
            let measure =
                if load.locks > 1 { measure.replace("hand-over", "wait") } else { (*measure).to_owned() };
            let what = format!("peers: {}, {measure}", describe(load));
            for peer in cells.iter().filter(|cell| cell.load == load && cell.name != MODULE) {
                results.ratio(&what, *unit, of(ours), (peer.name, of(peer)), Target::None);
            }
        }
    }
}
