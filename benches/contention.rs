// SPDX-License-Identifier: MIT

//! One contended lock: 2 to 200 clients acquire and release it in a closed loop, without work in between. Measures grants per
//! second, the server's processor time for each grant, and the time from one client's release to the next client's grant.
//!
//! The module is compared with a polling client, with Redisson's protocol, and with PostgreSQL's advisory locks. The clients of
//! all four are TCP connections in one thread, whose event loop sleeps until a reply arrives.
//!
//! The real Redisson runs as threads of one JVM, in two variants. In the first one, each thread has its own
//! client, like a separate process. The module is compared with this variant. In the second one, all threads share
//! one client and its subscription, so a release wakes only one of them. The benchmark runs in rounds; each round measures every
//! contender once.
//!
//! A polling client, or Redisson, may get the lock again right after releasing it, while other clients wait. This raises the
//! number of grants, and starves the other clients. Such a grant is not counted as a hand-over.

mod support;

use std::time::Duration;

use support::machine::Cores;
use support::picture::{self, Axis, Line};
use support::postgres::Postgres;
use support::race::{self, Kind, Load, Race};
use support::redisson::Jvm;
use support::results::{Results, Target, Unit};
use support::samples::{time, Samples};
use support::server::{Server, Setup};
use support::{is_requested, unless_quick, Outcome};

const CLIENTS: [usize; 4] = [2, 10, 50, 200];
/// Numbers of clients whose results are in the report.
const REPORTED: [usize; 3] = [2, 50, 200];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    /// The module, on a server with this number of I/O threads.
    Native(usize),
    Polling,
    Protocol,
    Postgres,
    /// Redisson with one client for all threads.
    RedissonThreads,
    /// Redisson with a client for each thread.
    RedissonClients,
}

use Contender::{Native, Polling, Postgres as Advisory, Protocol, RedissonClients, RedissonThreads};

const CONTENDERS: [(Contender, &str); 8] = [
    (Native(1), "native"),
    (Native(2), "native, io-threads 2"),
    (Native(4), "native, io-threads 4"),
    (Polling, "polling"),
    (Protocol, "publish/subscribe"),
    (Advisory, "PostgreSQL"),
    (RedissonClients, "Redisson 4.7"),
    (RedissonThreads, "Redisson 4.7, one process"),
];

/// The servers on which the contenders acquire the lock.
struct Backends {
    /// Servers with 1, 2 and 4 I/O threads.
    servers: [(usize, Server, Cores); 3],
    postgres: Option<Postgres>,
    /// A separate server for Redisson, as its clients stay connected between rounds.
    jvm: Option<(Jvm, Server)>,
}

fn main() -> Outcome<()> {
    if !is_requested("contention") {
        return Ok(());
    }
    let start = |io_threads: usize| -> Outcome<_> {
        let cores = Cores::share(io_threads);
        let setup = Setup::new().option("io-threads", &io_threads.to_string()).on_cores(&cores.server);
        Ok((io_threads, setup.start()?, cores))
    };
    let servers = [start(1)?, start(2)?, start(4)?];
    let jvm = match Jvm::is_installed() {
        true => {
            let (_, server, cores) = start(1)?;
            Some((Jvm::connect(&server, &cores), server))
        }
        false => None,
    };
    let mut backends = Backends { servers, postgres: Postgres::start()?, jvm };
    let mut table = Table::default();
    for round in 0..unless_quick(7, 1) {
        for clients in CLIENTS {
            eprintln!("round {}, {clients} clients", round + 1);
            for (contender, name) in CONTENDERS {
                if let Some(race) = backends.race(contender, clients)? {
                    table.add(name, clients, &race);
                }
            }
        }
    }
    table.print();
    draw(&table)?;
    let mut results = Results::of("contention");
    report(&mut results, &table);
    results.finish(&mut backends.servers[0].1)
}

impl Backends {
    fn race(&mut self, contender: Contender, clients: usize) -> Outcome<Option<Race>> {
        let load = Load::on_one_lock(clients);
        let time = Duration::from_millis(unless_quick(700, 400));
        let mut on_redis = |io_threads: usize, kind| -> Outcome<Option<Race>> {
            match self.servers.iter_mut().find(|server| server.0 == io_threads) {
                Some((_, server, cores)) => Ok(Some(race::on_redis(server, cores, kind, load, time)?)),
                None => Ok(None),
            }
        };
        match contender {
            Native(io_threads) => on_redis(io_threads, Kind::Native),
            Polling => on_redis(1, Kind::Polling),
            Protocol => on_redis(1, Kind::Protocol),
            Advisory => self.postgres.as_ref().map(|it| race::on_postgres(it, load, time)).transpose(),
            RedissonThreads | RedissonClients => {
                let Some((jvm, server)) = &mut self.jvm else { return Ok(None) };
                let apart = contender == RedissonClients;
                Ok(Some(race::with_redisson(server, jvm, apart, load, time)?))
            }
        }
    }
}

/// Results of one contender and one number of clients, over all rounds.
#[derive(Default)]
struct Cell {
    name: &'static str,
    clients: usize,
    grants: Samples,
    cpu: Samples,
    hand_overs: Samples,
}

#[derive(Default)]
struct Table(Vec<Cell>);

impl Table {
    fn add(&mut self, name: &'static str, clients: usize, race: &Race) {
        if !self.0.iter().any(|cell| (cell.name, cell.clients) == (name, clients)) {
            self.0.push(Cell { name, clients, ..Cell::default() });
        }
        for cell in self.0.iter_mut().filter(|cell| (cell.name, cell.clients) == (name, clients)) {
            cell.grants.0.push(race.grants_per_second);
            cell.cpu.0.push(race.cpu_per_grant);
            cell.hand_overs.0.extend(&race.hand_overs.0);
        }
    }

    fn get<T>(&self, name: &str, clients: usize, what: impl Fn(&Cell) -> T) -> Option<T> {
        self.0.iter().find(|cell| (cell.name, cell.clients) == (name, clients)).map(what)
    }

    fn grants(&self, name: &str, clients: usize) -> Option<f64> {
        self.get(name, clients, |cell| cell.grants.median())
    }

    fn cpu(&self, name: &str, clients: usize) -> Option<f64> {
        self.get(name, clients, |cell| cell.cpu.median())
    }

    fn print(&self) {
        println!(
            "{:26} {:>7} {:>10} {:>12} {:>10} {:>10}",
            "", "clients", "grants/s", "server", "p50", "p99"
        );
        for (_, name) in CONTENDERS {
            for cell in self.0.iter().filter(|cell| cell.name == name) {
                let (grants, cpu) = (cell.grants.median(), time(cell.cpu.median()));
                let (p50, p99) = (time(cell.hand_overs.median()), time(cell.hand_overs.p99()));
                println!("{name:26} {:>7} {grants:>10.0} {cpu:>12} {p50:>10} {p99:>10}", cell.clients);
            }
        }
        println!("server: its processor time for a grant; p50, p99: of a hand-over, as the clients see it");
    }
}

fn line(contender: Contender, name: &str, points: Vec<(f64, f64)>) -> Line {
    let is_ours = matches!(contender, Native(_));
    Line { name: if is_ours { "this module" } else { name }.to_owned(), is_ours, points }
}

fn draw(table: &Table) -> Outcome<()> {
    let curve = |of: &dyn Fn(&str, usize) -> Option<f64>| -> Vec<Line> {
        let names = CONTENDERS.into_iter().filter(|(contender, _)| !matches!(contender, Native(2 | 4)));
        let points = |name| {
            CLIENTS.iter().filter_map(|clients| Some((*clients as f64, of(name, *clients)?))).collect()
        };
        names.map(|(contender, name)| line(contender, name, points(name))).collect()
    };
    let clients = Axis { label: "clients in a closed loop on one lock", is_logarithmic: true };
    let axis = |label| Axis { label, is_logarithmic: true };
    let grants = curve(&|name, clients| table.grants(name, clients));
    picture::draw(
        "contention",
        "How often a contended lock is granted",
        &clients,
        &axis("grants per second"),
        &grants,
    )?;
    let cpu = curve(&|name, clients| table.cpu(name, clients));
    let label = "microseconds of the server's time";
    picture::draw("contention-cpu", "What a grant costs the server", &clients, &axis(label), &cpu)?;
    let lines: Vec<Line> = CONTENDERS
        .into_iter()
        .filter(|(contender, _)| matches!(contender, Native(1) | Advisory | RedissonClients))
        .filter_map(|(contender, name)| {
            let points = table.get(name, 50, |cell| cell.hand_overs.distribution())?;
            Some(line(contender, name, points))
        })
        .collect();
    let share = Axis { label: "share of the hand-overs", is_logarithmic: false };
    picture::draw("contention-latency", "A hand-over among 50 clients", &axis("microseconds"), &share, &lines)
}

fn report(results: &mut Results, table: &Table) {
    let native = |clients| table.grants("native", clients).unwrap_or(f64::NAN);
    for name in ["native", "native, io-threads 2", "native, io-threads 4"] {
        let Some(few) = table.grants(name, 2) else { continue };
        for clients in [50, 200] {
            let grants = table.grants(name, clients).unwrap_or(f64::NAN);
            let target = if clients == 200 { Target::AtLeast(0.9) } else { Target::None };
            let what = format!("contention: {name}, {clients} clients");
            results.ratio(&what, Unit::PerSecond, grants, ("with 2", few), target);
        }
        let (few, many) = (table.cpu(name, 2), table.cpu(name, 200).unwrap_or(f64::NAN));
        let what = format!("  server's time for a grant, {name}, 200 clients");
        results.ratio(&what, Unit::Micros, many, ("with 2", few.unwrap_or(f64::NAN)), Target::AtMost(1.5));
    }
    for clients in REPORTED {
        let redisson = table.grants("Redisson 4.7", clients).unwrap_or(f64::NAN);
        let target = match clients {
            50 => Target::AtLeast(10.0),
            200 => Target::AtLeast(40.0),
            _ => Target::None,
        };
        let what = format!("contention: native, {clients} clients");
        results.ratio(&what, Unit::PerSecond, native(clients), ("Redisson 4.7", redisson), target);
    }
    for clients in REPORTED {
        for name in ["PostgreSQL", "polling", "publish/subscribe", "Redisson 4.7, one process"] {
            let Some(theirs) = table.grants(name, clients) else { continue };
            let what = format!("contention: native, {clients} clients");
            results.ratio(&what, Unit::PerSecond, native(clients), (name, theirs), Target::None);
        }
    }
    for name in ["PostgreSQL", "polling", "publish/subscribe", "Redisson 4.7", "Redisson 4.7, one process"] {
        let target = if name == "PostgreSQL" { Target::AtMost(0.6) } else { Target::None };
        let ours = table.cpu("native", 200).unwrap_or(f64::NAN);
        let theirs = table.cpu(name, 200).unwrap_or(f64::NAN);
        results.ratio("  server's time for a grant, 200 clients", Unit::Micros, ours, (name, theirs), target);
    }
    for clients in [2, 50] {
        for (percentile, per_mille) in [("p50", 500), ("p99", 990)] {
            let of = |name| {
                table.get(name, clients, |cell| cell.hand_overs.per_mille(per_mille)).unwrap_or(f64::NAN)
            };
            let what = format!("  hand-over, {clients} clients, {percentile}");
            let redisson = ("Redisson 4.7", of("Redisson 4.7"));
            results.ratio(&what, Unit::Micros, of("native"), redisson, Target::None);
        }
    }
}
