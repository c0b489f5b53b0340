// SPDX-License-Identifier: MIT

//! The cost of a hand-over among sleeping clients: 2 to 10,000 clients in a closed loop. Each client releases the lock as soon as
//! it is granted, and queues up again after the reply to the release. The baseline is the "floor", a module that only queues
//! clients and unblocks them (`tests/modules/floor.rs`).
//!
//! First the server's instructions and system calls are counted. Each call is sent while the server sleeps, so the server wakes
//! up for each call. In a loop without this pause, the server often reads two calls at once, and the second client finds a free
//! lock. Then the time of a hand-over is measured, with each call sent as early as possible. PostgreSQL is measured in the same
//! way.

mod support;

use std::time::Duration;

use support::machine::{pin, raise_open_files, Cores};
use support::postgres::{self, Postgres};
use support::results::{Results, Target, Unit};
use support::ring::{Pace, Ring};
use support::samples::Samples;
use support::server::{Setup, CLIENTS};
use support::sleeping::{self, Contender};
use support::system_calls::{self, Counts};
use support::{is_quick, is_requested, thousands, unless_quick, Outcome};

const SIZES: [usize; 4] = [2, 10, 200, 10_000];
/// The maximum number of clients of PostgreSQL, which has a process for each client.
const MAX_POSTGRES_CLIENTS: usize = 200;
/// The number of clients while system calls are counted.
const TRACED: usize = 200;

fn main() -> Outcome<()> {
    if !is_requested("sleeping") {
        return Ok(());
    }
    // Reserves some open files for this process.
    let limit = raise_open_files(CLIENTS + 100);
    let sizes: Vec<usize> = SIZES.into_iter().filter(|size| size + 100 < limit).collect();
    let mut results = Results::of("sleeping");
    instructions(&sizes, &mut results)?;
    count_system_calls(&mut results)?;
    wall_time(&sizes, &mut results)?;
    results.finish(&mut Setup::new().without_module().start()?)
}

fn instructions(sizes: &[usize], results: &mut Results) -> Outcome<()> {
    let mut of_few = None;
    for size in sizes.iter().filter(|size| !is_quick() || **size <= 200) {
        let (module, floor) = sleeping::count_both(*size)?;
        let clients = thousands(*size);
        eprintln!(
            "{clients} clients: {:.2} cycles of the event loop, floor {:.2}",
            module.cycles, floor.cycles
        );
        let what = format!("sleeping: instructions, {clients} clients");
        let base = ("floor", floor.instructions);
        results.ratio(
            &what,
            Unit::Instructions,
            module.instructions,
            base,
            if *size <= 200 { Target::AtMost(2.0) } else { Target::None },
        );
        let few = *of_few.get_or_insert(module.instructions);
        if *size == SIZES[SIZES.len() - 1] {
            results.ratio(
                &what,
                Unit::Instructions,
                module.instructions,
                ("2 clients", few),
                Target::AtMost(1.25),
            );
        }
    }
    Ok(())
}

fn count_system_calls(results: &mut Results) -> Outcome<()> {
    let times = unless_quick(2000, 500);
    let count = |contender: Contender| -> Outcome<Option<Counts>> {
        // Minimizes the periodic work of the server.
        let mut server = contender.start(Setup::new().option("hz", "1").option("dynamic-hz", "no"))?;
        let mut ring = contender.ring(&mut server, TRACED)?;
        let pace = Pace::WhenServerSleeps(server.id());
        ring.hand_over(100, pace)?;
        system_calls::count(&server, || ring.hand_over(times, pace))
    };
    let (Some(module), Some(floor)) = (count(Contender::Module)?, count(Contender::Floor)?) else {
        return Ok(());
    };
    let each =
        |counts: &Counts, name: &str| counts.get(name).map_or(0.0, |count| *count as f64 / f64::from(times));
    let mut names: Vec<&String> = module.keys().chain(floor.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let (module, floor) = (each(&module, name), each(&floor, name));
        // The other system calls belong to the periodic work of the server.
        if module.max(floor) >= 0.05 {
            let what = format!("  system calls, {name}");
            results.ratio(&what, Unit::Count, module, ("floor", floor), Target::None);
        }
    }
    Ok(())
}

/// Measures the time of a hand-over. The contenders take turns, and the result is the median of the rounds.
fn wall_time(sizes: &[usize], results: &mut Results) -> Outcome<()> {
    let cores = Cores::share(1);
    let postgres = Postgres::start()?;
    for size in sizes {
        let [mut on_module, mut on_floor, mut on_postgres] = [const { Samples(Vec::new()) }; 3];
        for _ in 0..unless_quick(5, 1) {
            on_module.0.push(on_redis(Contender::Module, &cores, *size)?);
            on_floor.0.push(on_redis(Contender::Floor, &cores, *size)?);
            if let Some(postgres) = postgres.as_ref().filter(|_| *size <= MAX_POSTGRES_CLIENTS) {
                let calls = (0..*size).map(|_| postgres::calls(1)).collect();
                let ring = Ring::start(&postgres.endpoint(), calls)?;
                on_postgres.0.push(time(&postgres.cores, ring)?);
            }
        }
        let what = format!("sleeping: a hand-over takes, {} clients", thousands(*size));
        let median = on_module.median();
        results.ratio(&what, Unit::Micros, median, ("floor", on_floor.median()), Target::None);
        if !on_postgres.0.is_empty() {
            results.ratio(&what, Unit::Micros, median, ("PostgreSQL", on_postgres.median()), Target::None);
        }
    }
    Ok(())
}

/// Starts a new server for each measurement, because the floor does not remove disconnected clients from its queue.
fn on_redis(contender: Contender, cores: &Cores, size: usize) -> Outcome<f64> {
    let mut server = contender.start(Setup::new().on_cores(&cores.server))?;
    time(cores, contender.ring(&mut server, size)?)
}

/// Returns the time of a hand-over in microseconds. Runs the clients on these cores.
fn time(cores: &Cores, mut ring: Ring) -> Outcome<f64> {
    let measure = move || -> Outcome<f64> {
        pin(&cores.loaders);
        ring.hand_over_for(Duration::from_millis(200))?;
        let each = ring.hand_over_for(Duration::from_millis(unless_quick(1500, 500)))?;
        Ok(each.as_secs_f64() * 1e6)
    };
    // Pins a new thread to the cores, as the calling thread must stay free to use all cores.
    std::thread::scope(|scope| scope.spawn(measure).join().map_err(|_| "a thread has panicked")?)
}
