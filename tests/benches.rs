// SPDX-License-Identifier: MIT

//! Tests of the calculations and parsers of the benchmarks, which have no test harness of their own.

#[path = "../benches/support/mod.rs"]
mod support;

#[path = "../examples/hot_lock/queue.rs"]
mod queue;

#[path = "../examples/fleet/shard.rs"]
#[allow(dead_code)] // The benchmark uses more.
mod shard;

use std::process::Command;
use std::time::Duration;

use queue::{waits, Load, Request, Spread};
use shard::{recover, Costs, Failure, Pauses, Storm};
use support::callgrind::Part;
use support::program::Program;
use support::race_result::{self, RaceAnswer};
use support::samples::{time, Samples};
use support::system_calls;
use support::wire::Wire;

#[test]
fn percentiles_are_measured_values() {
    let samples = Samples((1..=1000).rev().map(f64::from).collect());
    assert_eq!(samples.median(), 501.0);
    assert_eq!(samples.p99(), 991.0);
    assert_eq!(samples.max(), 1000.0);
    assert_eq!(Samples(vec![7.0]).p99(), 7.0);
    assert!(Samples::default().median().is_nan());
}

#[test]
fn distributions_rise_to_one() {
    let points = Samples(vec![3.0, 1.0, 2.0, 2.0]).distribution();
    assert_eq!(points, [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
}

#[test]
fn times_have_a_fitting_unit() {
    let written = [9.94, 850.4, 1250.0, 29_004_000.0, f64::NAN].map(time);
    assert_eq!(written, ["9.9 µs", "850 µs", "1.25 ms", "29.00 s", "-"]);
}

/// Checks that no proper prefix of a reply counts as a reply, and that bytes after the reply do not matter.
fn assert_reply(wire: Wire, reply: &[u8]) {
    for length in 0..reply.len() {
        assert!(matches!(wire.first_reply(&reply[..length]), Ok(None)), "{length} bytes");
    }
    let more = [reply, b"+PONG\r\n"].concat();
    assert!(matches!(wire.first_reply(&more), Ok(Some(end)) if end == reply.len()));
}

#[test]
fn redis_replies_end_at_their_last_byte() {
    assert_reply(Wire::Redis, b"+OK\r\n");
    assert_reply(Wire::Redis, b":-1\r\n");
    assert_reply(Wire::Redis, b"$-1\r\n");
    assert_reply(Wire::Redis, b"$4\r\na\r\nb\r\n");
    assert_reply(Wire::Redis, b"*0\r\n");
    assert_reply(Wire::Redis, b"*3\r\n$7\r\nmessage\r\n*2\r\n:1\r\n$-1\r\n$1\r\n0\r\n");
    assert!(Wire::Redis.first_reply(b"-ERR no\r\n").is_err());
}

#[test]
fn postgres_replies_end_with_ready_for_query() {
    assert_reply(Wire::Postgres, b"2\0\0\0\x04C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I");
    assert!(Wire::Postgres.first_reply(b"E\0\0\0\x05\0").is_err());
}

#[test]
fn profiles_count_calls_of_functions() {
    let profile = "positions: line\nevents: Ir\nsummary: 40\n\n\
        fn=(1) main\n1 5\ncfn=(2) wait for events\ncalls=3 0\n1 20\n\
        fn=(2)\n2 15\ncfn=(3) read\ncalls=4 0\n2 5\n\
        fn=(1)\n3 1\ncfn=(2)\ncalls=2 0\n3 9\n\ntotals: 41\n";
    let part = Part::parse(profile).unwrap();
    assert_eq!(part.instructions, 41);
    assert_eq!(["wait for events", "read", "write"].map(|name| part.calls_of(name)), [5, 4, 0]);
    assert!(Part::parse("events: Ir\n").is_err());
}

#[test]
fn race_answers_are_parsed() {
    let time = Duration::from_secs(2);
    let race = |locks| {
        let answer = RaceAnswer::parse("12 8 1000,2000,3500 500").unwrap();
        answer.into_race(race_result::Load { clients: 2, locks }, Duration::from_millis(6), time)
    };
    assert_eq!((race(1).grants_per_second, race(1).cpu_per_grant), (4.0, 500.0));
    assert_eq!((race(1).hand_overs, race(1).waits), (Samples(vec![1.0, 2.0, 3.5]), Samples(vec![0.5])));
    // Hand-overs between different locks mean nothing.
    assert_eq!((race(2).hand_overs, race(2).waits), (Samples::default(), Samples(vec![0.5])));
    assert_eq!(RaceAnswer::parse("1 0 - -").unwrap().hand_overs, Samples::default());
    for wrong in ["", "1 2 3", "1 2 - x", "unknown request"] {
        assert!(RaceAnswer::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn programs_answer_with_lines() {
    let mut cat = Program::start(&mut Command::new("cat")).unwrap();
    cat.send("\nlocked").unwrap();
    cat.expect("locked").unwrap();
    assert!(cat.is_silent());
    cat.send("refused").unwrap();
    assert!(cat.expect("locked").is_err());
    cat.kill().unwrap();
    assert!(cat.line().is_err());
}

#[test]
fn strace_tables_are_parsed() {
    let table = "    calls syscall\n--------- ----------------\n      300 epoll_wait\n        1 getpid\n\
        --------- ----------------\n      301 total\n";
    let counts: Vec<_> = system_calls::parse(table).unwrap().into_iter().collect();
    assert_eq!(counts, [("epoll_wait".to_owned(), 300), ("getpid".to_owned(), 1)]);
    let strange = "---\n 100.00 3 epoll_wait\n---\n";
    assert!(system_calls::parse(strange).is_err());
}

#[test]
fn round_trips_delay_the_next_grant() {
    let request = |at: f64, hold: f64| Request { at, hold };
    // A round trip takes four seconds: two in each direction.
    let requests = [request(0.0, 10.0), request(1.0, 1.0), request(40.0, 1.0), request(40.5, 1.0)];
    // The second request is granted when the first release arrives, at 2 + 2 + 10 + 2. Its client gets the grant at 18.
    assert_eq!(waits(&requests, 4.0), [4.0, 17.0, 4.0, 8.5]);
}

/// Compares with the Pollaczek–Khinchine formula for a queue with one server and independent arrivals.
#[test]
fn waits_match_queueing_theory() {
    for (spread, squares) in [(Spread::None, 1.0), (Spread::Exponential, 2.0)] {
        for utilisation in [0.3, 0.6, 0.8] {
            let load = Load { per_second: utilisation / 0.01, hold: 0.01, spread, round_trip: 0.0 };
            assert!((load.utilisation() - utilisation).abs() < 1e-9);
            let waits = waits(&load.requests(1_000_000, 7), 0.0);
            let mean = waits.iter().sum::<f64>() / waits.len() as f64;
            let theory = utilisation * 0.01 * squares / (2.0 * (1.0 - utilisation));
            assert!((mean / theory - 1.0).abs() < 0.05, "{spread:?} {utilisation}: {mean} {theory}");
        }
    }
}

/// A crashed shard with a thousand sessions and one hold each, whose clients reconnect after 50 ms, all at once.
const STORM: Storm = Storm {
    failure: Failure::Crash,
    outage: 0.0,
    spread: 0.0,
    stall: 0.0,
    sessions: 1_000,
    holds: 1,
    round_trip: 0.0,
    backlog: 1_000,
    costs: Costs { connect: 10e-6, open: 20e-6, declare: 30e-6, heartbeat: 0.0 },
    pauses: Pauses::WITHOUT_JITTER,
    ttl: 30.0,
    grace: 3.0,
    lease: 30.0,
};

#[test]
fn sessions_are_resumed_one_after_the_other() {
    let recovery = recover(STORM, 1);
    assert!((recovery.total() - (0.05 + 1_000.0 * 60e-6)).abs() < 1e-9, "{}", recovery.total());
    assert_eq!((recovery.resumed.len(), recovery.longest_queue), (1_000, 1_000));
    assert_eq!((recovery.dropped, recovery.given_up, recovery.in_jeopardy, recovery.lost), (0, 0, 0, 0));
    // A server that is busy at first begins later. Its kernel accepts meanwhile.
    let recovery = recover(Storm { stall: 0.5, spread: 0.4, ..STORM }, 1);
    assert!((recovery.total() - (0.5 + 1_000.0 * 60e-6)).abs() < 1e-9, "{}", recovery.total());
    // Sessions that continue need no `OPEN` and no declaration.
    let recovery = recover(Storm { failure: Failure::Connections, ..STORM }, 1);
    assert!((recovery.total() - (0.05 + 1_000.0 * 10e-6)).abs() < 1e-9, "{}", recovery.total());
}

#[test]
fn jitter_keeps_accept_queues_short() {
    let storm = Storm { backlog: 100, ..STORM };
    let recovery = recover(storm, 1);
    // All but a hundred requests come again after a second, and then all but two hundred.
    assert!(recovery.dropped >= 900 + 800, "{}", recovery.dropped);
    assert!(recovery.given_up >= 800 && recovery.total() > 2.0, "{} s", recovery.total());
    let pauses = Pauses { extra: 1.0, ..storm.pauses };
    let recovery = recover(Storm { pauses, ..storm }, 1);
    assert_eq!((recovery.dropped, recovery.given_up), (0, 0));
    assert!(recovery.longest_queue < 20 && recovery.total() < 1.1, "{}", recovery.longest_queue);
}

#[test]
fn abandoned_attempts_cost_processor_time() {
    let costs = Costs { open: 2e-3, ..STORM.costs };
    let recovery = recover(Storm { costs, ..STORM }, 1);
    let useful = 1_000.0 * (10e-6 + 2e-3 + 30e-6);
    assert!(recovery.given_up > 0 && recovery.total() > 1.2 * useful, "{} s", recovery.total());
    assert_eq!((recovery.resumed.len(), recovery.interrupted), (1_000, 0));
}

/// Leases end 20 to 30 s after the failure.
#[test]
fn late_sessions_are_lost() {
    let lost = |storm: Storm| recover(storm, 1).lost;
    // The first attempt that succeeds begins after 25.55 s.
    let late = lost(Storm { outage: 25.0, ..STORM });
    assert!((500..=610).contains(&late), "{late}");
    assert_eq!(recover(Storm { outage: 5.0, ..STORM }, 1).in_jeopardy, 1_000);
    assert_eq!(lost(Storm { outage: 19.0, ..STORM }), 0);
    assert_eq!(lost(Storm { outage: 19.0, ttl: 15.0, ..STORM }), 1_000);
    // Sessions that continue have only their grace.
    let grace = Storm { failure: Failure::Connections, grace: 0.05 + 500.5 * 10e-6, ..STORM };
    assert_eq!(lost(grace), 1_000);
    let costs = Costs { connect: 0.0, heartbeat: 10e-6, ..STORM.costs };
    assert!((300..700).contains(&lost(Storm { costs, ..grace })));
}
