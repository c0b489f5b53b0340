//! The tests of what the benchmarks calculate with: a benchmark itself has no test harness.

#[path = "../benches/support/mod.rs"]
mod support;

use support::callgrind::slope;
use support::samples::{time, Samples};
use support::wire::Wire;

#[test]
fn percentiles_are_values_that_were_measured() {
    let samples = Samples((1..=1000).rev().map(f64::from).collect());
    assert_eq!(samples.median(), 501.0);
    assert_eq!(samples.p99(), 991.0);
    assert_eq!(samples.max(), 1000.0);
    assert_eq!(Samples(vec![7.0]).p99(), 7.0);
    assert!(Samples::default().median().is_nan());
}

#[test]
fn a_distribution_rises_to_one() {
    let points = Samples(vec![3.0, 1.0, 2.0, 2.0]).distribution();
    assert_eq!(points, [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
}

#[test]
fn times_are_written_in_their_unit() {
    let written = [9.94, 850.4, 1250.0, f64::NAN].map(time);
    assert_eq!(written, ["9.9 µs", "850 µs", "1.25 ms", "-"]);
}

/// Whatever part of it has come, there is no reply before its end, and what follows does not matter.
fn ends(wire: Wire, reply: &[u8]) {
    for length in 0..reply.len() {
        assert!(matches!(wire.first_reply(&reply[..length]), Ok(None)), "{length} bytes");
    }
    let more = [reply, b"+PONG\r\n"].concat();
    assert!(matches!(wire.first_reply(&more), Ok(Some(end)) if end == reply.len()));
}

#[test]
fn replies_of_redis_end_where_they_end() {
    ends(Wire::Redis, b"+OK\r\n");
    ends(Wire::Redis, b":-1\r\n");
    ends(Wire::Redis, b"$-1\r\n");
    ends(Wire::Redis, b"$4\r\na\r\nb\r\n");
    ends(Wire::Redis, b"*0\r\n");
    ends(Wire::Redis, b"*3\r\n$7\r\nmessage\r\n*2\r\n:1\r\n$-1\r\n$1\r\n0\r\n");
    assert!(Wire::Redis.first_reply(b"-ERR no\r\n").is_err());
}

#[test]
fn replies_of_postgres_end_when_it_is_ready() {
    ends(Wire::Postgres, b"2\0\0\0\x04C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I");
    assert!(Wire::Postgres.first_reply(b"E\0\0\0\x05\0").is_err());
}

#[test]
fn a_slope_leaves_out_what_start_and_end_cost() {
    let total = |calls: u32| (calls, 30_000_000 + 15_000 * u64::from(calls));
    assert_eq!(slope(total(300), total(2300)), 15_000.0);
}
