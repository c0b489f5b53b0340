// SPDX-License-Identifier: MIT

//! Many readers of one lock, which the server caches between calls. The cache must never change a reply.

use std::time::Duration;

use redis::Value;

use crate::support::{in_world, until, Client, Flavor, Server};

crate::on_every_server!(
    the_cache_ends_with_its_key,
    foreign_writes_never_reveal_the_cache,
    foreign_field_changes_apply_at_once,
    expired_leases_are_removed_in_batches,
    a_rewritten_expired_field_is_not_removed,
    the_last_of_many_readers_can_upgrade,
    closed_connections_release_many_readers,
    replication_size_ignores_the_reader_count,
    a_field_ttl_bypasses_the_cache,
);

/// Enough readers to be cached.
const MANY: usize = 20;

fn cached_readers(client: &mut Client) -> usize {
    client.info("lock", "lock_table_readers").parse().unwrap()
}

/// Adds readers `r0`, `r1` and so on, with leases that outlive the test. The last lease is the longest.
fn fill(client: &mut Client, key: &str, readers: usize) {
    for n in 0..readers {
        assert_eq!(client.call(&format!("LOCK.ACQUIRE {key} r{n} SHARED PX {}", 500_000 + n)), "1");
    }
}

fn the_cache_ends_with_its_key(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for gone in [
            "DEL k",
            "UNLINK k",
            "RENAME k other",
            "MOVE k 1",
            "PEXPIRE k 1",
            "SET k x",
            "FLUSHDB",
            "FLUSHALL",
            "SWAPDB 0 1",
            "LOCK.BREAK k",
        ] {
            fill(&mut a, "k", MANY);
            assert_eq!(a.call("LOCK.RENEW k r0 PX 500000"), "1");
            assert_eq!(cached_readers(&mut a), MANY, "before {gone}");
            a.call(gone);
            if gone.starts_with("SET ") {
                assert!(a.call("LOCK.ACQUIRE k r0 SHARED").starts_with("WRONGTYPE "));
            }
            until("the cache is empty", || cached_readers(&mut a) == 0);
            a.call("FLUSHALL");
        }
        // Releases each reader; the last ones are too few to be cached.
        fill(&mut a, "k", MANY);
        for n in 0..MANY {
            assert_eq!(a.call(&format!("LOCK.RELEASE k r{n}")), "0");
        }
        assert_eq!(cached_readers(&mut a), 0);
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

/// A deterministic pseudo-random sequence.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The reply without remaining times, and with sorted holders.
fn timeless(reply: &str) -> String {
    let words: Vec<&str> = reply.split(", ").collect();
    let shown = (0..words.len()).map(|at| if at > 0 && words[at - 1] == "ttl" { "_" } else { words[at] });
    let shown = shown
        .map(|word| word.trim_matches(['[', ']']))
        .collect::<Vec<_>>()
        .join(", ")
        .replace("waiters, ", "owner, waiters ");
    let mut parts: Vec<&str> = shown.split("owner, ").map(|part| part.trim_end_matches(", ")).collect();
    parts.sort_unstable();
    parts.join("; ")
}

/// Runs one history on two servers, one of which drops its cache before each call.
fn foreign_writes_never_reveal_the_cache(flavor: Flavor) {
    in_world(flavor, |world| {
        let uncached = Server::with_module(flavor, &[]);
        let (mut ours, mut theirs) = (world.client(), uncached.client());
        let mut random = PseudoRandom(7);
        let mut uses = 0;
        for step in 0..1500 {
            let (owner, other) = (format!("r{}", random.below(16)), format!("r{}", random.below(16)));
            let end: i64 = 4_000_000_000_000 + i64::try_from(random.below(4)).unwrap() * 1_000;
            let value = format!("{}:{end}", 1 + random.below(2));
            let foreign: Vec<String> = match random.below(40) {
                0 => vec![format!("HSET k #shared:{other} {value}")],
                1 => vec![format!("HDEL k #shared:{other}")],
                2 => vec![format!("HDEL k #shared:{other}"), format!("HSET k #shared:{owner} {value}")],
                // An expired lease.
                3 => vec![format!("HSET k #shared:{other} 1:1000")],
                4 => vec!["PEXPIREAT k 4000000001000".to_owned()],
                5 => vec!["RENAME k k2".to_owned(), "RENAME k2 k".to_owned()],
                6 => vec!["COPY k k2 REPLACE".to_owned(), "DEL k".to_owned(), "RENAME k2 k".to_owned()],
                7 => vec![
                    "MULTI".to_owned(),
                    format!("HDEL k #shared:{other}"),
                    format!("HSET k #shared:{owner} {value}"),
                    "EXEC".to_owned(),
                ],
                8 if step % 5 == 0 => {
                    vec![
                        "DEL k".to_owned(),
                        format!("HSET k #shared:{other} {value}"),
                        format!("PEXPIREAT k {end}"),
                    ]
                }
                9 if step % 9 == 0 => vec!["DEL k".to_owned()],
                _ => Vec::new(),
            };
            for command in &foreign {
                ours.call(command);
                theirs.call(command);
            }
            // All leases end far in the future, so that the clock does not matter.
            let lease = format!("PX {}", 2_000_000_000_000_u64 + random.below(3) * 1_000_000);
            let call = match random.below(20) {
                0..10 => format!("LOCK.ACQUIRE k {owner} SHARED {lease}"),
                10..13 => format!("LOCK.RELEASE k {owner}"),
                13 => format!("LOCK.ACQUIRE k {owner} {lease}"),
                14 => format!("LOCK.ACQUIRE k new {lease}"),
                15 => format!("LOCK.RELEASE k {owner} ALL"),
                16..18 => format!("LOCK.RENEW k {owner} {lease}"),
                18 if step % 20 == 0 => "LOCK.BREAK k".to_owned(),
                _ => "LOCK.INFO k".to_owned(),
            };
            uses += usize::from(cached_readers(&mut ours) > 0);
            for _ in 0..2 {
                theirs.call("SWAPDB 0 1");
            }
            assert_eq!(cached_readers(&mut theirs), 0);
            let replies = [ours.call(&call), theirs.call(&call)].map(|reply| timeless(&reply));
            assert_eq!(replies[0], replies[1], "step {step}: {call} after {foreign:?}");
        }
        assert!(uses > 500, "only {uses} calls met cached readers");
        ours.call("DEL k");
    });
}

fn foreign_field_changes_apply_at_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        fill(&mut a, "k", MANY);
        a.call("HDEL k #shared:r3");
        assert!(a.call("LOCK.RELEASE k r3").starts_with("NOTOWNER "));
        a.call("HSET k #shared:new 2:4000000000000");
        assert_eq!(a.call("LOCK.RELEASE k new"), "1");
        // One reader leaves and another arrives.
        a.send_at_once(&["MULTI", "HDEL k #shared:r4", "HSET k #shared:r3 1:4000000000000", "EXEC"]);
        (0..4).for_each(|_| drop(a.recv()));
        assert!(a.call("LOCK.RENEW k r4").starts_with("NOTOWNER "));
        assert_eq!(a.call("LOCK.RENEW k r3 PX 500000"), "1");
        // Restored from a dump.
        let Value::BulkString(dump) = a.call_value("DUMP k") else { panic!("no dump") };
        a.call("LOCK.RELEASE k r5");
        let ttl = a.call("PTTL k");
        assert_eq!(a.call_args(&[b"RESTORE", b"k", ttl.as_bytes(), &dump, b"REPLACE"]), "OK");
        assert_eq!(a.call("LOCK.RENEW k r5 PX 500000"), "1");
        // All readers but one leave without a call, and the remaining one upgrades.
        for n in (0..MANY).filter(|n| *n != 7) {
            a.call(&format!("HDEL k #shared:r{n}"));
        }
        a.call("HDEL k #shared:new");
        assert_eq!(a.call("LOCK.ACQUIRE k r7"), "2");
        // A foreign exclusive hold that replaces the reader with the longest lease still excludes others.
        a.call("DEL k");
        fill(&mut a, "k", MANY);
        a.call(&format!("HDEL k #shared:r{}", MANY - 1));
        a.call("HSET k x 1");
        let reply = a.call("LOCK.ACQUIRE k y SHARED");
        assert!(reply == "nil" || reply.starts_with("WRONGTYPE "), "{reply}");
    });
}

fn expired_leases_are_removed_in_batches(flavor: Flavor) {
    const READERS: usize = 600;
    in_world(flavor, |world| {
        let mut a = world.client();
        let short: Vec<String> =
            (0..READERS).map(|n| format!("LOCK.ACQUIRE k s{n} SHARED PX 1500")).collect();
        for some in short.chunks(100) {
            a.send_at_once(&some.iter().map(String::as_str).collect::<Vec<_>>());
            some.iter().for_each(|_| assert_eq!(a.recv(), "1"));
        }
        fill(&mut a, "k", 12);
        let all = READERS + 12;
        assert_eq!(a.call("HLEN k"), all.to_string());
        until("the short leases have expired", || a.call("LOCK.INFO k").matches("owner").count() == 12);
        assert_eq!(a.call("HLEN k"), all.to_string());
        // Expired fields do not count as holds.
        assert!(a.call("LOCK.RELEASE k s0").starts_with("NOTOWNER "));
        assert_eq!(a.call("HLEN k"), (all - 256).to_string());
        assert_eq!(a.call(&format!("LOCK.ACQUIRE k s{} SHARED PX 500000", READERS - 1)), "1");
        assert_eq!(a.call("HLEN k"), (all - 512).to_string());
        assert_eq!(a.call("LOCK.RENEW k r0 PX 500000"), "1");
        assert_eq!(a.call("HLEN k"), "13");
        // Waiters need not wait for the removal.
        assert_eq!(a.call("LOCK.ACQUIRE k2 a SHARED PX 500000"), "1");
        for some in short.chunks(100) {
            let some: Vec<String> =
                some.iter().map(|call| call.replace(" k ", " k2 ").replace("1500", "800")).collect();
            a.send_at_once(&some.iter().map(String::as_str).collect::<Vec<_>>());
            some.iter().for_each(|_| assert_eq!(a.recv(), "1"));
        }
        let mut up = world.waiting("LOCK.ACQUIRE k2 a BLOCK 0 PX 500000");
        assert_eq!(up.recv(), "2");
        // The last removal deletes all expired fields with the key.
        assert_eq!(a.call("HGETALL k2").matches("s").count(), 1);
    });
}

fn a_rewritten_expired_field_is_not_removed(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        fill(&mut a, "k", MANY);
        a.call("LOCK.ACQUIRE k s SHARED PX 50");
        assert_eq!(cached_readers(&mut a), MANY + 1);
        std::thread::sleep(Duration::from_millis(60));
        a.call("HSET k #shared:s 1:4000000000000");
        assert_eq!(a.call("LOCK.RENEW k r0 PX 500000"), "1");
        assert_eq!(a.call("HLEN k"), (MANY + 1).to_string());
        assert_eq!(a.call("LOCK.RELEASE k s"), "0");
    });
}

fn the_last_of_many_readers_can_upgrade(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        fill(&mut a, "k", MANY);
        let mut w = world.waiting("LOCK.ACQUIRE k w BLOCK 0");
        let mut up = world.waiting("LOCK.ACQUIRE k r0 BLOCK 0 FENCE");
        for n in 1..MANY {
            assert!(up.has_nothing(), "before r{n} is released");
            assert_eq!(a.call(&format!("LOCK.RELEASE k r{n}")), "0");
        }
        assert!(up.recv().contains("holds, 2"));
        assert!(w.has_nothing());
        assert_eq!(a.call("LOCK.RELEASE k r0 ALL"), "0");
        assert_eq!(w.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[w, 1]");
        // A break ends all holds, and a reader among the waiters gets the lock next.
        a.call("DEL k");
        fill(&mut a, "k", MANY);
        let mut up = world.waiting("LOCK.ACQUIRE k r0 BLOCK 0");
        assert_eq!(a.call("LOCK.BREAK k"), MANY.to_string());
        assert_eq!(up.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[r0, 1]");
    });
}

fn closed_connections_release_many_readers(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut reader = world.client();
        for n in 0..MANY {
            assert_eq!(reader.call(&format!("LOCK.ACQUIRE k e{n} SHARED EPHEMERAL PX 500000")), "1");
        }
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED PX 500000"), "1");
        assert_eq!(cached_readers(&mut a), MANY + 1);
        let mut up = world.waiting("LOCK.ACQUIRE k a BLOCK 0");
        let mut w = world.waiting("LOCK.ACQUIRE k w BLOCK 0");
        reader.close();
        assert_eq!(up.recv(), "2");
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(w.recv(), "1");
    });
}

fn replication_size_ignores_the_reader_count(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut sent = |readers: usize| {
            fill(&mut a, "k", readers);
            a.call("LOCK.ACQUIRE k new SHARED PX 100000");
            a.call("LOCK.RELEASE k new");
            // The server's own traffic may add to a measurement.
            let minimum = (0..5).map(|_| {
                let offset =
                    |a: &mut Client| -> i64 { a.info("replication", "master_repl_offset").parse().unwrap() };
                let before = offset(&mut a);
                assert_eq!(a.call("LOCK.ACQUIRE k new SHARED PX 100000"), "1");
                assert_eq!(a.call("LOCK.RELEASE k new"), "0");
                offset(&mut a) - before
            });
            let minimum = minimum.min().unwrap();
            a.call("DEL k");
            minimum
        };
        let few = sent(3);
        assert_eq!([sent(MANY), sent(300)], [few, few]);
    });
}

/// On servers that support field TTLs.
fn a_field_ttl_bypasses_the_cache(flavor: Flavor) {
    if !matches!(flavor, Flavor::Redis8 | Flavor::Redis8_6 | Flavor::Valkey9) {
        return;
    }
    in_world(flavor, |world| {
        let mut a = world.client();
        fill(&mut a, "k", MANY);
        assert_eq!(cached_readers(&mut a), MANY);
        assert_eq!(a.call("HPEXPIRE k 100 FIELDS 1 #shared:r3"), "[1]");
        assert_eq!(a.call("LOCK.RENEW k r0 PX 500000"), "1");
        assert_eq!(cached_readers(&mut a), 0);
        until("the reader's field has expired", || a.call("HEXISTS k #shared:r3") == "0");
        assert!(a.call("LOCK.RELEASE k r3").starts_with("NOTOWNER "));
    });
}
