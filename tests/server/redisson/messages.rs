// SPDX-License-Identifier: MIT

//! The message that wakes Redisson: every subscriber gets one for each release that leaves the lock free.

use super::{side_by_side, side_by_side_with};
use crate::support::redisson::{Redisson, Version};
use crate::support::{in_world, until, Client, Flavor, Server};

crate::with_every_redisson!(
    each_release_sends_one_message,
    a_message_at_a_replica_wakes_redisson,
    the_setting_enables_messages,
);

const CHANNEL: &str = "redisson_lock__channel:{k}";

fn listener(server: &Server) -> Client {
    let mut client = server.client();
    for channel in [CHANNEL, "end"] {
        assert!(client.call(&format!("SUBSCRIBE {channel}")).starts_with("[subscribe"));
    }
    client
}

/// Number of messages that each listener got before a message that the primary publishes now.
fn messages<const N: usize>(primary: &mut Client, listeners: &mut [Client; N]) -> [usize; N] {
    primary.call("PUBLISH end now");
    listeners.each_mut().map(|listener| {
        let mut count = 0;
        loop {
            let message = listener.recv();
            if message == "[message, end, now]" {
                return count;
            }
            assert_eq!(message, format!("[message, {CHANNEL}, 0]"));
            count += 1;
        }
    })
}

fn each_release_sends_one_message(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let mut listeners = [listener(world), listener(&world.replica)];
        let mut check = |native: &mut Client, expected: usize, what: &str| {
            assert_eq!(
                messages(native, &mut listeners),
                [expected; 2],
                "messages at the primary and the replica: {what}"
            );
        };
        for free in ["LOCK.RELEASE k native", "LOCK.BREAK k", "LOCK.RELEASE k native ALL"] {
            native.call("LOCK.ACQUIRE k native PX 100000");
            native.call("LOCK.RENEW k native PX 100000");
            assert_eq!(native.call("LOCK.ACQUIRE k other"), "nil");
            let waiting = java.start("lock plain k 100000");
            java.until_asleep();
            check(&mut native, 0, "the lock is held");
            native.call(free);
            waiting.wait();
            check(&mut native, 1, free);
            // A native waiter gets the lock at once, so the module sends no message.
            let mut waiter = world.waiting("LOCK.ACQUIRE k native BLOCK 0");
            java.call("unlock plain k");
            assert_eq!(waiter.recv(), "1");
            check(&mut native, 1, "only Redisson's own message");
            let mut second = world.waiting("LOCK.ACQUIRE k second BLOCK 0");
            waiter.call("LOCK.RELEASE k native");
            assert_eq!(second.recv(), "1");
            check(&mut native, 0, "the lock was handed over");
            second.call("LOCK.RELEASE k second");
            check(&mut native, 1, "no waiter is left");
        }
    });
}

fn a_message_at_a_replica_wakes_redisson(flavor: Flavor, version: Version) {
    in_world(flavor, |world| {
        let redisson = Redisson::start(version);
        let servers = [&world.primary, &world.replica].map(|server| server.url());
        redisson.connect("main", &format!("master-slave {} subscriptionMode=SLAVE", servers.join(" ")));
        let (mut native, mut replica) = (world.client(), world.replica.client());
        let java = redisson.thread("java");
        for wait in ["lock plain k 100000", "try plain k 90000 100000"] {
            native.call("LOCK.ACQUIRE k native PX 100000");
            let waiting = java.start(wait);
            java.until_asleep();
            assert_eq!(replica.call(&format!("PUBSUB NUMSUB {CHANNEL}")), format!("[{CHANNEL}, 1]"));
            assert_eq!(native.call(&format!("PUBSUB NUMSUB {CHANNEL}")), format!("[{CHANNEL}, 0]"));
            native.call("LOCK.RELEASE k native");
            waiting.wait();
            // Now a native client waits for Redisson's hold. Redisson's calls wait for the replica's confirmation.
            let mut waiter = world.waiting("LOCK.ACQUIRE k native BLOCK 0 PX 100000");
            java.call("unlock plain k");
            assert_eq!(waiter.recv(), "1");
            waiter.call("LOCK.RELEASE k native");
        }
    });
}

fn the_setting_enables_messages(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "", |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let mut listener = [listener(world)];
        for (setting, wakes) in
            [("auto", true), ("off", false), ("publish", true), ("spublish", false), ("both", true)]
        {
            assert_eq!(native.call(&format!("CONFIG SET lock.publish {setting}")), "OK");
            native.call("LOCK.ACQUIRE k native PX 100000");
            let waiting = java.start("lock plain k 100000");
            java.until_asleep();
            native.call("LOCK.RELEASE k native");
            if !wakes {
                assert_eq!(messages(&mut native, &mut listener), [0], "{setting}");
                assert!(!waiting.is_done() && java.call("asleep") == "true", "{setting}");
                native.call(&format!("PUBLISH {CHANNEL} 0"));
            }
            assert_eq!(waiting.wait(), "OK", "{setting}");
            java.call("unlock plain k");
            until("Redisson has unsubscribed", || {
                native.call(&format!("PUBSUB NUMSUB {CHANNEL}")).ends_with(" 1]")
            });
            messages(&mut native, &mut listener);
        }
    });
}
