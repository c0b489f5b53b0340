// SPDX-License-Identifier: MIT

//! The server's memory for a lock, a blocked waiter with its own connection, a watchdog, and an entry of `LOCK.LOG`.
//!
//! Each value is the growth of `used_memory`, divided by the number of locks or waiters. A waiter is compared with an idle
//! connection, and with a connection that waits in `BLPOP`.

mod support;

use std::io::Write;
use std::net::TcpStream;

use support::caller::Caller;
use support::machine::raise_open_files;
use support::results::{Results, Target, Unit};
use support::server::{Server, Setup, CLIENTS};
use support::{is_requested, packed, unless_quick, Outcome, OWNER};

fn main() -> Outcome<()> {
    if !is_requested("memory") {
        return Ok(());
    }
    raise_open_files(CLIENTS);
    let mut results = Results::of("memory");
    locks(&mut results)?;
    waiters(&mut results)?;
    log(&mut results)?;
    results.finish(&mut Server::start()?)
}

fn locks(results: &mut Results) -> Outcome<()> {
    let count = unless_quick(100_000, 10_000);
    let (mut bare, mut server) = (Setup::new().without_module().start()?, Server::start()?);
    let mut event_server = Setup::new().option("lock.events", "yes").start()?;
    let grown =
        |server: &mut Server, command: &str| -> Outcome<f64> {
            server.clear()?;
            let before = server.settled_memory()?;
            let mut caller = Caller::connect(server)?;
            caller.pipeline(command.split(';').flat_map(|command| {
                (0..count).map(move |lock| command.replace('#', &format!("{lock:06}")))
            }))?;
            // A watchdog ends with its connection, so the connection stays open. One connection for so many locks adds little.
            let caller = command.ends_with("WATCHDOG").then_some(caller);
            let grown = server.settled_memory()? - before;
            drop(caller);
            Ok(grown / count as f64)
        };
    let set = format!("HSET lock:# {OWNER} 1;PEXPIRE lock:# 600000");
    let acquire = format!("LOCK.ACQUIRE lock:# {OWNER} PX 600000");
    // Discards the first run of each command, which includes memory that is allocated only once.
    grown(&mut bare, &set)?;
    grown(&mut server, &acquire)?;
    grown(&mut event_server, &acquire)?;
    let hash = grown(&mut bare, &set)?;
    let lock = grown(&mut server, &acquire)?;
    let with_events = grown(&mut event_server, &acquire)?;
    let watched = grown(&mut server, &format!("LOCK.ACQUIRE lock:# {OWNER} PX 600000 WATCHDOG"))?;
    let fenced = grown(&mut server, &format!("LOCK.ACQUIRE lock:# {OWNER} PX 600000 FENCE"))?;
    let shared = grown(&mut server, &format!("LOCK.ACQUIRE lock:# {OWNER} PX 600000 SHARED"))?;
    let name = "HSET + PEXPIRE";
    // The server's own memory varies by a few KB.
    results.ratio("memory: a lock", Unit::Bytes, lock, (name, hash), Target::AtMost(1.01));
    results.ratio("memory: a shared lock", Unit::Bytes, shared, (name, hash), Target::None);
    results.ratio("memory: a fenced lock, with its counter", Unit::Bytes, fenced, (name, hash), Target::None);
    results.value("memory: lock.events yes, for each lock held", Unit::Bytes, with_events - lock);
    results.value("memory: a watchdog, beside its lock", Unit::Bytes, watched - lock);

    bare.clear()?;
    server.clear()?;
    let usage = |server: &mut Server| -> Outcome<f64> {
        let key = "lock:000000";
        Ok(redis::cmd("MEMORY").arg("USAGE").arg(key).query(&mut server.control)?)
    };
    Caller::connect(&bare)?.pipeline(
        [format!("HSET lock:000000 {OWNER} 1"), "PEXPIRE lock:000000 600000".to_owned()].into_iter(),
    )?;
    let hash = usage(&mut bare)?;
    Caller::connect(&server)?.call(&format!("LOCK.ACQUIRE lock:000000 {OWNER} PX 600000"))?;
    let lock = usage(&mut server)?;
    results.ratio("memory: MEMORY USAGE of a lock", Unit::Bytes, lock, (name, hash), Target::AtMost(1.0));
    Ok(())
}

fn waiters(results: &mut Results) -> Outcome<()> {
    let count = unless_quick(2_000, 500);
    let grown = |command: &str, wait: bool| -> Outcome<f64> {
        let mut server = Server::start()?;
        let mut caller = Caller::connect(&server)?;
        caller.call(&format!("LOCK.ACQUIRE lock {OWNER} PX 600000"))?;
        let before = server.settled_memory()?;
        let mut clients: Vec<TcpStream> = Vec::new();
        for client in 0..count {
            let mut stream = server.connect()?;
            stream.write_all(&packed(&command.replace('#', &client.to_string())))?;
            clients.push(stream);
            // Waits until the server has accepted the connections, so that its backlog does not overflow.
            if client % 100 == 99 {
                caller.call("PING")?;
            }
        }
        let blocked = if wait { count } else { 0 }.to_string();
        server.until("all are there", |server| {
            let connected = server.info("connected_clients")? == (count + 2).to_string();
            Ok(connected && server.info("blocked_clients")? == blocked)
        })?;
        Ok((server.settled_memory()? - before) / count as f64)
    };
    let idle = grown("PING", false)?;
    let list = grown("BLPOP list 0", true)?;
    let waiter = grown("LOCK.ACQUIRE lock waiter:# BLOCK 0", true)?;
    results.ratio("memory: a waiter and its connection", Unit::Bytes, waiter, ("BLPOP", list), Target::None);
    results.ratio("memory: a waiter alone", Unit::Bytes, waiter - idle, ("BLPOP", list - idle), Target::None);
    results.value("memory: a connection alone", Unit::Bytes, idle);
    Ok(())
}

/// The memory that a full log frees when it is turned off, for each entry. All entries are long waits.
fn log(results: &mut Results) -> Outcome<()> {
    const ENTRIES: usize = 1_000;
    let mut server = Setup::new().option("lock.log-waits-over", "1").start()?;
    let mut caller = Caller::connect(&server)?;
    let mut entry = |key: &str, owners: [&str; 2]| -> Outcome<f64> {
        let [holder, waiter] = owners;
        caller.call(&format!("CONFIG SET lock.log-max-len {ENTRIES}"))?;
        for lock in 0..ENTRIES {
            let key = format!("{key}{lock:06}");
            caller.call(&format!("LOCK.ACQUIRE {key} {holder} PX 600000"))?;
            caller.call(&format!("LOCK.ACQUIRE {key} {waiter} BLOCK 2"))?;
            caller.call(&format!("LOCK.RELEASE {key} {holder}"))?;
        }
        if server.info("lock_log_entries")? != ENTRIES.to_string() {
            return Err("the log is not full".into());
        }
        let full = server.settled_memory()?;
        caller.call("CONFIG SET lock.log-max-len 0")?;
        Ok((full - server.settled_memory()?) / ENTRIES as f64)
    };
    let usual = entry("lock:", [OWNER, &OWNER.replace('d', "e")])?;
    let longest = entry(&"k".repeat(1018), [&"h".repeat(1024), &"w".repeat(1024)])?;
    results.value("memory: a wait in LOCK.LOG", Unit::Bytes, usual);
    results.value("memory: a wait in LOCK.LOG, names of 1,024 bytes", Unit::Bytes, longest);
    Ok(())
}
