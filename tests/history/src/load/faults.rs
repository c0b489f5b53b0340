// SPDX-License-Identifier: MIT

//! Disturbs clients by commands: kills, unblocks and pauses.

use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::RngExt;

use super::Shared;
use crate::record::{Disturbance, Fault, Record};
use crate::wire::Wire;

/// Requested length of a write pause in milliseconds; the pause is ended earlier.
const PAUSE_LIMIT: u32 = 60_000;

pub(super) fn run(shared: &Shared, client: u32) {
    let faults = shared.settings.faults;
    let kinds: Vec<u32> = [faults.kill, faults.unblock, faults.pause]
        .iter()
        .zip(0..)
        .filter(|(on, _)| **on)
        .map(|(_, n)| n)
        .collect();
    let mut rng = shared.rng(client);
    let mut wire: Option<Wire> = None;
    while !shared.is_over() {
        thread::sleep(Duration::from_millis(rng.random_range(2..40)));
        let Some(kind) = kinds.choose(&mut rng).copied() else { return };
        // A pause stops every client, so pauses are rarer than the other faults.
        if kind == 2 && rng.random_range(0..4) > 0 {
            continue;
        }
        let alone = shared.exclude_other_faults();
        let victim = shared.open.lock().unwrap_or_else(PoisonError::into_inner).choose(&mut rng).copied();
        let Some(server_id) = victim else { continue };
        let length = rng.random_range(5..60);
        let outcome = if rng.random() { "TIMEOUT" } else { "ERROR" };
        let scope = if rng.random() { "WRITE" } else { "ALL" };
        let (command, what, lasts) = match kind {
            0 => (format!("CLIENT KILL ID {server_id}"), Disturbance::Kill { server_id }, 0),
            1 => (format!("CLIENT UNBLOCK {server_id} {outcome}"), Disturbance::Unblock { server_id }, 0),
            _ if scope == "ALL" => (format!("CLIENT PAUSE {length} ALL"), Disturbance::Pause, length),
            _ => (format!("CLIENT PAUSE {PAUSE_LIMIT} WRITE"), Disturbance::Pause, length),
        };
        let mut ask = |command: &str| {
            let mut open = wire.take().or_else(|| Wire::connect(shared.server()).ok())?;
            open.ask(command)?;
            wire = Some(open);
            Some(())
        };
        let from = shared.recorder.now();
        let done = ask(&command);
        if lasts > 0 && done.is_some() {
            thread::sleep(Duration::from_millis(lasts));
            // Unblocking a client that a pause holds back crashes some servers, with or without the module, so wait until
            // the pause has ended. A pause of all commands also delays the commands of this connection until it ends.
            let end = if scope == "ALL" { "PING" } else { "CLIENT UNPAUSE" };
            while ask(end).is_none() && !shared.is_over() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let until = shared.recorder.now();
        shared.recorder.add(Record::Fault(Fault { what, from, until }));
        drop(alone);
    }
}
