// SPDX-License-Identifier: MIT

//! Both kinds of client use a primary that sentinels watch, and continue with the next primary after a failover.

use std::time::Duration;

use super::count;
use crate::support::redisson::{Redisson, Version};
use crate::support::sentinel::{Watched, NAME};
use crate::support::{until, Client, Flavor};

crate::with_every_redisson!(
    both_clients_wait_through_a_failover,
    a_redisson_hold_survives_a_failover,
    waits_end_with_the_lease_after_a_failover,
    a_shortened_lease_wakes_redisson_after_a_failover,
);

fn redisson(watched: &Watched, version: Version, settings: &str) -> Redisson {
    let redisson = Redisson::start(version);
    redisson.connect("main", &format!("sentinel {NAME} {} {settings}", watched.addresses()));
    redisson
}

/// Waits until both replicas have all writes of this client.
fn replicate(client: &mut Client) {
    assert_eq!(client.call("WAIT 2 20000"), "2");
}

/// Waits at the current primary until the lock is granted, as an application does. The constant `ID` makes all attempts one
/// request. Returns the connection.
fn acquire(watched: &Watched, lock: &str, owner: &str) -> Client {
    loop {
        let mut client = watched.client();
        let command = format!("LOCK.ACQUIRE {lock} {owner} BLOCK 0 PX 100000 ID {owner}");
        match client.try_send(&command).and_then(|()| client.try_recv()) {
            Ok(reply) if crate::support::show(&reply) == "1" => return client,
            // The old primary is gone or has become a replica.
            _ => {}
        }
    }
}

/// The lease of a hold that others wait for. Redisson subscribes again at the new primary, but 3.27.2 sometimes does not.
/// Its threads then sleep until the lease that they saw expires. Other versions see a lease that is longer than the test.
fn lease(version: Version) -> Duration {
    Duration::from_secs(if subscribes_again(version) { 100 } else { 20 })
}

fn subscribes_again(version: Version) -> bool {
    version != Version::V3_27_2
}

/// Additional time: 3.27.2 can take half a minute to detect a dead connection.
fn additional_time(version: Version) -> Duration {
    Duration::from_secs(if subscribes_again(version) { 0 } else { 50 })
}

/// Waits until Redisson has subscribed at the new primary.
fn until_listening(client: &mut Client) {
    until("Redisson listens", || client.call("PUBSUB NUMSUB redisson_lock__channel:{k}").ends_with(" 1]"));
}

/// All clients wait, and none has counted yet, when the primary dies.
fn both_clients_wait_through_a_failover(flavor: Flavor, version: Version) {
    const ROUNDS: usize = 10;
    let mut watched = Watched::start(flavor);
    let redisson = redisson(&watched, version, "");
    let mut holder = watched.client();
    let acquire = format!("LOCK.ACQUIRE k holder PX {}", lease(version).as_millis());
    assert_eq!(holder.call(&acquire), "1");
    // A message must wake the threads, except for one version: without it, they would come too late.
    let java = ["a", "b"].map(|name| {
        let counting = redisson.thread(name).start(&format!("count plain k n {ROUNDS}"));
        redisson.thread(name).until_asleep();
        counting
    });
    let mut native = [watched.client(), watched.client()];
    for (client, owner) in native.iter_mut().zip(["c", "d"]) {
        client.send(&format!("LOCK.ACQUIRE k {owner} BLOCK 0"));
    }
    until("both native clients wait", || holder.call("LOCK.WAITERS k").matches("owner").count() == 2);
    replicate(&mut holder);
    watched.fail_over();
    assert!(holder.try_send("PING").and_then(|()| holder.try_recv()).is_err());
    assert!(native.iter_mut().all(Client::is_closed));
    let mut holder = watched.client();
    // The hold was replicated, and still excludes all other owners.
    assert_eq!(holder.call(&acquire), "2");
    assert_eq!(holder.call("LOCK.ACQUIRE k c"), "nil");
    assert!(java.iter().all(|thread| !thread.is_done()) && holder.call("EXISTS n") == "0", "a waiter got in");
    std::thread::scope(|scope| {
        let clients = ["c", "d"].map(|owner| {
            let watched = &watched;
            scope.spawn(move || count(&mut watched.client(), "k", owner, "n", ROUNDS))
        });
        until("both native clients wait", || holder.call("LOCK.WAITERS k").matches("owner").count() == 2);
        if subscribes_again(version) {
            until_listening(&mut holder);
        }
        assert_eq!(holder.call("LOCK.RELEASE k holder ALL"), "0");
        for client in clients {
            assert_eq!(client.join().unwrap(), 0, "another client was inside");
        }
    });
    for thread in java {
        assert_eq!(thread.with_more_time(additional_time(version)).wait(), format!("{ROUNDS} 0"));
    }
    assert_eq!(holder.call("GET n"), (4 * ROUNDS).to_string());
    watched.assert_healthy();
}

fn a_redisson_hold_survives_a_failover(flavor: Flavor, version: Version) {
    let mut watched = Watched::start(flavor);
    let redisson = redisson(&watched, version, "");
    let java = redisson.thread("java");
    let owner = java.owner();
    java.call("lock plain k 100000");
    java.call("lock plain k 100000");
    let mut before = watched.client();
    before.call("SET done 1");
    replicate(&mut before);
    let mut waiter = watched.client();
    waiter.send("LOCK.ACQUIRE k native BLOCK 0 ID one");
    until("the native client waits", || before.call("LOCK.WAITERS k").contains("native"));
    watched.fail_over();
    assert!(waiter.is_closed());
    let mut native = watched.client();
    assert_eq!(native.call("HGETALL k"), format!("[{owner}, 2]"));
    assert_eq!(native.call("LOCK.ACQUIRE k native"), "nil");
    // Redisson continues with its hold as soon as it knows the new primary.
    until("Redisson is back", || java.start("holds plain k").answer().as_deref() == Ok("2"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| acquire(&watched, "k", "native"));
        until("the native client waits", || native.call("LOCK.WAITERS k").contains("native"));
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_eq!(java.call("unlock plain k"), "OK");
        let mut client = waiting.join().unwrap();
        assert_eq!(client.call("HGETALL k"), "[native, 1]");
        // After the failover, Redisson waits for a native holder.
        let again = java.start("lock plain k 100000");
        java.until_asleep();
        assert_eq!(client.call("LOCK.RELEASE k native"), "0");
        assert_eq!(again.wait(), "OK");
    });
    watched.assert_healthy();
}

/// The holder never comes back after the failover.
fn waits_end_with_the_lease_after_a_failover(flavor: Flavor, version: Version) {
    let mut watched = Watched::start(flavor);
    let redisson = redisson(&watched, version, "");
    let mut holder = watched.client();
    assert_eq!(holder.call("LOCK.ACQUIRE k holder PX 10000"), "1");
    let waiting = redisson.thread("java").start("count plain k n 1");
    redisson.thread("java").until_asleep();
    let end = holder.number("PEXPIRETIME k");
    replicate(&mut holder);
    watched.fail_over();
    std::thread::scope(|scope| {
        let native = scope.spawn(|| count(&mut watched.client(), "k", "native", "n", 1));
        assert_eq!(native.join().unwrap(), 0, "another client was inside");
    });
    assert_eq!(waiting.with_more_time(additional_time(version)).wait(), "1 0");
    let mut client = watched.client();
    assert_eq!(client.call("GET n"), "2");
    let now = client.call("TIME");
    let seconds: i64 = now.trim_matches(['[', ']']).split_once(", ").unwrap().0.parse().unwrap();
    assert!(seconds * 1000 >= end - 1000, "a waiter got in before the lease expired");
    watched.assert_healthy();
}

fn a_shortened_lease_wakes_redisson_after_a_failover(flavor: Flavor, version: Version) {
    let mut watched = Watched::start(flavor);
    let redisson = redisson(&watched, version, "");
    let mut holder = watched.client();
    assert_eq!(holder.call(&format!("LOCK.ACQUIRE k holder PX {}", lease(version).as_millis())), "1");
    let waiting = redisson.thread("java").start("count plain k n 1");
    redisson.thread("java").until_asleep();
    replicate(&mut holder);
    watched.fail_over();
    let mut holder = watched.client();
    if subscribes_again(version) {
        until_listening(&mut holder);
    }
    // If the lease that Redisson saw has expired, so has this hold.
    let renewed = holder.call("LOCK.RENEW k holder PX 300");
    assert!(renewed == "1" || (!subscribes_again(version) && renewed.starts_with("NOTOWNER ")), "{renewed}");
    assert_eq!(waiting.with_more_time(additional_time(version)).wait(), "1 0");
    watched.assert_healthy();
}
