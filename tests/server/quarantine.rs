// SPDX-License-Identifier: MIT

//! After a start or promotion that may have lost locks, nothing is granted that another owner may still hold (invariant 1).

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use crate::support::server::module;
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    a_start_without_data_grants_nothing_at_first,
    a_late_start_within_a_second_counts_fully,
    waiters_are_granted_in_order_afterwards,
    known_holders_continue,
    a_known_reader_is_not_upgraded,
    a_lossy_restart_starts_a_quarantine,
    a_promotion_starts_a_quarantine,
    a_failover_starts_a_quarantine,
    quarantine_is_off_by_default,
);

/// A time in milliseconds, longer than any test.
const LONG: &str = "1000000";

fn server(flavor: Flavor, dir: TempDir, quarantine: &str, args: &[&str]) -> Server {
    let load = ["--loadmodule", module().to_str().unwrap(), "lock.quarantine", quarantine];
    Server::start_in(flavor, dir, &[&load, args].concat())
}

fn fresh(flavor: Flavor, quarantine: &str, args: &[&str]) -> Server {
    server(flavor, tempfile::tempdir().unwrap(), quarantine, args)
}

/// The remaining quarantine in milliseconds, from the error text.
fn remaining_ms(reply: &str) -> u64 {
    let (_, rest) = reply.split_once("no grants for ").unwrap_or_else(|| panic!("{reply}"));
    assert!(reply.starts_with("QUARANTINE "), "{reply}");
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn is_quarantined(client: &mut Client) -> bool {
    let reply = client.call("LOCK.ACQUIRE quarantined a");
    if reply.starts_with("QUARANTINE ") {
        return true;
    }
    assert_eq!(reply, "1");
    assert_eq!(client.call("LOCK.RELEASE quarantined a"), "0");
    false
}

fn a_start_without_data_grants_nothing_at_first(flavor: Flavor) {
    let mut server = fresh(flavor, LONG, &[]);
    let mut a = server.client();
    for call in [
        "LOCK.ACQUIRE k a",
        "LOCK.ACQUIRE k a SHARED",
        "LOCK.ACQUIRE k a FENCE WATCHDOG EPHEMERAL",
        "LOCK.ACQUIRE k * ID x",
    ] {
        assert!((900_000..=1_000_000).contains(&remaining_ms(&a.call(call))), "{call}");
    }
    assert_eq!(a.call("KEYS *"), "[]", "a refused call wrote a key");
    assert!(a.info("lock", "lock_quarantine_left_ms").parse::<u64>().unwrap() > 900_000);
    let waiter = server.waiting("LOCK.ACQUIRE k b BLOCK 0");
    remaining_ms(&a.call("LOCK.ACQUIRE k a"));
    assert_eq!(a.call("LOCK.INFO k"), "nil");
    assert_eq!(a.call("LOCK.BREAK k"), "0");
    assert!(a.call("LOCK.RELEASE k a").starts_with("NOTOWNER"));
    assert_eq!(a.call("LOCK.ACQUIRE k c BLOCK 20"), "nil", "a wait did not time out");
    assert!(a.call("LOCK.WAITERS k").starts_with("[[owner, b, "));
    a.call("MULTI");
    a.call("LOCK.ACQUIRE k a BLOCK 0");
    assert!(a.call("EXEC").starts_with("[QUARANTINE "));
    assert!(server.log().contains("redis-lock: locks from before the restart may have been lost"));
    waiter.close();
    until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
    server.assert_healthy();
}

/// A server reports its uptime in whole seconds, and may start at the end of a second. The preloaded library imitates this: it
/// sets the clock of the uptime a second ahead, but not the clock of the start (`time`). If a second ends during the start, the
/// test repeats the start.
fn a_late_start_within_a_second_counts_fully(flavor: Flavor) {
    let server = Server::with_own_clock(flavor);
    server.set_clock(1);
    let mut dir = server.stop();
    for _ in 0..20 {
        let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        thread::sleep(Duration::from_secs(wall().as_secs() + 1).saturating_sub(wall()));
        let (second, before) = (wall().as_secs(), Instant::now());
        let mut server = Server::with_own_clock_in(flavor, dir, &["lock.quarantine", LONG]);
        let mut a = server.client();
        if wall().as_secs() != second {
            dir = server.stop();
            continue;
        }
        assert_ne!(a.info("server", "uptime_in_seconds"), "0", "the clocks do not differ");
        let left = remaining_ms(&a.call("LOCK.ACQUIRE k a"));
        let minimum = 1_000_000 - u64::try_from(before.elapsed().as_millis()).unwrap() - 1;
        assert!(left >= minimum, "{left} ms are left, expected at least {minimum} ms");
        server.assert_healthy();
        return;
    }
    panic!("every start took longer than a second");
}

fn waiters_are_granted_in_order_afterwards(flavor: Flavor) {
    let started = Instant::now();
    let mut server = fresh(flavor, "1500", &[]);
    let mut a = server.client();
    let mut waiters = ["b", "c"].map(|owner| server.waiting(&format!("LOCK.ACQUIRE k {owner} BLOCK 0")));
    let mut elsewhere = server.waiting("LOCK.ACQUIRE l d BLOCK 0 SHARED");
    assert_eq!(waiters[0].recv(), "1");
    let waited = started.elapsed().as_millis();
    assert!(waited >= 1400, "granted after {waited} ms");
    assert_eq!(elsewhere.recv(), "1");
    assert!(waiters[1].has_nothing());
    assert_eq!(waiters[0].call("LOCK.RELEASE k b"), "0");
    assert_eq!(waiters[1].recv(), "1");
    assert!(!is_quarantined(&mut a));
    assert_eq!(a.info("lock", "lock_quarantine_left_ms"), "0");
    server.assert_healthy();
}

fn known_holders_continue(flavor: Flavor) {
    let server_before = Server::with_module(flavor, &["--appendonly", "yes"]);
    let mut a = server_before.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
    assert_eq!(a.call("LOCK.ACQUIRE s a SHARED PX 100000"), "1");
    // Makes all earlier writes durable.
    a.call("CONFIG SET appendfsync always");
    a.call("SET last write");
    let server = server(flavor, server_before.stop(), LONG, &["--appendonly", "yes"]);
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "2");
    assert_eq!(a.call("LOCK.ACQUIRE k b"), "nil", "the holder is known");
    remaining_ms(&a.call("LOCK.ACQUIRE s b SHARED"));
    remaining_ms(&a.call("LOCK.ACQUIRE s a"));
    assert_eq!(a.call("LOCK.ACQUIRE s a SHARED PX 100000"), "2");
    assert_eq!(a.call("LOCK.ACQUIRE k a SHARED PX 100000"), "3", "a writer is the only holder");
    assert_eq!(a.call("LOCK.RELEASE k a SHARED"), "2");
    assert_eq!(a.call("LOCK.RENEW k a PX 100000"), "2");
    assert_eq!(a.call("LOCK.CHECK k OWNER a"), "2");
    let mut b = server.waiting("LOCK.ACQUIRE k b BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
    // The lock was free, so unknown owners may hold it.
    remaining_ms(&a.call("LOCK.ACQUIRE k a"));
    a.call("CONFIG SET lock.quarantine 0");
    assert_eq!(a.call("LOCK.ACQUIRE k a"), "nil", "the waiter comes first");
    assert_eq!(b.recv(), "1");
}

/// The replica has received one reader but not the other.
fn a_known_reader_is_not_upgraded(flavor: Flavor) {
    let primary = fresh(flavor, "0", &[]);
    let mut replica = fresh(flavor, LONG, &[]);
    replica.follow(&primary);
    let (mut a, mut there) = (primary.client(), replica.client());
    assert_eq!(a.call("LOCK.ACQUIRE k known SHARED PX 100000"), "1");
    assert_eq!(a.call("WAIT 1 10000"), "1");
    // The replica follows a port without a server, so it has no primary.
    assert_eq!(there.call("REPLICAOF 127.0.0.1 1"), "OK");
    assert_eq!(a.call("LOCK.ACQUIRE k forgotten SHARED PX 100000"), "1");
    drop(primary);
    there.call("REPLICAOF NO ONE");
    remaining_ms(&there.call("LOCK.ACQUIRE k2 z"));
    for upgrade in ["LOCK.ACQUIRE k known", "LOCK.ACQUIRE k known FENCE", "LOCK.MACQUIRE 1 k known"] {
        remaining_ms(&there.call(upgrade));
    }
    remaining_ms(&there.call("LOCK.ACQUIRE k known SHARED ONCE LIMIT 2"));
    let mut upgrades = replica.waiting("LOCK.ACQUIRE k known BLOCK 0 PX 100000");
    let several = replica.waiting("LOCK.MACQUIRE 2 {k}l k known BLOCK 0");
    assert_eq!(there.call("LOCK.ACQUIRE k known SHARED PX 100000"), "2");
    assert!(upgrades.has_nothing() && several.has_nothing());
    several.close();
    there.call("CONFIG SET lock.quarantine 0");
    assert_eq!(upgrades.recv(), "3", "the quarantine has ended");
    replica.assert_healthy();
}

fn a_lossy_restart_starts_a_quarantine(flavor: Flavor) {
    let aof = |sync: &'static str| ["--appendonly", "yes", "--appendfsync", sync];
    for (args, is_certain) in [
        (vec!["--save", ""], false),
        (aof("everysec").to_vec(), false),
        (aof("always").to_vec(), true),
        ([&aof("always")[..], &["--no-appendfsync-on-rewrite", "yes"]].concat(), false),
    ] {
        let before = fresh(flavor, "0", &args);
        assert_eq!(before.client().call("LOCK.ACQUIRE k a PX 100000"), "1");
        // `stop` kills the server.
        let after = server(flavor, before.stop(), LONG, &args);
        let mut a = after.client();
        assert_eq!(!is_quarantined(&mut a), is_certain, "{args:?}");
        let emptied = fresh(flavor, LONG, &args);
        assert!(is_quarantined(&mut emptied.client()), "without its data, {args:?}");
    }
}

fn a_promotion_starts_a_quarantine(flavor: Flavor) {
    // The server has all its own data, but may lack writes of its primary.
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let primary = fresh(flavor, "0", &[]);
    let before = fresh(flavor, "0", &args);
    let mut replica = server(flavor, before.stop(), LONG, &args);
    let mut there = replica.client();
    assert!(!is_quarantined(&mut there));
    replica.follow(&primary);
    let mut a = primary.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
    assert_eq!(a.call("WAIT 1 10000"), "1");
    drop(primary);
    there.call("REPLICAOF NO ONE");
    assert!(is_quarantined(&mut there));
    assert_eq!(there.call("LOCK.ACQUIRE k a PX 100000"), "2", "the known hold counts");
    assert!(replica.log().contains("redis-lock: promoted: "));
    replica.assert_healthy();
}

fn a_failover_starts_a_quarantine(flavor: Flavor) {
    let [first, second] = [0, 1].map(|_| fresh(flavor, "0", &[]));
    let (mut a, mut b) = (first.client(), second.client());
    for client in [&mut a, &mut b] {
        assert!(!is_quarantined(client));
    }
    second.follow(&first);
    until("the replica is online", || a.call("INFO replication").contains("state=online"));
    for client in [&mut a, &mut b] {
        client.call(&format!("CONFIG SET lock.quarantine {LONG}"));
    }
    a.call("CONFIG SET lock.quarantine 1");
    assert_eq!(a.call("FAILOVER"), "OK");
    until("the replica is the primary", || b.info("replication", "role") == "master");
    assert!(is_quarantined(&mut b));
    until("the old primary is a replica", || a.info("replication", "role") == "slave");
    assert!(a.call("LOCK.ACQUIRE k a").starts_with("READONLY"));
}

fn quarantine_is_off_by_default(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    assert_eq!(a.call("CONFIG GET lock.quarantine"), "[lock.quarantine, 0]");
    assert!(!is_quarantined(&mut a));
    // The quarantine begins with the start of the server, even if it is set later.
    a.call(&format!("CONFIG SET lock.quarantine {LONG}"));
    assert!(is_quarantined(&mut a));
    a.call("CONFIG SET lock.quarantine 1");
    until("the quarantine has ended", || !is_quarantined(&mut a));
}
