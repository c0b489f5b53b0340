// SPDX-License-Identifier: MIT
//! Each rule is needed: without it, some history violates a property. The numbers are those of README.md.

use std::time::Duration;

use redis_lock_protocol::properties::Breach;
use redis_lock_protocol::rules::{Rule, Rules};
use redis_lock_protocol::scenario::{Scenario, Start};
use redis_lock_protocol::scenarios;
use redis_lock_protocol::search::{search, Limits};

/// Asserts that the search finds `expected` without `rule`.
fn assert_needed(rule: Rule, scenario: Scenario, expected: Breach) {
    assert_all_needed(&[rule], scenario, expected);
}

/// Asserts that the search finds `expected` without any of `removed`.
fn assert_all_needed(removed: &[Rule], scenario: Scenario, expected: Breach) {
    let limits = Limits { steps: 9_000_000, time: Duration::from_secs(300) };
    let rules = removed.iter().fold(Rules::all(), |rules, rule| rules.without(*rule));
    let mut scenario = Scenario { rules, ..scenario };
    if expected == Breach::TwoOwners {
        // A safe hold that the server no longer has comes first. The search goes on to the second owner.
        scenario.unchecked = vec![Breach::SafeHoldNotHeld];
    }
    let outcome = search(&scenario, limits);
    let Some((breach, trace)) = outcome.violation else {
        panic!("{}: {} states hold without {removed:?}", scenario.name, outcome.states);
    };
    assert_eq!(breach, expected, "without {removed:?}:\n{trace}");
}

/// With a long lease, a grant in flight is overdue before it is too old to be delivered.
fn overdue_before_stale(scenario: Scenario) -> Scenario {
    Scenario { obeys_long_lease: true, in_flight_limit: 1, ..scenario }
}

#[test]
fn without_r1_a_safe_hold_is_revoked() {
    let scenario = scenarios::one().with(|budgets| budgets.rivals = 2).from(Start::Waiting(1));
    let scenario = overdue_before_stale(scenario);
    assert_needed(Rule::RevokeAfterSilence, scenario, Breach::TwoOwners);
}

#[test]
fn without_r1_a_stale_grant_is_delivered() {
    let scenario = scenarios::one().with(|budgets| budgets.rivals = 2).from(Start::Waiting(1));
    assert_needed(Rule::RevokeStaleGrants, scenario, Breach::TwoOwners);
}

#[test]
fn without_r2_open_confirms_a_lost_hold() {
    let scenario = scenarios::one().with(|budgets| budgets.rivals = 2).from(Start::Waiting(1));
    assert_needed(Rule::OnlyEventsConfirm, scenario, Breach::TwoOwners);
}

#[test]
fn without_r2_a_full_answer_hides_a_loss() {
    let scenario = scenarios::stall_of_two().from(Start::Held(2));
    assert_needed(Rule::FullAnswerConfirmsNothing, scenario, Breach::TwoOwners);
}

#[test]
fn without_r3_undeclared_holds_count_as_safe() {
    let scenario = scenarios::restart().from(Start::Held(1));
    assert_needed(Rule::DeclareBeforeEvents, scenario, Breach::TwoOwners);
}

#[test]
fn without_r4_an_expired_lease_is_confirmed() {
    let scenario = scenarios::stall().from(Start::Held(1));
    assert_needed(Rule::RenewBeforeAnswer, scenario, Breach::TwoOwners);
}

#[test]
fn without_r5_a_late_release_frees_another_hold() {
    let scenario = scenarios::restart_two().from(Start::Held(2));
    assert_needed(Rule::ReleaseByNumber, scenario, Breach::ForeignHoldTouched);
}

/// With one owner name per client, each of the two rules covers for the other.
#[test]
fn without_r3_and_r6_a_declaration_takes_another() {
    let removed = [Rule::CompareCounts, Rule::DeclarePlainHolds];
    let scenario = scenarios::plain().from(Start::Held(1));
    assert_all_needed(&removed, scenario, Breach::SafeHoldNotHeld);
}

#[test]
fn without_r7_a_plain_hold_shortens_the_lease() {
    assert_needed(Rule::NeverShortenLease, scenarios::plain(), Breach::TwoOwners);
}

#[test]
fn without_r8_a_session_takes_plain_holds() {
    assert_needed(Rule::ReleaseOnlyEphemeral, scenarios::plain(), Breach::TwoOwners);
}

#[test]
fn without_r9_max_ends_a_safe_hold() {
    assert_needed(Rule::AnnounceMax, scenarios::max(), Breach::TwoOwners);
}

#[test]
fn without_r10_a_replica_loses_a_hold() {
    assert_needed(Rule::LongLease, scenarios::lag(), Breach::TwoOwners);
}

#[test]
fn without_r11_an_early_cancel_is_forgotten() {
    let scenario = scenarios::cancel().from(Start::Up);
    assert_needed(Rule::RememberCancel, scenario, Breach::UnknownHold);
}

#[test]
fn without_r11_an_unanswered_cancel_leaves_a_hold() {
    let scenario = scenarios::cancel().from(Start::Up);
    assert_needed(Rule::RepeatCancel, scenario, Breach::UnknownHold);
}

#[test]
fn without_r11_a_late_copy_follows_nil() {
    let scenario = scenarios::try_once().from(Start::Up);
    assert_needed(Rule::RememberNil, scenario, Breach::UnknownHold);
}

#[test]
fn without_r12_a_revoked_wait_waits_forever() {
    let scenario = scenarios::one().from(Start::Waiting(1));
    assert_needed(Rule::ReplyOutcome, scenario, Breach::WaitLost);
}

#[test]
fn without_r13_an_acquire_counts_twice() {
    let scenario = scenarios::restart().from(Start::Up);
    assert_needed(Rule::DeclareUnanswered, scenario, Breach::GrantedTwice);
}

#[test]
fn without_r14_an_ended_hold_is_safe() {
    let scenario = scenarios::one().from(Start::Up);
    assert_needed(Rule::CheckIdOfReply, scenario, Breach::SafeHoldNotHeld);
}

#[test]
fn without_r15_a_free_lock_stays_idle() {
    let scenario = overdue_before_stale(scenarios::queue().from(Start::Waiting(2)));
    assert_needed(Rule::ServeAfterSuspicion, scenario, Breach::WaitNotServed);
}

#[test]
fn without_r16_the_newest_call_is_late() {
    assert_needed(Rule::OneCounter, scenarios::one(), Breach::NewestCallLate);
}

#[test]
fn without_r17_two_processes_share_an_id() {
    assert_needed(Rule::DropIdAfterFork, scenarios::fork(), Breach::NewestCallLate);
}

#[test]
fn without_r18_a_late_open_revives_a_session() {
    assert_needed(Rule::ServerChoosesId, scenarios::one(), Breach::EndedSessionHadEffect);
}

#[test]
fn without_r19_a_blocked_reader_risks_its_holds() {
    assert_needed(Rule::CapBlockingTime, scenarios::prompt(), Breach::HoldInJeopardy);
}

#[test]
fn without_r20_an_unrenewed_hold_is_confirmed() {
    let scenario = scenarios::refused_writes().from(Start::Held(1));
    assert_needed(Rule::ErrorInsteadOfConfirmation, scenario, Breach::TwoOwners);
}

#[test]
fn without_r21_a_late_hand_over_steals() {
    let scenario = scenarios::hand_over().from(Start::HandedOver);
    assert_needed(Rule::HandOverOnce, scenario, Breach::ForeignHoldTouched);
}

#[test]
fn without_r22_a_low_count_leaves_a_hold() {
    let scenario = scenarios::plain().from(Start::Held(1));
    assert_needed(Rule::ReleaseAfterLowCount, scenario, Breach::UnknownHold);
}

#[test]
fn without_r23_a_late_declaration_binds() {
    let scenario = scenarios::restart_with_long_lease().from(Start::Held(1));
    assert_needed(Rule::RememberRelease, scenario, Breach::UnknownHold);
}

#[test]
fn without_quarantine_two_owners_overlap() {
    let limits = Limits { steps: 9_000_000, time: Duration::from_secs(300) };
    let scenario = Scenario { quarantine: 0, ..scenarios::data_loss() };
    let breach = search(&scenario, limits).violation.map(|(breach, _)| breach);
    assert_eq!(breach, Some(Breach::TwoOwners));
}

#[test]
fn without_replicas_a_failover_loses_a_grant() {
    use redis_lock_protocol::scenario::Replication;
    let limits = Limits { steps: 9_000_000, time: Duration::from_secs(300) };
    let scenario = Scenario {
        replication: Replication::LagsFreely,
        unchecked: vec![Breach::SafeHoldNotHeld],
        ..scenarios::failover()
    };
    let breach = search(&scenario, limits).violation.map(|(breach, _)| breach);
    assert_eq!(breach, Some(Breach::TwoOwners));
}
