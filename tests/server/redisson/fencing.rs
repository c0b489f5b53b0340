// SPDX-License-Identifier: MIT

//! Both kinds of client share one token counter per lock: each token is greater than all before it.

use std::time::{Duration, Instant};

use super::{scripts, side_by_side};
use crate::support::redisson::{Pending, Thread, Version};
use crate::support::{until, Client, Flavor};

crate::with_every_redisson!(
    native_and_redisson_tokens_share_a_counter,
    a_waiter_gets_a_greater_token,
    a_hold_without_a_token_excludes_fenced_clients,
    plain_redisson_locks_share_fenced_native_holds,
);

fn java_token(java: Thread<'_>, operation: &str) -> i64 {
    let reply = java.call(operation);
    reply.parse().unwrap_or_else(|_| panic!("{operation} replied {reply}"))
}

/// The token in a reply to `LOCK.ACQUIRE … FENCE`.
fn native_token(reply: &str) -> i64 {
    let token = reply.rsplit_once("token, ").unwrap_or_else(|| panic!("no token in {reply}")).1;
    token.trim_end_matches(']').parse().unwrap()
}

fn native_cycle(native: &mut Client) -> i64 {
    let token = native_token(&native.call("LOCK.ACQUIRE k native FENCE PX 100000"));
    assert_eq!(native.call("LOCK.RELEASE k native"), "0");
    token
}

fn java_cycle(java: Thread<'_>) -> i64 {
    let token = java_token(java, "lock-token fenced k 100000");
    assert_eq!(java_token(java, "token fenced k"), token);
    assert_eq!(java.call("unlock fenced k"), "OK");
    token
}

/// Starts a wait for a fenced lock. A Java thread in such a wait does not look asleep. So this function waits until the thread
/// has tried, has subscribed, and has tried again.
fn waiting<'a>(native: &mut Client, java: Thread<'a>, wait: &str) -> Pending<'a> {
    let before = scripts(native);
    let waiting = java.start(wait);
    until("Redisson listens, and has tried twice", || {
        native.call("PUBSUB NUMSUB redisson_lock__channel:{k}").ends_with(" 2]")
            && scripts(native) >= before + 2
    });
    waiting
}

/// The result of a wait that a message has ended. Redisson checks for a message, and only then registers for the next one. A
/// message in between is lost, and Redisson continues to sleep. Therefore a late second message follows.
fn woken(native: &mut Client, waiting: Pending<'_>) -> String {
    let late = Instant::now() + Duration::from_secs(5);
    while !waiting.is_done() && Instant::now() < late {
        std::thread::sleep(Duration::from_millis(5));
    }
    if !waiting.is_done() {
        native.call("PUBLISH redisson_lock__channel:{k} 0");
    }
    waiting.wait()
}

fn native_and_redisson_tokens_share_a_counter(flavor: Flavor, version: Version) {
    if !version.has_fenced_locks() {
        return;
    }
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        // Redisson's own counters start at 1 and do not expire.
        let mut tokens = vec![java_cycle(java), java_cycle(java)];
        assert_eq!(tokens, [1, 2]);
        for _ in 0..5 {
            tokens.push(native_cycle(&mut native));
            tokens.push(java_cycle(java));
            tokens.push(java_cycle(java));
            tokens.push(native_cycle(&mut native));
            tokens.push(native_cycle(&mut native));
        }
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
        assert_eq!(native.call("PTTL redisson_lock_token:{k}"), "-1", "Redisson's counter must not expire");
        // The tokens do not depend on the lock's key or on the clock either.
        let ahead = tokens.last().unwrap() + 1_000_000_000_000;
        native.call(&format!("SET redisson_lock_token:{{k}} {ahead}"));
        assert_eq!(native_cycle(&mut native), ahead + 1);
        assert_eq!(java_cycle(java), ahead + 2);
        assert_eq!(native_cycle(&mut native), ahead + 3);
    });
}

fn a_waiter_gets_a_greater_token(flavor: Flavor, version: Version) {
    if !version.has_fenced_locks() {
        return;
    }
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let mut listener = world.client();
        listener.call("SUBSCRIBE redisson_lock__channel:{k}");
        let mut last = 0;
        let mut check = |token: i64| {
            assert!(token > last, "{token} after {last}");
            last = token;
        };
        for wait in [
            "lock-token fenced k 100000",
            "lock-token fenced k",
            "try-token fenced k 90000 100000",
            "lock fenced k",
            "try fenced k 90000 100000",
        ] {
            check(native_token(&native.call("LOCK.ACQUIRE k native FENCE PX 100000")));
            let waiting = waiting(&mut native, java, wait);
            assert!(!waiting.is_done());
            assert_eq!(native.call("LOCK.RELEASE k native"), "0");
            assert_eq!(listener.recv(), "[message, redisson_lock__channel:{k}, 0]");
            let reply = woken(&mut native, waiting);
            let token = java_token(java, "token fenced k");
            assert!([&*token.to_string(), "OK", "true"].contains(&&*reply), "{wait} replied {reply}");
            check(token);
            let mut waiter = world.waiting("LOCK.ACQUIRE k native FENCE BLOCK 0 PX 100000");
            assert_eq!(java.call("unlock fenced k"), "OK");
            let token = native_token(&waiter.recv());
            check(token);
            assert_eq!(java_token(java, "token fenced k"), token);
            assert_eq!(waiter.call("LOCK.RELEASE k native"), "0");
            // Skips the messages of Redisson's unlock and of this release.
            native.call("PUBLISH redisson_lock__channel:{k} end");
            while listener.recv() != "[message, redisson_lock__channel:{k}, end]" {}
        }
    });
}

fn a_hold_without_a_token_excludes_fenced_clients(flavor: Flavor, version: Version) {
    if !version.has_fenced_locks() {
        return;
    }
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        for acquire in ["LOCK.ACQUIRE k native PX 100000", "LOCK.ACQUIRE k native SHARED PX 100000"] {
            assert_eq!(native.call(acquire), "1");
            assert_eq!(java.call("try fenced k"), "false");
            assert_eq!(java.call("try-token fenced k 1500 40000"), "null");
            assert_eq!(native.call("EXISTS redisson_lock_token:{k}"), "0", "a refused call made a token");
            assert_eq!(native.call("LOCK.RELEASE k native"), "0");
        }
        assert_eq!(java.call("lock fenced k 100000"), "OK");
        assert_eq!(native.call("LOCK.ACQUIRE k native FENCE"), "nil");
        assert_eq!(java.call("unlock fenced k"), "OK");
    });
}

/// A native owner and a Java thread share a hold by name. The token's field is deleted with the last hold.
fn plain_redisson_locks_share_fenced_native_holds(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        let first = native_token(&native.call("LOCK.ACQUIRE k native FENCE PX 100000"));
        let waiting = java.start("lock plain k 100000");
        java.until_asleep();
        assert_eq!(native.call("LOCK.RELEASE k native"), "0");
        assert_eq!(waiting.wait(), "OK");
        let second = native_token(&native.call(&format!("LOCK.ACQUIRE k {owner} FENCE PX 100000")));
        assert!(second > first);
        assert_eq!(native.call("HGETALL k"), format!("[{owner}, 2, #fence, {second}]"));
        assert_eq!(java.call("holds plain k"), "2");
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_eq!(native_token(&native.call(&format!("LOCK.ACQUIRE k {owner} FENCE PX 100000"))), second);
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_eq!(native.call("EXISTS k"), "0");
        assert!(native_cycle(&mut native) > second);
    });
}
