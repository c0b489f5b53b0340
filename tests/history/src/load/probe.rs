// SPDX-License-Identifier: MIT

//! Reads the holders and waiters of one lock after another, so that the checker knows since when each owner has been waiting.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::link::Line;
use super::Shared;
use crate::record::Command;

const PAUSE: Duration = Duration::from_millis(1);

pub(super) fn run(shared: &Shared, client: u32) {
    let mut line = Line::new(shared, client);
    while !shared.is_over() {
        let generation = shared.generation.load(Ordering::Relaxed);
        for slot in 0..shared.settings.keys {
            let key = shared.key_of(generation, slot);
            line.call(Command::Waiters { key: key.clone() }, None);
            line.call(Command::Info { key }, None);
            // Some clients still use the previous generation of locks.
            if let Some(before) = generation.checked_sub(1) {
                line.call(Command::Waiters { key: shared.key_of(before, slot) }, None);
            }
            thread::sleep(PAUSE);
        }
    }
}
