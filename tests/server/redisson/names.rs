// SPDX-License-Identifier: MIT

//! Lock names with and without braces: the module finds Redisson's channels and keys in each case.

use super::side_by_side;
use crate::support::redisson::Version;
use crate::support::Flavor;

crate::with_every_redisson!(
    a_native_release_wakes_redisson_with_any_name,
    an_unlock_wakes_native_waiters_with_any_name,
    tokens_are_shared_with_any_name,
);

const NAMES: [&str; 9] =
    ["plain", "{tag}rest", "rest{tag}", "a{b", "a}b", "}a{", "{}x", "{a}{b}", "with:colon/and*star"];

fn a_native_release_wakes_redisson_with_any_name(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        for name in NAMES {
            assert_eq!(native.call(&format!("LOCK.ACQUIRE {name} native PX 100000")), "1");
            let waiting = java.start(&format!("lock plain {name} 100000"));
            java.until_asleep();
            assert_eq!(native.call(&format!("LOCK.RELEASE {name} native")), "0");
            assert_eq!(waiting.wait(), "OK", "{name}");
            java.call(&format!("unlock plain {name}"));
        }
    });
}

fn an_unlock_wakes_native_waiters_with_any_name(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let java = redisson.thread("java");
        for name in NAMES {
            java.call(&format!("lock plain {name} 100000"));
            let mut native = world.waiting(&format!("LOCK.ACQUIRE {name} native BLOCK 0"));
            java.call(&format!("unlock plain {name}"));
            assert_eq!(native.recv(), "1", "{name}");
        }
    });
}

fn tokens_are_shared_with_any_name(flavor: Flavor, version: Version) {
    if !version.has_fenced_locks() {
        return;
    }
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        for name in NAMES {
            let reply = native.call(&format!("LOCK.ACQUIRE {name} native FENCE"));
            native.call(&format!("LOCK.RELEASE {name} native"));
            let token = java.call(&format!("lock-token fenced {name} 100000"));
            let last: i64 = token.parse::<i64>().unwrap() - 1;
            assert_eq!(reply, format!("[owner, native, holds, 1, token, {last}]"), "{name}");
        }
    });
}
