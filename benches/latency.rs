// SPDX-License-Identifier: MIT

//! Latencies that a client sees: from a release to the next grant, and from the end of a timeout or a lease to the reply.
//!
//! `cargo bench --bench latency` starts `redis-server`, or the program that `REDIS_SERVER` names, with the module of these
//! sources, or the one that `REDIS_LOCK_MODULE` names.
//!
//! One thread measures all times with one clock. Each time begins just before a command is written, and ends when the reply that
//! it causes has been read.
//! Times in microseconds are measured in two ways. A spinning client polls its socket, so waking it up costs no time. A
//! sleeping client waits for the reply, and sends its call when the server sleeps too, as is usual in production. For times in
//! milliseconds, the client sleeps, so that it takes no core from the server.

mod support;

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Value;

use support::machine::{cores, load, raise_open_files};
use support::picture::{self, Axis, Line};
use support::results::{Results, Target, Unit};
use support::samples::{time, Samples};
use support::server::Server;
use support::{is_requested, packed, thousands, unless_quick, Outcome};

/// Number of waiters in the long queue.
const WAITERS: usize = 10_000;
const OTHER_KEYS: usize = 20_000;
/// Number of samples in each round, for times in microseconds. These times depend on the cores that server and client happen to
/// run on. So measurements that are compared with each other alternate.
const MANY: usize = 500;
/// Number of rounds, each with [`MANY`] samples.
fn rounds() -> usize {
    unless_quick(10, 2)
}
/// Number of samples of times in milliseconds.
fn some() -> usize {
    unless_quick(400, 60)
}
/// The documented limit for the delay of waits and leases on an idle server.
const PROMISE: Duration = Duration::from_millis(5);

const KEY: &str = "lock";
/// A lease that outlasts the measurement, in milliseconds.
const LONG_MS: u64 = 600_000;

// Replies to ACQUIRE and RELEASE.
const GRANTED: &str = ":1\r\n";
const RELEASED: &str = ":0\r\n";

fn main() -> Outcome<()> {
    if !is_requested("latency") {
        return Ok(());
    }
    let load_before = load();
    let waiters = WAITERS.min(raise_open_files(WAITERS + 200).saturating_sub(200));
    let mut server = Server::start()?;

    let [mut pings, mut alone, mut queued, mut deleted] = <[Samples; 4]>::default();
    let [mut slept_pings, mut slept_alone, mut slept_queued] = <[Samples; 3]>::default();
    for round in 0..rounds() {
        eprintln!("wake-ups, round {} of {}", round + 1, rounds());
        pings.0.extend(measure(&mut server, |server| ping(server, Spinning))?.0);
        alone.0.extend(measure(&mut server, |server| release(server, 1, Spinning))?.0);
        queued.0.extend(measure(&mut server, |server| release(server, waiters, Spinning))?.0);
        deleted.0.extend(measure(&mut server, delete)?.0);
        slept_pings.0.extend(measure(&mut server, |server| ping(server, Sleeping))?.0);
        slept_alone.0.extend(measure(&mut server, |server| release(server, 1, Sleeping))?.0);
        slept_queued.0.extend(measure(&mut server, |server| release(server, waiters, Sleeping))?.0);
    }
    eprintln!("waits and leases, about {} s", 5 * some() * 27 / 1000);
    let sleeps = sleep_in_this_process()?;
    let waits = measure(&mut server, wait_deadline)?;
    let leases = measure(&mut server, lease_end)?;
    let notified = measure(&mut server, owner_notified)?;
    let (crowded, expired) = measure(&mut server, lease_end_among_others)?;

    println!("client and server on the same machine, load {load_before}, at the end {}\n", load());
    let queued_name = format!("RELEASE -> the next of {} waiters has its reply", thousands(waiters));
    let slept_queued_name = format!("  the same, by a client that sleeps, {} waiters", thousands(waiters));
    let crowded_name = format!("  while {} other keys expire", thousands(expired));
    print_table(&[
        ("PING: one round trip, for comparison", &pings),
        ("  the same, by a client that sleeps", &slept_pings),
        ("RELEASE -> the only waiter has its reply", &alone),
        ("  the same, by a client that sleeps, 1 waiter", &slept_alone),
        (&queued_name, &queued),
        (&slept_queued_name, &slept_queued),
        ("DEL by another client -> the waiter has its reply", &deleted),
        ("sleep(n) in this process, for comparison, later by", &sleeps),
        ("BLOCK n -> nil, later than n ms by", &waits),
        ("lease is over -> the waiter has its reply, later by", &leases),
        ("lease is over -> its owner is notified, later by", &notified),
        (&crowded_name, &crowded),
    ]);
    println!();
    if waiters < WAITERS {
        println!("{} waiters are not possible here: raise `ulimit -n`", thousands(WAITERS));
    }
    println!("a wait ends within {PROMISE:?} on an idle server, and never early: {}", verdict(&waits));
    println!(
        "an owner is notified within {PROMISE:?} on an idle server, and never early: {}",
        verdict(&notified)
    );
    println!("a lease ends within {PROMISE:?} on an idle server, and never early: {}", verdict(&leases));

    let line = |name: &str, samples: &Samples| Line {
        name: name.to_owned(),
        is_ours: name != "PING",
        points: samples.distribution(),
    };
    picture::draw(
        "latency",
        "From a release to the next waiter's reply, and a PING",
        &Axis { label: "microseconds", is_logarithmic: true },
        &Axis { label: "share of the samples", is_logarithmic: false },
        &[
            line("PING", &pings),
            line("release, the only waiter", &alone),
            line(&format!("release, {} waiters", thousands(waiters)), &queued),
        ],
    )?;
    let mut results = Results::of("latency");
    let mut compare = |what: &str, samples: &Samples, pings: &Samples| {
        let name = format!("latency: release to reply, {what}");
        let (p50, p99) = (("PING", pings.median()), ("PING", pings.p99()));
        results.ratio(&format!("{name}, p50"), Unit::Micros, samples.median(), p50, Target::AtMost(1.2));
        results.ratio(&format!("{name}, p99"), Unit::Micros, samples.p99(), p99, Target::None);
    };
    compare("1 waiting, client sleeps", &slept_alone, &slept_pings);
    compare(&format!("{} waiting, client sleeps", thousands(waiters)), &slept_queued, &slept_pings);
    compare("1 waiting, client spins", &alone, &pings);
    compare(&format!("{} waiting, client spins", thousands(waiters)), &queued, &pings);
    let promise = Target::AtMost(PROMISE.as_secs_f64() * 1e6);
    results.limit("latency: a wait ends late by at most", Unit::Micros, waits.max(), None, promise);
    results.limit("latency: a lease ends late by at most", Unit::Micros, leases.max(), None, promise);
    results.limit(
        "latency: an owner is notified late by at most",
        Unit::Micros,
        notified.max(),
        None,
        promise,
    );
    results.finish(&mut server)
}

/// Runs a measurement, and then deletes its keys.
fn measure<T>(server: &mut Server, what: impl FnOnce(&mut Server) -> Outcome<T>) -> Outcome<T> {
    let measured = what(server)?;
    server.clear()?;
    Ok(measured)
}

fn ping(server: &mut Server, wait: Wait) -> Outcome<Samples> {
    let mut peer = server.peer("a", wait)?;
    let ping = packed("PING");
    take(MANY, |_| {
        wait.until_all_sleep();
        let sent = peer.send(&ping)?;
        let read = peer.reply("+PONG\r\n")?;
        Ok(since(sent, read))
    })
}

/// Measures the time from a release to the reply of the first waiter. The former holder queues up again, so the queue keeps its
/// length.
fn release(server: &mut Server, waiters: usize, wait: Wait) -> Outcome<Samples> {
    let mut holder = server.peer("holder", wait)?;
    holder.take_lock(LONG_MS)?;
    let mut queue = VecDeque::new();
    for number in 0..waiters {
        let mut waiter = server.peer(&format!("waiter-{number}"), wait)?;
        waiter.queue_up(LONG_MS)?;
        queue.push_back(waiter);
        // Waits until the server has accepted the connections, so that its backlog does not overflow.
        if number % 100 == 99 {
            server.until_waiting(number + 1)?;
        }
    }
    server.until_waiting(waiters)?;
    take(MANY, |_| {
        let next = queue.front_mut().ok_or("nobody waits")?;
        wait.until_all_sleep();
        let sent = holder.release()?;
        let read = next.reply(GRANTED)?;
        holder.reply(RELEASED)?;
        holder.queue_up(LONG_MS)?;
        let next = queue.pop_front().ok_or("nobody waits")?;
        queue.push_back(std::mem::replace(&mut holder, next));
        server.until_waiting(waiters)?;
        Ok(since(sent, read))
    })
}

/// Measures the time from the deletion of the key by an external client to the reply of the waiter.
fn delete(server: &mut Server) -> Outcome<Samples> {
    let mut external = server.peer("external", Spinning)?;
    let (mut holder, mut waiter) = (server.peer("a", Spinning)?, server.peer("b", Spinning)?);
    let delete = packed(&format!("DEL {KEY}"));
    holder.take_lock(LONG_MS)?;
    take(MANY, |_| {
        waiter.queue_up(LONG_MS)?;
        server.until_waiting(1)?;
        let sent = external.send(&delete)?;
        let read = waiter.reply(GRANTED)?;
        external.reply(":1\r\n")?;
        std::mem::swap(&mut holder, &mut waiter);
        Ok(since(sent, read))
    })
}

/// Measures by how much a thread of this process oversleeps. This shows how busy the machine is.
fn sleep_in_this_process() -> Outcome<Samples> {
    take(some(), |number| {
        let due = Instant::now() + Duration::from_millis(varied_ms(number));
        sleep(Duration::from_millis(varied_ms(number)));
        Ok(since(due, Instant::now()))
    })
}

/// Measures the delay from a waiter's timeout to its nil reply.
fn wait_deadline(server: &mut Server) -> Outcome<Samples> {
    let (mut holder, mut waiter) = (server.peer("a", Sleeping)?, server.peer("b", Sleeping)?);
    holder.take_lock(LONG_MS)?;
    take(some(), |number| {
        pause(number);
        let ms = varied_ms(number);
        let acquire = packed(&format!("LOCK.ACQUIRE {KEY} b BLOCK {ms}"));
        let sent = waiter.send(&acquire)?;
        let read = waiter.reply("$-1\r\n")?;
        Ok(since(sent + Duration::from_millis(ms), read))
    })
}

/// Measures the delay from the end of the holder's lease to the waiter's grant. The server reports the end of the lease.
fn lease_end(server: &mut Server) -> Outcome<Samples> {
    let (mut holder, mut waiter) = (server.peer("a", Sleeping)?, server.peer("b", Sleeping)?);
    take(some(), |number| {
        pause(number);
        holder.take_lock(varied_ms(number))?;
        waiter.queue_up(LONG_MS)?;
        let lease_end = server.expires_at(KEY)?;
        let read = waiter.reply(GRANTED)?;
        waiter.release()?;
        waiter.reply(RELEASED)?;
        std::mem::swap(&mut holder, &mut waiter);
        Ok(since(lease_end, read))
    })
}

/// Measures the delay from the end of a lease to the event for its owner. The lock has no waiters.
fn owner_notified(server: &mut Server) -> Outcome<Samples> {
    redis::cmd("CONFIG").arg(&["SET", "lock.events", "yes"]).query::<()>(&mut server.control)?;
    let (mut holder, mut notified) = (server.peer("a", Sleeping)?, server.peer("b", Sleeping)?);
    let channel = format!("lock:event:{{{KEY}}}");
    notified.send(&packed(&format!("SUBSCRIBE {channel}")))?;
    notified.reply(&format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:1\r\n", channel.len()))?;
    let message = format!("*3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n$9\r\nexpired a\r\n", channel.len());
    let samples = take(some(), |number| {
        pause(number);
        holder.take_lock(varied_ms(number))?;
        let lease_end = server.expires_at(KEY)?;
        let read = notified.reply(&message)?;
        Ok(since(lease_end, read))
    })?;
    redis::cmd("CONFIG").arg(&["SET", "lock.events", "no"]).query::<()>(&mut server.control)?;
    Ok(samples)
}

/// Measures the delay from the end of the holder's lease to the waiter's grant, while many other keys expire. Also returns the
/// number of those keys.
fn lease_end_among_others(server: &mut Server) -> Outcome<(Samples, usize)> {
    // The expected duration of the measurement. The other keys expire within this time.
    let total_ms = some() * 27;
    let mut pipeline = redis::pipe();
    for number in 0..OTHER_KEYS {
        let ms = 100 + number * total_ms / OTHER_KEYS;
        pipeline.cmd("SET").arg(format!("other:{number}")).arg("x").arg("PX").arg(ms).ignore();
    }
    pipeline.query::<()>(&mut server.control)?;
    let before = server.keys()?;
    let samples = lease_end(server)?;
    Ok((samples, before - server.keys()?))
}

/// Sleeps for a varying time, so that samples start at different offsets within a millisecond of the server's clock.
fn pause(number: usize) {
    sleep(Duration::from_micros(500 + (number as u64 * 617) % 2000));
}

fn varied_ms(number: usize) -> u64 {
    20 + number as u64 % 10
}

/// Returns the delay in microseconds, which is negative if the reply came too early.
fn since(due: Instant, read: Instant) -> f64 {
    let late = read.saturating_duration_since(due).as_secs_f64();
    let early = due.saturating_duration_since(read).as_secs_f64();
    (late - early) * 1e6
}

/// Takes `count` samples.
fn take(count: usize, mut sample: impl FnMut(usize) -> Outcome<f64>) -> Outcome<Samples> {
    // Discards the first samples, which suffer from cold caches.
    for number in 0..count / 50 {
        sample(number)?;
    }
    Ok(Samples((0..count).map(sample).collect::<Outcome<_>>()?))
}

fn verdict(samples: &Samples) -> String {
    match broken(samples) {
        0 => format!("kept in all {} samples", samples.0.len()),
        broken => format!("NOT KEPT in {broken} of {} samples", samples.0.len()),
    }
}

/// Counts the samples that exceed [`PROMISE`].
fn broken(samples: &Samples) -> usize {
    let promise = 0.0..=PROMISE.as_secs_f64() * 1e6;
    samples.0.iter().filter(|late| !promise.contains(late)).count()
}

fn print_table(rows: &[(&str, &Samples)]) {
    let widest = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    println!("{:widest$} {:>8} {:>9} {:>9} {:>9}", "", "samples", "p50", "p99", "max");
    for (name, samples) in rows {
        let count = thousands(samples.0.len());
        let [p50, p99, max] = [samples.median(), samples.p99(), samples.max()].map(time);
        println!("{name:widest$} {count:>8} {p50:>9} {p99:>9} {max:>9}");
    }
}

/// How a client waits for a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Polls its socket, if the machine has a core for that.
    Spinning,
    Sleeping,
}

use Wait::{Sleeping, Spinning};

impl Wait {
    /// For a sleeping client, waits until the server sleeps too.
    fn until_all_sleep(self) {
        if self == Sleeping {
            sleep(Duration::from_micros(200));
        }
    }
}

/// A client of the lock, on a plain socket.
struct Peer {
    stream: TcpStream,
    owner: String,
}

impl Peer {
    /// Sends a command. Returns the time just before the write.
    fn send(&mut self, command: &[u8]) -> Outcome<Instant> {
        let sent = Instant::now();
        self.stream.write_all(command)?;
        Ok(sent)
    }

    /// Reads a reply. Returns the time at which it was complete.
    fn reply(&mut self, expected: &str) -> Outcome<Instant> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut reply = [0; 256];
        let mut length = 0;
        while !reply[..length].ends_with(b"\r\n") {
            match self.stream.read(&mut reply[length..]) {
                Ok(0) => return Err("the server has closed the connection".into()),
                Ok(read) => length += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {}
                Err(error) => return Err(format!("{} got no reply: {error}", self.owner).into()),
            }
        }
        let read = Instant::now();
        if &reply[..length] == expected.as_bytes() {
            return Ok(read);
        }
        Err(format!("{} got {}, not {expected:?}", self.owner, reply[..length].escape_ascii()).into())
    }

    fn take_lock(&mut self, lease_ms: u64) -> Outcome<()> {
        self.send(&packed(&format!("LOCK.ACQUIRE {KEY} {} PX {lease_ms}", self.owner)))?;
        self.reply(GRANTED)?;
        Ok(())
    }

    fn queue_up(&mut self, lease_ms: u64) -> Outcome<()> {
        self.send(&packed(&format!("LOCK.ACQUIRE {KEY} {} PX {lease_ms} BLOCK 0", self.owner)))?;
        Ok(())
    }

    fn release(&mut self) -> Outcome<Instant> {
        self.send(&packed(&format!("LOCK.RELEASE {KEY} {}", self.owner)))
    }
}

/// Methods of the server for these measurements.
trait Locks {
    fn peer(&self, owner: &str, wait: Wait) -> Outcome<Peer>;
    fn until_waiting(&mut self, waiters: usize) -> Outcome<()>;
}

impl Locks for Server {
    fn peer(&self, owner: &str, wait: Wait) -> Outcome<Peer> {
        let stream = self.connect()?;
        stream.set_nonblocking(wait == Spinning && cores() > 1)?;
        Ok(Peer { stream, owner: owner.to_owned() })
    }

    fn until_waiting(&mut self, waiters: usize) -> Outcome<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let info: HashMap<String, Value> = redis::cmd("LOCK.INFO").arg(KEY).query(&mut self.control)?;
            if info.get("waiters") == Some(&Value::Int(i64::try_from(waiters)?)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("waited in vain for {waiters} waiters: {info:?}").into());
            }
        }
    }
}
