// SPDX-License-Identifier: MIT

//! Throughput of uncontended locks: pairs of acquire and release per second, over 50 connections, each with its own key. The
//! baseline is `SET NX PX` + `DEL`, measured in alternating rounds.
//!
//! Two threads, each with an event loop, generate the load, on other cores than the server's if the machine has enough. The
//! output shows whether the server is the bottleneck. If it is, its main thread is busy all the time, and the load threads are
//! not. The server's processor time for a pair does not depend on the bottleneck.

mod support;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use support::clients::{owner, Pairs};
use support::machine::{cpu_of, main_thread_cpu_of, own_thread_cpu, pin, Cores};
use support::results::{Results, Target, Unit};
use support::samples::Samples;
use support::server::{Server, Setup};
use support::swarm::{Endpoint, Swarm};
use support::wire::Wire;
use support::{is_requested, packed, unless_quick, Outcome};

const CONNECTIONS: usize = 50;
/// The number of threads that generate the load.
const LOADERS: usize = 2;

fn main() -> Outcome<()> {
    if !is_requested("throughput") {
        return Ok(());
    }
    let mut results = Results::of("throughput");
    for io_threads in [1, 2, 4] {
        let cores = Cores::share(io_threads);
        let setup = Setup::new().on_cores(&cores.server).option("io-threads", &io_threads.to_string());
        let mut server = setup.start()?;
        for (pipeline, least) in [(1, 0.9), (16, 0.6)] {
            let [plain, native] = alternate(&server, &cores, pipeline)?;
            let what = format!("io-threads {io_threads}, pipeline {pipeline}{}", cores.remark());
            // I/O threads spin. If some have no core of their own, the machine limits both results.
            let target = if cores.server.len() < io_threads { Target::None } else { Target::AtLeast(least) };
            println!("{what}\n  SET NX PX + DEL    {}\n  ACQUIRE + RELEASE  {}", plain.show(), native.show());
            results.ratio(
                &format!("throughput: ACQUIRE + RELEASE, {what}"),
                Unit::PerSecond,
                native.rate.median(),
                ("SET NX PX + DEL", plain.rate.median()),
                target,
            );
            results.ratio(
                &format!("  server's time for a pair, {what}"),
                Unit::Micros,
                native.cpu.median(),
                ("SET NX PX + DEL", plain.cpu.median()),
                Target::None,
            );
        }
        if io_threads == 4 {
            return results.finish(&mut server);
        }
    }
    Ok(())
}

/// The measured values of each round.
#[derive(Default)]
struct Rounds {
    /// Pairs per second.
    rate: Samples,
    /// The processor time of all threads of the server for each pair, in microseconds.
    cpu: Samples,
    /// The share of the time in which the server's main thread was busy.
    server: Samples,
    /// The share of the time in which the busiest load thread was busy.
    loader: Samples,
}

impl Rounds {
    fn show(&self) -> String {
        format!(
            "{}, {:.2} µs of the server's time each; its main thread {:.0} % busy, a loading thread {:.0} %",
            Unit::PerSecond.show(self.rate.median()),
            self.cpu.median(),
            self.server.median() * 100.0,
            self.loader.median() * 100.0
        )
    }
}

fn alternate(server: &Server, cores: &Cores, pipeline: usize) -> Outcome<[Rounds; 2]> {
    let mut rounds = <[Rounds; 2]>::default();
    let plain = |number| {
        let key = format!("plain:{number}");
        Pairs::new(&format!("SET {key} {} NX PX 30000", owner(number)), &format!("DEL {key}"), pipeline)
    };
    let native = |number| {
        let (key, owner) = (format!("lock:{number}"), owner(number));
        Pairs::new(
            &format!("LOCK.ACQUIRE {key} {owner} PX 30000"),
            &format!("LOCK.RELEASE {key} {owner}"),
            pipeline,
        )
    };
    for _ in 0..unless_quick(7, 2) {
        round(server, cores, &plain, &mut rounds[0])?;
        round(server, cores, &native, &mut rounds[1])?;
    }
    Ok(rounds)
}

fn round(
    server: &Server,
    cores: &Cores,
    client: &(dyn Fn(usize) -> Pairs + Sync),
    rounds: &mut Rounds,
) -> Outcome<()> {
    let time = Duration::from_millis(unless_quick(1000, 300));
    // The server's time is read between these two moments. All clients are connected and warmed up, and none has ended.
    let (ready, done) = (Barrier::new(LOADERS + 1), Barrier::new(LOADERS + 1));
    let load = |loader: usize| -> Outcome<(usize, f64)> {
        pin(&cores.loaders);
        let each = CONNECTIONS / LOADERS;
        let clients = (loader * each..(loader + 1) * each).map(client).collect();
        let greetings = [packed("PING")];
        let endpoint =
            Endpoint { address: server.address(), wire: Wire::Redis, greetings: &greetings, connections: 1 };
        let warm = || -> Outcome<_> {
            let mut swarm = Swarm::start(&endpoint, clients)?;
            swarm.run(time / 10)?;
            Ok(swarm)
        };
        let swarm = warm();
        ready.wait();
        let (before, since) = (own_thread_cpu(), Instant::now());
        let log = swarm.and_then(|mut swarm| swarm.run(time));
        let busy = (own_thread_cpu() - before).as_secs_f64() / since.elapsed().as_secs_f64();
        done.wait();
        Ok((log?.grants, busy))
    };
    std::thread::scope(|scope| {
        let loaders: Vec<_> = (0..LOADERS)
            .map(|loader| {
                let load = &load;
                scope.spawn(move || load(loader))
            })
            .collect();
        ready.wait();
        let since = Instant::now();
        let (cpu, main) = (cpu_of(server.id())?, main_thread_cpu_of(server.id())?);
        done.wait();
        let seconds = since.elapsed().as_secs_f64();
        let cpu = (cpu_of(server.id())? - cpu).as_secs_f64();
        let main = (main_thread_cpu_of(server.id())? - main).as_secs_f64();
        let (mut pairs, mut busiest) = (0, 0.0f64);
        for loader in loaders {
            let (count, busy) = loader.join().map_err(|_| "a thread has panicked")??;
            pairs += count;
            busiest = busiest.max(busy);
        }
        rounds.rate.0.push(pairs as f64 / seconds);
        rounds.cpu.0.push(cpu * 1e6 / pairs as f64);
        rounds.server.0.push(main / seconds);
        rounds.loader.0.push(busiest);
        Ok(())
    })
}
