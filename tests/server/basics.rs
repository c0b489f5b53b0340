// SPDX-License-Identifier: MIT

//! Acquires, re-enters, renews, releases, breaks and inspects a lock that has no waiters.

use redis::Value;

use crate::support::{in_world, show, Client, Flavor, Server};

crate::on_every_server!(
    an_owner_acquires_and_releases,
    leases_are_set_and_renewed,
    release_all_ends_every_hold,
    breaking_ends_every_hold,
    a_star_generates_an_owner,
    info_shows_the_holder,
    keys_and_owners_may_be_binary,
    databases_have_separate_locks,
    commands_are_documented,
    scripts_and_commands_share_holds,
);

/// Asserts that the TTL is between `expected` - 5000 and `expected`, in milliseconds.
fn assert_lease(client: &mut Client, key: &str, expected: i64) {
    let ttl = client.number(&format!("PTTL {key}"));
    assert!(ttl <= expected && ttl > expected - 5_000, "the lease is {ttl} ms, expected {expected} ms");
}

fn an_owner_acquires_and_releases(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k alice"), "1");
        assert_eq!(a.call("HGETALL k"), "[alice, 1]");
        assert_eq!(a.call("LOCK.ACQUIRE k bob"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k alice"), "2");
        assert_eq!(a.call("HGETALL k"), "[alice, 2]");
        assert_eq!(a.call("LOCK.RELEASE k bob"), not_owner());
        assert_eq!(a.call("LOCK.RELEASE k alice"), "1");
        for release in ["LOCK.RELEASE k bob", "LOCK.RELEASE k bob ALL"] {
            assert_eq!(a.call(release), not_owner());
        }
        assert_eq!(a.call("HGETALL k"), "[alice, 1]");
        assert_eq!(a.call("LOCK.RELEASE k alice"), "0");
        assert_eq!(a.call("EXISTS k"), "0");
        assert_eq!(a.call("LOCK.RELEASE k alice"), not_owner());
        assert_eq!(a.call("LOCK.RENEW k alice"), not_owner());
        assert_eq!(a.call("LOCK.ACQUIRE k bob"), "1");
    });
}

fn not_owner() -> &'static str {
    "NOTOWNER lock was released, broken or expired; stop and acquire it again"
}

fn leases_are_set_and_renewed(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_lease(&mut a, "k", 30_000);
        assert_eq!(a.call("lock.acquire k a px 90000"), "2");
        assert_lease(&mut a, "k", 90_000);
        assert_eq!(a.call("LOCK.ACQUIRE k a EX 200"), "3");
        assert_lease(&mut a, "k", 200_000);
        assert_eq!(a.call("LOCK.RENEW k a PX 60000"), "3");
        assert_lease(&mut a, "k", 60_000);
        assert_eq!(a.call("LOCK.RENEW k a"), "3");
        assert_lease(&mut a, "k", 30_000);
        // A release without a lease option keeps the current lease.
        assert_eq!(a.call("LOCK.RENEW k a EX 100"), "3");
        assert_eq!(a.call("LOCK.RELEASE k a"), "2");
        assert_lease(&mut a, "k", 100_000);
        assert_eq!(a.call("LOCK.RELEASE k a EX 50"), "1");
        assert_lease(&mut a, "k", 50_000);
        assert_eq!(a.call("LOCK.RELEASE k a PX 70000"), "0");
        assert_eq!(a.call("PTTL k"), "-2");
        // An expired lease ends the hold.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 1"), "1");
        crate::support::until("the lease is over", || a.call("LOCK.INFO k") == "nil");
        assert_eq!(a.call("LOCK.RENEW k a"), not_owner());
    });
}

fn release_all_ends_every_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for holds in 1..=3 {
            assert_eq!(a.number("LOCK.ACQUIRE k a"), holds);
        }
        assert_eq!(a.call("LOCK.RELEASE k b ALL"), not_owner());
        assert_eq!(a.call("LOCK.RELEASE k a all PX 100"), "0");
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

fn breaking_ends_every_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.BREAK k"), "0");
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        assert_eq!(a.call("EXISTS k"), "0");
        assert_eq!(a.call("LOCK.RELEASE k a"), not_owner());
    });
}

fn a_star_generates_an_owner(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let Value::Array(reply) = a.call_value("LOCK.ACQUIRE k *") else { panic!("no flat array in RESP2") };
        let [name, owner, holds, one] = &reply[..] else { panic!("{reply:?}") };
        assert_eq!((show(name), show(holds), show(one)), ("owner".into(), "holds".into(), "1".into()));
        let owner = show(owner);
        assert_eq!(owner.len(), 36, "{owner} is not a UUID");
        assert_eq!(a.call("LOCK.ACQUIRE k *"), "nil");
        assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner}")), "2");
        assert_eq!(a.call(&format!("LOCK.RELEASE k {owner} ALL")), "0");
        let mut resp3 = world.client();
        resp3.call("HELLO 3");
        let Value::Map(reply) = resp3.call_value("LOCK.ACQUIRE k *") else { panic!("no map in RESP3") };
        assert_eq!(reply.len(), 2);
        assert_ne!(show(&reply[0].1), owner, "two generated owners are equal");
    });
}

fn info_shows_the_holder(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.INFO k"), "nil");
        a.call("LOCK.ACQUIRE k alice PX 100000");
        a.call("LOCK.ACQUIRE k alice PX 100000");
        // The replies are the same except for the TTL.
        let ttl_as_x = |text: String| {
            text.split_inclusive(", ")
                .map(|part| {
                    let digits: String = part.chars().filter(char::is_ascii_digit).collect();
                    if digits.parse().is_ok_and(|ttl: i64| (90_000..=100_000).contains(&ttl)) {
                        part.replace(&digits, "x")
                    } else {
                        part.to_owned()
                    }
                })
                .collect::<String>()
        };
        assert_eq!(
            ttl_as_x(a.call("LOCK.INFO k")),
            "[mode, exclusive, ttl, x, token, nil, holders, \
             [[owner, alice, mode, exclusive, holds, 2, ttl, x, \
             since, nil, client, nil, address, nil, name, nil, watchdog, nil, ephemeral, nil, session, nil]], waiters, 0]"
        );
        let _waiter = world.waiting("LOCK.ACQUIRE k bob BLOCK 0");
        a.call("HELLO 3");
        assert_eq!(
            ttl_as_x(a.call("LOCK.INFO k")),
            "{mode: exclusive, ttl: x, token: nil, holders: \
             [{owner: alice, mode: exclusive, holds: 2, ttl: x, \
             since: nil, client: nil, address: nil, name: nil, watchdog: nil, ephemeral: nil, session: nil}], waiters: 1}"
        );
        assert_eq!(a.call("LOCK.INFO"), "ERR wrong number of arguments for 'lock.info' command");
    });
}

fn keys_and_owners_may_be_binary(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let (key, owner): (&[u8], &[u8]) = (b"\0k\r\n\xff {}", b"\0\r\n\xff o*");
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", key, owner, b"PX", b"60000"]), "1");
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", key, owner]), "2");
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", key, b"\0"]), "nil");
        assert_eq!(a.call_args(&[b"HGET", key, owner]), "2");
        // With the longest owner name, the server stores the hash as a table. The replies stay the same.
        let long = vec![b'o'; 1024];
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"long", &long]), "1");
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"long", &long]), "2");
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"long", b"x"]), "nil");
        assert_eq!(a.call_args(&[b"LOCK.RELEASE", b"long", &long]), "1");
        // The empty key is valid.
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"", b"x"]), "1");
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"", b"y"]), "nil");
    });
}

fn databases_have_separate_locks(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let waiter = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let mut other = world.client();
        other.call("SELECT 3");
        assert_eq!(other.call("LOCK.ACQUIRE k c"), "1");
        assert_eq!(other.call("LOCK.WAITERS k"), "[]");
        assert_eq!(other.call("LOCK.RELEASE k c"), "0");
        assert!(waiter.has_nothing());
        assert_eq!(other.call("LOCK.ACQUIRE k d"), "1");
    });
}

fn commands_are_documented(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let help = a.call("LOCK.HELP");
    for command in ["ACQUIRE", "RELEASE", "RENEW", "BREAK", "INFO", "WAITERS", "LIST", "BLOCKERS", "HELP"] {
        assert!(help.contains(command), "{command} is not in {help}");
    }
    assert!(a.call("MODULE LIST").contains("name, lock, ver"));
    for (command, flags) in [("acquire", "blocking"), ("release", "fast"), ("info", "readonly")] {
        let info = a.call(&format!("COMMAND INFO lock.{command}"));
        assert!(info.contains(flags), "{command}: {info}");
        assert!(a.call(&format!("COMMAND DOCS lock.{command}")).contains("summary"));
    }
    assert_eq!(a.call("COMMAND GETKEYS LOCK.ACQUIRE k o"), "[k]");
    if flavor.lists_commands_of_modules() {
        let dangerous = a.call("ACL CAT dangerous");
        assert!(dangerous.contains("lock.break") && !dangerous.contains("lock.acquire"), "{dangerous}");
    }
}

/// Acquires and releases as a Redisson client does.
fn scripts_and_commands_share_holds(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let acquire = b"redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1])";
        let mut script = |owner: &[u8]| a.call_args(&[b"EVAL", acquire, b"1", b"k", b"50000", owner]);
        assert_eq!(script(b"uuid:1"), "nil");
        let mut b = world.client();
        assert_eq!(b.call("LOCK.ACQUIRE k other"), "nil");
        assert_eq!(b.call("LOCK.ACQUIRE k uuid:1 PX 40000"), "2");
        assert_eq!(script(b"uuid:1"), "nil");
        assert_eq!(b.call("LOCK.RELEASE k uuid:1"), "2");
        assert_eq!(b.call("HGETALL k"), "[uuid:1, 2]");
        assert_eq!(b.call("LOCK.RELEASE k uuid:1 ALL"), "0");
    });
}
