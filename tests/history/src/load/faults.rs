// SPDX-License-Identifier: MIT

//! What is done to the clients by commands: killed, unblocked, paused.

use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::RngExt;

use super::Shared;
use crate::record::{Disturbance, Fault, Record, MS};
use crate::wire::Wire;

pub(super) fn run(shared: &Shared, client: u32) {
    let faults = shared.settings.faults;
    let kinds: Vec<u32> = [faults.kill, faults.unblock, faults.pause]
        .iter()
        .zip(0..)
        .filter(|(on, _)| **on)
        .map(|(_, n)| n)
        .collect();
    let mut rng = shared.rng(client);
    let mut wire = None;
    while !shared.is_over() {
        thread::sleep(Duration::from_millis(rng.random_range(2..40)));
        let Some(kind) = kinds.choose(&mut rng).copied() else { return };
        // A pause holds everybody up, so it is rarer.
        if kind == 2 && rng.random_range(0..4) > 0 {
            continue;
        }
        let victim = shared.open.lock().unwrap_or_else(PoisonError::into_inner).choose(&mut rng).copied();
        let Some(server_id) = victim else { continue };
        let length = rng.random_range(5..60i64);
        let how = if rng.random() { "TIMEOUT" } else { "ERROR" };
        let what = if rng.random() { "WRITE" } else { "ALL" };
        let (command, what, lasts) = match kind {
            0 => (format!("CLIENT KILL ID {server_id}"), Disturbance::Kill { server_id }, 0),
            1 => (format!("CLIENT UNBLOCK {server_id} {how}"), Disturbance::Unblock { server_id }, 0),
            _ => (format!("CLIENT PAUSE {length} {what}"), Disturbance::Pause, length * MS),
        };
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        if wire.is_none() {
            wire = Wire::connect(shared.server()).ok();
        }
        let Some(open) = wire.as_mut() else { continue };
        let from = shared.recorder.now();
        let answer = open.send(&words, None).ok().and_then(|()| open.receive(Duration::from_secs(20)).ok());
        if answer.is_none() {
            wire = None;
        }
        let until = shared.recorder.now() + lasts;
        shared.recorder.add(Record::Fault(Fault { what, from, until }));
    }
}
