// SPDX-License-Identifier: MIT

//! The longest time for which a busy server does not reply to another client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::caller::Caller;
use super::server::Server;
use super::{packed, Outcome};

/// Returns the longest time that a `PING` takes while `what` runs, in microseconds.
pub fn stall(server: &mut Server, what: impl FnOnce(&mut Server) -> Outcome<()>) -> Outcome<f64> {
    let mut pinger = Caller::connect(server)?;
    let ping = packed("PING");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let longest = scope.spawn(|| -> Outcome<Duration> {
            let mut longest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                let sent = Instant::now();
                pinger.send(&ping)?;
                pinger.reply()?;
                longest = longest.max(sent.elapsed());
            }
            Ok(longest)
        });
        let outcome = what(server);
        done.store(true, Ordering::Relaxed);
        let longest = longest.join().map_err(|_| "a thread has panicked")??;
        outcome?;
        Ok(longest.as_secs_f64() * 1e6)
    })
}
