// SPDX-License-Identifier: MIT

//! The cost of each option: the server's processor time, and its ratio to the time for `SET NX PX` + `DEL`.
//!
//! The processor time comes from `INFO cpu`, and so excludes the client and the network. The calls of each row alternate with
//! those of its baseline. Processor times differ by some percent between two runs; the ratios differ less.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::machine::{load, raise_open_files};
use support::results::{Results, Target, Unit};
use support::server::{Server, CLIENTS};
use support::{is_requested, packed, thousands, unless_quick, Outcome, OWNER};

/// Pairs of calls in one round.
const PAIRS: usize = 4_000;
/// Number of rounds of each row.
fn rounds() -> usize {
    unless_quick(10, 2)
}
/// Number of pairs that are sent before any reply is read.
const BATCH: usize = 50;

fn main() -> Outcome<()> {
    if !is_requested("cost") {
        return Ok(());
    }
    println!("client and server on the same machine, load {}\n", load());
    raise_open_files(CLIENTS);
    let mut server = Server::start()?;
    let mut results = Results::of("cost");
    pairs(&mut server, &mut results)?;
    readers(&mut server, &mut results)?;
    watchdogs(&mut server, &mut results)?;
    searches(&mut server, &mut results)?;
    results.finish(&mut server)
}

/// Acquires and releases a free lock.
fn pairs(server: &mut Server, results: &mut Results) -> Outcome<()> {
    let base = [format!("SET k {OWNER} NX PX 30000"), "DEL k".to_owned()];
    let (acquire, release) = (format!("LOCK.ACQUIRE k {OWNER} PX 30000"), format!("LOCK.RELEASE k {OWNER}"));
    let lines = [
        ("", ""),
        (" SHARED", ""),
        (" FENCE", ""),
        (" ID #", " ID #"),
        (" WATCHDOG", ""),
        (" EPHEMERAL", ""),
        (" SHARED FENCE WATCHDOG EPHEMERAL ID #", " ID #"),
    ];
    let mut peer = server.connect()?;
    let mut plain = 0.0;
    let mut sums = [0.0; 7];
    for _ in 0..rounds() {
        plain += time_of(server, &mut peer, &base)?;
        for (sum, (a, r)) in sums.iter_mut().zip(lines) {
            *sum += time_of(server, &mut peer, &[format!("{acquire}{a}"), format!("{release}{r}")])?;
        }
    }
    let each = |sum: f64| sum / (PAIRS * rounds()) as f64;
    for (sum, (a, r)) in sums.iter().zip(lines) {
        let name = format!("cost: ACQUIRE{a} + RELEASE{r}, pipelined").replace('#', "id");
        results.ratio(&name, Unit::Micros, each(*sum), ("SET NX PX + DEL", each(plain)), Target::None);
    }
    Ok(())
}

/// Measures a shared acquire and release of a lock that many other owners hold shared.
fn readers(server: &mut Server, results: &mut Results) -> Outcome<()> {
    for readers in [0, 10, 100, 1000] {
        let mut peer = server.connect()?;
        for reader in 0..readers {
            call(&mut peer, &format!("LOCK.ACQUIRE k r{reader} SHARED PX 600000"))?;
        }
        let pair = [format!("LOCK.ACQUIRE k {OWNER} SHARED"), format!("LOCK.RELEASE k {OWNER}")];
        let spent = time_of(server, &mut peer, &pair)?;
        let name = format!("cost: one more reader comes and goes, beside {}", thousands(readers));
        results.value(&name, Unit::Micros, spent / PAIRS as f64);
        drop(peer);
        server.clear()?;
    }
    Ok(())
}

/// Measures the watchdog renewals of ten thousand leases.
fn watchdogs(server: &mut Server, results: &mut Results) -> Outcome<()> {
    const LOCKS: usize = 10_000;
    const LEASE_MS: usize = 30_000;
    let watch = unless_quick(20, 5) * Duration::from_secs(1);
    let mut peer = server.connect()?;
    // Spreads the acquires over a third of the lease, so that the renewals are spread as in production.
    for lock in 0..LOCKS {
        call(&mut peer, &format!("LOCK.ACQUIRE k{lock} {OWNER} PX {LEASE_MS} WATCHDOG"))?;
        if lock % 100 == 0 {
            sleep(Duration::from_millis(90));
        }
    }
    let idle = {
        let mut idle = Server::start()?;
        let before = cpu(&mut idle)?;
        sleep(watch);
        cpu(&mut idle)? - before
    };
    let (before, since) = (cpu(server)?, Instant::now());
    sleep(watch);
    let spent = cpu(server)? - before - idle;
    let name = format!("cost: {} watchdogs of {} s leases, of a core", thousands(LOCKS), LEASE_MS / 1000);
    results.value(&name, Unit::Percent, spent / since.elapsed().as_micros() as f64 * 100.0);
    drop(peer);
    server.clear()
}

/// Measures the cost of deadlock detection for a waiting call, at the end of a queue and at the end of a chain.
fn searches(server: &mut Server, results: &mut Results) -> Outcome<()> {
    for queue in [1, 1_000] {
        let mut waiters = Vec::new();
        call(&mut server.connect()?, "LOCK.ACQUIRE k holder PX 600000")?;
        for waiter in 0..queue {
            waiters.push(wait(server, &format!("LOCK.ACQUIRE k w{waiter} BLOCK 0"))?);
        }
        search(server, results, &format!("behind {} in one queue", thousands(queue)), "k")?;
        drop(waiters);
        server.clear()?;
    }
    let mut chain = Vec::new();
    for owner in 0..100 {
        call(&mut server.connect()?, &format!("LOCK.ACQUIRE k{owner} o{owner} PX 600000"))?;
        if owner > 0 {
            chain.push(wait(server, &format!("LOCK.ACQUIRE k{} o{owner} BLOCK 0", owner - 1))?);
        }
    }
    search(server, results, "at the end of a chain of 100 owners that wait for each other", "k99")?;
    drop(chain);
    server.clear()
}

fn search(server: &mut Server, results: &mut Results, name: &str, key: &str) -> Outcome<()> {
    let mut spent = [0.0; 2];
    let mut peer = server.connect()?;
    for _ in 0..rounds() {
        for (spent, detection) in spent.iter_mut().zip(["yes", "no"]) {
            call(&mut peer, &format!("CONFIG SET lock.deadlock-detection {detection}"))?;
            let before = cpu(server)?;
            for _ in 0..100 {
                call(&mut peer, &format!("LOCK.ACQUIRE {key} {OWNER} BLOCK 1"))?;
            }
            *spent += cpu(server)? - before;
        }
    }
    let each = |spent: f64| spent / (rounds() * 100) as f64;
    let name = format!("cost: a call that waits and times out, {name}");
    results.ratio(&name, Unit::Micros, each(spent[0]), ("without detection", each(spent[1])), Target::None);
    Ok(())
}

/// Returns a connection whose call waits.
fn wait(server: &Server, command: &str) -> Outcome<TcpStream> {
    let mut stream = server.connect()?;
    stream.write_all(&packed(command))?;
    // The server has read this call before it replies to a later call on another connection.
    call(&mut server.connect()?, "PING")?;
    Ok(stream)
}

/// Returns the server's processor time for one round of these calls, in microseconds.
fn time_of(server: &mut Server, peer: &mut TcpStream, calls: &[String]) -> Outcome<f64> {
    let before = cpu(server)?;
    for batch in 0..PAIRS / BATCH {
        let mut bytes = Vec::new();
        for number in 0..BATCH {
            for call in calls {
                bytes.extend(packed(&call.replace('#', &format!("{batch}-{number}"))));
            }
        }
        peer.write_all(&bytes)?;
        // The reply to this call arrives after the replies to all earlier calls.
        call(peer, "ECHO end-of-batch")?;
    }
    let spent = cpu(server)? - before;
    call(peer, "FLUSHALL")?;
    Ok(spent)
}

/// Sends a call, and reads all replies up to its own. Fails if one of them is an error.
fn call(peer: &mut TcpStream, command: &str) -> Outcome<()> {
    let end: &[u8] = if command.starts_with("ECHO") { b"end-of-batch\r\n" } else { b"\r\n" };
    peer.write_all(&packed(command))?;
    let mut reply = Vec::new();
    let mut part = [0; 65536];
    while !reply.ends_with(end) {
        match peer.read(&mut part)? {
            0 => return Err("the server has closed the connection".into()),
            read => reply.extend_from_slice(&part[..read]),
        }
    }
    let error = reply.starts_with(b"-") || reply.windows(3).any(|bytes| bytes == b"\n-E");
    if error {
        return Err(format!("{command}: {}", reply.escape_ascii()).into());
    }
    Ok(())
}

/// Returns the processor time of the main thread so far, in microseconds.
fn cpu(server: &mut Server) -> Outcome<f64> {
    let user: f64 = server.info("used_cpu_user_main_thread")?.parse()?;
    let system: f64 = server.info("used_cpu_sys_main_thread")?.parse()?;
    Ok((user + system) * 1e6)
}
