// SPDX-License-Identifier: MIT

//! Neither kind of client starves where both want one lock without pause.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::side_by_side;
use crate::support::redisson::{Redisson, Version};
use crate::support::{until, Client, Flavor, World};

crate::with_every_redisson!(
    each_gets_a_tenth_of_the_grants_at_least,
    one_native_client_lets_redisson_in,
    a_window_is_for_who_waits,
);

/// Native grants in a contest.
const GRANTS: usize = 2000;

/// Native grants in a contest in which Redisson has no chance to be fast: a JVM that gets no processor time comes too late,
/// but not for ever.
const MOST_GRANTS: usize = 20_000;

/// Everybody wants the lock again as soon as they have given it back, until there were so many native grants, or more if
/// that was not fair. Returns how many there were, natively and of Redisson.
fn contend(world: &World, redisson: &Redisson, natives: usize, threads: usize) -> (usize, usize) {
    let names: Vec<String> = (0..threads).map(|thread| format!("java-{thread}")).collect();
    let java: Vec<_> = names.iter().map(|name| redisson.thread(name)).collect();
    let contending: Vec<_> = java.iter().map(|thread| thread.start("contend plain k")).collect();
    let (native, inside, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for owner in 0..natives {
            let (native, inside, over) = (&native, &inside, &over);
            scope.spawn(move || {
                let mut client = world.client();
                while !over.load(Ordering::SeqCst) {
                    assert_eq!(client.call(&format!("LOCK.ACQUIRE k native-{owner} BLOCK 0")), "1");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two native clients hold the lock");
                    let grants = native.fetch_add(1, Ordering::SeqCst) + 1;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    let enough = grants >= MOST_GRANTS
                        || (grants >= GRANTS
                            && grants % 100 == 0
                            && (threads == 0 || is_fair(grants, redissons(&mut client))));
                    if enough {
                        over.store(true, Ordering::SeqCst);
                    }
                    assert_eq!(client.call(&format!("LOCK.RELEASE k native-{owner}")), "0");
                }
            });
        }
    });
    java.iter().for_each(|thread| assert_eq!(thread.call("stop"), "OK"));
    let theirs = contending.into_iter().map(|contending| contending.wait().parse::<usize>().unwrap()).sum();
    (native.into_inner(), theirs)
}

/// How often Redisson had the lock: its scripts count up and down, and nobody else does.
fn redissons(client: &mut Client) -> usize {
    let stats = client.call("INFO commandstats");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hincrby:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse::<usize>().unwrap() / 2)
}

/// A tenth for each.
fn is_fair(native: usize, theirs: usize) -> bool {
    native.min(theirs) * 10 >= native + theirs
}

fn assert_fair((native, theirs): (usize, usize)) {
    assert!(is_fair(native, theirs), "{native} native grants, {theirs} of Redisson");
}

fn each_gets_a_tenth_of_the_grants_at_least(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| assert_fair(contend(world, redisson, 4, 4)));
}

/// Without a queue, it would be back before anybody has read the message.
fn one_native_client_lets_redisson_in(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| assert_fair(contend(world, redisson, 1, 2)));
}

/// When nobody is left who waits elsewhere, the lock goes from hand to hand again.
fn a_window_is_for_who_waits(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        contend(world, redisson, 2, 1);
        let mut client = world.client();
        until("nobody listens", || client.call("PUBSUB NUMSUB redisson_lock__channel:{k}").ends_with(", 0]"));
        let given = client.info("lock", "lock_fairness_windows_given");
        contend(world, redisson, 4, 0);
        assert_eq!(client.info("lock", "lock_fairness_windows_given"), given);
    });
}
