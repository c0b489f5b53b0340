// SPDX-License-Identifier: MIT

//! Many readers of one lock, whom the server remembers between two calls: nobody can tell that it does.

use std::time::Duration;

use redis::Value;

use crate::support::{in_world, until, Client, Flavor, Server};

crate::on_every_server!(
    what_is_remembered_is_forgotten_with_its_key,
    whatever_strangers_write_the_replies_are_those_of_a_server_that_remembers_nothing,
    a_field_that_a_stranger_adds_or_takes_away_counts_at_once,
    leases_that_are_over_are_removed_in_portions,
    what_a_lease_leaves_behind_is_not_removed_if_somebody_has_set_it_anew,
    the_last_of_many_readers_can_upgrade,
    many_readers_whose_connections_close_make_way,
    what_is_sent_does_not_depend_on_how_many_read,
    a_field_with_a_ttl_of_its_own_is_no_secret,
);

/// As many as are remembered for certain.
const MANY: usize = 20;

fn remembered(client: &mut Client) -> usize {
    client.info("lock", "lock_table_readers").parse().unwrap()
}

/// Readers `r0`, `r1` and so on, with leases that outlive the test, the last one's the longest.
fn fill(client: &mut Client, key: &str, readers: usize) {
    for n in 0..readers {
        assert_eq!(client.call(&format!("LOCK.ACQUIRE {key} r{n} SHARED PX {}", 500_000 + n)), "1");
    }
}

fn what_is_remembered_is_forgotten_with_its_key(flavor: Flavor) {
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
            assert_eq!(remembered(&mut a), MANY, "before {gone}");
            a.call(gone);
            if gone.starts_with("SET ") {
                assert!(a.call("LOCK.ACQUIRE k r0 SHARED").starts_with("WRONGTYPE "));
            }
            until("it is forgotten", || remembered(&mut a) == 0);
            a.call("FLUSHALL");
        }
        // Each reader is released: the last ones are too few to be remembered.
        fill(&mut a, "k", MANY);
        for n in 0..MANY {
            assert_eq!(a.call(&format!("LOCK.RELEASE k r{n}")), "0");
        }
        assert_eq!(remembered(&mut a), 0);
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

/// A fixed sequence that looks like chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Without the times that are left, which depend on when it was asked, and with the holders in order.
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

/// One history runs on two servers, of which one is made to forget all before each call.
fn whatever_strangers_write_the_replies_are_those_of_a_server_that_remembers_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let forgetful = Server::with_module(flavor, &[]);
        let (mut ours, mut theirs) = (world.client(), forgetful.client());
        let mut chance = Chance(7);
        let mut uses = 0;
        for step in 0..1500 {
            let (owner, other) = (format!("r{}", chance.below(16)), format!("r{}", chance.below(16)));
            let end: i64 = 4_000_000_000_000 + i64::try_from(chance.below(4)).unwrap() * 1_000;
            let value = format!("{}:{end}", 1 + chance.below(2));
            let foreign: Vec<String> = match chance.below(40) {
                0 => vec![format!("HSET k #shared:{other} {value}")],
                1 => vec![format!("HDEL k #shared:{other}")],
                2 => vec![format!("HDEL k #shared:{other}"), format!("HSET k #shared:{owner} {value}")],
                // Its lease is over then.
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
            // All leases are far away, so that the clock does not matter.
            let lease = format!("PX {}", 2_000_000_000_000_u64 + chance.below(3) * 1_000_000);
            let call = match chance.below(20) {
                0..10 => format!("LOCK.ACQUIRE k {owner} SHARED {lease}"),
                10..13 => format!("LOCK.RELEASE k {owner}"),
                13 => format!("LOCK.ACQUIRE k {owner} {lease}"),
                14 => format!("LOCK.ACQUIRE k new {lease}"),
                15 => format!("LOCK.RELEASE k {owner} ALL"),
                16..18 => format!("LOCK.RENEW k {owner} {lease}"),
                18 if step % 20 == 0 => "LOCK.BREAK k".to_owned(),
                _ => "LOCK.INFO k".to_owned(),
            };
            uses += usize::from(remembered(&mut ours) > 0);
            for _ in 0..2 {
                theirs.call("SWAPDB 0 1");
            }
            assert_eq!(remembered(&mut theirs), 0);
            let replies = [ours.call(&call), theirs.call(&call)].map(|reply| timeless(&reply));
            assert_eq!(replies[0], replies[1], "step {step}: {call} after {foreign:?}");
        }
        assert!(uses > 500, "only {uses} calls met anything that was remembered");
        ours.call("DEL k");
    });
}

fn a_field_that_a_stranger_adds_or_takes_away_counts_at_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        fill(&mut a, "k", MANY);
        a.call("HDEL k #shared:r3");
        assert!(a.call("LOCK.RELEASE k r3").starts_with("NOTOWNER "));
        a.call("HSET k #shared:new 2:4000000000000");
        assert_eq!(a.call("LOCK.RELEASE k new"), "1");
        // One goes, another comes.
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
        // All of them but one go while nobody looks, and that one upgrades.
        for n in (0..MANY).filter(|n| *n != 7) {
            a.call(&format!("HDEL k #shared:r{n}"));
        }
        a.call("HDEL k #shared:new");
        assert_eq!(a.call("LOCK.ACQUIRE k r7"), "2");
        // A reader whom a foreign write has put in the place of the one with the longest lease excludes others all the same.
        a.call("DEL k");
        fill(&mut a, "k", MANY);
        a.call(&format!("HDEL k #shared:r{}", MANY - 1));
        a.call("HSET k x 1");
        let reply = a.call("LOCK.ACQUIRE k y SHARED");
        assert!(reply == "nil" || reply.starts_with("WRONGTYPE "), "{reply}");
    });
}

fn leases_that_are_over_are_removed_in_portions(flavor: Flavor) {
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
        until("their leases are over", || a.call("LOCK.INFO k").matches("owner").count() == 12);
        assert_eq!(a.call("HLEN k"), all.to_string());
        // Those that are left behind do not count.
        assert!(a.call("LOCK.RELEASE k s0").starts_with("NOTOWNER "));
        assert_eq!(a.call("HLEN k"), (all - 256).to_string());
        assert_eq!(a.call(&format!("LOCK.ACQUIRE k s{} SHARED PX 500000", READERS - 1)), "1");
        assert_eq!(a.call("HLEN k"), (all - 512).to_string());
        assert_eq!(a.call("LOCK.RENEW k r0 PX 500000"), "1");
        assert_eq!(a.call("HLEN k"), "13");
        // Waiters do not have to wait for that.
        assert_eq!(a.call("LOCK.ACQUIRE k2 a SHARED PX 500000"), "1");
        for some in short.chunks(100) {
            let some: Vec<String> =
                some.iter().map(|call| call.replace(" k ", " k2 ").replace("1500", "800")).collect();
            a.send_at_once(&some.iter().map(String::as_str).collect::<Vec<_>>());
            some.iter().for_each(|_| assert_eq!(a.recv(), "1"));
        }
        let mut up = world.waiting("LOCK.ACQUIRE k2 a BLOCK 0 PX 500000");
        assert_eq!(up.recv(), "2");
        // All that is over goes at once then, with the key.
        assert_eq!(a.call("HGETALL k2").matches("s").count(), 1);
    });
}

fn what_a_lease_leaves_behind_is_not_removed_if_somebody_has_set_it_anew(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        fill(&mut a, "k", MANY);
        a.call("LOCK.ACQUIRE k s SHARED PX 50");
        assert_eq!(remembered(&mut a), MANY + 1);
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
        // A break ends all, and a reader among them has the lock next.
        a.call("DEL k");
        fill(&mut a, "k", MANY);
        let mut up = world.waiting("LOCK.ACQUIRE k r0 BLOCK 0");
        assert_eq!(a.call("LOCK.BREAK k"), MANY.to_string());
        assert_eq!(up.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[r0, 1]");
    });
}

fn many_readers_whose_connections_close_make_way(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut reader = world.client();
        for n in 0..MANY {
            assert_eq!(reader.call(&format!("LOCK.ACQUIRE k e{n} SHARED EPHEMERAL PX 500000")), "1");
        }
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED PX 500000"), "1");
        assert_eq!(remembered(&mut a), MANY + 1);
        let mut up = world.waiting("LOCK.ACQUIRE k a BLOCK 0");
        let mut w = world.waiting("LOCK.ACQUIRE k w BLOCK 0");
        reader.close();
        assert_eq!(up.recv(), "2");
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(w.recv(), "1");
    });
}

fn what_is_sent_does_not_depend_on_how_many_read(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut sent = |readers: usize| {
            fill(&mut a, "k", readers);
            a.call("LOCK.ACQUIRE k new SHARED PX 100000");
            a.call("LOCK.RELEASE k new");
            // What the server sends by itself may come in between.
            let least = (0..5).map(|_| {
                let offset =
                    |a: &mut Client| -> i64 { a.info("replication", "master_repl_offset").parse().unwrap() };
                let before = offset(&mut a);
                assert_eq!(a.call("LOCK.ACQUIRE k new SHARED PX 100000"), "1");
                assert_eq!(a.call("LOCK.RELEASE k new"), "0");
                offset(&mut a) - before
            });
            let least = least.min().unwrap();
            a.call("DEL k");
            least
        };
        let few = sent(3);
        assert_eq!([sent(MANY), sent(300)], [few, few]);
    });
}

/// On servers that have such TTLs.
fn a_field_with_a_ttl_of_its_own_is_no_secret(flavor: Flavor) {
    if !matches!(flavor, Flavor::Redis8 | Flavor::Redis8_6 | Flavor::Valkey9) {
        return;
    }
    in_world(flavor, |world| {
        let mut a = world.client();
        fill(&mut a, "k", MANY);
        assert_eq!(remembered(&mut a), MANY);
        assert_eq!(a.call("HPEXPIRE k 100 FIELDS 1 #shared:r3"), "[1]");
        assert_eq!(a.call("LOCK.RENEW k r0 PX 500000"), "1");
        assert_eq!(remembered(&mut a), 0);
        until("its field is gone", || a.call("HEXISTS k #shared:r3") == "0");
        assert!(a.call("LOCK.RELEASE k r3").starts_with("NOTOWNER "));
    });
}
