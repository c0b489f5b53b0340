// SPDX-License-Identifier: MIT

//! Contract tests of the packages in `clients/`. Plays each scenario of `clients/spec` against the driver of each package, on a
//! separate server, with faults.
//!
//! `make test` plays the scenarios with one package for threads of each protocol. The long tests play them with every package.

mod stage;

use stage::play;

/// Defines a module for each scenario, with a test for each package.
macro_rules! scenarios {
    ([$($name:ident),* $(,)?], $packages:tt) => {
        use std::collections::BTreeMap;
        use std::sync::OnceLock;

        use serde_json::Value;

        fn scenarios() -> &'static BTreeMap<String, Value> {
            static SCENARIOS: OnceLock<BTreeMap<String, Value>> = OnceLock::new();
            SCENARIOS.get_or_init(|| {
                serde_json::from_str(include_str!("../../../clients/spec/scenarios.json")).expect("not a list of scenarios")
            })
        }

        #[test]
        fn all_scenarios_are_played() {
            let mut played = vec![$(stringify!($name)),*];
            played.sort_unstable();
            assert!(scenarios().keys().eq(played), "this list differs from the file");
        }
        $(scenarios!(@scenario $name, $packages);)*
    };
    (@scenario $name:ident, { $($test:ident: $package:ident),* $(,)? }) => {
        mod $name {
            $(
                #[test]
                fn $test() {
                    super::play(&super::scenarios()[stringify!($name)], crate::support::driver::Package::$package);
                }
            )*
        }
    };
}

scenarios!([
    s01_a_try_gets_a_free_lock,
    s02_a_busy_lock_is_not_an_error,
    s03_five_are_served_in_order,
    s04_a_timed_out_wait_leaves_the_queue,
    s05_a_cancelled_wait_leaves_the_queue,
    s06_a_cancel_during_the_grant_leaves_nothing,
    s07_a_long_wait_does_not_poll,
    s08_waits_delay_no_other_call,
    s09_a_renewed_hold_outlives_its_lease,
    s10_a_renewed_hold_survives_a_busy_process,
    s11_a_renewed_hold_ends_with_its_process,
    s12_a_loss_is_reported_at_once,
    s13_a_silent_network_loses_by_local_clock,
    s14_a_hold_with_a_lease_outlives_its_connection,
    s15_a_wait_survives_a_broken_connection,
    s16_a_restarted_server_keeps_the_hold,
    s17_a_release_survives_a_lost_reply,
    s18_an_acquire_survives_a_lost_reply,
    s19_a_release_may_be_repeated,
    s20_the_bodys_error_is_passed_on,
    s21_a_hold_is_handed_to_another_process,
    s22_tokens_grow,
    s23_readers_share_and_permits_are_counted,
    s24_a_renewed_hold_ends_at_its_limit,
    s25_errors_are_distinct,
    s26_two_packages_count_together,
    s27_only_the_holder_makes_guarded_writes,
    s28_a_close_leaves_nothing,
    s29_few_permissions_suffice,
    s30_a_listener_gets_waits_and_holds,
    s31_waits_and_holds_survive_a_failover,
    s32_a_broken_connection_loses_nothing,
    s33_jeopardy_ends_with_the_outage,
    s34_a_stalled_server_ends_no_session,
    s35_an_owner_that_blocks_itself_is_told,
    s36_several_locks_are_granted_together,
    s37_a_release_waits_until_the_server_can_write,
    s38_impatient_waiters_leave_nothing,
    s39_a_late_call_does_no_harm,
    s40_a_slow_script_ends_nothing,
    s41_failing_connections_cause_no_storm,
    s42_clients_reconnect_at_random_times,
], {
    python: Python,
    long_python_async: PythonAsync,
    rust: Rust,
    long_rust_blocking: RustBlocking,
    long_go: Go,
    node_ioredis: NodeIoredis,
    long_node_redis: NodeRedis,
    long_java_lettuce: JavaLettuce,
    long_java_jedis: JavaJedis,
});
