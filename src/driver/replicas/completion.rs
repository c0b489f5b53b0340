// SPDX-License-Identifier: MIT

//! Completes calls that wait for replicas.

use crate::core::{CallNumber, Decision, WaiterId};
use crate::driver::clients::blocked_clients::WaitOutcome;
use crate::driver::replicas::replica_waits::{AwaitedWrite, ReplicaRequirement, ReplicaWaitEnd};
use crate::driver::state::with;
use crate::server::replication::replicas::{self, Progress};
use crate::server::Ctx;

/// Completes calls and requests acknowledgements from the replicas. Runs after the event loop has executed
/// its input and before it writes to clients and replicas.
pub(crate) fn on_iteration_end(ctx: Ctx<'_>, (): ()) {
    if with(ctx, |driver| driver.replica_waits.len() == 0) {
        return;
    }
    let progress = Progress::of(ctx);
    end_calls(ctx, progress.as_ref());
    let Some(progress) = progress else { return };
    // Nothing may be sent while clients are paused. Replicas then report by themselves, once per second.
    let can_ask = !ctx.is_paused();
    let asks = with(ctx, |driver| {
        driver.replica_waits.assign_offsets(&progress);
        can_ask && driver.replica_waits.take_question()
    });
    if asks {
        replicas::ask_replicas(ctx);
    }
}

/// Requires that replicas acknowledge the grant of this wait before its session gets the event.
pub(crate) fn await_replicas_of_session(
    ctx: Ctx<'_>,
    id: WaiterId,
    requirement: ReplicaRequirement,
    number: CallNumber,
) {
    with(ctx, |driver| driver.replica_waits.insert_of_session(id, requirement, number));
}

/// Ends the calls whose deadline has passed. Called by the timer.
pub(crate) fn end_overdue(ctx: Ctx<'_>) {
    let now = ctx.now().mono;
    if with(ctx, |driver| driver.replica_waits.first_deadline()).is_some_and(|at| at <= now) {
        end_calls(ctx, Progress::of(ctx).as_ref());
    }
}

/// Ends the calls whose outcome is decided: acknowledged, or impossible to acknowledge in time.
fn end_calls(ctx: Ctx<'_>, progress: Option<&Progress>) {
    with(ctx, |driver| {
        let (mut any_revoked, mut any_of_session) = (false, false);
        for (id, written, end) in driver.replica_waits.end(progress, ctx.now().mono) {
            let is_in_flight = driver.locks.is_in_flight(id);
            if let Some(number) = driver.replica_waits.remove_of_session(id) {
                match (written, end) {
                    (AwaitedWrite::Grant(granted), ReplicaWaitEnd::Acknowledged) if is_in_flight => {
                        driver.locks.tell_session(number, id, granted);
                    }
                    (_, ReplicaWaitEnd::Missed { .. }) if is_in_flight => {
                        driver.revoke(id, "noreplicas");
                        driver.locks.note_unacknowledged(number);
                        driver.stats.replicas_missed += 1;
                        any_revoked = true;
                    }
                    // The session has ended, or knows that the hold has.
                    _ => {}
                }
                any_of_session = true;
                continue;
            }
            let ended = match (written, end) {
                (_, ReplicaWaitEnd::Demoted) => WaitOutcome::Decided(Decision::Demoted),
                (AwaitedWrite::Grant(_), _) if !is_in_flight => WaitOutcome::HoldLost,
                (AwaitedWrite::Grant(granted), ReplicaWaitEnd::Acknowledged) => WaitOutcome::Decided(granted),
                (AwaitedWrite::Hold(standing), ReplicaWaitEnd::Acknowledged) => {
                    WaitOutcome::HoldAcknowledged(standing)
                }
                (AwaitedWrite::Grant(_), ReplicaWaitEnd::Missed { got, of }) => {
                    driver.revoke(id, "noreplicas");
                    any_revoked = true;
                    WaitOutcome::NotAcknowledged { got, of, revoked: true }
                }
                (AwaitedWrite::Hold(_), ReplicaWaitEnd::Missed { got, of }) => {
                    WaitOutcome::NotAcknowledged { got, of, revoked: false }
                }
            };
            driver.stats.replicas_missed += usize::from(matches!(ended, WaitOutcome::NotAcknowledged { .. }));
            driver.blocked.end(id, ended);
        }
        if any_of_session {
            driver.answer_woken_polls(ctx.now());
        }
        if any_revoked || any_of_session {
            driver.schedule_soon(ctx);
        }
    });
}
