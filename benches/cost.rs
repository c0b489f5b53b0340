//! What the options cost the server, as its own processor time, and as a ratio to the pair of plain commands that people
//! lock with otherwise.
//!
//! `cargo bench --bench cost` starts a server of its own, as the other benchmarks do. The server's time is taken from
//! `INFO cpu`, so that neither the client nor the network counts, and each line is measured in turns with the line that
//! it is compared with. The processor time of two runs differs by some percent; the ratios are steadier.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{load, machine, packed, raise_open_files, thousands, Outcome, Server};

/// Pairs of calls in one turn, and turns.
const PAIRS: usize = 4_000;
const TURNS: usize = 10;
/// How many are sent before the replies are read.
const BATCH: usize = 50;

const OWNER: &str = "8743c9c0-0719-4bdd-8b5d-6b1a1e5b1d3a:1";

fn main() -> Outcome<()> {
    // `cargo test --all-targets` runs this too, without the word.
    if !std::env::args().any(|arg| arg == "--bench") {
        println!("run it with `cargo bench --bench cost`");
        return Ok(());
    }
    let load_before = load();
    raise_open_files(support::CLIENTS);
    let mut server = Server::start()?;
    println!("redis-lock {} on {}; {}", env!("CARGO_PKG_VERSION"), server.version()?, machine());
    println!("client and server on the same machine, whose load was {load_before}\n");
    pairs(&mut server)?;
    println!();
    readers(&mut server)?;
    println!();
    watchdogs(&mut server)?;
    println!();
    searches(&mut server)
}

/// Taking and giving back a free lock.
fn pairs(server: &mut Server) -> Outcome<()> {
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
    println!("{:82} {:>8} {:>6}", "server's time for a pair of calls", "each", "ratio");
    let mut peer = server.connect()?;
    let mut plain = 0.0;
    let mut sums = [0.0; 7];
    for _ in 0..TURNS {
        plain += time_of(server, &mut peer, &base)?;
        for (sum, (a, r)) in sums.iter_mut().zip(lines) {
            *sum += time_of(server, &mut peer, &[format!("{acquire}{a}"), format!("{release}{r}")])?;
        }
    }
    let each = |sum: f64| sum / (PAIRS * TURNS) as f64;
    println!("{:82} {:5.1} µs {:>6}", "SET k owner NX PX ms + DEL k, for comparison", each(plain), "1");
    for (sum, (a, r)) in sums.iter().zip(lines) {
        let name = format!("LOCK.ACQUIRE k owner PX ms{a} + LOCK.RELEASE{r}").replace('#', "id");
        println!("{name:82} {:5.1} µs {:6.1}", each(*sum), sum / plain);
    }
    Ok(())
}

/// One more reader beside many.
fn readers(server: &mut Server) -> Outcome<()> {
    println!("{:82} {:>8}", "server's time for one more reader that comes and goes", "each");
    for readers in [0, 10, 100, 1000] {
        let mut peer = server.connect()?;
        for reader in 0..readers {
            call(&mut peer, &format!("LOCK.ACQUIRE k r{reader} SHARED PX 600000"))?;
        }
        let pair = [format!("LOCK.ACQUIRE k {OWNER} SHARED"), format!("LOCK.RELEASE k {OWNER}")];
        let spent = time_of(server, &mut peer, &pair)?;
        println!("{:82} {:5.1} µs", format!("beside {}", thousands(readers)), spent / PAIRS as f64);
        drop(peer);
        server.clear()?;
    }
    Ok(())
}

/// Ten thousand leases that are renewed.
fn watchdogs(server: &mut Server) -> Outcome<()> {
    const LOCKS: usize = 10_000;
    const LEASE_MS: usize = 30_000;
    const WATCH: Duration = Duration::from_secs(20);
    let mut peer = server.connect()?;
    // One after the other over a third of the lease, so that the renewals are spread as in life.
    for lock in 0..LOCKS {
        call(&mut peer, &format!("LOCK.ACQUIRE k{lock} {OWNER} PX {LEASE_MS} WATCHDOG"))?;
        if lock % 100 == 0 {
            sleep(Duration::from_millis(90));
        }
    }
    let idle = {
        let mut idle = Server::start()?;
        let before = cpu(&mut idle)?;
        sleep(WATCH);
        cpu(&mut idle)? - before
    };
    let (before, since) = (cpu(server)?, Instant::now());
    sleep(WATCH);
    let spent = cpu(server)? - before - idle;
    println!(
        "{} watchdogs of {} s leases take {:.1} % of a core",
        thousands(LOCKS),
        LEASE_MS / 1000,
        spent / since.elapsed().as_micros() as f64 * 100.0
    );
    drop(peer);
    server.clear()
}

/// What deadlock detection adds to a call that has to wait, at the end of a queue and of a chain.
fn searches(server: &mut Server) -> Outcome<()> {
    println!(
        "{:82} {:>8} {:>8}",
        "server's time for a call that waits and times out, detection", "yes", "no"
    );
    for queue in [1, 1_000] {
        let mut waiters = Vec::new();
        call(&mut server.connect()?, "LOCK.ACQUIRE k holder PX 600000")?;
        for waiter in 0..queue {
            waiters.push(wait(server, &format!("LOCK.ACQUIRE k w{waiter} BLOCK 0"))?);
        }
        print_search(server, &format!("behind {} in one queue", thousands(queue)), "k")?;
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
    print_search(server, "at the end of a chain of 100 owners that wait for each other", "k99")?;
    drop(chain);
    server.clear()
}

fn print_search(server: &mut Server, name: &str, key: &str) -> Outcome<()> {
    let mut spent = [0.0; 2];
    let mut peer = server.connect()?;
    for _ in 0..TURNS {
        for (spent, detection) in spent.iter_mut().zip(["yes", "no"]) {
            call(&mut peer, &format!("CONFIG SET lock.deadlock-detection {detection}"))?;
            let before = cpu(server)?;
            for _ in 0..100 {
                call(&mut peer, &format!("LOCK.ACQUIRE {key} {OWNER} BLOCK 1"))?;
            }
            *spent += cpu(server)? - before;
        }
    }
    let each = |spent: f64| spent / (TURNS * 100) as f64;
    println!("{name:82} {:5.1} µs {:5.1} µs", each(spent[0]), each(spent[1]));
    Ok(())
}

/// A client that waits.
fn wait(server: &Server, command: &str) -> Outcome<TcpStream> {
    let mut stream = server.connect()?;
    stream.write_all(&packed(command))?;
    // The reply to a call on another connection comes after the server has read this one.
    call(&mut server.connect()?, "PING")?;
    Ok(stream)
}

/// The server's processor time for a turn of these calls, in microseconds.
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
        // The last of this call's replies comes after all before it.
        call(peer, "ECHO end-of-batch")?;
    }
    let spent = cpu(server)? - before;
    call(peer, "FLUSHALL")?;
    Ok(spent)
}

/// Reads until the reply to the last call of what was sent is there: all that are sent end in a line.
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

/// The processor time that the server has used, in microseconds.
fn cpu(server: &mut Server) -> Outcome<f64> {
    let user: f64 = server.info("used_cpu_user_main_thread")?.parse()?;
    let system: f64 = server.info("used_cpu_sys_main_thread")?.parse()?;
    Ok((user + system) * 1e6)
}
