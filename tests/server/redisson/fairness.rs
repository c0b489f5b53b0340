// SPDX-License-Identifier: MIT

//! Neither kind of client starves when both contend for one lock without a pause.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::side_by_side;
use crate::support::redisson::{Redisson, Version};
use crate::support::{until, Client, Flavor, World};

crate::with_every_redisson!(
    each_kind_gets_a_tenth_of_the_grants,
    one_native_client_does_not_starve_redisson,
    windows_need_a_redisson_waiter,
);

/// Native grants in a contest.
const GRANTS: usize = 2000;

/// Maximum number of native grants in a contest. A JVM without processor time is slow for a while, but not forever.
const MAX_GRANTS: usize = 60_000;

/// All clients acquire the lock again right after they release it. The contest ends after `GRANTS` native grants, or later
/// if the grants are unfair. Returns the numbers of native grants and of Redisson's.
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
                    let enough = grants >= MAX_GRANTS
                        || (grants >= GRANTS
                            && grants % 100 == 0
                            && (threads == 0 || is_fair(grants, count_redisson_grants(&mut client))));
                    if enough {
                        over.store(true, Ordering::SeqCst);
                    }
                    assert_eq!(client.call(&format!("LOCK.RELEASE k native-{owner}")), "0");
                }
            });
        }
    });
    java.iter().for_each(|thread| assert_eq!(thread.call("stop"), "OK"));
    let redisson_grants =
        contending.into_iter().map(|contending| contending.wait().parse::<usize>().unwrap()).sum();
    (native.into_inner(), redisson_grants)
}

/// Number of Redisson's grants: only its scripts use HINCRBY, once for an acquire and once for a release.
fn count_redisson_grants(client: &mut Client) -> usize {
    let stats = client.call("INFO commandstats");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hincrby:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse::<usize>().unwrap() / 2)
}

/// Each kind gets at least a tenth of the grants.
fn is_fair(native: usize, redisson_grants: usize) -> bool {
    native.min(redisson_grants) * 10 >= native + redisson_grants
}

fn assert_fair((native, redisson_grants): (usize, usize)) {
    assert!(is_fair(native, redisson_grants), "{native} native grants, {redisson_grants} grants to Redisson");
}

fn each_kind_gets_a_tenth_of_the_grants(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| assert_fair(contend(world, redisson, 4, 4)));
}

/// Without a fairness window, the native client would acquire the lock again before Redisson reads the message.
fn one_native_client_does_not_starve_redisson(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| assert_fair(contend(world, redisson, 1, 2)));
}

/// After the last Redisson waiter has left, native waiters get the lock without a window.
fn windows_need_a_redisson_waiter(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        contend(world, redisson, 2, 1);
        let mut client = world.client();
        until("Redisson has unsubscribed", || {
            client.call("PUBSUB NUMSUB redisson_lock__channel:{k}").ends_with(", 0]")
        });
        let windows = client.info("lock", "lock_fairness_windows_given");
        contend(world, redisson, 4, 0);
        assert_eq!(client.info("lock", "lock_fairness_windows_given"), windows);
    });
}
