// SPDX-License-Identifier: MIT

//! Measurements for capacity planning. The first is the wait for a hot lock, compared with the calculation of
//! `examples/hot_lock`. The second is the cost of a release in a cluster, by the number of nodes. The third is the time until all
//! sessions of a node are resumed, compared with the calculation of `examples/fleet`.
//!
//! `cargo bench --bench scale -- fleet` measures one part, and prints the results without saving them for the report. The parts
//! are `hot_lock`, `cluster` and `fleet`.
//!
//! **The hot lock.** Requests arrive at random times, as if from independent clients, even while earlier requests still wait. For
//! each request, a client sleeps until the arrival time, acquires the lock, holds it for a random time, and releases it. The
//! calculation uses only numbers that an application knows: the times of calls, the durations of holds, and the average time of
//! a release. It does not use the measured waits.
//!
//! **The cluster.** The measured node serves all slots. The other nodes serve none, and only receive messages of the cluster bus.
//!
//! **The fleet.** Each client has a session with one hold on each of three nodes, and sends heartbeats. All clients lose their
//! connections to one node, and resume their sessions there.

mod support;

#[path = "support/fleet.rs"]
mod fleet;
#[path = "../examples/hot_lock/queue.rs"]
mod queue;
#[path = "../examples/fleet/shard.rs"]
#[allow(dead_code)] // The example prints more.
mod shard;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fleet::{Begin, Fleet, Node};
use queue::{waits, Load, Request, Spread};
use shard::{recover, Costs, Failure, Pauses, Storm};
use support::caller::Caller;
use support::machine::{pin, raise_open_files, Cores};
use support::results::{measure_parts, Results, Target, Unit};
use support::samples::Samples;
use support::server::{Server, Setup};
use support::session::session_id;
use support::{is_requested, packed, unless_quick, Outcome, OWNER};

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

/// The number of clients of the fleet, each with a session on every node.
const SESSIONS: usize = 3_000;

fn main() -> Outcome<()> {
    if !is_requested("scale") {
        return Ok(());
    }
    measure_parts("scale", &[("hot_lock", hot_lock), ("cluster", cluster), ("fleet", fleet)])
}

fn hot_lock(results: &mut Results) -> Outcome<()> {
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
    Ok(())
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

/// Measures the time until all sessions of a node are resumed, and compares it with the calculation.
fn fleet(results: &mut Results) -> Outcome<()> {
    raise_open_files(4 * SESSIONS);
    let cores = Cores::share(1);
    pin(&cores.loaders);
    let costs = session_costs(&cores)?;
    for (what, cost) in [
        ("a connection", costs.connect),
        ("LOCK.SESSION OPEN", costs.open),
        ("the declaration of a hold", costs.declare),
        ("LOCK.EVENTS", costs.heartbeat),
    ] {
        results.value(&format!("scale: server's time for {what}"), Unit::Micros, cost * 1e6);
    }
    let none = Pauses::WITHOUT_JITTER;
    let second = Pauses { jitter: 0.5, extra: 1.0, ..none };
    for (what, failure, backlog, pauses) in [
        ("sessions continue", Failure::Connections, 4_096, none),
        ("sessions are gone", Failure::Crash, 4_096, none),
        ("sessions are gone, tcp-backlog 511", Failure::Crash, 511, none),
        ("sessions are gone, tcp-backlog 511, jitter 1 s", Failure::Crash, 511, second),
    ] {
        // A session that continues must not end before the storm begins.
        let grace = if failure == Failure::Connections { 30.0 } else { 3.0 };
        let mut storm = Storm {
            failure,
            outage: 0.0,
            spread: 0.0,
            stall: 0.0,
            sessions: SESSIONS,
            holds: 1,
            round_trip: 1e-4,
            backlog,
            costs,
            pauses,
            ttl: 30.0,
            grace,
            lease: 30.0,
        };
        let (mut nodes, mut fleet) = start_fleet(&cores, &storm)?;
        let [mut last, mut median] = [const { [Samples(Vec::new()), Samples(Vec::new())] }; 2];
        let mut cpu = Samples::default();
        for _ in 0..unless_quick(3, 1) {
            fleet.run(Duration::from_secs(1))?;
            let forgets = failure == Failure::Crash;
            fleet.disconnect(0, forgets);
            let sessions = if forgets { "0".to_owned() } else { SESSIONS.to_string() };
            while nodes[0].info("connected_clients")? != "1" || nodes[0].info("lock_sessions")? != sessions {
                fleet.run(Duration::from_millis(50))?;
            }
            let begin = if pauses.extra == 0.0 { Begin::Stalled(&nodes[0]) } else { Begin::Running };
            let before = nodes[0].cpu()?;
            let resumed = fleet.resume(0, pauses, begin)?;
            cpu.0.push((nodes[0].cpu()? - before).as_secs_f64() * 1e6 / SESSIONS as f64);
            (storm.stall, storm.spread) = (resumed.stall, (resumed.stall - pauses.first).max(0.0));
            let calculated = recover(storm, 1);
            eprintln!(
                "{what}: connected within {:.2} s, {} attempts given up, {} calculated",
                resumed.stall, resumed.given_up, calculated.given_up
            );
            for (side, times) in [resumed.times, calculated.resumed].into_iter().enumerate() {
                let times = Samples(times.into_iter().map(|time| (time - resumed.stall) * 1e6).collect());
                last[side].0.push(times.max());
                median[side].0.push(times.median());
            }
        }
        let new = if failure == Failure::Crash { costs.open + costs.declare } else { 0.0 };
        // The next heartbeat follows at once, and waits in the server.
        let sum = (costs.connect + 2.0 * costs.heartbeat + new) * 1e6;
        let each = format!("scale: server's time for a session, {what}");
        results.ratio(&each, Unit::Micros, cpu.median(), ("sum", sum), Target::None);
        for (which, [measured, calculated]) in [("last", &last), ("median", &median)] {
            let what = format!("scale: {SESSIONS} sessions are resumed, {what}, {which}");
            let base = ("calculated", calculated.median());
            results.ratio(&what, Unit::Micros, measured.median(), base, Target::None);
        }
    }
    Ok(())
}

/// Starts a cluster of three nodes, and clients with a session on each.
fn start_fleet(cores: &Cores, storm: &Storm) -> Outcome<(Vec<Server>, Fleet)> {
    let backlog = storm.backlog.to_string();
    let setup = Setup::new().in_a_cluster().option("tcp-backlog", &backlog).on_cores(&cores.server);
    let mut nodes = (0..3).map(|_| setup.clone().start()).collect::<Outcome<Vec<Server>>>()?;
    let mut endpoints = Vec::new();
    let ports: Vec<String> = nodes.iter().map(|node| node.address().port().to_string()).collect();
    for (number, node) in nodes.iter_mut().enumerate() {
        let (first, last) = (number * 16_384 / 3, (number + 1) * 16_384 / 3 - 1);
        redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(first).arg(last).query::<()>(&mut node.control)?;
        redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(number + 1).query::<()>(&mut node.control)?;
        for tag in 0.. {
            let slot: usize = redis::cmd("CLUSTER").arg("KEYSLOT").arg(tag).query(&mut node.control)?;
            if (first..=last).contains(&slot) {
                endpoints.push(Node { address: node.address(), tag: tag.to_string() });
                break;
            }
        }
    }
    for port in &ports[1..] {
        redis::cmd("CLUSTER").arg(&["MEET", "127.0.0.1", port]).query::<()>(&mut nodes[0].control)?;
    }
    for node in &mut nodes {
        node.until("the cluster is complete", |server| {
            let state: String = redis::cmd("CLUSTER").arg("INFO").query(&mut server.control)?;
            Ok(state.contains("cluster_state:ok") && state.contains("cluster_slots_ok:16384"))
        })?;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Some seconds.
    let mut fleet = Fleet::new(endpoints, storm.sessions, (storm.grace * 1e3) as u64)?;
    for node in 0..nodes.len() {
        fleet.resume(node, Pauses { extra: 1.0, ..Pauses::WITHOUT_JITTER }, Begin::Running)?;
    }
    Ok((nodes, fleet))
}

/// Measures the server's time for each action of a client that resumes its session, in seconds. All clients have sent their call
/// when the server begins, as in a storm.
fn session_costs(cores: &Cores) -> Outcome<Costs> {
    let setup = Setup::new().option("tcp-backlog", "4096").on_cores(&cores.server);
    let mut server = setup.start()?;
    let [mut connect, mut open, mut declare, mut heartbeat] = [const { Samples(Vec::new()) }; 4];
    for round in 0..unless_quick(6, 2) {
        let before = server.cpu()?;
        let connect_all = || (0..SESSIONS).map(|_| Caller::connect(&server)).collect::<Outcome<Vec<_>>>();
        let mut callers = paused(&server, connect_all)?;
        server.until("all are connected", |server| {
            Ok(server.info("connected_clients")? == (SESSIONS + 1).to_string())
        })?;
        connect.0.push((server.cpu()? - before).as_secs_f64() / SESSIONS as f64);
        let (opening, replies) = calls(&server, &mut callers, |number| {
            format!("LOCK.SESSION OPEN NEW 1 TTL 30000 GRACE 0 NAME client-{number:06}")
        })?;
        let ids = replies.iter().map(|reply| session_id(reply)).collect::<Outcome<Vec<String>>>()?;
        // The first round acquires the holds. They outlive their session.
        let verb = if round == 0 { "ACQUIRE" } else { "RENEW" };
        let (declaring, replies) = calls(&server, &mut callers, |number| {
            format!("LOCK.{verb} lock:{number} client:{number} SESSION {} 1", ids[number])
        })?;
        replies.iter().try_for_each(|reply| granted(reply))?;
        let (beating, _) =
            calls(&server, &mut callers, |number| format!("LOCK.EVENTS {} 2 0 2 0", ids[number]))?;
        if round > 0 {
            open.0.push(opening);
            declare.0.push(declaring);
            heartbeat.0.push(beating);
        }
        drop(callers);
        server.until("the sessions have ended", |server| {
            Ok(server.info("connected_clients")? == "1" && server.info("lock_sessions")? == "0")
        })?;
    }
    Ok(Costs {
        connect: connect.median(),
        open: open.median(),
        declare: declare.median(),
        heartbeat: heartbeat.median(),
    })
}

/// Stops the server while the clients act.
fn paused<T>(server: &Server, act: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    server.signal(libc::SIGSTOP);
    let result = act();
    server.signal(libc::SIGCONT);
    result
}

/// Lets each client make a call. Returns the server's time for one of them, in seconds, and the replies.
fn calls(
    server: &Server,
    callers: &mut [Caller],
    call: impl Fn(usize) -> String,
) -> Outcome<(f64, Vec<Vec<u8>>)> {
    let before = server.cpu()?;
    paused(server, || {
        let mut numbered = callers.iter_mut().enumerate();
        numbered.try_for_each(|(number, caller)| caller.send(&packed(&call(number))))
    })?;
    let replies = callers.iter_mut().map(Caller::reply).collect::<Outcome<Vec<_>>>()?;
    Ok(((server.cpu()? - before).as_secs_f64() / callers.len() as f64, replies))
}
