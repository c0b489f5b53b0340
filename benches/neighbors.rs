// SPDX-License-Identifier: MIT

//! The effect of waiting clients on other clients of the same server: the time of a `GET`, sent once a millisecond.
//!
//! It is measured without the module, with the module, and while 10,000 clients wait for one lock. Then the lock is released, and
//! these clients acquire and release it in a closed loop: each release is a hand-over to the next client. Rounds alternate.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use support::caller::Caller;
use support::clients::Queued;
use support::machine::{pin, raise_open_files, Cores};
use support::results::{Results, Target, Unit};
use support::samples::{time, Samples};
use support::server::{Server, Setup, CLIENTS};
use support::swarm::{Endpoint, Swarm};
use support::wire::Wire;
use support::{is_requested, packed, thousands, unless_quick, Outcome};

const INTERVAL: Duration = Duration::from_millis(1);

/// Hand-overs and the times of `GET` in all rounds.
#[derive(Default)]
struct Measured {
    bare: Samples,
    idle: Samples,
    waiters: Samples,
    storm: Samples,
    grants: usize,
}

fn main() -> Outcome<()> {
    if !is_requested("neighbors") {
        return Ok(());
    }
    let limit = raise_open_files(CLIENTS + 100);
    let waiters = unless_quick(10_000, 500).min(limit.saturating_sub(200));
    let (rounds, duration) = (unless_quick(5, 1), Duration::from_secs(unless_quick(5, 1)));
    let cores = Cores::share(1);
    let setup = Setup::new().on_cores(&cores.server);
    let mut bare = setup.clone().without_module().start()?;
    let mut server = setup.start()?;
    pin(&cores.loaders);
    let mut measured = Measured::default();
    for round in 0..rounds {
        eprintln!("round {}", round + 1);
        measured.bare.0.extend(time_gets(&bare, duration)?);
        measured.idle.0.extend(time_gets(&server, duration)?);
        with_waiters(&mut server, waiters, duration, &mut measured)?;
        server.clear()?;
        bare.clear()?;
    }
    let mut results = Results::of("neighbors");
    let waiting = format!("{} clients wait", thousands(waiters));
    let storm = format!("{} clients hand the lock on", thousands(waiters));
    for (what, samples) in [
        ("no lock is used", &measured.idle),
        (waiting.as_str(), &measured.waiters),
        (storm.as_str(), &measured.storm),
    ] {
        println!("{what}: median {}, longest {}", time(samples.median()), time(samples.max()));
        let base = ("without module", measured.bare.p99());
        results.ratio(&format!("p99 of GET: {what}"), Unit::Micros, samples.p99(), base, Target::None);
    }
    let per_second = measured.grants as f64 / (rounds as f64 * duration.as_secs_f64());
    results.value("p99 of GET: hand-overs meanwhile", Unit::PerSecond, per_second);
    results.finish(&mut server)
}

/// Measures while many clients wait for a lock, and then while each of them releases it as soon as it is granted.
fn with_waiters(
    server: &mut Server,
    count: usize,
    duration: Duration,
    measured: &mut Measured,
) -> Outcome<()> {
    let mut holder = Caller::connect(server)?;
    holder.call("LOCK.ACQUIRE race holder PX 600000")?;
    let greetings = [packed("PING")];
    let endpoint =
        Endpoint { address: server.address(), wire: Wire::Redis, greetings: &greetings, connections: 1 };
    let mut swarm = Swarm::start(&endpoint, (0..count).map(|n| Queued::native("race", n)).collect())?;
    server.until("all wait", |server| Ok(server.info("lock_waiters")? == count.to_string()))?;
    measured.waiters.0.extend(time_gets(server, duration)?);
    holder.call("LOCK.RELEASE race holder")?;
    let server = &*server;
    thread::scope(|scope| {
        let gets = scope.spawn(|| time_gets(server, duration));
        measured.grants += swarm.run(duration)?.grants;
        measured.storm.0.extend(gets.join().map_err(|_| "a thread has panicked")??);
        Ok(())
    })
}

/// The times of `GET` in microseconds.
fn time_gets(server: &Server, duration: Duration) -> Outcome<Vec<f64>> {
    let mut caller = Caller::connect(server)?;
    caller.call("SET text 0123456789")?;
    let (mut times, end) = (Vec::new(), Instant::now() + duration);
    while Instant::now() < end {
        thread::sleep(INTERVAL);
        let sent = Instant::now();
        caller.call("GET text")?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}
