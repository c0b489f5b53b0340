// SPDX-License-Identifier: MIT

//! The time until a replica has acknowledged a lock: `LOCK.ACQUIRE … REPLICAS 1`, compared with the usual way, `SET` and `WAIT`
//! in one write. One client makes both calls alternately, and sleeps until the replies. Server, replica and client are on the
//! same machine.

mod support;

use std::time::Instant;

use support::caller::Caller;
use support::machine::load;
use support::results::{Results, Target, Unit};
use support::samples::{time, Samples};
use support::server::Setup;
use support::{is_requested, packed, unless_quick, Outcome};

fn main() -> Outcome<()> {
    if !is_requested("replicas") {
        return Ok(());
    }
    let load_before = load();
    let mut server = Setup::new().start()?;
    let _replica = server.start_replica()?;
    let acquire = (packed("LOCK.ACQUIRE k owner PX 60000 REPLICAS 1"), vec![":1".to_owned()]);
    let ping = (packed("PING"), vec!["+PONG".to_owned()]);
    let release = packed("LOCK.RELEASE k owner");
    let set_wait = [packed("SET s owner PX 60000"), packed("WAIT 1 1000")].concat();
    let set_wait = (set_wait, vec!["+OK".to_owned(), ":1".to_owned()]);
    let mut caller = Caller::connect(&server)?;
    let [mut sets, mut acquires, mut pings] = <[Samples; 3]>::default();
    for _ in 0..unless_quick(5_000, 300) {
        sets.0.push(timed(&mut caller, &set_wait)?);
        acquires.0.push(timed(&mut caller, &acquire)?);
        pings.0.push(timed(&mut caller, &ping)?);
        caller.send(&release)?;
        expect(&mut caller, ":0")?;
    }
    println!("load of the machine {load_before}, at the end {}\n", load());
    for (name, samples) in [("PING", &pings), ("SET + WAIT 1", &sets), ("ACQUIRE REPLICAS 1", &acquires)] {
        println!("{name:22}  p50 {:>9}  p99 {:>9}", time(samples.median()), time(samples.p99()));
    }
    let mut results = Results::of("replicas");
    let name = "replicas: ACQUIRE REPLICAS 1";
    let base = ("SET + WAIT 1", sets.median());
    results.ratio(&format!("{name}, p50"), Unit::Micros, acquires.median(), base, Target::AtMost(1.2));
    results.ratio(
        &format!("{name}, p99"),
        Unit::Micros,
        acquires.p99(),
        ("SET + WAIT 1", sets.p99()),
        Target::None,
    );
    results.finish(&mut server)
}

/// Sends a call. Returns the time until its last reply, in microseconds.
fn timed(caller: &mut Caller, (call, replies): &(Vec<u8>, Vec<String>)) -> Outcome<f64> {
    let start = Instant::now();
    caller.send(call)?;
    for reply in replies {
        expect(caller, reply)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Fails unless the next reply is `expected`.
fn expect(caller: &mut Caller, expected: &str) -> Outcome<()> {
    let reply = caller.reply()?;
    let reply = String::from_utf8_lossy(&reply);
    if reply.trim_end() == expected {
        Ok(())
    } else {
        Err(format!("{reply:?} instead of {expected}").into())
    }
}
