// SPDX-License-Identifier: MIT

//! Counters of `INFO lock` and `LOCK.TOP`. The server's own statistics count no wait as work (invariant 10).

use std::collections::BTreeMap;

use crate::support::{in_world, in_world_with, until, Client, Flavor, Server, World};

crate::on_every_server!(
    each_call_is_counted_once,
    wait_and_hold_times_are_measured,
    gauges_have_maxima,
    top_lists_the_longest_waits,
    waits_do_not_count_as_work,
    replicas_say_that_they_are_replicas,
);

/// All fields of `INFO lock`.
fn fields(client: &mut Client) -> BTreeMap<String, i64> {
    let text = client.call("INFO lock");
    let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    fields
        .map(|(name, value)| {
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
        })
        .collect()
}

/// Fields that never decrease.
const COUNTERS: [&str; 22] = [
    "grants_at_once",
    "waiters_granted",
    "reentries",
    "grants_repeated",
    "refused_busy",
    "waiters_timed_out",
    "cancelled",
    "releases",
    "renewals",
    "watchdog_renewals",
    "breaks",
    "disconnect_releases",
    "tokens",
    "grants_revoked",
    "deadlocks",
    "replicas_missed",
    "waits_refused",
    "leases_run_out",
    "owners_told",
    "guards_passed",
    "guards_refused",
    "internal_errors",
];

/// Counters that have grown since the last check, and by how much.
struct Counters {
    client: Client,
    before: BTreeMap<String, i64>,
}

impl Counters {
    fn new(world: &World) -> Counters {
        let mut client = world.client();
        let before = fields(&mut client);
        Counters { client, before }
    }

    fn grown(&mut self) -> String {
        let now = fields(&mut self.client);
        let grown = COUNTERS.iter().filter_map(|name| {
            let field = format!("lock_{name}");
            let by = now[&field] - self.before[&field];
            (by != 0).then(|| format!("{name} {by}"))
        });
        let grown = grown.collect::<Vec<_>>().join(", ");
        self.before = now;
        grown
    }

    /// Waits until exactly the counters in `wanted` have grown.
    fn have_grown(&mut self, context: &str, wanted: &str) {
        let before = self.before.clone();
        until(&format!("{context}: {wanted}"), || {
            self.before.clone_from(&before);
            self.grown() == wanted
        });
    }
}

fn each_call_is_counted_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut counters) = (world.client(), Counters::new(world));
        let mut call = |call: &str, wanted: &str| {
            a.call(call);
            assert_eq!(counters.grown(), wanted, "{call}");
        };
        call("LOCK.ACQUIRE k a PX 100000", "grants_at_once 1");
        call("LOCK.ACQUIRE k a", "reentries 1");
        call("LOCK.ACQUIRE k b", "refused_busy 1");
        call("LOCK.ACQUIRE k b BLOCK 1", "waiters_timed_out 1");
        call("LOCK.RENEW k a", "renewals 1");
        call("LOCK.RENEW k b", "");
        call("LOCK.RELEASE k a", "releases 1");
        call("LOCK.RELEASE k b", "");
        call("LOCK.GUARD k OWNER a PING", "guards_passed 1");
        call("LOCK.GUARD k OWNER b PING", "guards_refused 1");
        call("LOCK.GUARD k OWNER a EVAL return(1) 0", "guards_passed 1");
        call("LOCK.GUARD k OWNER a LOCK.INFO k", "");
        call("LOCK.BREAK k", "breaks 1");
        call("LOCK.BREAK k", "");
        call("LOCK.ACQUIRE k a FENCE ID 1 PX 100000", "grants_at_once 1, tokens 1");
        call("LOCK.ACQUIRE k a FENCE ID 1 PX 100000", "grants_repeated 1");
        call("LOCK.ACQUIRE k a FENCE", "reentries 1");
        call("LOCK.CANCEL k a ID 1", "cancelled 1");
        call("LOCK.CANCEL k a ID 1", "");
        call("LOCK.RELEASE k a ALL ID 2", "releases 1");
        call("LOCK.RELEASE k a ALL ID 2", "");
        call("LOCK.ACQUIRE k a SHARED PX 100000", "grants_at_once 1");
        call("LOCK.ACQUIRE k b SHARED PX 100000", "grants_at_once 1");
        call("LOCK.ACQUIRE k a PX 1 REPLICAS 9", "replicas_missed 1");
        call("LOCK.BREAK k", "breaks 1");
        call("LOCK.ACQUIRE k", "");
        until("the replica is online", || a.info("replication", "slave0").contains("state=online"));
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 REPLICAS 1 WITHIN 20000"), "1");
        assert_eq!(counters.grown(), "grants_at_once 1");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000 EPHEMERAL");
        a.call("LOCK.RELEASE k a");
        counters.have_grown("handed over", "waiters_granted 1, releases 1");
        b.close();
        counters.have_grown("its connection is gone", "disconnect_releases 1");
        a.call("LOCK.ACQUIRE k a PX 30 WATCHDOG");
        counters.grown();
        until("it is renewed", || counters.grown() == "watchdog_renewals 1");
        a.call("LOCK.RELEASE k a");
        // A call is refused with `DEADLOCK`.
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut c = world.client();
        c.call("LOCK.ACQUIRE k2 c PX 100000");
        counters.grown();
        let _waits = world.waiting("LOCK.ACQUIRE k2 a BLOCK 0");
        assert!(c.call("LOCK.ACQUIRE k c BLOCK 0").starts_with("DEADLOCK"));
        assert_eq!(counters.grown(), "deadlocks 1");
    });
}

fn wait_and_hold_times_are_measured(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let times = |client: &mut Client, of: &str| {
            let all = fields(client);
            ["p50", "p99", "p999", "max"].map(|which| all[&format!("lock_{of}_us_{which}")])
        };
        assert_eq!((times(&mut a, "wait"), times(&mut a, "hold")), ([0; 4], [0; 4]));
        // An uncontended hold is not measured.
        a.call("LOCK.ACQUIRE k a PX 100000");
        a.call("LOCK.RELEASE k a");
        assert_eq!(times(&mut a, "hold"), [0; 4]);
        for _ in 0..99 {
            a.call("LOCK.ACQUIRE k a PX 100000 WATCHDOG");
            a.call("LOCK.RELEASE k a");
        }
        a.call("LOCK.ACQUIRE k a PX 100000 WATCHDOG");
        // The times are accurate to 1 %. The wait takes 50 ms, the timeout of the call.
        assert_eq!(a.call("LOCK.ACQUIRE k b BLOCK 50"), "nil");
        assert_eq!(times(&mut a, "wait"), [50_175; 4], "{:?}", times(&mut a, "wait"));
        a.call("LOCK.RELEASE k a");
        let [p50, p99, _, max] = times(&mut a, "hold");
        assert!(0 < p50 && p50 <= p99 && p99 <= max && max >= 50_000, "{p50} {p99} {max}");
        // A hold that was granted to a waiter is measured, too.
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(b.recv(), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k c BLOCK 120"), "nil");
        b.call("LOCK.RELEASE k b");
        let [.., max] = times(&mut a, "hold");
        assert!(max >= 120_000, "{max}");
        let [.., max] = times(&mut a, "wait");
        assert!(max >= 120_000, "{max}");
    });
}

fn gauges_have_maxima(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let gauges = |client: &mut Client| {
            let all = fields(client);
            let names = ["waiters", "contended_locks", "watchdogs", "ephemeral_holds"];
            let now_and_max = |name| ["", "_max"].map(|max| all[&format!("lock_{name}{max}")]);
            names.map(now_and_max).concat()
        };
        assert_eq!(gauges(&mut a), [0; 8]);
        let before = fields(&mut a)["lock_known_locks_max"];
        a.call("LOCK.ACQUIRE k1 a PX 100000 WATCHDOG");
        a.call("LOCK.ACQUIRE k2 a PX 100000 WATCHDOG EPHEMERAL");
        let waiting: Vec<Client> =
            ["k1 b", "k1 c", "k2 d"].map(|who| world.waiting(&format!("LOCK.ACQUIRE {who} BLOCK 0"))).into();
        assert_eq!(gauges(&mut a), [3, 3, 2, 2, 2, 2, 1, 1]);
        until("the longest wait is 20 ms", || fields(&mut a)["lock_longest_wait_ms"] >= 20);
        let all = fields(&mut a);
        assert_eq!(all["lock_known_held_locks"], 2);
        drop(waiting);
        until("there are no waiters", || gauges(&mut a) == [0, 3, 0, 2, 2, 2, 1, 1]);
        assert_eq!(fields(&mut a)["lock_longest_wait_ms"], 0);
        a.call("LOCK.RELEASE k1 a");
        a.call("LOCK.RELEASE k2 a");
        assert_eq!(gauges(&mut a), [0, 3, 0, 2, 0, 2, 0, 1]);
        let all = fields(&mut a);
        assert_eq!((all["lock_known_held_locks"], all["lock_known_locks_max"]), (0, before.max(2)));
    });
}

fn top_lists_the_longest_waits(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.TOP"), "[]");
        for (key, ms) in [("cold", 10), ("hot", 40), ("cold", 10), ("hot", 40), ("warm", 30)] {
            a.call(&format!("LOCK.ACQUIRE {key} a PX 100000"));
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} b BLOCK {ms}")), "nil");
        }
        let hot = "[key, hot, waits, 2, waited, 80, longest, 40, error, 0]";
        let warm = "[key, warm, waits, 1, waited, 30, longest, 30, error, 0]";
        let cold = "[key, cold, waits, 2, waited, 20, longest, 10, error, 0]";
        assert_eq!(a.call("LOCK.TOP"), format!("[{hot}, {warm}, {cold}]"));
        assert_eq!(a.call("LOCK.TOP COUNT 1"), format!("[{hot}]"));
        a.call("HELLO 3");
        assert!(a.call("LOCK.TOP COUNT 1").starts_with("[{key: hot, waits: 2, waited: 80, "));
        a.call("SELECT 5");
        assert_eq!(a.call("LOCK.TOP"), "[]");
        assert!(a.call("LOCK.TOP COUNT 0").starts_with("ERR COUNT is out of range"));
        assert!(a.call("LOCK.TOP hot").starts_with("ERR syntax error, unknown option 'hot'"));
        // The list has at most 128 locks, and no names above 1,024 bytes.
        a.call("SELECT 0");
        let long = "x".repeat(1025);
        a.call(&format!("LOCK.ACQUIRE {long} a PX 100000"));
        assert_eq!(a.call(&format!("LOCK.ACQUIRE {long} b BLOCK 1")), "nil");
        assert!(!a.call("LOCK.TOP").contains(&long));
        for at in 0..200 {
            a.call(&format!("LOCK.ACQUIRE {at} a PX 100000"));
            a.call(&format!("LOCK.ACQUIRE {at} b BLOCK 1"));
        }
        assert_eq!(a.call("LOCK.TOP COUNT 1000").matches("key: ").count(), 128);
        assert!(a.call("LOCK.TOP COUNT 1").starts_with("[{key: hot, waits: 2, waited: 80, "));
    });
}

/// `SLOWLOG`, `LATENCY` and `commandstats` report how long commands have occupied the server.
fn waits_do_not_count_as_work(flavor: Flavor) {
    let args = ["--slowlog-log-slower-than", "100000", "--latency-monitor-threshold", "100"];
    in_world_with(flavor, &args, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        for _ in 0..2 {
            assert_eq!(a.call("LOCK.ACQUIRE k b BLOCK 300"), "nil");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
            assert_eq!(a.call("LOCK.ACQUIRE k c BLOCK 300"), "nil");
            a.call("LOCK.RELEASE k a");
            assert_eq!(b.recv(), "1");
            b.call("LOCK.RELEASE k b");
            a.call("LOCK.ACQUIRE k a PX 100000");
        }
        let slow = a.call("SLOWLOG GET 128");
        assert!(!slow.contains("LOCK."), "{slow}");
        let late = a.call("LATENCY LATEST");
        assert!(!late.contains("command"), "{late}");
        let stats = a.call("INFO commandstats").to_lowercase();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_lock.acquire:")).unwrap();
        let per_call = line.split_once("usec_per_call=").unwrap().1.split(',').next().unwrap();
        assert!(per_call.parse::<f64>().unwrap() < 50_000.0, "{line}");
    });
}

fn replicas_say_that_they_are_replicas(flavor: Flavor) {
    let [primary, replica] = [(); 2].map(|()| Server::with_module(flavor, &[]));
    replica.follow(&primary);
    let (mut a, mut there) = (primary.client(), replica.client());
    a.call("LOCK.ACQUIRE k a PX 100000");
    let _b = primary.waiting("LOCK.ACQUIRE k b BLOCK 0");
    until("the replica has the lock", || there.call("HGETALL k") == "[a, 1]");
    let state = |client: &mut Client| {
        let all = fields(client);
        ["is_replica", "waiters", "grants_at_once"].map(|name| all[&format!("lock_{name}")])
    };
    assert_eq!((state(&mut a), state(&mut there)), ([0, 1, 1], [1, 0, 0]));
    assert_eq!(there.call("LOCK.WAITERS k"), "[]");
}
