// SPDX-License-Identifier: MIT

//! A counter that many clients change in two steps, each while holding the lock.

use super::{count, side_by_side};
use crate::support::redisson::{Pending, Thread, Version};
use crate::support::{until, Flavor, World};

crate::with_every_redisson!(
    both_clients_count_correctly,
    two_redissons_and_a_native_client_count_correctly,
    contending_redisson_threads_leave_the_lock_free,
);

const ROUNDS: usize = 50;

fn both_clients_count_correctly(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let java = ["a", "b", "c", "d"].map(|name| redisson.thread(name));
        assert_exact(world, &java, &["e", "f", "g", "h"]);
    });
}

fn two_redissons_and_a_native_client_count_correctly(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        redisson.connect("second", &format!("single redis://127.0.0.1:{}", world.port));
        let of_second = |name| redisson.thread_of("second", name);
        let java = [redisson.thread("a"), redisson.thread("b"), of_second("c"), of_second("d")];
        // With one native client, no hand-over between native waiters is possible. So every acquire competes with
        // Redisson.
        assert_exact(world, &java, &["e"]);
    });
}

/// All clients start at the same time: they wait for a lock that is then released.
fn assert_exact(world: &World, java: &[Thread<'_>], native: &[&'static str]) {
    let mut client = world.client();
    assert_eq!(client.call("LOCK.ACQUIRE k gate PX 100000"), "1");
    let counting: Vec<_> =
        java.iter().map(|thread| thread.start(&format!("count plain k n {ROUNDS}"))).collect();
    java.iter().for_each(Thread::until_asleep);
    std::thread::scope(|scope| {
        let start = |owner: &'static str| {
            let mut client = world.client();
            scope.spawn(move || count(&mut client, "k", owner, "n", ROUNDS))
        };
        let clients: Vec<_> = native.iter().map(|owner| start(owner)).collect();
        until("all clients wait", || {
            client.call("LOCK.WAITERS k").matches("owner, ").count() == native.len()
        });
        assert_eq!(client.call("LOCK.RELEASE k gate"), "0");
        for client in clients {
            assert_eq!(client.join().unwrap(), 0, "another client was inside");
        }
    });
    for thread in counting {
        assert_eq!(thread.wait(), format!("{ROUNDS} 0"), "rounds, and number of overlaps");
    }
    assert_eq!(client.call("GET n"), ((java.len() + native.len()) * ROUNDS).to_string());
    assert_eq!(client.call("EXISTS k"), "0");
}

fn contending_redisson_threads_leave_the_lock_free(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let threads = ["a", "b"].map(|name| redisson.thread(name));
        let contending = threads.map(|thread| thread.start("contend plain k"));
        let mut client = world.client();
        until("one of them has the lock", || client.call("EXISTS k") == "1");
        assert_eq!(count(&mut client, "k", "native", "n", ROUNDS), 0);
        let grants = |thread: Pending<'_>| thread.wait().parse::<usize>().unwrap();
        threads.iter().for_each(|thread| assert_eq!(thread.call("stop"), "OK"));
        assert!(contending.map(grants).iter().sum::<usize>() > 0);
        assert_eq!(client.call("EXISTS k"), "0");
    });
}
