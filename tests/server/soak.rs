// SPDX-License-Identifier: MIT

//! A long load on one server: its memory afterwards equals its memory after the first load (invariants 1 to 7, 9).
//!
//! `SOAK_SECONDS` sets the length of the load.

use std::time::{Duration, Instant};

use redis_lock_history::load::{Faults, Settings};

use super::histories::{address, assert_no_state_left, run, settings};
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(nothing_grows);

/// Memory of an idle server in bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    used: i64,
    resident: i64,
}

impl Memory {
    /// The server frees its own buffers and tables gradually, and reports the process as of its last measurement.
    const SLACK: Memory = Memory { used: 200_000, resident: 4_000_000 };

    fn of(client: &mut Client) -> Memory {
        let mut field = |name: &str| client.info("memory", name).parse().unwrap();
        Memory { used: field("used_memory"), resident: field("used_memory_rss") }
    }

    fn exceeds(self, before: Memory) -> bool {
        // AddressSanitizer keeps freed memory to detect its use. With it, servers are shut down so that leaks are reported.
        let is_sanitized = std::env::var_os("SHUT_SERVERS_DOWN").is_some();
        self.used > before.used + Memory::SLACK.used
            || !is_sanitized && self.resident > before.resident + Memory::SLACK.resident
    }
}

/// Waits until the load has left no state. Ignores token counters and the data written under the locks.
fn until_idle(server: &mut Server) {
    let mut client = server.client();
    assert_no_state_left(server);
    until("all other keys are gone", || {
        let keys = client.call("KEYS *");
        let is_kept = |key: &str| key.starts_with("log:") || key.starts_with("redisson_lock_token:");
        let mut keys = keys.trim_matches(['[', ']']).split(", ");
        keys.all(|key| key.is_empty() || is_kept(key))
    });
    until("no other client is connected", || client.info("clients", "connected_clients") == "1");
    for gauge in ["waiters", "contended_locks", "known_held_locks", "watchdogs", "ephemeral_holds"] {
        assert_eq!(client.info("lock", &format!("lock_{gauge}")), "0", "lock_{gauge}");
    }
    assert_eq!(client.call("FLUSHALL"), "OK");
}

fn nothing_grows(flavor: Flavor) {
    let asked: Option<u64> = std::env::var("SOAK_SECONDS").ok().map(|value| value.parse().unwrap());
    // The first load fills the caches that the server and the module never free.
    let (warm_up, round) = asked.map_or((1, 2), |_| (20, 30));
    let mut server = Server::with_module(flavor, &[]);
    let mut load = |number: u64, seconds: u64| {
        let load = Settings {
            seed: settings().seed.wrapping_add(number),
            calls: u32::MAX,
            at_most: Duration::from_secs(seconds),
            broken: 80,
            faults: Faults { kill: true, unblock: true, pause: true },
            ..settings()
        };
        run(load, address(&server), |_| ());
        until_idle(&mut server);
        let memory = Memory::of(&mut server.client());
        eprintln!("load {number}: {memory:?}");
        memory
    };
    let before = load(0, warm_up);
    let began = Instant::now();
    let mut number = 0;
    while number == 0 || began.elapsed() < Duration::from_secs(asked.unwrap_or(0)) {
        number += 1;
        load(number, round);
    }
    let mut client = server.client();
    until("the memory is freed", || !Memory::of(&mut client).exceeds(before));
}
