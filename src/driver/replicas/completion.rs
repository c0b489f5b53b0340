// SPDX-License-Identifier: MIT

//! Completes calls that wait for replicas.

use crate::core::Decision;
use crate::driver::clients::blocked_clients::WaitOutcome;
use crate::driver::replicas::replica_waits::{AwaitedWrite, ReplicaWaitEnd};
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
        let mut any_revoked = false;
        for (id, written, end) in driver.replica_waits.end(progress, ctx.now().mono) {
            let is_in_flight = driver.locks.is_in_flight(id);
            let ended = match (written, end) {
                (_, ReplicaWaitEnd::Demoted) => WaitOutcome::Decided(Decision::Demoted),
                (AwaitedWrite::Grant(_), _) if !is_in_flight => WaitOutcome::HoldLost,
                (AwaitedWrite::Grant(granted), ReplicaWaitEnd::Acknowledged) => WaitOutcome::Decided(granted),
                (AwaitedWrite::Hold(standing), ReplicaWaitEnd::Acknowledged) => {
                    WaitOutcome::HoldAcknowledged(standing)
                }
                (AwaitedWrite::Grant(_), ReplicaWaitEnd::Missed { got, of }) => {
                    driver.revoke(id);
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
        if any_revoked {
            driver.schedule_soon(ctx);
        }
    });
}
