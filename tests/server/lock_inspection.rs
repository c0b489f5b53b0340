// SPDX-License-Identifier: MIT

//! Holders, the age of their holds and their connections: `LOCK.INFO`, `LOCK.BLOCKERS`, `LOCK.SCAN` (invariant 10).

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Value;

use crate::support::client::{fields, show};
use crate::support::{in_world, until, without_addresses, Client, Flavor, Server, Session};

crate::on_every_server!(
    bound_holds_show_their_connection,
    connections_have_addresses_and_names,
    events_track_every_hold,
    a_hold_begins_with_its_grant,
    uncertain_details_are_not_shown,
    blockers_show_their_connections,
    scan_finds_every_held_lock,
    scan_follows_the_servers_conventions,
    scan_examines_at_most_a_thousand_keys,
    a_stuck_lock_leads_to_its_process,
);

/// Details of a holder in `LOCK.INFO` besides its lease.
#[derive(Debug, PartialEq)]
struct Details {
    since: Option<i64>,
    client: Option<i64>,
    watchdog: Option<i64>,
    ephemeral: Option<i64>,
}

const UNKNOWN: Details = Details { since: None, client: None, watchdog: None, ephemeral: None };

fn details(client: &mut Client, key: &str, owner: &str) -> Details {
    let reply = client.call_value(&format!("LOCK.INFO {key}"));
    let info = fields(&reply);
    let Value::Array(holders) = info["holders"] else { panic!("no holders: {reply:?}") };
    let holder = holders.iter().map(fields).find(|holder| show(holder["owner"]) == owner);
    let holder = holder.unwrap_or_else(|| panic!("{owner} does not hold {key}: {reply:?}"));
    let number = |field: &str| match holder[field] {
        Value::Int(number) => Some(*number),
        Value::Nil => None,
        other => panic!("{field} is {other:?}"),
    };
    Details {
        since: number("since"),
        client: number("client"),
        watchdog: number("watchdog"),
        ephemeral: number("ephemeral"),
    }
}

/// Asserts the details of a hold that began after `start`, and at least a given number of milliseconds ago.
fn assert_details(
    client: &mut Client,
    owner: &str,
    on: &Client,
    bound: (i64, i64),
    (at_least, start): (u128, Instant),
) {
    let details = details(client, "k", owner);
    let held = u128::try_from(details.since.expect("the start of the hold is unknown")).unwrap();
    let most = start.elapsed().as_millis();
    assert!((at_least..=most).contains(&held), "{held} is not in {at_least} to {most}");
    let bound = (Some(bound.0), Some(bound.1));
    assert_eq!((details.client, (details.watchdog, details.ephemeral)), (Some(on.id), bound));
}

/// The address and the name of a holder, a waiter or a blocker, besides the id of its connection.
fn peer(entry: &Value) -> [String; 3] {
    let entry = fields(entry);
    ["client", "address", "name"].map(|field| show(entry[field]))
}

fn peers(client: &mut Client, call: &str) -> Vec<[String; 3]> {
    let reply = client.call_value(call);
    let entries = if call.starts_with("LOCK.INFO") { fields(&reply)["holders"].clone() } else { reply };
    let Value::Array(entries) = entries else { panic!("no array: {entries:?}") };
    entries.iter().map(peer).collect()
}

fn connections_have_addresses_and_names(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let shown = |a: &mut Client, id: i64| -> [String; 3] {
            let line = a.call(&format!("CLIENT LIST ID {id}"));
            let of = |field: &str| {
                let text = line.split(field).nth(1).unwrap().split(' ').next().unwrap();
                if text.is_empty() { "nil" } else { text }.to_owned()
            };
            [id.to_string(), of(" addr="), of(" name=")]
        };
        let mut holder = world.client();
        holder.call("CLIENT SETNAME checkout-7");
        holder.call("LOCK.ACQUIRE k alice PX 100000 WATCHDOG");
        let waiter = world.waiting("LOCK.ACQUIRE k bob BLOCK 0");
        let mut session = Session::open(world, 10_000, 3_000);
        session.reader.call("CLIENT SETNAME session-1");
        session.queue("k", "carol", "");
        let [of_holder, of_waiter, of_session] =
            [holder.id, waiter.id, session.reader.id].map(|id| shown(&mut a, id));
        assert_eq!(of_holder[2], "checkout-7");
        assert_eq!(of_waiter[2], "nil");
        assert_eq!(peers(&mut a, "LOCK.INFO k"), std::slice::from_ref(&of_holder));
        assert_eq!(peers(&mut a, "LOCK.WAITERS k"), [of_waiter.clone(), of_session.clone()]);
        assert_eq!(peers(&mut a, "LOCK.BLOCKERS carol"), [of_holder, of_waiter]);
        // A hold of a session has the session's reader.
        assert_eq!(session.acquire("l", "carol", "").1, "1");
        assert_eq!(peers(&mut a, "LOCK.INFO l"), [of_session]);
        // A closed connection has none of these.
        holder.close();
        until("the holder is gone", || peers(&mut a, "LOCK.INFO k")[0] == ["nil"; 3].map(str::to_owned));
    });
}

fn bound_holds_show_their_connection(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        for (option, bound) in
            [("WATCHDOG", (1, 0)), ("EPHEMERAL", (0, 1)), ("WATCHDOG EPHEMERAL ID 1 FENCE", (1, 1))]
        {
            let start = Instant::now();
            a.call(&format!("LOCK.ACQUIRE k a PX 100000 {option}"));
            sleep(Duration::from_millis(20));
            assert_details(&mut b, "a", &a, bound, (20, start));
            // A re-entry starts no new hold.
            a.call("LOCK.ACQUIRE k a");
            assert_details(&mut b, "a", &a, bound, (20, start));
            assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        }
        let start = Instant::now();
        // The details of an unbound hold are unknown, even beside a bound one.
        a.call("LOCK.ACQUIRE k a SHARED PX 100000");
        b.call("LOCK.ACQUIRE k b SHARED PX 100000 WATCHDOG");
        assert_eq!(details(&mut a, "k", "a"), UNKNOWN);
        assert_details(&mut a, "b", &b, (1, 0), (0, start));
        // If a hold was bound after its grant, its start is unknown.
        a.call("LOCK.RENEW k a WATCHDOG");
        let bound = Details { since: None, client: Some(a.id), watchdog: Some(1), ephemeral: Some(0) };
        assert_eq!(details(&mut b, "k", "a"), bound);
        // Another connection takes over the binding.
        let mut c = world.client();
        c.call("LOCK.RENEW k a PX 100000 WATCHDOG EPHEMERAL");
        assert_eq!(details(&mut b, "k", "a").client, Some(c.id));
        c.call("LOCK.RELEASE k a");
        // The hold has reached the maximum age of its watchdog.
        b.call("LOCK.RENEW k b PX 100000 WATCHDOG MAX 1");
        assert_eq!(details(&mut a, "k", "b").watchdog, Some(0));
        // The connection of the watchdog has closed.
        b.close();
        until("the details are unknown", || details(&mut a, "k", "b") == UNKNOWN);
    });
}

fn events_track_every_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a PX 100000");
        b.call("CONFIG SET lock.events yes");
        assert_eq!(details(&mut b, "k", "a"), UNKNOWN, "the earlier grant was not tracked");
        a.call("LOCK.RENEW k a PX 100000");
        let renewed = Details { since: None, client: Some(a.id), watchdog: Some(0), ephemeral: Some(0) };
        assert_eq!(details(&mut b, "k", "a"), renewed);
        a.call("LOCK.RELEASE k a");
        let start = Instant::now();
        a.call("LOCK.ACQUIRE k a PX 100000");
        assert_details(&mut b, "a", &a, (0, 0), (0, start));
        // If the owner uses several connections, the latest one is shown.
        let mut again = world.client();
        again.call("LOCK.ACQUIRE k a WATCHDOG");
        assert_details(&mut b, "a", &again, (1, 0), (0, start));
        again.close();
        until("the watchdog has ended", || details(&mut b, "k", "a").watchdog == Some(0));
        assert!(details(&mut b, "k", "a").since.is_some());
        // A script has no connection.
        a.call("LOCK.RELEASE k a ALL");
        assert_eq!(a.call("EVAL return(redis.call('LOCK.ACQUIRE','k','s')) 0"), "1");
        assert_eq!(details(&mut b, "k", "s").client, None);
        // The details of a foreign hold are unknown.
        a.call("DEL k");
        a.send_at_once(&["MULTI", "HSET k redisson 1", "PEXPIRE k 100000", "EXEC"]);
        (0..4).for_each(|_| drop(a.recv()));
        assert_eq!(details(&mut b, "k", "redisson"), UNKNOWN);
        a.call("LOCK.BREAK k");
        // Each reader has its own connection.
        let mut readers: Vec<Client> = (0..20).map(|_| world.client()).collect();
        for (at, reader) in readers.iter_mut().enumerate() {
            reader.call(&format!("LOCK.ACQUIRE k r{at} SHARED PX 100000"));
        }
        for (at, reader) in readers.iter().enumerate() {
            assert_details(&mut b, &format!("r{at}"), reader, (0, 0), (0, start));
        }
        a.call("LOCK.BREAK k");
        b.call("CONFIG SET lock.events no");
        until("no lock is tracked", || b.info("lock", "lock_table_locks") == "0");
    });
}

/// The age does not include the wait.
fn a_hold_begins_with_its_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for option in ["WATCHDOG", ""] {
            if option.is_empty() {
                a.call("CONFIG SET lock.events yes");
            }
            a.call("LOCK.ACQUIRE k a PX 100000");
            let mut b = world.waiting(&format!("LOCK.ACQUIRE k b BLOCK 0 PX 100000 {option}"));
            sleep(Duration::from_millis(100));
            let granted = Instant::now();
            a.call("LOCK.RELEASE k a");
            assert_eq!(b.recv(), "1");
            // A binding starts when the server knows that the grant has been delivered.
            until("the hold is known", || details(&mut a, "k", "b").client.is_some());
            let is_bound = i64::from(!option.is_empty());
            assert_details(&mut a, "b", &b, (is_bound, 0), (0, granted));
            b.call("LOCK.RELEASE k b");
        }
        a.call("CONFIG SET lock.events no");
    });
}

fn uncertain_details_are_not_shown(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a PX 100000 WATCHDOG");
        let follower = Server::with_module(flavor, &[]);
        follower.follow(world);
        assert_eq!(details(&mut follower.client(), "k", "a"), UNKNOWN);
        // A foreign write replaces a bound hold by one with the same owner name.
        a.send_at_once(&["MULTI", "DEL k", "HSET k a 1", "PEXPIRE k 5000", "EXEC"]);
        (0..5).for_each(|_| drop(a.recv()));
        until("the server has noticed the new hold", || details(&mut b, "k", "a") == UNKNOWN);
        a.call("LOCK.BREAK k");
        // A foreign write replaces a tracked hold by one with the same owner name.
        a.call("CONFIG SET lock.events yes");
        a.call("LOCK.ACQUIRE k a PX 100000");
        assert_eq!(details(&mut b, "k", "a").client, Some(a.id));
        a.send_at_once(&["MULTI", "DEL k", "HSET k a 1", "PEXPIRE k 5000", "EXEC"]);
        (0..5).for_each(|_| drop(a.recv()));
        until("the server has checked the hold", || details(&mut b, "k", "a").watchdog.is_some());
        let noted = details(&mut b, "k", "a");
        assert_eq!((noted.since, noted.client), (None, None));
        a.call("LOCK.BREAK k");
        a.call("CONFIG SET lock.events no");
    });
}

fn blockers_show_their_connections(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k1 alice PX 100000 WATCHDOG");
        a.call("LOCK.ACQUIRE k2 nobody PX 100000");
        let bob = world.waiting("LOCK.ACQUIRE k1 bob BLOCK 0");
        let _carol = world.waiting("LOCK.ACQUIRE k1 carol BLOCK 0");
        let _dora = world.waiting("LOCK.ACQUIRE k2 dora BLOCK 0");
        let mut b = world.client();
        assert_eq!(
            without_addresses(&b.call("LOCK.BLOCKERS carol")),
            format!("[[owner, alice, key, k1, client, {}], [owner, bob, key, k1, client, {}]]", a.id, bob.id)
        );
        assert_eq!(
            without_addresses(&b.call("LOCK.BLOCKERS dora")),
            "[[owner, nobody, key, k2, client, nil]]"
        );
        b.call("HELLO 3");
        assert_eq!(
            without_addresses(&b.call("LOCK.BLOCKERS bob")),
            format!("[{{owner: alice, key: k1, client: {}}}]", a.id)
        );
    });
}

/// Every lock that a scan finds, and the number of calls.
fn scan(client: &mut Client, options: &str) -> (BTreeMap<String, String>, usize) {
    let (mut found, mut cursor, mut calls) = (BTreeMap::new(), "0".to_owned(), 0);
    loop {
        calls += 1;
        let reply = client.call_value(&format!("LOCK.SCAN {cursor} {options}"));
        let Value::Array(parts) = &reply else { panic!("no array: {reply:?}") };
        let Value::Array(locks) = &parts[1] else { panic!("no locks: {reply:?}") };
        for lock in locks {
            let lock = fields(lock);
            let ttl: i64 = show(lock["ttl"]).parse().unwrap();
            assert!((1..=100_000).contains(&ttl), "{ttl}");
            let [mode, holders, waiters] = ["mode", "holders", "waiters"].map(|field| show(lock[field]));
            found.insert(show(lock["key"]), format!("{mode} {holders} {waiters}"));
        }
        cursor = show(&parts[0]);
        if cursor == "0" {
            return (found, calls);
        }
    }
}

fn scan_finds_every_held_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut held = BTreeMap::new();
        for at in 0..300 {
            a.call(&format!("LOCK.ACQUIRE lock:{at} a PX 100000"));
            held.insert(format!("lock:{at}"), "exclusive 1 0".to_owned());
        }
        a.call("LOCK.ACQUIRE shared a SHARED PX 100000");
        a.call("LOCK.ACQUIRE shared b SHARED PX 50000");
        held.insert("shared".to_owned(), "shared 2 0".to_owned());
        for reader in 0..1500 {
            a.call(&format!("LOCK.ACQUIRE crowd r{reader} SHARED PX 100000"));
        }
        held.insert("crowd".to_owned(), "shared 1500 0".to_owned());
        a.call("LOCK.ACQUIRE fenced a FENCE ID 1 PX 100000");
        held.insert("fenced".to_owned(), "exclusive 1 0".to_owned());
        let _waiter = world.waiting("LOCK.ACQUIRE lock:7 b BLOCK 0");
        held.insert("lock:7".to_owned(), "exclusive 1 1".to_owned());
        // A scan skips keys that are not locks, and expired locks.
        for other in
            ["SET string x", "RPUSH list x", "HSET forever a 1", "HSET user name x", "SET lock:x y PX 1000"]
        {
            a.call(other);
        }
        a.call("PEXPIRE user 100000");
        a.call("LOCK.ACQUIRE gone a PX 1");
        until("the lease has expired", || a.call("LOCK.INFO gone") == "nil");
        let (found, calls) = scan(&mut a, "");
        assert_eq!(found, held);
        assert!(calls > 10, "about 10 keys per call, not all in {calls} calls");
        let (found, calls) = scan(&mut a, "COUNT 100000");
        assert_eq!((found, calls), (held.clone(), 1));
        let few: BTreeSet<String> = scan(&mut a, "COUNT 50 MATCH lock:1?").0.into_keys().collect();
        assert_eq!(few, (10..20).map(|at| format!("lock:{at}")).collect());
        // A scan of another database finds none of these locks. A scan of a replica finds all of them.
        let mut b = world.client();
        b.call("SELECT 3");
        assert!(scan(&mut b, "").0.is_empty());
        let follower = Server::with_module(flavor, &[]);
        follower.follow(world);
        held.insert("lock:7".to_owned(), "exclusive 1 0".to_owned());
        assert_eq!(scan(&mut follower.client(), "COUNT 1000").0, held, "a replica does not know the waiters");
    });
}

/// A greater `COUNT` would keep other clients waiting.
fn scan_examines_at_most_a_thousand_keys(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for at in 0..5_000 {
            a.send(&format!("SET key:{at} value"));
        }
        (0..5_000).for_each(|_| assert_eq!(a.recv(), "OK"));
        a.call("LOCK.ACQUIRE k a PX 100000");
        let (found, calls) = scan(&mut a, "COUNT 1000000000");
        assert_eq!(found.into_keys().collect::<Vec<_>>(), ["k"]);
        assert!(calls >= 4, "{calls}");
    });
}

fn scan_follows_the_servers_conventions(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        let one = |ttl: &str| format!("[0, [[key, k, mode, exclusive, holders, 1, ttl, {ttl}, waiters, 0]]]");
        let mut is_found = |call: &str| {
            let reply = a.call(call);
            let ttl = reply.split(", ").nth(8).unwrap_or_default().to_owned();
            assert!(reply.ends_with(&one(&ttl)) || reply.contains(&one(&ttl)), "{call}: {reply}");
        };
        is_found("LOCK.SCAN 0 match * count 5");
        is_found("EVAL return(redis.call('LOCK.SCAN',0)) 0");
        a.call("HELLO 3");
        assert!(a.call("LOCK.SCAN 0").contains("{key: k, mode: exclusive, holders: 1, ttl: "));
        for (wrong, error) in [
            ("LOCK.SCAN x", "ERR invalid cursor"),
            ("LOCK.SCAN", "ERR wrong number of arguments for 'lock.scan' command"),
            (
                "LOCK.SCAN 0 COUNT 0",
                "ERR COUNT is out of range in 'lock.scan' command; use 1 to 9007199254740991",
            ),
            ("LOCK.SCAN 0 MATCH", "ERR MATCH needs a value in 'lock.scan' command"),
            ("LOCK.SCAN 0 TYPE hash", "ERR syntax error, unknown option 'TYPE' in 'lock.scan' command"),
        ] {
            assert_eq!(a.call(wrong), error);
        }
    });
}

/// Runs the transcript in `docs/operations.md`.
fn a_stuck_lock_leads_to_its_process(flavor: Flavor) {
    let page = include_str!("../../docs/operations.md");
    let (_, transcript) = page.split_once("<!-- session: stuck -->\n```\n").unwrap();
    let (transcript, _) = transcript.split_once("```").unwrap();
    in_world(flavor, |world| {
        let (mut a, mut operator) = (world.client(), world.client());
        a.call("CLIENT SETNAME checkout-7");
        a.call("LOCK.ACQUIRE stock web-3:4711:c1 PX 100000 WATCHDOG");
        let mut b = world.client();
        b.call("LOCK.ACQUIRE orders web-5:1203:9f PX 100000");
        b.send("LOCK.ACQUIRE stock web-5:1203:9f BLOCK 0");
        world.until_blocked(&b);
        let _c = world.waiting("LOCK.ACQUIRE orders web-8:77:e0 BLOCK 0");
        let typed: Vec<&str> =
            transcript.lines().filter_map(|line| line.strip_prefix("127.0.0.1:6379> ")).collect();
        assert_eq!(typed.len(), 3, "three commands");
        let replies: Vec<String> = typed.iter().map(|line| operator.call(line)).collect();
        assert!(replies[0].contains("key, orders"), "{}", replies[0]);
        assert!(replies[1].contains("owner, web-8:77:e0"), "{}", replies[1]);
        let last = format!("[owner, web-3:4711:c1, key, stock, client, {}, address, 127.0.0.1:", a.id);
        let named = replies[2].contains(&last) && replies[2].ends_with("name, checkout-7]]");
        assert!(named, "{}", replies[2]);
        // The page shows the same owners as this test.
        for shown in ["web-8:77:e0", "web-3:4711:c1", "checkout-7"] {
            assert!(transcript.contains(shown), "{shown}");
        }
    });
}
