// SPDX-License-Identifier: MIT

//! Measurements for capacity planning. The first is the wait for a hot lock, compared with the calculation of
//! `examples/hot_lock`. The second is the cost of a release in a cluster, by the number of nodes.
//!
//! **The hot lock.** Requests arrive at random times, as if from independent clients, even while earlier requests still wait. For
//! each request, a client sleeps until the arrival time, acquires the lock, holds it for a random time, and releases it. The
//! calculation uses only numbers that an application knows: the times of calls, the durations of holds, and the average time of
//! a release. It does not use the measured waits.
//!
//! **The cluster.** The measured node serves all slots. The other nodes serve none, and only receive messages of the cluster bus.

mod support;

#[path = "../examples/hot_lock/queue.rs"]
mod queue;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use queue::{waits, Load, Request, Spread};
use support::caller::Caller;
use support::machine::{pin, Cores};
use support::results::{Results, Target, Unit};
use support::samples::Samples;
use support::server::{Server, Setup};
use support::{is_requested, unless_quick, Outcome, OWNER};

/// The intended average duration of a hold, in seconds. Actual holds are slightly longer, as clients oversleep.
const HOLD: f64 = 0.02;

/// The intended utilizations of the lock: shares of the time in which it is held.
const UTILISATIONS: [f64; 4] = [0.5, 0.65, 0.75, 0.85];

/// The number of clients, large enough that some clients are idle at any time.
const CLIENTS: usize = 150;

/// The tolerated deviation of a measured wait from the calculated one.
const TOLERANCE: f64 = 0.2;

/// The sizes of the clusters, in nodes.
const NODES: [usize; 3] = [2, 10, 40];

fn main() -> Outcome<()> {
    if !is_requested("scale") {
        return Ok(());
    }
    let mut results = Results::of("scale");
    let mut server = hot_lock(&mut results)?;
    cluster(&mut results)?;
    results.finish(&mut server)
}

fn hot_lock(results: &mut Results) -> Outcome<Server> {
    let cores = Cores::share(1);
    let server = Setup::new().on_cores(&cores.server).start()?;
    pin(&cores.loaders);
    for (spread, name) in [(Spread::None, "equal"), (Spread::Exponential, "exponential")] {
        for utilisation in UTILISATIONS {
            let load = Load { per_second: utilisation / HOLD, hold: HOLD, spread, round_trip: 0.0 };
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Some thousands.
            let count = (load.per_second * unless_quick(25.0, 3.0)) as usize;
            let mut served = play(&server, &load.requests(count, 1))?;
            served.sort_by(|one, other| one.request.at.total_cmp(&other.request.at));
            let mean = |of: fn(&Served) -> f64| served.iter().map(of).sum::<f64>() / served.len() as f64;
            let (hold, round_trip) = (mean(|served| served.request.hold), mean(|served| served.release));
            let load = Load { hold, round_trip, ..load };
            let requests: Vec<Request> = served.iter().map(|served| served.request).collect();
            let measured = Samples(served.iter().map(|served| served.waited * 1e6).collect());
            let calculated = waits(&requests, round_trip).into_iter().map(|wait| wait * 1e6);
            let calculated = Samples(calculated.collect());
            let percent = load.utilisation() * 100.0;
            eprintln!("{percent:.0} %: {:.0} µs for a release", round_trip * 1e6);
            for (which, value) in [("mean", Samples::mean as fn(&Samples) -> f64), ("p99", Samples::p99)] {
                let what = format!("scale: wait for a lock busy at {percent:.0} %, {name} holds, {which}");
                let (measured, calculated) = (value(&measured), value(&calculated));
                let target = Target::Within(TOLERANCE);
                results.ratio(&what, Unit::Micros, measured, ("calculated", calculated), target);
            }
        }
    }
    Ok(server)
}

/// The times of one request, in seconds.
struct Served {
    /// The time at which the call was sent, and the duration of the hold.
    request: Request,
    /// The time from the call until the grant.
    waited: f64,
    /// The time from the release until its reply.
    release: f64,
}

/// Makes the requests, and returns their times.
fn play(server: &Server, requests: &[Request]) -> Outcome<Vec<Served>> {
    let next = AtomicUsize::new(0);
    let begin = Instant::now() + Duration::from_millis(500);
    let client = |number: usize| -> Outcome<Vec<Served>> {
        let mut caller = Caller::connect(server)?;
        let mut served = Vec::new();
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let at = begin + Duration::from_secs_f64(request.at);
            thread::sleep(at.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            granted(&caller.call(&format!("LOCK.ACQUIRE hot client:{number} BLOCK 0"))?)?;
            let granted_at = Instant::now();
            thread::sleep(Duration::from_secs_f64(request.hold));
            let releases = Instant::now();
            caller.call(&format!("LOCK.RELEASE hot client:{number}"))?;
            let request =
                Request { at: (sent - begin).as_secs_f64(), hold: (releases - granted_at).as_secs_f64() };
            let (waited, release) = ((granted_at - sent).as_secs_f64(), releases.elapsed().as_secs_f64());
            served.push(Served { request, waited, release });
        }
        Ok(served)
    };
    let client = &client;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        let mut served = Vec::new();
        for client in clients {
            served.extend(client.join().map_err(|_| "a client panicked")??);
        }
        Ok(served)
    })
}

/// Fails unless the reply is a grant.
fn granted(reply: &[u8]) -> Outcome<()> {
    match reply {
        b":1\r\n" => Ok(()),
        reply => Err(format!("instead of a grant: {}", reply.escape_ascii()).into()),
    }
}

/// Measures the cost of an acquire and a release by the number of nodes. `PUBLISH` sends the release message to all nodes;
/// `SPUBLISH` sends it within the shard only.
fn cluster(results: &mut Results) -> Outcome<()> {
    let mut least = None;
    for size in NODES {
        let mut nodes = Vec::new();
        for _ in 0..size {
            let mut setup = Setup::new().in_a_cluster();
            // The other nodes serve no slots.
            if !nodes.is_empty() {
                setup = setup.without_module();
            }
            nodes.push(setup.start()?);
        }
        let (measured, others) = nodes.split_at_mut(1);
        let measured = &mut measured[0];
        redis::cmd("CLUSTER").arg(&["ADDSLOTSRANGE", "0", "16383"]).query::<()>(&mut measured.control)?;
        for other in others {
            let port = other.address().port().to_string();
            redis::cmd("CLUSTER").arg(&["MEET", "127.0.0.1", &port]).query::<()>(&mut measured.control)?;
        }
        measured.until("all nodes are connected", |server| {
            let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(&mut server.control)?;
            let connected = nodes.lines().filter(|node| node.contains(" connected")).count();
            let joined = nodes.lines().all(|node| !node.contains("handshake"));
            let state: String = redis::cmd("CLUSTER").arg("INFO").query(&mut server.control)?;
            Ok(connected == size && joined && state.contains("cluster_state:ok"))
        })?;
        for publish in ["both", "spublish"] {
            let set = ["SET", "lock.publish", publish];
            redis::cmd("CONFIG").arg(&set).query::<()>(&mut measured.control)?;
            let cost = pair(measured)?;
            let least = *least.get_or_insert(cost);
            let what = format!("scale: server's time for a pair, {size} nodes, {publish}");
            results.ratio(&what, Unit::Micros, cost, ("2 nodes, both", least), Target::None);
        }
    }
    Ok(())
}

/// Returns the server's time for an acquire and a release, not pipelined, in microseconds.
fn pair(server: &mut Server) -> Outcome<f64> {
    let count: u32 = unless_quick(5_000, 500);
    let mut caller = Caller::connect(server)?;
    let mut samples = Samples::default();
    for _ in 0..unless_quick(5, 1) {
        let before = server.cpu()?;
        for _ in 0..count {
            granted(&caller.call(&format!("LOCK.ACQUIRE lock {OWNER}"))?)?;
            caller.call(&format!("LOCK.RELEASE lock {OWNER}"))?;
        }
        samples.0.push((server.cpu()? - before).as_secs_f64() * 1e6 / f64::from(count));
    }
    Ok(samples.median())
}
