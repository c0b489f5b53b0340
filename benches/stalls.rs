// SPDX-License-Identifier: MIT

//! The longest time for which a busy server does not reply to other clients.
//!
//! First, 100,000 locks are held, 10,000 of them with a waiter. They are listed, released, and expire in the same millisecond.
//! Then one lock has 10,000 readers: it is inspected, writers wait for it, and the readers' leases end. Finally one
//! lock has 40,000 readers, which are granted the lock, lose their connections, or are renewed at once.
//!
//! Meanwhile another client sends `PING` without pause. A stall is the longest time that this client waits for a reply, in the
//! worst of all rounds. The baseline is a server without the module, with 100,000 hashes that are deleted or expire. The stall of
//! an idle server shows how long the machine itself delays a reply.
//!
//! `cargo bench --bench stalls -- crowds` measures one part, and prints the results without saving them for the report. The parts
//! are `locks`, `readers`, `crowds` and `waits`.

mod support;

use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use support::caller::Caller;
use support::crowded_waits::CrowdedWaits;
use support::machine::raise_open_files;
use support::results::{Results, Target, Unit};
use support::samples::{time, Samples};
use support::server::{Server, Setup, CLIENTS};
use support::session::{SessionClient, LONG_GRACE_MS, LONG_TTL_MS};
use support::stall::stall;
use support::{is_requested, packed, thousands, unless_quick, Outcome};

/// The time between setting the expiry of the locks and their expiry. The benchmark prepares the measurement meanwhile.
const PREPARATION_TIME: Duration = Duration::from_secs(3);
/// The limit for work on many locks, in microseconds.
const LIMIT: Target = Target::AtMost(10_000.0);
/// The limit for one call, in microseconds.
const LIMIT_OF_A_CALL: Target = Target::AtMost(5_000.0);
/// The limit for work on tens of thousands of readers or waits of one lock, in microseconds.
const LIMIT_OF_A_CROWD: Target = Target::AtMost(50_000.0);

fn main() -> Outcome<()> {
    if !is_requested("stalls") {
        return Ok(());
    }
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_selected = |part: &str| parts.is_empty() || parts.iter().any(|selected| selected == part);
    let limit = raise_open_files(CLIENTS + 100);
    let locks = unless_quick(100_000, 10_000);
    let waiters = (locks / 10).min(limit.saturating_sub(200));
    let mut native = Stalls::default();
    let mut bare = Stalls::default();
    let mut crowds = Crowds::default();
    let crowd = unless_quick(40_000, 4_000);
    let mut crowded = CrowdedWaits::default();
    for round in 0..unless_quick(3, 1) {
        eprintln!("round {}", round + 1);
        if is_selected("locks") {
            measure_bare(&mut bare, locks)?;
            measure_native(&mut native, locks, waiters)?;
        }
        if is_selected("readers") {
            measure_readers(&mut native, waiters)?;
        }
        if is_selected("crowds") {
            measure_crowds(&mut crowds, crowd)?;
        }
        if is_selected("waits") {
            crowded.measure(&|server, what| stall(server, what))?;
        }
    }
    let mut results = Results::of("stalls");
    println!("{} locks, {} waiters", thousands(locks), thousands(waiters));
    for (what, name, ours, theirs) in [
        ("nothing happens", "without module", &native.idle, &bare.idle),
        ("LOCK.INFO of all locks with waiters", "nothing happens", &native.info, &native.idle),
        ("LOCK.LIST", "nothing happens", &native.list, &native.idle),
        ("LOCK.LIST COUNT 10000", "nothing happens", &native.long_list, &native.idle),
        ("release of all", "DEL of hashes", &native.release, &bare.release),
        ("expiry of all at once", "hashes", &native.expiry, &bare.expiry),
    ] {
        println!("{what}: each round {}; {name}: {}", show(ours), show(theirs));
        // No limit: a client that requests 10,000 entries accepts the time that the reply takes.
        let target =
            if what.starts_with("nothing") || what.ends_with("10000") { Target::None } else { LIMIT };
        results.limit(
            &format!("stall: {what}"),
            Unit::Micros,
            ours.max(),
            Some((name, theirs.max())),
            target,
        );
    }
    for (what, ours) in [
        ("LOCK.INFO of 10,000 readers", &native.readers_info),
        ("one more shared hold among 10,000", &native.readers_pair),
        ("writers queue up behind 10,000 readers", &native.readers_writers),
        ("10,000 readers' leases end one by one", &native.readers_one_by_one),
        ("10,000 readers' leases end at once", &native.readers_at_once),
    ] {
        println!("{what}: each round {}", show(ours));
        let base = ("nothing happens", native.idle.max());
        results.limit(&format!("stall: {what}"), Unit::Micros, ours.max(), Some(base), LIMIT_OF_A_CALL);
    }
    for (what, ours) in [
        ("readers of sessions are granted a lock", &crowds.granted),
        ("their grants are overdue", &crowds.overdue),
        ("a foreign DEL while their grants are in flight", &crowds.deleted),
        ("their sessions are closed", &crowds.closed),
        ("a watchdog renews readers", &crowds.renewed),
        ("the connection of EPHEMERAL readers closes", &crowds.ephemeral),
        ("LOCK.BREAK of readers", &crowds.broken),
        ("LOCK.SCAN with a large COUNT", &crowds.scanned),
    ] {
        println!("{}, {what}: each round {}", thousands(crowd), show(ours));
        let base = ("nothing happens", native.idle.max());
        let name = format!("stall: {} {what}", thousands(crowd));
        results.limit(&name, Unit::Micros, ours.max(), Some(base), LIMIT_OF_A_CROWD);
    }
    for (what, ours) in crowded.rows() {
        println!("{what}: each round {}", show(ours));
        let base = ("nothing happens", native.idle.max());
        results.limit(&format!("stall: {what}"), Unit::Micros, ours.max(), Some(base), LIMIT_OF_A_CROWD);
    }
    if parts.is_empty() {
        results.finish(&mut Server::start()?)?;
    }
    Ok(())
}

fn show(samples: &Samples) -> String {
    samples.0.iter().map(|stall| time(*stall)).collect::<Vec<_>>().join(", ")
}

/// The stall of each round, in microseconds.
#[derive(Default)]
struct Stalls {
    idle: Samples,
    info: Samples,
    list: Samples,
    long_list: Samples,
    release: Samples,
    expiry: Samples,
    readers_info: Samples,
    readers_pair: Samples,
    readers_writers: Samples,
    readers_one_by_one: Samples,
    readers_at_once: Samples,
}

fn measure_bare(stalls: &mut Stalls, locks: usize) -> Outcome<()> {
    let mut server = Setup::new().without_module().start()?;
    let mut caller = Caller::connect(&server)?;
    stalls.idle.0.push(stall(&mut server, idle)?);
    let hashes = || (0..locks).map(|lock| format!("HSET lock:{lock} owner 1"));
    caller.pipeline(hashes())?;
    stalls
        .release
        .0
        .push(stall(&mut server, |_| caller.pipeline((0..locks).map(|lock| format!("DEL lock:{lock}"))))?);
    caller.pipeline(hashes())?;
    let end = expire_all(&mut caller, locks)?;
    stalls.expiry.0.push(stall(&mut server, |server| {
        sleep_until(end)?;
        until_empty(server)
    })?);
    Ok(())
}

fn measure_native(stalls: &mut Stalls, locks: usize, waiters: usize) -> Outcome<()> {
    let mut server = Server::start()?;
    let mut caller = Caller::connect(&server)?;
    stalls.idle.0.push(stall(&mut server, idle)?);
    let queue = hold_all(&mut server, &mut caller, locks, waiters)?;
    stalls.info.0.push(stall(&mut server, |_| {
        caller.pipeline((0..waiters).map(|lock| format!("LOCK.INFO lock:{lock}")))
    })?);
    for (list, samples) in [("LOCK.LIST", &mut stalls.list), ("LOCK.LIST COUNT 10000", &mut stalls.long_list)]
    {
        samples.0.push(stall(&mut server, |_| (0..20).try_for_each(|_| caller.call(list).map(drop)))?);
    }
    let release = (0..locks).map(|lock| format!("LOCK.RELEASE lock:{lock} holder"));
    stalls.release.0.push(stall(&mut server, |_| {
        caller.pipeline(release)?;
        until_granted(&queue)
    })?);
    drop(queue);
    server.until("the waiters have disconnected", |server| Ok(server.info("connected_clients")? == "2"))?;
    redis::cmd("FLUSHALL").query::<()>(&mut server.control)?;

    let queue = hold_all(&mut server, &mut caller, locks, waiters)?;
    let end = expire_all(&mut caller, locks)?;
    stalls.expiry.0.push(stall(&mut server, |server| {
        sleep_until(end)?;
        until_granted(&queue)?;
        // The waiters have been granted the locks, and still hold them.
        server.until("the other keys have expired", |server| Ok(server.keys()? <= waiters))
    })?);
    Ok(())
}

/// Measures one lock with many readers.
fn measure_readers(stalls: &mut Stalls, readers: usize) -> Outcome<()> {
    /// Number of leases that end in each millisecond, if they end one after another.
    const PACE: usize = 4;
    let mut server = Server::start()?;
    let mut caller = Caller::connect(&server)?;
    let acquire =
        |lock, lease: usize| move |reader| format!("LOCK.ACQUIRE {lock} reader:{reader} PX {lease} SHARED");
    caller.pipeline((0..readers).map(acquire("many", 600_000)))?;
    let info = stall(&mut server, |_| (0..20).try_for_each(|_| caller.call("LOCK.INFO many").map(drop)))?;
    stalls.readers_info.0.push(info);
    let pair = ["LOCK.ACQUIRE many another SHARED", "LOCK.RELEASE many another"].map(str::to_owned);
    let pairs = pair.iter().cycle().take(2_000).cloned();
    stalls.readers_pair.0.push(stall(&mut server, |_| caller.pipeline(pairs))?);
    let mut writers = Vec::new();
    stalls.readers_writers.0.push(stall(&mut server, |server| {
        for writer in 0..20 {
            writers.push(server.connect()?);
            let acquire = packed(&format!("LOCK.ACQUIRE many writer:{writer} BLOCK 0"));
            std::io::Write::write_all(&mut writers[writer], &acquire)?;
        }
        server.until("all writers wait", |server| Ok(server.info("blocked_clients")? == "20"))
    })?);
    drop(writers);

    let soon = usize::try_from(PREPARATION_TIME.as_millis())?;
    caller.pipeline((0..readers).map(|reader| acquire("slow", soon + reader / PACE)(reader)))?;
    let slow = upgrade(&server, &mut caller, "slow")?;
    stalls.readers_one_by_one.0.push(stall(&mut server, |_| until_answered(&slow, b":2\r\n"))?);
    let end = Instant::now() + PREPARATION_TIME;
    caller.pipeline((0..readers).map(|reader| {
        let left = end.saturating_duration_since(Instant::now()).as_millis();
        format!("LOCK.ACQUIRE once reader:{reader} PX {} SHARED", left.max(1))
    }))?;
    let once = upgrade(&server, &mut caller, "once")?;
    stalls.readers_at_once.0.push(stall(&mut server, |_| until_answered(&once, b":2\r\n"))?);
    Ok(())
}

/// The stall of each round, in microseconds, with a crowd of readers of one lock.
#[derive(Default)]
struct Crowds {
    granted: Samples,
    overdue: Samples,
    deleted: Samples,
    closed: Samples,
    renewed: Samples,
    ephemeral: Samples,
    broken: Samples,
    scanned: Samples,
}

/// The event that ends all grants in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantsEnd {
    Overdue,
    Deletion,
    Close,
}

/// Measures one lock with a crowd of readers that share a few connections or sessions.
fn measure_crowds(stalls: &mut Crowds, readers: usize) -> Outcome<()> {
    const WAITS_OF_A_SESSION: usize = 10_000;
    let mut server = Server::start()?;
    let mut caller = Caller::connect(&server)?;
    let is_over = |server: &mut Server| Ok(server.info("lock_table_grants_in_flight")? == "0");
    for end in [GrantsEnd::Overdue, GrantsEnd::Deletion, GrantsEnd::Close] {
        caller.call("LOCK.ACQUIRE crowd writer PX 600000")?;
        let mut sessions = Vec::new();
        for first in (0..readers).step_by(WAITS_OF_A_SESSION) {
            let grace = if end == GrantsEnd::Overdue { 1_000 } else { LONG_GRACE_MS };
            let mut session = SessionClient::open_for(&server, LONG_TTL_MS, grace)?;
            let calls: Vec<String> = (first..readers.min(first + WAITS_OF_A_SESSION))
                .map(|reader| session.queue("crowd", &format!("reader:{reader}"), "SHARED PX 600000"))
                .collect();
            session.calls.pipeline(calls.into_iter())?;
            sessions.push(session);
        }
        stalls.granted.0.push(stall(&mut server, |server| {
            caller.call("LOCK.RELEASE crowd writer")?;
            server.until("all readers have the lock", |server| Ok(server.info("lock_waiters")? == "0"))
        })?);
        let samples = match end {
            GrantsEnd::Overdue => &mut stalls.overdue,
            GrantsEnd::Deletion => &mut stalls.deleted,
            GrantsEnd::Close => &mut stalls.closed,
        };
        samples.0.push(stall(&mut server, |server| {
            match end {
                // The server revokes them after five seconds.
                GrantsEnd::Overdue => {}
                GrantsEnd::Deletion => drop(caller.call("DEL crowd")?),
                GrantsEnd::Close => sessions.iter_mut().try_for_each(SessionClient::close)?,
            }
            server.until("all grants have ended", is_over)
        })?);
        server.until("the lock is free", |server| {
            Ok(redis::cmd("EXISTS").arg("crowd").query::<usize>(&mut server.control)? == 0)
        })?;
        if end != GrantsEnd::Close {
            sessions.iter_mut().try_for_each(SessionClient::close)?;
        }
    }
    let acquire = |lock: &'static str, rest: &'static str| {
        move |reader| format!("LOCK.ACQUIRE {lock} reader:{reader} SHARED PX {rest}")
    };
    let mut session = Caller::connect(&server)?;
    session.pipeline((0..readers).map(acquire("bound", "600000 EPHEMERAL")))?;
    stalls.ephemeral.0.push(stall(&mut server, |server| {
        drop(session);
        server.until("all holds have ended", |server| Ok(server.info("lock_ephemeral_holds")? == "0"))
    })?);
    caller.pipeline((0..readers).map(acquire("broken", "600000")))?;
    stalls.broken.0.push(stall(&mut server, |_| caller.call("LOCK.BREAK broken").map(drop))?);
    let mut session = Caller::connect(&server)?;
    session.pipeline((0..readers).map(acquire("kept", "3000 WATCHDOG")))?;
    stalls.renewed.0.push(stall(&mut server, |_| {
        std::thread::sleep(Duration::from_millis(2_500));
        Ok(())
    })?);
    drop(session);
    redis::cmd("FLUSHALL").query::<()>(&mut server.control)?;
    caller.pipeline((0..readers).map(|lock| format!("LOCK.ACQUIRE lock:{lock} owner PX 600000")))?;
    let scan = stall(&mut server, |_| caller.call("LOCK.SCAN 0 COUNT 1000000000").map(drop))?;
    stalls.scanned.0.push(scan);
    Ok(())
}

/// Adds a reader that waits for an upgrade to an exclusive hold.
fn upgrade(server: &Server, caller: &mut Caller, lock: &str) -> Outcome<Vec<TcpStream>> {
    caller.call(&format!("LOCK.ACQUIRE {lock} last PX 600000 SHARED"))?;
    let mut waiter = server.connect()?;
    std::io::Write::write_all(&mut waiter, &packed(&format!("LOCK.ACQUIRE {lock} last BLOCK 0")))?;
    Ok(vec![waiter])
}

/// Acquires all locks, and adds a waiter to each of the first locks.
fn hold_all(
    server: &mut Server,
    caller: &mut Caller,
    locks: usize,
    waiters: usize,
) -> Outcome<Vec<TcpStream>> {
    caller.pipeline((0..locks).map(|lock| format!("LOCK.ACQUIRE lock:{lock} holder PX 600000")))?;
    let mut queue = Vec::new();
    for waiter in 0..waiters {
        let mut stream = server.connect()?;
        let acquire = packed(&format!("LOCK.ACQUIRE lock:{waiter} waiter:{waiter} PX 600000 BLOCK 0"));
        std::io::Write::write_all(&mut stream, &acquire)?;
        queue.push(stream);
        // Waits until the server has accepted the connections, so that its backlog does not overflow.
        if waiter % 100 == 99 {
            caller.call("PING")?;
        }
    }
    let blocked = waiters.to_string();
    server.until("all waiters wait", |server| Ok(server.info("blocked_clients")? == blocked))?;
    Ok(queue)
}

/// Sets the same expiry time for all keys, and returns that time.
fn expire_all(caller: &mut Caller, locks: usize) -> Outcome<SystemTime> {
    let end = SystemTime::now() + PREPARATION_TIME;
    let unix_ms = end.duration_since(UNIX_EPOCH)?.as_millis();
    caller.pipeline((0..locks).map(|lock| format!("PEXPIREAT lock:{lock} {unix_ms}")))?;
    if SystemTime::now() > end {
        return Err("the machine is too slow for this".into());
    }
    Ok(end)
}

fn idle(_: &mut Server) -> Outcome<()> {
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

fn sleep_until(end: SystemTime) -> Outcome<()> {
    std::thread::sleep(end.duration_since(SystemTime::now()).unwrap_or_default());
    Ok(())
}

fn until_empty(server: &mut Server) -> Outcome<()> {
    server.until("all keys have expired", |server| Ok(server.keys()? == 0))
}

fn until_granted(queue: &[TcpStream]) -> Outcome<()> {
    until_answered(queue, b":1\r\n")
}

/// Reads the reply of each waiter. Fails if one is not `expected`.
fn until_answered(queue: &[TcpStream], expected: &[u8; 4]) -> Outcome<()> {
    let mut reply = [0; 4];
    for mut waiter in queue {
        std::io::Read::read_exact(&mut waiter, &mut reply)?;
        if &reply != expected {
            return Err(format!("a waiter got {}", reply.escape_ascii()).into());
        }
    }
    Ok(())
}
